//! The files of a folder that are published, found and read without ever leaving it.

use crate::error::{PublishError, PublishErrorKind};
use checkpoint::folder::Folder;
use protocol::result::RECORD_NAME;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use text::one_line;

/// Maximum number of files that are published.
const MOST: usize = 1_000_000;
/// Left out directly below the folder: the agent's own folder, that of a file system's repairs, and an older record.
const LEFT_OUT: [&str; 3] = [address::key::OURS, "lost+found", RECORD_NAME];

/// What changes with a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// In bytes.
    pub size: u64,
    /// When its content last changed, in nanoseconds since 1970.
    modified: i64,
    /// When its content or its inode last changed. A program can't set it.
    changed: i64,
    inode: u64,
}

impl Stamp {
    /// Whether an earlier try read the same content. Mounting a volume with `fsGroup` changes the inodes of all files,
    /// and not their content.
    pub fn is_same_content(&self, earlier: &Self) -> bool {
        (self.size, self.modified, self.inode) == (earlier.size, earlier.modified, earlier.inode)
    }

    fn new(found: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            size: found.len(),
            modified: nanoseconds(found.mtime(), found.mtime_nsec()),
            changed: nanoseconds(found.ctime(), found.ctime_nsec()),
            inode: found.ino(),
        }
    }
}

/// A file that is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its path in the result.
    pub path: String,
    /// Its path below the folder, where a link leads to it.
    target: Option<String>,
    /// As it was found.
    pub stamp: Stamp,
}

/// A folder with the files of a result.
#[derive(Clone)]
pub(crate) struct Content {
    root: PathBuf,
    folder: Arc<Folder>,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Content {
    pub fn open(from: &Path) -> Result<Self> {
        let root = fs::canonicalize(from).map_err(|error| unreadable(from, &error))?;
        let folder = Folder::root(&root).map_err(|error| unreadable(&root, &error))?;
        Ok(Self { root, folder: Arc::new(folder) })
    }

    /// All files, sorted by path.
    ///
    /// # Errors
    /// Final with the file's name if no store can hold it: a link that leads out, a name that is no text, a device.
    pub fn list(&self) -> Result<Vec<Item>> {
        let mut walk = Walk { content: self, items: Vec::new(), entered: Vec::new() };
        walk.folder(Path::new(""), "")?;
        let mut items = walk.items;
        if items.is_empty() {
            let from = self.root.display();
            return Err(PublishError::refused(format!(
                "{from}: nothing is in OUTPUT_DIR; write the result there before the program exits 0"
            )));
        }
        items.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(items)
    }

    /// Opens a file that must be as it was found.
    ///
    /// # Errors
    /// [`PublishErrorKind::Changed`] if it is another one by now.
    pub fn file(&self, item: &Item) -> Result<File> {
        let path = item.target.as_ref().unwrap_or(&item.path);
        let file = self.folder.file(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => PublishError::local(&self.root.join(path), &error),
            // Gone, or a link or folder is in its place.
            _ => changed(item),
        })?;
        self.check(item, &file)?;
        Ok(file)
    }

    /// Whether a file that is open is as it was found.
    ///
    /// # Errors
    /// [`PublishErrorKind::Changed`] if it is not.
    pub fn check(&self, item: &Item, file: &File) -> Result<()> {
        let found = file.metadata().map_err(|error| PublishError::local(&self.root.join(&item.path), &error))?;
        if Stamp::new(&found) == item.stamp { Ok(()) } else { Err(changed(item)) }
    }

    /// A failure to read a file. An early end is a change.
    pub fn failed(&self, item: &Item, error: &io::Error) -> PublishError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => changed(item),
            _ => PublishError::local(&self.root.join(&item.path), error),
        }
    }

    /// The item as it is now. `None` if it is no file any more.
    pub fn again(&self, item: &Item) -> Option<Item> {
        let path = item.target.as_ref().unwrap_or(&item.path);
        let found = self.folder.file(path).ok()?.metadata().ok()?;
        Some(Item { stamp: Stamp::new(&found), ..item.clone() })
    }
}

/// A file that was written to while it was read.
pub(crate) fn changed(item: &Item) -> PublishError {
    let path = one_line(&item.path);
    PublishError::new(
        PublishErrorKind::Changed,
        format!("{path}: it changed while it was sent; stop the program that writes it"),
    )
}

