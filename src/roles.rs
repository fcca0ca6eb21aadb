//! The protocol: follow, lead, promote, process, follow.
//!
//! ```text
//!              chosen, or a seat is free              an event
//!   Follower --------------------------> Leader ---------------------> Detected
//!      ^  |                                |                               |
//!      |  | an event that another          | nothing                       | promote
//!      |  | thread has detected            v                               v
//!      |  +------------------------> (Follower)                       Processing
//!      |                                                                   |
//!      +-------------------------------------------------------------------+
//!                                    process
//! ```
//!
//! Each role is a type, and each step consumes it: processing before promoting, or promoting without
//! having detected something, does not compile.
//!
//! ```compile_fail,E0599
//! # fn run(leader: cabrank::Leader<'_>) {
//! let processing = leader.process(); // a leader has promoted nobody yet
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # fn run(follower: cabrank::Follower<'_>) {
//! let processing = follower.promote(); // a follower has no role to give
//! # }
//! ```

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem;
use std::time::Duration;

use crate::deadlines::NEVER;
use crate::demux::Demultiplexer;
use crate::error::Result;
use crate::handler::{Caller, Control};
use crate::metrics::Role;
use crate::rank::{Arrival, Assignment, Errands, Holding, Overrun, Promoted, Rank};
use crate::sync::{Arc, deadline, now};
use crate::sys::epoll::{Event, Events};
use crate::upcall::{self, OnPanic};
use crate::worker::{Count, Worker};

/// The whole protocol, on the calling thread, until the pool stops or the member's time is over.
pub(crate) fn take_part<D: Demultiplexer>(mut follower: Follower<'_, D>) -> Left {
    loop {
        let processing = match follower.follow_at_once() {
            Turn::Lead(leader) => match leader.wait() {
                Watch::Detected(detected) => match detected.promote_at_once() {
                    Ok(processing) => processing,
                    Err(enough_are_running) => {
                        follower = enough_are_running;
                        continue;
                    }
                },
                Watch::Nothing(nothing) => {
                    follower = nothing;
                    continue;
                }
            },
            Turn::Process(processing) => processing,
            Turn::Leave(why) => return why,
        };
        follower = processing.process_at_once();
    }
}

/// A thread that waits for a role.
pub struct Follower<'p, D: Demultiplexer> {
    member: Box<Member<'p, D>>,
}

/// A thread that waits on the handle set.
pub struct Leader<'p, D: Demultiplexer> {
    member: Box<Member<'p, D>>,
    most: usize,
    /// The pool could do without it, were it idle for long.
    surplus: bool,
}

/// A leader that has detected events and must promote before it may process.
pub struct Detected<'p, D: Demultiplexer> {
    member: Box<Member<'p, D>>,
    waited: u64,
    now: u64,
}

/// A thread that has an event to process, and no part in the waiting.
pub struct Processing<'p, D: Demultiplexer> {
    member: Box<Member<'p, D>>,
    since: u64,
}

