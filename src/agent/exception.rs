//! What Python raised and nothing caught, as `sitecustomize.py` tells it.

use super::cause::is_echo;
use super::report::start_of;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Exceptions this close follow from each other: a thread's and the main program's, one rank's and its neighbours'.
const BURST: SignedDuration = SignedDuration::from_secs(60);

/// An exception that ended a Python program or one of its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exception {
    /// The class with its module, as in a traceback: `ValueError`, `torch.OutOfMemoryError`.
    #[serde(rename = "type")]
    pub class: String,
    pub message: String,
    /// Of the innermost frame that is the user's code and not a library's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Of the process: RANK, else LOCAL_RANK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// The thread's name, if it was not the main one; the program may have gone on without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// To the millisecond.
    pub time: Timestamp,
}

impl Exception {
    /// `line` as the hook writes it; `None` for what is no cause: torchrun's words on a rank that failed.
    pub fn parse(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            seconds: f64,
            #[serde(flatten)]
            exception: Exception,
        }
        let Line { seconds, exception } = serde_json::from_slice(line).ok()?;
        let name = exception.class.rsplit('.').next()?;
        if ["", "ChildFailedError", "SignalException", "KeyboardInterrupt"].contains(&name) {
            return None;
        }
        let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()?;
        Some(Self { time, ..exception })
    }

    /// Cuts what is long, so that it fits into a report.
    pub(super) fn fit(&mut self) {
        self.class.truncate(start_of(&self.class, 100).len());
        self.message.truncate(start_of(&self.message, 500).len());
        for (text, room) in [(&mut self.file, 200), (&mut self.thread, 60)] {
            _ = text.as_mut().map(|text| text.truncate(start_of(text, room).len()));
        }
    }

    /// Whether it only says that a peer has gone.
    pub fn is_echo(&self) -> bool {
        is_echo(&self.message)
    }

    /// `[rank3]: ValueError: bad shape at train.py:88`, with the mark that PyTorch gives its lines.
    pub fn summary(&self) -> String {
        let rank = self.rank.map(|rank| format!("[rank{rank}]: ")).unwrap_or_default();
        let message = self.message.lines().map(str::trim).find(|line| !line.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let thread = self.thread.as_ref().map(|thread| format!(" in thread {thread}")).unwrap_or_default();
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!(" at {file}:{line}"),
            (Some(file), None) => format!(" at {file}"),
            _ => String::new(),
        };
        format!("{rank}{}{message}{thread}{place}", self.class)
    }
}

/// The first one of the last burst: a helper's that was caught hours ago is not why the program ends. What only says that
/// a peer has gone comes after all others.
#[derive(Debug, Default)]
pub struct Exceptions {
    first: Option<Exception>,
    last: Option<Timestamp>,
}

impl Exceptions {
    pub fn add(&mut self, exception: Exception) {
        let time = exception.time;
        let is_first = match (&self.first, self.last) {
            (Some(first), Some(last)) => {
                time.duration_since(last) > BURST || (exception.is_echo(), time) < (first.is_echo(), first.time)
            }
            _ => true,
        };
        self.last = self.last.max(Some(time));
        if is_first {
            self.first = Some(exception);
        }
    }

    pub fn first(&self) -> Option<&Exception> {
        self.first.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(class: &str, second: i64) -> Exception {
        Exception { class: class.to_owned(), time: Timestamp::from_second(second).unwrap(), ..Exception::default() }
    }

    #[test]
    fn the_first_of_the_last_burst() {
        let first = |seconds: &[i64]| {
            let mut exceptions = Exceptions::default();
            seconds.iter().for_each(|&second| exceptions.add(at("E", second)));
            exceptions.first().unwrap().time.as_second()
        };
        assert_eq!(first(&[1000, 1001, 1030]), 1000);
        assert_eq!(first(&[1001, 1000]), 1000, "the file may be behind the clock");
        assert_eq!(first(&[1000, 9000, 9001]), 9000);
        assert_eq!(first(&[1000, 1050, 1100]), 1000);
        let mut exceptions = Exceptions::default();
        exceptions.add(Exception { message: "Connection closed by peer".to_owned(), ..at("RuntimeError", 1000) });
        exceptions.add(at("ValueError", 1001));
        assert_eq!(exceptions.first().unwrap().class, "ValueError");
    }

    #[test]
    fn the_hooks_line() {
        let line = br#"{"type": "torch.OutOfMemoryError", "message": "CUDA out of memory.\nTried", "file": "train.py", "line": 88, "rank": 3, "thread": null, "seconds": 1763730000.1234}"#;
        let exception = Exception::parse(line).unwrap();
        assert_eq!(exception.summary(), "[rank3]: torch.OutOfMemoryError: CUDA out of memory. at train.py:88");
        assert_eq!(exception.time.to_string(), "2025-11-21T13:00:00.123Z");
        let bare = br#"{"type": "Stop", "message": "", "seconds": 1, "thread": "Thread-1"}"#;
        assert_eq!(Exception::parse(bare).unwrap().summary(), "Stop in thread Thread-1");
    }

    #[test]
    fn what_is_no_cause() {
        for class in ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "KeyboardInterrupt", ""] {
            let line = format!(r#"{{"type": "{class}", "message": "x", "seconds": 1}}"#);
            assert_eq!(Exception::parse(line.as_bytes()), None);
        }
        for line in ["", "{}", "x", r#"{"type": "E", "seconds": 1e300}"#] {
            assert_eq!(Exception::parse(line.as_bytes()), None, "{line}");
        }
    }
}
