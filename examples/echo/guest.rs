//! A connection as the server has it: with a time-out, and among a limited number.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cabrank::{Context, HandleId, HandleSet, Handler, Next, Ready};

use crate::connection::Connection;

pub(crate) struct Guest {
    connection: Connection,
    idle_timeout: Option<Duration>,
    /// Given back after the connection has been closed: the order of the fields is the order of their ends.
    _seat: Option<Seat>,
}

impl Guest {
    pub(crate) fn new(
        connection: Connection,
        idle_timeout: Option<Duration>,
        seat: Option<Seat>,
    ) -> Guest {
        Guest { connection, idle_timeout, _seat: seat }
    }
}

impl Handler for Guest {
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        let Some(idle_timeout) = self.idle_timeout else {
            return self.connection.ready(ready, cx);
        };
        if ready == Ready::TIMEOUT {
            // And nothing else has happened meanwhile.
            return Next::Close;
        }
        let start = Instant::now();
        let next = self.connection.ready(ready, cx);
        // From the end of the call on: what the server itself takes is not the peer's silence.
        cx.set_deadline(start.elapsed().saturating_add(idle_timeout));
        next
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Lets in so many connections at once. The acceptor suspends itself when there is no room. The first seat
/// that is given back calls it, and a call that comes before it is suspended counts too: none is lost.
pub(crate) struct Gate {
    most: usize,
    taken: AtomicUsize,
    /// Set before the first seat is taken.
    acceptor: OnceLock<(HandleSet, HandleId)>,
}

/// The right to be connected.
pub(crate) struct Seat {
    gate: Arc<Gate>,
}

impl Gate {
    pub(crate) fn new(most: usize) -> Arc<Gate> {
        Arc::new(Gate { most, taken: AtomicUsize::new(0), acceptor: OnceLock::new() })
    }

    /// Whether a seat is free. For the acceptor, whose handle is the context's. Only it takes seats, so one
    /// that is free stays free until it has taken it.
    pub(crate) fn has_room(&self, cx: &Context<'_>) -> bool {
        self.acceptor.get_or_init(|| (cx.handles().clone(), cx.id()));
        // SeqCst, here and below: no reason to be subtle.
        self.taken.load(Ordering::SeqCst) < self.most
    }

    /// Takes a seat. One that is taken for nothing would call the acceptor, again and again.
    pub(crate) fn take_seat(self: &Arc<Gate>) -> Seat {
        self.taken.fetch_add(1, Ordering::SeqCst);
        Seat { gate: Arc::clone(self) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let before = self.gate.taken.fetch_sub(1, Ordering::SeqCst);
        if let (true, Some((handles, id))) = (before == self.gate.most, self.gate.acceptor.get()) {
            // Fails when the acceptor is gone, which needs no seat any more.
            let _ = handles.notify(*id);
        }
    }
}
