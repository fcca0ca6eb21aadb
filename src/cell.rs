//! One slot of the demultiplexing table: a value and the state word that says who may touch it.
//!
//! This module keeps invariant I3. A handler is reached only through [`Owned`], which one thread at a
//! time can hold, or through [`Shared`], which hands out `&T` only; which of the two is decided by the
//! compare-exchange on the word, never by what the kernel reports.
//!
//! ```text
//!   63      34    33      32   31   22 21 16   15   14 12   11   10    8   7     6      5      4        3      2    1   0
//!  +----------+-------+-------+-------+-----+------+-----+-------+-------+-----+-----+------+-------+--------+-----+-----+
//!  |generation|RETIMED|EXPIRED|sharers|ready|CALLED|cause|STEERED|interes|CONCU|AWAIT|REMOVE|CHANGED|REPORTED|ARMED|phase|
//!  +----------+-------+-------+-------+-----+------+-----+-------+-------+-----+-----+------+-------+--------+-----+-----+
//! ```
//!
//! | phase  | meaning | leaves it |
//! |--------|---------|-----------|
//! | VACANT | no value; the slot is on the free list | `reserve` |
//! | REST   | nobody has the value exclusively; `sharers` threads have it shared | `enter`, `request` |
//! | OWNED  | exactly one thread has the value | `release`, `vacate` |
//!
//! What others want while the slot is OWNED they leave in the word, and the owner sees it because
//! its `release` expects the word unchanged: REPORTED (an event came, `ready` says which), EXPIRED (the
//! deadline may have passed), CHANGED (the interest was set from outside), STEERED (ARMED was) and
//! RETIMED (the deadline was), which overrule the handler's verdict, and REMOVE.
//!
//! CALLED means that somebody wants the handler called. Whoever sets it at REST sends an event after it;
//! set while the slot is OWNED, the owner does so when it gives the slot back. The first to come in takes
//! it along, whatever it came for, so that many calls make one.

// The one module outside `sys` with unsafe code.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::handler::Blocking;
use crate::interest::{Interest, MESSAGE, TIMEOUT};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::epoll::Flags;

pub(crate) struct Slot<T> {
    word: AtomicU64,
    /// What is known of its tenant's handler: how long it takes, and whether it was said to block. Relaxed
    /// everywhere: it decides about speed, not about right and wrong. A lesson that comes late can still
    /// reach the next tenant, if nothing was declared of either; that one is soon known better.
    habits: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `&T` reaches several threads at once only through `Shared` (needs `T: Sync`), and `&mut T`
// or `T` itself one thread after another only through `Owned` (needs `T: Send`). The word's phase
// and sharer count keep the two apart: see `enter`, `request`, `reserve` and `Shared::leave`, the
// only places that hand out either.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// What an event finds at its slot.
pub(crate) enum Entered<'a, T> {
    /// The caller has the value for itself; the event, with the call that was waiting for it.
    Owned(Owned<'a, T>, Flags),
    /// The caller has the value together with others.
    Shared(Shared<'a, T>),
    /// Somebody owns it, and has been told that an event came.
    Noted,
    /// Suspended or on its way out: the event is for nobody, and re-arming polls again.
    Dormant,
    /// Another generation: the event was meant for an earlier tenant (I7).
    Stale,
}

/// What can be asked of a slot from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Interest(Interest),
    /// The same as a handler's verdict: what was asked from outside comes first.
    PreferInterest(Interest),
    Suspend,
    /// The same as a handler's verdict.
    PreferSuspend,
    Resume,
    /// The deadline has been set; to what, the owner finds out elsewhere.
    Deadline,
    /// The first cause counts. With `awaited`, whoever vacates the slot is told that somebody waits.
    Remove {
        cause: Cause,
        awaited: bool,
    },
}

/// Why a slot is to be vacated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Cause {
    /// Somebody asked for it.
    Removed = 0,
    /// The handler said so.
    Verdict = 1,
    /// The handler panicked.
    Panic = 2,
    /// The pool is going away.
    Shutdown = 3,
    /// The handler's descriptor is no longer the registered one.
    Swapped = 4,
}

/// What a call for the handler finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Called {
    /// The slot is at rest: the caller must send a [`MESSAGE`] event.
    Send,
    /// Somebody has called before, or the owner will send the event.
    Covered,
    /// Several threads may be in it at once, so there is nobody in particular to be called.
    Shared,
    /// No such tenant.
    Unknown,
}

