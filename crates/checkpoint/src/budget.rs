//! How much a look at a volume may cost, so that a slow file server and the training are left alone.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Entries of folders that are read to find checkpoints, and to look at each.
const ENTRIES: u64 = 200_000;
/// How long a reader sleeps before it looks again whether it is to stop.
const NAP: Duration = Duration::from_millis(50);
/// What was not read for this long can't be read later all at once.
const BURST: Duration = Duration::from_secs(1);

/// What one look may cost. For one thread; the flag that stops it can be set from anywhere.
#[derive(Debug)]
pub struct Budget {
    bytes_per_second: Option<u64>,
    until: Option<Instant>,
    entries: u64,
    stop: Arc<AtomicBool>,
    listed: Cell<u64>,
    /// Since when how many bytes were read.
    read: Cell<(Instant, u64)>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes_per_second: None,
            until: None,
            entries: ENTRIES,
            stop: Arc::default(),
            listed: Cell::new(0),
            read: Cell::new((Instant::now(), 0)),
        }
    }
}

impl Budget {
    /// Reads at most that fast; at least a byte per second.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// Ends after that time. What reads every byte of a checkpoint is not begun after it, but ends what it has begun: else it
    /// would begin again each time.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.until = Instant::now().checked_add(time);
        self
    }

    /// Lists at most that many entries (default 200,000) to find checkpoints and as many to look at each, of one folder at most half
    /// of them.
    #[must_use]
    pub fn entries(mut self, entries: u64) -> Self {
        self.entries = entries;
        self
    }

    /// Ends everything as soon as the flag is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// The same for what has to be ended: without its time, and with nothing listed yet.
    pub(super) fn untimed(&self) -> Self {
        Self {
            bytes_per_second: self.bytes_per_second,
            until: None,
            entries: self.entries,
            stop: self.stop.clone(),
            listed: Cell::new(0),
            read: self.read.clone(),
        }
    }

    /// Whether reading is slowed down.
    pub(super) fn is_paced(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// How many entries one folder may have.
    pub(super) fn entries_of_a_folder(&self) -> u64 {
        (self.entries / 2).min(self.entries.saturating_sub(self.listed.get()))
    }

    /// Why a folder with more entries than that is given up. What is in it costs no memory then, and counts for nothing.
    pub(super) fn too_many(&self) -> io::Error {
        let most = self.entries / 2;
        match self.entries_of_a_folder() < most {
            true => io::Error::other(format!(
                "there is too much before it: a look lists {} entries; keep data sets and the like elsewhere",
                self.entries
            )),
            false => io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} entries")),
        }
    }

    /// The next look, or the next checkpoint, has all entries for itself.
    pub(super) fn list_anew(&self) {
        self.listed.set(0);
    }

    /// Entries that were listed.
    pub(super) fn list(&self, entries: u64) {
        self.listed.set(self.listed.get().saturating_add(entries));
    }

    /// # Errors
    /// If it is to stop. Never of the kind `Interrupted`, at which readers try again.
    pub(super) fn go_on(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the look at the checkpoints was stopped"));
        }
        Ok(())
    }

    /// # Errors
    /// If it is to stop, or its time is over.
    pub(super) fn in_time(&self) -> io::Result<()> {
        self.go_on()?;
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the time for a look at the checkpoints is over"));
        }
        Ok(())
    }

    /// Waits until what was read before was not too fast, and counts these bytes.
    ///
    /// # Errors
    /// If it is to stop.
    pub(super) fn read(&self, bytes: u64) -> io::Result<()> {
        self.go_on()?;
        let Some(rate) = self.bytes_per_second else { return Ok(()) };
        let (since, read) = self.read.get();
        loop {
            let late = due(read, rate).saturating_sub(since.elapsed());
            if late.is_zero() {
                break;
            }
            thread::sleep(late.min(NAP));
            self.go_on()?;
        }
        let idle = since.elapsed() > due(read, rate) + BURST;
        self.read.set(if idle { (Instant::now(), bytes) } else { (since, read.saturating_add(bytes)) });
        Ok(())
    }
}

/// When that many bytes may have been read.
fn due(bytes: u64, rate: u64) -> Duration {
    Duration::from_millis(u64::try_from(u128::from(bytes) * 1000 / u128::from(rate)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time() {
        assert_eq!(due(0, 10), Duration::ZERO);
        assert_eq!(due(25, 10), Duration::from_millis(2500));
        assert_eq!(due(u64::MAX, 1), Duration::from_millis(u64::MAX));
    }

    #[test]
    fn a_slow_reader_is_stopped_at_once() {
        let stop = Arc::new(AtomicBool::new(false));
        let budget = Budget::default().bytes_per_second(1).stopped_by(stop.clone());
        budget.read(1_000_000).unwrap(); // the next one would wait for days
        thread::scope(|scope| {
            scope.spawn(|| stop.store(true, Ordering::Relaxed));
            let error = budget.read(1).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::Interrupted);
        });
    }

    #[test]
    fn time_that_is_over_ends_a_scan_and_not_a_reader() {
        let budget = Budget::default().time(Duration::ZERO);
        assert_eq!(budget.in_time().unwrap_err().kind(), io::ErrorKind::TimedOut);
        budget.read(1).unwrap();
    }
}
