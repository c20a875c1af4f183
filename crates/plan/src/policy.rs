//! What is to become of a job when something happens to it.

use super::Refusals;
use super::labels::RESTART_REQUESTED;
use api::{
    self, EarlyStopping, FailurePolicy, HangAction, NanPolicy, Reason, RestartPolicy, SuccessPolicy, TrainingJob,
    TrainingJobSpec,
};
use failure::restart;
use protocol::failure_rules::{self, FailureRule, RuleAction};
use protocol::gang::Restarts;
use text::start_of;

/// What is to become of a job when something happens to it. All of it may be asked for while the job runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Whether the workers are to be stopped, and the job kept.
    pub suspend: bool,
    /// The last restart that was asked for, by a value that nobody else has.
    pub restart_requested: Option<String>,
    /// Seconds after its end at which the TrainingJob is deleted; never without one.
    pub ttl_seconds: Option<u32>,
    /// What happens when a worker fails.
    pub failure: Failure,
    /// When the job is good enough.
    pub success: Success,
}

/// What happens when a worker fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whether another attempt follows.
    pub restart: restart::Policy,
    /// Seconds that the job may run, over all attempts.
    pub active_deadline_seconds: Option<u32>,
    /// Seconds that an attempt may take until every worker's program runs.
    pub start_deadline_seconds: Option<u32>,
    /// Seconds from a node's last sign of life until its worker is replaced.
    pub node_lost_seconds: u32,
    /// Whether a loss that is NaN or infinite ends the program.
    pub nan_fails: bool,
    /// Seconds without a step after which a program may hang.
    pub hang_timeout_seconds: u32,
    /// Seconds without any sign of life after which a program that reports no steps may hang.
    pub hang_idle_timeout_seconds: u32,
    /// Whether a program that hangs is ended.
    pub hang_fails: bool,
}

/// When the job is good enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    /// Accuracy from which on it is.
    pub target_accuracy: Option<f64>,
    /// Training loss down to which it is.
    pub target_loss: Option<f64>,
    /// When a metric no longer gets better.
    pub early_stopping: Option<EarlyStopping>,
}

/// The most bytes of a request that are looked at.
const LONGEST_REQUEST: usize = 253;

/// What asks for another attempt of this job: not in its spec, and so no change of its generation.
#[must_use]
pub fn restart_requested(job: &TrainingJob) -> Option<String> {
    let value = job.metadata.annotations.as_ref()?.get(RESTART_REQUESTED)?.trim();
    (!value.is_empty()).then(|| start_of(value, LONGEST_REQUEST).to_owned())
}

pub(super) fn resolve(spec: &TrainingJobSpec, restart_requested: Option<String>, no: &mut Refusals) -> Policy {
    Policy {
        suspend: spec.suspend,
        restart_requested,
        ttl_seconds: spec.ttl_seconds_after_finished,
        failure: failure(&spec.failure_policy, no),
        success: spec.success_policy.as_ref().map(success).unwrap_or_default(),
    }
}

fn failure(policy: &FailurePolicy, no: &mut Refusals) -> Failure {
    let rules: Vec<_> = policy.rules.iter().map(rule).collect();
    // Regular expressions are checked by the code that will use them.
    for (index, wrong) in failure_rules::refusals(&rules) {
        no.push(format!("spec.failurePolicy.rules[{index}].message"), wrong);
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
