//! What do the parts of an event cost? Registering and removing a handle, and one round trip through a
//! pool under each deactivation.
//!
//! These are regression tests of implementation details, not figures to choose by: on a shared machine
//! the scheduler's part is larger than ours.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use cabrank::{Context, Deactivation, Interest, Next, Pool, Ready, handler_fn};
use criterion::{Criterion, criterion_group, criterion_main};

fn register_and_remove(c: &mut Criterion) {
    let pool = Pool::builder().threads(1).build().expect("a pool");
    let (stream, _peer) = UnixStream::pair().expect("a pair of streams");
    c.bench_function("register and remove", |b| {
        b.iter(|| {
            let source = stream.try_clone().expect("a duplicate");
            let handler = handler_fn(source, |_, _, _| Next::Close);
            let id = pool.handles().register(handler, Interest::READABLE).expect("registered");
            black_box(pool.handles().remove(id)).expect("removed");
        });
    });
}

fn round_trip(c: &mut Criterion) {
    let mut group = c.benchmark_group("round trip");
    for (name, builder) in [
        ("one-shot", Pool::builder()),
        ("edge", Pool::builder().deactivation(Deactivation::Edge)),
        ("papers", Pool::builder().papers()),
    ] {
        let pool = builder.threads(2).build().expect("a pool");
        let (stream, mut peer) = UnixStream::pair().expect("a pair of streams");
        stream.set_nonblocking(true).expect("non-blocking");
        pool.handles().register(handler_fn(stream, echo), Interest::READABLE).expect("registered");
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut byte = [7];
                peer.write_all(&byte).expect("sent");
                peer.read_exact(&mut byte).expect("answered");
                black_box(byte);
            });
        });
    }
    group.finish();
}

fn echo(stream: &mut UnixStream, _: Ready, _: &mut Context<'_>) -> Next {
    let mut buffer = [0; 64];
    match stream.read(&mut buffer) {
        Ok(0) | Err(_) => Next::Close,
        Ok(n) => match stream.write_all(&buffer[..n]) {
            Ok(()) => Next::Drained(Interest::READABLE),
            Err(_) => Next::Close,
        },
    }
}

criterion_group!(benches, register_and_remove, round_trip);
criterion_main!(benches);
