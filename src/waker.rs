//! Getting a thread out of `epoll_wait`.

use std::io;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::epoll::{Epoll, Flags};
use crate::sys::eventfd::EventFd;
use crate::token::Token;

/// Makes one thread that waits on the handle set return and go round; clone it freely.
///
/// You need it only if you go through the roles by yourself ([`Pool::enlist`](crate::Pool::enlist)): it makes
/// [`Leader::wait`](crate::Leader) return, so that your loop looks at what you have changed. Shutdown, timers,
/// messages and changes to handles wake whom they need to, and a thread in [`Pool::join`](crate::Pool::join)
/// waits again. To have code run, use [`HandleSet::post`](crate::HandleSet::post) or
/// [`notify`](crate::HandleSet::notify).
///
/// Wake-ups coalesce: until a thread has answered one, further calls cost no system call. If no thread
/// waits, the next one to wait returns at once, so a wake-up is never lost. Safe to call in a signal
/// handler: an atomic exchange and one `write`.
#[derive(Clone, Debug)]
#[doc(alias = "notify")]
pub struct Waker {
    line: Arc<Line>,
}

/// The eventfd stays registered edge-triggered, is never one-shot and never read: each write is an
/// edge, and the kernel wakes one waiter for it.
#[derive(Debug)]
struct Line {
    eventfd: EventFd,
    /// A wake-up has been sent and not yet answered.
    pending: AtomicBool,
}

impl Waker {
    pub(crate) fn new(epoll: &Epoll) -> io::Result<Waker> {
        let eventfd = EventFd::new()?;
        epoll.add(&eventfd, Flags::IN | Flags::ET, Token::WAKER)?;
        Ok(Waker { line: Arc::new(Line { eventfd, pending: AtomicBool::new(false) }) })
    }

    /// Wakes one waiting thread.
    pub fn wake(&self) {
        // AcqRel: the release pairs with the acquire in `answered`, so whoever answers sees what was
        // done before the call; also when this call is the one that finds a wake-up pending.
        if !self.line.pending.swap(true, Ordering::AcqRel) && self.line.eventfd.notify().is_err() {
            // The counter is full after 2^64 - 2 wake-ups; empty it, which makes no edge.
            let _ = self.line.eventfd.read();
            let _ = self.line.eventfd.notify();
        }
    }

    /// A thread has returned because of the eventfd, and will now look for the reason.
    pub(crate) fn answered(&self) {
        // AcqRel: pairs with `wake`; what it published is seen by the looks that follow.
        self.line.pending.swap(false, Ordering::AcqRel);
    }
}
