//! The wrappers in `cabrank::sys`, each against the kernel object it wraps.
#![allow(unsafe_code)] // forking, and asking the kernel what it has been told

mod util;

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use cabrank::Pool;
use cabrank::sys::epoll::{Epoll, Event, Events, Flags};
use cabrank::sys::eventfd::EventFd;
use cabrank::sys::fork::Process;
use cabrank::sys::sched;
use cabrank::sys::signalfd::{self, SignalFd};
use cabrank::sys::timerfd::TimerFd;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use util::{PATIENCE, in_own_process, in_own_process_blocking, wait_until};

const SIGUSR1: i32 = libc::SIGUSR1;
const SIGUSR2: i32 = libc::SIGUSR2;

fn room(capacity: usize) -> Events {
    Events::with_capacity(NonZeroUsize::new(capacity).unwrap())
}

fn is_readable(source: impl AsFd) -> bool {
    let epoll = Epoll::new().unwrap();
    epoll.add(source, Flags::IN, 0).unwrap();
    epoll.wait(&mut room(1), Some(Duration::ZERO)).unwrap() == 1
}

fn await_readable(source: impl AsFd) {
    let epoll = Epoll::new().unwrap();
    epoll.add(source, Flags::IN, 0).unwrap();
    assert_eq!(epoll.wait(&mut room(1), Some(PATIENCE)).unwrap(), 1);
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("an error").raw_os_error()
}

// Eventfd.

#[test]
fn an_eventfd_counts_and_a_read_takes_all() {
    let eventfd = EventFd::new().unwrap();
    assert_eq!(eventfd.read().unwrap(), None);
    assert!(!is_readable(&eventfd));
    eventfd.notify().unwrap();
    eventfd.add(41).unwrap();
    assert!(is_readable(&eventfd));
    assert_eq!(eventfd.read().unwrap(), Some(42));
    assert_eq!(eventfd.read().unwrap(), None);
}

#[test]
fn an_eventfd_is_full_before_the_last_number() {
    let eventfd = EventFd::new().unwrap();
    assert_eq!(errno(eventfd.add(u64::MAX)), Some(libc::EINVAL));
    eventfd.add(u64::MAX - 1).unwrap();
    assert_eq!(errno(eventfd.notify()), Some(libc::EAGAIN), "refused, and does not block");
    assert_eq!(eventfd.read().unwrap(), Some(u64::MAX - 1));
    eventfd.notify().unwrap();
}

#[test]
fn a_semaphore_gives_one_at_a_time() {
    let semaphore = EventFd::semaphore(2).unwrap();
    semaphore.notify().unwrap();
    for _ in 0..3 {
        assert!(is_readable(&semaphore));
        assert_eq!(semaphore.read().unwrap(), Some(1));
    }
    assert_eq!(semaphore.read().unwrap(), None);
}

#[test]
fn a_semaphore_is_shared_out_exactly_among_threads() {
    const COUNT: u32 = 10_000;
    let semaphore = EventFd::semaphore(COUNT).unwrap();
    let take = || std::iter::from_fn(|| semaphore.read().unwrap()).sum::<u64>();
    let taken: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(taken, u64::from(COUNT));
}

// Timerfd.

#[test]
fn a_timer_fires_once_and_not_before_its_time() {
    let timer = TimerFd::new().unwrap();
    assert_eq!(timer.read().unwrap(), None);
    let (start, delay) = (Instant::now(), Duration::from_millis(3));
    timer.after(delay).unwrap();
    assert!(!is_readable(&timer) || start.elapsed() >= delay);
    await_readable(&timer);
    assert!(start.elapsed() >= delay);
    assert_eq!(timer.read().unwrap(), Some(1));
    assert_eq!(timer.read().unwrap(), None);
}

#[test]
fn a_delay_of_zero_fires_instead_of_disarming() {
    let timer = TimerFd::new().unwrap();
    timer.after(Duration::ZERO).unwrap();
    await_readable(&timer);
    assert_eq!(timer.read().unwrap(), Some(1));
}

#[test]
fn a_periodic_timer_counts_what_was_not_read() {
    let timer = TimerFd::new().unwrap();
    let (start, period) = (Instant::now(), Duration::from_micros(200));
    timer.every(period).unwrap();
    let mut fired = 0;
    while fired < 20 {
        await_readable(&timer);
        // More than one if we were late.
        fired += timer.read().unwrap().unwrap_or(0);
    }
    let most = start.elapsed().as_nanos() / period.as_nanos();
    assert!(u128::from(fired) <= most, "{fired} times, but there was time for {most}");
}

