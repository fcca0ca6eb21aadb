//! The epoll instance: the kernel's half of a handle set.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::syscall;

/// An epoll instance.
///
/// Registrations are keyed by the pair (open file, descriptor number) and carry 64 bits of user data
/// that come back with every event. A registration ends with [`delete`](Epoll::delete), or when the
/// *last* descriptor of the open file is closed: while a duplicate lives, events keep coming and the
/// registration can no longer be removed, so delete before you close.
///
/// ```
/// use cabrank::sys::epoll::{Epoll, Events, Flags};
/// use cabrank::sys::eventfd::EventFd;
/// use std::num::NonZeroUsize;
///
/// let epoll = Epoll::new()?;
/// let eventfd = EventFd::new()?;
/// epoll.add(&eventfd, Flags::IN | Flags::ONESHOT, 7)?;
/// eventfd.notify()?;
///
/// let mut events = Events::with_capacity(NonZeroUsize::new(8).unwrap());
/// epoll.wait(&mut events, None)?;
/// assert_eq!(events.iter().map(|event| event.data()).collect::<Vec<_>>(), [7]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "epoll_create1")]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// Creates an epoll instance with close-on-exec.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { syscall!(epoll_create1(libc::EPOLL_CLOEXEC)) }?;
        // SAFETY: the kernel has just handed us this descriptor and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd })
    }

    /// Adds `source` with the given flags; `data` comes back with each of its events.
    ///
    /// # Errors
    /// `EEXIST` if the descriptor is in this instance already, `EPERM` if it cannot be polled (a
    /// regular file or a directory), `EINVAL` for [`Flags::EXCLUSIVE`] together with
    /// [`Flags::ONESHOT`], [`Flags::RDHUP`] or a nested epoll, `ENOSPC` at the user's watch limit.
    #[doc(alias = "epoll_ctl")]
    #[doc(alias = "EPOLL_CTL_ADD")]
    pub fn add(&self, source: impl AsFd, flags: Flags, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, source.as_fd().as_raw_fd(), flags, data)
    }

    /// Replaces flags and data of a registered `source`, re-arms it if it was one-shot, and polls
    /// it again: what is ready now is reported, also to a level- or edge-triggered registration
    /// that has reported it before.
    ///
    /// # Errors
    /// `ENOENT` if it is not registered, `EINVAL` if it was added with [`Flags::EXCLUSIVE`].
    #[doc(alias = "epoll_ctl")]
    #[doc(alias = "EPOLL_CTL_MOD")]
    pub fn modify(&self, source: impl AsFd, flags: Flags, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, source.as_fd().as_raw_fd(), flags, data)
    }

    /// Removes `source`. Events that another thread has already fetched are not recalled.
    #[doc(alias = "epoll_ctl")]
    #[doc(alias = "EPOLL_CTL_DEL")]
    pub fn delete(&self, source: impl AsFd) -> io::Result<()> {
        self.delete_raw(source.as_fd().as_raw_fd())
    }

    /// Waits until an event comes, `timeout` has passed (`None`: for ever; zero: do not wait), or
    /// never returns early: an interruption by a signal continues the wait with what remains.
    ///
    /// Overwrites `events` and returns how many there are. Time-outs have nanosecond resolution by
    /// `epoll_pwait2` (Linux 5.11); older kernels get the time rounded up to milliseconds.
    #[doc(alias = "epoll_wait")]
    #[doc(alias = "epoll_pwait2")]
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<usize> {
        let most = events.capacity();
        self.wait_at_most(events, most, timeout)
    }

    /// [`wait`](Epoll::wait) for at most `most` events (at least one, at most the capacity).
    pub fn wait_at_most(
        &self,
        events: &mut Events,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        events.filled = 0;
        let most = most.clamp(1, events.capacity());
        let start = timeout.filter(|timeout| !timeout.is_zero()).map(|_| Instant::now());
        let mut remaining = timeout;
        loop {
            match self.wait_once(&mut events.buffer[..most], remaining) {
                Ok(filled) => {
                    events.filled = filled;
                    return Ok(filled);
                }
                // A signal handler ran, or the process was stopped and continued.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if let (Some(timeout), Some(start)) = (timeout, start) {
                        remaining = Some(timeout.saturating_sub(start.elapsed()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_once(
        &self,
        buffer: &mut [MaybeUninit<libc::epoll_event>],
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let most = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
        let pointer = buffer.as_mut_ptr().cast::<libc::epoll_event>();
        let fd = self.fd.as_raw_fd();
        if let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) {
            if let Some(filled) = wait_by_nanoseconds(fd, pointer, most, timeout)? {
                return Ok(filled);
            }
        }
        let milliseconds = timeout.map_or(-1, round_up_to_milliseconds);
        // SAFETY: the kernel writes at most `most` events from `pointer` on, which is the buffer's
        // length.
        let filled = unsafe { syscall!(epoll_wait(fd, pointer, most, milliseconds)) }?;
        Ok(filled as usize)
    }

    /// [`add`](Epoll::add) by number; see [`modify_raw`](Epoll::modify_raw).
    pub(crate) fn add_raw(&self, fd: RawFd, flags: Flags, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, flags, data)
    }

    /// [`modify`](Epoll::modify) by number, for an engine that knows the descriptor is registered.
    ///
    /// Safe: the kernel checks the number, and a wrong one is an error or a wrong registration, not
    /// undefined behaviour. The engine compares it with the handler's own before each call.
    pub(crate) fn modify_raw(&self, fd: RawFd, flags: Flags, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, flags, data)
    }

    /// [`delete`](Epoll::delete) by number; see [`modify_raw`](Epoll::modify_raw).
    pub(crate) fn delete_raw(&self, fd: RawFd) -> io::Result<()> {
        // A null event is allowed since Linux 2.6.9, but a real one costs nothing.
        self.control(libc::EPOLL_CTL_DEL, fd, Flags(0), 0)
    }

    fn control(&self, operation: i32, fd: RawFd, flags: Flags, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: flags.0, u64: data };
        // SAFETY: the kernel only reads the event, which outlives the call.
        unsafe { syscall!(epoll_ctl(self.fd.as_raw_fd(), operation, fd, &mut event)) }?;
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Tries `epoll_pwait2`; `None` on a kernel without it.
fn wait_by_nanoseconds(
    fd: RawFd,
    pointer: *mut libc::epoll_event,
    most: i32,
    timeout: Duration,
) -> io::Result<Option<usize>> {
    // Relaxed: a hint that guards no data; a thread that misses it asks the kernel once more.
    static UNKNOWN_TO_KERNEL: AtomicBool = AtomicBool::new(false);
    if UNKNOWN_TO_KERNEL.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let timeout = KernelTimespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let no_mask = ptr::null::<libc::sigset_t>();
    let number = libc::SYS_epoll_pwait2;
    // SAFETY: the caller's `pointer` has room for `most` events, the kernel only reads the time,
    // and without a signal mask its size is ignored.
    match unsafe { syscall!(syscall(number, fd, pointer, most, &timeout, no_mask, 0_usize)) } {
        Ok(filled) => Ok(Some(filled as usize)),
        // EPERM: older container sandboxes refuse unknown system calls that way.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            UNKNOWN_TO_KERNEL.store(true, Ordering::Relaxed);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What the kernel reads here on every architecture; libc's is smaller on some with 32 bits.
#[repr(C)]
struct KernelTimespec {
    tv_sec: i64,
    tv_nsec: i64,
}

/// Rounded up, so that a wait never ends before its time; the kernel's longest is 24 days.
fn round_up_to_milliseconds(timeout: Duration) -> i32 {
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000);
    i32::try_from(milliseconds).unwrap_or(i32::MAX)
}

/// What is asked of a registration, and what an event reports: the kernel's `EPOLL*` bits.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
#[doc(alias = "epoll_events")]
pub struct Flags(u32);

impl Flags {
    /// Readable, or a connection to accept.
    #[doc(alias = "EPOLLIN")]
    pub const IN: Flags = Flags(libc::EPOLLIN as u32);
    /// Writable, or a connect that has completed.
    #[doc(alias = "EPOLLOUT")]
    pub const OUT: Flags = Flags(libc::EPOLLOUT as u32);
    /// Exceptional condition, such as out-of-band data.
    #[doc(alias = "EPOLLPRI")]
    pub const PRI: Flags = Flags(libc::EPOLLPRI as u32);
    /// An error is pending. Always reported, need not be asked for.
    #[doc(alias = "EPOLLERR")]
    pub const ERR: Flags = Flags(libc::EPOLLERR as u32);
    /// Hung up in both directions. Always reported, need not be asked for.
    #[doc(alias = "EPOLLHUP")]
    pub const HUP: Flags = Flags(libc::EPOLLHUP as u32);
    /// The peer will send no more.
    #[doc(alias = "EPOLLRDHUP")]
    pub const RDHUP: Flags = Flags(libc::EPOLLRDHUP as u32);
    /// Report changes only.
    #[doc(alias = "EPOLLET")]
    pub const ET: Flags = Flags(libc::EPOLLET as u32);
    /// Report once, then stay silent, errors and hang-ups included, until modified.
    #[doc(alias = "EPOLLONESHOT")]
    pub const ONESHOT: Flags = Flags(libc::EPOLLONESHOT as u32);
    /// Among *several epoll instances* that watch one file, wake one instead of all.
    #[doc(alias = "EPOLLEXCLUSIVE")]
    pub const EXCLUSIVE: Flags = Flags(libc::EPOLLEXCLUSIVE as u32);

    /// The kernel's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Flags from the kernel's bits, for those that have no constant here.
    pub const fn from_bits(bits: u32) -> Flags {
        Flags(bits)
    }

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags less others.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether none is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Flags, &str); 9] = [
            (Flags::IN, "IN"),
            (Flags::OUT, "OUT"),
            (Flags::PRI, "PRI"),
            (Flags::ERR, "ERR"),
            (Flags::HUP, "HUP"),
            (Flags::RDHUP, "RDHUP"),
            (Flags::ET, "ET"),
            (Flags::ONESHOT, "ONESHOT"),
            (Flags::EXCLUSIVE, "EXCLUSIVE"),
        ];
        let mut rest = self.0;
        let mut separator = "";
        for (flag, name) in NAMES {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest &= !flag.0;
            }
        }
        if rest != 0 || separator.is_empty() {
            write!(f, "{separator}{rest:#x}")?;
        }
        Ok(())
    }
}

