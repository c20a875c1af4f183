//! The files of one checkpoint, wherever they are.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Seek};

/// A regular file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Relative to the checkpoint, with `/` between its parts.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub modified: i64,
}

/// A reader that can read at any place.
pub trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// The files of one checkpoint.
///
/// Errors are those of reading, such as a file server that does not answer or a spent budget. They say nothing about
/// the checkpoint, which is then checked again later.
pub trait Files {
    /// All regular files, sorted by path.
    fn members(&self) -> &[Member];

    /// Opens one of them.
    ///
    /// # Errors
    /// If it can't be opened, or is not one of them.
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadSeek + '_>>;

    /// The one at `path`, if it is there.
    fn member(&self, path: &str) -> Option<&Member> {
        self.members().iter().find(|member| member.path == path)
    }

    /// The whole content of a file that has to be small.
    ///
    /// # Errors
    /// If it can't be read. [`io::ErrorKind::FileTooLarge`] if it has more than `limit` bytes.
    fn read(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} has more than {limit} bytes")));
        }
        Ok(bytes)
    }
}
