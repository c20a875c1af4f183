//! Reactions to events during a job's life.

use super::Refusals;
use super::labels::{ENDED, RESTART_REQUESTED};
use api::{
    self, EarlyStopping, FailurePolicy, HangAction, NanPolicy, Reason, RestartPolicy, State, SuccessPolicy,
    TrainingJob, TrainingJobSpec,
};
use failure::restart;
use jiff::Timestamp;
use protocol::failure_rules::{self, FailureRule, RuleAction};
use protocol::gang::Restarts;
use serde::{Deserialize, Serialize};
use text::start_of;

/// Reactions to events during a job's life. The lifecycle may read all of them while the job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether the workers are to be stopped and the job kept.
    pub suspend: bool,
    /// Unique value of the last restart request.
    pub restart_requested: Option<String>,
    /// How the job had ended before it was restored from a backup. It counts only until the job has a state.
    pub ended: Option<RestoredEnd>,
    /// Seconds from the job's end to the deletion of the TrainingJob; `None` keeps it forever.
    pub ttl_seconds: Option<u32>,
    /// Handling of failures.
    pub failure: Failure,
    /// Goals that complete the job early.
    pub success: Success,
}

/// Handling of failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Settings for restarts.
    pub restart: restart::Policy,
    /// Seconds that the job may run, over all attempts.
    pub active_deadline_seconds: Option<u32>,
    /// Seconds that an attempt may take until every worker's program runs.
    pub start_deadline_seconds: Option<u32>,
    /// Seconds that a node may be unreachable before its worker is replaced.
    pub node_lost_seconds: u32,
    /// Whether a loss that is NaN or infinite stops the program.
    pub nan_fails: bool,
    /// Seconds without a step after which a program may be hung.
    pub hang_timeout_seconds: u32,
    /// Seconds without any sign of life after which a program that reports no steps is considered hung.
    pub hang_idle_timeout_seconds: u32,
    /// Whether a hung program is stopped.
    pub hang_fails: bool,
}

/// Goals that complete the job early.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    /// Accuracy at or above which the job is stopped.
    pub target_accuracy: Option<f64>,
    /// Training loss at or below which the job is stopped.
    pub target_loss: Option<f64>,
    /// Criterion for stopping when a metric no longer improves.
    pub early_stopping: Option<EarlyStopping>,
}

/// How a job had ended before it was restored from a backup. It does not run again.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestoredEnd {
    /// Completed or Failed.
    pub state: State,
    /// Reason of its end.
    pub reason: Reason,
    /// Message of its end.
    #[serde(default)]
    pub message: String,
    /// Time of its end.
    pub time: Timestamp,
}

/// The end of this job before it was restored. An annotation of another form is ignored.
#[must_use]
pub fn ended(job: &TrainingJob) -> Option<RestoredEnd> {
    let text = job.metadata.annotations.as_ref()?.get(ENDED)?;
    serde_json::from_str(text).ok().filter(|ended: &RestoredEnd| ended.state.is_finished())
}

/// Maximum bytes of a restart request that are compared.
pub(super) const LONGEST_REQUEST: usize = 253;

/// The restart request of this job. It is an annotation, so it does not change the generation.
#[must_use]
pub fn restart_requested(job: &TrainingJob) -> Option<String> {
    let value = job.metadata.annotations.as_ref()?.get(RESTART_REQUESTED)?.trim();
    (!value.is_empty()).then(|| start_of(value, LONGEST_REQUEST).to_owned())
}

pub(super) fn resolve(job: &TrainingJob, spec: &TrainingJobSpec, errors: &mut Refusals) -> Policy {
    Policy {
        ended: ended(job),
        suspend: spec.suspend,
        restart_requested: restart_requested(job),
        ttl_seconds: spec.ttl_seconds_after_finished,
        failure: failure(&spec.failure_policy, errors),
        success: spec.success_policy.as_ref().map(success).unwrap_or_default(),
    }
}

fn failure(policy: &FailurePolicy, errors: &mut Refusals) -> Failure {
    let rules: Vec<_> = policy.rules.iter().map(rule).collect();
    // Regular expressions are checked by the code that will use them.
    for (index, wrong) in failure_rules::refusals(&rules) {
        errors.push(format!("spec.failurePolicy.rules[{index}].message"), wrong);
    }
    Failure {
        restart: restart::Policy {
            restarts: match policy.restart_policy() {
                RestartPolicy::Never => Restarts::Never,
                RestartPolicy::OnFailure => Restarts::OnFailure,
                RestartPolicy::Always => Restarts::Always,
            },
            backoff_limit: policy.backoff_limit().into(),
            interruptions: restart::INTERRUPTIONS,
            rules,
        },
        active_deadline_seconds: policy.active_deadline_seconds,
        start_deadline_seconds: policy.start_deadline_seconds,
        node_lost_seconds: policy.node_lost_seconds(),
        nan_fails: policy.nan_policy() == NanPolicy::Fail,
        hang_timeout_seconds: policy.hang.timeout_seconds(),
        hang_idle_timeout_seconds: policy.hang.idle_timeout_seconds(),
        hang_fails: policy.hang.action() == HangAction::Restart,
    }
}

fn rule(written: &api::FailureRule) -> FailureRule {
    FailureRule {
        exit_codes: written.exit_codes.clone(),
        reasons: written.reasons.iter().map(Reason::to_string).collect(),
        message: written.message.clone(),
        action: match written.action {
            api::RuleAction::Restart => RuleAction::Restart,
            api::RuleAction::Fail => RuleAction::Fail,
            api::RuleAction::Ignore => RuleAction::Ignore,
        },
    }
}

fn success(policy: &SuccessPolicy) -> Success {
    Success {
        target_accuracy: policy.target_accuracy,
        target_loss: policy.target_loss,
        early_stopping: policy.early_stopping(),
    }
}
