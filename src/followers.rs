//! The followers in their order: who is promoted next.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Condvar, Mutex, deadline, now, spin};
use crate::worker::Worker;

/// Which follower is promoted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Order {
    /// The one that came last: its caches are the warmest. Work concentrates on few threads.
    #[default]
    Lifo,
    /// The one that has waited longest: work is spread evenly.
    Fifo,
    /// The one with the highest [priority](crate::Builder::scheduling_by); among equals the last to
    /// come. Application threads count as ordinary ones.
    Priority,
    /// Whichever the operating system picks: all wait on one condition variable.
    Unordered,
}

/// Those who wait for a role. Guarded by the rank's lock; sleeping and waking happen outside it.
#[derive(Debug)]
pub(crate) struct Followers {
    order: Order,
    /// Front: came first. Only counts up to `anonymous` when unordered.
    waiting: VecDeque<Arc<Worker>>,
    anonymous: usize,
    lot: Arc<Lot>,
    #[cfg(all(test, shuttle))]
    on_their_way: OnTheirWay,
}

/// For models: how many have been chosen and are not up yet, and how many those were at most (I11).
#[cfg(all(test, shuttle))]
#[derive(Debug, Default)]
struct OnTheirWay {
    now: usize,
    most: usize,
}

/// A follower that has been chosen and must be woken, after the rank's lock has been released.
#[must_use]
pub(crate) enum Chosen {
    Worker(Arc<Worker>),
    Any(Arc<Lot>),
}

/// Where a follower sleeps, for use without the rank's lock.
pub(crate) enum Bed {
    Own,
    Lot(Arc<Lot>),
}

impl Followers {
    pub(crate) fn new(order: Order) -> Followers {
        Followers {
            order,
            waiting: VecDeque::new(),
            anonymous: 0,
            lot: Arc::new(Lot::new()),
            #[cfg(all(test, shuttle))]
            on_their_way: OnTheirWay::default(),
        }
    }

    /// Makes room for one thread more, so that queueing never allocates.
    pub(crate) fn expect(&mut self, threads: usize) {
        self.waiting.reserve(threads.saturating_sub(self.waiting.len()));
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.anonymous
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues a thread, which goes to the returned bed next.
    pub(crate) fn push(&mut self, worker: &Arc<Worker>) -> Bed {
        if self.order == Order::Unordered {
            self.anonymous += 1;
            return Bed::Lot(Arc::clone(&self.lot));
        }
        self.waiting.push_back(Arc::clone(worker));
        Bed::Own
    }

    /// Chooses the next to be woken, and takes it off.
    pub(crate) fn pop(&mut self) -> Option<Chosen> {
        let chosen = self.choose()?;
        #[cfg(all(test, shuttle))]
        {
            self.on_their_way.now += 1;
            self.on_their_way.most = self.on_their_way.most.max(self.on_their_way.now);
        }
        Some(chosen)
    }

    /// A thread has got up; `token` says whether it was woken by one. Returns whether it had been
    /// chosen. One that had not is taken off: its time is over, or it woke for no reason.
    pub(crate) fn got_up(&mut self, worker: &Arc<Worker>, token: bool) -> bool {
        let was_chosen = self.take_off(worker, token);
        #[cfg(all(test, shuttle))]
        {
            self.on_their_way.now -= usize::from(was_chosen);
        }
        was_chosen
    }

    /// How many were on their way at once, at most.
    #[cfg(all(test, shuttle))]
    pub(crate) fn most_on_their_way(&self) -> usize {
        self.on_their_way.most
    }

    fn choose(&mut self) -> Option<Chosen> {
        let worker = match self.order {
            Order::Lifo => self.waiting.pop_back(),
            Order::Fifo => self.waiting.pop_front(),
            Order::Priority => {
                let highest = |&at: &usize| (self.waiting[at].priority, at);
                let at = (0..self.waiting.len()).max_by_key(highest)?;
                self.waiting.remove(at)
            }
            Order::Unordered => {
                self.anonymous = self.anonymous.checked_sub(1)?;
                // Now and not when it is woken: who gets up in between would find neither itself
                // counted nor a token.
                self.lot.give();
                return Some(Chosen::Any(Arc::clone(&self.lot)));
            }
        };
        worker.map(Chosen::Worker)
    }

    fn take_off(&mut self, worker: &Arc<Worker>, token: bool) -> bool {
        if self.order == Order::Unordered {
            // Tokens and sleepers are anonymous: one that comes too late for us is another's.
            if token || self.lot.take() {
                return true;
            }
            self.anonymous -= 1;
            return false;
        }
        match self.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, worker)) {
            Some(at) => {
                self.waiting.remove(at);
                false
            }
            None => true,
        }
    }
}

impl Chosen {
    pub(crate) fn wake(self) {
        match self {
            Chosen::Worker(worker) => worker.parker.unpark(),
            Chosen::Any(lot) => lot.condvar.notify_one(),
        }
    }
}

