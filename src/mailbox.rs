//! Messages: mailboxes that are handles, and mailboxes for handlers that have a descriptor too.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::RawFd;

use crate::cell::OnlyMut;
use crate::entry::Resident;
use crate::error::{Error, Rejected, Result};
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, Handler, Next, Reason};
use crate::interest::{Interest, Ready};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, Mutex};
use crate::sys::fork::Process;
use crate::token::HandleId;
use crate::upcall;

/// How much a mailbox holds, and what happens when it is full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct Capacity {
    most: usize,
    when_full: WhenFull,
}

/// What becomes of a message that a full mailbox has no room for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum WhenFull {
    /// The sender gets it back, as [`SendError::Full`].
    #[default]
    Refuse,
    /// The sender waits for room. Inside a handler, of whichever pool, it is refused instead, lest the pool wait
    /// for itself.
    Wait,
    /// The oldest message makes room, and is dropped.
    DropOldest,
    /// It is dropped itself.
    DropNewest,
}

impl Capacity {
    /// As many as there is memory for.
    pub const UNBOUNDED: Capacity = Capacity { most: usize::MAX, when_full: WhenFull::Refuse };

    /// At most so many messages, at least one.
    pub const fn bounded(messages: usize, when_full: WhenFull) -> Capacity {
        Capacity { most: if messages == 0 { 1 } else { messages }, when_full }
    }
}

/// Sends messages to a handler; clone it freely and use it from any thread.
///
/// Messages of one sender arrive in the order they were sent. The handler has them one at a time, and never
/// beside another of its calls. A burst makes one wake-up. Sending does not allocate once the queue has had
/// its largest size.
pub struct Mailbox<M> {
    queue: Arc<Queue<M>>,
    handles: HandleSet,
    id: HandleId,
}

/// The receiving end of a [`Mailbox`], for a handler of your own; see
/// [`HandleSet::register_with_mailbox`]. What is in it when it is dropped is dropped too, and counted.
pub struct Inbox<M> {
    queue: Arc<Queue<M>>,
    dropped: Arc<AtomicU64>,
}

/// A message that was not taken, with the message.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum SendError<M> {
    /// The mailbox is full.
    Full(M),
    /// The handler is gone.
    Closed(M),
    /// This is a forked child, and the mailbox is its parent's.
    Forked(M),
}

struct Queue<M> {
    mail: Mutex<Mail<M>>,
    /// For senders that wait for room.
    room: Condvar,
    capacity: Capacity,
    /// Whose it is. In a forked child the lock may be held for ever, by a thread that is not there.
    process: Process,
}

struct Mail<M> {
    messages: VecDeque<M>,
    /// Senders that wait for room.
    waiting: usize,
    closed: bool,
}

