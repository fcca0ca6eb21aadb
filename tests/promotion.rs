//! Roles and promotion: who waits, who runs, who is woken, in which order.

mod util;

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cabrank::sys::eventfd::EventFd;
use cabrank::{
    Builder, Context, Deactivation, Interest, Left, Next, Order, Pinning, Pool, Promotion, Ready,
    Role, Scheduling, Turn, Watch, handler_fn,
};
use util::{
    Counter, PATIENCE, Probe, assert_sleeps, echo, ping, ping_all, pool, read_some, wait_until,
};

fn roles(pool: &Pool) -> Vec<Role> {
    pool.metrics().threads.iter().map(|thread| thread.role).collect()
}

fn how_many(pool: &Pool, role: Role) -> usize {
    roles(pool).into_iter().filter(|&other| other == role).count()
}

/// Registers an echo; the peer's end.
fn echoing(pool: &Pool) -> UnixStream {
    let (probe, peer) = Probe::pair(echo);
    pool.handles().register(probe, Interest::READABLE).unwrap();
    peer
}

/// A handler that stays in until told, and tells when it is in.
struct Blocker {
    entered: mpsc::Receiver<usize>,
    leave: mpsc::Sender<()>,
    peer: UnixStream,
}

impl Blocker {
    fn register(pool: &Pool) -> Blocker {
        let (inside, entered) = mpsc::channel();
        let (leave, told) = mpsc::channel::<()>();
        let (probe, peer) = Probe::pair(move |stream, _, cx: &mut Context<'_>| {
            let _ = read_some(stream);
            let _ = inside.send(cx.thread());
            let _ = told.recv();
            Next::Rearm(Interest::READABLE)
        });
        pool.handles().register(probe, Interest::READABLE).unwrap();
        Blocker { entered, leave, peer }
    }

    /// Makes a thread go in; which.
    #[track_caller]
    fn enter(&mut self) -> usize {
        self.peer.write_all(b"x").unwrap();
        self.entered.recv_timeout(PATIENCE).expect("a thread that comes in")
    }

    fn leave(&self) {
        self.leave.send(()).unwrap();
    }
}

/// I1 and I2 in the papers' pattern: one leads, the rest follow, and promotion precedes processing.
#[test]
fn with_one_seat_there_is_one_leader_and_one_is_promoted_before_each_event() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3).papers());
    wait_until("one leader, two followers", || {
        how_many(&pool, Role::Leader) == 1 && how_many(&pool, Role::Follower) == 2
    });
    let mut first = Blocker::register(&pool);
    let mut second = Blocker::register(&pool);
    let mut third = Blocker::register(&pool);
    first.enter();
    wait_until("a new leader beside the processing thread", || {
        how_many(&pool, Role::Leader) == 1 && how_many(&pool, Role::Processing) == 1
    });
    second.enter();
    wait_until("the last thread leads", || how_many(&pool, Role::Leader) == 1);
    // Nobody is left to be promoted; the mark this leaves is consumed by the first to finish.
    third.enter();
    assert_eq!(how_many(&pool, Role::Processing), 3);
    let mut peer = echoing(&pool);
    peer.write_all(b"p").unwrap();
    second.leave();
    let mut back = [0];
    std::io::Read::read_exact(&mut peer, &mut back).unwrap();
    wait_until("the finished thread leads", || how_many(&pool, Role::Leader) == 1);
    assert!(pool.metrics().without_leader > Duration::ZERO);
    first.leave();
    third.leave();
}

/// I1 for every number of seats, at rest.
#[test]
fn no_more_threads_wait_than_there_are_seats() {
    for leaders in 1..=4 {
        for promotion in [Promotion::Eager, Promotion::Adaptive] {
            let builder = Pool::builder().threads(4).running(4).leaders(leaders);
            let (pool, _watchdog) = pool(builder.promotion(promotion));
            wait_until("all seats taken", || how_many(&pool, Role::Leader) == leaders);
            let mut peer = echoing(&pool);
            for _ in 0..50 {
                ping(&mut peer);
            }
            // One that has just got up may be shown beside the one that has taken its seat, but not for long.
            wait_until("no more leaders than seats", || how_many(&pool, Role::Leader) <= leaders);
            thread::sleep(Duration::from_millis(5));
            assert!(how_many(&pool, Role::Leader) <= leaders, "at rest");
        }
    }
}

