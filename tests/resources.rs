//! What a pool takes it gives back: descriptors, threads, memory and handlers, however it ends.
//!
//! Counts are the whole process's, so each test that counts runs in a process of its own.
#![allow(unsafe_code)] // to take a registration away behind the engine's back

mod util;

use std::io::{Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Builder, Context, Deactivation, Error, Handler, Interest, Left, Next, Pool, Ready, Reason,
    Registration, SharedHandler, handler_fn,
};

use util::{Counter, Probe, descriptors, in_own_process, ping, pool, thread_count, wait_until};

/// What the process has, to be compared later.
#[derive(Debug, PartialEq)]
struct Possessions {
    descriptors: Vec<i32>,
    threads: usize,
}

impl Possessions {
    fn now() -> Possessions {
        Possessions { descriptors: descriptors(), threads: thread_count() }
    }

    /// A thread that has been joined can still be seen for a moment, so this waits.
    #[track_caller]
    fn come_back(&self) {
        wait_until("descriptors and threads are what they were", || Possessions::now() == *self);
    }
}

/// Sends so many bytes and goes; whoever reads them has events for as long.
fn leave_behind(mut peer: UnixStream, bytes: usize) {
    peer.write_all(&vec![0; bytes]).unwrap();
}

fn variants() -> [Builder; 4] {
    let builder = Pool::builder;
    [
        builder().threads(2),
        builder().threads(3).papers(),
        builder().threads(2).deactivation(Deactivation::Edge),
        builder().threads(1).joiners(1).leaders(2),
    ]
}

// Pools.

#[test]
fn two_thousand_pools_leave_nothing_behind() {
    in_own_process("two_thousand_pools_leave_nothing_behind", || {
        const POOLS: usize = 2_000;
        let use_one = |number: usize| {
            let pool = variants()[number % 4].clone().build().unwrap();
            let (probe, mut peer) = Probe::pair(util::echo);
            pool.handles().register(probe, Interest::READABLE).unwrap();
            ping(&mut peer);
            match number % 3 {
                0 => drop(pool),
                1 => drop(pool.finish()),
                _ => {
                    pool.shutdown();
                    drop(peer);
                    drop(pool.finish_within(util::PATIENCE).expect("nothing runs any more"));
                }
            }
        };
        // The allocator and the stacks that are kept for reuse settle first.
        (0..POOLS / 10).for_each(use_one);
        let (before, memory) = (Possessions::now(), util::resident_memory());
        (0..POOLS).for_each(use_one);
        before.come_back();
        let grown = util::resident_memory().saturating_sub(memory);
        // A pool that leaked as little as 8 KiB would show.
        assert!(grown < 16 << 20, "{} KiB more than before", grown >> 10);
    });
}

#[test]
fn pools_that_live_at_once_have_their_own() {
    in_own_process("pools_that_live_at_once_have_their_own", || {
        let before = Possessions::now();
        let pools: Vec<Pool> =
            (0..50).map(|_| Pool::builder().threads(2).build().unwrap()).collect();
        let now = Possessions::now();
        assert_eq!(now.threads, before.threads + 100);
        assert_eq!(now.descriptors.len(), before.descriptors.len() + 150, "three for each");
        drop(pools);
        before.come_back();
    });
}

#[test]
fn a_pool_with_pending_events_ends_without_them() {
    in_own_process("a_pool_with_pending_events_ends_without_them", || {
        for builder in variants() {
            let before = Possessions::now();
            let pool = builder.build().unwrap();
            let (closed, handled) = (Counter::new(), Counter::new());
            let mut peers = Vec::new();
            for _ in 0..200 {
                let count = handled.clone();
                let (mut probe, mut peer) = Probe::pair(move |stream, _, _| {
                    // A byte at a time, so that there is always more.
                    count.add(stream.read(&mut [0]).unwrap() as u64);
                    thread::sleep(Duration::from_micros(100));
                    Next::Rearm(Interest::READABLE)
                });
                probe.closed = closed.clone();
                peer.write_all(&[0; 512]).unwrap();
                pool.handles().register(probe, Interest::READABLE).unwrap();
                peers.push(peer);
            }
            handled.wait_for(10);
            drop(pool);
            let at_the_end = handled.get();
            assert_eq!(closed.get(), 200);
            assert!(at_the_end < 200 * 512, "nothing was pending");
            drop(peers);
            before.come_back();
            assert_eq!(handled.get(), at_the_end, "nothing runs afterwards");
        }
    });
}