#[test]
fn a_period_of_zero_is_refused() {
    let timer = TimerFd::new().unwrap();
    let error = timer.every(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_disarmed_timer_is_silent_and_can_be_set_again() {
    let timer = TimerFd::new().unwrap();
    timer.after(Duration::ZERO).unwrap();
    await_readable(&timer);
    // Also what has fired and was not read is taken back.
    timer.disarm().unwrap();
    assert!(!is_readable(&timer));
    assert_eq!(timer.read().unwrap(), None);
    timer.every(Duration::from_micros(100)).unwrap();
    await_readable(&timer);
    timer.disarm().unwrap();
    timer.after(Duration::from_secs(3_600)).unwrap();
    assert!(!is_readable(&timer));
    timer.after(Duration::ZERO).unwrap();
    await_readable(&timer);
}

// Signalfd.

#[test]
fn a_signal_to_the_thread_is_read_by_the_thread() {
    // The thread alone blocks it and the signal is for the thread, so no other test is hit.
    thread::spawn(|| {
        signalfd::block(&[SIGUSR1, SIGUSR2]).unwrap();
        let signals = SignalFd::new(&[SIGUSR1, SIGUSR2]).unwrap();
        assert_eq!(signals.read().unwrap(), None);
        raise(Signal::SIGUSR2).unwrap();
        raise(Signal::SIGUSR2).unwrap();
        raise(Signal::SIGUSR1).unwrap();
        assert!(is_readable(&signals));
        let taken = [signals.read().unwrap(), signals.read().unwrap(), signals.read().unwrap()];
        assert_eq!(taken, [Some(SIGUSR1), Some(SIGUSR2), None], "equal signals coalesce");
        assert!(!is_readable(&signals));
    })
    .join()
    .unwrap();
}

#[test]
fn a_signal_to_one_thread_is_not_to_be_had_on_another() {
    thread::spawn(|| {
        signalfd::block(&[SIGUSR1]).unwrap();
        let signals = SignalFd::new(&[SIGUSR1]).unwrap();
        raise(Signal::SIGUSR1).unwrap();
        let elsewhere =
            thread::scope(|scope| scope.spawn(|| signals.read().unwrap()).join().unwrap());
        assert_eq!(elsewhere, None);
        assert_eq!(signals.read().unwrap(), Some(SIGUSR1));
    })
    .join()
    .unwrap();
}

#[test]
fn a_signal_to_the_process_reaches_a_waiting_thread() {
    let test = "a_signal_to_the_process_reaches_a_waiting_thread";
    in_own_process_blocking(SIGUSR1, test, || {
        let signals = SignalFd::new(&[SIGUSR1]).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                await_readable(&signals);
                signals.read().unwrap()
            });
            kill(Pid::this(), Signal::SIGUSR1).unwrap();
            assert_eq!(waiting.join().unwrap(), Some(SIGUSR1));
        });
    });
}

#[test]
fn numbers_that_are_no_signals_are_refused() {
    for number in [0, -1, 4_000] {
        assert_eq!(errno(signalfd::block(&[number])), Some(libc::EINVAL), "{number}");
        assert_eq!(errno(SignalFd::new(&[number])), Some(libc::EINVAL), "{number}");
    }
}

// Scheduling, always on a thread of its own: it cannot all be undone.

fn on_a_thread<R: Send + 'static>(code: impl FnOnce() -> R + Send + 'static) -> R {
    thread::spawn(code).join().unwrap()
}

#[test]
fn a_pinned_thread_has_one_cpu_and_runs_there() {
    let cpus = sched::allowed_cpus();
    assert!(!cpus.is_empty());
    assert_eq!(cpus.len(), sched::affinity_width().unwrap());
    for &cpu in &cpus {
        let (width, allowed, here) = on_a_thread(move || {
            sched::pin_to_cpu(cpu).unwrap();
            // SAFETY: the call takes no pointer.
            let here = unsafe { libc::sched_getcpu() };
            (sched::affinity_width().unwrap(), sched::allowed_cpus(), here)
        });
        assert_eq!((width, allowed, here), (1, vec![cpu], cpu as i32));
    }
    assert_eq!(sched::allowed_cpus(), cpus, "the other threads stay as they are");
}

#[test]
fn a_cpu_that_does_not_exist_is_refused_and_changes_nothing() {
    on_a_thread(|| {
        let before = sched::allowed_cpus();
        let missing = (0..1_024).rev().find(|cpu| !before.contains(cpu)).unwrap();
        assert_eq!(errno(sched::pin_to_cpu(missing)), Some(libc::EINVAL));
        assert_eq!(errno(sched::restrict_to_cpus(&[missing])), Some(libc::EINVAL));
        assert_eq!(errno(sched::restrict_to_cpus(&[])), Some(libc::EINVAL));
        assert_eq!(sched::allowed_cpus(), before);
    });
}

