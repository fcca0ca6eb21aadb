//! Every kind of descriptor that can be polled, served by a pool: under both deactivations, and
//! with both a handler that takes one thing and re-arms and one that takes all and says so.
#![allow(unsafe_code)] // message queues, pidfds and terminals have no safe owner elsewhere

mod util;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Events, Flags};
use cabrank::sys::eventfd::EventFd;
use cabrank::sys::signalfd::SignalFd;
use cabrank::sys::timerfd::TimerFd;
use cabrank::{Deactivation, Interest, Next, Pool, Registration, handler_fn, shared_fn};
use nix::fcntl::OFlag;
use nix::mqueue::{MQ_OFlag, MqAttr, MqdT, mq_open, mq_receive, mq_send, mq_unlink};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo, pipe2};

use util::{Counter, pool, wait_until};

const ROUNDS: u64 = 20;

/// What a handler does with each event.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// Takes one thing and re-arms, whether or not there is more.
    One,
    /// Takes all there is, and promises so.
    All,
}

const WAYS: [(Deactivation, Style); 4] = [
    (Deactivation::OneShot, Style::One),
    (Deactivation::OneShot, Style::All),
    (Deactivation::Edge, Style::One),
    (Deactivation::Edge, Style::All),
];

/// Takes something from a source: how much there was, or `None` if it would block.
type Take<S> = fn(&mut S) -> io::Result<Option<u64>>;

/// Lets a pool serve `make`'s source in every way, and `provoke`s it: one thing at a time, and then
/// some at once; each must be taken.
fn is_served<S, P>(make: impl Fn() -> (S, P), take: Take<S>)
where
    S: AsFd + Send + 'static,
    P: FnMut(),
{
    for (deactivation, style) in WAYS {
        let (source, mut provoke) = make();
        let (pool, _watchdog) = pool(Pool::builder().threads(3));
        let taken = Counter::new();
        let count = taken.clone();
        let handler = handler_fn(source, move |source, ready, _cx| {
            assert!(ready.is_readable(), "{ready:?}");
            loop {
                match (take(source).unwrap(), style) {
                    (Some(n), Style::One) => {
                        count.add(n);
                        return Next::Rearm(Interest::READABLE);
                    }
                    (Some(n), Style::All) => count.add(n),
                    (None, _) => return Next::Drained(Interest::READABLE),
                };
            }
        });
        let registration = Registration::new(Interest::READABLE).deactivation(deactivation);
        let id = pool.handles().register(handler, registration).unwrap();
        for round in 1..=ROUNDS {
            provoke();
            taken.wait_for(round);
        }
        for _ in 0..ROUNDS {
            provoke();
        }
        taken.wait_for(2 * ROUNDS);
        assert_eq!(taken.get(), 2 * ROUNDS, "{deactivation:?}, {style:?}");
        pool.handles().remove(id).unwrap();
    }
}

/// `None` for an operation that would block.
fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whatever it is, it is one thing.
fn take_one<T>(result: io::Result<T>) -> io::Result<Option<u64>> {
    Ok(unless_blocked(result)?.map(|_| 1))
}

/// One byte, which is one thing.
fn take_byte(source: &mut impl Read) -> io::Result<Option<u64>> {
    Ok(unless_blocked(source.read(&mut [0]))?.map(|bytes| bytes as u64))
}

/// A file name of this process that no other test uses.
fn path(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("cabrank-{name}-{}-{number}", process::id()))
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nodelay(true).unwrap();
    (here, there)
}

// Sources that are served both by one thread at a time and by several, and what provokes them.

fn tcp_listener() -> (TcpListener, impl FnMut()) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, move || drop(TcpStream::connect(address).unwrap()))
}

fn udp_socket() -> (UdpSocket, impl FnMut()) {
    let here = UdpSocket::bind("127.0.0.1:0").unwrap();
    here.set_nonblocking(true).unwrap();
    let there = UdpSocket::bind("127.0.0.1:0").unwrap();
    there.connect(here.local_addr().unwrap()).unwrap();
    (here, move || assert_eq!(there.send(b"datagram").unwrap(), 8))
}

fn notified(eventfd: EventFd) -> (Arc<EventFd>, impl FnMut()) {
    let eventfd = Arc::new(eventfd);
    let there = Arc::clone(&eventfd);
    (eventfd, move || there.notify().unwrap())
}

