//! What the tests of refusals share: checks of errors, and of the pool that goes on.
#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use cabrank::{Builder, Context, Error, Handler, Interest, Next, Pool, Ready, handler_fn};

use super::{Probe, echo, ping, wait_until};

/// Checks what an error says of itself: what it mentions, the kernel's number, and the kind that it
/// keeps when it becomes an `io::Error`.
#[track_caller]
pub fn check(error: Error, mentions: &[&str], errno: Option<i32>, kind: ErrorKind) {
    let message = error.to_string();
    for words in mentions {
        assert!(message.contains(words), "{message:?} does not mention {words:?}");
    }
    assert_eq!(error.raw_os_error(), errno, "{error:?}");
    if let Some(errno) = errno {
        assert_eq!(io::Error::from_raw_os_error(errno).kind(), kind);
    }
    let error = io::Error::from(error);
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(error.to_string(), message);
    assert!(error.get_ref().is_some_and(|inner| inner.is::<Error>()), "{error:?}");
}

/// The handle set still takes a handler in, serves it and lets it go.
#[track_caller]
pub fn still_serves(pool: &Pool) {
    let before = pool.handles().len();
    let (probe, mut peer) = Probe::pair(echo);
    let closed = probe.closed.clone();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    ping(&mut peer);
    drop(peer);
    closed.wait_for(1);
    wait_until("the handle is gone", || pool.handles().len() == before);
}

pub fn never(_fd: BorrowedFd<'_>, _ready: Ready, _cx: &mut Context<'_>) -> Next {
    unreachable!("it was refused")
}

pub fn silent<S: AsFd + Send>(source: S) -> impl Handler {
    handler_fn(source, |_, _, _| Next::Suspend)
}

#[track_caller]
pub fn refused(builder: Builder) -> Error {
    builder.build().map(drop).expect_err("choices that cannot be")
}
