//! The report of `cargo bench --bench compare`, from results that were invented.

mod invented;
mod page;

/// The modules of the benchmark that need no load.
#[path = "../../benches/compare"]
mod compare {
    pub(crate) mod report;
    pub(crate) mod results;
    pub(crate) mod statistics;
}

use std::path::Path;

use compare::report::labels::spread;
use compare::report::markup::escape;
use compare::report::number;
use compare::report::render;
use compare::report::scale::Scale;
use compare::results::{Latency, Results, Row};

/// To be looked at in a browser.
#[test]
fn the_report_is_one_file_that_needs_no_other() {
    let page = render(&invented::results());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare_report.html");
    std::fs::write(path, &page).unwrap();
    for outside in ["http:", "https:", "//", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn every_contestant_regime_and_variant_is_named() {
    let results = invented::results();
    let page = page::parse(&render(&results));
    for regime in &results.regimes {
        assert!(page.text.contains(regime.question), "{}", regime.name);
        for variant in &regime.variants {
            assert!(page.text.contains(&variant.label), "{}", variant.label);
        }
    }
    let contestants = || results.regimes[0].variants[0].rows.iter().map(|row| row.contestant);
    for chart in page.charts.iter().filter(|chart| !chart.labels.is_empty()) {
        for contestant in contestants() {
            assert!(chart.labels.iter().any(|label| label.text == contestant), "{contestant}");
        }
    }
}

#[test]
fn labels_are_inside_of_the_charts_and_apart() {
    let page = page::parse(&render(&invented::results()));
    assert!(page.charts.len() > 20);
    for chart in &page.charts {
        for (index, label) in chart.labels.iter().enumerate() {
            let inside = label.left >= -1.0 && label.right <= chart.width + 1.0;
            assert!(inside && (10.0..chart.height).contains(&label.y), "{label:?}");
            for other in &chart.labels[..index] {
                let beside = label.right <= other.left || other.right <= label.left;
                assert!(beside || (label.y - other.y).abs() > 9.0, "{label:?} and {other:?}");
            }
        }
    }
}

#[test]
fn texts_are_escaped() {
    assert_eq!(
        escape("<a href=\"x\">&'</a>\u{7}"),
        "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt; "
    );
    let mut results = invented::results();
    results.machine.push(("<b>".into(), "</dd></dl><script>".into()));
    results.regimes[0].variants[0].label = "TCP <&> \"Unix\"".into();
    results.regimes[0].variants[0].rows[1].contestant = "</svg>";
    let page = render(&results);
    page::parse(&page);
    assert!(!page.contains("<script") && page.contains("TCP &lt;&amp;&gt; &quot;Unix&quot;"));
}

#[test]
fn without_results_it_says_so() {
    let nothing = Results { machine: Vec::new(), regimes: Vec::new(), skipped: Vec::new() };
    assert!(page::parse(&render(&nothing)).text.contains("Nothing was measured"));
    let mut results = invented::results();
    for regime in &mut results.regimes {
        regime.variants.iter_mut().for_each(|variant| variant.rows.clear());
    }
    page::parse(&render(&results));
    results.regimes.iter_mut().for_each(|regime| regime.variants.clear());
    page::parse(&render(&results));
}

#[test]
fn one_round_one_contestant_one_variant_are_enough() {
    let mut results = invented::results();
    for regime in &mut results.regimes {
        regime.variants.truncate(1);
        for variant in &mut regime.variants {
            variant.rows.truncate(1);
            variant.rows[0].rounds.truncate(1);
        }
    }
    let page = page::parse(&render(&results));
    assert!(page.text.contains("bare"));
}

/// As when the generator was late in all of a contestant's rounds, even the limit's.
#[test]
fn contestants_without_a_valid_round_are_named_and_said_to_have_none() {
    let mut results = invented::results();
    each_row(&mut results, |index, row| {
        if index == 0 || index == 4 {
            row.rounds.iter_mut().for_each(|round| *round = None);
        }
    });
    let page = page::parse(&render(&results));
    assert!(page.text.contains("no valid round") && page.text.contains("rounds were discarded"));
    each_row(&mut results, |_, row| row.rounds.iter_mut().for_each(|round| *round = None));
    assert!(page::parse(&render(&results)).text.contains("no valid round"));
    each_row(&mut results, |_, row| row.rounds.clear());
    page::parse(&render(&results));
}

#[test]
fn no_value_is_so_odd_that_it_reaches_the_page() {
    let odd =
        [0.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE];
    for value in odd {
        // The limit, another, all.
        for spoilt in [0..1, 4..5, 0..15] {
            let mut results = invented::results();
            each_row(&mut results, |index, row| {
                if spoilt.contains(&index) {
                    row.syscalls_per_request = Some(value);
                    row.perf.push(("odd".into(), value));
                    row.rounds.iter_mut().flatten().for_each(|sample| {
                        sample.requests_per_second = value;
                        sample.cpu_us_per_request = value;
                        sample.voluntary_per_request = value;
                        sample.generator_lag_us = Some(value);
                        spoil(&mut sample.latency, value);
                        sample.blocked.iter_mut().for_each(|latency| spoil(latency, value));
                    });
                }
            });
            for variant in results.regimes.iter_mut().flat_map(|regime| &mut regime.variants) {
                variant.axis =
                    variant.axis.map(|(name, x)| (name, if x == 1.0 { value } else { x }));
            }
            let page = render(&results);
            page::parse(&page);
            for not_a_number in ["NaN", "inf\"", "inf,", ">inf"] {
                assert!(!page.contains(not_a_number), "{value} gives {not_a_number}");
            }
        }
    }
}

fn spoil(latency: &mut Latency, value: f64) {
    latency.p50 = value;
    latency.p99 = value;
    latency.curve.iter_mut().step_by(3).for_each(|point| point.1 = value);
    latency.curve.iter_mut().step_by(7).for_each(|point| point.0 = value);
}

fn each_row(results: &mut Results, mut change: impl FnMut(usize, &mut Row)) {
    for variant in results.regimes.iter_mut().flat_map(|regime| &mut regime.variants) {
        variant.rows.iter_mut().enumerate().for_each(|(index, row)| change(index, row));
    }
}

#[test]
fn ticks_are_round_and_on_the_scale() {
    assert_eq!(Scale::from_zero([1.02]).ticks(), [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(Scale::from_zero([180_000.0]).ticks(), [0.0, 50_000.0, 100_000.0, 150_000.0]);
    assert_eq!(Scale::log([0.12, 30.0]).ticks(), [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
    assert_eq!(Scale::log([3.0, 40_000.0]).ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
    assert_eq!(Scale::tail([0.0, 50.0, 99.95, 100.0]).ticks(), [50.0, 90.0, 99.0, 99.9, 100.0]);
    for nothing in [Scale::from_zero([]), Scale::log([]), Scale::log([7.0]), Scale::tail([])] {
        assert!(nothing.ticks().len() >= 2, "{nothing:?}");
    }
}

#[test]
fn places_rise_with_the_values() {
    let scales = [
        Scale::from_zero([8.0]),
        Scale::log([1.0, 100.0]),
        Scale::of_sweep(&[1.0, 2.0, 4.0, 8.0, 64.0]),
        Scale::of_sweep(&[0.0, 1.0, 5.0, 20.0]),
        Scale::tail([99.9]),
    ];
    for scale in scales {
        let places = [0.0, 1.0, 2.0, 5.0, 64.0, 99.0, 100.0].map(|value| scale.place(value));
        assert!(places.is_sorted() && places[0] < places[4], "{scale:?}: {places:?}");
        assert!(
            [f64::NAN, f64::INFINITY, -1.0]
                .iter()
                .all(|odd| (0.0..=1.0).contains(&scale.place(*odd)))
        );
    }
    assert_eq!(Scale::of_sweep(&[1.0, 2.0, 4.0, 8.0, 16.0]).place(4.0), 0.5);
    assert_eq!(Scale::of_sweep(&[0.0, 1.0, 5.0, 20.0, 100.0]).place(5.0), 0.5);
    assert_eq!(Scale::of_sweep(&[5.0]).place(5.0), 0.5);
}

#[test]
fn labels_move_no_farther_than_they_must() {
    assert_eq!(spread(&[10.0, 50.0], 10.0, 0.0, 100.0), [10.0, 50.0]);
    assert_eq!(spread(&[50.0, 50.0, 50.0], 10.0, 0.0, 100.0), [40.0, 50.0, 60.0]);
    assert_eq!(spread(&[99.0, 98.0, 1.0], 10.0, 0.0, 100.0), [100.0, 90.0, 1.0]);
    assert_eq!(spread(&[5.0, 5.0, 5.0], 10.0, 0.0, 10.0), [0.0, 5.0, 10.0]);
    assert!(spread(&[], 10.0, 0.0, 100.0).is_empty());
}

#[test]
fn figures_have_the_digits_that_mean_something() {
    let figures = [182_412.3, 14.32, 5.412, 0.0031, 0.0, 0.0001].map(number::figure);
    assert_eq!(figures, ["182,412", "14.3", "5.41", "0.003", "0", "<0.001"]);
    assert_eq!([0.0801, 0.971, 28.71, 120.4].map(number::ratio), ["0.080", "0.97", "28.7", "120"]);
    assert_eq!(
        [28.0, 174.4, 4_878.0, 1_300_000.0].map(number::micros),
        ["28.0 us", "174 us", "4.88 ms", "1.30 s"]
    );
    assert_eq!(
        [0.0, 500.0, 150_000.0, 2_500_000.0].map(number::short),
        ["0", "500", "150k", "2.5M"]
    );
    assert_eq!([0.0, 99.9, 99.99].map(number::percentile), ["0 %", "99.9 %", "99.99 %"]);
}
