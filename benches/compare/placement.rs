//! Who runs on which CPUs.

use cabrank::sys::sched;

use crate::load::Pace;

/// The CPUs of this machine, shared out between a server and its load.
pub(crate) struct Placement {
    all: Vec<usize>,
}

impl Placement {
    pub(crate) fn new() -> Placement {
        Placement { all: sched::allowed_cpus() }
    }

    /// Starts a server. Where the load keeps time it gets all CPUs but the last.
    pub(crate) fn server<T>(&self, pace: Pace, start: impl FnOnce() -> T) -> T {
        match self.all.split_last() {
            Some((_, rest)) if keeps_time(pace) && !rest.is_empty() => self.on(rest, start),
            _ => start(),
        }
    }

    /// Starts a load. One that keeps time has the last CPU for itself: it polls, and a server thread that
    /// woke up there would have to wait for a time slice.
    pub(crate) fn load<T>(&self, pace: Pace, start: impl FnOnce() -> T) -> T {
        match self.all.split_last() {
            Some((last, rest)) if keeps_time(pace) && !rest.is_empty() => self.on(&[*last], start),
            _ => start(),
        }
    }

    /// A process inherits the CPUs of the thread that starts it.
    fn on<T>(&self, cpus: &[usize], start: impl FnOnce() -> T) -> T {
        // Refused only where the CPUs have been taken away from us meanwhile: then all share what is left.
        let _ = sched::restrict_to_cpus(cpus);
        let started = start();
        let _ = sched::restrict_to_cpus(&self.all);
        started
    }
}

fn keeps_time(pace: Pace) -> bool {
    matches!(pace, Pace::Open { .. })
}
