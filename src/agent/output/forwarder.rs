//! Passes the program's output on, byte for byte and at once, and lets others read along.

use crate::agent::output::queue::{Queue, Stream};
use crate::agent::output::recent_lines::RecentLines;
use crate::agent::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// A thread for each of the program's streams that copies it to this process's own.
///
/// Threads of their own, because a reader that doesn't read blocks them, and must block nobody else. They sleep in the
/// kernel while the program is silent.
pub struct Forwarder {
    /// stderr, then stdout if that is piped.
    streams: Vec<Arc<Copy>>,
}

struct Copy {
    stream: Stream,
    tail: Mutex<RecentLines>,
    /// Bytes that the reader has taken.
    passed: AtomicU64,
    ended: AtomicBool,
    wake: Arc<Wake>,
    parser: Arc<Queue>,
}

impl Forwarder {
    pub fn start(
        stdout: Option<ChildStdout>,
        stderr: ChildStderr,
        wake: &Arc<Wake>,
        parser: &Arc<Queue>,
    ) -> io::Result<Self> {
        let copy = |stream| {
            Arc::new(Copy {
                stream,
                tail: Mutex::default(),
                passed: AtomicU64::new(0),
                ended: AtomicBool::new(false),
                wake: Arc::clone(wake),
                parser: Arc::clone(parser),
            })
        };
        let mut streams = vec![copy(Stream::Stderr)];
        spawn(&streams[0], stderr)?;
        if let Some(stdout) = stdout {
            streams.push(copy(Stream::Stdout));
            spawn(&streams[1], stdout)?;
        }
        Ok(Self { streams })
    }

    /// Lets `read` look at the last lines of stderr so far.
    pub fn recent_lines(&self, read: impl FnOnce(&RecentLines)) {
        read(&self.streams[0].tail.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether all that was written has been passed on, and nobody is left who could write more.
    pub fn has_ended(&self) -> bool {
        self.streams.iter().all(|copy| copy.ended.load(SeqCst))
    }

    /// How many bytes the readers have taken so far.
    pub fn passed(&self) -> u64 {
        self.streams.iter().map(|copy| copy.passed.load(SeqCst)).sum()
    }
}

fn spawn(copy: &Arc<Copy>, from: impl Read + Send + 'static) -> io::Result<()> {
    let name = match copy.stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let copy = Arc::clone(copy);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || copy.run(from))?;
    Ok(())
}

impl Copy {
    fn run(&self, mut from: impl Read) {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        // Not through std, which takes a closed stream for a success and would hold a lock while it blocks.
        let to = match self.stream {
            Stream::Stdout => stdout.as_fd(),
            Stream::Stderr => stderr.as_fd(),
        };
        let mut buffer = vec![0; 64 * 1024];
        let mut reader_is_there = true;
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => &buffer[..count],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if self.stream == Stream::Stderr {
                // Before it is passed on: what blocks there may be the last words.
                self.tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
                self.wake.change();
            }
            // Without a reader it goes on reading: the program must not block, and its last words still count.
            reader_is_there = reader_is_there && self.pass_on(to, bytes).is_ok();
            self.parser.push(self.stream, bytes);
        }
        self.ended.store(true, SeqCst);
        self.wake.wake();
    }

    fn pass_on(&self, to: BorrowedFd, mut bytes: &[u8]) -> nix::Result<()> {
        while !bytes.is_empty() {
            match nix::unistd::write(to, bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.passed.fetch_add(count as u64, SeqCst);
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
}
