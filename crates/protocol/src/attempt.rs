//! How an attempt ended, and what the ends of a job's attempts add up to.
//!
//! [`AttemptEnd`] is the one record of it: a leader sends it, an agent leaves it in its last words, the operator keeps it in
//! the status, and the decision on what follows is made from it (`failure::restart`). Place and message stay apart until
//! a person reads them: [`AttemptEnd::fmt`] is the only place where they are put together.

use crate::reason::Reason;
use crate::role::{Place, RoleName};
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
    /// When its first failure was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "date_time"))]
    pub time: Option<Timestamp>,
    /// The first cause, in one CamelCase word.
    pub reason: Reason,
    /// The first cause in words, without the place where it was.
    pub message: String,
    /// Role of the pod that failed first, where it is no worker.
    #[serde(default, skip_serializing_if = "RoleName::is_worker")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub role: RoleName,
    /// Index of the worker that failed first, or of the pod of another role among those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Name of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Node on which its pod was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Rank of the process that failed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
    /// Exit code of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The largest step that the attempt reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// The checkpoint that the attempt resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
    /// True if the worker was evicted, preempted or its node lost, or a rule says Ignore: then it doesn't count against `backoffLimit`.
    #[serde(default)]
    pub disruption: bool,
    /// True if trying again can't help, such as after a command that doesn't exist, or a rule says Fail.
    #[serde(default)]
    pub permanent: bool,
    /// Number of the rule of `failurePolicy.rules` that decided what follows, from 1; none if none matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Seconds from the start of its first worker to the failure.
    #[serde(default)]
    pub ran_seconds: i64,
}

#[cfg(feature = "schema")]
fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "format": "date-time", "nullable": true })
}

/// What the end of an attempt counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A failure of the program: it spends `backoffLimit`.
    Failure,
    /// Something that the program can't help.
    Disruption,
    /// A person or the operator asked for another attempt.
    Requested,
}

impl AttemptEnd {
    /// An end of which no more is known than this.
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

    /// The place in the gang that failed first, if it was one.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.worker.map(|index| Place { role: self.role, index })
    }

    /// The end of the job in words, if no other attempt follows: `why` is empty where the cause says it.
    #[must_use]
    pub fn ends_job(&self, why: &str) -> String {
        if why.is_empty() { self.to_string() } else { format!("{self} ({why})") }
    }

    /// What it counts as.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.reason {
            Reason::Restarted | Reason::Resized => Class::Requested,
            _ if self.disruption => Class::Disruption,
            _ => Class::Failure,
        }
    }

    /// Whether it was interrupted from outside: a failure that a rule ignores was not.
    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.disruption && self.rule.is_none()
    }

    /// Whether the job waits until a person says what follows: none of its checkpoints can be used.
    #[must_use]
    pub fn waits_for_word(&self) -> bool {
        self.reason == Reason::NoUsableCheckpoint && self.rule.is_none()
    }
}

/// As a person reads it: `worker 1 (pod x-training-1-abcde, node n), rank 3: exit code 1 (rule 2 of failurePolicy.rules: Fail)`.
impl fmt::Display for AttemptEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place() {
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

/// What the ends of a job's attempts add up to: the memory of the decision on restarts. The leader of a gang has it while its
/// pods live, the status of the job always.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RestartHistory {
    /// The last attempt whose end was judged.
    pub judged: u32,
    /// Restarts after failures of the program: what `backoffLimit` bounds.
    pub failures: u32,
    /// Restarts after disruptions.
    pub disruptions: u32,
    /// Quick failures in a row without progress, not counting the disruptions between them.
    pub failures_in_a_row: u32,
    /// Quick disruptions in a row without progress.
    pub disruptions_in_a_row: u32,
    /// The largest step that any attempt reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// The failure that comes again and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<RepeatedFailure>,
    /// Why no further attempt follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// The same failure at the same step, from the same checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RepeatedFailure {
    /// Its reason.
    pub reason: String,
    /// The step at which it came.
    pub step: i64,
    /// The end of the path of the checkpoint that those attempts had resumed from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checkpoint: String,
    /// How often in a row.
    pub times: u32,
}

impl RepeatedFailure {
    /// So many times in a row are enough: no further attempt follows.
    pub const ENOUGH: u32 = 3;
}

impl RestartHistory {
    /// Whether this one knows of an end that `other` does not.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.judged, self.stopped.is_some()) > (other.judged, other.stopped.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_place_pod_node_rank_and_rule() {
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
    fn a_role_is_written_unless_it_is_a_worker() {
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