/// The eyes stay open under the default policy: with all but one blocked the last one serves.
#[test]
fn with_all_threads_but_one_blocked_the_rest_is_served() {
    for builder in [Pool::builder(), Pool::builder().papers(), Pool::builder().leaders(1)] {
        let (pool, _watchdog) = pool(builder.threads(4));
        let mut blockers: Vec<Blocker> = (0..3).map(|_| Blocker::register(&pool)).collect();
        for blocker in &mut blockers {
            blocker.enter();
        }
        let mut peer = echoing(&pool);
        for _ in 0..20 {
            ping(&mut peer);
        }
        for blocker in &blockers {
            blocker.leave();
        }
    }
}

/// The cap holds while handlers keep their budget, and the highest count is really reached.
#[test]
fn no_more_handlers_run_at_once_than_allowed() {
    for running in [1, 2, 3] {
        for promotion in [Promotion::Eager, Promotion::Adaptive] {
            let builder = Pool::builder().threads(6).running(running).promotion(promotion);
            let (pool, _watchdog) = pool(builder.budget(PATIENCE));
            let inside = Arc::new(AtomicUsize::new(0));
            let most = Arc::new(AtomicUsize::new(0));
            let calls = Counter::new();
            let mut peers = Vec::new();
            for _ in 0..12 {
                let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
                let calls = calls.clone();
                let (probe, peer) = Probe::pair(move |stream, _, _: &mut Context<'_>| {
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    let _ = read_some(stream);
                    thread::sleep(Duration::from_micros(500));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    calls.add(1);
                    Next::Rearm(Interest::READABLE)
                });
                pool.handles().register(probe, Interest::READABLE).unwrap();
                peers.push(peer);
            }
            for round in 1..=20 {
                for peer in &mut peers {
                    peer.write_all(b"x").unwrap();
                }
                calls.wait_for(12 * round);
            }
            assert_eq!(most.load(Ordering::SeqCst), running, "{promotion:?}");
        }
    }
}

/// I2 with a cap: a handler that overruns its budget does not count any more.
#[test]
fn a_blocked_handler_is_replaced_by_the_watchman() {
    let builder = Pool::builder().threads(3).running(1).budget(Duration::from_micros(200));
    let (pool, _watchdog) = pool(builder);
    let mut blocker = Blocker::register(&pool);
    let mut peer = echoing(&pool);
    blocker.enter();
    for _ in 0..50 {
        ping(&mut peer);
    }
    assert!(pool.metrics().total().rescues >= 1, "{}", pool.metrics());
    blocker.leave();
    ping(&mut peer);
}

/// An idle process must not tick, also after a busy time.
#[test]
fn an_idle_pool_sleeps() {
    let (pool, _watchdog) = pool(Pool::builder().threads(4).name("sleeper"));
    let mut peers: Vec<UnixStream> = (0..16).map(|_| echoing(&pool)).collect();
    wait_until("a busy time, in which one wait finds several events", || {
        ping_all(&mut peers);
        let total = pool.metrics().total();
        total.events > total.waits
    });
    assert_sleeps(&pool, "sleeper");
}

/// ACE's Token_Strategy: FIFO spreads leadership evenly, LIFO concentrates it.
#[test]
fn lifo_concentrates_the_work_and_fifo_spreads_it() {
    let spread = |order: Order| {
        let (pool, _watchdog) = pool(Pool::builder().threads(5).papers().order(order));
        wait_until("all have come", || {
            how_many(&pool, Role::Leader) == 1 && how_many(&pool, Role::Follower) == 4
        });
        let mut peer = echoing(&pool);
        for _ in 0..1_000 {
            ping(&mut peer);
        }
        let events: Vec<f64> =
            pool.metrics().threads.iter().map(|thread| thread.events as f64).collect();
        let mean = events.iter().sum::<f64>() / 5.0;
        let variance = events.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / 5.0;
        (variance.sqrt() / mean, events)
    };
    let (fifo, events) = spread(Order::Fifo);
    assert!(fifo < 0.5, "FIFO is uneven: {events:?}");
    let (lifo, events) = spread(Order::Lifo);
    assert!(lifo > 2.0 * fifo, "LIFO is even: {events:?}");
    assert!(events.contains(&0.0), "LIFO let nobody sleep: {events:?}");
}

