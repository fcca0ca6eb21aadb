//! One thread, level-triggered, no pool: the limit. And, once for each thread, `reuseport`.
//!
//! Per request: one `recv`, one `send`, and a share in one `epoll_wait`, which fetches up to 64 events.

use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;

use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::{Interest, Next, Ready};

use super::listener::Listener;
use crate::connection::{Connection, Cost};

pub(crate) fn serve(listener: &Listener, cost: Cost) -> io::Result<Infallible> {
    let epoll = Epoll::new()?;
    epoll.add(listener, Flags::IN, LISTENER)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Events::with_capacity(NonZeroUsize::new(64).unwrap());
    loop {
        epoll.wait(&mut events, None)?;
        for event in events.iter() {
            if event.data() == LISTENER {
                while let Ok(connection) = listener.accept(cost) {
                    epoll.add(&connection, Flags::IN | Flags::RDHUP, connections.len() as u64)?;
                    connections.push(Some(connection));
                }
                continue;
            }
            let place = &mut connections[event.data() as usize];
            let Some(connection) = place else { continue };
            match connection.turn(Ready::from(event.flags())).unwrap_or(Next::Close) {
                Next::Rearm(Interest::WRITABLE) => {
                    epoll.modify(&*connection, Flags::OUT, event.data())?;
                }
                Next::Close => *place = None,
                _ if event.flags().contains(Flags::OUT) => {
                    epoll.modify(&*connection, Flags::IN | Flags::RDHUP, event.data())?;
                }
                _ => {}
            }
        }
    }
}

const LISTENER: u64 = u64::MAX;
