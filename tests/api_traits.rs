//! What the public types can do: move, be shared, be printed, be nested.

mod util;

use std::error::Error as StdError;
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::{
    Builder, Deactivation, Error, HandleId, HandleSet, HandlerFn, Interest, Metrics, Next, Order,
    Pinning, Pool, Promotion, Ready, Registration, Rejected, Remote, Report, Scheduling, Waker,
};
use util::{Probe, echo, pool};

fn shared<T: Send + Sync + Debug>() {}
fn moved<T: Send + Debug>() {}
fn error<T: StdError + Send + Sync + 'static>() {}

#[test]
fn public_types_cross_threads_and_print() {
    shared::<Pool>();
    shared::<Remote>();
    shared::<HandleSet>();
    shared::<Waker>();
    shared::<HandleId>();
    shared::<Builder>();
    shared::<Registration>();
    shared::<Interest>();
    shared::<Ready>();
    shared::<Next>();
    shared::<Order>();
    shared::<Promotion>();
    shared::<Pinning>();
    shared::<Scheduling>();
    shared::<Deactivation>();
    shared::<Metrics>();
    shared::<Report>();
    moved::<HandlerFn<std::fs::File, ()>>();
    error::<Error>();
    error::<cabrank::Unfinished>();
    error::<Rejected<String>>();
}

/// The whole set is a descriptor itself: readable while a handle is ready.
#[test]
fn a_handle_set_nests_in_another_loop() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let outer = Epoll::new().unwrap();
    outer.add(pool.handles(), Flags::IN, 1).unwrap();
    let mut events = Events::with_capacity(NonZeroUsize::new(1).unwrap());
    assert_eq!(outer.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    std::io::Write::write_all(&mut peer, b"p").unwrap();
    assert_eq!(outer.wait(&mut events, Some(util::PATIENCE)).unwrap(), 1);
    pool.join_timeout(Duration::from_millis(5)).unwrap();
    let mut back = [0];
    std::io::Read::read_exact(&mut peer, &mut back).unwrap();
}

#[test]
fn errors_become_io_errors_of_the_same_kind() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let handler = cabrank::handler_fn(file, |_, _, _| Next::Close);
    let rejected = pool.handles().register(handler, Interest::READABLE).unwrap_err();
    assert_eq!(rejected.error.raw_os_error(), Some(1));
    let error = std::io::Error::from(rejected);
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(error.get_ref().unwrap().is::<Error>(), "the cause is kept");
}
