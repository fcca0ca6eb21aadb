//! What does it cost to give a pool something to do that no descriptor announces? A closure posted, a message
//! sent to a mailbox; against std's channel and a thread that receives from it.
//!
//! One by one each finds the thread asleep or on its way there. In bursts wake-ups coalesce, and what is left
//! is the queue, with one CPU putting in while another takes out. The time is from the first of a burst until
//! the last has been done, shared out among them.
//!
//! These are regression tests of implementation details.

mod placement;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cabrank::sys::sched;
use cabrank::{Capacity, Context, Pinning, Pool};
use criterion::{Criterion, criterion_group, criterion_main};

fn post(c: &mut Criterion) {
    let pool = pool_of_one();
    let done = Done::default();
    in_bursts(c, "closure posted and run", &done, || {
        let done = done.clone();
        pool.post(move |_cx| done.add_one()).expect("posted");
    });
}

fn send(c: &mut Criterion) {
    let pool = pool_of_one();
    let done = Done::default();
    let count = done.clone();
    let receive = move |(), _: &mut Context<'_>| {
        count.add_one();
        ControlFlow::Continue(())
    };
    let mailbox = pool.handles().mailbox(Capacity::UNBOUNDED, receive).expect("a mailbox");
    in_bursts(c, "message sent and received", &done, || mailbox.send(()).expect("sent"));
}

fn channel(c: &mut Criterion) {
    let (send, receive) = mpsc::channel();
    let done = Done::default();
    let count = done.clone();
    let receiver = thread::spawn(move || {
        let [_, cpu] = placement::ends();
        sched::pin_to_cpu(cpu).expect("a CPU that is allowed");
        receive.into_iter().for_each(|()| count.add_one());
    });
    in_bursts(c, "std's channel, sent and received", &done, || send.send(()).expect("sent"));
    drop(send);
    receiver.join().expect("no panic");
}

/// Measures one of a burst, for bursts of several lengths.
fn in_bursts(c: &mut Criterion, name: &str, done: &Done, give_one: impl Fn() + Sync) {
    let mut group = c.benchmark_group(name);
    for burst in [1_u32, 16, 1_000] {
        group.bench_function(format!("in bursts of {burst}"), |b| {
            b.iter_custom(|bursts| {
                let [cpu, _] = placement::ends();
                let all = placement::timed_on(cpu, || {
                    for _ in 0..bursts {
                        let before = done.count();
                        (0..burst).for_each(|_| give_one());
                        done.await_count(before + u64::from(burst));
                    }
                });
                all / burst
            });
        });
    }
    group.finish();
}

fn pool_of_one() -> Pool {
    let [_, cpu] = placement::ends();
    let builder = Pool::builder().threads(1).pinning(Pinning::Cpus(vec![cpu]));
    builder.build().expect("a pool")
}

/// Counts what has been done.
#[derive(Clone, Default)]
struct Done(Arc<AtomicU64>);

impl Done {
    fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Stays awake, so that only the other side's wake-up is measured.
    fn await_count(&self, count: u64) {
        while self.count() < count {
            thread::yield_now();
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = post, send, channel
}
criterion_main!(benches);
