//! What several rounds say together.

use crate::results::{Row, Sample};

/// The middle value; of an even number the mean of the two.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

/// The median of a figure over the rounds that count.
pub(crate) fn typical(row: &Row, figure: impl Fn(&Sample) -> f64) -> Option<f64> {
    median(row.rounds.iter().flatten().map(figure).collect())
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// The ratio of a figure to the limit's of the same round.
pub(crate) fn ratio(row: &Row, limit: &Row, figure: impl Fn(&Sample) -> f64) -> Option<Spread> {
    let pairs = row.rounds.iter().zip(&limit.rounds);
    let ratios: Vec<f64> = pairs
        .filter_map(|(own, limit)| Some(figure(own.as_ref()?) / figure(limit.as_ref()?)))
        .filter(|ratio| ratio.is_finite())
        .collect();
    Some(Spread {
        least: ratios.iter().copied().reduce(f64::min)?,
        most: ratios.iter().copied().reduce(f64::max)?,
        median: median(ratios)?,
    })
}
