//! Calling user code: contained, and known to be a call.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

use crate::sync::thread_local;

/// What becomes of a panic in a handler.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnPanic {
    /// The handle is closed, its hook told so, the panic counted; thread and pool go on (I9).
    #[default]
    Close,
    /// The process is aborted, for programs that prefer no service to a doubtful one.
    Abort,
}

/// User code that panicked.
#[derive(Debug)]
pub(crate) struct Panicked;

/// Runs user code; a panic ends here. What the code was working on is closed, so nobody sees it in
/// the state the panic left it in.
pub(crate) fn contain<R>(policy: OnPanic, code: impl FnOnce() -> R) -> Result<R, Panicked> {
    let _inside = Inside::enter();
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        if policy == OnPanic::Abort {
            process::abort();
        }
        discard(payload);
        Panicked
    })
}

/// Whether the calling thread is in user code that the engine called.
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

thread_local! {
    /// How many upcalls deep this thread is.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

struct Inside;

impl Inside {
    fn enter() -> Inside {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Drops a panic's payload, which can panic itself; then the new payload is leaked, which ends it.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(worse);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_panics_is_contained_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("from the payload's drop");
            }
        }
        let outcome = contain(OnPanic::Close, || std::panic::panic_any(Bomb));
        assert!(outcome.is_err());
        assert!(!is_inside());
    }

    #[test]
    fn upcalls_know_that_they_are() {
        assert!(!is_inside());
        assert!(contain(OnPanic::Close, is_inside).unwrap());
    }
}
