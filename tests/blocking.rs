//! Handlers that block: said, unsaid, declared, learned; pools that grow and shrink.

mod util;

use std::collections::HashSet;
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cabrank::{
    Blocking, Builder, Context, Error, Interest, Left, Next, Overrun, Pool, Promotion, Registration,
};
use util::{Counter, PATIENCE, Probe, echo, in_own_process, ping, pool, read_some, wait_until};

/// Closed until it is opened; then for ever.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        let wait = self.0.1.wait_timeout_while(open, PATIENCE, |open| !*open);
        assert!(!wait.unwrap().1.timed_out(), "nobody opened the door");
    }
}

/// Has `count` handlers block at the door, saying so or not; returns when all are inside.
fn block(pool: &Pool, count: u64, door: &Door, say: bool) {
    let inside = Counter::new();
    for _ in 0..count {
        let (inside, door) = (inside.clone(), door.clone());
        let wait = move |cx: &mut Context<'_>| {
            inside.add(1);
            if say { cx.blocking(|| door.pass()) } else { door.pass() }
        };
        pool.post(wait).unwrap();
    }
    inside.wait_for(count);
}

/// So long that no watchman comes in a test: who is served then, is served without.
const NEVER_LATE: Duration = Duration::from_secs(3600);

#[test]
fn a_blocking_region_lets_another_thread_in_at_once() {
    // One may run, and nobody counts as late: only what is said helps.
    for promotion in [Promotion::Adaptive, Promotion::Eager] {
        let builder = Pool::builder().threads(3).running(1).budget(NEVER_LATE);
        let (pool, _watchdog) = pool(builder.promotion(promotion));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let door = Door::default();
        block(&pool, 2, &door, true);
        ping(&mut peer);
        assert_eq!(pool.metrics().total().blocked, 2);
        assert_eq!(pool.metrics().total().rescues, 0);
        door.open();
        ping(&mut peer);
    }
}

#[test]
fn after_a_blocking_region_the_thread_counts_again() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3).running(1).budget(NEVER_LATE));
    let inside = Arc::new(Mutex::new(0));
    let done = Counter::new();
    for _ in 0..200 {
        let (inside, done) = (Arc::clone(&inside), done.clone());
        let enter = move |cx: &mut Context<'_>| {
            cx.blocking(thread::yield_now);
            cx.blocking(|| cx.blocking(thread::yield_now));
            *inside.lock().unwrap() += 1;
            done.add(1);
        };
        pool.post(enter).unwrap();
    }
    done.wait_for(200);
    // Its count is right: the pool still serves, and still one at a time.
    let alone = util::Exclusive::default();
    for _ in 0..100 {
        let (alone, done) = (alone.clone(), done.clone());
        let measure = move |_cx: &mut Context<'_>| {
            alone.run(thread::yield_now);
            done.add(1);
        };
        pool.post(measure).unwrap();
    }
    done.wait_for(300);
}

#[test]
fn a_panic_in_a_blocking_region_is_contained() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2).running(1));
    for _ in 0..20 {
        pool.post(|cx| cx.blocking(|| panic!("while blocking"))).unwrap();
    }
    wait_until("the panics", || pool.metrics().total().panics == 20);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    (0..20).for_each(|_| ping(&mut peer));
}

