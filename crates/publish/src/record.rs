//! The record of a result: one schema for the file beside the result, the status, and `history`.

use crate::error::PublishError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The file with the record, in the folder of the result. It is written last: a result without it is incomplete.
pub const RECORD_NAME: &str = "trainingjob-result.json";
/// The version of the schema that this program writes and reads.
pub const VERSION: u32 = 1;
/// The longest record that is read, in bytes: that of a quarter of a million files.
pub(crate) const LONGEST: u64 = 32 * 1024 * 1024;

/// What a result is, where it is, and what it was made from.
///
/// Its JSON is the manifest of the result, [`RECORD_NAME`]. Fields may be added without a new version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultRecord {
    /// The version of this schema. A reader refuses other versions.
    pub version: u32,
    /// The URI of the result's folder or branch, from which it can be fetched.
    pub uri: String,
    /// The name of the publication, which identifies the run of the job: `JOB-UID`.
    pub name: String,
    /// The revision of the content at `uri`: the commit in the hub, else `digest`. Absent in the file in the hub,
    /// because no commit contains its own hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// SHA-256 over the lines `SHA256  SIZE  PATH` of `files`, in their order: 64 hexadecimal digits. It is the same for
    /// the same files wherever they are.
    pub digest: String,
    /// Number of files, without the record.
    pub file_count: u64,
    /// Bytes of all files, without the record.
    pub bytes: u64,
    /// When the record was written, by the clock of the publisher.
    pub published: Timestamp,
    /// What the operator knows of the job.
    #[serde(flatten)]
    pub origin: Origin,
    /// The files in the order of their paths' bytes. Left out where the record has to be short.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<RecordFile>,
}

/// What a result was made from. The operator knows it, and the publisher copies it into the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The TrainingJob's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The TrainingJob's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The TrainingJob's UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The image of the workers, with its digest if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The digest of the effective spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// The last reported value of each metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// The models and data sets that the job read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub base_models: Vec<BaseModel>,
    /// The revision of the program's code, such as a git commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_revision: Option<String>,
}

/// A model or data set that a result was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BaseModel {
    /// Its URI.
    pub uri: String,
    /// The revision that the URI was resolved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// A file of a result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordFile {
    /// Its path below `uri`, with `/` between its parts.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// SHA-256 of its content: 64 hexadecimal digits.
    pub sha256: String,
}

impl ResultRecord {
    /// The record of these files. They are sorted.
    pub(crate) fn new(uri: String, name: &str, origin: &Origin, mut files: Vec<RecordFile>) -> Self {
        files.sort();
        let digest = digest(&files);
        let now = Timestamp::now();
        Self {
            version: VERSION,
            uri,
            name: name.to_owned(),
            revision: Some(digest.clone()),
            digest,
            file_count: files.len() as u64,
            bytes: files.iter().map(|file| file.size).sum(),
            published: Timestamp::from_second(now.as_second()).unwrap_or(now),
            origin: origin.clone(),
            files,
        }
    }

    /// Reads a record. `place` names it in errors.
    ///
    /// # Errors
    /// If it is no record, of another version, or its digest is not that of its files.
    pub fn parse(place: &str, json: &[u8]) -> Result<Self, PublishError> {
        let wrong = |why: String| PublishError::refused(format!("{place}: {why}; publish under another name"));
        let record: Self =
            serde_json::from_slice(json).map_err(|error| wrong(format!("not the record of a result ({error})")))?;
        if record.version != VERSION {
            return Err(wrong(format!("the record has the version {}, and {VERSION} is known", record.version)));
        }
        if record.digest != digest(&record.files) {
            return Err(wrong("the record's digest is not that of its files".to_owned()));
        }
        Ok(record)
    }

    /// The JSON of the record.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// The record without the list of files, as it fits into a status.
    #[must_use]
    pub fn without_files(&self) -> Self {
        Self { files: Vec::new(), ..self.clone() }
    }
}

/// SHA-256 over the lines of sorted files.
fn digest(files: &[RecordFile]) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(format!("{}  {}  {}\n", file.sha256, file.size, file.path));
    }
    hex(&hash.finalize())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ResultRecord {
        let file = |path: &str, size| RecordFile { path: path.to_owned(), size, sha256: hex(&Sha256::digest(path)) };
        let origin = Origin {
            job: Some("digits".to_owned()),
            namespace: Some("team-a".to_owned()),
            uid: Some("5f0e".to_owned()),
            image: Some("digits:1".to_owned()),
            spec_digest: Some("ab12".to_owned()),
            metrics: [("loss".to_owned(), 0.25)].into(),
            base_models: vec![BaseModel { uri: "hf://a/b@main".to_owned(), revision: Some("c0ffee".to_owned()) }],
            code_revision: Some("9e107d9".to_owned()),
        };
        let record = ResultRecord::new(
            "s3://b/out/digits-5f0e".to_owned(),
            "digits-5f0e",
            &origin,
            vec![file("b", 2), file("a", 1)],
        );
        ResultRecord { published: "2026-11-26T20:00:00Z".parse().unwrap(), ..record }
    }

    #[test]
    fn the_form_of_a_record_is_stable() {
        let (a, b) = (hex(&Sha256::digest("a")), hex(&Sha256::digest("b")));
        let digest = hex(&Sha256::digest(format!("{a}  1  a\n{b}  2  b\n")));
        let expected = serde_json::json!({
            "version": 1, "uri": "s3://b/out/digits-5f0e", "name": "digits-5f0e", "revision": digest, "digest": digest,
            "fileCount": 2, "bytes": 3, "published": "2026-11-26T20:00:00Z", "job": "digits", "namespace": "team-a",
            "uid": "5f0e", "image": "digits:1", "specDigest": "ab12", "metrics": {"loss": 0.25},
            "baseModels": [{"uri": "hf://a/b@main", "revision": "c0ffee"}], "codeRevision": "9e107d9",
            "files": [{"path": "a", "size": 1, "sha256": a}, {"path": "b", "size": 2, "sha256": b}],
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&record().to_json()).unwrap(), expected);
        assert_eq!(ResultRecord::parse("x", &record().to_json()).unwrap(), record());
    }

    #[test]
    fn records_with_further_fields_are_read_and_damaged_ones_refused() {
        let mut json: serde_json::Value = serde_json::from_slice(&record().to_json()).unwrap();
        json["later"] = serde_json::json!({"a": 1});
        assert_eq!(ResultRecord::parse("x", json.to_string().as_bytes()).unwrap(), record());
        json["files"][0]["size"] = 5.into();
        assert!(ResultRecord::parse("x", json.to_string().as_bytes()).unwrap_err().to_string().contains("digest"));
        json["version"] = 2.into();
        assert!(ResultRecord::parse("x", json.to_string().as_bytes()).unwrap_err().to_string().contains("version 2"));
        assert!(ResultRecord::parse("x", b"{").unwrap_err().is_final());
    }
}
