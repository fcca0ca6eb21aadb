//! The monotonic clock, as a number.

/// Nanoseconds on the monotonic clock: not set by anybody, standing still while the machine sleeps.
#[doc(alias = "clock_gettime")]
#[doc(alias = "CLOCK_MONOTONIC")]
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel, or its page in our memory, writes the time, which outlives the call. It knows
    // this clock, so there is no error to look for.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn it_goes_with_the_standard_librarys() {
        let (start, own) = (Instant::now(), monotonic());
        std::thread::sleep(Duration::from_millis(2));
        let (own, theirs) = (monotonic() - own, start.elapsed());
        assert!(own >= 2_000_000 && Duration::from_nanos(own) <= theirs, "{own} ns in {theirs:?}");
    }
}
