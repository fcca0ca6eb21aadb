//! The signalfd: signals as something to read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::signalfd::{self, SfdFlags, siginfo};

use super::{from_nix, syscall};

/// Blocks `signals` in the calling thread, and in every thread and process it starts from then on.
///
/// A signal reaches a [`SignalFd`] only while *every* thread of the process blocks it, so call this
/// in `main` before any thread is started. [`Signals::block`](crate::Signals::block) checks that.
///
/// # Errors
/// `EINVAL` if a number is not a signal.
#[doc(alias = "pthread_sigmask")]
pub fn block(signals: &[i32]) -> io::Result<()> {
    block_and_tell(signals).map(drop)
}

/// Lets `signals` through to the calling thread again. One that is pending takes its effect at once,
/// which by default ends the process.
///
/// # Errors
/// `EINVAL` if a number is not a signal.
#[doc(alias = "pthread_sigmask")]
pub fn unblock(signals: &[i32]) -> io::Result<()> {
    let mask = mask(signals)?;
    nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&mask), None).map_err(from_nix)
}

/// [`block`], which also tells which of them were not blocked before.
pub(crate) fn block_and_tell(signals: &[i32]) -> io::Result<Vec<i32>> {
    let mask = mask(signals)?;
    let mut before = SigSet::empty();
    nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut before))
        .map_err(from_nix)?;
    // SAFETY: the set is a whole one, and the call only reads it; a number that is none gives -1.
    let was_open = |signal: &&i32| unsafe { libc::sigismember(before.as_ref(), **signal) } == 0;
    Ok(signals.iter().filter(was_open).copied().collect())
}

/// The number of a real-time signal, from 0; `None` if there are fewer. They have no meaning of their own
/// and queue, where standard signals coalesce.
#[doc(alias = "SIGRTMIN")]
pub fn real_time(index: u8) -> Option<i32> {
    let number = libc::SIGRTMIN() + i32::from(index);
    (number <= libc::SIGRTMAX()).then_some(number)
}

/// Interrupt from the keyboard.
pub const SIGINT: i32 = libc::SIGINT;
/// Termination.
pub const SIGTERM: i32 = libc::SIGTERM;
/// Hang-up; to many servers, the wish to read their configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;
/// Quit from the keyboard.
pub const SIGQUIT: i32 = libc::SIGQUIT;
/// A child process has ended, stopped or continued.
pub const SIGCHLD: i32 = libc::SIGCHLD;
/// For the program's own use.
pub const SIGUSR1: i32 = libc::SIGUSR1;
/// For the program's own use.
pub const SIGUSR2: i32 = libc::SIGUSR2;

/// A descriptor that is readable while one of its signals is pending; non-blocking, close-on-exec.
///
/// This is the bare object. [`Signals`](crate::Signals) is the way to have signals in a pool: it checks the
/// masks and tells any number of callbacks.
///
/// A pool whose threads are all in handlers reads nothing, signals included. A program that must be
/// stoppable then gives the signals a pool of their own, of one thread.
///
/// ```
/// use cabrank::sys::signalfd::{self, SIGUSR1, SignalFd};
///
/// signalfd::block(&[SIGUSR1])?;
/// let signals = SignalFd::new(&[SIGUSR1])?;
/// assert_eq!(signals.read()?, None); // none is pending
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SignalFd {
    signals: signalfd::SignalFd,
}

/// What a signal says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
#[doc(alias = "signalfd_siginfo")]
pub struct SignalInfo {
    /// Its number.
    pub number: i32,
    /// The process that sent it, or for [`SIGCHLD`] the child. None for what the kernel sends by itself,
    /// such as an interrupt from the keyboard.
    pub pid: Option<u32>,
    /// The real user of that process.
    pub uid: Option<u32>,
    /// What came with it, if it was sent by `sigqueue`.
    pub value: Option<i32>,
    /// The child's exit status, or the signal that ended or stopped it; for [`SIGCHLD`] only.
    pub status: Option<i32>,
    /// The kernel's word for where it comes from, such as `SI_USER` or `CLD_EXITED`.
    #[doc(alias = "si_code")]
    pub code: i32,
}

impl SignalFd {
    /// Takes the given signals, which should be blocked (see [`block`]) already.
    ///
    /// # Errors
    /// `EINVAL` if a number is not a signal; `EMFILE` when out of descriptors.
    #[doc(alias = "signalfd4")]
    pub fn new(signals: &[i32]) -> io::Result<SignalFd> {
        let mask = mask(signals)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = signalfd::SignalFd::with_flags(&mask, flags).map_err(from_nix)?;
        Ok(SignalFd { signals })
    }

    /// The number of a pending signal, or `None`. Equal standard signals coalesce while pending.
    pub fn read(&self) -> io::Result<Option<i32>> {
        Ok(self.read_info()?.map(|info| info.number))
    }

    /// A pending signal and who sent it, or `None`.
    pub fn read_info(&self) -> io::Result<Option<SignalInfo>> {
        let info = self.signals.read_signal().map_err(from_nix)?;
        Ok(info.map(SignalInfo::from))
    }
}

impl From<siginfo> for SignalInfo {
    fn from(info: siginfo) -> SignalInfo {
        let number = info.ssi_signo as i32;
        // A process outside of our namespace has no number here either.
        let pid = Some(info.ssi_pid).filter(|&pid| pid != 0);
        SignalInfo {
            number,
            pid,
            uid: pid.map(|_| info.ssi_uid),
            value: (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_int),
            status: (number == SIGCHLD && info.ssi_code > 0).then_some(info.ssi_status),
            code: info.ssi_code,
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// By number, because nix's names leave the real-time signals out.
fn mask(signals: &[i32]) -> io::Result<SigSet> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call writes a whole set, for which there is room.
    unsafe { syscall!(sigemptyset(set.as_mut_ptr())) }?;
    for &number in signals {
        // SAFETY: the set has been initialised above; the number is checked by the call.
        unsafe { syscall!(sigaddset(set.as_mut_ptr(), number)) }?;
    }
    // SAFETY: initialised by `sigemptyset`, which cannot fail once it has returned 0.
    let set = unsafe { set.assume_init() };
    // SAFETY: made by `sigemptyset` and `sigaddset`, as is asked for.
    Ok(unsafe { SigSet::from_sigset_t_unchecked(set) })
}
