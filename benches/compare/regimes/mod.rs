//! The kinds of load, and the points at which each is measured.

mod points;

use crate::args::Options;
use crate::contestants::Contestant;
use crate::results::Focus;
use crate::runner::{ATTACHING, COUNTED_SECONDS};

/// A regime that can be chosen.
pub(crate) struct Regime {
    pub(crate) name: &'static str,
    /// What it asks.
    pub(crate) question: &'static str,
    focus: fn() -> Focus,
    points: fn(&Options) -> Points,
    /// A sweep over many points: half as many rounds for each.
    is_long: bool,
}

/// A regime with what has been chosen for it.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) question: &'static str,
    pub(crate) focus: Focus,
    pub(crate) rounds: usize,
    pub(crate) points: Vec<Point>,
    /// A sentence for each thing that is not done.
    pub(crate) left_out: Vec<String>,
}

struct Points {
    points: Vec<Point>,
    left_out: Vec<String>,
}

/// One point of a regime: what is asked of whom.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) axis: Option<(&'static str, f64)>,
    /// Unix sockets instead of TCP.
    pub(crate) unix: bool,
    pub(crate) threads: usize,
    pub(crate) connections: usize,
    pub(crate) idle: usize,
    pub(crate) demand: Demand,
    pub(crate) work_us: u64,
    pub(crate) block_us: u64,
    pub(crate) block_percent: u32,
    /// The limit comes first.
    pub(crate) contestants: Vec<Contestant>,
    /// The limit is that of the regime's first point, which nothing here changes.
    pub(crate) borrows_limit: bool,
    pub(crate) counts_syscalls: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// As much as the server can.
    Peak,
    /// So many requests per second, `burst` of them at one instant.
    Rate { rate: f64, burst: usize },
    /// So many times the peak of the limit.
    TimesPeak(f64),
}

impl Regime {
    pub(crate) fn by_name(name: &str) -> Option<&'static Regime> {
        ALL.iter().find(|regime| regime.name == name)
    }

    pub(crate) fn plan(&self, options: &Options) -> Plan {
        let rounds = if self.is_long { options.rounds.div_ceil(2) } else { options.rounds };
        let (name, question, focus) = (self.name, self.question, (self.focus)());
        let Points { points, left_out } = (self.points)(options);
        Plan { name, question, focus, rounds, points, left_out }
    }
}

impl Plan {
    pub(crate) fn has(&self, contestant: Contestant) -> bool {
        self.points.iter().any(|point| point.contestants.contains(&contestant))
    }

    pub(crate) fn exclude(&mut self, contestant: Contestant) {
        for point in &mut self.points {
            point.contestants.retain(|other| *other != contestant);
        }
    }

    /// How long it should take.
    pub(crate) fn expected_seconds(&self, options: &Options) -> f64 {
        let of_point = |point: &Point| {
            let round = point.expected_seconds(options.seconds, options);
            let mut each = self.rounds as f64 * round;
            if options.syscalls && point.counts_syscalls {
                each += point.expected_seconds(COUNTED_SECONDS, options) + ATTACHING;
            }
            if options.perf {
                each += round + ATTACHING;
            }
            point.contestants.len() as f64 * each
        };
        self.points.iter().map(of_point).sum()
    }
}

impl Point {
    /// How long one contestant should take in one round of so many measured seconds.
    pub(crate) fn expected_seconds(&self, seconds: f64, options: &Options) -> f64 {
        options.warm_up + seconds + START_AND_END + self.idle as f64 * CONNECTING
    }
}

pub(crate) const ALL: [Regime; 9] = [
    Regime {
        name: "saturation",
        question: "How many requests per second at most, as a share of what one bare loop does?",
        focus: || Focus::Peak,
        points: points::saturation,
        is_long: false,
    },
    Regime {
        name: "light",
        question: "What do latency, CPU and switches cost when there is little to do?",
        focus: || Focus::Latency,
        points: points::light,
        is_long: false,
    },
    Regime {
        name: "handler-time",
        question: "From which handler time on do more threads pay, and are all CPUs used then?",
        focus: || Focus::Peak,
        points: points::handler_time,
        is_long: false,
    },
    Regime {
        name: "blocking",
        question: "When some handlers block without saying so, how long do the other requests wait?",
        focus: || Focus::Latency,
        points: points::blocking,
        is_long: false,
    },
    Regime {
        name: "one-active",
        question: "What do many threads cost when one connection alone is active?",
        focus: || Focus::Peak,
        points: points::one_active,
        is_long: false,
    },
    Regime {
        name: "idle-crowd",
        question: "What do thousands of idle connections cost those that are active?",
        focus: || Focus::Peak,
        points: points::idle_crowd,
        is_long: false,
    },
    Regime {
        name: "bursts",
        question: "When K requests come at one instant, how long does the last of them wait?",
        focus: || Focus::Latency,
        points: points::bursts,
        is_long: true,
    },
    Regime {
        name: "pool-size",
        question: "How many threads are too many?",
        focus: || Focus::Peak,
        points: points::pool_size,
        is_long: true,
    },
    Regime {
        name: "overload",
        question: "What is still served, and how late, when more comes than anybody can serve?",
        focus: || Focus::Latency,
        points: points::overload,
        is_long: false,
    },
];

/// Seconds that a pair of processes takes to start and to end.
const START_AND_END: f64 = 0.08;

/// Seconds that a connection takes to be made.
const CONNECTING: f64 = 60e-6;
