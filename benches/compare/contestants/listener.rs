//! Where a server listens: TCP on the loopback, or a Unix socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::address::Address;
use crate::connection::{Connection, Cost, Stream};

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// On the path, or else on a free TCP port.
    pub(crate) fn bind(unix: Option<&Path>) -> io::Result<Listener> {
        let Some(path) = unix else {
            return tcp(([127, 0, 0, 1], 0).into());
        };
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Listener::Unix(socket.into()))
    }

    /// One more on the same port: the kernel deals out the connections.
    pub(crate) fn another(&self) -> io::Result<Listener> {
        match self {
            Listener::Tcp(listener) => tcp(listener.local_addr()?),
            Listener::Unix(_) => Err(io::Error::other("Unix sockets have no SO_REUSEPORT")),
        }
    }

    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?)),
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().ok_or_else(|| io::Error::other("no path"))?;
                Ok(Address::Unix(path.into()))
            }
        }
    }

    pub(crate) fn accept(&self, cost: Cost) -> io::Result<Connection> {
        Ok(Connection::new(self.accept_stream()?, cost))
    }

    fn accept_stream(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

fn tcp(address: SocketAddr) -> io::Result<Listener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // All contestants of this program have it: it is not for one of them to be faster at accepting.
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Listener::Tcp(socket.into()))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Enough for a crowd of connections that come as fast as they can; the kernel may allow less.
const BACKLOG: i32 = 4096;
