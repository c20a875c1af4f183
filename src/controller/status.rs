//! The status: written once per pass, only if it differs, and never over another client's write.

use super::Context;
use super::error::{Error, refusal};
use super::pass::Pass;
use api::{
    Condition, ConditionType, Guarded, ObjectiveStatus, Reason, State, TrainingJob, TrainingJobStatus, Unreadable,
};
use jiff::Timestamp;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use lifecycle::{set_condition, whole_second};
use observe::{Cell, JobKey, Writes, version};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long changes of counters alone are collected.
const GATHER: Duration = Duration::from_secs(1);

/// The newest status, and the version of the object that has it. Our own last write may be ahead of the watch.
pub(super) fn newest<'a>(job: &'a TrainingJob, writes: &'a Writes) -> (Option<&'a TrainingJobStatus>, u64) {
    let seen = version(&job.metadata);
    match &writes.last {
        Some((ours, status)) if *ours > seen => (Some(status), *ours),
        _ => (job.status.as_ref(), seen),
    }
}

impl Pass<'_, TrainingJob> {
    /// The newest status. The pass uses its version from now on.
    pub(super) fn current_status(&mut self) -> TrainingJobStatus {
        let job = self.owner;
        let ours = self.context.index.read(&self.key, |cell| {
            let (status, version) = newest(job, &cell.writes);
            (status.cloned(), version)
        });
        let (status, version) = ours.unwrap_or_else(|| (job.status.clone(), version(&job.metadata)));
        self.version = self.version.max(version);
        status.unwrap_or_default()
    }

    /// How long a status that follows from observations alone has to wait, if there were too many of them.
    pub(super) fn throttled(&self, current: &TrainingJobStatus, status: &TrainingJobStatus) -> Option<Duration> {
        let is_over = status.state.is_some_and(State::is_finished);
        if current == status || is_over || Change::between(current, status).urgency != WriteUrgency::Now {
            return None;
        }
        let now = Instant::now();
        self.context.index.update_known(&self.key, |cell| cell.writes.observations.take(now).err()).flatten()
    }

    /// Writes the status if it differs. Returns the delay if the write is postponed.
    pub(super) async fn write_status(
        &mut self,
        current: &TrainingJobStatus,
        status: &TrainingJobStatus,
    ) -> Result<Option<Duration>, Error> {
        let index = &self.context.index;
        if current == status {
            index.update_known(&self.key, |cell| cell.writes.counters_since = None);
            return Ok(None);
        }
        let change = Change::between(current, status);
        let wait = match change.urgency {
            WriteUrgency::Now => Duration::ZERO,
            WriteUrgency::Gather => {
                let since =
                    index.update_known(&self.key, |c| *c.writes.counters_since.get_or_insert_with(Instant::now));
                since.map_or(Duration::ZERO, |since| GATHER.saturating_sub(since.elapsed()))
            }
            WriteUrgency::Progress => {
                let wait = |cell: &mut Cell| cell.writes.progress.wait(change.news, Instant::now());
                let wait = index.update_known(&self.key, wait);
                wait.unwrap_or(Duration::ZERO)
            }
        };
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        if current.state != status.state {
            let from = current.state.map_or("new", State::as_str);
            info!(from, to = status.state.map_or("", State::as_str), attempt = status.attempt, "state");
        }
        self.replace_status(status).await?;
        index.update_known(&self.key, |cell| {
            if change.has_progress {
                let age = status.last_progress_time.as_ref().map(|stated| Timestamp::now().duration_since(stated.0));
                let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
                cell.writes.progress.record_write(Instant::now(), age);
            }
            cell.writes.last = Some((self.version, status.clone()));
            cell.writes.counters_since = None;
        });
        Ok(None)
    }
}

