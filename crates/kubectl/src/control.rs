//! `stop`, `resume` and `restart`. The command writes the user's request on the job, and the operator acts on it.

use super::checkpoints;
use super::cluster::{Cluster, NamedObject};
use super::code::{self, Packed};
use super::job_reader::pods;
use anyhow::bail;
use api::{ConditionType, State, TrainingJob, TuningJob, TuningState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use objects::names;
use plan::labels::{LOOK_AGAIN, RESTART_FROM, RESTART_REQUESTED};
use protocol::gang::{GangSetup, SETUP_FILE};
use protocol::role::ReplicaId;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long the operator may take to act on a restart before the command reports that.
const HEEDED_WITHIN: Duration = Duration::from_secs(30);
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(300);
/// How long new code may take to run before the command reports that.
const DELIVERED_WITHIN: Duration = Duration::from_secs(60);
/// Interval between two requests to the nodes to look again.
const LOOK_ANEW: Duration = Duration::from_secs(3);

/// Stops the workers. With `wait` it returns when none runs any more.
///
/// # Errors
/// If the job has ended, can't be changed, or does not stop in time.
pub async fn stop(cluster: &Cluster, name: &str, wait: Option<Duration>) -> anyhow::Result<String> {
    let job = match cluster.named(name).await? {
        NamedObject::Job(job) => *job,
        NamedObject::Search(search) => return stop_search(cluster, &search, wait).await,
    };
    let namespace = job.namespace().unwrap_or_default();
    if let Some(state) = ended(&job) {
        bail!("{name} is already {}: no worker is running", state.as_str());
    }
    if !job.spec.suspend {
        change(cluster, &job, "stop", json!({ "spec": { "suspend": true } })).await?;
    }
    let until = wait.map(|wait| Instant::now() + wait);
    let Some(until) = until else {
        let resume = format!("to resume it: kubectl trainingjob resume {name} -n {namespace}");
        return Ok(match state(&job) {
            Some(State::Suspended) => format!("{name} is already stopped; {resume}"),
            _ => format!("{name} is stopping: its workers have their grace period to save; {resume}"),
        });
    };
    loop {
        let job = cluster.find(name).await?;
        match state(&job) {
            Some(State::Suspended) => return Ok(format!("{name} is stopped: no worker is running")),
            Some(state) if state.is_finished() => {
                return Ok(format!("{name} was {} before it could be stopped", state.as_str()));
            }
            _ if Instant::now() >= until => {
                bail!(
                    "{name} has not stopped within {} s; to see what it waits for: kubectl trainingjob why {name} -n \
                     {namespace}",
                    wait.unwrap_or_default().as_secs()
                )
            }
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Resumes a stopped job.
///
/// # Errors
/// If the job has ended, or can't be changed.
pub async fn resume(cluster: &Cluster, name: &str) -> anyhow::Result<String> {
    let job = match cluster.named(name).await? {
        NamedObject::Job(job) => *job,
        NamedObject::Search(search) => return resume_search(cluster, &search).await,
    };
    let namespace = job.namespace().unwrap_or_default();
    match ended(&job) {
        Some(State::Failed) => {
            bail!("{name} has failed; to restart it: kubectl trainingjob restart {name} -n {namespace}")
        }
        Some(state) => bail!("{name} is already {}: there is nothing to resume", state.as_str()),
        None if !job.spec.suspend => return Ok(format!("{name} is not stopped: its spec.suspend is false")),
        None => {}
    }
    change(cluster, &job, "resume", json!({ "spec": { "suspend": false } })).await?;
    Ok(format!("{name} resumes: its next attempt starts as soon as there is room for it"))
}

/// Suspends a search with its trials. With `wait` it returns when no trial runs.
async fn stop_search(cluster: &Cluster, search: &TuningJob, wait: Option<Duration>) -> anyhow::Result<String> {
    let (name, namespace) = (search.name_any(), search.namespace().unwrap_or_default());
    if let Some(state) = state_of_search(search).filter(|state| state.is_finished()) {
        bail!("TuningJob {name} is already {}: no trial is running", state.as_str());
    }
    if !search.spec.suspend {
        change_search(cluster, search, "stop", true).await?;
    }
    let Some(wait) = wait else {
        let resume = format!("to resume it: kubectl trainingjob resume tuningjob/{name} -n {namespace}");
        return Ok(match state_of_search(search) {
            Some(TuningState::Suspended) => format!("TuningJob {name} is already stopped; {resume}"),
            _ => format!("TuningJob {name} is stopping: its trials have their grace period to save; {resume}"),
        });
    };
    let until = Instant::now() + wait;
    loop {
        let now = cluster.find_search(&name).await?;
        match now.as_ref().and_then(state_of_search) {
            Some(state) if state.is_finished() => {
                return Ok(format!("TuningJob {name} was {} before it could be stopped", state.as_str()));
            }
            Some(TuningState::Suspended) if !has_running_trial(cluster, &namespace, &name).await? => {
                return Ok(format!("TuningJob {name} is stopped: no trial is running"));
            }
            _ if Instant::now() >= until => bail!(
                "TuningJob {name} has not stopped within {} s; to see its trials: kubectl trainingjob tune {name} -n {namespace}",
                wait.as_secs()
            ),
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Continues a search that was suspended.
async fn resume_search(cluster: &Cluster, search: &TuningJob) -> anyhow::Result<String> {
    let (name, namespace) = (search.name_any(), search.namespace().unwrap_or_default());
    if let Some(state) = state_of_search(search).filter(|state| state.is_finished()) {
        let conditions = search.status.iter().flat_map(|status| &status.conditions).cloned().collect::<Vec<_>>();
        let ends = [ConditionType::Succeeded, ConditionType::Failed];
        let condition = ends.into_iter().find_map(|type_| lifecycle::condition_is(&conditions, type_, true));
        let why = condition.map(|condition| format!(": {}", condition.message)).unwrap_or_default();
        bail!(
            "TuningJob {name} is {}{why}. Raise maxTrials to have more trials: kubectl edit tuj {name} -n {namespace}",
            state.as_str()
        );
    }
    if !search.spec.suspend {
        return Ok(format!("TuningJob {name} is not stopped: its spec.suspend is false"));
    }
    change_search(cluster, search, "resume", false).await?;
    Ok(format!("TuningJob {name} resumes: its trials continue as soon as there is room for them"))
}

async fn has_running_trial(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<bool> {
    let params = ListParams::default().labels(&format!("{}={name}", trials::TUNING_JOB));
    let what = format!("list the trials of TuningJob {name} in namespace {namespace}");
    let api = cluster.api::<api::Guarded>(namespace);
    let all = cluster.ask(&what, api.list(&params)).await?;
    let rests = |job: &TrainingJob| state(job).is_some_and(|state| state == State::Suspended || state.is_finished());
    Ok(all.items.iter().any(|job| job.0.as_ref().is_ok_and(|job| !rests(job))))
}

fn state_of_search(search: &TuningJob) -> Option<TuningState> {
    search.status.as_ref().and_then(|status| status.state)
}

async fn change_search(cluster: &Cluster, search: &TuningJob, verb: &str, suspend: bool) -> anyhow::Result<()> {
    let (name, namespace) = (search.name_any(), search.namespace().unwrap_or_default());
    let patch = json!({ "metadata": { "uid": search.uid() }, "spec": { "suspend": suspend } });
    let what = format!("{verb} TuningJob {name} in namespace {namespace}");
    let api = cluster.api::<TuningJob>(&namespace);
    cluster.ask(&what, api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
}

/// Asks for another attempt, of a job that runs or of one that has failed, and returns when the operator has acted on it. With
/// code, the next attempt runs that, and the function returns when it does. With the name of a checkpoint, it resumes from that,
/// and a stopped job is resumed.
///
/// # Errors
/// If the job is done or stopped, can't be changed, has no such checkpoint, or the operator does not act on it.
pub async fn restart(
    cluster: &Cluster,
    name: &str,
    code: Option<&Packed>,
    from: Option<&str>,
) -> anyhow::Result<String> {
    let job = cluster.find(name).await?;
    let namespace = job.namespace().unwrap_or_default();
    let has_failed = match ended(&job) {
        Some(State::Failed) => true,
        Some(state) => bail!(
            "{name} is {}; to run it again under another name: kubectl trainingjob resubmit {name} -n {namespace}",
            state.as_str()
        ),
        None => false,
    };
    if job.spec.suspend && from.is_none() {
        bail!("{name} is stopped; to start its next attempt: kubectl trainingjob resume {name} -n {namespace}");
    }
    let path = match from {
        Some(from) => Some(checkpoints::resolve(cluster, &job, from).await?),
        None => None,
    };
    let request = Timestamp::now().to_string();
    let mut patch = json!({ "metadata": { "annotations": { RESTART_REQUESTED: request } } });
    if let Some(path) = &path {
        patch["metadata"]["annotations"][RESTART_FROM] = json!(format!("{request} {path}"));
        patch["spec"] = json!({ "suspend": false });
    }
    if let Some(packed) = code {
        if job.spec.code.is_none() {
            bail!(
                "{name} was created without code, so that its pods have no place for it. Create the job by kubectl trainingjob \
                 run --code DIR"
            );
        }
        code::send(cluster, &job, packed).await?;
        patch["spec"]["code"] = json!({ "digest": packed.digest });
    }
    change(cluster, &job, "restart", patch).await?;
    let until = Instant::now() + HEEDED_WITHIN;
    while !is_heeded(&cluster.find(name).await?, &request) {
        if Instant::now() >= until {
            bail!(
                "{name}: the restart is requested, but the operator has not acted on it within {} s. The operator acts on it \
                 when it runs again, or when it has decided what follows from a failure. To see the state: kubectl \
                 trainingjob why {name} -n {namespace}",
                HEEDED_WITHIN.as_secs()
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    let hastened = if has_failed { Ok(()) } else { nudge(cluster, &job, &request, code).await };
    if let Some(packed) = code {
        code::remove_surplus(cluster, &job, packed).await?;
    }
    let resumes = path.map(|path| format!("; the next attempt resumes from {path}")).unwrap_or_default();
    if has_failed {
        return Ok(format!("{name} starts again with a new restart budget{resumes}"));
    }
    if job.spec.suspend {
        return Ok(format!("{name} resumes as soon as there is room for it{resumes}"));
    }
    let done = match (hastened, code) {
        (Ok(()), None) => format!("{name} restarts: its attempt ends, and the next one starts in the same pods"),
        (Ok(()), Some(packed)) => format!("{name} runs the code {} in the same pods", short(&packed.digest)),
        (Err(why), _) => format!(
            "{name} restarts within two minutes, when the nodes of its workers have updated the ConfigMaps (speeding this up \
             failed: {why})"
        ),
    };
    Ok(done + &resumes)
}

/// Returns the beginning of a digest.
fn short(digest: &str) -> &str {
    digest.get(..digest.len().min(19)).unwrap_or(digest)
}

/// Nodes check ConfigMaps only once in a while, but at once after the pod has changed.
async fn nudge(cluster: &Cluster, job: &TrainingJob, request: &str, code: Option<&Packed>) -> anyhow::Result<()> {
    let namespace = job.namespace().unwrap_or_default();
    let Some(leader) = pods(cluster, job)
        .await?
        .into_iter()
        .filter(|pod| pod.replica_id() == ReplicaId::FIRST_WORKER && pod.runs())
        .max_by_key(|pod| pod.incarnation)
    else {
        return Ok(()); // a pod that starts now reads the request
    };
    let config = names::config_name(&job.name_any());
    let what = format!("get ConfigMap {config} in namespace {namespace}");
    let until = Instant::now() + HEEDED_WITHIN;
    loop {
        let found = cluster.ask(&what, cluster.api::<ConfigMap>(&namespace).get_opt(&config)).await?;
        if found.is_some_and(|config| has_request(&config, request)) {
            break;
        }
        if Instant::now() >= until {
            bail!("ConfigMap {config} does not contain the request yet");
        }
        tokio::time::sleep(LOOK).await;
    }
    if let Some(packed) = code {
        return deliver(cluster, job, request, &packed.digest).await;
    }
    let patch = json!({ "metadata": { "uid": leader.uid, "annotations": { LOOK_AGAIN: request } } });
    let what = format!("patch pod {} in namespace {namespace}", leader.name);
    let pods = cluster.api::<Pod>(&namespace);
    cluster.ask(&what, pods.patch(&leader.name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
}

/// Has all nodes look until the code runs. A node that looked too early may have found the old ConfigMaps.
async fn deliver(cluster: &Cluster, job: &TrainingJob, request: &str, digest: &str) -> anyhow::Result<()> {
    let (name, begun) = (job.name_any(), Instant::now());
    let mut looks = 0;
    while begun.elapsed() < DELIVERED_WITHIN {
        if begun.elapsed() >= LOOK_ANEW * looks {
            looks += 1;
            code::nudge_config_map(cluster, job, &format!("{request}-{looks}")).await?;
        }
        tokio::time::sleep(LOOK).await;
        let job = cluster.find(&name).await?;
        let status = job.status.as_ref();
        if status.and_then(|status| status.code.as_ref()).is_some_and(|code| code.digest == digest) {
            return Ok(());
        }
        if ended(&job).is_some() {
            bail!("the job has ended meanwhile");
        }
    }
    bail!("no agent has reported the new code within {} s", DELIVERED_WITHIN.as_secs())
}

fn has_request(config: &ConfigMap, request: &str) -> bool {
    let setup = config.data.as_ref().and_then(|data| serde_json::from_str::<GangSetup>(data.get(SETUP_FILE)?).ok());
    setup.is_some_and(|setup| setup.restart_requested.as_deref() == Some(request))
}

fn is_heeded(job: &TrainingJob, request: &str) -> bool {
    let asked = job.status.as_ref().and_then(|status| status.asked_restart.as_ref());
    asked.is_some_and(|asked| asked.request == request)
}

fn state(job: &TrainingJob) -> Option<State> {
    job.status.as_ref().and_then(|status| status.state)
}

fn ended(job: &TrainingJob) -> Option<State> {
    state(job).filter(|state| state.is_finished())
}

/// Changes exactly this job, and not a later one of the same name.
async fn change(cluster: &Cluster, job: &TrainingJob, verb: &str, mut patch: Value) -> anyhow::Result<()> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    patch["metadata"]["uid"] = json!(job.uid());
    let what = format!("{verb} TrainingJob {name} in namespace {namespace}");
    let api = cluster.api::<TrainingJob>(&namespace);
    cluster.ask(&what, api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
}
