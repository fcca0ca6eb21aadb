//! A handle set without a kernel: one-shot sources, a ready list and a waker.
//!
//! What epoll does that the protocol relies on is done here under one lock: an event is put on the
//! ready list once, taking it off disarms its source, re-arming polls again, each arrival wakes one
//! waiter, and who leaves something on the list wakes another. What the protocol promises in return
//! is checked on the way.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crate::demux::{Demultiplexer, Dispatched};
use crate::handler::{Caller, Control};
use crate::policy::Policy;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::epoll::{Event, Events, Flags};
use crate::token::Token;

use super::crew::Cleared;

pub(crate) struct Fake {
    kernel: Mutex<Kernel>,
    /// For those who wait on the set.
    ready: Condvar,
    /// For those who wait for the model to get somewhere.
    progress: Condvar,
    /// As in the real waker: a wake-up has been sent and not yet answered.
    pending: AtomicBool,
    script: Script,
    /// Nanoseconds that every handler takes besides. Of the standard library: it is no part of the model.
    #[cfg(shuttle)]
    handler_time: std::sync::atomic::AtomicU64,
    limits: Limits,
}

/// What the handlers do.
type Script = Box<dyn Fn(&Upcall<'_>) + Send + Sync>;

/// One call of a handler.
pub(crate) struct Upcall<'a> {
    #[cfg(shuttle)]
    pub(crate) fake: &'a Fake,
    pub(crate) source: usize,
    pub(crate) control: &'a dyn Control,
}

/// What is not to be exceeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    seats: usize,
    running: usize,
}

struct Kernel {
    sources: Vec<Source>,
    ready: VecDeque<u64>,
    waiting: usize,
    running: usize,
    posted: usize,
    handled: usize,
    cleared: usize,
    broken: bool,
}

#[derive(Clone)]
struct Source {
    /// What has been posted and not yet read.
    unread: usize,
    armed: bool,
    /// On the ready list.
    listed: bool,
    running: bool,
}

impl Limits {
    /// Those of a pool in which no handler overruns its budget.
    pub(crate) fn of(policy: &Policy) -> Limits {
        Limits { seats: policy.seats, running: policy.running }
    }

    /// The same for a pool in which handlers may.
    #[cfg(shuttle)]
    pub(crate) fn with_overdue(self) -> Limits {
        Limits { running: usize::MAX, ..self }
    }
}

impl Fake {
    pub(crate) fn new(
        sources: usize,
        limits: Limits,
        script: impl Fn(&Upcall<'_>) + Send + Sync + 'static,
    ) -> Fake {
        let source = Source { unread: 0, armed: true, listed: false, running: false };
        let kernel = Kernel {
            sources: vec![source; sources],
            ready: VecDeque::new(),
            waiting: 0,
            running: 0,
            posted: 0,
            handled: 0,
            cleared: 0,
            broken: false,
        };
        Fake {
            kernel: Mutex::new(kernel),
            ready: Condvar::new(),
            progress: Condvar::new(),
            pending: AtomicBool::new(false),
            script: Box::new(script),
            #[cfg(shuttle)]
            handler_time: Default::default(),
            limits,
        }
    }

    /// Something arrives at a source.
    pub(crate) fn post(&self, source: usize) {
        let mut kernel = self.kernel.lock();
        kernel.posted += 1;
        kernel.sources[source].unread += 1;
        let listed = kernel.poll(source);
        drop(kernel);
        if listed {
            self.ready.notify_one();
        }
    }

    /// Waits until everything that has been posted has been handled.
    pub(crate) fn await_all_handled(&self) {
        drop(self.await_state(|kernel| kernel.handled == kernel.posted));
    }

    /// Waits until `count` events have been handled.
    #[cfg(shuttle)]
    pub(crate) fn await_handled(&self, count: usize) {
        drop(self.await_state(|kernel| kernel.handled >= count));
    }

    /// How many events have been handled.
    #[cfg(shuttle)]
    pub(crate) fn handled(&self) -> usize {
        self.kernel.lock().handled
    }

    /// From now on every handler takes so many nanoseconds, besides what its script does.
    #[cfg(shuttle)]
    pub(crate) fn set_handler_time(&self, nanoseconds: u64) {
        self.handler_time.store(nanoseconds, std::sync::atomic::Ordering::Relaxed);
    }

    /// From now on every wait fails.
    #[cfg(shuttle)]
    pub(crate) fn break_down(&self) {
        self.kernel.lock().broken = true;
        self.ready.notify_all();
    }

    fn await_state(&self, reached: impl Fn(&Kernel) -> bool) -> MutexGuard<'_, Kernel> {
        let mut kernel = self.kernel.lock();
        while !reached(&kernel) {
            kernel = self.progress.wait(kernel);
        }
        kernel
    }

