//! Posted closures, calls and mailboxes under random schedules: nothing is lost, nothing comes twice, and
//! the messages of one sender keep their order.

use std::ops::ControlFlow;
use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::handler::Context;
use crate::mailbox::{Capacity, Mailbox, SendError, WhenFull};

use super::crew::Crew;
use super::set::{Log, Probe, Set, read_some};
use super::shuttle_handles::{check, register, spawn};
use super::{any, thread};

fn load(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

/// Posts closures that count, from a thread of its own; how many were taken.
fn spawn_posts(
    crew: &Crew<Set>,
    ran: &Plain<AtomicUsize>,
    posts: usize,
) -> thread::JoinHandle<usize> {
    let ran = Plain::clone(ran);
    spawn(crew, move |set| {
        let post = |_: &usize| {
            let ran = Plain::clone(&ran);
            let job = move |_: &mut Context<'_>| {
                ran.fetch_add(1, Ordering::Relaxed);
            };
            set.act(|handles| handles.post(job)).is_ok()
        };
        (0..posts).filter(post).count()
    })
}

/// Also by those who are about to sleep.
#[test]
fn every_posted_closure_runs_once() {
    check(|crew| {
        let ran = Plain::new(AtomicUsize::new(0));
        let posters = [spawn_posts(&crew, &ran, 3), spawn_posts(&crew, &ran, 2)];
        crew.demux().await_until(|| load(&ran) == 5);
        for poster in posters {
            poster.join().unwrap();
        }
        crew.finish();
        assert_eq!(load(&ran), 5);
    });
}

#[test]
fn what_is_posted_when_the_pool_ends_runs_is_counted_or_is_refused() {
    check(|crew| {
        let ran = Plain::new(AtomicUsize::new(0));
        let posters = [spawn_posts(&crew, &ran, 3), spawn_posts(&crew, &ran, 2)];
        let handles = crew.demux().handles.clone();
        crew.finish();
        let taken: usize = posters.into_iter().map(|poster| poster.join().unwrap()).sum();
        let dropped = handles.inner.dropped.load(crate::sync::atomic::Ordering::Relaxed);
        assert_eq!(load(&ran) + dropped as usize, taken);
    });
}

/// Calls that come before the handler has begun make one, and none is lost.
#[test]
fn the_handler_is_called_after_the_last_notification() {
    check(|crew| {
        let log = Log::new();
        let noted = Plain::new(AtomicUsize::new(0));
        let (said, heard) = (Plain::new(AtomicUsize::new(0)), Plain::clone(&noted));
        let read = Plain::clone(&said);
        let probe = Probe::new(&log, move |log: &Log, _: &mut Context<'_>| {
            heard.store(load(&read), Ordering::Relaxed);
            read_some(log)
        });
        let id = register(&crew, probe);
        if any(2) == 0 {
            crew.demux().act(|handles| handles.suspend(id)).unwrap();
        }
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let said = Plain::clone(&said);
                spawn(&crew, move |set| {
                    for _ in 0..2 {
                        said.fetch_add(1, Ordering::Relaxed);
                        set.act(|handles| handles.notify(id)).unwrap();
                    }
                })
            })
            .collect();
        crew.demux().await_until(|| load(&noted) == 4);
        for caller in callers {
            caller.join().unwrap();
        }
        crew.finish();
        assert!(log.calls() <= 4, "one call each at most");
        log.check();
    });
}

/// What a mailbox has received, by its senders.
struct Received {
    log: Plain<Log>,
    next: [AtomicUsize; 2],
}

impl Received {
    fn new() -> Plain<Received> {
        Plain::new(Received { log: Log::new(), next: Default::default() })
    }

    /// A mailbox for messages of a sender and a number.
    fn mailbox(
        self: &Plain<Received>,
        crew: &Crew<Set>,
        capacity: Capacity,
    ) -> Mailbox<(usize, usize)> {
        let received = Plain::clone(self);
        let receive = move |(sender, number): (usize, usize), _: &mut Context<'_>| {
            let others = received.log.begin();
            received.log.expect(others == 0, "I3: a mailbox is served twice at once");
            let expected = received.next[sender].fetch_add(1, Ordering::Relaxed);
            received.log.expect(expected == number, "a message is lost, doubled or out of order");
            if any(2) == 0 {
                thread::yield_now();
            }
            received.log.end();
            ControlFlow::Continue(())
        };
        crew.demux().act(|handles| handles.mailbox(capacity, receive)).unwrap()
    }

    fn count(&self) -> usize {
        self.next.iter().map(load).sum()
    }
}