#[test]
fn a_handler_that_blocks_unsaid_is_noticed_reported_and_replaced() {
    let (tell, told) = mpsc::channel();
    let budget = Duration::from_micros(300);
    let builder = Pool::builder().threads(4).running(1).budget(budget);
    let builder = builder.on_overrun(move |overrun: &Overrun| tell.send(*overrun).unwrap());
    let (pool, _watchdog) = pool(builder);
    let door = Door::default();
    let wait = door.clone();
    let (blocker, mut nudge) = Probe::pair(move |stream, _, _| {
        read_some(stream);
        wait.pass();
        Next::Rearm(Interest::READABLE)
    });
    let (probe, mut peer) = Probe::pair(echo);
    let blocker = pool.handles().register(blocker, Interest::READABLE).unwrap();
    pool.handles().register(probe, Interest::READABLE).unwrap();
    std::io::Write::write_all(&mut nudge, b"x").unwrap();
    (0..50).for_each(|_| ping(&mut peer));
    let overrun = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(overrun.handle, blocker);
    assert!(overrun.elapsed >= budget && overrun.thread < 4, "{overrun:?}");
    assert!(pool.metrics().total().rescues >= 1);
    door.open();
    assert!(told.try_iter().all(|overrun| overrun.handle != blocker), "reported once a run");
}

/// Also where nobody waits for the handler, and where nobody is free to look at it: then when it has ended.
#[test]
fn every_overrun_is_reported_once_whatever_else_the_pool_does() {
    for threads in [1, 2, 4] {
        let (tell, told) = mpsc::channel();
        let builder = Pool::builder().threads(threads).budget(Duration::from_millis(2));
        let builder = builder.on_overrun(move |overrun: &Overrun| tell.send(*overrun).unwrap());
        let (pool, _watchdog) = pool(builder);
        let door = Door::default();
        let wait = door.clone();
        let (blocker, mut nudge) = Probe::pair(move |stream, _, _| {
            read_some(stream);
            wait.pass();
            Next::Rearm(Interest::READABLE)
        });
        let blocker = pool.handles().register(blocker, Interest::READABLE).unwrap();
        std::io::Write::write_all(&mut nudge, b"x").unwrap();
        let watched = threads > 2;
        if !watched {
            // The other one, if there is one, sits on the handle set.
            thread::sleep(Duration::from_millis(10));
            door.open();
        }
        let overrun = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(overrun.handle, blocker, "{threads} threads");
        assert!(overrun.elapsed >= Duration::from_millis(2), "{overrun:?}");
        door.open();
        wait_until("the handler's end", || pool.metrics().total().events == 1);
        drop(pool);
        assert_eq!(told.iter().count(), 0, "reported once: {threads} threads");
    }
}

#[test]
fn a_report_that_panics_costs_nothing() {
    let builder = Pool::builder().threads(3).running(1).budget(Duration::from_micros(200));
    let (pool, _watchdog) = pool(builder.on_overrun(|_| panic!("in the report")));
    let door = Door::default();
    block(&pool, 2, &door, false);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    ping(&mut peer);
    door.open();
}

#[test]
fn a_declared_blocker_never_counts_as_running() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4).running(1).budget(NEVER_LATE));
    let (door, inside) = (Door::default(), Counter::new());
    let mut nudges = Vec::new();
    for _ in 0..3 {
        let (door, inside) = (door.clone(), inside.clone());
        let (blocker, mut nudge) = Probe::pair(move |stream, _, _| {
            read_some(stream);
            inside.add(1);
            door.pass();
            Next::Rearm(Interest::READABLE)
        });
        let registration = Registration::new(Interest::READABLE).blocking(Blocking::Always);
        pool.handles().register(blocker, registration).unwrap();
        std::io::Write::write_all(&mut nudge, b"x").unwrap();
        nudges.push(nudge);
    }
    inside.wait_for(3);
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    (0..20).for_each(|_| ping(&mut peer));
    door.open();
}

#[test]
fn a_handler_that_may_block_leaves_somebody_watching() {
    // Two may run. In busy times with short handlers nobody else would sit down.
    let (pool, _watchdog) = pool(Pool::builder().threads(3).running(2).budget(NEVER_LATE));
    let door = Door::default();
    let (inside, wait) = (Counter::new(), door.clone());
    let count = inside.clone();
    let (blocker, mut nudge) = Probe::pair(move |stream, _, _| {
        read_some(stream);
        count.add(1);
        wait.pass();
        Next::Rearm(Interest::READABLE)
    });
    let registration = Registration::new(Interest::READABLE).blocking(Blocking::Maybe);
    pool.handles().register(blocker, registration).unwrap();
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    // Heats it up: waits that find something at once.
    heat_up(&pool);
    std::io::Write::write_all(&mut nudge, b"x").unwrap();
    inside.wait_for(1);
    (0..20).for_each(|_| ping(&mut peer));
    door.open();
}

