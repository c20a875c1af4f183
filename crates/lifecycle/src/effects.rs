//! The effects of a phase: actions, wake-ups, and Events to read.

use super::decision::Action;
use super::ending::late_in;
use super::lost::release;
use super::phase::{Phase, Publication, Silence};
use super::upkeep;
use super::view::{View, seconds};
use api::{State, TrainingJobStatus};
use jiff::SignedDuration;
use observe::{ChildKey, ObservedJob, ObservedPod};
use plan::Upkeep;
use protocol::gang::GangPast;
use std::time::Duration;

/// Seconds that the other containers have to end once all programs have exited with code 0.
const SIDE_CARS: i64 = 30;
/// How long no new pod may appear, while some are missing, before the Job's Events are read.
const READ_OF_JOB_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// How long a scheduled pod may take to start before its Events are read.
const READ_OF_POD_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// Seconds that a worker may be without a node before its PodGroup is checked.
const LOOK_AT_GROUP_AFTER: i64 = 15;
/// Longest interval between two checks of it, in seconds.
const LOOK_AT_GROUP_WITHIN: i64 = 240;

/// Effects of a phase.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) actions: Vec<Action>,
    pub(super) read_events_of: Option<String>,
    pub(super) requeue: Option<Duration>,
}

impl Effects {
    pub(super) fn from_actions(actions: impl IntoIterator<Item = Action>) -> Self {
        Effects { actions: actions.into_iter().collect(), ..Effects::default() }
    }

    /// Reconciles again after these seconds, if any.
    pub(super) fn waking(self, seconds: Option<i64>) -> Self {
        let after = seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        Effects { requeue: self.requeue.into_iter().chain(after).min(), ..self }
    }

    /// Both effects, with each action once.
    pub(super) fn and(mut self, other: Effects) -> Self {
        let new = other.actions.into_iter().filter(|action| !self.actions.contains(action));
        let new: Vec<_> = new.collect();
        self.actions.extend(new);
        self.read_events_of = self.read_events_of.or(other.read_events_of);
        self.requeue = self.requeue.into_iter().chain(other.requeue).min();
        self
    }
}

/// Deletes these Jobs, unless they are being deleted already.
fn deletions<'j>(jobs: impl IntoIterator<Item = &'j ObservedJob>) -> Effects {
    let jobs = jobs.into_iter().filter(|job| !job.deleting);
    Effects::from_actions(jobs.map(|job| Action::DeleteJob { name: job.name.clone(), uid: job.uid.clone() }))
}

/// The effects for a job in this phase, with its new status.
pub(super) fn effects(view: &View<'_>, phase: &Phase<'_>, status: &TrainingJobStatus) -> Effects {
    let done = match phase {
        Phase::Over => return view.clean_up(status),
        Phase::StartingAgain { .. } => {
            return Effects::from_actions(view.input.children.upkeep.as_ref().and_then(upkeep::deletion));
        }
        Phase::Refused { .. } => Effects::default(),
        _ => {
            let old = view.any_jobs().filter(|job| job.incarnation < view.current.number);
            let always = deletions(old).and(view.give_up());
            let is_active = !view.is_settled() && !matches!(phase, Phase::AwaitingSpec { .. });
            let kept = if is_active && !phase.leads_on() { view.keep_gang() } else { Effects::default() };
            let of_phase = view.in_phase(phase).and(view.read_events(phase));
            always.and(kept).and(of_phase).waking(view.deadline_in().filter(|_| is_active))
        }
    };
    let done = done.waking(view.stalls_in());
    if !status.state.is_some_and(State::is_finished) {
        return done;
    }
    // No other event may wake a job that has ended.
    let ends = view.any_jobs().any(|job| !job.complete && !job.deleting).then_some(SIDE_CARS);
    let is_uncopied = upkeep::copying(&View::new(view.input, status.clone())).is_under_way;
    let ttl = view.input.plan.policy.ttl_seconds.map(i64::from);
    let mut done = done.waking(ttl).waking(ends).waking(is_uncopied.then_some(1));
    if matches!(phase, Phase::Failed { judged: None, .. }) {
        done.actions.retain(|action| !action.makes());
    }
    done
}

