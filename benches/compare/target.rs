//! Where cargo keeps what it builds.

use std::env;
use std::path::{Path, PathBuf};

/// The target directory that this program lies in: cargo marks it, and there may be several levels between.
pub(crate) fn directory() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let marked = program.ancestors().find(|path| path.join("CACHEDIR.TAG").is_file());
    let named = || env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    marked.map(PathBuf::from).or_else(named).unwrap_or_else(usual)
}