/// One event as the kernel reports it.
// Not the kernel's own form, which is packed on some machines, and copied in pieces that the CPU cannot
// put together at once when they are read.
#[derive(Clone, Copy)]
#[doc(alias = "epoll_event")]
pub struct Event {
    flags: Flags,
    data: u64,
}

impl Event {
    /// An event with the given flags and user data, as a demultiplexer in a test would report it.
    pub const fn new(flags: Flags, data: u64) -> Event {
        Event { flags, data }
    }

    /// What happened.
    pub const fn flags(&self) -> Flags {
        self.flags
    }

    /// The 64 bits given when the source was added or last modified.
    pub const fn data(&self) -> u64 {
        self.data
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("flags", &self.flags()).field("data", &self.data()).finish()
    }
}

/// Room for the events of one wait; allocates once.
pub struct Events {
    buffer: Box<[MaybeUninit<libc::epoll_event>]>,
    filled: usize,
}

impl Events {
    /// Room for `capacity` events.
    pub fn with_capacity(capacity: NonZeroUsize) -> Events {
        Events { buffer: Box::new_uninit_slice(capacity.get()), filled: 0 }
    }

    /// How many events one wait can report.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// How many events the last wait has reported.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether the last wait has reported none.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + DoubleEndedIterator + '_ {
        self.written().iter().map(|event| Event::new(Flags(event.events), event.u64))
    }

    /// As the kernel has written them.
    fn written(&self) -> &[libc::epoll_event] {
        let filled = &self.buffer[..self.filled];
        // SAFETY: `filled` is only ever the number of events the kernel, or `push`, has written to
        // the front of the buffer.
        unsafe { &*(ptr::from_ref(filled) as *const [libc::epoll_event]) }
    }

    /// Forgets the events of the last wait.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Takes out the events with the given data, in any order, and says whether there were any.
    pub(crate) fn take_out(&mut self, data: u64) -> bool {
        let before = self.filled;
        let mut at = 0;
        while at < self.filled {
            if self.written()[at].u64 == data {
                self.filled -= 1;
                self.buffer.swap(at, self.filled);
            } else {
                at += 1;
            }
        }
        self.filled < before
    }

    /// Adds an event by hand, as a demultiplexer in a test would; `false` if there is no room.
    pub fn push(&mut self, event: Event) -> bool {
        match self.buffer.get_mut(self.filled) {
            Some(place) => {
                place.write(libc::epoll_event { events: event.flags.0, u64: event.data });
                self.filled += 1;
                true
            }
            None => false,
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_up_and_saturate() {
        assert_eq!(round_up_to_milliseconds(Duration::ZERO), 0);
        assert_eq!(round_up_to_milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(round_up_to_milliseconds(Duration::from_millis(7)), 7);
        assert_eq!(round_up_to_milliseconds(Duration::MAX), i32::MAX);
    }

    #[test]
    fn flags_print_their_names() {
        assert_eq!(format!("{:?}", Flags::IN | Flags::ONESHOT), "IN | ONESHOT");
        assert_eq!(format!("{:?}", Flags::default()), "0x0");
    }
}
