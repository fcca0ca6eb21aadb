//! I7: an event of a handle that is gone reaches nobody, and a handle that is gone makes no events.
#![allow(unsafe_code)] // registering by number

mod util;

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Context, Deactivation, Detected, HandleId, Interest, Next, Pool, Registration, Turn, Watch,
};
use util::{Counter, Probe, echo, ping, pool, read_some, stream_pair, wait_until};

const BOTH: [Deactivation; 2] = [Deactivation::OneShot, Deactivation::Edge];

/// How a handle leaves its set.
#[derive(Clone, Copy, Debug)]
enum End {
    Removed,
    Closed,
    Panicked,
}

/// The kernel would go on reporting a descriptor that is closed while a duplicate lives.
#[test]
fn a_handle_that_is_gone_makes_no_events_though_a_duplicate_lives() {
    for deactivation in BOTH {
        for end in [End::Removed, End::Closed, End::Panicked] {
            let (pool, _watchdog) = pool(Pool::builder().threads(1).deactivation(deactivation));
            let (here, mut there) = stream_pair();
            let duplicate = here.try_clone().unwrap();
            let (mut probe, _) =
                Probe::pair(move |stream: &mut UnixStream, _, _: &mut Context<'_>| {
                    let _ = read_some(stream);
                    match end {
                        End::Panicked => panic!("on purpose"),
                        _ => Next::Close,
                    }
                });
            probe.stream = here;
            let closed = probe.closed.clone();
            let id = pool.handles().register(probe, Interest::READABLE).unwrap();
            match end {
                End::Removed => _ = pool.handles().remove(id).unwrap(),
                End::Closed | End::Panicked => there.write_all(b"x").unwrap(),
            }
            closed.wait_for(1);
            let (probe, mut peer) = Probe::pair(echo);
            pool.handles().register(probe, Interest::READABLE).unwrap();
            let before = pool.metrics().total();
            // What is written is there to be read, by the duplicate.
            for _ in 0..10 {
                there.write_all(b"x").unwrap();
                ping(&mut peer);
            }
            wait_until("all counted", || pool.metrics().total().events - before.events >= 10);
            let after = pool.metrics().total() - &before;
            assert_eq!(after.stale, 0, "{deactivation:?} {end:?}");
            // One more: the thread may have been on its way to the wait that the first ping has ended.
            assert!(after.waits <= after.events + 1, "{end:?}: {}", pool.metrics());
            drop(duplicate);
        }
    }
}

#[test]
fn a_number_can_be_registered_again_when_its_handle_is_gone() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let eventfd = EventFd::new().unwrap();
        let calls: Vec<Counter> = (0..3).map(|_| Counter::new()).collect();
        for (round, count) in calls.iter().enumerate() {
            let count = count.clone();
            let registration = Registration::new(Interest::READABLE).deactivation(deactivation);
            let number = eventfd.as_fd().as_raw_fd();
            let ready = move |_: std::os::fd::BorrowedFd<'_>, _, _: &mut Context<'_>| {
                count.add(1);
                Next::Suspend
            };
            // SAFETY: `eventfd` is open until the end of this block, and the handle is removed before.
            let id = unsafe { pool.handles().register_raw(number, registration, ready) }.unwrap();
            eventfd.notify().unwrap();
            calls[round].wait_for(1);
            pool.handles().remove(id).unwrap();
        }
        assert!(calls.iter().all(|calls| calls.get() == 1));
    }
}

/// Waits as the leader; what it detects.
fn detect(pool: &Pool) -> Detected<'_> {
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("not the leader") };
    match leader.wait() {
        Watch::Detected(detected) => detected,
        Watch::Nothing(_) => panic!("nothing detected"),
    }
}

/// The slot's number, which is between the slash and the hash.
fn slot(id: HandleId) -> String {
    let name = format!("{id:?}");
    name.split(['/', '#']).nth(1).expect("a slot").to_string()
}

/// The leader holds the event of a handle that is removed, and whose slot is given to another, before
/// the event is processed.
#[test]
fn an_event_that_was_detected_before_does_not_reach_the_next_tenant() {
    for deactivation in BOTH {
        let builder = Pool::builder().threads(0).joiners(1).deactivation(deactivation);
        let (pool, _watchdog) = pool(builder);
        let (former, mut former_peer) = Probe::pair(echo);
        let former_id = pool.handles().register(former, Interest::READABLE).unwrap();
        former_peer.write_all(b"x").unwrap();
        let detected = detect(&pool);
        pool.handles().remove(former_id).unwrap();
        let calls = Counter::new();
        let count = calls.clone();
        let (newcomer, mut peer) = Probe::pair(move |stream, ready, cx: &mut Context<'_>| {
            count.add(1);
            echo(stream, ready, cx)
        });
        let id = pool.handles().register(newcomer, Interest::READABLE).unwrap();
        assert_eq!(slot(id), slot(former_id));
        assert_ne!(id, former_id);
        drop(detected.promote().unwrap().process());
        assert_eq!(calls.get(), 0, "called with another's event");
        assert_eq!(pool.metrics().total().stale, 1, "{}", pool.metrics());
        // It is served when it is its turn.
        peer.write_all(b"p").unwrap();
        drop(detect(&pool).promote().unwrap().process());
        assert_eq!(calls.get(), 1);
        assert_eq!(pool.metrics().total().stale, 1, "{}", pool.metrics());
    }
}
