//! Promotion, exhaustively for two threads and a few events: roles, rank, followers and parker as
//! they ship, on a handle set without a kernel.

use crate::followers::Order;
use crate::policy::Policy;
use crate::roles::Left;

use super::crew::{Crew, adaptive, adaptive_one, eager, papers};
use super::explore;
use super::fake::{Fake, Limits};

/// Two threads, and as many events as `posts` names sources: each is handled once, and both leave.
fn check_promotion(preemptions: usize, policy: Policy, posts: &'static [usize]) {
    explore(preemptions, move || {
        let mut crew = Crew::new(Fake::new(2, Limits::of(&policy), |_| ()), policy);
        crew.spawn(None);
        crew.spawn(None);
        for &source in posts {
            crew.demux().post(source);
        }
        crew.demux().await_all_handled();
        for left in crew.finish() {
            assert!(matches!(left, Left::Shutdown));
        }
    });
}

/// Few events with one preemption more, which takes longer than all other models.
fn check_two_events(policy: Policy) {
    check_promotion(3, policy, &[0, 1]);
}

fn check_three_events(policy: Policy) {
    check_promotion(2, policy, &[0, 1, 0]);
}

#[test]
fn papers_lifo_handles_every_event_once() {
    check_two_events(papers(Order::Lifo));
    check_three_events(papers(Order::Lifo));
}

#[test]
fn papers_unordered_handles_every_event_once() {
    check_three_events(papers(Order::Unordered));
}

#[test]
fn eager_with_two_seats_handles_every_event_once() {
    check_three_events(eager(Order::Lifo));
}

#[test]
fn adaptive_handles_every_event_once() {
    check_two_events(adaptive(Order::Lifo));
    check_three_events(adaptive(Order::Lifo));
}

#[test]
fn adaptive_with_one_running_handles_every_event_once() {
    check_three_events(adaptive_one(Order::Lifo));
}

/// The end comes from a handler, while the other thread waits, follows or is on its way.
fn check_shutdown_by_a_handler(policy: Policy) {
    explore(3, move || {
        let fake = Fake::new(2, Limits::of(&policy), |upcall| {
            if upcall.source == 0 {
                upcall.control.shut_down();
            }
        });
        let mut crew = Crew::new(fake, policy);
        crew.spawn(None);
        crew.spawn(None);
        crew.demux().post(0);
        for left in crew.join() {
            assert!(matches!(left, Left::Shutdown));
        }
    });
}

#[test]
fn papers_both_threads_leave_when_a_handler_asks() {
    check_shutdown_by_a_handler(papers(Order::Lifo));
}

#[test]
fn eager_with_two_seats_both_threads_leave_when_a_handler_asks() {
    check_shutdown_by_a_handler(eager(Order::Lifo));
}
