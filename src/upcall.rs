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
    contain_for(None, policy, code)
}

/// The same for the handlers and hooks of a handle set.
pub(crate) fn contain_for<R>(
    set: Option<u32>,
    policy: OnPanic,
    code: impl FnOnce() -> R,
) -> Result<R, Panicked> {
    let _inside = Inside::enter(set);
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
    CALL.with(|call| call.get().depth > 0)
}

/// Whether the innermost of the calls that the calling thread is in is one of this handle set's.
pub(crate) fn is_inside_of(set: u32) -> bool {
    CALL.with(|call| call.get().set == Some(set))
}

/// Where in upcalls a thread is.
#[derive(Clone, Copy)]
struct Call {
    depth: u32,
    /// Whose the innermost is.
    set: Option<u32>,
}

thread_local! {
    static CALL: Cell<Call> = const { Cell::new(Call { depth: 0, set: None }) };
}

struct Inside {
    before: Call,
}

impl Inside {
    fn enter(set: Option<u32>) -> Inside {
        CALL.with(|call| {
            let before = call.get();
            call.set(Call { depth: before.depth + 1, set });
            Inside { before }
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALL.with(|call| call.set(self.before));
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
        // On a thread of its own: one that is not contained ends here, and not the test.
        let contained = std::thread::spawn(|| {
            let outcome = contain(OnPanic::Close, || std::panic::panic_any(Bomb));
            (outcome.is_err(), is_inside())
        });
        match contained.join() {
            Ok(found) => assert_eq!(found, (true, false)),
            Err(payload) => {
                // It would panic once more when it is dropped.
                std::mem::forget(payload);
                panic!("it was not contained");
            }
        }
    }

    #[test]
    fn upcalls_know_that_they_are() {
        assert!(!is_inside());
        assert!(contain(OnPanic::Close, is_inside).unwrap());
    }
}
