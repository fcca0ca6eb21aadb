//! What was measured: regimes, their variants, contestants, rounds.

/// A whole run.
pub(crate) struct Results {
    /// What it was measured on and with: "CPU", "kernel", "commit", "rustc", "options" and so on.
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) regimes: Vec<Regime>,
    /// A sentence for each thing that was left out, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// One kind of load.
pub(crate) struct Regime {
    /// As in `--regimes`: "saturation", "handler-time".
    pub(crate) name: &'static str,
    /// What it asks, in one sentence.
    pub(crate) question: &'static str,
    pub(crate) focus: Focus,
    pub(crate) variants: Vec<Variant>,
}

/// What a regime is about, and so what is plotted.
pub(crate) enum Focus {
    /// Closed loop: requests per second, as a ratio to the limit.
    Peak,
    /// Open loop: latency percentiles from the intended send time, CPU and switches per request.
    Latency,
}

/// One point of a regime: a socket family, a pool size, a handler time.
pub(crate) struct Variant {
    /// "TCP", "Unix", "20 us, 8 threads".
    pub(crate) label: String,
    /// For sweeps: what the axis is called ("threads", "handler us", "burst", "blocking %"), and where this point lies.
    pub(crate) axis: Option<(&'static str, f64)>,
    pub(crate) rows: Vec<Row>,
}

/// One contestant in one variant. The first row of a variant is the limit that ratios are made to.
pub(crate) struct Row {
    pub(crate) contestant: &'static str,
    /// By round. `None`: the round was discarded (the generator was late).
    pub(crate) rounds: Vec<Option<Sample>>,
    /// From a round of its own, because counting costs time.
    pub(crate) syscalls_per_request: Option<f64>,
    /// With `--perf`: event and count per request.
    pub(crate) perf: Vec<(String, f64)>,
}

/// One contestant in one round.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) cpu_us_per_request: f64,
    pub(crate) voluntary_per_request: f64,
    pub(crate) involuntary_per_request: f64,
    /// Microseconds. Where some handlers block: of the other requests.
    pub(crate) latency: Latency,
    /// Of the requests whose handler blocks, where there are any.
    pub(crate) blocked: Option<Latency>,
    /// How late the generator itself was, p99, in microseconds; open loop only.
    pub(crate) generator_lag_us: Option<f64>,
}

/// In microseconds.
#[derive(Clone)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// Percentile (0 to 100) and value, for the curve: about 30 points, dense towards 100.
    pub(crate) curve: Vec<(f64, f64)>,
}
