//! What users implement: handlers, their verdict, and what they can do while they run.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::deadlines::NEVER;
use crate::handle_set::HandleSet;
use crate::interest::{Interest, Ready};
use crate::sync::nanoseconds;
use crate::token::HandleId;

/// A handle and the code that serves it.
///
/// The handle set owns the handler, and the handler owns its descriptor: nobody can close the one
/// under the other. While [`ready`](Handler::ready) runs the handle is deactivated, so the method has
/// `&mut self` for itself and needs no lock (invariant I3).
///
/// [`as_fd`](AsFd::as_fd) must go on returning the descriptor that was registered. A handler that comes
/// back with another one is closed with [`Reason::DescriptorChanged`]. To give the descriptor away, take it
/// out in [`closed`](Handler::closed): the set has let go of it by then.
///
/// ```
/// use cabrank::{Context, Handler, Interest, Next, Ready};
/// use std::io::Read;
/// use std::net::TcpStream;
/// use std::os::fd::{AsFd, BorrowedFd};
///
/// struct Sink {
///     stream: TcpStream, // non-blocking
///     bytes: u64,
/// }
///
/// impl AsFd for Sink {
///     fn as_fd(&self) -> BorrowedFd<'_> {
///         self.stream.as_fd()
///     }
/// }
///
/// impl Handler for Sink {
///     fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
///         match self.stream.read(&mut [0; 4096]) {
///             Ok(0) => Next::Close,
///             Ok(n) => {
///                 self.bytes += n as u64;
///                 Next::Rearm(Interest::READABLE)
///             }
///             Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
///                 Next::Drained(Interest::READABLE)
///             }
///             Err(_) => Next::Close,
///         }
///     }
/// }
/// ```
#[doc(alias = "Event_Handler")]
pub trait Handler: AsFd + Send {
    /// Called by the thread that detected the event. It has promoted another thread before, so take
    /// the time you need, but prefer not to block: the thread is missing meanwhile.
    #[doc(alias = "handle_event")]
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next;

    /// Called exactly once, when the handle has left the set and before the handler is dropped. `id` is
    /// what it was registered under, and belongs to nobody any more.
    ///
    /// It runs on the thread that takes the handle out, which may be any that calls
    /// [`remove`](HandleSet::remove), [`set_interest`](HandleSet::set_interest),
    /// [`suspend`](HandleSet::suspend) or [`resume`](HandleSet::resume): nobody may hold a lock across these
    /// that this method takes.
    fn closed(&mut self, id: HandleId, reason: Reason) {
        let _ = (id, reason);
    }
}

/// A handle that several threads may serve at once: a UDP socket, a listener, a semaphore eventfd.
///
/// Register it with [`HandleSet::register_shared`]. The handle stays active while it is served, by edge
/// trigger: each arrival is reported to one thread. Return [`Next::Drained`] after the operation said
/// `WouldBlock`, [`Next::Rearm`] if there may be more. A change that is asked for while threads are in the
/// handler is made when the last of them has left; until then nobody else comes in.
///
/// Arrivals that come together are reported as one, to one thread. Call [`Context::pass_on`] once you have
/// taken yours, and the next thread comes for the rest while you work:
///
/// ```
/// use cabrank::{Context, Interest, Next, Pool, Ready, shared_fn};
/// use std::io::ErrorKind::WouldBlock;
/// use std::net::UdpSocket;
///
/// fn answer(socket: &UdpSocket, _ready: Ready, cx: &mut Context<'_>) -> Next {
///     let mut buffer = [0; 1500];
///     match socket.recv_from(&mut buffer) {
///         Ok((n, peer)) => {
///             cx.pass_on(); // before the slow part
///             // … work …
///             let _ = socket.send_to(&buffer[..n], peer);
///             Next::Drained(Interest::READABLE)
///         }
///         Err(error) if error.kind() == WouldBlock => Next::Drained(Interest::READABLE),
///         // Such as a refusal of what was sent before: this call has taken it.
///         Err(_) => Next::Rearm(Interest::READABLE),
///     }
/// }
///
/// let pool = Pool::builder().threads(4).build()?;
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.set_nonblocking(true)?;
/// # let address = socket.local_addr()?;
/// pool.handles().register_shared(shared_fn(socket, answer), Interest::READABLE)?;
/// # let client = UdpSocket::bind("127.0.0.1:0")?;
/// # for question in [b"1", b"2", b"3"] {
/// #     client.send_to(question, address)?;
/// # }
/// # for _ in 0..3 {
/// #     client.recv(&mut [0])?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait SharedHandler: AsFd + Send + Sync {
    /// Called by the thread that detected the event, possibly while other threads are in it.
    fn ready(&self, ready: Ready, cx: &mut Context<'_>) -> Next;

    /// Called exactly once, when the handle has left the set and no thread is in
    /// [`ready`](SharedHandler::ready) any more.
    fn closed(&self, id: HandleId, reason: Reason) {
        let _ = (id, reason);
    }
}

