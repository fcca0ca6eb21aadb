//! The connections, and what is under way on each.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cabrank::sys::epoll::{Epoll, Flags};
use cabrank::sys::socket;

use super::Load;
use crate::address::Address;
use crate::connection::Stream;

pub(crate) struct Clients {
    pub(crate) epoll: Epoll,
    clients: Vec<Client>,
    /// Kept open.
    _idle: Vec<Stream>,
    /// A request of each kind.
    requests: [Vec<u8>; 2],
    block_percent: u32,
    /// Requests sent so far: every so many blocks.
    sent: u64,
}

/// What a request does to its handler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Blocks,
}

/// A request that has been answered, or not yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// When it was sent, or should have been.
    pub(crate) since: Duration,
}

struct Client {
    stream: Stream,
    /// The request under way.
    request: Option<Request>,
    /// Bytes of it still to be sent, and bytes of its answer still to come.
    unsent: usize,
    missing: usize,
}

impl Clients {
    pub(crate) fn connect(load: &Load) -> io::Result<Clients> {
        let epoll = Epoll::new()?;
        epoll.add(io::stdin(), Flags::IN, INPUT)?;
        let all = load.idle + load.connections;
        let mut streams = Vec::with_capacity(all);
        for number in 1..=all {
            streams.push(connect(&load.address).map_err(|error| {
                let which = format!("{number} of {all} to {}", load.address);
                io::Error::new(error.kind(), format!("cannot make connection {which}: {error}"))
            })?);
        }
        let idle = streams.split_off(load.connections);
        let mut clients = Vec::with_capacity(load.connections);
        for (number, stream) in streams.into_iter().enumerate() {
            epoll.add(&stream, Flags::IN, number as u64)?;
            clients.push(Client { stream, request: None, unsent: 0, missing: 0 });
        }
        let requests = [vec![b'x'; load.size], vec![b'B'; load.size]];
        let block_percent = load.block_percent;
        Ok(Clients { epoll, clients, _idle: idle, requests, block_percent, sent: 0 })
    }

    pub(crate) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Sends the next request on a connection that has none under way.
    pub(crate) fn send(&mut self, number: usize, since: Duration) -> io::Result<Kind> {
        self.sent += 1;
        // Spread evenly: the whole number of blocking requests grows with every so many.
        let blocking = |sent: u64| sent * u64::from(self.block_percent) / 100;
        let blocks = blocking(self.sent) > blocking(self.sent - 1);
        let kind = if blocks { Kind::Blocks } else { Kind::Plain };
        let client = &mut self.clients[number];
        let request = &self.requests[kind as usize];
        client.request = Some(Request { kind, since });
        (client.unsent, client.missing) = (request.len(), request.len());
        client.push(request)?;
        Ok(kind)
    }

    /// Reads what is there; the request if that completes its answer.
    pub(crate) fn receive(&mut self, number: usize) -> io::Result<Option<Request>> {
        let client = &mut self.clients[number];
        if let Some(request) = client.request {
            client.push(&self.requests[request.kind as usize])?;
        }
        let mut buffer = [0; 16 * 1024];
        let read = match client.stream.read(&mut buffer) {
            Ok(0) => {
                let what = format!("the server has closed connection {}", number + 1);
                return Err(io::Error::new(ErrorKind::UnexpectedEof, what));
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        client.missing = client.missing.saturating_sub(read);
        Ok(if client.missing == 0 { client.request.take() } else { None })
    }

    /// What has been sent and not answered.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = Request> + '_ {
        self.clients.iter().filter_map(|client| client.request)
    }
}

impl Client {
    /// Sends what is left of the request and fits. A request larger than the socket's buffer goes out
    /// as its answer comes back.
    fn push(&mut self, request: &[u8]) -> io::Result<()> {
        while self.unsent > 0 {
            match self.stream.write(&request[request.len() - self.unsent..]) {
                Ok(written) => self.unsent -= written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            // Thousands of closed connections that linger would slow down the next contestant.
            socket::reset_on_close(&stream)?;
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_nonblocking(true)?;
            Ok(Stream::Unix(stream))
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Stands for the standard input among the connections.
pub(crate) const INPUT: u64 = u64::MAX;
