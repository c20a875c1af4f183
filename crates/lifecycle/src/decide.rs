//! One decision on a job: the observations become a status and the actions to take.

use super::conditions::ConditionChange;
use super::count::counted;
use super::decision::{Decision, Input};
use super::effects::{Effects, effects};
use super::events::events;
use super::goodput;
use super::phase::{Phase, phase};
use super::record::take_in;
use super::status::status;
use super::view::{View, has_begun, incarnation};
use api::{ConditionType, HandledRestart, State, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::{Children, ObservedJob};
use plan::{Plan, RestoredEnd, Role};
use std::collections::BTreeSet;

/// The most phases in one decision: a failed job starts again, an attempt has ended, and the next one starts.
const PHASES: usize = 3;

/// Decides the state of a job and the actions to take.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    let (mut done, mut reported) = (Effects::default(), Vec::new());
    let mut before = input.status.clone();
    before.observed_generation = input.generation;
    // A job of an older operator names no image. Any agent can report its checkpoints.
    before.agent_image.get_or_insert_with(|| input.plan.runtime.agent_image.clone());
    if let Some(ended) = input.plan.policy.ended.as_ref().filter(|_| before.state.is_none()) {
        before = restored(input, before, ended);
    }
    let mut was_over = true;
    for _ in 0..PHASES {
        let is_over = before.state.is_some_and(State::is_finished);
        let view = if is_over { View::new(input, before.clone()) } else { take_in(input, before.clone()) };
        let phase = phase(&view);
        let after = goodput::with_time(&before, status(&view, &phase), input.now);
        was_over &= matches!(phase, Phase::Over);
        done = done.and(effects(&view, &phase, &after));
        reported.extend(events(&view, &phase, &before, &after));
        before = after;
        if !phase.leads_on() {
            break;
        }
    }
    let status = if was_over { before } else { counted(View::new(input, before)) };
    let Effects { actions, read_events_of, requeue } = done;
    Decision { status, actions, events: reported, read_events_of: read_events_of.into_iter().collect(), requeue }
}

/// The record of a job that had ended before it was restored from a backup.
fn restored(input: &Input<'_>, record: TrainingJobStatus, ended: &RestoredEnd) -> TrainingJobStatus {
    let mut record = TrainingJobStatus {
        state: Some(ended.state),
        completion_time: Some(Time(ended.time)),
        // A restart that was requested before the restore is no new request.
        asked_restart: input.plan.policy.restart_requested.clone().map(|request| HandledRestart {
            request,
            time: Time(input.now),
            attempt: 1,
        }),
        ..record
    };
    let type_ = match ended.state {
        State::Failed => {
            (record.failure_reason, record.failure_message) = (Some(ended.reason.clone()), Some(ended.message.clone()));
            ConditionType::Failed
        }
        _ => ConditionType::Succeeded,
    };
    let reported = ConditionChange::set(type_, true, ended.reason.clone(), &ended.message);
    reported.write(&mut record.conditions, input.generation, ended.time);
    record
}

/// The failed Job of this incarnation with a pod that was never seen, unless its pods were read for that reason. Either
/// the pod is gone with its final report, or the watch of pods is behind.
#[must_use]
pub fn misses_pods<'a>(status: &TrainingJobStatus, children: &'a Children) -> Option<&'a ObservedJob> {
    let current = incarnation(status);
    let has_failed = |job: &&ObservedJob| job.failed.is_some() && job.incarnation == current.number;
    let misses = |job: &&ObservedJob| {
        let pods = children.pods.values().filter(|pod| pod.role == job.role && pod.incarnation == job.incarnation);
        let seen: BTreeSet<u32> = pods.map(|pod| pod.index).chain(job.completed.iter().copied()).collect();
        let wanted = job.parallelism.and_then(|pods| usize::try_from(pods).ok()).unwrap_or(0);
        seen.len() < wanted
    };
    let is_read = |job: &&ObservedJob| children.pods_read_of.get(&job.role) == Some(&job.uid);
    let is_over = status.state.is_some_and(State::is_finished);
    let failed = children.jobs.values().map(|job| &**job).filter(|job| !is_over && has_failed(job));
    failed.filter(|job| !is_read(job)).find(misses)
}

/// Whether an incarnation has begun while one of its Jobs is unknown, or known only from an earlier one. Either the Job
/// was deleted, or the watch of Jobs is behind.
#[must_use]
pub fn misses_job(plan: &Plan, status: &TrainingJobStatus, children: &Children) -> bool {
    let current = incarnation(status);
    let misses = |role: &Role| children.job(role.name).is_none_or(|job| job.incarnation < current.number);
    plan.gang.roles.iter().any(misses)
        && !status.state.is_some_and(State::is_finished)
        && has_begun(status, children, current)
}
