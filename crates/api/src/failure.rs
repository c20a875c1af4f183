//! What happens when a worker fails.

use super::Reason;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What happens when a worker fails. One failed worker is a failed gang: all workers stop and start again together.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// `Never`: one attempt. `OnFailure`: restarts within `backoffLimit`, except when trying again can't help. `Always`: restarts after those too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RestartPolicy")]
    pub restart_policy: Option<RestartPolicy>,
    /// Restarts of the gang before the job has failed. Evicted, preempted and lost workers don't count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_limit: Option<u16>,
    /// Seconds that the job may run, from its first start and across restarts; time suspended doesn't count. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub active_deadline_seconds: Option<u32>,
    /// Seconds that each attempt may wait for its Jobs to be made, and then for every worker's program to run. After that the job fails with what it waited for, such as Denied, Unschedulable or ImagePull. Time in a queue, suspended or without a valid spec doesn't count. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub start_deadline_seconds: Option<u32>,
    /// Seconds from a node's last sign of life until another pod takes the place of the worker on it, whose own can't be confirmed dead. Less than some 50 can't be kept: so long Kubernetes takes to notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400))]
    pub node_lost_seconds: Option<u32>,
    /// What happens when the loss is NaN or infinite. `Report`: the metric says so, the program goes on. `Fail`: the worker's program is ended, and fails with the reason NaNLoss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NanPolicy")]
    pub nan_policy: Option<NanPolicy>,
    /// What happens when a program hangs. It hangs if it has told a step or an epoch and tells no other for `timeoutSeconds`, and a second sign agrees: no output for as long, processes that all sleep, GPUs that show always the same, or a process that a signal has stopped. Files written in the checkpoint folder are a sign of life. It also hangs if it reports no steps and shows no sign of life at all for `idleTimeoutSeconds`.
    #[serde(default, skip_serializing_if = "Hang::is_default")]
    pub hang: Hang,
    /// What is to follow from certain failures; the first rule that matches decides, and without one all is as ever.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
}

/// What happens when a program hangs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Hang {
    /// Seconds without a step. More than the longest evaluation, compilation or checkpoint takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400))]
    pub timeout_seconds: Option<u32>,
    /// Seconds without any sign of life in a program that reports no steps: before its first one, after its last one, or because nothing knows its output. No worker prints, computes (5 % of a core), reads or writes data, uses a GPU or writes a file in the checkpoint folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 604_800))]
    pub idle_timeout_seconds: Option<u32>,
    /// `Report`: the condition ProgressStalled and an event say so, and the stacks of all ranks are in the log. `Restart`: the attempt fails with the reason Hang, so that the gang starts again within `backoffLimit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HangAction")]
    pub action: Option<HangAction>,
}

impl Hang {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What is done about a program that hangs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangAction {
    /// It is told.
    Report,
    /// The gang is started again.
    Restart,
}

/// What is to follow from a failure of this kind. It matches if all of its conditions do, and it has one at least.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// The program's exit code is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 255), inner(range(min = 1, max = 255)))]
    pub exit_codes: Vec<i32>,
    /// The reason of the first cause is one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cause_reasons")]
    pub reasons: Vec<Reason>,
    /// A regular expression that is found in the message of the first cause, in the syntax of Rust's regex, without look-around and back-references.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub message: Option<String>,
    /// `Restart`: another attempt within `backoffLimit`, also if trying again could not help. `Fail`: the job fails at once. `Ignore`: another attempt that does not count against `backoffLimit`; many of them in a row wait longer and longer.
    pub action: RuleAction,
}

/// What follows from a failure that a rule matches.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Another attempt, which spends the budget.
    Restart,
    /// No other attempt.
    Fail,
    /// Another attempt, which does not spend it.
    Ignore,
}

/// The words by which a first cause may be called.
fn cause_reasons(_: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = Reason::CAUSES.iter().map(Reason::as_str).collect();
    json_schema!({ "type": "array", "items": { "type": "string", "enum": words }, "minItems": 1, "maxItems": 64 })
}

/// When the gang is restarted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Not at all.
    Never,
    /// After failures that another attempt may not meet.
    OnFailure,
    /// After every failure.
    Always,
}

/// What happens when the loss is NaN or infinite.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanPolicy {
    /// It is told.
    Report,
    /// The program is ended.
    Fail,
}
