//! Timers: handles without a descriptor, for which a deadline is all there is.

use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::cell::OnlyMut;
use crate::entry::Resident;
use crate::error::{Error, Result};
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::sync::nanoseconds;
use crate::token::HandleId;

impl HandleSet {
    /// Calls a closure once, when `delay` has passed.
    ///
    /// A timer is a handle: [`remove`](HandleSet::remove) cancels it, and when that has returned
    /// [`Removal::Done`](crate::Removal::Done) it does not fire any more;
    /// [`set_deadline`](HandleSet::set_deadline) moves it. Both take O(log n) for n timers. It counts among
    /// the handles of the set, and for [`Builder::max_handles`](crate::Builder::max_handles).
    ///
    /// There is no descriptor behind it, so interests, suspending and [`notify`](HandleSet::notify) mean nothing
    /// to it. One whose deadline is [cleared](HandleSet::clear_deadline) stays, silent, until it is moved or
    /// removed.
    ///
    /// Timers that are due at the same time are spread over the threads. They run by the monotonic clock,
    /// never early, and late by as much as all threads are busy.
    ///
    /// ```
    /// use cabrank::Pool;
    /// use std::time::Duration;
    ///
    /// let pool = Pool::builder().threads(0).joiners(1).build()?;
    /// let never = pool.handles().after(Duration::from_secs(3600), |_cx| unreachable!())?;
    /// pool.handles().after(Duration::from_millis(1), move |cx| {
    ///     cx.handles().remove(never).unwrap();
    ///     cx.shutdown();
    /// })?;
    /// pool.join()?;
    /// # Ok::<(), cabrank::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableFull`], [`Error::ShutDown`] or [`Error::Forked`].
    #[doc(alias = "schedule_timer")]
    pub fn after(
        &self,
        delay: Duration,
        callback: impl FnOnce(&mut Context<'_>) + Send + 'static,
    ) -> Result<HandleId> {
        let mut callback = Some(callback);
        let once = move |cx: &mut Context<'_>| {
            if let Some(callback) = callback.take() {
                callback(cx);
            }
            Next::Close
        };
        self.insert_timer(delay, once)
    }

    /// Calls a closure every `period`, first after one period, for as long as it says `Continue`.
    ///
    /// The times are multiples of the period after the first, however late a call was; periods that have
    /// passed meanwhile are left out. Otherwise as [`after`](HandleSet::after).
    ///
    /// ```
    /// use cabrank::Pool;
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    ///
    /// let pool = Pool::builder().threads(0).joiners(1).build()?;
    /// let mut left = 3;
    /// pool.handles().every(Duration::from_micros(200), move |cx| {
    ///     left -= 1;
    ///     if left > 0 {
    ///         return ControlFlow::Continue(());
    ///     }
    ///     cx.shutdown();
    ///     ControlFlow::Break(())
    /// })?;
    /// pool.join()?;
    /// # Ok::<(), cabrank::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`after`](HandleSet::after), and [`Error::Zero`] for a period of nothing.
    #[doc(alias = "interval")]
    pub fn every(
        &self,
        period: Duration,
        mut callback: impl FnMut(&mut Context<'_>) -> ControlFlow<()> + Send + 'static,
    ) -> Result<HandleId> {
        if period.is_zero() {
            return Err(Error::Zero { option: "the period of a timer" });
        }
        let each = move |cx: &mut Context<'_>| match callback(cx) {
            ControlFlow::Continue(()) => {
                // A callback that has set a deadline of its own knows better.
                if !cx.has_deadline() {
                    cx.set_next_period(nanoseconds(period));
                }
                Next::Rearm(Interest::READABLE)
            }
            ControlFlow::Break(()) => Next::Close,
        };
        self.insert_timer(period, each)
    }

    fn insert_timer<F>(&self, delay: Duration, callback: F) -> Result<HandleId>
    where
        F: FnMut(&mut Context<'_>) -> Next + Send + 'static,
    {
        // The interest is for a descriptor, and there is none.
        let registration = Registration::new(Interest::READABLE).deadline(delay);
        let resident = |callback| -> Box<dyn Resident> { Box::new(Timer(OnlyMut::new(callback))) };
        self.insert(None, callback, resident, false, registration).map_err(Error::from)
    }
}

struct Timer<F>(OnlyMut<F>);

impl<F> Resident for Timer<F>
where
    F: FnMut(&mut Context<'_>) -> Next + Send,
{
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        if ready.is_timeout() { (self.0.get_mut())(cx) } else { Next::Rearm(Interest::READABLE) }
    }

    fn fd(&mut self) -> Option<RawFd> {
        None
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {}
}
