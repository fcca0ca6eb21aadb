//! What the engine takes for granted of the kernel, shown on the kernel that runs the tests.
//!
//! If one of these fails, a decision of the engine has lost its ground. The numbers of scenarios
//! are those of the kernel's own self-test, `epoll_wakeup_test.c`.
#![allow(unsafe_code)] // raw calls on descriptors that are closed on purpose

mod util;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cabrank::sys::epoll::{Epoll, Flags};
use cabrank::sys::eventfd::EventFd;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, close, pipe2};

use util::waiter::{Waiter, poll, room};
use util::{PATIENCE, Watchdog, await_sleep, sleep_of, thread_id, thread_state, wait_until};

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("an error").raw_os_error()
}

fn streams() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

/// A second descriptor of the same open file, with a number that no other test will get, however
/// many run beside this one: after it is closed the number stays free.
fn duplicate_far_away(source: impl AsFd, least: RawFd) -> RawFd {
    fcntl(source, FcntlArg::F_DUPFD_CLOEXEC(least)).unwrap()
}

// EPOLLONESHOT and EPOLL_CTL_MOD.

#[test]
fn one_shot_disarms_both_directions() {
    let epoll = Epoll::new().unwrap();
    let (here, mut there) = streams();
    epoll.add(&here, Flags::IN | Flags::OUT | Flags::ONESHOT, 5).unwrap();
    assert_eq!(poll(&epoll), [(Flags::OUT, 5)]);
    there.write_all(b"x").unwrap();
    assert_eq!(poll(&epoll), [], "neither what was reported nor what was not");
    epoll.modify(&here, Flags::IN | Flags::ONESHOT, 6).unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN, 6)]);
    assert_eq!(poll(&epoll), []);
}

#[test]
fn one_shot_disarms_error_and_hang_up() {
    let epoll = Epoll::new().unwrap();
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
    epoll.add(&writer, Flags::OUT | Flags::ONESHOT, 0).unwrap();
    assert_eq!(poll(&epoll), [(Flags::OUT, 0)]);
    drop(reader);
    assert_eq!(poll(&epoll), [], "the error that is always reported");
    epoll.modify(&writer, Flags::OUT | Flags::ONESHOT, 0).unwrap();
    assert_eq!(poll(&epoll), [(Flags::OUT | Flags::ERR, 0)]);

    let (here, there) = streams();
    epoll.add(&here, Flags::OUT | Flags::ONESHOT, 1).unwrap();
    assert_eq!(poll(&epoll), [(Flags::OUT, 1)]);
    drop(there);
    assert_eq!(poll(&epoll), [], "the hang-up that is always reported");
    // Not even asked for.
    epoll.modify(&here, Flags::ONESHOT, 1).unwrap();
    assert_eq!(poll(&epoll), [(Flags::HUP, 1)]);
    assert_eq!(poll(&epoll), [], "an interest in nothing is still one shot");
}

#[test]
fn modifying_reports_what_came_while_disarmed() {
    let epoll = Epoll::new().unwrap();
    let (here, mut there) = streams();
    let flags = Flags::IN | Flags::RDHUP | Flags::ONESHOT;
    epoll.add(&here, flags, 0).unwrap();
    there.write_all(b"request").unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN, 0)]);
    // While it is processed the peer says more, and goes.
    (&here).read_exact(&mut [0; 7]).unwrap();
    there.write_all(b"more").unwrap();
    drop(there);
    assert_eq!(poll(&epoll), []);
    epoll.modify(&here, flags, 0).unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN | Flags::RDHUP | Flags::HUP, 0)]);
    let mut rest = String::new();
    (&here).read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "more");
}

#[test]
fn modifying_reports_again_what_an_edge_has_reported() {
    let epoll = Epoll::new().unwrap();
    let (here, mut there) = streams();
    epoll.add(&here, Flags::IN | Flags::ET, 0).unwrap();
    there.write_all(b"x").unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN, 0)]);
    assert_eq!(poll(&epoll), []);
    for _ in 0..3 {
        epoll.modify(&here, Flags::IN | Flags::ET, 0).unwrap();
        assert_eq!(poll(&epoll), [(Flags::IN, 0)]);
        assert_eq!(poll(&epoll), []);
    }
}

