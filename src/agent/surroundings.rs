//! What runs of the program are given: by who started the agent, and by the container.

use crate::agent::channels::Channels;
use crate::agent::gang::Workers;
use crate::agent::hang;
use crate::agent::keeper::Keeper;
use crate::agent::keeper::choice::Choice;
use crate::agent::remote::Shell;
use crate::agent::serve::gpu::Gpus;
use crate::agent::wake::Wake;
use crate::agent::words::Words;
use crate::protocol::gang::GangEnd;
use nix::sys::signal::SigSet;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What holds for every run.
pub struct Options {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// Between a stop from outside and SIGKILL.
    pub grace: Duration,
    pub termination_log: PathBuf,
    /// Where `/status`, `/metrics` and `/healthz` are served; nowhere without one.
    pub metrics_port: Option<u16>,
    /// Regular expressions by which progress is read off the output, instead of the forms known by themselves.
    pub progress_patterns: Vec<String>,
    /// A loss that is NaN or infinite ends the program and is a failure.
    pub fail_on_nan: bool,
    /// What is done about a program that hangs; it is not watched without one.
    pub hang: Option<hang::Policy>,
    /// What is to be done with the job's checkpoints: a file with a
    /// [`CheckpointPolicy`](crate::protocol::checkpoints::CheckpointPolicy). Nothing without one.
    pub checkpoints: Option<PathBuf>,
    /// Added to the command where there is a checkpoint to go on from.
    pub resume_args: Vec<OsString>,
    /// Where the agent finds its gang; without one it runs its program once, for itself.
    pub gang: Option<crate::agent::gang::Options>,
    /// Metrics whose every reading is kept for `/status`.
    pub watch_metrics: Vec<String>,
}

/// What changes from one run to the next.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub number: Option<u32>,
    pub master_port: Option<u16>,
    /// Where the first worker is, by number.
    pub master_ip: Option<IpAddr>,
    /// Whom it has, where that is another number in each attempt.
    pub workers: Option<Workers>,
    /// By what one member starts the programs of the others, where that is so.
    pub shell: Option<Box<Shell>>,
    /// Empty for a start from nothing.
    pub resume_from: String,
    /// Steps that the checkpoint has behind it.
    pub resume_step: Option<u64>,
    /// What of the gang belongs into the last words; none where there is no gang.
    pub gang: Option<GangEnd>,
}

impl Attempt {
    /// The same attempt, which goes on from what was chosen.
    #[must_use]
    pub fn from(&self, choice: &Choice) -> Self {
        let resume_step = choice.from.as_ref().and_then(|kept| kept.step);
        Self { resume_from: choice.path.clone(), resume_step, ..self.clone() }
    }
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
    pub wake: Arc<Wake>,
    pub words: Arc<Words>,
}
