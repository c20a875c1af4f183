//! One step of the life of a job.

use super::conditions::{condition, condition_is, set_condition};
use super::progress;
use super::waiting::{self, Why};
use crate::api::{
    AllocatedResources, Reason, Restart, RestartPolicy, State, TrainingJobSpec, TrainingJobStatus, Workers,
};
use crate::cause::{Cause, first_cause};
use crate::observe::{ChildKind, Family, JobSeen, PodSeen, Seen};
use crate::plan::TensorBoard;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// Restarts kept in the status.
const RESTARTS_KEPT: usize = 10;
/// Longest wait between two attempts, in seconds.
const BACKOFF_MAX: i64 = 60;
/// An attempt that ran this long, in seconds, ends a series of quick failures.
const QUICK: i64 = 300;
/// How long no pod may come, while some are missing, before the Job's Events are read.
const LOOK_AT_JOB_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// How long a scheduled pod may take to start before its Events are read.
const LOOK_AT_POD_AFTER: SignedDuration = SignedDuration::from_secs(15);
/// How often Events are read again while they are needed.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(15);

/// What a decision rests on.
pub struct Input<'a> {
    /// The spec, for what may change while the job runs and for the failure policy.
    pub spec: &'a TrainingJobSpec,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The status as last known.
    pub status: &'a TrainingJobStatus,
    /// Why the spec can't run, if it can't.
    pub refused: Option<String>,
    /// What was seen of its objects.
    pub family: &'a Family,
    /// The TensorBoard that was asked for can't see what the workers write.
    pub blind_board: bool,
    /// What its agents told last.
    pub told: Option<&'a Seen>,
    /// Now, in whole seconds.
    pub now: Timestamp,
}

/// What is to be done, in this order: the status is written, then the actions are taken, then the events are told.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// The status as it should be.
    pub status: TrainingJobStatus,
    /// What to do once that is written.
    pub actions: Vec<Action>,
    /// What to tell once that is done.
    pub events: Vec<Event>,
    /// Objects whose Events are to be read.
    pub look: Vec<Look>,
    /// When to decide again if nothing is seen before.
    pub requeue: Option<Duration>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make what is missing of Service, ConfigMap and claim, and put right what was changed.
    Ensure,
    /// Make the Job of this attempt.
    CreateJob(i32),
    /// Delete this Job and its pods.
    DeleteJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Delete the TrainingJob itself: its time after the end is over.
    DeleteTrainingJob,
}

/// An Event on the TrainingJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Warning, else Normal.
    pub warning: bool,
    /// One CamelCase word, past tense.
    pub reason: &'static str,
    /// A sentence with names.
    pub note: String,
}

/// An object whose Events are to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// UID of the object.
    pub uid: String,
}

/// Decides what a job is and what is to be done about it.
#[must_use]
pub fn decide(input: &Input<'_>) -> Verdict {
    let mut step = Step { input, status: input.status.clone(), verdict: Verdict::default() };
    step.run();
    let Step { status, mut verdict, .. } = step;
    verdict.status = status;
    verdict
}

/// Whether an attempt has begun whose Job is not known, or only that of an earlier one: either it was deleted, or the watch
/// of Jobs is behind.
#[must_use]
pub fn misses_job(status: &TrainingJobStatus, family: &Family) -> bool {
    let attempt = status.attempt.unwrap_or(1);
    family.job.as_ref().is_none_or(|job| job.attempt < attempt)
        && !status.state.is_some_and(State::is_finished)
        && begun(status, family, attempt)
}

/// Whether this attempt has had a pod, or a failure.
fn begun(status: &TrainingJobStatus, family: &Family, attempt: i32) -> bool {
    family.pods.values().any(|p| p.attempt == attempt) || status.restarts.iter().any(|r| r.attempt == attempt)
}

pub(super) struct Step<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) status: TrainingJobStatus,
    verdict: Verdict,
}