/// A handler's verdict: what becomes of its handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Next {
    /// Wait for the interest, and report what is ready now already. Always right.
    #[doc(alias = "reactivate_handle")]
    Rearm(Interest),
    /// As [`Rearm`](Next::Rearm), with the promise that the last operation said `WouldBlock` for
    /// everything in the interest. Saves a system call under [`Deactivation::Edge`]; a wrong promise
    /// is a handle that stays silent until the peer acts.
    Drained(Interest),
    /// Report nothing until somebody calls [`HandleSet::resume`]. If that has happened already, while
    /// the handler ran, it counts: whoever got the work may be faster than the handler's return.
    /// [`HandleSet::notify`] and the handle's deadline reach the handler also while it is suspended, and its
    /// verdict then decides anew.
    ///
    /// A peer that leaves meanwhile is noticed after that, not before: what is suspended is not watched.
    ///
    /// ```
    /// use cabrank::{Context, Handler, Interest, Next, Pool, Ready};
    /// use std::io::{ErrorKind::WouldBlock, Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::os::fd::{AsFd, BorrowedFd};
    /// use std::{sync::mpsc, thread};
    ///
    /// struct Asked {
    ///     stream: TcpStream, // non-blocking
    ///     answers: (mpsc::Sender<String>, mpsc::Receiver<String>),
    /// }
    ///
    /// impl Handler for Asked {
    ///     fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
    ///         if let Ok(answer) = self.answers.1.try_recv() {
    ///             return match self.stream.write_all(answer.as_bytes()) {
    ///                 Ok(()) => Next::Rearm(Interest::READABLE), // the next question
    ///                 Err(_) => Next::Close,
    ///             };
    ///         }
    ///         let mut question = [0; 1024];
    ///         match self.stream.read(&mut question) {
    ///             Ok(0) => Next::Close,
    ///             Ok(n) => {
    ///                 let question = String::from_utf8_lossy(&question[..n]).into_owned();
    ///                 let (handles, id, answer) = (cx.handles().clone(), cx.id(), self.answers.0.clone());
    ///                 thread::spawn(move || {
    ///                     // … after long thought …
    ///                     let _ = answer.send(format!("{question} Yes."));
    ///                     let _ = handles.notify(id); // calls the handler, with Ready::MESSAGE
    ///                 });
    ///                 Next::Suspend
    ///             }
    ///             Err(error) if error.kind() == WouldBlock => Next::Rearm(Interest::READABLE),
    ///             Err(_) => Next::Close,
    ///         }
    ///     }
    /// }
    /// # impl AsFd for Asked {
    /// #     fn as_fd(&self) -> BorrowedFd<'_> {
    /// #         self.stream.as_fd()
    /// #     }
    /// # }
    /// # let pool = Pool::builder().threads(2).build()?;
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let mut client = TcpStream::connect(listener.local_addr()?)?;
    /// # let (stream, _) = listener.accept()?;
    /// # stream.set_nonblocking(true)?;
    /// # let asked = Asked { stream, answers: mpsc::channel() };
    /// # let id = pool.handles().register(asked, Interest::READABLE)?;
    /// # for _ in 0..2 {
    /// #     client.write_all(b"Really?")?;
    /// #     let mut answer = [0; 12];
    /// #     client.read_exact(&mut answer)?;
    /// #     assert_eq!(&answer, b"Really? Yes.");
    /// # }
    /// # drop(client);
    /// # while pool.handles().contains(id) {
    /// #     thread::yield_now();
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "suspend_handler")]
    Suspend,
    /// Take the handle out and drop the handler.
    #[doc(alias = "remove_handler")]
    Close,
}

