//! What does it cost to register a handle, to steer it and to remove it? Against the bare system calls.
//!
//! The demultiplexing table takes the same time however many handles there are: compare the same line beside
//! none and beside many.
//!
//! These are regression tests of implementation details.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Flags};
use cabrank::sys::eventfd::EventFd;
use cabrank::{HandleId, Interest, Next, Pool, handler_fn};
use criterion::{Criterion, criterion_group, criterion_main};

/// Few enough for the usual limit of descriptors.
const MANY: usize = 500;

fn register_and_remove(c: &mut Criterion) {
    let mut group = c.benchmark_group("registered and removed");
    let epoll = Epoll::new().expect("an epoll instance");
    let eventfd = Arc::new(EventFd::new().expect("an eventfd"));
    group.bench_function("bare", |b| {
        b.iter(|| {
            epoll.add(&eventfd, Flags::IN | Flags::ONESHOT, 0).expect("added");
            epoll.delete(&eventfd).expect("deleted");
        });
    });
    for others in [0, MANY] {
        let pool = with_handles(others);
        group.bench_function(format!("beside {others}"), |b| {
            b.iter(|| {
                let id = register(&pool, Arc::clone(&eventfd));
                black_box(pool.handles().remove(id)).expect("removed");
            });
        });
    }
    group.finish();
}

fn steer(c: &mut Criterion) {
    let mut group = c.benchmark_group("steered from outside");
    let epoll = Epoll::new().expect("an epoll instance");
    let eventfd = Arc::new(EventFd::new().expect("an eventfd"));
    epoll.add(&eventfd, Flags::IN | Flags::ONESHOT, 0).expect("added");
    group.bench_function("bare, two changes", |b| {
        b.iter(|| {
            epoll.modify(&eventfd, Flags::ONESHOT, 0).expect("changed");
            epoll.modify(&eventfd, Flags::IN | Flags::ONESHOT, 0).expect("changed");
        });
    });
    let pool = with_handles(0);
    let id = register(&pool, eventfd);
    group.bench_function("suspended and resumed", |b| {
        b.iter(|| {
            pool.handles().suspend(id).expect("suspended");
            pool.handles().resume(id).expect("resumed");
        });
    });
    group.finish();
}

/// A pool with so many handles that never have anything to report.
fn with_handles(count: usize) -> Pool {
    let pool = Pool::builder().threads(1).build().expect("a pool");
    for _ in 0..count {
        register(&pool, Arc::new(EventFd::new().expect("an eventfd")));
    }
    pool
}

fn register(pool: &Pool, eventfd: Arc<EventFd>) -> HandleId {
    let handler = handler_fn(eventfd, |_, _, _| Next::Close);
    pool.handles().register(handler, Interest::READABLE).expect("registered")
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = register_and_remove, steer
}
criterion_main!(benches);
