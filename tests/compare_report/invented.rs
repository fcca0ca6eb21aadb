//! Results that nobody measured, shaped like those that are.

use crate::compare::results::{Focus, Latency, Regime, Results, Row, Sample, Variant};

/// What each contestant is like: a request's cost in microseconds, switches and system calls for it, whether
/// other cores help, and how long others wait for a handler that blocks.
const CONTESTANTS: [(&str, f64, f64, f64, bool, f64); 15] = [
    ("bare", 5.4, 0.001, 2.05, false, 1.0),
    ("reuseport", 5.5, 0.002, 2.06, true, 0.8),
    ("floating", 6.3, 0.09, 4.0, true, 0.05),
    ("papers", 10.4, 0.99, 6.1, true, 0.06),
    ("default", 5.9, 0.003, 3.1, true, 0.03),
    ("edge", 5.5, 0.003, 2.1, true, 0.04),
    ("fifo", 5.95, 0.003, 3.1, true, 0.035),
    ("spin", 5.7, 0.001, 3.0, true, 0.03),
    ("queue", 13.2, 1.91, 7.3, true, 0.04),
    ("queue-spin", 8.8, 0.4, 5.2, true, 0.04),
    ("tokio", 7.1, 0.02, 2.4, true, 0.97),
    ("tokio-2", 6.7, 0.01, 2.3, true, 1.1),
    ("ace-tp", 66.0, 1.2, 9.5, true, 0.3),
    ("ace-dev-poll", 19.5, 0.9, 6.0, true, 0.2),
    ("asio", 7.4, 0.03, 3.2, true, 0.08),
];