#[test]
fn a_pool_with_suspended_handles_ends_and_tells_them() {
    in_own_process("a_pool_with_suspended_handles_ends_and_tells_them", || {
        for builder in variants() {
            let before = Possessions::now();
            let pool = builder.build().unwrap();
            let (closed, handled) = (Counter::new(), Counter::new());
            for number in 0..30 {
                let count = handled.clone();
                let (mut probe, peer) = Probe::pair(move |_, _, _| {
                    count.add(1);
                    Next::Suspend
                });
                probe.closed = closed.clone();
                leave_behind(peer, 10);
                let registration = Registration::new(Interest::READABLE);
                // By themselves, from the start, and from outside.
                if number % 3 == 0 {
                    pool.handles().register(probe, registration).unwrap();
                } else {
                    let id = pool.handles().register(probe, registration.suspended()).unwrap();
                    pool.handles().suspend(id).unwrap();
                }
            }
            handled.wait_for(10);
            assert_eq!(pool.handles().len(), 30);
            drop(pool);
            assert_eq!((closed.get(), handled.get()), (30, 10));
            before.come_back();
        }
    });
}

#[test]
fn a_pool_with_busy_handlers_waits_for_them() {
    in_own_process("a_pool_with_busy_handlers_waits_for_them", || {
        for builder in variants() {
            let before = Possessions::now();
            let pool = builder.build().unwrap();
            let (inside, gate, outside) = (Counter::new(), Counter::new(), Counter::new());
            let closed = Counter::new();
            for _ in 0..2 {
                let (enter, open, leave) = (inside.clone(), gate.clone(), outside.clone());
                let (mut probe, peer) = Probe::pair(move |_, _, _| {
                    enter.add(1);
                    open.wait_for(1);
                    leave.add(1);
                    Next::Rearm(Interest::READABLE)
                });
                probe.closed = closed.clone();
                leave_behind(peer, 1);
                pool.handles().register(probe, Interest::READABLE).unwrap();
            }
            let running = pool.metrics().threads.len().min(2) as u64;
            inside.wait_for(running);
            // Not within this time; and what is not finished can be waited for again.
            let unfinished = pool.finish_within(Duration::from_millis(5)).unwrap_err();
            assert_eq!((outside.get(), closed.get()), (0, 0));
            assert!(unfinished.to_string().contains("still running"), "{unfinished}");
            let Error::StillRunning { threads, .. } = unfinished.error else {
                panic!("{unfinished:?}");
            };
            assert_eq!(threads as u64, running);
            let opening = thread::spawn({
                let gate = gate.clone();
                move || {
                    thread::sleep(Duration::from_millis(2));
                    gate.add(1);
                }
            });
            drop(unfinished.pool);
            assert_eq!((outside.get(), closed.get()), (running, 2));
            assert_eq!(inside.get(), running, "nothing was started after the end");
            opening.join().unwrap();
            before.come_back();
        }
    });
}

