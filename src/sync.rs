//! The one door to threads, locks, atomics and time: std, or a model checker's.
//!
//! The protocol imports from here only, so the code that ships is the code that loom and shuttle
//! explore. Under a checker a timed wait may end at any moment, and the clock is the model's.

pub(crate) use imp::{Arc, atomic, thread_local};

use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(not(any(all(test, loom), all(test, shuttle))))]
mod imp {
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use std::thread_local;
}

#[cfg(all(test, loom))]
mod imp {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use loom::thread::yield_now;
    // Loom's own refuses const initialisers, and no loom model makes an upcall.
    pub(crate) use std::thread_local;
}

#[cfg(all(test, shuttle))]
mod imp {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
    pub(crate) use shuttle::thread::yield_now;
    pub(crate) use shuttle::thread_local;
}

/// A mutex without poison: what it guards is never left half-changed, because no user code runs
/// under it (I9).
#[derive(Debug)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

pub(crate) struct MutexGuard<'a, T>(imp::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(imp::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard(self.0.wait(guard.0).unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Waits for a notification or for `timeout`; may also return for no reason.
    #[cfg(not(any(all(test, loom), all(test, shuttle))))]
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        _mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard.0, timeout);
        MutexGuard(waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0)
    }

    /// Lets any other thread run, then returns as if the time were over. A time-out of
    /// `model::FOREVER` never comes.
    #[cfg(any(all(test, loom), all(test, shuttle)))]
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        // Half of it, because others may have let time pass since the sleeper looked at the clock.
        if timeout >= model::FOREVER / 2 {
            return self.wait(guard);
        }
        drop(guard);
        imp::yield_now();
        model::sleep_is_over(timeout);
        mutex.lock()
    }
}

/// Looks for something again and again, without sleeping, for as long as `time`; whether it was found.
#[cfg(not(any(all(test, loom), all(test, shuttle))))]
pub(crate) fn spin(time: Duration, mut look: impl FnMut() -> bool) -> bool {
    if time.is_zero() {
        return false;
    }
    let deadline = deadline(time);
    let backoff = crossbeam_utils::Backoff::new();
    while now() < deadline {
        if look() {
            return true;
        }
        backoff.spin();
    }
    false
}

/// The model's clock stands still: looks twice, with any other thread in between.
#[cfg(any(all(test, loom), all(test, shuttle)))]
pub(crate) fn spin(time: Duration, mut look: impl FnMut() -> bool) -> bool {
    if time.is_zero() || look() {
        return !time.is_zero();
    }
    imp::yield_now();
    look()
}

/// A time on the clock of [`now`], `after` the present; the end of time if that is later.
pub(crate) fn deadline(after: Duration) -> u64 {
    now().saturating_add(nanoseconds(after))
}

/// As many as fit: 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds on the monotonic clock. Never zero, which stands for "not running" in a worker's record: the
/// machine has been up for longer.
#[cfg(not(any(all(test, loom), all(test, shuttle))))]
pub(crate) use crate::sys::clock::monotonic as now;

#[cfg(any(all(test, loom), all(test, shuttle)))]
pub(crate) use model::now;

/// The clock of a model: it moves when the model says so.
#[cfg(any(all(test, loom), all(test, shuttle)))]
pub(crate) mod model {
    use std::cell::Cell;
    use std::time::Duration;

    /// A time-out that never comes: who waits so long depends on being woken.
    pub(crate) const FOREVER: Duration = Duration::from_secs(3600);

    /// The time at which every model begins: not zero, for the reason that `super::now` gives.
    pub(crate) const START: u64 = 1;

    // The checkers run all threads of a model on one thread of the operating system, so this is one
    // clock for the whole model and none of another test's. It is no scheduling point.
    std::thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(START) };
    }

    pub(crate) fn now() -> u64 {
        CLOCK.get()
    }

    /// Begins a model.
    pub(crate) fn reset() {
        CLOCK.set(START);
    }

    /// Lets time pass.
    #[cfg(shuttle)]
    pub(crate) fn advance(nanoseconds: u64) {
        CLOCK.set(CLOCK.get().saturating_add(nanoseconds));
    }

    /// A sleep ends: by the clock, or early as for no reason.
    #[cfg(shuttle)]
    pub(super) fn sleep_is_over(timeout: Duration) {
        use shuttle::rand::{Rng, thread_rng};

        if thread_rng().gen_bool(0.5) {
            advance(timeout.as_nanos() as u64);
        }
    }

    /// A sleep ends early: loom is not told of the clock, so it must stand still.
    #[cfg(loom)]
    pub(super) fn sleep_is_over(_timeout: Duration) {}
}
