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

use std::fmt;
use std::io;
use std::time::Duration;

use crate::demux::Demultiplexer;
use crate::error::Result;
use crate::handler::{Caller, Control};
use crate::metrics::Role;
use crate::rank::{Arrival, Assignment, Holding, Promoted, Rank};
use crate::sync::{Arc, deadline, now};
use crate::sys::epoll::{Event, Events};
use crate::worker::{Count, Worker};

/// The whole protocol, on the calling thread, until the pool stops or the member's time is over.
pub(crate) fn take_part<D: Demultiplexer>(mut follower: Follower<'_, D>) -> Left {
    loop {
        let processing = match follower.follow_on() {
            Turn::Lead(leader) => match leader.wait() {
                Watch::Detected(detected) => match detected.promote() {
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
        follower = processing.process();
    }
}

/// A thread that waits for a role.
pub struct Follower<'p, D: Demultiplexer> {
    member: Member<'p, D>,
}

/// A thread that waits on the handle set.
pub struct Leader<'p, D: Demultiplexer> {
    member: Member<'p, D>,
    most: usize,
}

/// A leader that has detected events and must promote before it may process.
pub struct Detected<'p, D: Demultiplexer> {
    member: Member<'p, D>,
    waited: u64,
    now: u64,
}

/// A thread that has an event to process, and no part in the waiting.
pub struct Processing<'p, D: Demultiplexer> {
    member: Member<'p, D>,
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
    ) -> Result<Follower<'p, D>> {
        shared.rank.lock().enlist(&worker)?;
        worker.change_role(Role::Follower, now());
        let member = Member {
            shared,
            worker,
            events,
            event: None,
            holding: Holding::Nothing,
            took: 0,
            finished: None,
            deadline,
            failure: None,
        };
        Ok(Follower { member })
    }

    /// Waits for a role: to lead, to process what another thread has detected, or to leave.
    pub fn follow(mut self) -> Turn<'p, D> {
        // It may have been a while since the handler was left.
        self.member.finished = None;
        self.follow_on()
    }

    /// The same for a thread that comes straight from its handler.
    fn follow_on(mut self) -> Turn<'p, D> {
        if !self.member.shared.demux.is_ours() {
            return Turn::Leave(Left::Forked);
        }
        let member = &mut self.member;
        let rank = &member.shared.rank;
        let mut at = member.finished.take().unwrap_or_else(now);
        let mut arrival = Arrival::Awake;
        let mut state = rank.lock();
        state.put_down(&member.worker, member.holding, member.took, at);
        member.holding = Holding::Nothing;
        if let Some(again) = member.event.take() {
            state.put_last(again);
        }
        loop {
            if let Some(why) = member.reason_to_leave(at) {
                state.decline(arrival);
                drop(state);
                return Turn::Leave(why);
            }
            match state.assign(&member.worker, arrival, at) {
                Assignment::Seat { most, wake } => {
                    drop(state);
                    member.take(Holding::Seat, Role::Leader, at);
                    member.wake(wake);
                    return Turn::Lead(Leader { member: self.member, most });
                }
                Assignment::Event { event, wake } => {
                    let call = state.must_call_seated();
                    drop(state);
                    member.take(Holding::Handler, Role::Processing, at);
                    member.wake(wake);
                    member.call_seated(call);
                    member.worker.count(Count::SharedTaken, 1);
                    member.event = Some(event);
                    return Turn::Process(Processing { member: self.member, since: at });
                }
                Assignment::Stop => {
                    drop(state);
                    return Turn::Leave(Left::Shutdown);
                }
                Assignment::Follow { bed, watch } => {
                    drop(state);
                    member.worker.change_role(Role::Follower, at);
                    if arrival == Arrival::Chosen {
                        member.worker.count(Count::IdleWakes, 1);
                    }
                    let watch_for = watch.then_some(rank.policy.budget);
                    let timeout = shorter(watch_for, member.remaining(at));
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
        let member = &mut self.member;
        if !member.shared.demux.is_ours() {
            return Watch::Nothing(Follower { member: self.member });
        }
        let since = now();
        let timeout = member.remaining(since);
        let waited = member.shared.wait(&mut member.events, self.most, timeout);
        let now = now();
        member.worker.count(Count::Waits, 1);
        if let Err(error) = waited {
            // Only a closed epoll descriptor does that. Nobody can go on without it.
            member.failure = Some(error);
            member.shared.shut_down();
        }
        if member.events.as_slice().is_empty() {
            return Watch::Nothing(Follower { member: self.member });
        }
        Watch::Detected(Detected { member: self.member, waited: now - since, now })
    }
}

impl<'p, D: Demultiplexer> Detected<'p, D> {
    /// Gives up the waiting role, to a follower where that is called for, and takes the oldest event
    /// that waits. If as many threads run as may, the events are left to them.
    pub fn promote(mut self) -> std::result::Result<Processing<'p, D>, Follower<'p, D>> {
        let member = &mut self.member;
        if !member.shared.demux.is_ours() {
            return Err(Follower { member: self.member });
        }
        let mut state = member.shared.rank.lock();
        let promoted =
            state.promote(&member.worker, member.events.as_slice(), self.waited, self.now);
        let call = state.must_call_seated();
        drop(state);
        member.events.clear();
        member.holding = Holding::Nothing;
        member.worker.count(Count::Promotions, 1);
        match promoted {
            Promoted::Process { event, wake } => {
                member.take(Holding::Handler, Role::Processing, self.now);
                member.wake(wake);
                member.call_seated(call);
                member.event = Some(event);
                Ok(Processing { member: self.member, since: self.now })
            }
            Promoted::Enough => Err(Follower { member: self.member }),
        }
    }
}

impl<'p, D: Demultiplexer> Processing<'p, D> {
    /// Runs the handler and reactivates the handle.
    pub fn process(mut self) -> Follower<'p, D> {
        let member = &mut self.member;
        let caller =
            Caller { thread: member.worker.index, control: member.shared, began: self.since };
        if let Some(event) = member.event.take().filter(|_| member.shared.demux.is_ours()) {
            let dispatched = member.shared.demux.dispatch(event, caller);
            member.worker.count_dispatch(dispatched);
            member.event = dispatched.again;
        }
        let now = now();
        member.took = now - self.since;
        member.finished = Some(now);
        Follower { member: self.member }
    }
}

