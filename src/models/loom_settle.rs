//! Giving a handle back, exhaustively: the shipped settling on one slot and a kernel of few lines.
//!
//! Two threads wait on the kernel in turn, as leaders do, while a third posts or asks for
//! something. Afterwards a thread that waits must find whatever has not been read (I5).

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};

use crate::cell::{Cause, Entered, Owned, Request, Requested, Slot};
use crate::handler::Deactivation;
use crate::interest::Interest;
use crate::settle::{Arming, Settled, Tenant, Wanted, Why, settle};
use crate::sys::epoll::Flags;

use super::{explore, thread};

const PREEMPTIONS: usize = 4;

const READABLE: Interest = Interest::READABLE;

/// One registration of an epoll instance.
struct Kernel {
    unread: usize,
    /// What it was told last.
    told: Flags,
    /// It has reported, and was one-shot.
    spent: bool,
    /// On the ready list.
    listed: bool,
    deleted: bool,
}

impl Kernel {
    fn poll(&mut self) {
        self.listed |= self.unread > 0 && self.told.contains(Flags::IN) && !self.spent;
    }
}

struct Guest {
    arming: Arming,
    /// Watched by loom: two accesses that are not ordered fail the model (I3).
    place: UnsafeCell<()>,
}

#[allow(unsafe_code)]
// SAFETY: loom runs one thread at a time, and panics at an access that the order does not allow.
unsafe impl Sync for Guest {}

impl Tenant for Guest {
    fn arming(&mut self) -> &mut Arming {
        &mut self.arming
    }
}

struct Handle {
    slot: Slot<Guest>,
    generation: u32,
    kernel: Mutex<Kernel>,
}

/// How a handler reads and what it says then.
#[derive(Clone, Copy)]
enum Manner {
    One,
    All,
}

impl Handle {
    fn new(deactivation: Deactivation, unread: usize) -> Arc<Handle> {
        let told = deactivation.flags(Some(READABLE));
        let listed = unread > 0;
        let kernel = Kernel { unread, told, spent: false, listed, deleted: false };
        let slot = Slot::new();
        let generation = slot.generation();
        let arming = Arming { deactivation, armed: Some(READABLE) };
        let guest = Guest { arming, place: UnsafeCell::new(()) };
        let owned = slot.reserve(READABLE, true, false).fill(guest);
        let seen = owned.state();
        assert!(owned.release(seen, true, READABLE).is_ok());
        Arc::new(Handle { slot, generation, kernel: Mutex::new(kernel) })
    }

    fn post(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        kernel.unread += 1;
        kernel.poll();
    }

    /// Does not wait: what would wait finds nothing here.
    fn wait(&self) -> Option<Flags> {
        let mut kernel = self.kernel.lock().unwrap();
        let ready = std::mem::take(&mut kernel.listed) && kernel.unread > 0;
        kernel.spent |= ready && kernel.told.contains(Flags::ONESHOT);
        ready.then_some(Flags::IN)
    }

    fn modify(&self, flags: Flags) {
        let mut kernel = self.kernel.lock().unwrap();
        assert!(!kernel.deleted, "I7: armed after it has been taken out");
        (kernel.told, kernel.spent, kernel.listed) = (flags, false, false);
        kernel.poll();
    }

    fn read(&self, manner: Manner) {
        let mut kernel = self.kernel.lock().unwrap();
        kernel.unread = match manner {
            Manner::One => kernel.unread.saturating_sub(1),
            Manner::All => 0,
        };
    }

    /// Gives the slot back, or evicts; returns what is to be passed on.
    fn give_back(&self, owned: Owned<'_, Guest>, wanted: Wanted) -> Option<Flags> {
        let tell = |_: &Guest, flags| {
            self.modify(flags);
            Ok(())
        };
        match settle(owned, wanted, tell) {
            Settled::AtRest { again, .. } => again,
            Settled::Leaves { owned, why: Why::Asked(_) } => {
                let (guest, empty) = owned.take();
                self.kernel.lock().unwrap().deleted = true;
                guest.place.with_mut(|_| ());
                empty.vacate();
                None
            }
            Settled::Leaves { why: Why::Refused(error), .. } => panic!("{error}"),
        }
    }

