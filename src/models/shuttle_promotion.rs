//! Promotion under random schedules: every order, every policy, calm and busy, with follow-up
//! events, handlers that take time or block, and wake-ups for no reason.

use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::followers::Order;
use crate::policy::Policy;
use crate::roles::{Left, Turn, Watch};
use crate::sync::model::{FOREVER, advance};
use crate::sync::{Arc, nanoseconds};

use super::crew::{
    Crew, adaptive, adaptive_impatient, adaptive_one, adaptive_spare, eager, enlist, papers,
};
use super::fake::{Fake, Limits};
use super::{any, explore, thread};

pub(super) const ORDERS: [Order; 4] = [Order::Lifo, Order::Fifo, Order::Priority, Order::Unordered];

const SOURCES: usize = 3;

/// How long handlers must be to be worth sharing out, in nanoseconds: the longest that count.
const LONG: u64 = 200_000;

pub(super) fn limits(policy: &Policy) -> Limits {
    let limits = Limits::of(policy);
    if policy.budget < nanoseconds(FOREVER) { limits.with_overdue() } else { limits }
}

/// Makes it a calm time, a busy one, or a busy one with long handlers, by taking part alone.
pub(super) fn set_the_pace(crew: &mut Crew<Fake>) {
    let (waits, took) = [(0, 0), (20, 0), (20, LONG)][any(3)];
    let worker = crew.worker();
    let shared = Arc::clone(&crew.shared);
    let mut follower = enlist(&shared, worker, None).unwrap();
    shared.demux.set_handler_time(took);
    for _ in 0..waits {
        shared.demux.post(0);
        let processing = match follower.follow() {
            Turn::Lead(leader) => {
                let Watch::Detected(detected) = leader.wait() else { panic!("there is an event") };
                detected.promote().expect("nobody else runs")
            }
            Turn::Process(processing) => processing,
            Turn::Leave(why) => panic!("{why}"),
        };
        follower = processing.process();
    }
    shared.demux.set_handler_time(0);
    drop(follower);
    let is_long = shared.rank.lock().handlers_merit_a_wait();
    assert!(is_long || took == 0, "not the pace that was meant");
}

/// Posts to any sources, from a thread of its own.
pub(super) fn spawn_poster(crew: &Crew<Fake>, events: usize) -> thread::JoinHandle<()> {
    let shared = Arc::clone(&crew.shared);
    thread::spawn(move || {
        for _ in 0..events {
            shared.demux.post(any(SOURCES));
        }
    })
}

/// Wakes followers and leaders for no reason.
fn spawn_chaos(crew: &Crew<Fake>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(&crew.shared);
    let workers = crew.workers.clone();
    thread::spawn(move || {
        use crate::demux::Demultiplexer;

        for _ in 0..any(8) {
            match any(workers.len() + 1) {
                0 => shared.demux.wake(),
                worker => workers[worker - 1].parker.unpark(),
            }
        }
    })
}

/// A handle set whose handlers take their time, and now and then post what is to be handled next.
pub(super) fn lively(policy: &Policy) -> Fake {
    let follow_ups = Plain::new(AtomicUsize::new(any(4)));
    Fake::new(SOURCES, limits(policy), move |upcall| match any(4) {
        0 => thread::yield_now(),
        1 => advance(any(LONG as usize) as u64),
        2 => {
            let left = |left: usize| left.checked_sub(1);
            if follow_ups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
                upcall.fake.post((upcall.source + any(2)) % SOURCES);
            }
        }
        _ => {}
    })
}

fn check_every_event_is_handled_once(policy: fn(Order) -> Policy) {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let policy = policy(order);
            let mut crew = Crew::new(lively(&policy), policy);
            set_the_pace(&mut crew);
            for _ in 0..2 + any(4) {
                crew.spawn(None);
            }
            let helpers = [spawn_poster(&crew, 3 + any(4)), spawn_chaos(&crew)];
            for helper in helpers {
                helper.join().unwrap();
            }
            crew.demux().await_all_handled();
            let most = crew.shared.rank.lock().followers.most_on_their_way();
            assert!(most <= 1, "I11: {most} followers on their way at once");
            for left in crew.finish() {
                assert!(matches!(left, Left::Shutdown));
            }
        });
    }
}

const ITERATIONS: usize = 3_000;

#[test]
fn papers_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(papers);
}

#[test]
fn eager_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(eager);
}

#[test]
fn adaptive_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(adaptive);
}

#[test]
fn adaptive_with_a_spare_seat_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(adaptive_spare);
}

#[test]
fn adaptive_with_one_running_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(adaptive_one);
}

#[test]
fn adaptive_with_everybody_late_handles_every_event_once_in_every_order() {
    check_every_event_is_handled_once(adaptive_impatient);
}

/// All threads but one are in handlers that return only when everything else has been handled (I2).
fn check_blocked_handlers_close_no_eyes(policy: fn(Order) -> Policy) {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            const OTHERS: usize = 3;

            let policy = policy(order);
            let threads = 2 + any(3);
            let blocked = 1 + any(threads - 1);
            let target = Plain::new(AtomicUsize::new(usize::MAX));
            let until = Plain::clone(&target);
            let fake = Fake::new(blocked + 1, limits(&policy), move |upcall| {
                let until = until.load(Ordering::Relaxed);
                if upcall.source > 0 && until < usize::MAX {
                    upcall.fake.await_handled(until);
                }
            });
            let mut crew = Crew::new(fake, policy);
            set_the_pace(&mut crew);
            let fake = crew.demux();
            target.store(fake.handled() + OTHERS, Ordering::Relaxed);
            for source in 1..=blocked {
                fake.post(source);
            }
            for _ in 0..threads {
                crew.spawn(None);
            }
            for _ in 0..OTHERS {
                crew.demux().post(0);
            }
            crew.demux().await_all_handled();
            let most = crew.shared.rank.lock().followers.most_on_their_way();
            assert!(most <= 1, "I11: {most} followers on their way at once");
            crew.finish();
        });
    }
}

#[test]
fn papers_keeps_its_eyes_open_while_handlers_block() {
    check_blocked_handlers_close_no_eyes(papers);
}

#[test]
fn eager_keeps_its_eyes_open_while_handlers_block() {
    check_blocked_handlers_close_no_eyes(eager);
}

#[test]
fn eager_with_one_running_keeps_its_eyes_open_while_handlers_block() {
    check_blocked_handlers_close_no_eyes(|order| Policy { running: 1, budget: 1, ..eager(order) });
}

#[test]
fn adaptive_keeps_its_eyes_open_while_handlers_block() {
    check_blocked_handlers_close_no_eyes(|order| Policy { budget: 1_000_000, ..adaptive(order) });
}

#[test]
fn adaptive_with_a_spare_seat_keeps_its_eyes_open_while_handlers_block() {
    let policy = |order| Policy { budget: 1_000_000, ..adaptive_spare(order) };
    check_blocked_handlers_close_no_eyes(policy);
}

#[test]
fn adaptive_with_one_running_keeps_its_eyes_open_while_handlers_block() {
    check_blocked_handlers_close_no_eyes(adaptive_impatient);
}
