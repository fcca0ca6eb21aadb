//! The peers written in C++ (`benches/peers/`), built when they are asked for and can be.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};
use std::time::SystemTime;

/// The peers there are: ACE's two reactors for thread pools, and Asio.
pub(crate) const NAMES: [&str; 3] = ["ace-tp", "ace-dev-poll", "asio"];

/// The program of a peer, in the directory `peers` under `target_dir`; built if it is not there or older
/// than what it is made of.
///
/// It takes `--threads N --work-us U --block-us U [--unix PATH]`, prints its address when it listens, and
/// ends with its standard input.
///
/// # Errors
/// In one sentence: what is missing and how it is had, or the first thing that the compiler complains of.
pub(crate) fn build(name: &str, target_dir: &Path) -> Result<PathBuf, String> {
    let peer = Peer::by_name(name)?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
    let directory = target_dir.join("peers");
    let program = directory.join(name);
    let newest = newest(&sources).map_err(|error| cannot("read", &sources, &error))?;
    if modified(&program).is_ok_and(|built| built > newest) {
        return Ok(program);
    }
    let compiler = Compiler::find().map_err(|missing| format!("{name}: {missing}"))?;
    if !compiler.has_header(peer.header)? {
        let Peer { header, package, .. } = peer;
        return Err(format!("{name}: <{header}> is not installed (on Debian: {package})"));
    }
    fs::create_dir_all(&directory).map_err(|error| cannot("make", &directory, &error))?;
    // Under a name of its own first: another process may be building or running the program.
    let unfinished = directory.join(format!("{name}.{}", process::id()));
    let mut command = compiler.command();
    command.args(OPTIONS).args(peer.defines).arg("-o").arg(&unfinished);
    command.arg(sources.join(peer.source)).args(peer.libraries);
    let output = compiler.run(command, "")?;
    if !output.status.success() {
        let _ = fs::remove_file(&unfinished);
        return Err(format!("{name}: cannot be built: {}", complaint(&output)));
    }
    fs::rename(&unfinished, &program).map_err(|error| cannot("write", &program, &error))?;
    Ok(program)
}

/// The most connections that a peer can hold, where it has a limit of its own.
pub(crate) fn most_connections(name: &str) -> Option<usize> {
    // select(2) takes descriptors below FD_SETSIZE, 1024, and a few are its own.
    (name == "ace-tp").then_some(1000)
}

struct Peer {
    source: &'static str,
    /// Shows whether the library is installed.
    header: &'static str,
    /// Debian's name of it.
    package: &'static str,
    defines: &'static [&'static str],
    libraries: &'static [&'static str],
}

impl Peer {
    fn by_name(name: &str) -> Result<Peer, String> {
        let ace = |source, header| Peer {
            source,
            header,
            package: "libace-dev",
            defines: &[],
            libraries: &["-lACE"],
        };
        match name {
            "ace-tp" => Ok(ace("ace_tp.cpp", "ace/TP_Reactor.h")),
            "ace-dev-poll" => Ok(ace("ace_dev_poll.cpp", "ace/Dev_Poll_Reactor.h")),
            "asio" => Ok(Peer {
                source: "asio.cpp",
                header: "asio.hpp",
                package: "libasio-dev",
                defines: &["-DASIO_STANDALONE"],
                libraries: &[],
            }),
            _ => Err(format!("{name}: no such peer; there are {}", NAMES.join(", "))),
        }
    }
}

/// A C++ compiler, with the arguments it is always called with.
struct Compiler {
    words: Vec<OsString>,
}

impl Compiler {
    /// The one that `CXX` names, or else the first of the usual ones.
    fn find() -> Result<Compiler, String> {
        let chosen = env::var("CXX").unwrap_or_default();
        let words: Vec<OsString> = chosen.split_whitespace().map(OsString::from).collect();
        if !words.is_empty() {
            let compiler = Compiler { words };
            return match compiler.works() {
                true => Ok(compiler),
                false => Err(format!("CXX is {chosen:?}, which is no C++ compiler that works")),
            };
        }
        let usual = ["c++", "g++", "clang++"].map(|name| Compiler { words: vec![name.into()] });
        usual
            .into_iter()
            .find(Compiler::works)
            .ok_or_else(|| "there is no C++ compiler (on Debian: g++); CXX may name one".into())
    }

    fn works(&self) -> bool {
        self.preprocess("").is_ok_and(|output| output.status.success())
    }

    fn has_header(&self, header: &str) -> Result<bool, String> {
        let source = format!("#if !__has_include(<{header}>)\n#error missing\n#endif\n");
        Ok(self.preprocess(&source)?.status.success())
    }

    fn preprocess(&self, source: &str) -> Result<Output, String> {
        let mut command = self.command();
        command.args(OPTIONS).args(["-E", "-x", "c++", "-"]);
        self.run(command, source)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command
    }

    /// Runs it on a source text.
    fn run(&self, mut command: Command, source: &str) -> Result<Output, String> {
        let run = |command: &mut Command| -> io::Result<Output> {
            // Messages that can be recognised, whatever the user's language.
            command.env("LC_ALL", "C");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            if let Some(mut input) = child.stdin.take() {
                // One that does not read has its reasons, and will give them.
                let _ = input.write_all(source.as_bytes());
            }
            child.wait_with_output()
        };
        run(&mut command).map_err(|error| cannot("run", Path::new(&self.words[0]), &error))
    }
}

/// The first line that says what is wrong.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let error = said.lines().find(|line| line.contains("error: ") || line.contains("cannot find"));
    let line = error.or_else(|| said.lines().find(|line| !line.trim().is_empty()));
    line.map_or_else(|| output.status.to_string(), |line| line.trim().into())
}

/// When the last of the files was changed: all peers are made of the same headers.
fn newest(directory: &Path) -> io::Result<SystemTime> {
    let mut newest = modified(directory)?;
    for entry in fs::read_dir(directory)? {
        newest = newest.max(modified(&entry?.path())?);
    }
    Ok(newest)
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

const OPTIONS: [&str; 4] = ["-std=c++17", "-O2", "-DNDEBUG", "-pthread"];
