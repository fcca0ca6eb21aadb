//! SIGINT and SIGTERM.

use std::ops::ControlFlow;

use cabrank::sys::signalfd::{self, SIGINT, SIGTERM};
use cabrank::{Pool, Signals};

/// Listens for the signals that stop the program, with a pool of its own: the threads of the server may all
/// be in handlers, and then none of them hears anything.
pub(crate) struct Watch {
    _pool: Pool,
}

impl Watch {
    /// To be called before any other thread is started. Hands on the numbers of the signals.
    pub(crate) fn start(mut tell: impl FnMut(i32) + Send + 'static) -> cabrank::Result<Watch> {
        let signals = Signals::block(&STOPPING)?;
        let pool = Pool::builder().threads(1).name("signals").build()?;
        pool.handles().on_signals(signals, move |signal, _cx| {
            tell(signal.number);
            // From now on they come to this thread, and do what they do by default: end the process.
            let _ = signalfd::unblock(&STOPPING);
            ControlFlow::Continue(())
        })?;
        Ok(Watch { _pool: pool })
    }
}

const STOPPING: [i32; 2] = [SIGINT, SIGTERM];
