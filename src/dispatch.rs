//! From an event to its handler and back: claim the slot, run the handler, carry out what it and
//! others want, give the slot back.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use crate::cell::{Cause, Entered, Owned, Request, Shared};
use crate::demux::{Demultiplexer, Dispatched};
use crate::entry::Entry;
use crate::handle_set::{HandleSet, Inner};
use crate::handler::{Blocking, Caller, Context, Deactivation, Next, Reason, Sharing};
use crate::interest::{MESSAGE, Ready, TIMEOUT};
use crate::settle::{Office, Settled, Wanted, Why, settle};
use crate::sync::atomic::Ordering;
use crate::sync::now;
use crate::sys::epoll::{Event, Events, Flags};
use crate::token::{HandleId, Token};
use crate::upcall::{self, Panicked};

impl Demultiplexer for HandleSet {
    fn wait(
        &self,
        events: &mut Events,
        most: usize,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        self.inner.epoll.wait_at_most(events, most, timeout)?;
        let woken = events.take_out(Token::WAKER);
        if woken {
            self.inner.waker.answered();
            self.inner.collect(events);
        }
        if events.take_out(Token::ALARM) {
            let event = |token: Token| Event::new(TIMEOUT, token.pack());
            self.inner.deadlines.ring(now(), |token| events.push(event(token)));
        }
        Ok(woken)
    }

    fn dispatch(&self, event: Event, caller: Caller<'_>) -> Dispatched {
        let token = Token::unpack(event.data());
        let stale = Dispatched { stale: true, ..Dispatched::default() };
        let mut cx = Context::new(HandleId { token, set: self.inner.id }, self, caller);
        if event.data() == Token::POST {
            return self.inner.run_posted(&mut cx);
        }
        let Some(slot) = self.inner.table.get(token.slot) else { return stale };
        match slot.enter(token.generation, event.flags()) {
            Entered::Owned(owned, flags) => self.inner.serve(owned, flags, &mut cx),
            Entered::Shared(shared) => self.inner.serve_shared(shared, event.flags(), &mut cx),
            // Its owner has been told, and polls it again.
            Entered::Noted => Dispatched { noted: true, ..Dispatched::default() },
            Entered::Dormant | Entered::Stale => stale,
        }
    }

    fn blocking(&self, event: Event, budget: u64) -> Blocking {
        if !self.inner.has_habits() {
            return Blocking::Learned;
        }
        let slot = self.inner.table.get(Token::unpack(event.data()).slot);
        slot.map_or(Blocking::Learned, |slot| slot.blocking(budget))
    }

    fn learn(&self, event: Event, took: u64, budget: u64) {
        if !self.inner.has_habits() {
            if took <= budget {
                // One that never takes longer does not usually do so.
                return;
            }
            self.inner.note_habits();
        }
        if let Some(slot) = self.inner.table.get(Token::unpack(event.data()).slot) {
            slot.learn(took, budget);
        }
    }

    fn wake(&self) {
        self.inner.waker.wake();
    }

    fn is_ours(&self) -> bool {
        self.inner.process.is_current()
    }

    fn refuse_forked_child(&self) {
        self.inner.process.refuse_child();
    }

    fn clear(&self) {
        HandleSet::clear(self);
    }
}

