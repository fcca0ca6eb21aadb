//! Connecting without blocking, with a time-out.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, Handler, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::sys::socket::{self, Address};
use crate::token::HandleId;

/// Connects to a TCP port, and calls `done` exactly once: with the stream, which is non-blocking, or with why
/// there is none.
///
/// | the error's kind | meaning |
/// |---|---|
/// | [`TimedOut`](io::ErrorKind::TimedOut) | not connected within `timeout`, or the kernel gave up earlier |
/// | [`Interrupted`](io::ErrorKind::Interrupted) | cancelled: somebody called [`HandleSet::remove`] with the id |
/// | [`BrokenPipe`](io::ErrorKind::BrokenPipe) | the pool was shut down; the error wraps [`Error::ShutDown`] |
/// | any other | the kernel's, such as [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) |
///
/// `done` runs on a thread of the pool or, if it is cancelled, on the thread that does so. It is given the
/// handle set, to register the stream there.
///
/// ```
/// use cabrank::{Interest, Next, Pool, handler_fn, net};
/// use std::io::Read;
/// use std::net::TcpListener;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let pool = Pool::builder().threads(2).build()?;
/// let (tell, told) = mpsc::channel();
/// net::connect_tcp(pool.handles(), server.local_addr()?, Duration::from_secs(1), move |stream, handles| {
///     let Ok(stream) = stream else { return };
///     let client = handler_fn(stream, move |stream, _ready, _cx| {
///         let mut buffer = [0; 100];
///         if let Ok(bytes) = stream.read(&mut buffer) {
///             let _ = tell.send(buffer[..bytes].to_vec());
///         }
///         Next::Close
///     });
///     let _ = handles.register(client, Interest::READABLE);
/// })?;
/// std::io::Write::write_all(&mut server.accept()?.0, b"welcome")?;
/// assert_eq!(told.recv()?, b"welcome");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If no socket could be made or registered. `done` has been dropped then, and not called.
pub fn connect_tcp<F>(
    handles: &HandleSet,
    address: impl Into<SocketAddr>,
    timeout: Duration,
    done: F,
) -> io::Result<HandleId>
where
    F: FnOnce(io::Result<TcpStream>, &HandleSet) + Send + 'static,
{
    connect(handles, Address::Tcp(address.into()), timeout, move |socket, handles| {
        done(socket.map(TcpStream::from), handles);
    })
}

/// Connects to a Unix socket, as [`connect_tcp`] does to a TCP port. While the listener's backlog is full it
/// is tried again every few milliseconds, because the kernel does not tell when there is room.
///
/// # Errors
/// As [`connect_tcp`], and for a path that no socket can have.
pub fn connect_unix<F>(
    handles: &HandleSet,
    path: impl AsRef<Path>,
    timeout: Duration,
    done: F,
) -> io::Result<HandleId>
where
    F: FnOnce(io::Result<UnixStream>, &HandleSet) + Send + 'static,
{
    connect(handles, Address::unix(path)?, timeout, move |socket, handles| {
        done(socket.map(UnixStream::from), handles);
    })
}

fn connect<F>(
    handles: &HandleSet,
    address: Address,
    timeout: Duration,
    done: F,
) -> io::Result<HandleId>
where
    F: FnOnce(io::Result<OwnedFd>, &HandleSet) + Send + 'static,
{
    let mut connecting = Connecting {
        socket: Some(socket::open(&address)?),
        address,
        begun: Instant::now(),
        timeout,
        pause: SHORTEST_PAUSE,
        stage: Stage::Undecided,
        done: Some(done),
        handles: handles.clone(),
    };
    connecting.attempt();
    let registration = Registration::new(Interest::WRITABLE);
    let registration = match connecting.stage {
        Stage::Undecided => registration.deadline(timeout),
        Stage::NoRoom => registration.suspended().deadline(connecting.pause),
        // Told by a thread of the pool even so: not every caller can be called back at once.
        Stage::Decided(_) => registration.suspended().deadline(Duration::ZERO),
    };
    Ok(handles.register(connecting, registration)?)
}

/// A connection in the making.
struct Connecting<F> {
    /// There until [`closed`](Handler::closed).
    socket: Option<OwnedFd>,
    address: Address,
    begun: Instant,
    timeout: Duration,
    /// How long to wait for room in the backlog before the next attempt.
    pause: Duration,
    stage: Stage,
    done: Option<F>,
    handles: HandleSet,
}

enum Stage {
    /// The kernel tells.
    Undecided,
    /// The listener's backlog is full.
    NoRoom,
    Decided(io::Result<()>),
}

impl<F> Connecting<F> {
    fn attempt(&mut self) {
        self.stage = match socket::connect(&*self, &self.address) {
            Ok(()) => Stage::Decided(Ok(())),
            Err(error) => match (error.raw_os_error(), &self.address) {
                (Some(libc::EINPROGRESS | libc::EINTR), Address::Tcp(_)) => Stage::Undecided,
                (Some(libc::EAGAIN | libc::EINTR), Address::Unix(_)) => Stage::NoRoom,
                _ => Stage::Decided(Err(error)),
            },
        };
    }

    /// Asks the kernel how it went.
    fn inquire(&mut self) {
        match socket::take_error(&*self) {
            Ok(None) if socket::is_connected(&*self) => self.stage = Stage::Decided(Ok(())),
            // Called for nothing.
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => self.stage = Stage::Decided(Err(error)),
        }
    }
}

impl<F> Handler for Connecting<F>
where
    F: FnOnce(io::Result<OwnedFd>, &HandleSet) + Send,
{
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        match self.stage {
            Stage::Undecided => self.inquire(),
            Stage::NoRoom => self.attempt(),
            Stage::Decided(_) => {}
        }
        let left = self.timeout.saturating_sub(self.begun.elapsed());
        match self.stage {
            Stage::Decided(_) => Next::Close,
            // A success is one even if it comes late, so the time is looked at last.
            _ if left.is_zero() => {
                self.stage = Stage::Decided(Err(io::ErrorKind::TimedOut.into()));
                Next::Close
            }
            Stage::Undecided => {
                cx.set_deadline(left);
                Next::Rearm(Interest::WRITABLE)
            }
            Stage::NoRoom => {
                cx.set_deadline(left.min(self.pause));
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                Next::Suspend
            }
        }
    }

    // Here, where the set has let go of the descriptor, it can be given away; and every way out leads
    // through here, once.
    fn closed(&mut self, _id: HandleId, reason: Reason) {
        let outcome = match (reason, std::mem::replace(&mut self.stage, Stage::Undecided)) {
            (Reason::Closed, Stage::Decided(outcome)) => outcome,
            (Reason::Shutdown, _) => Err(Error::ShutDown.into()),
            (Reason::Failed(error), _) => Err(error),
            _ => Err(io::Error::new(io::ErrorKind::Interrupted, "the connect was cancelled")),
        };
        let socket = self.socket.take();
        if let (Some(done), Some(socket)) = (self.done.take(), socket) {
            done(outcome.map(|()| socket), &self.handles);
        }
    }
}

impl<F> AsFd for Connecting<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("the socket is there until it is closed").as_fd()
    }
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