impl<'a> Step<'a> {
    fn run(&mut self) {
        self.status.observed_generation = self.input.generation;
        if self.status.state.is_some_and(State::is_finished) {
            return self.finished();
        }
        let job = self.input.family.job.as_ref();
        let attempt = self.status.attempt.unwrap_or(1).max(job.map_or(1, |j| j.attempt));
        self.status.attempt = Some(attempt);
        self.status.restart_count.get_or_insert(0);
        let current = job.filter(|j| j.attempt == attempt);
        if let (None, Some(reason)) = (current, self.invalid()) {
            self.set("Accepted", false, "InvalidSpec", &reason);
            self.fail("InvalidSpec", &reason);
            return self.count();
        }
        self.set("Accepted", true, "Valid", "the spec can run");
        if self.input.blind_board {
            self.set("TensorBoard", false, TensorBoard::NO_STORAGE, TensorBoard::REMEDY);
        }
        if let Some(old) = job.filter(|j| j.attempt < attempt) {
            self.delete(old);
        }
        self.note_start();
        self.note_progress(attempt);
        match current {
            Some(job) if job.complete => self.succeed(),
            _ if self.all_succeeded(attempt) => self.succeed(),
            _ if self.stopping().is_some() => self.stop(current),
            _ if self.input.spec.suspend => self.suspend(attempt),
            _ if self.past_deadline() => {}
            Some(job) => self.running(job),
            None if self.begun(attempt) => self.jobless(attempt),
            None => self.start(attempt),
        }
        self.count();
    }

    // ---- the ways through

    /// Nothing but clearing up happens after the end.
    fn finished(&mut self) {
        let unfinished = |j: &&JobSeen| !j.complete && j.failed.is_none();
        let failed = self.status.state == Some(State::Failed);
        if let Some(job) = self.input.family.job.as_ref().filter(unfinished).filter(|_| failed) {
            self.delete(job);
        }
        let (Some(ttl), Some(end)) = (self.input.spec.ttl_seconds_after_finished, &self.status.completion_time) else {
            return;
        };
        let left = i64::from(ttl) - seconds(end.0, self.input.now);
        if left <= 0 {
            self.verdict.actions.push(Action::DeleteTrainingJob);
        } else {
            self.requeue(left);
        }
    }

    fn succeed(&mut self) {
        match self.stopping() {
            // They ended by themselves meanwhile.
            Some((reason, message)) => self.complete(&reason, &message),
            None => self.complete("Completed", "every worker exited with code 0"),
        }
    }

    fn complete(&mut self, reason: &str, message: &str) {
        self.status.state = Some(State::Completed);
        self.end();
        // Nobody may have been there to see it.
        self.set("Scheduled", true, "Scheduled", "every worker has a node");
        self.set("Running", false, reason, "every worker's program has ended");
        self.set("Succeeded", true, reason, message);
        self.close("Restarting", reason);
        self.close("Stopping", reason);
        self.close("ProgressStalled", reason);
        let took = self.status.duration.clone().unwrap_or_else(|| "unknown time".into());
        self.event(false, "Completed", format!("{message}, after {took}"));
    }

    /// What successPolicy wanted has come: since then the gang is being stopped, whatever happens to it.
    fn stopping(&self) -> Option<(String, String)> {
        let stopping = condition_is(&self.status.conditions, "Stopping", true)?;
        Some((stopping.reason.clone(), stopping.message.clone()))
    }

    /// The workers end, with their grace period, and the job is completed when the last one has.
    pub(super) fn stop(&mut self, job: Option<&JobSeen>) {
        if let Some(job) = job {
            self.delete(job);
        }
        let attempt = self.status.attempt.unwrap_or(1);
        let late = self.late(attempt);
        if job.is_some() || self.all_pods(attempt).iter().any(|pod| pod.is_alive()) {
            let stopping = "the job is good enough: its workers are stopping, with their grace period";
            self.set("Running", true, "Stopping", late.as_deref().unwrap_or(stopping));
            return;
        }
        self.drop_running_failure(attempt);
        if let Some((reason, message)) = self.stopping() {
            self.complete(&reason, &message);
        }
    }

