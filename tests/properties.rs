//! Timers and mailboxes against simple models, by random operations.

mod util;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cabrank::{Capacity, HandleId, Pool, Removal, SendError, WhenFull};
use proptest::prelude::*;
use util::{Counter, wait_until};

const LATE: Duration = Duration::from_secs(3600);

/// A failure prints the smallest operations that show it, and leaves no file behind.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[derive(Clone, Debug)]
enum TimerAction {
    Set { micros: Option<u64> },
    Move { which: usize, micros: Option<u64> },
    Cancel { which: usize },
    Pause { micros: u64 },
}

fn delay(micros: Option<u64>) -> Duration {
    micros.map_or(LATE, Duration::from_micros)
}

fn timer_actions() -> impl Strategy<Value = Vec<TimerAction>> {
    let micros = || prop::option::of(0_u64..1_500);
    let action = prop_oneof![
        3 => micros().prop_map(|micros| TimerAction::Set { micros }),
        3 => (any::<usize>(), micros()).prop_map(|(which, micros)| TimerAction::Move { which, micros }),
        2 => any::<usize>().prop_map(|which| TimerAction::Cancel { which }),
        1 => (0_u64..300).prop_map(|micros| TimerAction::Pause { micros }),
    ];
    prop::collection::vec(action, 1..60)
}

/// What is known of one timer.
struct Timer {
    id: HandleId,
    fired: Counter,
    /// When it must not fire before, and whether it is to fire at all.
    due: Instant,
    is_late: bool,
    fired_at: Arc<Mutex<Option<Instant>>>,
    cancelled: bool,
}

proptest! {
    #![proptest_config(config(60))]

    /// Every timer that is neither cancelled nor moved to a late time fires, once, and not before its time;
    /// every other one never does.
    #[test]
    fn timers_fire_as_in_the_model(actions in timer_actions()) {
        let pool = Pool::builder().threads(2).build().unwrap();
        let mut timers: Vec<Timer> = Vec::new();
        for action in actions {
            let some = |which: usize, timers: &[Timer]| (!timers.is_empty()).then(|| which % timers.len());
            match action {
                TimerAction::Set { micros } => {
                    let (fired, fired_at) = (Counter::new(), Arc::new(Mutex::new(None)));
                    let (count, note) = (fired.clone(), Arc::clone(&fired_at));
                    let due = Instant::now() + delay(micros);
                    let callback = move |_: &mut cabrank::Context<'_>| {
                        *note.lock().unwrap() = Some(Instant::now());
                        count.add(1);
                    };
                    let id = pool.handles().after(delay(micros), callback).unwrap();
                    let is_late = micros.is_none();
                    timers.push(Timer { id, fired, due, is_late, fired_at, cancelled: false });
                }
                TimerAction::Move { which, micros } => {
                    let Some(which) = some(which, &timers) else { continue };
                    let timer = &mut timers[which];
                    let due = Instant::now() + delay(micros);
                    if pool.handles().set_deadline(timer.id, delay(micros)).is_ok() {
                        // By the old time or by the new one: it may have fired between the two.
                        timer.due = timer.due.min(due);
                        timer.is_late = micros.is_none();
                    }
                }
                TimerAction::Cancel { which } => {
                    let Some(which) = some(which, &timers) else { continue };
                    let timer = &mut timers[which];
                    match pool.handles().remove(timer.id) {
                        Ok(removal) => {
                            prop_assert_eq!(removal, Removal::Done);
                            timer.cancelled = true;
                        }
                        // It has fired, or was cancelled before.
                        Err(_) => prop_assert!(timer.cancelled || timer.fired.get() == 1),
                    }
                }
                TimerAction::Pause { micros } => {
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(micros) {
                        std::thread::yield_now();
                    }
                }
            }
        }
        for timer in &timers {
            if !timer.cancelled && !timer.is_late {
                timer.fired.wait_for(1);
            }
        }
        drop(pool);
        for timer in &timers {
            prop_assert!(timer.fired.get() <= 1, "fired more than once");
            if let Some(at) = *timer.fired_at.lock().unwrap() {
                prop_assert!(at >= timer.due, "fired before its time");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum MailAction {
    Send,
    Purge,
    Suspend,
    Resume,
}

fn mail_actions() -> impl Strategy<Value = Vec<MailAction>> {
    let action = prop_oneof![
        8 => Just(MailAction::Send),
        1 => Just(MailAction::Purge),
        1 => Just(MailAction::Suspend),
        1 => Just(MailAction::Resume),
    ];
    prop::collection::vec(action, 1..200)
}

fn capacities() -> impl Strategy<Value = Capacity> {
    let policy = prop_oneof![
        Just(WhenFull::Refuse),
        Just(WhenFull::DropOldest),
        Just(WhenFull::DropNewest),
    ];
    prop_oneof![
        Just(Capacity::UNBOUNDED),
        (1_usize..8, policy).prop_map(|(most, when_full)| Capacity::bounded(most, when_full)),
    ]
}

proptest! {
    #![proptest_config(config(100))]

    /// What is received is in order, and together with what was refused, purged, dropped for want of room
    /// and left at the end it is what was sent.
    #[test]
    fn mailboxes_account_for_every_message(capacity in capacities(), actions in mail_actions()) {
        let pool = Pool::builder().threads(2).build().unwrap();
        let (living, received) = (Arc::new(()), Arc::new(Mutex::new(Vec::new())));
        let note = Arc::clone(&received);
        let mailbox = pool
            .handles()
            .mailbox(capacity, move |(number, _own): (u32, Arc<()>), _cx| {
                note.lock().unwrap().push(number);
                ControlFlow::Continue(())
            })
            .unwrap();
        let (mut sent, mut refused, mut purged) = (0_u32, 0, 0);
        let mut suspended = false;
        for action in actions {
            match action {
                MailAction::Send => {
                    match mailbox.send((sent, Arc::clone(&living))) {
                        Ok(()) => {}
                        Err(SendError::Full(_)) => refused += 1,
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                    sent += 1;
                }
                MailAction::Purge => purged += mailbox.purge(),
                MailAction::Suspend => {
                    pool.handles().suspend(mailbox.id()).unwrap();
                    suspended = true;
                }
                MailAction::Resume => {
                    pool.handles().resume(mailbox.id()).unwrap();
                    suspended = false;
                }
            }
        }
        if !suspended {
            wait_until("an empty mailbox", || mailbox.is_empty());
        }
        let report = pool.finish();
        let received = received.lock().unwrap();
        prop_assert!(received.windows(2).all(|pair| pair[0] < pair[1]), "out of order: {:?}", received);
        let accounted = received.len() + refused + purged + report.metrics.dropped as usize;
        if capacity == Capacity::UNBOUNDED {
            prop_assert_eq!(accounted, sent as usize);
        } else {
            prop_assert!(accounted <= sent as usize);
        }
        drop(received);
        prop_assert_eq!(Arc::strong_count(&living), 1, "a message was leaked");
    }
}
