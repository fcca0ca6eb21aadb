//! The slot's state word, exhaustively: one owner at a time, and nothing asked of it is lost.

use std::ops::{Deref, DerefMut};

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use crate::cell::{Cause, Entered, Owned, Request, Requested, Slot};
use crate::handler::Blocking;
use crate::interest::Interest;
use crate::sys::epoll::Flags;

use super::{explore, thread};

const PREEMPTIONS: usize = 5;

const READABLE: Interest = Interest::READABLE;
const WRITABLE: Interest = Interest::WRITABLE;

/// A value that loom watches: it fails the model if two accesses, one of them a write, are not
/// ordered.
pub(super) struct Watched {
    name: u32,
    place: UnsafeCell<()>,
}

// Whether the slot keeps to `&mut` for one and `&` for many is what the models are about.
#[allow(unsafe_code)]
// SAFETY: loom runs one thread at a time, and panics at an access that the order does not allow.
unsafe impl Sync for Watched {}

impl Watched {
    pub(super) fn new(name: u32) -> Watched {
        Watched { name, place: UnsafeCell::new(()) }
    }

    pub(super) fn write(&mut self) {
        self.place.with_mut(|_| ());
    }

    pub(super) fn read(&self) -> u32 {
        self.place.with(|_| ());
        self.name
    }
}

/// A slot with a tenant, at rest and armed.
pub(super) fn tenanted(concurrent: bool) -> (Arc<Slot<Watched>>, u32) {
    let slot = Arc::new(Slot::new());
    let generation = slot.generation();
    move_in(&slot, 0, concurrent);
    (slot, generation)
}

fn move_in(slot: &Slot<Watched>, name: u32, concurrent: bool) {
    let owned = slot.reserve(READABLE, true, concurrent).fill(Watched::new(name));
    settle(owned, true, READABLE);
}

/// What an owner came across while it gave the slot back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    pub(super) reports: usize,
    pub(super) reported: Flags,
    /// Notes that the deadline may have passed, and that it was set from outside.
    pub(super) expiries: usize,
    pub(super) retimings: usize,
    /// It gave the slot back with a call in it, and has to send the event.
    pub(super) called: bool,
    /// It has taken the value out; whether somebody waited for that.
    pub(super) vacated: Option<bool>,
}

/// Gives a slot back as the engine does, less the kernel.
pub(super) fn settle(
    mut owned: Owned<'_, Watched>,
    mut armed: bool,
    mut interest: Interest,
) -> Met {
    let mut met = Met::default();
    loop {
        owned.deref_mut().write();
        let mut seen = owned.state();
        if seen.has_news() {
            let asked = owned.absorb();
            interest = asked.changed().unwrap_or(interest);
            armed = asked.steered().unwrap_or(armed);
            met.reports += usize::from(asked.reported().is_some());
            met.reported |= asked.reported().unwrap_or_default();
            met.expiries += usize::from(asked.expired());
            met.retimings += usize::from(asked.retimed());
            seen = asked.absorbed();
        }
        if seen.removal().is_some() {
            let (mut value, empty) = owned.take();
            value.write();
            let vacated = empty.vacate();
            met.retimings += usize::from(vacated.retimed);
            met.vacated = Some(vacated.awaited);
            return met;
        }
        met.called |= seen.called();
        match owned.release(seen, armed, interest) {
            Ok(()) => return met,
            Err(still_owned) => owned = still_owned,
        }
    }
}

/// Asks, and settles it if that falls to the asker.
pub(super) fn ask(slot: &Slot<Watched>, generation: u32, request: Request) -> Asked {
    match slot.request(generation, request) {
        Requested::Owned(owned) => {
            let state = owned.state();
            Asked::Settled(settle(owned, state.is_armed(), state.interest()))
        }
        Requested::Deferred => Asked::Deferred,
        Requested::Refused => unreachable!("only of a shared slot, which is asked no such thing"),
        Requested::Unknown => Asked::Unknown,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Settled(Met),
    Deferred,
    Unknown,
}

impl Asked {
    pub(super) fn met(self) -> Met {
        if let Asked::Settled(met) = self { met } else { Met::default() }
    }
}

pub(super) fn remove(awaited: bool) -> Request {
    Request::Remove { cause: Cause::Removed, awaited }
}

/// Comes with an event.
pub(super) fn enter(slot: &Slot<Watched>, generation: u32) -> Entered<'_, Watched> {
    slot.enter(generation, Flags::IN)
}

/// Comes with an event; `None` if another owner has been told of it.
fn serve(slot: &Slot<Watched>, generation: u32, flags: Flags) -> Option<Met> {
    match slot.enter(generation, flags) {
        Entered::Owned(owned, _) => {
            assert_eq!(owned.deref().read(), 0, "I7: an event reaches a later tenant");
            Some(settle(owned, true, READABLE))
        }
        Entered::Noted => None,
        Entered::Dormant | Entered::Stale => Some(Met::default()),
        Entered::Shared(_) => unreachable!("the handle is not shared"),
    }
}

#[test]
fn of_two_events_at_once_one_owns_and_the_other_is_seen() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || serve(&there, generation, Flags::IN));
        let outcomes = [serve(&slot, generation, Flags::IN), other.join().unwrap()];
        let noted = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        let reports: usize = outcomes.iter().flatten().map(|met| met.reports).sum();
        assert!(noted < 2, "both were told that the other owns it");
        assert_eq!(reports, noted, "I5: an event was noted and not seen");
    });
}

