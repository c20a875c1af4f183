//! Reading objects that other programs put below a prefix.

use crate::Store;
use crate::backend::{Object, Page};
use crate::error::StoreError;
use bytes::Bytes;
use futures::stream::BoxStream;
use std::ops::Range;

/// A range of an object that is being read.
pub struct RangeRead<'a> {
    /// The length of the whole object, in bytes.
    pub size: u64,
    /// The bytes of the range. They end with an error where the connection was cut.
    pub bytes: BoxStream<'a, Result<Bytes, StoreError>>,
}

impl Store {
    /// One page of the list of all objects below the destination, which is about a thousand objects. The first page is
    /// requested without a token, each further one with [`Page::next`]. Only the reader limits the list.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the key if a key below the prefix has an empty part, `.` or
    /// `..`; and what the store answers.
    pub async fn page(&self, token: Option<String>) -> Result<Page, StoreError> {
        self.bucket.next_page(token).await
    }

    /// The object whose key is the destination's prefix itself. Its key is empty. `None` if there is none.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn object(&self) -> Result<Option<Object>, StoreError> {
        self.bucket.head("").await
    }

    /// The bytes of a range of the object at `key` below the prefix, if its tag still is `tag`. The range is not empty.
    /// It is requested once.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`](crate::ErrorKind::Changed) if the object has another tag; and what the store answers.
    pub async fn read(&self, key: &str, range: Range<u64>, tag: Option<String>) -> Result<RangeRead<'_>, StoreError> {
        self.bucket.range(key, range, tag).await
    }
}
