//! The server: a listener, timers, and signals that end it.

use std::error::Error;
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cabrank::net::{
    Accepted, Accepting, Connection, ConnectionOptions, Lines, ListenOptions, OPENING,
};
use cabrank::sys::signalfd::{self, SIGINT, SIGTERM, SignalFd};
use cabrank::{Context, HandleId, HandleSet, Interest, Next, Pool, handler_fn};

use crate::args::Args;
use crate::member::Member;
use crate::room::{MAILBOX, Room};

pub(crate) struct Server {
    pub(crate) pool: Pool,
    pub(crate) room: Arc<Room>,
    pub(crate) accepting: Accepting,
    pub(crate) address: SocketAddr,
}

/// Serves until SIGINT or SIGTERM, and takes leave of everybody.
pub(crate) fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    // Before the first thread is started, so that all of them leave the signals to the handle.
    signalfd::block(&[SIGINT, SIGTERM])?;
    let server = start(args)?;
    let (room, listener) = (Arc::clone(&server.room), server.accepting.id());
    let signals = handler_fn(SignalFd::new(&[SIGINT, SIGTERM])?, move |signals, _ready, cx| {
        while let Ok(Some(_)) = signals.read() {
            wind_up(&room, listener, cx);
        }
        Next::Drained(Interest::READABLE)
    });
    server.pool.handles().register(signals, Interest::READABLE)?;
    println!("listening on {}", server.address);
    // The main thread takes part too, until the pool is shut down.
    match server.pool.join() {
        Ok(()) | Err(cabrank::Error::ShutDown) => {}
        Err(error) => return Err(error.into()),
    }
    let counts = server.accepting.counts();
    println!("{} have been here, {} lines were said", counts.accepted, server.room.lines());
    Ok(())
}

/// Starts the pool, the listener and the clock.
pub(crate) fn start(args: &Args) -> Result<Server, Box<dyn Error>> {
    let listener =
        ListenOptions::new().max_connections(args.max_connections).nodelay().tcp(args.address)?;
    let address = listener.local_addr()?;
    let pool = Pool::builder().threads(args.threads).name("chat").build()?;
    let room = Arc::new(Room::default());
    let options = ConnectionOptions::new()
        .idle_timeout(args.idle_timeout)
        .request_timeout(args.idle_timeout)
        .linger(Duration::from_millis(500));
    let to_join = Arc::clone(&room);
    let accepting = listener.register(pool.handles(), move |accepted, cx| {
        if let Err(error) = let_in(accepted, &to_join, options, cx.handles()) {
            eprintln!("chat: cannot let a client in: {error}");
        }
    })?;
    let told = Arc::clone(&room);
    pool.handles().every(args.time_every, move |_cx| {
        told.say(&format!("# {}, {} are here", time_of_day(), told.len()));
        ControlFlow::Continue(())
    })?;
    Ok(Server { pool, room, accepting, address })
}

fn let_in(
    accepted: Accepted<TcpStream>,
    room: &Arc<Room>,
    options: ConnectionOptions,
    handles: &HandleSet,
) -> Result<(), cabrank::Error> {
    let (stream, permit) = accepted.into_parts();
    let make = |inbox| {
        let member = Member::new(Arc::clone(room), inbox, permit);
        Connection::with_options(stream, Lines::new(LONGEST_LINE), member, options)
    };
    // Suspended until it is in the room: it is welcomed when it can be heard and told.
    let mailbox = handles.register_with_mailbox(MAILBOX, make, OPENING.suspended())?;
    let id = mailbox.id();
    room.join(mailbox);
    handles.resume(id)
}

/// Lets nobody in any more, says good-bye, and ends when everybody is gone or has had the time to.
fn wind_up(room: &Arc<Room>, listener: HandleId, cx: &Context<'_>) {
    // Gone already after a second signal.
    let _ = cx.handles().remove(listener);
    room.say_bye();
    let room = Arc::clone(room);
    let mut left = 100;
    let watch = cx.handles().every(Duration::from_millis(10), move |cx| {
        left -= 1;
        if left == 0 || room.len() == 0 {
            cx.shutdown();
        }
        ControlFlow::Continue(())
    });
    if watch.is_err() {
        cx.shutdown();
    }
}

fn time_of_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", now / 3600, now / 60 % 60, now % 60)
}

const LONGEST_LINE: usize = 1_000;
