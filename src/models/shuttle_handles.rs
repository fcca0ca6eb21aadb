//! Handles under random schedules: the shipped handle set, by one-shot and by edge, against posts,
//! requests, removals and the end.

use std::sync::Arc as Plain;

use crate::error::Error;
use crate::followers::Order;
use crate::handle_set::{Registration, Removal};
use crate::handler::{Context, Deactivation, Handler, Next};
use crate::interest::Interest;
use crate::policy::Policy;
use crate::sync::Arc;
use crate::token::HandleId;

use super::crew::{Crew, adaptive, eager, papers};
use super::set::{Log, Probe, Set, read_some};
use super::{any, explore, thread};

const READABLE: Interest = Interest::READABLE;

const ITERATIONS: usize = 4_000;

/// Runs a model by one-shot and by edge, with a few threads.
pub(super) fn check(model: impl Fn(Crew<Set>) + Copy + Send + Sync + 'static) {
    for deactivation in [Deactivation::OneShot, Deactivation::Edge] {
        explore(ITERATIONS, move || {
            let policies: [fn(Order) -> Policy; 3] = [papers, eager, adaptive];
            let policy = policies[any(3)](Order::Lifo);
            let mut crew = Crew::new(Set::new(deactivation), policy);
            for _ in 0..2 + any(2) {
                crew.spawn(None);
            }
            model(crew);
        });
    }
}

pub(super) fn register(crew: &Crew<Set>, handler: impl Handler + 'static) -> HandleId {
    crew.demux().act(|handles| handles.register(handler, READABLE).unwrap())
}

/// Does something to the set from a thread of its own.
pub(super) fn spawn<R: Send + 'static>(
    crew: &Crew<Set>,
    act: impl FnOnce(&Set) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(&crew.shared);
    thread::spawn(move || act(&shared.demux))
}

pub(super) fn spawn_poster(
    crew: &Crew<Set>,
    logs: &[Plain<Log>],
    posts: usize,
) -> thread::JoinHandle<()> {
    let logs = logs.to_vec();
    spawn(crew, move |set| {
        for _ in 0..posts {
            set.post(&logs[any(logs.len())]);
        }
    })
}