fn semaphore() -> (Arc<EventFd>, impl FnMut()) {
    notified(EventFd::semaphore(0).unwrap())
}

// The network.

#[test]
fn tcp_streams_are_served() {
    let make = || {
        let (here, mut there) = tcp_pair();
        (here, move || there.write_all(b"x").unwrap())
    };
    is_served(make, |stream: &mut TcpStream| take_byte(stream));
}

#[test]
fn tcp_listeners_are_served() {
    is_served(tcp_listener, |listener: &mut TcpListener| take_one(listener.accept()));
}

#[test]
fn udp_sockets_are_served() {
    is_served(udp_socket, |socket: &mut UdpSocket| take_one(socket.recv(&mut [0; 64])));
}

#[test]
fn unix_streams_are_served() {
    let make = || {
        let (here, mut there) = util::stream_pair();
        (here, move || there.write_all(b"x").unwrap())
    };
    is_served(make, |stream: &mut UnixStream| take_byte(stream));
}

#[test]
fn unix_datagrams_are_served() {
    let make = || {
        let (here, there) = UnixDatagram::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        (here, move || assert_eq!(there.send(b"datagram").unwrap(), 8))
    };
    is_served(make, |socket: &mut UnixDatagram| take_one(socket.recv(&mut [0; 64])));
}

#[test]
fn unix_listeners_are_served() {
    let make = || {
        let path = path("listener");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let remove = RemoveFile(path);
        (listener, move || drop(UnixStream::connect(&remove.0).unwrap()))
    };
    is_served(make, |listener: &mut UnixListener| take_one(listener.accept()));
}

/// Removes a file, or a directory with what is in it, in the end.
struct RemoveFile(PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

// Pipes and terminals.

#[test]
fn pipes_are_served() {
    let make = || {
        let (here, there) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let mut there = File::from(there);
        (File::from(here), move || there.write_all(b"x").unwrap())
    };
    is_served(make, |pipe: &mut File| take_byte(pipe));
}

#[test]
fn fifos_are_served() {
    let make = || {
        let fifo = RemoveFile(path("fifo"));
        mkfifo(&fifo.0, Mode::S_IRWXU).unwrap();
        let here =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo.0).unwrap();
        let mut there = OpenOptions::new().write(true).open(&fifo.0).unwrap();
        (here, move || there.write_all(b"x").unwrap())
    };
    is_served(make, |fifo: &mut File| take_byte(fifo));
}

#[test]
fn terminals_are_served() {
    let make = || {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let open = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/ptmx");
        let master = open.expect("a pseudo-terminal");
        let mut slave = File::from(slave_of(&master));
        (master, move || slave.write_all(b"x").unwrap())
    };
    is_served(make, |terminal: &mut File| take_byte(terminal));
}

/// The other side of a pseudo-terminal.
fn slave_of(master: &File) -> OwnedFd {
    let unlock: libc::c_int = 0;
    // SAFETY: the kernel reads the number, which outlives the call.
    let unlocked = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock) };
    assert_eq!(unlocked, 0, "{}", io::Error::last_os_error());
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: the call takes no pointer.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    assert!(slave >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just handed us this descriptor and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(slave) }
}

// Kernel objects.

#[test]
fn eventfds_are_served() {
    is_served(|| notified(EventFd::new().unwrap()), |eventfd: &mut Arc<EventFd>| eventfd.read());
}

#[test]
fn semaphores_are_served() {
    is_served(semaphore, |semaphore: &mut Arc<EventFd>| semaphore.read());
}

#[test]
fn timers_are_served() {
    let make = || {
        let timer = Arc::new(TimerFd::new().unwrap());
        let there = Arc::clone(&timer);
        // A timer that is set again before it was read has fired once only, so this waits.
        let provoke = move || {
            there.after(Duration::from_micros(50)).unwrap();
            wait_until("the timer has been read", || {
                time_left(&there).is_zero() && !is_due(&there)
            });
        };
        (timer, provoke)
    };
    is_served(make, |timer: &mut Arc<TimerFd>| timer.read());
}

/// Whether a timer has fired and was not read, or a signal is pending for the process.
fn is_due(source: &impl AsFd) -> bool {
    let epoll = Epoll::new().unwrap();
    epoll.add(source, Flags::IN, 0).unwrap();
    let mut events = Events::with_capacity(NonZeroUsize::MIN);
    epoll.wait(&mut events, Some(Duration::ZERO)).unwrap() == 1
}

