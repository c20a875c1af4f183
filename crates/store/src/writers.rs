//! Whose the checkpoints below a prefix are: no writer ever replaces what another has put there.
//!
//! The first writer of a prefix has the paths as they are. Each later one, also of a job that was deleted and applied
//! again, has a space of its own: its checkpoint `PATH` lies at `PATH~SPACE/`, and has a manifest of its own beside the
//! other's. Two that come at the same instant each see the other, and both have spaces.

use crate::error::StoreError;
use crate::{Store, names};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What is noted when a writer comes, so that who comes later sees it.
#[derive(Serialize, Deserialize)]
struct Writer {
    writer: String,
}

/// What is noted once it is known, and then holds for all workers of the job.
#[derive(Serialize, Deserialize)]
struct Place {
    /// Whether the writer was the first.
    first: bool,
}

/// Each is noted in no more than this.
const LONGEST: u64 = 4096;
/// How long another worker of this job gets that has begun to find out whether the job was the first.
const UNDECIDED: Duration = Duration::from_secs(30);
/// Between two looks whether it has.
const AGAIN: Duration = Duration::from_millis(250);

impl Store {
    /// The space of this store's writer; none of the first one. Notes the writer the first time.
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
            // Another worker of this job is finding it out, or has died of it.
            let is_begun = self.bucket.get(&writer, LONGEST).await?.is_some();
            if !is_begun || begin.elapsed() >= UNDECIDED {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        // After it is noted whoever comes sees it; before, it sees whoever is there.
        self.note(&writer, &Writer { writer: self.writer.clone() }).await?;
        // A server may show what is being written by another name.
        let is_others = |key: &str| key.ends_with(".json") && !key.starts_with(&own);
        let has_others = self.bucket.list(&folder, false).await?.iter().any(|object| is_others(&object.key))
            || self.list().await?.manifests.iter().any(|manifest| manifest.writer != self.writer);
        // Two workers that came at once go by what one of them has noted.
        if let Some(first) = self.is_first(&place).await? {
            return Ok(as_noted(first));
        }
        self.note(&place, &Place { first: !has_others }).await?;
        Ok(as_noted(!has_others))
    }

    async fn is_first(&self, place: &str) -> Result<Option<bool>, StoreError> {
        let noted = self.bucket.get(place, LONGEST).await?;
        // Half of it, where a server writes over what another worker has noted, is as good as nothing.
        Ok(noted.and_then(|noted| serde_json::from_slice::<Place>(&noted).ok()).map(|place| place.first))
    }

    async fn note(&self, key: &str, what: &impl Serialize) -> Result<(), StoreError> {
        self.bucket.put(key, vec![Bytes::from(serde_json::to_vec(what).unwrap_or_default())]).await
    }
}