pub(crate) enum Requested<'a, T> {
    /// The slot was at rest; the caller owns it now and must settle what it asked for.
    Owned(Owned<'a, T>),
    /// The owner, or the last sharer, will do it.
    Deferred,
    /// Not of a slot that several threads share.
    Refused,
    /// No such tenant.
    Unknown,
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Slot<T> {
        Slot {
            word: AtomicU64::new(VACANT),
            habits: AtomicU32::new(0),
            value: UnsafeCell::new(None),
        }
    }

    /// A new tenant comes, of which this much is known.
    pub(crate) fn expect(&self, blocking: Blocking) {
        // A store would do, but loom takes it for possible that a store comes between the two halves of an
        // exchange.
        self.habits.swap((blocking as u32) << DECLARED_SHIFT, Ordering::Relaxed);
    }

    /// Whether the tenant's handler blocks; if that is not known, whether it usually takes longer than
    /// `budget` nanoseconds.
    pub(crate) fn blocking(&self, budget: u64) -> Blocking {
        let habits = self.habits.load(Ordering::Relaxed);
        match Blocking::from_number((habits >> DECLARED_SHIFT) as u8) {
            Blocking::Learned if u64::from(habits) * TICK > budget => Blocking::Always,
            declared => declared,
        }
    }

    /// The tenant's handler has taken so many nanoseconds, where it may take `budget`.
    pub(crate) fn learn(&self, took: u64, budget: u64) {
        let habits = self.habits.load(Ordering::Relaxed);
        let is_news = habits != 0 || took > budget;
        if is_news && habits >> DECLARED_SHIFT == Blocking::Learned as u32 {
            let took = (took / TICK).min(LONGEST) as u32;
            // Rounded towards what it takes, so that a long run is forgotten in the end.
            let mean = match took.checked_sub(habits) {
                Some(more) => habits + more.div_ceil(8),
                None => habits - (habits - took).div_ceil(8),
            };
            // An exchange, lest a lesson that comes late undo what the next tenant has declared.
            let relaxed = Ordering::Relaxed;
            let _ = self.habits.compare_exchange(habits, mean, relaxed, relaxed);
        }
    }

    /// Makes a vacant slot OWNED by the caller, who then fills it or gives it back.
    ///
    /// # Panics
    /// If the slot is not vacant, or two threads reserve it at once: a broken free list.
    pub(crate) fn reserve(
        &self,
        interest: Interest,
        armed: bool,
        concurrent: bool,
    ) -> Empty<'_, T> {
        // Relaxed: the compare-exchange below decides.
        let vacant = self.word.load(Ordering::Relaxed);
        assert_eq!(vacant & PHASE, VACANT, "a slot on the free list is in use");
        let flags = if armed { ARMED } else { 0 } | if concurrent { CONCURRENT } else { 0 };
        let word = with_interest(vacant & GENERATION | OWNED | flags, interest);
        // Acquire: pairs with the release in `vacate`, so the last tenant is really gone.
        self.word
            .compare_exchange(vacant, word, Ordering::Acquire, Ordering::Relaxed)
            .expect("a slot on the free list belongs to the thread that took it off");
        Empty { slot: self }
    }

    /// The generation of the present, or else the next, tenant.
    pub(crate) fn generation(&self) -> u32 {
        // Acquire: pairs with the release in `vacate`; who sees the new generation also sees that
        // the old tenant's hook has run.
        (self.word.load(Ordering::Acquire) >> GENERATION_SHIFT) as u32
    }

    /// Whether there is a tenant, and of which generation. A glance: it may be over at once.
    pub(crate) fn tenant(&self) -> Option<u32> {
        // Relaxed: a hint; whoever acts on it goes through `request`.
        let word = self.word.load(Ordering::Relaxed);
        (word & PHASE != VACANT).then_some((word >> GENERATION_SHIFT) as u32)
    }

    /// Whether something has been asked of the slot that its owner has yet to do. A glance.
    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: a hint; the owner finds out when it gives the slot back.
        asked(self.word.load(Ordering::Relaxed))
    }

    /// Comes in with an event.
    pub(crate) fn enter(&self, generation: u32, flags: Flags) -> Entered<'_, T> {
        let mut entered = Entered::Stale;
        // Acquire: pairs with the release in `release` and `leave`, so this owner sees what the last
        // one did to the value.
        let _ = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| {
            let (next, outcome) = on_event(word, generation, flags);
            entered = match outcome {
                Outcome::Owned(flags) => Entered::Owned(Owned { slot: self }, flags),
                Outcome::Shared => Entered::Shared(Shared { slot: self }),
                Outcome::Noted => Entered::Noted,
                Outcome::Dormant => Entered::Dormant,
                Outcome::Stale => Entered::Stale,
            };
            next
        });
        entered
    }

    /// Asks for a change. It overrules a verdict that the handler has yet to give.
    pub(crate) fn request(&self, generation: u32, request: Request) -> Requested<'_, T> {
        // Acquire on success: as in `enter`, for the case that we become the owner. Release: what
        // the requester did before is visible to the owner that carries the request out.
        let asked = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            let refused = matches!(request, Request::Deadline) && word & CONCURRENT != 0;
            if !is_tenant(word, generation) || refused {
                return None;
            }
            let word = match request {
                Request::Interest(interest) => with_interest(word, interest) | CHANGED,
                Request::PreferInterest(_) if word & CHANGED != 0 => word,
                Request::PreferInterest(interest) => with_interest(word, interest) | CHANGED,
                Request::PreferSuspend if word & STEERED != 0 => word,
                Request::Suspend | Request::PreferSuspend => word & !ARMED | STEERED,
                Request::Resume => word | ARMED | STEERED,
                Request::Deadline => word | RETIMED,
                Request::Remove { cause, awaited } => {
                    let first = word & REMOVE == 0;
                    let cause = if first { (cause as u64) << CAUSE_SHIFT } else { 0 };
                    word | REMOVE | cause | if awaited { AWAITED } else { 0 }
                }
            };
            Some(if can_be_owned(word) { word & !PHASE | OWNED } else { word })
        });
        match asked {
            Err(word) if is_tenant(word, generation) => Requested::Refused,
            Err(_) => Requested::Unknown,
            Ok(before) if can_be_owned(before) => Requested::Owned(Owned { slot: self }),
            Ok(_) => Requested::Deferred,
        }
    }
}

