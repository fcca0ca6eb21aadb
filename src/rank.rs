//! The rank: who sits, who runs, who waits, and who is to be woken.
//!
//! All of it stands under one lock that is held for some tens of nanoseconds, never while waiting,
//! waking or calling a handler. The [roles](crate::roles) are the only callers.

mod growth;
mod watchman;

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::cell::MOST_SHARERS;
use crate::error::{Error, Result};
use crate::followers::{Bed, Chosen, Followers};
use crate::handler::Blocking;
use crate::metrics::ThreadMetrics;
use crate::policy::{Policy, Promotion, Tempo};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, now};
use crate::sys::epoll::Event;
use crate::worker::Worker;

pub(crate) use watchman::Overrun;

pub(crate) struct Rank {
    pub(crate) policy: Policy,
    state: Mutex<State>,
    /// Those who wait for `State::cleared`.
    pub(crate) cleared: Condvar,
    /// A copy of `State::stopping` for those who need no more than a glance.
    stopping: AtomicBool,
}

/// Everything the protocol decides upon.
pub(crate) struct State {
    policy: Policy,
    stopping: bool,
    /// Somebody takes, or has taken, the handles out after the last thread left.
    clearing: bool,
    pub(crate) cleared: bool,
    /// Threads on the handle set, or on their way there (I1).
    seated: usize,
    /// Seats kept for followers that have been promoted and are not up yet; eager promotion only.
    reserved: usize,
    /// Threads in handlers, without the overdue ones.
    running: usize,
    /// Threads in handlers that have overrun their budget, or have said that they block.
    overdue: usize,
    /// Of those in handlers, how many are trusted never to block, and how many are said to block at times.
    trusted: usize,
    doubtful: usize,
    /// Followers chosen and not up yet: at most one, so that a burst wakes no crowd (I11).
    waking: usize,
    /// A follower sleeps with a time-out, to look after the others.
    watched: bool,
    /// What has been detected and not yet taken by anybody.
    leftover: VecDeque<Event>,
    pub(crate) followers: Followers,
    tempo: Tempo,
    workers: Vec<Arc<Worker>>,
    /// The pool's own threads among them, and those that are being started.
    own: usize,
    starting: usize,
    /// Own threads that have come in and have not asked for a role yet.
    newcomers: usize,
    /// When another may be started.
    recruit_after: u64,
    /// The last could not be started.
    short_of_recruits: bool,
    /// What the watchman has found, to be reported without the lock.
    overruns: Vec<Overrun>,
    /// Application threads that have left again, summed up.
    departed: ThreadMetrics,
    /// Roles taken so far, and how many at the watchman's last look: whether anything moves.
    moves: u64,
    moves_seen: u64,
    /// Looks of the watchman since somebody was last found late.
    quiet_looks: u32,
    /// Since when nobody sits, and for how long nobody sat before that.
    vacant_since: Option<u64>,
    vacant: u64,
}

/// What a thread has to do for the others when it has released the lock.
#[must_use]
#[derive(Default)]
pub(crate) struct Errands {
    /// Has been chosen, because there is more to do.
    pub(crate) wake: Option<Chosen>,
    /// A thread more is to be started: nobody is idle.
    pub(crate) recruit: bool,
    /// Somebody is to be called off its seat for what is left over.
    pub(crate) call_seated: bool,
}

impl Errands {
    pub(crate) fn is_empty(&self) -> bool {
        self.wake.is_none() && !self.recruit && !self.call_seated
    }
}

/// What a thread has in hand when it comes to the rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Holding {
    Nothing,
    Seat,
    Handler,
}

/// How a thread comes to the rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Arrival {
    /// From outside, from a wait or from a handler: it is awake anyway.
    Awake,
    /// From its bed, because it was chosen.
    Chosen,
    /// From its bed, because its time was over, or for no reason.
    Timeout,
}

