//! Of all exceptions that a program's Python has told, the one that counts.

use crate::protocol::exception::Exception;
use crate::protocol::origin::FailureOrigin;
use jiff::{SignedDuration, Timestamp};

/// Exceptions this close follow from each other: a thread's and the main program's, one rank's and its neighbours'.
const BURST: SignedDuration = SignedDuration::from_secs(60);
/// Those who wait for a rank that has failed and hangs complain of it after time-outs of 10 to 30 minutes.
const WAITS: SignedDuration = SignedDuration::from_mins(60);

/// The first one of the last burst: a helper's that was caught hours ago is not why the program ends. What only complains
/// of others comes after all that does not, be it minutes earlier.
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
                let may_have_hung = first.origin() == FailureOrigin::Own && first.thread.is_none();
                let follows = if may_have_hung && exception.origin() > FailureOrigin::Own { WAITS } else { BURST };
                time.duration_since(last) > follows || (exception.origin(), time) < (first.origin(), first.time)
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
        let waited =
            || Exception { message: "Timed out waiting 600000ms for recv".to_owned(), ..at("RuntimeError", 1600) };
        exceptions.add(waited());
        assert_eq!(exceptions.first().unwrap().class, "ValueError", "it hung, and the others waited for it");
        let mut exceptions = Exceptions::default();
        exceptions.add(Exception { thread: Some("loader".to_owned()), ..at("ValueError", 1000) });
        exceptions.add(waited());
        assert_eq!(exceptions.first().unwrap().class, "RuntimeError", "the program went on without its thread");
    }
}
