//! What several rounds say together.

use super::results::{Row, Sample};

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// None of no values. What is not finite is no value; of an even number the median is between the two in
    /// the middle.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let last = values.len() - 1;
        let median = (values[last / 2] + values[last.div_ceil(2)]) / 2.0;
        Some(Spread { median, least, most })
    }

    /// A figure over the rounds that count.
    pub(crate) fn over(row: &Row, figure: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(row.rounds.iter().flatten().filter_map(figure))
    }

    /// The ratio of a figure to the other's of the same round, for what disturbs one contestant disturbs its
    /// neighbour too.
    pub(crate) fn ratio(
        row: &Row,
        to: &Row,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<Spread> {
        let rounds = row.rounds.iter().zip(&to.rounds);
        Spread::of(rounds.filter_map(|(sample, base)| {
            let (value, base) = (figure(sample.as_ref()?)?, figure(base.as_ref()?)?);
            (base > 0.0).then(|| value / base)
        }))
    }

    /// "5.41 (5.30 to 5.60)"
    pub(crate) fn say(self, format: fn(f64) -> String) -> String {
        let [median, least, most] = [self.median, self.least, self.most].map(format);
        if least == most { median } else { format!("{median} ({least} to {most})") }
    }
}
