//! Choices that cannot be are refused, and so are those that the system does not permit or has no
//! room for: with the right error, before anything is made or changed, and with nothing left behind.

mod util;

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cabrank::sys::sched;
use cabrank::{Ending, Error, Interest, Left, Next, Pinning, Pool, Scheduling, handler_fn};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, setuid};

use util::refusals::{check, refused, still_serves};
use util::{Counter, Probe, in_own_process, ping, pool, wait_until};

// Choices that cannot be.

#[test]
fn a_pool_without_threads_is_refused_unless_some_will_join() {
    let error = refused(Pool::builder().threads(0));
    assert!(matches!(error, Error::ZeroThreads), "{error:?}");
    check(error, &["at least one thread", "joiners"], None, ErrorKind::InvalidInput);
    let _watchdog = util::Watchdog::without_pool();
    let pool = Pool::builder().threads(0).joiners(1).build().unwrap();
    assert!(matches!(pool.join_timeout(Duration::from_millis(1)), Ok(Left::TimedOut)));
}

#[test]
fn zero_of_anything_is_refused_by_name() {
    let one = || Pool::builder().threads(1);
    let cases = [
        ("leaders", one().leaders(0)),
        ("events_per_wait", one().events_per_wait(0)),
        ("running", one().running(0)),
        ("max_handles", one().max_handles(0)),
        ("CPUs to pin to", one().pinning(Pinning::Cpus(Vec::new()))),
    ];
    for (name, builder) in cases {
        let error = refused(builder);
        assert!(matches!(error, Error::Zero { .. }), "{name}: {error:?}");
        check(error, &[name, "more than zero"], None, ErrorKind::InvalidInput);
    }
}

#[test]
fn more_leaders_than_threads_are_refused() {
    let error = refused(Pool::builder().threads(2).leaders(3));
    assert!(matches!(error, Error::MoreLeadersThanThreads { leaders: 3, threads: 2 }), "{error:?}");
    check(error, &["3 leaders", "2 threads"], None, ErrorKind::InvalidInput);
    let error = refused(Pool::builder().threads(2).leaders(usize::MAX));
    assert!(matches!(error, Error::MoreLeadersThanThreads { .. }), "{error:?}");
    // Those who will join count.
    let (pool, _watchdog) = pool(Pool::builder().threads(2).joiners(1).leaders(3));
    still_serves(&pool);
}

#[test]
fn out_of_range_values_are_refused_with_their_range() {
    let scheduling = |scheduling| Pool::builder().threads(2).scheduling(scheduling);
    let one_of_many = Pool::builder().threads(3).scheduling_by(|index| match index {
        2 => Scheduling::Fifo(100),
        _ => Scheduling::Inherit,
    });
    let cases = [
        ("Scheduling::Nice", -21, scheduling(Scheduling::Nice(-21))),
        ("Scheduling::Nice", 20, scheduling(Scheduling::Nice(20))),
        ("Scheduling::Nice", i64::from(i32::MIN), scheduling(Scheduling::Nice(i32::MIN))),
        ("Scheduling::Fifo", 0, scheduling(Scheduling::Fifo(0))),
        ("Scheduling::Fifo", 100, scheduling(Scheduling::Fifo(100))),
        ("Scheduling::Fifo", 100, one_of_many),
        ("Scheduling::Fifo", -1, scheduling(Scheduling::Fifo(-1))),
        ("events_per_wait", 4_097, Pool::builder().threads(1).events_per_wait(4_097)),
        ("max_threads", 5_000, Pool::builder().threads(1).max_threads(5_000)),
        ("threads", 5_000, Pool::builder().threads(5_000)),
    ];
    for (name, given, builder) in cases {
        let error = refused(builder);
        let Error::OutOfRange { option, value, least, most } = error else {
            panic!("{name} = {given}: {error:?}");
        };
        assert_eq!((option, value), (name, given));
        assert!(!(least..=most).contains(&given));
        let mentions = [name.to_string(), given.to_string(), least.to_string(), most.to_string()];
        let error = Error::OutOfRange { option, value, least, most };
        check(error, &mentions.each_ref().map(String::as_str), None, ErrorKind::InvalidInput);
    }
}

#[test]
fn enormous_numbers_are_refused_as_what_they_are() {
    let error = refused(Pool::builder().threads(1).events_per_wait(usize::MAX));
    let Error::OutOfRange { value, most, .. } = error else { panic!("{error:?}") };
    assert!(value > most, "{value} is not what was given");
}