#[test]
fn nothing_that_arrives_is_lost() {
    check(|crew| {
        let logs = [Log::new(), Log::new()];
        for log in &logs {
            log.post();
            register(&crew, Probe::new(log, |log: &Log, _: &mut Context<'_>| read_some(log)));
        }
        let posters = [spawn_poster(&crew, &logs, 3), spawn_poster(&crew, &logs[..1], 2)];
        for poster in posters {
            poster.join().unwrap();
        }
        crew.demux().await_until(|| logs.iter().all(|log| log.is_all_read()));
        crew.finish();
        for log in logs {
            assert_eq!(log.check(), 1, "the hook runs at the end");
        }
    });
}

#[test]
fn nothing_is_lost_to_requests_that_change_nothing_in_the_end() {
    check(|crew| {
        let log = Log::new();
        let probe = Probe::new(&log, |log: &Log, _: &mut Context<'_>| read_some(log));
        let id = register(&crew, probe);
        let suspender = spawn(&crew, move |set| {
            for _ in 0..2 {
                set.act(|handles| handles.suspend(id)).unwrap();
                set.act(|handles| handles.resume(id)).unwrap();
            }
        });
        let changer = spawn(&crew, move |set| {
            for interest in [Interest::WRITABLE, READABLE] {
                set.act(|handles| handles.set_interest(id, interest)).unwrap();
            }
        });
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 3);
        for helper in [suspender, changer, poster] {
            helper.join().unwrap();
        }
        // A verdict may have come after the change of interest, and counts then.
        crew.demux().act(|handles| handles.set_interest(id, READABLE)).unwrap();
        crew.demux().await_until(|| log.is_all_read());
        crew.finish();
        log.check();
    });
}

#[test]
fn a_suspended_handle_is_silent_until_it_is_resumed() {
    check(|crew| {
        let log = Log::new();
        let probe = Probe::new(&log, |log: &Log, _: &mut Context<'_>| read_some(log));
        let id = register(&crew, probe);
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 3);
        crew.demux().act(|handles| handles.suspend(id)).unwrap();
        let calls = log.calls();
        // The others have to do something meanwhile.
        let other = Log::new();
        let probe = Probe::new(&other, |log: &Log, _: &mut Context<'_>| read_some(log));
        register(&crew, probe);
        crew.demux().post(&other);
        poster.join().unwrap();
        crew.demux().await_until(|| other.is_all_read());
        assert!(log.calls() <= calls + 1, "only a call that was under way may still come");
        crew.demux().act(|handles| handles.resume(id)).unwrap();
        crew.demux().await_until(|| log.is_all_read());
        crew.finish();
        log.check();
    });
}

/// A handler suspends itself, and another one resumes it: before or after its verdict.
#[test]
fn a_resumption_during_the_handler_counts() {
    check(|crew| {
        let (log, bell) = (Log::new(), Log::new());
        let ring = Plain::clone(&bell);
        let probe = Probe::new(&log, move |log: &Log, _: &mut Context<'_>| {
            log.read();
            ring.post();
            Next::Suspend
        });
        let id = register(&crew, probe);
        let resumer = Probe::new(&bell, move |bell: &Log, cx: &mut Context<'_>| {
            while bell.read() {
                cx.handles().resume(id).unwrap();
            }
            Next::Drained(READABLE)
        });
        register(&crew, resumer);
        spawn_poster(&crew, &[Plain::clone(&log)], 4).join().unwrap();
        crew.demux().await_until(|| log.is_all_read() && bell.is_all_read());
        crew.finish();
        log.check();
        bell.check();
    });
}

#[test]
fn nobody_is_called_after_a_removal_has_returned() {
    check(|crew| {
        let log = Log::new();
        let probe = Probe::new(&log, |log: &Log, cx: &mut Context<'_>| match any(6) {
            0 => Next::Close,
            1 => {
                // From inside: carried out when this call returns.
                let removal = cx.handles().remove(cx.id());
                log.expect(
                    matches!(removal, Ok(Removal::WhenHandlerReturns)),
                    "a handler removes itself under its own feet",
                );
                read_some(log)
            }
            _ => read_some(log),
        });
        log.post();
        let id = register(&crew, probe);
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 2);
        let removers: Vec<_> = (0..2)
            .map(|_| {
                let log = Plain::clone(&log);
                spawn(&crew, move |set| {
                    let removal = set.act(|handles| handles.remove(id));
                    match removal {
                        Ok(Removal::Done) => {
                            log.expect(log.is_closed(), "I6: removed, and its hook has not run");
                            log.expect(!log.is_inside(), "I6: removed, and still being called");
                        }
                        Err(Error::UnknownHandle { .. }) => {}
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        for helper in removers.into_iter().chain([poster]) {
            helper.join().unwrap();
        }
        assert!(crew.demux().handles.is_empty());
        crew.finish();
        assert_eq!(log.check(), 1, "the hook runs once");
    });
}

#[test]
fn an_event_of_a_former_tenant_reaches_nobody() {
    check(|crew| {
        let (former, latter) = (Log::new(), Log::new());
        former.post();
        let probe = Probe::new(&former, |log: &Log, _: &mut Context<'_>| read_some(log));
        let id = register(&crew, probe);
        let poster = spawn_poster(&crew, &[Plain::clone(&former)], 2);
        crew.demux().act(|handles| handles.remove(id)).unwrap();
        // The slot is free again, and its next tenant has nothing to do.
        let probe = Probe::new(&latter, |log: &Log, _: &mut Context<'_>| {
            log.expect(!log.is_all_read(), "I7: called with an event of the former tenant");
            log.read();
            Next::Rearm(READABLE)
        });
        let next = register(&crew, probe);
        assert_ne!(next, id);
        poster.join().unwrap();
        assert_eq!(latter.calls(), 0, "nothing has been posted yet");
        crew.demux().post(&latter);
        crew.demux().await_until(|| latter.is_all_read());
        crew.finish();
        assert_eq!((former.check(), latter.check()), (1, 1));
    });
}

#[test]
fn every_hook_runs_once_at_the_end_also_of_those_who_come_late() {
    check(|crew| {
        let logs = [Log::new(), Log::new()];
        let first = Probe::new(&logs[0], |log: &Log, _: &mut Context<'_>| read_some(log));
        register(&crew, first);
        let second = Probe::new(&logs[1], |log: &Log, _: &mut Context<'_>| read_some(log));
        let late =
            spawn(&crew, move |set| match set.act(|handles| handles.register(second, READABLE)) {
                Ok(_) => true,
                Err(rejected) => {
                    assert!(matches!(rejected.error, Error::ShutDown));
                    false
                }
            });
        let poster = spawn_poster(&crew, &logs, 2);
        let shared = Arc::clone(&crew.shared);
        crew.finish();
        poster.join().unwrap();
        let registered = late.join().unwrap();
        assert_eq!(logs[0].check(), 1);
        assert_eq!(logs[1].check(), usize::from(registered));
        assert!(shared.demux.handles.is_empty());
    });
}

fn register_shared(crew: &Crew<Set>, log: &Plain<Log>) -> HandleId {
    let probe = Probe::new(log, |log: &Log, _: &mut Context<'_>| read_some(log));
    let registration = Registration::new(READABLE);
    crew.demux().act(|handles| handles.register_shared(probe, registration).unwrap())
}

#[test]
fn nothing_that_arrives_at_a_shared_handle_is_lost() {
    check(|crew| {
        let log = Log::new();
        let id = register_shared(&crew, &log);
        let suspender = spawn(&crew, move |set| {
            set.act(|handles| handles.suspend(id)).unwrap();
            set.act(|handles| handles.resume(id)).unwrap();
        });
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 4);
        for helper in [suspender, poster] {
            helper.join().unwrap();
        }
        crew.demux().await_until(|| log.is_all_read());
        crew.finish();
        assert_eq!(log.check(), 1);
    });
}

#[test]
fn nobody_is_in_a_shared_handler_after_its_removal_has_returned() {
    check(|crew| {
        let log = Log::new();
        let id = register_shared(&crew, &log);
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 3);
        crew.demux().act(|handles| handles.remove(id)).unwrap();
        log.expect(log.is_closed(), "I6: removed, and its hook has not run");
        log.expect(!log.is_inside(), "I6: removed, and still being called");
        poster.join().unwrap();
        crew.finish();
        assert_eq!(log.check(), 1);
    });
}
