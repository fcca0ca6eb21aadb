//! Giving a handle back, exhaustively: the shipped settling on one slot and a kernel of few lines.
//!
//! Two threads wait on the kernel in turn, as leaders do, while a third posts, calls or asks for
//! something. Afterwards a thread that waits must find whatever has not been read (I5), and no call and
//! no deadline has been forgotten.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};

use crate::cell::{Called, Cause, Entered, Owned, Request, Requested, Slot};
use crate::deadlines::{Alarm, Deadline, Deadlines, NEVER};
use crate::handler::Deactivation;
use crate::interest::{Interest, MESSAGE, TIMEOUT};
use crate::settle::{Arming, Office, Settled, Tenant, Wanted, Why, settle};
use crate::sync::now;
use crate::sys::epoll::Flags;
use crate::token::Token;

use super::{explore, thread};

const PREEMPTIONS: usize = 4;

/// Deadlines take more steps.
const PREEMPTIONS_WITH_DEADLINES: usize = 3;

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
    deadline: Deadline,
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
    token: Token,
    kernel: Mutex<Kernel>,
    deadlines: Deadlines<Bell>,
    /// Calls of the handler with a message, and because its time was over. Not the checker's: they are
    /// looked at when all is done.
    messages: AtomicUsize,
    timeouts: AtomicUsize,
}

/// Rings when somebody looks. Set under the queue's lock.
struct Bell(AtomicU64);

impl Alarm for Bell {
    fn set(&self, due: u64) {
        self.0.store(due, Ordering::Relaxed);
    }
}

/// How a handler reads and what it says then.
#[derive(Clone, Copy)]
enum Manner {
    One,
    All,
}

impl Handle {
    /// With `unread` to be read, and a deadline that is queued.
    fn new(deactivation: Deactivation, unread: usize, due: u64) -> Arc<Handle> {
        let told = deactivation.flags(Some(READABLE));
        let listed = unread > 0;
        let kernel = Kernel { unread, told, spent: false, listed, deleted: false };
        let slot = Slot::new();
        let token = Token { slot: 0, generation: slot.generation() };
        let deadlines = Deadlines::new(Bell(AtomicU64::new(NEVER)));
        let arming = Arming { deactivation, armed: Some(READABLE) };
        let mut deadline = Deadline::new(due);
        deadlines.look_after(token, &mut deadline);
        let guest = Guest { arming, deadline, place: UnsafeCell::new(()) };
        let owned = slot.reserve(READABLE, true, false).fill(guest);
        let seen = owned.state();
        assert!(owned.release(seen, true, READABLE).is_ok());
        Arc::new(Handle {
            slot,
            token,
            kernel: Mutex::new(kernel),
            deadlines,
            messages: AtomicUsize::new(0),
            timeouts: AtomicUsize::new(0),
        })
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
        drop(kernel);
        if ready { Some(Flags::IN) } else { self.ring() }
    }

    /// The alarm, if it is time for it.
    fn ring(&self) -> Option<Flags> {
        let bell = self.deadlines.alarm();
        if bell.0.load(Ordering::Relaxed) > now() {
            return None;
        }
        bell.0.store(NEVER, Ordering::Relaxed);
        let mut rung = None;
        self.deadlines.ring(now(), |token| {
            assert_eq!(token, self.token);
            rung = Some(TIMEOUT);
            true
        });
        rung
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
        match settle(owned, wanted, self) {
            Settled::AtRest { again, .. } => again,
            Settled::Leaves { owned, why: Why::Asked(_) } => {
                let (guest, empty) = owned.take();
                self.deadlines.forget(self.token, &guest.deadline);
                self.kernel.lock().unwrap().deleted = true;
                guest.place.with_mut(|_| ());
                if empty.vacate().retimed {
                    self.deadlines.take_asked(self.token);
                }
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
            if let Entered::Owned(owned, flags) = self.slot.enter(self.token.generation, flags) {
                next = self.handle(owned, flags, manner);
            }
            next = next.or_else(|| self.wait());
        }
    }

    /// As the engine does it; returns what is to be passed on.
    fn handle(&self, mut owned: Owned<'_, Guest>, flags: Flags, manner: Manner) -> Option<Flags> {
        let from_kernel = !flags.without(TIMEOUT | MESSAGE).is_empty();
        if from_kernel && owned.arming.deactivation == Deactivation::OneShot {
            owned.arming.armed = None;
        }
        let timeout = flags.contains(TIMEOUT) && owned.deadline.arrived(now()).is_some();
        self.timeouts.fetch_add(usize::from(timeout), Ordering::Relaxed);
        self.messages.fetch_add(usize::from(flags.contains(MESSAGE)), Ordering::Relaxed);
        if !from_kernel {
            let state = owned.state();
            let (armed, interest) = (state.is_armed(), state.interest());
            return self.give_back(owned, Wanted { armed, interest, poll: false });
        }
        owned.place.with_mut(|_| ());
        self.read(manner);
        let poll = matches!(manner, Manner::One);
        self.give_back(owned, Wanted { armed: true, interest: READABLE, poll })
    }

    /// Asks from outside; returns what is to be handed in.
    fn ask(&self, request: Request) -> Option<Flags> {
        match self.slot.request(self.token.generation, request) {
            Requested::Owned(owned) => {
                let (armed, interest) = (owned.state().is_armed(), owned.state().interest());
                self.give_back(owned, Wanted { armed, interest, poll: false })
            }
            Requested::Deferred | Requested::Unknown => None,
            Requested::Refused => unreachable!("the handle is not shared"),
        }
    }
}

impl Office<Guest> for Handle {
    fn tell(&self, _guest: &Guest, flags: Flags) -> io::Result<()> {
        let mut kernel = self.kernel.lock().unwrap();
        assert!(!kernel.deleted, "I7: armed after it has been taken out");
        (kernel.told, kernel.spent, kernel.listed) = (flags, false, false);
        kernel.poll();
        Ok(())
    }

