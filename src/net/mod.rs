//! Accepting, connecting, and buffered connections, for people who would otherwise each write them again.
//!
//! | you want to | see |
//! |---|---|
//! | accept connections, with a limit, and survive the want of descriptors | [`ListenOptions`], [`Listener`] |
//! | know when a connection is gone | [`Permit`] |
//! | connect, with a time-out | [`connect_tcp`], [`connect_unix`] |
//! | speak a protocol of lines or other frames | [`Connection`], [`Protocol`] |
//! | find the frames in your own way | [`Framing`] |
//! | choose limits and time-outs | [`ConnectionOptions`] |
//! | let others send to a connection | [`OPENING`] |
//!
//! All of it is made of handlers like anybody's, by what the rest of this crate offers. Handlers of your own
//! need none of it.
//!
//! # A whole server, and a client of it
//!
//! Adds up numbers, one to a line, for at most a thousand clients at a time.
//!
//! ```
//! use cabrank::net::{
//!     self, Accepted, Connection, ConnectionOptions, End, Lines, Link, ListenOptions, Permit, Protocol,
//! };
//! use cabrank::{Context, HandleId, Pool};
//! use std::io::Write;
//! use std::net::TcpStream;
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! struct Adder {
//!     sum: i64,
//!     _permit: Permit, // goes with the connection, and makes room for the next
//! }
//!
//! impl Protocol for Adder {
//!     fn frame(&mut self, line: &[u8], link: &mut Link<'_>) {
//!         match std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()) {
//!             Some(number) => {
//!                 self.sum = self.sum.wrapping_add(number);
//!                 let _ = writeln!(link.output(), "{}", self.sum); // never fails
//!             }
//!             None => {
//!                 link.put(b"not a number\n");
//!                 link.close();
//!             }
//!         }
//!     }
//! }
//!
//! struct Client {
//!     answers: mpsc::Sender<String>,
//! }
//!
//! impl Protocol for Client {
//!     fn opened(&mut self, link: &mut Link<'_>) {
//!         link.put(b"1\n2\n39\n");
//!         link.finish(); // nothing more to ask
//!     }
//!
//!     fn frame(&mut self, line: &[u8], _link: &mut Link<'_>) {
//!         let _ = self.answers.send(String::from_utf8_lossy(line).into_owned());
//!     }
//!
//!     fn ended(&mut self, _id: HandleId, end: End) {
//!         assert!(matches!(end, End::Finished), "{end}");
//!     }
//! }
//!
//! let pool = Pool::builder().threads(2).build()?;
//! let options = ConnectionOptions::new()
//!     .idle_timeout(Duration::from_secs(60))
//!     .request_timeout(Duration::from_secs(5));
//!
//! let listener = ListenOptions::new().max_connections(1_000).nodelay().tcp(([127, 0, 0, 1], 0))?;
//! let address = listener.local_addr()?;
//! listener.register(pool.handles(), move |accepted: Accepted<TcpStream>, cx: &mut Context<'_>| {
//!     let (stream, permit) = accepted.into_parts();
//!     let adder = Adder { sum: 0, _permit: permit };
//!     let connection = Connection::with_options(stream, Lines::new(100), adder, options);
//!     if let Err(rejected) = connection.register(cx.handles()) {
//!         eprintln!("turned away: {rejected}"); // and dropped with it
//!     }
//! })?;
//!
//! let (answers, heard) = mpsc::channel();
//! net::connect_tcp(pool.handles(), address, Duration::from_secs(5), move |stream, handles| {
//!     let Ok(stream) = stream else { return };
//!     let _ = Connection::new(stream, Lines::new(100), Client { answers }).register(handles);
//! })?;
//! assert_eq!(heard.iter().collect::<Vec<_>>(), ["1", "3", "42"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accept;
mod buffer;
mod connect;
mod connection;
mod framing;
mod limit;
mod listener;
mod options;
mod protocol;
mod state;

pub use accept::{AcceptCounts, Accepted, Accepting};
pub use buffer::Buffer;
pub use connect::{connect_tcp, connect_unix};
pub use connection::{Connection, OPENING};
pub use framing::{BadFrame, Found, Framing, LengthPrefix, Lines, Unframed};
pub use limit::Permit;
pub use listener::{BindError, ListenOptions, Listener};
pub use options::ConnectionOptions;
pub use protocol::{End, Link, Protocol, Stream};