/// Followers are promoted by thread priority; those of low priority only when no other is left.
#[test]
fn the_follower_of_highest_priority_is_promoted() {
    // Nice values above the present one need no permission.
    let present = util::niceness();
    if present > 15 {
        println!("skipped: there are not enough nice values above {present}");
        return;
    }
    let nice = move |index: usize| Scheduling::Nice(present + [4, 1, 2, 3][index]);
    let builder = Pool::builder().threads(4).papers().order(Order::Priority);
    let (pool, _watchdog) = pool(builder.scheduling_by(nice));
    let mut blockers: Vec<Blocker> = (0..4).map(|_| Blocker::register(&pool)).collect();
    wait_until("one leads, three follow", || {
        how_many(&pool, Role::Leader) == 1 && how_many(&pool, Role::Follower) == 3
    });
    let entered: Vec<usize> = blockers.iter_mut().map(Blocker::enter).collect();
    // Whoever came first leads first; from then on it goes by priority.
    let mut expected = vec![1, 2, 3, 0];
    expected.retain(|&thread| thread != entered[0]);
    assert_eq!(entered[1..], expected);
    for blocker in &blockers {
        blocker.leave();
    }
}

#[test]
fn every_order_serves() {
    for order in [Order::Lifo, Order::Fifo, Order::Priority, Order::Unordered] {
        for builder in
            [Pool::builder(), Pool::builder().papers(), Pool::builder().events_per_wait(4)]
        {
            let (pool, _watchdog) = pool(builder.threads(4).order(order));
            let mut peers = Vec::new();
            for _ in 0..8 {
                let (probe, peer) = Probe::pair(echo);
                pool.handles().register(probe, Interest::READABLE).unwrap();
                peers.push(peer);
            }
            for _ in 0..50 {
                for peer in &mut peers {
                    ping(peer);
                }
            }
            wait_until("all counted", || pool.metrics().total().events >= 400);
        }
    }
}

/// I11, by counts: an event wakes at most one thread by our hand, a burst a bounded number.
#[test]
fn an_event_wakes_at_most_one_follower() {
    let (pool, _watchdog) = pool(Pool::builder().threads(8).papers());
    let mut peer = echoing(&pool);
    wait_until("the followers", || how_many(&pool, Role::Follower) == 7);
    for _ in 0..500 {
        ping(&mut peer);
    }
    // An event that comes while its slot is still being given back is detected twice, and promotes twice.
    let total = pool.metrics().total();
    assert!(total.wakes <= total.promotions, "{}", pool.metrics());
    assert!(total.promotions <= total.events + total.rearms, "{}", pool.metrics());
}

#[test]
fn in_calm_times_nobody_is_woken_by_hand() {
    let (pool, _watchdog) = pool(Pool::builder().threads(8).running(4));
    let mut peer = echoing(&pool);
    wait_until("the leaders", || how_many(&pool, Role::Leader) == 4);
    for _ in 0..500 {
        ping(&mut peer);
        thread::sleep(Duration::from_micros(100));
    }
    let total = pool.metrics().total();
    assert!(total.wakes < total.events / 10, "{}", pool.metrics());
}

/// ACE's Reactor_Fairness, by counts: one that is always ready does not keep the others waiting. It says
/// itself when the other becomes ready, and so knows how often it is called before the other is.
#[test]
fn a_handle_that_is_always_ready_does_not_starve_the_others() {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        for builder in [Pool::builder(), Pool::builder().papers()] {
            let (pool, _watchdog) = pool(builder.threads(1).deactivation(deactivation));
            let (bell, rings) = (Arc::new(EventFd::new().unwrap()), Counter::new());
            let (longest, calls) = (Counter::new(), Counter::new());
            let (rung, most, since) = (rings.clone(), longest.clone(), calls.clone());
            let ring = Arc::clone(&bell);
            let other = handler_fn(bell, move |bell, _: Ready, _: &mut Context<'_>| {
                bell.read().unwrap();
                // Rung by the first of five.
                let after = (since.get() - 1) % 5;
                most.add(after.saturating_sub(most.get()));
                rung.add(1);
                Next::Rearm(Interest::READABLE)
            });
            pool.handles().register(other, Interest::READABLE).unwrap();
            // Never read: ready for ever.
            let eventfd = EventFd::new().unwrap();
            eventfd.notify().unwrap();
            let always = handler_fn(eventfd, move |_, _: Ready, _: &mut Context<'_>| {
                if calls.add(1) % 5 == 1 {
                    ring.notify().unwrap();
                }
                Next::Rearm(Interest::READABLE)
            });
            pool.handles().register(always, Interest::READABLE).unwrap();
            rings.wait_for(200);
            assert!(longest.get() <= 1, "{} calls before the other's", longest.get());
        }
    }
}

