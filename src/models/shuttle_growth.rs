//! Growth and blocking under random schedules: somebody is always left to notice, counts stay right, and
//! the end comes from any state.

use std::sync::Arc as Plain;

use crate::followers::Order;
use crate::handler::Control;
use crate::policy::{Growth, Policy};
use crate::roles::{Follower, Left, Recruiter, Shared, take_part};
use crate::sync::model::{FOREVER, advance};
use crate::sync::{Arc, Condvar, Mutex, nanoseconds};
use crate::sys::epoll::Events;
use crate::worker::Worker;

use super::crew::{Cleared, adaptive_impatient, eager, papers};
use super::fake::{Fake, Limits, Upcall};
use super::shuttle_promotion::ORDERS;
use super::{any, explore, thread};

const ITERATIONS: usize = 1_500;

/// A pool that starts threads as it needs them.
#[derive(Clone)]
struct Growing {
    shared: Arc<Shared<Fake>>,
    roster: Arc<Mutex<Roster>>,
    /// Sometimes a thread cannot be started.
    is_unreliable: bool,
}

#[derive(Default)]
struct Roster {
    threads: Vec<thread::JoinHandle<Left>>,
    started: usize,
}

impl Growing {
    fn new(policy: Policy, fake: Fake, is_unreliable: bool) -> Growing {
        let shared = Shared { demux: fake, rank: crate::rank::Rank::new(policy), on_overrun: None };
        let growing = Growing {
            shared: Arc::new(shared),
            roster: Arc::new(Mutex::new(Roster::default())),
            is_unreliable,
        };
        for _ in 0..policy.growth.least {
            growing.start(false);
        }
        growing
    }

    fn start(&self, is_recruit: bool) {
        let own = self.clone();
        let mut roster = self.roster.lock();
        let index = roster.started;
        roster.started += 1;
        roster.threads.push(thread::spawn(move || own.live(index, is_recruit)));
    }

    fn live(self, index: usize, is_recruit: bool) -> Left {
        let worker = Arc::new(Worker::new(index, String::new(), index as i32));
        let events = Events::with_capacity(self.shared.rank.policy.events.try_into().unwrap());
        let enlisted = Follower::enlist(&self.shared, worker, events, None, &self);
        if is_recruit {
            self.shared.rank.lock().recruited(enlisted.is_ok());
        }
        enlisted.map_or(Left::Shutdown, take_part)
    }

    fn finish(self) -> usize {
        self.shared.shut_down();
        self.shared.clear_if_deserted();
        assert!(self.shared.rank.await_cleared(None));
        let mut left = 0;
        loop {
            // One that is started last may start no other: the pool stops.
            let Some(thread) = self.roster.lock().threads.pop() else { break };
            let why = thread.join().unwrap();
            assert!(matches!(why, Left::Shutdown | Left::Idle), "{why}");
            left += 1;
        }
        assert_eq!(self.shared.rank.lock().in_handlers(), 0, "counts that are not put down");
        assert_eq!(self.shared.demux.times_cleared(), 1, "I8: the handles are taken out once");
        left
    }
}

impl Recruiter for Growing {
    fn recruit(&self) -> bool {
        if self.is_unreliable && any(2) == 0 {
            return false;
        }
        self.start(true);
        true
    }
}

/// A policy that grows, from one thread to `most`.
fn any_policy(order: Order, most: usize) -> Policy {
    let policy = [adaptive_impatient, eager, papers][any(3)](order);
    let interval = [0, 50][any(2)];
    // One that is not late is never noticed.
    let budget = 1;
    let growth = Growth { least: 1, most, keep_alive: nanoseconds(FOREVER), interval };
    Policy { growth, budget, seats: 1, calm_seats: 1, running: 1 + any(2), ..policy }
}

/// All meet: nobody goes on before everybody has come.
struct Meeting {
    come: Mutex<usize>,
    complete: Condvar,
    members: usize,
}

impl Meeting {
    fn new(members: usize) -> Plain<Meeting> {
        Plain::new(Meeting { come: Mutex::new(0), complete: Condvar::new(), members })
    }

    fn wait(&self) {
        let mut come = self.come.lock();
        *come += 1;
        self.complete.notify_all();
        while *come < self.members {
            come = self.complete.wait(come);
        }
    }
}

fn no_limits(policy: &Policy) -> Limits {
    Limits::of(policy).with_overdue()
}

#[test]
fn handlers_that_wait_for_each_other_all_get_a_thread() {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let policy = any_policy(order, 4);
            let meeting = Meeting::new(3);
            let inside = Plain::clone(&meeting);
            let fake = Fake::new(3, no_limits(&policy), move |_| inside.wait());
            let crew = Growing::new(policy, fake, false);
            (0..3).for_each(|source| crew.shared.demux.post(source));
            crew.shared.demux.await_all_handled();
            assert!(crew.finish() <= 4, "more threads than may be");
        });
    }
}

#[test]
fn handlers_that_say_that_they_block_all_get_a_thread_at_once() {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            // Nobody is ever late here, so nobody but what is said helps.
            let policy =
                Policy { budget: nanoseconds(FOREVER), running: 1, ..any_policy(order, 4) };
            let meeting = Meeting::new(3);
            let inside = Plain::clone(&meeting);
            let fake = Fake::new(3, no_limits(&policy), move |upcall: &Upcall<'_>| {
                upcall.control.begin_blocking();
                inside.wait();
                upcall.control.end_blocking();
            });
            let crew = Growing::new(policy, fake, false);
            (0..3).for_each(|source| crew.shared.demux.post(source));
            crew.shared.demux.await_all_handled();
            crew.finish();
        });
    }
}

#[test]
fn every_event_is_handled_while_threads_come_and_go_and_block() {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let mut policy = any_policy(order, 1 + any(3));
            policy.growth.keep_alive = 1;
            let fake = Fake::new(3, no_limits(&policy), |upcall: &Upcall<'_>| {
                advance(any(3) as u64);
                if any(3) == 0 {
                    upcall.control.begin_blocking();
                    thread::yield_now();
                    if any(2) == 0 {
                        upcall.control.begin_blocking();
                        upcall.control.end_blocking();
                    }
                    upcall.control.end_blocking();
                }
            });
            let crew = Growing::new(policy, fake, true);
            let poster = {
                let shared = Arc::clone(&crew.shared);
                thread::spawn(move || (0..5).for_each(|_| shared.demux.post(any(3))))
            };
            poster.join().unwrap();
            crew.shared.demux.await_all_handled();
            crew.finish();
        });
    }
}

#[test]
fn a_growing_pool_ends_whatever_it_is_doing() {
    for order in ORDERS {
        explore(ITERATIONS, move || {
            let mut policy = any_policy(order, 1 + any(4));
            if any(2) == 0 {
                policy.growth.keep_alive = 1;
            }
            let fake = Fake::new(3, no_limits(&policy), |upcall: &Upcall<'_>| match any(4) {
                0 => upcall.control.shut_down(),
                1 => {
                    upcall.control.begin_blocking();
                    thread::yield_now();
                    upcall.control.end_blocking();
                }
                _ => advance(10),
            });
            let crew = Growing::new(policy, fake, any(2) == 0);
            let shared = Arc::clone(&crew.shared);
            let poster = thread::spawn(move || (0..any(6)).for_each(|_| shared.demux.post(any(3))));
            crew.finish();
            poster.join().unwrap();
        });
    }
}
