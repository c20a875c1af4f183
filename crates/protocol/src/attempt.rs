//! The end of an attempt, and the history of the ends of a job's attempts.
//!
//! [`AttemptEnd`] is the only record of an end.
//! A leader sends it, an agent stores it in its termination message, and the operator keeps it in the status.
//! The restart decision (`failure::restart`) is based on it.
//! Place and message are separate fields; only its `Display` joins them.

use crate::reason::Reason;
use crate::role::{ReplicaId, RoleName};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An attempt that ended in a restart, or is about to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptEnd {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time of its first failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "date_time"))]
    pub time: Option<Timestamp>,
    /// First cause of the failure, in one CamelCase word.
    pub reason: Reason,
    /// Description of the first cause, without its place.
    pub message: String,
    /// Role of the pod that failed first, unless it is a worker.
    #[serde(default, skip_serializing_if = "RoleName::is_worker")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub role: RoleName,
    /// Index of the worker that failed first, or of the pod within its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Name of the pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Node of the pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Rank of the process that failed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
    /// Exit code of the program that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Largest step that the attempt reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Checkpoint that the attempt resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
    /// Whether the attempt does not count against `backoffLimit`.
    /// True after an eviction, a preemption, a node loss, or a match with a rule that says Ignore.
    #[serde(default)]
    pub disruption: bool,
    /// Whether a retry can't help.
    /// True after, for example, a command that does not exist, or a match with a rule that says Fail.
    #[serde(default)]
    pub permanent: bool,
    /// Number of the matching rule in `failurePolicy.rules`, from 1. Absent if none matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Seconds from the start of the attempt's first worker to the failure.
    #[serde(default)]
    pub ran_seconds: i64,
}

#[cfg(feature = "schema")]
fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "format": "date-time", "nullable": true })
}

/// Classification of the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A failure of the program; it counts against `backoffLimit`.
    Failure,
    /// A disruption that the program did not cause.
    Disruption,
    /// A user or the operator requested another attempt.
    Requested,
}

impl AttemptEnd {
    /// Creates an end with only these facts known.
    #[must_use]
    pub fn new(attempt: u32, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            attempt,
            time: None,
            reason,
            message: message.into(),
            role: RoleName::WORKER,
            worker: None,
            pod: None,
            node: None,
            rank: None,
            exit_code: None,
            step: None,
            resumed_from: None,
            disruption: false,
            permanent: false,
            rule: None,
            ran_seconds: 0,
        }
    }

    /// The place in the gang that failed first, if there was one.
    #[must_use]
    pub fn replica_id(&self) -> Option<ReplicaId> {
        self.worker.map(|index| ReplicaId { role: self.role, index })
    }

    /// Message for the end of the job, if no other attempt follows. `why` is empty if the cause already explains it.
    #[must_use]
    pub fn ends_job(&self, why: &str) -> String {
        if why.is_empty() { self.to_string() } else { format!("{self} ({why})") }
    }

    /// Classifies the end.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.reason {
            Reason::Restarted | Reason::Resized => Class::Requested,
            _ if self.disruption => Class::Disruption,
            _ => Class::Failure,
        }
    }

    /// Whether the attempt was interrupted from outside. A failure that a rule ignores was not.
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.disruption && self.rule.is_none()
    }

    /// Whether the job waits for a user's decision, because none of its checkpoints can be used.
    #[must_use]
    pub fn waits_for_word(&self) -> bool {
        self.reason == Reason::NoUsableCheckpoint && self.rule.is_none()
    }
}

/// Message for users: `worker 1 (pod x-training-1-abcde, node n), rank 3: exit code 1 (rule 2 of failurePolicy.rules: Fail)`.
impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.replica_id() {
            write!(f, "{}", place.in_pod(self.pod.as_deref(), self.node.as_deref()))?;
            if let Some(rank) = self.rank {
                write!(f, ", rank {rank}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)?;
        let Some(rule) = self.rule else { return Ok(()) };
        let action = match (self.disruption, self.permanent) {
            (true, _) => "Ignore",
            (false, true) => "Fail",
            (false, false) => "Restart",
        };
        write!(f, " (rule {rule} of failurePolicy.rules: {action})")
    }
}

/// Summary of all ended attempts, from which restart decisions are made.
/// The leader of a gang keeps it while its pods exist; the job's status always has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RestartHistory {
    /// Last attempt whose end was evaluated.
    pub judged: u32,
    /// Number of restarts after failures of the program. `backoffLimit` is their maximum.
    pub failures: u32,
    /// Number of restarts after disruptions.
    pub disruptions: u32,
    /// Number of consecutive quick failures without progress, not counting the disruptions between them.
    pub failures_in_a_row: u32,
    /// Number of consecutive quick disruptions without progress.
    pub disruptions_in_a_row: u32,
    /// Largest step that any attempt reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// The failure that repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<RepeatedFailure>,
    /// Reason why no further attempt follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// A failure that repeats at the same step, from the same checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RepeatedFailure {
    /// Reason of the failure.
    pub reason: String,
    /// Step at which the failure occurs.
    pub step: i64,
    /// End of the path of the checkpoint that those attempts resumed from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checkpoint: String,
    /// Number of consecutive occurrences.
    pub times: u32,
}

impl RepeatedFailure {
    /// Number of consecutive occurrences after which no further attempt follows.
    pub const ENOUGH: u32 = 3;
}

impl RestartHistory {
    /// Whether this history includes an end that `other` lacks.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.judged, self.stopped.is_some()) > (other.judged, other.stopped.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_end_names_place_pod_node_rank_and_rule() {
        let end = AttemptEnd::new(2, Reason::ExitCode, "exit code 3");
        assert_eq!(end.to_string(), "exit code 3");
        let end = AttemptEnd { worker: Some(1), ..end };
        assert_eq!(end.to_string(), "worker 1: exit code 3");
        let end = AttemptEnd { rank: Some(9), pod: Some("x-1".to_owned()), node: Some("n".to_owned()), ..end };
        assert_eq!(end.to_string(), "worker 1 (pod x-1, node n), rank 9: exit code 3");
        let ps = AttemptEnd { role: RoleName::literal("ps"), rule: Some(2), permanent: true, node: None, ..end };
        assert_eq!(ps.to_string(), "ps 1 (pod x-1), rank 9: exit code 3 (rule 2 of failurePolicy.rules: Fail)");
    }

    #[test]
    fn attempt_end_omits_role_of_workers() {
        let end = AttemptEnd { worker: Some(0), ..AttemptEnd::new(1, Reason::Signal, "m") };
        let json = serde_json::to_string(&end).unwrap();
        assert!(!json.contains("role"), "{json}");
        let ps = AttemptEnd { role: RoleName::literal("ps"), ..end };
        let json = serde_json::to_string(&ps).unwrap();
        assert!(json.contains(r#""role":"ps""#), "{json}");
        assert_eq!(serde_json::from_str::<AttemptEnd>(&json).unwrap(), ps);
        assert!(serde_json::from_str::<AttemptEnd>(&json.replace("\"ps\"", "\"p s\"")).is_err());
    }
}
