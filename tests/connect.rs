//! Connecting: told exactly once, whatever happens.

mod util;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{Error, HandleSet, Interest, Next, Pool, Removal, handler_fn, net};
use socket2::{Domain, Socket, Type};
use util::{Counter, PATIENCE, Random, in_own_process, pool, seed, wait_until};

const SOON: Duration = Duration::from_millis(30);

/// A callback that passes on what it is told, and counts its calls.
fn tell<S: Send + 'static>(
    calls: &Counter,
) -> (impl FnOnce(io::Result<S>, &HandleSet) + Send + use<S>, mpsc::Receiver<io::Result<S>>) {
    let (tell, told) = mpsc::channel();
    let calls = calls.clone();
    let done = move |stream: io::Result<S>, _handles: &HandleSet| {
        calls.add(1);
        let _ = tell.send(stream);
    };
    (done, told)
}

fn kind<S>(told: &mpsc::Receiver<io::Result<S>>) -> ErrorKind {
    let outcome = told.recv_timeout(PATIENCE).expect("to be told");
    outcome.err().expect("an error").kind()
}

/// An address at which nobody answers: a listener that accepts nobody, and whose backlog is full.
struct Silent {
    _listener: Socket,
    _clients: Vec<Socket>,
    address: SocketAddr,
}

impl Silent {
    fn new() -> Silent {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut clients = Vec::new();
        loop {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let attempt = client.connect_timeout(&address.into(), Duration::from_millis(50));
            clients.push(client);
            if attempt.is_err() {
                return Silent { _listener: listener, _clients: clients, address };
            }
        }
    }
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("cabrank-connect-{name}-{}", std::process::id()))
}

#[test]
fn a_connected_stream_works_and_can_be_registered() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (said, heard) = mpsc::channel();
    let done = move |stream: io::Result<TcpStream>, handles: &HandleSet| {
        let client = handler_fn(stream.unwrap(), move |stream, _ready, _cx| {
            let mut buffer = [0; 10];
            let bytes = stream.read(&mut buffer).unwrap();
            said.send(buffer[..bytes].to_vec()).unwrap();
            Next::Close
        });
        handles.register(client, Interest::READABLE).unwrap();
    };
    net::connect_tcp(pool.handles(), address, PATIENCE, done).unwrap();
    listener.accept().unwrap().0.write_all(b"welcome").unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"welcome");

    let path = path("works");
    let listener = UnixListener::bind(&path).unwrap();
    let calls = Counter::new();
    let (done, told) = tell(&calls);
    net::connect_unix(pool.handles(), &path, PATIENCE, done).unwrap();
    let mut client: UnixStream = told.recv_timeout(PATIENCE).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    std::fs::remove_file(path).unwrap();
    wait_until("the handles to be gone", || pool.handles().is_empty());
    assert_eq!(calls.get(), 1);
}

#[test]
fn a_refusal_is_told_once() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let calls = Counter::new();
    // A port that was free a moment ago.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (done, told) = tell::<TcpStream>(&calls);
    net::connect_tcp(pool.handles(), address, PATIENCE, done).unwrap();
    assert_eq!(kind(&told), ErrorKind::ConnectionRefused);

    let (done, told) = tell::<UnixStream>(&calls);
    net::connect_unix(pool.handles(), path("nobody"), PATIENCE, done).unwrap();
    assert_eq!(kind(&told), ErrorKind::NotFound);
    wait_until("the handles to be gone", || pool.handles().is_empty());
    assert_eq!(calls.get(), 2);
}

#[test]
fn a_refusal_is_not_told_before_connect_returns() {
    // Nobody is there to tell until this thread takes part.
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(1));
    let calls = Counter::new();
    let (done, told) = tell::<UnixStream>(&calls);
    net::connect_unix(pool.handles(), path("nobody"), PATIENCE, done).unwrap();
    assert_eq!(calls.get(), 0);
    let _ = pool.join_timeout(SOON);
    assert_eq!(kind(&told), ErrorKind::NotFound);
}

#[test]
fn a_peer_that_does_not_answer_is_timed_out_and_never_early() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let silent = Silent::new();
    let calls = Counter::new();
    for timeout in [SOON, 2 * SOON, Duration::ZERO] {
        let (done, told) = tell::<TcpStream>(&calls);
        let start = Instant::now();
        net::connect_tcp(pool.handles(), silent.address, timeout, done).unwrap();
        assert_eq!(kind(&told), ErrorKind::TimedOut);
        assert!(start.elapsed() >= timeout);
    }
    wait_until("the handles to be gone", || pool.handles().is_empty());
    assert_eq!(calls.get(), 3);
}

