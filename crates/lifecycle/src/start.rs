//! How an attempt starts, and what may keep it from that.

use super::conditions::condition_is;
use super::step::{Step, number_in, seconds};
use super::verdict::Action;
use super::waiting::{self, Why};
use api::{ConditionType, Reason, State};
use failure::restart::{Next, decide};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use plan::{Gang, Incarnation};

/// Seconds for which the Jobs of some roles may hold nodes while that of another one can't be made.
const HALF_MADE: i64 = 60;

impl Step<'_> {
    pub(super) fn start(&mut self) {
        let waited_for = self.reason_of(ConditionType::Scheduled);
        // Until now nothing was to start.
        let begins_to_wait = self.status.state == Some(State::Suspended)
            || matches!(waited_for, Some(Reason::InvalidSpec | Reason::Restarted));
        if begins_to_wait {
            self.wait_from_now();
        }
        self.begin();
        if self.waits_for_checkpoint() {
            return;
        }
        if waited_for == Some(Reason::NoUsableCheckpoint) {
            self.wait_from_now();
        }
        self.make();
        if !self.status.state.is_some_and(State::is_finished) {
            self.past_start_without_job();
        }
    }

    /// The time counts from now on for which nothing has been scheduled.
    fn wait_from_now(&mut self) {
        let is_scheduled = |condition: &&mut Condition| condition.type_ == ConditionType::Scheduled.as_str();
        if let Some(scheduled) = self.status.conditions.iter_mut().find(is_scheduled) {
            scheduled.last_transition_time = Time(self.input.now);
        }
    }

    /// State and conditions of a job that is to start.
    fn begin(&mut self) {
        self.reset_size();
        let incarnation = self.incarnation();
        let attempt = incarnation.attempt;
        if self.status.state == Some(State::Suspended) {
            self.take_up_again();
            self.status.state = Some(State::Pending);
            self.set(ConditionType::Suspended, false, Reason::Resumed, "spec.suspend is false");
            self.event(false, "Resumed", format!("attempt {attempt} starts"));
        }
        let restarting = self.after_restart();
        if self.status.state.is_none() || !restarting {
            self.status.state = Some(State::Pending);
        }
        if restarting {
            self.status.state = Some(State::Initializing);
        } else {
            // A suspension that was taken back before its workers had ended.
            self.clear(ConditionType::Running, Reason::OldPods);
            if self.reason_of(ConditionType::Suspended) == Some(Reason::Suspending) {
                self.set(ConditionType::Suspended, false, Reason::Resumed, "spec.suspend is false");
            }
        }
        self.blocked();
    }

    /// Makes the Jobs, as soon as nothing of before is left and what they resume from is known.
    fn make(&mut self) {
        let (incarnation, restarting) = (self.incarnation(), self.after_restart());
        if let Some(old) = self.jobs().find(|job| job.incarnation < incarnation.number) {
            // It goes after its pods.
            if let Some(late) = self.late(Incarnation { number: old.incarnation, ..incarnation }) {
                self.set(ConditionType::Scheduled, false, Reason::OldPods, &late);
            }
            return;
        }
        if let Some(why) = self.left_of_earlier_incarnations() {
            self.set(ConditionType::Scheduled, false, Reason::OldPods, &why);
            return;
        }
        let wait = self.backoff_left();
        if restarting && wait > 0 {
            self.requeue(wait);
            return;
        }
        if !self.resume_is_checked() || self.gives_up_half_made() {
            return;
        }
        // One that has waited for its template has a state by now.
        if !restarting && !self.has_run() && self.input.status.agent_image.is_none() {
            let gang = &self.input.plan.gang;
            let jobs = if gang.has_roles() { "Jobs" } else { "Job" };
            self.event(false, "Created", format!("{jobs}, Service and ConfigMap for {}", members(gang)));
        }
        self.status.agent_image = Some(self.input.plan.runtime.agent_image.clone());
        self.verdict.actions.push(Action::Ensure);
        self.verdict.actions.push(Action::CreateJobs(incarnation, self.past()));
    }

    /// Deletes the Jobs of some roles if that of another one has been refused for so long. They are made again when the API server
    /// takes it.
    fn gives_up_half_made(&mut self) -> bool {
        let current = self.incarnation();
        // A Job that a queue holds has no pods.
        let there: Vec<_> = self.current_jobs().filter(|job| !job.suspend).collect();
        let since = there.iter().filter_map(|job| job.created).min();
        let Some(since) = since.filter(|_| self.blocked_jobs().next().is_some()) else { return false };
        let left = HALF_MADE - seconds(since, self.input.now);
        if left > 0 {
            self.requeue(left);
            return false;
        }
        // With another number the ends of their pods are no failures of the attempt, which has not begun.
        self.set_incarnation(Incarnation { number: current.number.saturating_add(1), ..current });
        for job in there {
            self.delete(job);
        }
        true
    }

    /// Whether the last attempt found that none of the job's checkpoints can be used, and nobody has said since what follows:
    /// by `checkpoint.ifNoneUsable`, or by a request to restart, as after a repair. The job waits without pods, and its
    /// time does not run.
    fn waits_for_checkpoint(&mut self) -> bool {
        let may_start_over =
            self.input.plan.storage.checkpoint.as_ref().is_none_or(|checkpoint| checkpoint.policy.may_start_over);
        let first = self.first_that_counts();
        let last = self.status.restarts.last().filter(|last| last.waits_for_word() && last.attempt >= first);
        let Some(message) = last.filter(|_| !may_start_over).map(ToString::to_string) else { return false };
        self.set_aside();
        self.status.state = Some(State::Pending);
        self.set(ConditionType::Scheduled, false, Reason::NoUsableCheckpoint, &message);
        self.clear(ConditionType::Running, Reason::NoUsableCheckpoint);
        true
    }

    /// Children that could not be made are named.
    pub(super) fn blocked(&mut self) {
        if let Some((key, blocked)) = self.input.children.blocked.iter().next() {
            let message = format!("{}: {}", key.kind.as_str(), blocked.message);
            let reason = blocked.reason.clone();
            self.set(ConditionType::Scheduled, false, reason, &message);
        } else if !self.waits_for_nodes() && self.job().is_none() {
            let Why { reason, message } = waiting::scheduling();
            self.set(ConditionType::Scheduled, false, reason, &message);
        }
    }

    /// Whether it is said already that nobody knows yet why a worker has no node.
    fn waits_for_nodes(&self) -> bool {
        condition_is(&self.status.conditions, ConditionType::Scheduled, false)
            .is_some_and(|c| c.reason == Reason::Scheduling.as_str())
    }

    /// Seconds until the next attempt may start.
    pub(super) fn backoff_left(&self) -> i64 {
        // The time is a node's: a clock that is ahead must not keep the gang from starting.
        self.last_end().map_or(0, |(ended, wait)| wait - seconds(ended, self.input.now).max(0))
    }

    /// When the next attempt may start.
    pub(super) fn next_from(&self) -> Option<Timestamp> {
        let (ended, wait) = self.last_end()?;
        ended.checked_add(SignedDuration::from_secs(wait)).ok()
    }

    /// When the last attempt ended, and the seconds from then to the start of the next one.
    fn last_end(&self) -> Option<(Timestamp, i64)> {
        let last = self.status.restarts.last()?;
        let wait = match decide(&self.input.plan.policy.failure.restart, &mut self.history(), last) {
            Next::Restart { after } => after.as_secs(),
            Next::Wait | Next::Stop { .. } => 0,
        };
        Some((last.time?, i64::try_from(wait).unwrap_or(i64::MAX)))
    }

    /// Between a failed attempt and the next one's start.
    pub(super) fn after_restart(&self) -> bool {
        let attempt = self.incarnation().attempt;
        self.status.restarts.last().is_some_and(|last| last.attempt == attempt - 1)
            && self.status.state != Some(State::Suspended)
            && self.was(ConditionType::Restarting) == Some(true)
    }

    /// Pods without a Job, where it went without them: their hostnames are those of the next incarnation.
    pub(super) fn left_of_earlier_incarnations(&self) -> Option<String> {
        let Incarnation { number, attempt: next } = self.incarnation();
        let left = self.input.children.pods.values().filter(|p| p.incarnation < number && p.is_alive());
        // One that nobody has asked to end is named before the others.
        let pod = left.min_by_key(|p| (p.deletion.is_some(), p.incarnation, p.place()))?;
        let mut of_number = self.input.children.pods.values().filter(|other| other.incarnation == pod.incarnation);
        // Pods may have had several attempts.
        let of = match number - pod.incarnation {
            _ if !of_number.any(|other| other.role.is_worker()) => "Jobs that were given up".to_owned(),
            1 => format!("attempt {}", next - 1),
            _ => "an earlier attempt".to_owned(),
        };
        let name = &pod.name;
        Some(if pod.deletion.is_some() {
            format!("waiting for the last pods of {of} to end, {name} among them")
        } else {
            format!(
                "pod {name} of {of} runs on without its Job; delete it, since attempt {next} starts when no pod is left"
            )
        })
    }
}

/// Whom a gang is of: `2 workers`, `2 workers, 1 chief, 3 ps`.
fn members(gang: &Gang) -> String {
    gang.roles.iter().map(|role| number_in(role.name, role.replicas.into())).collect::<Vec<_>>().join(", ")
}
