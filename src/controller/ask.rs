//! One question to one agent: how the operator reaches it, what it reads of the answer, and whether it trusts it.

use super::Context;
use http::header::{CONNECTION, HeaderValue};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use objects::names;
use observe::ObservedPod;
use protocol::agent_status::AgentStatus;
use protocol::proof::{AnswerKey, Nonce, PROOF_HEADER};
use protocol::report;
use serde_json::Value;
use text::start_of;

/// Most bytes that are read of an answer.
const MAX_ANSWER: usize = 256 * 1024;
/// Most entries that are kept of one list or map. An agent has no more metrics, and keeps no more readings of one.
const MAX_ENTRIES: usize = 100;
/// Most bytes of a name, such as a metric's.
const MAX_NAME: usize = 100;
/// Most bytes of a text. No text that an agent sends is longer than the message that it leaves.
const MAX_TEXT: usize = report::MAX_BYTES;

/// How the operator reaches the agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AgentAccess {
    /// By the pods' addresses: in a cluster.
    Direct,
    /// Through the API server: from outside.
    Proxy,
    /// Not at all: no progress is shown.
    #[default]
    Off,
}

/// Asks agents.
pub(super) struct Asker {
    client: Client<HttpConnector, Empty<bytes::Bytes>>,
}

impl Asker {
    pub fn new() -> Self {
        // An idle connection would hold a descriptor, and more memory than everything else that is kept of a job. A new
        // connection for each question costs less than the question.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(HttpConnector::new());
        Self { client }
    }

    /// Returns the answer of the agent of this job's pod, or why there is no answer that can be trusted.
    ///
    /// An intermediary may read an answer, but can neither change nor replay it, because the answer has to be proven
    /// for this question.
    pub async fn ask(
        &self,
        context: &Context,
        job: &AskedJob<'_>,
        pod: &ObservedPod,
        port: u16,
    ) -> Result<AgentStatus, NoAnswer> {
        let nonce = Nonce::new(rand::random());
        let query = nonce.to_query();
        let answer = match context.options.agent_access {
            AgentAccess::Off => return Err("not asked".into()),
            AgentAccess::Direct => {
                let ip = pod.ip.as_deref().ok_or("the pod has no address")?;
                let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                // The agent closes the connection, so that those that wait for a late packet are spread over the nodes.
                let request =
                    http::Request::get(format!("http://{ip}:{port}/status?{query}")).header(CONNECTION, "close");
                let request = request.body(Empty::new()).map_err(|error| format!("{ip}: {error}"))?;
                read(self.client.request(request).await.map_err(|error| error.to_string())?).await?
            }
            AgentAccess::Proxy => {
                let path = format!("/api/v1/namespaces/{}/pods/{}:{port}/proxy/status", job.namespace, pod.name);
                let uri = format!("{path}?{query}");
                let request = http::Request::get(uri).body(Vec::new().into()).map_err(|error| error.to_string())?;
                read(context.client.send(request).await.map_err(|error| error.to_string())?).await?
            }
        };
        let key = context.options.operator_key.job_key(job.uid);
        verify_answer(&answer, nonce, &key, job, pod).map_err(NoAnswer::Refused)
    }
}

/// Why there is no answer that can be trusted.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// No answer came.
    Missing(String),
    /// An answer came that is not the agent's.
    Refused(String),
}

impl From<String> for NoAnswer {
    fn from(why: String) -> Self {
        Self::Missing(why)
    }
}

impl From<&str> for NoAnswer {
    fn from(why: &str) -> Self {
        Self::Missing(why.to_owned())
    }
}

/// The job whose agent is asked.
pub(super) struct AskedJob<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// An answer that has not been verified yet.
struct Answer {
    proof: Option<HeaderValue>,
    body: bytes::Bytes,
}

async fn read<B>(mut answer: http::Response<B>) -> Result<Answer, String>
where
    B: BodyExt<Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if !answer.status().is_success() {
        return Err(format!("HTTP {}", answer.status()));
    }
    let proof = answer.headers_mut().remove(PROOF_HEADER);
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| format!("its answer can't be read: {error}"))?.to_bytes();
    Ok(Answer { proof, body })
}

/// The decoded answer, if the agent in this pod gave it to this question.
fn verify_answer(
    answer: &Answer,
    nonce: Nonce,
    key: &AnswerKey,
    job: &AskedJob,
    pod: &ObservedPod,
) -> Result<AgentStatus, String> {
    is_proven(answer, nonce, key, job)?;
    let status = decode(&answer.body).map_err(|error| format!("its answer can't be read: {error}"))?;
    is_of(&status, job, pod).map(|()| status)
}

/// Whether an agent of this job has given this answer to this question.
fn is_proven(answer: &Answer, nonce: Nonce, key: &AnswerKey, job: &AskedJob) -> Result<(), String> {
    let AskedJob { namespace, name, uid } = job;
    let new_pods = format!(
        "kubectl trainingjob stop {name} -n {namespace}, then kubectl trainingjob resume {name} -n {namespace}"
    );
    let Some(proof) = &answer.proof else {
        return Err(format!(
            "the agent's answer was refused: it does not prove that it comes from this job ({PROOF_HEADER} is missing); if an older \
             operator made the pods, give the job new ones ({new_pods}); otherwise another program answers at the pod's address \
             and port"
        ));
    };
    if key.is_proof(proof.as_bytes(), nonce, &answer.body) {
        return Ok(());
    }
    let secret = names::keys_name(name, uid);
    Err(format!(
        "the agent's answer was refused: its proof ({PROOF_HEADER}) is wrong; the answer was changed on its way, or another program \
         answers at the pod's address and port; if the operator's own key was replaced, run kubectl delete secret {secret} -n \
         {namespace} and give the job new pods ({new_pods})"
    ))
}

/// Whether the answer comes from this pod. Another pod may hold the address of pods on their node's network. An answer
/// without a pod UID is refused; agents send it since 0.1.
fn is_of(status: &AgentStatus, job: &AskedJob, pod: &ObservedPod) -> Result<(), String> {
    let Some(uid) = &status.pod_uid else {
        return Err("what answers at its address and port does not say which pod it is in (podUid)".into());
    };
    if *uid != pod.uid {
        let uid = start_of(uid, MAX_NAME);
        return Err(format!("another pod answers at its address and port, the one with the UID {uid:?}"));
    }
    if let Some(name) = status.training_job.as_ref().filter(|name| *name != job.name) {
        let name = start_of(name, MAX_NAME);
        return Err(format!("the agent of another job answers at its address and port, {name:?}"));
    }
    Ok(())
}

/// Decodes an answer. The source is not trusted, so no more is kept than an agent of ours sends.
///
/// # Errors
/// If it is not an answer of an agent.
pub fn decode(bytes: &[u8]) -> serde_json::Result<AgentStatus> {
    let mut answer = serde_json::from_slice(bytes)?;
    bound(&mut answer);
    serde_json::from_value(answer)
}

fn bound(value: &mut Value) {
    match value {
        Value::String(text) => text.truncate(start_of(text, MAX_TEXT).len()),
        Value::Array(entries) => {
            // The newest readings are the last ones.
            entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
            entries.iter_mut().for_each(bound);
        }
        Value::Object(fields) => {
            let mut left = MAX_ENTRIES;
            fields.retain(|name, _| {
                let keep = left > 0 && !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control);
                left -= usize::from(keep);
                keep
            });
            fields.values_mut().for_each(bound);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
