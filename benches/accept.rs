//! How many connections can be accepted per second? By `cabrank::net`'s listener, by a thread in `accept`, and
//! by a bare epoll loop.
//!
//! The client connects, waits until it has been accepted, and resets the connection, so that no ports are used
//! up. All of that is in the figure, on both sides of one kernel: compare, and do not take it for the server's
//! share. One by one each finds the server asleep; of 64 that come at once it finds several waiting. A
//! connection counts as accepted when `accept` has returned, and is closed by the server after that.
//!
//! These are regression tests of implementation details.

mod placement;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use cabrank::net::{Accepted, ListenOptions};
use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::sys::{sched, socket};
use cabrank::{Context, Deactivation, Pinning, Pool};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use socket2::SockRef;

const ANY_PORT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn by_pool(c: &mut Criterion) {
    let [_, cpu] = placement::ends();
    for (name, deactivation) in
        [("cabrank, one-shot", Deactivation::OneShot), ("cabrank, edge", Deactivation::Edge)]
    {
        let builder = Pool::builder().threads(2).pinning(Pinning::Cpus(vec![cpu]));
        let pool = builder.build().expect("a pool");
        let options = ListenOptions::new().deactivation(deactivation);
        let listener = options.tcp(ANY_PORT).expect("listening");
        let address = listener.local_addr().expect("an address");
        let count = Arc::new(AtomicU64::new(0));
        let accepted = Arc::clone(&count);
        let accept = move |_: Accepted<TcpStream>, _: &mut Context<'_>| {
            accepted.fetch_add(1, Ordering::Release);
        };
        listener.register(pool.handles(), accept).expect("registered");
        measure(c, name, address, &count);
    }
}

fn by_thread_in_accept(c: &mut Criterion) {
    let listener = TcpListener::bind(ANY_PORT).expect("listening");
    by_thread(c, "thread in accept", &listener, |listener, accepted| {
        let _stream = listener.accept().expect("accepted");
        accepted.fetch_add(1, Ordering::Release);
    });
}

fn by_bare_loop(c: &mut Criterion) {
    let listener = TcpListener::bind(ANY_PORT).expect("listening");
    listener.set_nonblocking(true).expect("non-blocking");
    let epoll = Epoll::new().expect("an epoll instance");
    epoll.add(&listener, Flags::IN, 0).expect("added");
    let mut events = Events::with_capacity(NonZeroUsize::MIN);
    by_thread(c, "bare epoll loop", &listener, move |listener, accepted| {
        epoll.wait(&mut events, None).expect("waited");
        while let Ok(_stream) = socket::accept(listener) {
            accepted.fetch_add(1, Ordering::Release);
        }
    });
}

/// Measures a thread that calls `accept_some` until the end, with the number of those accepted so far.
fn by_thread(
    c: &mut Criterion,
    name: &str,
    listener: &TcpListener,
    mut accept_some: impl FnMut(&TcpListener, &AtomicU64) + Send,
) {
    let address = listener.local_addr().expect("an address");
    let (accepted, stop) = (&AtomicU64::new(0), &AtomicBool::new(false));
    thread::scope(|threads| {
        threads.spawn(move || {
            let [_, cpu] = placement::ends();
            sched::pin_to_cpu(cpu).expect("a CPU that is allowed");
            while !stop.load(Ordering::Acquire) {
                accept_some(listener, accepted);
            }
        });
        measure(c, name, address, accepted);
        stop.store(true, Ordering::Release);
        drop(connect(address));
    });
}

fn measure(c: &mut Criterion, name: &str, address: SocketAddr, accepted: &AtomicU64) {
    for burst in [1, 64] {
        let mut group = c.benchmark_group(format!("accepted, {burst} at once"));
        group.throughput(Throughput::Elements(burst));
        let take_in = || {
            let before = accepted.load(Ordering::Acquire);
            let streams: Vec<_> = (0..burst).map(|_| connect(address)).collect();
            while accepted.load(Ordering::Acquire) < before + burst {
                thread::yield_now();
            }
            drop(streams);
        };
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let [cpu, _] = placement::ends();
                placement::timed_on(cpu, || (0..rounds).for_each(|_| take_in()))
            });
        });
        group.finish();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    // Closing resets the connection, and the port can be used again at once.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("set");
    stream
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    targets = by_pool, by_thread_in_accept, by_bare_loop
}
criterion_main!(benches);
