//! Lists and manages a job's checkpoints through the job's own agent, which runs where the checkpoints are.
//!
//! It is the agent of the first worker while that runs, else that of a short Job, created with the rights of the user.

mod command_job;
mod named;
pub(crate) mod signals;
pub(crate) mod worker;

use super::cluster::Cluster;
use super::job_reader::pods;
use super::screen::Style;
use crate::checkpoints::signals::Signals;
use anyhow::{anyhow, bail};
use api::{State, TrainingJob};
use clap::Subcommand;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use objects::{self, errand_name, labels, names, policy_path};
use observe::ObservedPod;
use plan::storage::paths;
use plan::template::TRAINING;
use plan::{self, Checkpoint, CheckpointVolume, OperatorInfo, Plan};
use protocol::checkpoints::{CheckpointPolicy, POLICY_FILE};
use protocol::role;
use std::io::Write;
use std::time::Duration;

/// What is wanted.
#[derive(Subcommand, Clone, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// All of them: step, epoch, size, age, format, verdict and where each is. It is what is done without a word.
    #[default]
    List,
    /// Reads every byte of them; it exits with 1 if one is corrupted.
    Verify,
    /// Which one the job would resume from, and why not from a newer one.
    Why,
    /// Deletes what checkpoint.retention and checkpoint.keepBest don't keep.
    Prune {
        /// Only tells what would be deleted.
        #[arg(long)]
        dry_run: bool,
    },
    /// Copies the newest good one to the bucket and the backup now, without waiting for checkpoint.backup.intervalSeconds.
    Backup,
    /// Fetches a checkpoint from the bucket or the backup to the volume.
    Restore {
        /// Where to: a path below /checkpoints at which nothing is yet.
        #[arg(long, value_name = "PATH")]
        to: String,
        /// Which one, as `list` names it; default: the newest good one.
        checkpoint: Option<String>,
    },
}

impl Verb {
    /// Returns the agent's arguments for this command.
    #[must_use]
    pub fn args(&self, json: bool) -> Vec<String> {
        let word = match self {
            Self::List => "list",
            Self::Verify => "verify",
            Self::Why => "why",
            Self::Prune { .. } => "prune",
            Self::Backup => "backup",
            Self::Restore { .. } => "restore",
        };
        let mut args = vec!["checkpoints".into(), word.into(), "--policy".into(), policy_path()];
        args.extend(json.then(|| "--json".into()));
        match self {
            Self::List | Self::Verify | Self::Why | Self::Backup => {}
            Self::Prune { dry_run } => args.extend(dry_run.then(|| "--dry-run".into())),
            Self::Restore { to, checkpoint } => {
                args.push(format!("--to={to}"));
                args.extend(checkpoint.clone());
            }
        }
        args
    }
}

/// Where the agent executes a command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Executor {
    /// In the pod of this name, beside the program.
    Worker(String),
    /// In a Job of its own.
    OwnJob,
}

/// Where the agent's output is written.
pub struct Streams<'a> {
    /// The output of the command.
    pub out: &'a mut dyn Write,
    /// The agent's errors, and remarks.
    pub err: &'a mut dyn Write,
}

impl Streams<'_> {
    /// Prints a remark that does not come from the agent.
    fn remark(&mut self, text: &str) {
        // A closed output is no reason to end.
        let _ = writeln!(self.err, "{}", Style::Dim.paint(&format!("-- {text} --"), true));
    }
}