impl Context {
    /// Reports on a TrainingJob that this operator can't read it. What already runs continues.
    pub(super) async fn unreadable(&self, unreadable: &Unreadable) -> Result<(), Error> {
        let meta = &unreadable.metadata;
        let key = JobKey::from_meta(meta);
        let reported = (meta.generation, unreadable.error.clone());
        if self.index.read(&key, |cell| cell.writes.unreadable.as_ref() == Some(&reported)).unwrap_or(false) {
            return Ok(());
        }
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        warn!(error = %unreadable, "a TrainingJob that can't be read");
        let message = if unreadable.is_out_of_bounds {
            format!(
                "{unreadable}; delete the TrainingJob and create it smaller: a large text belongs in a ConfigMap that \
                 the workers mount (spec.volumes)"
            )
        } else {
            format!(
                "this version of the operator can't read {unreadable}; upgrade the operator, or delete the TrainingJob \
                 and create it with a value that this version knows"
            )
        };
        let now = whole_second(Timestamp::now());
        let mut conditions = unreadable.conditions.clone();
        let accepted = ConditionType::Accepted;
        set_condition(&mut conditions, accepted, false, &Reason::Unreadable, &message, meta.generation, now);
        // A merge patch keeps the rest of the status, including a state that a newer operator wrote.
        let mut patch = serde_json::json!({
            "metadata": { "uid": key.uid, "resourceVersion": meta.resource_version },
            "status": { "observedGeneration": meta.generation, "conditions": conditions },
        });
        if unreadable.state.is_none() {
            patch["status"]["state"] = State::Pending.as_str().into();
        }
        let api = self.api::<Guarded>(namespace);
        match self.write("write status", api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))).await {
            // Another client has written; the watch brings the change.
            Err(error) if refusal(&error).is_some_and(|status| status.is_conflict() || status.is_not_found()) => {
                Err(Error::Outdated)
            }
            Err(error) => Err(error),
            Ok(_) => {
                self.index.update_known(&key, |cell| cell.writes.unreadable = Some(reported));
                Ok(())
            }
        }
    }
}

/// How soon a status has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteUrgency {
    Now,
    /// Only counters, the start time or the wording of a condition differ.
    Gather,
    /// Only what the program reports differs.
    Progress,
}

/// How a status differs from the one that is stored.
struct Change {
    urgency: WriteUrgency,
    /// What the program reports differs.
    has_progress: bool,
    /// When that was reported, if it is newer, or now if a transfer has moved on.
    news: Option<Timestamp>,
}

impl Change {
    fn between(old: &TrainingJobStatus, new: &TrainingJobStatus) -> Self {
        let (old, new) = (Parts::split(old), Parts::split(new));
        let stated = |parts: &Parts| parts.progress.last_progress_time.as_ref().map(|time| time.0);
        let has_moved = old.progress.data != new.progress.data || old.progress.publication != new.progress.publication;
        let news = stated(&new).filter(|_| stated(&new) != stated(&old));
        Self {
            urgency: write_urgency(&old, &new),
            has_progress: old.progress != new.progress,
            news: has_moved.then(Timestamp::now).or(news),
        }
    }
}

fn write_urgency(old: &Parts, new: &Parts) -> WriteUrgency {
    let significant = |s: &TrainingJobStatus| {
        let mut s = s.clone();
        s.workers = None;
        s.roles.clear();
        s.resources = None;
        s.start_time = None;
        for condition in &mut s.conditions {
            condition.message.clear();
        }
        s
    };
    let is_first_word = old.progress.last_progress_time.is_none() && new.progress.last_progress_time.is_some();
    match () {
        () if old.rest.state.is_none() || is_first_word => WriteUrgency::Now,
        () if old.rest == new.rest => WriteUrgency::Progress,
        () if significant(&old.rest) == significant(&new.rest) => WriteUrgency::Gather,
        () => WriteUrgency::Now,
    }
}

/// A status in two parts: what the program reports, and the rest.
struct Parts {
    progress: TrainingJobStatus,
    rest: TrainingJobStatus,
}

