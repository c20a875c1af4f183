//! The agent's own log lines on stderr.

use crate::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Highest number of waiting lines. Further lines are dropped.
const MAX_WAITING: usize = 64;

/// The agent's log. A thread of its own writes it, because the reader of stderr may block, and the caller is often the
/// loop that has to serve signals.
pub struct AgentLog {
    state: Mutex<State>,
    more: Condvar,
    wake: Arc<Wake>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    /// The first line of `waiting` is being written, or is about to be.
    has_thread: bool,
}

impl AgentLog {
    pub fn new(wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), more: Condvar::new(), wake })
    }

    /// Logs a line. Never blocks.
    pub fn say(self: &Arc<Self>, line: impl Display) {
        let mut state = self.state.lock();
        if state.waiting.len() >= MAX_WAITING {
            return;
        }
        state.waiting.push_back(format!("agent: {line}\n"));
        if !state.has_thread {
            let log = Arc::clone(self);
            let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || log.speak());
            if thread.is_err() {
                // No thread will write the lines, so no caller may wait for them.
                state.waiting.clear();
                return;
            }
            state.has_thread = true;
        }
        drop(state);
        self.more.notify_one();
    }

    /// Logs several lines with nothing between them. The caller bounds their number.
    pub fn say_lines(self: &Arc<Self>, lines: impl Iterator<Item = String>) {
        self.say(lines.collect::<Vec<_>>().join("\nagent: "));
    }

    /// Whether all lines are written, or the reader is gone. [`Wake`] is woken when that becomes true.
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
            // Without a reader, the error can't be reported.
            let _ = write_all(io::stderr().as_fd(), line.as_bytes(), |_| ());
            let mut state = self.state.lock();
            state.waiting.pop_front();
            if state.waiting.is_empty() {
                self.wake.wake();
            }
        }
    }
}

/// Writes all of `bytes`, and calls `on_taken` with the number of bytes that the reader has taken each time.
///
/// It does not use std, which treats a closed stream as a success and would hold a lock while it blocks.
pub fn write_all(to: BorrowedFd, mut bytes: &[u8], mut on_taken: impl FnMut(usize)) -> nix::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Ok(count) => {
                bytes = &bytes[count..];
                on_taken(count);
            }
            Err(Errno::EINTR) => {}
            // Another process that shares the open file may have made it non-blocking.
            Err(Errno::EAGAIN) => {
                let _ = poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
