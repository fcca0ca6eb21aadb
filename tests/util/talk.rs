//! What the tests of buffered connections share.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use cabrank::net::{Connection, End, Framing, Link, OPENING, Protocol, Stream};
use cabrank::{Deactivation, HandleId, Inbox, Pool};

use super::PATIENCE;

pub const BOTH: [Deactivation; 2] = [Deactivation::OneShot, Deactivation::Edge];
pub const SOON: Duration = Duration::from_millis(50);

/// A protocol that calls a closure with each frame, and tells what else happens to it.
pub struct Talk<F> {
    frame: F,
    told: mpsc::Sender<Told>,
}

#[derive(Debug)]
pub enum Told {
    Opened,
    Drained,
    Finished,
    Ended(End),
}

pub fn talk<F>(frame: F) -> (Talk<F>, mpsc::Receiver<Told>)
where
    F: FnMut(&[u8], &mut Link<'_>) + Send,
{
    let (told, hear) = mpsc::channel();
    (Talk { frame, told }, hear)
}

impl<F> Protocol for Talk<F>
where
    F: FnMut(&[u8], &mut Link<'_>) + Send,
{
    fn opened(&mut self, _link: &mut Link<'_>) {
        let _ = self.told.send(Told::Opened);
    }

    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
        (self.frame)(frame, link);
    }

    fn drained(&mut self, _link: &mut Link<'_>) {
        let _ = self.told.send(Told::Drained);
    }

    fn finished(&mut self, link: &mut Link<'_>) {
        let _ = self.told.send(Told::Finished);
        link.close();
    }

    fn ended(&mut self, _id: HandleId, end: End) {
        let _ = self.told.send(Told::Ended(end));
    }
}

/// Answers each line with the same line.
pub fn echo_line(line: &[u8], link: &mut Link<'_>) {
    link.put(line);
    link.put(b"\n");
}

/// The end of a connection, which must be the last thing that is told, and told once.
#[track_caller]
pub fn end_of(told: &mpsc::Receiver<Told>) -> End {
    loop {
        match told.recv_timeout(PATIENCE).expect("an end") {
            Told::Ended(end) => {
                let after = told.recv_timeout(PATIENCE);
                assert!(after.is_err(), "{after:?} after {end:?}");
                return end;
            }
            Told::Opened | Told::Drained | Told::Finished => {}
        }
    }
}

/// Two ends of a TCP connection; the first is non-blocking.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    there.set_write_timeout(Some(PATIENCE)).unwrap();
    there.set_nodelay(true).unwrap();
    (here, there)
}

pub fn register<S, F, P>(
    pool: &Pool,
    connection: Connection<S, F, P>,
    how: Deactivation,
) -> HandleId
where
    S: Stream + 'static,
    F: Framing + Send + 'static,
    P: Protocol + 'static,
{
    pool.handles().register(connection, OPENING.deactivation(how)).unwrap()
}

pub fn read_to_end(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

/// A connection to which others have something to say.
pub struct Crier {
    pub inbox: Inbox<u32>,
    pub ended: mpsc::Sender<End>,
}

impl Crier {
    fn cry(&mut self, link: &mut Link<'_>) {
        while !link.is_congested() {
            let Some(number) = self.inbox.take() else { return };
            writeln!(link.output(), "{number}").unwrap();
        }
    }
}

impl Protocol for Crier {
    fn opened(&mut self, link: &mut Link<'_>) {
        link.put(b"welcome\n");
    }

    fn frame(&mut self, frame: &[u8], link: &mut Link<'_>) {
        link.put(frame);
        link.put(b"!\n");
    }

    fn notified(&mut self, link: &mut Link<'_>) {
        self.cry(link);
    }

    fn drained(&mut self, link: &mut Link<'_>) {
        self.cry(link);
    }

    fn ended(&mut self, _id: HandleId, end: End) {
        self.ended.send(end).unwrap();
    }
}
