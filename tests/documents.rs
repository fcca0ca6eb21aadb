//! The documents agree with one another.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The lines of the first code block that begins with `fence`, after `prefix` has been taken off.
fn first_block(text: &str, prefix: &str, fence: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let rest = line.strip_prefix(prefix).unwrap_or(line);
        rest.strip_prefix(' ').filter(|_| !prefix.is_empty()).unwrap_or(rest)
    });
    let from_start = lines.skip_while(|line| *line != fence).skip(1);
    from_start.take_while(|line| *line != "```").map(String::from).collect()
}

/// The README's is compiled only, for a server does not end. The crate's is the same with a client that
/// stops it, in lines that rustdoc hides, and is run.
#[test]
fn the_server_of_the_readme_is_the_one_that_is_run() {
    let shown = first_block(&read("README.md"), "", "```rust,no_run");
    let mut run = first_block(&read("src/lib.rs"), "//!", "```");
    run.retain(|line| !line.starts_with("# "));
    assert_eq!(shown, run);
    assert!((20..=30).contains(&shown.len()), "{} lines", shown.len());
}

#[test]
fn every_file_that_the_readme_links_to_is_there() {
    for document in ["README.md", "docs/recipes.md", "docs/contributing.md", "docs/protocol.md"] {
        let text = read(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let folder = Path::new(document).parent().unwrap();
            let target = link.split('#').next().unwrap();
            if !link.contains("://") && !target.is_empty() {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
                assert!(path.exists(), "{document}: {link}");
            }
        }
    }
}
