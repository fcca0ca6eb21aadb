//! Half-sync/half-async: one thread waits, a queue carries the events to workers.
//!
//! Per request: a share in one `epoll_wait`, which fetches up to 64 events, one `recv`, one `send`, one
//! `epoll_ctl` to arm again, and the queue: a lock for the whole batch, another for taking one event out, and
//! system calls only where a worker sleeps.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use cabrank::sys::epoll::{Event, Events};
use crossbeam_utils::{Backoff, CachePadded};

use super::shared::Shared;

pub(crate) struct Shop {
    shared: Shared,
    queue: Queue,
}

impl Shop {
    pub(crate) fn new(shared: Shared, wait: Wait) -> Shop {
        let length = CachePadded::new(AtomicUsize::new(0));
        Shop { shared, queue: Queue { wait, length, ..Queue::default() } }
    }

    /// What the waiting thread does.
    pub(crate) fn dispatch(&self) -> io::Result<Infallible> {
        let mut events = Events::with_capacity(NonZeroUsize::new(64).unwrap());
        loop {
            self.shared.epoll.wait(&mut events, None)?;
            self.queue.push(&events);
        }
    }

    /// What each worker does.
    pub(crate) fn work(&self) -> io::Result<Infallible> {
        loop {
            self.shared.handle(&self.queue.pop())?;
        }
    }
}

/// What a worker does that finds nothing.
#[derive(Clone, Copy, Default)]
pub(crate) enum Wait {
    #[default]
    Park,
    /// Looks again for about 10 us, then gives up its time slice a few times, then sleeps: what crossbeam's
    /// channels do.
    SpinThenPark,
}

#[derive(Default)]
struct Queue {
    wait: Wait,
    inner: Mutex<Inner>,
    filled: Condvar,
    /// How many events there are, for those who look without the lock.
    length: CachePadded<AtomicUsize>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<Event>,
    /// Workers that sleep, or are about to.
    idle: usize,
    /// How many of them have been called and are not up yet.
    called: usize,
}

impl Queue {
    fn push(&self, events: &Events) {
        let mut inner = self.inner.lock().unwrap();
        inner.events.extend(events.iter());
        // Relaxed: a hint; who follows it takes the lock.
        self.length.store(inner.events.len(), Ordering::Relaxed);
        let calls = events.len().min(inner.idle - inner.called);
        inner.called += calls;
        drop(inner);
        // A system call each, so not for those who are awake and will look by themselves.
        for _ in 0..calls {
            self.filled.notify_one();
        }
    }

    fn pop(&self) -> Event {
        if matches!(self.wait, Wait::SpinThenPark) {
            let backoff = Backoff::new();
            while !backoff.is_completed() {
                if self.length.load(Ordering::Relaxed) > 0 {
                    if let Some(event) = self.take(&mut self.inner.lock().unwrap()) {
                        return event;
                    }
                }
                backoff.snooze();
            }
        }
        let mut inner = self.inner.lock().unwrap();
        loop {
            if let Some(event) = self.take(&mut inner) {
                return event;
            }
            inner.idle += 1;
            inner = self.filled.wait(inner).unwrap();
            inner.idle -= 1;
            // One that wakes up uncalled takes the call of another, who will find that it was not needed.
            inner.called = inner.called.saturating_sub(1);
        }
    }

    fn take(&self, inner: &mut Inner) -> Option<Event> {
        let event = inner.events.pop_front();
        self.length.store(inner.events.len(), Ordering::Relaxed);
        event
    }
}
