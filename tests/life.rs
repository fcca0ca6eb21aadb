//! Life and death of a pool: shutdown from anywhere, panics contained.

mod util;

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::{
    Builder, Context, Ending, Error, Handler, Interest, Left, Next, OnPanic, Pool, Ready, Reason,
    Role,
};
use util::{Counter, PATIENCE, Probe, Random, echo, ping, pool, read_some, seed, soak};

fn policies() -> [Builder; 3] {
    [Pool::builder(), Pool::builder().papers(), Pool::builder().leaders(1)]
}

/// I8: with 0, 1, all but one and all threads in handlers.
#[test]
fn shutdown_ends_every_thread_from_any_state() {
    for builder in policies() {
        for in_handlers in 0..=4 {
            let (pool, _watchdog) = pool(builder.clone().threads(4));
            let (inside, entered) = mpsc::channel();
            let gate = Arc::new(Barrier::new(in_handlers + 1));
            let mut peers = Vec::new();
            for _ in 0..in_handlers {
                let (inside, gate) = (inside.clone(), Arc::clone(&gate));
                let (probe, mut peer) =
                    Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
                        inside.send(()).unwrap();
                        gate.wait();
                        Next::Rearm(Interest::READABLE)
                    });
                pool.handles().register(probe, Interest::READABLE).unwrap();
                peer.write_all(b"x").unwrap();
                peers.push(peer);
            }
            for _ in 0..in_handlers {
                entered.recv_timeout(PATIENCE).expect("a thread in its handler");
            }
            pool.shutdown();
            gate.wait();
            let report = pool.finish();
            let all_left = |ending: &Ending| matches!(ending, Ending::Left(Left::Shutdown));
            assert!(report.threads.iter().all(all_left), "{report:?}");
            assert_eq!(report.threads.len(), 4);
        }
    }
}

#[test]
fn shutdown_twice_and_from_everywhere_at_once_is_one_shutdown() {
    for builder in policies() {
        let (pool, _watchdog) = pool(builder.threads(3));
        let (probe, mut peer) = Probe::pair(|_: &mut UnixStream, _, cx: &mut Context<'_>| {
            cx.shutdown();
            cx.shutdown();
            Next::Rearm(Interest::READABLE)
        });
        let closed = probe.closed.clone();
        pool.handles().register(probe, Interest::READABLE).unwrap();
        thread::scope(|scope| {
            for _ in 0..3 {
                let remote = pool.remote();
                scope.spawn(move || remote.shutdown());
            }
            // The pool, and with it our peer, may be gone already.
            let _ = peer.write_all(b"x");
            pool.shutdown();
        });
        assert!(pool.is_shut_down());
        pool.finish();
        assert_eq!(closed.get(), 1);
    }
}

/// No handler is lost or leaked by being registered while the pool goes down.
#[test]
fn registering_during_shutdown_succeeds_or_is_refused() {
    for round in 0..50 {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (registered, refused, closed) = (Counter::new(), Counter::new(), Counter::new());
        thread::scope(|scope| {
            for _ in 0..2 {
                let handles = pool.handles().clone();
                let (registered, refused, closed) =
                    (registered.clone(), refused.clone(), closed.clone());
                scope.spawn(move || {
                    while refused.get() == 0 {
                        let (mut probe, _peer) = Probe::pair(echo);
                        probe.closed = closed.clone();
                        match handles.register(probe, Interest::READABLE) {
                            Ok(_) => registered.add(1),
                            Err(rejected) => {
                                assert!(matches!(rejected.error, Error::ShutDown), "{rejected}");
                                refused.add(1)
                            }
                        };
                    }
                });
            }
            thread::sleep(Duration::from_micros(200 * round));
            pool.finish();
        });
        // A registration that was under way is taken out by the thread that made it.
        closed.wait_for(registered.get());
        assert_eq!(closed.get(), registered.get());
    }
}