fn heat_up(pool: &Pool) {
    let done = Counter::new();
    for _ in 0..2_000 {
        let done = done.clone();
        pool.post(move |_cx| _ = done.add(1)).unwrap();
    }
    done.wait_for(2_000);
}

#[test]
fn a_trusted_handler_is_served_like_any_other() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let mut peers = Vec::new();
    for blocking in [Blocking::Never, Blocking::Learned, Blocking::Never] {
        let (probe, peer) = Probe::pair(echo);
        let registration = Registration::new(Interest::READABLE).blocking(blocking);
        pool.handles().register(probe, registration).unwrap();
        peers.push(peer);
    }
    for _ in 0..500 {
        peers.iter_mut().for_each(ping);
    }
}

#[test]
fn a_handler_that_usually_blocks_is_learned() {
    let budget = Duration::from_millis(1);
    let (pool, _watchdog) = pool(Pool::builder().threads(4).running(1).budget(budget));
    let (sleeper, mut nudge) = Probe::pair(move |stream, _, _| {
        if read_some(stream).is_none() {
            return Next::Close;
        }
        thread::sleep(4 * budget);
        std::io::Write::write_all(stream, b"p").unwrap();
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(sleeper, Interest::READABLE).unwrap();
    (0..15).for_each(|_| ping(&mut nudge));
    let before = pool.metrics().total().rescues;
    (0..15).for_each(|_| ping(&mut nudge));
    let rescues = pool.metrics().total().rescues - before;
    assert_eq!(rescues, 0, "it is known to block, and no watchman has to find out");
}

fn growing(least: usize, most: usize) -> Builder {
    Pool::builder().threads(least).max_threads(most).keep_alive(Duration::from_millis(30))
}

#[test]
fn a_pool_grows_while_its_threads_are_blocked_and_shrinks_again() {
    for say in [true, false] {
        let (pool, _watchdog) = pool(growing(1, 8).budget(Duration::from_micros(500)));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        let door = Door::default();
        block(&pool, 6, &door, say);
        (0..20).for_each(|_| ping(&mut peer));
        assert!(own_threads(&pool) >= 7, "{}", pool.metrics());
        assert!(pool.metrics().total().recruits >= 6);
        door.open();
        wait_until("the others to leave", || present(&pool) == 1);
        (0..20).for_each(|_| ping(&mut peer));
        // And once more, at the same places.
        let door = Door::default();
        block(&pool, 6, &door, say);
        assert!(own_threads(&pool) <= 8);
        door.open();
        let report = pool.finish();
        let idle = |ending: &&cabrank::Ending| matches!(ending, cabrank::Ending::Left(Left::Idle));
        assert!(report.threads.len() <= 8 && report.threads.iter().filter(idle).count() <= 7);
    }
}

fn own_threads(pool: &Pool) -> usize {
    pool.metrics().threads.len()
}

/// Threads that are in the pool now.
fn present(pool: &Pool) -> usize {
    let threads = pool.metrics().threads;
    threads.iter().filter(|thread| thread.role != cabrank::Role::Away).count()
}

#[test]
fn a_pool_does_not_grow_beyond_its_maximum() {
    let (pool, _watchdog) = pool(growing(1, 3).budget(Duration::from_micros(300)));
    let (door, threads) = (Door::default(), Arc::new(Mutex::new(HashSet::new())));
    let done = Counter::new();
    for _ in 0..12 {
        let (door, threads, done) = (door.clone(), Arc::clone(&threads), done.clone());
        let wait = move |cx: &mut Context<'_>| {
            threads.lock().unwrap().insert(cx.thread());
            door.pass();
            done.add(1);
        };
        pool.post(wait).unwrap();
    }
    wait_until("all three to be blocked", || threads.lock().unwrap().len() == 3);
    assert_eq!(own_threads(&pool), 3);
    door.open();
    done.wait_for(12);
    assert_eq!(threads.lock().unwrap().len(), 3);
}

#[test]
fn handlers_that_wait_for_each_other_do_not_deadlock() {
    const TOGETHER: usize = 12;
    let (pool, _watchdog) = pool(growing(1, TOGETHER + 1).budget(Duration::from_micros(300)));
    for round in 0..3 {
        let (meeting, done) = (Arc::new(Barrier::new(TOGETHER)), Counter::new());
        for _ in 0..TOGETHER {
            let (meeting, done) = (Arc::clone(&meeting), done.clone());
            let meet = move |_cx: &mut Context<'_>| {
                meeting.wait();
                done.add(1);
            };
            pool.post(meet).unwrap();
        }
        done.wait_for(TOGETHER as u64);
        if round == 1 {
            wait_until("the others to leave", || present(&pool) == 1);
        }
    }
}

