//! Scenarios of other engines' test-suites for timers, messages and handlers that block, by the property each
//! shows. Numbers are those of the survey of such suites.

mod util;

use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::{
    Capacity, Context, Error, HandleId, Handler, Interest, Next, Pool, Ready, Reason, Registration,
    Removal, Role, Turn,
};
use util::{
    Counter, PATIENCE, Probe, Random, echo, in_own_process, ping, pool, read_some, seed, wait_until,
};

const SOON: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_secs(3600);
const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

/// 10: the wall clock can be set, the timers' cannot.
#[test]
fn timers_run_by_the_monotonic_clock() {
    in_own_process("timers_run_by_the_monotonic_clock", || {
        let before = util::descriptors();
        let (_pool, _watchdog) = pool(Pool::builder().threads(1));
        let new = util::descriptors().into_iter().filter(|number| !before.contains(number));
        let clocks: Vec<String> = new
            .filter_map(|number| {
                std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()
            })
            .filter_map(|info| {
                info.lines().find(|line| line.starts_with("clockid")).map(String::from)
            })
            .collect();
        assert_eq!(clocks, [format!("clockid: {}", libc::CLOCK_MONOTONIC)]);
    });
}

/// 13: many messages let the others have their turn.
#[test]
fn a_mailbox_that_is_never_empty_does_not_starve_the_others() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let own: Arc<Mutex<Option<cabrank::Mailbox<()>>>> = Arc::default();
    let (again, stop) = (Arc::clone(&own), Arc::new(AtomicUsize::new(0)));
    let stopped = Arc::clone(&stop);
    let mailbox = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |(), _cx| {
            if stopped.load(Ordering::SeqCst) > 0 {
                return ControlFlow::Break(());
            }
            if let Some(own) = &*again.lock().unwrap() {
                own.send(()).unwrap();
            }
            GO_ON
        })
        .unwrap();
    *own.lock().unwrap() = Some(mailbox.clone());
    mailbox.send(()).unwrap();
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    (0..100).for_each(|_| ping(&mut peer));
    let fired = Counter::new();
    let count = fired.clone();
    pool.handles().after(SOON, move |_cx| _ = count.add(1)).unwrap();
    fired.wait_for(1);
    stop.store(1, Ordering::SeqCst);
    wait_until("its end", || !pool.handles().contains(mailbox.id()));
    *own.lock().unwrap() = None;
}

/// 15: a deadline that has passed, something to read and room to write at the same time are all told.
#[test]
fn what_happens_together_is_all_told() {
    for _ in 0..200 {
        let (pool, _watchdog) = pool(Pool::builder().threads(2));
        let seen = Arc::new(Mutex::new((false, false, false)));
        let note = Arc::clone(&seen);
        let (probe, mut peer) = Probe::pair(move |stream, ready: Ready, cx| {
            let mut seen = note.lock().unwrap();
            seen.0 |= ready.is_timeout();
            seen.1 |= ready.is_writable();
            seen.2 |=
                ready.is_readable() && read_some(stream).is_some_and(|bytes| !bytes.is_empty());
            if *seen == (true, true, true) {
                cx.shutdown();
            }
            Next::Rearm(Interest::READABLE | Interest::WRITABLE)
        });
        peer.write_all(b"x").unwrap();
        let both = Interest::READABLE | Interest::WRITABLE;
        pool.handles().register(probe, Registration::new(both).deadline(Duration::ZERO)).unwrap();
        wait_until("all three", || *seen.lock().unwrap() == (true, true, true));
    }
}

/// 17: set and cancelled by another thread while the pool sleeps; one is due already.
#[test]
fn timers_of_another_thread_fire_in_order_and_cancelled_ones_never() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (tell, told) = mpsc::channel();
    let set = |name: &'static str, delay| {
        let tell = tell.clone();
        pool.handles().after(delay, move |_cx| tell.send(name).unwrap()).unwrap()
    };
    wait_until("the pool to sleep", || pool.metrics().threads[0].role == Role::Leader);
    let last = set("last", 30 * SOON);
    let cancelled = set("cancelled", 20 * SOON);
    set("middle", 10 * SOON);
    set("due", Duration::ZERO);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "due");
    assert_eq!(pool.handles().remove(cancelled).unwrap(), Removal::Done);
    assert!(matches!(pool.handles().remove(cancelled), Err(Error::UnknownHandle { .. })));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "middle");
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "last");
    wait_until("the last to be gone", || !pool.handles().contains(last));
    assert!(matches!(pool.handles().remove(last), Err(Error::UnknownHandle { .. })));
    assert!(told.try_recv().is_err());
}

