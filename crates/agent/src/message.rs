//! The file that becomes the container's termination message.

use crate::install::replace;
use crate::progress::objective::ObjectiveTracker;
use crate::survive::survive;
use crate::words::Words;
use crate::writer::Writer;
use protocol::report::{MAX_BYTES, Report};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long its opening may hold up the start.
const OPENED_WITHIN: Duration = Duration::from_secs(1);
/// How long the last words may take at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// What becomes the container's termination message. A thread of its own writes it.
pub struct MessageFile {
    writer: Writer<Message>,
    /// Where the next agent of this pod finds the same: of a container that was killed nothing else is left in its pod.
    copy: Option<PathBuf>,
    /// Readings of the objective, which are in every message.
    objective: Option<Arc<ObjectiveTracker>>,
}

struct Message {
    text: String,
    copy: Option<PathBuf>,
}

/// The file, written in place: it is a bind mount, which no other file can be renamed over.
struct Target {
    path: PathBuf,
    /// `None` once writing has failed: a warning a second would drown the program's own words.
    file: Option<File>,
    /// Bytes in the file.
    length: usize,
    words: Arc<Words>,
}

impl MessageFile {
    /// A program must not be kept from running by what is only told of it: `words` say what is wrong.
    ///
    /// # Errors
    /// Only where the kernel denies a thread.
    pub fn open(path: &Path, words: Arc<Words>) -> io::Result<Self> {
        let path = path.to_owned();
        let prepare = move || {
            let mut target = Target::open(path, words);
            move |message| target.write(&message)
        };
        let writer = Writer::start("message", prepare)?;
        // What is wrong with it is said before the program's first words, unless its disk does not answer.
        writer.finish(OPENED_WITHIN);
        Ok(Self { writer, copy: None, objective: None })
    }

    /// Has a copy of all that is written from now on, for what is to be replaced at once.
    pub fn copy_to(&mut self, path: PathBuf) {
        self.copy = Some(path);
    }

    /// Has what is recorded of the objective in all that is written from now on.
    pub fn include(&mut self, objective: Arc<ObjectiveTracker>) {
        self.objective = Some(objective);
    }

    /// Replaces what the file says by `report`, soon.
    pub fn write(&mut self, report: &Report) {
        // What it was of the program's words that could not be put into a message, the next one may lack.
        let objective = self.objective.as_ref().map(|objective| objective.records());
        let report = Report { objective, ..report.clone() };
        let Some(text) = survive(|| report.to_message()) else { return };
        self.writer.put(Message { text, copy: self.copy.clone() });
    }
}

impl Drop for MessageFile {
    fn drop(&mut self) {
        self.writer.finish(WRITTEN_WITHIN);
    }
}

impl Target {
    fn open(path: PathBuf, words: Arc<Words>) -> Self {
        let mut target = Self { path, file: None, length: 0, words };
        match open(&target.path) {
            Ok((file, length)) => (target.file, target.length) = (Some(file), length),
            Err(error) => target.give_up(&error),
        }
        target
    }

    fn write(&mut self, Message { text, copy }: &Message) {
        if let Some(copy) = copy {
            // Without it an agent that comes back knows less.
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
        self.words.say(format_args!(
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

/// Replaces the content, so that a kill at any moment leaves JSON: one write covers all that was there (a page at
/// most, with blanks at the end, which JSON allows), and only then is the file cut.
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
