//! How the threads that read tell the supervisor, which sleeps in `poll`, that there is something new.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

pub struct Wake {
    /// Whether what the message tells has changed since [`Wake::take_change`].
    changed: AtomicBool,
    event: EventFd,
}

impl Wake {
    pub fn new() -> nix::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { changed: AtomicBool::new(false), event })
    }

    /// The message is not up to date any more. Costs nothing where it wasn't.
    pub fn change(&self) {
        if !self.changed.swap(true, SeqCst) {
            self.wake();
        }
    }

    pub fn wake(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.event.write(1);
    }

    pub fn has_changed(&self) -> bool {
        self.changed.load(SeqCst)
    }

    pub fn take_change(&self) {
        self.changed.store(false, SeqCst);
    }

    /// Becomes readable when there is something new; [`Wake::clear`] makes it wait again.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub fn clear(&self) {
        // Fails only if nobody has woken it.
        let _ = self.event.read();
    }
}
