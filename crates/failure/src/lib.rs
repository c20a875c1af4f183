//! The first cause of a failed attempt.
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! The root is the earliest failure that is not such an echo: [`first_cause`] finds it among [`WorkerFacts`], which the
//! operator takes from pods and an agent has of itself.
//!
//! `gang` ranks who failed first. What each worker's failure was is looked for where it shows best: `disruption` in what
//! happened to its pod, `evidence` in what its agent has left, `ending` in how its containers ended. All of it is pure.

mod disruption;
mod ending;
mod evidence;
mod facts;
mod finding;
mod gang;
mod memory;

pub use facts::{Container, Disruption, FailedInit, Waiting, WorkerFacts};
pub use gang::first_cause;

use jiff::Timestamp;
use protocol::failure_rules::{FailureRule, first_match};
use protocol::reason::Reason;
use protocol::role::{Place, RoleName};

impl Cause {
    /// The place in the gang that failed, if it was one.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.worker.map(|index| Place { role: self.role, index })
    }

    /// What the first rule that matches makes of it.
    #[must_use]
    pub fn ruled(self, rules: &[FailureRule]) -> Self {
        match first_match(rules, self.reason.as_str(), &self.message, self.exit_code) {
            None => self,
            Some(ruling) => Self {
                message: ruling.told(&self.message),
                disruption: ruling.is_disruption(),
                permanent: ruling.is_permanent(),
                rule: Some(ruling.number),
                ..self
            },
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// In one CamelCase word.
    pub reason: Reason,
    /// As a person would tell it.
    pub message: String,
    /// Role of the pod that failed.
    pub role: RoleName,
    /// Its index, among those of its role.
    pub worker: Option<i32>,
    /// Name of its pod.
    pub pod: Option<String>,
    /// The node that it was on.
    pub node: Option<String>,
    /// Rank of the process that failed, as far as anybody has told.
    pub rank: Option<u64>,
    /// Exit code of its program.
    pub exit_code: Option<i32>,
    /// Something outside took the worker away, or would not have it: eviction, preemption, a lost node.
    pub disruption: bool,
    /// Trying again can't help.
    pub permanent: bool,
    /// Number of the rule of `failurePolicy.rules` that has decided on these two, from 1.
    pub rule: Option<u32>,
    /// When.
    pub time: Option<Timestamp>,
}
