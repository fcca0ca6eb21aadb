//! Scheduling of the calling thread: its CPUs, its class, its priority.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::{from_nix, syscall};

/// The CPUs that the calling thread may run on, by their kernel numbers (they can have gaps).
///
/// Asked of a thread that is pinned already, the answer is that one CPU: ask first, pin later.
pub fn allowed_cpus() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Restricts the calling thread to one CPU.
///
/// # Errors
/// `EINVAL` if the CPU does not exist, is offline, or is outside the process's CPU set.
#[doc(alias = "sched_setaffinity")]
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::count() {
        // core_affinity would write beyond its set.
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        return Ok(());
    }
    // core_affinity keeps the reason to itself; it is still in errno, unless it refused by itself.
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        None | Some(0) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        Some(_) => Err(error),
    }
}

/// Restricts the calling thread to the given CPUs.
#[doc(alias = "sched_setaffinity")]
pub fn restrict_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(from_nix)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(from_nix)
}

/// How many CPUs the calling thread is allowed on just now.
#[doc(alias = "sched_getaffinity")]
pub fn affinity_width() -> io::Result<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).map_err(from_nix)?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).count())
}

/// Puts the calling thread into the real-time class `SCHED_FIFO` with a priority from 1 to 99.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or a sufficient `RLIMIT_RTPRIO`, `EINVAL` for another priority.
#[doc(alias = "sched_setscheduler")]
#[doc(alias = "SCHED_FIFO")]
pub fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel only reads the parameters, which outlive the call; 0 is this thread.
    unsafe { syscall!(sched_setscheduler(0, libc::SCHED_FIFO, &parameters)) }?;
    Ok(())
}

/// Sets the calling thread's nice value, from -20 (favoured) to 19; values beyond are clamped.
///
/// # Errors
/// `EACCES` or `EPERM` when lowering it below what `RLIMIT_NICE` allows.
#[doc(alias = "setpriority")]
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the call takes no pointer. A thread's id is a valid `who` on Linux.
    unsafe { syscall!(setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice)) }?;
    Ok(())
}
