//! Timers and deadlines under random schedules: the shipped handle set with an alarm that the model rings.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc as Plain;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::handle_set::{Registration, Removal};
use crate::handler::{Context, Handler, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::token::HandleId;

use super::set::{Log, read_some};
use super::shuttle_handles::{check, spawn, spawn_poster};
use super::{any, thread};

const READABLE: Interest = Interest::READABLE;
const SOON: Duration = Duration::from_micros(100);

/// A handler that counts how often its time was over, and may move its deadline whenever it is called.
struct Timed {
    log: Plain<Log>,
    timeouts: Plain<AtomicUsize>,
    moves: bool,
}

impl Handler for Timed {
    fn ready(&mut self, ready: Ready, cx: &mut Context<'_>) -> Next {
        let others = self.log.begin();
        self.log.expect(others == 0, "I3: a handler runs twice at once");
        self.timeouts.fetch_add(usize::from(ready.is_timeout()), Ordering::Relaxed);
        if self.moves && any(2) == 0 {
            cx.set_deadline(SOON);
        }
        let next = read_some(&self.log);
        self.log.end();
        next
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {
        self.log.close();
    }
}

impl AsFd for Timed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.log.source.as_fd()
    }
}

fn load(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

#[test]
fn a_timer_does_not_fire_after_its_removal_has_returned() {
    check(|crew| {
        let (log, fired) = (Log::new(), Plain::new(AtomicUsize::new(0)));
        let (inside, count) = (Plain::clone(&log), Plain::clone(&fired));
        let fire = move |_: &mut Context<'_>| {
            inside.begin();
            thread::yield_now();
            count.fetch_add(1, Ordering::Relaxed);
            inside.end();
        };
        let id = crew.demux().act(|handles| handles.after(SOON, fire)).unwrap();
        let ringer = spawn(&crew, |set| set.ring());
        let (inside, count) = (Plain::clone(&log), Plain::clone(&fired));
        let remover = spawn(&crew, move |set| match set.act(|handles| handles.remove(id)) {
            Ok(Removal::Done) => {
                inside.expect(!inside.is_inside(), "I6: removed, and still being called");
                Some(load(&count))
            }
            Err(Error::UnknownHandle { .. }) => None,
            other => panic!("{other:?}"),
        });
        let at_removal = remover.join().unwrap();
        ringer.join().unwrap();
        assert!(crew.demux().handles.is_empty());
        crew.finish();
        // It was gone because it had fired.
        assert_eq!(load(&fired), at_removal.unwrap_or(1), "I6: it has fired after its removal");
        log.check();
    });
}

#[test]
fn every_timer_fires_once() {
    check(|crew| {
        const TIMERS: usize = 3;
        let fired = Plain::new(AtomicUsize::new(0));
        let setters: Vec<_> = (0..TIMERS)
            .map(|_| {
                let count = Plain::clone(&fired);
                spawn(&crew, move |set| {
                    let fire = move |_: &mut Context<'_>| {
                        count.fetch_add(1, Ordering::Relaxed);
                    };
                    let delay = SOON * any(3) as u32;
                    set.act(|handles| handles.after(delay, fire)).unwrap();
                })
            })
            .collect();
        crew.demux().await_in_time(|| load(&fired) == TIMERS);
        for setter in setters {
            setter.join().unwrap();
        }
        crew.demux().await_in_time(|| crew.demux().handles.is_empty());
        crew.finish();
        assert_eq!(load(&fired), TIMERS);
    });
}

/// The handler moves its deadline whenever it likes; the one that is set from outside when all is quiet
/// counts, whatever has happened before.
#[test]
fn a_deadline_set_from_outside_is_kept_whatever_the_handler_does() {
    check(|crew| {
        let (log, timeouts) = (Log::new(), Plain::new(AtomicUsize::new(0)));
        let handler = Timed {
            log: Plain::clone(&log),
            timeouts: Plain::clone(&timeouts),
            moves: any(2) == 0,
        };
        let registration = Registration::new(READABLE).deadline(SOON);
        let id = crew.demux().act(|handles| handles.register(handler, registration)).unwrap();
        let setters: Vec<_> = (0..2)
            .map(|_| {
                spawn(&crew, move |set| {
                    set.act(|handles| match any(3) {
                        0 => handles.clear_deadline(id),
                        _ => handles.set_deadline(id, SOON),
                    })
                    .unwrap();
                })
            })
            .collect();
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 3);
        crew.demux().ring();
        for helper in setters.into_iter().chain([poster]) {
            helper.join().unwrap();
        }
        crew.demux().await_in_time(|| log.is_all_read());
        let before = load(&timeouts);
        crew.demux().act(|handles| handles.set_deadline(id, SOON)).unwrap();
        crew.demux().await_in_time(|| load(&timeouts) > before);
        crew.finish();
        assert_eq!(log.check(), 1);
    });
}

#[test]
fn a_deadline_that_has_been_cleared_does_not_come() {
    check(|crew| {
        let (log, timeouts) = (Log::new(), Plain::new(AtomicUsize::new(0)));
        let handler =
            Timed { log: Plain::clone(&log), timeouts: Plain::clone(&timeouts), moves: false };
        let registration = Registration::new(READABLE).deadline(SOON);
        let id = crew.demux().act(|handles| handles.register(handler, registration)).unwrap();
        let poster = spawn_poster(&crew, &[Plain::clone(&log)], 2);
        crew.demux().act(|handles| handles.clear_deadline(id)).unwrap();
        poster.join().unwrap();
        crew.demux().await_until(|| log.is_all_read());
        // The queue still knows of it, and finds that there is no hurry.
        crew.demux().ring();
        crew.demux().post(&log);
        crew.demux().await_until(|| log.is_all_read());
        crew.finish();
        assert_eq!(load(&timeouts), 0);
        assert_eq!(log.check(), 1);
    });
}