impl<T> Slot<T> {
    /// Asks for the handler to be called.
    pub(crate) fn call(&self, generation: u32) -> Called {
        // Release: pairs with the acquire in `enter` and `state`; the handler sees what the caller did
        // before, also when an earlier call is the one that reaches it: the exchange is made even so.
        let called = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            let can_be = is_tenant(word, generation) && word & CONCURRENT == 0;
            can_be.then_some(word | CALLED)
        });
        match called {
            Err(word) if is_tenant(word, generation) => Called::Shared,
            Err(_) => Called::Unknown,
            Ok(before) if before & CALLED != 0 || before & PHASE == OWNED => Called::Covered,
            Ok(_) => Called::Send,
        }
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("Slot").field("word", &State(word)).finish_non_exhaustive()
    }
}

/// Exclusive possession of a slot's value: the proof that no other thread can reach it.
///
/// Forgetting one leaves the slot OWNED for good, which leaks it but is sound.
pub(crate) struct Owned<'a, T> {
    slot: &'a Slot<T>,
}

impl<'a, T> Owned<'a, T> {
    /// The word as it is now.
    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with the release in `request`.
        State(self.slot.word.load(Ordering::Acquire))
    }

    /// The word as it is now, and takes the news out of it so that they can come again.
    pub(crate) fn absorb(&self) -> State {
        // Acquire: pairs with the release in `request`. Nothing is published yet.
        State(self.slot.word.fetch_and(!NEWS, Ordering::Acquire))
    }

    /// Gives the value back with the given interest, armed or not, unless the word is no longer
    /// `seen`, the one the caller acted upon: then somebody wants something more, and the caller
    /// still owns the value.
    pub(crate) fn release(
        self,
        seen: State,
        armed: bool,
        interest: Interest,
    ) -> Result<(), Owned<'a, T>> {
        let armed = if armed { ARMED } else { 0 };
        let kept = seen.0 & (GENERATION | CONCURRENT | CALLED);
        let word = with_interest(kept | REST | armed, interest);
        // Release: pairs with the acquire in `enter` and `request`; publishes what the handler did.
        let released =
            self.slot.word.compare_exchange(seen.0, word, Ordering::Release, Ordering::Relaxed);
        match released {
            Ok(_) => Ok(()),
            Err(_) => Err(self),
        }
    }

    /// Takes the value out. The slot stays OWNED by the caller until [`Empty::vacate`].
    pub(crate) fn take(self) -> (T, Empty<'a, T>) {
        // SAFETY: the phase is OWNED and by us, so nobody else touches the value (see `Slot`).
        let place = unsafe { &mut *self.slot.value.get() };
        (place.take().expect("an owned slot has a value"), Empty { slot: self.slot })
    }
}