#[test]
fn a_pool_dropped_by_its_own_handler_ends() {
    in_own_process("a_pool_dropped_by_its_own_handler_ends", || {
        for builder in variants() {
            let before = Possessions::now();
            let pool = builder.build().unwrap();
            let closed = Counter::new();
            let place: Arc<Mutex<Option<Pool>>> = Arc::default();
            let taken = Arc::clone(&place);
            let (mut probe, peer) = Probe::pair(move |_, _, _| {
                drop(taken.lock().unwrap().take());
                Next::Rearm(Interest::READABLE)
            });
            probe.closed = closed.clone();
            let (mut other, _other_peer) = Probe::pair(util::echo);
            other.closed = closed.clone();
            let handles = pool.handles().clone();
            *place.lock().unwrap() = Some(pool);
            handles.register(other, Interest::READABLE).unwrap();
            handles.register(probe, Interest::READABLE).unwrap();
            drop(handles);
            leave_behind(peer, 1);
            closed.wait_for(2);
            drop((place, _other_peer));
            before.come_back();
        }
    });
}

#[test]
fn what_outlives_a_pool_holds_three_descriptors_and_no_thread() {
    in_own_process("what_outlives_a_pool_holds_three_descriptors_and_no_thread", || {
        let before = Possessions::now();
        let pool = Pool::builder().threads(3).build().unwrap();
        let (remote, handles, waker) = (pool.remote(), pool.handles().clone(), pool.waker());
        let (probe, mut peer) = Probe::pair(util::echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        ping(&mut peer);
        drop((pool, peer));
        wait_until("the threads are gone", || thread_count() == before.threads);
        assert_eq!(descriptors().len(), before.descriptors.len() + 3);
        assert_eq!((handles.len(), remote.handles().len()), (0, 0));
        waker.wake();
        remote.shutdown();
        drop((remote, handles));
        assert_eq!(descriptors().len(), before.descriptors.len() + 1, "the waker's");
        waker.wake();
        drop(waker);
        before.come_back();
    });
}

#[test]
fn threads_that_join_and_leave_leave_nothing_behind() {
    in_own_process("threads_that_join_and_leave_leave_nothing_behind", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (probe, mut peer) = Probe::pair(util::echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let visit = |_| {
            let left = pool.join_timeout(Duration::from_micros(50)).unwrap();
            assert!(matches!(left, Left::TimedOut), "{left:?}");
            drop(pool.enlist().unwrap());
        };
        (0..200).for_each(visit);
        let (before, memory) = (Possessions::now(), util::resident_memory());
        (0..4_000).for_each(visit);
        ping(&mut peer);
        before.come_back();
        assert_eq!(pool.metrics().threads.len(), 1, "visitors are not kept");
        let grown = util::resident_memory().saturating_sub(memory);
        assert!(grown < 4 << 20, "{} KiB more than before", grown >> 10);
    });
}

#[test]
fn handles_that_come_and_go_leave_nothing_behind() {
    in_own_process("handles_that_come_and_go_leave_nothing_behind", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let come_and_go = |number: usize| {
            let (probe, mut peer) = Probe::pair(util::echo);
            let closed = probe.closed.clone();
            let id = pool.handles().register(probe, Interest::READABLE).unwrap();
            match number % 3 {
                0 => _ = pool.handles().remove(id).unwrap(),
                1 => {
                    ping(&mut peer);
                    pool.handles().remove(id).unwrap();
                }
                _ => drop(peer),
            }
            closed.wait_for(1);
        };
        (0..500).for_each(come_and_go);
        let (before, memory) = (Possessions::now(), util::resident_memory());
        (0..10_000).for_each(come_and_go);
        before.come_back();
        wait_until("the table is empty", || pool.handles().is_empty());
        let grown = util::resident_memory().saturating_sub(memory);
        assert!(grown < 4 << 20, "{} KiB more than before", grown >> 10);
    });
}

// Handlers: told once and dropped once, in every way of leaving.

/// What became of a handler.
#[derive(Clone, Debug, Default)]
struct Fate {
    closed: Counter,
    dropped: Counter,
    /// In the order they happened.
    events: Arc<Mutex<Vec<String>>>,
}

impl Fate {
    fn note(&self, what: String) {
        self.events.lock().unwrap().push(what);
    }

