//! The choices for a pool, checked before anything is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::followers::Order;
use crate::handler::Deactivation;
use crate::policy::{Growth, Policy, Promotion};
use crate::pool::Pool;
use crate::rank::MOST_THREADS;
use crate::sync::nanoseconds;
use crate::sys::sched;
use crate::table;
use crate::token::HandleId;
use crate::upcall::OnPanic;

/// Builds a [`Pool`]. Every option has a default that is meant to be right.
///
/// ```
/// use cabrank::{Order, Pinning, Pool};
///
/// let pool = Pool::builder()
///     .threads(4)
///     .order(Order::Lifo)
///     .pinning(Pinning::None)
///     .name("front")
///     .build()?;
/// # Ok::<(), cabrank::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing before `build`"]
pub struct Builder {
    pub(crate) threads: Option<usize>,
    joiners: usize,
    leaders: Option<usize>,
    events: Option<usize>,
    running: Option<usize>,
    promotion: Promotion,
    order: Order,
    spin: Duration,
    budget: Option<Duration>,
    max_threads: Option<usize>,
    keep_alive: Duration,
    growth_interval: Duration,
    pub(crate) deactivation: Deactivation,
    pub(crate) on_panic: OnPanic,
    pub(crate) max_handles: usize,
    pub(crate) name: String,
    pub(crate) stack_size: Option<usize>,
    pinning: Pinning,
    scheduling: Arc<dyn Fn(usize) -> Scheduling + Send + Sync>,
    pub(crate) on_start: Option<Hook>,
    pub(crate) on_stop: Option<Hook>,
    pub(crate) on_overrun: Option<OverrunHook>,
}

pub(crate) type OverrunHook = Arc<dyn Fn(&Overrun) + Send + Sync>;

/// A handler that was taken for blocked because it overran its [budget](Builder::budget); see
/// [`Builder::on_overrun`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Overrun {
    /// The handle. Posted closures have an id that is nobody's.
    pub handle: HandleId,
    /// The index of the thread that runs it.
    pub thread: usize,
    /// How long it has been running when it was noticed.
    pub elapsed: Duration,
}

pub(crate) type Hook = Arc<dyn Fn(usize) + Send + Sync>;

/// Which thread runs on which CPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Pinning {
    /// The scheduler decides.
    #[default]
    None,
    /// Thread 0 on the first CPU that this process may use, thread 1 on the second, and round again.
    OnePerCpu,
    /// Thread 0 on the first of these CPUs, thread 1 on the second, and round again.
    Cpus(Vec<usize>),
}