impl<T> Deref for Owned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the phase is OWNED and by us, so nobody else touches the value (see `Slot`).
        let value = unsafe { &*self.slot.value.get() };
        value.as_ref().expect("an owned slot has a value")
    }
}

impl<T> DerefMut for Owned<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the phase is OWNED and by us, so nobody else touches the value, and `&mut self`
        // keeps us from having it twice.
        let value = unsafe { &mut *self.slot.value.get() };
        value.as_mut().expect("an owned slot has a value")
    }
}

/// An OWNED slot without a value: its tenant has not come yet, or is gone already.
pub(crate) struct Empty<'a, T> {
    slot: &'a Slot<T>,
}

impl<'a, T> Empty<'a, T> {
    /// Moves a value in.
    pub(crate) fn fill(self, value: T) -> Owned<'a, T> {
        // SAFETY: the phase is OWNED and by us, so nobody else touches the value (see `Slot`).
        let place = unsafe { &mut *self.slot.value.get() };
        *place = Some(value);
        Owned { slot: self.slot }
    }

    /// Ends the tenancy.
    pub(crate) fn vacate(self) -> Vacated {
        let next = |word: u64| (word & GENERATION).wrapping_add(1 << GENERATION_SHIFT);
        // Release: pairs with the acquire in `generation` and `reserve`; the hook has run and the
        // value is gone.
        let update = |word| Some(next(word));
        let before = self.slot.word.fetch_update(Ordering::Release, Ordering::Relaxed, update);
        let before = before.expect("the update always gives a word");
        Vacated {
            awaited: before & AWAITED != 0,
            retimed: before & RETIMED != 0,
            worn_out: next(before) == 0,
        }
    }
}

/// A slot whose tenant is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacated {
    /// Somebody waits to hear of it.
    pub(crate) awaited: bool,
    /// Its deadline was set from outside, and nobody has looked what to.
    pub(crate) retimed: bool,
    /// Every generation has been used. Another tenant would have the name of an earlier one, so there
    /// must be none.
    pub(crate) worn_out: bool,
}

/// Possession together with other threads: `&T` only.
pub(crate) struct Shared<'a, T> {
    slot: &'a Slot<T>,
}

impl<'a, T> Shared<'a, T> {
    /// The word as it is now.
    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with the release in `request`.
        State(self.slot.word.load(Ordering::Acquire))
    }

    /// Goes. The last to go while something has been asked for becomes the owner and must settle it.
    pub(crate) fn leave(self) -> Option<Owned<'a, T>> {
        let last_with_requests = |word: u64| word & SHARERS == ONE_SHARER && asked(word);
        // Release: pairs with the acquire in `enter` and here; what this thread did through `&T`
        // comes before the exclusive access of whoever owns the value next, maybe ourselves.
        let before = self.slot.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            let fewer = word - ONE_SHARER;
            Some(if last_with_requests(word) { fewer & !PHASE | OWNED } else { fewer })
        });
        before.is_ok_and(last_with_requests).then_some(Owned { slot: self.slot })
    }
}

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `enter` counted us among the sharers at phase REST, and the phase cannot become
        // OWNED while there are sharers; so nobody has the value mutably.
        let value = unsafe { &*self.slot.value.get() };
        value.as_ref().expect("a shared slot has a value")
    }
}

/// A word as it was seen.
#[derive(Clone, Copy)]
pub(crate) struct State(u64);

impl State {
    pub(crate) fn is_armed(self) -> bool {
        self.0 & ARMED != 0
    }

    /// The event, or all of them together, that came while the slot was owned.
    pub(crate) fn reported(self) -> Option<Flags> {
        (self.0 & REPORTED != 0).then(|| unpack_ready(self.0))
    }

    /// The interest, if it was set from outside while the slot was owned.
    pub(crate) fn changed(self) -> Option<Interest> {
        (self.0 & CHANGED != 0).then(|| self.interest())
    }

    /// Whether the handle is to be armed, if that was set from outside while the slot was owned.
    pub(crate) fn steered(self) -> Option<bool> {
        (self.0 & STEERED != 0).then(|| self.is_armed())
    }

    /// Whether the deadline may have passed while the slot was owned.
    pub(crate) fn expired(self) -> bool {
        self.0 & EXPIRED != 0
    }

    /// Whether the deadline was set from outside while the slot was owned.
    pub(crate) fn retimed(self) -> bool {
        self.0 & RETIMED != 0
    }

