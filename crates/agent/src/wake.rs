//! Wakes the loop of the container, which sleeps in `poll`, when the reading threads have news.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The eventfd that wakes the loop. It lives as long as the container.
pub struct Wake(EventFd);

impl Wake {
    pub fn new() -> nix::Result<Self> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Self)
    }

    pub fn wake(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.0.write(1);
    }

    /// Becomes readable when there is something new; [`Wake::clear`] makes it wait again.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn clear(&self) {
        // Fails only if no thread has woken it.
        let _ = self.0.read();
    }
}

/// Whether the message of one run is still up to date.
pub struct Changes {
    changed: AtomicBool,
    wake: Arc<Wake>,
}

impl Changes {
    pub fn new(wake: Arc<Wake>) -> Self {
        Self { changed: AtomicBool::new(false), wake }
    }

    /// The message is not up to date any more. This is free if it was not before.
    pub fn change(&self) {
        if !self.changed.swap(true, SeqCst) {
            self.wake.wake();
        }
    }

    /// Wakes the loop at once. [`Changes::change`] leaves it asleep if it is to write the message later.
    pub fn wake(&self) {
        self.wake.wake();
    }

    pub fn has_changed(&self) -> bool {
        self.changed.load(SeqCst)
    }

    pub fn take_change(&self) {
        self.changed.store(false, SeqCst);
    }
}