fn unreadable(from: &Path, error: &io::Error) -> PublishError {
    let from_shown = from.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            PublishError::refused(format!("{from_shown}: {error}; name the folder that OUTPUT_DIR is"))
        }
        _ => PublishError::local(from, error),
    }
}

struct Walk<'a> {
    content: &'a Content,
    items: Vec<Item>,
    /// The folders that links led to, in which the walk is now.
    entered: Vec<PathBuf>,
}

impl Walk<'_> {
    /// Adds the files of the folder `real` below the root. In the result their paths begin with `prefix`.
    fn folder(&mut self, real: &Path, prefix: &str) -> Result<()> {
        let at = self.content.root.join(real);
        let local = |error: io::Error| PublishError::local(&at, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&at).map_err(local)? {
            names.push(entry.map_err(local)?.file_name());
        }
        names.sort();
        for name in names {
            let Some(text) = name.to_str() else {
                let shown = one_line(&format!("{prefix}{}", name.to_string_lossy()));
                return Err(refused(&shown, "its name is not UTF-8; rename it"));
            };
            if prefix.is_empty() && LEFT_OUT.contains(&text) {
                continue;
            }
            let path = format!("{prefix}{text}");
            address::key::check(&path)
                .map_err(|why| refused(&path, &format!("the path {why}, and no store can hold it; rename it")))?;
            let inner = real.join(text);
            let full = self.content.root.join(&inner);
            match fs::symlink_metadata(&full) {
                Ok(found) if found.is_symlink() => self.link(&inner, path)?,
                Ok(found) => self.entry(&inner, path, None, &found)?,
                // Removed since its folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(PublishError::local(&full, &error)),
            }
        }
        Ok(())
    }

    fn entry(&mut self, real: &Path, path: String, target: Option<String>, found: &Metadata) -> Result<()> {
        if found.is_dir() {
            return self.folder(real, &format!("{path}/"));
        }
        if !found.is_file() {
            return Err(refused(&path, "it is a device, a socket or a FIFO, and no store can hold it; remove it"));
        }
        if self.items.len() >= MOST {
            return Err(refused(&path, &format!("there are more than {MOST} files; pack them into archives")));
        }
        // Below a folder that a link led to, the file itself is elsewhere.
        let target = target.or_else(|| match self.entered.is_empty() {
            true => None,
            false => real.to_str().map(str::to_owned),
        });
        self.items.push(Item { path, target, stamp: Stamp::new(found) });
        Ok(())
    }

    fn link(&mut self, real: &Path, path: String) -> Result<()> {
        let root = &self.content.root;
        let target = match fs::canonicalize(root.join(real)) {
            Ok(target) => target,
            Err(_) => return Err(refused(&path, "it is a link that leads nowhere; remove it, or make it a file")),
        };
        let Some(inner) = target.strip_prefix(root).ok().map(Path::to_owned) else {
            return Err(refused(&path, "it is a link that leads out of the folder; make it a file"));
        };
        let first = inner.components().next();
        if first == Some(Component::Normal(address::key::OURS.as_ref())) {
            return Err(refused(&path, "it is a link into the agent's own folder; remove it"));
        }
        let Some(text) = inner.to_str() else {
            return Err(refused(&path, "it is a link to a name that is not UTF-8; rename that"));
        };
        let found = fs::symlink_metadata(&target).map_err(|error| PublishError::local(&target, &error))?;
        if !found.is_dir() {
            let text = text.to_owned();
            return self.entry(&inner, path, Some(text), &found);
        }
        // From there the walk would come back to here.
        let is_loop = real.starts_with(&inner) || self.entered.iter().any(|entered| entered.starts_with(&inner));
        if is_loop {
            return Err(refused(&path, "it is a link to a folder that it lies in; remove it"));
        }
        self.entered.push(inner.clone());
        let done = self.entry(&inner, path, None, &found);
        self.entered.pop();
        done
    }
}

