//! The eventfd: a counter that makes a descriptor readable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::syscall;

/// A kernel counter, non-blocking and close-on-exec.
///
/// ```
/// use cabrank::sys::eventfd::EventFd;
///
/// let eventfd = EventFd::new()?;
/// eventfd.notify()?;
/// eventfd.notify()?;
/// assert_eq!(eventfd.read()?, Some(2));
/// assert_eq!(eventfd.read()?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "eventfd2")]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A counter at zero; a read takes all of it.
    pub fn new() -> io::Result<EventFd> {
        EventFd::with_flags(0, 0)
    }

    /// A semaphore at `count`; each read takes one.
    #[doc(alias = "EFD_SEMAPHORE")]
    pub fn semaphore(count: u32) -> io::Result<EventFd> {
        EventFd::with_flags(count, libc::EFD_SEMAPHORE)
    }

    fn with_flags(count: u32, flags: i32) -> io::Result<EventFd> {
        let flags = flags | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: the call takes no pointer.
        let fd = unsafe { syscall!(eventfd(count, flags)) }?;
        // SAFETY: the kernel has just handed us this descriptor and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd { fd })
    }

    /// Adds one. Async-signal-safe: one `write`, no lock and no allocation.
    pub fn notify(&self) -> io::Result<()> {
        self.add(1)
    }

    /// Adds `count`.
    ///
    /// # Errors
    /// `EAGAIN` if the counter would exceed `u64::MAX - 1`, `EINVAL` for `u64::MAX`.
    pub fn add(&self, count: u64) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel reads the eight bytes of `count`, which outlives the call.
        unsafe { syscall!(write(fd, (&raw const count).cast(), size_of::<u64>())) }?;
        Ok(())
    }

    /// Takes the count (of a semaphore: one), or `None` if it is zero.
    pub fn read(&self) -> io::Result<Option<u64>> {
        let mut count = 0_u64;
        let fd = self.fd.as_raw_fd();
        // SAFETY: the kernel writes eight bytes to `count`, which outlives the call.
        match unsafe { syscall!(read(fd, (&raw mut count).cast(), size_of::<u64>())) } {
            Ok(_) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
