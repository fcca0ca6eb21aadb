//! Listeners: who is let in, when, and what happens when there is no room.

mod util;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::net::{Accepted, BindError, ListenOptions, Permit};
use cabrank::{Context, Deactivation, Interest, Next, Pool, Removal, handler_fn};
use nix::sys::resource::{Resource, setrlimit};
use socket2::SockRef;
use util::{Counter, PATIENCE, Probe, Random, in_own_process, ping, pool, seed, soak, wait_until};

const ANY_PORT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const BOTH: [Deactivation; 2] = [Deactivation::OneShot, Deactivation::Edge];

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A path for a socket that exists for as long as this value.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Path {
        Path(std::env::temp_dir().join(format!("cabrank-{name}-{}", std::process::id())))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Says hello to each that is let in, and then keeps it until the client hangs up.
fn greet<S>(accepted: Accepted<S>, cx: &mut Context<'_>)
where
    S: Read + Write + AsFd + Send + 'static,
{
    let mut greeted = false;
    let greeter = handler_fn(accepted, move |accepted, _ready, _cx| {
        if !greeted {
            greeted = true;
            accepted.stream.write_all(b"hello").unwrap();
            return Next::Rearm(Interest::READABLE);
        }
        match accepted.stream.read(&mut [0; 10]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Next::Rearm(Interest::READABLE)
            }
            _ => Next::Close,
        }
    });
    cx.handles().register(greeter, Interest::WRITABLE).unwrap();
}

/// Whether the server says hello; not if it closes.
fn is_greeted(client: &mut impl Read) -> bool {
    let mut said = [0; 5];
    client.read_exact(&mut said).is_ok_and(|()| &said == b"hello")
}

#[test]
fn everybody_is_let_in() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(3));
        let options = ListenOptions::new().deactivation(deactivation);
        let listener = options.tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let tcp = listener.register(pool.handles(), greet).unwrap();
        let path = Path::new("everybody");
        let unix = options.unix(&path.0).unwrap().register(pool.handles(), greet).unwrap();
        // All of them connected before the first is looked at.
        let mut tcp_clients: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
        let mut unix_clients: Vec<UnixStream> =
            (0..100).map(|_| UnixStream::connect(&path.0).unwrap()).collect();
        assert!(tcp_clients.iter_mut().all(is_greeted));
        assert!(unix_clients.iter_mut().all(is_greeted));
        for counts in [tcp.counts(), unix.counts()] {
            assert_eq!((counts.accepted, counts.refused, counts.pauses), (100, 0, 0));
            assert_eq!(counts.open, 100);
        }
        drop(tcp_clients);
        wait_until("the permits to be back", || tcp.counts().open == 0);
        assert_eq!(unix.counts().open, 100);
    }
}

#[test]
fn other_handles_have_their_turn_between_accepts() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let listener = ListenOptions::new().accepts_per_turn(3).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    // The only thread is busy while everything becomes ready.
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    pool.post(move |_cx| {
        enter.send(()).unwrap();
        let _ = left.recv();
    })
    .unwrap();
    entered.recv().unwrap();
    let log = Arc::clone(&order);
    listener.register(pool.handles(), move |_, _cx| log.lock().unwrap().push("client")).unwrap();
    let log = Arc::clone(&order);
    let (probe, mut peer) = Probe::pair(move |stream, _ready, _cx| {
        log.lock().unwrap().push("probe");
        let _ = stream.read(&mut [0; 8]);
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let _clients: Vec<TcpStream> = (0..30).map(|_| connect(address)).collect();
    peer.write_all(b"x").unwrap();
    leave.send(()).unwrap();
    wait_until("all clients", || order.lock().unwrap().len() == 31);
    let before = order.lock().unwrap().iter().position(|&who| who == "probe").unwrap();
    assert!(before <= 6, "{before} clients came first");
}

#[test]
fn connections_have_the_options_of_their_listener() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let options = ListenOptions::new().nodelay().keepalive(Duration::from_secs(77));
    let listener = options.tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    let send = move |accepted: Accepted<TcpStream>, _cx: &mut Context<'_>| {
        tell.send(accepted.into_parts().0).unwrap();
    };
    listener.register(pool.handles(), send).unwrap();
    let _client = connect(address);
    let stream = told.recv_timeout(PATIENCE).unwrap();
    let socket = SockRef::from(&stream);
    assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
    assert!(socket.nonblocking().unwrap());
    let flags = nix::fcntl::fcntl(&stream, nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_eq!(flags, nix::libc::FD_CLOEXEC);
}