fn refused(path: &str, why: &str) -> PublishError {
    PublishError::refused(format!("{}: {why}", one_line(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn paths(root: &Path) -> Result<Vec<String>> {
        Ok(Content::open(root)?.list()?.into_iter().map(|item| item.path).collect())
    }

    #[test]
    fn agent_folders_and_old_records_are_skipped() {
        let room = tempfile::tempdir().unwrap();
        let root = room.path();
        for folder in [".trainingjob/publish", "lost+found", "a/lost+found", "empty"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let error = paths(root).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("nothing is in OUTPUT_DIR"), "{error}");
        for file in [".trainingjob/publish/x", "lost+found/x", RECORD_NAME, "a/lost+found/x", "b", "a.b", "ä ö"] {
            fs::write(root.join(file), file).unwrap();
        }
        assert_eq!(paths(root).unwrap(), ["a.b", "a/lost+found/x", "b", "ä ö"]);
        assert!(Content::open(&root.join("b")).and_then(|content| content.list()).is_err());
        assert!(Content::open(&root.join("missing")).err().unwrap().is_final());
    }

    #[test]
    fn links_within_folder_are_listed_as_files() {
        let room = tempfile::tempdir().unwrap();
        let root = room.path();
        fs::create_dir_all(root.join("checkpoint-5/deep")).unwrap();
        fs::write(root.join("checkpoint-5/deep/weights"), "12345").unwrap();
        symlink("checkpoint-5", root.join("last")).unwrap();
        symlink("last/deep/weights", root.join("model")).unwrap();
        symlink(root.join("checkpoint-5/deep/weights"), root.join("whole")).unwrap();
        let content = Content::open(root).unwrap();
        let items = content.list().unwrap();
        let found: Vec<_> = items.iter().map(|item| item.path.as_str()).collect();
        assert_eq!(found, ["checkpoint-5/deep/weights", "last/deep/weights", "model", "whole"]);
        for item in &items {
            assert_eq!(io::read_to_string(content.file(item).unwrap()).unwrap(), "12345");
        }
        fs::write(root.join("checkpoint-5/deep/weights"), "123456").unwrap();
        assert_eq!(content.file(&items[1]).unwrap_err().kind, PublishErrorKind::Changed);
        assert_eq!(content.again(&items[1]).unwrap().stamp.size, 6);
    }

    #[test]
    fn unpublishable_paths_are_refused_by_name() {
        let refusal = |make: &dyn Fn(&Path)| {
            // What lies beside the root is of this test, too.
            let room = tempfile::tempdir().unwrap();
            let root = room.path().join("root");
            fs::create_dir_all(root.join("a/.trainingjob")).unwrap();
            fs::create_dir_all(root.join(".trainingjob")).unwrap();
            fs::write(root.join("file"), "x").unwrap();
            make(&root.join("a"));
            let error = paths(&root).unwrap_err();
            assert!(error.is_final(), "{error}");
            error.to_string()
        };
        for (target, why) in [
            ("/etc/passwd", "leads out"),
            ("../../x", "leads nowhere"),
            ("../..", "leads out"),
            ("..", "lies in"),
            (".", "lies in"),
            ("link", "leads nowhere"),
            ("../.trainingjob", "agent's own"),
        ] {
            let text = refusal(&|at| symlink(target, at.join("link")).unwrap());
            assert!(text.starts_with("a/link: ") && text.contains(why), "{target}: {text}");
        }
        let text = refusal(&|at| {
            fs::create_dir(at.join("b")).unwrap();
            symlink("../../c", at.join("b/up")).unwrap();
            fs::create_dir(at.join("../c")).unwrap();
            symlink("../a/b", at.join("../c/back")).unwrap();
        });
        assert!(text.contains("lies in"), "{text}");
        let text = refusal(&|at| drop(fs::write(at.join(OsStr::from_bytes(b"\xff")), "x")));
        assert!(text.contains("UTF-8"), "{text}");
        let text = refusal(&|at| drop(fs::write(at.join("a\n\x1b[31mb"), "x")));
        assert!(text.contains("control character") && !text.contains(['\n', '\x1b']), "{text}");
        let text = refusal(&|at| nix::unistd::mkfifo(&at.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap());
        assert!(text.starts_with("a/fifo: "), "{text}");
        let text = refusal(&|at| {
            let deep = at.join(vec!["x".repeat(200); 6].join("/"));
            fs::create_dir_all(deep).unwrap();
        });
        assert!(text.contains("1024 bytes"), "{text}");
    }
}
