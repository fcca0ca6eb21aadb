//! Where connections come from: a TCP or Unix listener.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cabrank::{Context, HandleId, Handler, Interest, Next, Ready, Reason, Registration};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::args::{Args, Listen};
use crate::connection::{Connection, Cost, Stream};
use crate::guest::{Gate, Guest};
use crate::load::{Address, advice};
use crate::output::complain;

pub(crate) struct Acceptor {
    listener: Listener,
    cost: Cost,
    idle_timeout: Option<Duration>,
    gate: Option<Arc<Gate>>,
    /// Out of descriptors: the last error, said once and not for every attempt.
    refused: Option<io::ErrorKind>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Acceptor {
    pub(crate) fn bind(args: &Args) -> io::Result<Acceptor> {
        let listener = match &args.listen {
            Listen::Tcp(name, addresses) => {
                let listener = bind_to_one_of(addresses)
                    .map_err(|error| named(&format!("--addr {name}"), &error))?;
                Listener::Tcp(listener)
            }
            Listen::Unix(path) => {
                let option = format!("--unix {}", path.display());
                let listener = bind_to_path(path).map_err(|error| named(&option, &error))?;
                Listener::Unix(listener, path.clone())
            }
        };
        let Args { cost, idle_timeout, max_connections, .. } = *args;
        Ok(Acceptor {
            listener,
            cost,
            idle_timeout,
            gate: max_connections.map(Gate::new),
            refused: None,
        })
    }

    pub(crate) fn address(&self) -> io::Result<Address> {
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
            if self.gate.as_ref().is_some_and(|gate| !gate.has_room(cx)) {
                // The first connection that closes calls us.
                return Next::Suspend;
            }
            let accepted = self.accept().and_then(|stream| {
                let connection = Connection::new(stream, self.cost);
                let seat = self.gate.as_ref().map(Gate::take_seat);
                let guest = Guest::new(connection, self.idle_timeout, seat);
                let mut registration = Registration::new(Interest::READABLE);
                if let Some(idle_timeout) = self.idle_timeout {
                    registration = registration.deadline(idle_timeout);
                }
                Ok(cx.handles().register(guest, registration)?)
            });
            match accepted {
                Ok(_) => self.refused = None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::Drained(Interest::READABLE);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.refused.replace(error.kind()) != Some(error.kind()) {
                        complain!("cannot accept: {error}{}", advice(&error));
                    }
                    // Out of descriptors or the like: do not spin on what cannot be taken.
                    cx.set_deadline(PAUSE);
                    return Next::Suspend;
                }
            }
        }
        Next::Rearm(Interest::READABLE)
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {
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

fn bind_to_one_of(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for &address in addresses {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // A server that was stopped a moment ago is no reason to refuse.
        socket.set_reuse_address(true)?;
        match listen(socket, &address.into()) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn bind_to_path(path: &Path) -> io::Result<UnixListener> {
    let try_to = || listen(Socket::new(Domain::UNIX, Type::STREAM, None)?, &SockAddr::unix(path)?);
    let in_use = match try_to() {
        Ok(socket) => return Ok(socket.into()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        Err(error) => return Err(error),
    };
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other(
            "something that is not a socket is there; choose another path",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Left behind by a server that was killed: nobody listens there.
            fs::remove_file(path)?;
            Ok(try_to()?.into())
        }
        Ok(_) => Err(io::Error::new(in_use.kind(), "another server listens there; stop it first")),
        Err(_) => Err(io::Error::new(
            in_use.kind(),
            format!("{in_use}; if no server listens there, remove the socket"),
        )),
    }
}

fn listen(socket: Socket, address: &SockAddr) -> io::Result<Socket> {
    socket.bind(address)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn named(option: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{option}: cannot listen on it: {error}"))
}

const ACCEPTS_PER_TURN: usize = 16;

/// For bursts of connects; the kernel takes less if net.core.somaxconn says so.
const BACKLOG: i32 = 4096;

/// How long to wait for descriptors to be given back.
const PAUSE: Duration = Duration::from_millis(10);