/// The longest run of one number between two of another.
fn longest_run(sequence: &[usize], numbers: usize) -> usize {
    let mut longest = 0;
    // How often each has been seen since the other was.
    let mut runs = vec![vec![0; numbers]; numbers];
    for &number in sequence {
        for (other, runs) in runs.iter_mut().enumerate() {
            runs[number] += 1;
            if other != number {
                longest = longest.max(runs[number]);
            }
        }
        runs[number].fill(0);
    }
    longest
}

/// The same among equals that are always ready: the kernel's list and ours go round.
#[test]
fn handles_that_are_all_always_ready_take_turns() {
    const HANDLES: usize = 8;
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        for builder in
            [Pool::builder(), Pool::builder().papers(), Pool::builder().events_per_wait(3)]
        {
            let (pool, _watchdog) = pool(builder.threads(1).deactivation(deactivation));
            let sequence = Arc::new(Mutex::new(Vec::new()));
            for number in 0..HANDLES {
                let eventfd = EventFd::new().unwrap();
                eventfd.notify().unwrap();
                let calls = Arc::clone(&sequence);
                let always = handler_fn(eventfd, move |_, _: Ready, _: &mut Context<'_>| {
                    calls.lock().unwrap().push(number);
                    Next::Rearm(Interest::READABLE)
                });
                pool.handles().register(always, Interest::READABLE).unwrap();
            }
            // Those that came first were alone at first.
            let alone = sequence.lock().unwrap().len();
            wait_until("many calls", || sequence.lock().unwrap().len() > alone + 4_000);
            pool.finish();
            let longest = longest_run(&sequence.lock().unwrap()[alone + HANDLES..], HANDLES);
            assert!(longest <= 2, "{longest} calls of one between two of another");
        }
    }
}

#[test]
fn handles_that_are_all_always_ready_get_equal_shares() {
    const THREADS: usize = 2;
    for builder in [Pool::builder(), Pool::builder().papers(), Pool::builder().events_per_wait(3)] {
        let (pool, _watchdog) = pool(builder.threads(THREADS));
        let counters: Vec<Counter> = (0..8).map(|_| Counter::new()).collect();
        for counter in &counters {
            let eventfd = EventFd::new().unwrap();
            eventfd.notify().unwrap();
            let count = counter.clone();
            let always = handler_fn(eventfd, move |_, _: Ready, _: &mut Context<'_>| {
                count.add(1);
                Next::Rearm(Interest::READABLE)
            });
            pool.handles().register(always, Interest::READABLE).unwrap();
        }
        // Those that came first were alone at first.
        let before: Vec<u64> = counters.iter().map(Counter::get).collect();
        counters[0].wait_for(before[0] + 2_000);
        pool.finish();
        let mut counts: Vec<u64> =
            counters.iter().zip(before).map(|(counter, before)| counter.get() - before).collect();
        counts.sort_unstable();
        // A thread that is off its CPU for a while keeps one handle from its share.
        assert!(counts[THREADS] * 2 > counts[counts.len() - 1], "{counts:?}");
    }
}

/// Application threads take part, and a leader whose time is over is replaced.
#[test]
fn application_threads_join_and_leave() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(2));
    let mut peer = echoing(&pool);
    thread::scope(|scope| {
        let pool = &pool;
        let stays = scope.spawn(move || pool.join());
        for _ in 0..20 {
            let left = pool.join_timeout(Duration::from_millis(2)).unwrap();
            assert!(matches!(left, Left::TimedOut));
            ping(&mut peer);
        }
        pool.shutdown();
        stays.join().unwrap().unwrap();
    });
    assert!(pool.metrics().departed.waits > 0);
}

