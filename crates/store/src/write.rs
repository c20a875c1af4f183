//! Writing objects that are no checkpoint, one by one. Keys are relative to the prefix.

use crate::Store;
use crate::backend::Object;
use crate::error::StoreError;
use crate::upload::slices;
use bytes::Bytes;

impl Store {
    /// Whether the store can keep an object at `key`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the key and the reason.
    pub fn check_key(&self, key: &str) -> Result<(), StoreError> {
        self.bucket.check_key(key)
    }

    /// Writes an object in one request.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn write_object(&self, key: &str, bytes: &Bytes) -> Result<(), StoreError> {
        self.bucket.put(key, slices(bytes)).await
    }

    /// Writes an object unless there is one at this key. Returns whether this call wrote it.
    ///
    /// # Errors
    /// What the store answers. A store without conditional writes answers with
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused).
    pub async fn create_object(&self, key: &str, bytes: Bytes) -> Result<bool, StoreError> {
        self.bucket.create(key, bytes).await
    }

    /// Reads a whole object of at most `limit` bytes. `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`](crate::ErrorKind::Corrupted) if it is longer; and what the store answers.
    pub async fn read_object(&self, key: &str, limit: u64) -> Result<Option<Bytes>, StoreError> {
        self.bucket.get(key, limit).await
    }

    /// Length and tag of an object. `None` if there is none.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn find_object(&self, key: &str) -> Result<Option<Object>, StoreError> {
        self.bucket.head(key).await
    }

    /// Removes an object, if it is there.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn delete_object(&self, key: &str) -> Result<(), StoreError> {
        self.bucket.delete(key).await
    }

    /// Begins an object that is sent in parts. Returns the upload's id, with which another process can continue it.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn begin_object(&self, key: &str) -> Result<String, StoreError> {
        self.bucket.begin(key).await
    }

    /// Sends the part `index` (from 0) of an upload, which begins at `offset` of the object. Returns the part's id.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn write_part(
        &self,
        key: &str,
        id: &str,
        index: usize,
        offset: u64,
        bytes: &Bytes,
    ) -> Result<String, StoreError> {
        self.bucket.part(key, id, index, offset, slices(bytes)).await
    }

    /// Makes an object of the parts with these ids, in this order.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn complete_object(&self, key: &str, id: &str, ids: Vec<String>) -> Result<(), StoreError> {
        self.bucket.complete(key, id, ids).await
    }

    /// Ends an upload without an object, so that its parts are not billed any more.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn abort_object(&self, key: &str, id: &str) -> Result<(), StoreError> {
        self.bucket.abort(key, id).await
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Destination, ErrorKind, Store};
    use bytes::Bytes;
    use std::path::PathBuf;

    /// A folder of its own, as a store.
    fn folder_store(name: &str) -> (PathBuf, Store) {
        let room = std::env::temp_dir().join(format!("store-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&room).unwrap();
        let destination = Destination::parse(&format!("file://{}", room.display())).unwrap();
        (room, Store::open(&destination, &Access::default(), "test").unwrap())
    }

    #[tokio::test]
    async fn object_is_created_only_once() {
        let (room, store) = folder_store("write");
        assert!(store.create_object("a/b", Bytes::from_static(b"1")).await.unwrap());
        assert!(!store.create_object("a/b", Bytes::from_static(b"2")).await.unwrap());
        assert_eq!(store.read_object("a/b", 10).await.unwrap().unwrap(), "1");
        let keys = store.page(None).await.unwrap().objects;
        assert_eq!(keys.iter().map(|object| object.key.as_str()).collect::<Vec<_>>(), ["a/b"]);
        store.delete_object("a/b").await.unwrap();
        assert!(store.find_object("a/b").await.unwrap().is_none());
        let bucket = Store::open(&Destination::parse("s3://bucket/x").unwrap(), &Access::default(), "test").unwrap();
        for key in ["a//b", "../b", &"x".repeat(1024)] {
            assert_eq!(bucket.check_key(key).unwrap_err().trouble, ErrorKind::Invalid, "{key}");
        }
        bucket.check_key(&"x".repeat(1022)).unwrap();
        std::fs::remove_dir_all(&room).unwrap();
    }

    #[tokio::test]
    async fn tag_changes_with_the_content() {
        let (room, store) = folder_store("tag");
        let mut tags = std::collections::BTreeSet::new();
        for bytes in ["1", "2", "2 and more"] {
            store.write_object("a", &Bytes::from_static(bytes.as_bytes())).await.unwrap();
            let found = store.find_object("a").await.unwrap().unwrap();
            assert_eq!(store.page(None).await.unwrap().objects[0].tag, found.tag);
            assert!(tags.insert(found.tag.unwrap()), "{bytes:?} has the tag of what was there before");
        }
        std::fs::remove_dir_all(&room).unwrap();
    }
}