#[test]
fn modifying_wakes_a_waiter() {
    let epoll = Arc::new(Epoll::new().unwrap());
    let (here, mut there) = streams();
    epoll.add(&here, Flags::ONESHOT, 0).unwrap();
    there.write_all(b"x").unwrap();
    let waiter = Waiter::start(&epoll);
    epoll.modify(&here, Flags::IN | Flags::ONESHOT, 9).unwrap();
    assert_eq!(waiter.back().data(), 9);
}

// Who is woken.

/// One event for `count` sleeping waiters; how many are woken by it.
fn woken_by_one_event(trigger: Flags, count: usize) -> usize {
    let epoll = Arc::new(Epoll::new().unwrap());
    let (here, mut there) = streams();
    epoll.add(&here, Flags::IN | trigger, 0).unwrap();
    let mut waiters: Vec<Waiter> = (0..count).map(|_| Waiter::start(&epoll)).collect();
    there.write_all(b"x").unwrap();
    // The last to sleep is the first to wake, and if it wakes another it does so before it is back.
    waiters.pop().unwrap().back();
    if trigger == Flags::default() {
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.back().flags(), Flags::IN));
        return count;
    }
    let woken = waiters.iter().filter(|waiter| !waiter.sleeps_on()).count();
    while let Some(last) = waiters.pop() {
        epoll.modify(&here, Flags::IN | trigger, 0).unwrap();
        last.back();
    }
    1 + woken
}

#[test]
fn scenario_9_a_level_wakes_both_waiters() {
    assert_eq!(woken_by_one_event(Flags::default(), 2), 2);
}

#[test]
fn scenario_10_an_edge_wakes_exactly_one_waiter() {
    for waiters in [2, 4] {
        assert_eq!(woken_by_one_event(Flags::ET, waiters), 1);
    }
}

#[test]
fn one_shot_wakes_exactly_one_waiter() {
    for waiters in [2, 4] {
        assert_eq!(woken_by_one_event(Flags::ONESHOT, waiters), 1);
    }
}

#[test]
fn waiters_are_woken_one_at_a_time_and_the_last_to_come_first() {
    const WAITERS: u64 = 4;
    let epoll = Arc::new(Epoll::new().unwrap());
    let eventfd = EventFd::new().unwrap();
    epoll.add(&eventfd, Flags::IN | Flags::ET, 0).unwrap();
    let mut waiters: Vec<Waiter> = (0..WAITERS).map(|_| Waiter::start(&epoll)).collect();
    while let Some(last) = waiters.pop() {
        eventfd.notify().unwrap();
        assert!(!last.sleeps_on(), "the last to come is woken");
        assert!(waiters.iter().all(Waiter::sleeps_on), "and nobody else");
        last.back();
        assert!(waiters.iter().all(Waiter::sleeps_on), "also afterwards");
    }
    assert_eq!(eventfd.read().unwrap(), Some(WAITERS));
}

#[test]
fn an_eventfd_that_is_never_read_wakes_one_waiter_for_each_write() {
    let epoll = Arc::new(Epoll::new().unwrap());
    let eventfd = EventFd::new().unwrap();
    epoll.add(&eventfd, Flags::IN | Flags::ET, 3).unwrap();
    for _ in 0..1_000 {
        assert_eq!(poll(&epoll), []);
        eventfd.notify().unwrap();
        assert_eq!(poll(&epoll), [(Flags::IN, 3)]);
    }
    for _ in 0..20 {
        let (bottom, top) = (Waiter::start(&epoll), Waiter::start(&epoll));
        eventfd.notify().unwrap();
        assert_eq!(top.back().data(), 3);
        assert!(bottom.sleeps_on());
        eventfd.notify().unwrap();
        assert_eq!(bottom.back().data(), 3);
    }
    // Two writes before anybody looks are one event: wake-ups coalesce.
    eventfd.notify().unwrap();
    eventfd.notify().unwrap();
    assert_eq!(poll(&epoll).len(), 1);
    assert_eq!(poll(&epoll), []);
    assert_eq!(eventfd.read().unwrap(), Some(1_042));
}