/// What the rank has for a thread.
pub(crate) enum Assignment {
    /// Sit down and wait for at most so many events. If `surplus`, leave when the time for that has come.
    Seat { most: usize, errands: Errands, surplus: bool },
    /// Process this.
    Event { event: Event, errands: Errands },
    /// Follow, and if `watch`, look after the others; come again in `again`, if there is such a time. If
    /// `surplus`, leave when the time for that has come.
    Follow { bed: Bed, watch: bool, again: Option<Duration>, surplus: bool },
    /// The pool stops.
    Stop,
}

/// What becomes of a leader that has detected events.
pub(crate) enum Promoted {
    /// Process this one; the one to be woken has been promoted, or chosen to help.
    Process { event: Event, errands: Errands },
    /// Enough threads are running. The events wait for one of them, and who detected them watches.
    Enough,
}

impl Rank {
    pub(crate) fn new(policy: Policy) -> Rank {
        let state = State {
            policy,
            stopping: false,
            clearing: false,
            cleared: false,
            seated: 0,
            reserved: 0,
            running: 0,
            overdue: 0,
            trusted: 0,
            doubtful: 0,
            waking: 0,
            watched: false,
            leftover: VecDeque::new(),
            followers: Followers::new(policy.order),
            tempo: Tempo::default(),
            workers: Vec::new(),
            own: 0,
            starting: 0,
            newcomers: 0,
            recruit_after: 0,
            short_of_recruits: false,
            overruns: Vec::new(),
            departed: ThreadMetrics::default(),
            moves: 0,
            moves_seen: 0,
            quiet_looks: 0,
            vacant_since: Some(now()),
            vacant: 0,
        };
        Rank {
            policy,
            state: Mutex::new(state),
            cleared: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until the handles have been taken out, or until `deadline`; whether they have.
    pub(crate) fn await_cleared(&self, deadline: Option<u64>) -> bool {
        let mut state = self.lock();
        while !state.cleared {
            state = match deadline.map(|deadline| deadline.saturating_sub(now())) {
                None => self.cleared.wait(state),
                Some(0) => return false,
                Some(remaining) => {
                    let remaining = Duration::from_nanos(remaining);
                    self.cleared.wait_timeout(&self.state, state, remaining)
                }
            };
        }
        true
    }

    /// Whether the pool stops. A glance, for those who do not decide anything by it.
    pub(crate) fn is_stopping(&self) -> bool {
        // Relaxed: a hint; decisions are made under the lock.
        self.stopping.load(Ordering::Relaxed)
    }

    /// Stops handing out roles, and wakes every follower; those on the handle set are the caller's to
    /// wake. Returns `false` if it has been called before.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.lock();
        let first = !state.stopping;
        state.stopping = true;
        // Relaxed: see `is_stopping`.
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(chosen) = state.followers.pop() {
            state.waking += 1;
            // No lock is worth being released for: it happens once.
            chosen.wake();
        }
        first
    }
}

impl State {
    /// A thread comes into the pool.
    ///
    /// # Errors
    /// [`Error::ShutDown`] if it stops, [`Error::OutOfRange`] if there are too many already.
    pub(crate) fn enlist(&mut self, worker: &Arc<Worker>) -> Result<()> {
        if self.stopping {
            return Err(Error::ShutDown);
        }
        let others = self.workers.len();
        if others >= MOST_THREADS {
            let (value, most) = (others as i64 + 1, MOST_THREADS as i64);
            return Err(Error::OutOfRange { option: "threads in one pool", value, least: 1, most });
        }
        self.workers.push(Arc::clone(worker));
        if !worker.is_joined {
            self.own += 1;
            self.newcomers += 1;
            worker.standing.come_in();
        }
        let threads = self.workers.len();
        self.followers.expect(threads);
        // Every thread may bring a full batch, or one event more, while the others are in handlers.
        let most = threads * (self.policy.events + 1);
        self.leftover.reserve(most.saturating_sub(self.leftover.len()));
        Ok(())
    }

    /// A thread that comes as `arrival` will not take what the rank may have kept for it.
    pub(crate) fn decline(&mut self, arrival: Arrival) {
        if arrival == Arrival::Chosen && self.reserved > 0 {
            self.reserved -= 1;
        }
    }

