//! Posted closures, mailboxes, notifications.

mod util;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use cabrank::{Capacity, Error, Interest, Next, Pool, Reason, Removal, SendError, WhenFull};
use util::{Counter, Exclusive, PATIENCE, Probe, Random, pool, read_some, seed, wait_until};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

/// Keeps the threads of a pool in handlers until it is opened.
struct Gate {
    barrier: Arc<Barrier>,
}

impl Gate {
    fn close(pool: &Pool, threads: usize) -> Gate {
        let barrier = Arc::new(Barrier::new(threads + 1));
        let inside = Counter::new();
        for _ in 0..threads {
            let (barrier, inside) = (Arc::clone(&barrier), inside.clone());
            let hold = move |_cx: &mut cabrank::Context<'_>| {
                inside.add(1);
                barrier.wait();
            };
            pool.post(hold).unwrap();
        }
        inside.wait_for(threads as u64);
        Gate { barrier }
    }

    fn open(self) {
        self.barrier.wait();
    }
}

#[test]
fn every_posted_closure_runs_once() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let runs: Arc<Vec<Counter>> = Arc::new((0..4_000).map(|_| Counter::new()).collect());
    thread::scope(|scope| {
        for sender in 0..4 {
            let (runs, pool) = (Arc::clone(&runs), &pool);
            scope.spawn(move || {
                for number in (sender..4_000).step_by(4) {
                    let runs = Arc::clone(&runs);
                    pool.post(move |_cx| _ = runs[number].add(1)).unwrap();
                }
            });
        }
    });
    wait_until("all closures", || runs.iter().all(|run| run.get() > 0));
    assert!(runs.iter().all(|run| run.get() == 1));
}

#[test]
fn closures_are_begun_in_the_order_they_were_posted() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let gate = Gate::close(&pool, 1);
    for number in 0..500 {
        let order = Arc::clone(&order);
        pool.post(move |_cx| order.lock().unwrap().push(number)).unwrap();
    }
    gate.open();
    wait_until("all closures", || order.lock().unwrap().len() == 500);
    assert!(order.lock().unwrap().is_sorted());
}

#[test]
fn a_closure_posts_the_next_and_panics_are_contained() {
    fn chain(cx: &mut cabrank::Context<'_>, left: u32, done: Counter) {
        done.add(1);
        if left > 0 {
            cx.handles().post(move |cx| chain(cx, left - 1, done)).unwrap();
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let done = Counter::new();
    let count = done.clone();
    pool.post(move |cx| chain(cx, 100, count)).unwrap();
    done.wait_for(101);
    pool.post(|_cx| panic!("posted panic")).unwrap();
    wait_until("the panic", || pool.metrics().total().panics == 1);
    let count = done.clone();
    pool.post(move |_cx| _ = count.add(1)).unwrap();
    done.wait_for(102);
}

#[test]
fn a_burst_of_posts_makes_few_wake_ups() {
    const BURST: u64 = 10_000;
    let (pool, _watchdog) = pool(Pool::builder().threads(4).running(4));
    let gate = Gate::close(&pool, 4);
    let done = Counter::new();
    let before = pool.metrics().total();
    for _ in 0..BURST {
        let done = done.clone();
        pool.post(move |_cx| _ = done.add(1)).unwrap();
    }
    gate.open();
    done.wait_for(BURST);
    let after = pool.metrics().total() - &before;
    // Each wait takes up to 64 of them, and followers are woken for backlogs, not for closures.
    assert!(after.waits < BURST / 10, "{} waits returned", after.waits);
    assert!(after.wakes < BURST / 10, "{} followers were woken", after.wakes);
}

#[test]
fn what_is_posted_and_not_begun_is_dropped_and_counted() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let gate = Gate::close(&pool, 1);
    let (ran, kept) = (Counter::new(), Arc::new(()));
    for _ in 0..10 {
        let (ran, kept) = (ran.clone(), Arc::clone(&kept));
        pool.post(move |_cx| _ = (ran.add(1), &kept)).unwrap();
    }
    let mailbox = pool.handles().mailbox(Capacity::UNBOUNDED, |_: Arc<()>, _cx| GO_ON).unwrap();
    for _ in 0..5 {
        mailbox.send(Arc::clone(&kept)).unwrap();
    }
    pool.shutdown();
    gate.open();
    let report = pool.finish();
    assert_eq!((ran.get(), Arc::strong_count(&kept)), (0, 1), "dropped, and not run");
    assert_eq!(report.metrics.dropped, 15);
    assert_eq!(mailbox.send(kept).map_err(|error| format!("{error:?}")), Err("Closed(..)".into()));
}

#[test]
fn posting_to_a_pool_that_has_ended_is_an_error() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let handles = pool.handles().clone();
    drop(pool);
    assert!(matches!(handles.post(|_cx| ()), Err(Error::ShutDown)));
    let mailbox = handles.mailbox(Capacity::UNBOUNDED, |(), _cx| GO_ON);
    assert!(matches!(mailbox, Err(Error::ShutDown)));
}

