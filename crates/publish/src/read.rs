//! Reading files in parts, and their hashes.

use crate::content::{Content, Item};
use crate::error::PublishError;
use crate::record::hex;
use crate::{Progress, blocking};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use store::PayloadMemory;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes that are read at once where they are only hashed, or sent as a stream. A multiple of 3, for base64.
const BLOCK: usize = 3 * 256 * 1024;

/// A part of a file, in memory.
pub(crate) struct FilePart {
    pub index: u64,
    pub start: u64,
    pub bytes: Bytes,
    pub crc32c: u32,
    pub room: Option<OwnedSemaphorePermit>,
}

/// A file that is read from its start to its end, once, with its SHA-256.
pub(crate) struct Reader {
    content: Content,
    item: Item,
    file: File,
    hash: Sha256,
    at: u64,
    length: u64,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Reader {
    /// Opens a file, of which the parts have `length` bytes.
    pub async fn open(content: &Content, item: &Item, length: u64) -> Result<Self> {
        let (content, item) = (content.clone(), item.clone());
        blocking(move || {
            let file = content.file(&item)?;
            Ok(Self { content, item, file, hash: Sha256::new(), at: 0, length: length.max(1) })
        })
        .await
    }

    /// The next part, once there is memory for it. `None` at the end. The file is as it was found, before and after.
    pub async fn next(self, room: &PayloadMemory) -> Result<(Option<FilePart>, Self)> {
        let size = self.length.min(self.item.stamp.size - self.at);
        // The one part of an empty file is empty.
        if size == 0 && (self.at > 0 || self.item.stamp.size > 0) {
            return Ok((None, self));
        }
        let taken = room.take(size).await;
        let mut reader = self;
        blocking(move || {
            let mut bytes = vec![0; size as usize];
            let failed = |reader: &Self, error| reader.content.failed(&reader.item, &error);
            reader.file.read_exact(&mut bytes).map_err(|error| failed(&reader, error))?;
            reader.content.check(&reader.item, &reader.file)?;
            reader.hash.update(&bytes);
            let (start, crc32c) = (reader.at, crc32c::crc32c(&bytes));
            reader.at += size;
            let part = FilePart { index: start / reader.length, start, bytes: bytes.into(), crc32c, room: taken };
            Ok((Some(part), reader))
        })
        .await
    }

    /// The SHA-256 of what was read.
    pub fn sha256(self) -> String {
        hex(&self.hash.finalize())
    }
}

/// The SHA-256 of a file.
pub(crate) async fn sha256(content: &Content, item: &Item, progress: &Progress) -> Result<String> {
    let (content, item_too) = (content.clone(), item.clone());
    let hash = blocking(move || {
        let mut file = content.file(&item_too)?;
        let mut hash = Sha256::new();
        let mut block = vec![0; BLOCK];
        loop {
            let read = file.read(&mut block).map_err(|error| content.failed(&item_too, &error))?;
            if read == 0 {
                break;
            }
            hash.update(&block[..read]);
        }
        content.check(&item_too, &file)?;
        Ok(hex(&hash.finalize()))
    })
    .await?;
    progress.kept(item.stamp.size);
    Ok(hash)
}

/// The bytes of a range of a file, as a stream. The file is as it was found, before and after each piece.
pub(crate) fn range(content: Content, item: Item, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    stream::try_unfold((content, item, range), |(content, item, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let size = (BLOCK as u64).min(range.end - range.start);
        blocking(move || {
            let file = content.file(&item)?;
            let mut bytes = vec![0; size as usize];
            file.read_exact_at(&mut bytes, range.start).map_err(|error| content.failed(&item, &error))?;
            content.check(&item, &file)?;
            Ok(Some((Bytes::from(bytes), (content, item, range.start + size..range.end))))
        })
        .await
    })
    .boxed()
}
