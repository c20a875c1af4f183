//! A folder as a store: another volume, or a place for tests. Its files were written completely and are on the disk.

use bytes::Bytes;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::names;

/// Place for files that are not whole yet, relative to the folder.
const UPLOADS: &str = ".trainingjob/uploads";

#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub root: PathBuf,
}

/// An entry: its key, size, and something that changes with its content.
pub(crate) type Entry = (String, u64, String);

impl Folder {
    fn file(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    fn upload(&self, id: &str) -> io::Result<PathBuf> {
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the id of an upload"));
        }
        Ok(self.root.join(UPLOADS).join(id))
    }

    pub fn begin(&self, key: &str) -> io::Result<String> {
        // The root itself must exist, so that an unmounted volume is not filled.
        fs::read_dir(&self.root)?;
        fs::create_dir_all(self.root.join(UPLOADS))?;
        let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let id = format!("{}-{}", names::digest([key, &now]), std::process::id());
        OpenOptions::new().write(true).create_new(true).open(self.upload(&id)?)?;
        Ok(id)
    }

    pub fn part(&self, id: &str, offset: u64, slices: &[Bytes]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).custom_flags(nix::libc::O_NOFOLLOW).open(self.upload(id)?)?;
        let mut at = offset;
        for slice in slices {
            file.write_all_at(slice, at)?;
            at += slice.len() as u64;
        }
        Ok(())
    }

    pub fn complete(&self, key: &str, id: &str) -> io::Result<()> {
        let (from, to) = (self.upload(id)?, self.file(key));
        File::open(&from)?.sync_all()?;
        let parent = to.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)?;
        fs::rename(&from, &to)?;
        File::open(parent)?.sync_all()
    }

    pub fn abort(&self, id: &str) -> io::Result<()> {
        gone(fs::remove_file(self.upload(id)?))
    }

    pub fn put(&self, key: &str, slices: &[Bytes]) -> io::Result<()> {
        let id = self.begin(key)?;
        self.part(&id, 0, slices).and_then(|()| self.complete(key, &id)).inspect_err(|_| drop(self.abort(&id)))
    }

    /// Writes a file unless there is one of that name. Returns whether this call wrote it.
    pub fn create(&self, key: &str, bytes: &Bytes) -> io::Result<bool> {
        let id = self.begin(key)?;
        let done = self.part(&id, 0, std::slice::from_ref(bytes)).and_then(|()| {
            let (from, to) = (self.upload(&id)?, self.file(key));
            File::open(&from)?.sync_all()?;
            let parent = to.parent().unwrap_or(&self.root);
            fs::create_dir_all(parent)?;
            // Unlike a rename it replaces nothing.
            match fs::hard_link(&from, &to) {
                Ok(()) => File::open(parent)?.sync_all().map(|()| true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error),
            }
        });
        drop(self.abort(&id));
        done
    }

    pub fn head(&self, key: &str) -> io::Result<Option<Entry>> {
        match fs::symlink_metadata(self.file(key)) {
            Ok(found) if found.is_file() => Ok(Some((key.to_owned(), found.len(), tag(&found)))),
            Ok(_) => Ok(None),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn read(&self, key: &str, start: u64, length: usize) -> io::Result<Bytes> {
        let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(self.file(key))?;
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::with_capacity(length);
        file.take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "shorter than it was"));
        }
        Ok(bytes.into())
    }

    /// All files below a folder, or only those directly in it. Links are no files.
    pub fn list(&self, below: &str, deep: bool, limit: usize) -> io::Result<Vec<Entry>> {
        fs::read_dir(&self.root)?;
        let mut found = Vec::new();
        let mut folders = vec![below.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.file(&folder)) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                let name = name.to_str().ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("{}: a name that is no text", entry.path().display()),
                    )
                })?;
                let key = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
                let kind = entry.file_type()?;
                if kind.is_dir() && deep && key != UPLOADS {
                    folders.push(key);
                } else if kind.is_file() {
                    let data = entry.metadata()?;
                    found.push((key, data.len(), tag(&data)));
                }
                if found.len() + folders.len() > limit {
                    return Err(io::Error::other(format!("more than {limit} files")));
                }
            }
        }
        Ok(found)
    }

    /// Removes a file, and the folders that it leaves empty.
    pub fn delete(&self, key: &str) -> io::Result<()> {
        gone(fs::remove_file(self.file(key)))?;
        let mut folder = Path::new(key).parent();
        while let Some(path) = folder.filter(|path| !path.as_os_str().is_empty()) {
            if fs::remove_dir(self.root.join(path)).is_err() {
                break;
            }
            folder = path.parent();
        }
        Ok(())
    }
}

fn tag(found: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!("{}.{}-{}-{}", found.mtime(), found.mtime_nsec(), found.ino(), found.len())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}
