//! The end under random schedules: from any state every thread leaves, and the handles are taken
//! out once, after the last of them (I8).

use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::followers::Order;
use crate::handler::Control;
use crate::policy::Policy;
use crate::roles::Left;
use crate::sync::Arc;
use crate::sync::model::{START, now};

use super::crew::{
    Crew, adaptive, adaptive_impatient, adaptive_one, adaptive_spare, eager, enlist, papers,
};
use super::fake::Fake;
use super::shuttle_promotion::{ORDERS, limits, lively, set_the_pace, spawn_poster};
use super::{any, explore, thread};

const ITERATIONS: usize = 4_000;

const POLICIES: [fn(Order) -> Policy; 6] =
    [papers, eager, adaptive, adaptive_spare, adaptive_one, adaptive_impatient];

fn any_policy(order: Order) -> Policy {
    POLICIES[any(POLICIES.len())](order)
}

fn check_in_every_order(model: impl Fn(Policy) + Copy + Send + Sync + 'static) {
    for order in ORDERS {
        explore(ITERATIONS, move || model(any_policy(order)));
    }
}

#[test]
fn every_thread_leaves_whatever_it_is_doing() {
    check_in_every_order(|policy| {
        let mut crew = Crew::new(lively(&policy), policy);
        set_the_pace(&mut crew);
        for _ in 0..any(5) {
            crew.spawn(None);
        }
        let poster = spawn_poster(&crew, any(6));
        for left in crew.finish() {
            assert!(matches!(left, Left::Shutdown));
        }
        poster.join().unwrap();
    });
}

#[test]
fn every_thread_leaves_when_several_ask_at_once() {
    check_in_every_order(|policy| {
        let mut crew = Crew::new(lively(&policy), policy);
        for _ in 0..1 + any(4) {
            crew.spawn(None);
        }
        let askers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&crew.shared);
                thread::spawn(move || {
                    shared.shut_down();
                    shared.shut_down();
                    shared.clear_if_deserted();
                })
            })
            .collect();
        let poster = spawn_poster(&crew, any(4));
        crew.finish();
        for thread in askers.into_iter().chain([poster]) {
            thread.join().unwrap();
        }
    });
}

#[test]
fn every_thread_leaves_when_a_handler_asks() {
    check_in_every_order(|policy| {
        let fake = Fake::new(3, limits(&policy), |upcall| {
            if upcall.source == 0 {
                upcall.control.shut_down();
            }
        });
        let mut crew = Crew::new(fake, policy);
        for _ in 0..1 + any(4) {
            crew.spawn(None);
        }
        let poster = spawn_poster(&crew, 4);
        crew.demux().post(0);
        for left in crew.join() {
            assert!(matches!(left, Left::Shutdown));
        }
        poster.join().unwrap();
    });
}

#[test]
fn the_end_waits_for_handlers_that_run() {
    check_in_every_order(|policy| {
        let ending = Plain::new(AtomicBool::new(false));
        let ended = Plain::clone(&ending);
        let fake = Fake::new(3, limits(&policy).with_overdue(), move |upcall| {
            while upcall.source > 0 && !ended.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        let mut crew = Crew::new(fake, policy);
        for _ in 0..1 + any(4) {
            crew.spawn(None);
        }
        let poster = spawn_poster(&crew, 3);
        poster.join().unwrap();
        crew.shared.shut_down();
        ending.store(true, Ordering::Relaxed);
        crew.finish();
    });
}

#[test]
fn every_thread_leaves_while_others_come_and_go() {
    check_in_every_order(|policy| {
        let mut crew = Crew::new(lively(&policy), policy);
        for _ in 0..1 + any(3) {
            let deadline = [None, Some(START), Some(now() + 1)][any(3)];
            crew.spawn(deadline);
        }
        let (shared, worker) = (Arc::clone(&crew.shared), crew.worker());
        let guest = thread::spawn(move || {
            if let Some(follower) = enlist(&shared, worker, None) {
                drop(follower.follow());
            }
        });
        let poster = spawn_poster(&crew, any(4));
        crew.finish();
        guest.join().unwrap();
        poster.join().unwrap();
    });
}

#[test]
fn every_thread_leaves_when_waiting_fails() {
    check_in_every_order(|policy| {
        let mut crew = Crew::new(lively(&policy), policy);
        for _ in 0..1 + any(4) {
            crew.spawn(None);
        }
        let poster = spawn_poster(&crew, any(4));
        crew.demux().break_down();
        // Who waits says why it left; nobody has to ask for the end.
        let left = crew.join();
        assert!(left.iter().any(|left| matches!(left, Left::Failed(_))));
        poster.join().unwrap();
    });
}
