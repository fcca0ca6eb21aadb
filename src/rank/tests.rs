//! What the rank decides, at times that are told and not taken.

use std::iter;

use super::*;
use crate::followers::Order;
use crate::policy::Growth;
use crate::sys::epoll::Flags;

const INTERVAL: u64 = 1_000_000;

/// Longer than a poll takes: a wait that was a sleep.
const LONG: u64 = 1_000_000;

fn policy(least: usize, most: usize) -> Policy {
    Policy {
        seats: 1,
        calm_seats: 1,
        events: 8,
        running: 2,
        order: Order::Lifo,
        promotion: Promotion::Adaptive,
        spin: Duration::ZERO,
        budget: u64::MAX,
        guesses: false,
        reports_overruns: false,
        growth: Growth { least, most, keep_alive: u64::MAX, interval: INTERVAL },
    }
}

/// One of the pool's own threads comes in, and asks what to do.
fn come_in(state: &mut State, index: usize) -> (Arc<Worker>, Assignment) {
    let worker = Arc::new(Worker::new(index, format!("worker-{index}"), 0));
    state.enlist(&worker).unwrap();
    let assignment = ask(state, &worker, Holding::Nothing, 1);
    (worker, assignment)
}

/// A thread puts down what it holds, and asks what to do.
fn ask(state: &mut State, worker: &Arc<Worker>, holding: Holding, now: u64) -> Assignment {
    state.put_down(worker, holding, 0, now);
    state.assign(worker, Arrival::Awake, true, |_| Blocking::Learned, now)
}

/// A thread that sits detects an event; its errands, if it is to process it.
fn detect(
    state: &mut State,
    worker: &Worker,
    waited: u64,
    blocking: Blocking,
    now: u64,
) -> Option<Errands> {
    let events = iter::once(Event::new(Flags::IN, 7));
    match state.promote(worker, events, waited, |_| blocking, now) {
        Promoted::Process { errands, .. } => Some(errands),
        Promoted::Enough => None,
    }
}

fn sits(assignment: &Assignment) -> bool {
    matches!(assignment, Assignment::Seat { .. })
}

/// A growing pool whose first thread is in a handler, and whose second, which was started for that
/// at the time of 1, is on the handle set.
fn grown(state: &mut State) -> [Arc<Worker>; 2] {
    let (first, assignment) = come_in(state, 0);
    assert!(sits(&assignment));
    let errands = detect(state, &first, LONG, Blocking::Learned, 1).expect("nothing to wait for");
    assert!(errands.recruit, "the last that is idle goes");
    let (second, assignment) = come_in(state, 1);
    state.recruited(true);
    assert!(sits(&assignment));
    [first, second]
}

#[test]
fn no_two_threads_are_started_within_the_growth_interval() {
    let rank = Rank::new(policy(1, 3));
    let mut state = rank.lock();
    let [_, second] = grown(&mut state);
    let early = detect(&mut state, &second, LONG, Blocking::Learned, INTERVAL);
    assert!(early.is_none(), "the last that is idle is to wait for its successor");
    let held_back = ask(&mut state, &second, Holding::Nothing, INTERVAL);
    let rest = Duration::from_nanos(1);
    assert!(matches!(held_back, Assignment::Follow { again: Some(again), .. } if again == rest));
    assert_eq!(state.got_up(&second, false, true), Arrival::Timeout);
    let later = ask(&mut state, &second, Holding::Nothing, INTERVAL + 1);
    assert!(matches!(later, Assignment::Event { errands: Errands { recruit: true, .. }, .. }));
}

#[test]
fn a_thread_that_leaves_is_replaced_within_the_growth_interval() {
    let rank = Rank::new(policy(1, 3));
    let mut state = rank.lock();
    let [_, second] = grown(&mut state);
    state.put_down(&second, Holding::Seat, 0, 2);
    let errands = state.discharge(&second, 2);
    assert!(errands.recruit, "nobody else would look after the first");
}

#[test]
fn a_thread_that_says_it_blocks_is_replaced_within_the_growth_interval() {
    let rank = Rank::new(policy(1, 3));
    let mut state = rank.lock();
    let [first, second] = grown(&mut state);
    // It has seen an event that it may not take yet, and has not lain down.
    assert!(detect(&mut state, &second, LONG, Blocking::Learned, 2).is_none());
    assert!(state.begin_blocking(&first, 3).recruit);
    // The one that is on its way will look after both.
    let assignment = ask(&mut state, &second, Holding::Nothing, 4);
    assert!(matches!(assignment, Assignment::Event { .. }));
}

#[test]
fn a_thread_that_could_not_be_started_is_tried_again_at_once() {
    let rank = Rank::new(policy(2, 3));
    let mut state = rank.lock();
    let (first, _) = come_in(&mut state, 0);
    let (second, _) = come_in(&mut state, 1);
    let chosen = detect(&mut state, &first, LONG, Blocking::Learned, 1).unwrap().wake;
    assert!(chosen.is_some(), "the other is to sit down");
    assert_eq!(state.got_up(&second, true, false), Arrival::Chosen);
    assert!(sits(&ask(&mut state, &second, Holding::Nothing, 1)));
    for now in 1..4 {
        let errands = detect(&mut state, &second, LONG, Blocking::Learned, now);
        let errands = errands.expect("nobody to be waited for");
        assert!(errands.recruit, "attempt {now}");
        state.recruited(false);
        assert!(sits(&ask(&mut state, &second, Holding::Handler, now)));
    }
}

