//! Knowing that one is the child of a fork.
//!
//! An epoll instance is shared between parent and child: a child that went on using a pool would
//! change its parent's registrations, and wait for threads that it does not have.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process's start and this process. Relaxed everywhere: the child that changes
/// it has one thread, and whoever reads it later was started by that thread.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// The process an object was made in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Process(u32);

impl Process {
    /// The process we are in.
    pub fn current() -> Process {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            extern "C" fn in_child() {
                DEPTH.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: the hook touches one atomic, so it may run in the child of a threaded
            // process; it is a function of this program and stays as long as the program.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Process(DEPTH.load(Ordering::Relaxed))
    }

    /// Whether this process is the one the value was made in, and not a forked child of it. Costs
    /// one load. A child made by a raw `clone` that bypasses libc is not recognised.
    pub fn is_current(self) -> bool {
        self.0 == DEPTH.load(Ordering::Relaxed)
    }
}
