//! What is read from the rounds: medians, spreads, and ratios within a round.

use super::number;
use super::results::{Row, Sample};

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

/// Over the rounds that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Spread {
    /// None of no values. What is not finite is no value.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Spread { median, least, most })
    }

    /// "5.41 (5.30 to 5.60)"
    pub(super) fn say(self, format: fn(f64) -> String) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(format);
        if least == most { median } else { format!("{median} ({least} to {most})") }
    }
}

impl Figure {
    pub(super) fn spread(&self, row: &Row) -> Option<Spread> {
        Spread::of(row.rounds.iter().flatten().filter_map(self.of))
    }

    pub(super) fn median(&self, row: &Row) -> Option<f64> {
        self.spread(row).map(|spread| spread.median)
    }

    /// Of the same rounds, for what disturbs one contestant disturbs its neighbour too.
    pub(super) fn ratio(&self, row: &Row, to: &Row) -> Option<Spread> {
        let rounds = row.rounds.iter().zip(&to.rounds);
        Spread::of(rounds.filter_map(|(sample, base)| {
            let (value, base) = ((self.of)(sample.as_ref()?)?, (self.of)(base.as_ref()?)?);
            (base > 0.0).then(|| value / base)
        }))
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
