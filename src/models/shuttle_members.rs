//! Threads that come and go under random schedules: what they hold is passed on in every role.
//!
//! Nobody is ever late here: leadership and events are handed over, not rescued.

use crate::followers::Order;
use crate::policy::Policy;
use crate::roles::{Follower, Left, Turn, Watch};
use crate::sync::Arc;
use crate::sync::model::{START, now};

use super::crew::{Crew, adaptive, adaptive_one, adaptive_spare, eager, enlist, papers};
use super::fake::Fake;
use super::shuttle_promotion::{ORDERS, lively, set_the_pace, spawn_poster};
use super::{any, explore, thread};

const ITERATIONS: usize = 3_000;

/// Members whose time is over at once, soon, or later leave while others stay.
fn check_timed_members(policy: fn(Order) -> Policy) {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let policy = policy(order);
            let mut crew = Crew::new(lively(&policy), policy);
            set_the_pace(&mut crew);
            let timed = 1 + any(3);
            for _ in 0..timed {
                let deadline = [START, now() + 1, now() + 100_000][any(3)];
                crew.spawn(Some(deadline));
            }
            for _ in 0..1 + any(2) {
                crew.spawn(None);
            }
            let posters = [spawn_poster(&crew, 1 + any(4)), spawn_poster(&crew, 1 + any(4))];
            for poster in posters {
                poster.join().unwrap();
            }
            crew.demux().await_all_handled();
            let most = crew.shared.rank.lock().followers.most_on_their_way();
            assert!(most <= 1, "I11: {most} followers on their way at once");
            let left = crew.finish();
            assert!(left[timed..].iter().all(|left| matches!(left, Left::Shutdown)));
        });
    }
}

#[test]
fn papers_loses_no_event_to_a_member_whose_time_is_over() {
    check_timed_members(papers);
}

#[test]
fn eager_loses_no_event_to_a_member_whose_time_is_over() {
    check_timed_members(eager);
}

#[test]
fn adaptive_loses_no_event_to_a_member_whose_time_is_over() {
    check_timed_members(adaptive);
    check_timed_members(adaptive_spare);
}

#[test]
fn adaptive_with_one_running_loses_no_event_to_a_member_whose_time_is_over() {
    check_timed_members(adaptive_one);
}

/// Goes through the roles one by one, and leaves from any of them.
fn stroll(mut follower: Follower<'_, Fake>, mut steps: usize) {
    let mut is_over = || {
        let over = steps == 0;
        steps = steps.saturating_sub(1);
        over
    };
    while !is_over() {
        let processing = match follower.follow() {
            Turn::Lead(_) if is_over() => return,
            Turn::Lead(leader) => match leader.wait() {
                Watch::Detected(_) if is_over() => return,
                Watch::Detected(detected) => match detected.promote() {
                    Ok(processing) => processing,
                    Err(still) => {
                        follower = still;
                        continue;
                    }
                },
                Watch::Nothing(still) => {
                    follower = still;
                    continue;
                }
            },
            Turn::Process(processing) => processing,
            Turn::Leave(_) => return,
        };
        if is_over() {
            return;
        }
        follower = processing.process();
    }
}

/// Members leave by dropping the role they have, whichever it is.
fn check_members_that_drop_their_role(policy: fn(Order) -> Policy) {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let policy = policy(order);
            let mut crew = Crew::new(lively(&policy), policy);
            set_the_pace(&mut crew);
            let strollers: Vec<_> = (0..1 + any(3))
                .map(|_| {
                    let (shared, worker) = (Arc::clone(&crew.shared), crew.worker());
                    let steps = any(10);
                    thread::spawn(move || {
                        if let Some(follower) = enlist(&shared, worker, None) {
                            stroll(follower, steps);
                        }
                    })
                })
                .collect();
            for _ in 0..1 + any(2) {
                crew.spawn(None);
            }
            spawn_poster(&crew, 2 + any(5)).join().unwrap();
            crew.demux().await_all_handled();
            let most = crew.shared.rank.lock().followers.most_on_their_way();
            assert!(most <= 1, "I11: {most} followers on their way at once");
            crew.finish();
            for stroller in strollers {
                stroller.join().unwrap();
            }
        });
    }
}

#[test]
fn papers_loses_no_event_to_a_member_that_drops_its_role() {
    check_members_that_drop_their_role(papers);
}

#[test]
fn eager_loses_no_event_to_a_member_that_drops_its_role() {
    check_members_that_drop_their_role(eager);
}

#[test]
fn adaptive_loses_no_event_to_a_member_that_drops_its_role() {
    check_members_that_drop_their_role(adaptive);
    check_members_that_drop_their_role(adaptive_spare);
}

#[test]
fn adaptive_with_one_running_loses_no_event_to_a_member_that_drops_its_role() {
    check_members_that_drop_their_role(adaptive_one);
}