    /// The handler has been told `reason`, once, before it was dropped, once.
    #[track_caller]
    fn is(&self, reason: &str) {
        self.dropped.wait_for(1);
        let events = self.events.lock().unwrap().clone();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events[0].starts_with(reason), "{events:?} instead of {reason}");
        assert_eq!(events[1], "dropped");
    }
}

/// A handler that tells its fate; `F` says what it does.
struct Mortal<F> {
    stream: UnixStream,
    ready: F,
    at_the_end: fn(),
    fate: Fate,
}

impl<F> Mortal<F>
where
    F: FnMut(&mut UnixStream, Ready, &mut Context<'_>) -> Next + Send,
{
    fn new(ready: F) -> (Mortal<F>, UnixStream, Fate) {
        let (stream, peer) = util::stream_pair();
        let fate = Fate::default();
        (Mortal { stream, ready, at_the_end: || {}, fate: fate.clone() }, peer, fate)
    }
}

impl<F> AsFd for Mortal<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<F> Handler for Mortal<F>
where
    F: FnMut(&mut UnixStream, Ready, &mut Context<'_>) -> Next + Send,
{
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        (self.ready)(&mut self.stream, ready, cx)
    }

    fn closed(&mut self, _id: cabrank::HandleId, reason: Reason) {
        self.fate.note(format!("{reason:?}"));
        self.fate.closed.add(1);
        (self.at_the_end)();
    }
}

impl<F> Drop for Mortal<F> {
    fn drop(&mut self) {
        self.fate.note("dropped".into());
        self.fate.dropped.add(1);
        if !thread::panicking() {
            (self.at_the_end)();
        }
    }
}

/// Both ways of deactivation, in two ways of promotion.
fn each_pool(test: impl Fn(Pool, Deactivation)) {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        for builder in [Pool::builder().threads(3), Pool::builder().threads(3).papers()] {
            let (pool, _watchdog) = pool(builder.deactivation(deactivation));
            test(pool, deactivation);
        }
    }
}

#[test]
fn a_handler_that_closes_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (mortal, peer, fate) = Mortal::new(|_, _, _| Next::Close);
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        fate.is("Closed");
    });
}

#[test]
fn a_handler_that_is_removed_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (mortal, _peer, fate) = Mortal::new(util::echo);
        let id = pool.handles().register(mortal, Interest::READABLE).unwrap();
        pool.handles().remove(id).unwrap();
        assert_eq!(fate.dropped.get(), 1, "when the removal returns");
        fate.is("Removed");
        // Suspended.
        let (mortal, _peer, fate) = Mortal::new(util::echo);
        let registration = Registration::new(Interest::READABLE).suspended();
        let id = pool.handles().register(mortal, registration).unwrap();
        pool.handles().remove(id).unwrap();
        fate.is("Removed");
    });
}

#[test]
fn a_handler_that_removes_itself_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        for verdict in [Next::Rearm(Interest::READABLE), Next::Suspend, Next::Close] {
            let (mortal, peer, fate) = Mortal::new(move |_, _, cx| {
                cx.handles().remove(cx.id()).unwrap();
                cx.handles().remove(cx.id()).expect("still there, until the handler returns");
                verdict
            });
            pool.handles().register(mortal, Interest::READABLE).unwrap();
            leave_behind(peer, 1);
            // Its own verdict to close is as good a reason.
            fate.is(if verdict == Next::Close { "Closed" } else { "Removed" });
        }
    });
}

#[test]
fn a_handler_that_is_removed_while_it_runs_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (inside, gate) = (Counter::new(), Counter::new());
        let (enter, open) = (inside.clone(), gate.clone());
        let (mortal, peer, fate) = Mortal::new(move |_, _, _| {
            enter.add(1);
            open.wait_for(1);
            Next::Rearm(Interest::READABLE)
        });
        let id = pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        inside.wait_for(1);
        thread::scope(|scope| {
            let removals: Vec<_> =
                (0..3).map(|_| scope.spawn(|| pool.handles().remove(id))).collect();
            thread::sleep(Duration::from_millis(1));
            assert_eq!(fate.closed.get(), 0);
            gate.add(1);
            for removal in removals {
                // All of them waited, or came when it was over.
                let _ = removal.join().unwrap();
                assert_eq!(fate.dropped.get(), 1);
            }
        });
        fate.is("Removed");
    });
}