/// A thread's scheduling class and priority.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Scheduling {
    /// As the thread that builds the pool.
    #[default]
    Inherit,
    /// The ordinary class with a nice value from -20 (favoured) to 19. Anyone may raise it; to lower it
    /// below that of the building thread needs `CAP_SYS_NICE` or a sufficient `RLIMIT_NICE`.
    Nice(i32),
    /// The real-time class `SCHED_FIFO` with a priority from 1 to 99. Needs `CAP_SYS_NICE` or a sufficient
    /// `RLIMIT_RTPRIO`.
    #[doc(alias = "SCHED_FIFO")]
    Fifo(i32),
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            threads: None,
            joiners: 0,
            leaders: None,
            events: None,
            running: None,
            promotion: Promotion::default(),
            order: Order::default(),
            spin: Duration::ZERO,
            budget: None,
            max_threads: None,
            keep_alive: KEEP_ALIVE,
            growth_interval: GROWTH_INTERVAL,
            deactivation: Deactivation::default(),
            on_panic: OnPanic::default(),
            max_handles: MAX_HANDLES,
            name: "cabrank".into(),
            stack_size: None,
            pinning: Pinning::default(),
            scheduling: Arc::new(|_| Scheduling::Inherit),
            on_start: None,
            on_stop: None,
            on_overrun: None,
        }
    }

    /// The pattern exactly as the papers have it: one leader, one event per wait, a follower promoted
    /// before each event, as many running as there are threads.
    ///
    /// Sets [`promotion`](Builder::promotion), [`leaders`](Builder::leaders),
    /// [`events_per_wait`](Builder::events_per_wait) and [`running`](Builder::running) in place of what was
    /// said before; what is said afterwards counts. So call it first.
    pub fn papers(self) -> Builder {
        self.promotion(Promotion::Eager).leaders(1).events_per_wait(1).running(usize::MAX)
    }

    /// How many threads the pool starts, at most 1,023. Default: two per CPU that this process may use.
    pub fn threads(mut self, threads: usize) -> Builder {
        self.threads = Some(threads);
        self
    }

    /// Lets the pool grow to so many threads of its own, from [`threads`](Builder::threads), which it keeps.
    /// Default: it does not grow.
    ///
    /// A thread is started when the last idle one goes into a handler, so that somebody is always left to
    /// notice that the others are blocked. One that has been idle for [`keep_alive`](Builder::keep_alive)
    /// leaves. If a thread cannot be started the pool goes on with those it has, and tries again.
    pub fn max_threads(mut self, threads: usize) -> Builder {
        self.max_threads = Some(threads);
        self
    }

    /// How long a thread above the minimum stays without having anything to do. Default: 10 s.
    pub fn keep_alive(mut self, time: Duration) -> Builder {
        self.keep_alive = time;
        self
    }

    /// At least so much time lies between two threads that are started. An event may wait for it, so that
    /// the last idle thread need not go. Default: 1 ms.
    pub fn growth_interval(mut self, time: Duration) -> Builder {
        self.growth_interval = time;
        self
    }

    /// How many application threads are expected to [`join`](Pool::join). They may come in any number;
    /// this counts for [`leaders`](Builder::leaders), and allows a pool with no threads of its own.
    /// Default: none.
    pub fn joiners(mut self, joiners: usize) -> Builder {
        self.joiners = joiners;
        self
    }

    /// How many threads may wait on the handle set at once. Default: as many as may
    /// [run](Builder::running), at least a leader and a standby, and in busy times with long handlers one more
    /// if more than one may run; with [`Promotion::Eager`], 1; never more than there are threads.
    #[doc(alias = "seats")]
    pub fn leaders(mut self, leaders: usize) -> Builder {
        self.leaders = Some(leaders);
        self
    }

    /// How many events a leader fetches at most. What it does not process itself is there for every
    /// thread to take, so that no event waits behind another's slow handler. At most 4,096. Default: 64.
    pub fn events_per_wait(mut self, events: usize) -> Builder {
        self.events = Some(events);
        self
    }

    /// How many threads may run handlers at once. A handler that overruns its
    /// [budget](Builder::budget) does not count any more. Default: the CPUs this process may use.
    pub fn running(mut self, running: usize) -> Builder {
        self.running = Some(running);
        self
    }

    /// When a follower is brought in. Default: [`Promotion::Adaptive`].
    pub fn promotion(mut self, promotion: Promotion) -> Builder {
        self.promotion = promotion;
        self
    }

    /// Which follower is brought in. Default: [`Order::Lifo`].
    pub fn order(mut self, order: Order) -> Builder {
        self.order = order;
        self
    }

    /// How long a leader polls, and a follower looks out for its promotion, before it sleeps. Saves the
    /// wake-up at the price of a CPU. Default: not at all.
    pub fn spin(mut self, spin: Duration) -> Builder {
        self.spin = spin;
        self
    }

    /// How long a handler may run before the pool takes it for blocked and brings in another thread.
    /// Looked at about that often, and only while it could matter.
    ///
    /// Default: 2 ms; but where an event waits because as many run as may, and times are not busy, eight times
    /// what handlers usually take is enough, but at least 50 us and at most 100 us; and in busy times in which
    /// nobody has been late for a while it is looked at every 8 ms only, until somebody is. A budget that is
    /// set is kept to exactly.
    pub fn budget(mut self, budget: Duration) -> Builder {
        self.budget = Some(budget);
        self
    }

    /// How handles are deactivated that do not choose by themselves. Default: [`Deactivation::OneShot`].
    pub fn deactivation(mut self, deactivation: Deactivation) -> Builder {
        self.deactivation = deactivation;
        self
    }

    /// What becomes of a panic in a handler. Default: [`OnPanic::Close`].
    pub fn on_panic(mut self, on_panic: OnPanic) -> Builder {
        self.on_panic = on_panic;
        self
    }

    /// How many handles can be registered at once. Memory is taken as they come. Default: 1,048,576.
    pub fn max_handles(mut self, handles: usize) -> Builder {
        self.max_handles = handles;
        self
    }

    /// The threads' name, followed by their index. The kernel shows the first 15 bytes. Default: `cabrank`.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// The threads' stack size in bytes. Default: the standard library's, 2 MiB unless `RUST_MIN_STACK`
    /// says otherwise.
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Which of the pool's own threads runs on which CPU. Default: [`Pinning::None`].
    pub fn pinning(mut self, pinning: Pinning) -> Builder {
        self.pinning = pinning;
        self
    }

    /// The scheduling of the pool's own threads. Default: [`Scheduling::Inherit`].
    pub fn scheduling(self, scheduling: Scheduling) -> Builder {
        self.scheduling_by(move |_| scheduling)
    }

    /// The scheduling of each of the pool's own threads, by its index.
    pub fn scheduling_by(
        mut self,
        scheduling: impl Fn(usize) -> Scheduling + Send + Sync + 'static,
    ) -> Builder {
        self.scheduling = Arc::new(scheduling);
        self
    }

    /// Called on each of the pool's own threads, with its index, before it takes part. If it panics,
    /// the pool is not built.
    pub fn on_thread_start(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Builder {
        self.on_start = Some(Arc::new(hook));
        self
    }

    /// Called on each of the pool's own threads, with its index, when it has left.
    pub fn on_thread_stop(mut self, hook: impl Fn(usize) + Send + Sync + 'static) -> Builder {
        self.on_stop = Some(Arc::new(hook));
        self
    }

    /// Called with each run of a handler that has overrun its [budget](Builder::budget), once: by the watchman
    /// while it runs, or, where no thread was free to look, when it has ended. Not with handlers that are known
    /// to [block](crate::Blocking::Always), nor with those that have said so. What it does is taken from
    /// serving events, so do not block.
    pub fn on_overrun(mut self, hook: impl Fn(&Overrun) + Send + Sync + 'static) -> Builder {
        self.on_overrun = Some(Arc::new(hook));
        self
    }

    /// Checks the choices, makes the handle set and starts the threads.
    ///
    /// The CPUs it plans with are those that the calling thread may use, which its threads inherit: a pool
    /// that is built on a thread pinned to one CPU has that one. Build before you pin.
    ///
    /// # Errors
    /// [`Error::ZeroThreads`], [`Error::Zero`], [`Error::MoreLeadersThanThreads`],
    /// [`Error::OutOfRange`], [`Error::InvalidName`] and [`Error::NoSuchCpu`] for choices that cannot be;
    /// [`Error::Create`], [`Error::Spawn`], [`Error::Pin`], [`Error::Schedule`] and
    /// [`Error::StartHook`] for what was refused or went wrong. Nothing is left behind then.
    pub fn build(self) -> Result<Pool> {
        if self.name.contains('\0') {
            return Err(Error::InvalidName { name: self.name });
        }
        let cpus = sched::allowed_cpus();
        let plan = Plan::new(&self, &cpus)?;
        let policy = self.policy(plan.least, cpus.len().max(1))?;
        Pool::start(&self, policy, plan)
    }

    fn policy(&self, least: usize, cpus: usize) -> Result<Policy> {
        let most = self.max_threads.unwrap_or(least);
        check_range("max_threads", saturated(most), saturated(least), saturated(MOST_THREADS))?;
        if self.keep_alive.is_zero() {
            return Err(Error::Zero { option: "keep_alive" });
        }
        let threads = most.saturating_add(self.joiners);
        if threads == 0 {
            return Err(Error::ZeroThreads);
        }
        let at_least_one = |option, value: Option<usize>| match value {
            Some(0) => Err(Error::Zero { option }),
            value => Ok(value),
        };
        at_least_one("max_handles", Some(self.max_handles))?;
        if self.budget == Some(Duration::ZERO) {
            // The watchman would never sleep.
            return Err(Error::Zero { option: "budget" });
        }
        let running = at_least_one("running", self.running)?.unwrap_or(cpus);
        let (calm_seats, seats) = match (at_least_one("leaders", self.leaders)?, self.promotion) {
            (Some(leaders), _) => (leaders, leaders),
            (None, Promotion::Eager) => (1, 1),
            (None, Promotion::Adaptive) => {
                let calm_seats = running.max(2);
                let spare = usize::from(running > 1);
                (threads.min(calm_seats), threads.min(calm_seats.saturating_add(spare)))
            }
        };
        if seats > threads {
            return Err(Error::MoreLeadersThanThreads { leaders: seats, threads });
        }
        let events = at_least_one("events_per_wait", self.events)?.unwrap_or(EVENTS);
        check_range("events_per_wait", saturated(events), 1, MOST_EVENTS)?;
        Ok(Policy {
            seats,
            calm_seats,
            events,
            running,
            order: self.order,
            promotion: self.promotion,
            spin: self.spin,
            budget: nanoseconds(self.budget.unwrap_or(BUDGET)),
            guesses: self.budget.is_none(),
            reports_overruns: self.on_overrun.is_some(),
            growth: Growth {
                least,
                most,
                keep_alive: nanoseconds(self.keep_alive),
                interval: nanoseconds(self.growth_interval),
            },
        })
    }
}

