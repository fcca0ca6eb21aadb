//! What comes too late, or in the wrong place, is refused with the right error, and hangs nobody:
//! after shutdown, from inside a handler, and in a forked child.
#![allow(unsafe_code)] // forking, and registering by number

mod util;

use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cabrank::net::ListenOptions;
use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Builder, Capacity, Context, Ending, Error, HandleId, Interest, Left, Next, Pool, Registration,
    SendError, Turn, Watch, WhenFull, shared_fn,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use util::refusals::{check, never, silent, still_serves};
use util::{Counter, Probe, in_own_process, ping, pool};

// After the end.

#[test]
fn shutting_down_twice_is_shutting_down() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let remote = pool.remote();
    assert!(!pool.is_shut_down());
    for _ in 0..3 {
        pool.shutdown();
        remote.shutdown();
        assert!(pool.is_shut_down() && remote.is_shut_down());
    }
    let report = pool.finish();
    assert!(report.threads.iter().all(|ending| matches!(ending, Ending::Left(Left::Shutdown))));
    remote.shutdown();
    assert!(remote.is_shut_down());
}

#[test]
fn joining_after_shutdown_is_refused_at_once() {
    for threads in [0, 2] {
        let (pool, _watchdog) = pool(Pool::builder().threads(threads).joiners(1));
        pool.shutdown();
        for error in [
            pool.join().unwrap_err(),
            pool.join_timeout(Duration::from_secs(3_600)).unwrap_err(),
            pool.enlist().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::ShutDown), "{error:?}");
            check(error, &["shut down"], None, ErrorKind::BrokenPipe);
        }
    }
}

#[test]
fn joining_from_inside_a_handler_is_refused() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let pool = Arc::new(pool);
    let answers: Arc<Mutex<Vec<Error>>> = Arc::default();
    let (inside, told) = (Arc::downgrade(&pool), Arc::clone(&answers));
    let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
        let pool = inside.upgrade().unwrap();
        let errors = [pool.join(), pool.join_timeout(Duration::ZERO).map(drop)];
        told.lock().unwrap().extend(errors.map(Result::unwrap_err));
        util::echo(stream, ready, cx)
    });
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    for error in std::mem::take(&mut *answers.lock().unwrap()) {
        assert!(matches!(error, Error::AlreadyJoined), "{error:?}");
        check(error, &["takes part in the pool already"], None, ErrorKind::Other);
    }
    pool.handles().remove(id).unwrap();
    still_serves(&pool);
}

#[test]
fn joining_from_a_handler_of_another_pool_is_allowed() {
    let (outer, _watchdog) = pool(Pool::builder().threads(2));
    let (inner, _other_watchdog) = pool(Pool::builder().threads(1));
    let inner = Arc::new(inner);
    let other = Arc::clone(&inner);
    let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
        assert!(matches!(other.join_timeout(Duration::from_millis(1)), Ok(Left::TimedOut)));
        util::echo(stream, ready, cx)
    });
    let id = outer.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    outer.handles().remove(id).unwrap();
    still_serves(&inner);
    still_serves(&outer);
}

#[test]
fn registering_after_the_end_is_refused_and_gives_the_handler_back() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (remote, handles) = (pool.remote(), pool.handles().clone());
    let (probe, _peer) = Probe::pair(util::echo);
    let id = handles.register(probe, Interest::READABLE).unwrap();
    pool.finish();
    assert!(handles.is_empty());
    for _ in 0..2 {
        let (probe, _peer) = Probe::pair(util::echo);
        let closed = probe.closed.clone();
        let rejected = remote.handles().register(probe, Interest::READABLE).err().unwrap();
        assert!(matches!(rejected.error, Error::ShutDown), "{:?}", rejected.error);
        assert_eq!(closed.get(), 0);
        rejected.handler.stream.shutdown(std::net::Shutdown::Both).expect("it is open");
        check(rejected.error, &["shut down"], None, ErrorKind::BrokenPipe);
    }
    assert!(matches!(handles.remove(id), Err(Error::UnknownHandle { .. })));
    assert!(matches!(handles.resume(id), Err(Error::UnknownHandle { .. })));
}

