//! A pool as a model runs it: a rank, a handle set, and threads of the checker's.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::demux::Demultiplexer;
use crate::followers::Order;
use crate::handler::Control;
use crate::policy::{Growth, Policy, Promotion};
use crate::rank::Rank;
use crate::roles::{Follower, Left, Recruiter, Shared, take_part};
use crate::sync::model::FOREVER;
use crate::sync::{Arc, nanoseconds};
use crate::sys::epoll::Events;
use crate::worker::Worker;

use super::thread;

/// A handle set that knows how often it has been cleared.
pub(crate) trait Cleared: Demultiplexer {
    fn times_cleared(&self) -> usize;
}

pub(crate) struct Crew<D: Demultiplexer + 'static> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) workers: Vec<Arc<Worker>>,
    threads: Vec<thread::JoinHandle<Left>>,
}

impl<D: Cleared + 'static> Crew<D> {
    pub(crate) fn new(demux: D, policy: Policy) -> Crew<D> {
        let shared = Arc::new(Shared { demux, rank: Rank::new(policy), on_overrun: None });
        Crew { shared, workers: Vec::new(), threads: Vec::new() }
    }

    pub(crate) fn demux(&self) -> &D {
        &self.shared.demux
    }

    /// Starts a thread that takes part until the end, or its `deadline`.
    pub(crate) fn spawn(&mut self, deadline: Option<u64>) {
        let worker = self.worker();
        let shared = Arc::clone(&self.shared);
        self.threads.push(thread::spawn(move || match enlist(&shared, worker, deadline) {
            Some(follower) => take_part(follower),
            None => Left::Shutdown,
        }));
    }

    /// A worker for one thread more, whose priority is its index.
    pub(crate) fn worker(&mut self) -> Arc<Worker> {
        let index = self.workers.len();
        let worker = Arc::new(Worker::new(index, String::new(), index as i32));
        self.workers.push(Arc::clone(&worker));
        worker
    }

    /// Shuts down, and waits for the end as a pool does. Every thread leaves, and the handles are
    /// taken out once (I8).
    pub(crate) fn finish(self) -> Vec<Left> {
        self.shared.shut_down();
        self.shared.clear_if_deserted();
        self.join()
    }

    /// Waits for an end that somebody else has asked for.
    pub(crate) fn join(self) -> Vec<Left> {
        assert!(self.shared.rank.await_cleared(None));
        let left = self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(self.shared.demux.times_cleared(), 1, "I8: the handles are taken out once");
        left
    }
}

/// Joins the pool, unless it stops.
pub(crate) fn enlist<D: Demultiplexer>(
    shared: &Shared<D>,
    worker: Arc<Worker>,
    deadline: Option<u64>,
) -> Option<Follower<'_, D>> {
    let events = NonZeroUsize::new(shared.rank.policy.events).unwrap();
    Follower::enlist(shared, worker, Events::with_capacity(events), deadline, &Fixed).ok()
}

/// A crew that does not grow.
pub(crate) struct Fixed;

impl Recruiter for Fixed {
    fn recruit(&self) -> bool {
        false
    }
}

/// The papers' pattern. Nobody is ever late here, so no watchman comes to the rescue.
pub(crate) fn papers(order: Order) -> Policy {
    Policy {
        seats: 1,
        calm_seats: 1,
        events: 1,
        running: usize::MAX,
        order,
        promotion: Promotion::Eager,
        spin: Duration::ZERO,
        budget: nanoseconds(FOREVER),
        guesses: false,
        reports_overruns: false,
        growth: Growth {
            least: usize::MAX,
            most: 0,
            keep_alive: nanoseconds(FOREVER),
            interval: 0,
        },
    }
}

/// Eager promotion with two seats, and a leftover to share.
pub(crate) fn eager(order: Order) -> Policy {
    Policy { seats: 2, calm_seats: 2, events: 4, ..papers(order) }
}

/// The default on two CPUs: a leader and a standby, and two threads that run.
pub(crate) fn adaptive(order: Order) -> Policy {
    Policy { running: 2, promotion: Promotion::Adaptive, ..eager(order) }
}

/// The default with a thread more than that: with long handlers one sits more than may run.
#[cfg(shuttle)]
pub(crate) fn adaptive_spare(order: Order) -> Policy {
    Policy { seats: 3, ..adaptive(order) }
}

/// The default with one thread that runs.
pub(crate) fn adaptive_one(order: Order) -> Policy {
    Policy { running: 1, ..adaptive(order) }
}

/// The same with a watchman that finds every handler late.
#[cfg(shuttle)]
pub(crate) fn adaptive_impatient(order: Order) -> Policy {
    Policy { budget: 1, ..adaptive_one(order) }
}
