//! What the protocol needs of a handle set, so that a model can stand in for the kernel.

use std::io;
use std::time::Duration;

use crate::handler::{Blocking, Caller};
use crate::sys::epoll::{Event, Events};

/// A handle set as the roles see it.
pub trait Demultiplexer: Send + Sync {
    /// Waits for at most `most` events, `timeout`, or a wake-up, and says whether there was one: it has
    /// been answered then, and whoever asked for it wants this thread to go round. Events are deactivated
    /// handles.
    fn wait(&self, events: &mut Events, most: usize, timeout: Option<Duration>)
    -> io::Result<bool>;

    /// Runs the handler of one event, if it still has one, and reactivates the handle.
    fn dispatch(&self, event: Event, caller: Caller<'_>) -> Dispatched;

    /// Whether the handler of an event blocks, as far as is known; `budget` is how many nanoseconds it may
    /// take.
    fn blocking(&self, event: Event, budget: u64) -> Blocking {
        let _ = (event, budget);
        Blocking::Learned
    }

    /// An event's handler has taken so many nanoseconds, where it may take `budget`.
    fn learn(&self, event: Event, took: u64, budget: u64) {
        let _ = (event, took, budget);
    }

    /// Makes one waiting thread, or else the next to wait, return.
    fn wake(&self);

    /// Whether this is the process it was made in, and not a forked child.
    fn is_ours(&self) -> bool {
        true
    }

    /// Ends a forked child that returns from its parent's user code.
    fn refuse_forked_child(&self) {}

    /// Takes all handles out: the pool has stopped and its last thread has left.
    fn clear(&self);
}

/// What became of an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispatched {
    /// A handler ran.
    pub handled: bool,
    /// The event was for an earlier tenant of its slot, or for a handle that is not active.
    pub stale: bool,
    /// The handle was somebody's, who has been told.
    pub noted: bool,
    /// Calls of user code that panicked: the handler, its hook, its destructor.
    pub panicked: u32,
    /// The next event of the same handle, which came before the slot was given back. Nobody else will
    /// be told of it.
    pub again: Option<Event>,
    /// System calls that armed the handle again.
    pub rearms: u32,
}