#[test]
fn a_mailbox_has_its_messages_in_order_and_one_at_a_time() {
    const EACH: u64 = 5_000;
    let (pool, _watchdog) = pool(Pool::builder().threads(4));
    let (exclusive, received) = (Exclusive::default(), Counter::new());
    let mut last = [None; 4];
    let count = received.clone();
    let mailbox = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |(sender, number): (usize, u64), _cx| {
            exclusive.run(|| {
                assert!(last[sender] < Some(number), "out of order");
                last[sender] = Some(number);
                count.add(1);
                GO_ON
            })
        })
        .unwrap();
    thread::scope(|scope| {
        for sender in 0..4 {
            let mailbox = mailbox.clone();
            scope.spawn(move || (0..EACH).for_each(|n| mailbox.send((sender, n)).unwrap()));
        }
    });
    received.wait_for(4 * EACH);
    assert_eq!(pool.metrics().total().panics, 0);
    assert!(mailbox.is_empty());
}

#[test]
fn many_mailboxes_run_side_by_side() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2).running(2));
    let meeting = Arc::new(Barrier::new(2));
    let done = Counter::new();
    let boxes: Vec<_> = (0..2)
        .map(|_| {
            let (meeting, done) = (Arc::clone(&meeting), done.clone());
            let receive = move |(), _cx: &mut cabrank::Context<'_>| {
                meeting.wait();
                done.add(1);
                GO_ON
            };
            pool.handles().mailbox(Capacity::UNBOUNDED, receive).unwrap()
        })
        .collect();
    boxes.iter().for_each(|mailbox| mailbox.send(()).unwrap());
    done.wait_for(2);
}

/// A mailbox whose handler is held up, with how many messages it has received.
fn held_up(pool: &Pool, capacity: Capacity) -> (cabrank::Mailbox<u32>, Arc<Mutex<Vec<u32>>>, Gate) {
    let gate = Gate::close(pool, 1);
    let received = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&received);
    let receive = move |n: u32, _cx: &mut cabrank::Context<'_>| {
        note.lock().unwrap().push(n);
        GO_ON
    };
    (pool.handles().mailbox(capacity, receive).unwrap(), received, gate)
}

#[test]
fn a_full_mailbox_does_what_it_was_told() {
    let cases = [
        (WhenFull::Refuse, vec![0, 1, 2], 2),
        (WhenFull::DropOldest, vec![2, 3, 4], 0),
        (WhenFull::DropNewest, vec![0, 1, 2], 0),
    ];
    for (when_full, expected, refused) in cases {
        let (pool, _watchdog) = pool(Pool::builder().threads(1));
        let (mailbox, received, gate) = held_up(&pool, Capacity::bounded(3, when_full));
        let sent = (0..5).map(|n| mailbox.send(n));
        let errors: Vec<_> = sent.filter_map(Result::err).map(SendError::into_message).collect();
        assert_eq!(errors.len(), refused, "{when_full:?}");
        gate.open();
        wait_until("what was kept", || received.lock().unwrap().len() == 3);
        assert_eq!(*received.lock().unwrap(), expected, "{when_full:?}");
    }
}

#[test]
fn a_sender_waits_for_room_but_not_inside_a_handler() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (mailbox, received, gate) = held_up(&pool, Capacity::bounded(2, WhenFull::Wait));
    let sender = mailbox.clone();
    let waiter = thread::spawn(move || (0..20).try_for_each(|n| sender.send(n)));
    wait_until("a full mailbox", || mailbox.len() == 2);
    let (inside, refused) = (mailbox.clone(), Counter::new());
    let count = refused.clone();
    pool.post(move |_cx| _ = count.add(u64::from(inside.send(99).is_err()))).unwrap();
    gate.open();
    waiter.join().unwrap().unwrap();
    let in_order =
        || received.lock().unwrap().iter().copied().filter(|n| *n != 99).collect::<Vec<_>>();
    wait_until("all messages", || in_order().len() == 20);
    wait_until("the closure", || refused.get() == 1 || received.lock().unwrap().contains(&99));
    assert_eq!(in_order(), (0..20).collect::<Vec<_>>());
}