#[test]
fn a_cpu_number_beyond_the_kernels_set_is_refused() {
    // In its own process, because what goes wrong here is not to be caught.
    in_own_process("a_cpu_number_beyond_the_kernels_set_is_refused", || {
        for cpu in [1_024, usize::MAX] {
            assert_eq!(errno(sched::restrict_to_cpus(&[cpu])), Some(libc::EINVAL), "{cpu}");
            assert_eq!(errno(sched::pin_to_cpu(cpu)), Some(libc::EINVAL), "{cpu}");
        }
    });
}

#[test]
fn a_restricted_thread_can_be_widened_again() {
    on_a_thread(|| {
        let cpus = sched::allowed_cpus();
        sched::restrict_to_cpus(&cpus[..1]).unwrap();
        assert_eq!(sched::affinity_width().unwrap(), 1);
        sched::restrict_to_cpus(&cpus).unwrap();
        assert_eq!(sched::allowed_cpus(), cpus);
    });
}

/// The nice value of the calling thread, as the kernel has it.
fn nice_value() -> i32 {
    let thread = util::thread_id() as libc::id_t;
    // SAFETY: the call takes no pointer.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) }
}

#[test]
fn a_nice_value_is_the_threads_own_and_is_clamped() {
    let before = nice_value();
    on_a_thread(move || {
        sched::set_nice(before + 3).unwrap();
        assert_eq!(nice_value(), before + 3);
        sched::set_nice(1_000).unwrap();
        assert_eq!(nice_value(), 19);
    });
    assert_eq!(nice_value(), before);
}

#[test]
fn a_real_time_class_is_given_or_refused_for_want_of_permission() {
    on_a_thread(|| {
        for priority in [0, 100, -1, i32::MAX] {
            assert_eq!(errno(sched::set_fifo(priority)), Some(libc::EINVAL), "{priority}");
        }
        // SAFETY: the call takes no pointer.
        let class = || unsafe { libc::sched_getscheduler(0) };
        match sched::set_fifo(1) {
            Ok(()) => assert_eq!(class(), libc::SCHED_FIFO),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
                assert_eq!(class(), libc::SCHED_OTHER);
            }
        }
    });
}

// Epoll, beyond what the kernel's contract shows.

#[test]
fn a_wait_overwrites_its_events_and_takes_no_more_than_asked_for() {
    let epoll = Epoll::new().unwrap();
    let eventfds: Vec<EventFd> = (0..8).map(|_| EventFd::new().unwrap()).collect();
    for (data, eventfd) in eventfds.iter().enumerate() {
        epoll.add(eventfd, Flags::IN, data as u64).unwrap();
        eventfd.notify().unwrap();
    }
    let mut events = room(5);
    assert_eq!(events.capacity(), 5);
    assert_eq!(epoll.wait_at_most(&mut events, 2, None).unwrap(), 2);
    assert_eq!(epoll.wait_at_most(&mut events, 0, None).unwrap(), 1, "at least one");
    assert_eq!(epoll.wait_at_most(&mut events, 100, None).unwrap(), 5, "at most the capacity");
    assert_eq!(events.len(), 5);
    for eventfd in &eventfds {
        eventfd.read().unwrap();
    }
    assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    assert_eq!(events.iter().len(), 0, "those of the last wait are gone");
    assert!(events.push(Event::new(Flags::OUT, u64::MAX)));
    assert_eq!(events.iter().next().unwrap().data(), u64::MAX);
    events.clear();
    assert!(events.is_empty());
}

#[test]
fn all_64_bits_of_user_data_come_back() {
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    epoll.add(&eventfd, Flags::IN, 0).unwrap();
    let mut events = room(1);
    for data in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63] {
        epoll.modify(&eventfd, Flags::IN, data).unwrap();
        epoll.wait(&mut events, None).unwrap();
        assert_eq!(events.iter().next().unwrap().data(), data);
    }
}

#[test]
fn epoll_says_what_the_kernel_says() {
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    assert_eq!(errno(epoll.modify(&eventfd, Flags::IN, 0)), Some(libc::ENOENT));
    assert_eq!(errno(epoll.delete(&eventfd)), Some(libc::ENOENT));
    epoll.add(&eventfd, Flags::IN, 0).unwrap();
    assert_eq!(errno(epoll.add(&eventfd, Flags::IN, 0)), Some(libc::EEXIST));
    assert_eq!(errno(epoll.add(&epoll, Flags::IN, 0)), Some(libc::EINVAL));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(errno(epoll.add(&file, Flags::IN, 0)), Some(libc::EPERM));
    let outer = Epoll::new().unwrap();
    outer.add(&epoll, Flags::IN, 0).unwrap();
    assert_eq!(errno(epoll.add(&outer, Flags::IN, 0)), Some(libc::ELOOP));
    epoll.delete(&eventfd).unwrap();
    assert_eq!(errno(epoll.delete(&eventfd)), Some(libc::ENOENT));
}

