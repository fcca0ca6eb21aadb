//! What does it cost to have a handler to oneself?
//!
//! A handler is claimed and released by two compare-exchanges on its slot's word, with every event. Against
//! std's mutex, which keeps others out as well but makes them wait, and one `swap` and `store`, which is the
//! least that does. An event that finds the slot claimed does not wait: it is left in the word, and the owner
//! sees it when it releases. A mutex that is only tried forgets it.
//!
//! These are regression tests of implementation details.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::internals::Slot;
use cabrank::sys::sched;
use criterion::{Criterion, criterion_group, criterion_main};

fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("claimed and released");
    let slot = Slot::new(0_u64);
    group.bench_function("slot", |b| {
        b.iter(|| {
            let mut claim = slot.claim().expect("nobody else has it");
            *claim += 1;
            claim.release()
        });
    });
    group.bench_function("slot, with an event in between", |b| {
        b.iter(|| {
            let mut claim = slot.claim().expect("nobody else has it");
            *claim += 1;
            black_box(slot.claim().is_none());
            claim.release()
        });
    });
    let mutex = Mutex::new(0_u64);
    group.bench_function("mutex", |b| {
        b.iter(|| *mutex.lock().expect("no panic") += 1);
    });
    let flag = AtomicBool::new(false);
    let mut value = 0_u64;
    group.bench_function("swap and store", |b| {
        b.iter(|| {
            black_box(flag.swap(true, Ordering::Acquire));
            value = black_box(value + 1);
            flag.store(false, Ordering::Release);
        });
    });
    group.finish();
}

fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("two threads at once, an event each");
    let slot = Slot::new(0_u64);
    let with_slot = || {
        if let Some(mut claim) = slot.claim() {
            *claim += 1;
            claim.release();
        }
    };
    group.bench_function("slot", |b| b.iter_custom(|rounds| by_two(rounds, with_slot)));
    let mutex = Mutex::new(0_u64);
    let with_mutex = || {
        if let Ok(mut value) = mutex.try_lock() {
            *value += 1;
        }
    };
    group.bench_function("mutex, tried", |b| b.iter_custom(|rounds| by_two(rounds, with_mutex)));
    group.finish();
}

/// How long two threads take to do something `rounds` times each, at once: the slower of them.
fn by_two(rounds: u64, something: impl Fn() + Sync) -> Duration {
    let cpus = sched::allowed_cpus();
    let start = Barrier::new(2);
    let timed = |cpu: usize| {
        sched::pin_to_cpu(cpu).expect("a CPU that is allowed");
        start.wait();
        let begun = Instant::now();
        (0..rounds).for_each(|_| something());
        begun.elapsed()
    };
    thread::scope(|threads| {
        let other = threads.spawn(|| timed(cpus[cpus.len() - 1]));
        let one = threads.spawn(|| timed(cpus[0]));
        one.join().expect("no panic").max(other.join().expect("no panic"))
    })
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = uncontended, contended
}
criterion_main!(benches);
