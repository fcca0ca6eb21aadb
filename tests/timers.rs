//! Timers and deadlines.

mod util;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Deactivation, Error, Interest, Next, Pool, Registration, Removal};
use util::{Counter, Exclusive, PATIENCE, Probe, Random, pool, read_some, seed, wait_until};

const SOON: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_secs(3600);

#[test]
fn a_timer_fires_once_and_never_early() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (tell, told) = mpsc::channel();
    let start = Instant::now();
    for delay in [SOON, 2 * SOON, Duration::ZERO] {
        let tell = tell.clone();
        pool.handles()
            .after(delay, move |_cx| tell.send((delay, start.elapsed())).unwrap())
            .unwrap();
    }
    for _ in 0..3 {
        let (delay, after) = told.recv_timeout(PATIENCE).unwrap();
        assert!(after >= delay, "{after:?} instead of {delay:?}");
    }
    wait_until("the timers to be gone", || pool.handles().is_empty());
    drop(tell);
    assert!(told.recv_timeout(PATIENCE).is_err(), "one fired twice");
}

#[test]
fn timers_fire_in_the_order_of_their_times() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let seed = seed();
    let mut random = Random::new(seed);
    let mut delays: Vec<u64> = (0..200).map(|_| random.below(20_000_000)).collect();
    for &delay in &delays {
        let order = Arc::clone(&order);
        let note = move |_: &mut cabrank::Context<'_>| order.lock().unwrap().push(delay);
        pool.handles().after(Duration::from_nanos(delay) + 10 * SOON, note).unwrap();
    }
    wait_until("all timers", || order.lock().unwrap().len() == delays.len());
    delays.sort_unstable();
    // The times at which they were set differ by less than two delays may.
    let fired = order.lock().unwrap().clone();
    let off =
        fired.iter().zip(&delays).filter(|(fired, due)| fired.abs_diff(**due) > 5_000_000).count();
    assert_eq!(off, 0, "{fired:?}");
}

#[test]
fn a_periodic_timer_goes_on_until_it_says_so() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let (calls, exclusive) = (Counter::new(), Exclusive::default());
    let (count, start) = (calls.clone(), Instant::now());
    let period = Duration::from_micros(300);
    pool.handles()
        .every(period, move |_cx| {
            exclusive.run(|| match count.add(1) {
                20 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        })
        .unwrap();
    wait_until("its end", || pool.handles().is_empty());
    assert_eq!(calls.get(), 20);
    assert!(start.elapsed() >= 20 * period, "it ran ahead of its time");
}

#[test]
fn a_slow_periodic_timer_leaves_periods_out() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let times = Arc::new(Mutex::new(Vec::new()));
    let (note, start) = (Arc::clone(&times), Instant::now());
    pool.handles()
        .every(SOON, move |_cx| {
            let mut times = note.lock().unwrap();
            times.push(start.elapsed());
            if times.len() == 2 {
                thread::sleep(10 * SOON);
            }
            if times.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    wait_until("its end", || pool.handles().is_empty());
    let times = times.lock().unwrap();
    assert!(times[2] >= times[1] + 10 * SOON, "{times:?}");
    assert!(times[3] >= times[2], "{times:?}");
    // Had it caught up, the four calls would have been over by the twelfth period.
    assert!(times[3] >= 13 * SOON - SOON, "{times:?}");
}

#[test]
fn a_cancelled_timer_never_fires() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let seed = seed();
    let mut random = Random::new(seed);
    for _ in 0..2_000 {
        let cancelled = Counter::new();
        let late = Counter::new();
        let (check, note) = (cancelled.clone(), late.clone());
        let delay = Duration::from_nanos(random.below(60_000));
        let id = pool.handles().after(delay, move |_cx| _ = note.add(check.get())).unwrap();
        let wait = Instant::now();
        let pause = Duration::from_nanos(random.below(80_000));
        while wait.elapsed() < pause {
            std::hint::spin_loop();
        }
        match pool.handles().remove(id) {
            Ok(removal) => assert_eq!(removal, Removal::Done),
            Err(error) => assert!(matches!(error, Error::UnknownHandle { .. }), "{error}"),
        }
        cancelled.add(1);
        assert_eq!(late.get(), 0, "fired after it was cancelled");
    }
}

#[test]
fn a_timer_can_be_moved_both_ways_from_any_thread() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (tell, told) = mpsc::channel();
    let early = tell.clone();
    let id = pool.handles().after(LATE, move |_cx| early.send("moved up").unwrap()).unwrap();
    let handles = pool.handles().clone();
    thread::spawn(move || handles.set_deadline(id, SOON).unwrap()).join().unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "moved up");

    let later = tell.clone();
    let id = pool.handles().after(10 * SOON, move |_cx| later.send("moved away").unwrap()).unwrap();
    pool.handles().set_deadline(id, LATE).unwrap();
    pool.handles().after(20 * SOON, move |_cx| tell.send("the other").unwrap()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "the other");
    assert!(pool.handles().contains(id));
    pool.handles().clear_deadline(id).unwrap();
    assert_eq!(pool.handles().remove(id).unwrap(), Removal::Done);
    assert!(matches!(pool.handles().set_deadline(id, SOON), Err(Error::UnknownHandle { .. })));
}

