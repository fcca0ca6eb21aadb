//! Stream sockets: made, bound, connected and accepted without ever blocking.

use std::fmt;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixSocketAddr;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, setsockopt, sockopt,
};

use super::{from_nix, syscall};

/// Where a stream socket is bound or connected to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Address {
    /// An IP address and a TCP port.
    Tcp(SocketAddr),
    /// A path in the file system, or an abstract name.
    Unix(UnixSocketAddr),
}

impl Address {
    /// The Unix address of a path.
    ///
    /// # Errors
    /// `InvalidInput` if the path is longer than 107 bytes or contains a NUL.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Address> {
        UnixSocketAddr::from_pathname(path).map(Address::Unix)
    }

    fn family(&self) -> AddressFamily {
        match self {
            Address::Tcp(SocketAddr::V4(_)) => AddressFamily::Inet,
            Address::Tcp(SocketAddr::V6(_)) => AddressFamily::Inet6,
            Address::Unix(_) => AddressFamily::Unix,
        }
    }

    fn with_kernels<R>(
        &self,
        call: impl FnOnce(&dyn SockaddrLike) -> nix::Result<R>,
    ) -> io::Result<R> {
        match self {
            Address::Tcp(address) => call(&SockaddrStorage::from(*address)),
            Address::Unix(address) => {
                let name = match (address.as_pathname(), address.as_abstract_name()) {
                    (Some(path), _) => UnixAddr::new(path),
                    (None, Some(name)) => UnixAddr::new_abstract(name),
                    // To bind to no name is to be given one, and to connect to none cannot be.
                    (None, None) => Err(nix::errno::Errno::EINVAL),
                };
                call(&name.map_err(from_nix)?)
            }
        }
        .map_err(from_nix)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(address) => match (address.as_pathname(), address.as_abstract_name()) {
                (Some(path), _) => path.display().fmt(f),
                (None, Some(name)) => write!(f, "@{}", name.escape_ascii()),
                (None, None) => f.write_str("(unnamed)"),
            },
        }
    }
}

/// A stream socket for an address, neither bound nor connected; non-blocking, close-on-exec.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOBUFS` or `ENOMEM` when out of something; `EAFNOSUPPORT` for an IPv6 address where
/// there is no IPv6.
#[doc(alias = "socket")]
pub fn open(address: &Address) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    nix::sys::socket::socket(address.family(), SockType::Stream, flags, None).map_err(from_nix)
}

/// Gives a socket its address.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` and others.
pub fn bind(socket: impl AsFd, address: &Address) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    address.with_kernels(|address| nix::sys::socket::bind(fd, address))
}

/// Lets a bound socket be connected to. So many connections may wait to be accepted; the kernel has a limit
/// of its own in `net.core.somaxconn`.
pub fn listen(socket: impl AsFd, backlog: u32) -> io::Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    // SAFETY: the call takes no pointer.
    unsafe { syscall!(listen(socket.as_fd().as_raw_fd(), backlog)) }?;
    Ok(())
}

/// Locks a directory until the result is dropped, for those who lock it too.
///
/// # Errors
/// The kernel's, if the directory cannot be read.
#[doc(alias = "flock")]
pub fn lock_directory(path: &Path) -> io::Result<impl Drop + use<>> {
    let directory = std::fs::File::open(path)?;
    nix::fcntl::Flock::lock(directory, nix::fcntl::FlockArg::LockExclusive)
        .map_err(|(_, errno)| from_nix(errno))
}

/// Takes a connection that waits; it is non-blocking and close-on-exec.
///
/// # Errors
/// `EAGAIN` if none waits, `EMFILE`, `ENFILE`, `ENOBUFS` or `ENOMEM` when out of something, `ECONNABORTED` and
/// others if the connection has failed meanwhile.
#[doc(alias = "accept4")]
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = listener.as_fd().as_raw_fd();
    // SAFETY: without room for an address the kernel writes none.
    let accepted = unsafe { syscall!(accept4(fd, ptr::null_mut(), ptr::null_mut(), flags)) }?;
    // SAFETY: the kernel has just handed us this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
}

