//! The server: a listener, its connections, and a graceful end.

use std::error::Error;
use std::mem;
use std::sync::mpsc;
use std::time::Duration;

use cabrank::{Interest, Metrics, Pool, Unfinished};

use crate::acceptor::Acceptor;
use crate::args::{Args, explain};
use crate::load::Address;
use crate::output::{complain, say, table};
use crate::stop::Watch;

/// A running server.
pub(crate) struct Server {
    pub(crate) pool: Pool,
    pub(crate) address: Address,
}

/// How a server ended.
pub(crate) struct Stopped {
    pub(crate) metrics: Metrics,
    /// Why it did not really end.
    pub(crate) unfinished: Option<cabrank::Error>,
}

/// Serves until SIGINT or SIGTERM, then prints what each thread did.
pub(crate) fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    let (tell, told) = mpsc::channel();
    // Before the first thread is started, so that all of them leave the signals to the handle.
    let _watch = Watch::start(move |signal| {
        // A second one ends the process before anybody could hear of it.
        let _ = tell.send(signal);
    })?;
    let server = Server::start(args)?;
    say!("listening on {}", server.address)?;
    told.recv()?;
    let stopped = server.stop();
    table(&stopped.metrics)?;
    stopped.unfinished.map_or(Ok(()), |error| Err(error.into()))
}

impl Server {
    pub(crate) fn start(args: &Args) -> Result<Server, Box<dyn Error>> {
        let acceptor = Acceptor::bind(args)?;
        let address = acceptor.address()?;
        let pool = args.pool.clone().build().map_err(|error| explain(&error))?;
        pool.handles().register(acceptor, Interest::READABLE)?;
        Ok(Server { pool, address })
    }

    /// Lets what runs finish, but not for ever.
    pub(crate) fn stop(self) -> Stopped {
        let finished = self.pool.finish_within(SOON).or_else(|unfinished| {
            complain!("{unfinished}; another {LATE:?} for them, a second signal ends echo at once");
            unfinished.pool.finish_within(LATE)
        });
        match finished {
            Ok(report) => Stopped { metrics: report.metrics, unfinished: None },
            Err(unfinished) => {
                let Unfinished { pool, error } = *unfinished;
                let metrics = pool.metrics();
                // Dropped it would wait for its handlers.
                mem::forget(pool);
                Stopped { metrics, unfinished: Some(error) }
            }
        }
    }
}

/// Handlers that end within this time need no mention.
const SOON: Duration = Duration::from_millis(500);

const LATE: Duration = Duration::from_secs(5);