/// What a follower becomes.
#[derive(Debug)]
pub enum Turn<'p, D: Demultiplexer> {
    /// The leader, or one of them.
    Lead(Leader<'p, D>),
    /// A processing thread, with an event that another thread has detected.
    Process(Processing<'p, D>),
    /// Nothing: it has left the pool.
    Leave(Left),
}

/// What a leader's wait brings.
#[derive(Debug)]
pub enum Watch<'p, D: Demultiplexer> {
    /// Something to do.
    Detected(Detected<'p, D>),
    /// A wake-up, the end of its time, or nothing at all.
    Nothing(Follower<'p, D>),
}

/// Why a thread has left the pool.
#[derive(Debug)]
#[non_exhaustive]
pub enum Left {
    /// The pool was shut down.
    Shutdown,
    /// Its own time was over.
    TimedOut,
    /// It was idle for long, and the pool had more threads than it needs.
    Idle,
    /// The kernel's wait failed; the pool has been shut down.
    Failed(io::Error),
    /// It is in a forked child: the pool is the parent's.
    Forked,
}

impl<'p, D: Demultiplexer> Follower<'p, D> {
    pub(crate) fn enlist(
        shared: &'p Shared<D>,
        worker: Arc<Worker>,
        events: Events,
        deadline: Option<u64>,
        recruiter: &'p dyn Recruiter,
    ) -> Result<Follower<'p, D>> {
        shared.rank.lock().enlist(&worker)?;
        worker.change_role(Role::Follower, now());
        let member = Member {
            shared,
            worker,
            recruiter,
            events,
            event: None,
            holding: Holding::Nothing,
            took: 0,
            finished: 0,
            deadline: deadline.unwrap_or(NEVER),
            idle_since: now(),
            is_discharged: false,
            failure: None,
        };
        Ok(Follower { member: Box::new(member) })
    }

    /// Waits for a role: to lead, to process what another thread has detected, or to leave.
    pub fn follow(mut self) -> Turn<'p, D> {
        // It may have been a while since the handler was left.
        self.member.finished = 0;
        self.follow_at_once()
    }

    /// The same for a thread that comes straight from its handler.
    fn follow_at_once(mut self) -> Turn<'p, D> {
        if !self.member.shared.demux.is_ours() {
            return Turn::Leave(Left::Forked);
        }
        let member = &mut *self.member;
        let rank = &member.shared.rank;
        let mut at = match mem::take(&mut member.finished) {
            0 => now(),
            finished => finished,
        };
        let mut arrival = Arrival::Awake;
        let blocking = |event| member.shared.demux.blocking(event, rank.policy.budget);
        let mut state = rank.lock();
        state.put_down(&member.worker, member.holding, member.took, at);
        member.holding = Holding::Nothing;
        if let Some(again) = member.event.take() {
            state.put_last(again);
        }
        loop {
            let leaves = member.reason_to_leave(at).or_else(|| {
                let idle = at.saturating_sub(member.idle_since);
                let over = idle >= rank.policy.growth.keep_alive && arrival != Arrival::Chosen;
                (over && !member.worker.is_joined && state.can_spare()).then_some(Left::Idle)
            });
            if let Some(why) = leaves {
                state.decline(arrival);
                // At once, so that the next to ask knows that there is one less.
                member.worker.change_role(Role::Away, at);
                member.is_discharged = true;
                let errands = state.discharge(&member.worker, at);
                drop(state);
                member.run_errands(errands, at);
                return Turn::Leave(why);
            }
            let may_act = state.may_act(&member.worker, arrival, at);
            if state.has_overruns() {
                // Before it has a role, and without the lock: it is user code that is called (I4).
                let overruns = state.take_overruns();
                drop(state);
                member.report(overruns);
                at = now();
                state = rank.lock();
            }
            match state.assign(&member.worker, arrival, may_act, blocking, at) {
                Assignment::Seat { most, errands, surplus } => {
                    drop(state);
                    member.take(Holding::Seat, Role::Leader, at);
                    member.run_errands(errands, at);
                    return Turn::Lead(Leader { member: self.member, most, surplus });
                }
                Assignment::Event { event, errands } => {
                    drop(state);
                    member.take(Holding::Handler, Role::Processing, at);
                    let since = member.run_errands(errands, at);
                    member.worker.count(Count::SharedTaken, 1);
                    member.event = Some(event);
                    return Turn::Process(Processing { member: self.member, since });
                }
                Assignment::Stop => {
                    drop(state);
                    return Turn::Leave(Left::Shutdown);
                }
                Assignment::Follow { bed, watch, again, surplus } => {
                    drop(state);
                    member.worker.change_role(Role::Follower, at);
                    if arrival == Arrival::Chosen {
                        member.worker.count(Count::IdleWakes, 1);
                    }
                    let timeout = shorter(again, member.remaining(at));
                    let timeout = shorter(timeout, member.idle_rest(surplus, at));
                    let token = bed.sleep(&member.worker, rank.policy.spin, timeout);
                    at = now();
                    state = rank.lock();
                    arrival = state.got_up(&member.worker, token, watch);
                }
            }
        }
    }
}

impl<'p, D: Demultiplexer> Leader<'p, D> {
    /// Waits on the handle set. The handles it reports are deactivated.
    pub fn wait(mut self) -> Watch<'p, D> {
        let member = &mut *self.member;
        if !member.shared.demux.is_ours() {
            return Watch::Nothing(Follower { member: self.member });
        }
        let since = now();
        let timeout = shorter(member.remaining(since), member.idle_rest(self.surplus, since));
        let waited = member.shared.wait(&mut member.events, self.most, timeout);
        let now = now();
        member.worker.count(Count::Waits, 1);
        if let Err(error) = waited {
            // Only a closed epoll descriptor does that. Nobody can go on without it.
            member.failure = Some(error);
            member.shared.shut_down();
        }
        if member.events.is_empty() {
            return Watch::Nothing(Follower { member: self.member });
        }
        Watch::Detected(Detected { member: self.member, waited: now - since, now })
    }
}

