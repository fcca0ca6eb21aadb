//! What the pool has done so far: raw counters, always on, one writer each.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Role {
    /// Not in the pool: on its way in, or gone.
    #[default]
    Away = 0,
    /// Waiting for a role.
    Follower = 1,
    /// Waiting on the handle set.
    Leader = 2,
    /// Running a handler.
    Processing = 3,
}

impl Role {
    pub(crate) const COUNT: usize = 4;

    pub(crate) fn from_number(number: u8) -> Role {
        match number {
            1 => Role::Follower,
            2 => Role::Leader,
            3 => Role::Processing,
            _ => Role::Away,
        }
    }
}

/// One thread's share. Counters only grow; subtract two snapshots to see a period.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ThreadMetrics {
    /// The thread's index in the pool; the pool's own threads come first, from 0.
    pub index: usize,
    /// The thread's name.
    pub name: String,
    /// What it is doing now.
    pub role: Role,
    /// Time waiting on the handle set.
    pub leading: Duration,
    /// Time waiting for a role.
    pub following: Duration,
    /// Time running handlers.
    pub processing: Duration,
    /// Waits on the handle set that have ended.
    pub waits: u64,
    /// Events whose handler it ran.
    pub events: u64,
    /// Times it gave up the waiting role before processing.
    pub promotions: u64,
    /// Followers it woke.
    pub wakes: u64,
    /// Times it was woken and found nothing to do.
    pub idle_wakes: u64,
    /// Events it took over from what another thread had detected.
    pub shared_taken: u64,
    /// System calls that armed a handle again.
    pub rearms: u64,
    /// Events that reached nobody: their handle was gone, or not active.
    pub stale: u64,
    /// Events that found their handle taken, and were left to its owner.
    pub noted: u64,
    /// Calls of user code on this thread that panicked: handlers and posted closures, and the hook or
    /// destructor of a handler whose handle it took out while it dispatched. Not those that ran on the thread
    /// of who [removed](crate::HandleSet::remove) the handle, nor those at the end of the pool.
    pub panics: u64,
    /// Times it came in, as the watchman, for a thread whose handler overran its budget.
    pub rescues: u64,
    /// Times one of its handlers said that it blocks; see [`Context::blocking`](crate::Context::blocking).
    pub blocked: u64,
    /// Threads it started because nobody was idle; see [`Builder::max_threads`](crate::Builder::max_threads).
    pub recruits: u64,
}

/// A snapshot of a pool; see [`Pool::metrics`](crate::Pool::metrics).
///
/// ```
/// # use cabrank::Pool;
/// let pool = Pool::builder().threads(2).build()?;
/// let before = pool.metrics();
/// // … some time later …
/// let period = pool.metrics() - &before;
/// println!("{} events, {} promotions", period.total().events, period.total().promotions);
/// # Ok::<(), cabrank::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// The pool's own threads by index, then those that have joined. Own threads that have left because they
    /// were idle stay, [away](Role::Away), until others come in their places.
    pub threads: Vec<ThreadMetrics>,
    /// The sum over application threads that have left again.
    pub departed: ThreadMetrics,
    /// Time in which no thread was waiting on the handle set.
    pub without_leader: Duration,
    /// Time since the pool was built.
    pub uptime: Duration,
    /// Posted closures and messages that were dropped because the pool, or their handler, ended first.
    pub dropped: u64,
}

impl Metrics {
    /// The sum over all threads.
    pub fn total(&self) -> ThreadMetrics {
        let sum = self.threads.iter().fold(self.departed.clone(), |sum, thread| sum + thread);
        ThreadMetrics { name: "total".into(), role: Role::Away, ..sum }
    }
}

macro_rules! for_each_counter {
    ($macro:ident, $($args:tt)*) => {
        $macro!(
            $($args)*, leading, following, processing, waits, events, promotions, wakes,
            idle_wakes, shared_taken, rearms, stale, noted, panics, rescues, blocked, recruits
        )
    };
}

impl Add<&ThreadMetrics> for ThreadMetrics {
    type Output = ThreadMetrics;

