//! What is read from the rounds: medians, spreads, and ratios within a round.

use super::number;
use super::results::{Row, Sample};
use super::statistics::Spread;

/// Something that every round gives.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) of: fn(&Sample) -> Option<f64>,
    pub(super) format: fn(f64) -> String,
    pub(super) better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

impl Figure {
    pub(super) fn spread(&self, row: &Row) -> Option<Spread> {
        Spread::over(row, self.of)
    }

    pub(super) fn median(&self, row: &Row) -> Option<f64> {
        self.spread(row).map(|spread| spread.median)
    }

    pub(super) fn ratio(&self, row: &Row, to: &Row) -> Option<Spread> {
        Spread::ratio(row, to, self.of)
    }

    /// How many times as good as `to`.
    pub(super) fn advantage(&self, row: &Row, to: &Row) -> Option<f64> {
        match self.better {
            Better::More => Some(self.ratio(row, to)?.median),
            Better::Less => self.ratio(to, row).map(|ratio| ratio.median),
        }
    }

    /// The row with the best median.
    pub(super) fn best<'a>(&self, rows: impl IntoIterator<Item = &'a Row>) -> Option<&'a Row> {
        let measured = rows.into_iter().filter_map(|row| Some((row, self.median(row)?)));
        let best = match self.better {
            Better::More => measured.max_by(|(_, a), (_, b)| a.total_cmp(b)),
            Better::Less => measured.min_by(|(_, a), (_, b)| a.total_cmp(b)),
        };
        best.map(|(row, _)| row)
    }
}

pub(super) fn valid_rounds(row: &Row) -> usize {
    row.rounds.iter().flatten().count()
}

pub(super) const RATE: Figure = Figure {
    name: "requests/s",
    of: |sample| Some(sample.requests_per_second),
    format: number::figure,
    better: Better::More,
};

pub(super) const CPU: Figure = Figure {
    name: "CPU us/request",
    of: |sample| Some(sample.cpu_us_per_request),
    format: number::figure,
    better: Better::Less,
};

pub(super) const VOLUNTARY: Figure = Figure {
    name: "voluntary switches/request",
    of: |sample| Some(sample.voluntary_per_request),
    format: number::figure,
    better: Better::Less,
};

pub(super) const INVOLUNTARY: Figure = Figure {
    name: "involuntary switches/request",
    of: |sample| Some(sample.involuntary_per_request),
    format: number::figure,
    better: Better::Less,
};

pub(super) const P50: Figure = latency("p50", |sample| Some(sample.latency.p50));
pub(super) const P90: Figure = latency("p90", |sample| Some(sample.latency.p90));
pub(super) const P99: Figure = latency("p99", |sample| Some(sample.latency.p99));
pub(super) const P999: Figure = latency("p99.9", |sample| Some(sample.latency.p999));
pub(super) const MAX: Figure = latency("max", |sample| Some(sample.latency.max));
pub(super) const BLOCKED_P50: Figure =
    latency("blocked p50", |sample| Some(sample.blocked.as_ref()?.p50));
pub(super) const BLOCKED_P99: Figure =
    latency("blocked p99", |sample| Some(sample.blocked.as_ref()?.p99));
pub(super) const LAG: Figure = latency("generator lag p99", |sample| sample.generator_lag_us);

const fn latency(name: &'static str, of: fn(&Sample) -> Option<f64>) -> Figure {
    Figure { name, of, format: number::micros, better: Better::Less }
}