impl View<'_> {
    /// Seconds until the job is deleted after its end, negative if that is overdue.
    pub(super) fn ttl_left(&self) -> Option<i64> {
        let (ttl, end) = (self.input.plan.policy.ttl_seconds?, self.record.completion_time.as_ref()?);
        Some(i64::from(ttl) - self.since(end.0))
    }

    /// The only actions after the end.
    fn clean_up(&self, status: &TrainingJobStatus) -> Effects {
        let copying = upkeep::copying(self);
        let done_job = self.input.children.upkeep.as_ref().filter(|job| {
            // The Job of a result that could not be published stays for its log.
            job.task == Upkeep::Publish.as_str() && self.record.result.is_some()
        });
        let done = self.end_gang().and(copying.effects).and(Effects::from_actions(done_job.and_then(upkeep::deletion)));
        let is_only_here = self.unpublished_since().is_some() || upkeep::words_on_uncopied(self, status).is_some();
        match self.ttl_left() {
            // Its ConfigMap and its claim may go with it.
            Some(..=0) if copying.is_under_way || is_only_here => done.waking(Some(60)),
            Some(..=0) => done.and(Effects::from_actions([Action::DeleteOwner])),
            left => done.waking(left),
        }
    }

    /// Ends the rest of a gang whose programs have ended.
    fn end_gang(&self) -> Effects {
        let unfinished = self.any_jobs().filter(|job| !job.complete && job.failed.is_none());
        unfinished.map(|job| self.end_job(job)).fold(Effects::from_actions(self.news_of_end()), Effects::and)
    }

    /// Ends the rest of a finished job's Job. The other containers in the pods have a moment to end by themselves,
    /// because logs go with their pods. After that the pods must not hold GPUs any longer.
    fn end_job(&self, job: &ObservedJob) -> Effects {
        let has_failed = self.record.state == Some(State::Failed);
        let ended = self.record.completion_time.as_ref().map(|end| end.0).or(self.unpublished_since());
        let left = SIDE_CARS - ended.map_or(0, |end| self.since(end));
        let lives = self.pods.iter().any(|pod| pod.role == job.role && pod.is_alive());
        let is_due = !job.deleting && (has_failed || (lives && left <= 0));
        let end = is_due.then(|| Action::EndJob { name: job.name.clone(), uid: job.uid.clone() });
        if has_failed {
            return Effects::from_actions(end);
        }
        Effects::from_actions(self.complete_without(job).into_iter().chain(end))
            .waking(Some(left).filter(|left| *left > 0))
    }

    /// The effects for a gang whose Jobs exist, whatever its phase.
    fn keep_gang(&self) -> Effects {
        if self.gang_job().is_none() || self.is_losing_job() {
            return Effects::default();
        }
        let done = Effects::from_actions([Action::Ensure]);
        let is_whole = self.failed_job().is_none();
        let done = if is_whole { done.and(self.follow_queue()).and(self.follow_size()) } else { done };
        // A pod that goes while the gang does not need it must not count as a failure of the Job.
        let is_kept = self.queued().is_none() && self.shrunk().is_none();
        let goes = |pod: &&ObservedPod| is_kept && pod.is_alive() && pod.tracked && pod.deletion.is_some();
        done.and(Effects::from_actions(self.members().1.into_iter().filter(goes).map(|pod| release(pod, false))))
    }

    /// The effects of this phase.
    fn in_phase(&self, phase: &Phase<'_>) -> Effects {
        let before = phase.until().map(|until| self.in_phase(until)).unwrap_or_default();
        let jobs = || deletions(self.jobs.iter().copied());
        let done = match phase {
            Phase::StoppingEarly { .. } | Phase::Suspending { .. } => jobs().waking(late_in(self, &self.all_pods)),
            // A job that was suspended while it ran has the same objects as one that was suspended from the start.
            Phase::Suspended => {
                let kept = self.leaves_queue().into_iter().chain([Action::Ensure]);
                jobs().and(upkeep::copying(self).effects).and(Effects::from_actions(kept))
            }
            // Pods of programs that have succeeded stay for their logs.
            Phase::Failed { judged: None, .. } if !self.has_succeeded() => deletions(self.any_jobs()),
            Phase::Completed { published: Some((job, _)), .. } => Effects::from_actions(upkeep::deletion(job)),
            Phase::Publishing { work } => {
                let ended = self.end_gang();
                match work {
                    Publication::Job(work) => ended.and(upkeep::prepare(self, work)),
                    // Programs that have ended cause no further events, so the next reconciliation follows by itself.
                    Publication::NotBegun => ended.waking(self.unpublished_since().is_none().then_some(1)),
                }
            }
            Phase::Ending { end: Some(end), follows } => Effects::default().waking(self.ends_in(end, *follows)),
            Phase::Queued { job } if self.current.attempt > job.first_attempt => jobs(),
            Phase::Replacing => {
                let going = self.leaving_pods().into_iter().filter(|pod| !pod.gone && pod.tracked);
                Effects::from_actions(going.map(|pod| release(pod, false))).waking(late_in(self, &self.all_pods))
            }
            Phase::AwaitingOldPods { .. } => Effects::default().waking(self.old_pods_late_in()),
            Phase::BackingOff { seconds } => Effects::default().waking(Some(*seconds)),
            Phase::Preparing(preparation) => upkeep::prepare(self, preparation),
            Phase::GivingUpRoles if self.half_made().next().is_some() => jobs(),
            Phase::Creating => Effects::from_actions([Action::Ensure, Action::CreateJobs(self.current, self.past())])
                .waking(self.roles_given_up_in().filter(|left| *left > 0)),
            _ if phase.is_of_gang() => self.of_gang(phase),
            _ => Effects::default(),
        };
        before.and(done).waking(self.starts_in(phase).filter(|left| *left > 0))
    }

    /// The past of the pods that are about to be created.
    fn past(&self) -> GangPast {
        let checkpoint = self.record.checkpoint.as_ref();
        let requested = checkpoint.and_then(|checkpoint| checkpoint.restart_from.as_ref());
        let used = match requested {
            Some(requested) => requested.used.as_ref(),
            None => checkpoint.and_then(|checkpoint| checkpoint.resume_from_used.as_ref()),
        };
        GangPast {
            restarts: self.history(),
            wish_used: used.map(|used| used.0),
            request: used.and(requested).map(|requested| requested.request.clone()),
        }
    }

    fn of_gang(&self, phase: &Phase<'_>) -> Effects {
        let done = match phase {
            Phase::Unreachable { silence: Silence::ProgramsRun, .. } => Effects::default(),
            Phase::Unreachable { silence, .. } => {
                let lost = if let Silence::Lost(lost) = silence { lost.as_slice() } else { &[] };
                Effects::from_actions(lost.iter().map(|pod| release(pod, true))).waking(self.next_lost_in())
            }
            Phase::Gathering { .. } => {
                Effects::default().waking(self.words_on_mesh_in()).waking(self.stopped_in().filter(|left| *left > 0))
            }
            Phase::Running => Effects::from_actions(self.news_of_start()).waking(self.formed_in()),
            _ => Effects::default(),
        };
        let late = if self.leaving_pods().is_empty() { None } else { late_in(self, &self.all_pods) };
        done.and(self.keep_group()).waking(late)
    }

    /// Without its PodGroup no pod of the gang gets a node, and some schedulers don't report that. The PodGroup is not
    /// watched, so it is checked when a worker has had no node for long, at growing intervals.
    fn keep_group(&self) -> Effects {
        let staying = self.staying_pods();
        let missing = self.missing(&staying);
        let Some(job) = self.awaited_job(&missing).filter(|_| self.input.plan.gang.group.is_some()) else {
            return Effects::default();
        };
        let without = staying.iter().filter(|pod| pod.is_alive() && pod.node.is_none()).filter_map(|pod| pod.created);
        let since = without.chain(job.taken_up.filter(|_| !missing.is_empty())).max();
        let is_blocked = self.input.children.blocked.contains_key(&ChildKey::POD_GROUP);
        let waits = since.map(|since| {
            let last = self.input.children.group_looked_at.filter(|looked| *looked >= since).unwrap_or(since);
            seconds(since, last).clamp(LOOK_AT_GROUP_AFTER, LOOK_AT_GROUP_WITHIN) - self.since(last)
        });
        match waits {
            Some(left) if left > 0 && !is_blocked => Effects::default().waking(waits),
            None if !is_blocked => Effects::default(),
            _ => Effects::from_actions([Action::EnsureGroup]).waking(Some(LOOK_AT_GROUP_AFTER)),
        }
    }

    /// Reads the Events of one object, because only these say what keeps it from starting.
    fn read_events(&self, phase: &Phase<'_>) -> Effects {
        let staying = self.staying_pods();
        let of = match phase {
            Phase::Unscheduled { .. } => {
                let missing = self.missing(&staying);
                let job = self.awaited_job(&missing).filter(|job| !missing.is_empty() && job.taken_up.is_some());
                let last = |job: &ObservedJob| staying.iter().filter_map(|pod| pod.created).chain(job.taken_up).max();
                job.map(|job| (&job.uid, last(job), READ_OF_JOB_AFTER))
            }
            Phase::Starting { .. } => {
                let starts = |pod: &&&ObservedPod| pod.is_alive() && !pod.runs() && pod.waiting.is_none();
                staying.iter().find(starts).map(|pod| (&pod.uid, pod.scheduled_at, READ_OF_POD_AFTER))
            }
            _ => None,
        };
        let Some((uid, since, after)) = of else { return Effects::default() };
        let read_again = self.input.children.read_events_after();
        let due = [(since, after), (self.input.children.events_read_at, read_again)];
        let due = due.into_iter().filter_map(|(time, after)| time?.checked_add(after).ok()).max();
        match due.and_then(|due| self.until(due)) {
            Some(left) => Effects::default().waking(Some(left)),
            None => {
                let read = Effects { read_events_of: Some(uid.clone()), ..Effects::default() };
                read.waking(Some(read_again.as_secs()))
            }
        }
    }
}
