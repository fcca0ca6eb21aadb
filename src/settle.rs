//! Giving a handle back: the kernel is told what is wanted, then the slot is released.

use std::io;

use crate::cell::{Cause, Owned};
use crate::handler::Deactivation;
use crate::interest::{Interest, MESSAGE, TIMEOUT};
use crate::sys::epoll::Flags;

/// A value in a slot, as far as the kernel is concerned.
pub(crate) trait Tenant {
    fn arming(&mut self) -> &mut Arming;
}

/// Who carries out what is wanted of a tenant.
pub(crate) trait Office<T> {
    /// Tells the kernel what to report.
    fn tell(&self, tenant: &T, flags: Flags) -> io::Result<()>;

    /// Sees to it that the tenant's deadline is looked after. `expired` says that it may have passed,
    /// `retimed` that it was set from outside. Returns whether it has passed.
    fn look_after_deadline(&self, tenant: &mut T, expired: bool, retimed: bool) -> bool;
}

/// How a handle is armed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arming {
    pub(crate) deactivation: Deactivation,
    /// What the kernel will report, as far as the slot's owner knows: `None` if it is disarmed.
    pub(crate) armed: Option<Interest>,
}

/// What an owner wants of its handle when it gives the slot back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) armed: bool,
    pub(crate) interest: Interest,
    /// Have the kernel look again even if it has been told all this before.
    pub(crate) poll: bool,
}

/// What became of it.
pub(crate) enum Settled<'a, T> {
    /// The slot is at rest.
    AtRest {
        /// How often the handle was armed.
        rearms: u32,
        /// The next event, which is the caller's to pass on. If it is the kernel's, a one-shot handle stays
        /// disarmed for it.
        again: Option<Flags>,
    },
    /// The tenant has to leave; the caller owns it still.
    Leaves { owned: Owned<'a, T>, why: Why },
}

pub(crate) enum Why {
    Asked(Cause),
    /// The kernel refused.
    Refused(io::Error),
}

/// Tells the kernel what is wanted and gives the slot back, again and again until nothing more was asked
/// for meanwhile.
///
/// The kernel is told first and the slot given back second. The other way round somebody could take the
/// handle out in between, and we would arm whoever has its number by then (I7). The price is that the
/// next event may come before the slot is back. Somebody else has noted it then, and the caller passes it
/// on (I5). Polling for it again instead could go on for ever, with a thread that is waiting for it.
pub(crate) fn settle<'a, T: Tenant>(
    mut owned: Owned<'a, T>,
    wanted: Wanted,
    office: &impl Office<T>,
) -> Settled<'a, T> {
    let Wanted { mut armed, mut interest, poll } = wanted;
    // A one-shot handle is polled by being armed.
    let mut poll = poll && owned.arming().deactivation == Deactivation::Edge;
    let mut again = None;
    let mut own = Flags::default();
    let mut rearms = 0;
    loop {
        let mut seen = owned.state();
        let (mut expired, mut retimed) = (false, false);
        if seen.has_news() {
            let asked = owned.absorb();
            interest = asked.changed().unwrap_or(interest);
            armed = asked.steered().unwrap_or(armed);
            // What came to a shared handle while this was asked for was dropped.
            poll |= asked.changed().is_some() || asked.steered().is_some();
            (expired, retimed) = (asked.expired(), asked.retimed());
            if let Some(flags) = asked.reported() {
                if owned.arming().deactivation == Deactivation::OneShot {
                    owned.arming().armed = None;
                }
                if rearms > 0 {
                    // The kernel has polled at our word, so it is true and the latest.
                    again = Some(flags);
                } else {
                    poll = true;
                }
            }
            seen = asked.absorbed();
        }
        if let Some(cause) = seen.removal() {
            if retimed {
                // What was asked for is fetched all the same, and forgotten with the rest.
                office.look_after_deadline(&mut owned, false, true);
            }
            return Settled::Leaves { owned, why: Why::Asked(cause) };
        }
        if office.look_after_deadline(&mut owned, expired, retimed) {
            own |= TIMEOUT;
        }
        if seen.called() {
            own |= MESSAGE;
        }
        let wanted = armed.then_some(interest);
        let passed_on = armed && again.is_some();
        let Arming { deactivation, armed: told } = *owned.arming();
        if !passed_on && (told != wanted || armed && poll) {
            if let Err(error) = office.tell(&owned, deactivation.flags(wanted)) {
                return Settled::Leaves { owned, why: Why::Refused(error) };
            }
            owned.arming().armed = wanted;
            poll = false;
            rearms += u32::from(armed);
        }
        match owned.release(seen, armed, interest) {
            Ok(()) => {
                let all = own | again.unwrap_or_default();
                return Settled::AtRest { rearms, again: (!all.is_empty()).then_some(all) };
            }
            Err(still_owned) => owned = still_owned,
        }
    }
}

impl Deactivation {
    /// What to tell the kernel; without an interest, to report nothing.
    pub(crate) fn flags(self, armed: Option<Interest>) -> Flags {
        match (armed, self) {
            (Some(interest), Deactivation::OneShot) => interest.flags() | Flags::ONESHOT,
            (Some(interest), Deactivation::Edge) => interest.flags() | Flags::ET,
            // A disarmed handle can still report an error or hang-up, but only once; that one finds
            // the slot not armed and is dropped, and re-arming reports it again.
            (None, _) => Flags::ONESHOT,
        }
    }
}
