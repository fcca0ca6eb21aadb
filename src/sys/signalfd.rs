//! The signalfd: signals as something to read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{self, SfdFlags};

use super::from_nix;

/// Blocks `signals` in the calling thread, and in every thread it starts from then on.
///
/// A signal reaches a [`SignalFd`] only while *every* thread of the process blocks it, so call this
/// in `main` before any thread is started.
///
/// # Errors
/// `EINVAL` if a number is not a signal.
#[doc(alias = "pthread_sigmask")]
pub fn block(signals: &[i32]) -> io::Result<()> {
    let mask = mask(signals)?;
    nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&mask), None).map_err(from_nix)
}

/// Interrupt from the keyboard.
pub const SIGINT: i32 = libc::SIGINT;
/// Termination.
pub const SIGTERM: i32 = libc::SIGTERM;
/// Hang-up; to many servers, the wish to read their configuration again.
pub const SIGHUP: i32 = libc::SIGHUP;
/// For the program's own use.
pub const SIGUSR1: i32 = libc::SIGUSR1;
/// For the program's own use.
pub const SIGUSR2: i32 = libc::SIGUSR2;

/// A descriptor that is readable while one of its signals is pending; non-blocking, close-on-exec.
///
/// ```
/// use cabrank::sys::signalfd::{self, SIGINT, SIGTERM, SignalFd};
/// use cabrank::{Interest, Next, Pool, handler_fn};
///
/// signalfd::block(&[SIGINT, SIGTERM])?; // before the pool starts its threads
/// let pool = Pool::builder().threads(2).build()?;
/// let signals = handler_fn(SignalFd::new(&[SIGINT, SIGTERM])?, |signals, _ready, cx| {
///     if let Ok(Some(signal)) = signals.read() {
///         eprintln!("stopping on signal {signal}");
///         cx.shutdown();
///     }
///     Next::Rearm(Interest::READABLE)
/// });
/// pool.handles().register(signals, Interest::READABLE)?;
/// // … pool.join()?; and then …
/// let report = pool.finish();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SignalFd {
    signals: signalfd::SignalFd,
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
        let info = self.signals.read_signal().map_err(from_nix)?;
        Ok(info.map(|info| info.ssi_signo as i32))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

fn mask(signals: &[i32]) -> io::Result<SigSet> {
    let mut mask = SigSet::empty();
    for &number in signals {
        mask.add(Signal::try_from(number).map_err(from_nix)?);
    }
    Ok(mask)
}
