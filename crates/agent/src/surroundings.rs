//! What runs of the program are given: by who started the agent, and by the container.

use crate::channels::Channels;
use crate::hang;
use crate::keeper::Keeper;
use crate::progress::objective::ObjectiveTracker;
use crate::serve::gpu::Gpus;
use crate::wake::Wake;
use crate::words::Words;
use nix::sys::signal::SigSet;
use protocol::objective::ObjectiveRule;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use crate::run::leftovers::Leftovers;

/// What holds for every run.
pub struct Options {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// Variables that the agent knows and its program is not to have.
    pub withheld: Vec<String>,
    /// Between a stop from outside and SIGKILL.
    pub grace: Duration,
    /// What of earlier runs is removed before each run.
    pub leftovers: Leftovers,
    /// How long processes may outlive SIGKILL until the pod is given up, so that its gang goes on elsewhere.
    pub unkillable_after: Duration,
    pub termination_log: PathBuf,
    /// Where `/status`, `/metrics` and `/healthz` are served; nowhere without one.
    pub metrics_port: Option<u16>,
    /// The file with the key by which the answers of `/status` are proven; they are not without one.
    pub answer_key: Option<PathBuf>,
    /// Regular expressions by which progress is read off the output, instead of the forms known by themselves.
    pub progress_patterns: Vec<String>,
    /// A loss that is NaN or infinite ends the program and is a failure.
    pub fail_on_nan: bool,
    /// What is done about a program that hangs; it is not watched without one.
    pub hang: Option<hang::Policy>,
    /// What is to be done with the job's checkpoints: a file with a
    /// [`CheckpointPolicy`](protocol::checkpoints::CheckpointPolicy). Nothing without one.
    pub checkpoints: Option<PathBuf>,
    /// Added to the command where there is a checkpoint to go on from.
    pub resume_args: Vec<OsString>,
    /// Where the agent finds its gang; without one it runs its program once, for itself.
    pub gang: Option<crate::gang::Options>,
    /// The folder where this container's user can ask the agent; nobody can without one.
    pub state: Option<PathBuf>,
    /// The folder with the archive of the program's code; the code is elsewhere without one.
    pub code: Option<PathBuf>,
    /// Metrics whose every reading is kept for `/status`.
    pub watch_metrics: Vec<String>,
    /// The metric by which the job is compared with others, whose readings are recorded.
    pub objective: Option<ObjectiveRule>,
}

/// What every run needs of the container.
pub struct Surroundings {
    pub options: Options,
    /// Who takes care of the checkpoints.
    pub keeper: Option<Arc<Keeper>>,
    /// The signals that the program shall have blocked.
    pub signal_mask: SigSet,
    pub channels: Channels,
    pub gpus: Gpus,
    /// Readings of the objective in all runs, if there is one.
    pub objective: Option<Arc<ObjectiveTracker>>,
    pub wake: Arc<Wake>,
    pub words: Arc<Words>,
}