/// What all threads of a pool share.
pub(crate) struct Shared<D> {
    pub(crate) demux: D,
    pub(crate) rank: Rank,
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
                if woken || !events.as_slice().is_empty() {
                    return Ok(());
                }
            }
        }
        let rest = timeout.map(|timeout| timeout.saturating_sub(spin));
        self.demux.wait(events, most, rest).map(drop)
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
struct Member<'p, D: Demultiplexer> {
    shared: &'p Shared<D>,
    worker: Arc<Worker>,
    events: Events,
    /// The one to be processed, or the next of the same handle, to be passed on.
    event: Option<Event>,
    holding: Holding,
    /// How long the handler that has just been left took.
    took: u64,
    /// When it was left, if that was just now: one look at the clock serves for both.
    finished: Option<u64>,
    /// When to leave, on the clock of `now`.
    deadline: Option<u64>,
    failure: Option<io::Error>,
}

impl<D: Demultiplexer> Member<'_, D> {
    fn take(&mut self, holding: Holding, role: Role, now: u64) {
        self.holding = holding;
        self.worker.change_role(role, now);
    }

    /// Wakes the follower that was chosen under the lock, after it has been released.
    fn wake(&self, chosen: Option<crate::followers::Chosen>) {
        if let Some(chosen) = chosen {
            chosen.wake();
            self.worker.count(Count::Wakes, 1);
        }
    }

    /// Gets a thread off its seat, if need be, for what is left over.
    fn call_seated(&self, call: bool) {
        if call {
            self.shared.demux.wake();
        }
    }

    fn remaining(&self, now: u64) -> Option<Duration> {
        self.deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)))
    }

    fn reason_to_leave(&mut self, now: u64) -> Option<Left> {
        if let Some(failure) = self.failure.take() {
            return Some(Left::Failed(failure));
        }
        let over = self.deadline.is_some_and(|deadline| deadline <= now);
        over.then_some(Left::TimedOut)
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
        for event in self.event.iter().chain(self.events.as_slice()).rev() {
            state.put_back(*event);
        }
        state.put_down(&self.worker, self.holding, self.took, now);
        let chosen = state.discharge(&self.worker);
        // On the handle set they do not see it; one is woken, and wakes the next.
        let pass_on = state.is_stopping() && state.has_seated() || state.must_call_seated();
        drop(state);
        if let Some(chosen) = chosen {
            chosen.wake();
        }
        if pass_on {
            self.shared.demux.wake();
        }
        self.shared.clear_if_deserted();
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::Shutdown => f.write_str("the pool was shut down"),
            Left::TimedOut => f.write_str("its time was over"),
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
