//! Closed loop: each connection sends its next request when it has its answer. Finds the peak.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use cabrank::sys::epoll::Events;

use super::clients::{Clients, INPUT};
use super::window::Window;

pub(crate) fn run(clients: &mut Clients, window: &mut Window) -> io::Result<()> {
    let mut events = Events::with_capacity(NonZeroUsize::new(256).unwrap());
    for number in 0..clients.count() {
        clients.send(number, Duration::ZERO)?;
    }
    loop {
        let now = window.now();
        window.advance(now, clients)?;
        // It sleeps rather than polls: a server with long handlers has use for this CPU too.
        clients.epoll.wait(&mut events, Some(window.rest(now)))?;
        for event in events.iter() {
            if event.data() == INPUT {
                return Ok(());
            }
            let number = event.data() as usize;
            if let Some(request) = clients.receive(number)? {
                let now = window.now();
                window.answered(request, now);
                clients.send(number, now)?;
            }
        }
    }
}
