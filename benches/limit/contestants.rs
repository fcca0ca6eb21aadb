//! The servers that are compared: the same connections on different engines.

use std::error::Error;
use std::io::{self, BufRead};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::thread;

use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::{Deactivation, Interest, Next, Pool, Ready, handler_fn};

use crate::connection::{Connection, Cost, Stream};
use crate::switches::Usage;
use crate::{queue_pool, tokio_echo};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Contestant {
    /// One thread, level-triggered, no pool: the limit.
    Bare,
    /// The pool as it comes.
    Default,
    /// The pool with edge trigger and state word.
    Edge,
    /// The pattern as in the papers.
    Papers,
    /// One thread that waits, a queue, and workers.
    Queue,
    /// tokio's multi-threaded runtime.
    Tokio,
}

impl Contestant {
    pub(crate) const ALL: [Contestant; 6] = [
        Contestant::Bare,
        Contestant::Default,
        Contestant::Edge,
        Contestant::Papers,
        Contestant::Queue,
        Contestant::Tokio,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Bare => "bare",
            Contestant::Default => "default",
            Contestant::Edge => "edge",
            Contestant::Papers => "papers",
            Contestant::Queue => "queue",
            Contestant::Tokio => "tokio",
        }
    }

    pub(crate) fn by_name(name: &str) -> Result<Contestant, String> {
        let found = Contestant::ALL.into_iter().find(|contestant| contestant.name() == name);
        found.ok_or_else(|| "expected bare, default, edge, papers, queue or tokio".into())
    }
}

/// Serves on a free port, which is printed, until the input ends; answers each line of it with what the
/// process has used.
pub(crate) fn serve(
    contestant: Contestant,
    threads: usize,
    cost: Cost,
) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?);
    let builder = Pool::builder().threads(threads);
    let builder = match contestant {
        Contestant::Bare => {
            thread::spawn(move || bare_loop(&listener, cost));
            return answer();
        }
        Contestant::Queue => {
            thread::spawn(move || queue_pool::serve(&listener, threads, cost));
            return answer();
        }
        Contestant::Tokio => {
            thread::spawn(move || tokio_echo::serve(listener, threads, cost));
            return answer();
        }
        Contestant::Default => builder,
        Contestant::Edge => builder.deactivation(Deactivation::Edge),
        Contestant::Papers => builder.papers(),
    };
    let pool = builder.build()?;
    let acceptor = handler_fn(listener, move |listener: &mut TcpListener, _, cx| {
        while let Ok(connection) = accept(listener, cost) {
            if cx.handles().register(connection, Interest::READABLE).is_err() {
                break;
            }
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(acceptor, Interest::READABLE)?;
    answer()
}

fn answer() -> Result<(), Box<dyn Error>> {
    for line in io::stdin().lock().lines() {
        line?;
        let Usage { voluntary, involuntary, cpu } = Usage::now();
        println!("{voluntary} {involuntary} {}", cpu.as_nanos());
    }
    Ok(())
}

pub(crate) fn accept(listener: &TcpListener, cost: Cost) -> io::Result<Connection> {
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(Connection::new(Stream::Tcp(stream), cost))
}

/// What the others are measured against.
fn bare_loop(listener: &TcpListener, cost: Cost) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let epoll = Epoll::new()?;
    epoll.add(listener, Flags::IN, LISTENER)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Events::with_capacity(NonZeroUsize::new(64).unwrap());
    loop {
        epoll.wait(&mut events, None)?;
        for event in events.iter() {
            if event.data() == LISTENER {
                while let Ok(connection) = accept(listener, cost) {
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
