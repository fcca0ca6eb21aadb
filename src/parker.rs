//! Where one follower sleeps: a token, a mutex and a condition variable.

use std::time::Duration;

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Condvar, Mutex, deadline, now, spin};

/// Holds at most one token. One thread parks on it; any thread unparks it.
///
/// A token given while nobody is parked costs one atomic exchange and no system call, and is taken by
/// the next [`park`](Parker::park) at once.
#[derive(Debug)]
pub(crate) struct Parker {
    state: AtomicU8,
    lock: Mutex<()>,
    condvar: Condvar,
}

impl Parker {
    pub(crate) fn new() -> Parker {
        Parker { state: AtomicU8::new(EMPTY), lock: Mutex::new(()), condvar: Condvar::new() }
    }

    /// Waits for a token, at first `awake` and sleeping afterwards, until `timeout` has passed.
    /// Returns whether it took one. What was done before the `unpark` is visible then.
    pub(crate) fn park(&self, awake: Duration, timeout: Option<Duration>) -> bool {
        if self.take() {
            return true;
        }
        let deadline = timeout.map(deadline);
        // Spinning is a part of the time.
        if spin(timeout.map_or(awake, |timeout| awake.min(timeout)), || self.take()) {
            return true;
        }
        let mut guard = self.lock.lock();
        // Relaxed on success: announces that the lock and the condvar are needed; the lock orders it
        // before `unpark`'s notification. Relaxed on failure: `take` acquires.
        let parked =
            self.state.compare_exchange(EMPTY, PARKED, Ordering::Relaxed, Ordering::Relaxed);
        if parked.is_err() {
            return self.take();
        }
        loop {
            let remaining = match deadline {
                None => None,
                Some(deadline) => match deadline.saturating_sub(now()) {
                    0 => break,
                    remaining => Some(Duration::from_nanos(remaining)),
                },
            };
            guard = match remaining {
                None => self.condvar.wait(guard),
                Some(remaining) => self.condvar.wait_timeout(&self.lock, guard, remaining),
            };
            if self.take() {
                return true;
            }
            if remaining.is_some() && MODEL {
                // The model's clock stands still: its timed wait is over when it returns.
                break;
            }
        }
        // Acquire: pairs with the release in `unpark`, whose token may have come at the last moment.
        self.state.swap(EMPTY, Ordering::Acquire) == NOTIFIED
    }

    /// Gives the token.
    pub(crate) fn unpark(&self) {
        // A swap and not a compare-exchange, so that it publishes what we did before even if there is
        // a token already. Release: pairs with the acquire in `take`.
        if self.state.swap(NOTIFIED, Ordering::Release) != PARKED {
            return;
        }
        // Between PARKED and waiting the parker holds the lock: having had it, we know it waits. It is
        // released before notifying, so that the woken thread does not run into it.
        drop(self.lock.lock());
        self.condvar.notify_one();
    }

    fn take(&self) -> bool {
        // Acquire: pairs with the release in `unpark`.
        let taken =
            self.state.compare_exchange(NOTIFIED, EMPTY, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }
}

const MODEL: bool = cfg!(all(test, any(loom, shuttle)));

const EMPTY: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_token_given_early_is_kept() {
        let parker = Parker::new();
        parker.unpark();
        parker.unpark();
        assert!(parker.park(Duration::ZERO, None));
        assert!(!parker.park(Duration::ZERO, Some(Duration::from_millis(1))));
    }

    /// The oracle: crossbeam's parker and ours take the same tokens in the same exchange.
    #[test]
    fn agrees_with_crossbeams_parker() {
        const ROUNDS: usize = 2_000;
        let ours = Arc::new(Parker::new());
        let theirs = crossbeam_utils::sync::Parker::new();
        let unparker = theirs.unparker().clone();
        let ping = Arc::clone(&ours);
        let other = thread::spawn(move || {
            let mut taken = 0;
            for _ in 0..ROUNDS {
                taken += usize::from(ping.park(Duration::from_micros(1), None));
                unparker.unpark();
            }
            taken
        });
        for _ in 0..ROUNDS {
            ours.unpark();
            theirs.park();
        }
        assert_eq!(other.join().unwrap(), ROUNDS);
    }
}
