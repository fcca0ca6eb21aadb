//! One thread's record: where it sleeps, what it is doing, what it has done.

use crossbeam_utils::CachePadded;

use crate::demux::Dispatched;
use crate::handler::Blocking;
use crate::metrics::{Role, ThreadMetrics};
use crate::parker::Parker;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Known to the thread itself, to whoever wakes it, to the watchman, and to metrics readers.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) name: String,
    /// An application thread, whose record ends with its membership.
    pub(crate) is_joined: bool,
    /// For [`Order::Priority`](crate::Order::Priority): the higher first.
    pub(crate) priority: i32,
    pub(crate) parker: Parker,
    pub(crate) standing: Standing,
    record: CachePadded<Record>,
}

/// How the rank counts the thread. Only touched under the rank's lock, which orders it; atomic (and
/// relaxed) only because the record is shared. So a load and a store do for an exchange, which would cost
/// as much as the lock does.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Since when it is in a handler; 0 if it is not.
    running_since: AtomicU64,
    /// It has been in its handler for too long, or has said that it blocks, and does not count as running.
    overdue: AtomicBool,
    /// The data of the event that it processes.
    event: AtomicU64,
    /// Whether its handler may block, as a number.
    blocking: AtomicU8,
    /// It has come in, and has not asked for a role yet.
    is_new: AtomicBool,
}

impl Standing {
    fn new() -> Standing {
        Standing {
            running_since: AtomicU64::new(0),
            overdue: AtomicBool::new(false),
            event: AtomicU64::new(0),
            blocking: AtomicU8::new(Blocking::Learned as u8),
            is_new: AtomicBool::new(false),
        }
    }

    pub(crate) fn come_in(&self) {
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// It asks for a role; whether for the first time.
    pub(crate) fn is_first_time(&self) -> bool {
        let is_new = self.is_new.load(Ordering::Relaxed);
        if is_new {
            self.is_new.store(false, Ordering::Relaxed);
        }
        is_new
    }

    /// Begins a run.
    pub(crate) fn start(&self, event: u64, blocking: Blocking, now: u64) {
        self.running_since.store(now, Ordering::Relaxed);
        self.event.store(event, Ordering::Relaxed);
        self.blocking.store(blocking as u8, Ordering::Relaxed);
        self.overdue.store(blocking == Blocking::Always, Ordering::Relaxed);
    }

    /// Ends the run; whether it was overdue, and whether its handler was one that may block.
    pub(crate) fn finish(&self) -> (bool, Blocking) {
        self.running_since.store(0, Ordering::Relaxed);
        let blocking = Blocking::from_number(self.blocking.load(Ordering::Relaxed));
        let overdue = self.overdue.load(Ordering::Relaxed);
        self.overdue.store(false, Ordering::Relaxed);
        (overdue, blocking)
    }

    /// The data of the event that was last begun.
    pub(crate) fn event(&self) -> u64 {
        self.event.load(Ordering::Relaxed)
    }

    /// Marks the run as overdue; whether that is news.
    pub(crate) fn block(&self) -> bool {
        let is_news = !self.overdue.load(Ordering::Relaxed);
        self.overdue.store(true, Ordering::Relaxed);
        is_news
    }

    /// The run counts again, as if it had begun at `now`; whether it does. One that always blocks never does.
    pub(crate) fn unblock(&self, now: u64) -> bool {
        let always = self.blocking.load(Ordering::Relaxed) == Blocking::Always as u8;
        self.running_since.store(now, Ordering::Relaxed);
        self.overdue.store(always, Ordering::Relaxed);
        !always
    }

    /// Marks the run as overdue if it began before `latest`. If that is news, since when it runs and the
    /// data of its event.
    pub(crate) fn check(&self, latest: u64) -> Option<(u64, u64)> {
        let since = self.running_since.load(Ordering::Relaxed);
        let late = since != 0 && since <= latest && self.block();
        late.then(|| (since, self.event.load(Ordering::Relaxed)))
    }
}

/// Written by its own thread only, so that a plain load and store make an increment; all relaxed,
/// because each number stands for itself and guards nothing.
#[derive(Debug)]
struct Record {
    role: AtomicU8,
    /// When it took the role, on the clock of [`now`](crate::sync::now).
    since: AtomicU64,
    times: [AtomicU64; Role::COUNT],
    counts: [AtomicU64; Count::COUNT],
}

/// What a thread counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Waits,
    Events,
    Promotions,
    Wakes,
    IdleWakes,
    SharedTaken,
    Rearms,
    Stale,
    Noted,
    Panics,
    Rescues,
    Blocked,
    Recruits,
}