    fn begin(&self, source: usize) {
        let mut kernel = self.kernel.lock();
        kernel.running += 1;
        assert!(kernel.running <= self.limits.running, "more handlers run than may");
        assert_eq!(kernel.cleared, 0, "I8: a handler runs after the end");
        let source = &mut kernel.sources[source];
        assert!(!source.running, "I3: a handler runs twice at once");
        assert!(source.unread > 0, "an event is dispatched twice");
        source.running = true;
        source.unread -= 1;
    }

    fn end(&self, source: usize) {
        let mut kernel = self.kernel.lock();
        kernel.running -= 1;
        kernel.handled += 1;
        kernel.sources[source].running = false;
        kernel.sources[source].armed = true;
        let listed = kernel.poll(source);
        drop(kernel);
        if listed {
            self.ready.notify_one();
        }
        self.progress.notify_all();
    }
}

impl Kernel {
    /// Puts a source on the ready list if it is ready, armed, and not there yet; whether it did.
    fn poll(&mut self, number: usize) -> bool {
        let source = &mut self.sources[number];
        let list = source.unread > 0 && source.armed && !source.listed;
        if list {
            source.listed = true;
            self.ready.push_back(number as u64);
        }
        list
    }

    /// Takes at most `most` off the ready list.
    fn harvest(&mut self, events: &mut Events, most: usize) {
        for _ in 0..most {
            let Some(data) = self.ready.pop_front() else { break };
            if data != Token::WAKER {
                let source = &mut self.sources[data as usize];
                source.listed = false;
                source.armed = false;
            }
            assert!(events.push(Event::new(Flags::IN, data)), "more events wanted than fit");
        }
    }
}

impl Demultiplexer for Fake {
    fn wait(
        &self,
        events: &mut Events,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        events.clear();
        let mut kernel = self.kernel.lock();
        kernel.waiting += 1;
        assert!(kernel.waiting <= self.limits.seats, "I1: more threads wait than may");
        assert_eq!(kernel.cleared, 0, "I8: a thread waits after the end");
        kernel.harvest(events, most);
        while events.is_empty() && !kernel.broken {
            kernel = match timeout {
                None => self.ready.wait(kernel),
                Some(Duration::ZERO) => break,
                Some(timeout) => self.ready.wait_timeout(&self.kernel, kernel, timeout),
            };
            kernel.harvest(events, most);
            if timeout.is_some() {
                break;
            }
        }
        kernel.waiting -= 1;
        let more = !kernel.ready.is_empty();
        let broken = kernel.broken;
        drop(kernel);
        if more {
            self.ready.notify_one();
        }
        let woken = events.take_out(Token::WAKER);
        if woken {
            self.pending.swap(false, Ordering::AcqRel);
        }
        if broken {
            events.clear();
            return Err(io::ErrorKind::Other.into());
        }
        Ok(woken)
    }

    fn dispatch(&self, event: Event, caller: Caller<'_>) -> Dispatched {
        let source = event.data() as usize;
        self.begin(source);
        (self.script)(&Upcall {
            #[cfg(shuttle)]
            fake: self,
            source,
            control: caller.control,
        });
        #[cfg(shuttle)]
        crate::sync::model::advance(self.handler_time.load(std::sync::atomic::Ordering::Relaxed));
        self.end(source);
        Dispatched { handled: true, rearms: 1, ..Dispatched::default() }
    }

    fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.kernel.lock().ready.push_back(Token::WAKER);
            self.ready.notify_one();
        }
    }

    fn clear(&self) {
        let mut kernel = self.kernel.lock();
        assert_eq!(
            (kernel.waiting, kernel.running),
            (0, 0),
            "I8: cleared before the last has left"
        );
        kernel.cleared += 1;
    }
}

impl Cleared for Fake {
    fn times_cleared(&self) -> usize {
        self.kernel.lock().cleared
    }
}