impl<'p, D: Demultiplexer> Detected<'p, D> {
    /// Gives up the waiting role, to a follower where that is called for, and takes the oldest event
    /// that waits. If as many threads run as may, the events are left to them.
    pub fn promote(mut self) -> std::result::Result<Processing<'p, D>, Follower<'p, D>> {
        self.now = now();
        self.promote_at_once()
    }

    /// The same for a thread that comes straight from its wait.
    fn promote_at_once(mut self) -> std::result::Result<Processing<'p, D>, Follower<'p, D>> {
        let member = &mut *self.member;
        if !member.shared.demux.is_ours() {
            return Err(Follower { member: self.member });
        }
        let rank = &member.shared.rank;
        let blocking = |event| member.shared.demux.blocking(event, rank.policy.budget);
        let events = member.events.iter();
        let promoted = rank.lock().promote(&member.worker, events, self.waited, blocking, self.now);
        member.events.clear();
        member.holding = Holding::Nothing;
        member.worker.count(Count::Promotions, 1);
        match promoted {
            Promoted::Process { event, errands } => {
                member.take(Holding::Handler, Role::Processing, self.now);
                let since = member.run_errands(errands, self.now);
                member.event = Some(event);
                Ok(Processing { member: self.member, since })
            }
            Promoted::Enough => Err(Follower { member: self.member }),
        }
    }
}

impl<'p, D: Demultiplexer> Processing<'p, D> {
    /// Runs the handler and reactivates the handle.
    pub fn process(mut self) -> Follower<'p, D> {
        self.since = now();
        self.process_at_once()
    }

    /// The same for a thread that has just got the event.
    fn process_at_once(mut self) -> Follower<'p, D> {
        let member = &mut *self.member;
        let processed = member.event.take().filter(|_| member.shared.demux.is_ours());
        if let Some(event) = processed {
            let control = Steering { member, regions: Cell::new(0) };
            let caller =
                Caller { thread: member.worker.index, control: &control, began: self.since };
            let dispatched = member.shared.demux.dispatch(event, caller);
            member.worker.count_dispatch(dispatched);
            member.event = dispatched.again;
        }
        let now = now();
        member.took = now.saturating_sub(self.since);
        member.finished = now;
        member.idle_since = now;
        if let Some(event) = processed {
            member.shared.demux.learn(event, member.took, member.shared.rank.policy.budget);
        }
        Follower { member: self.member }
    }
}

/// What all threads of a pool share.
pub(crate) struct Shared<D> {
    pub(crate) demux: D,
    pub(crate) rank: Rank,
    /// Told of handlers that have overrun their budget.
    pub(crate) on_overrun: Option<OverrunHook>,
}

pub(crate) type OverrunHook = Box<dyn Fn(Overrun) + Send + Sync>;

/// Starts a thread for the pool, which enlists and says so to the rank. Returns whether it could.
pub(crate) trait Recruiter: Sync {
    fn recruit(&self) -> bool;
}

impl<D: Demultiplexer> Shared<D> {
    /// If the pool has stopped and nobody is left, takes the handles out and tells who waits for it.
    pub(crate) fn clear_if_deserted(&self) {
        let mut state = self.rank.lock();
        if state.is_mine_to_clear() {
            drop(state);
            self.demux.clear();
            state = self.rank.lock();
            state.cleared = true;
            self.rank.cleared.notify_all();
        }
        drop(state);
    }

    /// Waits, at first without sleeping if the policy says so.
    fn wait(&self, events: &mut Events, most: usize, timeout: Option<Duration>) -> io::Result<()> {
        let spin = shorter(Some(self.rank.policy.spin), timeout).unwrap_or_default();
        if !spin.is_zero() {
            let deadline = deadline(spin);
            while now() < deadline {
                // A wake-up is gone once it is answered; who sleeps on it sleeps for ever.
                let woken = self.demux.wait(events, most, Some(Duration::ZERO))?;
                if woken || !events.is_empty() {
                    return Ok(());
                }
            }
        }
        let rest = timeout.map(|timeout| timeout.saturating_sub(spin));
        self.demux.wait(events, most, rest).map(drop)
    }
}