// The limit.

#[test]
fn the_limit_is_kept_and_those_who_wait_come_in_one_by_one() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let options = ListenOptions::new().max_connections(3).deactivation(deactivation);
        let listener = options.tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = listener.register(pool.handles(), greet).unwrap();
        let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
        for served in 3..20 {
            wait_until("as many as may", || accepting.counts().accepted == served);
            assert_eq!(accepting.counts().open, 3);
            assert!(is_greeted(&mut clients[0]));
            clients.remove(0);
        }
        wait_until("the last", || accepting.counts().accepted == 20);
        assert!(clients.iter_mut().all(is_greeted));
    }
}

/// The race of a permit that is dropped against a listener that is about to suspend itself: if a wake-up
/// got lost, the clients would wait for ever.
#[test]
fn no_free_place_goes_unnoticed() {
    let mut random = Random::new(seed());
    for (deactivation, limit) in [(BOTH[0], 1), (BOTH[1], 1), (BOTH[0], 3), (BOTH[1], 3)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(3));
        let path = Path::new("places");
        let options = ListenOptions::new().max_connections(limit).deactivation(deactivation);
        let most = Counter::new();
        let (give, given) = mpsc::channel::<(Permit, u64)>();
        let given = Arc::new(Mutex::new(given));
        let droppers: Vec<_> = (0..4)
            .map(|_| {
                let given = Arc::clone(&given);
                thread::spawn(move || {
                    loop {
                        let Ok((permit, wait)) = given.lock().unwrap().recv() else { return };
                        for _ in 0..wait {
                            std::hint::spin_loop();
                        }
                        drop(permit);
                    }
                })
            })
            .collect();
        let (seen, mut delays) = (most.clone(), random.clone());
        let open = Arc::new(std::sync::OnceLock::<cabrank::net::Accepting>::new());
        let looked_up = Arc::clone(&open);
        let callback = move |accepted: Accepted<UnixStream>, _cx: &mut Context<'_>| {
            let now = looked_up.get().map_or(0, |accepting| accepting.counts().open as u64);
            if now > seen.get() {
                seen.add(now - seen.get());
            }
            let (stream, permit) = accepted.into_parts();
            drop(stream);
            give.send((permit, delays.below(400))).unwrap();
        };
        let listener = options.unix(&path.0).unwrap();
        let accepting = listener.register(pool.handles(), callback).unwrap();
        open.set(accepting.clone()).unwrap();
        let clients = Counter::new();
        let end = Instant::now() + soak() / 4;
        thread::scope(|scope| {
            for _ in 0..3 {
                let (path, clients) = (&path.0, clients.clone());
                scope.spawn(move || {
                    while Instant::now() < end {
                        let mut stream = UnixStream::connect(path).unwrap();
                        clients.add(1);
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        // The end of the stream: it has been let in.
                        assert_eq!(stream.read(&mut [0]).expect("to be let in"), 0);
                    }
                });
            }
        });
        let counts = accepting.counts();
        assert_eq!(counts.accepted, clients.get());
        assert!(counts.accepted > 100 && most.get() <= limit as u64, "{counts:?}, {most:?}");
        wait_until("all permits to be back", || accepting.counts().open == 0);
        pool.finish();
        for dropper in droppers {
            dropper.join().unwrap();
        }
        random.next();
    }
}

