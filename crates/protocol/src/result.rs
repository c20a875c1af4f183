//! The result of a job: its record, the request to publish it, and the report.

use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file with the record, in the folder of the result. It is written last, and a result without it is incomplete.
pub const RECORD_NAME: &str = "trainingjob-result.json";
/// Maximum bytes of a record that is read. That is enough for a quarter of a million files.
pub const LONGEST_RECORD: u64 = 32 * 1024 * 1024;
/// The version of the record's schema that this version writes and reads.
pub const RECORD_VERSION: u32 = 1;

/// What a result is, where it is, and what it was made from.
///
/// Its JSON is the manifest of the result, [`RECORD_NAME`]. Fields may be added without a new version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResultRecord {
    /// Version of this schema. A reader refuses other versions.
    pub version: u32,
    /// URI of the result's folder or branch, from which it can be fetched.
    pub uri: String,
    /// Name of the publication, which identifies the run of the job: `JOB-UID`.
    pub name: String,
    /// Revision of the content at `uri`: the commit in the hub, else `digest`.
    /// It is absent in the file in the hub, because no commit contains its own hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// SHA-256 over the lines `SHA256  SIZE  PATH` of the files, in the order of their paths: 64 hexadecimal digits.
    /// It is the same for the same files wherever they are.
    pub digest: String,
    /// Number of files, without the record.
    pub file_count: u64,
    /// Size of all files in bytes, without the record.
    pub bytes: u64,
    /// Time at which the record was written, by the clock of the publisher.
    #[cfg_attr(feature = "schema", schemars(schema_with = "date_time"))]
    pub published: Timestamp,
    #[serde(flatten)]
    pub origin: Origin,
    /// Files in the order of their paths' bytes. The status does not have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub files: Vec<RecordFile>,
}

#[cfg(feature = "schema")]
fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "format": "date-time" })
}

/// What a result was made from. The operator knows it, and the publisher copies it into the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Name of the TrainingJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Namespace of the TrainingJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// UID of the TrainingJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Image of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Digest of the effective spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Last reported value of each metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Models and data sets that the job read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub base_models: Vec<BaseModel>,
    /// Revision of the program's code, such as a git commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_revision: Option<String>,
}

/// A model or data set that a result was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BaseModel {
    /// URI of the content, or its name.
    pub uri: String,
    /// Revision that the URI was resolved to.
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

/// SHA-256 over the lines of sorted files: [`ResultRecord::digest`].
#[must_use]
pub fn digest(files: &[RecordFile]) -> String {
    let mut hash = Context::new(&SHA256);
    for file in files {
        hash.update(format!("{}  {}  {}\n", file.sha256, file.size, file.path).as_bytes());
    }
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ResultRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// If it is not a record, has another version, or its digest does not match its files.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let record: Self =
            serde_json::from_slice(json).map_err(|error| format!("not the record of a result ({error})"))?;
        if record.version != RECORD_VERSION {
            return Err(format!("the record has the version {}, and {RECORD_VERSION} is known", record.version));
        }
        if record.digest != digest(&record.files) {
            return Err("the record's digest is not that of its files".to_owned());
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

/// What is published, as an argument of `agent outputs`.
///
/// An agent that is older than the operator ignores unknown fields. It contains no credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishRequest {
    /// Folder with the files.
    pub from: String,
    /// Address under which they are published.
    pub uri: String,
    /// Name of the publication.
    pub name: String,
    /// Folder with a file for each credential of the address, if the job names a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// The registered model that gets a new version, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<RegisterRequest>,
    /// What the operator knows of the result.
    pub origin: Origin,
}

/// Where a result is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegisterRequest {
    /// Tracking URI of an MLflow server.
    pub mlflow: String,
    /// Name of the registered model.
    pub model: String,
    /// Folder with a file for each credential of the server, if the job names a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

/// Progress of a publication, as the agent answers while it publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PublishProgress {
    /// Current activity.
    pub stage: PublishStage,
    /// Bytes that are done in this stage, those of earlier tries included.
    pub bytes: u64,
    /// Size of all files in bytes; 0 until they are listed.
    pub total_bytes: u64,
    /// Files that are done in this stage.
    pub files: u64,
    /// Number of files; 0 until they are listed.
    pub total_files: u64,
    /// Bytes that are sent over the network per second.
    pub bytes_per_second: u64,
}

/// Activity of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PublishStage {
    /// The files are listed.
    #[default]
    Listing,
    /// Hashes of the files are computed.
    Hashing,
    /// Files are sent.
    Sending,
    /// The server's content is compared with what was sent.
    Verifying,
    /// The record is written.
    Recording,
    /// An activity that a newer agent reports.
    #[serde(other)]
    Unknown,
}

/// A published result, in the termination message of `agent outputs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Publication {
    /// Its record, without files and origin. The operator knows the origin.
    pub record: ResultRecord,
    /// Version in MLflow's model registry, if it was registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered_version: Option<String>,
}