#[test]
fn dropping_the_pool_joins_and_closes_everything() {
    let closed = Counter::new();
    let stopped = Counter::new();
    let count = stopped.clone();
    let builder = Pool::builder().threads(3).on_thread_stop(move |_| _ = count.add(1));
    let (pool, _watchdog) = pool(builder);
    let mut peers = Vec::new();
    for _ in 0..100 {
        let (mut probe, peer) = Probe::pair(echo);
        probe.closed = closed.clone();
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peers.push(peer);
    }
    let handles = pool.handles().clone();
    drop(pool);
    assert_eq!((closed.get(), stopped.get()), (100, 3));
    assert!(handles.is_empty());
    let (probe, _peer) = Probe::pair(echo);
    let rejected = handles.register(probe, Interest::READABLE).unwrap_err();
    assert!(matches!(rejected.error, Error::ShutDown));
}

#[test]
fn a_deadline_hands_the_pool_back_while_a_handler_runs() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (inside, entered) = mpsc::channel();
    let (go_on, told) = mpsc::channel::<()>();
    let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
        inside.send(()).unwrap();
        told.recv().unwrap();
        Next::Rearm(Interest::READABLE)
    });
    let closed = probe.closed.clone();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    entered.recv_timeout(PATIENCE).unwrap();
    let unfinished = pool.finish_within(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(unfinished.error, Error::StillRunning { threads: 1, .. }), "{unfinished}");
    assert_eq!(closed.get(), 0, "closed while its handler runs");
    go_on.send(()).unwrap();
    let report = unfinished.pool.finish_within(PATIENCE).unwrap();
    assert_eq!(closed.get(), 1);
    assert_eq!(report.metrics.total().events, 1);
}

/// A handler may hold the last reference to its own pool.
#[test]
fn a_pool_dropped_by_its_own_handler_ends() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let owner: Arc<Mutex<Option<Pool>>> = Arc::default();
    let held = Arc::clone(&owner);
    let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
        drop(held.lock().unwrap().take());
        Next::Rearm(Interest::READABLE)
    });
    let closed = probe.closed.clone();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    *owner.lock().unwrap() = Some(pool);
    peer.write_all(b"x").unwrap();
    closed.wait_for(1);
}

/// The main thread takes part until a handler stops the pool; nothing runs afterwards.
#[test]
fn join_returns_when_a_handler_shuts_the_pool_down() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1).joiners(1));
    let (probe, mut peer) = Probe::pair(|stream, _, cx: &mut Context<'_>| {
        if read_some(stream).is_some_and(|bytes| bytes == b"q") {
            cx.shutdown();
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let writer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(5));
        peer.write_all(b"q").unwrap();
        peer
    });
    pool.join().unwrap();
    let _peer = writer.join().unwrap();
    assert!(matches!(pool.join(), Err(Error::ShutDown)));
    assert!(matches!(pool.join_timeout(Duration::from_secs(1)), Err(Error::ShutDown)));
}

/// I9, and ACE's Reactor_Exceptions_Test with the state afterwards declared.
#[test]
fn a_panicking_handler_costs_its_connection_only() {
    for builder in policies() {
        let (pool, _watchdog) = pool(builder.threads(3));
        let (good, mut good_peer) = Probe::pair(echo);
        pool.handles().register(good, Interest::READABLE).unwrap();
        for number in 1..=30 {
            let (bad, mut peer) =
                Probe::pair(|_: &mut UnixStream, _, _: &mut Context<'_>| panic!("on purpose"));
            let (closed, reason) = (bad.closed.clone(), Arc::clone(&bad.reason));
            pool.handles().register(bad, Interest::READABLE).unwrap();
            peer.write_all(b"x").unwrap();
            closed.wait_for(1);
            assert_eq!(reason.lock().unwrap().as_deref(), Some("Panicked"));
            // Its descriptor is closed: the peer sees the end.
            assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap_or(0), 0);
            ping(&mut good_peer);
            util::wait_until("the count", || pool.metrics().total().panics == number);
        }
        let at_work = pool.metrics().threads.iter().filter(|t| t.role != Role::Away).count();
        assert_eq!(at_work, 3, "a thread is lost");
        util::wait_until("the slots given back", || pool.handles().len() == 1);
    }
}

