//! How many connections a listener lets in, and how it hears that one has gone.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::handle_set::HandleSet;
use crate::handler::Context;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::token::HandleId;

/// A place under a listener's connection limit. Keep it with the connection: when it is dropped the place
/// is free, and a listener that waits for one goes on accepting.
///
/// Drop it after the stream, so that the descriptor is free before the place is. A struct drops its fields in
/// the order of their declaration.
#[must_use = "dropping the permit frees the connection's place under the limit"]
pub struct Permit {
    gate: Arc<Gate>,
}

/// What a listener and its permits share.
pub(crate) struct Gate {
    places: Places,
    /// Whom to tell of a free place. Set by the listener's first call, and needed only after it.
    listener: OnceLock<(HandleSet, HandleId)>,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) pauses: AtomicU64,
}

impl Gate {
    pub(crate) fn new(limit: usize) -> Arc<Gate> {
        Arc::new(Gate {
            places: Places::new(limit),
            listener: OnceLock::new(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
        })
    }

    /// Who asks for places, and is to be told of free ones.
    pub(crate) fn attend(&self, cx: &Context<'_>) {
        self.listener.get_or_init(|| (cx.handles().clone(), cx.id()));
    }

    /// A place, if there is one and the gate is not held. If not, the listener is called when one becomes
    /// free, also if that is before it has got itself suspended.
    pub(crate) fn take(self: &Arc<Gate>) -> Option<Permit> {
        self.places.take().then(|| Permit { gate: Arc::clone(self) })
    }

    /// Lets nobody in until it is released.
    pub(crate) fn hold(&self) {
        self.places.hold();
    }

    /// Undoes [`hold`](Gate::hold). The caller calls the listener.
    pub(crate) fn release(&self) {
        self.places.release();
    }

    /// How many places are taken.
    pub(crate) fn open(&self) -> usize {
        self.places.taken()
    }
}

/// Counts the connections of one listener. One word says all, so that "there is no place, wake me" and "here
/// is one" cannot miss each other.
pub(crate) struct Places {
    /// Connections times [`ONE`], [`HELD`] and [`WAITING`].
    word: AtomicUsize,
    limit: usize,
}

impl Places {
    pub(crate) fn new(limit: usize) -> Places {
        Places { word: AtomicUsize::new(0), limit: limit.min(usize::MAX / ONE) }
    }

    /// Takes a place; whether there was one. If not, the next one to leave is told that somebody waits.
    pub(crate) fn take(&self) -> bool {
        let is_free = |word: usize| word & HELD == 0 && word / ONE < self.limit;
        let next = |word| Some(if is_free(word) { word + ONE } else { word | WAITING });
        // Acquire: pairs with the release in `leave`; who has a place sees what was done before it was left.
        let before = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, next);
        is_free(before.unwrap_or_else(|word| word))
    }

    /// Leaves a place; whether somebody waits for one, and is to be told by the caller.
    pub(crate) fn leave(&self) -> bool {
        let next = |word: usize| Some((word - ONE) & !WAITING);
        // Release: pairs with the acquire in `take`.
        let before = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        before.unwrap_or_else(|word| word) & WAITING != 0
    }

    fn hold(&self) {
        // Relaxed: guards no data.
        self.word.fetch_or(HELD, Ordering::Relaxed);
    }

    fn release(&self) {
        // Relaxed: guards no data, and calling the listener orders this before its call.
        self.word.fetch_and(!HELD, Ordering::Relaxed);
    }

    fn taken(&self) -> usize {
        // Relaxed: a glance.
        self.word.load(Ordering::Relaxed) / ONE
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let waits = self.gate.places.leave();
        if let Some((handles, id)) = self.gate.listener.get().filter(|_| waits) {
            // A listener that is gone needs no place.
            let _ = handles.notify(*id);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("open", &self.gate.open()).finish_non_exhaustive()
    }
}

/// The listener has asked in vain, and is to be called.
const WAITING: usize = 1;
/// The listener is to accept nobody for now.
const HELD: usize = 2;
/// One connection.
const ONE: usize = 4;

/// Every interleaving of two that leave with one that asks: see docs/contributing.md.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    #[test]
    fn who_asks_in_vain_is_told_by_who_leaves() {
        loom::model(|| {
            let places = Arc::new(Places::new(2));
            assert!(places.take() && places.take());
            let leavers: Vec<_> = (0..2)
                .map(|_| {
                    let places = Arc::clone(&places);
                    thread::spawn(move || places.leave())
                })
                .collect();
            let got = places.take();
            let told = leavers.into_iter().map(|leaver| leaver.join().unwrap());
            let told = told.filter(|&told| told).count();
            assert_eq!(told, usize::from(!got));
            assert_eq!(places.taken(), usize::from(got));
        });
    }
}