    /// Serves events, beginning with `first`, until there are no more.
    fn serve(&self, manner: Manner, first: Option<Flags>) {
        let mut next = first.or_else(|| self.wait());
        while let Some(flags) = next {
            next = None;
            if let Entered::Owned(mut owned) = self.slot.enter(self.generation, flags) {
                if owned.arming.deactivation == Deactivation::OneShot {
                    owned.arming.armed = None;
                }
                owned.place.with_mut(|_| ());
                self.read(manner);
                let poll = matches!(manner, Manner::One);
                next = self.give_back(owned, Wanted { armed: true, interest: READABLE, poll });
            }
            next = next.or_else(|| self.wait());
        }
    }

    /// Asks from outside; returns what is to be handed in.
    fn ask(&self, request: Request) -> Option<Flags> {
        match self.slot.request(self.generation, request) {
            Requested::Owned(owned) => {
                let (armed, interest) = (owned.state().is_armed(), owned.state().interest());
                self.give_back(owned, Wanted { armed, interest, poll: false })
            }
            Requested::Deferred | Requested::Unknown => None,
        }
    }
}

/// Two threads serve while `act` is done; what it returns is handed in.
fn check(
    deactivation: Deactivation,
    manner: Manner,
    act: impl Fn(&Handle) -> Option<Flags> + Copy + Send + Sync + 'static,
    holds: impl Fn(&Handle) -> bool + Copy + Send + Sync + 'static,
) {
    explore(PREEMPTIONS, move || {
        let handle = Handle::new(deactivation, 1);
        let servers: Vec<_> = (0..2)
            .map(|_| {
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle.serve(manner, None))
            })
            .collect();
        let handed_in = act(&handle);
        for server in servers {
            server.join().unwrap();
        }
        handle.serve(manner, handed_in);
        assert!(holds(&handle), "{:?}", handle.slot);
    });
}

fn is_all_read(handle: &Handle) -> bool {
    handle.kernel.lock().unwrap().unread == 0
}

fn post(handle: &Handle) -> Option<Flags> {
    handle.post();
    None
}

fn suspend_and_resume(handle: &Handle) -> Option<Flags> {
    let suspended = handle.ask(Request::Suspend);
    let resumed = handle.ask(Request::Resume);
    resumed.or(suspended)
}

#[test]
fn what_is_posted_to_a_one_shot_handle_is_read() {
    check(Deactivation::OneShot, Manner::One, post, is_all_read);
}

#[test]
fn what_is_posted_to_an_edge_handle_is_read() {
    check(Deactivation::Edge, Manner::One, post, is_all_read);
}

#[test]
fn what_is_posted_to_a_drained_edge_handle_is_read() {
    check(Deactivation::Edge, Manner::All, post, is_all_read);
}

#[test]
fn a_one_shot_handle_that_is_suspended_and_resumed_is_read() {
    check(Deactivation::OneShot, Manner::One, suspend_and_resume, is_all_read);
}

#[test]
fn an_edge_handle_that_is_suspended_and_resumed_is_read() {
    check(Deactivation::Edge, Manner::One, suspend_and_resume, is_all_read);
}

fn remove(handle: &Handle) -> Option<Flags> {
    handle.post();
    handle.ask(Request::Remove { cause: Cause::Removed, awaited: false })
}

fn is_gone(handle: &Handle) -> bool {
    handle.slot.tenant().is_none() && handle.kernel.lock().unwrap().deleted
}

#[test]
fn a_one_shot_handle_that_is_removed_is_not_armed_again() {
    check(Deactivation::OneShot, Manner::One, remove, is_gone);
}

#[test]
fn an_edge_handle_that_is_removed_is_not_armed_again() {
    check(Deactivation::Edge, Manner::One, remove, is_gone);
}