#[test]
fn what_comes_while_it_is_owned_is_seen_with_its_readiness() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let others = [Flags::IN, Flags::OUT].map(|flags| {
            let there = Arc::clone(&slot);
            (flags, thread::spawn(move || serve(&there, generation, flags)))
        });
        let mut seen = settle(owned, true, READABLE).reported;
        let mut noted = Flags::default();
        for (flags, other) in others {
            match other.join().unwrap() {
                Some(met) => seen |= met.reported,
                None => noted |= flags,
            }
        }
        assert_eq!(seen, noted, "I5: an event was noted and not seen");
    });
}

#[test]
fn an_event_that_comes_before_the_tenant_has_moved_in_is_seen() {
    explore(PREEMPTIONS, || {
        let slot = Arc::new(Slot::new());
        let generation = slot.generation();
        let reserved = slot.reserve(READABLE, true, false);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || serve(&there, generation, Flags::IN));
        let met = settle(reserved.fill(Watched::new(0)), true, READABLE);
        assert_eq!(met.reports, usize::from(other.join().unwrap().is_none()));
    });
}

#[test]
fn a_removal_against_an_event_vacates_once_and_lets_nobody_in_afterwards() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || serve(&there, generation, Flags::IN));
        let asked = ask(&slot, generation, remove(false));
        let vacated = [asked.met().vacated, other.join().unwrap().and_then(|met| met.vacated)];
        assert_eq!(vacated.iter().flatten().count(), 1);
        assert_eq!(slot.tenant(), None);
        assert!(matches!(enter(&slot, generation), Entered::Stale));
        assert!(matches!(ask(&slot, generation, Request::Resume), Asked::Unknown));
    });
}

#[test]
fn two_removals_vacate_once() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || ask(&there, generation, remove(false)));
        let asked = [ask(&slot, generation, remove(false)), other.join().unwrap()];
        assert_eq!(asked.iter().filter_map(|asked| asked.met().vacated).count(), 1);
    });
}

#[test]
fn a_late_event_does_not_reach_the_next_tenant() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || {
            serve(&there, generation, Flags::IN);
            serve(&there, generation, Flags::IN);
        });
        if ask(&slot, generation, remove(false)).met().vacated.is_some() {
            move_in(&slot, 1, false);
        }
        other.join().unwrap();
    });
}

#[test]
fn who_waits_for_a_removal_is_told_of_it_and_sees_what_was_done() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let there = Arc::clone(&slot);
        let hook = Arc::new(UnsafeCell::new(()));
        let closed = Arc::clone(&hook);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let other = thread::spawn(move || {
            let asked = there.request(generation, remove(true));
            assert!(!matches!(asked, Requested::Owned(_)), "the other owns it");
            while there.generation() == generation {
                thread::yield_now();
            }
            closed.with_mut(|_| ());
            matches!(asked, Requested::Deferred)
        });
        // The handler closes itself, and is removed meanwhile.
        let (_value, empty) = owned.take();
        hook.with_mut(|_| ());
        let awaited = empty.vacate().awaited;
        assert_eq!(awaited, other.join().unwrap(), "told if and only if it was deferred");
    });
}

/// One request against an owner that gives the slot back, with the verdict `armed`.
fn check_request(request: Request, armed: bool, holds: fn(&Slot<Watched>, u32) -> bool) {
    explore(PREEMPTIONS, move || {
        let (slot, generation) = tenanted(false);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || {
            ask(&there, generation, request);
        });
        settle(owned, armed, READABLE);
        other.join().unwrap();
        assert!(holds(&slot, generation), "{request:?} was lost: {slot:?}");
    });
}

fn is_dormant(slot: &Slot<Watched>, generation: u32) -> bool {
    matches!(enter(slot, generation), Entered::Dormant)
}

fn is_armed(slot: &Slot<Watched>, generation: u32) -> bool {
    matches!(enter(slot, generation), Entered::Owned(..))
}

fn is_writable(slot: &Slot<Watched>, generation: u32) -> bool {
    matches!(
        enter(slot, generation),
        Entered::Owned(owned, _) if owned.state().interest() == WRITABLE
    )
}

#[test]
fn a_suspension_overrules_the_verdict_to_rearm() {
    check_request(Request::Suspend, true, is_dormant);
}

#[test]
fn a_resumption_overrules_the_verdict_to_suspend() {
    check_request(Request::Resume, false, is_armed);
}

#[test]
fn an_interest_overrules_the_verdicts() {
    check_request(Request::Interest(WRITABLE), true, is_writable);
}

#[test]
fn a_removal_overrules_the_verdict() {
    check_request(remove(false), true, |slot, _| slot.tenant().is_none());
}

#[test]
fn two_requests_during_a_release_both_count() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let others = [Request::Resume, Request::Interest(WRITABLE)].map(|request| {
            let there = Arc::clone(&slot);
            thread::spawn(move || {
                ask(&there, generation, request);
            })
        });
        settle(owned, true, READABLE);
        for other in others {
            other.join().unwrap();
        }
        assert!(is_writable(&slot, generation), "{slot:?}");
    });
}

/// What a tenant has declared is not undone by a lesson of its predecessor that comes late.
#[test]
fn a_late_lesson_does_not_undo_a_declaration() {
    explore(PREEMPTIONS, || {
        let slot = Arc::new(Slot::<Watched>::new());
        let late = Arc::clone(&slot);
        let learner = thread::spawn(move || late.learn(1_000_000_000, 1_000_000));
        slot.expect(Blocking::Never);
        learner.join().unwrap();
        assert_eq!(slot.blocking(1_000_000), Blocking::Never);
    });
}
