//! What the figures say, in sentences.

use super::figures::{Figure, P50, P99, RATE, valid_rounds};
use super::number;
use super::palette::{Family, Palette};
use super::results::{Focus, Regime, Row, Variant};
use super::sweep::{self, Sweep};

/// What it is about, and the sentence.
pub(super) fn sentences(regime: &Regime, palette: &Palette) -> Vec<(String, String)> {
    let (plain, sweeps) = sweep::split(regime);
    let plain = plain.into_iter().filter_map(|variant| {
        let sentence = match regime.focus {
            Focus::Peak => peak(&variant.rows, palette),
            Focus::Latency => latency(&variant.rows, palette),
        };
        let missing =
            variant.rows.iter().find(|row| row.contestant == "default" && valid_rounds(row) == 0);
        let missing = missing.map_or("", |_| " The default has no valid round.");
        Some((variant.label.clone(), sentence? + missing))
    });
    let sweeps = sweeps.iter().filter_map(|sweep| {
        let sentence = match regime.focus {
            Focus::Peak => peak_sweep(sweep, palette),
            Focus::Latency => latency_sweep(sweep, palette),
        };
        Some((sweep.name.clone(), sentence?))
    });
    sweeps.chain(plain).collect()
}

/// The contestant whose figures are told: the default, or else the best of this crate, or else of all.
fn subject<'a>(rows: &'a [Row], palette: &Palette, figure: &Figure) -> Option<&'a Row> {
    let default =
        rows.iter().find(|row| row.contestant == "default" && figure.median(row).is_some());
    default
        .or_else(|| best_of(rows, palette, Family::Cabrank, figure))
        .or_else(|| figure.best(rows))
}

fn best_of<'a>(
    rows: &'a [Row],
    palette: &Palette,
    family: Family,
    figure: &Figure,
) -> Option<&'a Row> {
    figure.best(rows.iter().filter(|row| palette.look(row.contestant).family == family))
}

