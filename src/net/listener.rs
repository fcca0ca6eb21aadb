//! Listening sockets: their options, and how they are bound.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, Deactivation};
use crate::interest::Interest;
use crate::net::accept::{Accepted, Accepting, Acceptor};
use crate::sys::fork::Process;
use crate::sys::socket::{self, Address};

/// How to listen, and what to give each connection.
///
/// ```
/// use cabrank::net::ListenOptions;
/// use std::time::Duration;
///
/// let listener = ListenOptions::new()
///     .max_connections(10_000)
///     .nodelay()
///     .keepalive(Duration::from_secs(60))
///     .tcp(([127, 0, 0, 1], 0))?;
/// println!("listening on {}", listener.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ListenOptions {
    backlog: u32,
    pub(crate) accepts_per_turn: usize,
    pub(crate) max_connections: usize,
    nodelay: bool,
    keepalive: Option<Duration>,
    reuse_port: bool,
    replace_stale: bool,
    deactivation: Option<Deactivation>,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions::new()
    }
}

impl ListenOptions {
    /// A backlog of 1024, 16 accepts per turn, as many connections as come, and no socket options.
    pub const fn new() -> ListenOptions {
        ListenOptions {
            backlog: 1024,
            accepts_per_turn: 16,
            max_connections: usize::MAX,
            nodelay: false,
            keepalive: None,
            reuse_port: false,
            replace_stale: false,
            deactivation: None,
        }
    }

    /// How many connections may wait in the kernel to be accepted. The kernel has a limit of its own,
    /// `net.core.somaxconn`.
    pub const fn backlog(mut self, connections: u32) -> ListenOptions {
        self.backlog = connections;
        self
    }

    /// How many connections are accepted before other handles get their turn; at least one.
    pub const fn accepts_per_turn(mut self, connections: usize) -> ListenOptions {
        self.accepts_per_turn = if connections == 0 { 1 } else { connections };
        self
    }

    /// How many connections there may be at once; at least one. When there are as many, those that come wait
    /// in the backlog until a [`Permit`](crate::net::Permit) is dropped.
    pub const fn max_connections(mut self, connections: usize) -> ListenOptions {
        self.max_connections = if connections == 0 { 1 } else { connections };
        self
    }

    /// Has small segments sent at once. Costs nothing per connection: they have it from their listener.
    #[doc(alias = "TCP_NODELAY")]
    pub const fn nodelay(mut self) -> ListenOptions {
        self.nodelay = true;
        self
    }

    /// Has the kernel probe peers that have been silent for so long (whole seconds, at least one). Costs
    /// nothing per connection: they have it from their listener.
    #[doc(alias = "SO_KEEPALIVE")]
    pub const fn keepalive(mut self, idle: Duration) -> ListenOptions {
        self.keepalive = Some(idle);
        self
    }

    /// Lets several listeners, in one process or several of one user, have the same port. The kernel spreads
    /// connections over them. Each has to say it.
    #[doc(alias = "SO_REUSEPORT")]
    pub const fn reuse_port(mut self) -> ListenOptions {
        self.reuse_port = true;
        self
    }

    /// Lets a Unix listener take the path of a socket on which nobody listens any more, such as one left by
    /// a process that was killed. One on which somebody listens, or a file of another kind, is never taken.
    pub const fn replace_stale(mut self) -> ListenOptions {
        self.replace_stale = true;
        self
    }

    /// Chooses the deactivation for the listener instead of the pool's.
    pub const fn deactivation(mut self, deactivation: Deactivation) -> ListenOptions {
        self.deactivation = Some(deactivation);
        self
    }

