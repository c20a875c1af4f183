//! The agents of all simulated pods: the answers of a gang's leader by the rules of `src/gang`, without the processes
//! and the connections.

use super::kubelet;
use super::witness::{Kind, Space, Witness};
use failure::restart::{INTERRUPTIONS, Next, Policy, decide};
use http::Uri;
use jiff::Timestamp;
use kube::Client;
use protocol::agent_status::AgentStatus;
use protocol::attempt::{AttemptEnd, RestartHistory};
use protocol::gang::{GangEnd, GangPast, GangPhase, GangStatus, Restarts};
use protocol::proof::{Nonce, OperatorKey};
use protocol::reason::Reason;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One incarnation of a job: namespace, job, number.
type Key = (String, String, i64);

pub struct Agents {
    witness: Arc<Witness>,
    gangs: Mutex<HashMap<Key, Gang>>,
}

/// The state of a gang.
#[derive(Clone, Debug, Default)]
pub struct Gang {
    pub status: GangStatus,
    workers: usize,
    backoff_limit: u32,
    /// The ends of its attempts. They are published when another attempt begins, or no other will.
    history: RestartHistory,
    /// The pods of the running attempt, by worker.
    members: BTreeMap<i64, String>,
}

/// The key of the operators that ask the agents.
pub fn operator_key() -> OperatorKey {
    OperatorKey::from_random([7; 32])
}

impl Agents {
    pub fn new(witness: &Arc<Witness>) -> Arc<Self> {
        Arc::new(Self { witness: witness.clone(), gangs: Mutex::default() })
    }

    /// The answer to a GET of this URI by the API server's proxy to a pod, if the pod runs: its proof and its body.
    pub fn answer(&self, uri: &Uri) -> Option<(String, Vec<u8>)> {
        let nonce = uri.query().and_then(Nonce::in_query)?;
        let (namespace, rest) = uri.path().strip_prefix("/api/v1/namespaces/")?.split_once("/pods/")?;
        let name = rest.strip_suffix("/proxy/status")?.split_once(':')?.0;
        let pod = self.witness.read(namespace, |space| space.get(Kind::Pod, name).filter(|pod| runs(pod)).cloned())?;
        let job = self.witness.read(namespace, |space| space.get(Kind::TrainingJob, &job_of(&pod)).cloned())?;
        let leads = worker(&pod) == 0;
        let status = AgentStatus {
            training_job: Some(job_of(&pod)),
            pod_uid: pod["metadata"]["uid"].as_str().map(str::to_owned),
            gang: leads.then(|| self.look(&pod).status),
            ..AgentStatus::default()
        };
        let body = serde_json::to_vec(&status).ok()?;
        Some((operator_key().job_key(job["metadata"]["uid"].as_str()?).prove(nonce, &body), body))
    }

    /// The last incarnation of a job, and the state of its gang.
    pub fn last(&self, job: &str) -> Option<(i64, GangStatus)> {
        let gangs = self.lock();
        let of_job = gangs.iter().filter(|((_, name, _), _)| name == job);
        of_job.max_by_key(|((.., number), _)| *number).map(|((.., number), gang)| (*number, gang.status.clone()))
    }

    /// The state of this pod's gang, after all have looked at each other.
    pub fn look(&self, pod: &Value) -> Gang {
        let (key, there) = self.there(pod);
        let mut gangs = self.lock();
        let gang = gangs.entry(key).or_insert_with(|| Gang::from_pod(pod));
        gang.turn(&there);
        gang.clone()
    }

    /// The program of this pod's worker fails. All are started again in place, or the gang has failed and all end.
    pub async fn fail(&self, client: &Client, pod: &Value, code: i32) {
        let (key, there) = self.there(pod);
        let over = {
            let mut gangs = self.lock();
            let gang = gangs.entry(key.clone()).or_insert_with(|| Gang::from_pod(pod));
            gang.turn(&there);
            gang.fail(worker(pod), code);
            gang.turn(&there);
            (gang.status.phase == GangPhase::Over).then(|| gang.clone())
        };
        if let Some(gang) = over {
            self.all_end(client, &key, code, &gang).await;
        }
    }

    /// All programs succeed, if all run. Returns whether they do.
    pub async fn complete(&self, client: &Client, pod: &Value) -> bool {
        let (key, there) = self.there(pod);
        let gang = {
            let mut gangs = self.lock();
            let gang = gangs.entry(key.clone()).or_insert_with(|| Gang::from_pod(pod));
            gang.turn(&there);
            if gang.status.phase != GangPhase::Running {
                return false;
            }
            gang.status.phase = GangPhase::Over;
            gang.clone()
        };
        self.all_end(client, &key, 0, &gang).await;
        true
    }

