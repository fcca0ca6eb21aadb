//! Handles that cannot be registered, and ids that mean nothing, are refused: with the right error,
//! before anything is made or changed, and the pool goes on serving.
#![allow(unsafe_code)] // registering by number

mod util;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cabrank::{
    Context, Error, HandleId, Handler, Interest, Next, Pool, Ready, Reason, Registration, Rejected,
    Removal, handler_fn, shared_fn,
};

use util::refusals::{check, never, silent, still_serves};
use util::{Counter, Probe, ping, pool, wait_until};

// Descriptors that cannot be registered.

#[test]
fn files_and_directories_cannot_be_polled_and_come_back() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let name = std::env::temp_dir().join(format!("cabrank-bad-{}", std::process::id()));
    fs::write(&name, "content").unwrap();
    for path in [name.as_path(), &std::env::temp_dir()] {
        let file = File::open(path).unwrap();
        let number = file.as_raw_fd();
        let rejected =
            pool.handles().register(handler_fn(file, |_, _, _| Next::Close), Interest::READABLE);
        let Rejected { error, handler } = rejected.unwrap_err();
        assert!(matches!(error, Error::NotPollable { fd } if fd == number), "{error:?}");
        let mentions = ["register", &number.to_string(), "cannot be polled"];
        check(error, &mentions, Some(libc::EPERM), ErrorKind::PermissionDenied);
        // The handler is as it was, and its descriptor is open.
        assert_eq!(handler.into_source().metadata().unwrap().is_dir(), path.is_dir());
        assert!(pool.handles().is_empty());
    }
    fs::remove_file(&name).unwrap();
    still_serves(&pool);
}

#[test]
fn a_shared_handler_is_given_back_too() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let file = File::open("/proc/self/exe").unwrap();
    let shared = shared_fn(file, |_: &File, _, _: &mut _| Next::Close);
    let rejected = pool.handles().register_shared(shared, Interest::READABLE).unwrap_err();
    assert!(matches!(rejected.error, Error::NotPollable { .. }));
    assert!(rejected.to_string().contains("cannot be polled"));
    assert!(rejected.handler.into_source().metadata().unwrap().is_file());
    still_serves(&pool);
}

#[test]
fn a_rejected_handler_is_not_told_that_it_was_closed() {
    struct Told(File, Counter);
    impl AsFd for Told {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
    impl Handler for Told {
        fn ready(&mut self, _: Ready, _: &mut Context<'_>) -> Next {
            unreachable!("it never was in a set")
        }
        fn closed(&mut self, _: cabrank::HandleId, _: Reason) {
            self.1.add(1);
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let closed = Counter::new();
    let told = Told(File::open("/proc/self/exe").unwrap(), closed.clone());
    let rejected = pool.handles().register(told, Interest::READABLE).unwrap_err();
    // What the rejection becomes for those who do not want the handler.
    let error: io::Error = rejected.into();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    still_serves(&pool);
    drop(pool);
    assert_eq!(closed.get(), 0);
}

#[test]
fn a_descriptor_is_registered_once_and_its_duplicate_as_another() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, mut there) = util::stream_pair();
    let here = Arc::new(here);
    let id = pool.handles().register(silent(Arc::clone(&here)), Interest::READABLE).unwrap();
    for registration in
        [Interest::WRITABLE.into(), Registration::new(Interest::READABLE).suspended()]
    {
        let again = pool.handles().register(silent(Arc::clone(&here)), registration).unwrap_err();
        assert!(matches!(again.error, Error::AlreadyRegistered { fd } if fd == here.as_raw_fd()));
        let mentions = ["registered", "already", "remove it first"];
        check(again.error, &mentions, Some(libc::EEXIST), ErrorKind::AlreadyExists);
    }
    assert_eq!(pool.handles().len(), 1, "the first registration stays");
    assert!(pool.handles().contains(id));

    let duplicate = here.try_clone().unwrap();
    let (seen, count) = (Counter::new(), Counter::new());
    let told = seen.clone();
    let other = handler_fn(duplicate, move |stream: &mut UnixStream, _, _| {
        count.add(util::read_some(stream).map_or(0, |bytes| bytes.len() as u64));
        told.add(1);
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(other, Interest::READABLE).unwrap();
    io::Write::write_all(&mut there, b"x").unwrap();
    seen.wait_for(1);
    still_serves(&pool);
}

#[test]
fn a_pool_cannot_watch_itself_nor_two_pools_each_other() {
    let (first, _watchdog) = pool(Pool::builder().threads(2));
    let (second, _other_watchdog) = pool(Pool::builder().threads(2));
    let itself = silent(first.handles().clone());
    let error = Error::from(first.handles().register(itself, Interest::READABLE).unwrap_err());
    assert!(matches!(error, Error::Register { .. }), "{error:?}");
    check(error, &["register descriptor"], Some(libc::EINVAL), ErrorKind::InvalidInput);

    let inner = silent(first.handles().clone());
    second.handles().register(inner, Interest::READABLE).unwrap();
    let outer = silent(second.handles().clone());
    let error = Error::from(first.handles().register(outer, Interest::READABLE).unwrap_err());
    let kind = io::Error::from_raw_os_error(libc::ELOOP).kind();
    check(error, &["register descriptor"], Some(libc::ELOOP), kind);
    still_serves(&first);
    still_serves(&second);
}

#[test]
fn a_number_that_is_not_open_is_refused() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    // Beyond every limit, so that no other test opens it meanwhile.
    let number = 1 << 30;
    // SAFETY: the kernel refuses the number, so nobody will take it for open.
    let refused = unsafe { pool.handles().register_raw(number, Interest::READABLE, never) };
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Register { fd, .. } if fd == number), "{error:?}");
    let kind = io::Error::from_raw_os_error(libc::EBADF).kind();
    check(error, &["register", &number.to_string()], Some(libc::EBADF), kind);
    assert!(pool.handles().is_empty());
    still_serves(&pool);
}

