//! What the figures were measured on and with.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use cabrank::sys::sched;

/// Name and value, for people.
pub(crate) fn describe() -> Vec<(String, String)> {
    let cpus = sched::allowed_cpus().len();
    let mut machine = vec![
        ("CPU", cpu()),
        ("CPUs", format!("{cpus}{}", if is_virtual() { ", in a virtual machine" } else { "" })),
        ("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease"))),
        ("mitigations", mitigations()),
        ("cabrank", env!("CARGO_PKG_VERSION").into()),
        ("rustc", first_line("rustc", &["--version"]).unwrap_or_else(unknown)),
        ("date", date()),
        ("options", options()),
    ];
    // Not in a package from a registry.
    if let Some(commit) = commit() {
        machine.insert(5, ("commit", commit));
    }
    machine.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

fn cpu() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let name = model.and_then(|rest| rest.split_once(": ")).map(|(_, name)| name.trim().into());
    name.unwrap_or_else(|| std::env::consts::ARCH.into())
}

fn is_virtual() -> bool {
    let cpuinfo = read("/proc/cpuinfo");
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
}

/// What the kernel does about the weaknesses of the CPU: these make system calls dear.
fn mitigations() -> String {
    let mut active = Vec::new();
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities");
    for entry in entries.into_iter().flatten().flatten() {
        let state = read(entry.path());
        if let Some(what) = state.strip_prefix("Mitigation: ") {
            active.push(format!("{}: {what}", entry.file_name().to_string_lossy()));
        }
    }
    active.sort();
    if active.is_empty() { "none".into() } else { active.join("; ") }
}

fn commit() -> Option<String> {
    let directory = env!("CARGO_MANIFEST_DIR");
    let commit = first_line("git", &["-C", directory, "rev-parse", "--short=12", "HEAD"])?;
    let changes = ["-C", directory, "status", "--porcelain", "--untracked-files=no"];
    let is_changed = first_line("git", &changes).is_some();
    Some(if is_changed { format!("{commit} with changes") } else { commit })
}

fn options() -> String {
    let given: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if given.is_empty() { "none".into() } else { given.join(" ") }
}

/// Now, in UTC.
fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Year, month and day of a number of days since 1970.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// The first line that a program prints, if it runs and has something to say.
fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().filter(|_| output.status.success()).map(String::from)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().into()
}

fn unknown() -> String {
    "unknown".into()
}