/// What each thread does before it takes part.
#[derive(Debug)]
pub(crate) struct Plan {
    /// How many are started at once; the others when there is need.
    pub(crate) least: usize,
    pub(crate) threads: Vec<Setup>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) cpu: Option<usize>,
    pub(crate) scheduling: Scheduling,
}

impl Plan {
    fn new(builder: &Builder, available: &[usize]) -> Result<Plan> {
        let cpus = match &builder.pinning {
            Pinning::None => &[],
            Pinning::OnePerCpu => available,
            Pinning::Cpus(cpus) => cpus.as_slice(),
        };
        if builder.pinning == Pinning::Cpus(Vec::new()) {
            return Err(Error::Zero { option: "the number of CPUs to pin to" });
        }
        if let Some(&cpu) = cpus.iter().find(|cpu| !available.contains(cpu)) {
            return Err(Error::NoSuchCpu { cpu, available: available.to_vec() });
        }
        let least = match builder.threads {
            Some(0) if builder.joiners == 0 => return Err(Error::ZeroThreads),
            Some(0) if builder.max_threads.is_none() => {
                return Ok(Plan { least: 0, threads: Vec::new() });
            }
            Some(threads) => threads,
            None => 2 * available.len().max(1),
        };
        let threads = builder.max_threads.unwrap_or(least).max(least);
        let option = if threads > least { "max_threads" } else { "threads" };
        check_range(option, saturated(threads), LEAST_THREADS, saturated(MOST_THREADS))?;
        let setup = |index| {
            let scheduling = (builder.scheduling)(index);
            match scheduling {
                Scheduling::Inherit => {}
                Scheduling::Nice(nice) => check_range("Scheduling::Nice", nice.into(), -20, 19)?,
                Scheduling::Fifo(priority) => {
                    check_range("Scheduling::Fifo", priority.into(), 1, 99)?;
                }
            }
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            Ok(Setup { cpu, scheduling })
        };
        Ok(Plan { least, threads: (0..threads).map(setup).collect::<Result<_>>()? })
    }
}

