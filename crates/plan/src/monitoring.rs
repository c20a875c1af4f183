//! Progress metrics, TensorBoard and experiment trackers of the job.

use super::storage::paths;
use super::{CheckpointVolume, ClaimPath, Output, Policy, Refusals, Storage, Success, dns_subdomain, names};
use api::{self, EarlyStopping, LOSSES, Mode, TrainingJobSpec};
use protocol::objective::{ObjectiveRule, RungSteps};
use protocol::progress_pattern::ProgressPatterns;

/// Progress metrics, TensorBoard and experiment trackers of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Monitoring {
    /// Port on which each worker serves its progress; `None` if monitoring is disabled.
    pub metrics_port: Option<u16>,
    /// Port on which agents reach the first worker's agent. It is the metrics port, or the port before the rendezvous if
    /// they collide.
    pub agent_port: u16,
    /// Regular expressions for progress in the output, used instead of the built-in formats.
    pub progress_patterns: Vec<String>,
    /// Metrics of which the agent keeps every reading, for the success policy.
    pub watched: Vec<String>,
    /// Metric by which the job is compared with others.
    pub objective: Option<ObjectiveRule>,
    /// Throughput below which an alert fires, in the program's unit.
    pub min_throughput: Option<f64>,
    /// Seconds in which the loss must improve; `None` never checks.
    pub plateau_seconds: Option<u32>,
    /// The MLflow server.
    pub mlflow: Option<Mlflow>,
    /// Weights & Biases project.
    pub wandb_project: Option<String>,
    /// Secret with the trackers' credentials.
    pub tracker_secret: Option<String>,
    /// The TensorBoard of the job, if one is requested.
    pub tensorboard: Option<TensorBoard>,
}

/// An MLflow server, and the job's experiment on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mlflow {
    /// Address of the server.
    pub uri: String,
    /// Experiment that the job's runs belong to.
    pub experiment: String,
}

/// A requested TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorBoard {
    /// A TensorBoard that can read what the workers write.
    Beside(BoardPlan),
    /// No volume outlives a worker and can be mounted by another pod. `TensorBoard=False` reports it with
    /// [`TensorBoard::NO_STORAGE`] and [`TensorBoard::REMEDY`].
    NoStorage,
}

impl TensorBoard {
    /// Reason of the condition `TensorBoard=False`.
    pub const NO_STORAGE: &str = "NoStorage";
    /// Message of that condition.
    pub const REMEDY: &str = "monitoring.tensorboardEnabled needs a volume that the workers and TensorBoard share: set \
                              checkpoint.storage (and leave checkpoint.enabled true) or output, or switch \
                              tensorboardEnabled off";

    /// The plan of the TensorBoard, if it can run.
    #[must_use]
    pub fn board_beside_job(&self) -> Option<&BoardPlan> {
        match self {
            Self::Beside(board) => Some(board),
            Self::NoStorage => None,
        }
    }
}

/// Plan of a TensorBoard.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardPlan {
    /// Image of the TensorBoard.
    pub image: String,
    /// Volume that it shares with the workers.
    pub volume: BoardVolume,
    /// Mount path of the volume in the workers.
    pub mounted_at: &'static str,
    /// Whether the volume may be mountable on one node at a time only. The TensorBoard must then run on the worker's node.
    pub one_node: bool,
}

impl BoardPlan {
    /// Folder of the logs, as the workers see it.
    #[must_use]
    pub fn log_dir(&self) -> String {
        format!("{}/tensorboard", self.mounted_at)
    }
}

/// Volume that a TensorBoard shares with the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum BoardVolume {
    /// A claim, and the folder in it that is mounted.
    Claim(ClaimPath),
    /// A path on an NFS server.
    Nfs {
        /// Host name or address of the server.
        server: String,
        /// Exported path.
        path: String,
    },
}

/// Maximum length of a job's name so that the Service `<name>-tensorboard` has a valid name.
const LONGEST_WITH_BOARD: usize = 63 - "-tensorboard".len();

