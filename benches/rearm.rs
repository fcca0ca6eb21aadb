//! What does it cost to take a handle out of consideration while its handler runs? One-shot, which re-arms by
//! a system call, against edge trigger with the state word, which needs none.
//!
//! At first by bare system calls, then by the engine, both on one thread, which also makes the event: an
//! eventfd is written, waited for, and read. Engine less bare is what the protocol adds. Then as a round trip
//! through pools with two threads of their own on one CPU, from another: there waking up is most of it.
//!
//! These are regression tests of implementation details, not figures to choose by.

mod placement;

use std::hint::black_box;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Context, Deactivation, Follower, Interest, Next, Pinning, Pool, Ready, Turn, Watch, handler_fn,
};
use criterion::{Criterion, criterion_group, criterion_main};

fn system_call(c: &mut Criterion) {
    let epoll = Epoll::new().expect("an epoll instance");
    let eventfd = EventFd::new().expect("an eventfd");
    let flags = Flags::IN | Flags::ONESHOT;
    epoll.add(&eventfd, flags, 0).expect("added");
    c.bench_function("re-armed, system call by itself", |b| {
        b.iter(|| epoll.modify(&eventfd, flags, 0).expect("modified"));
    });
}

fn bare(c: &mut Criterion) {
    let mut group = c.benchmark_group("event on one thread, bare");
    for (name, trigger) in
        [("level", Flags::default()), ("one-shot", Flags::ONESHOT), ("edge", Flags::ET)]
    {
        let epoll = Epoll::new().expect("an epoll instance");
        let eventfd = EventFd::new().expect("an eventfd");
        let mut events = Events::with_capacity(NonZeroUsize::MIN);
        epoll.add(&eventfd, Flags::IN | trigger, 0).expect("added");
        group.bench_function(name, |b| {
            b.iter(|| {
                eventfd.notify().expect("written");
                epoll.wait(&mut events, None).expect("waited");
                black_box(eventfd.read().expect("read"));
                if trigger == Flags::ONESHOT {
                    epoll.modify(&eventfd, Flags::IN | trigger, 0).expect("re-armed");
                }
            });
        });
    }
    group.finish();
}

fn engine(c: &mut Criterion) {
    let mut group = c.benchmark_group("event on one thread, engine");
    let drained = Next::Drained(Interest::READABLE);
    for (name, deactivation, next) in [
        ("one-shot", Deactivation::OneShot, drained),
        ("edge and state word", Deactivation::Edge, drained),
        ("edge, polled again", Deactivation::Edge, Next::Rearm(Interest::READABLE)),
    ] {
        let builder = Pool::builder().deactivation(deactivation);
        let pool = builder.threads(0).joiners(1).build().expect("a pool");
        let eventfd = Arc::new(EventFd::new().expect("an eventfd"));
        let read = move |eventfd: &mut Arc<EventFd>, _: Ready, _: &mut Context<'_>| {
            black_box(eventfd.read().expect("read"));
            next
        };
        let handler = handler_fn(Arc::clone(&eventfd), read);
        pool.handles().register(handler, Interest::READABLE).expect("registered");
        let mut follower = Some(pool.enlist().expect("enlisted"));
        group.bench_function(name, |b| {
            b.iter(|| {
                eventfd.notify().expect("written");
                follower = follower.take().map(handle_one);
            });
        });
    }
    group.finish();
}

/// Goes through the roles once.
fn handle_one(follower: Follower<'_>) -> Follower<'_> {
    match follower.follow() {
        Turn::Lead(leader) => match leader.wait() {
            Watch::Detected(detected) => match detected.promote() {
                Ok(processing) => processing.process(),
                Err(follower) => follower,
            },
            Watch::Nothing(follower) => follower,
        },
        Turn::Process(processing) => processing.process(),
        Turn::Leave(why) => panic!("nobody has shut the pool down: {why}"),
    }
}

fn round_trip(c: &mut Criterion) {
    let mut group = c.benchmark_group("round trip through a pool");
    let [ours, theirs] = placement::ends();
    for (name, builder) in [
        ("one-shot", Pool::builder()),
        ("edge and state word", Pool::builder().deactivation(Deactivation::Edge)),
        ("papers, one-shot", Pool::builder().papers()),
    ] {
        let builder = builder.threads(2).pinning(Pinning::Cpus(vec![theirs]));
        let pool = builder.build().expect("a pool");
        let (stream, mut peer) = UnixStream::pair().expect("a pair of streams");
        stream.set_nonblocking(true).expect("non-blocking");
        pool.handles().register(handler_fn(stream, echo), Interest::READABLE).expect("registered");
        group.bench_function(name, |b| {
            let mut ask = || {
                let mut byte = [7];
                peer.write_all(&byte).expect("sent");
                peer.read_exact(&mut byte).expect("answered");
                black_box(byte);
            };
            b.iter_custom(|rounds| placement::timed_on(ours, || (0..rounds).for_each(|_| ask())));
        });
    }
    group.finish();
}

/// Reads once more than there is, as the promise of `Next::Drained` asks of it.
fn echo(stream: &mut UnixStream, _: Ready, _: &mut Context<'_>) -> Next {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(n @ 1..) if stream.write_all(&buffer[..n]).is_ok() => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Next::Drained(Interest::READABLE);
            }
            _ => return Next::Close,
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = system_call, bare, engine, round_trip
}
criterion_main!(benches);
