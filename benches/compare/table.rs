//! The figures as an aligned table: medians over the rounds.

use std::fmt::Write;

use crate::results::{Focus, Latency, Regime, Results, Row, Sample, Variant};
use crate::statistics::Spread;

pub(crate) fn render(results: &Results) -> String {
    let mut text = String::new();
    for (name, value) in &results.machine {
        writeln!(text, "{name:<12} {value}").expect("a string takes everything");
    }
    for regime in &results.regimes {
        write!(text, "\n{}: {}\n", regime.name, regime.question).expect("as above");
        for variant in &regime.variants {
            write!(text, "\n{}\n", variant.label).expect("as above");
            text.push_str(&lines(&table(regime, variant)));
            if variant.rows.iter().any(|row| row.rounds.iter().any(Option::is_none)) {
                text.push_str(DISCARDED);
            }
            text.push_str(&blocked(variant));
            text.push_str(&events(variant));
        }
    }
    if !results.skipped.is_empty() {
        text.push_str("\nLeft out:\n");
    }
    for sentence in &results.skipped {
        writeln!(text, "- {sentence}").expect("as above");
    }
    text
}

fn table(regime: &Regime, variant: &Variant) -> Vec<Vec<String>> {
    // The first is compared with its spread, the others without.
    let compared: &[(&str, Figure)] = match regime.focus {
        Focus::Peak => &[
            ("ratio", |sample| Some(sample.requests_per_second)),
            ("CPU ratio", |sample| Some(sample.cpu_us_per_request)),
        ],
        Focus::Latency => &[
            ("p50 ratio", |sample| Some(sample.latency.p50)),
            ("p99 ratio", |sample| Some(sample.latency.p99)),
            ("CPU ratio", |sample| Some(sample.cpu_us_per_request)),
        ],
    };
    let mut titles = vec!["contestant", "requests/s", compared[0].0, "least..most"];
    titles.extend(compared[1..].iter().map(|(title, _)| *title));
    titles.extend(["CPU us", "vol.sw", "invol.sw", "syscalls"]);
    titles.extend(["p50 us", "p90", "p99", "p99.9", "max", ""]);
    let mut table = vec![titles.into_iter().map(String::from).collect()];
    for row in &variant.rows {
        let ratio_of =
            |&(_, figure): &(&str, Figure)| Spread::ratio(row, variant.rows.first()?, figure);
        let of = |figure: Figure, digits| number(median(row, figure), digits);
        let mut line =
            vec![row.contestant.into(), of(|sample| Some(sample.requests_per_second), 0)];
        let spread = ratio_of(&compared[0]);
        line.push(number(spread.map(|spread| spread.median), 3));
        // One round has no spread that it could show.
        let rounds = row.rounds.iter().flatten().count();
        line.push(match spread {
            Some(Spread { least, most, .. }) if rounds > 1 => format!("{least:.3}..{most:.3}"),
            _ => "-".into(),
        });
        let others = compared[1..].iter().map(ratio_of);
        line.extend(others.map(|spread| number(spread.map(|spread| spread.median), 3)));
        line.extend([
            of(|sample| Some(sample.cpu_us_per_request), 2),
            of(|sample| Some(sample.voluntary_per_request), 4),
            of(|sample| Some(sample.involuntary_per_request), 4),
            number(row.syscalls_per_request, 2),
        ]);
        line.extend(latencies(row, |sample| Some(&sample.latency)));
        let discarded = row.rounds.iter().filter(|sample| sample.is_none()).count();
        line.push(match discarded {
            0 => String::new(),
            _ => format!("{discarded} of {} rounds discarded", row.rounds.len()),
        });
        table.push(line);
    }
    table
}

type Figure = fn(&Sample) -> Option<f64>;

fn median(row: &Row, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    Spread::over(row, figure).map(|spread| spread.median)
}

/// The requests whose handler blocks, where there are any.
fn blocked(variant: &Variant) -> String {
    let titles = ["of those that block", "p50 us", "p90", "p99", "p99.9", "max"];
    let mut table = vec![titles.map(String::from).to_vec()];
    for row in &variant.rows {
        if row.rounds.iter().flatten().any(|sample| sample.blocked.is_some()) {
            let mut line = vec![row.contestant.to_string()];
            line.extend(latencies(row, |sample| sample.blocked.as_ref()));
            table.push(line);
        }
    }
    if table.len() > 1 { format!("\n{}", lines(&table)) } else { String::new() }
}

/// What perf has counted, where it has.
fn events(variant: &Variant) -> String {
    let Some(first) = variant.rows.iter().find(|row| !row.perf.is_empty()) else {
        return String::new();
    };
    let mut table = vec![vec!["perf stat, per request".to_string()]];
    table[0].extend(first.perf.iter().map(|(event, _)| event.clone()));
    for row in &variant.rows {
        let mut line = vec![row.contestant.to_string()];
        for (event, _) in &first.perf {
            let counted = row.perf.iter().find(|(name, _)| name == event);
            line.push(number(counted.map(|(_, count)| *count), 4));
        }
        table.push(line);
    }
    format!("\n{}", lines(&table))
}

fn latencies(row: &Row, latency: fn(&Sample) -> Option<&Latency>) -> [String; 5] {
    let of =
        |figure: fn(&Latency) -> f64| number(median(row, |sample| latency(sample).map(figure)), 1);
    [of(|l| l.p50), of(|l| l.p90), of(|l| l.p99), of(|l| l.p999), of(|l| l.max)]
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// The first column to the left, the others to the right.
fn lines(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in table {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let is_first = row.is_empty();
            let cell =
                if is_first { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            row.push_str(&cell);
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

const DISCARDED: &str = "\
Rounds were discarded in which the load was late with its requests: the machine was too busy to tell. Try again when it is \
quiet, or with more --rounds.
";