#[test]
fn registering_while_the_pool_stops_is_refused_or_closed_with_the_rest() {
    for _ in 0..50 {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let handles = pool.handles().clone();
        let stopped = AtomicBool::new(false);
        let (registered, closed) = thread::scope(|scope| {
            let registering = scope.spawn(|| {
                let closed = Counter::new();
                let mut registered = 0;
                while !stopped.load(Ordering::SeqCst) {
                    let (mut probe, _peer) = Probe::pair(util::echo);
                    probe.closed = closed.clone();
                    match handles.register(probe, Interest::READABLE) {
                        Ok(_) => registered += 1,
                        Err(rejected) => assert!(matches!(rejected.error, Error::ShutDown)),
                    }
                }
                (registered, closed)
            });
            pool.finish();
            stopped.store(true, Ordering::SeqCst);
            registering.join().unwrap()
        });
        assert_eq!(closed.get(), registered, "every handler that was taken in was closed");
        assert!(handles.is_empty());
    }
}

// After a fork.

/// Forks, runs `code` in the child, and returns the number the child ends with: 0 is success. A
/// child that does not end is killed, and has none.
fn forked(code: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child's only thread calls into the engine and the allocator, which the C library
    // keeps usable across a fork, and ends by `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = catch_unwind(AssertUnwindSafe(code)).unwrap_or(99);
            // SAFETY: ends the child without running what is its parent's to run.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            let start = std::time::Instant::now();
            loop {
                match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
                    WaitStatus::Exited(_, status) => return Some(status),
                    WaitStatus::StillAlive if start.elapsed() < Duration::from_secs(5) => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    WaitStatus::StillAlive => {
                        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
                        waitpid(child, None).unwrap();
                        return None;
                    }
                    _ => return None,
                }
            }
        }
    }
}

/// The number, from 1, of the first that is not so; 0 if all are.
fn first_that_is_not(answers: &[bool]) -> i32 {
    answers.iter().position(|&answer| !answer).map_or(0, |at| at as i32 + 1)
}

fn is_forked<T, E: Into<Error>>(result: Result<T, E>) -> bool {
    result.err().is_some_and(|error| matches!(error.into(), Error::Forked))
}

/// A pool with a registered echo and a suspended handle, and what is needed to use it.
struct Inhabited {
    pool: Pool,
    id: HandleId,
    peer: UnixStream,
    suspended: HandleId,
    _other_peer: UnixStream,
}

impl Inhabited {
    fn new(builder: Builder) -> Inhabited {
        let pool = builder.build().unwrap();
        let (probe, peer) = Probe::pair(util::echo);
        let id = pool.handles().register(probe, Interest::READABLE).unwrap();
        let (here, _other_peer) = util::stream_pair();
        let registration = Registration::new(Interest::READABLE).suspended();
        let suspended = pool.handles().register(silent(here), registration).unwrap();
        Inhabited { pool, id, peer, suspended, _other_peer }
    }

    /// What the parent must find after its child has tried everything.
    fn is_undisturbed(&mut self) {
        assert_eq!(self.pool.handles().len(), 2);
        assert!(self.pool.handles().contains(self.id));
        for _ in 0..3 {
            ping(&mut self.peer);
        }
        assert!(!self.pool.is_shut_down());
        still_serves(&self.pool);
        self.pool.handles().resume(self.suspended).unwrap();
        self.pool.handles().set_interest(self.id, Interest::READABLE).unwrap();
        ping(&mut self.peer);
    }