/// The only thread is in the handler that sends, so nobody could make room.
#[test]
fn a_handler_is_refused_by_a_full_mailbox_that_others_wait_for() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let capacity = Capacity::bounded(1, WhenFull::Wait);
    let mailbox = pool.handles().mailbox(capacity, |_: u32, _cx| GO_ON).unwrap();
    let (inside, (tell, told)) = (mailbox.clone(), mpsc::channel());
    pool.post(move |_cx| tell.send([inside.send(1), inside.send(2)]).unwrap()).unwrap();
    let answers = told.recv_timeout(PATIENCE);
    // Lets go of a sender that waits all the same, so that the pool can end.
    mailbox.purge();
    assert_eq!(answers, Ok([Ok(()), Err(SendError::Full(2))]));
}

#[test]
fn a_sender_that_waits_is_told_when_the_mailbox_ends() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (mailbox, _received, gate) = held_up(&pool, Capacity::bounded(1, WhenFull::Wait));
    let sender = mailbox.clone();
    let waiter = thread::spawn(move || (0..9).try_for_each(|n| sender.send(n)));
    wait_until("a full mailbox", || mailbox.len() == 1);
    assert_eq!(pool.handles().remove(mailbox.id()).unwrap(), Removal::Done);
    assert!(matches!(waiter.join().unwrap(), Err(SendError::Closed(_))));
    gate.open();
}

#[test]
fn purged_messages_are_dropped_and_never_received() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let (first, received_first, gate) = held_up(&pool, Capacity::UNBOUNDED);
    let received = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&received);
    let second = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |n: u32, _cx| {
            note.lock().unwrap().push(n);
            GO_ON
        })
        .unwrap();
    (0..7).for_each(|n| first.send(n).unwrap());
    (0..3).for_each(|n| second.send(n).unwrap());
    assert_eq!((first.purge(), first.purge(), first.len()), (7, 0, 0));
    gate.open();
    wait_until("the other mailbox", || received.lock().unwrap().len() == 3);
    first.send(9).unwrap();
    wait_until("a later message", || !received_first.lock().unwrap().is_empty());
    assert_eq!(*received_first.lock().unwrap(), [9]);
    assert_eq!(pool.metrics().dropped, 0, "purged by request, not lost");
}

#[test]
fn a_suspended_mailbox_keeps_its_messages() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let received = Counter::new();
    let count = received.clone();
    let mailbox = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |n: u64, cx| {
            if n == 3 {
                cx.handles().suspend(cx.id()).unwrap();
            }
            count.add(1);
            if n == 9 { ControlFlow::Break(()) } else { GO_ON }
        })
        .unwrap();
    (0..6).for_each(|n| mailbox.send(n).unwrap());
    received.wait_for(4);
    wait_until("the handler to return", || pool.metrics().total().events >= 1);
    assert_eq!((received.get(), mailbox.len()), (4, 2), "it stops when it is suspended");
    pool.handles().resume(mailbox.id()).unwrap();
    received.wait_for(6);
    mailbox.send(9).unwrap();
    wait_until("its end", || !pool.handles().contains(mailbox.id()));
    assert!(matches!(mailbox.send(0), Err(SendError::Closed(0))));
}

#[test]
fn a_million_messages_in_growing_bursts_all_arrive() {
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let received = Counter::new();
    let count = received.clone();
    let mailbox = pool
        .handles()
        .mailbox(Capacity::UNBOUNDED, move |(), _cx| {
            count.add(1);
            GO_ON
        })
        .unwrap();
    let (mut sent, mut burst) = (0, 1);
    while sent < 1_000_000 {
        (0..burst).for_each(|_| mailbox.send(()).unwrap());
        sent += burst;
        received.wait_for(sent);
        burst *= 4;
    }
    assert_eq!(received.get(), sent);
}

