//! Ranges of a checkpoint's files, and why a checkpoint is not good.

use crate::files::{Files, Member, ReadSeek};
use crate::found::Judgement;
use std::io::{self, Read, SeekFrom};

/// Why there is no verdict, or no good one.
#[derive(Debug)]
pub(super) enum Fault {
    /// It could not be read, which says nothing of the checkpoint.
    Io(io::Error),
    /// Something is missing.
    Missing(String),
    /// A file is wrong.
    Bad { file: String, why: String },
}

impl Fault {
    pub(super) fn bad(file: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Bad { file: file.into(), why: why.into() }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A fault as a judgement; only those of reading remain errors.
pub(super) fn judged(result: Result<Judgement, Fault>) -> io::Result<Judgement> {
    match result {
        Ok(judgement) => Ok(judgement),
        Err(Fault::Io(error)) => Err(error),
        Err(Fault::Missing(why)) => Ok(Judgement::incomplete(why)),
        Err(Fault::Bad { file, why }) => Ok(Judgement::corrupted(file, why)),
    }
}

/// The files of a checkpoint, of which the one that was read last stays open.
pub(super) struct Source<'a> {
    pub(super) files: &'a dyn Files,
    open: Option<(String, Box<dyn ReadSeek + 'a>)>,
}

impl<'a> Source<'a> {
    pub(super) fn new(files: &'a dyn Files) -> Self {
        Self { files, open: None }
    }

    /// The file at `path`; there may be as many as chunks.
    pub(super) fn member(&self, path: &str) -> Option<&'a Member> {
        let members = self.files.members();
        members.binary_search_by(|member| member.path.as_str().cmp(path)).ok().map(|at| &members[at])
    }

    /// Fails if the file is not there, or ends before `offset + length`.
    pub(super) fn check(&self, path: &str, offset: u64, length: u64) -> Result<(), Fault> {
        let Some(member) = self.member(path) else {
            return Err(Fault::Missing(format!("{path} is not there")));
        };
        match offset.checked_add(length) {
            Some(end) if end <= member.size => Ok(()),
            Some(end) => Err(Fault::bad(path, format!("has {} bytes, and at least {end} belong in it", member.size))),
            None => Err(Fault::bad(path, "is said to be longer than any file can be")),
        }
    }

    /// A reader of just that range.
    pub(super) fn range(&mut self, path: &str, offset: u64, length: u64) -> Result<impl Read + use<'_, 'a>, Fault> {
        self.check(path, offset, length)?;
        if self.open.as_ref().is_none_or(|(name, _)| name != path) {
            self.open = Some((path.to_owned(), self.files.open(path)?));
        }
        let Some((_, file)) = &mut self.open else { return Err(io::Error::other("no file is open").into()) };
        file.seek(SeekFrom::Start(offset))?;
        Ok(file.take(length))
    }

    /// The bytes of that range, which may not be more than `limit`.
    pub(super) fn bytes(&mut self, path: &str, offset: u64, length: u64, limit: u64) -> Result<Vec<u8>, Fault> {
        if length > limit {
            return Err(Fault::bad(
                path,
                format!("a part of it is said to have {length} bytes, more than is believed"),
            ));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        self.range(path, offset, length)?.read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{path} became shorter")).into());
        }
        Ok(bytes)
    }
}

/// Takes bytes off the front. `None` if there are fewer.
pub(super) fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (head, tail) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = tail;
    Some(head)
}

/// An integer of seven bits a byte, the lowest first.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        // The tenth byte has room for one bit only.
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::varint;

    #[test]
    fn varint_has_64_bits_at_most() {
        let most = [&[0xff; 9][..], &[1]].concat();
        for (bytes, expected) in [
            (&[0][..], Some(0)),
            (&[0x80, 1], Some(128)),
            (&most, Some(u64::MAX)),
            (&[&[0xff; 9][..], &[2]].concat(), None),
            (&[&[0x80; 10][..], &[1]].concat(), None),
            (&[0x80], None),
            (&[], None),
        ] {
            assert_eq!(varint(&mut &*bytes), expected, "{bytes:?}");
        }
    }
}
