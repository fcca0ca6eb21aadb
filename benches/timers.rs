//! What do timers and deadlines cost? A timer set and cancelled, a million of them, a deadline moved.
//!
//! Setting and cancelling take O(log n): compare the same line with few and with many timers. Against a
//! timerfd that each timer would have for itself, already made, set and disarmed by system calls.
//!
//! These are regression tests of implementation details.

use std::hint::black_box;
use std::time::Duration;

use cabrank::sys::timerfd::TimerFd;
use cabrank::{HandleId, Pool};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const HOUR: Duration = Duration::from_secs(3600);

/// A pool that holds so many timers, due at times that are spread over an hour.
fn with_timers(count: u64) -> (Pool, Vec<HandleId>) {
    let pool = Pool::builder().threads(1).max_handles(2_000_000).build().expect("a pool");
    let due =
        |number: u64| HOUR + Duration::from_micros(number.wrapping_mul(7_919) % 3_600_000_000);
    let set = |number| pool.handles().after(due(number), |_cx| ()).expect("set");
    let timers = (0..count).map(set).collect();
    (pool, timers)
}

fn set_and_cancel(c: &mut Criterion) {
    let mut group = c.benchmark_group("timer set and cancelled");
    let timerfd = TimerFd::new().expect("a timerfd");
    group.bench_function("bare timerfd", |b| {
        b.iter(|| {
            timerfd.after(HOUR + HOUR / 2).expect("set");
            timerfd.disarm().expect("disarmed");
        });
    });
    for count in [0, 1_000, 1_000_000] {
        let (pool, _timers) = with_timers(count);
        group.bench_function(format!("beside {count}"), |b| {
            b.iter(|| {
                let id = pool.handles().after(HOUR + HOUR / 2, |_cx| ()).expect("set");
                black_box(pool.handles().remove(id)).expect("cancelled");
            });
        });
    }
    group.finish();
}

fn a_million(c: &mut Criterion) {
    let mut group = c.benchmark_group("a million timers");
    group.sample_size(10).measurement_time(Duration::from_secs(6));
    group.bench_function("set and cancelled, all in all", |b| {
        b.iter_batched(
            || (),
            |()| {
                let (pool, timers) = with_timers(1_000_000);
                for id in timers {
                    pool.handles().remove(id).expect("cancelled");
                }
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn move_a_deadline(c: &mut Criterion) {
    let (pool, timers) = with_timers(20_000);
    c.bench_function("deadline moved away from outside", |b| {
        b.iter(|| pool.handles().set_deadline(timers[7], black_box(2 * HOUR)).expect("moved"));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = set_and_cancel, a_million, move_a_deadline
}
criterion_main!(benches);