/// In busy times nobody sits down beside a short handler, except beside one that may block.
#[test]
fn somebody_sits_down_beside_a_handler_that_may_block_in_busy_times() {
    for (blocking, expected) in [(Blocking::Learned, false), (Blocking::Maybe, true)] {
        let rank = Rank::new(policy(2, 2));
        let mut state = rank.lock();
        let (first, _) = come_in(&mut state, 0);
        for now in 1..40 {
            let _ = detect(&mut state, &first, 0, Blocking::Learned, now).unwrap();
            assert!(sits(&ask(&mut state, &first, Holding::Handler, now)));
        }
        let _ = detect(&mut state, &first, 0, blocking, 40).unwrap();
        let (_second, assignment) = come_in(&mut state, 1);
        assert_eq!(sits(&assignment), expected, "{blocking:?}");
    }
}

/// Makes it a busy time with handlers of so many nanoseconds; the thread sits before and after.
fn keep_busy(state: &mut State, worker: &Arc<Worker>, took: u64) {
    for now in 1..200 {
        let _ = detect(state, worker, 0, Blocking::Learned, now).unwrap();
        state.put_down(worker, Holding::Handler, took, now);
        assert!(sits(&state.assign(worker, Arrival::Awake, true, |_| Blocking::Learned, now)));
    }
}

/// How many events a thread fetches in a busy time with handlers of so many nanoseconds.
fn fetched(policy: Policy, took: u64) -> usize {
    let rank = Rank::new(policy);
    let mut state = rank.lock();
    let (worker, _) = come_in(&mut state, 0);
    keep_busy(&mut state, &worker, took);
    let _ = detect(&mut state, &worker, 0, Blocking::Learned, 200).unwrap();
    match ask(&mut state, &worker, Holding::Handler, 200) {
        Assignment::Seat { most, .. } => most,
        _ => panic!("nobody else takes what comes"),
    }
}

/// Where one more may sit than may run. Otherwise somebody would have to be woken for each event.
#[test]
fn long_handlers_have_a_wait_each_if_there_is_a_seat_to_spare() {
    let spare = Policy { seats: 3, ..policy(3, 3) };
    assert_eq!(fetched(spare, 5_000), 8);
    assert_eq!(fetched(spare, 25_000), 1);
    let running_all = Policy { running: usize::MAX, ..spare };
    let polling = Policy { spin: Duration::from_nanos(1), ..spare };
    let reporting = Policy { reports_overruns: true, ..spare };
    let without = [
        Policy { seats: 2, ..spare },
        Policy { running: 1, ..spare },
        running_all,
        polling,
        reporting,
    ];
    for policy in without {
        assert_eq!(fetched(policy, 25_000), 8, "{policy:?}");
    }
}

/// What the one more detects is left to those that run, and it looks after them.
#[test]
fn one_more_sits_than_may_run_with_long_handlers() {
    let rank = Rank::new(Policy { seats: 3, calm_seats: 2, ..policy(4, 4) });
    let mut state = rank.lock();
    let (first, _) = come_in(&mut state, 0);
    keep_busy(&mut state, &first, 25_000);
    let (second, beside) = come_in(&mut state, 1);
    let (third, one_more) = come_in(&mut state, 2);
    let (_fourth, too_many) = come_in(&mut state, 3);
    assert_eq!([beside, one_more, too_many].map(|it| sits(&it)), [true, true, false]);
    for worker in [&first, &second] {
        assert!(detect(&mut state, worker, 0, Blocking::Learned, 200).is_some());
    }
    assert!(detect(&mut state, &third, 0, Blocking::Learned, 200).is_none(), "two may run");
    let waits = ask(&mut state, &third, Holding::Nothing, 200);
    assert!(matches!(waits, Assignment::Follow { again: Some(_), .. }), "there is one left over");
    let next = ask(&mut state, &first, Holding::Handler, 201);
    assert!(matches!(next, Assignment::Event { .. }), "without a wait");
    let next = ask(&mut state, &second, Holding::Handler, 202);
    assert!(sits(&next), "somebody is to see what comes");
}

/// As many run as may, so there is nothing for another thread to do but to watch.
#[test]
fn nobody_is_woken_to_watch_over_a_handler_that_never_blocks() {
    for (blocking, expected) in [(Blocking::Learned, true), (Blocking::Never, false)] {
        let rank = Rank::new(Policy { running: 1, ..policy(2, 2) });
        let mut state = rank.lock();
        let (first, _) = come_in(&mut state, 0);
        let (_second, assignment) = come_in(&mut state, 1);
        assert!(matches!(assignment, Assignment::Follow { watch: false, .. }));
        let errands = detect(&mut state, &first, LONG, blocking, 1).unwrap();
        assert_eq!(errands.wake.is_some(), expected, "{blocking:?}");
    }
}
