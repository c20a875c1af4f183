//! Rules for a job without a Job of this incarnation, and deadlines.

use super::conditions::condition_is;
use super::phase::{Phase, Preparation};
use super::status;
use super::view::View;
use super::waiting::{self, WaitReason};
use api::{ConditionType, Reason, State, TrainingJobStatus};
use failure::restart::{Next, decide};
use jiff::{SignedDuration, Timestamp};
use observe::{ObservedJob, ObservedUpkeep};
use plan::storage::paths;
use plan::{Checkpoint, CheckpointVolume, Fetching, Incarnation, Source, Upkeep};
use protocol::report::{LaunchError, LaunchErrorKind, Report};
use protocol::role::RoleName;

/// Seconds for which the Jobs of some roles may hold nodes while another role's Job can't be made.
const HALF_MADE: i64 = 60;

impl<'a> View<'a> {
    /// A finished job stays finished, unless it has failed and a restart is requested.
    pub(super) fn over(&self) -> Option<Phase<'a>> {
        let state = self.record.state.filter(|state| state.is_finished())?;
        let request = self.requested_restart().or_else(|| self.request_by_change());
        Some(match request.filter(|_| state == State::Failed) {
            Some(request) => Phase::StartingAgain { request },
            None => Phase::Over,
        })
    }

    pub(super) fn is_suspending(&self) -> bool {
        let is_over = self.has_succeeded() || self.condition_status(ConditionType::Stopping) == Some(true);
        self.wants_suspension() && !is_over
    }

    /// Whether the job's own spec or its search suspends it.
    fn wants_suspension(&self) -> bool {
        self.input.plan.policy.suspend || self.input.held.is_some()
    }

    /// The incarnation in which a suspended job resumes. The running Jobs then have an old number, so that it is
    /// decided that they go before they are deleted.
    pub(super) fn after_suspension(&self) -> Incarnation {
        let has_begun = !self.jobs.is_empty() || self.has_begun();
        if has_begun { self.current.next() } else { self.current }
    }

    pub(super) fn suspending(&self) -> Option<Phase<'a>> {
        if !self.wants_suspension() {
            return None;
        }
        let job = self.any_jobs().next();
        let left = self.left_before(self.after_suspension());
        let stopping = || "the workers are stopping, with their grace period".to_owned();
        Some(match (job, left) {
            (Some(_), _) => {
                Phase::Suspending { message: self.overdue_message(&self.all_pods).unwrap_or_else(stopping) }
            }
            (None, Some(message)) => Phase::Suspending { message },
            (None, None) => Phase::Suspended,
        })
    }

    /// The seconds for which the job has been active, and those for which it may be. `None` until it has begun.
    fn active_of_deadline(&self) -> Option<(i64, i64)> {
        let deadline = self.input.plan.policy.failure.active_deadline_seconds?;
        let start = self.record.start_time.as_ref()?;
        let until = self.record.suspended_at.as_ref().map_or(self.now(), |time| time.0);
        let active = super::view::seconds(start.0, until) - self.record.suspended_seconds.unwrap_or(0);
        Some((active, deadline.into()))
    }

    /// Seconds until the job reaches its active deadline.
    pub(super) fn deadline_in(&self) -> Option<i64> {
        self.active_of_deadline().map(|(active, deadline)| deadline - active)
    }

    pub(super) fn past_deadline(&self) -> Option<Phase<'a>> {
        let (active, deadline) = self.active_of_deadline().filter(|(active, deadline)| active >= deadline)?;
        let message = format!("ran for {active} s; failurePolicy.activeDeadlineSeconds is {deadline}");
        Some(Phase::Failed { until: None, reason: Reason::DeadlineExceeded, message, judged: None })
    }

    /// Only the first reconciliation of a job can refuse it for good. A wrong change of a field can be corrected as
    /// easily, and a newer operator may refuse what an older one ran.
    pub(super) fn refused(&self) -> Option<Phase<'a>> {
        match (self.input.refused, self.invalid_job()) {
            (Some(why), _) if self.record.state.is_none() => Some(Phase::Refused { why: why.to_owned() }),
            // The API server accepted this Job before. Its present objection may pass, so the request is repeated.
            (None, Some(why)) if !self.has_run() => Some(Phase::Refused { why }),
            _ => None,
        }
    }

    pub(super) fn awaiting_spec(&self) -> Option<Phase<'a>> {
        self.input.refused.map(|why| Phase::AwaitingSpec { why: why.to_owned() })
    }

    /// Whether only the rules for a start are left to decide.
    pub(super) fn is_to_start(&self) -> bool {
        let has_jobs = self.gang_job().is_some() || self.has_lost_job();
        !self.is_settled() && !has_jobs && self.refused().is_none() && self.input.refused.is_none()
    }

    /// The last attempt found no usable checkpoint of the job, and no person has decided since what follows. The
    /// decision is `checkpoint.ifNoneUsable`, or a request to restart, for example after a repair. The job waits
    /// without pods, and its time does not run.
    pub(super) fn awaiting_checkpoint(&self) -> Option<Phase<'a>> {
        let checkpoint = self.input.plan.storage.checkpoint.as_ref();
        checkpoint.filter(|checkpoint| !checkpoint.policy.may_start_over)?;
        let first = self.first_that_counts();
        let last = self.record.restarts.last().filter(|last| last.waits_for_word() && last.attempt >= first)?;
        Some(Phase::AwaitingCheckpoint { message: last.to_string() })
    }

    fn old_job(&self) -> Option<&'a ObservedJob> {
        self.any_jobs().find(|job| job.incarnation < self.current.number)
    }

    /// A Job goes after its pods.
    pub(super) fn awaiting_old_jobs(&self) -> Option<Phase<'a>> {
        let old = self.old_job()?;
        let pods = super::view::pods_of(self.input.children, old.incarnation);
        Some(Phase::AwaitingOldPods { why: self.overdue_message(&pods) })
    }

    /// Seconds until pods of an older Job should have ended.
    pub(super) fn old_pods_late_in(&self) -> Option<i64> {
        let old = self.old_job()?;
        super::ending::late_in(self, &super::view::pods_of(self.input.children, old.incarnation))
    }

    pub(super) fn awaiting_old_pods(&self) -> Option<Phase<'a>> {
        self.left_before(self.current).map(|why| Phase::AwaitingOldPods { why: Some(why) })
    }

    /// Pods without a Job, because the Job went without them. Their hostnames are those of the next incarnation.
    fn left_before(&self, next: Incarnation) -> Option<String> {
        let Incarnation { number, attempt } = next;
        let pods = || self.input.children.pods.values();
        // A pod that was not asked to end is named before the others.
        let left = pods().filter(|pod| pod.incarnation < number && pod.is_alive());
        let pod = left.min_by_key(|pod| (pod.deletion.is_some(), pod.incarnation, pod.replica_id()))?;
        let mut of_number = pods().filter(|other| other.incarnation == pod.incarnation);
        // Pods may have had several attempts.
        let of = match number - pod.incarnation {
            _ if !of_number.any(|other| other.role.is_worker()) => "Jobs that were given up".to_owned(),
            1 => format!("attempt {}", attempt - 1),
            _ => "an earlier attempt".to_owned(),
        };
        let name = &pod.name;
        Some(if pod.deletion.is_some() {
            format!("waiting for the last pods of {of} to end, {name} among them")
        } else {
            format!(
                "pod {name} of {of} runs on without its Job; delete it, since attempt {attempt} starts when no pod is left"
            )
        })
    }

    pub(super) fn backing_off(&self) -> Option<Phase<'a>> {
        // The time is from a node's clock. A clock that is ahead must not keep the gang from starting.
        let (ended, wait) = self.last_end()?;
        let seconds = wait - self.since(ended).max(0);
        (status::after_restart(&self.record) && seconds > 0).then_some(Phase::BackingOff { seconds })
    }

    /// When the last attempt ended, and the seconds from then to the start of the next one.
    fn last_end(&self) -> Option<(Timestamp, i64)> {
        let last = self.record.restarts.last()?;
        let wait = match decide(&self.input.plan.policy.failure.restart, &mut self.history(), last) {
            Next::Restart { after } => after.as_secs(),
            Next::Wait | Next::Stop { .. } => 0,
        };
        Some((last.time?, i64::try_from(wait).unwrap_or(i64::MAX)))
    }

    /// The last role's Job has been blocked for so long that the nodes of the others are given back. All are created
    /// again when the API server accepts it.
    pub(super) fn giving_up_roles(&self) -> Option<Phase<'a>> {
        self.roles_given_up_in().filter(|left| *left <= 0).map(|_| Phase::GivingUpRoles)
    }

    /// Jobs with pods, while another role's Job can't be made. A Job that a queue holds has no pods.
    pub(super) fn half_made(&self) -> impl Iterator<Item = &'a ObservedJob> {
        self.jobs.iter().copied().filter(|job| !job.suspend)
    }

    /// Seconds until the Jobs of the other roles are given up.
    pub(super) fn roles_given_up_in(&self) -> Option<i64> {
        self.blocked_jobs().next()?;
        let since = self.half_made().filter_map(|job| job.created).min()?;
        Some(HALF_MADE - self.since(since))
    }

    /// The phase, or a failure if the job has been in it for too long.
    pub(super) fn in_time(&self, phase: Phase<'a>) -> Phase<'a> {
        let phase = self.unstoppable(phase);
        let (Some(left), Some(deadline)) = (self.starts_in(&phase), self.start_deadline()) else { return phase };
        if left > 0 {
            return phase;
        }
        let Some((why, _)) = self.awaited(&phase) else { return phase };
        let late = format!(
            "not every worker ran within {} s; failurePolicy.startDeadlineSeconds is {deadline}",
            deadline - left
        );
        let message = format!("{} ({late})", why.message);
        Phase::Failed { until: Some(Box::new(phase)), reason: why.reason, message, judged: None }
    }

    fn start_deadline(&self) -> Option<i64> {
        self.input.plan.policy.failure.start_deadline_seconds.map(i64::from)
    }

    /// Seconds until the start deadline of this attempt.
    pub(super) fn starts_in(&self, phase: &Phase<'a>) -> Option<i64> {
        let deadline = self.start_deadline()?;
        let (_, since) = self.awaited(phase)?;
        // In pods that had an attempt before, the time of this attempt begins when it may start.
        let next_from =
            self.last_end().and_then(|(ended, wait)| ended.checked_add(SignedDuration::from_secs(wait)).ok());
        Some(deadline - self.since(since.max(next_from)?))
    }

    /// What a job in this phase waits for before it can start, and since when.
    fn awaited(&self, phase: &Phase<'a>) -> Option<(WaitReason, Option<Timestamp>)> {
        let since = |job: &ObservedJob| job.created.max(job.resumed);
        match phase {
            Phase::Unscheduled { why } => {
                let job = self.awaited_job(&self.missing(&self.staying_pods()))?;
                Some((why.clone(), since(job)))
            }
            Phase::Gathering { why } if why.reason == Reason::Starting && self.agent_answers() => {
                Some((why.clone(), since(self.gang_job()?)))
            }
            // A program that is started again has run, so its pod is no reason to give the job up.
            Phase::Starting { why } if self.staying_pods().iter().all(|pod| pod.killed.is_none()) => {
                Some((why.clone(), since(self.gang_job()?)))
            }
            // The size of the data and the speed of the store have no limits.
            Phase::Preparing(Preparation::Missing(Upkeep::Fetch) | Preparation::UnderWay(Upkeep::Fetch)) => None,
            Phase::AwaitingOldPods { .. }
            | Phase::BackingOff { .. }
            | Phase::Preparing(_)
            | Phase::GivingUpRoles
            | Phase::Creating => {
                let conditions = status::conditions(self, phase);
                let scheduled = condition_is(&conditions, ConditionType::Scheduled, false)?;
                let reason = Reason::from(scheduled.reason.as_str());
                let message = scheduled.message.clone();
                Some((WaitReason { reason, message }, Some(scheduled.last_transition_time.0)))
            }
            _ => None,
        }
    }

    /// The first attempt starts once `checkpoint.resumeFrom` is checked, which happens before any GPU is held.
    pub(super) fn checking(&self) -> Option<Phase<'a>> {
        self.needs_check().then(|| self.prepared_by(Upkeep::Check))
    }

    /// The workers start once the content that they read is in the cache, so that no GPU waits for a network.
    pub(super) fn fetching(&self) -> Option<Phase<'a>> {
        self.needs_fetch().then(|| self.prepared_by(Upkeep::Fetch))
    }

    /// The state of the upkeep Job with this task, before the workers are made.
    fn prepared_by(&self, task: Upkeep) -> Phase<'a> {
        match self.work_of_upkeep(task) {
            Ok(preparation) => Phase::Preparing(preparation),
            Err(WaitReason { reason, message }) => {
                // The log of the Job says more, so the Job stays as long as the TrainingJob.
                let until = Some(Box::new(Phase::Preparing(Preparation::Bad)));
                Phase::Failed { until, reason, message, judged: None }
            }
        }
    }

    /// The state of the upkeep Job with this task. An error makes the job fail.
    pub(super) fn work_of_upkeep(&self, task: Upkeep) -> Result<Preparation<'a>, WaitReason> {
        let Some(job) = self.input.children.upkeep.as_ref() else { return Ok(Preparation::Missing(task)) };
        if job.task != task.as_str() || self.precedes_request(job) {
            return Ok(Preparation::AfterOther(job));
        }
        let words = self.words_of_upkeep(job);
        let done = || match (task, words) {
            (Upkeep::Check | Upkeep::Copy, _) => Some(Preparation::Checked(job)),
            (Upkeep::Fetch, words) => {
                words.filter(|words| !words.fetched.is_empty()).map(|words| Preparation::Fetched(job, &words.fetched))
            }
            (Upkeep::Publish, words) => words?.published.as_ref().map(|result| Preparation::Published((job, result))),
        };
        match job.ended {
            None => Ok(Preparation::UnderWay(task)),
            // Its pod may be deleted before its final report is read. Another Job finds what is in the cache or
            // published.
            Some(true) => Ok(done().unwrap_or(Preparation::AfterOther(job))),
            Some(false) => Self::not_done(task, job, words.and_then(|words| words.error.as_ref())),
        }
    }

    fn not_done(
        task: Upkeep,
        job: &'a ObservedUpkeep,
        error: Option<&LaunchError>,
    ) -> Result<Preparation<'a>, WaitReason> {
        let (bad, kind, retried, what) = match task {
            Upkeep::Fetch => (
                Reason::FetchFailed,
                LaunchErrorKind::ContentRefused,
                Reason::FetchFailed,
                "the content was not fetched",
            ),
            Upkeep::Publish => (
                Reason::PublishFailed,
                LaunchErrorKind::ContentRefused,
                Reason::PublishFailed,
                "the result was not published",
            ),
            // A store that can't be reached may come back.
            Upkeep::Check | Upkeep::Copy => (
                Reason::CheckpointCorrupted,
                LaunchErrorKind::CheckpointUnusable,
                Reason::Storage,
                "checkpoint.resumeFrom could not be checked",
            ),
        };
        let unknown = || format!("{what}: see the log of Job {}", job.name);
        let message = error.map_or_else(unknown, |error| error.message.clone());
        if error.is_some_and(|error| error.kind == kind) {
            return Err(WaitReason { reason: bad, message });
        }
        Ok(Preparation::TriedAgain(job, WaitReason { reason: retried, message }))
    }

    /// Another upkeep Job would write to the volume beside the workers, and may hold a volume that only one node can
    /// mount.
    pub(super) fn after_upkeep(&self) -> Option<Phase<'a>> {
        self.input.children.upkeep.as_ref().map(|job| Phase::Preparing(Preparation::GoingOn(job)))
    }

    fn needs_check(&self) -> bool {
        let Some(checkpoint) = &self.input.plan.storage.checkpoint else { return false };
        // After a requested restart, earlier failures do not count.
        let first = self.first_that_counts();
        let is_first = self.record.start_time.is_none() && self.record.restarts.iter().all(|r| r.attempt < first);
        let is_checked = self.record.checkpoint.as_ref().is_some_and(|status| status.resume_checked == Some(true));
        is_first && !is_checked && can_be_checked(checkpoint)
    }

    /// Whether content for the workers has yet to be fetched, or found in the cache. It may have been removed from
    /// there since the last pods.
    fn needs_fetch(&self) -> bool {
        let storage = &self.input.plan.storage;
        let by_job = storage.fetching.as_ref().is_some_and(Fetching::has_job);
        let is_there = |name: &str, uri: &str| {
            let known = self.record.data.iter().find(|data| data.name == name && data.uri == uri);
            known.is_some_and(|data| data.incarnation == self.current.number)
        };
        by_job
            && storage.inputs.iter().any(|input| match &input.source {
                Source::Fetch { uri, .. } => !is_there(&input.name, uri),
                _ => false,
            })
    }

    /// Whether the Job was created before a person requested a restart.
    fn precedes_request(&self, job: &ObservedUpkeep) -> bool {
        let asked = self.record.asked_restart.as_ref().map(|asked| asked.time.0);
        asked.is_some_and(|asked| job.deleting || job.created.is_some_and(|created| created < asked))
    }

    pub(super) fn words_of_upkeep(&self, job: &ObservedUpkeep) -> Option<&'a Report> {
        let (of, words) = self.input.children.upkeep_words.as_ref()?;
        (*of == job.uid).then_some(words)
    }

    /// Why no node is found yet, unless that was reported already.
    pub(super) fn first_words(&self, status: &TrainingJobStatus) -> Option<WaitReason> {
        let is_said = condition_is(&status.conditions, ConditionType::Scheduled, false)
            .is_some_and(|condition| condition.reason == Reason::Scheduling.as_str());
        (!is_said && self.input.children.job(RoleName::WORKER).is_none()).then(waiting::scheduling)
    }
}

/// Whether a pod that has only the checkpoint folder and the stores' credentials can check the checkpoint.
fn can_be_checked(checkpoint: &Checkpoint) -> bool {
    let below = |path: &str| path.strip_prefix(paths::CHECKPOINTS).is_some_and(|rest| rest.starts_with('/'));
    checkpoint
        .policy
        .resume_from
        .as_deref()
        .is_some_and(|from| from.contains("://") || (checkpoint.volume != CheckpointVolume::EmptyDir && below(from)))
}
