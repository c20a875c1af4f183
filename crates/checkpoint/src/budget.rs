//! Limits for scanning a volume, so that a scan burdens neither a slow file server nor the training.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Default number of folder entries that are read to find checkpoints, and again to check each one.
const ENTRIES: u64 = 200_000;
/// How long a reader sleeps before it checks again whether it has to stop.
const NAP: Duration = Duration::from_millis(50);
/// Maximum time of unused rate that a reader may use later at once.
const BURST: Duration = Duration::from_secs(1);

/// Limits for one scan. The flags that stop it can be set from anywhere.
#[derive(Debug)]
pub struct Budget {
    bytes_per_second: Option<u64>,
    until: Option<Instant>,
    entries: u64,
    stops: Vec<Arc<AtomicBool>>,
    listed: AtomicU64,
    /// A time, and how many bytes were read since then.
    read: Mutex<(Instant, u64)>,
    /// Bytes read under this budget and under those with the same counter.
    total: Arc<AtomicU64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes_per_second: None,
            until: None,
            entries: ENTRIES,
            stops: Vec::new(),
            listed: AtomicU64::new(0),
            read: Mutex::new((Instant::now(), 0)),
            total: Arc::default(),
        }
    }
}

impl Budget {
    /// Limits the reading rate, to no less than one byte per second.
    #[must_use]
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// Limits the time. A full reading of a checkpoint does not begin after it, but is completed if it has begun.
    /// Otherwise it would begin again each time.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.until = Instant::now().checked_add(time);
        self
    }

    /// Limits the entries (default 200,000) that are listed to find checkpoints, and as many again to check each one.
    /// One folder may have at most half of them.
    #[must_use]
    pub fn entries(mut self, entries: u64) -> Self {
        self.entries = entries;
        self
    }

    /// Stops everything as soon as this flag, or one that was given before, is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stops.push(stop);
        self
    }

    /// Adds the bytes that are read of checkpoints to this counter.
    #[must_use]
    pub fn counted_by(mut self, total: Arc<AtomicU64>) -> Self {
        self.total = total;
        self
    }

    /// The same limits for work that must be completed: without a time limit, and with nothing listed yet.
    pub(super) fn without_deadline(&self) -> Self {
        Self {
            bytes_per_second: self.bytes_per_second,
            until: None,
            entries: self.entries,
            stops: self.stops.clone(),
            listed: AtomicU64::new(0),
            read: Mutex::new(*self.pace()),
            total: Arc::clone(&self.total),
        }
    }

    fn pace(&self) -> MutexGuard<'_, (Instant, u64)> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether reading is slowed down.
    pub(super) fn is_paced(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// How many entries one folder may have.
    pub(super) fn entries_of_a_folder(&self) -> u64 {
        (self.entries / 2).min(self.entries.saturating_sub(self.listed.load(Ordering::Relaxed)))
    }

    /// Error for a folder with too many entries. These entries then take no memory and do not count against the limit.
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

    /// Resets the count of entries for the next scan or checkpoint.
    pub(super) fn list_anew(&self) {
        self.listed.store(0, Ordering::Relaxed);
    }

    /// Entries that were listed.
    pub(super) fn list(&self, entries: u64) {
        self.listed.fetch_add(entries, Ordering::Relaxed);
    }

    /// # Errors
    /// If it is to stop. Never of the kind `Interrupted`, at which readers try again.
    pub(super) fn go_on(&self) -> io::Result<()> {
        if self.stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
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

    /// Waits until the bytes read before are within the rate, and counts these bytes.
    ///
    /// # Errors
    /// If it is to stop.
    pub(super) fn read(&self, bytes: u64) -> io::Result<()> {
        self.go_on()?;
        self.total.fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = self.bytes_per_second else { return Ok(()) };
        let (since, read) = *self.pace();
        loop {
            let late = due(read, rate).saturating_sub(since.elapsed());
            if late.is_zero() {
                break;
            }
            thread::sleep(late.min(NAP));
            self.go_on()?;
        }
        let idle = since.elapsed() > due(read, rate) + BURST;
        *self.pace() = if idle { (Instant::now(), bytes) } else { (since, read.saturating_add(bytes)) };
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
    fn read_time_matches_the_byte_rate() {
        assert_eq!(due(0, 10), Duration::ZERO);
        assert_eq!(due(25, 10), Duration::from_millis(2500));
        assert_eq!(due(u64::MAX, 1), Duration::from_millis(u64::MAX));
    }

    #[test]
    fn throttled_reader_is_stopped_at_once() {
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
    fn each_stop_flag_stops_the_budget() {
        let [first, second]: [Arc<AtomicBool>; 2] = Default::default();
        let budget =
            Budget::default().stopped_by(Arc::clone(&first)).stopped_by(Arc::clone(&second)).without_deadline();
        for flag in [first, second] {
            budget.go_on().unwrap();
            flag.store(true, Ordering::Relaxed);
            budget.go_on().unwrap_err();
            flag.store(false, Ordering::Relaxed);
        }
    }

    #[test]
    fn expired_time_limit_ends_a_scan_but_not_a_read() {
        let budget = Budget::default().time(Duration::ZERO);
        assert_eq!(budget.in_time().unwrap_err().kind(), io::ErrorKind::TimedOut);
        budget.read(1).unwrap();
    }
}