// Life and death of descriptors.

#[test]
fn a_closed_descriptor_with_a_duplicate_goes_on_reporting_and_cannot_be_deleted() {
    const FAR: RawFd = 800;
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    let number = duplicate_far_away(&eventfd, FAR);
    let delete = || {
        let (epoll, operation) = (epoll.as_fd().as_raw_fd(), libc::EPOLL_CTL_DEL);
        // SAFETY: deleting takes no event; a closed number is what this is about.
        match unsafe { libc::epoll_ctl(epoll, operation, number, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: `duplicate_far_away` has made this descriptor, and nobody else owns it.
    let duplicate = unsafe { OwnedFd::from_raw_fd(number) };
    epoll.add(&duplicate, Flags::IN, 77).unwrap();
    drop(duplicate);
    eventfd.notify().unwrap();
    assert_eq!(poll(&epoll), [(Flags::IN, 77)], "under its old data");
    assert_eq!(errno(delete()), Some(libc::EBADF));

    // Somebody else gets the number, and the stale event comes beside its own.
    let (here, mut there) = streams();
    assert_eq!(duplicate_far_away(&here, FAR), number);
    // SAFETY: as above.
    let tenant = unsafe { OwnedFd::from_raw_fd(number) };
    assert_eq!(errno(delete()), Some(libc::ENOENT), "the key is file and number");
    epoll.add(&tenant, Flags::IN, 78).unwrap();
    there.write_all(b"x").unwrap();
    let mut data: Vec<u64> = poll(&epoll).iter().map(|event| event.1).collect();
    data.sort_unstable();
    assert_eq!(data, [77, 78]);

    // Only the last descriptor of the open file ends the registration.
    drop(eventfd);
    assert_eq!(poll(&epoll), [(Flags::IN, 78)]);
}

#[test]
fn deleting_before_closing_ends_the_events_also_with_a_duplicate() {
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    let duplicate = eventfd.as_fd().try_clone_to_owned().unwrap();
    epoll.add(&eventfd, Flags::IN, 1).unwrap();
    epoll.add(&duplicate, Flags::IN, 2).unwrap();
    eventfd.notify().unwrap();
    assert_eq!(poll(&epoll).len(), 2, "each descriptor is a registration");
    epoll.delete(&duplicate).unwrap();
    drop(duplicate);
    assert_eq!(poll(&epoll), [(Flags::IN, 1)]);
    epoll.delete(&eventfd).unwrap();
    assert_eq!(poll(&epoll), []);
}

#[test]
fn closing_the_epoll_wakes_nobody() {
    let _watchdog = Watchdog::without_pool();
    let eventfd = EventFd::new().unwrap();
    let epoll = Epoll::new().unwrap();
    epoll.add(&eventfd, Flags::IN, 0).unwrap();
    let number = duplicate_far_away(&epoll, 900);
    drop(epoll);
    let (tell, told) = mpsc::channel();
    let waiter = thread::spawn(move || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        tell.send(thread_id()).unwrap();
        // SAFETY: room for one event, which outlives the call; the number is closed during the call
        // on purpose, and the kernel holds on to the open file.
        unsafe { libc::epoll_wait(number, &mut event, 1, -1) }
    });
    let tid = told.recv().unwrap();
    let sleeps = await_sleep(tid);
    close(number).unwrap();
    assert_eq!(sleep_of(process::id(), tid), Some(sleeps), "its only descriptor is gone");
    eventfd.notify().unwrap();
    assert_eq!(waiter.join().unwrap(), 1, "an event still does");
}

// EINTR.

/// Says something to the process that started this one.
fn say(what: &str) {
    eprintln!("> {what}");
}

/// In its own process: waits, and says how it went. What ends a wait is a byte at standard input.
fn sleeper() {
    let stdin = io::stdin();
    let epoll = Epoll::new().unwrap();
    epoll.add(&stdin, Flags::IN, 0).unwrap();
    let number = epoll.as_fd().as_raw_fd();
    say(&format!("{}", thread_id()));

    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event, which outlives the call.
    let raw = unsafe { libc::epoll_wait(number, &mut event, 1, -1) };
    let error = io::Error::last_os_error();
    say(&format!("raw {raw} {:?}", error.kind()));

    let count = epoll.wait(&mut room(1), None).unwrap();
    say(&format!("ours {count}"));
    File::open("/dev/stdin").unwrap().read_exact(&mut [0]).unwrap();

    let (start, timeout) = (Instant::now(), Duration::from_millis(500));
    let count = epoll.wait(&mut room(1), Some(timeout)).unwrap();
    say(&format!("timed {count} {}", start.elapsed() >= timeout));
}

#[test]
fn stopping_and_continuing_interrupts_the_kernels_wait_and_not_ours() {
    const TEST: &str = "stopping_and_continuing_interrupts_the_kernels_wait_and_not_ours";
    if util::process_role().as_deref() == Some("sleeper") {
        return sleeper();
    }
    let _watchdog = Watchdog::without_pool();
    let mut command = util::again(TEST, "sleeper");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (id, pid) = (child.id(), Pid::from_raw(child.id() as i32));
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut hear = move || loop {
        let line = lines.next().expect("more to be said").unwrap();
        if let Some(said) = line.strip_prefix("> ") {
            break said.to_string();
        }
        eprintln!("{line}");
    };
    let tid: i32 = hear().parse().unwrap();
    let asleep = || wait_until("the child sleeps", || sleep_of(id, tid).is_some());
    let stop_and_continue = || {
        asleep();
        kill(pid, Signal::SIGSTOP).unwrap();
        wait_until("the child stops", || thread_state(id, tid).is_some_and(|state| state.0 == 'T'));
        kill(pid, Signal::SIGCONT).unwrap();
    };

    stop_and_continue();
    assert_eq!(hear(), "raw -1 Interrupted", "without any signal handler");

    for _ in 0..5 {
        stop_and_continue();
    }
    asleep();
    stdin.write_all(b"x").unwrap();
    assert_eq!(hear(), "ours 1");

    stop_and_continue();
    assert_eq!(hear(), "timed 0 true", "interrupted, but not shortened");
    assert!(child.wait().unwrap().success());
}

// Races that the kernel has lost before.

#[test]
fn scenario_59_rearming_while_another_thread_waits_loses_nothing() {
    const ROUNDS: u32 = 20_000;
    let _watchdog = Watchdog::without_pool();
    let epoll = Arc::new(Epoll::new().unwrap());
    let eventfd = Arc::new(EventFd::new().unwrap());
    eventfd.notify().unwrap();
    let flags = Flags::IN | Flags::ERR | Flags::ET;
    epoll.add(&eventfd, flags, 0).unwrap();
    let turn = Arc::new(AtomicBool::new(false));
    let await_turn = |turn: &AtomicBool, whose: bool| {
        while turn.load(Ordering::SeqCst) != whose {
            thread::yield_now();
        }
    };
    let rearming = thread::spawn({
        let (epoll, eventfd, turn) = (Arc::clone(&epoll), Arc::clone(&eventfd), Arc::clone(&turn));
        move || {
            for _ in 0..ROUNDS {
                await_turn(&turn, true);
                // Told before it is done, so that the wait and the re-arming meet.
                turn.store(false, Ordering::SeqCst);
                epoll.modify(&eventfd, flags, 0).unwrap();
            }
        }
    });
    let mut events = room(1);
    for round in 0..ROUNDS {
        let count = epoll.wait(&mut events, Some(PATIENCE)).unwrap();
        assert_eq!(count, 1, "in round {round}");
        await_turn(&turn, false);
        turn.store(true, Ordering::SeqCst);
    }
    rearming.join().unwrap();
}

#[test]
fn scenario_60_ten_edges_at_once_reach_ten_waiters() {
    const COUNT: usize = 10;
    const ROUNDS: usize = 100;
    let _watchdog = Watchdog::without_pool();
    let epoll = Arc::new(Epoll::new().unwrap());
    let eventfds: Arc<Vec<EventFd>> =
        Arc::new((0..COUNT).map(|_| EventFd::new().unwrap()).collect());
    for (data, eventfd) in eventfds.iter().enumerate() {
        epoll.add(eventfd, Flags::IN | Flags::ET, data as u64).unwrap();
    }
    let round = Arc::new(Barrier::new(COUNT + 1));
    let (tell, told) = mpsc::channel();
    let wait_again_and_again = |_| {
        let (epoll, eventfds) = (Arc::clone(&epoll), Arc::clone(&eventfds));
        let (round, tell) = (Arc::clone(&round), tell.clone());
        thread::spawn(move || {
            let mut events = room(1);
            for _ in 0..ROUNDS {
                tell.send(thread_id() as usize).unwrap();
                epoll.wait(&mut events, Some(PATIENCE)).unwrap();
                let data = events.iter().next().expect("a wake-up that is not lost").data();
                assert_eq!(eventfds[data as usize].read().unwrap(), Some(1));
                tell.send(data as usize).unwrap();
                round.wait();
            }
        })
    };
    let waiters: Vec<JoinHandle<()>> = (0..COUNT).map(wait_again_and_again).collect();
    for _ in 0..ROUNDS {
        let threads: Vec<usize> = told.iter().take(COUNT).collect();
        for thread in threads {
            await_sleep(thread as i32);
        }
        for eventfd in eventfds.iter() {
            eventfd.notify().unwrap();
        }
        let mut served: Vec<usize> = told.iter().take(COUNT).collect();
        served.sort_unstable();
        assert!(served.into_iter().eq(0..COUNT), "each waiter has another event");
        round.wait();
    }
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

#[test]
fn scenario_61_a_waiter_whose_time_is_over_takes_no_wake_up_along() {
    const ROUNDS: u64 = 300;
    let _watchdog = Watchdog::without_pool();
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    epoll.add(&eventfd, Flags::IN | Flags::ET, 0).unwrap();
    let timeout = Duration::from_micros(1_500);
    let mut timed_out = 0;
    for round in 0..ROUNDS {
        thread::scope(|scope| {
            let wait = |timeout| epoll.wait(&mut room(1), Some(timeout)).unwrap();
            let (tell, told) = mpsc::channel();
            let patient = scope.spawn(move || {
                tell.send(thread_id()).unwrap();
                wait(PATIENCE)
            });
            // The impatient one comes last, so that it is the one to be woken.
            await_sleep(told.recv().unwrap());
            let (tell, told) = mpsc::channel();
            let impatient = scope.spawn(move || {
                tell.send(Instant::now()).unwrap();
                wait(timeout)
            });
            // From 150 us before its time is over to 150 us after.
            let write_at = told.recv().unwrap() + timeout + Duration::from_micros(round)
                - Duration::from_micros(ROUNDS / 2);
            while Instant::now() < write_at {
                std::hint::spin_loop();
            }
            eventfd.notify().unwrap();
            if impatient.join().unwrap() == 1 {
                eventfd.notify().unwrap();
            } else {
                timed_out += 1;
            }
            assert_eq!(patient.join().unwrap(), 1, "round {round}: the wake-up is lost");
        });
    }
    println!("the impatient one came back empty-handed in {timed_out} of {ROUNDS} rounds");
}

// Time-outs.

#[test]
fn a_wait_lasts_at_least_its_nanoseconds() {
    let epoll = Epoll::new().unwrap();
    let mut events = room(1);
    for nanoseconds in [1, 999, 50_000, 999_999, 1_000_001, 2_500_000] {
        for _ in 0..20 {
            let timeout = Duration::from_nanos(nanoseconds);
            let start = Instant::now();
            assert_eq!(epoll.wait(&mut events, Some(timeout)).unwrap(), 0);
            let waited = start.elapsed();
            assert!(waited >= timeout, "{waited:?} instead of {timeout:?}");
        }
    }
}

#[test]
fn the_longest_time_out_is_accepted() {
    let epoll = Epoll::new().unwrap();
    let eventfd = EventFd::new().unwrap();
    eventfd.notify().unwrap();
    epoll.add(&eventfd, Flags::IN, 0).unwrap();
    for timeout in [Duration::MAX, Duration::from_secs(u64::from(u32::MAX))] {
        assert_eq!(epoll.wait(&mut room(1), Some(timeout)).unwrap(), 1);
    }
}