impl<D: Demultiplexer> Shared<D> {
    #[cold]
    fn run_errands(&self, errands: Errands, worker: &Worker, recruiter: &dyn Recruiter) {
        if let Some(chosen) = errands.wake {
            chosen.wake();
            worker.count(Count::Wakes, 1);
        }
        if errands.recruit {
            if recruiter.recruit() {
                worker.count(Count::Recruits, 1);
            } else {
                // We go on as we are: with the threads there are, and somebody will try again.
                self.rank.lock().recruited(false);
            }
        }
        if errands.call_seated {
            self.demux.wake();
        }
    }
}

/// What a handler can do to the pool, by way of the thread that runs it.
struct Steering<'a, 'p, D: Demultiplexer> {
    member: &'a Member<'p, D>,
    /// How many blocking regions it is in, one in the other. The outermost counts.
    regions: Cell<u32>,
}

impl<D: Demultiplexer> Control for Steering<'_, '_, D> {
    fn shut_down(&self) {
        self.member.shared.shut_down();
    }

    fn begin_blocking(&self) {
        if self.regions.replace(self.regions.get() + 1) > 0 {
            return;
        }
        let Member { shared, worker, recruiter, .. } = self.member;
        let errands = shared.rank.lock().begin_blocking(worker, now());
        worker.count(Count::Blocked, 1);
        shared.run_errands(errands, worker, *recruiter);
    }

    fn end_blocking(&self) {
        self.regions.set(self.regions.get() - 1);
        if self.regions.get() > 0 {
            return;
        }
        let Member { shared, worker, .. } = self.member;
        shared.rank.lock().end_blocking(worker, now());
    }
}

impl<D: Demultiplexer> Control for Shared<D> {
    fn shut_down(&self) {
        if self.rank.stop() {
            // One is enough: each that leaves its seat wakes the next (see `Member::drop`).
            self.demux.wake();
        }
    }
}

/// A thread's membership, whatever its role. Dropping it in any role leaves the pool in order.
///
/// The roles keep it in a box, made once, so that to take another role is to move a pointer.
struct Member<'p, D: Demultiplexer> {
    shared: &'p Shared<D>,
    worker: Arc<Worker>,
    recruiter: &'p dyn Recruiter,
    events: Events,
    /// The one to be processed, or the next of the same handle, to be passed on.
    event: Option<Event>,
    holding: Holding,
    /// How long the handler that has just been left took.
    took: u64,
    /// When it was left, if that was just now, else 0: one look at the clock serves for both.
    finished: u64,
    /// When to leave, on the clock of `now`, or `NEVER`.
    deadline: u64,
    /// When it was last of use.
    idle_since: u64,
    /// The rank does not count it any more.
    is_discharged: bool,
    failure: Option<io::Error>,
}

impl<D: Demultiplexer> Member<'_, D> {
    fn take(&mut self, holding: Holding, role: Role, now: u64) {
        self.holding = holding;
        self.took = 0;
        self.worker.change_role(role, now);
    }

    /// Does for the others what was decided under the lock at `at`, after it has been released. Returns what
    /// time it is then.
    fn run_errands(&self, errands: Errands, at: u64) -> u64 {
        if errands.is_empty() {
            // As with almost every event.
            return at;
        }
        self.shared.run_errands(errands, &self.worker, self.recruiter);
        now()
    }

    /// Tells the user of handlers that have overrun their budget.
    fn report(&self, overruns: Vec<Overrun>) {
        for overrun in overruns {
            if let Some(hook) = &self.shared.on_overrun {
                // One that panics has been heard, and costs nothing else (I9).
                let _ = upcall::contain(OnPanic::Close, || hook(overrun));
                self.shared.demux.refuse_forked_child();
            }
        }
    }

    fn remaining(&self, now: u64) -> Option<Duration> {
        let rest = Duration::from_nanos(self.deadline.saturating_sub(now));
        (self.deadline != NEVER).then_some(rest)
    }

    /// For how long to be idle before leaving, if the pool could do without.
    fn idle_rest(&self, surplus: bool, now: u64) -> Option<Duration> {
        let idle = now.saturating_sub(self.idle_since);
        surplus.then(|| self.shared.rank.policy.idle_rest(idle))
    }

    fn reason_to_leave(&mut self, now: u64) -> Option<Left> {
        if let Some(failure) = self.failure.take() {
            return Some(Left::Failed(failure));
        }
        (self.deadline <= now).then_some(Left::TimedOut)
    }
}