impl Setup {
    /// Pins and schedules the calling thread.
    pub(crate) fn apply(self, thread: usize) -> Result<()> {
        if let Some(cpu) = self.cpu {
            sched::pin_to_cpu(cpu).map_err(|source| Error::Pin { thread, cpu, source })?;
        }
        let scheduled = match self.scheduling {
            Scheduling::Inherit => Ok(()),
            Scheduling::Nice(nice) => sched::set_nice(nice),
            Scheduling::Fifo(priority) => sched::set_fifo(priority),
        };
        let scheduling = self.scheduling;
        scheduled.map_err(|source| Error::Schedule { thread, scheduling, source })
    }
}

impl Scheduling {
    /// The order among followers: real-time before favoured before ordinary.
    pub(crate) fn priority(self) -> i32 {
        match self {
            Scheduling::Inherit => 0,
            Scheduling::Nice(nice) => -nice,
            Scheduling::Fifo(priority) => 100 + priority,
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheduling::Inherit => f.write_str("its scheduling"),
            Scheduling::Nice(nice) => write!(f, "the nice value {nice}"),
            Scheduling::Fifo(priority) => write!(f, "SCHED_FIFO priority {priority}"),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("threads", &self.threads)
            .field("joiners", &self.joiners)
            .field("leaders", &self.leaders)
            .field("events", &self.events)
            .field("running", &self.running)
            .field("promotion", &self.promotion)
            .field("order", &self.order)
            .field("deactivation", &self.deactivation)
            .finish_non_exhaustive()
    }
}

fn saturated(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn check_range(option: &'static str, value: i64, least: i64, most: i64) -> Result<()> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::OutOfRange { option, value, least, most })
    }
}

/// None is allowed too, with joiners, but is not what somebody wants to hear who asked for too many.
const LEAST_THREADS: i64 = 1;

/// As many as one wait pays for; more only make the batch, and so the wait of its last event, longer.
const EVENTS: usize = 64;

/// A batch is kept per thread.
const MOST_EVENTS: i64 = 4_096;

/// Short enough that a blocked thread is missed for little, long enough that looking costs half a percent, and
/// that one which was preempted is mostly back.
const BUDGET: Duration = Duration::from_millis(2);

/// Long enough for a busy hour's pauses, short enough for stacks not to be kept for a day.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// As the budget: threads that block are found no faster.
const GROWTH_INTERVAL: Duration = Duration::from_millis(1);

const MAX_HANDLES: usize = 1 << 20;
const _: () = assert!(MAX_HANDLES <= table::MOST);
