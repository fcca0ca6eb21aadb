//! The alarm of a handle set: rings for the earliest deadline.
//!
//! A timer descriptor in the set, and not the time-out of whoever waits. Of all threads that wait the kernel
//! wakes one for it, as for any event (I11); setting it earlier needs nobody to be woken; and it has no
//! slack, whereas the time-out of a wait is up to 50 us late (docs/tuning.md).

use std::io;
#[cfg(not(any(all(test, loom), all(test, shuttle))))]
use std::time::Duration;

use crate::deadlines::Alarm;
use crate::sys::epoll::{Epoll, Flags};
#[cfg(not(any(all(test, loom), all(test, shuttle))))]
use crate::sys::timerfd::TimerFd;
use crate::token::Token;

/// Registered by edge and never read, like the [waker](crate::waker): each expiry is an edge.
#[cfg(not(any(all(test, loom), all(test, shuttle))))]
#[derive(Debug)]
pub(crate) struct AlarmClock {
    timer: TimerFd,
}

#[cfg(not(any(all(test, loom), all(test, shuttle))))]
impl AlarmClock {
    pub(crate) fn new(epoll: &Epoll) -> io::Result<AlarmClock> {
        let timer = TimerFd::new()?;
        epoll.add(&timer, Flags::IN | Flags::ET, Token::ALARM)?;
        Ok(AlarmClock { timer })
    }
}

#[cfg(not(any(all(test, loom), all(test, shuttle))))]
impl Alarm for AlarmClock {
    fn set(&self, due: u64) {
        let delay = Duration::from_nanos(due.saturating_sub(crate::sync::now()));
        // The kernel refuses only what is no timer or no time. A delay of zero rings at once.
        let set = self.timer.after(delay);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

/// In a model the alarm rings when the model says so.
#[cfg(any(all(test, loom), all(test, shuttle)))]
pub(crate) struct AlarmClock {
    #[cfg_attr(loom, allow(dead_code))] // no loom model has a whole handle set
    bell: crate::sys::eventfd::EventFd,
    due: std::sync::atomic::AtomicU64,
}

#[cfg(any(all(test, loom), all(test, shuttle)))]
impl AlarmClock {
    pub(crate) fn new(epoll: &Epoll) -> io::Result<AlarmClock> {
        let bell = crate::sys::eventfd::EventFd::new()?;
        epoll.add(&bell, Flags::IN | Flags::ET, Token::ALARM)?;
        Ok(AlarmClock { bell, due: crate::deadlines::NEVER.into() })
    }

    /// The time it is set to has come; whether it was set to any.
    #[cfg(shuttle)]
    pub(crate) fn ring(&self) -> bool {
        use crate::deadlines::NEVER;
        use crate::sync::{model, now};

        let due = self.due.swap(NEVER, std::sync::atomic::Ordering::Relaxed);
        if due == NEVER {
            return false;
        }
        model::advance(due.saturating_sub(now()));
        self.bell.notify().unwrap();
        true
    }
}

#[cfg(any(all(test, loom), all(test, shuttle)))]
impl Alarm for AlarmClock {
    fn set(&self, due: u64) {
        self.due.store(due, std::sync::atomic::Ordering::Relaxed);
    }
}
