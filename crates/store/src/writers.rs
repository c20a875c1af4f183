//! Whose the checkpoints below a prefix are: no writer ever replaces what another has put there.
//!
//! The first writer of a prefix has the paths as they are. Each later one, also of a job that was deleted and applied
//! again, has a space of its own: its checkpoint `PATH` lies at `PATH~SPACE/`, and has a manifest of its own beside the
//! other's. Two that come at the same instant each see the other, and both have spaces.

use crate::error::StoreError;
use crate::{Store, names};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Writer {
    writer: String,
    /// Whether it was the first.
    first: bool,
}

/// A writer is noted in no more than this.
const LONGEST: u64 = 4096;

impl Store {
    /// The space of this store's writer; none of the first one. Notes the writer the first time.
    pub(crate) async fn space(&self) -> Result<Option<&str>, StoreError> {
        Ok(self.space.get_or_try_init(|| self.find_space()).await?.as_deref())
    }

    async fn find_space(&self) -> Result<Option<String>, StoreError> {
        let folder = format!("{}/writers", names::OURS);
        let own = names::digest([self.writer.as_str()]);
        let (key, space) = (format!("{folder}/{own}.json"), own[..8].to_owned());
        if let Some(known) = self.bucket.get(&key, LONGEST).await? {
            let is_first = serde_json::from_slice::<Writer>(&known).is_ok_and(|writer| writer.first);
            return Ok((!is_first).then_some(space));
        }
        let note = |first| {
            let text = serde_json::to_vec(&Writer { writer: self.writer.clone(), first }).unwrap_or_default();
            self.bucket.put(&key, vec![Bytes::from(text)])
        };
        // After it is noted whoever comes sees it; before, it sees whoever is there.
        note(false).await?;
        let has_others = self.bucket.list(&folder, false).await?.iter().any(|object| object.key != key)
            || self.list().await?.manifests.iter().any(|manifest| manifest.writer != self.writer);
        if has_others {
            return Ok(Some(space));
        }
        note(true).await?;
        Ok(None)
    }
}