impl Inner {
    /// Runs a handler that is ours alone, and carries out its verdict.
    fn serve(&self, mut owned: Owned<'_, Entry>, flags: Flags, cx: &mut Context<'_>) -> Dispatched {
        let token = cx.id().token;
        let from_kernel = !flags.without(TIMEOUT | MESSAGE).is_empty();
        if from_kernel && owned.arming.deactivation == Deactivation::OneShot {
            owned.arming.armed = None;
        }
        let flags = self.check_deadline(&mut owned, flags, cx);
        let state = owned.state();
        let interest = state.interest();
        let only_mail = flags == MESSAGE && owned.fd().is_none();
        if flags.is_empty() || only_mail && !state.is_armed() {
            // The deadline has been moved, or a mailbox is suspended, which finds its mail when it is
            // resumed.
            let wanted = Wanted { armed: state.is_armed(), interest, poll: false };
            let given = self.settle(owned, token, wanted);
            let again = given.again.and_then(|flags| self.pass_on(flags, token));
            let panicked = given.panicked;
            return Dispatched { noted: true, again, panicked, ..Dispatched::default() };
        }
        let verdict = self.call(|| owned.ready(Ready::from(flags), cx));
        self.process.refuse_child();
        if let Some(due) = cx.take_deadline() {
            owned.deadline.due = due;
        }
        let panicked = u32::from(cx.has_panicked());
        let mut dispatched = Dispatched { handled: true, panicked, ..Dispatched::default() };
        let wanted = match verdict {
            Ok((Next::Rearm(interest), true)) => Wanted { armed: true, interest, poll: true },
            Ok((Next::Drained(interest), true)) => Wanted { armed: true, interest, poll: false },
            Ok((Next::Suspend, true)) => Wanted { armed: false, interest, poll: false },
            Ok((Next::Close, _)) => {
                dispatched.panicked += self.evict(owned, token, Reason::Closed);
                return dispatched;
            }
            Ok((_, false)) => {
                dispatched.panicked += self.evict(owned, token, Reason::DescriptorChanged);
                return dispatched;
            }
            Err(Panicked) => {
                dispatched.panicked += 1 + self.evict(owned, token, Reason::Panicked);
                return dispatched;
            }
        };
        // A failure has closed the handle and told its hook: nobody else is there to hear of it.
        let given = self.settle(owned, token, wanted);
        dispatched.rearms = given.rearms;
        dispatched.again = given.again.and_then(|flags| self.pass_on(flags, token));
        dispatched.panicked += given.panicked;
        dispatched
    }

    /// Runs a handler beside other threads. What it wants is asked of the slot as from outside, and
    /// settled by the last thread to leave; only polling again can be done at once.
    #[inline(never)]
    fn serve_shared(
        &self,
        shared: Shared<'_, Entry>,
        flags: Flags,
        cx: &mut Context<'_>,
    ) -> Dispatched {
        let token = cx.id().token;
        let sharer = Sharer::new(self.desk(token), &shared);
        let verdict =
            self.call(|| shared.ready_shared(Ready::from(flags), &mut cx.shared(&sharer)));
        self.process.refuse_child();
        let rearms = sharer.told.get();
        let verdict = verdict.map(|(next, same)| (next, same && !sharer.refused.get()));
        let mut dispatched = Dispatched { handled: true, rearms, ..Dispatched::default() };
        let current = shared.state().interest();
        let remove = |cause| Some(Request::Remove { cause, awaited: false });
        let request = match verdict {
            Ok((Next::Rearm(interest) | Next::Drained(interest), true)) if interest != current => {
                Some(Request::PreferInterest(interest))
            }
            Ok((Next::Rearm(interest), true)) => {
                // Before we leave: a request to suspend is settled after the last of us has left, so
                // the kernel hears of it after this.
                let flags = shared.arming.deactivation.flags(Some(interest));
                match self.desk(token).tell(&shared, flags) {
                    Ok(()) => {
                        dispatched.rearms += 1;
                        None
                    }
                    // Nothing else makes the kernel refuse to poll again what it has polled.
                    Err(_) => remove(Cause::Swapped),
                }
            }
            Ok((Next::Drained(_), true)) => None,
            Ok((Next::Suspend, true)) => Some(Request::PreferSuspend),
            Ok((Next::Close, _)) => remove(Cause::Verdict),
            Ok((_, false)) => remove(Cause::Swapped),
            Err(Panicked) => {
                dispatched.panicked += 1;
                remove(Cause::Panic)
            }
        };
        if let (Some(request), Some(slot)) = (request, self.table.get(token.slot)) {
            // Deferred, because we are a sharer still.
            let _ = slot.request(token.generation, request);
        }
        if let Some(owned) = shared.leave() {
            dispatched.panicked += self.settle_asked(owned, token).panicked;
        }
        dispatched
    }

