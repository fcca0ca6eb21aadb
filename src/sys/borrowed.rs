//! Registering a descriptor that somebody else owns.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

use crate::error::{Error, Result};
use crate::handle_set::{HandleSet, Registration};
use crate::handler::{Context, HandlerFn, Next, handler_fn};
use crate::interest::Ready;
use crate::token::HandleId;

impl HandleSet {
    /// Registers a descriptor by its number, without owning it.
    ///
    /// The closure gets the descriptor borrowed for the time of the call. Closing the handle, by verdict
    /// or removal, does not close the descriptor.
    ///
    /// # Safety
    /// The descriptor must stay open until the handle has left the set: until
    /// [`remove`](HandleSet::remove) has returned [`Removal::Done`](crate::Removal::Done), the closure
    /// has been dropped, or the pool has ended.
    ///
    /// # Errors
    /// As [`register`](HandleSet::register).
    ///
    /// ```
    /// use cabrank::{Interest, Next, Pool};
    /// use std::os::fd::AsRawFd;
    ///
    /// let (reader, mut writer) = std::io::pipe()?;
    /// let pool = Pool::builder().threads(0).joiners(1).build()?;
    /// let remote = pool.remote();
    /// // SAFETY: `reader` is dropped after the pool has ended.
    /// unsafe {
    ///     pool.handles().register_raw(reader.as_raw_fd(), Interest::READABLE, move |_fd, _ready, _cx| {
    ///         remote.shutdown();
    ///         Next::Close
    ///     })?;
    /// }
    /// std::io::Write::write_all(&mut writer, b"x")?;
    /// pool.join()?;
    /// drop(pool);
    /// drop(reader);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn register_raw<F>(
        &self,
        fd: RawFd,
        registration: impl Into<Registration>,
        mut ready: F,
    ) -> Result<HandleId>
    where
        F: FnMut(BorrowedFd<'_>, Ready, &mut Context<'_>) -> Next + Send + 'static,
    {
        let call = move |source: &mut Borrowed, event: Ready, cx: &mut Context<'_>| {
            ready(source.as_fd(), event, cx)
        };
        let handler: HandlerFn<Borrowed, _> = handler_fn(Borrowed { fd }, call);
        self.register(handler, registration).map_err(Error::from)
    }
}

/// A descriptor that its maker has promised to keep open; made by `register_raw` only.
struct Borrowed {
    fd: RawFd,
}

impl AsFd for Borrowed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the caller of `register_raw` keeps the descriptor open for as long as the handler,
        // which owns this value, exists.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}