#[test]
fn an_empty_interest_cannot_be_made() {
    let both = Interest::READABLE | Interest::WRITABLE;
    for interest in [both, Interest::PRIORITY, both | Interest::PRIORITY] {
        let error = interest.without(interest).unwrap_err();
        assert!(matches!(error, Error::EmptyInterest));
        check(error, &["interest is empty", "suspend"], None, ErrorKind::InvalidInput);
        assert!(interest.without(both | Interest::PRIORITY).is_err());
    }
    assert_eq!(both.without(Interest::PRIORITY).unwrap(), both);
}

#[test]
fn a_registration_that_is_lost_behind_our_back_is_an_error_and_closes_the_handle() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let lose = |number: RawFd, pool: &Pool| {
        let (epoll, operation) = (pool.handles().as_fd().as_raw_fd(), libc::EPOLL_CTL_DEL);
        // SAFETY: deleting takes no event; both descriptors are open.
        let deleted = unsafe { libc::epoll_ctl(epoll, operation, number, std::ptr::null_mut()) };
        assert_eq!(deleted, 0);
    };
    let (probe, _peer) = Probe::pair(util::echo);
    let (number, closed) = (probe.stream.as_raw_fd(), probe.closed.clone());
    let reason = Arc::clone(&probe.reason);
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    lose(number, &pool);
    let error = pool.handles().set_interest(id, Interest::WRITABLE).unwrap_err();
    assert!(matches!(error, Error::Change { id: named, .. } if named == id), "{error:?}");
    let mentions = ["change the interest", &id.to_string(), "closed"];
    check(error, &mentions, Some(libc::ENOENT), ErrorKind::NotFound);
    assert_eq!((closed.get(), pool.handles().len()), (1, 0));
    let reason = reason.lock().unwrap().take().unwrap();
    assert!(reason.starts_with("Failed"), "{reason}");
    still_serves(&pool);
}

// Ids that mean nothing here.

type Operation = fn(&Pool, HandleId) -> cabrank::Result<()>;

/// Everything that takes an id and can fail.
const OPERATIONS: [(&str, Operation); 5] = [
    ("set_interest", |pool, id| pool.handles().set_interest(id, Interest::WRITABLE)),
    ("suspend", |pool, id| pool.handles().suspend(id)),
    ("resume", |pool, id| pool.handles().resume(id)),
    ("remove", |pool, id| pool.handles().remove(id).map(drop)),
    ("remove, from elsewhere", |pool, id| pool.remote().handles().remove(id).map(drop)),
];

