//! Memory for data that is sent to a store and read from it.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum size of payloads in memory, in bytes.
const ROOM: u64 = 64 * 1024 * 1024;
/// Unit in which memory is counted, in bytes.
const UNIT: u64 = 64 * 1024;

/// Memory for payloads that are read and not sent yet, 64 MiB. A caller that holds some of it requests no more.
#[derive(Clone)]
pub struct PayloadMemory(Arc<Semaphore>);

impl Default for PayloadMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new((ROOM / UNIT) as usize)))
    }
}

impl PayloadMemory {
    /// Waits for memory for a payload. A payload larger than the whole room gets all of it.
    pub async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, ROOM / UNIT);
        // It is never closed.
        Arc::clone(&self.0).acquire_many_owned(units as u32).await.ok()
    }
}
