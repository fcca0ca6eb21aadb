//! Threads that wait on an epoll instance, and whether they have been woken.

use std::num::NonZeroUsize;
use std::process;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Event, Events, Flags};

use super::{PATIENCE, await_sleep, sleep_of, thread_id};

pub fn room(capacity: usize) -> Events {
    Events::with_capacity(NonZeroUsize::new(capacity).unwrap())
}

/// What is ready now: flags and data of each event.
pub fn poll(epoll: &Epoll) -> Vec<(Flags, u64)> {
    let mut events = room(16);
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
    events.iter().map(|event| (event.flags(), event.data())).collect()
}

/// A thread that waits once on an epoll instance.
pub struct Waiter {
    thread: JoinHandle<Vec<Event>>,
    tid: i32,
    /// How often it has gone to sleep, when it slept for its event.
    sleeps: u64,
}

impl Waiter {
    /// Starts it, and returns when it sleeps in the kernel.
    pub fn start(epoll: &Arc<Epoll>) -> Waiter {
        let epoll = Arc::clone(epoll);
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut events = room(1);
            tell.send(thread_id()).unwrap();
            epoll.wait(&mut events, Some(PATIENCE)).unwrap();
            events.iter().collect::<Vec<_>>()
        });
        let tid = told.recv().unwrap();
        let sleeps = await_sleep(tid);
        Waiter { thread, tid, sleeps }
    }

    /// Whether nothing has woken it since it went to sleep. A write to a descriptor wakes before it
    /// returns, so after it this is the final answer.
    pub fn sleeps_on(&self) -> bool {
        sleep_of(process::id(), self.tid) == Some(self.sleeps)
    }

    /// Waits for it to come back with an event.
    #[track_caller]
    pub fn back(self) -> Event {
        let events = self.thread.join().unwrap();
        *events.first().expect("an event in time")
    }
}