impl Bed {
    /// Waits, at first `awake` and sleeping afterwards, until woken or `timeout`; returns whether there was
    /// a token.
    pub(crate) fn sleep(
        &self,
        worker: &Worker,
        awake: Duration,
        timeout: Option<Duration>,
    ) -> bool {
        match self {
            Bed::Own => worker.parker.park(awake, timeout),
            Bed::Lot(lot) => lot.sleep(awake, timeout),
        }
    }
}

/// One condition variable for all followers.
#[derive(Debug)]
pub(crate) struct Lot {
    tokens: Mutex<usize>,
    /// A copy of `tokens` for those who are awake: who sees one goes to the lock for it.
    glance: AtomicUsize,
    condvar: Condvar,
}

impl Lot {
    fn new() -> Lot {
        Lot { tokens: Mutex::new(0), glance: AtomicUsize::new(0), condvar: Condvar::new() }
    }

    fn give(&self) {
        let mut tokens = self.tokens.lock();
        self.set(&mut tokens, |tokens| tokens + 1);
    }

    fn take(&self) -> bool {
        let mut tokens = self.tokens.lock();
        self.take_from(&mut tokens)
    }

    fn sleep(&self, awake: Duration, timeout: Option<Duration>) -> bool {
        let deadline = timeout.map(deadline);
        // Relaxed: a hint; the lock decides, and orders.
        let look = || self.glance.load(Ordering::Relaxed) > 0 && self.take();
        // Spinning is a part of the time.
        if spin(timeout.map_or(awake, |timeout| awake.min(timeout)), look) {
            return true;
        }
        let mut tokens = self.tokens.lock();
        if *tokens == 0 {
            // Once: who wakes without a token says so, and comes again if need be.
            tokens = match deadline.map(|deadline| deadline.saturating_sub(now())) {
                None => self.condvar.wait(tokens),
                Some(0) => tokens,
                Some(remaining) => {
                    let remaining = Duration::from_nanos(remaining);
                    self.condvar.wait_timeout(&self.tokens, tokens, remaining)
                }
            };
        }
        self.take_from(&mut tokens)
    }

    fn take_from(&self, tokens: &mut usize) -> bool {
        let some = *tokens > 0;
        if some {
            self.set(tokens, |tokens| tokens - 1);
        }
        some
    }

    fn set(&self, tokens: &mut usize, change: impl Fn(usize) -> usize) {
        *tokens = change(*tokens);
        // Relaxed: see `sleep`.
        self.glance.store(*tokens, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    fn workers(priorities: &[i32]) -> Vec<Arc<Worker>> {
        let worker =
            |(index, &priority)| Arc::new(Worker::new(index, format!("{index}"), priority));
        priorities.iter().enumerate().map(worker).collect()
    }

    fn promoted(order: Order, priorities: &[i32]) -> Vec<usize> {
        let mut followers = Followers::new(order);
        for worker in workers(priorities) {
            let _bed = followers.push(&worker);
        }
        let chosen = std::iter::from_fn(|| followers.pop());
        chosen
            .map(|chosen| match chosen {
                Chosen::Worker(worker) => worker.index,
                Chosen::Any(_) => usize::MAX,
            })
            .collect()
    }

    #[test]
    fn lifo_promotes_the_last_to_come() {
        assert_eq!(promoted(Order::Lifo, &[0, 0, 0]), [2, 1, 0]);
    }

    #[test]
    fn fifo_promotes_the_first_to_come() {
        assert_eq!(promoted(Order::Fifo, &[0, 0, 0]), [0, 1, 2]);
    }

    #[test]
    fn priority_promotes_the_highest_and_then_the_last() {
        assert_eq!(promoted(Order::Priority, &[1, 5, 5, -2]), [2, 1, 0, 3]);
    }

    #[test]
    fn a_follower_that_gives_up_is_not_promoted() {
        let mut followers = Followers::new(Order::Lifo);
        let both = workers(&[0, 0]);
        let _beds = [followers.push(&both[0]), followers.push(&both[1])];
        assert!(!followers.got_up(&both[1], false), "it had not been chosen");
        assert!(matches!(followers.pop(), Some(Chosen::Worker(worker)) if worker.index == 0));
        assert!(followers.got_up(&both[0], false), "chosen in the moment it gave up");
        assert!(followers.is_empty());
    }

    #[test]
    fn unordered_tokens_are_anonymous() {
        let mut followers = Followers::new(Order::Unordered);
        let both = workers(&[0, 0]);
        let _beds = [followers.push(&both[0]), followers.push(&both[1])];
        followers.pop().unwrap().wake();
        assert!(followers.got_up(&both[0], false), "the token was there");
        assert!(!followers.got_up(&both[1], false));
        assert!(followers.pop().is_none());
    }
}
