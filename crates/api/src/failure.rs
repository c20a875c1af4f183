//! Handling of failures.

use super::Reason;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Handling of failures. One failed worker fails the gang: all workers stop and restart together.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Condition for restarts. `Never` allows one attempt.
    /// `OnFailure` restarts within `backoffLimit`, except after failures that a retry can't fix.
    /// `Always` restarts after those too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RestartPolicy")]
    pub restart_policy: Option<RestartPolicy>,
    /// Restarts after failures before the job fails, 0 to 1000.
    /// Restarts after evictions, preemptions and node losses do not count.
    /// The same failure for the third time at one step, from the same checkpoint, ends the job earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_limit: Option<u16>,
    /// Seconds that the job may run, from its first start and across restarts; at least 1.
    /// Time suspended or waiting in a queue does not count. May be changed while the job runs. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub active_deadline_seconds: Option<u32>,
    /// Seconds that each attempt may wait for its Jobs to be created, and then for every worker's program to run; at least 1.
    /// After that the job fails with the reason for the wait, such as Denied, Unschedulable or ImagePull.
    /// Time in a queue, suspended, without a valid spec or without a usable checkpoint does not count. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub start_deadline_seconds: Option<u32>,
    /// Seconds that a node may be unreachable before its worker is replaced, 30 to 86400.
    /// The replacement starts although the old pod cannot be confirmed dead.
    /// Values below about 50 have no effect, because Kubernetes takes that long to mark a node NotReady.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400))]
    pub node_lost_seconds: Option<u32>,
    /// Handling of a loss that is NaN or infinite.
    /// With `Report` the metrics and the condition LossFinite show it, and the program continues.
    /// With `Fail` the worker's program is stopped and fails with the reason NaNLoss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NanPolicy")]
    pub nan_policy: Option<NanPolicy>,
    /// Detection and handling of hung programs.
    /// A program hangs if it has reported a step or an epoch, reports none for `timeoutSeconds`, and a second signal confirms it.
    /// Such signals are sleeping processes, unchanged GPU readings, or no output while no GPU computes, all for the same time.
    /// A process stopped by a signal is another one. Files written in the checkpoint folder count as a sign of life.
    /// A program that reports no steps hangs if it shows no sign of life for `idleTimeoutSeconds`.
    #[serde(default, skip_serializing_if = "Hang::is_default")]
    pub hang: Hang,
    /// Overrides for specific failures, at most 20 rules. Rules are evaluated in order and the first match wins.
    /// If none matches, `restartPolicy` and `backoffLimit` apply. May be changed while the job runs.
    /// Not allowed with `restartPolicy: Never`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
}

/// Detection and handling of hung programs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Hang {
    /// Seconds without a step or epoch after which a program may be hung, 30 to 86400.
    /// Choose more than the longest evaluation, compilation or checkpoint takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400))]
    pub timeout_seconds: Option<u32>,
    /// Seconds without any sign of life after which a program that reports no steps is considered hung, 30 to 604800.
    /// It applies before the first step, after the last one, and to programs with unrecognized output.
    /// Signs of life are output, computation (5 % of a core), data transfer, GPU use and writes to the checkpoint folder.
    /// Those of any worker count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 604_800))]
    pub idle_timeout_seconds: Option<u32>,
    /// Reaction to a hang. `Report` sets the condition ProgressStalled, emits an event and logs the stacks of all ranks.
    /// `Restart` fails the attempt with the reason Hang, so that the gang restarts within `backoffLimit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HangAction")]
    pub action: Option<HangAction>,
}

impl Hang {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Reaction to a hung program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangAction {
    /// The operator reports the hang.
    Report,
    /// The gang restarts.
    Restart,
}

/// Rule for specific failures. It matches if all of its conditions match. At least one condition is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// Exit codes of the program that the rule applies to, 1 to 255 each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub exit_codes: Vec<i32>,
    /// Reasons of the first cause that the rule applies to, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cause_reasons")]
    pub reasons: Vec<Reason>,
    /// Regular expression that must match within the message of the first cause, up to 512 characters.
    /// The syntax is that of Rust's regex, without look-around and back-references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub message: Option<String>,
    /// Consequence of a matching failure.
    /// `Restart` starts another attempt within `backoffLimit`, even if a retry can't help. `Fail` fails the job at once.
    /// `Ignore` starts another attempt that does not count against `backoffLimit`; consecutive ones wait increasingly long.
    /// The tenth in a row ends the job if each came within 5 minutes and without progress.
    pub action: RuleAction,
}

/// Consequence of a failure that a rule matches.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Another attempt, which counts against `backoffLimit`.
    Restart,
    /// No further attempt.
    Fail,
    /// Another attempt, which does not count against `backoffLimit`.
    Ignore,
}

/// Lists the reasons that a first cause can have, so that the API server rejects all others.
fn cause_reasons(_: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = Reason::CAUSES.iter().map(Reason::as_str).collect();
    json_schema!({ "type": "array", "items": { "type": "string", "enum": words }, "minItems": 1, "maxItems": 64 })
}

/// Condition for restarts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// No restart.
    Never,
    /// Restarts after failures that a retry may fix.
    OnFailure,
    /// Restarts after every failure.
    Always,
}

/// Handling of a loss that is NaN or infinite.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanPolicy {
    /// The operator reports the loss.
    Report,
    /// The program is stopped.
    Fail,
}