    fn suspend(&mut self, attempt: i32) {
        let job = self.input.family.job.as_ref();
        let current = job.filter(|j| j.attempt == attempt);
        if current.is_some() || self.begun(attempt) {
            // A new number makes this Job an old one: that it goes is settled before it is deleted.
            self.status.attempt = Some(attempt + 1);
            self.drop_running_failure(attempt);
        }
        if let Some(job) = current {
            self.delete(job);
        }
        let left = self.left_of_earlier_attempts();
        if job.is_some() || left.is_some() {
            let late = job.and_then(|job| self.late(job.attempt));
            let left = left.filter(|_| job.is_none());
            let stopping = "the workers are stopping, with their grace period";
            let message = late.or(left).unwrap_or_else(|| stopping.into());
            self.set("Suspended", false, "Suspending", &message);
            return;
        }
        if self.status.state != Some(State::Suspended) {
            self.event(false, "Suspended", "no worker runs; checkpoints stay".into());
        }
        // What a job that ran before has is what one that is suspended from the start gets.
        self.verdict.actions.push(Action::Ensure);
        self.status.state = Some(State::Suspended);
        if self.status.start_time.is_some() && self.status.suspended_at.is_none() {
            self.status.suspended_at = Some(Time(self.input.now));
        }
        let why = "spec.suspend is true; set it to false to go on";
        self.set("Suspended", true, "Suspended", why);
        self.clear("Scheduled", "Suspended");
        self.clear("Running", "Suspended");
        self.clear("Restarting", "Suspended");
    }

    fn start(&mut self, attempt: i32) {
        if self.status.state == Some(State::Suspended) {
            if let Some(since) = self.status.suspended_at.take() {
                let so_far = self.status.suspended_seconds.unwrap_or(0);
                self.status.suspended_seconds = Some(so_far + seconds(since.0, self.input.now));
            }
            self.status.state = Some(State::Pending);
            self.set("Suspended", false, "Resumed", "spec.suspend is false");
            self.event(false, "Resumed", format!("attempt {attempt} starts"));
        }
        let restarting = self.after_restart();
        if self.status.state.is_none() || !restarting {
            self.status.state = Some(State::Pending);
        }
        if restarting {
            self.status.state = Some(State::Initializing);
        }
        self.blocked();
        if self.input.family.job.is_some() {
            return; // the Job of the last attempt still has to go, with its pods
        }
        if let Some(why) = self.left_of_earlier_attempts() {
            self.set("Scheduled", false, "OldPods", &why);
            return;
        }
        let wait = self.backoff_left();
        if restarting && wait > 0 {
            self.requeue(wait);
            return;
        }
        if !restarting && self.input.status.state.is_none() {
            let workers = number_of(self.input.spec.num_workers, "worker");
            self.event(false, "Created", format!("Job, Service and ConfigMap for {workers}"));
        }
        self.verdict.actions.push(Action::Ensure);
        self.verdict.actions.push(Action::CreateJob(attempt));
    }

    fn running(&mut self, job: &JobSeen) {
        if job.deleting {
            return self.losing_job(job); // to somebody else: an attempt that is not wanted any more has an old number
        }
        self.verdict.actions.push(Action::Ensure);
        if job.held && job.failed.is_none() {
            return self.held(job);
        }
        let few = job.parallelism.filter(|pods| *pods < self.input.spec.num_workers);
        if let Some(pods) = few.filter(|_| job.failed.is_none()) {
            return self.reduced(job, pods);
        }
        let pods = self.pods(job.attempt);
        if job.failed.is_some() || self.replaced(job) || pods.iter().any(|p| p.failed() || p.disruption.is_some()) {
            return self.failing(job);
        }
        let desired = usize::try_from(self.input.spec.num_workers).unwrap_or(0);
        let note = self.input.family.note.as_ref();
        let of_job = note.filter(|note| note.about == job.uid);
        if let Some(why) = waiting::for_nodes(&pods, desired, of_job) {
            let quiet = why.reason == waiting::SCHEDULING && self.after_restart();
            self.status.state = Some(if quiet { State::Initializing } else { State::Pending });
            self.set("Scheduled", false, &why.reason, &why.message);
            self.clear("Running", "Waiting");
            self.blocked();
            if self.past_start(job, &why) {
                return;
            }
            if pods.len() < desired && job.taken_up.is_some() {
                let last = pods.iter().filter_map(|p| p.created).chain(job.taken_up).max();
                self.look(last, LOOK_AT_JOB_AFTER, &job.uid);
            }
            return;
        }
        if self.was("Scheduled") != Some(true) {
            self.event(false, "Scheduled", "every worker has a node".into());
        }
        self.set("Scheduled", true, "Scheduled", "every worker has a node");
        if pods.iter().all(|p| p.runs() || p.succeeded()) {
            if self.status.state != Some(State::Running) {
                self.event(false, "Started", format!("every worker runs (attempt {})", job.attempt));
            }
            self.status.state = Some(State::Running);
            self.set("Running", true, "Running", "every worker's program runs or has ended well");
            self.clear("Restarting", "Restarted");
            self.judge_success(job);
        } else {
            let why = waiting::for_start(&pods, note);
            self.status.state = Some(State::Initializing);
            self.set("Running", false, &why.reason, &why.message);
            if self.past_start(job, &why) {
                return;
            }
            if let Some(pod) = pods.iter().find(|p| p.is_alive() && !p.runs() && p.waiting.is_none()) {
                let uid = pod.uid.clone();
                self.look(pod.scheduled_at, LOOK_AT_POD_AFTER, &uid);
            }
        }
    }