fn time_left(timer: &TimerFd) -> Duration {
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut left = libc::itimerspec { it_interval: none, it_value: none };
    // SAFETY: the kernel writes to `left`, which outlives the call.
    let asked = unsafe { libc::timerfd_gettime(timer.as_fd().as_raw_fd(), &mut left) };
    assert_eq!(asked, 0);
    Duration::new(left.it_value.tv_sec as u64, left.it_value.tv_nsec as u32)
}

#[test]
fn periodic_timers_are_served() {
    for (deactivation, _) in WAYS {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let fired = Counter::new();
        let count = fired.clone();
        let timer = TimerFd::new().unwrap();
        timer.every(Duration::from_micros(200)).unwrap();
        let handler = handler_fn(timer, move |timer, _ready, _cx| {
            count.add(timer.read().unwrap().unwrap_or(0));
            Next::Rearm(Interest::READABLE)
        });
        let registration = Registration::new(Interest::READABLE).deactivation(deactivation);
        pool.handles().register(handler, registration).unwrap();
        fired.wait_for(50);
    }
}

#[test]
fn signals_are_served() {
    util::in_own_process_blocking(libc::SIGUSR1, "signals_are_served", || {
        let make = || {
            let signals = Arc::new(SignalFd::new(&[libc::SIGUSR1]).unwrap());
            let there = Arc::clone(&signals);
            // Equal signals coalesce while pending, so this waits until one has been taken.
            let provoke = move || {
                kill(Pid::this(), Signal::SIGUSR1).unwrap();
                wait_until("the signal has been read", || !is_due(&there));
            };
            (signals, provoke)
        };
        is_served(make, |signals: &mut Arc<SignalFd>| Ok(signals.read()?.map(|_| 1)));
    });
}

#[test]
fn file_changes_are_served() {
    let make = || {
        let directory = RemoveFile(path("watched"));
        fs::create_dir(&directory.0).unwrap();
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
        inotify.add_watch(&directory.0, AddWatchFlags::IN_CREATE).unwrap();
        let mut number = 0;
        let provoke = move || {
            File::create(directory.0.join(format!("{number}"))).unwrap();
            number += 1;
        };
        (inotify, provoke)
    };
    is_served(make, |inotify: &mut Inotify| {
        let events = unless_blocked(inotify.read_events().map_err(io::Error::from))?;
        Ok(events.map(|events| events.len() as u64))
    });
}

#[test]
fn message_queues_are_served() {
    let make = || {
        let name = format!("/{}", path("queue").file_name().unwrap().to_str().unwrap());
        let flags = MQ_OFlag::O_RDWR | MQ_OFlag::O_CREAT | MQ_OFlag::O_EXCL;
        let flags = flags | MQ_OFlag::O_NONBLOCK | MQ_OFlag::O_CLOEXEC;
        // As many messages as a round may leave unread; the system's default limit is ten.
        let attributes = MqAttr::new(0, 10, 16, 0);
        let open = mq_open(name.as_str(), flags, Mode::S_IRWXU, Some(&attributes));
        let here = Queue::from(open.expect("a message queue"));
        let there = Queue { fd: here.fd.try_clone().unwrap() };
        mq_unlink(name.as_str()).unwrap();
        let provoke = move || {
            // Full while the pool is behind.
            wait_until("there is room", || {
                there.with(|queue| mq_send(queue, b"message", 1)).is_ok()
            });
        };
        (here, provoke)
    };
    is_served(make, |queue: &mut Queue| {
        let received = queue.with(|queue| mq_receive(queue, &mut [0; 16], &mut 0));
        take_one(received.map_err(io::Error::from))
    });
}

/// A message queue's descriptor; on Linux it is a file descriptor.
struct Queue {
    fd: OwnedFd,
}

impl Queue {
    /// Lends it in the form that the library's functions take.
    fn with<R>(&self, code: impl FnOnce(&MqdT) -> R) -> R {
        // SAFETY: an open message queue; this value does not close it.
        let queue = unsafe { MqdT::from_raw_fd(self.fd.as_raw_fd()) };
        code(&queue)
    }
}

