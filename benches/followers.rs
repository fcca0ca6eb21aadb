//! What does it cost to queue up as a follower, to be chosen and to get up, by order and by length?
//!
//! The last to come and the first are found at once; the highest priority is looked for, and who gets up
//! makes sure that it is not queued any more. No thread sleeps here: `parker` has that part. Against a plain
//! deque under std's mutex, taken three times as in the protocol.
//!
//! These are regression tests of implementation details.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

use cabrank::Order;
use cabrank::internals::Followers;
use criterion::{Criterion, criterion_group, criterion_main};

fn chosen_and_back(c: &mut Criterion) {
    for count in [1, 8, 64] {
        let mut group = c.benchmark_group(format!("chosen, up and back, of {count}"));
        for (name, order) in [
            ("last in, first out", Order::Lifo),
            ("first in, first out", Order::Fifo),
            ("priority", Order::Priority),
            ("unordered", Order::Unordered),
        ] {
            let followers = Followers::new(order, count);
            (0..count).for_each(|thread| followers.push(thread));
            group.bench_function(name, |b| {
                b.iter(|| {
                    let thread = followers.pop().expect("somebody follows");
                    followers.push(black_box(thread));
                });
            });
        }
        let deque = Mutex::new((0..count).collect::<VecDeque<_>>());
        let lock = || deque.lock().expect("no panic");
        group.bench_function("plain deque", |b| {
            b.iter(|| {
                let thread = lock().pop_back().expect("somebody follows");
                black_box(lock().len());
                lock().push_back(black_box(thread));
            });
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = chosen_and_back
}
criterion_main!(benches);
