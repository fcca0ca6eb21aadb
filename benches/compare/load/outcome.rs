//! What came of a load, as lines of text between two processes.

use std::fmt;
use std::str::FromStr;

use hdrhistogram::Histogram;

use crate::results::Latency;

#[derive(Clone)]
pub(crate) struct Outcome {
    /// Answered within the window, and its length.
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Answered from the start to the end of the load.
    pub(crate) answered: u64,
    /// Of the requests that do not block their handler.
    pub(crate) latency: Latency,
    pub(crate) blocked: Option<Latency>,
    /// How late the load was with sending, p99; open loop only.
    pub(crate) lag_us: Option<f64>,
}

/// The figures of a histogram of nanoseconds.
pub(crate) fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |percentile| histogram.value_at_percentile(percentile) as f64 / 1e3;
    Latency {
        p50: at(50.0),
        p90: at(90.0),
        p99: at(99.0),
        p999: at(99.9),
        max: histogram.max() as f64 / 1e3,
        curve: CURVE.iter().map(|&percentile| (percentile, at(percentile))).collect(),
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { requests, seconds, answered, latency, blocked, lag_us } = self;
        writeln!(f, "requests {requests}\nseconds {seconds}\nanswered {answered}")?;
        let mut line = |name, latency: &Latency| {
            let Latency { p50, p90, p99, p999, max, curve } = latency;
            write!(f, "{name} {p50} {p90} {p99} {p999} {max}")?;
            curve.iter().try_for_each(|(_, value)| write!(f, " {value}"))?;
            writeln!(f)
        };
        line("latency", latency)?;
        if let Some(blocked) = blocked {
            line("blocked", blocked)?;
        }
        if let Some(lag) = lag_us {
            writeln!(f, "lag {lag}")?;
        }
        f.write_str(LAST_LINE)
    }
}

impl FromStr for Outcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Outcome, String> {
        let find = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name).map(|(_, rest)| rest)
        };
        let numbers = |name: &str| -> Result<Option<Vec<f64>>, String> {
            let Some(rest) = find(name) else { return Ok(None) };
            let numbers: Result<Vec<f64>, _> = rest.split(' ').map(str::parse).collect();
            numbers.map(Some).map_err(|_| format!("the load said {name} {rest:?}"))
        };
        let required = |name: &str| {
            let first = numbers(name)?.and_then(|numbers| numbers.first().copied());
            first.ok_or_else(|| format!("the load did not say {name:?}, but {text:?}"))
        };
        let latency = |name: &str| match numbers(name)?.as_deref() {
            Some(&[p50, p90, p99, p999, max, ref values @ ..]) => {
                let curve = CURVE.into_iter().zip(values.iter().copied()).collect();
                Ok(Some(Latency { p50, p90, p99, p999, max, curve }))
            }
            Some(_) => Err(format!("the load said too little about {name}")),
            None => Ok(None),
        };
        Ok(Outcome {
            requests: required("requests")? as u64,
            seconds: required("seconds")?,
            answered: required("answered")? as u64,
            latency: latency("latency")?.ok_or("the load said nothing about latency")?,
            blocked: latency("blocked")?,
            lag_us: numbers("lag")?.and_then(|numbers| numbers.first().copied()),
        })
    }
}

/// Ends what a load says.
pub(crate) const LAST_LINE: &str = "done";

/// The percentiles of a curve, dense towards the tail.
const CURVE: [f64; 30] = [
    0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 96.0, 97.0,
    98.0, 98.5, 99.0, 99.25, 99.5, 99.75, 99.9, 99.925, 99.95, 99.975, 99.99, 99.995, 99.999,
    100.0,
];