fn spawn_sender(
    crew: &Crew<Set>,
    mailbox: &Mailbox<(usize, usize)>,
    sender: usize,
    messages: usize,
) -> thread::JoinHandle<usize> {
    let mailbox = mailbox.clone();
    spawn(crew, move |set| {
        let taken = |number: &usize| match set.act(|_| mailbox.send((sender, *number))) {
            Ok(()) => true,
            Err(SendError::Closed(_)) => false,
            Err(SendError::Full(_)) => panic!("there is room, or is waited for"),
            Err(SendError::Forked(_)) => panic!("nobody forks"),
        };
        (0..messages).take_while(taken).count()
    })
}

fn check_mailbox(capacity: Capacity, meddle: fn(&Set, &Mailbox<(usize, usize)>)) {
    check(move |crew| {
        let received = Received::new();
        let mailbox = received.mailbox(&crew, capacity);
        let senders = [0, 1].map(|sender| spawn_sender(&crew, &mailbox, sender, 3));
        let meddler = {
            let mailbox = mailbox.clone();
            spawn(&crew, move |set| meddle(set, &mailbox))
        };
        crew.demux().await_until(|| received.count() == 6);
        for sender in senders {
            assert_eq!(sender.join().unwrap(), 3);
        }
        meddler.join().unwrap();
        drop(mailbox);
        crew.finish();
        assert_eq!(received.count(), 6);
        received.log.check();
    });
}

#[test]
fn a_mailbox_keeps_the_order_and_loses_nothing() {
    check_mailbox(Capacity::UNBOUNDED, |_, _| ());
}

#[test]
fn a_mailbox_that_is_suspended_and_resumed_keeps_the_order_and_loses_nothing() {
    check_mailbox(Capacity::UNBOUNDED, |set, mailbox| {
        for _ in 0..2 {
            set.act(|handles| handles.suspend(mailbox.id())).unwrap();
            set.act(|handles| handles.resume(mailbox.id())).unwrap();
        }
    });
}

#[test]
fn senders_that_wait_for_room_all_get_it() {
    check_mailbox(Capacity::bounded(1, WhenFull::Wait), |_, _| ());
}

#[test]
fn a_suspended_mailbox_is_silent_until_it_is_resumed() {
    check(|crew| {
        let received = Received::new();
        let mailbox = received.mailbox(&crew, Capacity::UNBOUNDED);
        crew.demux().act(|handles| handles.suspend(mailbox.id())).unwrap();
        assert_eq!(spawn_sender(&crew, &mailbox, 0, 2).join().unwrap(), 2);
        // The others have to do something meanwhile.
        let other = Log::new();
        let probe = Probe::new(&other, |log: &Log, _: &mut Context<'_>| read_some(log));
        register(&crew, probe);
        crew.demux().post(&other);
        crew.demux().await_until(|| other.is_all_read());
        assert_eq!(received.count(), 0, "it is suspended");
        crew.demux().act(|handles| handles.resume(mailbox.id())).unwrap();
        crew.demux().await_until(|| received.count() == 2);
        drop(mailbox);
        crew.finish();
        received.log.check();
    });
}

/// Everything is received, counted as dropped, or comes back to its sender, who does not wait for ever.
#[test]
fn a_mailbox_that_is_removed_accounts_for_every_message() {
    check(|crew| {
        let received = Received::new();
        let capacity = [Capacity::UNBOUNDED, Capacity::bounded(1, WhenFull::Wait)][any(2)];
        let mailbox = received.mailbox(&crew, capacity);
        let senders = [0, 1].map(|sender| spawn_sender(&crew, &mailbox, sender, 2));
        let id = mailbox.id();
        spawn(&crew, move |set| set.act(|handles| handles.remove(id)).unwrap()).join().unwrap();
        let at_removal = received.count();
        let taken: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        let handles = crew.demux().handles.clone();
        drop(mailbox);
        crew.finish();
        let dropped = handles.inner.dropped.load(crate::sync::atomic::Ordering::Relaxed);
        assert_eq!(received.count(), at_removal, "I6: received after the removal");
        assert_eq!(at_removal + dropped as usize, taken);
        received.log.check();
    });
}
