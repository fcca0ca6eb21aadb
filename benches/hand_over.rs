//! How long does nobody watch? From `promote()` of one leader until the next is about to wait.
//!
//! Two threads go through the roles of the papers' pattern and hand the waiting role back and forth, each time
//! to one that is asleep, or awake and looking for it. For comparison two threads on the same CPUs hand over a
//! bare token, by a channel and by a condition variable: what is left is the protocol's.
//!
//! The last group has whole events: detected, promoted, handled and re-armed, where each is handed over, and by
//! the default policy, which hands over when it pays.
//!
//! These are regression tests of implementation details. Nearly all of a hand-over is the kernel's, and says
//! more about the machine than about us.

mod relay;

use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use cabrank::sys::eventfd::EventFd;
use cabrank::sys::sched;
use cabrank::{
    Builder, Context, HandleId, Interest, Next, Pinning, Pool, Role, Turn, Watch, handler_fn,
};
use criterion::{Criterion, criterion_group, criterion_main};
use nix::unistd::{Pid, gettid};

fn hand_over(c: &mut Criterion) {
    for (place, cpus) in relay::places() {
        let mut group = c.benchmark_group(format!("handed over, {place}"));
        // Between two hand-overs much more time passes than is measured.
        group.measurement_time(Duration::from_millis(200)).warm_up_time(Duration::from_millis(20));
        group.bench_function("leadership", |b| {
            b.iter_custom(|times| leadership(Follows::Asleep, cpus, times));
        });
        if cpus[0] != cpus[1] {
            // Who is awake needs a CPU for it.
            group.bench_function("leadership, follower awake", |b| {
                b.iter_custom(|times| leadership(Follows::Awake, cpus, times));
            });
        }
        group.measurement_time(Duration::from_secs(2));
        group.bench_function("token by channel", |b| {
            b.iter_custom(|rounds| by_channel(cpus, rounds));
        });
        group.bench_function("token by condition variable", |b| {
            b.iter_custom(|rounds| by_condvar(cpus, rounds));
        });
        group.finish();
    }
}

/// How a follower waits.
#[derive(Clone, Copy)]
enum Follows {
    Asleep,
    Awake,
}

impl Follows {
    fn spin(self) -> Duration {
        match self {
            Follows::Asleep => Duration::ZERO,
            Follows::Awake => Duration::from_millis(1),
        }
    }

    /// Returns when a thread waits to be promoted, so that the way there is not taken for a part of the way
    /// from there.
    fn await_thread(self, pool: &Pool, thread: Pid) {
        let follows = || match self {
            Follows::Asleep => is_asleep(thread),
            Follows::Awake => {
                let threads = pool.metrics().threads;
                threads.iter().any(|thread| thread.role == Role::Follower)
            }
        };
        while !follows() {
            thread::yield_now();
        }
    }
}

