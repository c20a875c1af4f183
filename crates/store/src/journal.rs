//! Record of the finished work of an interrupted transfer, on the local disk. It has a line of JSON for each item,
//! appended when the item is done.
//!
//! A line that was cut by a crash is skipped, so that its work is done again. Unfinished work never counts as done.

use checkpoint::folder::Folder;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// A journal with more bytes is not read. It would be of half a million files, or of something else.
const LONGEST: u64 = 64 * 1024 * 1024;
/// Maximum bytes of a line.
const LINE: u64 = 64 * 1024;

/// A journal that is open. Several threads can't write to it at once.
pub struct Journal {
    folder: Arc<Folder>,
    name: String,
    file: File,
}

impl Journal {
    /// Opens or creates the journal of that name, and returns its content.
    ///
    /// # Errors
    /// If the file can't be read and written.
    pub fn open<L: DeserializeOwned>(folder: &Arc<Folder>, name: &str) -> io::Result<(Self, Vec<L>)> {
        let mut file = folder.writable(name)?;
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
        let mut lines = Vec::new();
        let length = file.metadata()?.len();
        if length > LONGEST {
            file.set_len(0)?;
        } else if length > 0 {
            lines = read(&file)?;
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok((Self { folder: Arc::clone(folder), name: name.to_owned(), file }, lines))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn note<L: Serialize>(&mut self, line: &L) -> io::Result<()> {
        let mut text = serde_json::to_vec(line).map_err(io::Error::other)?;
        text.push(b'\n');
        // Written at once, so that lines of two writers never mix.
        self.file.write_all(&text)
    }

    /// Empties the journal.
    ///
    /// # Errors
    /// If the file can't be emptied.
    pub fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Removes it: the transfer is complete.
    ///
    /// # Errors
    /// If the file can't be removed.
    pub fn remove(self) -> io::Result<()> {
        self.folder.remove(&self.name)
    }
}

fn read<L: DeserializeOwned>(file: &File) -> io::Result<Vec<L>> {
    let mut reader = BufReader::new(file);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(lines);
        }
        if line.last() == Some(&b'\n')
            && let Ok(parsed) = serde_json::from_slice(&line)
        {
            lines.push(parsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn torn_journal_line_is_skipped_without_affecting_others() {
        let name = format!("store-journal-{}", std::process::id());
        let (folder, path) = (std::env::temp_dir(), std::env::temp_dir().join(&name));
        let folder = Arc::new(Folder::root(&folder).unwrap());
        folder.remove(&name).unwrap();
        let (mut journal, lines) = Journal::open::<u32>(&folder, &name).unwrap();
        assert!(lines.is_empty());
        journal.note(&1).unwrap();
        fs::write(&path, b"1\n\xff\xff\n[[[\n2\n34").unwrap();
        let (mut journal, lines) = Journal::open::<u32>(&folder, &name).unwrap();
        assert_eq!(lines, [1, 2]);
        journal.note(&5).unwrap();
        let (journal, lines) = Journal::open::<u32>(&folder, &name).unwrap();
        // 34 is a whole number by chance, which can't be detected. Real lines are objects.
        assert_eq!(lines, [1, 2, 34, 5]);
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}