/// Begins to connect.
///
/// # Errors
/// `EINPROGRESS` from TCP: the socket becomes writable when it is decided, then ask [`take_error`] and
/// [`is_connected`]. `EAGAIN` from Unix sockets: the listener's backlog is full, and nothing tells when it has
/// room, so try again later. Anything else is final.
pub fn connect(socket: impl AsFd, address: &Address) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    address.with_kernels(|address| nix::sys::socket::connect(fd, address))
}

/// The error that waits to be told, which is then over.
#[doc(alias = "SO_ERROR")]
pub fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    let number = nix::sys::socket::getsockopt(&socket, sockopt::SocketError).map_err(from_nix)?;
    Ok((number != 0).then(|| io::Error::from_raw_os_error(number)))
}

/// Whether the socket has a peer.
#[doc(alias = "getpeername")]
pub fn is_connected(socket: impl AsFd) -> bool {
    nix::sys::socket::getpeername::<SockaddrStorage>(socket.as_fd().as_raw_fd()).is_ok()
}

/// The address a TCP socket is bound to.
///
/// # Errors
/// `InvalidInput` for a socket of another kind.
#[doc(alias = "getsockname")]
pub fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    let fd = socket.as_fd().as_raw_fd();
    let address: SockaddrStorage = nix::sys::socket::getsockname(fd).map_err(from_nix)?;
    let v4 = address.as_sockaddr_in().map(|&v4| SocketAddrV4::from(v4).into());
    let v6 = || address.as_sockaddr_in6().map(|&v6| SocketAddrV6::from(v6).into());
    v4.or_else(v6).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Whether there is something to read just now, the end of the stream or an error included.
#[doc(alias = "poll")]
pub fn is_readable(socket: impl AsFd) -> bool {
    let mut poll =
        libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one `pollfd`, which outlives the call. It does not wait.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready == 1
}

/// Tells the peer that nothing more will be sent. It can still be read from.
#[doc(alias = "shutdown")]
pub fn shutdown_write(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    unsafe { syscall!(shutdown(socket.as_fd().as_raw_fd(), libc::SHUT_WR)) }?;
    Ok(())
}

/// Makes the coming close drop what has not been sent, and tell the peer by a reset.
#[doc(alias = "SO_LINGER")]
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&socket, sockopt::Linger, &at_once).map_err(from_nix)
}

/// Lets a TCP socket have a port on which earlier connections are still in `TIME_WAIT`.
#[doc(alias = "SO_REUSEADDR")]
pub fn reuse_address(socket: impl AsFd) -> io::Result<()> {
    setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(from_nix)
}

/// Lets several sockets of one user listen on one port; the kernel spreads connections over them.
#[doc(alias = "SO_REUSEPORT")]
pub fn reuse_port(socket: impl AsFd) -> io::Result<()> {
    setsockopt(&socket, sockopt::ReusePort, &true).map_err(from_nix)
}

/// Sends small segments at once. Accepted connections have it from their listener.
#[doc(alias = "TCP_NODELAY")]
pub fn set_nodelay(socket: impl AsFd) -> io::Result<()> {
    setsockopt(&socket, sockopt::TcpNoDelay, &true).map_err(from_nix)
}

/// Probes a TCP peer that has been silent for `idle`, at least a second. Accepted connections have it from
/// their listener.
#[doc(alias = "SO_KEEPALIVE")]
#[doc(alias = "TCP_KEEPIDLE")]
pub fn set_keepalive(socket: impl AsFd, idle: Duration) -> io::Result<()> {
    // The kernel's largest is nine hours.
    let seconds = idle.as_secs().clamp(1, 32_767) as u32;
    setsockopt(&socket, sockopt::KeepAlive, &true).map_err(from_nix)?;
    setsockopt(&socket, sockopt::TcpKeepIdle, &seconds).map_err(from_nix)
}
