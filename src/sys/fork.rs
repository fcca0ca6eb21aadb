//! Knowing that one is the child of a fork.
//!
//! An epoll instance is shared between parent and child: a child that went on using a pool would
//! change its parent's registrations, and wait for threads that it does not have.

use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process's start and this process, or `UNKNOWN`. Relaxed everywhere: the child that
/// changes it has one thread, and whoever reads it later was started by that thread.
static DEPTH: AtomicU32 = AtomicU32::new(0);

/// The C library had no memory for the hook that changes `DEPTH`: a process is known by its number then.
/// `INSTALL` orders it before the first value that is made.
const UNKNOWN: u32 = u32::MAX;

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
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0;
            if refused {
                DEPTH.store(UNKNOWN, Ordering::Relaxed);
            }
        });
        Process(Process::name())
    }

    /// Whether this process is the one the value was made in, and not a forked child of it. Costs
    /// one load. A child made by a raw `clone` that bypasses libc is not recognised.
    pub fn is_current(self) -> bool {
        self.0 == Process::name()
    }

    /// Ends a forked child that returns from its parent's handler or hook: it would go on as a thread of its
    /// parent's pool, change the parent's registrations and take its events.
    pub(crate) fn refuse_child(self) {
        if !self.is_current() {
            eprintln!("cabrank: a forked child must not return from its parent's handler or hook");
            process::abort();
        }
    }

    /// What tells this process from its parent.
    fn name() -> u32 {
        match DEPTH.load(Ordering::Relaxed) {
            UNKNOWN => process::id(),
            depth => depth,
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// The only test that pretends, on a process of its own: others are to keep their names.
    #[test]
    fn without_the_hook_a_process_is_known_by_its_number() {
        let ordinary = Process::current();
        assert!(ordinary.is_current());
        // SAFETY: the child makes two comparisons and one system call.
        let child = unsafe { libc::fork() };
        if child == 0 {
            DEPTH.store(UNKNOWN, Ordering::Relaxed);
            let here = Process::current();
            let known = here.is_current() && here.0 == process::id() && !ordinary.is_current();
            // SAFETY: ends the child without running what is its parent's to run.
            unsafe { libc::_exit(i32::from(!known)) }
        }
        let mut status = 0;
        // SAFETY: the kernel writes the status, which outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    }
}