#[test]
fn the_id_of_a_handle_that_is_gone_is_unknown_to_every_operation() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let register = || {
        let (here, there) = util::stream_pair();
        (pool.handles().register(silent(here), Interest::READABLE).unwrap(), there)
    };
    let (removed, _there) = register();
    assert_eq!(pool.handles().remove(removed).unwrap(), Removal::Done);
    // The same slot again, with another tenant.
    let (tenant, _there) = register();
    assert_ne!(removed, tenant);
    // And one that has closed itself.
    let (probe, peer) = Probe::pair(util::echo);
    let closed = probe.closed.clone();
    let by_verdict = pool.handles().register(probe, Interest::READABLE).unwrap();
    drop(peer);
    closed.wait_for(1);
    wait_until("it is gone", || !pool.handles().contains(by_verdict));
    for gone in [removed, by_verdict] {
        assert!(!pool.handles().contains(gone));
        for (name, operation) in OPERATIONS {
            let error = operation(&pool, gone).expect_err(name);
            assert!(
                matches!(error, Error::UnknownHandle { id } if id == gone),
                "{name}: {error:?}"
            );
            let mentions = [gone.to_string(), "not registered any more".into()];
            let mentions = mentions.each_ref().map(String::as_str);
            check(error, &mentions, None, ErrorKind::NotFound);
        }
    }
    assert!(pool.handles().contains(tenant), "the tenant has noticed nothing");
    still_serves(&pool);
}

#[test]
fn the_id_of_another_pool_is_foreign_to_every_operation() {
    let (ours, _watchdog) = pool(Pool::builder().threads(2));
    let (theirs, _other_watchdog) = pool(Pool::builder().threads(2));
    // Both in their sets' first slot.
    let (probe, mut peer) = Probe::pair(util::echo);
    let our_id = ours.handles().register(probe, Interest::READABLE).unwrap();
    let (probe, mut their_peer) = Probe::pair(util::echo);
    let their_id = theirs.handles().register(probe, Interest::READABLE).unwrap();
    assert_ne!(our_id, their_id);
    assert!(!ours.handles().contains(their_id));
    for (name, operation) in OPERATIONS {
        let error = operation(&ours, their_id).expect_err(name);
        assert!(
            matches!(error, Error::ForeignHandle { id } if id == their_id),
            "{name}: {error:?}"
        );
        let mentions = [their_id.to_string(), "another handle set".into()];
        check(error, &mentions.each_ref().map(String::as_str), None, ErrorKind::InvalidInput);
    }
    ping(&mut peer);
    ping(&mut their_peer);
    drop(theirs);
    assert!(matches!(ours.handles().remove(their_id), Err(Error::ForeignHandle { .. })));
    still_serves(&ours);
}

// Limits.

#[test]
fn a_full_table_refuses_and_recovers() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2).max_handles(3));
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (probe, peer) = Probe::pair(util::echo);
        ids.push(pool.handles().register(probe, Interest::READABLE).unwrap());
        peers.push(peer);
    }
    let full = || {
        let (probe, peer) = Probe::pair(util::echo);
        let rejected = pool.handles().register(probe, Interest::READABLE).map(drop).unwrap_err();
        assert!(matches!(rejected.error, Error::TableFull { limit: 3 }), "{:?}", rejected.error);
        check(rejected.error, &["full", "3", "max_handles"], None, ErrorKind::OutOfMemory);
        // What comes back is whole: it can be registered later.
        (rejected.handler, peer)
    };
    let (probe, mut peer) = full();
    let _ = full();
    peers.iter_mut().for_each(ping);
    assert_eq!(pool.handles().remove(ids[1]).unwrap(), Removal::Done);
    let late = pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    let _ = full();
    // Also a handle that closes itself makes room.
    drop(peers.swap_remove(0));
    wait_until("it has closed", || pool.handles().len() == 2);
    still_serves(&pool);
    ping(&mut peer);
    pool.handles().remove(late).unwrap();
}