// Flags of the descriptors.

fn assert_close_on_exec(fd: BorrowedFd<'_>) {
    let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD).unwrap());
    assert!(flags.contains(FdFlag::FD_CLOEXEC), "descriptor {}", fd.as_raw_fd());
}

fn assert_non_blocking(fd: BorrowedFd<'_>) {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap());
    assert!(flags.contains(OFlag::O_NONBLOCK), "descriptor {}", fd.as_raw_fd());
}

#[test]
fn every_wrapper_closes_on_exec_and_does_not_block() {
    let (eventfd, semaphore) = (EventFd::new().unwrap(), EventFd::semaphore(0).unwrap());
    let (timer, signals) = (TimerFd::new().unwrap(), SignalFd::new(&[SIGUSR1]).unwrap());
    let epoll = Epoll::new().unwrap();
    let readable = [eventfd.as_fd(), semaphore.as_fd(), timer.as_fd(), signals.as_fd()];
    for fd in readable {
        assert_close_on_exec(fd);
        assert_non_blocking(fd);
    }
    assert_close_on_exec(epoll.as_fd());
}

#[test]
fn every_descriptor_of_a_pool_closes_on_exec() {
    in_own_process("every_descriptor_of_a_pool_closes_on_exec", || {
        let before = util::descriptors();
        let pool = Pool::builder().threads(3).build().unwrap();
        let new = util::descriptors().into_iter().filter(|number| !before.contains(number));
        let new: Vec<i32> = new.collect();
        assert!(new.contains(&pool.handles().as_fd().as_raw_fd()));
        assert_eq!(new.len(), 3, "an epoll, an eventfd and a timerfd");
        for number in new {
            // SAFETY: the pool has it open, and outlives this.
            assert_close_on_exec(unsafe { BorrowedFd::borrow_raw(number) });
        }
        drop(pool);
        assert_eq!(util::descriptors(), before);
    });
}

#[test]
fn a_program_that_is_executed_inherits_nothing() {
    in_own_process("a_program_that_is_executed_inherits_nothing", || {
        let inherited = || {
            let output = process::Command::new("ls").arg("/proc/self/fd").output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let before = inherited();
        let _pool = Pool::builder().threads(2).build().unwrap();
        let _held = (EventFd::new().unwrap(), TimerFd::new().unwrap(), Epoll::new().unwrap());
        assert_eq!(inherited(), before);
    });
}

// Fork.

/// Forks, runs `code` in the child, and returns whether it said yes.
fn in_forked_child(code: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `code`, which only loads atomics and forks again, and ends by `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = i32::from(!code());
            // SAFETY: ends the child without running anything that is its parent's.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => {
            let mut ended = None;
            wait_until("the forked child ends", || {
                let status = waitpid(child, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).unwrap();
                if status != WaitStatus::StillAlive {
                    ended = Some(status);
                }
                ended.is_some()
            });
            ended == Some(WaitStatus::Exited(child, 0))
        }
    }
}

#[test]
fn a_forked_child_knows_that_it_is_one() {
    in_own_process("a_forked_child_knows_that_it_is_one", || {
        let here = Process::current();
        assert!(here.is_current());
        assert_eq!(here, Process::current());
        let recognised = in_forked_child(|| {
            let there = Process::current();
            let child = !here.is_current() && there.is_current() && there != here;
            child
                && in_forked_child(|| {
                    !here.is_current() && !there.is_current() && Process::current().is_current()
                })
                && there.is_current()
        });
        assert!(recognised);
        assert!(here.is_current(), "the parent is what it was");
    });
}

#[test]
fn a_second_fork_of_the_parent_is_as_foreign_as_the_first() {
    in_own_process("a_second_fork_of_the_parent_is_as_foreign_as_the_first", || {
        let here = Process::current();
        for _ in 0..10 {
            assert!(in_forked_child(|| !here.is_current()));
        }
        assert!(here.is_current());
    });
}

#[test]
fn a_timer_can_be_set_to_the_end_of_time() {
    let timer = TimerFd::new().unwrap();
    timer.after(Duration::MAX).unwrap();
    assert_eq!(timer.read().unwrap(), None);
    timer.every(Duration::MAX).unwrap();
    assert_eq!(timer.read().unwrap(), None);
}