/// Has the job's agent execute the command, and returns its exit code. A Job made for it has `patience` to start.
///
/// # Errors
/// If no agent can be asked; the error says why, and what would help.
pub async fn run(
    cluster: &Cluster,
    name: &str,
    verb: &Verb,
    patience: Duration,
    json: bool,
    streams: &mut Streams<'_>,
) -> anyhow::Result<u8> {
    let job = cluster.find(name).await?;
    let namespace = job.namespace().unwrap_or_default();
    // From the status, which only the operator may write: the image runs beside the job's volumes and Secrets.
    let agent_image = job.status.as_ref().and_then(|status| status.agent_image.clone()).unwrap_or_default();
    let plan = plan::resolve(&job, &OperatorInfo { agent_image, ..OperatorInfo::default() }).plan;
    let checkpoint = plan.storage.checkpoint.as_ref().ok_or_else(|| {
        anyhow!("{name} keeps no checkpoints: its checkpoint.enabled is false, and only a new job can have it true")
    })?;
    let policy = policy(cluster, &job).await?;
    let first = match first_worker(&pods(cluster, &job).await?) {
        Some(pod) => {
            let what = format!("get pod {pod} in namespace {namespace}");
            cluster.ask(&what, cluster.api::<Pod>(&namespace).get_opt(&pod)).await?
        }
        None => None,
    };
    let state = job.status.as_ref().and_then(|status| status.state);
    let place = place(&plan, checkpoint, first.as_ref(), state, verb).map_err(|why| anyhow!(why))?;
    if !policy.shared && policy.workers > 1 {
        streams.remark("each worker has its own folder of checkpoints: this is of worker 0");
    }
    match place {
        Executor::Worker(pod) => {
            let mut args = verb.args(json);
            // The agent that runs there makes the copy.
            args.extend((*verb == Verb::Backup).then(|| format!("--state={}", paths::STATE)));
            worker::ask(cluster, &namespace, &pod, &args, streams).await
        }
        Executor::OwnJob => {
            claim_exists(cluster, &plan, checkpoint).await?;
            let random: String = (0..5).map(|_| LETTERS[rand::random_range(0..LETTERS.len())]).collect();
            let errand = objects::command_job(&plan, errand_name(name, &random), &verb.args(json));
            let errand = errand.ok_or_else(|| anyhow!("{name} keeps no checkpoints"))?;
            command_job::run(cluster, &errand, patience, streams).await
        }
    }
}

/// Finds the path or the address of a checkpoint by the name that `checkpoints` lists.
///
/// # Errors
/// If no agent can be asked, or the job has no usable checkpoint of this name.
pub async fn resolve(cluster: &Cluster, job: &TrainingJob, checkpoint: &str) -> anyhow::Result<String> {
    let (mut out, mut err) = (Vec::new(), super::terminal::stderr());
    let mut streams = Streams { out: &mut out, err: &mut err };
    let name = job.name_any();
    let code = run(cluster, &name, &Verb::List, LISTED_WITHIN, true, &mut streams).await?;
    let text = String::from_utf8_lossy(&out);
    let listed = text.lines().rev().find_map(|line| serde_json::from_str::<Vec<named::Listing>>(line).ok());
    let Some(listed) = listed else { bail!("the agent of {name} did not list its checkpoints (exit code {code})") };
    let shared = policy(cluster, job).await?.shared;
    named::resolve(checkpoint, &listed, shared).map_err(|why| anyhow!("{name}: {why}"))
}

/// How long the Job of `restart --from` may take to start.
const LISTED_WITHIN: Duration = Duration::from_secs(300);

/// Letters of random names: those that make no words.
const LETTERS: [char; 10] = ['b', 'c', 'd', 'f', 'g', 'h', 'k', 'm', 'p', 'x'];

/// Reads the policy of the job's agents.
async fn policy(cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<CheckpointPolicy> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let config = names::config_name(&name);
    let what = format!("get ConfigMap {config} in namespace {namespace}");
    let found = cluster.ask(&what, cluster.api::<ConfigMap>(&namespace).get_opt(&config)).await?;
    read_policy(&name, &namespace, job.uid().as_deref(), found.as_ref()).map_err(|why| anyhow!(why))
}

/// Finds the policy in the ConfigMap. The error is a sentence with the remedy.
fn read_policy(
    name: &str,
    namespace: &str,
    uid: Option<&str>,
    config: Option<&ConfigMap>,
) -> Result<CheckpointPolicy, String> {
    let missing = || {
        format!(
            "ConfigMap {} is missing, in which the agents of {name} read what to do with its checkpoints. The operator \
             makes it when the job first starts: kubectl trainingjob why {name} -n {namespace}",
            names::config_name(name)
        )
    };
    // A ConfigMap of an earlier job of this name is being deleted.
    let config =
        config.filter(|config| config.labels().get(labels::UID).map(String::as_str) == uid).ok_or_else(missing)?;
    let older = || {
        format!(
            "{name} was started by an operator that did not yet manage checkpoints. Upgrade the operator, then suspend and \
             resume the job. If the job has ended, apply it again with the same storage"
        )
    };
    let text = config.data.as_ref().and_then(|data| data.get(POLICY_FILE)).ok_or_else(older)?;
    let policy: CheckpointPolicy = serde_json::from_str(text).map_err(|error| {
        format!(
            "{POLICY_FILE} in ConfigMap {} can't be read by version {} of this plugin ({error}): upgrade it",
            config.name_any(),
            env!("CARGO_PKG_VERSION")
        )
    })?;
    Ok(policy)
}

