//! Accepting: the handler of a listening socket.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::handle_set::HandleSet;
use crate::handler::{Context, Handler, Next};
use crate::interest::{Interest, Ready};
use crate::net::limit::{Gate, Permit};
use crate::net::listener::{ListenOptions, SocketFile};
use crate::sys::eventfd::EventFd;
use crate::sys::socket;
use crate::token::HandleId;

/// A connection that has come in. Dropping it closes it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Accepted<S> {
    /// The stream, non-blocking.
    pub stream: S,
    /// Its place under the listener's limit. Keep it as long as the stream.
    pub permit: Permit,
}

impl<S> Accepted<S> {
    /// The stream and its permit.
    pub fn into_parts(self) -> (S, Permit) {
        (self.stream, self.permit)
    }
}

/// So that an accepted connection can be the source of a [`handler_fn`](crate::handler_fn).
impl<S: AsFd> AsFd for Accepted<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A registered listener, seen from outside; clone it freely. Dropping it changes nothing: to stop for good,
/// [`remove`](HandleSet::remove) its [`id`](Accepting::id).
#[derive(Clone)]
pub struct Accepting {
    handles: HandleSet,
    id: HandleId,
    gate: Arc<Gate>,
}

/// What a listener has done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct AcceptCounts {
    /// Connections given to the callback.
    pub accepted: u64,
    /// Connections closed at once, because there was no descriptor or no memory to serve them.
    pub refused: u64,
    /// How often accepting has paused for that reason.
    pub pauses: u64,
    /// Connections whose permit has not been dropped.
    pub open: usize,
}

impl Accepting {
    pub(crate) fn new(handles: HandleSet, id: HandleId, gate: Arc<Gate>) -> Accepting {
        Accepting { handles, id, gate }
    }

    /// The listener's handle.
    pub fn id(&self) -> HandleId {
        self.id
    }

    /// What it has done so far.
    pub fn counts(&self) -> AcceptCounts {
        // Relaxed: numbers that stand for themselves.
        AcceptCounts {
            accepted: self.gate.accepted.load(Ordering::Relaxed),
            refused: self.gate.refused.load(Ordering::Relaxed),
            pauses: self.gate.pauses.load(Ordering::Relaxed),
            open: self.gate.open(),
        }
    }

    /// Accepts nobody until [`resume`](Accepting::resume); clients wait in the backlog. A connection that is
    /// being accepted still comes.
    ///
    /// [`HandleSet::suspend`] is not meant for listeners: they suspend and resume themselves.
    pub fn suspend(&self) {
        self.gate.hold();
    }

    /// Goes on accepting.
    ///
    /// # Errors
    /// [`Error::UnknownHandle`](crate::Error::UnknownHandle) if the listener is gone,
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn resume(&self) -> Result<()> {
        self.gate.release();
        self.handles.notify(self.id)
    }
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting").field("id", &self.id).field("counts", &self.counts()).finish()
    }
}

/// Serves a listening socket.
pub(crate) struct Acceptor<S, F> {
    /// Deleted with the socket, and before it is closed: see [`Listener`](crate::net::Listener).
    _file: Option<SocketFile>,
    socket: OwnedFd,
    callback: F,
    gate: Arc<Gate>,
    accepts_per_turn: usize,
    /// A descriptor to do without when there is no other.
    reserve: Option<EventFd>,
    /// How long the next pause is to be.
    pause: Duration,
    streams: PhantomData<fn() -> S>,
}

impl<S, F> Acceptor<S, F> {
    pub(crate) fn new(
        socket: OwnedFd,
        file: Option<SocketFile>,
        options: &ListenOptions,
        callback: F,
    ) -> Acceptor<S, F> {
        Acceptor {
            socket,
            _file: file,
            callback,
            gate: Gate::new(options.max_connections),
            accepts_per_turn: options.accepts_per_turn,
            reserve: EventFd::new().ok(),
            pause: SHORTEST_PAUSE,
            streams: PhantomData,
        }
    }

    pub(crate) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Something is short. Turns clients away with the descriptor in reserve, and pauses.
    fn make_do(&mut self, cx: &mut Context<'_>) -> Next {
        let mut turned_away = 0;
        for _ in 0..self.accepts_per_turn {
            match self.turn_away() {
                Answer::Came(()) => turned_away += 1,
                Answer::Gone => {}
                Answer::Nobody if turned_away == 0 => {
                    // The kernel looks for a descriptor before it looks for a client. There is none; the
                    // next one makes us be called.
                    self.pause = SHORTEST_PAUSE;
                    return Next::Drained(Interest::READABLE);
                }
                Answer::Nobody | Answer::Shortage => break,
            }
        }
        count(&self.gate.pauses, 1);
        // Clients that come back at once must not keep us busy with turning them away.
        cx.set_deadline(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Next::Suspend
    }

    /// Accepts and closes, in place of the descriptor in reserve.
    fn turn_away(&mut self) -> Answer<()> {
        self.reserve = None;
        let answer = match Answer::of(socket::accept(&self.socket)) {
            Answer::Came(client) => {
                count(&self.gate.refused, 1);
                drop(client);
                Answer::Came(())
            }
            Answer::Gone => Answer::Gone,
            Answer::Nobody => Answer::Nobody,
            Answer::Shortage => Answer::Shortage,
        };
        // Another thread may have been faster; then it is tried again with the next one.
        self.reserve = EventFd::new().ok();
        answer
    }
}

impl<S, F> Handler for Acceptor<S, F>
where
    S: From<OwnedFd>,
    F: FnMut(Accepted<S>, &mut Context<'_>) + Send,
{
    // The same for whatever it is called for: there may be a client, a free place, or the end of a pause.
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        self.gate.attend(cx);
        for _ in 0..self.accepts_per_turn {
            // First the place: a client that is let in must not have to be turned out.
            let Some(permit) = self.gate.take() else { return Next::Suspend };
            match Answer::of(socket::accept(&self.socket)) {
                Answer::Came(stream) => {
                    self.pause = SHORTEST_PAUSE;
                    count(&self.gate.accepted, 1);
                    (self.callback)(Accepted { stream: stream.into(), permit }, cx);
                    if cx.handles().is_asked(cx.id()) {
                        // To be removed, maybe: not another client then.
                        break;
                    }
                }
                Answer::Nobody => return Next::Drained(Interest::READABLE),
                Answer::Gone => {}
                Answer::Shortage => {
                    drop(permit);
                    return self.make_do(cx);
                }
            }
        }
        Next::Rearm(Interest::READABLE)
    }
}

impl<S, F> AsFd for Acceptor<S, F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What came of an attempt to accept.
enum Answer<C> {
    Came(C),
    /// A client that is gone again. There may be another.
    Gone,
    Nobody,
    /// Of descriptors, memory, or whatever else the kernel needs and will not name; the client waits on.
    Shortage,
}

impl Answer<OwnedFd> {
    fn of(accepted: io::Result<OwnedFd>) -> Answer<OwnedFd> {
        let error = match accepted {
            Ok(client) => return Answer::Came(client),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Answer::Nobody,
            // accept(2): errors of the network that a client has met are passed on, and are no reason to
            // stop. EPERM is a firewall's.
            Some(
                libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::EPERM
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
                | libc::ETIMEDOUT
                | libc::ECONNRESET,
            ) => Answer::Gone,
            _ => Answer::Shortage,
        }
    }
}

fn count(counter: &AtomicU64, more: u64) {
    // Relaxed: a number that stands for itself.
    counter.fetch_add(more, Ordering::Relaxed);
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
