//! cabrank.
//!
//! Per request: one `recv`, one `send`, a share in one `epoll_wait`, and with one-shot deactivation one
//! `epoll_ctl` to arm again.

use std::time::Duration;

use cabrank::sys::sched;
use cabrank::{Deactivation, Interest, Next, Order, Pool, handler_fn};

use super::Contestant;
use super::listener::Listener;
use crate::connection::Cost;

pub(crate) fn start(
    contestant: Contestant,
    listener: Listener,
    threads: usize,
    cost: Cost,
) -> cabrank::Result<Pool> {
    let builder = Pool::builder();
    let builder = match contestant {
        Contestant::Papers => builder.papers(),
        Contestant::Edge => builder.deactivation(Deactivation::Edge),
        Contestant::Fifo => builder.order(Order::Fifo),
        Contestant::Spin => builder.deactivation(Deactivation::Edge).spin(SPIN),
        _ => builder,
    };
    let threads = if contestant == Contestant::Spin { pollers(threads) } else { threads };
    let pool = builder.threads(threads).build()?;
    let acceptor = handler_fn(listener, move |listener: &mut Listener, _, cx| {
        while let Ok(connection) = listener.accept(cost) {
            if cx.handles().register(connection, Interest::READABLE).is_err() {
                break;
            }
        }
        Next::Rearm(Interest::READABLE)
    });
    pool.handles().register(acceptor, Interest::READABLE)?;
    Ok(pool)
}

/// Each thread that polls needs a CPU, and so does the load.
fn pollers(threads: usize) -> usize {
    let spare = sched::allowed_cpus().len().saturating_sub(1);
    threads.min(spare).max(1)
}

/// Several times the gap between two requests at 5,000 per second, so that few find the leader asleep.
const SPIN: Duration = Duration::from_millis(1);
