//! What does it cost to have a handler to oneself?
//!
//! A handler is claimed and released by two compare-exchanges on its slot's word, with every event. Against
//! std's mutex, which keeps others out as well but makes them wait, and one `swap` and `store`, which is the
//! least that does. An event that finds the slot claimed is left in the word, and its owner sees it when it
//! releases.
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
    let mut group = c.benchmark_group("claimed and released by two threads, for both");
    let slot = Slot::new(0_u64);
    let use_slot = || loop {
        if let Some(mut claim) = slot.claim() {
            *claim += 1;
            claim.release();
            break;
        }
    };
    group.bench_function("slot", |b| b.iter_custom(|rounds| by_two(rounds, use_slot)));
    let mutex = Mutex::new(0_u64);
    let use_mutex = || *mutex.lock().expect("no panic") += 1;
    group.bench_function("mutex", |b| b.iter_custom(|rounds| by_two(rounds, use_mutex)));
    group.finish();
}

/// How long two threads take to do something `rounds` times each, at once.
fn by_two(rounds: u64, something: impl Fn() + Sync) -> Duration {
    let cpus = sched::allowed_cpus();
    let start = Barrier::new(3);
    thread::scope(|threads| {
        for cpu in cpus.iter().cycle().take(2) {
            threads.spawn(|| {
                sched::pin_to_cpu(*cpu).expect("a CPU that is allowed");
                start.wait();
                (0..rounds).for_each(|_| something());
                start.wait();
            });
        }
        start.wait();
        let begun = Instant::now();
        start.wait();
        begun.elapsed()
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