#[test]
fn a_permit_dropped_in_the_callback_is_free_at_once() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().max_connections(1).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = listener.register(pool.handles(), |accepted, _cx| drop(accepted)).unwrap();
    for _ in 0..100 {
        assert_eq!(connect(address).read(&mut [0]).unwrap(), 0);
    }
    wait_until("the last permit to be back", || accepting.counts().open == 0);
    assert_eq!(accepting.counts().accepted, 100);
}

#[test]
fn permits_outlive_listener_and_pool() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().max_connections(2).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    let send = move |accepted: Accepted<TcpStream>, _cx: &mut Context<'_>| {
        tell.send(accepted.permit).unwrap();
    };
    let accepting = listener.register(pool.handles(), send).unwrap();
    let _clients: Vec<TcpStream> = (0..3).map(|_| connect(address)).collect();
    let (first, second) = (told.recv().unwrap(), told.recv().unwrap());
    assert_eq!(pool.handles().remove(accepting.id()).unwrap(), Removal::Done);
    assert!(accepting.resume().is_err());
    drop(first);
    pool.finish();
    drop(second);
    assert_eq!(accepting.counts().open, 0);
}

#[test]
fn a_suspended_listener_lets_nobody_in_whatever_happens() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().max_connections(1).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = listener.register(pool.handles(), greet).unwrap();
    let mut first = connect(address);
    assert!(is_greeted(&mut first));
    let mut second = connect(address);
    accepting.suspend();
    // Its place becomes free, and nobody gets it.
    drop(first);
    wait_until("the place to be free", || accepting.counts().open == 0);
    pool.handles().notify(accepting.id()).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(accepting.counts().accepted, 1);
    accepting.resume().unwrap();
    assert!(is_greeted(&mut second));
}

// Callbacks that do what they should not, or may.

#[test]
fn a_callback_may_remove_its_listener() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let calls = Counter::new();
    let count = calls.clone();
    let once = move |_accepted: Accepted<TcpStream>, cx: &mut Context<'_>| {
        count.add(1);
        cx.handles().remove(cx.id()).unwrap();
    };
    // Several wait when it is called.
    let clients: Vec<TcpStream> = (0..5).map(|_| connect(address)).collect();
    let accepting = listener.register(pool.handles(), once).unwrap();
    wait_until("the listener to be gone", || pool.handles().is_empty());
    assert_eq!((calls.get(), accepting.counts().open), (1, 0));
    for mut client in clients {
        // Closed or reset, but not left alone.
        assert!(!is_greeted(&mut client));
    }
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_callback_may_register_suspend_and_shut_down() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let mut calls = 0;
    let callback = move |accepted: Accepted<TcpStream>, cx: &mut Context<'_>| {
        calls += 1;
        match calls {
            1 => greet(accepted, cx),
            2 => cx.handles().suspend(cx.id()).unwrap(),
            _ => cx.shutdown(),
        }
    };
    let accepting = listener.register(pool.handles(), callback).unwrap();
    assert!(is_greeted(&mut connect(address)));
    let _second = connect(address);
    wait_until("the second", || accepting.counts().accepted == 2);
    let mut third = connect(address);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(accepting.counts().accepted, 2);
    pool.handles().resume(accepting.id()).unwrap();
    assert!(!is_greeted(&mut third));
    pool.finish();
    assert_eq!((accepting.counts().accepted, accepting.counts().open), (3, 0));
}

#[test]
fn a_panic_costs_the_listener_and_nothing_else() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (probe, mut peer) = Probe::pair(util::echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let listener = ListenOptions::new().max_connections(1).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let panic = |_accepted: Accepted<TcpStream>, _cx: &mut Context<'_>| panic!("on purpose");
    let accepting = listener.register(pool.handles(), panic).unwrap();
    let mut client = connect(address);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    wait_until("the listener to be gone", || !pool.handles().contains(accepting.id()));
    assert_eq!(accepting.counts().open, 0);
    ping(&mut peer);
}

// Clients that are gone, and descriptors that are not there.