impl From<MqdT> for Queue {
    fn from(queue: MqdT) -> Queue {
        // SAFETY: the descriptor is open, and the value that is consumed would not have closed it.
        let fd = unsafe { OwnedFd::from_raw_fd(queue.into_raw_fd()) };
        Queue { fd }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[test]
fn nested_epolls_are_served() {
    struct Nested {
        epoll: Epoll,
        eventfd: Arc<EventFd>,
    }
    impl AsFd for Nested {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.epoll.as_fd()
        }
    }
    let make = || {
        let (eventfd, notify) = notified(EventFd::new().unwrap());
        let epoll = Epoll::new().unwrap();
        epoll.add(&eventfd, Flags::IN, 4).unwrap();
        (Nested { epoll, eventfd }, notify)
    };
    is_served(make, |nested: &mut Nested| {
        let mut events = Events::with_capacity(NonZeroUsize::MIN);
        nested.epoll.wait(&mut events, Some(Duration::ZERO))?;
        if let Some(event) = events.iter().next() {
            assert_eq!(event.data(), 4);
        }
        nested.eventfd.read()
    });
}

#[test]
fn a_handle_set_can_be_nested_in_another_pool() {
    struct Inner {
        pool: Pool,
        taken: Counter,
    }
    impl AsFd for Inner {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.pool.handles().as_fd()
        }
    }
    let make = || {
        let pool = Pool::builder().threads(0).joiners(1).build().unwrap();
        let (eventfd, notify) = notified(EventFd::new().unwrap());
        let taken = Counter::new();
        let count = taken.clone();
        let handler = handler_fn(eventfd, move |eventfd: &mut Arc<EventFd>, _ready, _cx| {
            count.add(eventfd.read().unwrap().unwrap_or(0));
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(handler, Interest::READABLE).unwrap();
        (Inner { pool, taken }, notify)
    };
    // The thread of the outer pool takes part in the inner one for a moment.
    is_served(make, |inner: &mut Inner| {
        let before = inner.taken.get();
        inner.pool.join_timeout(Duration::from_millis(1)).unwrap();
        match inner.taken.get() - before {
            0 => Ok(None),
            taken => Ok(Some(taken)),
        }
    });
}

#[test]
fn the_end_of_a_child_process_is_served() {
    struct Watched {
        pidfd: OwnedFd,
        child: Child,
    }
    impl AsFd for Watched {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.pidfd.as_fd()
        }
    }
    for (deactivation, _) in WAYS {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        // It ends when its input does.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let id = child.id() as libc::pid_t;
        // SAFETY: the call takes no pointer.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, libc::PIDFD_NONBLOCK) };
        assert!(pidfd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just handed us this descriptor and nobody else knows it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
        let ended = Counter::new();
        let count = ended.clone();
        let handler = handler_fn(Watched { pidfd, child }, move |watched, _ready, _cx| {
            let status = watched.child.try_wait().unwrap().expect("a child that has ended");
            assert!(status.success());
            count.add(1);
            Next::Close
        });
        let registration = Registration::new(Interest::READABLE).deactivation(deactivation);
        pool.handles().register(handler, registration).unwrap();
        assert_eq!(ended.get(), 0);
        drop(input);
        ended.wait_for(1);
        wait_until("the handle is gone", || pool.handles().is_empty());
    }
}

// Other events than input.

#[test]
fn a_connect_that_completes_is_writable() {
    for (deactivation, _) in WAYS {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None)
                .unwrap();
        // In progress, or done at once.
        let _ = socket.connect(&address.into());
        let connected = Counter::new();
        let count = connected.clone();
        let handler = handler_fn(socket, move |socket, ready, _cx| {
            assert!(ready.is_writable(), "{ready:?}");
            assert!(socket.take_error().unwrap().is_none());
            count.add(1);
            Next::Close
        });
        let registration = Registration::new(Interest::WRITABLE).deactivation(deactivation);
        pool.handles().register(handler, registration).unwrap();
        connected.wait_for(1);
        listener.accept().unwrap();
    }
}

#[test]
fn out_of_band_data_is_priority() {
    for (deactivation, _) in WAYS {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (here, there) = tcp_pair();
        let seen = Counter::new();
        let count = seen.clone();
        let handler = handler_fn(here, move |_stream, ready, _cx| {
            assert!(ready.is_priority(), "{ready:?}");
            count.add(1);
            Next::Suspend
        });
        let registration = Registration::new(Interest::PRIORITY).deactivation(deactivation);
        pool.handles().register(handler, registration).unwrap();
        (&there).write_all(b"ordinary").unwrap();
        assert_eq!(seen.get(), 0);
        socket2::SockRef::from(&there).send_out_of_band(b"!").unwrap();
        seen.wait_for(1);
    }
}

#[test]
fn a_reader_that_goes_away_is_an_error_for_the_writer() {
    for (deactivation, _) in WAYS {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        // Full, so that only the error can make it ready.
        let mut writer = File::from(writer);
        while writer.write(&[0; 4096]).is_ok() {}
        let seen = Counter::new();
        let count = seen.clone();
        let handler = handler_fn(writer, move |writer, ready, _cx| {
            assert!(ready.is_error() && ready.is_writable(), "{ready:?}");
            assert_eq!(writer.write(&[0]).unwrap_err().kind(), ErrorKind::BrokenPipe);
            count.add(1);
            Next::Close
        });
        let registration = Registration::new(Interest::WRITABLE).deactivation(deactivation);
        pool.handles().register(handler, registration).unwrap();
        drop(reader);
        seen.wait_for(1);
    }
}

// Several threads in one handle.

/// Registers a shared source, and sends it one thing after another while the threads that came for
/// the earlier ones are still in: as many as the pool has are in at once.
fn is_shared<S, P>(make: impl Fn() -> (S, P), take: fn(&S) -> io::Result<Option<u64>>)
where
    S: AsFd + Send + Sync + 'static,
    P: FnMut(),
{
    const THREADS: u64 = 4;
    let builders = [
        // As many may run as there are threads; the default, where those who stay in their handler
        // too long are replaced; and the papers' way.
        Pool::builder().threads(THREADS as usize).running(THREADS as usize),
        Pool::builder().threads(THREADS as usize),
        Pool::builder().threads(THREADS as usize).papers(),
    ];
    for builder in builders {
        let (source, mut provoke) = make();
        let (pool, _watchdog) = pool(builder);
        let (inside, open, taken) = (Counter::new(), Counter::new(), Counter::new());
        let (enter, gate, count) = (inside.clone(), open.clone(), taken.clone());
        let handler = shared_fn(source, move |source: &S, _ready, _cx| {
            enter.add(1);
            gate.wait_for(1);
            while let Some(n) = take(source).unwrap() {
                count.add(n);
            }
            Next::Drained(Interest::READABLE)
        });
        let id = pool.handles().register_shared(handler, Interest::READABLE).unwrap();
        for threads in 1..=THREADS {
            provoke();
            inside.wait_for(threads);
        }
        assert_eq!(inside.get(), THREADS, "each thing brought one thread in");
        assert_eq!(taken.get(), 0);
        open.add(1);
        taken.wait_for(THREADS);
        // And afterwards it is as before.
        for _ in 0..ROUNDS {
            provoke();
        }
        taken.wait_for(THREADS + ROUNDS);
        pool.handles().remove(id).unwrap();
        assert_eq!(taken.get(), THREADS + ROUNDS);
    }
}

#[test]
fn a_shared_udp_socket_has_several_threads_in_at_once() {
    is_shared(udp_socket, |socket: &UdpSocket| take_one(socket.recv(&mut [0; 64])));
}

#[test]
fn a_shared_listener_has_several_threads_in_at_once() {
    is_shared(tcp_listener, |listener: &TcpListener| take_one(listener.accept()));
}

#[test]
fn a_shared_semaphore_has_several_threads_in_at_once() {
    is_shared(semaphore, |semaphore: &Arc<EventFd>| semaphore.read());
}

#[test]
fn a_shared_handler_that_takes_one_and_rearms_misses_nothing() {
    const COUNT: u64 = 2_000;
    let (pool, _watchdog) = pool(Pool::builder().threads(4).running(4));
    let semaphore = Arc::new(EventFd::semaphore(0).unwrap());
    let there = Arc::clone(&semaphore);
    let taken = Counter::new();
    let count = taken.clone();
    let handler = shared_fn(semaphore, move |semaphore: &Arc<EventFd>, _ready, _cx| {
        count.add(semaphore.read().unwrap().unwrap_or(0));
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register_shared(handler, Interest::READABLE).unwrap();
    for burst in 1..=20 {
        there.add(COUNT / 20).unwrap();
        taken.wait_for(burst * (COUNT / 20));
    }
    assert_eq!(taken.get(), COUNT);
}