    /// A thread goes, having put down what it held. Somebody may have to come in its place.
    pub(crate) fn discharge(&mut self, worker: &Arc<Worker>, now: u64) -> Errands {
        self.workers.retain(|other| !Arc::ptr_eq(other, worker));
        self.own -= usize::from(!worker.is_joined);
        if worker.is_joined {
            self.departed = mem::take(&mut self.departed) + &worker.metrics(now);
        }
        self.urgent_errands(now)
    }

    /// A thread puts down its role.
    pub(crate) fn put_down(&mut self, worker: &Worker, holding: Holding, took: u64, now: u64) {
        self.newcomers -= usize::from(worker.standing.is_first_time());
        match holding {
            Holding::Nothing => {}
            Holding::Seat => self.stand_up(now),
            Holding::Handler => {
                let (overdue, blocking) = worker.standing.finish();
                match blocking {
                    Blocking::Never => self.trusted -= 1,
                    Blocking::Maybe => self.doubtful -= 1,
                    Blocking::Learned | Blocking::Always => {}
                }
                if blocking != Blocking::Always {
                    self.tempo.handled(took);
                }
                if overdue {
                    self.overdue -= 1;
                } else {
                    self.running -= 1;
                    if took > self.policy.budget {
                        // Nobody was there to see it before.
                        self.note_overrun(worker.index, worker.standing.event(), took);
                    }
                }
            }
        }
    }

    /// A thread in a handler blocks from now on, and says so.
    pub(crate) fn begin_blocking(&mut self, worker: &Worker, now: u64) -> Errands {
        if worker.standing.block() {
            self.running -= 1;
            self.overdue += 1;
        }
        self.urgent_errands(now)
    }

    /// It runs again.
    pub(crate) fn end_blocking(&mut self, worker: &Worker, now: u64) {
        if worker.standing.unblock(now) {
            self.overdue -= 1;
            self.running += 1;
        }
    }

    /// A thread that holds nothing asks what to do. `blocking` tells whether an event's handler blocks.
    pub(crate) fn assign(
        &mut self,
        worker: &Arc<Worker>,
        arrival: Arrival,
        may_act: bool,
        blocking: impl Fn(Event) -> Blocking,
        now: u64,
    ) -> Assignment {
        if self.stopping {
            return Assignment::Stop;
        }
        if arrival == Arrival::Chosen && self.reserved > 0 {
            self.reserved -= 1;
            // What is left over comes first: from a seat one does not see it. If enough are running it
            // needs somebody to look after them (I2).
            if self.leftover.is_empty() {
                return self.sit_down(worker, now);
            }
        }
        let held_back = !self.leftover.is_empty() && self.must_hold_back(now);
        if may_act && !held_back && self.has_work_for_one_more() {
            if let Some(event) = self.leftover.pop_front() {
                self.run(worker, event, blocking(event), now);
                return Assignment::Event { event, errands: self.errands(now) };
            }
        }
        if may_act && !held_back && self.has_seat() {
            return self.sit_down(worker, now);
        }
        // In busy times ahead of need: a leader that finds nobody watching would have to wake one.
        let watch = !self.watched && (self.is_busy() || self.is_unwatched());
        self.watched |= watch;
        let again = if held_back {
            Some(self.recruit_after.saturating_sub(now))
        } else {
            // Something waits for those who run.
            self.is_crowded().then(|| self.patience())
        };
        let look = watch.then(|| self.look_interval());
        let again = again.into_iter().chain(look).min().map(Duration::from_nanos);
        let surplus = self.is_surplus(worker);
        Assignment::Follow { bed: self.followers.push(worker), watch, again, surplus }
    }

    /// A follower gets up; `token` says whether it was woken by one, `watched` whether it was the
    /// watchman. Returns how it comes.
    pub(crate) fn got_up(&mut self, worker: &Arc<Worker>, token: bool, watched: bool) -> Arrival {
        if watched {
            self.watched = false;
        }
        if self.followers.got_up(worker, token) {
            self.waking -= 1;
            Arrival::Chosen
        } else {
            Arrival::Timeout
        }
    }