    fn look_after_deadline(&self, guest: &mut Guest, expired: bool, retimed: bool) -> bool {
        if let Some(due) = retimed.then(|| self.deadlines.take_asked(self.token)).flatten() {
            guest.deadline.due = due;
        }
        let passed = expired && guest.deadline.arrived_early(now());
        self.deadlines.look_after(self.token, &mut guest.deadline);
        passed
    }
}

/// Two threads serve a handle without a deadline while `act` is done; what it returns is handed in.
fn check(
    deactivation: Deactivation,
    manner: Manner,
    act: impl Fn(&Handle) -> Option<Flags> + Copy + Send + Sync + 'static,
    holds: impl Fn(&Handle) -> bool + Copy + Send + Sync + 'static,
) {
    explore_one(PREEMPTIONS, (deactivation, manner, NEVER), act, holds);
}

/// The same with deadlines: the handle's, or those that are set from outside.
fn check_deadlines(
    deactivation: Deactivation,
    due: u64,
    act: impl Fn(&Handle) -> Option<Flags> + Copy + Send + Sync + 'static,
    holds: impl Fn(&Handle) -> bool + Copy + Send + Sync + 'static,
) {
    explore_one(PREEMPTIONS_WITH_DEADLINES, (deactivation, Manner::One, due), act, holds);
}

fn explore_one(
    preemptions: usize,
    (deactivation, manner, due): (Deactivation, Manner, u64),
    act: impl Fn(&Handle) -> Option<Flags> + Copy + Send + Sync + 'static,
    holds: impl Fn(&Handle) -> bool + Copy + Send + Sync + 'static,
) {
    explore(preemptions, move || {
        let handle = Handle::new(deactivation, 1, due);
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

fn call(handle: &Handle) -> Option<Flags> {
    match handle.slot.call(handle.token.generation) {
        Called::Send => Some(MESSAGE),
        Called::Covered => None,
        other => panic!("{other:?}"),
    }
}

/// Each of two calls comes at any time, and the second may find the first.
fn call_twice(handle: &Handle) -> Option<Flags> {
    let first = call(handle);
    let second = call(handle);
    second.or(first)
}

fn was_called(handle: &Handle) -> bool {
    let messages = handle.messages.load(Ordering::Relaxed);
    is_all_read(handle) && (1..=2).contains(&messages)
}

#[test]
fn calls_of_a_one_shot_handle_are_heard() {
    check(Deactivation::OneShot, Manner::One, call_twice, was_called);
}

#[test]
fn calls_of_an_edge_handle_are_heard() {
    check(Deactivation::Edge, Manner::One, call_twice, was_called);
}

#[test]
fn a_call_is_heard_in_spite_of_a_suspension() {
    fn suspend_and_call(handle: &Handle) -> Option<Flags> {
        let suspended = handle.ask(Request::Suspend);
        call(handle).or(suspended)
    }
    fn was_called_once(handle: &Handle) -> bool {
        handle.messages.load(Ordering::Relaxed) == 1
    }
    check(Deactivation::OneShot, Manner::One, suspend_and_call, was_called_once);
    check(Deactivation::Edge, Manner::One, suspend_and_call, was_called_once);
}

/// The model's clock stands still, at this time.
const DUE: u64 = 1;

fn has_fired_once(handle: &Handle) -> bool {
    let nothing_is_left = handle.deadlines.take_asked(handle.token).is_none();
    handle.timeouts.load(Ordering::Relaxed) == 1 && nothing_is_left && is_all_read(handle)
}

fn ask_deadline(handle: &Handle, due: u64) -> Option<Flags> {
    handle.deadlines.ask(handle.token, due);
    handle.ask(Request::Deadline)
}

#[test]
fn a_deadline_that_comes_up_while_the_handler_runs_fires_once() {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        check_deadlines(deactivation, DUE, post, has_fired_once);
    }
}

#[test]
fn a_deadline_that_is_set_from_outside_fires_once() {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        check_deadlines(deactivation, NEVER, |handle| ask_deadline(handle, DUE), has_fired_once);
    }
}

/// The latest counts, whichever of the two the owner has fetched.
#[test]
fn a_deadline_that_is_moved_away_and_back_fires_once_at_least() {
    fn move_away_and_back(handle: &Handle) -> Option<Flags> {
        let away = ask_deadline(handle, DUE + 1);
        let back = ask_deadline(handle, DUE);
        let both = away.unwrap_or_default() | back.unwrap_or_default();
        (!both.is_empty()).then_some(both)
    }
    fn has_fired(handle: &Handle) -> bool {
        let timeouts = handle.timeouts.load(Ordering::Relaxed);
        (1..=2).contains(&timeouts) && is_all_read(handle)
    }
    check_deadlines(Deactivation::OneShot, DUE, move_away_and_back, has_fired);
}

#[test]
fn a_deadline_of_a_handle_that_is_removed_leaves_nothing_behind() {
    fn set_and_remove(handle: &Handle) -> Option<Flags> {
        // It does not come up by itself, and so stays queued until somebody takes it out.
        let set = ask_deadline(handle, DUE + 1);
        remove(handle).or(set)
    }
    fn is_gone_for_good(handle: &Handle) -> bool {
        let asked = handle.deadlines.take_asked(handle.token);
        let mut queued = false;
        handle.deadlines.ring(u64::MAX - 1, |_| {
            queued = true;
            true
        });
        is_gone(handle) && asked.is_none() && !queued
    }
    check_deadlines(Deactivation::OneShot, NEVER, set_and_remove, is_gone_for_good);
}
