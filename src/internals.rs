//! The parts of the protocol, one by one, for benchmarks. Behind the feature `internals`.
//!
//! Not a part of the API: it may change or go with any release. Everything here is a safe call of what the
//! engine itself calls, so the feature opens no way around what the types promise.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::cell::{self, Entered, Owned};
use crate::followers::{self, Chosen, Order};
use crate::handler::Deactivation;
use crate::interest::Interest;
use crate::parker;
use crate::settle::{Arming, Office, Settled, Tenant, Wanted, settle};
use crate::sync::{Arc, Mutex};
use crate::sys::epoll::Flags;
use crate::worker::Worker;

/// Where one follower sleeps.
#[derive(Debug)]
pub struct Parker(parker::Parker);

impl Parker {
    /// Without a token.
    #[expect(clippy::new_without_default, reason = "nobody needs a default one")]
    pub fn new() -> Parker {
        Parker(parker::Parker::new())
    }

    /// Waits for a token, at first `awake` and sleeping afterwards, and takes it.
    pub fn park(&self, awake: Duration) {
        let _ = self.0.park(awake, None);
    }

    /// Gives the token.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}

/// The followers in their order, under a lock as in a pool. No thread sleeps here.
#[derive(Debug)]
pub struct Followers {
    threads: Vec<Arc<Worker>>,
    waiting: Mutex<followers::Followers>,
}

impl Followers {
    /// For so many threads, numbered from 0, of which none follows yet.
    pub fn new(order: Order, threads: usize) -> Followers {
        let worker = |index| Arc::new(Worker::new(index, format!("{index}"), 0));
        let mut waiting = followers::Followers::new(order);
        waiting.expect(threads);
        Followers { threads: (0..threads).map(worker).collect(), waiting: Mutex::new(waiting) }
    }

    /// A thread lies down.
    ///
    /// # Panics
    /// If there is no thread of this number.
    pub fn push(&self, thread: usize) {
        let _bed = self.waiting.lock().push(&self.threads[thread]);
    }

    /// The next is chosen, and gets up: the first under the lock of the thread that promotes, the second
    /// under its own. Returns which; where they are not told apart ([`Order::Unordered`]), the first.
    pub fn pop(&self) -> Option<usize> {
        let thread = match self.waiting.lock().pop()? {
            Chosen::Worker(worker) => worker.index,
            Chosen::Any(_) => 0,
        };
        self.waiting.lock().got_up(&self.threads[thread], false);
        Some(thread)
    }
}

/// A slot of the demultiplexing table, with a handle that is armed by edge, and without a kernel.
#[derive(Debug)]
pub struct Slot<T> {
    cell: cell::Slot<Guest<T>>,
    generation: u32,
}

/// Exclusive possession of a slot. Dropped without [`release`](Claim::release), the slot stays claimed.
#[must_use]
pub struct Claim<'a, T>(Owned<'a, Guest<T>>);

impl<T> Slot<T> {
    /// A slot with a tenant.
    pub fn new(value: T) -> Slot<T> {
        let cell = cell::Slot::new();
        let arming = Arming { deactivation: Deactivation::Edge, armed: Some(INTEREST) };
        let claim = Claim(cell.reserve(INTEREST, true, false).fill(Guest { arming, value }));
        claim.release();
        Slot { generation: cell.generation(), cell }
    }

    /// Comes in with an event. `None` if another has the slot, who has been told of the event then.
    pub fn claim(&self) -> Option<Claim<'_, T>> {
        match self.cell.enter(self.generation, Flags::IN) {
            Entered::Owned(owned, _event) => Some(Claim(owned)),
            _ => None,
        }
    }
}

impl<T> Claim<'_, T> {
    /// Gives the slot back as after a handler that has read everything. Returns whether the kernel would
    /// have been told to look again, because an event came meanwhile.
    pub fn release(self) -> bool {
        let wanted = Wanted { armed: true, interest: INTEREST, poll: false };
        match settle(self.0, wanted, &NoKernel) {
            Settled::AtRest { rearms, .. } => rearms > 0,
            Settled::Leaves { .. } => unreachable!("nobody can ask a tenant to leave here"),
        }
    }
}

impl<T> Deref for Claim<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Claim<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

impl<T> fmt::Debug for Claim<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.0.state()).finish()
    }
}

/// A value in the place of a handler.
struct Guest<T> {
    arming: Arming,
    value: T,
}

impl<T> Tenant for Guest<T> {
    fn arming(&mut self) -> &mut Arming {
        &mut self.arming
    }
}

/// Where there are no system calls and no deadlines.
struct NoKernel;

impl<T> Office<T> for NoKernel {
    fn tell(&self, _tenant: &T, _flags: Flags) -> io::Result<()> {
        Ok(())
    }

    fn look_after_deadline(&self, _tenant: &mut T, _expired: bool, _retimed: bool) -> bool {
        false
    }
}

const INTEREST: Interest = Interest::READABLE;
