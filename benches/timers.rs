//! What do timers, deadlines and messages cost? A million timers set and cancelled, a deadline moved, a
//! closure posted and a message sent.
//!
//! These are regression tests of implementation details. Setting and cancelling take O(log n): compare the
//! same line with few and with many timers.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Capacity, HandleId, Pool};
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
    group.sample_size(10).measurement_time(Duration::from_secs(10));
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

fn post_and_send(c: &mut Criterion) {
    let pool = Pool::builder().threads(1).build().expect("a pool");
    let done = Arc::new(AtomicU64::new(0));
    let wait_for = |count: u64| {
        while done.load(Ordering::Acquire) < count {
            thread::yield_now();
        }
    };
    c.bench_function("closure posted and run, in bursts of 1000", |b| {
        b.iter_custom(|rounds| {
            done.store(0, Ordering::Release);
            let start = Instant::now();
            for _ in 0..rounds {
                for _ in 0..1_000 {
                    let done = Arc::clone(&done);
                    let count = move |_: &mut cabrank::Context<'_>| {
                        done.fetch_add(1, Ordering::AcqRel);
                    };
                    pool.post(count).expect("posted");
                }
            }
            wait_for(1_000 * rounds);
            start.elapsed() / 1_000
        });
    });
    let count = Arc::clone(&done);
    let receive = move |(), _: &mut cabrank::Context<'_>| {
        count.fetch_add(1, Ordering::AcqRel);
        ControlFlow::Continue(())
    };
    let mailbox = pool.handles().mailbox(Capacity::UNBOUNDED, receive).expect("a mailbox");
    c.bench_function("message sent and received, in bursts of 1000", |b| {
        b.iter_custom(|rounds| {
            done.store(0, Ordering::Release);
            let start = Instant::now();
            for _ in 0..rounds {
                (0..1_000).for_each(|_| mailbox.send(()).expect("sent"));
            }
            wait_for(1_000 * rounds);
            start.elapsed() / 1_000
        });
    });
}

criterion_group!(benches, set_and_cancel, a_million, move_a_deadline, post_and_send);
criterion_main!(benches);
