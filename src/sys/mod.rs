//! Thin wrappers around the kernel objects the engine is made of: one file per object, one function
//! per system call, `OwnedFd` inside and `AsFd` outside.
//!
//! Everything here can be used without a [`Pool`](crate::Pool). All descriptors are created with
//! close-on-exec. Nothing in this module retries, queues or allocates on your behalf except where
//! the documentation says so.

// The only system calls of the crate, and with `cell` the only unsafe code.
#![allow(unsafe_code)]

mod borrowed;
pub mod clock;
pub mod epoll;
pub mod eventfd;
pub mod fork;
pub mod sched;
pub mod signalfd;
pub mod socket;
pub mod timerfd;

/// Calls a libc function and turns its `-1` into the error that `errno` holds.
macro_rules! syscall {
    ($name:ident ( $($arg:expr),* $(,)? )) => {{
        let result = libc::$name($($arg),*);
        if result == -1 {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(result)
        }
    }};
}
pub(crate) use syscall;

/// The error nix reports, as the standard library's.
fn from_nix(errno: nix::errno::Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno as i32)
}
