//! What can go wrong, by operation.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::token::HandleId;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a pool or a handle set failed. Each variant names the operation, and where
/// the kernel refused, carries its error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel object of the pool could not be made.
    #[error("cannot create the pool's {object}: {source}")]
    Create {
        /// The kernel's name of the object.
        object: &'static str,
        /// The kernel's answer, often `EMFILE`: raise the descriptor limit or close some.
        source: io::Error,
    },
    /// The kernel refused to watch the descriptor.
    #[error("cannot register descriptor {fd}: {source}")]
    Register {
        /// The descriptor's number.
        fd: RawFd,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The descriptor is of a kind that is always ready and cannot be watched.
    #[error(
        "cannot register descriptor {fd}: a file of this kind (regular file, directory, some devices) cannot be polled (EPERM); it is always ready"
    )]
    NotPollable {
        /// The descriptor's number.
        fd: RawFd,
    },
    /// The descriptor is in this handle set already.
    #[error(
        "descriptor {fd} is registered in this handle set already (EEXIST); remove it first, or register a duplicate"
    )]
    AlreadyRegistered {
        /// The descriptor's number.
        fd: RawFd,
    },
    /// The table of handles has reached its limit.
    #[error("the handle set is full: {limit} handles; raise Builder::max_handles")]
    TableFull {
        /// The limit, as given to the builder.
        limit: usize,
    },
    /// The kernel refused to change a registration. The handle has been closed.
    #[error("cannot change the interest of {id}, it was closed: {source}")]
    Change {
        /// The handle.
        id: HandleId,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No such handle: it was removed, or it closed itself.
    #[error("{id} is not registered any more")]
    UnknownHandle {
        /// The handle that was asked for.
        id: HandleId,
    },
    /// The id belongs to another pool's handle set.
    #[error("{id} belongs to another handle set")]
    ForeignHandle {
        /// The handle that was asked for.
        id: HandleId,
    },
    /// Several threads may serve the handle at once, so it can have no deadline and cannot be notified.
    #[error(
        "{id} is served by several threads at once: it can have no deadline and cannot be notified"
    )]
    SharedHandle {
        /// The handle that was asked for.
        id: HandleId,
    },
    /// An interest in nothing; suspend the handle instead.
    #[error("the interest is empty; suspend the handle to hear nothing")]
    EmptyInterest,
    /// The pool has no threads and expects none to join.
    #[error("a pool needs at least one thread; for application threads alone say Builder::joiners")]
    ZeroThreads,
    /// An option that counts something was zero.
    #[error("{option} must be more than zero")]
    Zero {
        /// The builder's method.
        option: &'static str,
    },
    /// More waiting places than threads to sit in them.
    #[error("{leaders} leaders asked for, but the pool has only {threads} threads")]
    MoreLeadersThanThreads {
        /// The seats asked for.
        leaders: usize,
        /// The pool's own threads and the joiners it expects.
        threads: usize,
    },
    /// An option was outside its range.
    #[error("{option} is {value}, but must be from {least} to {most}")]
    OutOfRange {
        /// The builder's method.
        option: &'static str,
        /// What was given.
        value: i64,
        /// The smallest allowed value.
        least: i64,
        /// The largest allowed value.
        most: i64,
    },
    /// The threads' name contains a NUL, which the kernel takes for its end.
    #[error("the threads cannot have the name {name:?}: it contains a NUL")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// A pinning plan names a CPU that this process may not use.
    #[error("CPU {cpu} is not available to this process; it may use {available:?}")]
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// The CPUs this process may use.
        available: Vec<usize>,
    },
    /// A thread could not be pinned.
    #[error("cannot pin thread {thread} to CPU {cpu}: {source}")]
    Pin {
        /// The thread's index in the pool.
        thread: usize,
        /// The CPU.
        cpu: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread could not be given its scheduling class or priority.
    #[error(
        "cannot give thread {thread} {scheduling}: {source}; it needs CAP_SYS_NICE or a higher RLIMIT_RTPRIO / RLIMIT_NICE"
    )]
    Schedule {
        /// The thread's index in the pool.
        thread: usize,
        /// What was asked for.
        scheduling: crate::Scheduling,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start thread {thread}: {source}")]
    Spawn {
        /// The thread's index in the pool.
        thread: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread's start hook panicked.
    #[error("the start hook panicked on thread {thread}")]
    StartHook {
        /// The thread's index in the pool.
        thread: usize,
    },
    /// The pool is shutting down or has shut down.
    #[error("the pool has been shut down")]
    ShutDown,
    /// The calling thread takes part in this pool already.
    #[error("this thread takes part in the pool already")]
    AlreadyJoined,
    /// The pool was made before this process was forked off; only its parent can use it.
    #[error("the pool belongs to the parent of this forked process")]
    Forked,
    /// The kernel's wait failed, which only happens when its descriptor was closed behind our back.
    #[error("waiting on the handle set failed: {source}")]
    Wait {
        /// The kernel's answer.
        source: io::Error,
    },
    /// A number that is no signal, or one that nobody can wait for.
    #[error("{signal} is not a signal that can be waited for")]
    NotASignal {
        /// The number.
        signal: i32,
    },
    /// A thread was started before the signals were blocked, and could be interrupted by one of them
    /// instead of the handle.
    #[error(
        "too late to make a handle of signal {signal}: thread {thread} ({name}) does not block it; call Signals::block first in main, before any thread is started"
    )]
    SignalsTooLate {
        /// The signal.
        signal: i32,
        /// The kernel's number of the thread.
        thread: i32,
        /// The thread's name.
        name: String,
    },
    /// Threads were still in handlers when the deadline for shutdown passed.
    #[error("after {deadline:?} handlers are still running, on {threads} of the threads")]
    StillRunning {
        /// How many.
        threads: usize,
        /// The time they were given.
        deadline: Duration,
    },
}

impl Error {
    /// The kernel's error number, where the kernel was the one to refuse.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Create { source, .. }
            | Error::Register { source, .. }
            | Error::Change { source, .. }
            | Error::Pin { source, .. }
            | Error::Schedule { source, .. }
            | Error::Spawn { source, .. }
            | Error::Wait { source } => source.raw_os_error(),
            Error::NotPollable { .. } => Some(libc::EPERM),
            Error::AlreadyRegistered { .. } => Some(libc::EEXIST),
            _ => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        if let Some(errno) = self.raw_os_error() {
            return io::Error::from_raw_os_error(errno).kind();
        }
        match self {
            Error::UnknownHandle { .. } => io::ErrorKind::NotFound,
            Error::StillRunning { .. } => io::ErrorKind::TimedOut,
            Error::ShutDown => io::ErrorKind::BrokenPipe,
            Error::TableFull { .. } => io::ErrorKind::OutOfMemory,
            Error::Forked | Error::AlreadyJoined => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidInput,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// A registration that failed, with the handler given back.
///
/// Converts into [`Error`] and [`io::Error`], so `?` works where the handler is not wanted any more.
pub struct Rejected<H> {
    /// Why.
    pub error: Error,
    /// The handler as it was.
    pub handler: H,
}

impl<H> fmt::Debug for Rejected<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<H> fmt::Display for Rejected<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<H> std::error::Error for Rejected<H> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<H> From<Rejected<H>> for Error {
    fn from(rejected: Rejected<H>) -> Error {
        rejected.error
    }
}

impl<H> From<Rejected<H>> for io::Error {
    fn from(rejected: Rejected<H>) -> io::Error {
        rejected.error.into()
    }
}
