//! Room in a cache that has a limit: entries that no job uses are removed, the least recently used first.
//!
//! Each use of an entry replaces `CACHE/KEY/used`, before the entry is looked at. One fetcher at a time makes room, under a
//! lease like that of a content. It writes the size of its content to `CACHE/.fetching/KEY.size`, so that the next one counts
//! it before it is there. Only whole entries are removed. Entries in the making, damaged entries and foreign files stay.
//!
//! # Races
//!
//! - *An entry is used while it is being removed.* It is first renamed into `.fetching`, under a name with a digest of its
//!   `used`. If that has changed by then, the entry is renamed back. A fetcher that found the entry whole has replaced
//!   `used` before the rename, so that the change is seen.
//! - *A fetcher that makes room dies.* The next one finds the renamed entries, and treats each of them in the same way.
//! - *A job has found its entry, and its status does not say so yet.* Entries that were used within the last hour stay.
//!   If the list of uses is older, entries that were used since stay as well. All times of files are those of the
//!   cache's own clock.

use crate::cache::{Cache, is_missing};
use crate::error::{FetchError, FetchErrorKind};
use crate::lease::unique;
use crate::names::hex;
use checkpoint::folder::Folder;
use checkpoint::wording::bytes;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

/// The key of the lease under which room is made. No content has it.
pub(crate) const LEASE: &str = "room";
/// The file of an entry that each use replaces.
const USED: &str = "used";
/// Maximum length of that file, in bytes. A longer one is cut.
const LONGEST: u64 = 256;
/// An entry that was used more recently than this stays: its job may not have said so yet.
const RECENT: Duration = Duration::from_secs(3600);
/// Number of entries that an error names.
const NAMED: usize = 3;

/// How much a cache may hold, and what of it must stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of all entries together.
    pub bytes: u64,
    /// Keys of the entries that jobs use, each with the name of a job. Without it nothing is removed.
    pub used: Option<BTreeMap<String, String>>,
    /// How old that list is.
    pub age: Duration,
}

/// An entry that might be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    key: String,
    address: String,
    bytes: u64,
    /// Since its last use.
    age: Duration,
    /// Whether a fetcher has its lease.
    is_leased: bool,
}

/// Why an entry stays.
fn stays(entry: &Candidate, limit: &Limit) -> Option<String> {
    let Some(used) = &limit.used else { return Some("it is not known whether a job uses it".to_owned()) };
    if let Some(job) = used.get(&entry.key) {
        return Some(format!("job {job} uses it"));
    }
    if entry.is_leased {
        return Some("a fetcher checks it".to_owned());
    }
    (entry.age < limit.age.saturating_add(RECENT)).then(|| "it was used recently".to_owned())
}

/// The keys of the entries to remove so that `missing` bytes become free. If that is not possible, none is removed, and the
/// entries that stay are returned with the reasons.
fn choose(mut entries: Vec<Candidate>, missing: u64, limit: &Limit) -> Result<Vec<String>, Vec<(Candidate, String)>> {
    entries.sort_by(|a, b| (b.age, &a.key).cmp(&(a.age, &b.key)));
    let (mut free, mut chosen, mut kept) = (0_u64, Vec::new(), Vec::new());
    for entry in entries {
        match stays(&entry, limit) {
            Some(why) => kept.push((entry, why)),
            None if free < missing => {
                free = free.saturating_add(entry.bytes);
                chosen.push(entry.key);
            }
            None => {}
        }
    }
    if free >= missing { Ok(chosen) } else { Err(kept) }
}

impl Cache {
    /// Notes that the entry of a key is used. To be called before the entry is read.
    pub(crate) fn touch(&self, key: &str) {
        let written = self.root.folder(key).and_then(|entry| {
            let mut file = entry.writable(USED)?;
            file.set_len(0)?;
            file.write_all(unique().as_bytes())?;
            file.sync_all()
        });
        // The entry is not there, or belongs to another user. The list of uses protects it then.
        drop(written);
    }

