//! Passes the program's stderr on, byte for byte and at once, and remembers its end.

use super::tail::Tail;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ChildStderr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// A thread that copies a program's stderr to this process's own.
///
/// A thread of its own, because a reader that doesn't read blocks it, and must block nobody else. It sleeps in the
/// kernel while the program is silent.
pub struct Pump {
    shared: Arc<Shared>,
}

struct Shared {
    tail: Mutex<Tail>,
    /// Whether the tail has changed since it was last taken.
    changed: AtomicBool,
    /// Bytes that the reader has taken.
    passed: AtomicU64,
    ended: AtomicBool,
    /// Readable when `changed` or `ended` has become true.
    wake: EventFd,
}

impl Pump {
    pub fn start(stderr: ChildStderr) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            tail: Mutex::default(),
            changed: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        });
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("stderr".to_owned()).spawn(move || of_thread.copy(stderr))?;
        Ok(Self { shared })
    }

    /// Becomes readable when there is something new; [`Pump::clear_wake`] makes it wait again.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    pub fn clear_wake(&self) {
        // Fails only if nobody has woken it.
        let _ = self.shared.wake.read();
    }

    pub fn has_changed(&self) -> bool {
        self.shared.changed.load(SeqCst)
    }

    /// The last lines so far.
    pub fn take_tail(&self) -> String {
        self.shared.changed.store(false, SeqCst);
        self.shared.tail.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    /// Whether all that was written has been passed on, and nobody is left who could write more.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(SeqCst)
    }

    /// How many bytes the reader has taken so far.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(SeqCst)
    }
}

impl Shared {
    fn copy(&self, mut stderr: ChildStderr) {
        let mut buffer = vec![0; 64 * 1024];
        let mut reader_is_there = true;
        loop {
            let count = match stderr.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            // Before it is passed on: what blocks there may be the last words.
            self.tail.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..count]);
            if !self.changed.swap(true, SeqCst) {
                self.wake_up();
            }
            // Without a reader it goes on reading: the program must not block, and its last words still count.
            reader_is_there = reader_is_there && self.pass_on(&buffer[..count]).is_ok();
        }
        self.ended.store(true, SeqCst);
        self.wake_up();
    }

    fn pass_on(&self, mut bytes: &[u8]) -> nix::Result<()> {
        // Not through std, which takes a closed stderr for a success and would hold a lock while it blocks.
        let stderr = io::stderr();
        while !bytes.is_empty() {
            match nix::unistd::write(stderr.as_fd(), bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.passed.fetch_add(count as u64, SeqCst);
                }
                Err(Errno::EINTR) => {}
                // Whoever shares the open file may have made it non-blocking.
                Err(Errno::EAGAIN) => {
                    let _ = poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wake_up(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.wake.write(1);
    }
}
