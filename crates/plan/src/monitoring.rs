//! How the job is watched, and where its program records what it does.

use super::storage::paths;
use super::{CheckpointVolume, ClaimPath, Policy, Refusals, Storage, Success, dns_subdomain, names};
use api::{self, EarlyStopping, LOSSES, TrainingJobSpec};
use protocol::progress_pattern::ProgressPatterns;

/// How the job is watched, and where its program records what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Monitoring {
    /// Port on which each worker serves what is known of it; none when monitoring is switched off.
    pub metrics_port: Option<u16>,
    /// Port on which the workers' agents find the first one's; that of the metrics where there are any.
    pub agent_port: u16,
    /// Regular expressions that find progress in the output, instead of the forms known by themselves.
    pub progress_patterns: Vec<String>,
    /// Metrics of which the agent keeps every reading, for the success policy.
    pub watched: Vec<String>,
    /// The MLflow server.
    pub mlflow: Option<Mlflow>,
    /// Project at Weights & Biases.
    pub wandb_project: Option<String>,
    /// Secret that has the trackers' keys.
    pub tracker_secret: Option<String>,
    /// The TensorBoard beside the job, if one was asked for.
    pub tensorboard: Option<TensorBoard>,
}

/// An MLflow server and what the job is called there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlflow {
    /// Its address.
    pub uri: String,
    /// The experiment that the job's runs belong to.
    pub experiment: String,
}

/// A TensorBoard that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorBoard {
    /// It can see what the workers write.
    Beside(BoardPlan),
    /// There is no volume that outlives a worker and that another pod can mount. `TensorBoard=False` with
    /// [`TensorBoard::NO_STORAGE`] and [`TensorBoard::REMEDY`] tells it.
    NoStorage,
}

impl TensorBoard {
    /// Reason of the condition `TensorBoard=False`.
    pub const NO_STORAGE: &str = "NoStorage";
    /// Message of that condition.
    pub const REMEDY: &str = "monitoring.tensorboardEnabled needs a volume that the workers and TensorBoard share: set \
                              checkpoint.storage (and leave checkpoint.enabled true) or output, or switch \
                              tensorboardEnabled off";

    /// What it is made of, if it can be.
    #[must_use]
    pub fn beside(&self) -> Option<&BoardPlan> {
        match self {
            Self::Beside(board) => Some(board),
            Self::NoStorage => None,
        }
    }
}

/// A TensorBoard as it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardPlan {
    /// Its image.
    pub image: String,
    /// The volume that it shares with the workers.
    pub volume: BoardVolume,
    /// Where that is mounted in the workers.
    pub mounted_at: &'static str,
    /// The volume may be one that only one node at a time can mount: TensorBoard must then stay out of the worker's
    /// way.
    pub one_node: bool,
}

impl BoardPlan {
    /// Folder of its logs, as the workers see it.
    #[must_use]
    pub fn log_dir(&self) -> String {
        format!("{}/tensorboard", self.mounted_at)
    }
}

/// What a TensorBoard shares with the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum BoardVolume {
    /// A claim, and the folder of it that is mounted.
    Claim(ClaimPath),
    /// A path of an NFS server.
    Nfs {
        /// Name or address of the server.
        server: String,
        /// Exported path.
        path: String,
    },
}

/// Longest name of a job whose Service `<name>-tensorboard` still has a name.
const LONGEST_WITH_BOARD: usize = 63 - "-tensorboard".len();

pub(super) fn resolve(
    name: &str,
    spec: &TrainingJobSpec,
    policy: &Policy,
    storage: &Storage,
    no: &mut Refusals,
) -> Monitoring {
    let wanted = &spec.monitoring;
    check(name, spec, no);
    Monitoring {
        metrics_port: wanted.enabled().then_some(wanted.metrics_port()),
        agent_port: agent_port(spec),
        progress_patterns: patterns(wanted, no),
        watched: watched(&policy.success),
        mlflow: wanted
            .mlflow_tracking_uri
            .clone()
            .map(|uri| Mlflow { uri, experiment: wanted.mlflow_experiment.clone().unwrap_or_else(|| name.to_owned()) }),
        wandb_project: wanted.wandb_project.clone(),
        tracker_secret: wanted.tracker_secret.clone(),
        tensorboard: wanted.tensorboard_enabled().then(|| tensorboard(name, spec, storage)),
    }
}