    /// Listens on a TCP port; 0 is any free one.
    ///
    /// # Errors
    /// [`BindError`], which says what to do about a port that is in use.
    pub fn tcp(&self, address: impl Into<SocketAddr>) -> Result<Listener<TcpStream>, BindError> {
        let address = address.into();
        let socket = self.bind_tcp(&Address::Tcp(address)).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrInUse {
                BindError::PortInUse { address, source }
            } else {
                BindError::Refused { address: address.to_string(), source }
            }
        })?;
        Ok(self.listener(socket, None))
    }

    /// Listens on a path, which must not exist (see [`replace_stale`](Self::replace_stale)). The path is
    /// deleted when the listener is dropped, unless it has come to mean another file by then.
    ///
    /// # Errors
    /// [`BindError`], which says what to do about a path that is in use.
    pub fn unix(&self, path: impl AsRef<Path>) -> Result<Listener<UnixStream>, BindError> {
        let path = path.as_ref();
        let (socket, file) = self.bind_unix(path).map_err(|source| {
            let path = path.to_path_buf();
            if source.kind() == io::ErrorKind::AddrInUse {
                BindError::PathInUse { path, source }
            } else {
                BindError::Refused { address: path.display().to_string(), source }
            }
        })?;
        Ok(self.listener(socket, Some(file)))
    }

    /// Serves a TCP listener that somebody else has made, such as one inherited from a service manager.
    /// Options of the socket are left as they are.
    ///
    /// # Errors
    /// The kernel's, if it cannot be made non-blocking.
    pub fn adopt_tcp(&self, listener: TcpListener) -> io::Result<Listener<TcpStream>> {
        listener.set_nonblocking(true)?;
        Ok(self.listener(listener.into(), None))
    }

    /// Serves a Unix listener that somebody else has made, and who deletes its path.
    ///
    /// # Errors
    /// The kernel's, if it cannot be made non-blocking.
    pub fn adopt_unix(&self, listener: UnixListener) -> io::Result<Listener<UnixStream>> {
        listener.set_nonblocking(true)?;
        Ok(self.listener(listener.into(), None))
    }

    fn listener<S>(&self, socket: OwnedFd, file: Option<SocketFile>) -> Listener<S> {
        Listener { options: self.clone(), socket, file, streams: PhantomData }
    }

    fn bind_tcp(&self, address: &Address) -> io::Result<OwnedFd> {
        let socket = socket::open(address)?;
        // A server that is started again should not have to wait for its old connections to be forgotten.
        socket::reuse_address(&socket)?;
        if self.reuse_port {
            socket::reuse_port(&socket)?;
        }
        if self.nodelay {
            socket::set_nodelay(&socket)?;
        }
        if let Some(idle) = self.keepalive {
            socket::set_keepalive(&socket, idle)?;
        }
        socket::bind(&socket, address)?;
        socket::listen(&socket, self.backlog)?;
        Ok(socket)
    }

    fn bind_unix(&self, path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
        let address = Address::unix(path)?;
        let socket = socket::open(&address)?;
        // Between being bound and listening a socket looks stale, and between two who find one stale only
        // one may replace it. Where the directory cannot be locked they have to do without.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let _lock = socket::lock_directory(parent.unwrap_or(Path::new(".")));
        match socket::bind(&socket, &address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.replace_stale => {
                if !is_stale(path, &address) {
                    return Err(error);
                }
                fs::remove_file(path)?;
                socket::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        let file = SocketFile::of(path)?;
        socket::listen(&socket, self.backlog)?;
        Ok((socket, file))
    }
}

/// A socket that listens for streams of a kind, and is not served yet.
#[derive(Debug)]
#[must_use = "a listener accepts nobody before it is registered"]
pub struct Listener<S> {
    options: ListenOptions,
    /// Before the socket: while that is open nobody takes the file for stale, and no other has its identity.
    file: Option<SocketFile>,
    socket: OwnedFd,
    streams: PhantomData<fn() -> S>,
}

impl<S> Listener<S>
where
    S: From<OwnedFd> + 'static,
{
    /// Has the pool accept connections, and calls `callback` with each, one at a time. The stream is
    /// non-blocking. A panic in the callback costs the listener, as it costs any handle.
    ///
    /// When the process has no descriptors left, or the kernel no memory, clients that wait are accepted by a
    /// descriptor kept in reserve and closed at once, so that they know; then accepting pauses for 10 to
    /// 100 milliseconds, and goes on by itself.
    ///
    /// ```
    /// use cabrank::net::{Accepted, ListenOptions};
    /// use cabrank::{Interest, Next, Pool, handler_fn};
    /// use std::io::{Read, Write};
    /// use std::net::TcpStream;
    ///
    /// let pool = Pool::builder().threads(2).build()?;
    /// let listener = ListenOptions::new().max_connections(100).tcp(([127, 0, 0, 1], 0))?;
    /// let address = listener.local_addr()?;
    /// let accepting = listener.register(pool.handles(), |accepted: Accepted<TcpStream>, cx| {
    ///     // The source is the stream and its permit, so they live and end together.
    ///     let greeter = handler_fn(accepted, |accepted, _ready, _cx| {
    ///         let _ = accepted.stream.write_all(b"hello");
    ///         Next::Close
    ///     });
    ///     let _ = cx.handles().register(greeter, Interest::WRITABLE);
    /// })?;
    ///
    /// let mut said = String::new();
    /// TcpStream::connect(address)?.read_to_string(&mut said)?;
    /// assert_eq!(said, "hello");
    /// assert_eq!(accepting.counts().accepted, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`HandleSet::register`]; the listener is closed then.
    pub fn register<F>(self, handles: &HandleSet, callback: F) -> Result<Accepting>
    where
        F: FnMut(Accepted<S>, &mut Context<'_>) + Send + 'static,
    {
        let mut registration = Registration::new(Interest::READABLE);
        if let Some(deactivation) = self.options.deactivation {
            registration = registration.deactivation(deactivation);
        }
        let acceptor = Acceptor::new(self.socket, self.file, &self.options, callback);
        let gate = acceptor.gate();
        let id = handles.register(acceptor, registration).map_err(Error::from)?;
        Ok(Accepting::new(handles.clone(), id, gate))
    }
}

impl Listener<TcpStream> {
    /// The address it listens on, with the port that the kernel has chosen.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        socket::local_address(&self.socket)
    }
}

/// Why a listener could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Somebody listens on the port.
    #[error(
        "cannot listen on {address}: it is in use; stop who listens there, choose another port (0 is any free one), or let all of them say reuse_port"
    )]
    PortInUse {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path exists.
    #[error(
        "cannot listen on {}: the path exists; stop who listens there, or if nobody does delete it or say replace_stale",
        path.display()
    )]
    PathInUse {
        /// The path asked for.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused otherwise.
    #[error("cannot listen on {address}: {source}")]
    Refused {
        /// The address or path asked for.
        address: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> io::Error {
        let (BindError::PortInUse { source, .. }
        | BindError::PathInUse { source, .. }
        | BindError::Refused { source, .. }) = &error;
        io::Error::new(source.kind(), error)
    }
}

/// The file of a Unix listener, which is deleted with it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Tells the file from another that has come to have its name.
    identity: (u64, u64),
    /// A forked child that drops its copy must leave the parent's file alone.
    process: Process,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        // Absolute, because the process may go elsewhere.
        let path = std::path::absolute(path)?;
        let identity = identity(&path)?;
        Ok(SocketFile { path, identity, process: Process::current() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = || identity(&self.path).is_ok_and(|identity| identity == self.identity);
        if self.process.is_current() && is_ours() {
            // Gone already is as good, and nobody is left to hear of another failure.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether a path is a socket on which nobody listens.
fn is_stale(path: &Path, address: &Address) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = || {
        let attempt = socket::open(address).and_then(|probe| socket::connect(&probe, address));
        attempt.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && refused()
}
