//! Content that the agent fetches before a gang starts: the request to it, and its report.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is fetched, as an argument of `agent inputs`.
///
/// An agent that is older than the operator ignores unknown fields. It contains no credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FetchRequest {
    /// Folder of the cache. It is created below the volume's root.
    pub cache: String,
    /// Folder with a file for each credential, if the job names a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// Whether pickled weights of the hub's models are left out.
    pub safetensors_only: bool,
    /// Folder in which a link of the entry's name leads to the content, for pods that can't know its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<String>,
    /// Limit of the cache, if jobs share it and it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<CacheLimit>,
    /// The content.
    pub items: Vec<FetchItem>,
}

/// Limit of a cache that jobs share. Entries that no job uses are removed for content that does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheLimit {
    /// Size of all entries in bytes.
    pub bytes: u64,
    /// Entries in use, as the operator sees them. Without it nothing is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<CacheUses>,
}

/// Entries of a cache that jobs use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheUses {
    /// Time at which the operator made the list.
    pub time: Timestamp,
    /// Name of a job that uses the entry, by the entry's key.
    pub jobs: BTreeMap<String, String>,
}

/// Content to fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FetchItem {
    /// model, dataset, or the name of an entry of `data`.
    pub name: String,
    /// Canonical address.
    pub uri: String,
    /// Revision that was resolved before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Content that is complete in the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FetchedContent {
    /// Name of the entry.
    pub name: String,
    /// Name of its folder in the cache.
    pub key: String,
    /// Commit of a repository of the hub, or a SHA-256.
    pub revision: String,
    /// Number of files.
    pub files: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Bytes that were fetched over the network.
    pub fetched_bytes: u64,
}

/// Progress of the fetch of one content, as the agent answers while it fetches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FetchProgress {
    /// Name of the entry.
    pub name: String,
    /// Current activity.
    pub stage: FetchStage,
    /// Bytes in the cache so far, those of earlier tries included.
    pub bytes: u64,
    /// Size of all files in bytes; 0 until they are listed.
    pub total_bytes: u64,
    /// Files that are complete and verified.
    pub files: u64,
    /// Number of files; 0 until they are listed.
    pub total_files: u64,
    /// Bytes that arrive over the network per second.
    pub bytes_per_second: u64,
}

/// Activity of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchStage {
    /// The revision is resolved and the files are listed.
    #[default]
    Listing,
    /// Another fetcher of the same content holds the lease.
    Waiting,
    /// Files are fetched.
    Fetching,
    /// The entry in the cache is checked.
    Checking,
    /// The content is complete in the cache.
    Complete,
    /// An activity that a newer agent reports.
    #[serde(other)]
    Unknown,
}

/// Folder of an entry with its files, below the entry's key.
pub const DATA: &str = "data";