    /// A queue manager has suspended the Job, before its start or while it ran: pods that go for that are no failure.
    fn held(&mut self, job: &JobSeen) {
        self.drop_running_failure(job.attempt);
        self.status.state = Some(State::Pending);
        self.set(
            "Scheduled",
            false,
            "Queued",
            "the Job is suspended, as a queue manager does until there is room for it",
        );
        self.clear("Running", "Queued");
        self.clear("Restarting", "Queued");
    }

    /// Somebody has made the Job smaller than its gang: pods that go for that are no failure.
    fn reduced(&mut self, job: &JobSeen, pods: i32) {
        self.drop_running_failure(job.attempt);
        self.status.state = Some(State::Pending);
        let gang = number_of(self.input.spec.num_workers, "worker");
        let message = format!(
            "the Job's parallelism is {pods} by somebody else's will, and the gang is of {gang}: set it back, or delete \
             the Job, which is made again"
        );
        self.set("Scheduled", false, "Parallelism", &message);
        self.clear("Running", "Parallelism");
        self.clear("Restarting", "Parallelism");
    }

    /// The Job is being deleted by somebody else, and its pods go first.
    fn losing_job(&mut self, job: &JobSeen) {
        if !self.begun(job.attempt) {
            return;
        }
        let entry = self.keep_job_deleted(job.attempt);
        self.set("Running", false, &entry.reason, &entry.message);
        if self.may_restart(&entry).is_ok() {
            self.status.state = Some(State::Initializing);
            self.set("Restarting", true, &entry.reason, &entry.message);
        }
    }

    /// The attempt had begun and its Job is gone: what ran under it ends, so its return is another attempt.
    fn jobless(&mut self, attempt: i32) {
        let entry = self.keep_job_deleted(attempt);
        self.set("Running", false, &entry.reason, &entry.message);
        if self.judge(&entry) {
            self.start(attempt + 1);
        }
    }

    /// A worker failed: the cause is kept at once, for its pod may vanish, and judged when the whole gang has ended.
    fn failing(&mut self, job: &JobSeen) {
        let pods = self.all_pods(job.attempt);
        let alive = pods.iter().any(|pod| pod.is_alive());
        // Of pods that seem to live the watch has not told yet how they ended: their Job's was faster.
        let lost = || self.lost(job).filter(|_| !alive);
        if let Some(cause) = first_cause(pods.iter().copied()).or_else(lost) {
            self.keep(job.attempt, &cause);
        }
        let Some(entry) = self.kept(job.attempt).cloned() else { return };
        self.set("Running", false, &entry.reason, &entry.message);
        let over = job.failed.is_some() && !alive;
        if !over && !self.replaced(job) {
            if self.may_restart(&entry).is_ok() {
                self.status.state = Some(State::Initializing);
                let message = match self.late(job.attempt) {
                    Some(late) => format!("{}; {late}", entry.message),
                    None => entry.message.clone(),
                };
                self.set("Restarting", true, &entry.reason, &message);
            }
            return;
        }
        if self.judge(&entry) {
            self.delete(job);
        }
    }

    /// An attempt is over: another one follows, or the job has failed.
    fn judge(&mut self, entry: &Restart) -> bool {
        let unknown = condition(&self.status.conditions, "Scheduled").is_some_and(|c| c.reason == waiting::SCHEDULING);
        if entry.exit_code.is_some() && unknown {
            // Programs have run, and nobody was there to see it.
            self.set("Scheduled", true, "Scheduled", "every worker has a node");
        }
        let verdict = self.may_restart(entry);
        match &verdict {
            Ok(()) => self.restart(entry),
            Err(why) if why.is_empty() => self.fail(&entry.reason, &entry.message),
            Err(why) => self.fail(&entry.reason, &format!("{} ({why})", entry.message)),
        }
        verdict.is_ok()
    }

