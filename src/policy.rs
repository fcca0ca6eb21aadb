//! How a pool shares out its roles, and how it tells a busy time from a calm one.

use std::time::Duration;

use crate::followers::Order;

/// When a follower is brought in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Promotion {
    /// Before every event that leaves a seat empty, as in the papers: a thread is woken and the seat
    /// is its own. Costs a wake-up per event; nobody else has to finish for the eyes to stay open.
    Eager,
    /// When it pays. In calm times several threads wait, and the kernel passes the waiting role from one sleeper
    /// to the next. In busy times one leader fetches many events, and a follower is woken only for a backlog,
    /// for handlers long enough to be worth it, or, as the watchman, because a handler overran its budget;
    /// where handlers take more than 15 us on average the kernel passes the role on in busy times too.
    #[default]
    Adaptive,
}

/// The validated choices of a builder that concern the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// At most so many threads wait on the handle set (I1).
    pub(crate) seats: usize,
    /// And so many in calm times.
    pub(crate) calm_seats: usize,
    /// At most so many events are fetched by one wait.
    pub(crate) events: usize,
    /// At most so many threads run handlers, not counting those overdue.
    pub(crate) running: usize,
    pub(crate) order: Order,
    pub(crate) promotion: Promotion,
    /// How long a leader polls, and a follower looks for its promotion, before it sleeps.
    pub(crate) spin: Duration,
    /// For how many nanoseconds a handler may run before it no longer counts as running.
    pub(crate) budget: u64,
    /// One that takes much longer than others does not either, while something waits for it.
    pub(crate) guesses: bool,
    /// Handlers that overran it are to be reported.
    pub(crate) reports_overruns: bool,
    pub(crate) growth: Growth,
}

impl Policy {
    /// Whether one more may sit than may run, so that there is always one for the kernel to wake. Not one that
    /// polls, which takes the CPU of one who runs, and not where everybody who is idle is to look after those.
    pub(crate) fn has_spare_seat(&self) -> bool {
        let is_spare = self.running > 1 && self.seats > self.running;
        is_spare && self.spin.is_zero() && !self.reports_overruns
    }

    /// How much longer a thread stays that has been idle for so many nanoseconds.
    pub(crate) fn idle_rest(&self, idle: u64) -> Duration {
        // The last that is idle stays for longer, and looks again as late.
        let keep_alive = self.growth.keep_alive;
        Duration::from_nanos(keep_alive - idle % keep_alive)
    }
}

/// How many threads of its own a pool has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) least: usize,
    pub(crate) most: usize,
    /// For how many nanoseconds an idle thread above the least stays; at least one.
    pub(crate) keep_alive: u64,
    /// At least so many nanoseconds are between two threads that are started.
    pub(crate) interval: u64,
}

/// What the last waits and handlers were like. Guarded by the rank's lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tempo {
    /// Rises with waits that find a crowd or need not sleep, falls with those that sleep for one event.
    heat: u32,
    /// Moving average of the time a handler takes, in nanoseconds.
    handler: u64,
}

impl Tempo {
    /// A wait has ended with `events` after `waited` nanoseconds, while others were running or not.
    pub(crate) fn waited(&mut self, events: usize, waited: u64, others_run: bool) {
        let slept = waited > SLEPT;
        self.heat = if events > 1 {
            self.heat + 2
        } else if slept && !others_run {
            self.heat.saturating_sub(COOLING)
        } else {
            self.heat + 1
        }
        .min(HOTTEST);
    }

    /// A handler has ended after `took` nanoseconds. One that blocked says little about the others.
    pub(crate) fn handled(&mut self, took: u64) {
        let took = took.min(LONGEST);
        self.handler = self.handler - self.handler / 32 + took / 32;
    }

    /// Nothing moves any more.
    pub(crate) fn rest(&mut self) {
        self.heat = 0;
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.heat >= BUSY
    }

    /// Whether handlers are long enough for the handle set to be watched meanwhile, by another thread.
    pub(crate) fn has_long_handlers(&self) -> bool {
        self.handler > SHORT
    }