/// Five rounds of every regime.
pub(crate) fn results() -> Results {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut variant = |label: String, axis, load: Load| {
        let row = |contestant: &(&'static str, _, _, _, _, _)| row(contestant, &load, &mut dice);
        Variant { label, axis, rows: CONTESTANTS.iter().map(row).collect() }
    };
    let peak = Load::default();
    let open = Load { rate: Some(5_000.0), ..peak };
    let regimes = vec![
        Regime {
            name: "saturation",
            question: "How many requests per second, when every connection always has one under way?",
            focus: Focus::Peak,
            variants: vec![
                variant("TCP".into(), None, peak),
                variant("Unix".into(), None, Load { transport: 0.6, ..peak }),
            ],
        },
        Regime {
            name: "light-load",
            question: "How long does a request take, and what does it cost, when the pool mostly sleeps?",
            focus: Focus::Latency,
            variants: vec![variant("TCP, 5,000/s".into(), None, open)],
        },
        Regime {
            name: "handler-time",
            question: "From which handler time on does a second core help?",
            focus: Focus::Peak,
            variants: [4, 8]
                .into_iter()
                .flat_map(|threads| [0.0, 1.0, 5.0, 20.0, 100.0].map(|us| (threads, us)))
                .map(|(threads, us)| {
                    let label = format!("{us} us, {threads} threads");
                    variant(label, Some(("handler us", us)), Load { handler: us, ..peak })
                })
                .collect(),
        },
        Regime {
            name: "blocking",
            question: "Do other requests wait, when some handlers block for 5 ms?",
            focus: Focus::Latency,
            variants: [1.0, 10.0, 50.0]
                .map(|percent| {
                    let load = Load { blocking: percent, ..open };
                    variant(
                        format!("{percent} % blocking, 8 threads"),
                        Some(("blocking %", percent)),
                        load,
                    )
                })
                .into(),
        },
        Regime {
            name: "one-active",
            question: "What do idle threads cost, when a single connection is active?",
            focus: Focus::Peak,
            variants: vec![variant("8 threads".into(), None, Load { transport: 4.0, ..peak })],
        },
        Regime {
            name: "pool-size",
            question: "Where does the token saturate?",
            focus: Focus::Peak,
            variants: [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
                .map(|threads| {
                    let load = Load { threads, ..peak };
                    variant(format!("{threads} threads"), Some(("threads", threads)), load)
                })
                .into(),
        },
        Regime {
            name: "overload",
            question: "What happens beyond the peak?",
            focus: Focus::Latency,
            variants: vec![variant("TCP".into(), None, Load { rate: Some(220_000.0), ..peak })],
        },
    ];
    Results { machine: machine(), regimes, skipped: skipped() }
}

fn machine() -> Vec<(String, String)> {
    let facts = [
        ("CPU", "AMD EPYC 7763 64-Core Processor, 2 cores, virtual"),
        ("kernel", "Linux 6.18.5"),
        ("commit", "11f7cb4"),
        ("rustc", "1.90.0"),
        ("options", "5 rounds of 2 s, 4 threads"),
    ];
    facts.map(|(name, value)| (name.into(), value.into())).into()
}

fn skipped() -> Vec<String> {
    vec![
        "perf: cycles and cache-misses are not supported by this machine.".into(),
        "overload of ace-tp: \"select\" knows at most <1,024> descriptors & that is that.".into(),
    ]
}

#[derive(Clone, Copy)]
struct Load {
    rate: Option<f64>,
    transport: f64,
    handler: f64,
    blocking: f64,
    threads: f64,
}

impl Default for Load {
    fn default() -> Load {
        Load { rate: None, transport: 1.0, handler: 0.0, blocking: 0.0, threads: 4.0 }
    }
}

fn row(
    &(contestant, cost, switches, syscalls, parallel, waits): &(
        &'static str,
        f64,
        f64,
        f64,
        bool,
        f64,
    ),
    load: &Load,
    dice: &mut Dice,
) -> Row {
    let cores = if parallel && load.threads > 1.0 {
        1.0 + load.handler / (load.handler + cost)
    } else {
        1.0
    };
    let crowd = 1.0 + if parallel { switches.min(0.5) * 0.04 * load.threads } else { 0.0 };
    let cpu = cost * load.transport * crowd + load.handler;
    let peak = 1e6 * cores / cpu;
    let rounds = (0..5).map(|_| {
        let noise = 1.0 + 0.05 * dice.roll();
        let rate = load.rate.map_or(peak * noise, |rate| rate.min(peak * noise));
        let queue = if load.rate.is_some_and(|rate| rate > peak) { 400.0 } else { 1.0 };
        let mut body = (12.0 + cost * 2.0 + switches * 8.0) * noise * queue;
        if contestant == "spin" {
            body *= 0.4;
        }
        let tail = 1.0 + waits * load.blocking * 4.0;
        let late = load.rate.is_some() && dice.roll() > 0.9;
        (!late).then(|| Sample {
            requests: (rate * 2.0) as u64,
            requests_per_second: rate,
            cpu_us_per_request: cpu * noise * if load.rate.is_some() { 2.3 } else { 1.0 },
            voluntary_per_request: if load.rate.is_some() {
                1.0 + switches / 3.0
            } else {
                switches * noise
            },
            involuntary_per_request: 0.004 * noise,
            latency: latency(body, tail * noise),
            blocked: (load.blocking > 0.0).then(|| latency(5_000.0 + body, 1.2 * noise)),
            generator_lag_us: load.rate.map(|_| 1.5 * noise),
        })
    });
    Row {
        contestant,
        rounds: rounds.collect(),
        syscalls_per_request: Some(syscalls),
        perf: vec![("sched:sched_wakeup".into(), switches)],
    }
}

/// A curve that begins at half the median and bends up at the end.
fn latency(body: f64, tail: f64) -> Latency {
    let at = |percentile: f64| {
        let nines = -(1.0 - percentile / 100.0_f64).max(2e-6).log10();
        body * (0.5 + 0.4 * nines + 0.12 * nines.powi(3) * tail)
    };
    let nines = (0..=28).map(|step| f64::from(step) / 7.0);
    let mut curve: Vec<f64> = nines.map(|nines| 100.0 * (1.0 - 10_f64.powf(-nines))).collect();
    curve.push(100.0);
    Latency {
        p50: at(50.0),
        p90: at(90.0),
        p99: at(99.0),
        p999: at(99.9),
        max: at(100.0),
        curve: curve.into_iter().map(|percentile| (percentile, at(percentile))).collect(),
    }
}

/// A xorshift: the same figures each time.
struct Dice(u64);

impl Dice {
    /// From -1 to 1.
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}
