//! What must not compile does not, and for the right reason: each program in `tests/compile_fail` names
//! the compiler's error code that it has to meet.
//!
//! The compiler is asked directly, with the library this test itself was linked with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

#[test]
fn wrong_order_and_shared_ownership_do_not_compile() {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let library = newest_library(&deps);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut tried = 0;
    for entry in fs::read_dir(programs).unwrap() {
        let program = entry.unwrap().path();
        let text = fs::read_to_string(&program).unwrap();
        let expected = text.lines().find_map(|line| line.strip_prefix("// error: ")).unwrap();
        let said = compile(&program, &library, &deps);
        match (expected, said) {
            ("none", Ok(())) => {}
            ("none", Err(said)) => panic!("{} does not compile:\n{said}", program.display()),
            (code, Ok(())) => panic!("{} compiles, without {code}", program.display()),
            (code, Err(said)) => {
                let codes: Vec<&str> = said
                    .lines()
                    .filter_map(|line| line.strip_prefix("error["))
                    .filter_map(|rest| rest.split(']').next())
                    .collect();
                let right = !codes.is_empty() && codes.iter().all(|found| *found == code);
                assert!(right, "{} wants {code}:\n{said}", program.display());
            }
        }
        tried += 1;
    }
    assert!(tried >= 10, "only {tried} programs found");
}

/// Of the builds of the library that lie around, this test's is the newest.
fn newest_library(deps: &Path) -> PathBuf {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libcabrank-") && name.ends_with(".rlib")
    };
    let built = |path: &PathBuf| -> SystemTime { path.metadata().unwrap().modified().unwrap() };
    let files = fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    files.filter(is_library).max_by_key(built).expect("the library beside its test")
}

fn compile(program: &Path, library: &Path, deps: &Path) -> Result<(), String> {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "bin", "--emit", "metadata", "-A", "warnings"])
        .arg("--extern")
        .arg(format!("cabrank={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .arg("-o")
        .arg(std::env::temp_dir().join(format!("cabrank-compile-fail-{}", std::process::id())))
        .arg(program)
        .output()
        .expect("rustc");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}
