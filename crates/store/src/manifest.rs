//! A checkpoint exists in a store if its manifest does.

use crate::error::StoreError;
use crate::names;
use checkpoint::files::Member;
use checkpoint::found::{Age, Depth, Format, FoundCheckpoint, Verdict};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Last name of the path for files that lie beside the checkpoints of a folder and belong to none.
pub(crate) const BESIDE: &str = ".beside";
/// The only version that there is.
const VERSION: u32 = 1;
/// Maximum bytes of a manifest. A longer one would have a quarter of a million files.
pub(crate) const LONGEST: u64 = crate::transport::LONGEST_ANSWER;

/// Where a checkpoint's files lie relative to its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Layout {
    /// The path is a folder, and they are in it.
    Folder,
    /// The path is a file, or the beginning of the names of several: they are in its folder.
    Beside,
}

/// A file of a checkpoint, in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredFile {
    /// Relative to the checkpoint (beside it: to its folder), with `/` between its parts.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// CRC-32C of its content.
    #[serde(with = "hex")]
    pub crc32c: u32,
    /// Where it is, relative to the store's prefix.
    pub key: String,
    /// When it was last written at its origin, in nanoseconds since 1970.
    pub modified: i64,
}

/// A checkpoint in a store: its description and its files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of this form.
    pub version: u32,
    /// As in [`FoundCheckpoint`]: relative to the root of its origin.
    pub path: String,
    /// Where its files lie relative to its path.
    pub layout: Layout,
    /// How often the content of this path has been replaced.
    pub generation: u32,
    /// Format in which it was written.
    pub format: Format,
    /// Optimiser steps done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Epochs done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// What the program measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Other checkpoints that the program will load, as in [`FoundCheckpoint`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Why earlier damage may be undetected, if it may. Then it is complete, otherwise valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<String>,
    /// When the last of its files was written at its origin.
    pub modified: Timestamp,
    /// Its place in the order of writing, as in [`FoundCheckpoint`]; 0 if that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub order: u64,
    /// The earliest possible place, as in [`FoundCheckpoint`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub earliest: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When it was whole in the store, by the uploader's clock.
    pub stored: Timestamp,
    /// The writer that put it there.
    pub writer: String,
    /// Space of its writer, if that found other writers below the prefix. It separates its objects from theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Differs for other content at the same path. For a sharded checkpoint it is the round.
    pub identity: String,
    /// Its files, sorted by path.
    pub files: Vec<StoredFile>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Manifest {
    /// The manifest without its files, for reading many at once.
    pub(crate) fn head(self) -> Self {
        Self { files: Vec::new(), ..self }
    }

    /// Where the manifest of `path` is in a writer's space, relative to the prefix.
    pub(crate) fn key_of(path: &str, space: Option<&str>) -> String {
        let ours = address::key::OURS;
        match path.strip_suffix(BESIDE).map(|folder| folder.trim_end_matches('/')) {
            Some(folder) => format!("{ours}/beside/{}.json", names::in_space(&names::escape(folder), space)),
            None => format!("{ours}/{}.json", names::in_space(&names::escape(path), space)),
        }
    }

    /// Key of this manifest.
    pub(crate) fn own_key(&self) -> String {
        Self::key_of(&self.path, self.space.as_deref())
    }

    /// Key of its note while its data is removed.
    pub(crate) fn tombstone(&self) -> String {
        let name = names::in_space(&names::escape(&self.path), self.space.as_deref());
        format!("{}/{name}~{}.json", Self::tombstone_folder(), self.generation)
    }

    /// The folder of tombstones.
    pub(crate) fn tombstone_folder() -> String {
        format!("{}/removed", address::key::OURS)
    }

    pub(crate) fn part_key(path: &str, space: Option<&str>, worker: u32) -> String {
        format!("{}/{}/{worker}.json", Self::parts(), names::in_space(&names::escape(path), space))
    }

    /// The folder of the parts that single workers have sent.
    pub(crate) fn parts() -> String {
        format!("{}/parts", address::key::OURS)
    }

    pub fn to_json(&self) -> Vec<u8> {
        // Nothing in it can fail to be written: text keys and finite or null numbers.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a manifest that any program may have written.
    ///
    /// # Errors
    /// If it is not a manifest, or its paths lead out of its folder.
    pub fn read(uri: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        match Self::read_part(uri, bytes)? {
            manifest if manifest.files.is_empty() => Err(StoreError::corrupted(format!("{uri}: it has no files"))),
            manifest => Ok(manifest),
        }
    }

    /// Reads one worker's part of a checkpoint, which may be empty.
    ///
    /// # Errors
    /// If it is not a manifest, or its paths lead out of its folder.
    pub fn read_part(uri: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| StoreError::corrupted(format!("{uri}: not a manifest of a checkpoint: {error}")))?;
        match manifest.fault() {
            Some(why) => Err(StoreError::corrupted(format!("{uri}: {why}"))),
            None => Ok(manifest),
        }
    }

    /// Why the manifest can't be used, if it can't.
    fn fault(&self) -> Option<String> {
        if self.version != VERSION {
            return Some(format!("its version is {}, and only {VERSION} is known: use a newer operator", self.version));
        }
        if let Err(why) = check_path(&self.path) {
            return Some(format!("the checkpoint's path {why}"));
        }
        if self.space.as_ref().is_some_and(|space| !names::is_space(space)) {
            return Some("the space of its writer is none".to_owned());
        }
        let mut seen = BTreeSet::new();
        let mut total = 0_u64;
        for file in &self.files {
            let name = file.path.escape_debug();
            if let Err(why) = address::key::check(&file.path) {
                return Some(format!("the path of the file {name} {why}"));
            }
            if let Err(why) = check_path(&file.key) {
                return Some(format!("the key of the file {name} {why}"));
            }
            if self.layout == Layout::Beside && (file.path.contains('/') || file.path == address::key::OURS) {
                return Some(format!("the file {name} is not beside its checkpoint"));
            }
            if !seen.insert(file.path.as_str()) {
                return Some(format!("the file {name} is in it twice"));
            }
            let Some(sum) = total.checked_add(file.size) else {
                return Some("its sizes are absurd".to_owned());
            };
            total = sum;
        }
        // A file can't be a folder of another.
        let nested = seen.iter().find(|path| path.match_indices('/').any(|(at, _)| seen.contains(&path[..at])));
        if let Some(path) = nested {
            return Some(format!("the file {} lies in another file", path.escape_debug()));
        }
        (total != self.bytes).then(|| format!("its files have {total} bytes and not {}", self.bytes))
    }

    /// The checkpoint as the inventory would report it if it had found it whole.
    #[must_use]
    pub fn found(&self) -> FoundCheckpoint {
        let member = |file: &StoredFile| Member { path: file.path.clone(), size: file.size, modified: file.modified };
        FoundCheckpoint {
            path: self.path.clone(),
            folder: self.layout == Layout::Folder,
            format: self.format,
            step: self.step,
            epoch: self.epoch,
            metrics: self.metrics.clone(),
            bytes: self.bytes,
            modified: self.modified,
            order: self.order,
            earliest: self.earliest,
            verdict: self.unseen.clone().map_or(Verdict::Valid, |why| Verdict::Complete { why }),
            depth: Depth::Content,
            members: self.files.iter().map(member).collect(),
            needs: self.needs.clone(),
        }
    }

    /// Newer checkpoints compare greater, as in [`FoundCheckpoint::newer`].
    #[must_use]
    pub fn newer(&self, other: &Self) -> Ordering {
        self.age().newer(&other.age())
    }

    fn age(&self) -> Age<'_> {
        Age { order: self.order, step: self.step, epoch: self.epoch, modified: self.modified, path: &self.path }
    }
}

