//! Each counter of the metrics, in a scenario whose numbers are known.

mod util;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Builder, Context, Deactivation, Detected, Follower, HandleId, Interest, Next, Pool, Promotion,
    Ready, Role, ThreadMetrics, Turn, Watch, handler_fn,
};
use util::{Counter, PATIENCE, Probe, Watchdog, echo, ping, pool, wait_until};

/// A pool whose only threads are those of the test.
fn by_hand(builder: Builder, joiners: usize) -> (Pool, Watchdog) {
    pool(builder.threads(0).joiners(joiners))
}

/// Registers an eventfd that is ready now, if `ready`, and is read by its handler, which then says `next`.
fn register(pool: &Pool, ready: bool, next: fn(Interest) -> Next) -> (Arc<EventFd>, HandleId) {
    let eventfd = Arc::new(EventFd::new().unwrap());
    if ready {
        eventfd.notify().unwrap();
    }
    let call = move |source: &mut Arc<EventFd>, _: Ready, _: &mut Context<'_>| {
        source.read().unwrap();
        next(Interest::READABLE)
    };
    let handler = handler_fn(Arc::clone(&eventfd), call);
    let id = pool.handles().register(handler, Interest::READABLE).unwrap();
    (eventfd, id)
}

#[track_caller]
fn detect(follower: Follower<'_>) -> Detected<'_> {
    let Turn::Lead(leader) = follower.follow() else { panic!("not the leader") };
    match leader.wait() {
        Watch::Detected(detected) => detected,
        Watch::Nothing(_) => panic!("nothing detected"),
    }
}

/// Waits, promotes and processes, so often.
fn serve(mut follower: Follower<'_>, events: usize, mut ready: impl FnMut()) -> Follower<'_> {
    for _ in 0..events {
        ready();
        follower = detect(follower).promote().unwrap().process();
    }
    follower
}

/// Those that are not zero, by name.
fn counts(total: &ThreadMetrics) -> Vec<(&'static str, u64)> {
    let all = [
        ("waits", total.waits),
        ("events", total.events),
        ("promotions", total.promotions),
        ("wakes", total.wakes),
        ("idle_wakes", total.idle_wakes),
        ("shared_taken", total.shared_taken),
        ("rearms", total.rearms),
        ("stale", total.stale),
        ("noted", total.noted),
        ("panics", total.panics),
        ("rescues", total.rescues),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn an_event_is_one_wait_one_promotion_one_event_and_one_rearming() {
    for (deactivation, next, rearms) in [
        (Deactivation::OneShot, Next::Rearm as fn(Interest) -> Next, 10),
        (Deactivation::OneShot, Next::Drained, 10),
        (Deactivation::Edge, Next::Rearm, 10),
        (Deactivation::Edge, Next::Drained, 0),
        (Deactivation::OneShot, |_| Next::Close, 0),
    ] {
        let (pool, _watchdog) = by_hand(Pool::builder().deactivation(deactivation), 1);
        let follower = pool.enlist().unwrap();
        let (eventfd, _) = register(&pool, false, next);
        let closes = next(Interest::READABLE) == Next::Close;
        let ready = || match closes {
            true => drop(register(&pool, true, next)),
            false => eventfd.notify().unwrap(),
        };
        drop(serve(follower, 10, ready));
        let mut expected = vec![("waits", 10), ("events", 10), ("promotions", 10)];
        expected.extend((rearms > 0).then_some(("rearms", rearms)));
        assert_eq!(counts(&pool.metrics().total()), expected, "{deactivation:?}");
    }
}

#[test]
fn what_another_wait_has_fetched_is_counted_as_shared() {
    let builder = Pool::builder().promotion(Promotion::Eager).events_per_wait(8);
    let (pool, _watchdog) = by_hand(builder, 1);
    for _ in 0..5 {
        register(&pool, true, |_| Next::Suspend);
    }
    let mut follower = detect(pool.enlist().unwrap()).promote().unwrap().process();
    for _ in 0..4 {
        let Turn::Process(processing) = follower.follow() else { panic!("something is left over") };
        follower = processing.process();
    }
    drop(follower);
    let expected = [("waits", 1), ("events", 5), ("promotions", 1), ("shared_taken", 4)];
    assert_eq!(counts(&pool.metrics().total()), expected);
}

#[test]
fn an_event_for_a_handle_that_is_gone_or_suspended_is_stale() {
    let (pool, _watchdog) = by_hand(Pool::builder(), 1);
    let (_gone, id) = register(&pool, true, |_| Next::Suspend);
    let detected = detect(pool.enlist().unwrap());
    pool.handles().remove(id).unwrap();
    let follower = detected.promote().unwrap().process();
    let (_suspended, id) = register(&pool, true, |_| Next::Suspend);
    let detected = detect(follower);
    pool.handles().suspend(id).unwrap();
    drop(detected.promote().unwrap().process());
    let expected = [("waits", 2), ("promotions", 2), ("stale", 2)];
    assert_eq!(counts(&pool.metrics().total()), expected);
}

/// A second edge, detected while the handler of the first is still running.
#[test]
fn an_event_whose_handle_is_taken_is_noted() {
    let builder = Pool::builder().deactivation(Deactivation::Edge).budget(PATIENCE);
    let (pool, _watchdog) = by_hand(builder, 2);
    let (inside, leave) = (Counter::new(), Counter::new());
    let eventfd = Arc::new(EventFd::new().unwrap());
    let (entered, told) = (inside.clone(), leave.clone());
    let handler = handler_fn(Arc::clone(&eventfd), move |source, _: Ready, _: &mut Context<'_>| {
        entered.add(1);
        told.wait_for(1);
        source.read().unwrap();
        Next::Drained(Interest::READABLE)
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
    eventfd.notify().unwrap();
    thread::scope(|scope| {
        let first = detect(pool.enlist().unwrap()).promote().unwrap();
        // Waited for here, so that it leaves before the scope does.
        let other = scope.spawn(|| drop(first.process()));
        inside.wait_for(1);
        eventfd.notify().unwrap();
        drop(detect(pool.enlist().unwrap()).promote().unwrap().process());
        let total = pool.metrics().total();
        assert_eq!((total.events, total.noted, total.stale), (0, 1, 0), "{}", pool.metrics());
        leave.add(1);
        other.join().unwrap();
    });
}

/// With one thread allowed to run, nobody sits while it does: a follower is woken to keep watch, and has
/// nothing to do.
#[test]
fn a_follower_that_is_woken_to_keep_watch_is_an_idle_wake() {
    let builder = Pool::builder().papers().running(1).budget(PATIENCE);
    let (pool, _watchdog) = by_hand(builder, 2);
    let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("nobody else is here") };
    thread::scope(|scope| {
        let other = scope.spawn(|| pool.join());
        let follows = |thread: &ThreadMetrics| thread.role == Role::Follower;
        wait_until("the follower", || pool.metrics().threads.iter().any(follows));
        register(&pool, true, |_| Next::Suspend);
        let Watch::Detected(detected) = leader.wait() else { panic!("it is ready") };
        // Asleep by now, or it will be woken before it sleeps.
        let processing = detected.promote().unwrap();
        wait_until("the watchman", || pool.metrics().total().idle_wakes == 1);
        drop(processing.process());
        let total = pool.metrics().total();
        assert_eq!((total.wakes, total.idle_wakes), (1, 1), "{}", pool.metrics());
        pool.shutdown();
        other.join().unwrap().unwrap();
    });
}

#[test]
fn a_thread_is_always_in_one_of_its_roles() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3).papers());
    let all_in = |thread: &ThreadMetrics| thread.role != Role::Away;
    wait_until("all threads", || pool.metrics().threads.iter().all(all_in));
    let before = pool.metrics();
    let (probe, mut peer) = Probe::pair(|stream, ready, cx: &mut Context<'_>| {
        thread::sleep(Duration::from_millis(10));
        echo(stream, ready, cx)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..10 {
        ping(&mut peer);
    }
    let period = pool.metrics() - &before;
    for thread in &period.threads {
        let sum = thread.leading + thread.following + thread.processing;
        // Both snapshots look at the clock before they look at the threads.
        let off = sum.abs_diff(period.uptime);
        assert!(off < period.uptime / 4, "{sum:?} of {:?}", period.uptime);
    }
    let processing = period.total().processing;
    assert!(processing >= Duration::from_millis(90), "{processing:?}");
}

#[test]
fn the_time_without_a_leader_is_what_the_only_thread_spends_in_its_handlers() {
    const NAP: Duration = Duration::from_millis(20);
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    wait_until("its leader", || pool.metrics().threads[0].role == Role::Leader);
    let before = pool.metrics();
    thread::sleep(NAP);
    assert_eq!(pool.metrics().without_leader, before.without_leader, "somebody sits");
    let (probe, mut peer) = Probe::pair(|stream, ready, cx: &mut Context<'_>| {
        thread::sleep(NAP);
        echo(stream, ready, cx)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..3 {
        ping(&mut peer);
    }
    wait_until("its leader", || pool.metrics().threads[0].role == Role::Leader);
    let period = pool.metrics() - &before;
    assert!(period.without_leader >= 3 * NAP, "{:?}", period.without_leader);
    let processing = period.threads[0].processing;
    let off = period.without_leader.abs_diff(processing);
    assert!(off < processing / 4, "{:?} instead of {processing:?}", period.without_leader);
}