impl HandleSet {
    /// Makes a mailbox, which is a handle: `receive` is called with one message after the other, by
    /// whichever thread is free, until it says `Break`. [`suspend`](HandleSet::suspend) holds the messages
    /// back, [`remove`](HandleSet::remove) ends it, by [`Mailbox::id`]. A deadline means nothing to it.
    ///
    /// ```
    /// use cabrank::{Capacity, Pool, WhenFull};
    /// use std::ops::ControlFlow;
    ///
    /// let pool = Pool::builder().threads(2).build()?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let mut sum = 0;
    /// let adder = pool.handles().mailbox(Capacity::bounded(100, WhenFull::Refuse), move |n: u64, _cx| {
    ///     sum += n; // no lock: one thread at a time
    ///     tell.send(sum).unwrap();
    ///     ControlFlow::Continue(())
    /// })?;
    /// for n in [1, 2, 3] {
    ///     adder.send(n)?;
    /// }
    /// assert_eq!(told.iter().take(3).last(), Some(6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableFull`], [`Error::ShutDown`] or [`Error::Forked`].
    #[doc(alias = "message_queue")]
    #[doc(alias = "strand")]
    pub fn mailbox<M, F>(&self, capacity: Capacity, receive: F) -> Result<Mailbox<M>>
    where
        M: Send + 'static,
        F: FnMut(M, &mut Context<'_>) -> ControlFlow<()> + Send + 'static,
    {
        let inbox = self.inbox(capacity);
        let queue = Arc::clone(&inbox.queue);
        let recipient = Recipient { inbox, receive: OnlyMut::new(receive) };
        let resident = |recipient| -> Box<dyn Resident> { Box::new(recipient) };
        // The interest is for a descriptor, and there is none.
        let registration = Registration::new(Interest::READABLE);
        let inserted = self.insert(None, recipient, resident, false, registration);
        let id = inserted.map_err(Error::from)?;
        Ok(Mailbox { queue, handles: self.clone(), id })
    }

    /// Registers a handler that has a mailbox besides its descriptor, such as a connection that others have
    /// something to say to. Messages make the handler be called with
    /// [`Ready::MESSAGE`](crate::Ready::MESSAGE), also while it is suspended; it takes them out of the inbox
    /// that it was made with.
    ///
    /// ```
    /// use cabrank::{Capacity, Context, Handler, Inbox, Interest, Next, Pool, Ready};
    /// use std::io::Write;
    /// use std::net::{TcpListener, TcpStream};
    /// use std::os::fd::{AsFd, BorrowedFd};
    ///
    /// struct Listener {
    ///     stream: TcpStream,
    ///     inbox: Inbox<String>,
    /// }
    ///
    /// impl Handler for Listener {
    ///     fn ready(&mut self, _ready: Ready, _cx: &mut Context<'_>) -> Next {
    ///         while let Some(line) = self.inbox.take() {
    ///             if self.stream.write_all(line.as_bytes()).is_err() {
    ///                 return Next::Close;
    ///             }
    ///         }
    ///         Next::Rearm(Interest::READABLE)
    ///     }
    /// }
    /// # impl AsFd for Listener {
    /// #     fn as_fd(&self) -> BorrowedFd<'_> {
    /// #         self.stream.as_fd()
    /// #     }
    /// # }
    /// # let acceptor = TcpListener::bind("127.0.0.1:0")?;
    /// # let stream = TcpStream::connect(acceptor.local_addr()?)?;
    /// # stream.set_nonblocking(true)?;
    ///
    /// let pool = Pool::builder().threads(2).build()?;
    /// let make = |inbox| Listener { stream, inbox };
    /// let mailbox =
    ///     pool.handles().register_with_mailbox(Capacity::UNBOUNDED, make, Interest::READABLE)?;
    /// mailbox.send("hello".to_string())?;
    /// # let mut client = acceptor.accept()?.0;
    /// # let mut said = [0; 5];
    /// # std::io::Read::read_exact(&mut client, &mut said)?;
    /// # assert_eq!(&said, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`register`](HandleSet::register).
    pub fn register_with_mailbox<M, H>(
        &self,
        capacity: Capacity,
        make: impl FnOnce(Inbox<M>) -> H,
        registration: impl Into<Registration>,
    ) -> Result<Mailbox<M>, Rejected<H>>
    where
        M: Send + 'static,
        H: Handler + 'static,
    {
        let inbox = self.inbox(capacity);
        let queue = Arc::clone(&inbox.queue);
        let id = self.register(make(inbox), registration)?;
        Ok(Mailbox { queue, handles: self.clone(), id })
    }

    fn inbox<M>(&self, capacity: Capacity) -> Inbox<M> {
        let mail = Mail { messages: VecDeque::new(), waiting: 0, closed: false };
        let process = self.inner.process;
        let queue = Queue { mail: Mutex::new(mail), room: Condvar::new(), capacity, process };
        Inbox { queue: Arc::new(queue), dropped: Arc::clone(&self.inner.dropped) }
    }
}

impl<M> Mailbox<M> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`SendError`], with the message, if the handler is gone or has no room and was told to refuse, and in a
    /// forked child.
    pub fn send(&self, message: M) -> std::result::Result<(), SendError<M>> {
        if !self.queue.process.is_current() {
            return Err(SendError::Forked(message));
        }
        let mut mail = self.queue.mail.lock();
        while mail.messages.len() >= self.queue.capacity.most && !mail.closed {
            match self.queue.capacity.when_full {
                WhenFull::Wait if !upcall::is_inside() => {
                    mail.waiting += 1;
                    mail = self.queue.room.wait(mail);
                    mail.waiting -= 1;
                }
                WhenFull::Wait | WhenFull::Refuse => return Err(SendError::Full(message)),
                WhenFull::DropNewest => {
                    drop(mail);
                    drop(message);
                    return Ok(());
                }
                WhenFull::DropOldest => {
                    let oldest = mail.messages.pop_front();
                    mail.messages.push_back(message);
                    drop(mail);
                    // Its destructor is user code. Its event stands for the new one.
                    drop(oldest);
                    return Ok(());
                }
            }
        }
        if mail.closed {
            return Err(SendError::Closed(message));
        }
        mail.messages.push_back(message);
        drop(mail);
        // A handler that is gone by now has dropped, and counted, the message.
        let _ = self.handles.notify(self.id);
        Ok(())
    }

    /// Drops what has not been received, and tells how many that were. None in a forked child.
    #[doc(alias = "purge_pending_notifications")]
    pub fn purge(&self) -> usize {
        self.queue.empty(false).len()
    }

    /// How many messages wait. A glance: it may be over at once. None in a forked child.
    pub fn len(&self) -> usize {
        if !self.queue.process.is_current() {
            return 0;
        }
        self.queue.mail.lock().messages.len()
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The handle that receives the messages.
    pub fn id(&self) -> HandleId {
        self.id
    }
}