/// Finds the pod of the first worker, if its program runs and is not being stopped.
fn first_worker(pods: &[ObservedPod]) -> Option<String> {
    let running = pods
        .iter()
        .filter(|pod| pod.replica_id() == role::ReplicaId::FIRST_WORKER && pod.runs() && pod.deletion.is_none());
    running.max_by_key(|pod| pod.incarnation).map(|pod| pod.name.clone())
}

/// Chooses where the agent executes the command. The error is a sentence with the remedy.
fn place(
    plan: &Plan,
    checkpoint: &Checkpoint,
    first: Option<&Pod>,
    state: Option<State>,
    verb: &Verb,
) -> Result<Executor, String> {
    let (name, namespace) = (&plan.identity.name, &plan.identity.namespace);
    if let Some(pod) = first.filter(|pod| can_be_asked(pod)) {
        return Ok(Executor::Worker(pod.name_any()));
    }
    let errand = || match plan.runtime.agent_image.as_str() {
        "" => Err(format!(
            "no worker of {name} can be asked, and its status names no agentImage for a Job that could: upgrade the operator, \
             which then names it, also for jobs that have ended"
        )),
        _ => Ok(Executor::OwnJob),
    };
    if checkpoint.volume != CheckpointVolume::EmptyDir {
        return errand();
    }
    let is_copied = checkpoint.policy.store.is_some() || checkpoint.policy.backup.is_some();
    if is_copied && matches!(verb, Verb::Restore { .. }) {
        return Err(format!(
            "no worker of {name} runs, and its /checkpoints is an emptyDir, which would end with the pod that restores into \
             it. Let a job resume from the copy instead: set checkpoint.resumeFrom to the place that `kubectl trainingjob \
             checkpoints {name} -n {namespace}` lists"
        ));
    }
    if is_copied && *verb == Verb::Backup {
        return Err(format!(
            "no worker of {name} runs, and its /checkpoints went with the last pod. What its agent had copied by then: kubectl \
             trainingjob checkpoints {name} -n {namespace}"
        ));
    }
    if is_copied {
        return errand();
    }
    Err(match (first, state) {
        (Some(pod), _) => format!(
            "pod {} has the agent of an older operator, which can't report checkpoints, and no other pod sees its \
             /checkpoints, an emptyDir; it can be asked after the next restart",
            pod.name_any()
        ),
        (None, Some(state)) if state.is_finished() => format!(
            "{name} is {}, and its checkpoints are gone with its pods: /checkpoints was an emptyDir. The next job keeps them \
             with checkpoint.storage (a claim, NFS or a bucket) or checkpoint.backup",
            state.as_str()
        ),
        (None, _) => format!(
            "worker 0 of {name} does not run, and no other pod sees its /checkpoints, an emptyDir, which begins and ends \
             with its pod. To see what it waits for: kubectl trainingjob why {name} -n {namespace}"
        ),
    })
}

/// Returns whether a worker's agent manages checkpoints. The agent of an older operator lacks this argument.
fn can_be_asked(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut args = containers.filter(|c| c.name == TRAINING).flat_map(|c| c.args.iter().flatten());
    args.any(|arg| arg.starts_with("--checkpoints="))
}

/// Checks that the claim exists, because a pod without its claim would wait forever.
async fn claim_exists(cluster: &Cluster, plan: &Plan, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let (name, namespace) = (&plan.identity.name, &plan.identity.namespace);
    let claim = match &checkpoint.volume {
        CheckpointVolume::Claim(claim) => claim.clone(),
        CheckpointVolume::New { .. } => names::claim_name(name),
        CheckpointVolume::EmptyDir | CheckpointVolume::Nfs { .. } => return Ok(()),
    };
    let what = format!("get PersistentVolumeClaim {claim} in namespace {namespace}");
    let found = cluster.ask(&what, cluster.api::<PersistentVolumeClaim>(namespace).get_opt(&claim)).await?;
    match found {
        Some(_) => Ok(()),
        None => bail!(
            "there is no PersistentVolumeClaim {claim} in namespace {namespace}, on which {name} keeps its checkpoints: \
             either nothing was ever written, or the claim was deleted"
        ),
    }
}

#[cfg(test)]
mod tests;
