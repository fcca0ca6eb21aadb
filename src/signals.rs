//! Signals as a handle: one signalfd, any number of callbacks.

use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Error, Rejected, Result};
use crate::handle_set::HandleSet;
use crate::handler::{Context, Handler, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::sync::{Arc, Mutex};
use crate::sys::signalfd::{self, SignalFd, SignalInfo};
use crate::token::HandleId;
use crate::upcall::Panicked;

/// Signals that are blocked everywhere in the process, so that a handle can have them.
///
/// A signal goes to any thread that does not block it, and only if all block it to the handle. Threads
/// inherit the mask of the thread that starts them. So call [`block`](Signals::block) first in `main`, and
/// give the signals to a pool by [`HandleSet::on_signals`].
///
/// | | |
/// |---|---|
/// | several waiters | each callback is told of each signal; a second `Signals` for the same signal competes for it instead |
/// | coalescing | equal standard signals are one while they wait to be read; real-time signals queue |
/// | order | real-time signals by their number, equal ones as they were sent |
/// | unblocking | never done: a signal that waits would end the process. See [`sys::signalfd::unblock`](signalfd::unblock) |
/// | child processes | start with these signals blocked too, as [`std::process::Command`] has it |
/// | signals to one thread | (`pthread_kill`) are heard only if that thread happens to read, so send them to the process |
/// | busy pools | while all threads are in handlers nobody reads; a pool of one thread for the signals always does |
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

/// The callbacks of signals that are a handle now; clone it freely and use it from any thread.
#[derive(Clone)]
pub struct Subscribers {
    /// Those that the handler has yet to take over; `None` when it is gone.
    newcomers: Arc<Mutex<Option<Vec<Callback>>>>,
    id: HandleId,
}

type Callback = Box<dyn FnMut(SignalInfo, &mut Context<'_>) -> ControlFlow<()> + Send>;

impl Signals {
    /// Blocks the signals in the calling thread, to be inherited by the threads it starts, and checks that
    /// all others block them already. If this fails nothing has changed.
    ///
    /// The numbers are in [`sys::signalfd`](signalfd). Threads that are started at this very moment, and a
    /// process without `/proc`, cannot be checked.
    ///
    /// # Errors
    /// [`Error::SignalsTooLate`] if another thread does not block one of them, [`Error::NotASignal`],
    /// [`Error::Zero`] if there is none, or [`Error::Create`].
    #[doc(alias = "pthread_sigmask")]
    #[doc(alias = "signalfd4")]
    pub fn block(signals: &[i32]) -> Result<Signals> {
        if signals.is_empty() {
            return Err(Error::Zero { option: "the number of signals" });
        }
        let cannot_be = |&&signal: &&i32| {
            let unstoppable = signal == libc::SIGKILL || signal == libc::SIGSTOP;
            unstoppable
                || SignalFd::new(&[signal])
                    .is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
        };
        if let Some(&signal) = signals.iter().find(cannot_be) {
            return Err(Error::NotASignal { signal });
        }
        let create = |source| Error::Create { object: "signalfd", source };
        let fd = SignalFd::new(signals).map_err(create)?;
        let newly_blocked = signalfd::block_and_tell(signals).map_err(create)?;
        if let Err(error) = check_threads(signals) {
            signalfd::unblock(&newly_blocked).map_err(create)?;
            return Err(error);
        }
        Ok(Signals { fd })
    }
}

impl HandleSet {
    /// Makes a handle of signals. The callback is told of each, by one thread at a time, until it says
    /// `Break`; more can [subscribe](Subscribers::subscribe). A callback that panics is dropped and counted,
    /// the others go on. What nobody is subscribed to is read and forgotten.
    ///
    /// [`Subscribers::id`] is for [`remove`](HandleSet::remove), which drops the callbacks and leaves the
    /// signals blocked.
    ///
    /// ```
    /// use cabrank::sys::signalfd::{SIGINT, SIGTERM};
    /// use cabrank::{Pool, Signals};
    /// use std::ops::ControlFlow;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let signals = Signals::block(&[SIGINT, SIGTERM])?; // first of all
    /// let pool = Pool::builder().threads(2).build()?;
    /// pool.handles().on_signals(signals, |signal, cx| {
    ///     eprintln!("stopping on signal {} of {:?}", signal.number, signal.pid);
    ///     cx.shutdown();
    ///     ControlFlow::Break(())
    /// })?;
    /// # nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGTERM)?;
    /// match pool.join() {
    ///     // The signal may have come before we did.
    ///     Ok(()) | Err(cabrank::Error::ShutDown) => {}
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`register`](HandleSet::register), with the signals.
    #[doc(alias = "register_signal_handler")]
    pub fn on_signals<F>(
        &self,
        signals: Signals,
        callback: F,
    ) -> Result<Subscribers, Rejected<Signals>>
    where
        F: FnMut(SignalInfo, &mut Context<'_>) -> ControlFlow<()> + Send + 'static,
    {
        let first: Callback = Box::new(callback);
        let newcomers = Arc::new(Mutex::new(Some(vec![first])));
        let herald = Herald { signals, callbacks: Vec::new(), newcomers: Arc::clone(&newcomers) };
        match self.register(herald, Interest::READABLE) {
            Ok(id) => Ok(Subscribers { newcomers, id }),
            Err(Rejected { error, handler }) => Err(Rejected { error, handler: handler.signals }),
        }
    }
}

impl Subscribers {
    /// Has one more callback told of each signal that comes from now on, until it says `Break`. Also from
    /// inside a callback.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`] if the handle is gone.
    pub fn subscribe<F>(&self, callback: F) -> Result<()>
    where
        F: FnMut(SignalInfo, &mut Context<'_>) -> ControlFlow<()> + Send + 'static,
    {
        let callback: Callback = Box::new(callback);
        match self.newcomers.lock().as_mut() {
            Some(newcomers) => newcomers.push(callback),
            None => return Err(Error::UnknownHandle { id: self.id }),
        }
        Ok(())
    }

    /// The handle.
    pub fn id(&self) -> HandleId {
        self.id
    }
}

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribers").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads the signals and tells the callbacks.
struct Herald {
    signals: Signals,
    callbacks: Vec<Callback>,
    newcomers: Arc<Mutex<Option<Vec<Callback>>>>,
}

impl Herald {
    fn tell(&mut self, signal: SignalInfo, cx: &mut Context<'_>) {
        // After the signal was read: whoever subscribed before it was sent is among them. The lock is not
        // held while they run, for they may subscribe others.
        if let Some(newcomers) = self.newcomers.lock().as_mut() {
            self.callbacks.append(newcomers);
        }
        let handles = cx.handles().clone();
        self.callbacks.retain_mut(|callback| match handles.inner.call(|| callback(signal, cx)) {
            Ok(flow) => flow.is_continue(),
            Err(Panicked) => {
                cx.count_panic();
                false
            }
        });
    }
}

impl Handler for Herald {
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        for _ in 0..SIGNALS_PER_TURN {
            match self.signals.fd.read_info() {
                Ok(Some(signal)) => self.tell(signal, cx),
                Ok(None) => return Next::Drained(Interest::READABLE),
                // Not known to happen, and nothing would be heard any more.
                Err(_) => return Next::Close,
            }
            if cx.handles().is_asked(cx.id()) {
                // Removed or suspended by a callback: what is left waits in the kernel.
                break;
            }
        }
        Next::Rearm(Interest::READABLE)
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {
        let newcomers = self.newcomers.lock().take();
        // Their destructors are user code, and the lock is free by now.
        drop(newcomers);
    }
}

impl AsFd for Herald {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.fd.as_fd()
    }
}

/// Every thread of the process must block the signals by now.
fn check_threads(signals: &[i32]) -> Result<()> {
    let mut patience = LAST_BREATHS;
    loop {
        // A thread that has been joined can be seen for a moment longer, and one that starts another blocks
        // everything for a moment.
        match open_to(signals) {
            Masks::Blocked => return Ok(()),
            Masks::Unclear if patience == 0 => return Ok(()),
            Masks::Open { signal, thread, name } if patience == 0 => {
                return Err(Error::SignalsTooLate { signal, thread, name });
            }
            _ => {}
        }
        patience -= 1;
        std::thread::sleep(LAST_BREATH);
    }
}

/// Whether the threads of this process block some signals.
enum Masks {
    Blocked,
    /// Some thread blocks every signal there is, perhaps just for now.
    Unclear,
    /// This one does not block this one.
    Open {
        signal: i32,
        thread: i32,
        name: String,
    },
}

fn open_to(signals: &[i32]) -> Masks {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Masks::Blocked };
    let mut is_clear = true;
    let open = tasks.flatten().find_map(|task| {
        // Gone since it was listed.
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let blocked = u64::from_str_radix(field("SigBlk:")?, 16).ok()?;
        let is_dying = field("State:")?.starts_with(['Z', 'X']);
        is_clear &= blocked & EVERYTHING != EVERYTHING;
        let is_open = |signal: &&i32| blocked & 1 << (**signal - 1) == 0;
        let signal = *signals.iter().find(is_open).filter(|_| !is_dying)?;
        let thread = task.file_name().to_str()?.parse().ok()?;
        Some(Masks::Open { signal, thread, name: field("Name:")?.to_string() })
    });
    open.unwrap_or(if is_clear { Masks::Blocked } else { Masks::Unclear })
}

/// The standard signals, as bits from 0, without the two that cannot be blocked.
const EVERYTHING: u64 = 0x7fff_ffff & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// Others want their turn too, should real-time signals come in thousands.
const SIGNALS_PER_TURN: usize = 16;

/// How long a thread that is on its way out is given.
const LAST_BREATHS: u32 = 20;
const LAST_BREATH: Duration = Duration::from_millis(1);
