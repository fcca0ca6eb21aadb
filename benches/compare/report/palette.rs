//! How contestants look: the hue tells the family, the mark and the shade the member.
//!
//! The families' hues are those of Okabe and Ito, which people with any kind of colour vision can tell
//! apart; the names stand beside the lines and bars all the same.

use super::results::Results;
use super::svg::Mark;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    Epoll,
    Cabrank,
    Queue,
    Tokio,
    Cpp,
    Other,
}

/// One contestant's, in the whole report.
pub(super) struct Look {
    pub(super) name: &'static str,
    pub(super) family: Family,
    /// "c3", and "c3 ours" for those of this crate, which stand out.
    pub(super) class: String,
    pub(super) mark: Mark,
    pub(super) about: &'static str,
    shade: usize,
}

impl Look {
    pub(super) fn is_ours(&self) -> bool {
        self.family == Family::Cabrank
    }
}

pub(super) struct Palette {
    looks: Vec<Look>,
}

impl Palette {
    pub(super) fn of(results: &Results) -> Palette {
        let mut names: Vec<&'static str> = Vec::new();
        let variants = results.regimes.iter().flat_map(|regime| &regime.variants);
        for row in variants.flat_map(|variant| &variant.rows) {
            if !names.contains(&row.contestant) {
                names.push(row.contestant);
            }
        }
        // Not every regime has all of them; the list has an order, and strangers come after it.
        names.sort_by_key(|name| {
            let place = CONTESTANTS.iter().position(|(listed, _, _)| listed == name);
            place.unwrap_or(CONTESTANTS.len())
        });
        let mut looks: Vec<Look> = Vec::new();
        for name in names {
            let look = look(name, &looks);
            looks.push(look);
        }
        Palette { looks }
    }

    pub(super) fn looks(&self) -> &[Look] {
        &self.looks
    }

    pub(super) fn look(&self, name: &str) -> &Look {
        self.looks.iter().find(|look| look.name == name).expect("made from the same results")
    }

    /// Dark colours for screens only: paper is white.
    pub(super) fn style_sheet(&self) -> String {
        let rules = |scheme: fn(&Shade) -> &str| -> String {
            let rule = |(index, look): (usize, &Look)| {
                let shades = shades(look.family);
                format!(".c{index}{{--c:{}}}\n", scheme(&shades[look.shade % shades.len()]))
            };
            self.looks.iter().enumerate().map(rule).collect()
        };
        let (light, dark) = (rules(|shade| shade.0), rules(|shade| shade.1));
        format!("{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n")
    }
}

fn look(name: &'static str, known: &[Look]) -> Look {
    let family = family(name);
    // A name from the list always looks the same, whoever else takes part; others come after.
    let listed = CONTESTANTS.iter().filter(|(_, of, _)| *of == family);
    let place = listed.clone().position(|(listed, _, _)| *listed == name);
    let strangers = known.iter().filter(|look| look.family == family && look.about.is_empty());
    let shade = place.unwrap_or_else(|| listed.count() + strangers.count());
    let about = CONTESTANTS.iter().find(|(listed, _, _)| *listed == name);
    let ours = if family == Family::Cabrank { " ours" } else { "" };
    let marks = [Mark::Circle, Mark::Square, Mark::Diamond, Mark::Up, Mark::Down];
    Look {
        name,
        family,
        class: format!("c{}{ours}", known.len()),
        mark: marks[shade % marks.len()],
        about: about.map_or("", |(_, _, about)| about),
        shade,
    }
}

/// By the list, or else by how the name begins: "tokio-8" is a tokio.
fn family(name: &str) -> Family {
    let stem = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
    let listed = CONTESTANTS.iter().find(|(listed, _, _)| *listed == name);
    let related = || CONTESTANTS.iter().find(|(listed, _, _)| stem(listed) == stem(name));
    listed.or_else(related).map_or(Family::Other, |(_, family, _)| *family)
}

/// On paper, and on a dark screen.
type Shade = (&'static str, &'static str);

fn shades(family: Family) -> &'static [Shade] {
    match family {
        Family::Epoll => &[("#1c1c1c", "#f0f0f0"), ("#6c6c6c", "#a6a6a6"), ("#94877a", "#c0b09c")],
        Family::Cabrank => &[
            ("#084a9c", "#79b6ff"),
            ("#1b8ade", "#2fa0f0"),
            ("#2a9fc4", "#62d5f0"),
            ("#5a3ec8", "#a594ff"),
            ("#8479d2", "#8d8fd6"),
        ],
        Family::Queue => &[("#b35c00", "#ff9d3c"), ("#d08400", "#ffcb69")],
        Family::Tokio => &[("#b02f6d", "#ff7db6"), ("#d075a3", "#d890b6")],
        Family::Cpp => &[("#17634d", "#3fae8b"), ("#009e73", "#2fdba6"), ("#6d961d", "#a8d057")],
        Family::Other => &[("#75492d", "#d2a07e"), ("#9c7556", "#e4c5a6")],
    }
}

const CONTESTANTS: [(&str, Family, &str); 15] = [
    ("bare", Family::Epoll, "one level-triggered epoll loop on one thread"),
    ("reuseport", Family::Epoll, "one such loop per thread, connections dealt by SO_REUSEPORT"),
    ("floating", Family::Epoll, "all threads in epoll_wait on one set, one-shot"),
    ("default", Family::Cabrank, "cabrank as it comes: one-shot"),
    ("edge", Family::Cabrank, "cabrank with edge-triggered deactivation"),
    ("fifo", Family::Cabrank, "cabrank with FIFO order of followers"),
    ("spin", Family::Cabrank, "cabrank, edge-triggered, polling before it sleeps"),
    ("papers", Family::Cabrank, "cabrank as in the papers: 1 leader, 1 event, eager, LIFO"),
    ("queue", Family::Queue, "half-sync/half-async: a waiting thread, a parking queue, workers"),
    ("queue-spin", Family::Queue, "the same with a queue that spins before it parks"),
    ("tokio", Family::Tokio, "tokio's multi-threaded runtime, as many workers as threads"),
    ("tokio-2", Family::Tokio, "tokio's multi-threaded runtime with 2 workers"),
    ("ace-tp", Family::Cpp, "ACE_TP_Reactor: Leader/Followers on select, in C++"),
    ("ace-dev-poll", Family::Cpp, "ACE_Dev_Poll_Reactor: Leader/Followers on epoll, in C++"),
    ("asio", Family::Cpp, "Asio: all threads run one io_context, in C++"),
];
