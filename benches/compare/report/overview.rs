//! Everybody everywhere in one table: how many times as good as the limit.

use super::anchor;
use super::figures::{Figure, P50, P99, RATE};
use super::markup::Markup;
use super::number;
use super::palette::Palette;
use super::results::{Focus, Regime, Results, Row, Variant};
use super::sweep;

pub(super) fn table(page: &mut Markup, palette: &Palette, results: &Results) {
    let regimes: Vec<(&Regime, Vec<Column>)> =
        results.regimes.iter().map(|regime| (regime, columns(regime, palette))).collect();
    page.leaf("h2", &[], "At a glance");
    page.leaf("p", &[("class", &"note")], ABOUT);
    page.element("div", &[("class", &"wide")], |wide| {
        wide.element("table", &[("class", &"glance")], |table| {
            table.element("thead", &[], |head| {
                head.element("tr", &[], |line| {
                    line.empty_heading();
                    for (regime, columns) in
                        regimes.iter().filter(|(_, columns)| !columns.is_empty())
                    {
                        let span = columns.len();
                        line.element("th", &[("scope", &"colgroup"), ("colspan", &span)], |cell| {
                            let link = format!("#{}", anchor(regime.name));
                            cell.leaf("a", &[("href", &link)], regime.name);
                        });
                    }
                });
                head.element("tr", &[], |line| {
                    line.empty_heading();
                    for column in regimes.iter().flat_map(|(_, columns)| columns) {
                        line.leaf("th", &[("scope", &"col")], &column.name);
                    }
                });
            });
            table.element("tbody", &[], |body| {
                for (index, look) in palette.looks().iter().enumerate() {
                    body.element("tr", &[("class", &look.class)], |line| {
                        line.leaf("th", &[("scope", &"row")], look.name);
                        for column in regimes.iter().flat_map(|(_, columns)| columns) {
                            cell(line, column.cells[index]);
                        }
                    });
                }
            });
        });
    });
}

impl Markup {
    fn empty_heading(&mut self) {
        self.leaf("td", &[], "");
    }
}

struct Column {
    name: String,
    /// By contestant: the least and the most of the variants that the column is about.
    cells: Vec<Option<(f64, f64)>>,
}

fn columns(regime: &Regime, palette: &Palette) -> Vec<Column> {
    let (plain, sweeps) = sweep::split(regime);
    let mut columns = Vec::new();
    let is_crowded = plain.len() > 2;
    for variant in plain {
        let figures: &[(&Figure, &str)] = match regime.focus {
            Focus::Peak => &[(&RATE, "")],
            Focus::Latency if is_crowded => &[(&P99, "p99")],
            Focus::Latency => &[(&P50, "p50"), (&P99, "p99")],
        };
        for (figure, suffix) in figures {
            let comma = if suffix.is_empty() { "" } else { ", " };
            let name = format!("{}{comma}{suffix}", variant.label);
            columns.push(Column::of(name, figure, palette, &[variant]));
        }
    }
    for sweep in sweeps {
        let (figure, suffix) = match regime.focus {
            Focus::Peak => (RATE, ""),
            Focus::Latency => (P99, "p99"),
        };
        let (first, last) = (sweep.points[0].0, sweep.points[sweep.points.len() - 1].0);
        let range = format!("{}…{} {}", number::trimmed(first), number::trimmed(last), sweep.axis);
        let name: Vec<&str> = [range.as_str(), &sweep.name, suffix]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        let variants: Vec<&Variant> = sweep.points.iter().map(|(_, variant)| *variant).collect();
        columns.push(Column::of(name.join(", "), &figure, palette, &variants));
    }
    columns
}

impl Column {
    fn of(name: String, figure: &Figure, palette: &Palette, variants: &[&Variant]) -> Column {
        let advantage = |contestant: &str, variant: &Variant| {
            let is_it = |row: &&Row| row.contestant == contestant;
            figure.advantage(variant.rows.iter().find(is_it)?, variant.rows.first()?)
        };
        let range = |contestant: &str| {
            let advantages = variants.iter().filter_map(|variant| advantage(contestant, variant));
            advantages.fold(None, |range: Option<(f64, f64)>, value| {
                let (low, high) = range.unwrap_or((value, value));
                Some((low.min(value), high.max(value)))
            })
        };
        Column { name, cells: palette.looks().iter().map(|look| range(look.name)).collect() }
    }
}

fn cell(line: &mut Markup, range: Option<(f64, f64)>) {
    let Some((low, high)) = range else {
        line.leaf("td", &[("class", &"none")], "–");
        return;
    };
    let [low_text, high_text] = [low, high].map(number::ratio);
    let text = if low_text == high_text { low_text } else { format!("{low_text}–{high_text}") };
    line.leaf("td", &[("class", &grade((low * high).sqrt()))], &text);
}

/// The colour of the cell. Within 3 % nobody is better.
fn grade(advantage: f64) -> &'static str {
    match advantage {
        advantage if advantage < 0.5 => "worst",
        advantage if advantage < 0.85 => "worse",
        advantage if advantage < 0.97 => "below",
        advantage if advantage <= 1.03 => "even",
        advantage if advantage <= 1.2 => "above",
        advantage if advantage <= 2.0 => "better",
        _ => "best",
    }
}

const ABOUT: &str = "How many times as good as the limit, the first contestant: requests per second, or, in \
                     regimes about latency, how many times shorter p50 and p99 are. Above 1 (blue) is better, below 1 \
                     (orange) is worse. Where a regime is a sweep, the cell says from where to where it goes.";