#[test]
fn a_thread_that_cannot_be_started_does_not_stop_the_pool() {
    use nix::sys::resource::{Resource, setrlimit};
    in_own_process("a_thread_that_cannot_be_started_does_not_stop_the_pool", || {
        let (pool, _watchdog) = pool(growing(2, 64).budget(Duration::from_micros(300)));
        let (probe, mut peer) = Probe::pair(echo);
        pool.handles().register(probe, Interest::READABLE).unwrap();
        ping(&mut peer);
        // No room for another stack.
        let used = util::virtual_memory();
        let (_, hard) = nix::sys::resource::getrlimit(Resource::RLIMIT_AS).unwrap();
        setrlimit(Resource::RLIMIT_AS, used + 256 * 1024, hard).unwrap();
        let door = Door::default();
        block(&pool, 1, &door, false);
        (0..50).for_each(|_| ping(&mut peer));
        assert_eq!(own_threads(&pool), 2, "no thread could be started");
        setrlimit(Resource::RLIMIT_AS, hard, hard).unwrap();
        // It tries again when it can.
        block(&pool, 3, &door, false);
        (0..50).for_each(|_| ping(&mut peer));
        assert!(own_threads(&pool) > 2);
        door.open();
    });
}

/// However long it is until another may be started: one that was not there in the end does not count.
#[test]
fn a_recruit_that_fails_to_start_is_replaced_at_once() {
    let starts = Counter::new();
    let count = starts.clone();
    let builder = growing(2, 3).growth_interval(NEVER_LATE).budget(Duration::from_millis(1));
    let (pool, _watchdog) = pool(builder.keep_alive(NEVER_LATE).on_thread_start(move |_| {
        assert!(count.add(1) != 3, "on purpose");
    }));
    let (probe, mut peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    let door = Door::default();
    block(&pool, 1, &door, false);
    // The only thread that is left is not to go into the handler before another is there to look after it.
    wait_until("the next one", || {
        ping(&mut peer);
        starts.get() == 4
    });
    (0..20).for_each(|_| ping(&mut peer));
    door.open();
}

#[test]
fn a_thread_that_is_of_use_stays() {
    const KEEP_ALIVE: Duration = Duration::from_millis(200);
    let starts = Counter::new();
    let count = starts.clone();
    let builder = growing(1, 2).keep_alive(KEEP_ALIVE).on_thread_start(move |_| _ = count.add(1));
    let (pool, _watchdog) = pool(builder.growth_interval(Duration::from_micros(1)));
    let (start, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    while start.elapsed() < 3 * KEEP_ALIVE {
        // Two handlers that wait for each other take two threads.
        let (meeting, met) = (Arc::new(Barrier::new(2)), Counter::new());
        for _ in 0..2 {
            let (meeting, met) = (Arc::clone(&meeting), met.clone());
            let meet = move |_cx: &mut Context<'_>| {
                meeting.wait();
                met.add(1);
            };
            pool.post(meet).unwrap();
        }
        met.wait_for(2);
        longest = longest.max(last.elapsed());
        last = Instant::now();
        thread::sleep(KEEP_ALIVE / 20);
    }
    // Unless the machine was so busy that they were idle for too long.
    assert!(starts.get() == 2 || longest >= KEEP_ALIVE / 2, "{} starts", starts.get());
}

#[test]
fn a_growing_pool_ends_in_any_state() {
    for round in 0..60_u64 {
        let builder = growing(1, 6).budget(Duration::from_micros(100));
        let pool =
            builder.keep_alive(Duration::from_micros(200 + 100 * (round % 7))).build().unwrap();
        let done = Counter::new();
        for _ in 0..round % 20 {
            let done = done.clone();
            let sleep = move |_cx: &mut Context<'_>| {
                thread::sleep(Duration::from_micros(300));
                done.add(1);
            };
            pool.post(sleep).unwrap();
        }
        thread::sleep(Duration::from_micros(50 * (round % 23)));
        let report = pool.finish();
        assert_eq!(done.get() + report.metrics.dropped, round % 20);
        for ending in &report.threads {
            assert!(
                matches!(ending, cabrank::Ending::Left(Left::Shutdown | Left::Idle)),
                "{ending:?}"
            );
        }
    }
}