    /// Carries out what was asked of a slot that was at rest, and gives it back.
    ///
    /// # Errors
    /// The kernel's, after the handle has been closed.
    pub(crate) fn settle_request(&self, owned: Owned<'_, Entry>, token: Token) -> io::Result<()> {
        self.settle_asked(owned, token).refused.map_or(Ok(()), Err)
    }

    fn settle_asked(&self, owned: Owned<'_, Entry>, token: Token) -> Given {
        let state = owned.state();
        let (armed, interest) = (state.is_armed(), state.interest());
        let given = self.settle(owned, token, Wanted { armed, interest, poll: false });
        if let Some(flags) = given.again {
            self.hand_in(Event::new(flags, token.pack()));
        }
        given
    }

    /// Gives a slot back, or takes out the handle where that is asked for or the kernel refuses.
    #[inline]
    fn settle(&self, owned: Owned<'_, Entry>, token: Token, wanted: Wanted) -> Given {
        match settle(owned, wanted, &self.desk(token)) {
            Settled::AtRest { rearms, again } => Given { rearms, again, ..Given::default() },
            Settled::Leaves { owned, why: Why::Asked(cause) } => {
                Given { panicked: self.evict(owned, token, cause.into()), ..Given::default() }
            }
            Settled::Leaves { owned, why: Why::Refused(error) } => {
                let panicked = self.evict(owned, token, Reason::Failed(copy(&error)));
                Given { panicked, refused: Some(error), ..Given::default() }
            }
        }
    }

    /// The next event of a handle, for the calling thread to pass on. One that the kernel knows nothing of
    /// takes its turn behind what the kernel has to report: a handler that calls itself again and again
    /// would be all that is ever left over.
    #[cold]
    fn pass_on(&self, flags: Flags, token: Token) -> Option<Event> {
        let event = Event::new(flags, token.pack());
        if flags.without(TIMEOUT | MESSAGE).is_empty() {
            self.hand_in(event);
            return None;
        }
        Some(event)
    }

    /// If it is called because its deadline may have passed: takes note, and the time-out out of `flags`
    /// if there is time left.
    fn check_deadline(&self, entry: &mut Entry, flags: Flags, cx: &mut Context<'_>) -> Flags {
        if !flags.contains(TIMEOUT) {
            return flags;
        }
        match entry.deadline.arrived(now()) {
            Some(deadline) if entry.has_deadlines() => {
                cx.set_passed(deadline);
                flags
            }
            _ => flags.without(TIMEOUT),
        }
    }

    /// Whether what is known of each handler is worth a look.
    fn has_habits(&self) -> bool {
        // Relaxed, here and below: it decides about speed, not about right and wrong.
        self.has_habits.load(Ordering::Relaxed)
    }

    pub(crate) fn note_habits(&self) {
        self.has_habits.store(true, Ordering::Relaxed);
    }

    /// Calls user code on behalf of this set, contained.
    pub(crate) fn call<R>(&self, code: impl FnOnce() -> R) -> Result<R, Panicked> {
        upcall::contain_for(Some(self.id), self.on_panic, code)
    }

    fn desk(&self, token: Token) -> Desk<'_> {
        Desk { inner: self, token }
    }

    /// Takes the handle out of the kernel, tells the hook, drops the handler, frees the slot. Returns how
    /// often user code has panicked.
    #[cold]
    fn evict(&self, owned: Owned<'_, Entry>, token: Token, reason: Reason) -> u32 {
        let (mut entry, empty) = owned.take();
        self.deadlines.forget(token, &entry.deadline);
        // DEL before close (I7), but only of the descriptor that was registered: if the handler has
        // closed it, its number may be somebody else's by now. In a forked child the epoll instance
        // is the parent's, and so is the registration.
        let same = self.call(|| entry.has_its_descriptor());
        let ours = matches!(same, Ok(true));
        let in_own_process = self.process.is_current();
        if let Some(fd) = entry.fd().filter(|_| ours && in_own_process) {
            // ENOENT or EBADF: closed behind our back, and so gone already.
            let _ = self.epoll.delete_raw(fd);
        }
        // The hook's panic, or the destructor's, is contained like any other (I9).
        let id = HandleId { token, set: self.id };
        let told = self.call(|| entry.closed(id, reason));
        let dropped = self.call(|| drop(entry));
        if in_own_process {
            self.process.refuse_child();
        }
        let vacated = self.table.put_back(token.slot, empty);
        if vacated.retimed {
            self.deadlines.take_asked(token);
        }
        if vacated.awaited {
            self.announce_removal();
        }
        [same.is_err(), told.is_err(), dropped.is_err()].map(u32::from).iter().sum()
    }
}

