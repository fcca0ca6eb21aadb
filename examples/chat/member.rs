//! One connection: what it says goes to the room, and what is said there comes back.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use cabrank::net::{End, Link, Permit, Protocol};
use cabrank::{HandleId, Inbox};

use crate::room::{Message, Room};

pub(crate) struct Member {
    room: Arc<Room>,
    inbox: Inbox<Message>,
    /// Known after the first line.
    name: Option<String>,
    /// Gives the place back when the member is gone.
    _permit: Permit,
}

impl Member {
    pub(crate) fn new(room: Arc<Room>, inbox: Inbox<Message>, permit: Permit) -> Member {
        Member { room, inbox, name: None, _permit: permit }
    }

    /// Passes on what the room has said. What finds no room in the output waits in the inbox.
    fn pass_on(&mut self, link: &mut Link<'_>) {
        while !link.is_congested() {
            match self.inbox.take() {
                Some(Message::Line(line)) => {
                    link.put(line.as_bytes());
                    link.put(b"\n");
                }
                Some(Message::Bye) => {
                    link.put(b"# the server is going down\n");
                    link.close();
                }
                None => return,
            }
        }
    }

    fn introduce(&mut self, name: &str, link: &mut Link<'_>) {
        if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('#') {
            link.put(b"# that is no name; say another\n");
            return;
        }
        let _ = writeln!(link.output(), "# welcome, {name}; /who tells who is here, /quit leaves");
        self.room.say(&format!("# {name} is here"));
        self.name = Some(name.to_string());
    }
}

impl Protocol for Member {
    fn opened(&mut self, link: &mut Link<'_>) {
        link.put(b"# what is your name?\n");
    }

    fn frame(&mut self, line: &[u8], link: &mut Link<'_>) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        match (&self.name, text) {
            (None, name) => self.introduce(name, link),
            (Some(_), "") => {}
            (Some(_), "/quit") => {
                link.put(b"# bye\n");
                link.close();
            }
            (Some(_), "/who") => {
                let _ = writeln!(link.output(), "# {} are here", self.room.len());
            }
            (Some(name), text) => self.room.say(&format!("{name}: {text}")),
        }
    }

    fn notified(&mut self, link: &mut Link<'_>) {
        self.pass_on(link);
    }

    fn drained(&mut self, link: &mut Link<'_>) {
        self.pass_on(link);
    }

    fn idle(&mut self, link: &mut Link<'_>) -> ControlFlow<()> {
        link.put(b"# you have been silent for too long\n");
        link.close();
        ControlFlow::Continue(())
    }

    fn ended(&mut self, id: HandleId, end: End) {
        self.room.leave(id);
        if let Some(name) = &self.name {
            match end {
                End::Finished | End::Closed => self.room.say(&format!("# {name} has left")),
                end => self.room.say(&format!("# {name} is gone: {end}")),
            }
        }
    }
}

const LONGEST_NAME: usize = 32;