/// The folder of a checkpoint's files, relative to the root.
pub(crate) fn folder(path: &str, layout: Layout) -> &str {
    match layout {
        Layout::Folder => path,
        Layout::Beside => path.rsplit_once('/').map_or("", |(folder, _)| folder),
    }
}

/// Checks the path of a checkpoint, which must not lead to this crate's own files either.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    address::key::check(path)?;
    if path.split('/').next() == Some(address::key::OURS) {
        Err(format!("leads into {}", address::key::OURS))
    } else {
        Ok(())
    }
}

/// The key of a file of the `generation`th content at `path` in a writer's space.
pub(crate) fn key(path: &str, layout: Layout, file: &str, generation: u32, space: Option<&str>) -> String {
    let of = |path: &str| names::of_generation(&names::in_space(path, space), generation);
    match (layout, folder(path, layout)) {
        _ if path.ends_with(BESIDE) => format!("{}/{file}", of(path)),
        (Layout::Folder, _) => format!("{}/{file}", of(path)),
        (Layout::Beside, "") => of(file),
        (Layout::Beside, folder) => of(&format!("{folder}/{file}")),
    }
}

/// Whether content at the path of `found` can have this key, in that space. A journal is no reason to touch any other
/// key.
pub(crate) fn belongs(key: &str, found: &FoundCheckpoint, layout: Layout, space: Option<&str>) -> bool {
    let is_of = |base: &str, key: &str| {
        let base = names::in_space(base, space);
        let generation = |rest: &str| rest.strip_prefix('~').is_some_and(|rest| rest.parse::<u32>().is_ok());
        key.strip_prefix(&base).is_some_and(|rest| rest.is_empty() || generation(rest))
    };
    if check_path(key).is_err() {
        return false;
    }
    if layout == Layout::Folder || found.path.ends_with(BESIDE) {
        return key.match_indices('/').any(|(at, _)| is_of(&found.path, &key[..at]));
    }
    let folder = folder(&found.path, layout);
    let here =
        if folder.is_empty() { Some(key) } else { key.strip_prefix(folder).and_then(|key| key.strip_prefix('/')) };
    here.is_some_and(|here| found.members.iter().any(|member| is_of(&member.path, here)))
}