/// An object that is counted while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(living: &Arc<AtomicUsize>) -> Counted {
        living.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(living))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// 19: threads that notify, post, send, set timers, purge and remove, with nested calls: every object is
/// destroyed once.
#[test]
fn everything_is_destroyed_whoever_notifies_purges_and_removes() {
    struct Member {
        stream: std::os::unix::net::UnixStream,
        _own: Counted,
        living: Arc<AtomicUsize>,
    }
    impl std::os::fd::AsFd for Member {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }
    impl Handler for Member {
        fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
            if ready.is_message() {
                // Nested: what the call sets off outlives it, and perhaps its handler.
                let (post, timer) = (Counted::new(&self.living), Counted::new(&self.living));
                let _ = cx.handles().post(move |_cx| drop(post));
                let _ = cx.handles().after(SOON, move |_cx| drop(timer));
                cx.set_deadline(SOON);
            }
            let _ = read_some(&mut self.stream);
            if ready.is_timeout() { Next::Suspend } else { Next::Rearm(Interest::READABLE) }
        }

        fn closed(&mut self, _id: HandleId, _reason: Reason) {}
    }

    let living = Arc::new(AtomicUsize::new(0));
    let seed = seed();
    for threads in [1, 4] {
        let (pool, _watchdog) = pool(Pool::builder().threads(threads));
        let members: Mutex<Vec<HandleId>> = Mutex::default();
        let receive = |_message: Counted, _cx: &mut Context<'_>| GO_ON;
        let mailbox = pool.handles().mailbox(Capacity::UNBOUNDED, receive).unwrap();
        let any = |random: &mut Random| {
            let members = members.lock().unwrap();
            let count = members.len() as u64;
            (count > 0).then(|| members[random.below(count) as usize])
        };
        thread::scope(|scope| {
            for number in 0..4 {
                let (pool, members, mailbox) = (&pool, &members, mailbox.clone());
                let (living, any) = (&living, &any);
                scope.spawn(move || {
                    let mut random = Random::new(seed.wrapping_mul(number + 3));
                    for _ in 0..1_500 {
                        match random.below(6) {
                            0 => {
                                let (stream, _peer) = util::stream_pair();
                                let living = Arc::clone(living);
                                let member = Member { stream, _own: Counted::new(&living), living };
                                let id =
                                    pool.handles().register(member, Interest::READABLE).unwrap();
                                members.lock().unwrap().push(id);
                            }
                            1 => {
                                if let Some(id) = any(&mut random) {
                                    let _ = pool.handles().remove(id);
                                    members.lock().unwrap().retain(|other| *other != id);
                                }
                            }
                            2 => _ = mailbox.send(Counted::new(living)),
                            3 => _ = mailbox.purge(),
                            _ => {
                                if let Some(id) = any(&mut random) {
                                    let _ = pool.handles().notify(id);
                                }
                            }
                        }
                    }
                });
            }
        });
        drop(pool.finish());
        drop(mailbox);
        assert_eq!(living.load(Ordering::SeqCst), 0, "with {threads} threads");
    }
}

/// 42: closures posted by a closure are run, also those posted from inside by many; the pool can be stopped
/// while threads wait; what panics does not end anything.
#[test]
fn posted_work_runs_once_and_panics_surface_in_the_count() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let runs = Arc::new(Mutex::new(HashMap::new()));
    for number in 0..300_u32 {
        let runs = Arc::clone(&runs);
        let job = move |cx: &mut Context<'_>| {
            let inner = Arc::clone(&runs);
            let nested =
                move |_: &mut Context<'_>| *inner.lock().unwrap().entry(number).or_insert(0) += 1;
            cx.handles().post(nested).unwrap();
            *runs.lock().unwrap().entry(number + 1_000).or_insert(0) += 1;
            assert_ne!(number % 3, 1, "two of three go through");
        };
        pool.post(job).unwrap();
    }
    wait_until("all", || runs.lock().unwrap().len() == 600);
    assert!(runs.lock().unwrap().values().all(|runs| *runs == 1));
    wait_until("the panics", || pool.metrics().total().panics == 100);
    let report = pool.finish();
    assert_eq!(report.metrics.dropped, 0);
}

