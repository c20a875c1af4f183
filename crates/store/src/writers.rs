//! Ownership of the checkpoints below a prefix: no writer ever replaces what another has put there.
//!
//! The first writer of a prefix uses the paths as they are. Each later writer has a space of its own, even if it
//! belongs to a job that was deleted and applied again. Its checkpoint `PATH` lies at `PATH~SPACE/`, and has its own
//! manifest beside the other's. Two simultaneous writers each see the other, and both have spaces.

use crate::error::StoreError;
use crate::{Store, names};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Note of a writer's arrival, so that later writers see it.
#[derive(Serialize, Deserialize)]
struct Writer {
    writer: String,
}

/// Note of the result, which then holds for all workers of the job.
#[derive(Serialize, Deserialize)]
struct Precedence {
    /// Whether the writer was the first.
    first: bool,
}

/// Maximum bytes of each note.
const LONGEST: u64 = 4096;
/// How long to wait for another worker of this job that has begun to determine whether the job was the first.
const UNDECIDED: Duration = Duration::from_secs(30);
/// Interval between two checks for its result.
const AGAIN: Duration = Duration::from_millis(250);

impl Store {
    /// The space of this store's writer; None for the first one. The first call notes the writer.
    pub(crate) async fn space(&self) -> Result<Option<&str>, StoreError> {
        Ok(self.space.get_or_try_init(|| self.find_space()).await?.as_deref())
    }

    async fn find_space(&self) -> Result<Option<String>, StoreError> {
        let folder = format!("{}/writers", address::key::OURS);
        let digest = names::digest([self.writer.as_str()]);
        let (own, space) = (format!("{folder}/{digest}"), digest[..8].to_owned());
        let (writer, place) = (format!("{own}.json"), format!("{own}.place.json"));
        let as_noted = |first: bool| (!first).then_some(space);
        let begin = Instant::now();
        loop {
            if let Some(first) = self.is_first(&place).await? {
                return Ok(as_noted(first));
            }
            // Another worker of this job is determining it, or died while it did so.
            let is_begun = self.bucket.get(&writer, LONGEST).await?.is_some();
            if !is_begun || begin.elapsed() >= UNDECIDED {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        // Writers that arrive after this note see it. The writer itself sees those that arrived before.
        self.note(&writer, &Writer { writer: self.writer.clone() }).await?;
        // A server may list an object that is being written under another name.
        let is_others = |key: &str| key.ends_with(".json") && !key.starts_with(&own);
        let has_others = self.bucket.list(&folder, false).await?.iter().any(|object| is_others(&object.key))
            || self.list().await?.manifests.iter().any(|manifest| manifest.writer != self.writer);
        // Two simultaneous workers both use what one of them has noted.
        if let Some(first) = self.is_first(&place).await? {
            return Ok(as_noted(first));
        }
        self.note(&place, &Precedence { first: !has_others }).await?;
        Ok(as_noted(!has_others))
    }

    async fn is_first(&self, place: &str) -> Result<Option<bool>, StoreError> {
        let noted = self.bucket.get(place, LONGEST).await?;
        // A server may overwrite what another worker has noted. A half-written note counts as none.
        Ok(noted.and_then(|noted| serde_json::from_slice::<Precedence>(&noted).ok()).map(|place| place.first))
    }

    async fn note(&self, key: &str, what: &impl Serialize) -> Result<(), StoreError> {
        self.bucket.put(key, vec![Bytes::from(serde_json::to_vec(what).unwrap_or_default())]).await
    }
}