/// TAO's lost leader: members with random short times come and go while the rest must go on.
#[test]
fn leadership_survives_members_whose_time_is_over() {
    for builder in [Pool::builder().papers(), Pool::builder()] {
        let (pool, _watchdog) = pool(builder.threads(1).joiners(4));
        let mut peer = echoing(&pool);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        thread::scope(|scope| {
            for number in 0..3_u64 {
                let (pool, stop) = (&pool, Arc::clone(&stop));
                scope.spawn(move || {
                    let mut random = util::Random::new(number + 1);
                    while !stop.load(Ordering::SeqCst) {
                        let time = Duration::from_micros(random.below(300));
                        pool.join_timeout(time).unwrap();
                    }
                });
            }
            for _ in 0..1_000 {
                ping(&mut peer);
            }
            stop.store(true, Ordering::SeqCst);
        });
    }
}

/// The roles by hand, and what happens to what they hold when they are dropped.
#[test]
fn a_role_that_is_dropped_passes_on_what_it_held() {
    let (pool, _watchdog) = pool(Pool::builder().threads(0).joiners(2).papers());
    let mut peer = echoing(&pool);
    for drop_at in 0..3 {
        peer.write_all(b"p").unwrap();
        let Turn::Lead(leader) = pool.enlist().unwrap().follow() else { panic!("not the leader") };
        if drop_at == 0 {
            drop(leader);
        } else if let Watch::Detected(detected) = leader.wait() {
            if drop_at == 1 {
                drop(detected);
            } else {
                drop(detected.promote().unwrap());
            }
        }
        // Whatever was dropped, the event is still there for the next.
        let processing = match pool.enlist().unwrap().follow() {
            Turn::Process(processing) => processing,
            Turn::Lead(leader) => match leader.wait() {
                Watch::Detected(detected) => detected.promote().unwrap(),
                Watch::Nothing(_) => panic!("the event is lost"),
            },
            Turn::Leave(why) => panic!("{why}"),
        };
        drop(processing.process());
        let mut back = [0];
        std::io::Read::read_exact(&mut peer, &mut back).unwrap();
    }
}

#[test]
fn threads_have_their_names_hooks_and_pins() {
    let (started, starts) = mpsc::channel();
    let (stopped, stops) = mpsc::channel();
    let (started, stopped) = (Mutex::new(started), Mutex::new(stopped));
    let cpus = cabrank::sys::sched::allowed_cpus();
    let builder: Builder = Pool::builder()
        .threads(3)
        .name("front")
        .stack_size(256 * 1024)
        .pinning(Pinning::OnePerCpu)
        .on_thread_start(move |index| {
            let name = thread::current().name().unwrap().to_string();
            let width = cabrank::sys::sched::affinity_width().unwrap();
            let cpu = cabrank::sys::sched::allowed_cpus()[0];
            started.lock().unwrap().send((index, (name, width, cpu))).unwrap();
        })
        .on_thread_stop(move |index| stopped.lock().unwrap().send(index).unwrap());
    let (pool, _watchdog) = pool(builder);
    let starts: HashMap<usize, (String, usize, usize)> = starts.iter().take(3).collect();
    for index in 0..3 {
        let expected = (format!("front-{index}"), 1, cpus[index % cpus.len()]);
        assert_eq!(starts[&index], expected);
    }
    drop(pool);
    let mut stops: Vec<usize> = stops.iter().take(3).collect();
    stops.sort_unstable();
    assert_eq!(stops, [0, 1, 2]);
}

#[test]
fn a_spinning_pool_serves_and_stops() {
    let builder = Pool::builder().threads(2).spin(Duration::from_micros(50));
    let (pool, _watchdog) = pool(builder);
    let mut peer = echoing(&pool);
    for _ in 0..200 {
        ping(&mut peer);
    }
}

/// A wake-up is not an event, and is never lost.
#[test]
fn a_waker_gets_a_thread_out_of_its_wait() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let waker = pool.waker();
    for _ in 0..50 {
        let before = pool.metrics().total().waits;
        waker.wake();
        wait_until("a wait that ends", || pool.metrics().total().waits > before);
    }
    assert_eq!(pool.metrics().total().events, 0);
}
