//! The shipped handle set on the real kernel, with waits that the checker decides.
//!
//! Nothing of the handle set is replaced: slots, settling, eviction, removal and waker are those
//! that ship, and epoll and eventfds stand for themselves. They answer at once and always the same,
//! since a model's threads are one thread to the kernel. Only sleeping is the checker's business: a
//! wait here polls, and sleeps on a condition variable until something has been done to the set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::demux::{Demultiplexer, Dispatched};
use crate::handle_set::HandleSet;
use crate::handler::{Caller, Context, Deactivation, Handler, Next, Reason, SharedHandler};
use crate::interest::{Interest, Ready};
use crate::sync::{Condvar, Mutex, atomic};
use crate::sys::epoll::{Event, Events};
use crate::sys::eventfd::EventFd;
use crate::token::HandleId;
use crate::upcall::OnPanic;

use super::crew::Cleared;

pub(crate) struct Set {
    pub(crate) handles: HandleSet,
    cleared: Mutex<usize>,
    /// Something has been done to the set.
    news: Condvar,
}

impl Set {
    pub(crate) fn new(deactivation: Deactivation) -> Set {
        let handles = HandleSet::new(deactivation, OnPanic::Close, 64).unwrap();
        Set { handles, cleared: Mutex::new(0), news: Condvar::new() }
    }

    /// Does something to the set from outside.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&HandleSet) -> R) -> R {
        let outcome = act(&self.handles);
        self.tell();
        outcome
    }

    /// Something arrives at a probe's handle.
    pub(crate) fn post(&self, log: &Log) {
        log.post();
        self.tell();
    }

    /// Waits until something is so that handlers bring about, with time passing: the alarm rings whenever
    /// it is set.
    pub(crate) fn await_in_time(&self, reached: impl Fn() -> bool) {
        let mut guard = self.cleared.lock();
        while !reached() {
            if self.handles.inner.deadlines.alarm().ring() {
                self.news.notify_all();
            }
            guard = self.news.wait(guard);
        }
    }

    /// The time that the alarm is set to comes; whether it was set to any.
    pub(crate) fn ring(&self) -> bool {
        self.act(|handles| handles.inner.deadlines.alarm().ring())
    }

    /// Waits until something is so that handlers bring about.
    pub(crate) fn await_until(&self, reached: impl Fn() -> bool) {
        let mut guard = self.cleared.lock();
        while !reached() {
            guard = self.news.wait(guard);
        }
    }

    /// Whether a wait would return at once.
    fn is_ready(&self) -> bool {
        let mut set = [PollFd::new(self.handles.as_fd(), PollFlags::POLLIN)];
        poll(&mut set, PollTimeout::ZERO).unwrap() > 0
    }

    fn tell(&self) {
        // The lock, so that who has polled in vain is asleep by now.
        drop(self.cleared.lock());
        self.news.notify_all();
    }
}

impl Demultiplexer for Set {
    fn wait(
        &self,
        events: &mut Events,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        assert!(timeout.is_none(), "no member of these models is timed");
        let mut guard = self.cleared.lock();
        while !self.is_ready() {
            guard = self.news.wait(guard);
        }
        drop(guard);
        self.handles.wait(events, most, Some(Duration::ZERO))
    }

    fn dispatch(&self, event: Event, caller: Caller<'_>) -> Dispatched {
        let dispatched = self.handles.dispatch(event, caller);
        self.tell();
        dispatched
    }

    fn wake(&self) {
        Demultiplexer::wake(&self.handles);
        self.tell();
    }

    fn clear(&self) {
        Demultiplexer::clear(&self.handles);
        *self.cleared.lock() += 1;
    }
}

impl Cleared for Set {
    fn times_cleared(&self) -> usize {
        *self.cleared.lock()
    }
}

/// What happens to one handler. Assertions in a handler would be contained like any panic, so what
/// is wrong is noted, and complained about by [`check`](Log::check).
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) source: EventFd,
    posted: AtomicU64,
    read: AtomicU64,
    /// How many threads are in the handler. The checker's, so that it can interfere.
    inside: atomic::AtomicUsize,
    calls: AtomicUsize,
    closed: AtomicUsize,
    wrong: std::sync::Mutex<Vec<&'static str>>,
}

impl Log {
    pub(crate) fn new() -> Plain<Log> {
        Plain::new(Log {
            // Each read takes one, so that a handler can leave something behind.
            source: EventFd::semaphore(0).unwrap(),
            posted: AtomicU64::new(0),
            read: AtomicU64::new(0),
            inside: atomic::AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            wrong: std::sync::Mutex::new(Vec::new()),
        })
    }

    /// Something arrives. In a handler only: from outside, the set must be told.
    pub(crate) fn post(&self) {
        self.posted.fetch_add(1, Ordering::Relaxed);
        self.source.notify().unwrap();
    }

    /// Takes one of what has arrived, if there is any.
    pub(crate) fn read(&self) -> bool {
        let some = self.source.read().unwrap().is_some();
        self.read.fetch_add(u64::from(some), Ordering::Relaxed);
        some
    }

    pub(crate) fn is_all_read(&self) -> bool {
        self.posted.load(Ordering::Relaxed) == self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn expect(&self, so: bool, otherwise: &'static str) {
        if !so {
            self.wrong.lock().unwrap().push(otherwise);
        }
    }

    /// Complains, and tells how often the hook ran.
    pub(crate) fn check(&self) -> usize {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) -> usize {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.expect(!self.is_closed(), "I6: called after its hook");
        self.inside.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn end(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn close(&self) {
        self.expect(!self.is_inside(), "I3: its hook runs beside it");
        self.expect(!self.is_closed(), "its hook runs twice");
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A handler that keeps a log and does what the model says.
pub(crate) struct Probe<F> {
    log: Plain<Log>,
    script: F,
}

impl<F> Probe<F> {
    pub(crate) fn new(log: &Plain<Log>, script: F) -> Probe<F> {
        Probe { log: Plain::clone(log), script }
    }
}

impl<F> AsFd for Probe<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.log.source.as_fd()
    }
}

impl<F: FnMut(&Log, &mut Context<'_>) -> Next + Send> Handler for Probe<F> {
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        let others = self.log.begin();
        self.log.expect(others == 0, "I3: a handler runs twice at once");
        let next = (self.script)(&self.log, cx);
        self.log.end();
        next
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {
        self.log.close();
    }
}

impl<F: Fn(&Log, &mut Context<'_>) -> Next + Send + Sync> SharedHandler for Probe<F> {
    fn ready(&self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        self.log.begin();
        let next = (self.script)(&self.log, cx);
        self.log.end();
        next
    }

    fn closed(&self, _id: HandleId, _reason: Reason) {
        self.log.close();
    }
}

/// Reads nothing, one, or all, and says so.
pub(crate) fn read_some(log: &Log) -> Next {
    match super::any(4) {
        0 => Next::Rearm(Interest::READABLE),
        1 => {
            log.read();
            Next::Rearm(Interest::READABLE)
        }
        how => {
            while log.read() {}
            let next = if how == 2 { Next::Drained } else { Next::Rearm };
            next(Interest::READABLE)
        }
    }
}