#[test]
fn clients_that_are_gone_before_they_are_let_in_do_no_harm() {
    for deactivation in BOTH {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let options = ListenOptions::new().max_connections(4).deactivation(deactivation);
        let listener = options.tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let mut living = Vec::new();
        for _ in 0..20 {
            let reset = connect(address);
            SockRef::from(&reset).set_linger(Some(Duration::ZERO)).unwrap();
            drop(reset);
            drop(connect(address));
            living.push(connect(address));
        }
        let greet_the_living = |accepted: Accepted<TcpStream>, cx: &mut Context<'_>| {
            let dead = accepted.stream.peer_addr().is_err();
            if !dead {
                greet_quietly(accepted, cx);
            }
        };
        let accepting = listener.register(pool.handles(), greet_the_living).unwrap();
        while !living.is_empty() {
            assert!(is_greeted(&mut living[0]));
            living.remove(0);
        }
        wait_until("the permits to be back", || accepting.counts().open == 0);
    }
}

/// As [`greet`], and does not mind a client that is gone.
fn greet_quietly(accepted: Accepted<TcpStream>, cx: &mut Context<'_>) {
    let greeter = handler_fn(accepted, |accepted: &mut Accepted<TcpStream>, ready, _cx| {
        if ready.is_writable() && accepted.stream.write_all(b"hello").is_err() {
            return Next::Close;
        }
        match accepted.stream.read(&mut [0; 10]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Next::Rearm(Interest::READABLE)
            }
            _ => Next::Close,
        }
    });
    cx.handles().register(greeter, Interest::WRITABLE).unwrap();
}

/// Sockets that are made but not connected, so that the clients need no descriptor later.
fn unconnected(count: usize) -> Vec<socket2::Socket> {
    let kind = socket2::Type::STREAM;
    let socket = |_| socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
    (0..count).map(socket).collect()
}

#[test]
fn without_descriptors_clients_are_told_and_the_listener_recovers() {
    let test = "without_descriptors_clients_are_told_and_the_listener_recovers";
    in_own_process(test, || recovers_from_a_shortage(Deactivation::OneShot));
}

#[test]
fn without_descriptors_clients_are_told_and_the_listener_recovers_by_edge() {
    let test = "without_descriptors_clients_are_told_and_the_listener_recovers_by_edge";
    in_own_process(test, || recovers_from_a_shortage(Deactivation::Edge));
}

