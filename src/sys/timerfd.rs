//! The timerfd: a timer on the monotonic clock that makes a descriptor readable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, ClockId, Expiration, TimerFlags, TimerSetTimeFlags};

use super::{from_nix, syscall};

/// A kernel timer, non-blocking and close-on-exec.
///
/// ```
/// use cabrank::sys::timerfd::TimerFd;
/// use std::time::Duration;
///
/// let timer = TimerFd::new()?;
/// timer.after(Duration::from_micros(50))?;
/// while timer.read()?.is_none() {}
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "timerfd_create")]
pub struct TimerFd {
    timer: timerfd::TimerFd,
}

impl TimerFd {
    /// A timer that is not set.
    pub fn new() -> io::Result<TimerFd> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = timerfd::TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(from_nix)?;
        Ok(TimerFd { timer })
    }

    /// Fires once, `delay` from now; a zero delay fires at once, one of more than 68
    /// years counts as that long.
    #[doc(alias = "timerfd_settime")]
    pub fn after(&self, delay: Duration) -> io::Result<()> {
        self.set(Expiration::OneShot(spec(delay)))
    }

    /// Fires every `period`, first one period from now.
    ///
    /// # Errors
    /// `InvalidInput` for a zero period.
    pub fn every(&self, period: Duration) -> io::Result<()> {
        if period.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a period of zero"));
        }
        self.set(Expiration::Interval(spec(period)))
    }

    /// Takes the timer back.
    pub fn disarm(&self) -> io::Result<()> {
        self.timer.unset().map_err(from_nix)
    }

    /// How often it has fired since the last read; `None` if it has not.
    pub fn read(&self) -> io::Result<Option<u64>> {
        let mut fired = 0_u64;
        let fd = self.timer.as_fd().as_raw_fd();
        // SAFETY: the kernel writes eight bytes to `fired`, which outlives the call.
        match unsafe { syscall!(read(fd, (&raw mut fired).cast(), size_of::<u64>())) } {
            Ok(_) => Ok(Some(fired)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set(&self, expiration: Expiration) -> io::Result<()> {
        self.timer.set(expiration, TimerSetTimeFlags::empty()).map_err(from_nix)
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Zero would disarm the timer, so the shortest time is one nanosecond.
fn spec(time: Duration) -> TimeSpec {
    // Zero would disarm it, and more seconds than these are a negative number to the kernel.
    let longest = Duration::from_secs(i32::MAX as u64);
    TimeSpec::from_duration(time.clamp(Duration::from_nanos(1), longest))
}