/// What became of a handle whose slot was to be given back.
#[derive(Default)]
struct Given {
    rearms: u32,
    /// The next event, which is to be passed on.
    again: Option<Flags>,
    /// How often user code has panicked while the handle was taken out.
    panicked: u32,
    /// The kernel refused to change the registration, and the handle has been closed.
    refused: Option<io::Error>,
}

/// What a handle set does for one of its handles.
struct Desk<'a> {
    inner: &'a Inner,
    token: Token,
}

impl Office<Entry> for Desk<'_> {
    #[inline]
    fn tell(&self, entry: &Entry, flags: Flags) -> io::Result<()> {
        match entry.fd() {
            Some(fd) => self.inner.epoll.modify_raw(fd, flags, self.token.pack()),
            None => {
                self.look_for_mail(entry, flags != Deactivation::OneShot.flags(None));
                Ok(())
            }
        }
    }

    #[inline]
    fn look_after_deadline(&self, entry: &mut Entry, expired: bool, retimed: bool) -> bool {
        let has_news = expired || retimed || entry.deadline.must_be_queued();
        has_news && self.change_deadline(entry, expired, retimed)
    }
}

impl Desk<'_> {
    /// A handle that the kernel does not know is armed, or disarmed.
    #[cold]
    fn look_for_mail(&self, entry: &Entry, is_armed: bool) {
        if let Some(slot) = self.inner.table.get(self.token.slot) {
            if is_armed && entry.has_mail() {
                // The slot is ours, so the event is ours to send: `settle` sees it.
                let _ = slot.call(self.token.generation);
            }
        }
    }

    /// Most handles have no deadline, and that of most others is queued where it should be.
    #[cold]
    fn change_deadline(&self, entry: &mut Entry, expired: bool, retimed: bool) -> bool {
        let deadlines = &self.inner.deadlines;
        if let Some(due) = retimed.then(|| deadlines.take_asked(self.token)).flatten() {
            entry.deadline.due = due;
        }
        let passed = expired && entry.deadline.arrived_early(now());
        deadlines.look_after(self.token, &mut entry.deadline);
        passed
    }
}

/// One of the threads in a shared handler.
struct Sharer<'a> {
    desk: Desk<'a>,
    shared: &'a Shared<'a, Entry>,
    /// How often it has had the kernel look again.
    told: Cell<u32>,
    /// The kernel would not, which it does only to a descriptor that was closed behind our back.
    refused: Cell<bool>,
}

impl<'a> Sharer<'a> {
    fn new(desk: Desk<'a>, shared: &'a Shared<'a, Entry>) -> Sharer<'a> {
        Sharer { desk, shared, told: Cell::new(0), refused: Cell::new(false) }
    }
}

impl Sharing for Sharer<'_> {
    fn pass_on(&self) {
        // A handler that has given its descriptor away is found out when it returns.
        if !self.shared.has_its_descriptor_shared() {
            return;
        }
        // Whatever is asked for meanwhile, the last of us to leave tells the kernel after this.
        let interest = self.shared.state().interest();
        let flags = self.shared.arming.deactivation.flags(Some(interest));
        match self.desk.tell(self.shared, flags) {
            Ok(()) => self.told.set(self.told.get() + 1),
            Err(_) => self.refused.set(true),
        }
    }
}

impl From<Cause> for Reason {
    fn from(cause: Cause) -> Reason {
        match cause {
            Cause::Removed => Reason::Removed,
            Cause::Verdict => Reason::Closed,
            Cause::Panic => Reason::Panicked,
            Cause::Shutdown => Reason::Shutdown,
            Cause::Swapped => Reason::DescriptorChanged,
        }
    }
}

/// The same kernel error for the hook and for the caller.
fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}
