//! Whether a fetch as a whole still moves.
//!
//! Limits on single requests do not add up to one for the fetch: a server that answers each of a thousand requests just
//! before its limit would hold the fetch for a day. So the time in which any request waits for the network is summed up,
//! and starts over with each 256 KiB that arrive. Pauses that a server asks for, and waits for the disk, do not count.

use crate::error::FetchError;
use crate::network::NetworkTimeouts;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Bytes that a whole file counts besides its own.
const FILE: u64 = 4096;
/// Bytes that a listed file counts. A page of a thousand is worth more than 256 KiB.
const LISTED: u64 = 512;

/// The waits of one fetch.
#[derive(Debug)]
pub(crate) struct Watch {
    patience: NetworkTimeouts,
    waits: Mutex<WaitingRequests>,
}

#[derive(Debug, Default)]
struct WaitingRequests {
    /// Requests that wait now.
    count: usize,
    /// Since when there has been one without a break, or since the last progress.
    since: Option<Instant>,
    /// What earlier waits took since the last progress.
    waited: Duration,
    /// What arrived since then, in bytes.
    arrived: u64,
}

impl WaitingRequests {
    fn total(&self, now: Instant) -> Duration {
        self.waited + self.since.map_or(Duration::ZERO, |since| now - since)
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new(NetworkTimeouts::default())
    }
}

impl Watch {
    pub fn new(patience: NetworkTimeouts) -> Self {
        Self { patience, waits: Mutex::default() }
    }

    /// Runs `work`, all of which is a wait for the network.
    pub async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let _wait = Wait::begin(self);
        work.await
    }

    /// Bytes of a file arrived.
    pub fn arrived(&self, bytes: u64) {
        let mut waits = self.waits.lock();
        waits.arrived = waits.arrived.saturating_add(bytes);
        if waits.arrived >= self.patience.least_data {
            (waits.arrived, waits.waited) = (0, Duration::ZERO);
            waits.since = waits.since.map(|_| Instant::now());
        }
    }

    /// A file is whole.
    pub fn completed(&self) {
        self.arrived(FILE);
    }

    /// Files were listed.
    pub fn listed(&self, files: usize) {
        self.arrived(LISTED.saturating_mul(files as u64));
    }

    /// The longest wait without progress: two stalls and a little more, so that the error of a single request comes
    /// first where there is one.
    fn limit(&self) -> Duration {
        self.patience.silence.saturating_mul(9) / 4
    }

    /// Waits until the fetch has waited too long without progress.
    pub async fn overdue(&self) -> FetchError {
        let nap = (self.patience.silence / 16).max(Duration::from_millis(5));
        loop {
            let waited = self.waits.lock().total(Instant::now());
            if waited > self.limit() {
                return FetchError::stall(format!(
                    "the server sent less than {} KiB in {:.0} s of waiting; check that it can be reached fast enough",
                    self.patience.least_data.div_ceil(1024),
                    waited.as_secs_f64()
                ));
            }
            sleep(nap).await;
        }
    }
}

/// One wait, which ends when it is dropped.
struct Wait<'a>(&'a Watch);

impl<'a> Wait<'a> {
    fn begin(watch: &'a Watch) -> Self {
        let mut waits = watch.waits.lock();
        waits.count += 1;
        waits.since.get_or_insert_with(Instant::now);
        Self(watch)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut waits = self.0.waits.lock();
        waits.count -= 1;
        if waits.count == 0 {
            waits.waited = waits.total(Instant::now());
            waits.since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(watch: &Watch, seconds: u64) {
        let mut waits = watch.waits.lock();
        waits.waited += Duration::from_secs(seconds);
    }

    #[test]
    fn waits_add_up_until_enough_data_arrives() {
        let watch = Watch::default();
        let total = || watch.waits.lock().total(Instant::now()).as_secs();
        past(&watch, 100);
        watch.arrived(watch.patience.least_data - 1);
        assert_eq!(total(), 100);
        watch.arrived(1);
        assert_eq!(total(), 0);
        past(&watch, 100);
        (0..63).for_each(|_| watch.completed());
        assert_eq!(total(), 100);
        watch.completed();
        assert_eq!(total(), 0);
        past(&watch, 100);
        watch.listed(511);
        assert_eq!(total(), 100);
        watch.listed(1);
        assert_eq!(total(), 0);
    }

    #[test]
    fn concurrent_waits_count_once_and_pauses_do_not_count() {
        let watch = Watch::default();
        let (first, second) = (Wait::begin(&watch), Wait::begin(&watch));
        watch.waits.lock().since = Instant::now().checked_sub(Duration::from_secs(50));
        drop(first);
        assert_eq!(watch.waits.lock().waited, Duration::ZERO, "one still waits");
        drop(second);
        let waited = watch.waits.lock().waited;
        assert_eq!((waited.as_secs(), watch.waits.lock().since), (50, None));
        assert_eq!(watch.waits.lock().total(Instant::now() + Duration::from_secs(500)), waited, "nothing waits");
    }
}
