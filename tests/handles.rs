//! Handles and handlers: one suite, run under both ways of deactivation.

mod util;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::{
    Context, Deactivation, Error, HandleId, Interest, Next, Pool, Ready, Registration, Removal,
};
use util::{Counter, Exclusive, Probe, Random, echo, ping, pool, read_some, seed, stream_pair};

/// The same behaviour, whatever keeps a handle quiet while its handler runs.
macro_rules! under_both {
    ($($name:ident),* $(,)?) => {
        mod oneshot {
            $(#[test] fn $name() { super::$name(super::Deactivation::OneShot); })*
        }
        mod edge {
            $(#[test] fn $name() { super::$name(super::Deactivation::Edge); })*
        }
    };
}

under_both!(
    an_event_reaches_its_handler,
    a_handler_that_reads_one_byte_at_a_time_loses_nothing,
    what_arrives_while_the_handler_runs_is_seen_after_it,
    a_drained_handle_hears_of_the_next_arrival,
    a_peer_that_leaves_while_the_handler_runs_is_noticed,
    a_handler_never_runs_on_two_threads_at_once,
    a_suspended_handle_is_silent_until_resumed,
    a_handle_registered_suspended_is_silent,
    resuming_while_the_handler_runs_counts,
    suspending_while_the_handler_runs_counts,
    an_interest_set_while_the_handler_runs_counts,
    interest_can_be_changed_at_rest,
    one_direction_ends_and_the_other_goes_on,
    a_direction_that_is_given_up_is_reported_no_more,
    remove_waits_for_the_handler_and_nothing_follows,
    a_handler_can_remove_itself,
    a_handler_can_remove_another_that_runs,
    two_handlers_that_remove_each_other_do_not_deadlock,
    the_hook_runs_once_whatever_closes_the_handle,
    a_handler_registers_more_handlers,
    a_handler_that_swaps_its_descriptor_is_closed,
    a_slot_is_reused_with_another_generation,
    operations_from_many_threads_while_traffic_runs,
    the_table_grows_while_the_pool_runs,
    asking_for_what_is_ready_already_costs_a_bounded_number_of_waits,
);

fn build(deactivation: Deactivation, threads: usize) -> (Pool, util::Watchdog) {
    pool(Pool::builder().threads(threads).deactivation(deactivation))
}

fn an_event_reaches_its_handler(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..100 {
        ping(&mut peer);
    }
    util::wait_until("all counted", || pool.metrics().total().events == 100);
}

/// I5, for handlers that do not drain: level semantics.
fn a_handler_that_reads_one_byte_at_a_time_loses_nothing(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    let bytes = Counter::new();
    let seen = bytes.clone();
    let (probe, mut peer) = Probe::pair(move |stream, _, _| {
        let mut one = [0];
        match std::io::Read::read(stream, &mut one) {
            Ok(0) => return Next::Close,
            Ok(n) => _ = seen.add(n as u64),
            Err(_) => {}
        }
        Next::Rearm(Interest::READABLE)
    });
    let closed = probe.closed.clone();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(&[7; 1000]).unwrap();
    bytes.wait_for(1000);
    drop(peer);
    closed.wait_for(1);
}

/// I5, exactly in the gap: the second byte is written when the handler has read and not yet returned.
fn what_arrives_while_the_handler_runs_is_seen_after_it(deactivation: Deactivation) {
    for verdict in [Next::Rearm(Interest::READABLE), Next::Drained(Interest::READABLE)] {
        let (pool, _watchdog) = build(deactivation, 2);
        let calls = Counter::new();
        let count = calls.clone();
        let (inside, entered) = mpsc::channel();
        let (go_on, told) = mpsc::channel::<()>();
        let (probe, mut peer) = Probe::pair(move |stream, _, _| {
            while read_some(stream).is_some_and(|bytes| !bytes.is_empty()) {}
            if count.add(1) == 1 {
                inside.send(()).unwrap();
                told.recv().unwrap();
            }
            verdict
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peer.write_all(b"1").unwrap();
        entered.recv().unwrap();
        peer.write_all(b"2").unwrap();
        // Time for another thread to be told of it while the handler still runs.
        thread::sleep(Duration::from_millis(5));
        assert_eq!(calls.get(), 1, "a second call while the first one runs");
        go_on.send(()).unwrap();
        calls.wait_for(2);
    }
}

fn a_drained_handle_hears_of_the_next_arrival(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(|stream, _, _| {
        loop {
            match read_some(stream) {
                None => return Next::Close,
                Some(bytes) if bytes.is_empty() => return Next::Drained(Interest::READABLE),
                Some(bytes) => stream.write_all(&bytes).unwrap(),
            }
        }
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..500 {
        ping(&mut peer);
    }
}

fn a_peer_that_leaves_while_the_handler_runs_is_noticed(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (inside, entered) = mpsc::channel();
    let (go_on, told) = mpsc::channel::<()>();
    let mut first = true;
    let (probe, mut peer) = Probe::pair(move |stream, _, _| {
        let read = read_some(stream);
        if std::mem::take(&mut first) {
            inside.send(()).unwrap();
            told.recv().unwrap();
        }
        read.map_or(Next::Close, |_| Next::Rearm(Interest::READABLE))
    });
    let closed = probe.closed.clone();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    entered.recv().unwrap();
    drop(peer);
    go_on.send(()).unwrap();
    closed.wait_for(1);
}

/// I3 under load: many arrivals on few handles, slow handlers, many threads.
fn a_handler_never_runs_on_two_threads_at_once(deactivation: Deactivation) {
    let (pool, _watchdog) = pool(Pool::builder().threads(6).running(6).deactivation(deactivation));
    let bytes = Counter::new();
    let mut peers = Vec::new();
    for number in 0..3_u64 {
        let exclusive = Exclusive::default();
        let bytes = bytes.clone();
        let mut random = Random::new(number + 1);
        let (probe, peer) = Probe::pair(move |stream, _, _| {
            exclusive.run(|| {
                let read = read_some(stream).unwrap_or_default();
                if random.below(4) == 0 {
                    thread::sleep(Duration::from_micros(random.below(200)));
                }
                bytes.add(read.len() as u64);
            });
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peers.push(peer);
    }
    for _ in 0..2_000 {
        for peer in &mut peers {
            peer.write_all(b"x").unwrap();
        }
    }
    bytes.wait_for(6_000);
    assert_eq!(bytes.get(), 6_000);
    assert_eq!(pool.metrics().total().panics, 0);
}

fn a_suspended_handle_is_silent_until_resumed(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(echo);
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    pool.handles().suspend(id).unwrap();
    pool.handles().suspend(id).unwrap();
    util::wait_until("the first counted", || pool.metrics().total().events == 1);
    let before = pool.metrics().total().events;
    peer.write_all(b"p").unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(pool.metrics().total().events, before, "an event for a suspended handle");
    pool.handles().resume(id).unwrap();
    let mut back = [0];
    std::io::Read::read_exact(&mut peer, &mut back).unwrap();
    pool.handles().resume(id).unwrap();
    ping(&mut peer);
}

fn a_handle_registered_suspended_is_silent(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(echo);
    peer.write_all(b"p").unwrap();
    let registration = Registration::new(Interest::READABLE).suspended();
    let id = pool.handles().register(probe, registration).unwrap();
    thread::sleep(Duration::from_millis(10));
    assert_eq!(pool.metrics().total().events, 0);
    pool.handles().resume(id).unwrap();
    let mut back = [0];
    std::io::Read::read_exact(&mut peer, &mut back).unwrap();
}

/// The offload race: whoever got the work resumes the handle before the handler has said "suspend".
fn resuming_while_the_handler_runs_counts(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let calls = Counter::new();
    let count = calls.clone();
    let (probe, mut peer) = Probe::pair(move |stream, _, cx| {
        let _ = read_some(stream);
        count.add(1);
        let (handles, id) = (cx.handles().clone(), cx.id());
        thread::spawn(move || handles.resume(id).unwrap()).join().unwrap();
        Next::Suspend
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for number in 1..=50 {
        peer.write_all(b"x").unwrap();
        calls.wait_for(number);
    }
}

fn suspending_while_the_handler_runs_counts(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let calls = Counter::new();
    let count = calls.clone();
    let (probe, mut peer) = Probe::pair(move |stream, _, cx| {
        let _ = read_some(stream);
        count.add(1);
        cx.handles().suspend(cx.id()).unwrap();
        Next::Rearm(Interest::READABLE)
    });
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    calls.wait_for(1);
    peer.write_all(b"x").unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(calls.get(), 1);
    pool.handles().resume(id).unwrap();
    calls.wait_for(2);
}

/// Somebody has queued output for a connection whose handler is about to ask for input only.
fn an_interest_set_while_the_handler_runs_counts(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let writable = Counter::new();
    let count = writable.clone();
    let mut first = true;
    let (probe, mut peer) = Probe::pair(move |stream: &mut UnixStream, ready: Ready, cx| {
        let _ = read_some(stream);
        if ready.is_writable() {
            count.add(1);
        }
        if std::mem::take(&mut first) {
            let both = Interest::READABLE | Interest::WRITABLE;
            cx.handles().set_interest(cx.id(), both).unwrap();
        }
        Next::Drained(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    writable.wait_for(1);
}

fn interest_can_be_changed_at_rest(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (reported, report) = mpsc::channel();
    let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, ready, _: &mut Context<'_>| {
        reported.send(ready).unwrap();
        Next::Suspend
    });
    // Nothing can be written to us, so there is nothing to hear.
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    pool.handles().set_interest(id, Interest::WRITABLE).unwrap();
    let ready = report.recv_timeout(util::PATIENCE).unwrap();
    assert!(ready.is_writable() && !ready.is_readable(), "{ready:?}");
    // Suspended by its verdict; a new interest does not wake it, resuming does.
    peer.write_all(b"x").unwrap();
    pool.handles().set_interest(id, Interest::READABLE).unwrap();
    assert!(report.recv_timeout(Duration::from_millis(20)).is_err());
    pool.handles().resume(id).unwrap();
    let ready = report.recv_timeout(util::PATIENCE).unwrap();
    assert!(ready.is_readable() && !ready.is_writable(), "{ready:?}");
}

/// ACE's Dev_Poll_Reactor_Echo: giving up one direction leaves the other served.
fn one_direction_ends_and_the_other_goes_on(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(|stream, ready: Ready, _| {
        let both = Interest::READABLE | Interest::WRITABLE;
        if ready.is_readable() {
            match read_some(stream) {
                None => return Next::Close,
                Some(bytes) if !bytes.is_empty() => {
                    stream.write_all(&bytes).unwrap();
                    return Next::Rearm(both);
                }
                Some(_) => {}
            }
        }
        // Nothing more to write: only that direction is given up.
        Next::Rearm(both.without(Interest::WRITABLE).unwrap())
    });
    let both = Interest::READABLE | Interest::WRITABLE;
    pool.handles().register(probe, both).unwrap();
    for _ in 0..100 {
        ping(&mut peer);
    }
}

/// A direction that is always ready makes no calls once the verdict leaves it out.
fn a_direction_that_is_given_up_is_reported_no_more(deactivation: Deactivation) {
    const PINGS: u64 = 50;
    for verdict in [Next::Rearm, Next::Drained] {
        let (pool, _watchdog) = build(deactivation, 2);
        let (calls, writable) = (Counter::new(), Counter::new());
        let (count, count_writable) = (calls.clone(), writable.clone());
        let (probe, mut peer) = Probe::pair(move |stream, ready: Ready, _| {
            count.add(1);
            if ready.is_writable() {
                count_writable.add(1);
            }
            let bytes = read_some(stream).unwrap_or_default();
            stream.write_all(&bytes).unwrap();
            verdict(Interest::READABLE)
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        pool.handles().register(probe, both).unwrap();
        writable.wait_for(1);
        for _ in 0..PINGS {
            ping(&mut peer);
        }
        assert_eq!(writable.get(), 1, "of {} calls", calls.get());
        // The next ping may be read by the call before, which is told of it all the same.
        assert!(calls.get() <= 1 + 2 * PINGS, "{} calls", calls.get());
    }
}

/// I6.
fn remove_waits_for_the_handler_and_nothing_follows(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    for _ in 0..200 {
        let calls = Counter::new();
        let count = calls.clone();
        let exclusive = Exclusive::default();
        let guard = exclusive.clone();
        let (probe, mut peer) = Probe::pair(move |stream, _, _| {
            guard.run(|| {
                let _ = read_some(stream);
                count.add(1);
                thread::yield_now();
            });
            Next::Rearm(Interest::READABLE)
        });
        let closed = probe.closed.clone();
        let id = pool.handles().register(probe, Interest::READABLE).unwrap();
        let writer = thread::spawn(move || {
            for _ in 0..20 {
                if peer.write_all(b"x").is_err() {
                    break;
                }
            }
            peer
        });
        assert_eq!(pool.handles().remove(id).unwrap(), Removal::Done);
        // No call is under way, the hook has run, and none will follow.
        exclusive.run(|| assert_eq!(closed.get(), 1));
        let after = calls.get();
        let _peer = writer.join().unwrap();
        assert_eq!(calls.get(), after, "a call after remove has returned");
        assert!(matches!(pool.handles().remove(id), Err(Error::UnknownHandle { .. })));
    }
    assert!(pool.handles().is_empty());
}

fn a_handler_can_remove_itself(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (told, removal) = mpsc::channel();
    let (probe, mut peer) = Probe::pair(move |_: &mut UnixStream, _, cx: &mut Context<'_>| {
        told.send(cx.handles().remove(cx.id()).unwrap()).unwrap();
        Next::Rearm(Interest::READABLE)
    });
    let closed = probe.closed.clone();
    let reason = Arc::clone(&probe.reason);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    assert_eq!(removal.recv().unwrap(), Removal::WhenHandlerReturns);
    closed.wait_for(1);
    assert_eq!(reason.lock().unwrap().as_deref(), Some("Removed"));
}

fn a_handler_can_remove_another_that_runs(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    let (inside, entered) = mpsc::channel();
    let (go_on, told) = mpsc::channel::<()>();
    let (busy, mut busy_peer) = Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
        inside.send(()).unwrap();
        told.recv().unwrap();
        Next::Rearm(Interest::READABLE)
    });
    let closed = busy.closed.clone();
    let busy_id = pool.handles().register(busy, Interest::READABLE).unwrap();
    let (answered, answer) = mpsc::channel();
    let (remover, mut peer) = Probe::pair(move |_: &mut UnixStream, _, cx: &mut Context<'_>| {
        answered.send(cx.handles().remove(busy_id).unwrap()).unwrap();
        Next::Close
    });
    pool.handles().register(remover, Interest::READABLE).unwrap();
    busy_peer.write_all(b"x").unwrap();
    entered.recv().unwrap();
    peer.write_all(b"x").unwrap();
    assert_eq!(answer.recv().unwrap(), Removal::WhenHandlerReturns);
    assert_eq!(closed.get(), 0);
    go_on.send(()).unwrap();
    closed.wait_for(1);
}

fn two_handlers_that_remove_each_other_do_not_deadlock(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let ids: Arc<Mutex<Vec<HandleId>>> = Arc::default();
    let mut closed = Vec::new();
    let mut peers = Vec::new();
    for number in 0..2 {
        let (barrier, known) = (Arc::clone(&barrier), Arc::clone(&ids));
        let (probe, peer) = Probe::pair(move |_: &mut UnixStream, _, cx: &mut Context<'_>| {
            barrier.wait();
            let other = known.lock().unwrap()[1 - number];
            let _ = cx.handles().remove(other);
            Next::Suspend
        });
        closed.push(probe.closed.clone());
        peers.push(peer);
        let id = pool.handles().register(probe, Interest::READABLE).unwrap();
        ids.lock().unwrap().push(id);
    }
    for peer in &mut peers {
        peer.write_all(b"x").unwrap();
    }
    for closed in closed {
        closed.wait_for(1);
    }
}

fn the_hook_runs_once_whatever_closes_the_handle(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (verdict, mut peer) = Probe::pair(|_: &mut UnixStream, _, _: &mut Context<'_>| Next::Close);
    let (panics, mut panics_peer) =
        Probe::pair(|_: &mut UnixStream, _, _: &mut Context<'_>| panic!("on purpose"));
    let (removed, _removed_peer) = Probe::pair(echo);
    let (left, _left_peer) = Probe::pair(echo);
    let expected = [
        (verdict.closed.clone(), Arc::clone(&verdict.reason), "Closed"),
        (panics.closed.clone(), Arc::clone(&panics.reason), "Panicked"),
        (removed.closed.clone(), Arc::clone(&removed.reason), "Removed"),
        (left.closed.clone(), Arc::clone(&left.reason), "Shutdown"),
    ];
    pool.handles().register(verdict, Interest::READABLE).unwrap();
    pool.handles().register(panics, Interest::READABLE).unwrap();
    let id = pool.handles().register(removed, Interest::READABLE).unwrap();
    pool.handles().register(left, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    panics_peer.write_all(b"x").unwrap();
    pool.handles().remove(id).unwrap();
    for (closed, _, _) in &expected[..3] {
        closed.wait_for(1);
    }
    pool.finish();
    for (closed, reason, expected) in expected {
        assert_eq!(closed.get(), 1);
        assert_eq!(reason.lock().unwrap().as_deref(), Some(expected));
    }
}

fn a_handler_registers_more_handlers(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    let (peers_out, peers) = mpsc::channel();
    let (probe, mut peer) = Probe::pair(move |stream, _, cx| {
        for _ in read_some(stream).unwrap_or_default() {
            let (child, child_peer) = Probe::pair(echo);
            cx.handles().register(child, Interest::READABLE).unwrap();
            peers_out.send(child_peer).unwrap();
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(&[0; 50]).unwrap();
    for _ in 0..50 {
        ping(&mut peers.recv().unwrap());
    }
}

/// Else the engine would arm whatever has the old number by now.
fn a_handler_that_swaps_its_descriptor_is_closed(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (other, _other_peer) = stream_pair();
    let mut other = Some(other);
    let (probe, mut peer) = Probe::pair(move |stream: &mut UnixStream, _, _: &mut Context<'_>| {
        if let Some(other) = other.take() {
            *stream = other;
        }
        Next::Rearm(Interest::READABLE)
    });
    let (closed, reason) = (probe.closed.clone(), Arc::clone(&probe.reason));
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer.write_all(b"x").unwrap();
    closed.wait_for(1);
    assert_eq!(reason.lock().unwrap().as_deref(), Some("DescriptorChanged"));
}

/// I7: an id, once gone, never comes to mean another handle.
fn a_slot_is_reused_with_another_generation(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let mut ids = std::collections::HashSet::new();
    let mut last: Option<HandleId> = None;
    for _ in 0..1_000 {
        let (probe, mut peer) = Probe::pair(echo);
        let id = pool.handles().register(probe, Interest::READABLE).unwrap();
        assert!(ids.insert(id), "{id} has been given before");
        if let Some(last) = last.replace(id) {
            assert!(!pool.handles().contains(last));
            assert!(matches!(pool.handles().resume(last), Err(Error::UnknownHandle { .. })));
        }
        ping(&mut peer);
        pool.handles().remove(id).unwrap();
    }
}

fn operations_from_many_threads_while_traffic_runs(deactivation: Deactivation) {
    let seed = seed();
    let (pool, _watchdog) = build(deactivation, 4);
    thread::scope(|scope| {
        for worker in 0..3 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(seed.wrapping_add(worker));
                for _ in 0..300 {
                    let (probe, mut peer) = Probe::pair(echo);
                    let closed = probe.closed.clone();
                    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
                    for _ in 0..random.below(6) {
                        match random.below(4) {
                            0 => {
                                pool.handles().suspend(id).unwrap();
                                pool.handles().resume(id).unwrap();
                            }
                            1 => pool.handles().set_interest(id, Interest::READABLE).unwrap(),
                            2 => {
                                let both = Interest::READABLE | Interest::WRITABLE;
                                pool.handles().set_interest(id, both).unwrap();
                            }
                            _ => ping(&mut peer),
                        }
                    }
                    ping(&mut peer);
                    if random.below(2) == 0 {
                        pool.handles().remove(id).unwrap();
                    } else {
                        drop(peer);
                    }
                    closed.wait_for(1);
                }
            });
        }
    });
    // The hook runs before the slot is given back.
    util::wait_until("all slots given back", || pool.handles().is_empty());
    assert_eq!(pool.metrics().total().panics, 0);
}

fn the_table_grows_while_the_pool_runs(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 2);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let mut ids = Vec::new();
    let mut peers = Vec::new();
    for number in 0..3_000 {
        let (probe, other) = Probe::pair(echo);
        ids.push(pool.handles().register(probe, Interest::READABLE).unwrap());
        peers.push(other);
        if number % 100 == 0 {
            ping(&mut peer);
            ping(&mut peers[number]);
        }
    }
    assert_eq!(pool.handles().len(), 3_001);
    for id in ids {
        pool.handles().remove(id).unwrap();
    }
    ping(&mut peer);
    assert_eq!(pool.handles().len(), 1);
}

/// The event comes before the asker has given the slot back; it is handed over, not polled for again and
/// again against a thread that waits for it.
fn asking_for_what_is_ready_already_costs_a_bounded_number_of_waits(deactivation: Deactivation) {
    let (pool, _watchdog) = build(deactivation, 3);
    let calls = Counter::new();
    let count = calls.clone();
    let (probe, _peer) = Probe::pair(move |_: &mut UnixStream, _, _: &mut Context<'_>| {
        count.add(1);
        Next::Drained(Interest::READABLE)
    });
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    for round in 1..=2_000 {
        // A stream that nobody has written to is writable at once.
        pool.handles().set_interest(id, Interest::READABLE | Interest::WRITABLE).unwrap();
        calls.wait_for(round);
        pool.handles().set_interest(id, Interest::READABLE).unwrap();
    }
    let total = pool.metrics().total();
    // The event itself, once more if it was noted, and a wake-up to hand it over.
    assert!(total.waits <= 4 * calls.get(), "{}", pool.metrics());
    assert!(total.noted <= 2 * calls.get(), "{}", pool.metrics());
}

/// A handle may choose for itself.
#[test]
fn deactivation_is_chosen_per_handle() {
    let (pool, _watchdog) = build(Deactivation::OneShot, 1);
    let drain = |stream: &mut UnixStream, _: Ready, _: &mut Context<'_>| loop {
        match read_some(stream) {
            None => return Next::Close,
            Some(bytes) if bytes.is_empty() => return Next::Drained(Interest::READABLE),
            Some(bytes) => stream.write_all(&bytes).unwrap(),
        }
    };
    let (by_edge, mut edge_peer) = Probe::pair(drain);
    let registration = Registration::new(Interest::READABLE).deactivation(Deactivation::Edge);
    pool.handles().register(by_edge, registration).unwrap();
    let (by_oneshot, mut oneshot_peer) = Probe::pair(drain);
    pool.handles().register(by_oneshot, Interest::READABLE).unwrap();
    for _ in 0..10 {
        ping(&mut edge_peer);
    }
    // With one thread nobody can be told of an arrival while the handler runs, so none was needed.
    assert_eq!(pool.metrics().total().rearms, 0);
    for _ in 0..10 {
        ping(&mut oneshot_peer);
    }
    util::wait_until("a re-arm", || pool.metrics().total().rearms > 0);
}
