//! Where a server listens.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = Infallible;

    /// What is no socket address is a path.
    fn from_str(text: &str) -> Result<Address, Infallible> {
        Ok(text.parse().map_or_else(|_| Address::Unix(text.into()), Address::Tcp))
    }
}