#[test]
fn a_timer_sets_moves_and_cancels_others_and_itself() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (tell, told) = mpsc::channel();
    let victim = pool.handles().after(LATE, |_cx| unreachable!()).unwrap();
    let moved = tell.clone();
    let mover = pool.handles().after(LATE, move |_cx| moved.send("moved").unwrap()).unwrap();
    let mut calls = 0;
    pool.handles()
        .every(SOON, move |cx| {
            calls += 1;
            match calls {
                1 => {
                    cx.handles().remove(victim).unwrap();
                    cx.handles().set_deadline(mover, SOON).unwrap();
                    let set = tell.clone();
                    cx.handles().after(SOON, move |_cx| set.send("set").unwrap()).unwrap();
                }
                // Its own: from outside, and by its context.
                2 => cx.handles().set_deadline(cx.id(), SOON).unwrap(),
                3 => cx.set_deadline(SOON),
                _ => {
                    assert_eq!(cx.handles().remove(cx.id()).unwrap(), Removal::WhenHandlerReturns);
                    tell.send("self").unwrap();
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    let mut said: Vec<_> = (0..3).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, ["moved", "self", "set"]);
    wait_until("all to be gone", || pool.handles().is_empty());
}

#[test]
fn a_later_timer_wakes_nobody() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    pool.handles().after(LATE, |_cx| ()).unwrap();
    wait_until("the pool to sleep", || {
        let before = pool.metrics().total();
        thread::sleep(Duration::from_millis(5));
        pool.metrics().total().waits == before.waits
    });
    let before = pool.metrics().total().waits;
    for _ in 0..100 {
        pool.handles().after(2 * LATE, |_cx| ()).unwrap();
    }
    assert_eq!(pool.metrics().total().waits, before);
    let fired = Counter::new();
    let count = fired.clone();
    pool.handles().after(SOON, move |_cx| _ = count.add(1)).unwrap();
    fired.wait_for(1);
    let waits = pool.metrics().total().waits - before;
    assert!(waits <= 3, "one timer made {waits} waits return");
}

#[test]
fn timers_due_at_once_are_spread_over_the_threads() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4).running(4));
    let threads = Arc::new(Mutex::new(std::collections::HashSet::new()));
    let done = Counter::new();
    for _ in 0..64 {
        let (threads, done) = (Arc::clone(&threads), done.clone());
        pool.handles()
            .after(10 * SOON, move |cx| {
                threads.lock().unwrap().insert(cx.thread());
                thread::sleep(Duration::from_millis(1));
                done.add(1);
            })
            .unwrap();
    }
    done.wait_for(64);
    assert!(threads.lock().unwrap().len() > 1, "all of them ran on one thread");
}

#[test]
fn a_deadline_reaches_the_handler_and_never_beside_its_events() {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        let (pool, _watchdog) = pool(Pool::builder().threads(3).deactivation(deactivation));
        let (timeouts, reads, exclusive) = (Counter::new(), Counter::new(), Exclusive::default());
        let (count_timeouts, count_reads) = (timeouts.clone(), reads.clone());
        let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
            exclusive.run(|| {
                if ready.is_timeout() {
                    count_timeouts.add(1);
                }
                cx.set_deadline(Duration::from_micros(50));
                match read_some(stream) {
                    None => return Next::Close,
                    Some(bytes) => _ = count_reads.add(bytes.len() as u64),
                }
                Next::Rearm(Interest::READABLE)
            })
        });
        let registration = Registration::new(Interest::READABLE).deadline(SOON);
        pool.handles().register(probe, registration).unwrap();
        for sent in 1..=500 {
            std::io::Write::write_all(&mut peer, b"x").unwrap();
            if sent % 50 == 0 {
                reads.wait_for(sent);
                let before = timeouts.get();
                timeouts.wait_for(before + 1);
            }
        }
        reads.wait_for(500);
        timeouts.wait_for(20);
    }
}

#[test]
fn a_suspended_handle_is_told_of_its_deadline() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (tell, told) = mpsc::channel();
    let (probe, _peer) = Probe::pair(move |_stream, ready, _cx| {
        tell.send(ready).unwrap();
        Next::Close
    });
    let registration = Registration::new(Interest::READABLE).suspended().deadline(SOON);
    pool.handles().register(probe, registration).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), cabrank::Ready::TIMEOUT);
}

#[test]
fn a_deadline_that_is_cleared_or_moved_is_not_reported() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (tell, told) = mpsc::channel();
    let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
        assert!(!ready.is_timeout());
        match read_some(stream).as_deref() {
            Some(b"set") => cx.set_deadline(50 * SOON),
            Some(b"clear") => cx.clear_deadline(),
            _ => cx.set_deadline(LATE),
        }
        tell.send(()).unwrap();
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let after = Counter::new();
    for text in ["set", "clear", "set", "move"] {
        std::io::Write::write_all(&mut peer, text.as_bytes()).unwrap();
        told.recv_timeout(PATIENCE).unwrap();
    }
    let count = after.clone();
    pool.handles().after(60 * SOON, move |_cx| _ = count.add(1)).unwrap();
    after.wait_for(1);
    assert_eq!(pool.metrics().total().panics, 0);
    wait_until("the timer to be gone", || pool.handles().len() == 1);
}

#[test]
fn shared_handles_have_no_deadline() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let eventfd = cabrank::sys::eventfd::EventFd::new().unwrap();
    let handler = cabrank::shared_fn(eventfd, |_, _, _| Next::Drained(Interest::READABLE));
    let id = pool.handles().register_shared(handler, Interest::READABLE).unwrap();
    assert!(matches!(pool.handles().set_deadline(id, SOON), Err(Error::SharedHandle { .. })));
    assert!(matches!(pool.handles().notify(id), Err(Error::SharedHandle { .. })));
}

#[test]
fn a_period_of_nothing_is_an_error() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let every = pool.handles().every(Duration::ZERO, |_cx| ControlFlow::Continue(()));
    assert!(matches!(every, Err(Error::Zero { .. })));
    pool.shutdown();
    wait_until("the end", || pool.handles().after(SOON, |_cx| ()).is_err());
}
