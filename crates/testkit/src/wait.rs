//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Limit for everything that should be there within seconds. It is far longer than needed, because others keep the
/// machine busy.
pub const SOON: Duration = Duration::from_secs(120);
/// Time between two looks.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Looks repeatedly until there is something to see.
pub fn until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < deadline, "waited {deadline:?} for {what}");
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// The same where other tasks have to work meanwhile.
pub async fn eventually<T>(what: &str, deadline: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begin.elapsed() < deadline, "waited {deadline:?} for {what}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}
