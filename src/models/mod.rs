//! Model checks: the shipped protocol on a handle set whose every move a checker decides.
//!
//! - Loom tries every schedule up to a number of preemptions, and every value that the memory
//!   orders allow: parker, slot word, calls, settling, small promotions.
//! - Shuttle tries random schedules of many threads, with one memory order: the whole protocol.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --lib models
//! RUSTFLAGS="--cfg shuttle" cargo test --release --lib models
//! ```
//!
//! A lost wake-up or a lost event shows as a deadlock: the model's main thread waits for all that
//! was posted to be handled. For that the watchman must not come to the rescue, so where it is not
//! what is tested it sleeps for ever.

mod crew;
mod fake;

#[cfg(loom)]
mod loom_calls;
#[cfg(loom)]
mod loom_parker;
#[cfg(loom)]
mod loom_promotion;
#[cfg(loom)]
mod loom_settle;
#[cfg(loom)]
mod loom_sharing;
#[cfg(loom)]
mod loom_slot;

#[cfg(shuttle)]
mod set;
#[cfg(shuttle)]
mod shuttle_deadlines;
#[cfg(shuttle)]
mod shuttle_growth;
#[cfg(shuttle)]
mod shuttle_handles;
#[cfg(shuttle)]
mod shuttle_members;
#[cfg(shuttle)]
mod shuttle_messages;
#[cfg(shuttle)]
mod shuttle_promotion;
#[cfg(shuttle)]
mod shuttle_shutdown;

#[cfg(loom)]
use loom::thread;
#[cfg(shuttle)]
use shuttle::thread;

/// Explores a model with loom, up to so many preemptions: `LOOM_MAX_PREEMPTIONS` or else two, but
/// for a small model at least `least`.
#[cfg(loom)]
fn explore(least: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(2).max(least));
    builder.max_branches = builder.max_branches.max(10_000);
    builder.check(move || {
        crate::sync::model::reset();
        model();
    });
}

/// Runs a model with shuttle, under random schedules and under ones with few preemptions.
/// `CABRANK_MODEL_ITERATIONS` says how often each; otherwise it is `iterations`.
#[cfg(shuttle)]
fn explore(iterations: usize, model: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, MaxSteps, Runner};

    let asked = std::env::var("CABRANK_MODEL_ITERATIONS").ok();
    let iterations = asked.map_or(iterations, |asked| asked.parse().expect("a number"));
    let mut config = Config::new();
    config.silence_warnings = true;
    // Models take a few thousand steps. One that goes on and on, because somebody ticks who never
    // finds what is lost, fails here.
    config.max_steps = MaxSteps::FailAfter(20_000);
    let model = std::sync::Arc::new(move || {
        crate::sync::model::reset();
        model();
    });
    let (random, few_preemptions) = (std::sync::Arc::clone(&model), model);
    Runner::new(RandomScheduler::new(iterations), config.clone()).run(move || random());
    Runner::new(PctScheduler::new(3, iterations), config).run(move || few_preemptions());
}

/// One of `0..n`, as the checker decides.
#[cfg(shuttle)]
fn any(n: usize) -> usize {
    use shuttle::rand::{Rng, thread_rng};

    thread_rng().gen_range(0..n)
}
