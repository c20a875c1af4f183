//! Reads the lines that another process appends to a file.

use crate::output::lines::Lines;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Maximum bytes read at a time and kept in the file, which may be in memory. Of more, only the newest count.
const MAX_BYTES: u64 = 1024 * 1024;
/// Number of bytes before the read position. A change in them shows that the file was overwritten.
const MARK: usize = 32;

/// A file and the position up to which it was read. It may be appended to, overwritten, or replaced by another.
pub struct FileFollower {
    path: PathBuf,
    inode: u64,
    offset: u64,
    /// The last bytes before `offset`.
    mark: Vec<u8>,
    lines: Lines,
}

impl FileFollower {
    /// Follows the file at `path` from its beginning. The file need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, inode: 0, offset: 0, mark: Vec::new(), lines: Lines::default() }
    }

    /// Calls `on_line` for each new whole line.
    pub fn read(&mut self, on_line: impl FnMut(&[u8])) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(&self.path)?;
        let metadata = file.metadata()?;
        let length = metadata.len();
        if metadata.ino() != self.inode || self.is_another(&file, length)? {
            *self = Self { inode: metadata.ino(), ..Self::new(std::mem::take(&mut self.path)) };
        }
        if length - self.offset > MAX_BYTES {
            self.offset = length - MAX_BYTES;
            self.lines.skip();
        }
        let mut new = vec![0; usize::try_from(length - self.offset).unwrap_or(0)];
        let count = file.read_at(&mut new, self.offset)?;
        new.truncate(count);
        self.lines.push(&new, on_line);
        self.offset += count as u64;
        self.mark.extend_from_slice(&new[new.len().saturating_sub(MARK)..]);
        self.mark.drain(..self.mark.len().saturating_sub(MARK));
        if length > MAX_BYTES {
            file.set_len(0)?;
        }
        Ok(())
    }

    /// Calls `on_line` for each new line, and for an unterminated last one, because no process writes any more.
    pub fn read_to_end(&mut self, mut on_line: impl FnMut(&[u8])) -> io::Result<()> {
        self.read(&mut on_line)?;
        if let Some(last) = self.lines.end() {
            on_line(&last);
        }
        Ok(())
    }

    fn is_another(&self, file: &File, length: u64) -> io::Result<bool> {
        if length < self.offset {
            return Ok(true);
        }
        let mut mark = vec![0; self.mark.len()];
        file.read_exact_at(&mut mark, self.offset - self.mark.len() as u64)?;
        Ok(mark != self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    struct Room(PathBuf);

    impl Drop for Room {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn room(test: &str) -> Room {
        let room = std::env::temp_dir().join(format!("follow-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&room).unwrap();
        Room(room)
    }

    fn lines(follower: &mut FileFollower) -> Vec<String> {
        let mut found = Vec::new();
        follower.read(|line| found.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        found
    }

    #[test]
    fn appended_rewritten_and_replaced_files_are_followed() {
        let room = room("anew");
        let path = room.0.join("file");
        let mut follower = FileFollower::new(path.clone());
        assert!(follower.read(|_| panic!("there is no line")).is_err());
        let mut file = File::options().append(true).create(true).open(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(lines(&mut follower), ["one"]);
        file.write_all(b"o\n").unwrap();
        assert_eq!(lines(&mut follower), ["two"]);
        assert_eq!(lines(&mut follower), [""; 0]);
        for text in ["a\n", "b\n", "longer than before\nand more\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(lines(&mut follower), text.lines().collect::<Vec<_>>());
        }
        std::fs::write(room.0.join("other"), "longer than before\nand more\n").unwrap();
        std::fs::rename(room.0.join("other"), &path).unwrap();
        assert_eq!(lines(&mut follower).len(), 2);
    }

    #[test]
    fn read_to_end_yields_the_unterminated_last_line() {
        let room = room("end");
        let path = room.0.join("file");
        let mut follower = FileFollower::new(path.clone());
        std::fs::write(&path, "one\ntwo").unwrap();
        assert_eq!(lines(&mut follower), ["one"]);
        let mut last = Vec::new();
        follower.read_to_end(|line| last.push(line.to_vec())).unwrap();
        assert_eq!(last, [b"two"]);
        follower.read_to_end(|line| panic!("{line:?} was read before")).unwrap();
    }

    #[test]
    fn followed_file_is_truncated_when_too_large() {
        let room = room("grow");
        let path = room.0.join("file");
        let mut appends = File::options().append(true).create(true).open(&path).unwrap();
        let mut follower = FileFollower::new(path.clone());
        let much = "0123456\n".repeat(MAX_BYTES as usize / 4);
        appends.write_all(much.as_bytes()).unwrap();
        assert_eq!(lines(&mut follower).len(), MAX_BYTES as usize / 8 - 1);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        appends.write_all(b"next\n").unwrap();
        assert_eq!(lines(&mut follower), ["next"]);
    }

    #[test]
    fn holes_left_by_a_non_appending_writer_are_skipped() {
        let room = room("holes");
        let path = room.0.join("file");
        let mut writes = File::create(&path).unwrap();
        let mut follower = FileFollower::new(path);
        writes.write_all("0123456\n".repeat(MAX_BYTES as usize / 4).as_bytes()).unwrap();
        lines(&mut follower);
        for text in ["first\n", "second\n", "third\n"] {
            writes.write_all(b"\n").unwrap();
            writes.write_all(text.as_bytes()).unwrap();
            assert_eq!(lines(&mut follower), [text.trim_end()]);
        }
    }
}
