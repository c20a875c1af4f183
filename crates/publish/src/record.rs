//! Making and reading the record of a result.

use crate::error::PublishError;
use jiff::Timestamp;
use protocol::result::{Origin, RECORD_VERSION, RecordFile, ResultRecord, digest};
use std::fmt::Write;

/// The record of these files. They are sorted.
pub(crate) fn new(uri: String, name: &str, origin: &Origin, mut files: Vec<RecordFile>) -> ResultRecord {
    files.sort();
    let digest = digest(&files);
    let now = Timestamp::now();
    ResultRecord {
        version: RECORD_VERSION,
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
pub(crate) fn parse(place: &str, json: &[u8]) -> Result<ResultRecord, PublishError> {
    let wrong = |why: String| PublishError::refused(format!("{place}: {why}; publish under another name"));
    ResultRecord::parse(json).map_err(wrong)
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
    use protocol::result::BaseModel;
    use sha2::{Digest, Sha256};

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
        let record = new("s3://b/out/digits-5f0e".to_owned(), "digits-5f0e", &origin, vec![file("b", 2), file("a", 1)]);
        ResultRecord { published: "2026-11-26T20:00:00Z".parse().unwrap(), ..record }
    }

    #[test]
    fn result_record_format_is_stable() {
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
        assert_eq!(parse("x", &record().to_json()).unwrap(), record());
    }

    #[test]
    fn record_with_unknown_fields_is_read_and_damaged_one_refused() {
        let mut json: serde_json::Value = serde_json::from_slice(&record().to_json()).unwrap();
        json["later"] = serde_json::json!({"a": 1});
        assert_eq!(parse("x", json.to_string().as_bytes()).unwrap(), record());
        json["files"][0]["size"] = 5.into();
        assert!(parse("x", json.to_string().as_bytes()).unwrap_err().to_string().contains("digest"));
        json["version"] = 2.into();
        assert!(parse("x", json.to_string().as_bytes()).unwrap_err().to_string().contains("version 2"));
        assert!(parse("x", b"{").unwrap_err().is_final());
    }
}
