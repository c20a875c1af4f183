//! The file that becomes the container's termination message.

use crate::agent_log::AgentLog;
use crate::install::replace;
use crate::panics::catch_parser_panic;
use crate::progress::objective::ObjectiveTracker;
use crate::writer::Writer;
use protocol::report::{MAX_BYTES, Report};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long opening the file may delay the start.
const OPENED_WITHIN: Duration = Duration::from_secs(1);
/// How long the last words may take at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// The container's termination message. A separate thread writes it.
pub struct MessageFile {
    writer: Writer<Message>,
    /// Where the next agent of this pod finds a copy. Nothing else of a killed container is left in its pod.
    copy: Option<PathBuf>,
    /// Readings of the objective, which every message includes.
    objective: Option<Arc<ObjectiveTracker>>,
}

struct Message {
    text: String,
    copy: Option<PathBuf>,
}

/// The file. It is written in place, because it is a bind mount, over which no other file can be renamed.
struct Target {
    path: PathBuf,
    /// `None` once writing has failed, because a warning each second would drown the program's own output.
    file: Option<File>,
    /// Bytes in the file.
    length: usize,
    log: Arc<AgentLog>,
}

impl MessageFile {
    /// Opens the file. An error is only logged with `words`, because a missing report must not keep the program from
    /// running.
    ///
    /// # Errors
    /// Only where the kernel denies a thread.
    pub fn open(path: &Path, log: Arc<AgentLog>) -> io::Result<Self> {
        let path = path.to_owned();
        let prepare = move || {
            let mut target = Target::open(path, log);
            move |message| target.write(&message)
        };
        let writer = Writer::start("message", prepare)?;
        // Errors are logged before the program's first output, unless the disk does not answer.
        writer.finish(OPENED_WITHIN);
        Ok(Self { writer, copy: None, objective: None })
    }

    /// Writes a copy of every later message to `path`, which is replaced atomically.
    pub fn copy_to(&mut self, path: PathBuf) {
        self.copy = Some(path);
    }

    /// Includes the readings of the objective in every later message.
    pub fn include(&mut self, objective: Arc<ObjectiveTracker>) {
        self.objective = Some(objective);
    }

    /// Soon replaces the content of the file by `report`.
    pub fn write(&mut self, report: &Report) {
        // If a message can't be made of the program's output, the next message may lack what caused that.
        let objective = self.objective.as_ref().map(|objective| objective.records());
        let report = Report { objective, ..report.clone() };
        let Some(text) = catch_parser_panic(|| report.to_message()) else { return };
        self.writer.put(Message { text, copy: self.copy.clone() });
    }
}

impl Drop for MessageFile {
    fn drop(&mut self) {
        self.writer.finish(WRITTEN_WITHIN);
    }
}

impl Target {
    fn open(path: PathBuf, log: Arc<AgentLog>) -> Self {
        let mut target = Self { path, file: None, length: 0, log };
        match open(&target.path) {
            Ok((file, length)) => (target.file, target.length) = (Some(file), length),
            Err(error) => target.give_up(&error),
        }
        target
    }

    fn write(&mut self, Message { text, copy }: &Message) {
        if let Some(copy) = copy {
            // Without the copy, a restarted agent only knows less.
            let _ = replace(copy, text.as_bytes());
        }
        if let Some(file) = &self.file
            && let Err(error) = overwrite(file, text, &mut self.length)
        {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        self.file = None;
        self.log.say(format_args!(
            "can't write --termination-log {}: {error}; the pod's status will not tell why the program ended",
            self.path.display()
        ));
    }
}

fn open(path: &Path) -> io::Result<(File, usize)> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if length > MAX_BYTES {
        file.set_len(0)?;
        return Ok((file, 0));
    }
    Ok((file, length))
}

/// Replaces the content so that a kill at any moment leaves JSON. One write covers the old content (a page at most,
/// with blanks at the end, which JSON allows), and only then is the file truncated.
fn overwrite(file: &File, text: &str, length: &mut usize) -> io::Result<()> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().max(*length), b' ');
    file.write_all_at(&bytes, 0)?;
    if bytes.len() > text.len() {
        file.set_len(text.len() as u64)?;
    }
    *length = text.len();
    Ok(())
}