/// A value that differs if a checkpoint's content does, from the names, lengths and times of its files.
pub(crate) fn identity(found: &FoundCheckpoint) -> String {
    let lines: Vec<String> =
        found.members.iter().map(|member| format!("{} {} {}", member.size, member.modified, member.path)).collect();
    names::digest(std::iter::once(found.path.as_str()).chain(lines.iter().map(String::as_str)))
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:08x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 8 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(serde::de::Error::custom("a CRC-32C has eight hexadecimal digits"));
        }
        u32::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn manifest(path: &str, files: &[(&str, u64)]) -> Manifest {
        let layout = Layout::Folder;
        let stored = |(file, size): &(&str, u64)| StoredFile {
            path: (*file).to_owned(),
            size: *size,
            crc32c: 0x0bad_cafe,
            key: key(path, layout, file, 0, None),
            modified: 1,
        };
        Manifest {
            version: VERSION,
            path: path.to_owned(),
            layout,
            generation: 0,
            format: Format::HuggingFace,
            step: Some(500),
            epoch: Some(1.5),
            metrics: BTreeMap::from([("eval_loss".to_owned(), 0.25)]),
            needs: Vec::new(),
            unseen: None,
            modified: Timestamp::UNIX_EPOCH,
            order: 0,
            earliest: 0,
            bytes: files.iter().map(|(_, size)| size).sum(),
            stored: Timestamp::UNIX_EPOCH,
            writer: "worker 0".to_owned(),
            space: None,
            identity: "x".to_owned(),
            files: files.iter().map(stored).collect(),
        }
    }

    #[test]
    fn manifest_round_trips_through_json() {
        let written = manifest("runs/checkpoint-500", &[("a", 1), ("b/c", 2)]);
        assert_eq!(Manifest::read("s3://b", &written.to_json()).unwrap(), written);
        assert_eq!(written.found().verdict, Verdict::Valid);
        let unseen = Manifest { unseen: Some("no checksum".to_owned()), ..written.clone() };
        assert_eq!(Manifest::read("s3://b", &unseen.to_json()).unwrap(), unseen);
        assert_eq!(unseen.found().verdict, Verdict::Complete { why: "no checksum".to_owned() });
        assert!(String::from_utf8(written.to_json()).unwrap().contains(r#""crc32c":"0badcafe""#));
    }

    #[test]
    fn hostile_manifest_is_refused() {
        for (why, change) in [
            ("absolute", (|m| m.files[0].path = "/etc/passwd".to_owned()) as fn(&mut Manifest)),
            ("..", |m| m.files[0].path = "../../x".to_owned()),
            ("..", |m| m.files[0].key = "../other/secret".to_owned()),
            ("leads into", |m| m.files[0].key = ".trainingjob/x.json".to_owned()),
            ("..", |m| m.path = "a/../../b".to_owned()),
            ("leads into", |m| m.path = ".trainingjob/a".to_owned()),
            ("twice", |m| m.files[1].path = m.files[0].path.clone()),
            ("lies in another file", |m| m.files[0].path = "b".to_owned()),
            ("not beside", |m| m.layout = Layout::Beside),
            ("absurd", |m| {
                m.files[0].size = u64::MAX;
                m.files[1].size = u64::MAX;
            }),
            ("bytes and not", |m| m.bytes += 1),
            ("no files", |m| (m.files, m.bytes) = (Vec::new(), 0)),
            ("newer operator", |m| m.version = 2),
            ("control", |m| m.files[0].path = "a\u{1b}[2J".to_owned()),
        ] {
            let mut hostile = manifest("x", &[("a", 1), ("b/c", 2)]);
            change(&mut hostile);
            let reported = Manifest::read("s3://b/m.json", &hostile.to_json()).unwrap_err().to_string();
            assert!(reported.contains(why) && !reported.contains('\u{1b}'), "{why}: {reported}");
        }
        // One worker's part of a checkpoint may be empty.
        assert!(Manifest::read_part("s3://b/m.json", &manifest("x", &[]).to_json()).is_ok());
        for bytes in [&b""[..], b"{}", b"[[[[", b"\xff\xfe", b"null"] {
            assert!(Manifest::read("s3://b/m.json", bytes).is_err());
        }
    }

    #[test]
    fn object_keys_follow_checkpoint_layout() {
        assert_eq!(key("runs/checkpoint-5", Layout::Folder, "a/b", 0, None), "runs/checkpoint-5/a/b");
        assert_eq!(key("runs/checkpoint-5", Layout::Folder, "a/b", 1, None), "runs/checkpoint-5~1/a/b");
        assert_eq!(key("last.ckpt", Layout::Beside, "last.ckpt", 0, None), "last.ckpt");
        assert_eq!(key("runs/last.ckpt", Layout::Beside, "last.ckpt", 3, None), "runs/last.ckpt~3");
        assert_eq!(key("tf/model-7", Layout::Beside, "model-7.index", 0, None), "tf/model-7.index");
        assert_eq!(key("run/x", Layout::Folder, "a", 1, Some("0a1b2c3d")), "run/x~0a1b2c3d~1/a");
    }

    #[test]
    fn journal_accepts_only_its_own_keys() {
        let found = manifest("run/step-5", &[("a", 1)]).found();
        for (key, layout, space, expected) in [
            ("run/step-5/a", Layout::Folder, None, true),
            ("run/step-5~3/deep/er", Layout::Folder, None, true),
            ("run/step-50/a", Layout::Folder, None, false),
            ("run/step-5", Layout::Folder, None, false),
            ("run/step-5~x/a", Layout::Folder, None, false),
            ("run/step-5/a", Layout::Folder, Some("0a1b2c3d"), false),
            ("run/step-5~0a1b2c3d/a", Layout::Folder, Some("0a1b2c3d"), true),
            (".trainingjob/step-5.json", Layout::Folder, None, false),
            ("run/step-5/../../x", Layout::Folder, None, false),
            ("run/a", Layout::Beside, None, true),
            ("run/a~2", Layout::Beside, None, true),
            ("run/b", Layout::Beside, None, false),
            ("a", Layout::Beside, None, false),
        ] {
            assert_eq!(belongs(key, &found, layout, space), expected, "{key} {space:?}");
        }
    }
}