    /// Makes room for `needed` bytes of the content `key`, under the lease [`LEASE`]. Returns the keys of the removed
    /// entries.
    ///
    /// # Errors
    /// If that is not possible: with the limit, the entries that stay, and the remedy.
    pub(crate) fn make_room(&self, key: &str, needed: u64, limit: &Limit) -> Result<Vec<String>, FetchError> {
        let failed = |error: io::Error| FetchError::local(&self.path, &error);
        let place = self.path.display();
        if needed > limit.bytes {
            return Err(FetchError::refused(format!(
                "{place}: the content has {}, and cache.limit is {}; create the job again with a larger cache.limit",
                bytes(needed),
                bytes(limit.bytes)
            )));
        }
        let names = self.fetching.names().map_err(failed)?;
        names.iter().try_for_each(|name| self.finish(name)).map_err(failed)?;
        let entries = self.candidates(&names).map_err(failed)?;
        let held = entries.iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.bytes));
        let coming = self.in_the_making(key, &names, &entries).map_err(failed)?;
        let wanted = held.saturating_add(coming).saturating_add(needed);
        let missing = wanted.saturating_sub(limit.bytes);
        let count = entries.len();
        let chosen = choose(entries, missing, limit).map_err(|kept| {
            let mut named: Vec<String> = kept
                .iter()
                .take(NAMED)
                .map(|(entry, why)| format!("{} ({}): {why}", text::one_line(&entry.address), bytes(entry.bytes)))
                .collect();
            named.extend((kept.len() > NAMED).then(|| format!("and {} more", kept.len() - NAMED)));
            FetchError::new(
                FetchErrorKind::Local,
                format!(
                    "{place}: {} do not fit into cache.limit ({}), of which {} entries hold {} and fetches that are under \
                     way {}; what stays: {}; wait until a job ends, delete one, or create the job again with a larger \
                     cache.limit",
                    bytes(needed),
                    bytes(limit.bytes),
                    count,
                    bytes(held),
                    bytes(coming),
                    if named.is_empty() { "nothing".to_owned() } else { named.join("; ") }
                ),
            )
        })?;
        for key in &chosen {
            self.remove_entry(key).map_err(failed)?;
        }
        // The next one counts what is still to come.
        let name = size_name(key);
        let written = self.fetching.writable(&name).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(needed.to_string().as_bytes())?;
            file.sync_all()
        });
        written.map_err(failed)?;
        Ok(chosen)
    }

    /// Removes the noted size of a content that is there, or is no longer fetched.
    pub(crate) fn forget_size(&self, key: &str) {
        // Without its content it does not count, and the next fetcher that makes room removes it.
        drop(self.fetching.remove(&size_name(key)));
    }

    /// The whole entries. Nothing else in the folder is read.
    fn candidates(&self, fetching: &[String]) -> io::Result<Vec<Candidate>> {
        let now = self.now()?;
        let mut found = Vec::new();
        for key in self.root.names()?.into_iter().filter(|name| is_key(name)) {
            let Some(entry) = self.entry(&key) else { continue };
            let folder = match self.root.folder(&key) {
                Ok(folder) => folder,
                Err(error) if is_missing(&error) => continue,
                Err(error) => return Err(error),
            };
            let used = [modified(&folder, USED), modified(&folder, crate::cache::MARKER)].into_iter().flatten().max();
            let age = used.map_or(Duration::ZERO, |used| now.duration_since(used).unwrap_or_default());
            let prefix = format!("{key}.lease.");
            let is_leased = fetching.iter().any(|name| name.starts_with(&prefix));
            found.push(Candidate { key, address: entry.address, bytes: entry.bytes, age, is_leased });
        }
        Ok(found)
    }

    /// Now, by the clock that gives files their times.
    fn now(&self) -> io::Result<SystemTime> {
        let name = format!("now.{}", unique());
        let now = self.fetching.writable(&name).and_then(|mut file| {
            file.write_all(b"\n")?;
            file.sync_all()?;
            file.metadata()?.modified()
        });
        self.fetching.remove(&name)?;
        now
    }

    /// Bytes of other contents that have yet to be complete. Notes of contents without a fetch are removed.
    fn in_the_making(&self, own: &str, names: &[String], entries: &[Candidate]) -> io::Result<u64> {
        let there: BTreeSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let mut sum = 0_u64;
        for name in names {
            let Some(key) = name.strip_suffix(SIZE).filter(|key| is_key(key) && *key != own) else { continue };
            let (lease, work) = (format!("{key}.lease."), format!("{key}.work."));
            let is_fetched = names.iter().any(|name| name.starts_with(&lease) || name.starts_with(&work));
            if !is_fetched || there.contains(key) {
                self.fetching.remove(name)?;
                continue;
            }
            let mut text = String::new();
            match self.fetching.file(name).and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
                Ok(_) => sum = sum.saturating_add(text.parse().unwrap_or(0)),
                Err(error) if is_missing(&error) || error.kind() == io::ErrorKind::InvalidData => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }

    /// Takes an entry out of its place and removes it, unless it has been used meanwhile.
    fn remove_entry(&self, key: &str) -> io::Result<()> {
        let folder = match self.root.folder(key) {
            Ok(folder) => folder,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let name = format!("{key}{EVICTED}{}", digest_of_use(&folder)?);
        match self.root.rename(key, &self.fetching, &name) {
            Ok(()) => self.finish(&name),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finishes the removal of an entry that was renamed. Any other name is left alone.
    fn finish(&self, name: &str) -> io::Result<()> {
        let Some((key, digest)) = name.split_once(EVICTED).filter(|(key, _)| is_key(key)) else { return Ok(()) };
        let folder = match self.fetching.folder(name) {
            Ok(folder) => folder,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Without its marker its removal had begun.
        let is_whole = modified(&folder, crate::cache::MARKER).is_some();
        if is_whole && digest_of_use(&folder)? != digest && self.root.folder(key).is_err() {
            return self.fetching.rename(name, &self.root, key);
        }
        folder.remove(crate::cache::MARKER)?;
        self.fetching.remove(name)
    }
}

const SIZE: &str = ".size";
const EVICTED: &str = ".evicted.";

fn size_name(key: &str) -> String {
    format!("{key}{SIZE}")
}

/// Whether a name is one that entries have.
fn is_key(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn modified(folder: &Folder, name: &str) -> Option<SystemTime> {
    folder.file(name).and_then(|file| file.metadata()?.modified()).ok()
}

/// A digest of what the last use has left.
fn digest_of_use(folder: &Folder) -> io::Result<String> {
    let mut content = Vec::new();
    match folder.file(USED).and_then(|file| file.take(LONGEST).read_to_end(&mut content)) {
        Ok(_) => {}
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(hex(&Sha256::digest(&content)[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::LeaseTimes;
    use serde_json::json;
    use std::fs::{self, File};

    const HOUR: u64 = 3600;

    fn candidate(key: &str, bytes: u64, hours: u64) -> Candidate {
        let age = Duration::from_secs(hours * HOUR);
        Candidate { key: key.to_owned(), address: format!("hf://a/{key}"), bytes, age, is_leased: false }
    }

    fn limit(used: &[(&str, &str)]) -> Limit {
        let used = used.iter().map(|(key, job)| ((*key).to_owned(), (*job).to_owned())).collect();
        Limit { bytes: 100, used: Some(used), age: Duration::ZERO }
    }

    #[test]
    fn least_recently_used_entries_are_evicted_only_as_needed() {
        let entries = [candidate("new", 10, 2), candidate("old", 10, 9), candidate("middle", 10, 5)];
        let chosen = |missing| choose(entries.to_vec(), missing, &limit(&[])).map_err(|kept| kept.len());
        assert_eq!(chosen(0), Ok(vec![]));
        assert_eq!(chosen(1), Ok(vec!["old".to_owned()]));
        assert_eq!(chosen(11), Ok(vec!["old".to_owned(), "middle".to_owned()]));
        assert_eq!(chosen(31), Err(0), "too much for all of them together");
    }

    #[test]
    fn entries_a_job_may_use_are_not_evicted() {
        let leased = Candidate { is_leased: true, ..candidate("leased", 10, 9) };
        let entries = [candidate("used", 10, 9), leased, candidate("recent", 10, 0), candidate("free", 10, 2)];
        let limit = limit(&[("used", "train")]);
        assert_eq!(choose(entries.to_vec(), 10, &limit), Ok(vec!["free".to_owned()]));
        let kept = choose(entries.to_vec(), 11, &limit).unwrap_err();
        let why: Vec<&str> = kept.iter().map(|(_, why)| why.as_str()).collect();
        assert_eq!(why, ["a fetcher checks it", "job train uses it", "it was used recently"]);
        // A list that is 2 h old says nothing about a job that began an hour ago.
        let old = Limit { age: Duration::from_secs(2 * HOUR), ..limit.clone() };
        assert!(choose(entries.to_vec(), 10, &old).is_err());
        let unknown = Limit { used: None, ..limit };
        assert_eq!(choose(entries.to_vec(), 1, &unknown).unwrap_err().len(), 4);
    }

    struct Room {
        folder: tempfile::TempDir,
        cache: Cache,
    }

    impl Room {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let cache = Cache::open(folder.path(), LeaseTimes::default()).unwrap();
            Self { folder, cache }
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// An entry of 40 bytes that was last used so many hours ago: its key.
        fn entry(&self, digit: char, hours: u64) -> String {
            let key = digit.to_string().repeat(32);
            let marker = json!({
                "version": 1, "address": format!("hf://a/{digit}"), "revision": "r", "files": 1, "bytes": 40,
                "filesSha256": "", "fetched": "2026-01-01T00:00:00Z", "fetcher": "f",
            });
            self.write(&format!("{key}/data/x"), "content");
            self.write(&format!("{key}/entry.json"), &marker.to_string());
            self.write(&format!("{key}/used"), "first use");
            for file in ["entry.json", "used"] {
                let file = File::options().write(true).open(self.folder.path().join(&key).join(file)).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(hours * HOUR)).unwrap();
            }
            key
        }

        fn has(&self, path: &str) -> bool {
            fs::symlink_metadata(self.folder.path().join(path)).is_ok()
        }
    }

    #[test]
    fn entries_are_evicted_to_fit_new_content() {
        let room = Room::new();
        let [old, new] = [room.entry('a', 9), room.entry('b', 5)];
        let own = "c".repeat(32);
        assert_eq!(room.cache.make_room(&own, 20, &limit(&[])).unwrap(), [""; 0], "it fits");
        assert_eq!(room.cache.make_room(&own, 21, &limit(&[])).unwrap(), [old.as_str()]);
        assert!(!room.has(&old) && room.has(&new));
        assert!(!room.has(&format!(".fetching/{old}")), "nothing of it is left");
        let error = room.cache.make_room(&own, 101, &limit(&[])).unwrap_err();
        assert!(error.is_final() && error.to_string().contains("cache.limit is 100 B"), "{error}");
        let error = room.cache.make_room(&own, 61, &limit(&[(&new, "train")])).unwrap_err();
        assert!(!error.is_final(), "{error}");
        for part in ["cache.limit (100 B)", "hf://a/b (40 B): job train uses it", "delete one"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert!(room.has(&new));
    }

    /// Anything that is not a whole entry of this cache stays, whatever its name.
    #[test]
    fn foreign_and_unfinished_files_are_not_evicted() {
        let room = Room::new();
        let outside = tempfile::tempdir().unwrap();
        let key = |digit: char| digit.to_string().repeat(32);
        fs::write(
            outside.path().join("entry.json"),
            fs::read(room.folder.path().join(room.entry('a', 9)).join("entry.json")).unwrap(),
        )
        .unwrap();
        room.write("notes.txt", "foreign");
        room.write("datasets/entry.json", "{}");
        room.write(&key('1'), "a file with the name of a key");
        room.write(&format!("{}/data/x", key('2')), "without its marker");
        room.write(&format!("{}/entry.json", key('3')), "{ damaged");
        room.write(&format!("{}/entry.json", key('4')), r#"{"version":99,"bytes":1}"#);
        std::os::unix::fs::symlink(outside.path(), room.folder.path().join(key('5'))).unwrap();
        room.write(&format!(".damaged/{}.x/entry.json", key('6')), "{}");
        room.write(&format!(".fetching/{}.work.1.x/data/x", key('7')), "in the making");
        room.write(&format!(".fetching/{}.evicted", key('8')), "no name of ours");
        let leased = room.entry('9', 9);
        room.write(&format!(".fetching/{leased}.lease.1"), "holder");
        room.cache.make_room(&key('c'), 60, &limit(&[])).unwrap();
        assert!(!room.has(&key('a')), "the only one that could go");
        for path in ["notes.txt", "datasets/entry.json", &leased] {
            assert!(room.has(path), "{path}");
        }
        for digit in '1'..='5' {
            assert!(room.has(&key(digit)), "{digit}");
        }
        assert!(outside.path().join("entry.json").exists());
        assert!(room.has(&format!(".damaged/{}.x/entry.json", key('6'))));
        assert!(room.has(&format!(".fetching/{}.work.1.x/data/x", key('7'))));
        assert!(room.has(&format!(".fetching/{}.evicted", key('8'))));
    }

    #[test]
    fn entry_used_during_eviction_is_restored() {
        let room = Room::new();
        let key = room.entry('a', 9);
        let digest = digest_of_use(&room.cache.root.folder(&key).unwrap()).unwrap();
        // Another fetcher had chosen it, and died after it was renamed.
        let name = format!("{key}.evicted.{digest}");
        room.cache.touch(&key);
        fs::rename(room.folder.path().join(&key), room.folder.path().join(".fetching").join(&name)).unwrap();
        room.cache.make_room(&"c".repeat(32), 1, &limit(&[])).unwrap();
        assert!(room.has(&format!("{key}/data/x")) && !room.has(&format!(".fetching/{name}")));

        let digest = digest_of_use(&room.cache.root.folder(&key).unwrap()).unwrap();
        let name = format!("{key}.evicted.{digest}");
        fs::rename(room.folder.path().join(&key), room.folder.path().join(".fetching").join(&name)).unwrap();
        room.cache.touch(&key);
        room.cache.make_room(&"c".repeat(32), 1, &limit(&[])).unwrap();
        assert!(!room.has(&key) && !room.has(&format!(".fetching/{name}")), "nobody has used it since");
    }

    #[test]
    fn content_being_fetched_counts_toward_the_limit() {
        let room = Room::new();
        let (other, stale, own) = ("d".repeat(32), "e".repeat(32), "c".repeat(32));
        room.write(&format!(".fetching/{other}.size"), "70");
        room.write(&format!(".fetching/{other}.lease.1"), "holder");
        room.write(&format!(".fetching/{stale}.size"), "70");
        room.cache.make_room(&own, 30, &limit(&[])).unwrap();
        assert!(!room.has(&format!(".fetching/{stale}.size")), "no fetch has it any more");
        let error = room.cache.make_room(&own, 31, &limit(&[])).unwrap_err();
        assert!(error.to_string().contains("under way 70 B"), "{error}");
        // What is not known yet is none.
        room.write(&format!(".fetching/{other}.size"), "many");
        room.cache.make_room(&own, 100, &limit(&[])).unwrap();
        room.cache.forget_size(&own);
        assert!(!room.has(&format!(".fetching/{own}.size")));
    }
}
