//! Half-sync/half-async: one thread waits, a queue carries the ready connections to workers.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use cabrank::sys::epoll::{Epoll, Event, Events, Flags};
use cabrank::{Interest, Next, Ready};

use crate::connection::{Connection, Cost};
use crate::contestants::accept;

/// What the waiting thread and the workers share.
struct Shop {
    epoll: Epoll,
    queue: Mutex<VecDeque<Event>>,
    filled: Condvar,
    /// By the data of their events. One-shot: only the worker that has the event touches it.
    connections: Mutex<Vec<Option<Arc<Mutex<Connection>>>>>,
}

const LISTENER: u64 = u64::MAX;

/// Serves for ever.
pub(crate) fn serve(listener: &TcpListener, threads: usize, cost: Cost) -> io::Result<()> {
    let shop = Arc::new(Shop {
        epoll: Epoll::new()?,
        queue: Mutex::default(),
        filled: Condvar::new(),
        connections: Mutex::default(),
    });
    for _ in 0..threads {
        let shop = Arc::clone(&shop);
        thread::spawn(move || shop.work());
    }
    shop.epoll.add(listener, Flags::IN, LISTENER)?;
    let mut events = Events::with_capacity(NonZeroUsize::new(64).unwrap());
    loop {
        shop.epoll.wait(&mut events, None)?;
        for event in events.iter() {
            if event.data() != LISTENER {
                shop.queue.lock().unwrap().push_back(event);
                shop.filled.notify_one();
                continue;
            }
            while let Ok(connection) = accept(listener, cost) {
                let mut connections = shop.connections.lock().unwrap();
                let number = connections.len() as u64;
                let flags = Flags::IN | Flags::RDHUP | Flags::ONESHOT;
                shop.epoll.add(&connection, flags, number)?;
                connections.push(Some(Arc::new(Mutex::new(connection))));
            }
        }
    }
}

impl Shop {
    fn work(&self) -> io::Result<()> {
        loop {
            let mut queue = self.queue.lock().unwrap();
            let event = loop {
                match queue.pop_front() {
                    Some(event) => break event,
                    None => queue = self.filled.wait(queue).unwrap(),
                }
            };
            drop(queue);
            let number = event.data() as usize;
            let Some(connection) = self.connections.lock().unwrap()[number].clone() else {
                continue;
            };
            let mut connection = connection.lock().unwrap();
            let flags = match connection.turn(Ready::from(event.flags())).unwrap_or(Next::Close) {
                Next::Close => {
                    self.connections.lock().unwrap()[number] = None;
                    continue;
                }
                Next::Rearm(Interest::WRITABLE) => Flags::OUT,
                _ => Flags::IN | Flags::RDHUP,
            };
            self.epoll.modify(&*connection, flags | Flags::ONESHOT, event.data())?;
        }
    }
}