#[test]
fn a_growing_pool_has_its_choices_checked() {
    let few = Pool::builder().threads(4).max_threads(3).build();
    assert!(matches!(few, Err(Error::OutOfRange { option: "max_threads", .. })));
    let many = Pool::builder().threads(1).max_threads(5_000).build();
    assert!(matches!(many, Err(Error::OutOfRange { .. })));
    let never = growing(1, 2).keep_alive(Duration::ZERO).build();
    assert!(matches!(never, Err(Error::Zero { option: "keep_alive" })));
}

#[test]
fn start_and_stop_hooks_run_for_every_thread_that_comes_and_goes() {
    let (started, stopped) = (Counter::new(), Counter::new());
    let (up, down) = (started.clone(), stopped.clone());
    let builder = growing(1, 4).budget(Duration::from_micros(300));
    let builder = builder.on_thread_start(move |_| _ = up.add(1));
    let (pool, _watchdog) = pool(builder.on_thread_stop(move |_| _ = down.add(1)));
    let door = Door::default();
    block(&pool, 3, &door, false);
    door.open();
    wait_until("the others to leave", || stopped.get() == started.get() - 1);
    drop(pool);
    assert_eq!(started.get(), stopped.get());
    assert!(started.get() >= 3);
}

#[test]
fn offloaded_work_comes_back_with_its_result() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let answer = Arc::new(Mutex::new(None));
    let result = Arc::clone(&answer);
    let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
        if ready.is_message() {
            let answer: Vec<u8> = result.lock().unwrap().take().expect("the work is done");
            std::io::Write::write_all(stream, &answer).unwrap();
            return Next::Rearm(Interest::READABLE);
        }
        let Some(question) = read_some(stream) else { return Next::Close };
        let (handles, id, result) = (cx.handles().clone(), cx.id(), Arc::clone(&result));
        thread::spawn(move || {
            *result.lock().unwrap() = Some(question.iter().rev().copied().collect());
            handles.notify(id).unwrap();
        });
        Next::Suspend
    });
    pool.handles().register(probe, Interest::READABLE).unwrap();
    for _ in 0..200 {
        std::io::Write::write_all(&mut peer, b"abc").unwrap();
        let mut back = [0; 3];
        std::io::Read::read_exact(&mut peer, &mut back).unwrap();
        assert_eq!(&back, b"cba");
    }
}