/// The port of the metrics, whether or not any are served, unless the rendezvous has it.
pub(super) fn agent_port(spec: &TrainingJobSpec) -> u16 {
    let (master, port) = (spec.networking.master_port(), spec.monitoring.metrics_port());
    if [master, master + 1].contains(&port) { master - 1 } else { port }
}

fn check(name: &str, spec: &TrainingJobSpec, no: &mut Refusals) {
    let wanted = &spec.monitoring;
    let (master, metrics) = (spec.networking.master_port(), wanted.metrics_port());
    if wanted.enabled() && [master, master + 1].contains(&metrics) {
        no.push(
            "spec.monitoring.metricsPort",
            format!("{metrics} is used by the rendezvous of one attempt or the next: choose another"),
        );
    }
    if let Some(uri) = &wanted.mlflow_tracking_uri
        && !(uri.starts_with("http://") || uri.starts_with("https://"))
    {
        no.push(
            "spec.monitoring.mlflowTrackingUri",
            format!("{uri:?} is not the address of a server; write for example http://mlflow.example.com:5000"),
        );
    }
    if let Some(secret) = &wanted.tracker_secret
        && !dns_subdomain(secret)
    {
        no.push("spec.monitoring.trackerSecret", format!("{secret:?} is not the name of a Secret"));
    }
    if wanted.tensorboard_enabled() && name.len() > LONGEST_WITH_BOARD {
        no.push(
            "metadata.name",
            format!(
                "has {} characters; with a TensorBoard at most {LONGEST_WITH_BOARD} fit into the name of its Service",
                name.len()
            ),
        );
    }
    if !wanted.enabled() && spec.success_policy.is_some() {
        no.push(
            "spec.successPolicy",
            "can't be judged with monitoring.enabled: false, where nobody sees what the program reports: switch one of \
             them",
        );
    }
}

/// By the code that will read them, so that none is refused only when a worker starts.
fn patterns(wanted: &api::Monitoring, no: &mut Refusals) -> Vec<String> {
    let patterns = wanted.progress.as_ref().map(|progress| progress.patterns.clone()).unwrap_or_default();
    for (index, wrong) in ProgressPatterns::refusals(&patterns) {
        // A regular expression's error draws a picture of several lines.
        let wrong = wrong.split_whitespace().collect::<Vec<_>>().join(" ");
        no.push(format!("spec.monitoring.progress.patterns[{index}]"), wrong);
    }
    patterns
}

/// The metrics that the policy speaks of, each once.
fn watched(policy: &Success) -> Vec<String> {
    let accuracy = policy.target_accuracy.map(|_| vec!["accuracy".to_owned()]);
    let loss = policy.target_loss.map(|_| vec!["loss".to_owned()]);
    let stopping = policy.early_stopping.clone().map(|EarlyStopping { metric, .. }| match metric {
        Some(metric) => vec![metric],
        None => LOSSES.map(str::to_owned).to_vec(),
    });
    let mut all = Vec::new();
    for name in [accuracy, loss, stopping].into_iter().flatten().flatten() {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn tensorboard(name: &str, spec: &TrainingJobSpec, storage: &Storage) -> TensorBoard {
    let whole = |claim: String| BoardVolume::Claim(ClaimPath { claim, path: None });
    let of_checkpoints = storage.checkpoint.as_ref().and_then(|checkpoint| match &checkpoint.volume {
        CheckpointVolume::EmptyDir => None,
        CheckpointVolume::Claim(claim) => Some(whole(claim.clone())),
        CheckpointVolume::New { .. } => Some(whole(names::claim_name(name))),
        CheckpointVolume::Nfs { server, path } => Some(BoardVolume::Nfs { server: server.clone(), path: path.clone() }),
    });
    let of_output = || storage.output.as_ref().map(|output| (BoardVolume::Claim(output.clone()), paths::OUTPUT));
    let Some((volume, mounted_at)) = of_checkpoints.map(|v| (v, paths::CHECKPOINTS)).or_else(of_output) else {
        return TensorBoard::NoStorage;
    };
    // Several workers can only share what many nodes can mount.
    let most = spec.elastic.as_ref().map_or(spec.num_workers(), |elastic| elastic.max_workers);
    let one_node = most == 1 && matches!(volume, BoardVolume::Claim(_));
    let image = spec.monitoring.tensorboard_image.clone().unwrap_or_default();
    TensorBoard::Beside(BoardPlan { image, volume, mounted_at, one_node })
}
