//! Forwards the program's output at once and byte for byte, and gives it to the parser as well.

use crate::agent_log::write_all;
use crate::observations::Observations;
use crate::output::queue::{Queue, Stream};
use crate::output::recent_lines::RecentLines;
use crate::panics::catch_parser_panic;
use crate::run::view::RunView;
use parking_lot::Mutex;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{ChildStderr, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use text::mpi;

/// A thread for each of the program's streams that copies it to this process's own stream.
///
/// The threads are separate, because a reader that does not read blocks them and must not block others. They sleep in
/// the kernel while the program is silent.
pub struct Forwarder {
    /// stderr, then stdout if that is piped.
    streams: Vec<Arc<Copy>>,
}

struct Copy {
    stream: Stream,
    recent_lines: Mutex<RecentLines>,
    /// Bytes that the reader has taken.
    passed: AtomicU64,
    ended: AtomicBool,
    observations: Arc<Observations>,
    parser: Arc<Queue>,
    /// For stdout: the copy that keeps stderr's lines.
    errors: Option<Arc<Self>>,
}

impl Forwarder {
    /// Starts the threads for one program, whose run is `run`. They end when no process is left that could write.
    ///
    /// # Errors
    /// Where the kernel denies a thread.
    pub fn start(stdout: Option<ChildStdout>, stderr: ChildStderr, run: &RunView) -> io::Result<Self> {
        let copy = |stream, errors| {
            Arc::new(Copy {
                stream,
                recent_lines: Mutex::default(),
                passed: AtomicU64::new(0),
                ended: AtomicBool::new(false),
                observations: Arc::clone(&run.observations),
                parser: Arc::clone(&run.output),
                errors,
            })
        };
        let mut streams = vec![copy(Stream::Stderr, None)];
        spawn(&streams[0], stderr)?;
        if let Some(stdout) = stdout {
            streams.push(copy(Stream::Stdout, Some(Arc::clone(&streams[0]))));
            spawn(&streams[1], stdout)?;
        }
        Ok(Self { streams })
    }

    /// Calls `read` with the last lines of stderr so far.
    pub fn recent_lines(&self, read: impl FnOnce(&RecentLines)) {
        read(&self.streams[0].recent_lines.lock());
    }

    /// Whether all output has been forwarded, and no process is left that could write more.
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
        let to = match self.stream {
            Stream::Stdout => stdout.as_fd(),
            Stream::Stderr => stderr.as_fd(),
        };
        let on_taken = |count| _ = self.passed.fetch_add(count as u64, SeqCst);
        let mut buffer = vec![0; 64 * 1024];
        let (mut reader_is_there, mut is_farewell) = (true, false);
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => &buffer[..count],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            self.observations.prints(bytes.len());
            if self.stream == Stream::Stderr {
                // Before it is forwarded, because the forwarding may block, and these may be the last words.
                catch_parser_panic(|| self.recent_lines.lock().push(bytes));
                self.observations.changes.change();
            }
            if let Some(errors) = &self.errors {
                let at = if is_farewell { Some(0) } else { mpi::farewell_on_stdout(bytes) };
                if let Some(at) = at {
                    is_farewell = true;
                    catch_parser_panic(|| errors.recent_lines.lock().push(&bytes[at..]));
                }
            }
            // Without a reader the thread still reads, because the program must not block, and its last words count.
            reader_is_there = reader_is_there && write_all(to, bytes, on_taken).is_ok();
            self.parser.push(self.stream, bytes);
        }
        self.ended.store(true, SeqCst);
        self.observations.changes.wake();
    }
}