    fn add(mut self, other: &ThreadMetrics) -> ThreadMetrics {
        macro_rules! add {
            ($a:ident, $b:ident, $($field:ident),*) => { $( $a.$field += $b.$field; )* };
        }
        for_each_counter!(add, self, other);
        self
    }
}

impl Sub<&ThreadMetrics> for ThreadMetrics {
    type Output = ThreadMetrics;

    /// What has happened since the earlier snapshot.
    fn sub(mut self, earlier: &ThreadMetrics) -> ThreadMetrics {
        macro_rules! sub {
            ($a:ident, $b:ident, $($field:ident),*) => {
                $( $a.$field = $a.$field.saturating_sub($b.$field); )*
            };
        }
        for_each_counter!(sub, self, earlier);
        self
    }
}

impl Sub<&Metrics> for Metrics {
    type Output = Metrics;

    /// What has happened since the earlier snapshot. A thread that has left meanwhile counts in full
    /// among the departed.
    fn sub(self, earlier: &Metrics) -> Metrics {
        let since = |thread: ThreadMetrics| {
            let before = earlier.threads.iter().find(|before| before.index == thread.index);
            before.map_or(thread.clone(), |before| thread - before)
        };
        Metrics {
            threads: self.threads.into_iter().map(since).collect(),
            departed: self.departed - &earlier.departed,
            without_leader: self.without_leader.saturating_sub(earlier.without_leader),
            uptime: self.uptime.saturating_sub(earlier.uptime),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }
}

/// A table of threads by role and count.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10} {:>8} {:>8} {:>8}", "thread", "leading", "follow", "process")?;
        for (name, width, _) in COLUMNS {
            write!(f, " {name:>width$}")?;
        }
        writeln!(f)?;
        let departed = ThreadMetrics { name: "departed".into(), ..self.departed.clone() };
        let departed = Some(&departed).filter(|departed| departed.waits > 0);
        for thread in self.threads.iter().chain(departed).chain([&self.total()]) {
            let seconds =
                [thread.leading, thread.following, thread.processing].map(|d| d.as_secs_f64());
            let [leading, following, processing] = seconds;
            let name = &thread.name;
            write!(f, "{name:<10} {leading:>7.2}s {following:>7.2}s {processing:>7.2}s")?;
            for (_, width, count) in COLUMNS {
                write!(f, " {:>width$}", count(thread))?;
            }
            writeln!(f)?;
        }
        let share = 100.0 * self.without_leader.as_secs_f64() / self.uptime.as_secs_f64().max(1e-9);
        write!(
            f,
            "nobody in epoll_wait: {:.3}s of {:.2}s ({share:.1} %)",
            self.without_leader.as_secs_f64(),
            self.uptime.as_secs_f64(),
        )
    }
}

/// Heading, width and field of each count.
type Column = (&'static str, usize, fn(&ThreadMetrics) -> u64);

const COLUMNS: [Column; 11] = [
    ("waits", 8, |thread| thread.waits),
    ("events", 9, |thread| thread.events),
    ("promoted", 8, |thread| thread.promotions),
    ("wakes", 7, |thread| thread.wakes),
    ("idle", 6, |thread| thread.idle_wakes),
    ("shared", 9, |thread| thread.shared_taken),
    ("re-arms", 9, |thread| thread.rearms),
    ("stale", 6, |thread| thread.stale),
    ("noted", 6, |thread| thread.noted),
    ("panics", 6, |thread| thread.panics),
    ("rescues", 7, |thread| thread.rescues),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_subtract_by_thread() {
        let thread = |index, events| ThreadMetrics { index, events, ..ThreadMetrics::default() };
        let before = Metrics { threads: vec![thread(0, 3)], ..Metrics::default() };
        let after = Metrics { threads: vec![thread(0, 10), thread(1, 2)], ..Metrics::default() };
        let period = after - &before;
        assert_eq!(period.threads[0].events, 7);
        assert_eq!(period.total().events, 9);
    }
}
