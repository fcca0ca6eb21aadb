//! The servers that are compared: the same connections on different engines.
//!
//! All of them keep one contract, the programs under `benches/peers` too: `--threads N --work-us U
//! --block-us U [--unix PATH]`, a line with the address as soon as they listen, and the end of the standard
//! input is theirs. And one handler: it reads once into 16 KiB, pays what the request costs, and writes the
//! answer; a short read has emptied the socket, so nobody reads again only to hear that (but Asio, which tries
//! before it waits). TCP without delay.

mod bare;
mod floating;
mod listener;
mod queue;
mod rank;
mod shared;
mod tokio_echo;

use std::convert::Infallible;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use crate::connection::Cost;
use listener::Listener;
use queue::Wait;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Contestant {
    Bare,
    Reuseport,
    Floating,
    Papers,
    Default,
    Edge,
    Fifo,
    Spin,
    Queue,
    QueueSpin,
    Tokio,
    Tokio2,
    AceTp,
    AceDevPoll,
    Asio,
}

impl Contestant {
    /// The limit comes first.
    pub(crate) const ALL: [Contestant; 15] = [
        Contestant::Bare,
        Contestant::Reuseport,
        Contestant::Floating,
        Contestant::Papers,
        Contestant::Default,
        Contestant::Edge,
        Contestant::Fifo,
        Contestant::Spin,
        Contestant::Queue,
        Contestant::QueueSpin,
        Contestant::Tokio,
        Contestant::Tokio2,
        Contestant::AceTp,
        Contestant::AceDevPoll,
        Contestant::Asio,
    ];

    pub(crate) fn by_name(name: &str) -> Option<Contestant> {
        Contestant::ALL.into_iter().find(|contestant| contestant.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Contestant::Bare => "bare",
            Contestant::Reuseport => "reuseport",
            Contestant::Floating => "floating",
            Contestant::Papers => "papers",
            Contestant::Default => "default",
            Contestant::Edge => "edge",
            Contestant::Fifo => "fifo",
            Contestant::Spin => "spin",
            Contestant::Queue => "queue",
            Contestant::QueueSpin => "queue-spin",
            Contestant::Tokio => "tokio",
            Contestant::Tokio2 => "tokio-2",
            Contestant::AceTp => "ace-tp",
            Contestant::AceDevPoll => "ace-dev-poll",
            Contestant::Asio => "asio",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Contestant::Bare => "one level-triggered epoll loop on one thread: the limit",
            Contestant::Reuseport => "one such loop per thread, connections dealt by SO_REUSEPORT",
            Contestant::Floating => "all threads in epoll_wait on one set, one-shot",
            Contestant::Papers => "cabrank as in the papers: 1 leader, 1 event, eager, LIFO",
            Contestant::Default => "cabrank as it comes: one-shot",
            Contestant::Edge => "cabrank with edge-triggered deactivation",
            Contestant::Fifo => "cabrank with FIFO order of followers",
            Contestant::Spin => {
                "cabrank, edge-triggered, polling for 1 ms before sleeping; leaves a CPU free"
            }
            Contestant::Queue => "half-sync/half-async: a waiting thread, a parking queue, workers",
            Contestant::QueueSpin => "the same with a queue that spins before it parks",
            Contestant::Tokio => "tokio's multi-threaded runtime, as many workers as threads",
            Contestant::Tokio2 => "tokio's multi-threaded runtime with 2 workers",
            Contestant::AceTp => "ACE_TP_Reactor: Leader/Followers on select, in C++",
            Contestant::AceDevPoll => "ACE_Dev_Poll_Reactor: Leader/Followers on epoll, in C++",
            Contestant::Asio => "Asio: all threads run one io_context, in C++",
        }
    }

    /// Whether it is a program of its own, see `peers.rs`.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Contestant::AceTp | Contestant::AceDevPoll | Contestant::Asio)
    }
}

/// How to serve.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) threads: usize,
    pub(crate) cost: Cost,
    /// Listen here instead of on a free TCP port.
    pub(crate) unix: Option<PathBuf>,
}

impl Setup {
    /// The command line that makes another process serve so.
    pub(crate) fn to_args(&self) -> Vec<OsString> {
        let Setup { threads, cost, unix } = self;
        let mut args: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| args.extend([name.into(), value]);
        option("--threads", threads.to_string().into());
        option("--work-us", cost.work.as_micros().to_string().into());
        option("--block-us", cost.block.as_micros().to_string().into());
        if let Some(path) = unix {
            option("--unix", path.into());
        }
        args
    }
}

/// Serves until the standard input ends.
pub(crate) fn serve(contestant: Contestant, setup: &Setup) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(setup.unix.as_deref())?;
    let address = listener.address()?;
    let &Setup { threads, cost, .. } = setup;
    // Only cabrank has something that has to be kept; the threads of the others end with the process.
    let mut pool = None;
    match contestant {
        Contestant::Bare => start(move || bare::serve(&listener, cost)),
        Contestant::Reuseport => {
            for _ in 1..threads {
                let another = listener.another()?;
                start(move || bare::serve(&another, cost));
            }
            start(move || bare::serve(&listener, cost));
        }
        Contestant::Floating => {
            let shared = Arc::new(shared::Shared::new(listener, cost)?);
            for _ in 0..threads {
                let shared = Arc::clone(&shared);
                start(move || floating::work(&shared));
            }
        }
        Contestant::Queue | Contestant::QueueSpin => {
            let spins = contestant == Contestant::QueueSpin;
            let wait = if spins { Wait::SpinThenPark } else { Wait::Park };
            let shop = Arc::new(queue::Shop::new(shared::Shared::new(listener, cost)?, wait));
            for _ in 0..threads {
                let shop = Arc::clone(&shop);
                start(move || shop.work());
            }
            start(move || shop.dispatch());
        }
        Contestant::Tokio => start(move || tokio_echo::serve(listener, threads, cost)),
        Contestant::Tokio2 => start(move || tokio_echo::serve(listener, 2, cost)),
        Contestant::Papers
        | Contestant::Default
        | Contestant::Edge
        | Contestant::Fifo
        | Contestant::Spin => pool = Some(rank::start(contestant, listener, threads, cost)?),
        Contestant::AceTp | Contestant::AceDevPoll | Contestant::Asio => {
            return Err(format!("{} is a program of its own", contestant.name()).into());
        }
    }
    println!("{address}");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(pool);
    Ok(())
}

/// Runs a loop on a thread of its own. What ends it ends the process, so that nobody measures a ruin.
fn start(run: impl FnOnce() -> io::Result<Infallible> + Send + 'static) {
    thread::spawn(move || {
        let Err(error) = run();
        eprintln!("compare: a server loop has ended: {error}");
        std::process::exit(1);
    });
}