impl Parts {
    fn split(status: &TrainingJobStatus) -> Self {
        let (mut progress, mut rest) = (TrainingJobStatus::default(), status.clone());
        macro_rules! part {
            ($($field:ident),*) => { $(progress.$field = rest.$field.take();)* };
        }
        part!(
            progress,
            current_epoch,
            total_epochs,
            current_step,
            total_steps,
            estimated_seconds_remaining,
            last_progress_time,
            metrics,
            best_loss,
            early_stopping,
            publication
        );
        // Early stopping decides on a new rung, which is written at once. The rest of the objective is written like
        // progress.
        progress.objective = rest.objective.take();
        if let Some(objective) = &mut progress.objective {
            let rungs = std::mem::take(&mut objective.rungs);
            rest.objective = Some(ObjectiveStatus { rungs, ..ObjectiveStatus::default() });
        }
        // The progress of a fetch is in its entry and in the message of the condition, and so is that of a publication.
        progress.data = rest.data.iter().filter(|data| data.progress.is_some()).cloned().collect();
        rest.data = plan::resolved(&rest);
        let moves = [Reason::Fetching, Reason::Publishing];
        let moves = |one: &&mut Condition| moves.iter().any(|reason| one.reason == reason.as_str());
        for condition in rest.conditions.iter_mut().filter(moves) {
            progress.conditions.push(condition.clone());
            condition.message.clear();
        }
        Self { progress, rest }
    }
}

/// Whether this is the object as our own last write left it.
pub(super) fn is_echo(object: &Guarded, writes: &Writes) -> bool {
    writes.last.as_ref().is_some_and(|(ours, _)| *ours == version(object.meta()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{DataProgress, DataStatus, ProgramMetrics, RungReading, Workers};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn state_changes_are_written_at_once_and_progress_is_throttled() {
        let running = TrainingJobStatus { state: Some(State::Running), ..TrainingJobStatus::default() };
        let with = |change: fn(&mut TrainingJobStatus)| {
            let mut status = running.clone();
            change(&mut status);
            write_urgency(&Parts::split(&running), &Parts::split(&status))
        };
        assert_eq!(with(|s| s.state = Some(State::Completed)), WriteUrgency::Now);
        assert_eq!(with(|s| s.workers = Some(Workers::default())), WriteUrgency::Gather);
        assert_eq!(with(|s| s.progress = Some("4%".into())), WriteUrgency::Progress);
        assert_eq!(with(|s| s.metrics = Some(ProgramMetrics::default())), WriteUrgency::Progress);
        let objective = |count, rungs: usize| {
            let rungs = vec![RungReading::default(); rungs];
            Some(ObjectiveStatus { metric: "loss".into(), count, rungs, ..ObjectiveStatus::default() })
        };
        let read = |old: (u64, usize), new: (u64, usize)| {
            let [old, new] = [old, new]
                .map(|(count, rungs)| TrainingJobStatus { objective: objective(count, rungs), ..running.clone() });
            write_urgency(&Parts::split(&old), &Parts::split(&new))
        };
        assert_eq!(read((1, 1), (2, 1)), WriteUrgency::Progress);
        assert_eq!(read((1, 1), (2, 2)), WriteUrgency::Now, "a rung");
        assert_eq!(with(|s| s.total_epochs = Some(3)), WriteUrgency::Progress, "known before the program runs");
        let fetching = |s: &mut TrainingJobStatus| {
            s.data = vec![DataStatus { progress: Some(DataProgress::default()), ..DataStatus::default() }];
        };
        assert_eq!(with(fetching), WriteUrgency::Progress);
        let fetched = |s: &mut TrainingJobStatus| {
            s.data = vec![DataStatus { key: "key".into(), ..DataStatus::default() }];
        };
        assert_eq!(with(fetched), WriteUrgency::Now);
        assert_eq!(with(|s| s.last_progress_time = Some(Time(Timestamp::now()))), WriteUrgency::Now, "its first word");
        let both = |s: &mut TrainingJobStatus| {
            s.progress = Some("4%".into());
            s.workers = Some(Workers::default());
        };
        assert_eq!(with(both), WriteUrgency::Gather);
        assert_eq!(
            write_urgency(&Parts::split(&TrainingJobStatus::default()), &Parts::split(&running)),
            WriteUrgency::Now,
            "the first word"
        );
    }
}
