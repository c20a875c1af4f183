//! How often something may be done for one job. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// A token bucket: `BURST` at once, and then one each `EACH` seconds.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<const BURST: u32, const EACH: u64> {
    /// When it is full again. It is full if that is past.
    full_at: Option<Instant>,
}

impl<const BURST: u32, const EACH: u64> Default for Bucket<BURST, EACH> {
    fn default() -> Self {
        Self { full_at: None }
    }
}

impl<const BURST: u32, const EACH: u64> Bucket<BURST, EACH> {
    const EACH: Duration = Duration::from_secs(EACH);

    /// Takes one token.
    ///
    /// # Errors
    /// With the time until the next token, if there is none.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now)) + Self::EACH;
        match full_at.saturating_duration_since(now).checked_sub(Self::EACH * BURST).filter(|wait| !wait.is_zero()) {
            Some(wait) => Err(wait),
            None => {
                self.full_at = Some(full_at);
                Ok(())
            }
        }
    }

    /// Whether no token is missing.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_allows_burst_and_then_steady_rate() {
        let (begun, mut bucket) = (Instant::now(), Bucket::<10, 60>::default());
        let mut taken = 0;
        for tick in 0..36_000 {
            taken += u32::from(bucket.take(begun + Duration::from_millis(100) * tick).is_ok());
        }
        assert_eq!(taken, 10 + 59, "in an hour");
        assert_eq!(bucket.take(begun + Duration::from_secs(3600)), Ok(()));
        assert_eq!(bucket.take(begun + Duration::from_secs(3601)), Err(Duration::from_secs(59)));
        assert!(!bucket.is_full(begun + Duration::from_secs(4000)));
        assert!(bucket.is_full(begun + Duration::from_secs(4200)));
    }
}
