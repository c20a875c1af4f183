//! What the agent of the first worker tells of the checkpoints.

use super::conditions::{condition_is, whole_second};
use super::step::Step;
use api::{BestCheckpoint, CheckpointStatus, ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::Container;
use protocol::checkpoints::{Checkpoints, Kept, ProblemKind};

impl Step<'_> {
    /// Takes in how the checkpoints stand: by the agent's last answer, and by its last words once it has ended.
    pub(super) fn note_checkpoints(&mut self) {
        let current = self.incarnation();
        let answer = self.input.agent.filter(|agent| agent.is_of(current.attempt));
        let pods = self.pods(current);
        let last_words = pods.iter().find_map(|pod| match &pod.training {
            Container::Terminated { report: Some(report), .. } => report.checkpoints.clone(),
            _ => None,
        });
        let told = last_words.or_else(|| answer.and_then(|agent| agent.status.checkpoints.clone()));
        if let Some(told) = told {
            self.take_in_checkpoints(&told);
        }
    }

    /// What was told becomes the status, conditions and events.
    pub(super) fn take_in_checkpoints(&mut self, told: &Checkpoints) {
        let before = self.status.checkpoint.clone().unwrap_or_default();
        let now = status(told, &before);
        self.tell_of_checkpoints(&before, &now, told);
        self.status.checkpoint = Some(now).filter(|now| *now != CheckpointStatus::default());
        let was = self.was(ConditionType::CheckpointsHealthy);
        match told.problems.first() {
            Some(problem) => {
                let reason = reason(problem.kind);
                let said = condition_is(&self.status.conditions, ConditionType::CheckpointsHealthy, false);
                // Another one that is bad is news; what a store says of itself changes all the time.
                let of_one = matches!(problem.kind, ProblemKind::Corrupted | ProblemKind::Suspect);
                let is_said = said
                    .is_some_and(|said| said.reason == reason.as_str() && (!of_one || said.message == problem.message));
                if !is_said {
                    self.event(true, event_of(problem.kind), problem.message.clone());
                }
                self.set(ConditionType::CheckpointsHealthy, false, reason, &problem.message);
            }
            None if was == Some(false) || (was.is_none() && told.latest.is_some()) => {
                let good = "nothing is wrong with the checkpoints";
                self.set(ConditionType::CheckpointsHealthy, true, Reason::CheckpointsGood, good);
            }
            None => {}
        }
    }

    fn tell_of_checkpoints(&mut self, before: &CheckpointStatus, now: &CheckpointStatus, told: &Checkpoints) {
        if let (Some(resumed), true) = (&now.resumed_from, now.resumed_from != before.resumed_from) {
            let at = told.resumed_from.as_ref().and_then(|kept| kept.step).map(|step| format!(" (step {step})"));
            let attempt = self.incarnation().attempt;
            let note = format!("attempt {attempt} resumes from {resumed}{}", at.unwrap_or_default());
            self.event(false, "ResumedFrom", note);
        }
        let is_newer = now.latest_path != before.latest_path || now.latest_step != before.latest_step;
        if let (Some(path), true) = (&now.latest_path, is_newer) {
            let at = now.latest_step.map(|step| format!(" (step {step})")).unwrap_or_default();
            self.event(false, "CheckpointSaved", format!("{path}{at} is whole and good"));
        }
        if let (Some(path), true) = (&now.last_backup_path, now.last_backup_path != before.last_backup_path) {
            self.event(false, "BackedUp", format!("{path} is copied, and can be restored"));
        }
    }
}

/// What is told, in the words of the API. What is not told stays as it was: a pod that comes anew knows nothing of copies.
fn status(told: &Checkpoints, before: &CheckpointStatus) -> CheckpointStatus {
    let latest = told.latest.as_ref();
    let copied = told.copied.as_ref();
    CheckpointStatus {
        latest_path: latest.map(|kept| kept.path.clone()).or_else(|| before.latest_path.clone()),
        latest_epoch: latest.map_or(before.latest_epoch, |kept| kept.epoch.and_then(super::progress::whole)),
        latest_step: latest.map_or(before.latest_step, step),
        last_checkpoint_time: latest.and_then(time).or_else(|| before.last_checkpoint_time.clone()),
        checkpoint_count: i32::try_from(told.valid.saturating_add(told.complete)).ok(),
        complete_count: i32::try_from(told.complete).ok().filter(|count| *count > 0),
        corrupted_count: i32::try_from(told.corrupted).ok().filter(|count| *count > 0),
        best: told
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
        pending_backup: told.to_copy.clone(),
        resumed_from: told.resumed_from.as_ref().map(|kept| kept.path.clone()),
        resume_from_used: before.resume_from_used.clone().or(told.wish_used.map(|used| Time(whole_second(used)))),
        resume_checked: before.resume_checked,
    }
}

fn step(kept: &Kept) -> Option<i64> {
    kept.step.and_then(|step| i64::try_from(step).ok())
}

fn time(kept: &Kept) -> Option<Time> {
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

fn event_of(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Corrupted => "CheckpointCorrupted",
        ProblemKind::NearlyFull => "VolumeNearlyFull",
        ProblemKind::CopyFailing => "BackupFailing",
        ProblemKind::Shared => "FolderShared",
        ProblemKind::Suspect => "CheckpointSuspect",
        ProblemKind::Unreadable | ProblemKind::Unknown => "CheckpointsUnusable",
    }
}
