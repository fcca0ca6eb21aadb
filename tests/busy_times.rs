//! Busy times, by themselves: what runs here needs all CPUs.

mod util;

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Context, Interest, Pool, Role};
use util::{Probe, assert_sleeps, echo, ping_all, pool, wait_until};

fn count(pool: &Pool, role: Role) -> usize {
    pool.metrics().threads.iter().filter(|thread| thread.role == role).count()
}

/// Two may run, and in calm times two wait. With long handlers a third does, in busy times; never a fourth.
#[test]
fn one_more_waits_than_may_run_while_it_is_busy_with_long_handlers() {
    let (pool, _watchdog) = pool(Pool::builder().threads(5).running(2).name("spare"));
    wait_until("all have come", || {
        count(&pool, Role::Leader) == 2 && count(&pool, Role::Follower) == 3
    });
    let working = |_| {
        let (probe, peer) = Probe::pair(|stream, ready, cx: &mut Context<'_>| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(50) {
                std::hint::spin_loop();
            }
            echo(stream, ready, cx)
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        peer
    };
    let mut peers: Vec<UnixStream> = (0..16).map(working).collect();
    wait_until("a third that waits", || {
        ping_all(&mut peers);
        count(&pool, Role::Leader) == 3
    });
    thread::sleep(Duration::from_millis(5));
    assert!(count(&pool, Role::Leader) <= 3, "{}", pool.metrics());
    assert_sleeps(&pool, "spare");
}
