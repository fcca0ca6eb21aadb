//! Accepting, connecting, and buffered connections, for people who would otherwise each write them again.

mod accept;
mod connect;
mod limit;
mod listener;

pub use accept::{AcceptCounts, Accepted, Accepting};
pub use connect::{connect_tcp, connect_unix};
pub use limit::Permit;
pub use listener::{BindError, ListenOptions, Listener};
