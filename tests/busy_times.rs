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

/// Two may run, and one more may wait while it is busy with long handlers; nobody ticks afterwards.
#[test]
fn a_pool_that_was_busy_with_long_handlers_comes_to_rest() {
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
    for _ in 0..200 {
        ping_all(&mut peers);
    }
    thread::sleep(Duration::from_millis(5));
    assert!(count(&pool, Role::Leader) <= 3, "{}", pool.metrics());
    assert_sleeps(&pool, "spare");
}
