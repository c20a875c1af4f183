//! What a Job that is there means for its gang.

use super::step::{Step, number_in, seconds};
use super::verdict::Action;
use super::waiting;
use api::{ConditionType, Reason, State};
use jiff::{SignedDuration, Timestamp};
use observe::{ChildKey, ObservedJob, ObservedPod};
use plan::Role;
use protocol::role::{Place, RoleName};

/// How long no pod may come, while some are missing, before the Job's Events are read.
const READ_OF_JOB_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// How long a worker may be without a node before its PodGroup is looked at.
const LOOK_AT_GROUP_AFTER: i64 = 15;
/// The longest between two looks at it.
const LOOK_AT_GROUP_WITHIN: i64 = 240;
/// How long a scheduled pod may take to start before its Events are read.
const READ_OF_POD_AFTER: SignedDuration = SignedDuration::from_secs(15);

impl Step<'_> {
    pub(super) fn running(&mut self, job: &ObservedJob) {
        if self.current_jobs().any(|job| job.deleting) {
            return self.losing_job(); // to somebody else: one that is not wanted any more has an old number
        }
        self.verdict.actions.push(Action::Ensure);
        let has_failed = self.failed_job().is_some();
        let in_queue = !has_failed && self.queue();
        let held = self.current_jobs().find(|job| job.suspended_by_queue).or(in_queue.then_some(job));
        if let Some(held) = held.filter(|_| !has_failed) {
            return self.suspended_by_queue(held);
        }
        if !has_failed {
            self.resize(job);
        }
        if let Some((role, wanted, pods)) = self.reduced_role().filter(|_| !has_failed) {
            return self.reduced(role, wanted, pods);
        }
        let (pods, spares) = self.members(self.pods(self.incarnation()));
        self.let_go(&spares);
        let going = self.leaving(job, &pods);
        // Who evicts marks a pod first, and then deletes it.
        let is_marked = |pod: &ObservedPod| pod.disruption.is_some() && pod.deletion.is_none() && self.takes_in();
        let fails = |pod: &&ObservedPod| pod.failed() || (pod.disruption.is_some() && !is_marked(pod));
        if going.is_empty() && (has_failed || self.replaced() || pods.iter().any(fails)) {
            return self.failing(job);
        }
        if !going.is_empty() && self.losing(job, &going) {
            return;
        }
        let pods: Vec<_> = pods.into_iter().filter(|pod| !going.iter().any(|gone| gone.uid == pod.uid)).collect();
        self.take_up_again();
        let missing = self.missing(&pods);
        let job = missing.first().and_then(|place| self.input.children.job(place.role)).unwrap_or(job);
        let missing = missing.len();
        self.keep_group(job, &pods, missing);
        let event = self.input.children.event.as_ref();
        let of_job = event.filter(|event| event.about == job.uid);
        if let Some(why) = waiting::for_nodes(&pods, missing, Some(&self.input.plan.gang), of_job) {
            let restarts =
                self.after_restart() || (self.takes_in() && self.was(ConditionType::Restarting) == Some(true));
            let quiet = why.reason == Reason::Scheduling && restarts;
            self.status.state = Some(if quiet { State::Initializing } else { State::Pending });
            self.set(ConditionType::Scheduled, false, why.reason.clone(), &why.message);
            self.clear(ConditionType::Running, Reason::Waiting);
            self.blocked();
            if self.past_start(job, &why) {
                return;
            }
            if missing > 0 && job.taken_up.is_some() {
                let last = pods.iter().filter_map(|p| p.created).chain(job.taken_up).max();
                self.read_events_of(last, READ_OF_JOB_AFTER, &job.uid);
            }
            return;
        }
        let is_silent = |p: &&&ObservedPod| p.is_alive() && !p.succeeded() && p.unreachable.is_some();
        let silent: Vec<_> = pods.iter().filter(is_silent).copied().collect();
        if !silent.is_empty() {
            return self.node_is_silent(&silent);
        }
        let placed = self.placed(job, &spares);
        if self.was(ConditionType::Scheduled) != Some(true) {
            self.event(false, "Scheduled", placed.clone());
        }
        self.set(ConditionType::Scheduled, true, Reason::Scheduled, &placed);
        let all_run = pods.iter().all(|p| p.runs() || p.succeeded());
        if all_run && self.forms() {
            self.forming(job);
        } else if all_run {
            if self.status.state != Some(State::Running) {
                self.event(false, "Started", format!("every worker runs (attempt {})", self.incarnation().attempt));
            }
            self.status.state = Some(State::Running);
            self.set(ConditionType::Running, true, Reason::Running, "every worker's program runs or has ended well");
            self.clear(ConditionType::Restarting, Reason::Restarted);
            self.tell_queue_of_start();
            self.judge_success();
        } else {
            let why = waiting::for_start(&pods, event);
            self.status.state = Some(State::Initializing);
            self.set(ConditionType::Running, false, why.reason.clone(), &why.message);
            // One that is started again has run: its pod is no reason to give the job up.
            if pods.iter().all(|pod| pod.killed.is_none()) && self.past_start(job, &why) {
                return;
            }
            if let Some(pod) = pods.iter().find(|p| p.is_alive() && !p.runs() && p.waiting.is_none()) {
                let uid = pod.uid.clone();
                self.read_events_of(pod.scheduled_at, READ_OF_POD_AFTER, &uid);
            }
        }
    }

    /// Without its PodGroup nobody gets a node, and some schedulers don't even say so. It is not watched, so it is looked at when
    /// a worker has had no node for long, and less and less often while that lasts.
    fn keep_group(&mut self, job: &ObservedJob, pods: &[&ObservedPod], missing: usize) {
        if self.input.plan.gang.group.is_none() {
            return;
        }
        let without = pods.iter().filter(|pod| pod.is_alive() && pod.node.is_none()).filter_map(|pod| pod.created);
        let since = without.chain(job.taken_up.filter(|_| missing > 0)).max();
        let is_blocked = self.input.children.blocked.contains_key(&ChildKey::POD_GROUP);
        let waits = match since {
            _ if is_blocked => 0,
            None => return,
            Some(since) => {
                let looked = self.input.children.group_looked_at.filter(|looked| *looked >= since);
                let last = looked.unwrap_or(since);
                let pause = seconds(since, last).clamp(LOOK_AT_GROUP_AFTER, LOOK_AT_GROUP_WITHIN);
                pause - seconds(last, self.input.now)
            }
        };
        if waits <= 0 {
            self.verdict.actions.push(Action::EnsureGroup);
        }
        self.requeue(if waits > 0 { waits } else { LOOK_AT_GROUP_AFTER });
    }

    /// A queue manager has suspended the Job, before its start or while it ran: pods that go for that are no failure.
    fn suspended_by_queue(&mut self, job: &ObservedJob) {
        let current = self.incarnation();
        self.drop_running_failure(current);
        if current.attempt > job.first_attempt {
            // Its template can't be changed, and the pods that come of it would count their attempts and budgets anew.
            self.set_incarnation(current.next());
            self.delete(job);
        }
        self.set_aside();
        self.status.state = Some(State::Pending);
        let words = self.words_of_queue();
        self.set(ConditionType::Scheduled, false, Reason::Queued, &words);
        if self.input.children.blocked.contains_key(&ChildKey::WORKLOAD) {
            self.blocked();
        }
        self.clear(ConditionType::Running, Reason::Queued);
        self.clear(ConditionType::Restarting, Reason::Queued);
    }

    /// Places of the gang that have no pod, and need one.
    fn missing(&self, pods: &[&ObservedPod]) -> Vec<Place> {
        let gang = &self.input.plan.gang;
        let provided = self.provided(pods);
        let places = |role: &Role| {
            let name = role.name;
            (0..role.pods(self.size()).into()).map(move |index| Place { role: name, index })
        };
        gang.roles.iter().flat_map(places).filter(|place| !provided.contains(place)).collect()
    }

    /// A role of whose pods somebody else wants fewer, with how many there should be, and are.
    fn reduced_role(&self) -> Option<(RoleName, u16, i32)> {
        let gang = &self.input.plan.gang;
        let of = |job: &ObservedJob| Some((gang.role(job.role)?, job.parallelism?));
        let mut roles = self.current_jobs().filter_map(of).filter(|_| gang.elastic.is_none());
        let (role, pods) = roles.find(|(role, pods)| *pods < role.replicas.into())?;
        Some((role.name, role.replicas, pods))
    }

    /// Somebody has made the Job smaller than its gang: pods that go for that are no failure.
    fn reduced(&mut self, role: RoleName, wanted: u16, pods: i32) {
        self.drop_running_failure(self.incarnation());
        self.status.state = Some(State::Pending);
        let gang = number_in(role, wanted.into());
        let message = format!(
            "the Job's parallelism is {pods} by somebody else's will, and the gang is of {gang}: set it back, or delete \
             the Job, which is made again"
        );
        self.set(ConditionType::Scheduled, false, Reason::Parallelism, &message);
        self.clear(ConditionType::Running, Reason::Parallelism);
        self.clear(ConditionType::Restarting, Reason::Parallelism);
    }

    fn read_events_of(&mut self, since: Option<Timestamp>, after: SignedDuration, uid: &str) {
        let (now, read_again) = (self.input.now, self.input.children.read_events_after());
        let due = [
            since.and_then(|t| t.checked_add(after).ok()),
            self.input.children.events_read_at.and_then(|t| t.checked_add(read_again).ok()),
        ];
        match due.into_iter().flatten().max() {
            Some(at) if at > now => self.requeue(seconds(now, at).max(1)),
            _ => {
                self.verdict.read_events_of.push(uid.to_owned());
                self.requeue(read_again.as_secs());
            }
        }
    }
}
