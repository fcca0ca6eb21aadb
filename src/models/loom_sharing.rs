//! Shared handles, exhaustively: `&T` for many, and what is asked meanwhile falls to the last.

use loom::sync::Arc;

use crate::cell::{Entered, Request, Slot};

use super::loom_slot::{Asked, Met, Watched, ask, enter, remove, settle, tenanted};
use super::{explore, thread};

const PREEMPTIONS: usize = 4;

/// Comes with an event and goes again; what it met if it was left to settle something.
fn share(slot: &Slot<Watched>, generation: u32) -> (bool, Option<Met>) {
    match enter(slot, generation) {
        Entered::Shared(shared) => {
            shared.read();
            let settled = shared.leave().map(|owned| {
                let state = owned.state();
                settle(owned, state.is_armed(), state.interest())
            });
            (true, settled)
        }
        Entered::Owned(..) => unreachable!("the handle is shared"),
        Entered::Noted | Entered::Dormant | Entered::Stale => (false, None),
    }
}

fn spawn_sharer(slot: &Arc<Slot<Watched>>, generation: u32) -> thread::JoinHandle<Option<Met>> {
    let slot = Arc::clone(slot);
    thread::spawn(move || share(&slot, generation).1)
}

#[test]
fn two_sharers_need_not_wait_for_each_other() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(true);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || share(&there, generation));
        let outcomes = [share(&slot, generation), other.join().unwrap()];
        for (shared, settled) in outcomes {
            assert!(shared, "nobody was asked to keep out");
            assert!(settled.is_none(), "nothing was asked");
        }
    });
}

#[test]
fn of_two_sharers_and_a_removal_exactly_one_takes_the_value_out() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(true);
        let sharers = [spawn_sharer(&slot, generation), spawn_sharer(&slot, generation)];
        let asked = ask(&slot, generation, remove(false));
        let mut vacated = usize::from(asked.met().vacated.is_some());
        for sharer in sharers {
            let met = sharer.join().unwrap().unwrap_or_default();
            vacated += usize::from(met.vacated.is_some());
        }
        assert_eq!(vacated, 1);
        assert_eq!(slot.tenant(), None);
        assert!(matches!(enter(&slot, generation), Entered::Stale));
    });
}

#[test]
fn of_two_sharers_and_a_suspension_exactly_one_settles_it() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(true);
        let sharers = [spawn_sharer(&slot, generation), spawn_sharer(&slot, generation)];
        let asked = ask(&slot, generation, Request::Suspend);
        let mut settled = usize::from(matches!(asked, Asked::Settled(_)));
        for sharer in sharers {
            settled += usize::from(sharer.join().unwrap().is_some());
        }
        assert_eq!(settled, 1);
        assert!(matches!(enter(&slot, generation), Entered::Dormant), "{slot:?}");
    });
}

#[test]
fn two_requests_while_it_is_shared_both_count() {
    explore(PREEMPTIONS, || {
        let (slot, generation) = tenanted(true);
        let sharer = spawn_sharer(&slot, generation);
        let there = Arc::clone(&slot);
        let other = thread::spawn(move || ask(&there, generation, Request::Suspend));
        let removed = ask(&slot, generation, remove(true));
        let suspended = other.join().unwrap();
        let met = [removed.met(), suspended.met(), sharer.join().unwrap().unwrap_or_default()];
        let vacated: Vec<bool> = met.iter().filter_map(|met| met.vacated).collect();
        assert_eq!(vacated, [true], "taken out once, and by somebody who knows that it is awaited");
    });
}