    async fn all_end(&self, client: &Client, key: &Key, code: i32, gang: &Gang) {
        let pods = self.witness.read(&key.0, |space| of_incarnation(space, key));
        let last = gang.status.ended.last();
        let GangStatus { restarts, ended, .. } = gang.status.clone();
        let end = GangEnd { restarts, ended };
        for pod in pods {
            let first = last.and_then(|end| end.worker) == u32::try_from(worker(&pod)).ok();
            let (code, by) = if code == 0 || first { (code, Value::Null) } else { (143, json!(15)) };
            let message = json!({
                "version": 1, "phase": "Exited", "attempt": gang.status.attempt, "exitCode": code, "stoppedBy": by,
                "stderrTail": "", "gang": end,
            });
            kubelet::end(client, &pod, code, &message).await;
        }
    }

    fn there(&self, pod: &Value) -> (Key, BTreeMap<i64, String>) {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let key = (namespace, job_of(pod), incarnation(pod));
        let pods = self.witness.read(&key.0, |space| of_incarnation(space, &key));
        let there = pods.iter().map(|pod| (worker(pod), pod["metadata"]["uid"].to_string())).collect();
        (key, there)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Gang>> {
        self.gangs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gang {
    /// The gang of pods that have just begun.
    fn from_pod(pod: &Value) -> Self {
        let argument = |name: &str| {
            let args = pod["spec"]["containers"][0]["args"].as_array().into_iter().flatten();
            args.filter_map(Value::as_str).find_map(|arg| arg.strip_prefix(name)).map(str::to_owned)
        };
        let past = argument("--gang-past=").and_then(|past| serde_json::from_str::<GangPast>(&past).ok());
        let past = past.unwrap_or_default();
        let first: u32 = argument("--attempt=").and_then(|number| number.parse().ok()).unwrap_or(1);
        let restarts = RestartHistory { judged: first - 1, ..past.restarts };
        let status = GangStatus { attempt: first - 1, restarts: restarts.clone(), ..GangStatus::default() };
        let annotation = |name: &str| pod["metadata"]["labels"][name].as_str().and_then(|text| text.parse().ok());
        Self {
            status,
            history: restarts,
            workers: annotation("storm/workers").unwrap_or(1),
            backoff_limit: annotation("storm/backoff-limit").and_then(|n: usize| u32::try_from(n).ok()).unwrap_or(3),
            ..Self::default()
        }
    }

    fn turn(&mut self, there: &BTreeMap<i64, String>) {
        let lost = self.members.iter().find(|(index, uid)| there.get(index) != Some(uid)).map(|(index, _)| *index);
        if let Some(worker) = lost.filter(|_| self.status.phase == GangPhase::Running) {
            self.ended(worker, Reason::PodDeleted, "its pod was asked to terminate", None);
        }
        if self.status.phase == GangPhase::Gathering && there.len() == self.workers {
            self.status.attempt += 1;
            self.status.restarts = self.history.clone();
            self.members.clone_from(there);
            self.status.phase = GangPhase::Running;
        }
    }

    fn fail(&mut self, worker: i64, code: i32) {
        if self.status.phase != GangPhase::Running {
            return;
        }
        self.ended(worker, Reason::ExitCode, &format!("exit code {code}"), Some(code));
    }

    fn ended(&mut self, worker: i64, reason: Reason, words: &str, exit_code: Option<i32>) {
        let end = AttemptEnd {
            worker: u32::try_from(worker).ok(),
            exit_code,
            disruption: exit_code.is_none(),
            time: Some(Timestamp::now()),
            // Long enough that no back-off applies.
            ran_seconds: 3600,
            ..AttemptEnd::new(self.status.attempt, reason, words)
        };
        let policy = Policy {
            restarts: Restarts::OnFailure,
            backoff_limit: self.backoff_limit,
            interruptions: INTERRUPTIONS,
            rules: Vec::new(),
        };
        self.status.phase = match decide(&policy, &mut self.history, &end) {
            Next::Restart { .. } => GangPhase::Gathering,
            Next::Wait | Next::Stop { .. } => {
                self.status.restarts = self.history.clone();
                GangPhase::Over
            }
        };
        self.status.ended.push(end);
        if self.status.ended.len() > 10 {
            self.status.ended.remove(0);
        }
    }
}

fn of_incarnation(space: &Space, key: &Key) -> Vec<Value> {
    let is_its = |pod: &&Value| runs(pod) && job_of(pod) == key.1 && incarnation(pod) == key.2;
    space.of_kind(Kind::Pod).filter(is_its).cloned().collect()
}

/// The job of a worker's pod.
pub fn job_of(pod: &Value) -> String {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    name.split_once("-training-").map(|(job, _)| job.to_owned()).unwrap_or_default()
}

/// The incarnation number of a pod or a Job.
pub fn incarnation(object: &Value) -> i64 {
    let label = object["metadata"]["labels"]["ml.example.com/incarnation"].as_str();
    label.and_then(|number| number.parse().ok()).unwrap_or_default()
}

pub fn worker(pod: &Value) -> i64 {
    let label = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"].as_str();
    label.and_then(|number| number.parse().ok()).unwrap_or_default()
}

pub fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}
