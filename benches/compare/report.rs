//! The results as one HTML file that needs nothing else: no network, and a script only to open all tables.

mod bars;
mod dots;
mod figures;
pub(crate) mod labels;
mod lines;
pub(crate) mod markup;
pub(crate) mod number;
mod overview;
mod palette;
mod percentiles;
pub(crate) mod scale;
mod summary;
mod svg;
mod sweep;
mod table;

use super::results::{self, Focus, Regime, Results, Row, Variant};
use super::statistics::{self, Spread};
use figures::{BLOCKED_P50, BLOCKED_P99, P50, P99, RATE, valid_rounds};
use markup::Markup;
use palette::Palette;
use sweep::Sweep;

pub(crate) fn render(results: &Results) -> String {
    let palette = Palette::of(results);
    let mut page = Markup::default();
    page.verbatim("<!DOCTYPE html>\n");
    page.element("html", &[("lang", &"en")], |html| {
        html.element("head", &[], |head| {
            head.empty("meta", &[("charset", &"utf-8")]);
            let viewport = "width=device-width, initial-scale=1";
            head.empty("meta", &[("name", &"viewport"), ("content", &viewport)]);
            head.empty("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
            head.leaf("title", &[], TITLE);
            head.element("style", &[], |style| {
                style.verbatim(include_str!("report/style.css"));
                style.verbatim(&palette.style_sheet());
            });
        });
        html.element("body", &[], |body| {
            body.element("header", &[], |header| head(header, &palette, results));
            body.element("main", &[], |main| {
                for regime in &results.regimes {
                    let id = anchor(regime.name);
                    main.element("section", &[("id", &id)], |part| section(part, &palette, regime));
                }
            });
        });
    });
    page.into_string()
}

fn head(page: &mut Markup, palette: &Palette, results: &Results) {
    page.leaf("h1", &[], TITLE);
    if results.regimes.iter().all(|regime| regime.variants.is_empty()) {
        page.leaf("p", &[("class", &"lead")], "Nothing was measured.");
    }
    page.element("ul", &[("class", &"findings")], |list| {
        for regime in &results.regimes {
            let sentences = summary::sentences(regime, palette);
            if sentences.is_empty() {
                continue;
            }
            list.element("li", &[], |item| {
                let link = format!("#{}", anchor(regime.name));
                item.leaf("a", &[("href", &link)], regime.name);
                for (about, sentence) in sentences {
                    item.element("p", &[], |line| {
                        if !about.is_empty() {
                            line.leaf("b", &[], &format!("{about}:"));
                        }
                        line.text(&sentence);
                    });
                }
            });
        }
    });
    if !palette.looks().is_empty() {
        overview::table(page, palette, results);
        page.leaf("h2", &[], "Contestants");
        page.element("ul", &[("class", &"key")], |list| {
            palette.looks().iter().for_each(|look| key(list, look));
        });
    }
    page.leaf("h2", &[], "Machine and versions");
    page.element("dl", &[], |list| {
        for (name, value) in &results.machine {
            list.leaf("dt", &[], name);
            list.leaf("dd", &[], value);
        }
    });
    if !results.skipped.is_empty() {
        page.leaf("h2", &[], "Left out");
        page.element("ul", &[], |list| {
            results.skipped.iter().for_each(|sentence| list.leaf("li", &[], sentence));
        });
    }
    page.leaf("p", &[("class", &"note")], METHOD);
    page.leaf("button", &[("onclick", &OPEN_TABLES)], "Open all tables");
}

fn key(list: &mut Markup, look: &palette::Look) {
    list.element("li", &[("class", &look.class)], |item| {
        item.element("svg", &[("viewBox", &"0 0 14 14"), ("aria-hidden", &"true")], |svg| {
            svg.mark("mark", look.mark, (7.0, 7.0), "");
        });
        item.leaf("b", &[], look.name);
        item.leaf("span", &[], &format!(" {}", look.about));
    });
}

fn section(page: &mut Markup, palette: &Palette, regime: &Regime) {
    page.leaf("h2", &[], regime.name);
    page.leaf("p", &[("class", &"question")], regime.question);
    discarded(page, regime);
    let (plain, sweeps) = sweep::split(regime);
    for sweep in sweeps {
        page.element("div", &[("class", &"charts")], |charts| {
            swept(charts, palette, regime, &sweep)
        });
        let variants: Vec<&Variant> = sweep.points.iter().map(|(_, variant)| *variant).collect();
        let title = sweep.title();
        if let Focus::Latency = regime.focus {
            page.element("details", &[], |details| {
                details.leaf("summary", &[], &format!("Percentiles and costs: {title}"));
                details.element("div", &[("class", &"charts")], |charts| {
                    variants.iter().for_each(|variant| latency(charts, palette, variant));
                });
            });
        }
        table::folded(page, palette, &title, &variants);
    }
    for variant in plain.into_iter().filter(|variant| !variant.rows.is_empty()) {
        page.element("div", &[("class", &"charts")], |charts| match regime.focus {
            Focus::Peak => peak(charts, palette, variant),
            Focus::Latency => latency(charts, palette, variant),
        });
        table::folded(page, palette, &variant.label, &[variant]);
    }
}

fn discarded(page: &mut Markup, regime: &Regime) {
    let rows = || regime.variants.iter().flat_map(|variant| &variant.rows);
    let all: usize = rows().map(|row| row.rounds.len()).sum();
    let valid: usize = rows().map(valid_rounds).sum();
    if valid < all {
        let text = format!(
            "{} of {all} rounds were discarded because the load generator was late; no figure contains them.",
            all - valid
        );
        page.leaf("p", &[("class", &"note")], &text);
    }
}

fn peak(charts: &mut Markup, palette: &Palette, variant: &Variant) {
    let limit = &variant.rows[0];
    let rows = by_rate(variant);
    let label = &variant.label;
    let caption = format!("{label}: requests/s as a ratio to {}", limit.contestant);
    bars::ratios(charts, palette, &caption, &rows, limit);
    bars::costs(charts, palette, &format!("{label}: per request"), &rows);
}

fn latency(charts: &mut Markup, palette: &Palette, variant: &Variant) {
    let rows = ranked(&variant.rows, |row| P99.median(row).map(|p99| -p99));
    let label = &variant.label;
    let caption = format!("{label}: latency by percentile");
    percentiles::curves(charts, palette, &caption, &rows, |sample| Some(&sample.latency));
    dots::ranges(charts, palette, &format!("{label}: p50 and p99"), &rows, [&P50, &P99]);
    if rows.iter().any(|row| BLOCKED_P99.spread(row).is_some()) {
        let caption = format!("{label}: requests whose handler blocks");
        dots::ranges(charts, palette, &caption, &rows, [&BLOCKED_P50, &BLOCKED_P99]);
    }
    bars::costs(charts, palette, &format!("{label}: per request"), &rows);
    // Below the peak everybody gets what is asked for, and there is nothing to compare.
    let rates = Spread::of(rows.iter().filter_map(|row| RATE.median(row)));
    if rates.is_some_and(|rates| rates.least < rates.most * 0.95) {
        let caption = format!("{label}: requests/s as a ratio to {}", variant.rows[0].contestant);
        bars::ratios(charts, palette, &caption, &by_rate(variant), &variant.rows[0]);
    }
}

fn by_rate(variant: &Variant) -> Vec<&Row> {
    let limit = &variant.rows[0];
    ranked(&variant.rows, |row| RATE.ratio(row, limit).map(|ratio| ratio.median))
}

/// The highest first, and those without a valid round last.
fn ranked(rows: &[Row], merit: impl Fn(&Row) -> Option<f64>) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| merit(b).partial_cmp(&merit(a)).expect("medians are numbers"));
    rows
}

fn swept(charts: &mut Markup, palette: &Palette, regime: &Regime, sweep: &Sweep<'_>) {
    match regime.focus {
        Focus::Peak => {
            sweep.draw_rates(charts, palette);
            sweep.draw_ratios(charts, palette);
        }
        Focus::Latency => {
            for figure in [&P99, &P50, &BLOCKED_P99] {
                if sweep.points.iter().any(|(_, variant)| figure.best(&variant.rows).is_some()) {
                    sweep.draw_latency(charts, palette, figure);
                }
            }
        }
    }
}

/// Names of regimes are made of letters and dashes; anything else is none of theirs.
fn anchor(regime: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("regime-{}", regime.chars().map(word).collect::<String>())
}

const TITLE: &str = "cabrank, side by side";

const METHOD: &str = "Figures are medians over interleaved rounds; whiskers and ranges go from the least to the most. A \
                      ratio is taken within each round, to the limit of the same round, and the median of those is \
                      shown.";

const OPEN_TABLES: &str = "document.querySelectorAll('details').forEach(d => d.open = true)";