    /// Whether handlers are so long that each is worth a wait of its own.
    pub(crate) fn handlers_merit_a_wait(&self) -> bool {
        self.handler > LONG
    }

    /// Whether `events` are worth waking a thread for, where so many may run at once.
    pub(crate) fn is_backlog(&self, events: usize, running: usize) -> bool {
        let time = self.time_for(events);
        // Multiplied, not divided: this is asked with every event.
        let of_short = || time.saturating_mul(running as u64) > BACKLOG_OF_SHORT;
        time > BACKLOG && (self.has_long_handlers() || of_short())
    }

    /// Whether `events` are worth staying for.
    pub(crate) fn is_remainder(&self, events: usize) -> bool {
        self.has_long_handlers() || self.time_for(events) > REMAINDER
    }

    /// How long a handler may take, in nanoseconds, before it looks as if it had blocked.
    pub(crate) fn patience(&self) -> u64 {
        (PATIENCE * self.handler).clamp(LEAST_PATIENCE, MOST_PATIENCE)
    }

    /// How long one thread needs for `events`.
    fn time_for(&self, events: usize) -> u64 {
        self.handler * events as u64
    }
}

/// Handlers under this length are not worth sharing out one by one: handing over costs two switches and
/// cold caches, as much as one or two of them. In nanoseconds; the measurements are in docs/tuning.md.
const SHORT: u64 = 10_000;

/// Over this length a wait for each event, about 1 us, does not matter.
const LONG: u64 = 15_000;

/// Work for so long is worth waking a thread for, which is up about 50 us later.
const BACKLOG: u64 = 40_000;

/// The same for short handlers, shared out among those that may run: on two CPUs one thread is faster than
/// two that take turns at the caches, and the more there are the sooner another pays.
const BACKLOG_OF_SHORT: u64 = 1_200_000;

/// What is left for a thread that is awake to stay.
const REMAINDER: u64 = 20_000;

/// A handler that takes so many times as long as others has blocked, or might as well have.
const PATIENCE: u64 = 8;

/// And so many nanoseconds: as long as it takes to bring in another thread.
const LEAST_PATIENCE: u64 = 50_000;

/// Longer than this nothing has to wait only because many block and have made it usual.
const MOST_PATIENCE: u64 = 100_000;

/// A wait of more nanoseconds was a sleep: a poll that finds something takes well under 2 us.
const SLEPT: u64 = 4_000;

/// Waits in a row that make a busy time. Plucked from thin air: long enough for a burst to pass.
const BUSY: u32 = 16;
const HOTTEST: u32 = 32;
const COOLING: u32 = 4;

/// Longer handlers count as this long in the average.
const LONGEST: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_makes_it_busy_and_sleep_makes_it_calm() {
        let mut tempo = Tempo::default();
        assert!(!tempo.is_busy());
        for _ in 0..BUSY {
            tempo.waited(5, 0, false);
        }
        assert!(tempo.is_busy());
        for _ in 0..HOTTEST {
            tempo.waited(1, 100_000, false);
        }
        assert!(!tempo.is_busy());
    }

    #[test]
    fn patience_does_not_grow_with_those_who_try_it() {
        let mut tempo = Tempo::default();
        assert_eq!(tempo.patience(), LEAST_PATIENCE);
        for _ in 0..200 {
            tempo.handled(10_000);
        }
        assert!((LEAST_PATIENCE..MOST_PATIENCE).contains(&tempo.patience()), "{tempo:?}");
        for _ in 0..200 {
            tempo.handled(1_000_000);
        }
        assert_eq!(tempo.patience(), MOST_PATIENCE);
    }

    #[test]
    fn one_blocked_handler_does_not_spoil_the_average() {
        let mut tempo = Tempo::default();
        for _ in 0..200 {
            tempo.handled(8_000);
        }
        tempo.handled(5_000_000_000);
        assert!(tempo.time_for(1) < 40_000, "{tempo:?}");
    }
}