fn recovers_from_a_shortage(deactivation: Deactivation) {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (probe, mut peer) = Probe::pair(util::echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let listener = ListenOptions::new().deactivation(deactivation).tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = listener.register(pool.handles(), greet).unwrap();
    assert!(is_greeted(&mut connect(address)));
    wait_until("the first to be gone", || accepting.counts().open == 0);

    let sockets = unconnected(40);
    let old = util::leave_descriptors(0);
    let before = pool.metrics().total().events;
    for socket in &sockets {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(&address.into()).unwrap();
    }
    // Each hears that it is not served, and within a time that is no time-out of its own.
    for socket in &sockets {
        let told = (&mut &*socket).read(&mut [0]);
        assert!(matches!(told, Ok(0)), "{told:?}");
    }
    let counts = accepting.counts();
    assert_eq!((counts.accepted, counts.refused), (1, 40));
    assert!(counts.pauses >= 1);
    ping(&mut peer);
    // No spinning: a pause each, the clients that came one by one, and the probe.
    let calls = pool.metrics().total().events - before;
    assert!(calls < 2 * 40 + 20, "{calls} calls");
    // And none at all when nobody comes.
    let mut calls = pool.metrics().total().events;
    wait_until("the last pause to be over", || {
        thread::sleep(Duration::from_millis(120));
        std::mem::replace(&mut calls, pool.metrics().total().events) == calls
    });

    setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
    drop(sockets);
    assert!(is_greeted(&mut connect(address)));
    assert_eq!(accepting.counts().accepted, 2);
}

#[test]
fn a_listener_without_its_reserve_pauses_and_recovers() {
    in_own_process("a_listener_without_its_reserve_pauses_and_recovers", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let listener = ListenOptions::new().tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = unconnected(3);
        // Before it is registered: there is none left for the reserve.
        let old = util::leave_descriptors(0);
        let accepting = listener.register(pool.handles(), greet).unwrap();
        for socket in &sockets {
            socket.connect(&address.into()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        wait_until("a few pauses", || accepting.counts().pauses >= 3);
        assert_eq!((accepting.counts().accepted, accepting.counts().refused), (0, 0));
        setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
        // They have waited, and are served now.
        for socket in &sockets {
            assert!(is_greeted(&mut &*socket));
        }
    });
}

/// One place under the limit: a shortage that took it would be the end of the listener.
#[test]
fn a_shortage_takes_no_place_under_the_limit() {
    in_own_process("a_shortage_takes_no_place_under_the_limit", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let listener = ListenOptions::new().max_connections(1).tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let clients = unconnected(3);
        let old = util::leave_descriptors(0);
        let accepting = listener.register(pool.handles(), greet).unwrap();
        for client in &clients {
            client.connect(&address.into()).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        wait_until("a few pauses", || accepting.counts().pauses >= 3);
        setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
        for client in clients {
            assert!(is_greeted(&mut &client));
        }
        wait_until("the place to be free", || accepting.counts().open == 0);
    });
}

#[test]
fn pauses_grow_while_a_shortage_lasts_and_begin_anew_with_the_next() {
    in_own_process("pauses_grow_while_a_shortage_lasts_and_begin_anew_with_the_next", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let listener = ListenOptions::new().tcp(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = Some(listener);
        let mut clients = unconnected(21);
        let mut accepting = None;
        // How long it takes to pause so many times, from the first time on.
        let mut shortage = |pauses: u64| {
            let old = util::leave_descriptors(0);
            let accepting = accepting.get_or_insert_with(|| {
                listener.take().unwrap().register(pool.handles(), greet).unwrap()
            });
            let before = accepting.counts().pauses;
            let client = clients.pop().unwrap();
            let start = Instant::now();
            client.connect(&address.into()).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            wait_until("the pauses", || accepting.counts().pauses >= before + pauses);
            let took = start.elapsed();
            setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
            assert!(is_greeted(&mut &client));
            took
        };
        // 10, 20, 40, 80 and 100 milliseconds.
        let first = shortage(6);
        assert!(first >= Duration::from_millis(250), "{first:?}");
        // 10 and 20 milliseconds, and not twice 100. On a busy machine it takes a few attempts to see it.
        let is_short = |_| shortage(3) < Duration::from_millis(150);
        assert!((0..20).any(is_short), "the pauses of one shortage are those of the next");
    });
}

// Addresses.

#[test]
fn a_port_in_use_is_refused_with_advice() {
    let first = ListenOptions::new().tcp(ANY_PORT).unwrap();
    let address = first.local_addr().unwrap();
    let error = ListenOptions::new().tcp(address).unwrap_err();
    assert!(matches!(error, BindError::PortInUse { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("reuse_port"), "{text}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
    // Port 1 of an address that is not ours.
    let elsewhere = ListenOptions::new().tcp(([192, 0, 2, 1], 1)).unwrap_err();
    assert!(matches!(elsewhere, BindError::Refused { .. }), "{elsewhere:?}");
}

#[test]
fn listeners_that_say_so_share_a_port() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let options = ListenOptions::new().reuse_port();
    let first = options.tcp(ANY_PORT).unwrap();
    let address = first.local_addr().unwrap();
    let second = options.tcp(address).unwrap();
    let first = first.register(pool.handles(), greet).unwrap();
    let second = second.register(pool.handles(), greet).unwrap();
    let mut clients: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
    assert!(clients.iter_mut().all(is_greeted));
    let (first, second) = (first.counts().accepted, second.counts().accepted);
    assert!(first > 0 && second > 0 && first + second == 100, "{first} + {second}");
}

#[test]
fn a_server_may_have_the_port_of_the_last_one() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = ListenOptions::new().tcp(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = listener.register(pool.handles(), |accepted, _cx| drop(accepted)).unwrap();
    // Closed by the server first, so its end is in TIME_WAIT.
    assert_eq!(connect(address).read(&mut [0]).unwrap(), 0);
    pool.handles().remove(accepting.id()).unwrap();
    drop(ListenOptions::new().tcp(address).unwrap());
}

#[test]
fn the_path_of_a_unix_listener_goes_with_it_and_no_other() {
    let path = Path::new("path");
    let options = ListenOptions::new();
    let listener = options.unix(&path.0).unwrap();
    let error = options.unix(&path.0).unwrap_err();
    assert!(matches!(error, BindError::PathInUse { .. }), "{error:?}");
    assert!(error.to_string().contains("replace_stale"), "{error}");
    // Somebody listens: also not to be replaced.
    assert!(options.clone().replace_stale().unix(&path.0).is_err());
    drop(listener);
    assert!(!path.0.exists(), "left behind");

    // One that was left behind.
    drop(UnixListener::bind(&path.0).unwrap());
    assert!(path.0.exists());
    assert!(options.unix(&path.0).is_err());
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let listener = options.clone().replace_stale().unix(&path.0).unwrap();
    let accepting = listener.register(pool.handles(), greet).unwrap();
    assert!(is_greeted(&mut UnixStream::connect(&path.0).unwrap()));
    pool.handles().remove(accepting.id()).unwrap();
    assert!(!path.0.exists(), "left behind");

    // A file of another kind is nobody's to replace.
    std::fs::write(&path.0, "precious").unwrap();
    assert!(options.clone().replace_stale().unix(&path.0).is_err());
    assert_eq!(std::fs::read(&path.0).unwrap(), b"precious");
    std::fs::remove_file(&path.0).unwrap();

    // The path has come to mean another file.
    let listener = options.unix(&path.0).unwrap();
    std::fs::remove_file(&path.0).unwrap();
    std::fs::write(&path.0, "precious").unwrap();
    drop(listener);
    assert_eq!(std::fs::read(&path.0).unwrap(), b"precious");

    let long = "x".repeat(200);
    let error = options.unix(std::path::Path::new(&long)).unwrap_err();
    assert!(matches!(error, BindError::Refused { .. }), "{error:?}");
}

#[test]
fn inherited_listeners_are_served() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let adopted = ListenOptions::new().adopt_tcp(listener).unwrap();
    assert_eq!(adopted.local_addr().unwrap(), address);
    adopted.register(pool.handles(), greet).unwrap();
    assert!(is_greeted(&mut connect(address)));
    let path = Path::new("adopted");
    let listener = UnixListener::bind(&path.0).unwrap();
    let adopted = ListenOptions::new().adopt_unix(listener).unwrap();
    adopted.register(pool.handles(), greet).unwrap();
    assert!(is_greeted(&mut UnixStream::connect(&path.0).unwrap()));
    pool.finish();
    assert!(path.0.exists(), "whoever made it deletes it");
}

#[test]
fn a_socket_that_does_not_listen_makes_no_noise() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    // A connected stream in place of a listener: accept says EINVAL, whatever one does.
    let (stream, mut peer) = util::stream_pair();
    peer.write_all(b"x").unwrap();
    let listener = UnixListener::from(OwnedFd::from(stream));
    let adopted = ListenOptions::new().adopt_unix(listener).unwrap();
    let nobody = |_accepted: Accepted<UnixStream>, _cx: &mut Context<'_>| unreachable!();
    let accepting = adopted.register(pool.handles(), nobody).unwrap();
    wait_until("a few pauses", || accepting.counts().pauses >= 3);
    let calls = pool.metrics().total().events;
    assert!(calls < 50, "{calls} calls");
}
