//! What the agent itself has to say, on stderr.

use crate::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Lines that wait at most; of more, the newest are not said.
const MAX_WAITING: usize = 64;

/// The agent's own words. A thread says them: whoever reads stderr may not read, and whoever has something to say is often
/// the loop that has signals to serve.
pub struct Words {
    state: Mutex<State>,
    more: Condvar,
    wake: Arc<Wake>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    /// The first of `waiting` is being said, or is about to be.
    has_thread: bool,
}

impl Words {
    pub fn new(wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), more: Condvar::new(), wake })
    }

    /// Says a line as the agent's. It never blocks.
    pub fn say(self: &Arc<Self>, line: impl Display) {
        let mut state = self.state.lock();
        if state.waiting.len() >= MAX_WAITING {
            return;
        }
        state.waiting.push_back(format!("agent: {line}\n"));
        if !state.has_thread {
            let words = Arc::clone(self);
            let thread = std::thread::Builder::new().name("words".to_owned()).spawn(move || words.speak());
            if thread.is_err() {
                // Nobody will ever say it, and nobody shall wait for that.
                state.waiting.clear();
                return;
            }
            state.has_thread = true;
        }
        drop(state);
        self.more.notify_one();
    }

    /// Says several lines as the agent's, with nothing between them. They are bounded by whoever says them.
    pub fn say_lines(self: &Arc<Self>, lines: impl Iterator<Item = String>) {
        self.say(lines.collect::<Vec<_>>().join("\nagent: "));
    }

    /// Whether all has been said, or the reader has gone. [`Wake`] is woken when that becomes true.
    pub fn all_said(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    fn speak(&self) {
        loop {
            let line = {
                let mut state = self.state.lock();
                self.more.wait_while(&mut state, |state| state.waiting.is_empty());
                state.waiting[0].clone()
            };
            // Without a reader there is nobody to tell that.
            let _ = write_all(io::stderr().as_fd(), line.as_bytes(), |_| ());
            let mut state = self.state.lock();
            state.waiting.pop_front();
            if state.waiting.is_empty() {
                self.wake.wake();
            }
        }
    }
}

/// Writes all of `bytes` and tells `on_taken` of how many the reader has taken each time.
///
/// It does not go through std, which takes a closed stream for a success and would hold a lock while it blocks.
pub fn write_all(to: BorrowedFd, mut bytes: &[u8], mut on_taken: impl FnMut(usize)) -> nix::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Ok(count) => {
                bytes = &bytes[count..];
                on_taken(count);
            }
            Err(Errno::EINTR) => {}
            // Whoever shares the open file may have made it non-blocking.
            Err(Errno::EAGAIN) => {
                let _ = poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
