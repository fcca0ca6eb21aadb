//! The watchman: a follower that sleeps with a time-out, and looks after those who run.

use std::mem;
use std::time::Duration;

use super::{Arrival, State};
use crate::worker::{Count, Worker};

/// A handler that has overrun its budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overrun {
    pub(crate) thread: usize,
    /// The data of its event.
    pub(crate) event: u64,
    pub(crate) elapsed: Duration,
}

impl State {
    /// Whether a thread may act upon what it finds. One whose sleep is over by the clock looks after the
    /// others first, and what it finds may be that they need nobody.
    pub(crate) fn may_act(&mut self, worker: &Worker, arrival: Arrival, now: u64) -> bool {
        arrival != Arrival::Timeout || self.look_after(worker, now)
    }

    /// Whether the watchman has found something since the last time.
    pub(crate) fn has_overruns(&self) -> bool {
        !self.overruns.is_empty()
    }

    /// The same, to be reported.
    pub(crate) fn take_overruns(&mut self) -> Vec<Overrun> {
        mem::take(&mut self.overruns)
    }

    /// Whether something could wait for a thread that does not come, and nobody would notice (I2).
    pub(super) fn is_unwatched(&self) -> bool {
        let is_trusted = self.running > 0 && self.running + self.overdue == self.trusted;
        let unseen = self.seated + self.reserved == 0 || !self.leftover.is_empty();
        // Who wants to hear of overruns wants it also when nobody waits for them. As long as something moves:
        // better one watchman that looks again and again than one that is woken with each event.
        let moved = self.running > 0 || self.moves != self.moves_seen;
        let unreported = self.policy.reports_overruns && moved;
        !self.watched && !is_trusted && (unseen || unreported)
    }

    /// How long a handler may run, in nanoseconds. If something waits for it and handlers are usually much
    /// shorter, less than its budget: it has blocked, in all likelihood. In busy times it is as likely to
    /// have been preempted, and another thread would only be one more to share the CPUs with.
    pub(super) fn patience(&self) -> u64 {
        let budget = self.policy.budget;
        let guesses = self.policy.guesses && self.is_crowded() && !self.is_busy();
        if guesses { self.tempo.patience().min(budget) } else { budget }
    }

    /// In how many nanoseconds the watchman looks. Where nobody has been late for many looks it looks less
    /// often, because looking costs the CPU of whoever runs; the first that is late brings it back.
    pub(super) fn look_interval(&self) -> u64 {
        let backed_off = self.policy.guesses && self.is_busy();
        let doublings = if backed_off { (self.quiet_looks / QUIET).min(MOST_DOUBLINGS) } else { 0 };
        self.policy.budget.saturating_mul(1 << doublings)
    }

    /// Handlers that have run for too long no longer count as running. Returns whether there are any.
    pub(super) fn find_late(&mut self, finder: &Worker, now: u64) -> bool {
        let latest = now.saturating_sub(self.patience());
        let mut late = 0;
        for at in 0..self.workers.len() {
            let worker = &self.workers[at];
            if let Some((since, event)) = worker.standing.check(latest) {
                late += 1;
                self.note_overrun(worker.index, event, now.saturating_sub(since));
            }
        }
        self.running -= late;
        self.overdue += late;
        finder.count(Count::Rescues, late as u64);
        if late > 0 {
            self.quiet_looks = 0;
        }
        late > 0
    }

    /// Keeps an overrun for whoever comes without the lock, if somebody wants to hear of it.
    pub(super) fn note_overrun(&mut self, thread: usize, event: u64, elapsed: u64) {
        if self.policy.reports_overruns {
            let elapsed = Duration::from_nanos(elapsed);
            self.overruns.push(Overrun { thread, event, elapsed });
        }
    }

    /// The watchman looks. Returns whether it should act upon what it finds, and not just keep watching.
    pub(super) fn look_after(&mut self, watchman: &Worker, now: u64) -> bool {
        let moved = self.moves != self.moves_seen;
        self.moves_seen = self.moves;
        self.quiet_looks = self.quiet_looks.saturating_add(1);
        let late = self.find_late(watchman, now);
        if !moved && self.seated > 0 && self.leftover.is_empty() {
            // It was busy, and then the last event came. An idle process must not tick.
            self.tempo.rest();
        }
        let unserved = self.running == 0 && !self.leftover.is_empty();
        late || !moved || unserved || !self.is_busy()
    }
}

/// After so many looks at which nobody was late the watchman looks half as often, and so on.
const QUIET: u32 = 16;
const MOST_DOUBLINGS: u32 = 2;