/// Whether a thread of this process sleeps, as the kernel has it.
fn is_asleep(thread: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it lives");
    // The state follows the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

/// Has two threads hand over leadership so many times; how long nobody had it, all in all.
fn leadership(follows: Follows, cpus: [usize; 2], times: u64) -> Duration {
    let builder = Pool::builder().papers().spin(follows.spin());
    let pool = builder.threads(0).joiners(2).build().expect("a pool");
    for _ in 0..2 {
        let ready = EventFd::semaphore(1).expect("an eventfd");
        let handler = handler_fn(ready, |_, _, _| Next::Rearm(Interest::READABLE));
        pool.handles().register(handler, Interest::READABLE).expect("registered");
    }
    let record = Record { left: times, given_up: None, vacant: Duration::ZERO };
    let race = &Race {
        pool,
        follows,
        threads: [const { OnceLock::new() }; 2],
        start: Barrier::new(2),
        record: Mutex::new(record),
    };
    thread::scope(|threads| {
        for (number, cpu) in cpus.into_iter().enumerate() {
            threads.spawn(move || {
                sched::pin_to_cpu(cpu).expect("a CPU that is allowed");
                race.take_part(number);
            });
        }
    });
    race.record.lock().expect("no panic").vacant
}

struct Race {
    pool: Pool,
    follows: Follows,
    threads: [OnceLock<Pid>; 2],
    start: Barrier,
    /// Only touched by whoever leads, so that nobody waits for it.
    record: Mutex<Record>,
}

struct Record {
    left: u64,
    /// Who has given up the role, and when.
    given_up: Option<(usize, Instant)>,
    vacant: Duration,
}

impl Race {
    fn take_part(&self, number: usize) {
        self.threads[number].get_or_init(gettid);
        self.start.wait();
        let other = *self.threads[1 - number].get().expect("it was there before the start");
        let mut follower = self.pool.enlist().expect("enlisted");
        loop {
            follower = match follower.follow() {
                Turn::Lead(leader) => {
                    if self.has_role(number) {
                        self.pool.shutdown();
                        return;
                    }
                    match leader.wait() {
                        Watch::Detected(detected) => {
                            self.follows.await_thread(&self.pool, other);
                            self.gives_role_up(number);
                            match detected.promote() {
                                Ok(processing) => processing.process(),
                                Err(follower) => follower,
                            }
                        }
                        Watch::Nothing(follower) => follower,
                    }
                }
                Turn::Process(processing) => processing.process(),
                Turn::Leave(_) => return,
            };
        }
    }

    /// A thread is about to wait; whether it was the last time.
    fn has_role(&self, number: usize) -> bool {
        let now = Instant::now();
        let mut record = self.record.lock().expect("no panic");
        match record.given_up.take() {
            Some((who, since)) if who != number => {
                record.vacant += now - since;
                record.left -= 1;
                record.left == 0
            }
            _ => false,
        }
    }

    fn gives_role_up(&self, number: usize) {
        let mut record = self.record.lock().expect("no panic");
        record.given_up = Some((number, Instant::now()));
    }
}

fn by_channel(cpus: [usize; 2], rounds: u64) -> Duration {
    let (give_first, first) = mpsc::channel();
    let (give_second, second) = mpsc::channel();
    let ping = move |_: &Thread| {
        give_second.send(()).expect("heard");
        first.recv().expect("told");
    };
    let pong = move |_: &Thread| {
        second.recv().expect("told");
        // The last is not waited for by who has gone.
        let _ = give_first.send(());
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

fn by_condvar(cpus: [usize; 2], rounds: u64) -> Duration {
    let (turn, changed) = (Mutex::new(0), Condvar::new());
    let give = |to: usize| {
        *turn.lock().expect("no panic") = to;
        changed.notify_one();
    };
    let take = |own: usize| {
        let now = turn.lock().expect("no panic");
        drop(changed.wait_while(now, |now| *now != own).expect("no panic"));
    };
    let ping = |_: &Thread| {
        give(1);
        take(0);
    };
    let pong = |_: &Thread| {
        take(1);
        give(0);
    };
    relay::ping_pong(cpus, rounds, ping, pong)
}

fn whole_events(c: &mut Criterion) {
    let mut group = c.benchmark_group("whole event of two that are always ready");
    for (name, builder) in
        [("each handed over", Pool::builder().papers()), ("default policy", Pool::builder())]
    {
        let busy = Busy::new(builder.pinning(Pinning::OnePerCpu));
        group.bench_function(name, |b| b.iter_custom(|events| busy.handle(events)));
    }
    group.finish();
}

/// A pool of two threads and two handles that are always ready, unless suspended.
struct Busy {
    pool: Pool,
    handles: Vec<HandleId>,
    left: Arc<AtomicI64>,
    suspended: mpsc::Receiver<()>,
}

impl Busy {
    fn new(builder: Builder) -> Busy {
        let pool = builder.threads(2).build().expect("a pool");
        let left = Arc::new(AtomicI64::new(0));
        let (tell, suspended) = mpsc::channel();
        let handles = (0..2).map(|_| {
            let (left, tell) = (Arc::clone(&left), tell.clone());
            let handler = move |_: &mut EventFd, _, _: &mut Context<'_>| {
                if left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    return Next::Rearm(Interest::READABLE);
                }
                let _ = tell.send(());
                Next::Suspend
            };
            let ready = EventFd::semaphore(1).expect("an eventfd");
            let handler = handler_fn(ready, handler);
            pool.handles().register(handler, Interest::READABLE).expect("registered")
        });
        let handles = handles.collect();
        let busy = Busy { pool, handles, left, suspended };
        busy.await_end();
        busy
    }

    /// How long it takes to handle so many events.
    fn handle(&self, events: u64) -> Duration {
        self.left.store(events as i64, Ordering::Relaxed);
        let begun = Instant::now();
        for id in &self.handles {
            self.pool.handles().resume(*id).expect("resumed");
        }
        self.await_end();
        begun.elapsed()
    }

    fn await_end(&self) {
        self.handles.iter().for_each(|_| self.suspended.recv().expect("told"));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = hand_over, whole_events
}
criterion_main!(benches);
