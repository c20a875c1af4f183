//! The program's code: waits for the archive that the attempt needs, verifies it and unpacks it.
//!
//! The archive comes in parts, as files of a volume of ConfigMaps. The node updates them some time after the
//! ConfigMaps. So an agent waits for the archive with the digest that the gang's leader names, and takes no other.

use crate::agent_log::AgentLog;
use crate::wake::Wake;
use flate2::read::GzDecoder;
use parking_lot::Mutex;
use protocol::code::{DIGEST, FOLDER, MAX_FILES, MAX_UNPACKED, PART_BYTES, PARTS, part_key};
use protocol::report::{LaunchError, LaunchErrorKind};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tar::{Archive, EntryType};

/// Maximum wait for the archive. A node updates a ConfigMap within one to two minutes.
const PATIENCE: Duration = Duration::from_secs(180);
/// Interval between checks for the archive.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which the wait is logged.
const SAY_AFTER: Duration = Duration::from_secs(5);

/// Held while the code of this pod is replaced. An attempt that was stopped may still unpack when the next one begins.
static REPLACING: Mutex<()> = Mutex::new(());

/// Unpacking in the background. If it is dropped before it is done, the code stays as it is.
pub struct Unpacking {
    outcome: Arc<Mutex<Option<Result<PathBuf, LaunchError>>>>,
    cancelled: Arc<AtomicBool>,
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Unpacking {
    /// Starts to unpack the archive with this digest from `parts` into a folder of `state`.
    ///
    /// # Errors
    /// Where the kernel denies a thread.
    pub fn start(parts: &Path, state: &Path, digest: &str, wake: &Arc<Wake>, log: &Arc<AgentLog>) -> io::Result<Self> {
        let it = Self { outcome: Arc::default(), cancelled: Arc::default() };
        let (outcome, cancelled) = (Arc::clone(&it.outcome), Arc::clone(&it.cancelled));
        let (parts, state, digest) = (parts.to_owned(), state.to_owned(), digest.to_owned());
        let (wake, log) = (Arc::clone(wake), Arc::clone(log));
        thread::Builder::new().name("code".to_owned()).spawn(move || {
            let done = provide(&parts, &state, &digest, &cancelled, &log);
            *outcome.lock() =
                Some(done.map_err(|message| LaunchError { kind: LaunchErrorKind::CodeUnavailable, message }));
            wake.wake();
        })?;
        Ok(it)
    }

    /// The folder with the code, once it is there.
    pub fn done(&self) -> Option<Result<PathBuf, LaunchError>> {
        self.outcome.lock().clone()
    }
}

/// Returns the folder with the code, which is unpacked unless it is there already.
fn provide(
    parts: &Path,
    state: &Path,
    digest: &str,
    cancelled: &AtomicBool,
    log: &Arc<AgentLog>,
) -> Result<PathBuf, String> {
    let (folder, mark) = (state.join(FOLDER), state.join(format!("{FOLDER}.digest")));
    let replacing = REPLACING.lock();
    if folder.is_dir() && fs::read_to_string(&mark).is_ok_and(|known| known == digest) {
        return Ok(folder);
    }
    drop(replacing);
    let archive = wait_for(parts, digest, cancelled, log)?;
    let _replacing = REPLACING.lock();
    let unusable = |error: io::Error| format!("the code {digest} can't be unpacked in {}: {error}", state.display());
    // Neither a reader nor the next agent of this pod ever finds a half-unpacked folder.
    let [new, old] = ["new", "old"].map(|name| state.join(format!("{FOLDER}.{name}")));
    let replace = || {
        remove(&new)?;
        remove(&old)?;
        unpack(&archive, &new, cancelled)?;
        let _ = fs::remove_file(&mark);
        match fs::rename(&folder, &old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(&new, &folder)?,
        }
        fs::write(&mark, digest)?;
        remove(&old)
    };
    replace().map_err(unusable)?;
    Ok(folder)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn wait_for(parts: &Path, digest: &str, cancelled: &AtomicBool, log: &Arc<AgentLog>) -> Result<Vec<u8>, String> {
    let (since, mut is_said) = (Instant::now(), false);
    loop {
        let found = match read(parts, digest) {
            Ok(archive) => return Ok(archive),
            Err(found) => found,
        };
        if cancelled.load(Ordering::Relaxed) {
            return Err("the attempt was stopped before its code was there".to_owned());
        }
        if since.elapsed() >= PATIENCE {
            return Err(format!(
                "the code {digest} did not reach this pod within {} s ({found}): send it again with kubectl trainingjob \
                 restart NAME --code DIR",
                PATIENCE.as_secs()
            ));
        }
        if !is_said && since.elapsed() >= SAY_AFTER {
            log.say(format_args!("waiting for the code {digest}: {found}"));
            is_said = true;
        }
        thread::sleep(LOOK);
    }
}

/// Reads the archive with this digest, or says what is there instead. Parts of an earlier, longer archive may follow
/// it.
fn read(parts: &Path, digest: &str) -> Result<Vec<u8>, String> {
    let (mut archive, mut hash, mut found) = (Vec::new(), Sha256::new(), String::new());
    for part in 0..PARTS {
        let mut bytes = Vec::new();
        let most = u64::try_from(PART_BYTES).unwrap_or(u64::MAX).saturating_add(1);
        let file = File::open(parts.join(part_key(part)));
        match file.and_then(|file| file.take(most).read_to_end(&mut bytes)) {
            Ok(_) if bytes.len() > PART_BYTES => return Err(format!("part {part} is longer than {PART_BYTES} bytes")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error.to_string()),
        }
        hash.update(&bytes);
        archive.extend(bytes);
        let so_far = hex(&hash.clone().finalize());
        if so_far == digest {
            return Ok(archive);
        }
        found = so_far;
    }
    Err(if found.is_empty() {
        "its ConfigMap is not there yet".to_owned()
    } else {
        format!("the archive here is {found}")
    })
}

fn hex(hash: &[u8]) -> String {
    hash.iter().fold(DIGEST.to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Unpacks files and folders, and nothing else: no link leads out of the folder, and no name does. Fails once it is
/// cancelled.
fn unpack(archive: &[u8], folder: &Path, cancelled: &AtomicBool) -> io::Result<()> {
    let refused = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let go_on = || match cancelled.load(Ordering::Relaxed) {
        true => Err(io::Error::other("the attempt was stopped")),
        false => Ok(()),
    };
    fs::create_dir_all(folder)?;
    let (mut files, mut left) = (0, MAX_UNPACKED);
    // The limit is larger than the maximum, so that a longer archive is noticed.
    let mut archive = Archive::new(GzDecoder::new(archive).take(MAX_UNPACKED * 2));
    for entry in archive.entries()? {
        go_on()?;
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(refused(format!("{} leads out of the folder", name.display())));
        }
        files += 1;
        if files > MAX_FILES {
            return Err(refused(format!("it has more than {MAX_FILES} files")));
        }
        let path = folder.join(&name);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&path)?,
            EntryType::Regular => {
                left = left
                    .checked_sub(entry.size())
                    .ok_or_else(|| refused(format!("its files are larger than {MAX_UNPACKED} bytes together")))?;
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)?;
                }
                let mode = if entry.header().mode()? & 0o100 == 0 { 0o644 } else { 0o755 };
                let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
                io::copy(&mut entry, &mut file)?;
            }
            _ => return Err(refused(format!("{} is neither a file nor a folder", name.display()))),
        }
    }
    go_on()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, kind, content) in entries {
            let mut header = Header::new_gnu();
            // Names that no honest program writes.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o700);
            header.set_size(content.len() as u64);
            if *kind == EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
                header.set_size(0);
            }
            header.set_cksum();
            builder.append(&header, if *kind == EntryType::Symlink { "" } else { content }.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn digest(archive: &[u8]) -> String {
        hex(&Sha256::digest(archive))
    }

    fn write(parts: &Path, archive: &[u8], size: usize) {
        for (part, bytes) in archive.chunks(size).enumerate() {
            fs::write(parts.join(part_key(part)), bytes).unwrap();
        }
    }

    fn log() -> Arc<AgentLog> {
        AgentLog::new(Arc::new(Wake::new().unwrap()))
    }

    #[test]
    fn attempt_stopped_during_unpacking_does_not_corrupt_the_next() {
        const FILES: usize = 3000;
        let place = tempfile::tempdir().unwrap();
        let (parts, state) = (place.path().join("parts"), place.path().join("state"));
        fs::create_dir_all(&parts).unwrap();
        fs::create_dir_all(&state).unwrap();
        let names: Vec<String> = (0..FILES).map(|file| format!("part{}/{file}.py", file % 40)).collect();
        let of = |content| {
            archive(&names.iter().map(|name| (name.as_str(), EntryType::Regular, content)).collect::<Vec<_>>())
        };
        let wake = Arc::new(Wake::new().unwrap());
        let start = |code: &[u8]| {
            write(&parts, code, PART_BYTES);
            Unpacking::start(&parts, &state, &digest(code), &wake, &log()).unwrap()
        };
        let until = |what: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !what() {
                assert!(begun.elapsed() < Duration::from_secs(120));
                thread::sleep(Duration::from_millis(1));
            }
        };
        let (stopped, next) = (of("1"), of("2"));
        let first = start(&stopped);
        until(&|| state.join("code.new").exists());
        drop(first);
        let second = start(&next);
        until(&|| second.done().is_some());
        let folder = second.done().unwrap().unwrap();
        let whole = || names.iter().all(|name| fs::read_to_string(folder.join(name)).is_ok_and(|text| text == "2"));
        assert!(whole());
        assert_eq!(fs::read_to_string(state.join("code.digest")).unwrap(), digest(&next));
    }

    #[test]
    fn requested_archive_replaces_the_previous_one() {
        let place = tempfile::tempdir().unwrap();
        let (parts, state) = (place.path().join("parts"), place.path().join("state"));
        fs::create_dir_all(&parts).unwrap();
        fs::create_dir_all(&state).unwrap();
        let never = AtomicBool::new(false);
        let one = archive(&[("a/b.py", EntryType::Regular, "1"), ("old.py", EntryType::Regular, "x")]);
        write(&parts, &one, one.len().div_ceil(3));
        let folder = provide(&parts, &state, &digest(&one), &never, &log()).unwrap();
        assert_eq!(fs::read_to_string(folder.join("a/b.py")).unwrap(), "1");
        // What the program leaves there stays while the code is the same.
        fs::write(folder.join("left"), "").unwrap();
        provide(&parts, &state, &digest(&one), &never, &log()).unwrap();
        assert!(folder.join("left").exists());
        // A shorter one: a part of the longer one may still follow it.
        let other = archive(&[("a/b.py", EntryType::Regular, "2")]);
        fs::write(parts.join(part_key(0)), &other).unwrap();
        provide(&parts, &state, &digest(&other), &never, &log()).unwrap();
        assert_eq!(fs::read_to_string(folder.join("a/b.py")).unwrap(), "2");
        assert!(!folder.join("left").exists() && !folder.join("old.py").exists());
        // And no other is taken.
        let cancelled = AtomicBool::new(true);
        let missing = provide(&parts, &state, &digest(&one), &cancelled, &log()).unwrap_err();
        assert_eq!(missing, "the attempt was stopped before its code was there");
        assert_eq!(
            read(&parts, &digest(&one)).unwrap_err().split(' ').take(4).collect::<Vec<_>>().join(" "),
            "the archive here is"
        );
    }

    #[test]
    fn stopped_attempt_keeps_old_code_even_for_an_empty_archive() {
        let place = tempfile::tempdir().unwrap();
        let (parts, state) = (place.path().join("parts"), place.path().join("state"));
        fs::create_dir_all(&parts).unwrap();
        fs::create_dir_all(&state).unwrap();
        let (code, empty) = (archive(&[("a.py", EntryType::Regular, "1")]), archive(&[]));
        write(&parts, &code, PART_BYTES);
        let folder = provide(&parts, &state, &digest(&code), &AtomicBool::new(false), &log()).unwrap();
        write(&parts, &empty, PART_BYTES);
        let stopped = provide(&parts, &state, &digest(&empty), &AtomicBool::new(true), &log()).unwrap_err();
        assert!(stopped.ends_with("the attempt was stopped"), "{stopped}");
        assert_eq!(fs::read_to_string(folder.join("a.py")).unwrap(), "1");
    }

    #[test]
    fn unsafe_archive_entries_are_rejected() {
        let never = AtomicBool::new(false);
        let outside = [
            [("../x", EntryType::Regular, "1")],
            [("/tmp/x", EntryType::Regular, "1")],
            [("a/../../x", EntryType::Regular, "1")],
            [("link", EntryType::Symlink, "")],
            [("pipe", EntryType::Fifo, "")],
        ];
        for entries in outside {
            let place = tempfile::tempdir().unwrap();
            let folder = place.path().join("code");
            let error = unpack(&archive(&entries), &folder, &never).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{entries:?}: {error}");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "{entries:?}");
        }
        // The same name twice replaces nothing.
        let place = tempfile::tempdir().unwrap();
        let twice = archive(&[("a", EntryType::Regular, "1"), ("a", EntryType::Regular, "2")]);
        assert!(unpack(&twice, place.path(), &never).is_err());
    }
}
