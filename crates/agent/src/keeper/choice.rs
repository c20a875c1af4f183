//! What a run goes on from: the first worker's agent chooses, and the gang's leader tells the others, so that all go on from the same.

use protocol::checkpoints::Kept;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long the first worker's agent gets for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What the runs of an attempt go on from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Choice {
    /// UID of the TrainingJob: at an address that was its worker's there may be another one by now.
    pub uid: String,
    /// The attempt that it is for.
    pub attempt: u32,
    /// The path that the program is given; empty for a start from nothing.
    pub path: String,
    /// The checkpoint, if there is one to go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Kept>,
    /// Where the first worker has it from.
    pub fetched: From,
}

/// Where a checkpoint was before it was gone on from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum From {
    /// On the volume.
    #[default]
    Here,
    /// In the store of this URI, below its own path.
    Store(String),
    /// At this URI.
    Uri(String),
}

/// Where the first worker's agent tells which checkpoints are being put into the store.
pub const ROUNDS: &str = "/rounds";

/// The checkpoints of which every worker is to put its files into the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rounds {
    /// UID of the TrainingJob.
    pub uid: String,
    /// Path and round of each.
    pub rounds: Vec<(String, String)>,
    /// Nothing more will come.
    pub done: bool,
}

/// Asks once at `host:port` for the rounds.
pub async fn ask_rounds(address: &str, uid: &str) -> Option<Rounds> {
    let client = client().ok()?;
    let answer = client.get(format!("http://{address}{ROUNDS}")).send().await.ok()?;
    let bytes = answer.error_for_status().ok()?.bytes().await.ok()?;
    serde_json::from_slice::<Rounds>(&bytes).ok().filter(|rounds| rounds.uid == uid)
}

/// Asks within the gang: through no proxy, and without TLS, whose certificates an image may lack.
fn client() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder().no_proxy().timeout(ANSWER_WITHIN).tls_certs_only([]).build()
}
