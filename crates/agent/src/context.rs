//! The context of the program's runs: the agent's options, and what the container provides.

use crate::agent_log::AgentLog;
use crate::channels::Channels;
use crate::checkpoints::CheckpointManager;
use crate::hang;
use crate::progress::objective::ObjectiveTracker;
use crate::serve::gpu::Gpus;
use crate::wake::Wake;
use nix::sys::signal::SigSet;
use protocol::objective::ObjectiveRule;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use crate::run::leftovers::Leftovers;

/// Options that hold for every run.
pub struct Options {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// Variables that the agent knows and that are withheld from its program.
    pub withheld: Vec<String>,
    /// Time between a stop from outside and SIGKILL.
    pub grace: Duration,
    /// Leftovers of earlier runs that are removed before each run.
    pub leftovers: Leftovers,
    /// How long processes may outlive SIGKILL until the pod is given up, so that its gang continues elsewhere.
    pub unkillable_after: Duration,
    pub termination_log: PathBuf,
    /// The port of `/status`, `/metrics` and `/healthz`. Without it they are not served.
    pub metrics_port: Option<u16>,
    /// The file with the key that proves the answers of `/status`. Without it they have no proof.
    pub answer_key: Option<PathBuf>,
    /// Regular expressions by which progress is read off the output, instead of the forms known by themselves.
    pub progress_patterns: Vec<String>,
    /// A loss that is NaN or infinite ends the program and is a failure.
    pub fail_on_nan: bool,
    /// The policy for a program that hangs. Without it the program is not watched for hangs.
    pub hang: Option<hang::Policy>,
    /// A file with the [`CheckpointPolicy`](protocol::checkpoints::CheckpointPolicy). Without it the job's checkpoints
    /// are not managed.
    pub checkpoints: Option<PathBuf>,
    /// Arguments that are added to the command if there is a checkpoint to resume from.
    pub resume_args: Vec<OsString>,
    /// Where the agent finds its gang. Without it the agent runs its program once, alone.
    pub gang: Option<crate::gang::Options>,
    /// The folder where this container's user can reach the agent. Without it no user can.
    pub state: Option<PathBuf>,
    /// The folder with the archive of the program's code. Without it the code is elsewhere.
    pub code: Option<PathBuf>,
    /// Metrics whose every reading is kept for `/status`.
    pub watch_metrics: Vec<String>,
    /// The metric by which the job is compared with others. Its readings are recorded.
    pub objective: Option<ObjectiveRule>,
}

/// What the container provides to every run.
pub struct AgentContext {
    pub options: Options,
    /// Manages the checkpoints.
    pub manager: Option<Arc<CheckpointManager>>,
    /// The signal mask that the program starts with.
    pub signal_mask: SigSet,
    pub channels: Channels,
    pub gpus: Gpus,
    /// Readings of the objective in all runs, if the job has one.
    pub objective: Option<Arc<ObjectiveTracker>>,
    pub wake: Arc<Wake>,
    pub log: Arc<AgentLog>,
}