#[test]
fn a_handler_that_panics_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (mortal, peer, fate) = Mortal::new(|_, _, _| panic!("on purpose"));
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        fate.is("Panicked");
    });
}

#[test]
fn a_handler_that_panics_at_its_end_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (mut mortal, peer, fate) = Mortal::new(|_, _, _| Next::Close);
        mortal.at_the_end = || panic!("on purpose");
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        fate.is("Closed");
        // By removal from outside the panic does not reach the caller either.
        let (mut mortal, _peer, fate) = Mortal::new(util::echo);
        mortal.at_the_end = || panic!("on purpose");
        let id = pool.handles().register(mortal, Interest::READABLE).unwrap();
        pool.handles().remove(id).unwrap();
        fate.is("Removed");
        let (mut mortal, _peer, fate) = Mortal::new(util::echo);
        mortal.at_the_end = || panic!("on purpose");
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        pool.finish();
        fate.is("Shutdown");
    });
}

#[test]
fn a_handler_that_changes_its_descriptor_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let (mut other, _other_peer) = util::stream_pair();
        let (mortal, peer, fate) = Mortal::new(move |stream, _, _| {
            mem::swap(stream, &mut other);
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        fate.is("DescriptorChanged");
    });
}

#[test]
fn a_handler_that_cannot_be_rearmed_is_told_and_dropped_once() {
    each_pool(|pool, _| {
        let epoll = pool.handles().as_fd().as_raw_fd();
        let (mortal, peer, fate) = Mortal::new(move |stream, _, _| {
            take_registration(epoll, stream.as_raw_fd());
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(mortal, Interest::READABLE).unwrap();
        leave_behind(peer, 1);
        fate.is("Failed");
    });
}

/// Takes a registration out of an epoll instance.
fn take_registration(epoll: RawFd, number: RawFd) {
    let operation = libc::EPOLL_CTL_DEL;
    // SAFETY: deleting takes no event; both descriptors are open.
    let deleted = unsafe { libc::epoll_ctl(epoll, operation, number, std::ptr::null_mut()) };
    assert_eq!(deleted, 0);
}

#[test]
fn handlers_are_told_and_dropped_once_when_the_pool_ends() {
    let endings: [fn(Pool); 5] = [
        drop,
        |pool| drop(pool.finish()),
        |pool| drop(pool.finish_within(util::PATIENCE).unwrap()),
        |pool| {
            pool.remote().shutdown();
            drop(pool);
        },
        |pool| {
            // By a handler.
            let (probe, mut peer) = Probe::pair(|_, _, cx| {
                cx.shutdown();
                Next::Rearm(Interest::READABLE)
            });
            pool.handles().register(probe, Interest::READABLE).unwrap();
            peer.write_all(b"x").unwrap();
            wait_until("the pool has been asked to stop", || pool.is_shut_down());
            drop(pool);
        },
    ];
    for end in endings {
        each_pool(|pool, _| {
            let (mortal, mut peer, fate) = Mortal::new(util::echo);
            pool.handles().register(mortal, Interest::READABLE).unwrap();
            ping(&mut peer);
            end(pool);
            assert_eq!(fate.dropped.get(), 1, "when the pool has ended");
            fate.is("Shutdown");
        });
    }
}

#[test]
fn a_rejected_handler_is_its_owners_and_is_told_nothing() {
    each_pool(|pool, _| {
        let (mortal, _peer, fate) = Mortal::new(util::echo);
        // Somebody else has registered the descriptor before.
        let number = mortal.stream.as_raw_fd();
        let first = |_: BorrowedFd<'_>, _: Ready, _: &mut Context<'_>| Next::Suspend;
        // SAFETY: the rejected handler keeps it open until the handle has left the set.
        let id = unsafe { pool.handles().register_raw(number, Interest::READABLE, first) }.unwrap();
        let rejected = pool.handles().register(mortal, Interest::READABLE).err().unwrap();
        assert_eq!((fate.closed.get(), fate.dropped.get()), (0, 0));
        pool.handles().remove(id).unwrap();
        drop(rejected);
        assert_eq!((fate.closed.get(), fate.dropped.get()), (0, 1));
    });
}

#[test]
fn a_shared_handler_is_told_and_dropped_once_after_the_last_thread_has_left() {
    struct SharedMortal {
        semaphore: Arc<EventFd>,
        inside: Counter,
        gate: Counter,
        fate: Fate,
    }
    impl AsFd for SharedMortal {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.semaphore.as_fd()
        }
    }
    impl SharedHandler for SharedMortal {
        fn ready(&self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
            self.semaphore.read().unwrap();
            self.inside.add(1);
            self.gate.wait_for(1);
            Next::Close
        }
        fn closed(&self, _id: cabrank::HandleId, reason: Reason) {
            self.fate.note(format!("{reason:?}"));
            self.fate.closed.add(1);
        }
    }
    impl Drop for SharedMortal {
        fn drop(&mut self) {
            self.fate.note("dropped".into());
            self.fate.dropped.add(1);
        }
    }
    for removed in [false, true] {
        let (pool, _watchdog) = pool(Pool::builder().threads(3).running(3));
        let semaphore = Arc::new(EventFd::semaphore(0).unwrap());
        let fate = Fate::default();
        let (inside, gate) = (Counter::new(), Counter::new());
        let handler = SharedMortal {
            semaphore: Arc::clone(&semaphore),
            inside: inside.clone(),
            gate: gate.clone(),
            fate: fate.clone(),
        };
        let id = pool.handles().register_shared(handler, Interest::READABLE).unwrap();
        for threads in 1..=3 {
            semaphore.notify().unwrap();
            inside.wait_for(threads);
        }
        thread::scope(|scope| {
            let removal = removed.then(|| scope.spawn(|| pool.handles().remove(id)));
            if removed {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(fate.closed.get(), 0);
            gate.add(1);
            if let Some(removal) = removal {
                let _ = removal.join().unwrap();
                assert_eq!(fate.dropped.get(), 1);
            }
        });
        fate.dropped.wait_for(1);
        // All three said close, and maybe somebody removed it: one of them was the first.
        fate.is(if fate.events.lock().unwrap()[0] == "Removed" { "Removed" } else { "Closed" });
        assert_eq!(inside.get(), 3);
    }
}

#[test]
fn a_registered_closure_is_dropped_with_what_it_holds() {
    each_pool(|pool, _| {
        let held = Arc::new(());
        let (inner, eventfd) = (Arc::clone(&held), EventFd::new().unwrap());
        let handler = handler_fn(eventfd, move |_, _, _| {
            let _ = &inner;
            Next::Close
        });
        let id = pool.handles().register(handler, Interest::READABLE).unwrap();
        assert_eq!(Arc::strong_count(&held), 2);
        pool.handles().remove(id).unwrap();
        assert_eq!(Arc::strong_count(&held), 1);
    });
}

#[test]
fn a_panic_while_building_leaves_nothing_behind() {
    in_own_process("a_panic_while_building_leaves_nothing_behind", || {
        let before = Possessions::now();
        let builder = Pool::builder().threads(3).scheduling_by(|index| {
            assert_ne!(index, 2, "on purpose");
            cabrank::Scheduling::Inherit
        });
        assert!(catch_unwind(AssertUnwindSafe(|| builder.build())).is_err());
        before.come_back();
    });
}
