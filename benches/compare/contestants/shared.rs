//! Connections that any thread may serve, in one set, one-shot: who has the event has the connection.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use cabrank::sys::epoll::{Epoll, Event, Flags};
use cabrank::{Interest, Next, Ready};

use super::listener::Listener;
use crate::connection::{Connection, Cost};

pub(crate) struct Shared {
    pub(crate) epoll: Epoll,
    listener: Listener,
    cost: Cost,
    /// By the data of their events. Found without a lock that all would share; the lock of a place is free,
    /// for an event goes to one thread.
    places: Box<[OnceLock<Mutex<Option<Connection>>>]>,
    /// How many places have been used.
    used: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(listener: Listener, cost: Cost) -> io::Result<Shared> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, Flags::IN | Flags::ONESHOT, LISTENER)?;
        let places = (0..PLACES).map(|_| OnceLock::new()).collect();
        Ok(Shared { epoll, listener, cost, places, used: AtomicUsize::new(0) })
    }

    /// Does what the event asks for, and arms its source again.
    pub(crate) fn handle(&self, event: &Event) -> io::Result<()> {
        if event.data() == LISTENER {
            return self.accept();
        }
        let place = self.places.get(event.data() as usize).and_then(OnceLock::get);
        let mut place = place.expect("registered after it was put there").lock().unwrap();
        let Some(connection) = &mut *place else { return Ok(()) };
        let flags = match connection.turn(Ready::from(event.flags())).unwrap_or(Next::Close) {
            Next::Close => {
                *place = None;
                return Ok(());
            }
            Next::Rearm(Interest::WRITABLE) => Flags::OUT,
            _ => Flags::IN | Flags::RDHUP,
        };
        self.epoll.modify(&*connection, flags | Flags::ONESHOT, event.data())
    }

    fn accept(&self) -> io::Result<()> {
        while let Ok(connection) = self.listener.accept(self.cost) {
            // Relaxed: a number of its own for each is all that is asked for.
            let number = self.used.fetch_add(1, Ordering::Relaxed);
            let place = self.places.get(number).ok_or_else(|| io::Error::other("too many"))?;
            let place = place.get_or_init(Mutex::default);
            // Held until it is registered, for its first event may come at once.
            let mut place = place.lock().unwrap();
            let connection = place.insert(connection);
            let flags = Flags::IN | Flags::RDHUP | Flags::ONESHOT;
            self.epoll.add(&*connection, flags, number as u64)?;
        }
        self.epoll.modify(&self.listener, Flags::IN | Flags::ONESHOT, LISTENER)
    }
}

const LISTENER: u64 = u64::MAX;

/// Connections in the life of a server: more than descriptors, as none is used twice.
const PLACES: usize = 1 << 15;
