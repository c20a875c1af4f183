//! Helpers for the tests of the forms.

use crate::output::lines::Lines;
use jiff::Timestamp;
use protocol::progress::{Progress, Reading};

pub(super) use super::Text;
pub(super) use protocol::progress::{Source, Update};

macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../../../../../tests/fixtures/progress/", $name))
    };
}
pub(super) use recorded;

/// All updates that a stream gives, and the resulting progress.
pub(super) fn read(text: &mut Text, stream: &[u8]) -> (Vec<Update>, Progress) {
    let (mut updates, mut progress) = (Vec::new(), Progress::default());
    let asked = Update { epochs: text.run.epochs, ..Update::default() };
    progress.merge(&asked, Source::Environment, Timestamp::UNIX_EPOCH);
    Lines::default().push(&[stream, b"\n"].concat(), |line| updates.extend(text.line(line)));
    updates.iter().for_each(|update| _ = progress.merge(update, Source::Output, Timestamp::UNIX_EPOCH));
    (updates, progress)
}

/// The progress of a program that was asked for `epochs` epochs.
pub(super) fn progress(epochs: Option<f64>, stream: &str) -> Progress {
    read(&mut Text::new(epochs), stream.as_bytes()).1
}

/// (epoch, epochs, step, steps)
pub(super) fn counts(progress: &Progress) -> [Option<f64>; 4] {
    [progress.epoch, progress.epochs, progress.step, progress.steps]
        .map(|reading: Option<Reading>| Some(reading?.value))
}

pub(super) fn names(progress: &Progress) -> Vec<&str> {
    progress.metrics.keys().map(String::as_str).collect()
}

pub(super) fn updates_of(updates: &[Update]) -> Progress {
    let mut progress = Progress::default();
    updates.iter().for_each(|update| _ = progress.merge(update, Source::Output, Timestamp::UNIX_EPOCH));
    progress
}