impl Count {
    const COUNT: usize = 13;
}

impl Worker {
    pub(crate) fn new(index: usize, name: String, priority: i32) -> Worker {
        let record = Record {
            role: AtomicU8::new(Role::Away as u8),
            since: AtomicU64::new(crate::sync::now()),
            times: std::array::from_fn(|_| AtomicU64::new(0)),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Worker {
            index,
            name,
            is_joined: false,
            priority,
            parker: Parker::new(),
            standing: Standing::new(),
            record: CachePadded::new(record),
        }
    }

    pub(crate) fn joined(index: usize, name: String) -> Worker {
        Worker { is_joined: true, ..Worker::new(index, name, 0) }
    }

    /// Takes another role; called by the thread itself.
    pub(crate) fn change_role(&self, role: Role, now: u64) {
        let before = self.record.role.load(Ordering::Relaxed) as usize;
        if before == role as usize {
            // From one handler to the next, mostly.
            return;
        }
        let since = self.record.since.load(Ordering::Relaxed);
        add(&self.record.times[before], now.saturating_sub(since));
        self.record.since.store(now, Ordering::Relaxed);
        self.record.role.store(role as u8, Ordering::Relaxed);
    }

    /// Counts; called by the thread itself.
    pub(crate) fn count(&self, what: Count, n: u64) {
        add(&self.record.counts[what as usize], n);
    }

    /// Counts what became of an event; called by the thread itself.
    pub(crate) fn count_dispatch(&self, dispatched: Dispatched) {
        self.count(Count::Events, u64::from(dispatched.handled));
        self.count(Count::Rearms, u64::from(dispatched.rearms));
        if !dispatched.handled {
            self.count(Count::Stale, u64::from(dispatched.stale));
            self.count(Count::Noted, u64::from(dispatched.noted));
        }
        self.count(Count::Panics, u64::from(dispatched.panicked));
    }

    pub(crate) fn metrics(&self, now: u64) -> ThreadMetrics {
        let role = Role::from_number(self.record.role.load(Ordering::Relaxed));
        let since = self.record.since.load(Ordering::Relaxed);
        let time = |of: Role| {
            let so_far = self.record.times[of as usize].load(Ordering::Relaxed);
            let present = if of == role { now.saturating_sub(since) } else { 0 };
            std::time::Duration::from_nanos(so_far + present)
        };
        let count = |what: Count| self.record.counts[what as usize].load(Ordering::Relaxed);
        ThreadMetrics {
            index: self.index,
            name: self.name.clone(),
            role,
            leading: time(Role::Leader),
            following: time(Role::Follower),
            processing: time(Role::Processing),
            waits: count(Count::Waits),
            events: count(Count::Events),
            promotions: count(Count::Promotions),
            wakes: count(Count::Wakes),
            idle_wakes: count(Count::IdleWakes),
            shared_taken: count(Count::SharedTaken),
            rearms: count(Count::Rearms),
            stale: count(Count::Stale),
            noted: count(Count::Noted),
            panics: count(Count::Panics),
            rescues: count(Count::Rescues),
            blocked: count(Count::Blocked),
            recruits: count(Count::Recruits),
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