    fn restart(&mut self, entry: &Restart) {
        let next = entry.attempt + 1;
        self.status.attempt = Some(next);
        self.status.restart_count = Some(self.status.restart_count.unwrap_or(0) + 1);
        if entry.disruption {
            self.status.disruption_count = Some(self.status.disruption_count.unwrap_or(0) + 1);
        }
        self.status.state = Some(State::Initializing);
        self.set("Restarting", true, &entry.reason, &entry.message);
        let ended = if entry.disruption { "was interrupted" } else { "failed" };
        let note = format!("attempt {} {ended}, attempt {next} follows: {}", entry.attempt, entry.message);
        self.event(true, "Restarting", note);
    }

    fn fail(&mut self, reason: &str, message: &str) {
        self.status.state = Some(State::Failed);
        self.status.failure_reason = Some(reason.to_owned());
        self.status.failure_message = Some(message.to_owned());
        self.end();
        self.set("Failed", true, reason, message);
        self.close("Running", "Failed");
        self.close("Restarting", "Failed");
        self.close("ProgressStalled", "Failed");
        self.event(true, "Failed", format!("{reason}: {message}"));
    }

    // ---- the rules

    /// What keeps an attempt from ending, once it has lasted longer than it may.
    fn late(&mut self, attempt: i32) -> Option<String> {
        let (pods, now) = (self.all_pods(attempt), self.input.now);
        let alive = pods.iter().filter(|p| p.is_alive());
        let due = alive.filter_map(|p| p.end_by?.checked_add(waiting::LATE).ok());
        if let Some(next) = due.filter(|at| *at > now).min() {
            self.requeue(seconds(now, next).max(1));
        }
        waiting::for_end(&pods, now)
    }

    /// Every pod ended well; the Job says so itself only with its next sync, up to a second later.
    fn all_succeeded(&self, attempt: i32) -> bool {
        let ended_well = self.pods(attempt).iter().filter(|p| p.ended == Some(true)).count();
        usize::try_from(self.input.spec.num_workers) == Ok(ended_well)
    }

    fn begun(&self, attempt: i32) -> bool {
        begun(&self.status, self.input.family, attempt)
    }

    /// Pods without a Job, where it went without them: their hostnames are those of the next attempt.
    fn left_of_earlier_attempts(&self) -> Option<String> {
        let next = self.status.attempt.unwrap_or(1);
        let left = self.input.family.pods.values().filter(|p| p.attempt < next && p.is_alive());
        // One that nobody has asked to end is named before the others.
        let pod = left.min_by_key(|p| (p.deletion.is_some(), p.attempt, p.index))?;
        let (name, attempt) = (&pod.name, pod.attempt);
        Some(if pod.deletion.is_some() {
            format!("waiting for the last pods of attempt {attempt} to end, {name} among them")
        } else {
            format!(
                "pod {name} of attempt {attempt} runs on without its Job; delete it, since attempt {next} starts when no pod is left"
            )
        })
    }

    /// Why the spec can't run: by our own rules, or because the API server finds the Job invalid that follows from it.
    fn invalid(&self) -> Option<String> {
        let job = self.input.family.blocked.get(&ChildKind::Job).filter(|blocked| blocked.reason == "Invalid");
        self.input.refused.clone().or_else(|| job.map(|blocked| blocked.message.clone()))
    }

    fn past_deadline(&mut self) -> bool {
        let (Some(deadline), Some(start)) =
            (self.input.spec.failure_policy.active_deadline_seconds, &self.status.start_time)
        else {
            return false;
        };
        let until = self.status.suspended_at.as_ref().map_or(self.input.now, |t| t.0);
        let active = seconds(start.0, until) - self.status.suspended_seconds.unwrap_or(0);
        if active < deadline {
            self.requeue(deadline - active);
            return false;
        }
        if let Some(job) = &self.input.family.job {
            self.delete(job);
        }
        let message = format!("ran for {active} s; failurePolicy.activeDeadlineSeconds is {deadline}");
        self.fail("DeadlineExceeded", &message);
        true
    }

