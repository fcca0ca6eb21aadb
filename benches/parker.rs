//! What does it cost to wake a follower, and to be one that is woken?
//!
//! Ours against crossbeam's parker, std's `thread::park`, and a mutex with a condition variable, which is
//! what it is made of. If a token is there before somebody asks for it nobody sleeps, and the figure is what
//! the engine adds; else it is nearly all the kernel's, and differs more by where the threads run than by
//! what they wake each other with.
//!
//! These are regression tests of implementation details. Between sleeping threads compare within a run only.

mod relay;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;

use cabrank::internals::Parker;
use criterion::{Criterion, criterion_group, criterion_main};

fn token_given_early(c: &mut Criterion) {
    let mut group = c.benchmark_group("token given, then taken, by one thread");
    let parker = Parker::new();
    group.bench_function("ours", |b| {
        b.iter(|| {
            parker.unpark();
            parker.park(Duration::ZERO);
        });
    });
    let parker = crossbeam_utils::sync::Parker::new();
    group.bench_function("crossbeam", |b| {
        b.iter(|| {
            parker.unparker().unpark();
            parker.park();
        });
    });
    group.bench_function("std", |b| {
        let current = thread::current();
        b.iter(|| {
            current.unpark();
            thread::park();
        });
    });
    group.finish();
}

fn sleeper_woken(c: &mut Criterion) {
    for (place, cpus) in relay::places() {
        let mut group = c.benchmark_group(format!("sleeping thread woken, {place}"));
        group.bench_function("ours", |b| {
            b.iter_custom(|rounds| between_ours(cpus, rounds, Duration::ZERO));
        });
        group.bench_function("crossbeam", |b| {
            b.iter_custom(|rounds| between_crossbeams(cpus, rounds));
        });
        group.bench_function("std", |b| b.iter_custom(|rounds| between_stds(cpus, rounds)));
        group.bench_function("condition variable", |b| {
            b.iter_custom(|rounds| between_condvars(cpus, rounds));
        });
        if cpus[0] != cpus[1] {
            // Who is awake needs a CPU for it.
            group.bench_function("ours, awake for up to 100 us", |b| {
                b.iter_custom(|rounds| between_ours(cpus, rounds, Duration::from_micros(100)));
            });
        }
        group.finish();
    }
}

fn between_ours(cpus: [usize; 2], rounds: u64, awake: Duration) -> Duration {
    let [first, second] = [Parker::new(), Parker::new()];
    let ping = |_: &Thread| {
        second.unpark();
        first.park(awake);
    };
    let pong = |_: &Thread| {
        second.park(awake);
        first.unpark();
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

fn between_crossbeams(cpus: [usize; 2], rounds: u64) -> Duration {
    let [first, second] = [(); 2].map(|()| crossbeam_utils::sync::Parker::new());
    let [wake_first, wake_second] = [&first, &second].map(|parker| parker.unparker().clone());
    let ping = move |_: &Thread| {
        wake_second.unpark();
        first.park();
    };
    let pong = move |_: &Thread| {
        second.park();
        wake_first.unpark();
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

fn between_stds(cpus: [usize; 2], rounds: u64) -> Duration {
    // `thread::park` may return for no reason, so a turn is more than a token.
    let turns = [AtomicBool::new(false), AtomicBool::new(false)];
    let give = |turn: &AtomicBool, other: &Thread| {
        turn.store(true, Ordering::Release);
        other.unpark();
    };
    let take = |turn: &AtomicBool| {
        while !turn.swap(false, Ordering::Acquire) {
            thread::park();
        }
    };
    let ping = |other: &Thread| {
        give(&turns[1], other);
        take(&turns[0]);
    };
    let pong = |other: &Thread| {
        take(&turns[1]);
        give(&turns[0], other);
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

fn between_condvars(cpus: [usize; 2], rounds: u64) -> Duration {
    let turns = [(); 2].map(|()| (Mutex::new(false), Condvar::new()));
    let give = |(turn, given): &(Mutex<bool>, Condvar)| {
        *turn.lock().expect("no panic") = true;
        given.notify_one();
    };
    let take = |(turn, given): &(Mutex<bool>, Condvar)| {
        let turn = turn.lock().expect("no panic");
        *given.wait_while(turn, |turn| !*turn).expect("no panic") = false;
    };
    let ping = |_: &Thread| {
        give(&turns[1]);
        take(&turns[0]);
    };
    let pong = |_: &Thread| {
        take(&turns[1]);
        give(&turns[0]);
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = token_given_early, sleeper_woken
}
criterion_main!(benches);
