//! Objects of S3, Google Cloud Storage, Azure Blob Storage and Oracle Object Storage.

use crate::error::{FetchError, FetchErrorKind};
use crate::hub::check_pages;
use crate::listing::{Check, Item};
use crate::network::{NetworkTimeouts, Retries};
use crate::watch::Watch;
use crate::web_file::RangeAnswer;
use address::ObjectsAddress;
use futures::{StreamExt, stream};
use protocol::result::{LONGEST_RECORD, RECORD_NAME, RecordFile, ResultRecord};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;
use store::{Object, Store};
use text::one_line;

/// A prefix of a bucket.
pub(crate) struct Objects {
    pub store: Store,
    pub address: ObjectsAddress,
    /// How people write it.
    pub uri: String,
    pub patience: NetworkTimeouts,
    pub watch: Arc<Watch>,
}

/// A list that is being read, page by page.
pub(crate) struct ObjectList {
    token: Option<String>,
    pages: usize,
    last: Option<String>,
    /// The last object of the page before. The next one decides whether it is a file.
    pending: Option<Object>,
    digest: Sha256,
    files: usize,
    is_over: bool,
}

impl ObjectList {
    pub fn new() -> Self {
        let digest = Sha256::new();
        Self { token: None, pages: 0, last: None, pending: None, digest, files: 0, is_over: false }
    }

    /// The revision of the content: a hash over keys, sizes and tags.
    pub fn revision(self) -> String {
        crate::names::hex(&self.digest.finalize())
    }

    /// Takes in the next object of the list, and returns the one before if it is a file.
    ///
    /// An object that a console creates to show a folder is not a file. It has no bytes, and its key has a slash at its
    /// end, which the client of the store removes. The content of the folder follows it, or it stands out of the order.
    fn next(&mut self, uri: &str, next: Option<Object>) -> Result<Option<Item>, FetchError> {
        let Some(object) = std::mem::replace(&mut self.pending, next) else { return Ok(None) };
        let is_folder = object.size == 0 && self.pending.as_ref().is_some_and(|next| is_below(&next.key, &object.key));
        let is_in_order = self.last.as_ref().is_none_or(|last| *last < object.key);
        if is_folder || (!is_in_order && object.size == 0) {
            return Ok(None);
        }
        if !is_in_order {
            let key = one_line(&object.key);
            return Err(FetchError::refused(format!(
                "{uri}: the store lists the key {key} out of order; use a general purpose bucket of S3, GCS or Azure"
            )));
        }
        self.last = Some(object.key.clone());
        self.files += 1;
        let tag = object.tag.as_deref().unwrap_or_default();
        for part in [object.key.as_bytes(), &object.size.to_le_bytes(), tag.as_bytes()] {
            self.digest.update((part.len() as u64).to_le_bytes());
            self.digest.update(part);
        }
        Ok(Some(Item { path: object.key.clone(), key: object.key, size: object.size, check: Check::Tag(object.tag) }))
    }
}