#[test]
fn notifications_coalesce_and_reach_a_suspended_handler() {
    let (pool, _watchdog) = pool(Pool::builder().threads(1));
    let calls = Counter::new();
    let count = calls.clone();
    let (probe, mut peer) = Probe::pair(move |stream, ready, cx| {
        if ready.is_message() {
            count.add(1);
        }
        match read_some(stream).as_deref() {
            Some(b"end") => {
                cx.shutdown();
                Next::Close
            }
            _ => Next::Suspend,
        }
    });
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    let gate = Gate::close(&pool, 1);
    (0..100).for_each(|_| pool.handles().notify(id).unwrap());
    gate.open();
    calls.wait_for(1);
    wait_until("the handler to return", || pool.metrics().total().events >= 2);
    assert_eq!(calls.get(), 1, "a hundred notifications make one call");
    pool.handles().notify(id).unwrap();
    calls.wait_for(2);
    std::io::Write::write_all(&mut peer, b"end").unwrap();
    pool.handles().notify(id).unwrap();
    wait_until("the end", || pool.is_shut_down());
    drop(pool);
}

#[test]
fn a_notification_during_the_handler_is_not_lost() {
    let (pool, _watchdog) = pool(Pool::builder().threads(3));
    let (probe, _peer, asked, seen) = {
        let (asked, seen) = (Counter::new(), Counter::new());
        let (look, note) = (asked.clone(), seen.clone());
        let exclusive = Exclusive::default();
        let (probe, peer) = Probe::pair(move |_stream, _ready, _cx| {
            exclusive.run(|| {
                let now = look.get();
                note.add(now - note.get());
                Next::Rearm(Interest::READABLE)
            })
        });
        (probe, peer, asked, seen)
    };
    let id = pool.handles().register(probe, Interest::READABLE).unwrap();
    for number in 1..=20_000 {
        asked.add(1);
        pool.handles().notify(id).unwrap();
        if number % 100 == 0 {
            // Whatever the interleaving, the last one is seen.
            seen.wait_for(number);
        }
    }
    pool.handles().remove(id).unwrap();
    assert!(matches!(pool.handles().notify(id), Err(Error::UnknownHandle { .. })));
}

#[test]
fn a_handler_with_a_mailbox_has_both_in_turn() {
    struct Chatter {
        stream: std::os::unix::net::UnixStream,
        inbox: cabrank::Inbox<Vec<u8>>,
        closed: mpsc::Sender<String>,
    }
    impl std::os::fd::AsFd for Chatter {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }
    impl cabrank::Handler for Chatter {
        fn ready(&mut self, _ready: cabrank::Ready, _cx: &mut cabrank::Context<'_>) -> Next {
            let mut out: VecDeque<u8> = VecDeque::new();
            while let Some(message) = self.inbox.take() {
                out.extend(message);
            }
            match read_some(&mut self.stream) {
                None => return Next::Close,
                Some(bytes) => out.extend(bytes),
            }
            std::io::Write::write_all(&mut self.stream, out.make_contiguous()).unwrap();
            Next::Rearm(Interest::READABLE)
        }

        fn closed(&mut self, _id: cabrank::HandleId, reason: Reason) {
            self.closed.send(format!("{reason:?}")).unwrap();
        }
    }
    let (pool, _watchdog) = pool(Pool::builder().threads(2));
    let (here, mut there) = util::stream_pair();
    let (closed, told) = mpsc::channel();
    let make = |inbox| Chatter { stream: here, inbox, closed };
    let mailbox = pool
        .handles()
        .register_with_mailbox(Capacity::UNBOUNDED, make, Interest::READABLE)
        .unwrap();
    let seed = seed();
    let mut random = Random::new(seed);
    let (mut by_mail, mut by_wire) = (0, 0);
    // Few enough for the socket's buffer, which charges hundreds of bytes for one.
    for _ in 0..200 {
        if random.below(2) == 0 {
            mailbox.send(b"m".to_vec()).unwrap();
            by_mail += 1;
        } else {
            std::io::Write::write_all(&mut there, b"w").unwrap();
            by_wire += 1;
        }
    }
    let mut back = vec![0; by_mail + by_wire];
    std::io::Read::read_exact(&mut there, &mut back).unwrap();
    let mail = back.iter().filter(|byte| **byte == b'm').count();
    assert_eq!(mail, by_mail);
    drop(there);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "Closed");
    wait_until("the mailbox to close", || mailbox.send(Vec::new()).is_err());
}