fn peak(rows: &[Row], palette: &Palette) -> Option<String> {
    let limit = rows.first()?;
    let subject = subject(rows, palette, &RATE)?;
    let tokio = best_of(rows, palette, Family::Tokio, &RATE);
    let compared = |row: &Row| {
        let to_limit = RATE.ratio(row, limit).filter(|_| row.contestant != limit.contestant);
        let to_tokio = tokio.filter(|tokio| tokio.contestant != row.contestant);
        let to_tokio = to_tokio.and_then(|tokio| Some((tokio, RATE.ratio(row, tokio)?)));
        let parts = [
            to_limit
                .map(|ratio| format!("{} of {}", number::ratio(ratio.median), limit.contestant)),
            to_tokio.map(|(tokio, ratio)| {
                format!("{} times {}", number::ratio(ratio.median), tokio.contestant)
            }),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let mut sentence = match compared(subject) {
        nobody if nobody.is_empty() => format!("{} is alone", subject.contestant),
        figures => format!("{} reaches {figures}", subject.contestant),
    };
    let ours = best_of(rows, palette, Family::Cabrank, &RATE);
    if let Some(ours) = ours.filter(|ours| ours.contestant != subject.contestant) {
        sentence += &format!("; the best of cabrank, {}, {}", ours.contestant, compared(ours));
    }
    let first = RATE.best(rows)?;
    let rate = number::count(RATE.median(first)?);
    Some(sentence + &format!(". The most requests per second: {} with {rate}.", first.contestant))
}

fn latency(rows: &[Row], palette: &Palette) -> Option<String> {
    let limit = rows.first()?;
    let subject = subject(rows, palette, &P99)?;
    let tokio = best_of(rows, palette, Family::Tokio, &P99);
    let told = |figure: &Figure| {
        let others = [Some(limit), tokio].into_iter().flatten();
        let others = others.filter(|other| other.contestant != subject.contestant);
        let ratios: Vec<String> = others
            .filter_map(|other| {
                let ratio = figure.ratio(subject, other)?.median;
                Some(format!("{} of {}", number::ratio(ratio), other.contestant))
            })
            .collect();
        let ratios =
            if ratios.is_empty() { ratios.concat() } else { format!(" ({})", ratios.join(", ")) };
        Some(format!("{} {}{ratios}", figure.name, number::micros(figure.median(subject)?)))
    };
    let shortest = |figure: &Figure| {
        let best = figure.best(rows)?;
        Some(format!("{} with {}", best.contestant, number::micros(figure.median(best)?)))
    };
    Some(format!(
        "{}: {}, {}. The shortest p50: {}; p99: {}.",
        subject.contestant,
        told(&P50)?,
        told(&P99)?,
        shortest(&P50)?,
        shortest(&P99)?
    ))
}

fn peak_sweep(sweep: &Sweep<'_>, palette: &Palette) -> Option<String> {
    let name = swept_subject(sweep, palette, &RATE)?;
    let mut rates: Vec<(f64, f64)> = Vec::new();
    let mut ratios: Vec<(f64, f64)> = Vec::new();
    for (x, row, limit) in sweep.rows(name) {
        rates.extend(RATE.median(row).map(|rate| (x, rate)));
        ratios.extend(RATE.ratio(row, limit).map(|ratio| (x, ratio.median)));
    }
    let limit = sweep.points.first()?.1.rows.first()?.contestant;
    let at = |(x, ratio): &(f64, f64)| {
        format!("{} at {} {}", number::ratio(*ratio), number::trimmed(*x), sweep.axis)
    };
    let least = ratios.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let most = ratios.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let mut sentence = format!("{name} has between {} and {} of {limit}", at(least), at(most));
    // With another load at each point, how flat the line is says nothing.
    if let Some((from, to)) = flat(&rates).filter(|_| sweep.axis == "threads") {
        let range = match (number::trimmed(from), number::trimmed(to)) {
            (from, to) if from == to => format!("only at {from}"),
            (from, to) => format!("from {from} to {to}"),
        };
        sentence += &format!("; within 10 % of its best {range} {}", sweep.axis);
    }
    Some(sentence + &standing(sweep, name, &RATE))
}

/// The longest stretch of points within 10 % of the best.
fn flat(rates: &[(f64, f64)]) -> Option<(f64, f64)> {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let stretches = rates.split(|(_, rate)| *rate < best * 0.9);
    let longest = stretches.max_by_key(|stretch| stretch.len())?;
    Some((longest.first()?.0, longest.last()?.0))
}

fn latency_sweep(sweep: &Sweep<'_>, palette: &Palette) -> Option<String> {
    let name = swept_subject(sweep, palette, &P99)?;
    let told = |(x, variant): &(f64, &Variant)| {
        let row = variant.rows.iter().find(|row| row.contestant == name)?;
        let own = number::micros(P99.median(row)?);
        let tokio = best_of(&variant.rows, palette, Family::Tokio, &P99);
        let tokio = tokio.filter(|tokio| tokio.contestant != name);
        let tokio = tokio.and_then(|tokio| {
            Some(format!(" ({} {})", tokio.contestant, number::micros(P99.median(tokio)?)))
        });
        Some(format!("{own}{} at {}", tokio.unwrap_or_default(), number::trimmed(*x)))
    };
    let told: Vec<String> = sweep.points.iter().filter_map(told).collect();
    if told.is_empty() {
        return None;
    }
    let sentence = format!("p99 of {name} by {}: {}", sweep.axis, told.join(", "));
    Some(sentence + &standing(sweep, name, &P99))
}

fn swept_subject(sweep: &Sweep<'_>, palette: &Palette, figure: &Figure) -> Option<&'static str> {
    let (_, variant) = sweep.points.first()?;
    subject(&variant.rows, palette, figure).map(|row| row.contestant)
}

/// Where the contestant is as good as the best, and where it is farthest from that.
fn standing(sweep: &Sweep<'_>, name: &str, figure: &Figure) -> String {
    let mut good: Vec<String> = Vec::new();
    let mut farthest: Option<(f64, String)> = None;
    for (x, variant) in &sweep.points {
        let own = variant.rows.iter().find(|row| row.contestant == name);
        let Some((own, best)) = own.zip(figure.best(&variant.rows)) else { continue };
        let Some(share) = figure.advantage(own, best) else { continue };
        if share >= AS_GOOD {
            good.push(number::trimmed(*x));
        } else if farthest.as_ref().is_none_or(|(least, _)| share < *least) {
            let ratio = figure.ratio(own, best).map_or(share, |ratio| ratio.median);
            let (ratio, x) = (number::ratio(ratio), number::trimmed(*x));
            farthest = Some((share, format!("{x} ({ratio} of {})", best.contestant)));
        }
    }
    match (good.len(), farthest) {
        (_, None) => ". It is the best, or within 3 % of it, everywhere.".into(),
        (0, Some((_, where_to))) => {
            format!(". It is never the best; it is farthest from it at {where_to}.")
        }
        (_, Some((_, where_to))) => format!(
            ". It is the best, or within 3 % of it, at {}; it is farthest from it at {where_to}.",
            good.join(", ")
        ),
    }
}

/// What noise can make of two that are the same.
const AS_GOOD: f64 = 0.97;