impl<M> Inbox<M> {
    /// The oldest message. Take until there is none: those that are left are not announced again.
    pub fn take(&mut self) -> Option<M> {
        if !self.queue.process.is_current() {
            return None;
        }
        let mut mail = self.queue.mail.lock();
        let message = mail.messages.pop_front();
        let waited_for = mail.waiting > 0;
        drop(mail);
        if waited_for {
            self.queue.room.notify_one();
        }
        message
    }

    fn is_empty(&self) -> bool {
        self.queue.mail.lock().messages.is_empty()
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        let dropped = self.queue.empty(true);
        // Relaxed: a number that stands for itself.
        self.dropped.fetch_add(dropped.len() as u64, Ordering::Relaxed);
    }
}

impl<M> Queue<M> {
    /// Takes everything out, and lets senders that wait go on.
    fn empty(&self, close: bool) -> VecDeque<M> {
        if !self.process.is_current() {
            return VecDeque::new();
        }
        let mut mail = self.mail.lock();
        mail.closed |= close;
        let messages = std::mem::take(&mut mail.messages);
        drop(mail);
        self.room.notify_all();
        messages
    }
}

/// A mailbox that is a handle.
struct Recipient<M, F> {
    inbox: Inbox<M>,
    receive: OnlyMut<F>,
}

impl<M, F> Resident for Recipient<M, F>
where
    M: Send,
    F: FnMut(M, &mut Context<'_>) -> ControlFlow<()> + Send,
{
    fn ready(&mut self, _ready: Ready, cx: &mut Context<'_>) -> Next {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.inbox.take() else {
                return Next::Drained(Interest::READABLE);
            };
            if (self.receive.get_mut())(message, cx).is_break() {
                return Next::Close;
            }
            if cx.handles().is_asked(cx.id()) {
                break;
            }
        }
        // Others have waited for as long. What is left is announced by ourselves.
        let _ = cx.handles().notify(cx.id());
        Next::Drained(Interest::READABLE)
    }

    fn fd(&mut self) -> Option<RawFd> {
        None
    }

    fn closed(&mut self, _id: HandleId, _reason: Reason) {}

    fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    fn has_deadlines(&self) -> bool {
        false
    }
}

/// Long enough for the dispatch to be a small part of it, short enough not to starve the others.
const MESSAGES_PER_TURN: usize = 64;

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox { queue: Arc::clone(&self.queue), handles: self.handles.clone(), id: self.id }
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl<M> SendError<M> {
    /// The message.
    pub fn into_message(self) -> M {
        match self {
            SendError::Full(message) | SendError::Closed(message) | SendError::Forked(message) => {
                message
            }
        }
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "Full(..)",
            SendError::Closed(_) => "Closed(..)",
            SendError::Forked(_) => "Forked(..)",
        })
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the mailbox is full",
            SendError::Closed(_) => "the mailbox is closed: its handler is gone",
            SendError::Forked(_) => "the mailbox belongs to the parent of this forked process",
        })
    }
}

impl<M> std::error::Error for SendError<M> {}