/// Why a handle left its set. Prints as a sentence about the handle, such as `it was removed`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The handler returned [`Next::Close`].
    Closed,
    /// Somebody called [`HandleSet::remove`].
    Removed,
    /// The handler panicked.
    Panicked,
    /// The pool was shut down.
    Shutdown,
    /// [`AsFd::as_fd`] returned another descriptor than the registered one.
    DescriptorChanged,
    /// The kernel refused to re-arm the handle.
    Failed(io::Error),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Closed => f.write_str("its handler closed it"),
            Reason::Removed => f.write_str("it was removed"),
            Reason::Panicked => f.write_str("its handler panicked"),
            Reason::Shutdown => f.write_str("the pool was shut down"),
            Reason::DescriptorChanged => {
                f.write_str("its handler came back with another descriptor")
            }
            Reason::Failed(error) => write!(f, "the kernel refused to re-arm it: {error}"),
        }
    }
}

/// How a handle is taken out of consideration while its handler runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Deactivation {
    /// The kernel disarms the handle with each event, and one system call re-arms it afterwards.
    #[default]
    #[doc(alias = "EPOLLONESHOT")]
    OneShot,
    /// The kernel reports edges, and the handle's state word keeps other threads out. No system call is
    /// needed after a handler that returns [`Next::Drained`]; after [`Next::Rearm`] the engine polls
    /// the handle again. To the handler both look the same.
    #[doc(alias = "EPOLLET")]
    Edge,
}

/// Whether a handler blocks its thread, so that the pool can prepare for it; see
/// [`Registration::blocking`](crate::Registration::blocking).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Blocking {
    /// Found out: one that usually takes longer than the [budget](crate::Builder::budget) is treated as
    /// [`Always`](Blocking::Always).
    #[default]
    Learned = 0,
    /// It is trusted to be short: nobody is woken just to watch over it. If that is wrong, and as many such
    /// handlers block as may [run](crate::Builder::running), everything else waits for them.
    Never = 1,
    /// Somebody else sits down to wait on the handle set before it runs, also in busy times, unless as many run
    /// as [may](crate::Builder::running): then a follower looks after them.
    Maybe = 2,
    /// It never counts as [running](crate::Builder::running), so another thread takes over at once.
    Always = 3,
}

impl Blocking {
    pub(crate) fn from_number(number: u8) -> Blocking {
        match number {
            1 => Blocking::Never,
            2 => Blocking::Maybe,
            3 => Blocking::Always,
            _ => Blocking::Learned,
        }
    }
}

/// What a handler can reach while it runs, and what it can ask for.
pub struct Context<'a> {
    id: HandleId,
    handles: &'a HandleSet,
    caller: Caller<'a>,
    /// What the handler wants its deadline to be, if it said so.
    deadline: Option<u64>,
    /// The deadline that has passed, if that is what it is called for.
    passed: u64,
    /// Lets another thread in, if the handler is shared.
    sharing: Option<&'a dyn Sharing>,
    /// User code that the handler called has panicked, and was contained there.
    panicked: bool,
}

/// Who makes an upcall.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The thread's index in the pool.
    pub(crate) thread: usize,
    /// What it may do to its pool.
    pub(crate) control: &'a dyn Control,
    /// When the thread began with the event.
    pub(crate) began: u64,
}

/// What a handler may do to its pool.
pub(crate) trait Control {
    fn shut_down(&self);

