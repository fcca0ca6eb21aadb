//! What does not come from the kernel, exhaustively: calls, deadlines that have passed or were set from
//! outside. None is lost, a call carries what its caller did before, and many make one.

use std::sync::atomic as plain;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};

use crate::cell::{Called, Entered, Owned, Request, Slot};
use crate::interest::{Interest, MESSAGE, TIMEOUT};
use crate::sys::epoll::Flags;

use super::loom_slot::{Asked, Met, Watched, ask, enter, remove, settle, tenanted};
use super::{explore, thread};

const PREEMPTIONS: usize = 4;

/// With three threads that all do much.
const PREEMPTIONS_OF_THREE: usize = 3;

const READABLE: Interest = Interest::READABLE;

/// What two callers have to say, and whether the handler has heard it.
#[derive(Default)]
struct Letters {
    /// The checker's, so that they can come late.
    written: [AtomicBool; 2],
    heard: [plain::AtomicBool; 2],
    calls: plain::AtomicUsize,
}

impl Letters {
    /// Says something, calls, and sends the event if that falls to the caller.
    fn send(&self, slot: &Slot<Watched>, generation: u32, sender: usize) -> Called {
        self.written[sender].store(true, Ordering::Relaxed);
        let called = slot.call(generation);
        if called == Called::Send {
            self.deliver(slot, generation, MESSAGE);
        }
        called
    }

    /// Comes with an event, and with those that giving the slot back brings.
    fn deliver(&self, slot: &Slot<Watched>, generation: u32, flags: Flags) {
        if let Entered::Owned(owned, flags) = slot.enter(generation, flags) {
            self.serve(slot, generation, owned, flags);
        }
    }

    fn serve(
        &self,
        slot: &Slot<Watched>,
        generation: u32,
        owned: Owned<'_, Watched>,
        flags: Flags,
    ) {
        if flags.contains(MESSAGE) {
            self.calls.fetch_add(1, plain::Ordering::Relaxed);
            for (written, heard) in self.written.iter().zip(&self.heard) {
                heard.fetch_or(written.load(Ordering::Relaxed), plain::Ordering::Relaxed);
            }
        }
        let state = owned.state();
        if settle(owned, state.is_armed(), state.interest()).called {
            self.deliver(slot, generation, MESSAGE);
        }
    }

    fn all_heard(&self) -> bool {
        self.heard.iter().all(|heard| heard.load(plain::Ordering::Relaxed))
    }

    fn calls(&self) -> usize {
        self.calls.load(plain::Ordering::Relaxed)
    }
}

fn spawn_sender(
    letters: &Arc<Letters>,
    slot: &Arc<Slot<Watched>>,
    generation: u32,
    sender: usize,
) -> thread::JoinHandle<Called> {
    let (letters, slot) = (Arc::clone(letters), Arc::clone(slot));
    thread::spawn(move || letters.send(&slot, generation, sender))
}

/// Two callers, against `act`.
fn check_calls(act: fn(&Letters, &Slot<Watched>, u32)) {
    explore(PREEMPTIONS_OF_THREE, move || {
        let (slot, generation) = tenanted(false);
        let letters = Arc::new(Letters::default());
        let senders = [0, 1].map(|sender| spawn_sender(&letters, &slot, generation, sender));
        act(&letters, &slot, generation);
        for sender in senders {
            assert!(matches!(sender.join().unwrap(), Called::Send | Called::Covered));
        }
        assert!(letters.all_heard(), "a call was lost: {slot:?}");
        assert!(letters.calls() <= 2, "a call was heard twice");
    });
}

#[test]
fn calls_are_heard_beside_each_other() {
    check_calls(|_, _, _| ());
}

#[test]
fn calls_are_heard_beside_an_event() {
    check_calls(|letters, slot, generation| letters.deliver(slot, generation, Flags::IN));
}

#[test]
fn calls_are_heard_beside_a_suspension() {
    check_calls(|letters, slot, generation| {
        if let Asked::Settled(Met { called: true, .. }) = ask(slot, generation, Request::Suspend) {
            letters.deliver(slot, generation, MESSAGE);
        }
    });
}

#[test]
fn calls_while_the_handler_runs_make_one() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let letters = Arc::new(Letters::default());
        let Entered::Owned(owned, flags) = enter(&slot, generation) else {
            panic!("it was at rest")
        };
        let senders = [0, 1].map(|sender| spawn_sender(&letters, &slot, generation, sender));
        for sender in senders {
            assert_eq!(sender.join().unwrap(), Called::Covered, "the owner sends the event");
        }
        letters.serve(&slot, generation, owned, flags);
        assert!(letters.all_heard());
        assert_eq!(letters.calls(), 1);
        assert!(matches!(slot.enter(generation, MESSAGE), Entered::Noted), "nothing is left");
    });
}

#[test]
fn a_call_beside_a_removal_is_heard_or_refused() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let letters = Arc::new(Letters::default());
        let sender = spawn_sender(&letters, &slot, generation, 0);
        let removed = ask(&slot, generation, remove(false));
        let called = sender.join().unwrap();
        assert!(letters.calls() <= 1);
        assert_eq!(slot.tenant(), None, "{removed:?} {called:?}");
        assert_eq!(slot.call(generation), Called::Unknown);
    });
}

/// Comes because the deadline may have passed; what its owner met, or whether it was noted.
fn expire(slot: &Slot<Watched>, generation: u32, armed: bool) -> Option<Met> {
    match slot.enter(generation, TIMEOUT) {
        Entered::Owned(owned, flags) => {
            assert_eq!(flags, TIMEOUT);
            Some(settle(owned, armed, READABLE))
        }
        Entered::Noted => None,
        _ => panic!("nobody asked it to leave: {slot:?}"),
    }
}

/// Also of a handle that is suspended, before or after.
#[test]
fn a_deadline_that_has_passed_is_told_to_whoever_has_the_slot() {
    for armed in [true, false] {
        explore(PREEMPTIONS, move || {
            let (slot, generation) = tenanted(false);
            let Entered::Owned(owned, _) = enter(&slot, generation) else {
                panic!("it was at rest")
            };
            let there = Arc::clone(&slot);
            let other = thread::spawn(move || expire(&there, generation, armed));
            let met = settle(owned, armed, READABLE);
            let noted = other.join().unwrap().is_none();
            assert_eq!(met.expiries, usize::from(noted), "noted and not seen, or seen twice");
        });
    }
}

#[test]
fn a_deadline_that_is_set_from_outside_is_told_to_whoever_gives_the_slot_back() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || ask(&there, generation, Request::Deadline));
        let met = settle(owned, true, READABLE);
        let asked = other.join().unwrap();
        assert_eq!(met.retimings + asked.met().retimings, 1, "{asked:?}");
    });
}

#[test]
fn a_deadline_that_is_set_beside_a_removal_is_refused_or_found_by_whoever_removes() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(false);
        let Entered::Owned(owned, _) = enter(&slot, generation) else { panic!("it was at rest") };
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || ask(&there, generation, Request::Deadline));
        // The handler closes itself.
        let (_value, empty) = owned.take();
        let found = empty.vacate().retimed;
        let deferred = matches!(other.join().unwrap(), Asked::Deferred);
        assert_eq!(found, deferred);
    });
}