    /// A leader has detected events after waiting for `waited` nanoseconds. It gives up its seat,
    /// leaves all but the first event to whoever comes, and names a follower to be woken.
    pub(crate) fn promote(
        &mut self,
        worker: &Worker,
        events: impl ExactSizeIterator<Item = Event>,
        waited: u64,
        blocking: impl Fn(Event) -> Blocking,
        now: u64,
    ) -> Promoted {
        self.stand_up(now);
        self.tempo.waited(events.len(), waited, self.running > 0);
        // Whoever waited longer comes first: the leftover of an earlier batch is older than ours.
        self.leftover.extend(events);
        if self.is_crowded() || self.policy.reports_overruns {
            self.find_late(worker, now);
        }
        if self.is_crowded() || self.stopping || self.must_hold_back(now) {
            return Promoted::Enough;
        }
        match self.leftover.pop_front() {
            Some(event) => {
                self.run(worker, event, blocking(event), now);
                Promoted::Process { event, errands: self.errands(now) }
            }
            None => Promoted::Enough,
        }
    }

    /// Leaves an event to whoever comes, after those that wait already.
    pub(crate) fn put_last(&mut self, event: Event) {
        self.leftover.push_back(event);
    }

    /// Gives back an event that its thread will not process after all.
    pub(crate) fn put_back(&mut self, event: Event) {
        self.leftover.push_front(event);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    #[cfg(all(test, shuttle))]
    pub(crate) fn handlers_merit_a_wait(&self) -> bool {
        self.tempo.handlers_merit_a_wait()
    }

    pub(crate) fn has_seated(&self) -> bool {
        self.seated > 0
    }

    /// Whether what is left over has nobody to wait for but threads that sit, and do not see it.
    /// One of them is to be called then: it takes from it or, if enough are running, looks after
    /// them (I2).
    pub(crate) fn must_call_seated(&self) -> bool {
        let nobody_comes = self.waking == 0 && self.followers.is_empty();
        self.seated > 0 && nobody_comes && !self.leftover.is_empty()
    }

    /// Whether the caller is the one to take the handles out: the pool has stopped, the last thread
    /// has left, and nobody has been told so before.
    pub(crate) fn is_mine_to_clear(&mut self) -> bool {
        let mine = self.stopping && self.workers.is_empty() && !self.clearing;
        self.clearing |= mine;
        mine
    }

    pub(crate) fn in_handlers(&self) -> usize {
        self.running + self.overdue
    }

    pub(crate) fn workers(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    pub(crate) fn departed(&self) -> &ThreadMetrics {
        &self.departed
    }

    /// For how long nobody has sat, in nanoseconds.
    pub(crate) fn vacant(&self, now: u64) -> Duration {
        let present = self.vacant_since.map_or(0, |since| now.saturating_sub(since));
        Duration::from_nanos(self.vacant + present)
    }

    fn errands(&mut self, now: u64) -> Errands {
        let wake = self.choose();
        let recruit = self.must_recruit(now, false);
        Errands { wake, recruit, call_seated: self.must_call_seated() }
    }

    /// The same for a thread that cannot be held back any more.
    fn urgent_errands(&mut self, now: u64) -> Errands {
        let errands = self.errands(now);
        let recruit = errands.recruit || self.must_recruit(now, true);
        Errands { recruit, ..errands }
    }

    /// A follower to be woken, if it is worth it. One at a time: the next is chosen by the one that
    /// is on its way, when it is up and sees more to do.
    fn choose(&mut self) -> Option<Chosen> {
        if self.stopping || self.waking > 0 || self.followers.is_empty() {
            return None;
        }
        let room = self.running < self.policy.running;
        let worth = match self.policy.promotion {
            Promotion::Eager => room && (self.has_seat() || !self.leftover.is_empty()),
            Promotion::Adaptive => {
                let backlog = self.tempo.is_backlog(self.leftover.len(), self.policy.running);
                let unserved = self.running == 0 && !self.leftover.is_empty();
                let unseen = self.seated == 0 && (self.running == 0 || self.has_seat());
                room && (backlog || unserved || unseen)
            }
        };
        if !worth && !self.is_unwatched() {
            return None;
        }
        let chosen = self.followers.pop()?;
        self.waking += 1;
        debug_assert_eq!(self.waking, 1, "I11: two followers on their way");
        // Eager promotion is a promise: the seat is the promoted thread's, whoever is faster.
        if self.policy.promotion == Promotion::Eager && self.has_seat() {
            self.reserved += 1;
        }
        Some(chosen)
    }

    /// Whether one more may, and should, take from what is left over.
    fn has_work_for_one_more(&self) -> bool {
        let room = self.running < self.policy.running;
        let worth =
            !self.is_busy() || self.running == 0 || self.tempo.is_remainder(self.leftover.len());
        room && worth
    }

    /// Whether one more may sit down.
    fn has_seat(&self) -> bool {
        let room = self.running < self.policy.running;
        let taken = self.seated + self.reserved;
        match self.policy.promotion {
            Promotion::Eager => room && taken < self.policy.seats,
            // One who sits does not run; otherwise it watches for those who do.
            Promotion::Adaptive if self.fetches_for_all() => {
                let alone = self.running == 0;
                let worth = alone || self.doubtful > 0 || self.tempo.has_long_handlers();
                room && worth && taken == 0 && self.leftover.is_empty()
            }
            Promotion::Adaptive => {
                let seats = if self.is_busy() { self.policy.seats } else { self.policy.calm_seats };
                taken < seats && (room || self.leftover.is_empty())
            }
        }
    }

    /// Whether one who sits fetches what there is for all. Short handlers are not worth a wait each; long ones
    /// are, and the kernel is quicker at waking the next than we are.
    fn fetches_for_all(&self) -> bool {
        let has_a_wait_each = || self.tempo.handlers_merit_a_wait() && self.policy.has_spare_seat();
        match self.policy.promotion {
            Promotion::Eager => true,
            Promotion::Adaptive => self.is_busy() && !has_a_wait_each(),
        }
    }

    fn is_busy(&self) -> bool {
        self.policy.promotion == Promotion::Adaptive && self.tempo.is_busy()
    }

    /// Whether something waits although as many run as may.
    fn is_crowded(&self) -> bool {
        !self.leftover.is_empty() && self.running >= self.policy.running
    }

    fn run(&mut self, worker: &Worker, event: Event, blocking: Blocking, now: u64) {
        match blocking {
            Blocking::Never => self.trusted += 1,
            Blocking::Maybe => self.doubtful += 1,
            Blocking::Learned | Blocking::Always => {}
        }
        match blocking {
            Blocking::Always => self.overdue += 1,
            _ => self.running += 1,
        }
        self.moves += 1;
        worker.standing.start(event.data(), blocking, now);
    }

    fn sit_down(&mut self, worker: &Worker, now: u64) -> Assignment {
        let surplus = self.is_surplus(worker);
        self.seated += 1;
        self.moves += 1;
        debug_assert!(self.seated <= self.policy.seats, "I1: more leaders than seats");
        if let Some(since) = self.vacant_since.take() {
            self.vacant += now.saturating_sub(since);
        }
        // Otherwise the kernel shares the events out, to whoever sits.
        let most = if self.fetches_for_all() { self.policy.events } else { 1 };
        let errands = Errands { wake: self.choose(), ..Errands::default() };
        Assignment::Seat { most, errands, surplus }
    }

    fn stand_up(&mut self, now: u64) {
        self.seated -= 1;
        if self.seated == 0 {
            self.vacant_since = Some(now);
        }
    }
}

/// All of them may share one handle.
pub(crate) const MOST_THREADS: usize = MOST_SHARERS;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
