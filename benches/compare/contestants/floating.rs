//! All threads wait on one set, and the kernel passes the events round.
//!
//! Per request: one `epoll_wait`, one `recv`, one `send`, one `epoll_ctl` to arm again. A wait fetches one
//! event, because a second would be stuck behind the handler of the first while other threads sleep.

use std::convert::Infallible;
use std::io;
use std::num::NonZeroUsize;

use cabrank::sys::epoll::Events;

use super::shared::Shared;

/// What each of the threads does.
pub(crate) fn work(shared: &Shared) -> io::Result<Infallible> {
    let mut events = Events::with_capacity(NonZeroUsize::MIN);
    loop {
        shared.epoll.wait(&mut events, None)?;
        for event in events.iter() {
            shared.handle(&event)?;
        }
    }
}
