//! Finds the decisive one of all exceptions that a program's Python has reported.

use jiff::{SignedDuration, Timestamp};
use std::collections::VecDeque;
use text::exception::Exception;
use text::origin::FailureOrigin;

/// Exceptions within this time follow from each other: a thread's and the main program's, one rank's and its
/// neighbours'.
const BURST: SignedDuration = SignedDuration::from_secs(60);
/// Ranks that wait for one that has failed and hangs report it after time-outs of 10 to 30 minutes.
const WAITS: SignedDuration = SignedDuration::from_mins(60);
/// A program notices within this time that one of its processes has failed, and fails because of it.
const NOTICED: SignedDuration = SignedDuration::from_secs(5);
/// Number of exceptions that are kept, the newest ones.
const KEPT: usize = 128;

/// The decisive exception is the first one of the last burst, because a helper's exception from hours ago is not why
/// the program ends. An exception that only reports another process's failure ranks after all others, even if it came
/// first.
///
/// A helper that fails repeatedly is no reason either, unless it failed for the first time just now. If an exception
/// ended the program itself, only exceptions right before it can be its cause.
#[derive(Debug, Default)]
pub struct Exceptions {
    all: VecDeque<Exception>,
}

impl Exceptions {
    pub fn add(&mut self, exception: Exception) {
        // The timestamps of the file may be behind the clock.
        let at = self.all.partition_point(|known| known.time <= exception.time);
        self.all.insert(at, exception);
        if self.all.len() > KEPT {
            self.all.pop_front();
        }
    }

    /// Whether the program itself has raised an exception that nothing caught.
    pub fn has_end(&self) -> bool {
        self.all.iter().any(is_end)
    }

    pub fn first(&self) -> Option<&Exception> {
        if let Some(end) = self.all.iter().rfind(|raised| is_end(raised)) {
            let causes = self.all.iter().filter(|raised| {
                let before = end.time.duration_since(raised.time);
                raised.time <= end.time && before <= NOTICED && !self.is_habit(raised)
            });
            return causes.min_by_key(|raised| worth(raised)).or(Some(end));
        }
        let fresh = self.all.iter().filter(|raised| !self.is_habit(raised));
        let mut first: Option<&Exception> = None;
        let mut last = Timestamp::MIN;
        for raised in fresh {
            let is_first = first.is_none_or(|first| {
                let may_have_hung = first.origin() == FailureOrigin::Own && first.thread.is_none();
                let follows = if may_have_hung && raised.origin() > FailureOrigin::Own { WAITS } else { BURST };
                raised.time.duration_since(last) > follows || worth(raised) < worth(first)
            });
            last = raised.time;
            if is_first {
                first = Some(raised);
            }
        }
        first
    }

    /// Whether the same exception was raised at the same place before, and the program continued.
    fn is_habit(&self, raised: &Exception) -> bool {
        let place = |raised: &Exception| (raised.class.clone(), raised.file.clone(), raised.line);
        let went_on = |known: &&Exception| {
            let since = raised.time.duration_since(known.time);
            since > BURST / 2 && since <= WAITS && place(known) == place(raised)
        };
        raised.file.is_some() && raised.by_program != Some(true) && self.all.iter().any(|known| went_on(&known))
    }
}

/// Whether the exception ends the program itself.
fn is_end(raised: &Exception) -> bool {
    raised.by_program == Some(true) && raised.thread.is_none()
}

/// Sort key: exceptions that say more come first.
fn worth(raised: &Exception) -> (FailureOrigin, bool, Timestamp) {
    (raised.origin(), raised.is_of_child(), raised.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(class: &str, second: i64) -> Exception {
        Exception { class: class.to_owned(), time: Timestamp::from_second(second).unwrap(), ..Exception::default() }
    }

    #[test]
    fn first_exception_of_the_last_burst_is_reported() {
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
        exceptions.add(Exception {
            message: "[gloo/transport/tcp/pair.cc:534] Connection closed by peer".to_owned(),
            ..at("RuntimeError", 1000)
        });
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

    fn reported(class: &str, second: i64, by_program: Option<bool>) -> Exception {
        Exception { by_program, file: Some("t.py".to_owned()), line: Some(3), ..at(class, second) }
    }

    fn first(all: impl IntoIterator<Item = Exception>) -> String {
        let mut exceptions = Exceptions::default();
        all.into_iter().for_each(|exception| exceptions.add(exception));
        exceptions.first().map(|first| first.class.clone()).unwrap_or_default()
    }

    #[test]
    fn repeated_helper_failures_do_not_hide_the_final_exception() {
        let helper = |n: i64| reported("Helper", 1000 + 59 * n, Some(false));
        let helpers = || (0..200).map(helper);
        let end = helper(199).time.as_second() + 20;
        assert_eq!(first(helpers().chain([reported("End", end, None)])), "End", "of a rank");
        assert_eq!(first(helpers().chain([reported("End", end, Some(true))])), "End");
        // In the same second as the end.
        assert_eq!(first(helpers().chain([helper(199), reported("End", end - 20, Some(true))])), "End");
    }

    #[test]
    fn fatal_exception_or_its_immediate_cause_is_reported() {
        let program = |second| reported("Program", second, Some(true));
        assert_eq!(first([reported("Helper", 1000, Some(false)), program(1030)]), "Program");
        assert_eq!(first([reported("Child", 1028, Some(false)), program(1030)]), "Child", "it failed for that");
        assert_eq!(first([program(1030), reported("Late", 1040, Some(false))]), "Program");
        let launcher = reported("subprocess.CalledProcessError", 1000, Some(true));
        assert_eq!(first([launcher.clone(), reported("Script", 1000, Some(false))]), "Script");
        assert_eq!(first([launcher]), "subprocess.CalledProcessError");
        // A thread's is not the end.
        let thread = Exception { thread: Some("loader".to_owned()), ..program(1000) };
        assert_eq!(first([thread, reported("Rank", 1070, Some(false))]), "Rank");
    }
}
