//! The server: a listener, its connections, and a signal handle that stops it.

use std::error::Error;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use cabrank::sys::signalfd::{self, SIGINT, SIGTERM, SignalFd};
use cabrank::{Context, Handler, Interest, Next, Pool, Ready, Reason, Report, handler_fn};

use crate::args::Args;
use crate::connection::{Connection, Cost, Stream};
use crate::load::Address;

/// A running server.
pub(crate) struct Server {
    pub(crate) pool: Pool,
    pub(crate) address: Address,
}

/// Serves until SIGINT or SIGTERM, then prints what each thread did.
pub(crate) fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    let server = start(args)?;
    println!("listening on {}", server.address);
    // The main thread takes part too, until a signal shuts the pool down.
    match server.pool.join() {
        // The signal may have come before we did.
        Ok(()) | Err(cabrank::Error::ShutDown) => {}
        Err(error) => return Err(error.into()),
    }
    println!("{}", server.stop().metrics);
    Ok(())
}

/// Starts the pool and registers listener and signals.
pub(crate) fn start(args: &Args) -> Result<Server, Box<dyn Error>> {
    // Before the first thread is started, so that all of them leave the signals to the handle.
    signalfd::block(&[SIGINT, SIGTERM])?;
    let acceptor = Acceptor::bind(&args.load.address, Cost { work: args.work, block: args.block })?;
    let address = acceptor.address()?;
    let pool = args.pool.clone().build()?;
    let signals = handler_fn(SignalFd::new(&[SIGINT, SIGTERM])?, |signals, _ready, cx| {
        while let Ok(Some(_)) = signals.read() {
            cx.shutdown();
        }
        Next::Drained(Interest::READABLE)
    });
    pool.handles().register(signals, Interest::READABLE)?;
    pool.handles().register(acceptor, Interest::READABLE)?;
    Ok(Server { pool, address })
}

impl Server {
    pub(crate) fn stop(self) -> Report {
        self.pool.finish()
    }
}

struct Acceptor {
    listener: Listener,
    cost: Cost,
    /// Out of descriptors: the last error, said once and not for every attempt.
    refused: Option<io::ErrorKind>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Acceptor {
    fn bind(address: &Address, cost: Cost) -> io::Result<Acceptor> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
        };
        let listener = match address {
            Address::Tcp(address) => Listener::Tcp(TcpListener::bind(address).map_err(named)?),
            Address::Unix(path) => {
                Listener::Unix(UnixListener::bind(path).map_err(named)?, path.clone())
            }
        };
        match &listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener, _) => listener.set_nonblocking(true)?,
        }
        Ok(Acceptor { listener, cost, refused: None })
    }

    fn address(&self) -> io::Result<Address> {
        Ok(match &self.listener {
            Listener::Tcp(listener) => Address::Tcp(listener.local_addr()?),
            Listener::Unix(_, path) => Address::Unix(path.clone()),
        })
    }

    fn accept(&self) -> io::Result<Stream> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

impl Handler for Acceptor {
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        // A few at a time, so that the connections there are get their turn too.
        for _ in 0..ACCEPTS_PER_TURN {
            let accepted = self.accept().and_then(|stream| {
                let connection = Connection::new(stream, self.cost);
                Ok(cx.handles().register(connection, Interest::READABLE)?)
            });
            match accepted {
                Ok(_) => self.refused = None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::Drained(Interest::READABLE);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.refused.replace(error.kind()) != Some(error.kind()) {
                        eprintln!("echo: cannot accept: {error}");
                    }
                    // Out of descriptors or the like: do not spin on what cannot be taken.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    return Next::Rearm(Interest::READABLE);
                }
            }
        }
        Next::Rearm(Interest::READABLE)
    }

    fn closed(&mut self, _id: cabrank::HandleId, _reason: Reason) {
        if let Listener::Unix(_, path) = &self.listener {
            // Gone already is as good.
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

const ACCEPTS_PER_TURN: usize = 16;