impl<D: Demultiplexer> Drop for Member<'_, D> {
    /// Leaves the pool: puts down the role, gives back what was detected, and sees to it that somebody
    /// takes the place.
    fn drop(&mut self) {
        if !self.shared.demux.is_ours() {
            // The place is the parent's, and so are the locks, which may be held for ever.
            return;
        }
        let now = now();
        self.worker.change_role(Role::Away, now);
        let mut state = self.shared.rank.lock();
        let mut errands = Errands::default();
        if !self.is_discharged {
            for event in self.event.into_iter().chain(self.events.iter()).rev() {
                state.put_back(event);
            }
            state.put_down(&self.worker, self.holding, self.took, now);
            errands = state.discharge(&self.worker, now);
        }
        // On the handle set they do not see it; one is woken, and wakes the next.
        errands.call_seated |= state.is_stopping() && state.has_seated();
        drop(state);
        self.run_errands(errands, now);
        self.shared.clear_if_deserted();
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Shutdown => f.write_str("the pool was shut down"),
            Left::TimedOut => f.write_str("its time was over"),
            Left::Idle => f.write_str("it was idle, and there were others"),
            Left::Failed(error) => write!(f, "waiting on the handle set failed: {error}"),
            Left::Forked => f.write_str("the pool belongs to the parent of this forked process"),
        }
    }
}

macro_rules! debug_as_role {
    ($($role:ident),*) => {$(
        impl<D: Demultiplexer> fmt::Debug for $role<'_, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let worker = &self.member.worker.name;
                f.debug_struct(stringify!($role)).field("thread", worker).finish_non_exhaustive()
            }
        }
    )*};
}
debug_as_role!(Follower, Leader, Detected, Processing);

fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::demux::Dispatched;
    use crate::followers::Order;
    use crate::policy::{Growth, Policy, Promotion};
    use crate::sys::epoll::Flags;
    use std::num::NonZeroUsize;
    use std::sync::Mutex;

    /// Three handles that are ready at once. The first has its next event while it is served.
    #[derive(Default)]
    struct Script {
        served: Mutex<Vec<u64>>,
    }

    impl Demultiplexer for Script {
        fn wait(&self, events: &mut Events, _: usize, _: Option<Duration>) -> io::Result<bool> {
            for handle in 1..=3 {
                events.push(Event::new(Flags::IN, handle));
            }
            Ok(false)
        }

        fn dispatch(&self, event: Event, _caller: Caller<'_>) -> Dispatched {
            let mut served = self.served.lock().unwrap();
            let again = served.is_empty().then_some(event);
            served.push(event.data());
            Dispatched { handled: true, again, ..Dispatched::default() }
        }

        fn wake(&self) {}

        fn clear(&self) {}
    }

    struct Nobody;

    impl Recruiter for Nobody {
        fn recruit(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_next_event_of_a_handle_waits_behind_those_of_others() {
        let policy = Policy {
            seats: 1,
            calm_seats: 1,
            events: 8,
            running: 1,
            order: Order::Lifo,
            promotion: Promotion::Eager,
            spin: Duration::ZERO,
            budget: u64::MAX,
            guesses: false,
            reports_overruns: false,
            growth: Growth { least: 0, most: 0, keep_alive: u64::MAX, interval: u64::MAX },
        };
        let shared = Shared { demux: Script::default(), rank: Rank::new(policy), on_overrun: None };
        let worker = Arc::new(Worker::joined(0, "alone".to_string()));
        let events = Events::with_capacity(NonZeroUsize::new(8).unwrap());
        let follower = Follower::enlist(&shared, worker, events, None, &Nobody).unwrap();
        let Turn::Lead(leader) = follower.follow() else { panic!("alone here") };
        let Watch::Detected(detected) = leader.wait() else { panic!("all are ready") };
        let mut follower = detected.promote().unwrap().process();
        for _ in 0..3 {
            let Turn::Process(processing) = follower.follow() else { panic!("more is detected") };
            follower = processing.process();
        }
        assert_eq!(*shared.demux.served.lock().unwrap(), [1, 2, 3, 1]);
    }
}