    /// The same for a pool without threads: one joins it.
    fn serves_by_joining(mut self) {
        assert_eq!(self.pool.handles().len(), 2);
        let (pool, peer) = (&self.pool, &mut self.peer);
        thread::scope(|scope| {
            let joined = scope.spawn(|| pool.join());
            ping(peer);
            ping(peer);
            pool.shutdown();
            joined.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_forked_child_is_refused_everything() {
    in_own_process("a_forked_child_is_refused_everything", || {
        let mut inhabited = Inhabited::new(Pool::builder().threads(2));
        ping(&mut inhabited.peer);
        let remote = inhabited.pool.remote();
        let status = forked(|| {
            let Inhabited { pool, id, suspended, .. } = &inhabited;
            let handles = pool.handles();
            let eventfd = || EventFd::new().unwrap();
            let shared = shared_fn(eventfd(), |_: &EventFd, _, _: &mut _| Next::Close);
            let raw = eventfd();
            let number = raw.as_fd().as_raw_fd();
            // SAFETY: refused; and it stays open.
            let by_number = unsafe { handles.register_raw(number, Interest::READABLE, never) };
            first_that_is_not(&[
                is_forked(handles.register(silent(eventfd()), Interest::READABLE)),
                is_forked(handles.register_shared(shared, Interest::READABLE)),
                is_forked(by_number),
                is_forked(handles.set_interest(*id, Interest::WRITABLE)),
                is_forked(handles.suspend(*id)),
                is_forked(handles.resume(*suspended)),
                is_forked(handles.remove(*id)),
                is_forked(remote.handles().remove(*suspended)),
                is_forked(pool.join()),
                is_forked(pool.join_timeout(Duration::from_secs(1))),
                is_forked(pool.enlist()),
                // These have no error to give, and do nothing.
                {
                    pool.shutdown();
                    remote.shutdown();
                    !pool.is_shut_down()
                },
                pool.metrics().threads.is_empty(),
                io::Error::from(pool.join().unwrap_err()).kind() == ErrorKind::Other,
                pool.join().unwrap_err().to_string().contains("fork"),
            ])
        });
        assert_eq!(status, Some(0), "the number of the operation that was not refused");
        inhabited.is_undisturbed();
    });
}

#[test]
fn dropping_a_pool_in_a_forked_child_neither_hangs_nor_disturbs_the_parent() {
    let test = "dropping_a_pool_in_a_forked_child_neither_hangs_nor_disturbs_the_parent";
    in_own_process(test, || {
        for builder in [
            Pool::builder().threads(2),
            Pool::builder().threads(4).papers(),
            // The child has the only reference then, and drops the handlers too.
            Pool::builder().threads(0).joiners(1),
        ] {
            let mut inhabited = Some(Inhabited::new(builder));
            let status = forked(|| {
                drop(inhabited.take());
                0
            });
            assert_eq!(status, Some(0), "the child has hung or died");
            let mut inhabited = inhabited.expect("the parent's is the parent's");
            if inhabited.pool.metrics().threads.is_empty() {
                inhabited.serves_by_joining();
            } else {
                inhabited.is_undisturbed();
            }
        }
    });
}

#[test]
fn finishing_a_pool_in_a_forked_child_does_not_hang() {
    in_own_process("finishing_a_pool_in_a_forked_child_does_not_hang", || {
        let mut inhabited = Some(Inhabited::new(Pool::builder().threads(2)));
        let status = forked(|| {
            let Inhabited { pool, .. } = inhabited.take().unwrap();
            drop(pool.finish());
            0
        });
        assert_eq!(status, Some(0), "finish has hung or died");
        let status = forked(|| {
            let Inhabited { pool, .. } = inhabited.take().unwrap();
            drop(pool.finish_within(Duration::from_millis(10)));
            0
        });
        assert_eq!(status, Some(0), "finish_within has hung or died");
        inhabited.unwrap().is_undisturbed();
    });
}

#[test]
fn a_forked_child_makes_pools_of_its_own() {
    in_own_process("a_forked_child_makes_pools_of_its_own", || {
        let mut inhabited = Inhabited::new(Pool::builder().threads(2));
        let status = forked(|| {
            let pool = Pool::builder().threads(2).build().unwrap();
            still_serves(&pool);
            let foreign = pool.handles().remove(inhabited.id);
            first_that_is_not(&[
                matches!(foreign, Err(Error::ForeignHandle { .. })),
                pool.finish().threads.len() == 2,
                is_forked(inhabited.pool.join()),
            ])
        });
        assert_eq!(status, Some(0));
        inhabited.is_undisturbed();
    });
}

#[test]
fn a_forked_child_leaves_its_parents_socket_file_alone() {
    in_own_process("a_forked_child_leaves_its_parents_socket_file_alone", || {
        let path = std::env::temp_dir().join(format!("cabrank-forked-{}", std::process::id()));
        let mut listener = Some(ListenOptions::new().unix(&path).unwrap());
        let status = forked(|| {
            drop(listener.take());
            0
        });
        assert_eq!(status, Some(0));
        assert!(path.exists(), "the parent listens on");
        drop(listener);
        assert!(!path.exists(), "left behind");
    });
}

/// Whatever role the forking thread had, its copy in the child takes nothing of the parent's: the event
/// that was detected, or is to be processed, stays the parent's.
#[test]
fn a_role_carried_over_a_fork_takes_nothing_from_the_parent() {
    in_own_process("a_role_carried_over_a_fork_takes_nothing_from_the_parent", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1).papers());
        let (probe, mut peer) = Probe::pair(util::echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peer.write_all(b"p").unwrap();
        let is_over = |turn| matches!(turn, Turn::Leave(Left::Forked));

        let mut follower = Some(pool.enlist().unwrap());
        let status = forked(|| i32::from(!is_over(follower.take().unwrap().follow())));
        assert_eq!(status, Some(0), "a follower follows in the child");

        let Turn::Lead(leader) = follower.unwrap().follow() else { panic!("not the leader") };
        let mut leader = Some(leader);
        let status = forked(|| match leader.take().unwrap().wait() {
            Watch::Nothing(follower) => i32::from(!is_over(follower.follow())),
            Watch::Detected(_) => 2,
        });
        assert_eq!(status, Some(0), "a leader waits in the child");

        let Watch::Detected(detected) = leader.unwrap().wait() else { panic!("the event is lost") };
        let mut detected = Some(detected);
        let status = forked(|| match detected.take().unwrap().promote() {
            Err(follower) => i32::from(!is_over(follower.follow())),
            Ok(_) => 2,
        });
        assert_eq!(status, Some(0), "a leader promotes in the child");

        let mut processing = Some(detected.unwrap().promote().expect("nobody else runs"));
        let status = forked(|| i32::from(!is_over(processing.take().unwrap().process().follow())));
        assert_eq!(status, Some(0), "a handler runs in the child");

        // Nothing has happened to any of them here.
        drop(processing.unwrap().process());
        let mut back = [0];
        peer.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"p");
    });
}

/// It was swallowed, or waited for room that nobody would make.
#[test]
fn a_message_sent_in_a_forked_child_is_refused() {
    in_own_process("a_message_sent_in_a_forked_child_is_refused", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
        let receive = |_: u32, _: &mut Context<'_>| ControlFlow::Continue(());
        let capacity = Capacity::bounded(1, WhenFull::Wait);
        let mailbox = pool.handles().mailbox(capacity, receive).unwrap();
        mailbox.send(1).unwrap();
        let status = forked(|| {
            let refused = mailbox.send(2);
            first_that_is_not(&[
                matches!(refused, Err(SendError::Forked(2))),
                mailbox.is_empty(),
                mailbox.purge() == 0,
            ])
        });
        assert_eq!(status, Some(0));
        assert_eq!(mailbox.len(), 1, "the parent's message");
    });
}

/// The child waited for the parent's lock, which a thread had that was not there.
#[test]
fn a_mailbox_that_was_in_use_at_a_fork_does_not_hang_the_child() {
    in_own_process("a_mailbox_that_was_in_use_at_a_fork_does_not_hang_the_child", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
        let receive = |_: u32, _: &mut Context<'_>| ControlFlow::Continue(());
        let capacity = Capacity::bounded(1, WhenFull::DropOldest);
        let mailbox = pool.handles().mailbox(capacity, receive).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    mailbox.send(1).unwrap();
                }
            });
            let ends = |_| forked(|| (mailbox.len() + mailbox.purge()) as i32) == Some(0);
            let all_end = (0..200).all(ends);
            stop.store(true, Ordering::Relaxed);
            assert!(all_end, "a child waits for its parent's lock");
        });
    });
}