    /// Whether this attempt has taken too long to start: the job fails with what it waits for.
    fn past_start(&mut self, job: &JobSeen, why: &Why) -> bool {
        let (Some(deadline), Some(since)) =
            (self.input.spec.failure_policy.start_deadline_seconds, job.created.max(job.resumed))
        else {
            return false;
        };
        let left = deadline - seconds(since, self.input.now);
        if left > 0 {
            self.requeue(left);
            return false;
        }
        self.delete(job);
        let late = format!(
            "not every worker ran within {} s; failurePolicy.startDeadlineSeconds is {deadline}",
            seconds(since, self.input.now)
        );
        self.fail(&why.reason, &format!("{} ({late})", why.message));
        true
    }

    /// Whether another attempt follows; the error says why not, empty if the cause itself is the reason.
    fn may_restart(&self, entry: &Restart) -> Result<(), String> {
        let policy = &self.input.spec.failure_policy;
        let counted = self.status.restart_count.unwrap_or(0) - self.status.disruption_count.unwrap_or(0);
        match policy.restart_policy {
            RestartPolicy::Never => Err("failurePolicy.restartPolicy is Never".into()),
            RestartPolicy::OnFailure if entry.permanent => Err(String::new()),
            _ if !entry.disruption && counted >= policy.backoff_limit => Err(match counted {
                0 => "failurePolicy.backoffLimit is 0".into(),
                n => format!(
                    "attempt {} after {}; failurePolicy.backoffLimit is {}",
                    entry.attempt,
                    number_of(n, "restart"),
                    policy.backoff_limit
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Seconds until the next attempt may start: 1, 2, 4 ... 60 after quick failures in a row, none after a disruption.
    fn backoff_left(&self) -> i64 {
        let Some(last) = self.status.restarts.last().filter(|last| !last.disruption) else { return 0 };
        let quick = self.status.restarts.iter().rev().filter(|r| !r.disruption).take_while(|r| r.ran_seconds < QUICK);
        let n = u32::try_from(quick.count()).unwrap_or(u32::MAX);
        let wait = if n == 0 { 0 } else { 1i64.checked_shl(n - 1).unwrap_or(BACKOFF_MAX).min(BACKOFF_MAX) };
        wait - seconds(last.time.0, self.input.now)
    }

    /// Between a failed attempt and the next one's start.
    fn after_restart(&self) -> bool {
        let attempt = self.status.attempt.unwrap_or(1);
        self.status.restarts.last().is_some_and(|last| last.attempt == attempt - 1)
            && self.status.state != Some(State::Suspended)
            && self.was("Restarting") == Some(true)
    }

    fn kept(&self, attempt: i32) -> Option<&Restart> {
        self.status.restarts.iter().find(|r| r.attempt == attempt)
    }

    /// Files that somebody deleted the Job, unless a worker failed before. Its pods were deleted with it.
    fn keep_job_deleted(&mut self, attempt: i32) -> Restart {
        let known = self.kept(attempt).filter(|known| known.reason != "PodDeleted").cloned();
        known.unwrap_or_else(|| {
            self.drop_running_failure(attempt);
            let cause = Cause {
                reason: Reason::JobDeleted,
                message: "its Job was deleted, and not by the operator".into(),
                worker: None,
                pod: None,
                node: None,
                rank: None,
                exit_code: None,
                disruption: true,
                permanent: false,
                time: None,
            };
            self.keep(attempt, &cause)
        })
    }

    /// Files the cause of the attempt that is failing; a later look may know better.
    fn keep(&mut self, attempt: i32, cause: &Cause) -> Restart {
        let time = cause.time.unwrap_or(self.input.now);
        let started = self.pods(attempt).iter().filter_map(|p| p.started()).min();
        let ended = |p: &&PodSeen| p.failed() || p.disruption.is_some();
        let judged: Vec<_> = self.all_pods(attempt).into_iter().filter(ended).map(|p| Some(p.index)).collect();
        let known = self.status.restarts.iter_mut().find(|r| r.attempt == attempt);
        let ran_seconds = started.map_or(0, |s| seconds(s, time).max(0));
        if let Some(known) = known {
            // What was filed first stands, unless an earlier failure (or the same one, better told) comes to light, or
            // its pod is still at hand and was judged again among all the others.
            let same = known.worker == cause.worker;
            if !same && !judged.contains(&known.worker) && (known.disruption || known.time.0 <= time) {
                return known.clone();
            }
            if same && known.disruption && !cause.disruption {
                return known.clone();
            }
            let ran_seconds = ran_seconds.max(known.ran_seconds);
            *known = entry(attempt, cause, time, ran_seconds);
            return known.clone();
        }
        let new = entry(attempt, cause, time, ran_seconds);
        self.status.restarts.push(new.clone());
        let surplus = self.status.restarts.len().saturating_sub(RESTARTS_KEPT);
        self.status.restarts.drain(..surplus);
        new
    }

    /// The Job failed and no pod is left to tell why.
    fn lost(&self, job: &JobSeen) -> Option<Cause> {
        let (reason, message) = job.failed.as_ref()?;
        if self.status.restarts.iter().any(|r| r.attempt == job.attempt) {
            return None;
        }
        // Of the Job's pod failure policy, whose only rule is for disruptions.
        let disruption = reason == "PodFailurePolicy";
        Some(Cause {
            reason: if disruption { Reason::Disrupted } else { Reason::PodsLost },
            message: format!("its pods were gone before their last words were seen; the Job says {reason}: {message}"),
            worker: None,
            pod: None,
            node: None,
            rank: None,
            exit_code: None,
            disruption,
            permanent: false,
            time: Some(self.input.now),
        })
    }

    /// A stop that was asked for is no failure.
    fn drop_running_failure(&mut self, attempt: i32) {
        self.status.restarts.retain(|r| r.attempt != attempt);
    }

    /// Children that could not be made are named.
    fn blocked(&mut self) {
        if let Some((kind, blocked)) = self.input.family.blocked.iter().next() {
            let message = format!("{}: {}", kind.as_str(), blocked.message);
            let reason = blocked.reason.clone();
            self.set("Scheduled", false, &reason, &message);
        } else if condition(&self.status.conditions, "Scheduled")
            .is_none_or(|c| c.status == "True" || c.reason != waiting::SCHEDULING)
            && self.input.family.job.is_none()
        {
            let Why { reason, message } = waiting::scheduling();
            self.set("Scheduled", false, &reason, &message);
        }
    }

    fn look(&mut self, since: Option<Timestamp>, after: SignedDuration, uid: &str) {
        let now = self.input.now;
        let due = [
            since.and_then(|t| t.checked_add(after).ok()),
            self.input.family.looked.and_then(|t| t.checked_add(LOOK_AGAIN).ok()),
        ];
        match due.into_iter().flatten().max() {
            Some(at) if at > now => self.requeue(seconds(now, at).max(1)),
            _ => {
                self.verdict.look.push(Look { uid: uid.to_owned() });
                self.requeue(LOOK_AGAIN.as_secs());
            }
        }
    }

    // ---- counting

    fn all_pods(&self, attempt: i32) -> Vec<&'a PodSeen> {
        let input: &'a Input<'a> = self.input;
        let job = input.family.job.as_ref().filter(|job| job.attempt == attempt);
        // What a queue manager has stopped tells nothing of the gang that runs, or will.
        let stopped = |p: &PodSeen| {
            // Times are whole seconds: a pod may have been made in the one in which the Job was let go again.
            let before = |resumed| p.created < Some(resumed) || p.deletion.is_some_and(|deletion| deletion <= resumed);
            job.is_some_and(|job| (job.held && p.failed()) || job.resumed.is_some_and(before))
        };
        input.family.pods.values().filter(|p| p.attempt == attempt && !stopped(p)).collect()
    }

    /// The Job made a new pod for a worker whose first one vanished without an end: its gang can't take it in.
    fn replaced(&self, job: &JobSeen) -> bool {
        let pods = self.all_pods(job.attempt);
        pods.iter()
            .any(|old| old.gone && !old.succeeded() && pods.iter().any(|p| p.index == old.index && p.uid != old.uid))
    }

    pub(super) fn pods(&self, attempt: i32) -> Vec<&'a PodSeen> {
        // Of two pods with one index the newer counts.
        let mut pods = self.all_pods(attempt);
        pods.sort_by(|a, b| (a.index, b.gone, b.created, &b.uid).cmp(&(b.index, a.gone, a.created, &a.uid)));
        pods.dedup_by_key(|p| p.index);
        pods
    }

    fn note_start(&mut self) {
        if self.status.start_time.is_none() {
            self.status.start_time = self.input.family.pods.values().filter_map(PodSeen::started).min().map(Time);
        }
    }

    fn count(&mut self) {
        let desired = self.input.spec.num_workers;
        let pods = self.pods(self.status.attempt.unwrap_or(1));
        let of =
            |test: fn(&PodSeen) -> bool| i32::try_from(pods.iter().filter(|p| test(p)).count()).unwrap_or(i32::MAX);
        let (active, succeeded, failed) = (of(PodSeen::runs), of(PodSeen::succeeded), of(PodSeen::failed));
        let held: Vec<_> = pods.iter().filter(|p| p.is_alive() && p.node.is_some()).collect();
        let nodes: BTreeSet<_> = held.iter().filter_map(|p| p.node.as_deref()).collect();
        let ended = self.status.state.is_some_and(State::is_finished);
        let resources = AllocatedResources {
            allocated_gpus: if ended {
                0
            } else {
                i32::try_from(held.len()).unwrap_or(0) * self.input.spec.gpus_per_worker
            },
            allocated_nodes: if ended { 0 } else { i32::try_from(nodes.len()).unwrap_or(0) },
        };
        let idle = ended || self.status.state == Some(State::Suspended);
        let completed = self.status.state == Some(State::Completed);
        // Whoever had not ended well by then was stopped, whether or not its pod is there to be counted.
        let failed = match self.status.state {
            Some(State::Failed) if self.status.start_time.is_some() => desired - succeeded,
            _ => failed,
        };
        self.status.workers = Some(Workers {
            desired,
            active: if idle { 0 } else { active },
            succeeded: if completed { desired } else { succeeded },
            failed,
            pending: if idle { 0 } else { (desired - active - succeeded - failed).max(0) },
        });
        self.status.resources = Some(resources);
    }

    fn end(&mut self) {
        let now = self.input.now;
        progress::end(&mut self.status);
        self.status.completion_time = Some(Time(now));
        if let Some(ttl) = self.input.spec.ttl_seconds_after_finished {
            self.requeue(i64::from(ttl)); // nothing else may wake a job that has ended
        }
        self.status.duration = self.status.start_time.as_ref().map(|start| {
            let span = SignedDuration::from_secs(seconds(start.0, now).max(0));
            human(span.as_secs())
        });
    }

    pub(super) fn set(&mut self, type_: &str, status: bool, reason: &str, message: &str) {
        let (generation, now) = (self.input.generation, self.input.now);
        set_condition(&mut self.status.conditions, type_, status, reason, message, generation, now);
    }

    /// Sets a condition to False if it was ever set.
    fn clear(&mut self, type_: &str, reason: &str) {
        if self.was(type_) == Some(true) {
            self.set(type_, false, reason, "");
        }
    }

    /// Sets a condition to False for good, if it was ever set: the same end, whatever was seen on the way.
    fn close(&mut self, type_: &str, reason: &str) {
        if self.was(type_).is_some() {
            self.set(type_, false, reason, "");
        }
    }

    /// Deletes the Job, unless that is under way.
    fn delete(&mut self, job: &JobSeen) {
        let delete = Action::DeleteJob { name: job.name.clone(), uid: job.uid.clone() };
        if !job.deleting && !self.verdict.actions.contains(&delete) {
            self.verdict.actions.push(delete);
        }
    }

    /// Whether the condition of this type is True; none if it was never set.
    pub(super) fn was(&self, type_: &str) -> Option<bool> {
        condition(&self.status.conditions, type_).map(|c| c.status == "True")
    }

    pub(super) fn event(&mut self, warning: bool, reason: &'static str, note: String) {
        self.verdict.events.push(Event { warning, reason, note });
    }

    pub(super) fn requeue(&mut self, seconds: i64) {
        let after = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.verdict.requeue = Some(self.verdict.requeue.map_or(after, |old| old.min(after)));
    }
}

fn entry(attempt: i32, cause: &Cause, time: Timestamp, ran_seconds: i64) -> Restart {
    Restart {
        attempt,
        time: Time(time),
        reason: cause.reason.to_string(),
        message: cause.message.clone(),
        worker: cause.worker,
        exit_code: cause.exit_code,
        disruption: cause.disruption,
        permanent: cause.permanent,
        ran_seconds,
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// `1 worker`, `2 workers`.
fn number_of(n: i32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// 3723 is `1h2m3s`.
fn human(seconds: i64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s}s"),
        _ => format!("{h}h{m}m{s}s"),
    }
}