fn is_below(key: &str, folder: &str) -> bool {
    key.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

impl Objects {
    /// The error of the store, with the address as people wrote it.
    fn failed(&self, error: store::StoreError) -> FetchError {
        let bucket = format!("s3://{}/", self.address.destination.bucket);
        match &self.address.oracle_namespace {
            Some(namespace) => {
                let written = format!("oci://n/{namespace}/b/{}/o/", self.address.destination.bucket);
                FetchError::from(error).renamed(&bucket, &written)
            }
            None => error.into(),
        }
    }

    /// The next files of the list, about a thousand. `None` after the last.
    pub async fn page(&self, list: &mut ObjectList) -> Result<Option<Vec<Item>>, FetchError> {
        if list.is_over {
            return Ok(None);
        }
        check_pages(&self.uri, list.pages, list.files)?;
        list.pages += 1;
        let mut tries = Retries::new(self.patience);
        let page = loop {
            match self.watch.wait(self.store.page(list.token.clone())).await {
                Ok(page) => break page,
                Err(error) => tries.wait(self.failed(error), false).await?,
            }
        };
        let mut items = Vec::with_capacity(page.objects.len() + 1);
        for object in page.objects {
            items.extend(list.next(&self.uri, Some(object))?);
        }
        list.token = page.next;
        if list.token.is_none() {
            list.is_over = true;
            items.extend(list.next(&self.uri, None)?);
            if list.files == 0 {
                items.extend(self.single(list).await?);
            }
        }
        Ok(Some(items))
    }

    /// The files of the result that is published there, if it is the one with this digest.
    ///
    /// # Errors
    /// If there is none, or another one; and what the store answers.
    pub async fn result(&self, digest: &str) -> Result<Vec<Item>, FetchError> {
        let mut tries = Retries::new(self.patience);
        let json = loop {
            match self.watch.wait(self.store.read_object(RECORD_NAME, LONGEST_RECORD)).await {
                Ok(json) => break json,
                Err(error) => tries.wait(self.failed(error), false).await?,
            }
        };
        let uri = &self.uri;
        let Some(json) = json else {
            return Err(FetchError::refused(format!(
                "{uri}: no result is published there, for {RECORD_NAME} is missing; name the folder of a result, or leave \
                 #sha256= out"
            )));
        };
        let record = ResultRecord::parse(&json)
            .map_err(|why| FetchError::refused(format!("{uri}: {RECORD_NAME}: {why}; name another result")))?;
        if record.digest != digest {
            let found = &record.digest;
            return Err(FetchError::refused(format!(
                "{uri}: the result there has another digest, {found}; name that one, or the folder of the result that is meant"
            )));
        }
        let item = |file: RecordFile| {
            let RecordFile { path, size, sha256 } = file;
            Item { key: path.clone(), path, size, check: Check::Sha256(sha256) }
        };
        Ok(record.files.into_iter().map(item).collect())
    }

    /// The object whose key is the prefix itself, where nothing is below it.
    async fn single(&self, list: &mut ObjectList) -> Result<Option<Item>, FetchError> {
        let prefix = &self.address.destination.prefix;
        if prefix.is_empty() {
            return Ok(None);
        }
        let mut tries = Retries::new(self.patience);
        let object = loop {
            match self.watch.wait(self.store.object()).await {
                Ok(Some(object)) => break object,
                Ok(None) => return Ok(None),
                Err(error) => tries.wait(self.failed(error), false).await?,
            }
        };
        let path = prefix.rsplit('/').next().unwrap_or(prefix).to_owned();
        list.pending = Some(Object { key: path, ..object });
        let item = list.next(&self.uri, None)?;
        Ok(item.map(|item| Item { key: String::new(), ..item }))
    }

    pub async fn open(&self, item: &Item, range: Range<u64>) -> Result<RangeAnswer<'_>, FetchError> {
        let tag = match &item.check {
            Check::Tag(tag) => tag.clone(),
            _ => None,
        };
        let read = self.store.read(&item.key, range, tag);
        let read = self.watch.wait(read).await.map_err(|error| self.failed(error))?;
        if read.size != item.size {
            let uri = self.store.destination().uri(&item.key);
            let (found, listed) = (read.size, item.size);
            return Err(FetchError::new(
                FetchErrorKind::Changed,
                format!("{uri}: it has {found} bytes, and {listed} in the list; it was replaced, fetch it again"),
            ));
        }
        let pieces = stream::try_unfold(read.bytes, move |mut bytes| async move {
            let next = self.watch.wait(bytes.next()).await.transpose().map_err(|error| self.failed(error))?;
            Ok(next.map(|piece| (piece, bytes)))
        });
        Ok(RangeAnswer { is_whole: false, pieces: pieces.boxed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(objects: &[(&str, u64)]) -> Result<Vec<String>, FetchError> {
        let mut list = ObjectList::new();
        let mut files = Vec::new();
        let objects = objects.iter().map(|(key, size)| Object { key: (*key).to_owned(), size: *size, tag: None });
        for next in objects.map(Some).chain([None]) {
            files.extend(list.next("s3://b", next)?.map(|item| item.path));
        }
        Ok(files)
    }

    #[test]
    fn empty_objects_are_files_but_folder_markers_are_not() {
        assert_eq!(files(&[("a", 0), ("b", 1), ("c", 0)]).unwrap(), ["a", "b", "c"]);
        assert_eq!(files(&[("a", 0), ("a/b", 1), ("a/c", 0)]).unwrap(), ["a/b", "a/c"]);
        // The keys are a-b, a/ and a/c.
        assert_eq!(files(&[("a-b", 1), ("a", 0), ("a/c", 1)]).unwrap(), ["a-b", "a/c"]);
        assert_eq!(files(&[("a-b", 1), ("a", 0)]).unwrap(), ["a-b"]);
        assert!(files(&[("b", 1), ("a", 1)]).unwrap_err().to_string().contains("out of order"));
        assert!(files(&[("a", 1), ("a", 1)]).is_err(), "twice");
    }
}