#[test]
fn a_full_backlog_of_a_unix_listener_is_waited_for() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let path = path("full");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(1).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        match client.connect(&socket2::SockAddr::unix(&path).unwrap()) {
            Ok(()) => waiting.push(client),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    let calls = Counter::new();
    let (done, told) = tell::<UnixStream>(&calls);
    net::connect_unix(pool.handles(), &path, SOON, done).unwrap();
    assert_eq!(kind(&told), ErrorKind::TimedOut);
    // With patience it gets its place.
    let (done, told) = tell::<UnixStream>(&calls);
    net::connect_unix(pool.handles(), &path, PATIENCE, done).unwrap();
    thread::sleep(SOON);
    assert_eq!(calls.get(), 1);
    listener.accept().unwrap();
    told.recv_timeout(PATIENCE).unwrap().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(calls.get(), 2);
}

#[test]
fn a_cancelled_connect_is_told_so_before_remove_returns() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let silent = Silent::new();
    let calls = Counter::new();
    let (done, told) = tell::<TcpStream>(&calls);
    let id = net::connect_tcp(pool.handles(), silent.address, PATIENCE, done).unwrap();
    assert_eq!(pool.handles().remove(id).unwrap(), Removal::Done);
    assert_eq!(told.try_recv().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(matches!(pool.handles().remove(id), Err(Error::UnknownHandle { .. })));
    assert_eq!(calls.get(), 1);
}

#[test]
fn a_shutdown_is_told_to_all_that_are_under_way() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let silent = Silent::new();
    let calls = Counter::new();
    let told: Vec<_> = (0..10)
        .map(|_| {
            let (done, told) = tell::<TcpStream>(&calls);
            net::connect_tcp(pool.handles(), silent.address, PATIENCE, done).unwrap();
            told
        })
        .collect();
    let handles = pool.handles().clone();
    pool.finish();
    for told in told {
        let error = told.try_recv().unwrap().unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        assert!(matches!(inner, Some(Error::ShutDown)), "{error:?}");
    }
    assert_eq!(calls.get(), 10);
    // Afterwards there is nobody to tell, and connect says so itself.
    let (done, _told) = tell::<TcpStream>(&calls);
    let error = net::connect_tcp(&handles, silent.address, PATIENCE, done).unwrap_err();
    assert_eq!((error.kind(), calls.get()), (ErrorKind::BrokenPipe, 10));
}

/// Success, refusal, time-out and cancellation in a race with each other.
#[test]
fn every_connect_is_told_exactly_once() {
    let mut random = Random::new(seed());
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let open = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(drop));
    let silent = Silent::new();
    let closed = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap()
    };
    let calls = Counter::new();
    let mut told = Vec::new();
    for _ in 0..1_000 {
        let address = [open, closed, silent.address][random.below(3) as usize];
        let timeout = Duration::from_micros(random.below(2_000));
        let (done, receiver) = tell::<TcpStream>(&calls);
        let id = net::connect_tcp(pool.handles(), address, timeout, done).unwrap();
        if random.below(3) == 0 {
            let _ = pool.handles().remove(id);
        }
        told.push(receiver);
    }
    wait_until("all to be told", || pool.handles().is_empty());
    for receiver in told {
        // One, and then the sender is gone with the callback.
        assert_eq!(receiver.iter().count(), 1);
    }
    assert_eq!(calls.get(), 1_000);
}

#[test]
fn a_callback_may_connect_again_cancel_or_panic() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let silent = Silent::new();
    let address = silent.address;
    let calls = Counter::new();
    let (last, told) = tell::<TcpStream>(&calls);
    let (other, other_told) = tell::<TcpStream>(&calls);
    let to_cancel = net::connect_tcp(pool.handles(), address, PATIENCE, other).unwrap();
    let again = move |_: io::Result<TcpStream>, handles: &HandleSet| {
        assert_eq!(handles.remove(to_cancel).unwrap(), Removal::Done);
        net::connect_tcp(handles, address, SOON, last).unwrap();
        panic!("on purpose");
    };
    net::connect_tcp(pool.handles(), address, SOON, again).unwrap();
    assert_eq!(kind(&other_told), ErrorKind::Interrupted);
    assert_eq!(kind(&told), ErrorKind::TimedOut);
    assert_eq!(calls.get(), 2);
}

#[test]
fn a_spurious_call_decides_nothing() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let silent = Silent::new();
    let calls = Counter::new();
    let (done, told) = tell::<TcpStream>(&calls);
    let timeout = 2 * SOON;
    let start = Instant::now();
    let id = net::connect_tcp(pool.handles(), silent.address, timeout, done).unwrap();
    for _ in 0..5 {
        pool.handles().notify(id).unwrap();
        pool.handles().resume(id).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(kind(&told), ErrorKind::TimedOut);
    assert!(start.elapsed() >= timeout);
}

#[test]
fn without_a_descriptor_connect_says_so_itself() {
    in_own_process("without_a_descriptor_connect_says_so_itself", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let calls = Counter::new();
        let (done, _told) = tell::<TcpStream>(&calls);
        util::leave_descriptors(0);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let error = net::connect_tcp(pool.handles(), address, PATIENCE, done).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EMFILE));
        assert_eq!(calls.get(), 0);
    });
}
