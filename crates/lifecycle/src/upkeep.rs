//! Work on a job's data while no worker runs, by a short Job with the same agent.

use super::checkpoints;
use super::decision::Action;
use super::effects::Effects;
use super::phase::Preparation;
use super::view::View;
use api::{CheckpointStatus, TrainingJobStatus};
use observe::{ChildKey, ObservedUpkeep};
use plan::Upkeep;
use protocol::checkpoints::{Checkpoints, GoodCheckpoint};

/// Seconds until a failed Job is created again.
pub(super) const AGAIN: i64 = 600;

/// State of the copying after the end.
#[derive(Default)]
pub(super) struct Copying {
    /// The report of the Job that has copied.
    pub(super) report: Option<Checkpoints>,
    /// The checkpoints after that report.
    pub(super) checkpoint: Option<CheckpointStatus>,
    /// Why the Job that copies can't be created.
    pub(super) blocked: Option<String>,
    /// Whether checkpoints are still to be copied.
    pub(super) is_under_way: bool,
    pub(super) effects: Effects,
}

/// Copies the checkpoints that the workers had no time to copy.
pub(super) fn copying(view: &View<'_>) -> Copying {
    let plan = view.input.plan;
    let mut copying = Copying { checkpoint: view.record.checkpoint.clone(), ..Copying::default() };
    let copies = plan.storage.checkpoint.as_ref().filter(|c| c.policy.shared && c.policy.backup.is_some());
    if copies.is_none() || view.input.refused.is_some() {
        return copying;
    }
    let (upkeep, other) = match view.input.children.upkeep.as_ref() {
        Some(job) if job.task == Upkeep::Copy.as_str() => (Some(job), None),
        other => (None, other),
    };
    let ended = upkeep.filter(|job| job.ended.is_some());
    let report = ended.and_then(|job| view.words_of_upkeep(job)).and_then(|words| words.checkpoints.clone());
    if let Some(mut report) = report {
        // The Job ran no program, so the checkpoint that the last one resumed from stays.
        let resumed = copying.checkpoint.as_ref().and_then(|status| status.resumed_from.clone());
        report.resumed_from = resumed.map(|path| GoodCheckpoint { path, ..GoodCheckpoint::default() });
        copying.checkpoint = checkpoints::with(view.record.clone(), &report).checkpoint;
        copying.report = Some(report);
    } else if ended.is_some_and(|job| job.ended == Some(true))
        && let Some(status) = &mut copying.checkpoint
    {
        status.pending_backup = None;
    }
    let pending = copying.checkpoint.as_ref().and_then(|status| status.pending_backup.as_deref());
    let lives = view.input.children.pods.values().any(|pod| pod.is_alive());
    copying.is_under_way = match upkeep.map(|job| (job, job.ended)) {
        Some((_, None)) => true,
        Some((job, Some(true))) => {
            copying.effects = Effects::from_actions(deletion(job));
            pending.is_some()
        }
        Some((job, Some(false))) => {
            copying.effects = try_again(view, job);
            false
        }
        None => pending.is_some(),
    };
    if let (Some(_), Some(other)) = (pending, other) {
        copying.effects = Effects::from_actions(deletion(other));
    } else if let (Some(path), None, false) = (pending, upkeep, lives) {
        copying.effects = Effects::from_actions([Action::Ensure, Action::CreateUpkeep(Upkeep::Copy)]);
        copying.blocked = view.input.children.blocked.get(&ChildKey::UPKEEP).map(|blocked| {
            let job = plan::names::upkeep_name(&plan.identity.name);
            format!("{path} is not copied to checkpoint.backup yet: Job {job} can't be made: {}", blocked.message)
        });
    }
    copying
}

/// Why the TTL waits, if a checkpoint on the job's volume has yet to be copied. The job whose Job copies it stays,
/// whatever its TTL.
pub(super) fn words_on_uncopied(view: &View<'_>, status: &TrainingJobStatus) -> Option<String> {
    // A refused spec may no longer show any storage.
    let storage = view.input.plan.storage.checkpoint.as_ref();
    let has_backup = storage.is_none_or(|checkpoint| checkpoint.policy.shared && checkpoint.policy.backup.is_some());
    let path = status.checkpoint.as_ref()?.pending_backup.as_ref().filter(|_| has_backup)?;
    let words = view.input.children.upkeep_words.as_ref().and_then(|(_, words)| words.error.as_ref());
    let why = words.map(|error| format!(": {}", error.message)).unwrap_or_default();
    Some(format!(
        "{path} is not copied to checkpoint.backup yet{why}; ttlSecondsAfterFinished waits for the copy, which is tried \
         again every {} minutes",
        AGAIN / 60
    ))
}

/// The actions for the Job that precedes the workers, or publishes their result.
pub(super) fn prepare(view: &View<'_>, preparation: &Preparation<'_>) -> Effects {
    match preparation {
        Preparation::Missing(task) => Effects::from_actions([Action::Ensure, Action::CreateUpkeep(*task)]),
        Preparation::UnderWay(_) | Preparation::Bad => Effects::default(),
        Preparation::Published((job, _))
        | Preparation::Checked(job)
        | Preparation::Fetched(job, _)
        | Preparation::AfterOther(job)
        | Preparation::GoingOn(job) => Effects::from_actions(deletion(job)),
        Preparation::TriedAgain(job, _) => try_again(view, job),
    }
}

/// Creates a failed Job again after a while.
fn try_again(view: &View<'_>, job: &ObservedUpkeep) -> Effects {
    let left = job.created.map_or(0, |created| AGAIN - view.since(created));
    if left > 0 { Effects::default().waking(Some(left)) } else { Effects::from_actions(deletion(job)) }
}

pub(super) fn deletion(job: &ObservedUpkeep) -> Option<Action> {
    (!job.deleting).then(|| Action::DeleteJob { name: job.name.clone(), uid: job.uid.clone() })
}