    /// The calling thread does not count as running from here on.
    fn begin_blocking(&self) {}

    /// It counts again.
    fn end_blocking(&self) {}
}

/// What a shared handler may do to its handle while it runs.
pub(crate) trait Sharing {
    /// Has the kernel look again at once.
    fn pass_on(&self);
}

impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(id: HandleId, handles: &'a HandleSet, caller: Caller<'a>) -> Context<'a> {
        Context {
            id,
            handles,
            caller,
            deadline: None,
            passed: NEVER,
            sharing: None,
            panicked: false,
        }
    }

    /// The same for a shared handler.
    pub(crate) fn shared<'s>(&'s self, sharing: &'s dyn Sharing) -> Context<'s> {
        Context { sharing: Some(sharing), ..Context::new(self.id, self.handles, self.caller) }
    }

    /// The handle this event is about.
    pub fn id(&self) -> HandleId {
        self.id
    }

    /// The handle set, to register, change or remove handles, this one included.
    pub fn handles(&self) -> &HandleSet {
        self.handles
    }

    /// Has the handler called with [`Ready::TIMEOUT`] when `after` has passed since the thread took up
    /// the event, just before this call, unless
    /// the deadline is moved or cleared before. It is called even if the handle is suspended by then, and
    /// as always by one thread at a time.
    ///
    /// Meant to be said again with every request: moving a deadline away costs no system call, no lock and
    /// no allocation. [`SharedHandler`]s and posted closures have no deadline; for them this does nothing.
    ///
    /// ```
    /// use cabrank::{Context, Interest, Next, Ready};
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    ///
    /// fn ready(stream: &mut TcpStream, ready: Ready, cx: &mut Context<'_>) -> Next {
    ///     if ready.is_timeout() {
    ///         return Next::Close; // nothing was said for half a minute
    ///     }
    ///     // … read and answer …
    ///     cx.set_deadline(Duration::from_secs(30));
    ///     Next::Rearm(Interest::READABLE)
    /// }
    /// ```
    #[doc(alias = "idle_timeout")]
    pub fn set_deadline(&mut self, after: Duration) {
        self.deadline = Some(self.caller.began.saturating_add(nanoseconds(after)).min(NEVER - 1));
    }

    /// The handler has no deadline any more.
    pub fn clear_deadline(&mut self) {
        self.deadline = Some(NEVER);
    }

    /// Says, in a [`SharedHandler`], that more may be waiting: the next thread is let in now and not when
    /// this one has returned. Call it between taking something and working on it. One system call;
    /// afterwards [`Next::Drained`] is right. Other handlers have the handle for themselves, and for them
    /// this does nothing.
    #[doc(alias = "EPOLL_CTL_MOD")]
    pub fn pass_on(&self) {
        if let Some(sharing) = self.sharing {
            sharing.pass_on();
        }
    }

    /// The index of this thread in the pool; the pool's own threads come first, from 0.
    pub fn thread(&self) -> usize {
        self.caller.thread
    }

    /// Runs code that blocks: waits for a lock, a file, another thread. The pool is told, so the thread does
    /// not count as [running](crate::Builder::running) meanwhile, and another is brought in if the pool
    /// would be short of one otherwise.
    ///
    /// Nothing goes wrong without it: a handler that blocks is noticed after its
    /// [budget](crate::Builder::budget). With it, nobody waits for that.
    ///
    /// ```
    /// use cabrank::{Context, Interest, Next, Ready};
    /// use std::net::TcpStream;
    ///
    /// fn ready(stream: &mut TcpStream, _ready: Ready, cx: &mut Context<'_>) -> Next {
    ///     // … read the name of a file …
    ///     let _text = cx.blocking(|| std::fs::read("/etc/hostname"));
    ///     // … answer …
    ///     Next::Rearm(Interest::READABLE)
    /// }
    /// ```
    #[doc(alias = "block_in_place")]
    #[doc(alias = "spawn_blocking")]
    pub fn blocking<R>(&self, code: impl FnOnce() -> R) -> R {
        struct End<'a>(&'a dyn Control);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end_blocking();
            }
        }
        self.caller.control.begin_blocking();
        // Also if the code panics.
        let _end = End(self.caller.control);
        code()
    }

    /// Asks the whole pool to stop, as [`Pool::shutdown`](crate::Pool::shutdown) does. Returns at once.
    pub fn shutdown(&self) {
        self.caller.control.shut_down();
    }

    /// What the handler wants its deadline to be, if it said so.
    pub(crate) fn take_deadline(&mut self) -> Option<u64> {
        self.deadline.take()
    }

    /// Counts a panic of user code that the handler has contained by itself.
    pub(crate) fn count_panic(&mut self) {
        self.panicked = true;
    }

    pub(crate) fn has_panicked(&self) -> bool {
        self.panicked
    }

    pub(crate) fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    pub(crate) fn set_passed(&mut self, deadline: u64) {
        self.passed = deadline;
    }

    /// Has the handler called again a `period` after the deadline that has passed. Periods that have been
    /// missed are left out.
    pub(crate) fn set_next_period(&mut self, period: u64) {
        let late = self.caller.began.saturating_sub(self.passed);
        let periods = late / period + 1;
        self.deadline = Some(self.passed.saturating_add(periods.saturating_mul(period)));
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("id", &self.id)
            .field("thread", &self.caller.thread)
            .finish_non_exhaustive()
    }
}

