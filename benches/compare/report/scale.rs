//! From values to places, and where the ticks are. Nothing here gives a place outside 0 to 1, or none at all.

/// How the values of an axis are laid out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scale {
    Linear {
        low: f64,
        high: f64,
    },
    Log {
        low: f64,
        high: f64,
    },
    /// The points of a sweep, in order: logarithmic, or at equal distances.
    Points {
        values: Vec<f64>,
        is_log: bool,
    },
    /// Percentiles, spread towards 100 %: each further nine takes the same width.
    Tail {
        nines: f64,
    },
}

impl Scale {
    /// From zero to a little more than the largest.
    pub(crate) fn from_zero(values: impl IntoIterator<Item = f64>) -> Scale {
        let high = finite(values).fold(0.0, f64::max);
        Scale::Linear { low: 0.0, high: if high > 0.0 { high * 1.03 } else { 1.0 } }
    }

    /// From the last of 1, 2, 5, 10, … below the values to the first above.
    pub(crate) fn log(values: impl IntoIterator<Item = f64>) -> Scale {
        let positive = finite(values).filter(|value| *value > 0.0);
        let (low, high) = positive.fold((f64::MAX, 0.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        if high == 0.0 {
            return Scale::Log { low: 1.0, high: 10.0 };
        }
        let steps = one_two_five(low.max(1e-6), high.max(1e-6));
        Scale::Log { low: steps[0], high: steps[steps.len() - 1] }
    }

    /// For the points of a sweep: logarithmic where they multiply, otherwise side by side.
    pub(crate) fn of_sweep(values: &[f64]) -> Scale {
        let mut values: Vec<f64> = finite(values.iter().copied()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let multiply = |low: f64, high: f64| low > 0.0 && high >= low * 8.0;
        let is_log =
            values.first().zip(values.last()).is_some_and(|(low, high)| multiply(*low, *high));
        Scale::Points { values, is_log }
    }

    /// As far as the last percentile below 100, within reason, and a little further for 100 itself.
    pub(crate) fn tail(percentiles: impl IntoIterator<Item = f64>) -> Scale {
        let below = finite(percentiles).filter(|percentile| *percentile < 100.0);
        Scale::Tail { nines: below.map(nines).fold(2.0, f64::max).min(6.0) + 0.6 }
    }

    pub(crate) fn place(&self, value: f64) -> f64 {
        let place = match self {
            Scale::Linear { low, high } => (value - low) / (high - low),
            Scale::Log { low, high } => (value.max(*low) / low).ln() / (high / low).ln(),
            Scale::Points { values, .. } if values.len() < 2 => 0.5,
            Scale::Points { values, is_log: true } => {
                Scale::Log { low: values[0], high: values[values.len() - 1] }.place(value)
            }
            Scale::Points { values, is_log: false } => {
                let index = values.partition_point(|known| *known < value);
                index as f64 / (values.len() - 1) as f64
            }
            Scale::Tail { nines: all } => nines(value) / all,
        };
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self {
            Scale::Linear { low, high } => {
                let step = round_step((high - low) / 5.0);
                let first = (low / step).ceil() as i64;
                let last = (high / step).floor() as i64;
                (first..=last).map(|tick| tick as f64 * step).collect()
            }
            Scale::Log { low, high } => {
                let ticks = one_two_five(*low, *high);
                if ticks.len() <= 10 {
                    return ticks;
                }
                ticks.into_iter().filter(|tick| tick.log10().fract().abs() < 1e-9).collect()
            }
            Scale::Points { values, .. } => values.clone(),
            Scale::Tail { nines: all } => {
                let ticks = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
                let below = ticks.into_iter().filter(|tick| nines(*tick) <= all - 0.55);
                below.chain([100.0]).collect()
            }
        }
    }
}

/// 0 for 0 %, 1 for 90 %, 2 for 99 %; very many for 100 %.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile.min(100.0) / 100.0).max(1e-9).log10()
}

fn finite(values: impl IntoIterator<Item = f64>) -> impl Iterator<Item = f64> {
    values.into_iter().filter(|value| value.is_finite())
}

/// 1, 2, 5, 10, … from the last at or below `low` to the first at or above `high`; two at least.
fn one_two_five(low: f64, high: f64) -> Vec<f64> {
    // Divided, not multiplied with a rounded fraction: 0.1 is to be 0.1.
    let power = |exponent: i32, digit: f64| match exponent {
        0.. => digit * 10_f64.powi(exponent),
        _ => digit / 10_f64.powi(-exponent),
    };
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32 + 1;
    let steps =
        (first..=last).flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| power(exponent, digit)));
    let steps: Vec<f64> = steps.collect();
    let start = steps.iter().rposition(|step| *step <= low * 1.000_001).unwrap_or(0);
    let end = steps.iter().position(|step| *step >= high * 0.999_999).unwrap_or(steps.len() - 1);
    steps[start..=end.max(start + 1)].to_vec()
}

/// The first of 1, 2, 2.5, 5, 10 times a power of ten that is not less.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let digits = [1.0, 2.0, 2.5, 5.0, 10.0];
    power * digits.into_iter().find(|digit| digit * power >= least * 0.999_999).unwrap_or(10.0)
}
