//! Spinning before sleeping, counted by how often a thread goes to sleep.

mod util;

use std::time::Duration;

use cabrank::{Builder, Interest, Left, Order, Pool, Role};
use nix::sys::resource::{UsageWho, getrusage};
use util::{Probe, echo, ping, pool, wait_until};

const LONG: Duration = Duration::from_secs(3_600);
const ROUNDS: u64 = 10;

/// How often the calling thread goes to sleep while it takes part for 5 ms, in the best of some rounds:
/// a lock that another thread has may make it sleep too.
fn least_sleeps(pool: &Pool) -> i64 {
    let sleeps = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
    let round = |_| {
        let before = sleeps();
        let left = pool.join_timeout(Duration::from_millis(5)).unwrap();
        assert!(matches!(left, Left::TimedOut));
        sleeps() - before
    };
    (0..ROUNDS).map(round).min().unwrap()
}

#[test]
fn a_leader_spins_for_as_long_as_asked_for() {
    let build = |builder: Builder| pool(builder.threads(0).joiners(1));
    let (asleep, _watchdog) = build(Pool::builder());
    assert!(least_sleeps(&asleep) > 0, "one that does not spin sleeps");
    let (awake, _watchdog) = build(Pool::builder().spin(LONG));
    assert_eq!(least_sleeps(&awake), 0);
    let waits = awake.metrics().departed.waits;
    assert!(waits <= 2 * ROUNDS, "it goes round instead: {waits}");
    let (short, _watchdog) = build(Pool::builder().spin(Duration::from_micros(10)));
    assert!(least_sleeps(&short) > 0, "it spins for longer than asked for");
}

#[test]
fn a_follower_spins_in_every_order() {
    for order in [Order::Lifo, Order::Fifo, Order::Priority, Order::Unordered] {
        for (spin, sleeps) in [(Duration::ZERO, true), (LONG, false)] {
            let builder = Pool::builder().threads(1).joiners(1).papers().order(order).spin(spin);
            let (pool, _watchdog) = pool(builder);
            wait_until("its leader", || pool.metrics().threads[0].role == Role::Leader);
            let least = least_sleeps(&pool);
            assert_eq!(least > 0, sleeps, "{order:?}, {spin:?}: {least}");
            assert_eq!(pool.metrics().departed.waits, 0, "it has followed only");
        }
    }
}

/// One that spins for longer than anybody would wait sees that it has been promoted.
#[test]
fn a_spinning_follower_sees_its_promotion_in_every_order() {
    for order in [Order::Lifo, Order::Fifo, Order::Priority, Order::Unordered] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2).papers().order(order).spin(LONG));
        let is_in = |thread: &cabrank::ThreadMetrics| thread.role != Role::Away;
        wait_until("both threads", || pool.metrics().threads.iter().all(is_in));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        for _ in 0..20 {
            ping(&mut peer);
        }
        let served = |thread: &cabrank::ThreadMetrics| thread.waits > 0;
        // In no order a token is whose it is: the one that gave it may come first.
        let all = pool.metrics().threads.iter().all(served);
        assert!(all || order == Order::Unordered, "{order:?}\n{}", pool.metrics());
    }
}
