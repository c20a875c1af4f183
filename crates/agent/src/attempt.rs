//! The parameters that change from one run of the program to the next.

use crate::checkpoints::choice::ResumeChoice;
use crate::remote::Shell;
use protocol::gang::GangEnd;
use std::net::IpAddr;

/// The parameters that change from one run to the next.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub number: Option<u32>,
    pub master_port: Option<u16>,
    /// IP address of the first worker.
    pub master_ip: Option<IpAddr>,
    /// The workers, if their number differs from attempt to attempt.
    pub workers: Option<Workers>,
    /// The shell with which one member starts the programs of the others, if it does.
    pub shell: Option<Box<Shell>>,
    /// Digest of the code that it runs, if the code is delivered to the pods.
    pub code: Option<String>,
    /// The checkpoint to resume from. Empty for a start from scratch.
    pub resume_from: String,
    /// The step of the checkpoint.
    pub resume_step: Option<u64>,
    /// The gang's part of the last words. None without a gang.
    pub gang: Option<GangEnd>,
}

impl Attempt {
    /// The same attempt, resuming from `choice`.
    #[must_use]
    pub fn from(&self, choice: &ResumeChoice) -> Self {
        let resume_step = choice.from.as_ref().and_then(|kept| kept.step);
        Self { resume_from: choice.path.clone(), resume_step, code: choice.code.clone(), ..self.clone() }
    }
}

/// The workers of an attempt of an elastic gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    /// How many there are.
    pub count: u32,
    /// Where their ranks listen, in order, as a JSON array.
    pub addresses: String,
}
