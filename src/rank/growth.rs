//! How many threads there are: started when the last idle one is about to go into a handler, gone when they
//! have been idle for long.

use super::State;
use crate::worker::Worker;

impl State {
    /// A thread that was started for [`Errands::recruit`](super::Errands::recruit) is there, or could not be started.
    pub(crate) fn recruited(&mut self, there: bool) {
        self.starting -= 1;
        self.short_of_recruits = !there;
    }

    /// Whether a thread of the pool's own that has been idle for long may leave: there are more than the
    /// least, and it is not the last that is idle.
    pub(crate) fn can_spare(&self) -> bool {
        self.own > self.policy.growth.least && self.has_idle()
    }

    /// Whether somebody is idle, besides the thread that asks, or is about to be.
    pub(super) fn has_idle(&self) -> bool {
        let coming = self.waking + self.newcomers + self.starting;
        self.seated + self.followers.len() + coming > 0
    }

    pub(super) fn can_grow(&self) -> bool {
        self.own + self.starting < self.policy.growth.most
    }

    /// Whether a thread is to be started because the last idle one goes into a handler: nobody would be
    /// left to notice that all are blocked (I2).
    pub(super) fn must_recruit(&mut self, now: u64, urgent: bool) -> bool {
        // One that could not be started is tried again each time: nobody else would.
        let may = now >= self.recruit_after || self.short_of_recruits || urgent;
        let must = may && !self.stopping && self.can_grow() && !self.has_idle();
        if must {
            self.starting += 1;
            self.recruit_after = now.saturating_add(self.policy.growth.interval);
        }
        must
    }

    /// Whether the last idle thread has to stay idle for a while, because another should be started before
    /// it goes but may not be yet. It will look again, as the watchman.
    pub(super) fn must_hold_back(&self, now: u64) -> bool {
        let too_early = now < self.recruit_after && !self.short_of_recruits;
        too_early && self.can_grow() && !self.has_idle()
    }

    /// Whether the pool could do without the thread, were it idle for long. The last that is idle need not
    /// even look: those who come after it leave.
    pub(super) fn is_surplus(&self, worker: &Worker) -> bool {
        !worker.is_joined && self.can_spare()
    }
}