/// Makes a handler of a source and a closure, where no other state is needed.
///
/// ```
/// use cabrank::{Interest, Next, Pool, handler_fn};
/// use cabrank::sys::eventfd::EventFd;
///
/// let pool = Pool::builder().threads(0).joiners(1).build()?;
/// let eventfd = EventFd::new()?;
/// eventfd.notify()?;
/// let handler = handler_fn(eventfd, |eventfd, _ready, cx| {
///     println!("count: {:?}", eventfd.read());
///     cx.shutdown();
///     Next::Close
/// });
/// pool.handles().register(handler, Interest::READABLE)?;
/// pool.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn handler_fn<S, F>(source: S, ready: F) -> HandlerFn<S, F>
where
    S: AsFd + Send,
    F: FnMut(&mut S, Ready, &mut Context<'_>) -> Next + Send,
{
    HandlerFn { source, ready }
}

/// A source and a closure; see [`handler_fn`].
pub struct HandlerFn<S, F> {
    source: S,
    ready: F,
}

impl<S, F> HandlerFn<S, F> {
    /// The source, for a registration that was refused.
    pub fn into_source(self) -> S {
        self.source
    }
}

impl<S: AsFd, F> AsFd for HandlerFn<S, F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

impl<S, F> Handler for HandlerFn<S, F>
where
    S: AsFd + Send,
    F: FnMut(&mut S, Ready, &mut Context<'_>) -> Next + Send,
{
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        (self.ready)(&mut self.source, ready, cx)
    }
}

impl<S, F> SharedHandler for HandlerFn<S, F>
where
    S: AsFd + Send + Sync,
    F: Fn(&S, Ready, &mut Context<'_>) -> Next + Send + Sync,
{
    fn ready(&self, ready: Ready, cx: &mut Context<'_>) -> Next {
        (self.ready)(&self.source, ready, cx)
    }
}

/// Makes a [`SharedHandler`] of a source and a closure.
pub fn shared_fn<S, F>(source: S, ready: F) -> HandlerFn<S, F>
where
    S: AsFd + Send + Sync,
    F: Fn(&S, Ready, &mut Context<'_>) -> Next + Send + Sync,
{
    HandlerFn { source, ready }
}

impl<S: fmt::Debug, F> fmt::Debug for HandlerFn<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn").field("source", &self.source).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_print_as_sentences() {
        assert_eq!(Reason::Removed.to_string(), "it was removed");
        let refused = Reason::Failed(io::Error::from_raw_os_error(libc::EBADF)).to_string();
        assert!(refused.starts_with("the kernel refused to re-arm it: Bad file"), "{refused}");
    }
}
