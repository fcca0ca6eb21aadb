//! A multi-threaded event loop for Linux: raw epoll, run by the Leader/Followers pattern.
//!
//! A pool of threads takes turns at watching one set of handles. The thread that detects an event
//! handles it: no dispatcher thread, no task queue, no allocation. Before it does, it gives the waiting
//! role away, so a slow handler never blinds the pool. While a handler runs its handle is deactivated, so
//! the handler has `&mut self` and needs no lock.
//!
//! mio is the poll, tokio is the runtime; this is the multi-threaded event loop that mio says it is not.
//! There are no futures here and no protocols: bring your sockets, or take them from [`net`].
//!
//! ```
//! use cabrank::{Context, Interest, Next, Pool, Ready, handler_fn};
//! use std::{io::{ErrorKind::WouldBlock, Read, Write}, net::{TcpListener, TcpStream}};
//!
//! fn echo(stream: &mut TcpStream, _ready: Ready, _cx: &mut Context<'_>) -> Next {
//!     let mut buffer = [0; 4096];
//!     match stream.read(&mut buffer) {
//!         Ok(n @ 1..) if stream.write_all(&buffer[..n]).is_ok() => Next::Rearm(Interest::READABLE),
//!         Err(error) if error.kind() == WouldBlock => Next::Rearm(Interest::READABLE),
//!         _ => Next::Close, // also who does not read; examples/echo waits for them
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // The test has a free port of its own, and a client that stops the server in the end.
//! # #[cfg(any())]
//!     let listener = TcpListener::bind("127.0.0.1:7000")?;
//! # let listener = TcpListener::bind("127.0.0.1:0")?;
//! # let address = listener.local_addr()?;
//!     listener.set_nonblocking(true)?;
//!     let pool = Pool::builder().threads(4).build()?;
//!     let accept = handler_fn(listener, |listener: &mut TcpListener, _, cx: &mut Context<'_>| {
//!         let accepted = listener.accept().and_then(|(stream, _)| {
//!             stream.set_nonblocking(true)?;
//!             Ok(cx.handles().register(handler_fn(stream, echo), Interest::READABLE)?)
//!         });
//!         if accepted.is_err_and(|error| error.kind() != WouldBlock) {
//!             cx.set_deadline(std::time::Duration::from_millis(10)); // out of descriptors: try again
//!             return Next::Suspend;
//!         }
//!         Next::Rearm(Interest::READABLE)
//!     });
//!     pool.handles().register(accept, Interest::READABLE)?;
//! # let remote = pool.remote();
//! # std::thread::spawn(move || {
//! #     while remote.metrics().threads.len() < 5 {
//! #         std::thread::yield_now(); // until the main thread has joined
//! #     }
//! #     let exchange = || -> std::io::Result<[u8; 5]> {
//! #         let mut client = TcpStream::connect(address)?;
//! #         client.write_all(b"hello")?;
//! #         let mut answer = [0; 5];
//! #         client.read_exact(&mut answer)?;
//! #         Ok(answer)
//! #     };
//! #     if exchange().ok() != Some(*b"hello") {
//! #         std::process::abort();
//! #     }
//! #     remote.shutdown();
//! # });
//!     Ok(pool.join()?)
//! }
//! ```
//!
//! # Where to go from here
//!
//! | you want to | see |
//! |---|---|
//! | write a handler | [`Handler`], [`Next`], [`handler_fn`] |
//! | serve one handle by several threads at once | [`SharedHandler`], [`Context::pass_on`] |
//! | register, change, suspend, resume, remove | [`HandleSet`] |
//! | have time-outs and timers | [`Context::set_deadline`], [`HandleSet::after`], [`HandleSet::every`] |
//! | talk to other handlers and threads | [`Mailbox`], [`HandleSet::notify`], [`HandleSet::post`] |
//! | hear signals | [`Signals`], [`HandleSet::on_signals`] |
//! | choose threads, seats, order, pinning, priorities | [`Builder`] |
//! | let your own threads take part | [`Pool::join`], [`Pool::enlist`] |
//! | accept, connect, read frames and write queues | [`net`] |
//! | stop | [`Pool::shutdown`], [`Pool::finish`], [`Context::shutdown`] |
//! | see what it does | [`Pool::metrics`] |
//! | use the system call wrappers alone | [`sys`] |
//!
//! The protocol, its invariants and the memory orderings are described in the repository's `docs/`, and
//! `docs/recipes.md` has small programs for what servers need.
//!
//! # What is promised
//!
//! - A handler never runs on two threads at once, whatever anybody does to its handle.
//! - No readiness is lost: what arrives while a handler runs is reported when it has returned.
//! - When [`HandleSet::remove`] has returned [`Removal::Done`], the handler is gone.
//! - A [`HandleId`] never comes to mean another handle, nor does an event reach one.
//! - A panic in a handler costs its handle, not a thread.
//! - Shutdown ends every thread as soon as the handlers that run have returned, and calls each hook once.
//!
//! Handlers can be called without anything to do (a *spurious event*): be ready for `WouldBlock`. Which
//! thread serves which event, and in which order two handles are served, is not guaranteed.
//!
//! # Fork
//!
//! A pool belongs to the process that built it. In a forked child all its operations answer
//! [`Error::Forked`], and dropping it does nothing to the parent. A child that is forked inside a handler
//! or hook must exec or exit there; one that returns from it is aborted.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
pub mod net;
pub mod sys;

mod alarm;
mod builder;
mod cell;
mod crew;
mod deadlines;
mod demux;
mod dispatch;
mod entry;
mod error;
mod followers;
mod handle_set;
mod handler;
mod interest;
mod mailbox;
mod metrics;
#[cfg(all(test, any(loom, shuttle)))]
mod models;
mod parker;
mod policy;
mod pool;
mod post;
mod rank;
mod roles;
mod settle;
mod signals;
mod sync;
mod table;
mod timer;
mod token;
mod upcall;
mod waker;
mod worker;

pub use builder::{Builder, Overrun, Pinning, Scheduling};
pub use error::{Error, Rejected, Result};
pub use followers::Order;
pub use handle_set::{HandleSet, Registration, Removal};
pub use handler::{
    Blocking, Context, Deactivation, Handler, HandlerFn, Next, Reason, SharedHandler, handler_fn,
    shared_fn,
};
pub use interest::{Interest, Ready};
pub use mailbox::{Capacity, Inbox, Mailbox, SendError, WhenFull};
pub use metrics::{Metrics, Role, ThreadMetrics};
pub use policy::Promotion;
pub use pool::{
    Detected, Ending, Follower, Leader, Pool, Processing, Remote, Report, Turn, Unfinished, Watch,
};
pub use roles::Left;
pub use signals::{Signals, Subscribers};
pub use sys::signalfd::SignalInfo;
pub use token::HandleId;
pub use upcall::OnPanic;
pub use waker::Waker;

/// The program in the README is compiled; the one above, which is the same, is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The programs in the recipes are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;
