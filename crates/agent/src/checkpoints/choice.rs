//! The checkpoint that a run resumes from. The first worker's agent chooses it, and the gang's leader sends the choice
//! to the others, so that all resume from the same checkpoint.

use gang::frame::AnswerKey;
use protocol::checkpoints::GoodCheckpoint;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long the first worker's agent may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The longest answer, in bytes.
const LONGEST_ANSWER: usize = 256 * 1024;
/// Letters of a nonce: 256 bits in hexadecimal digits.
const NONCE_LETTERS: usize = 64;

/// The checkpoint that the runs of an attempt resume from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResumeChoice {
    /// UID of the TrainingJob. The former address of its worker may belong to another job by now.
    pub uid: String,
    /// The attempt that it is for.
    pub attempt: u32,
    /// The path that the program is given. Empty for a start from scratch.
    pub path: String,
    /// The checkpoint, if there is one to resume from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<GoodCheckpoint>,
    /// Where the first worker got it from.
    pub fetched: CheckpointOrigin,
    /// Digest of the code that the attempt runs, if it is delivered to the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Where a checkpoint was before an attempt resumed from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckpointOrigin {
    /// On the volume.
    #[default]
    Here,
    /// In the store of this URI, below its own path.
    Store(String),
    /// At this URI.
    Uri(String),
}

/// The path at which the first worker's agent serves the checkpoints that are being put into the store.
pub const ROUNDS: &str = "/rounds";
/// The header with the caller's nonce, with which the answer is proven. A request without it gets no answer.
pub const NONCE: &str = "x-trainingjob-nonce";

/// The checkpoints whose files every worker has to put into the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rounds {
    /// UID of the TrainingJob.
    pub uid: String,
    /// Path and round of each.
    pub rounds: Vec<(String, String)>,
    /// No more rounds follow.
    pub done: bool,
}

/// Why the rounds are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRounds {
    /// There is no whole answer.
    Silent,
    /// The answer is not proven with the gang's key, or too long.
    Unproven,
}

/// Whether this has the form of a nonce.
pub fn is_nonce(nonce: &[u8]) -> bool {
    nonce.len() == NONCE_LETTERS && nonce.iter().all(u8::is_ascii_hexdigit)
}

/// Asks once at `host:port` for the rounds. Any process may answer there, so only a proven answer is believed.
///
/// # Errors
/// Why there are none.
pub async fn ask_rounds(address: &str, uid: &str, key: &AnswerKey) -> Result<Rounds, NoRounds> {
    let silent = |_| NoRounds::Silent;
    let nonce = format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
    let question = client().map_err(silent)?.get(format!("http://{address}{ROUNDS}")).header(NONCE, &nonce);
    let mut answer = question.send().await.map_err(silent)?;
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(silent)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LONGEST_ANSWER {
            return Err(NoRounds::Unproven);
        }
    }
    let text = key.verify(nonce.as_bytes(), &bytes).map_err(|_| NoRounds::Unproven)?;
    let rounds = serde_json::from_slice::<Rounds>(text).ok().filter(|rounds| rounds.uid == uid);
    rounds.ok_or(NoRounds::Unproven)
}

/// A client for requests within the gang. It uses no proxy, follows no redirect, and needs no TLS certificates, which
/// an image may lack.
fn client() -> Result<reqwest::Client, reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    client.timeout(ANSWER_WITHIN).tls_certs_only([]).build()
}