/// Panics in the hook, in the destructor, and in `as_fd` are contained too, and counted.
#[test]
fn panics_outside_the_handler_are_contained() {
    struct Bomb {
        stream: UnixStream,
        when: &'static str,
        armed: bool,
        dropped: Counter,
    }
    impl Handler for Bomb {
        fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
            self.armed = true;
            if self.when == "as_fd" { Next::Rearm(Interest::READABLE) } else { Next::Close }
        }
        fn closed(&mut self, _id: cabrank::HandleId, _reason: Reason) {
            assert!(self.when != "closed", "on purpose");
        }
    }
    impl AsFd for Bomb {
        fn as_fd(&self) -> BorrowedFd<'_> {
            assert!(!(self.armed && self.when == "as_fd"), "on purpose");
            self.stream.as_fd()
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.dropped.add(1);
            assert!(self.when != "drop" || thread::panicking(), "on purpose");
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (good, mut good_peer) = Probe::pair(echo);
    pool.handles().register(good, Interest::READABLE).unwrap();
    // What `as_fd` returns is asked for after the call, and once more when the handle is taken out.
    for (when, panics) in [("closed", 1), ("drop", 1), ("as_fd", 2)] {
        let before = pool.metrics().total().panics;
        let (stream, mut peer) = util::stream_pair();
        let dropped = Counter::new();
        let bomb = Bomb { stream, when, armed: false, dropped: dropped.clone() };
        pool.handles().register(bomb, Interest::READABLE).unwrap();
        peer.write_all(b"x").unwrap();
        dropped.wait_for(1);
        ping(&mut good_peer);
        assert_eq!(dropped.get(), 1);
        util::wait_until("all counted", || pool.metrics().total().panics - before >= panics);
        assert_eq!(pool.metrics().total().panics - before, panics, "{when}");
    }
    util::wait_until("slots given back", || pool.handles().len() == 1);
}

/// The other policy: the process ends. In a process of its own.
#[test]
fn a_panic_can_be_made_to_abort() {
    if std::env::var_os("CABRANK_ABORT").is_some() {
        let pool = Pool::builder().threads(1).on_panic(OnPanic::Abort).build().unwrap();
        let (bad, mut peer) =
            Probe::pair(|_: &mut UnixStream, _, _: &mut Context<'_>| panic!("on purpose"));
        pool.handles().register(bad, Interest::READABLE).unwrap();
        peer.write_all(b"x").unwrap();
        thread::sleep(PATIENCE);
        return;
    }
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_panic_can_be_made_to_abort"])
        .env("CABRANK_ABORT", "1")
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
}

/// Everything at once, at random: traffic, removals, suspensions, panics, members that come and go, and
/// then the end. Repeat with CABRANK_SEED, lengthen with CABRANK_SOAK_SECONDS.
#[test]
fn soak_of_everything_at_once() {
    let seed = seed();
    for (number, builder) in policies().into_iter().enumerate() {
        let (pool, _watchdog) = pool(builder.threads(4).joiners(1));
        let end = std::time::Instant::now() + soak() / 3;
        let (registered, closed) = (Counter::new(), Counter::new());
        thread::scope(|scope| {
            for worker in 0..3_u64 {
                let (pool, registered, closed) = (&pool, registered.clone(), closed.clone());
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ (worker + 1 + 10 * number as u64));
                    while std::time::Instant::now() < end {
                        let kind = random.below(10);
                        let (mut probe, mut peer) = Probe::pair(
                            move |stream: &mut UnixStream, ready, cx: &mut Context<'_>| {
                                assert!(kind != 0, "on purpose");
                                if kind == 1 {
                                    thread::sleep(Duration::from_micros(300));
                                }
                                echo(stream, ready, cx)
                            },
                        );
                        probe.closed = closed.clone();
                        let id = pool.handles().register(probe, Interest::READABLE).unwrap();
                        registered.add(1);
                        if kind == 0 {
                            let _ = peer.write_all(b"x");
                            let _ = pool.handles().suspend(id);
                            let _ = pool.handles().remove(id);
                            continue;
                        }
                        for _ in 0..random.below(20) {
                            ping(&mut peer);
                        }
                        match kind {
                            2 => _ = pool.handles().remove(id).unwrap(),
                            3 => _ = pool.join_timeout(Duration::from_micros(random.below(500))),
                            4 => {
                                pool.handles().suspend(id).unwrap();
                                peer.write_all(b"p").unwrap();
                                pool.handles().resume(id).unwrap();
                                let mut back = [0];
                                std::io::Read::read_exact(&mut peer, &mut back).unwrap();
                            }
                            _ => {}
                        }
                    }
                });
            }
        });
        pool.finish();
        assert_eq!(closed.get(), registered.get());
    }
}