#[test]
fn an_enormous_number_of_joiners_is_no_overflow() {
    let _watchdog = util::Watchdog::without_pool();
    let built = catch_unwind(|| Pool::builder().threads(1).joiners(usize::MAX).build());
    match built.expect("no panic") {
        Ok(pool) => still_serves(&pool),
        Err(error) => {
            assert!(!matches!(error, Error::ZeroThreads), "the sum has wrapped around");
            check(error, &["joiners"], None, ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn an_enormous_number_of_threads_is_refused_before_memory_runs_out() {
    in_own_process("an_enormous_number_of_threads_is_refused_before_memory_runs_out", || {
        // Room for what a refusal may need, and no more: a list of that many threads ends here.
        setrlimit(Resource::RLIMIT_AS, 4 << 30, 4 << 30).unwrap();
        let error = refused(Pool::builder().threads(usize::MAX));
        check(error, &["thread"], None, ErrorKind::InvalidInput);
    });
}

#[test]
fn a_name_with_a_nul_in_it_is_refused_or_served_but_no_panic() {
    let _watchdog = util::Watchdog::without_pool();
    let built = catch_unwind(|| Pool::builder().threads(1).name("front\0door").build());
    match built.expect("no panic") {
        Ok(pool) => still_serves(&pool),
        Err(error) => check(error, &["name"], None, ErrorKind::InvalidInput),
    }
}

#[test]
fn very_long_times_are_long() {
    // In nanoseconds a little more than 2^64.
    let ages = Duration::from_secs(18_446_744_074);
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    thread::scope(|scope| {
        let joined = scope.spawn(|| pool.join_timeout(ages));
        thread::sleep(Duration::from_millis(500));
        pool.shutdown();
        let left = joined.join().unwrap();
        assert!(matches!(left, Ok(Left::Shutdown)), "{left:?}");
    });
}

#[test]
fn a_budget_of_any_length_is_served() {
    let zero = refused(Pool::builder().threads(3).budget(Duration::ZERO));
    assert!(matches!(zero, Error::Zero { option: "budget" }), "{zero:?}");
    for time in [Duration::MAX, Duration::from_secs(18_446_744_074), Duration::from_nanos(1)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(3).budget(time));
        still_serves(&pool);
    }
}

#[test]
fn spinning_for_any_length_is_served() {
    for time in [Duration::MAX, Duration::from_secs(18_446_744_073)] {
        let (pool, _watchdog) = pool(Pool::builder().threads(2).spin(time));
        still_serves(&pool);
    }
}

#[test]
fn a_cpu_that_does_not_exist_is_refused_with_those_that_do() {
    let available = sched::allowed_cpus();
    let missing = (0..).find(|cpu| !available.contains(cpu)).unwrap();
    for cpu in [missing, 1 << 20, usize::MAX] {
        let cpus = vec![available[0], cpu];
        let error = refused(Pool::builder().threads(1).pinning(Pinning::Cpus(cpus)));
        let Error::NoSuchCpu { cpu: named, available: ref listed } = error else {
            panic!("{error:?}");
        };
        assert_eq!((named, listed), (cpu, &available));
        let cpu = cpu.to_string();
        check(error, &[&cpu, &format!("{available:?}")], None, ErrorKind::InvalidInput);
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(3).pinning(Pinning::Cpus(available)));
    still_serves(&pool);
}

#[test]
fn a_refused_builder_leaves_nothing_behind() {
    in_own_process("a_refused_builder_leaves_nothing_behind", || {
        let (descriptors, threads) = (util::descriptors(), util::thread_count());
        for _ in 0..100 {
            refused(Pool::builder().threads(0));
            refused(Pool::builder().threads(4).leaders(5));
            refused(Pool::builder().threads(4).max_handles(0));
            refused(Pool::builder().threads(4).pinning(Pinning::Cpus(vec![usize::MAX])));
            refused(Pool::builder().threads(4).scheduling(Scheduling::Fifo(0)));
        }
        assert_eq!((util::descriptors(), util::thread_count()), (descriptors, threads));
    });
}

// Privileges.

/// Gives up being root, for good, as a user that has no other process.
fn give_up_privileges() -> bool {
    let nobody = Uid::from_raw(4_000_000 + std::process::id());
    if !Uid::effective().is_root() {
        // Somebody without privileges will do.
        return true;
    }
    setuid(nobody).is_ok()
}

#[test]
fn real_time_scheduling_without_permission_is_refused_and_leaves_nothing_behind() {
    let test = "real_time_scheduling_without_permission_is_refused_and_leaves_nothing_behind";
    in_own_process(test, || {
        setrlimit(Resource::RLIMIT_RTPRIO, 0, 0).unwrap();
        // Nice values down to 20 - 0, which is none below the present one.
        setrlimit(Resource::RLIMIT_NICE, 0, 0).unwrap();
        if !give_up_privileges() || sched_fifo_is_allowed() {
            println!("skipped: this process cannot give up the right to SCHED_FIFO");
            return;
        }
        let (descriptors, threads) = (util::descriptors(), util::thread_count());
        let fifo = Pool::builder().threads(4).scheduling(Scheduling::Fifo(10));
        let error = refused(fifo);
        let Error::Schedule { scheduling, .. } = error else { panic!("{error:?}") };
        assert_eq!(scheduling, Scheduling::Fifo(10));
        let mentions = ["SCHED_FIFO priority 10", "CAP_SYS_NICE", "RLIMIT_RTPRIO"];
        check(error, &mentions, Some(libc::EPERM), ErrorKind::PermissionDenied);

        // One of four is enough, and is named.
        let one = Pool::builder().threads(4).scheduling_by(|index| match index {
            2 => Scheduling::Nice(-5),
            _ => Scheduling::Inherit,
        });
        let error = refused(one);
        assert!(matches!(error, Error::Schedule { thread: 2, .. }), "{error:?}");
        let mentions = ["thread 2", "the nice value -5"];
        check(error, &mentions, Some(libc::EACCES), ErrorKind::PermissionDenied);

        wait_until("the threads are gone", || util::thread_count() == threads);
        assert_eq!(util::descriptors(), descriptors);
        // What is no lower than the present one needs no permission.
        let nice = Scheduling::Nice((util::niceness() + 5).min(19));
        let pool = Pool::builder().threads(2).scheduling(nice).build().unwrap();
        still_serves(&pool);
    });
}

/// Asked on a thread of its own.
fn sched_fifo_is_allowed() -> bool {
    thread::spawn(|| sched::set_fifo(1).is_ok()).join().unwrap()
}

// Limits.

#[test]
fn a_pool_without_descriptors_is_refused_and_leaves_nothing_behind() {
    in_own_process("a_pool_without_descriptors_is_refused_and_leaves_nothing_behind", || {
        let (other, _watchdog) = pool(Pool::builder().threads(2));
        let (probe, mut peer) = Probe::pair(util::echo);
        other.handles().register(probe, Interest::READABLE).unwrap();
        let (before, threads) = (util::descriptors(), util::thread_count());
        for (free, object) in [(0, "epoll"), (1, "eventfd"), (2, "timerfd")] {
            let old = util::leave_descriptors(free);
            let built = Pool::builder().threads(2).build();
            // The other pool goes on, under the limit.
            ping(&mut peer);
            setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
            let error = built.map(drop).unwrap_err();
            let Error::Create { object: named, .. } = error else { panic!("{error:?}") };
            assert_eq!(named, object);
            let kind = io::Error::from_raw_os_error(libc::EMFILE).kind();
            check(error, &["create the pool's", object], Some(libc::EMFILE), kind);
            assert_eq!((util::descriptors(), util::thread_count()), (before.clone(), threads));
        }
        let old = util::leave_descriptors(3);
        let built = Pool::builder().threads(2).build();
        setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
        still_serves(&built.expect("three descriptors are enough"));
        still_serves(&other);
    });
}

#[test]
fn a_listener_out_of_descriptors_does_not_stop_the_others() {
    in_own_process("a_listener_out_of_descriptors_does_not_stop_the_others", || {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let (probe, mut peer) = Probe::pair(util::echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let accepted: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let refusals = Counter::new();
        let (streams, count) = (Arc::clone(&accepted), refusals.clone());
        let handler = handler_fn(listener, move |listener, _ready, _cx| {
            match listener.accept() {
                Ok((stream, _)) => {
                    streams.lock().unwrap().push(stream);
                    Next::Rearm(Interest::READABLE)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    Next::Drained(Interest::READABLE)
                }
                Err(error) => {
                    // To re-arm would be to try again at once, and again.
                    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                    count.add(1);
                    Next::Suspend
                }
            }
        });
        let id = pool.handles().register(handler, Interest::READABLE).unwrap();
        let wait_for = |connections: usize| {
            let there = || accepted.lock().unwrap().len() >= connections;
            wait_until("connections are accepted", there);
        };
        let _first = TcpStream::connect(address).unwrap();
        wait_for(1);

        // One descriptor for this end, none for the other.
        let old = util::leave_descriptors(1);
        let _second = TcpStream::connect(address).unwrap();
        refusals.wait_for(1);
        for _ in 0..100 {
            ping(&mut peer);
        }
        assert_eq!((refusals.get(), accepted.lock().unwrap().len()), (1, 1));
        setrlimit(Resource::RLIMIT_NOFILE, old.0, old.1).unwrap();
        pool.handles().resume(id).unwrap();
        wait_for(2);
        still_serves(&pool);
    });
}

#[test]
fn a_thread_that_cannot_be_started_leaves_nothing_behind() {
    in_own_process("a_thread_that_cannot_be_started_leaves_nothing_behind", || {
        let (descriptors, threads) = (util::descriptors(), util::thread_count());
        for bytes in [1 << 46, usize::MAX / 2, usize::MAX] {
            let built = catch_unwind(|| Pool::builder().threads(2).stack_size(bytes).build());
            let error = built.expect("no panic").map(drop).expect_err("a stack larger than memory");
            let Error::Spawn { thread: 0, .. } = error else { panic!("{bytes:#x}: {error:?}") };
            let errno = error.raw_os_error();
            assert!(matches!(errno, Some(libc::EAGAIN | libc::ENOMEM | libc::EINVAL)), "{errno:?}");
            let kind = io::Error::from_raw_os_error(errno.unwrap()).kind();
            check(error, &["start thread 0"], errno, kind);
        }
        assert_eq!((util::descriptors(), util::thread_count()), (descriptors, threads));
    });
}

/// What the limit of threads is about.
fn threads_of_this_user() -> u64 {
    let this = Uid::current().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let threads = processes.filter_map(|process| {
        // Those that are no processes have no such file, and some end meanwhile.
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)
        };
        let ours = field("Uid:")? == this;
        field("Threads:")?.parse::<u64>().ok().filter(|_| ours)
    });
    threads.sum()
}

#[test]
fn a_limit_of_threads_is_an_error_and_the_started_ones_end() {
    in_own_process("a_limit_of_threads_is_an_error_and_the_started_ones_end", || {
        let stopped = Counter::new();
        let count = stopped.clone();
        let builder = Pool::builder().on_thread_stop(move |_| _ = count.add(1));
        if !give_up_privileges() {
            println!("skipped: root has no limit of threads, and cannot give up being root");
            return;
        }
        let (descriptors, threads) = (util::descriptors(), util::thread_count());
        let old = getrlimit(Resource::RLIMIT_NPROC).unwrap();
        setrlimit(Resource::RLIMIT_NPROC, threads_of_this_user() + 2, old.1).unwrap();
        let built = builder.clone().threads(64).build();
        setrlimit(Resource::RLIMIT_NPROC, old.0, old.1).unwrap();
        let error = built.map(drop).unwrap_err();
        // Two, unless the user has other processes, in which threads come and go.
        let Error::Spawn { thread, .. } = error else { panic!("{error:?}") };
        let mentions = format!("start thread {thread}");
        check(error, &[&mentions], Some(libc::EAGAIN), ErrorKind::WouldBlock);
        assert_eq!(stopped.get(), thread as u64);
        wait_until("the threads are gone", || util::thread_count() == threads);
        assert_eq!(util::descriptors(), descriptors);
        still_serves(&builder.threads(8).build().unwrap());
    });
}

// Hooks.

#[test]
fn a_start_hook_that_panics_is_an_error_and_leaves_nothing_behind() {
    in_own_process("a_start_hook_that_panics_is_an_error_and_leaves_nothing_behind", || {
        let (descriptors, threads) = (util::descriptors(), util::thread_count());
        let builder = Pool::builder().threads(4).on_thread_start(|index| {
            assert_ne!(index, 1, "a panic on purpose");
        });
        let error = refused(builder);
        assert!(matches!(error, Error::StartHook { thread: 1 }), "{error:?}");
        check(error, &["start hook panicked", "thread 1"], None, ErrorKind::InvalidInput);
        wait_until("the threads are gone", || util::thread_count() == threads);
        assert_eq!(util::descriptors(), descriptors);
    });
}

#[test]
fn a_stop_hook_that_panics_is_reported_and_nothing_waits_for_it() {
    let builder = Pool::builder().threads(3).on_thread_stop(|index| {
        assert_ne!(index, 1, "a panic on purpose");
    });
    let (pool, _watchdog) = pool(builder);
    still_serves(&pool);
    let report = pool.finish();
    let endings: Vec<bool> =
        report.threads.iter().map(|ending| matches!(ending, Ending::Panicked)).collect();
    assert_eq!(endings, [false, true, false]);
}
