//! What is done about the checkpoints while no worker runs: by a short Job with the same agent.

use super::step::{Step, seconds};
use super::verdict::Action;
use api::{ConditionType, Reason};
use observe::{ChildKey, ObservedUpkeep};
use plan::storage::paths;
use plan::{Checkpoint, CheckpointVolume, Upkeep};
use protocol::checkpoints::Kept;
use protocol::report::{LaunchErrorKind, Report};

/// Seconds until a Job that failed is made again.
const AGAIN: i64 = 600;

impl Step<'_> {
    /// Whether the first attempt may start as far as `checkpoint.resumeFrom` goes: it is looked at before any GPU is held.
    pub(super) fn resume_is_checked(&mut self) -> bool {
        let upkeep = self.input.children.upkeep.as_ref();
        if self.needs_check() {
            match upkeep {
                Some(job) if job.task != Upkeep::Check.as_str() || self.is_of_before(job) => self.end_upkeep(job),
                None => {
                    self.verdict.actions.push(Action::Ensure);
                    self.verdict.actions.push(Action::CreateUpkeep(Upkeep::Check));
                    self.await_check();
                }
                Some(job) => self.judge_check(job),
            }
            return false;
        }
        // It would write to the volume beside the workers, and may hold one that only one node can mount.
        if let Some(job) = upkeep {
            self.end_upkeep(job);
            let message = format!("waiting for the pods of Job {} to end, which looks after the checkpoints", job.name);
            self.set(ConditionType::Scheduled, false, Reason::Waiting, &message);
        }
        upkeep.is_none()
    }

    fn needs_check(&self) -> bool {
        let Some(checkpoint) = &self.input.plan.storage.checkpoint else { return false };
        // Of a job that was started again what failed before is no attempt of its.
        let first = self.first_that_counts();
        let is_first = self.status.start_time.is_none() && self.status.restarts.iter().all(|r| r.attempt < first);
        let is_checked = self.status.checkpoint.as_ref().is_some_and(|status| status.resume_checked == Some(true));
        is_first && !is_checked && can_be_checked(checkpoint)
    }

    /// What could not be made is named instead: see [`Step::blocked`].
    fn await_check(&mut self) {
        if !self.input.children.blocked.is_empty() {
            return;
        }
        let job = plan::names::upkeep_name(&self.input.plan.identity.name);
        let message = format!(
            "checking checkpoint.resumeFrom before the workers are made (Job {job}; kubectl describe job {job} if that takes \
             long)"
        );
        self.set(ConditionType::Scheduled, false, Reason::Waiting, &message);
    }

    fn judge_check(&mut self, job: &ObservedUpkeep) {
        match (job.ended, self.words_of(job)) {
            (None, _) => self.await_check(),
            (Some(true), _) => {
                self.status.checkpoint.get_or_insert_default().resume_checked = Some(true);
                self.end_upkeep(job);
            }
            (Some(false), words) => {
                let error = words.and_then(|words| words.error.as_ref());
                let is_bad = error.is_some_and(|error| error.kind == LaunchErrorKind::CheckpointUnusable);
                let unknown = || format!("checkpoint.resumeFrom could not be checked: see the log of Job {}", job.name);
                let message = error.map_or_else(unknown, |error| error.message.clone());
                if is_bad {
                    // Its log is what tells more: the Job stays as long as the TrainingJob.
                    return self.fail(Reason::CheckpointCorrupted, &message);
                }
                // A store that is away comes back.
                self.set(ConditionType::Scheduled, false, Reason::Storage, &message);
                self.end_later(job);
            }
        }
    }

    /// Copies what the workers had no time to copy. True while that is under way.
    pub(super) fn copy_after_end(&mut self) -> bool {
        let plan = self.input.plan;
        let copies = plan.storage.checkpoint.as_ref().filter(|c| c.policy.shared && c.policy.backup.is_some());
        if copies.is_none() || self.input.refused.is_some() {
            return false;
        }
        let upkeep = self.input.children.upkeep.as_ref().filter(|job| job.task == Upkeep::Copy.as_str());
        let ended = upkeep.filter(|job| job.ended.is_some());
        let told = ended.and_then(|job| self.words_of(job)).and_then(|words| words.checkpoints.clone());
        if let Some(mut told) = told {
            // It ran no program: what the last one went on from stays.
            let resumed = self.status.checkpoint.as_ref().and_then(|status| status.resumed_from.clone());
            told.resumed_from = resumed.map(|path| Kept { path, ..Kept::default() });
            self.take_in_checkpoints(&told);
        } else if ended.is_some_and(|job| job.ended == Some(true))
            && let Some(status) = &mut self.status.checkpoint
        {
            status.pending_backup = None;
        }
        let is_pending = self.status.checkpoint.as_ref().is_some_and(|status| status.pending_backup.is_some());
        let lives = self.input.children.pods.values().any(|pod| pod.is_alive());
        match upkeep {
            None if is_pending && !lives => {
                self.verdict.actions.push(Action::Ensure);
                self.verdict.actions.push(Action::CreateUpkeep(Upkeep::Copy));
                self.tell_copy_is_blocked();
                true
            }
            Some(job) => match job.ended {
                None => true,
                Some(true) => {
                    self.end_upkeep(job);
                    is_pending
                }
                Some(false) => {
                    self.end_later(job);
                    false
                }
            },
            None => is_pending,
        }
    }

    /// Says why the Job that copies can't be made.
    fn tell_copy_is_blocked(&mut self) {
        let blocked = self.input.children.blocked.get(&ChildKey::UPKEEP);
        if let (Some(blocked), Some(path)) = (blocked, self.pending_backup()) {
            let job = plan::names::upkeep_name(&self.input.plan.identity.name);
            let message =
                format!("{path} is not copied to checkpoint.backup yet: Job {job} can't be made: {}", blocked.message);
            self.set(ConditionType::CheckpointsHealthy, false, Reason::BackupFailing, &message);
        }
    }

    /// Whether a checkpoint on the job's volume has yet to be copied: the job that copies it stays, whatever its TTL says.
    pub(super) fn is_uncopied(&self) -> bool {
        let checkpoint = self.input.plan.storage.checkpoint.as_ref();
        // A spec that is refused may tell no storage any more.
        let has_backup =
            checkpoint.is_none_or(|checkpoint| checkpoint.policy.shared && checkpoint.policy.backup.is_some());
        has_backup && self.pending_backup().is_some()
    }

    fn pending_backup(&self) -> Option<&str> {
        self.status.checkpoint.as_ref()?.pending_backup.as_deref()
    }

    /// Says why the TTL waits.
    pub(super) fn tell_uncopied(&mut self) {
        let Some(path) = self.pending_backup().map(str::to_owned) else { return };
        let words = self.input.children.upkeep_words.as_ref().and_then(|(_, words)| words.error.as_ref());
        let why = words.map(|error| format!(": {}", error.message)).unwrap_or_default();
        let message = format!(
            "{path} is not copied to checkpoint.backup yet{why}; ttlSecondsAfterFinished waits for the copy, which is tried \
             again every {} minutes",
            AGAIN / 60
        );
        self.set(ConditionType::CheckpointsHealthy, false, Reason::BackupFailing, &message);
    }

    /// It has looked before somebody asked to start again.
    fn is_of_before(&self, job: &ObservedUpkeep) -> bool {
        let asked = self.status.asked_restart.as_ref().map(|asked| asked.time.0);
        asked.is_some_and(|asked| job.deleting || job.created.is_some_and(|created| created < asked))
    }

    fn words_of(&self, job: &ObservedUpkeep) -> Option<&Report> {
        let (of, words) = self.input.children.upkeep_words.as_ref()?;
        (*of == job.uid).then_some(words)
    }

    /// A Job that failed is made again after a while.
    fn end_later(&mut self, job: &ObservedUpkeep) {
        let age = job.created.map_or(AGAIN, |created| seconds(created, self.input.now));
        if age >= AGAIN {
            self.end_upkeep(job);
        } else {
            self.requeue(AGAIN - age);
        }
    }

    fn end_upkeep(&mut self, job: &ObservedUpkeep) {
        self.delete_job(&job.name, &job.uid, job.deleting);
    }
}

/// Whether a pod that has nothing but the folder of checkpoints and the stores' credentials can look at it.
fn can_be_checked(checkpoint: &Checkpoint) -> bool {
    let below = |path: &str| path.strip_prefix(paths::CHECKPOINTS).is_some_and(|rest| rest.starts_with('/'));
    checkpoint
        .policy
        .resume_from
        .as_deref()
        .is_some_and(|from| from.contains("://") || (checkpoint.volume != CheckpointVolume::EmptyDir && below(from)))
}
