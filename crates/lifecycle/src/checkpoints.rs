//! Checkpoints in the status, as the agent of the first worker reports them.

use super::conditions::{ConditionChange, condition_is, whole_second};
use super::view::View;
use api::{BestCheckpoint, CheckpointStatus, ConditionType, Reason, RestartFrom, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use protocol::checkpoints::{Checkpoints, GoodCheckpoint, ProblemKind};

impl View<'_> {
    /// The latest report on the checkpoints: the final report of an agent that has ended, otherwise the last answer.
    pub(super) fn checkpoint_report(&self) -> Option<Checkpoints> {
        let answer = || {
            let agent = self.input.agent.filter(|agent| agent.is_of(self.current.attempt))?;
            agent.status.checkpoints.clone()
        };
        self.pods.iter().find_map(|pod| pod.report()?.checkpoints.clone()).or_else(answer)
    }
}

/// The record with this report.
pub(super) fn with(record: TrainingJobStatus, report: &Checkpoints) -> TrainingJobStatus {
    let before = record.checkpoint.clone().unwrap_or_default();
    let now = status(report, &before);
    TrainingJobStatus { checkpoint: Some(now).filter(|now| *now != CheckpointStatus::default()), ..record }
}

/// The record with the checkpoint that the last restart request named, also if the annotation is lost later.
pub(super) fn with_request(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    let policy = view.input.plan.storage.checkpoint.as_ref().map(|checkpoint| &checkpoint.policy);
    let named = policy.and_then(|policy| Some((policy.request.clone()?, policy.resume_from.clone()?)));
    if let Some((request, path)) = named {
        let status = record.checkpoint.get_or_insert_default();
        if status.restart_from.as_ref().is_none_or(|known| known.request != request) {
            status.restart_from = Some(RestartFrom { path, request, used: None });
        }
    }
    record
}

/// The condition of the checkpoints' health, by this report.
pub(super) fn health(conditions: &[Condition], report: &Checkpoints) -> Option<ConditionChange> {
    let type_ = ConditionType::CheckpointsHealthy;
    if let Some(problem) = report.problems.first() {
        return Some(ConditionChange::set(type_, false, reason(problem.kind), &problem.message));
    }
    let is_bad = condition_is(conditions, type_, false).is_some();
    let is_known = is_bad || condition_is(conditions, type_, true).is_some();
    let is_news = is_bad || (!is_known && report.latest.is_some());
    is_news.then(|| ConditionChange::set(type_, true, Reason::CheckpointsGood, "nothing is wrong with the checkpoints"))
}

/// The report in the fields of the API. Values that are not reported stay unchanged: a new pod knows nothing of copies.
fn status(reported: &Checkpoints, before: &CheckpointStatus) -> CheckpointStatus {
    let latest = reported.latest.as_ref();
    let copied = reported.copied.as_ref();
    CheckpointStatus {
        latest_path: latest.map(|kept| kept.path.clone()).or_else(|| before.latest_path.clone()),
        latest_epoch: latest.map_or(before.latest_epoch, |kept| kept.epoch.and_then(super::progress::whole)),
        latest_step: latest.map_or(before.latest_step, step),
        last_checkpoint_time: latest.and_then(time).or_else(|| before.last_checkpoint_time.clone()),
        checkpoint_count: i32::try_from(reported.valid.saturating_add(reported.complete)).ok(),
        complete_count: i32::try_from(reported.complete).ok().filter(|count| *count > 0),
        corrupted_count: i32::try_from(reported.corrupted).ok().filter(|count| *count > 0),
        best: reported
            .best
            .as_ref()
            .map(|kept| BestCheckpoint {
                path: kept.path.clone(),
                value: kept.metric.and_then(super::progress::finite),
                step: step(kept),
            })
            .or_else(|| before.best.clone()),
        last_backup_time: copied.and_then(time).or_else(|| before.last_backup_time.clone()),
        last_backup_path: copied.map(|kept| kept.path.clone()).or_else(|| before.last_backup_path.clone()),
        pending_backup: reported.to_copy.clone(),
        resumed_from: reported.resumed_from.as_ref().map(|kept| kept.path.clone()),
        resume_from_used: before.resume_from_used.clone().or_else(|| used_by(reported, None)),
        restart_from: before.restart_from.clone().map(|known| RestartFrom {
            used: known.used.clone().or_else(|| used_by(reported, Some(&known.request))),
            ..known
        }),
        resume_checked: before.resume_checked,
    }
}

/// When an attempt first resumed from the checkpoint that this request or `resumeFrom` named.
fn used_by(reported: &Checkpoints, request: Option<&str>) -> Option<Time> {
    reported.wish_used.filter(|_| reported.request.as_deref() == request).map(|used| Time(whole_second(used)))
}

fn step(kept: &GoodCheckpoint) -> Option<i64> {
    kept.step.and_then(|step| i64::try_from(step).ok())
}

fn time(kept: &GoodCheckpoint) -> Option<Time> {
    kept.time.map(|time| Time(whole_second(time)))
}

fn reason(kind: ProblemKind) -> Reason {
    match kind {
        ProblemKind::Corrupted => Reason::CheckpointCorrupted,
        ProblemKind::NearlyFull => Reason::NearlyFull,
        ProblemKind::CopyFailing => Reason::BackupFailing,
        ProblemKind::Shared => Reason::FolderShared,
        ProblemKind::Suspect => Reason::Suspect,
        ProblemKind::Unreadable | ProblemKind::Unknown => Reason::FolderUnusable,
    }
}