pub(super) fn resolve(
    name: &str,
    spec: &TrainingJobSpec,
    policy: &Policy,
    storage: &Storage,
    errors: &mut Refusals,
) -> Monitoring {
    let wanted = &spec.monitoring;
    check(name, spec, errors);
    Monitoring {
        metrics_port: wanted.enabled().then_some(wanted.metrics_port()),
        agent_port: agent_port(spec),
        progress_patterns: patterns(wanted, errors),
        watched: watched(&policy.success),
        objective: wanted.objective.as_ref().map(|objective| ObjectiveRule {
            metric: objective.metric.clone(),
            max: objective.mode() == Mode::Max,
            rungs: objective.rungs.map(|rungs| RungSteps { min_step: rungs.min_step, factor: rungs.factor }),
        }),
        min_throughput: wanted.min_throughput,
        plateau_seconds: Some(wanted.plateau_seconds()).filter(|seconds| *seconds > 0),
        mlflow: wanted
            .mlflow_tracking_uri
            .clone()
            .map(|uri| Mlflow { uri, experiment: wanted.mlflow_experiment.clone().unwrap_or_else(|| name.to_owned()) }),
        wandb_project: wanted.wandb_project.clone(),
        tracker_secret: wanted.tracker_secret.clone(),
        tensorboard: wanted.tensorboard_enabled().then(|| tensorboard(name, spec, storage)),
    }
}

/// The metrics port, even if no metrics are served, unless the rendezvous uses it.
pub(super) fn agent_port(spec: &TrainingJobSpec) -> u16 {
    let (master, port) = (spec.networking.master_port(), spec.monitoring.metrics_port());
    if [master, master + 1].contains(&port) { master - 1 } else { port }
}

fn check(name: &str, spec: &TrainingJobSpec, errors: &mut Refusals) {
    let wanted = &spec.monitoring;
    let (master, metrics) = (spec.networking.master_port(), wanted.metrics_port());
    if wanted.enabled() && [master, master + 1].contains(&metrics) {
        errors.push(
            "spec.monitoring.metricsPort",
            format!("{metrics} is used by the rendezvous of one attempt or the next: choose another"),
        );
    }
    if let Some(uri) = &wanted.mlflow_tracking_uri
        && !(uri.starts_with("http://") || uri.starts_with("https://"))
    {
        errors.push(
            "spec.monitoring.mlflowTrackingUri",
            format!("{uri:?} is not the address of a server; write for example http://mlflow.example.com:5000, and for a folder run mlflow server with it"),
        );
    }
    if let Some(secret) = &wanted.tracker_secret
        && !dns_subdomain(secret)
    {
        errors.push("spec.monitoring.trackerSecret", format!("{secret:?} is not the name of a Secret"));
    }
    if wanted.tensorboard_enabled() && name.len() > LONGEST_WITH_BOARD {
        errors.push(
            "metadata.name",
            format!(
                "has {} characters; with a TensorBoard at most {LONGEST_WITH_BOARD} fit into the name of its Service",
                name.len()
            ),
        );
    }
    if !wanted.enabled() && wanted.objective.is_some() {
        errors.push(
            "spec.monitoring.objective",
            "can't be read with monitoring.enabled: false, because the operator then does not see what the program \
             reports: switch one of them",
        );
    }
    if !wanted.enabled() && spec.success_policy.is_some() {
        errors.push(
            "spec.successPolicy",
            "can't be judged with monitoring.enabled: false, because the operator then does not see what the program \
             reports: switch one of them",
        );
    }
}

/// Checks the patterns with the agent's own code, so that no pattern is rejected only when a worker starts.
fn patterns(wanted: &api::Monitoring, errors: &mut Refusals) -> Vec<String> {
    let patterns = wanted.progress.as_ref().map(|progress| progress.patterns.clone()).unwrap_or_default();
    for (index, wrong) in ProgressPatterns::refusals(&patterns) {
        // The error of a regular expression contains a picture of several lines.
        let wrong = wrong.split_whitespace().collect::<Vec<_>>().join(" ");
        errors.push(format!("spec.monitoring.progress.patterns[{index}]"), wrong);
    }
    patterns
}

/// Metrics that the policy refers to, without duplicates.
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
    let of_output = || match &storage.output {
        Some(Output::Claim(output)) => Some((BoardVolume::Claim(output.clone()), paths::OUTPUT)),
        Some(Output::Published(_)) | None => None,
    };
    let Some((volume, mounted_at)) = of_checkpoints.map(|v| (v, paths::CHECKPOINTS)).or_else(of_output) else {
        return TensorBoard::NoStorage;
    };
    // Several workers can only share a volume that many nodes can mount.
    let most = spec.elastic.as_ref().map_or(spec.num_workers(), |elastic| elastic.max_workers);
    let one_node = most == 1 && matches!(volume, BoardVolume::Claim(_));
    let image = spec.monitoring.tensorboard_image.clone().unwrap_or_default();
    TensorBoard::Beside(BoardPlan { image, volume, mounted_at, one_node })
}