    /// Whether somebody wants the handler called.
    pub(crate) fn called(self) -> bool {
        self.0 & CALLED != 0
    }

    /// Whether there is something to absorb.
    pub(crate) fn has_news(self) -> bool {
        self.0 & NEWS != 0
    }

    /// Why the slot is to be vacated, if it is.
    pub(crate) fn removal(self) -> Option<Cause> {
        const CAUSES: [Cause; 5] =
            [Cause::Removed, Cause::Verdict, Cause::Panic, Cause::Shutdown, Cause::Swapped];
        let cause = (self.0 >> CAUSE_SHIFT) as usize & 0b111;
        (self.0 & REMOVE != 0).then(|| CAUSES[cause])
    }

    /// The same word without its news.
    pub(crate) fn absorbed(self) -> State {
        State(self.0 & !NEWS)
    }

    pub(crate) fn interest(self) -> Interest {
        Interest::from_bits((self.0 >> INTEREST_SHIFT) as u8 & INTEREST_BITS)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.0 & PHASE {
            VACANT => "VACANT",
            REST => "REST",
            _ => "OWNED",
        };
        write!(f, "{phase}#{}", self.0 >> GENERATION_SHIFT)?;
        let flags = [
            (ARMED, "ARMED"),
            (REPORTED, "REPORTED"),
            (CHANGED, "CHANGED"),
            (STEERED, "STEERED"),
            (REMOVE, "REMOVE"),
            (AWAITED, "AWAITED"),
            (CONCURRENT, "CONCURRENT"),
            (CALLED, "CALLED"),
            (EXPIRED, "EXPIRED"),
            (RETIMED, "RETIMED"),
        ];
        for (_, name) in flags.iter().filter(|(flag, _)| self.0 & flag != 0) {
            write!(f, " {name}")?;
        }
        match (self.0 & SHARERS) / ONE_SHARER {
            0 => Ok(()),
            sharers => write!(f, " {sharers} sharers"),
        }
    }
}

/// A value that is reached by `&mut` only, and can therefore be shared without being `Sync`.
pub(crate) struct OnlyMut<T>(T);

// SAFETY: with a shared reference to an `OnlyMut` one can do nothing: its field is private, and the
// only access takes `&mut self` or the value itself.
unsafe impl<T: Send> Sync for OnlyMut<T> {}