/// 46: work that panics never leaves two leaders or none.
#[test]
fn panics_leave_the_roles_as_they_are() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3).papers());
    for round in 0..300 {
        pool.post(|_cx| panic!("on purpose")).unwrap();
        if round % 30 == 0 {
            wait_until("one leader", || {
                let threads = pool.metrics().threads;
                threads.iter().filter(|thread| thread.role == Role::Leader).count() == 1
            });
        }
    }
    wait_until("the panics", || pool.metrics().total().panics == 300);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    (0..20).for_each(|_| ping(&mut peer));
}

/// 47, 48: one handler blocks for ever; the other handles, and timers, are served.
#[test]
fn one_handler_that_blocks_for_ever_holds_up_nobody() {
    for running in [1, 2] {
        let (pool, _watchdog) = pool(Pool::builder().threads(3).running(running));
        let (open, door) = mpsc::channel::<()>();
        let (blocker, mut nudge) = Probe::pair(move |stream, _, _| {
            read_some(stream);
            let _ = door.recv_timeout(PATIENCE);
            Next::Close
        });
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(blocker, Interest::READABLE).unwrap();
        pool.handles().register(probe, Interest::READABLE).unwrap();
        nudge.write_all(b"x").unwrap();
        let fired = Counter::new();
        let count = fired.clone();
        let tick = move |_: &mut Context<'_>| {
            count.add(1);
            GO_ON
        };
        pool.handles().every(SOON, tick).unwrap();
        (0..100).for_each(|_| ping(&mut peer));
        fired.wait_for(5);
        drop(open);
    }
}

/// 52: shutdown with a thread in each state, one of them in a loop inside a handler.
#[test]
fn shutdown_ends_threads_in_every_state_at_once() {
    let (pool, _watchdog) = pool(Pool::builder().threads(5).leaders(1).running(usize::MAX));
    let pool = Arc::new(pool);
    let (inside, open) = (Counter::new(), Arc::new(AtomicUsize::new(0)));
    // One that runs until it is told, and one that goes round by itself inside a handler.
    let (count, told) = (inside.clone(), Arc::clone(&open));
    let run = move |_: &mut Context<'_>| {
        count.add(1);
        while told.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
    };
    pool.post(run).unwrap();
    let (count, nested) = (inside.clone(), Arc::clone(&pool));
    let left = Counter::new();
    let note = left.clone();
    let go_round = move |_: &mut Context<'_>| {
        count.add(1);
        let mut follower = nested.enlist().unwrap();
        loop {
            follower = match follower.follow() {
                Turn::Lead(leader) => match leader.wait() {
                    cabrank::Watch::Nothing(follower) => follower,
                    cabrank::Watch::Detected(detected) => match detected.promote() {
                        Ok(processing) => processing.process(),
                        Err(follower) => follower,
                    },
                },
                Turn::Process(processing) => processing.process(),
                Turn::Leave(_) => break,
            };
        }
        note.add(1);
    };
    pool.post(go_round).unwrap();
    inside.wait_for(2);
    pool.handles().after(LATE, |_cx| ()).unwrap();
    wait_until("a leader and followers", || {
        let threads = pool.metrics().threads;
        let count = |role| threads.iter().filter(|thread| thread.role == role).count();
        count(Role::Leader) == 1 && count(Role::Processing) == 2 && count(Role::Follower) >= 2
    });
    pool.shutdown();
    left.wait_for(1);
    open.store(1, Ordering::SeqCst);
    wait_until("all to be away", || {
        pool.metrics().threads.iter().all(|thread| thread.role == Role::Away)
    });
    assert!(pool.post(|_cx| unreachable!()).is_err() || pool.metrics().dropped <= 1);
    assert!(pool.handles().is_empty());
}