impl<T> OnlyMut<T> {
    pub(crate) fn new(value: T) -> OnlyMut<T> {
        OnlyMut(value)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

enum Outcome {
    Owned(Flags),
    Shared,
    Noted,
    Dormant,
    Stale,
}

/// What an event does to a word; `None` leaves it as it is. That a word is judged by a mere load then
/// is enough: an event is reported after the kernel was told to report it, and the word was right
/// before the kernel was told.
fn on_event(word: u64, generation: u32, flags: Flags) -> (Option<u64>, Outcome) {
    if !is_tenant(word, generation) {
        return (None, Outcome::Stale);
    }
    let from_kernel = flags.without(TIMEOUT | MESSAGE);
    let expired = flags.contains(TIMEOUT);
    if word & PHASE == OWNED {
        // The owner sees CALLED by itself.
        let reported = if from_kernel.is_empty() { 0 } else { REPORTED | pack_ready(from_kernel) };
        let next = word | reported | if expired { EXPIRED } else { 0 };
        return ((next != word).then_some(next), Outcome::Noted);
    }
    // Requests of a shared slot are settled by the last sharer, which polls again; more sharers would
    // delay it.
    let deaf = word & ARMED == 0 || asked(word);
    let heard = if deaf { Flags::default() } else { from_kernel };
    if word & CONCURRENT != 0 {
        assert_ne!(word & SHARERS, SHARERS, "more threads in one slot than a pool can have");
        return match heard.is_empty() {
            true => (None, Outcome::Dormant),
            false => (Some(word + ONE_SHARER), Outcome::Shared),
        };
    }
    let call = if word & CALLED != 0 { MESSAGE } else { Flags::default() };
    let timeout = if expired { TIMEOUT } else { Flags::default() };
    let all = heard | timeout | call;
    if all.is_empty() {
        // A call that somebody else has taken along was not lost.
        let outcome = if from_kernel.is_empty() { Outcome::Noted } else { Outcome::Dormant };
        return (None, outcome);
    }
    (Some(word & !(PHASE | CALLED) | OWNED), Outcome::Owned(all))
}

fn is_tenant(word: u64, generation: u32) -> bool {
    word >> GENERATION_SHIFT == u64::from(generation) && word & PHASE != VACANT
}

fn can_be_owned(word: u64) -> bool {
    word & PHASE == REST && word & SHARERS == 0
}

fn asked(word: u64) -> bool {
    word & (CHANGED | STEERED | REMOVE) != 0
}

fn with_interest(word: u64, interest: Interest) -> u64 {
    word & !(u64::from(INTEREST_BITS) << INTEREST_SHIFT)
        | u64::from(interest.bits()) << INTEREST_SHIFT
}

/// IN, PRI, OUT, ERR and HUP are the kernel's lowest five bits; RDHUP follows them here.
fn pack_ready(flags: Flags) -> u64 {
    let low = u64::from(flags.bits() & LOW_READY);
    let read_closed = u64::from(flags.contains(Flags::RDHUP)) << 5;
    (low | read_closed) << READY_SHIFT
}

fn unpack_ready(word: u64) -> Flags {
    let ready = (word & READY) >> READY_SHIFT;
    let low = Flags::from_bits(ready as u32 & LOW_READY);
    if ready & 1 << 5 != 0 { low | Flags::RDHUP } else { low }
}

const LOW_READY: u32 = 0x1f;

const PHASE: u64 = 0b11;
const VACANT: u64 = 0;
const REST: u64 = 1;
const OWNED: u64 = 2;

const ARMED: u64 = 1 << 2;
const REPORTED: u64 = 1 << 3;
const CHANGED: u64 = 1 << 4;
const REMOVE: u64 = 1 << 5;
const AWAITED: u64 = 1 << 6;
const CONCURRENT: u64 = 1 << 7;
const STEERED: u64 = 1 << 11;
const CALLED: u64 = 1 << 15;
const EXPIRED: u64 = 1 << 32;
const RETIMED: u64 = 1 << 33;

/// What others leave for an owner to see.
const NEWS: u64 = REPORTED | READY | CHANGED | STEERED | EXPIRED | RETIMED;

const INTEREST_SHIFT: u32 = 8;
const INTEREST_BITS: u8 = (1 << Interest::BITS) - 1;

const CAUSE_SHIFT: u32 = 12;

const READY_SHIFT: u32 = 16;
const READY: u64 = 0b11_1111 << READY_SHIFT;

const ONE_SHARER: u64 = 1 << 22;
const SHARERS: u64 = 0x3ff << 22;

/// How many threads can share one slot.
pub(crate) const MOST_SHARERS: usize = 0x3ff;

/// A tenant's habits: a moving average in ticks of so many nanoseconds, and above it what was declared.
const TICK: u64 = 256;
const DECLARED_SHIFT: u32 = 30;
const LONGEST: u64 = (1 << DECLARED_SHIFT) - 1;

const GENERATION_SHIFT: u32 = 34;
const GENERATION: u64 = !0 << GENERATION_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_survives_packing() {
        let all = [Flags::IN, Flags::PRI, Flags::OUT, Flags::ERR, Flags::HUP, Flags::RDHUP];
        for flags in all.into_iter().chain([Flags::IN | Flags::RDHUP | Flags::HUP]) {
            assert_eq!(unpack_ready(pack_ready(flags)), flags);
            assert_eq!(pack_ready(flags) & !READY, 0);
        }
    }

    #[test]
    fn the_fields_of_the_word_do_not_overlap() {
        let interest = u64::from(INTEREST_BITS) << INTEREST_SHIFT;
        let cause = 0b111 << CAUSE_SHIFT;
        let flags = ARMED | REPORTED | CHANGED | REMOVE | AWAITED | CONCURRENT | STEERED;
        let later = CALLED | EXPIRED | RETIMED;
        let fields = [PHASE, flags, later, interest, cause, READY, SHARERS, GENERATION];
        assert_eq!(fields.iter().fold(0, |all, field| all ^ field), !0);
    }

    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn what_was_learned_of_a_handler_is_what_it_usually_takes() {
        for budget in [1_000, 1_700, 10_000, 2_000_000] {
            let slot: Slot<u8> = Slot::new();
            slot.learn(u64::MAX, budget);
            (0..300).for_each(|_| slot.learn(budget / 2, budget));
            assert_eq!(slot.blocking(budget), Blocking::Learned, "short again: {budget} ns");
            (0..300).for_each(|_| slot.learn(budget * 2, budget));
            assert_eq!(slot.blocking(budget), Blocking::Always, "always long: {budget} ns");
        }
    }
}
