//! Workers that go while their gang stays: their pods are replaced, and nobody else's.
//!
//! The agents gather again around whoever comes, so the other pods need not go. But a pod that ends counts for its Job,
//! whose `backoffLimit` is 0: then all go. So a pod that was told to end is taken from the Job's count before it ends, by the
//! finalizer through which the Job controller counts. The controller then sees a worker without a pod, and makes one, without
//! the back-off of 10, 20, 40 s that it has after failures. Where the operator is too late for that, or hears no leader, the
//! Job fails and the next incarnation follows.

use super::step::{Step, seconds};
use super::verdict::{Action, Input};
use api::{AttemptEnd, ConditionType, Reason, State};
use failure::{WorkerFacts, first_cause};
use jiff::{SignedDuration, Timestamp};
use observe::{ObservedJob, ObservedPod};
use protocol::gang::GangPhase;

/// How long a node has been silent when Kubernetes says so: `--node-monitor-grace-period` of its controller manager, by
/// default. Twice the lease by which the agents of that node have stopped their programs, and more.
const NOTICED_AFTER: i64 = 50;
/// How long a pod may take to end by itself that its agent has given up, in seconds.
const ENDS_BY_ITSELF: i64 = 30;

impl Step<'_> {
    /// Whether what is left of the gang takes in new pods. Those of a gang of which nobody was left begin anew, and
    /// would not know of the attempts before.
    pub(super) fn takes_in(&self) -> bool {
        if self.gang().is_none_or(|gang| gang.phase == GangPhase::Over) {
            return false;
        }
        let pods = self.all_pods(self.incarnation());
        let eldest = pods.iter().filter(|pod| !pod.gone).filter_map(|pod| pod.created).min();
        let last_loss = pods.iter().filter(|pod| pod.gone && !pod.succeeded()).filter_map(|pod| pod.deletion).max();
        eldest.is_some_and(|eldest| last_loss.is_none_or(|loss| eldest < loss))
    }

    /// The workers whose pods go or are gone while others stay, if the gang takes in new ones for them. `pods` are the last
    /// one of each worker.
    pub(super) fn leaving<'p>(&self, job: &ObservedJob, pods: &[&'p ObservedPod]) -> Vec<&'p ObservedPod> {
        let goes = |pod: &&ObservedPod| !pod.succeeded() && (pod.gone || pod.deletion.is_some());
        let (going, staying): (Vec<_>, Vec<_>) = pods.iter().copied().partition(goes);
        if going.is_empty() {
            return going;
        }
        // Of a Job that fails all pods go, after the one by which it failed.
        let fails = job.failed.is_some() || staying.iter().any(|pod| pod.failed());
        if fails || !staying.iter().any(|pod| pod.runs()) || !self.takes_in() { Vec::new() } else { going }
    }

    /// Has the pods replaced that go. True while some of them have yet to go, and if no other attempt follows.
    pub(super) fn losing(&mut self, job: &ObservedJob, going: &[&ObservedPod]) -> bool {
        if let Some(cause) = first_cause(going.iter().copied()) {
            // Whoever was told to end ends as asked: for the leader that is no failure, whoever asked.
            self.keep_loss(&AttemptEnd { disruption: true, ..cause });
        }
        let entry = self.kept(self.incarnation()).cloned();
        if entry.as_ref().is_some_and(|entry| !self.may_restart(entry)) {
            self.failing(job);
            return true;
        }
        for pod in going.iter().filter(|pod| !pod.gone && pod.tracked) {
            self.release(pod, false);
        }
        self.tell_loss(entry.as_ref(), going);
        let still_there: Vec<_> = going.iter().copied().filter(|pod| !pod.gone).collect();
        !still_there.is_empty()
    }

    fn tell_loss(&mut self, entry: Option<&AttemptEnd>, going: &[&ObservedPod]) {
        self.status.state = Some(State::Initializing);
        let current = self.incarnation();
        let (reason, mut message) = match (entry, going.iter().min_by_key(|pod| pod.place())) {
            (Some(entry), _) => (entry.reason.clone(), entry.to_string()),
            (None, Some(pod)) => (Reason::Starting, format!("{}: another pod takes its place", pod.describe())),
            (None, None) => return,
        };
        if let Some(late) = self.late(current) {
            message = format!("{message}; {late}");
        }
        self.set(ConditionType::Running, false, reason.clone(), &message);
        if entry.is_some() {
            self.set(ConditionType::Restarting, true, reason, &message);
        }
    }

    /// Files why a worker is lost, unless the leader has judged the attempt for another reason.
    fn keep_loss(&mut self, cause: &AttemptEnd) {
        let current = self.incarnation();
        let is_told = |entry: &AttemptEnd| entry.disruption && entry.place() == cause.place();
        if !self.is_between_attempts() || self.kept(current).is_some_and(is_told) {
            self.keep(current, cause);
        }
    }

    pub(super) fn release(&mut self, pod: &ObservedPod, force: bool) {
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        self.verdict.actions.push(Action::ReleasePod { name, uid, force });
    }

    /// Of pods that were told to end those whose nodes are lost are gone with their nodes.
    pub(super) fn give_up_lost(&mut self) {
        let input: &Input<'_> = self.input;
        let (_, most) = self.sizes();
        for pod in input.children.pods.values().filter(|pod| pod.is_alive() && pod.deletion.is_some()) {
            match self.lost_at(pod) {
                Some(at) if at > input.now => self.requeue(seconds(input.now, at).max(1)),
                Some(_) if pod.index >= most || !self.runs_on() => self.release(pod, true),
                _ => {}
            }
        }
    }

    /// Pods that their agents have given up, for a process in them does not end: the kernel then does not let the container end
    /// either, so that their nodes never say that they have. All that is left in them has had SIGKILL, and runs nothing more.
    pub(super) fn give_up_unkillable(&mut self) {
        let input: &Input<'_> = self.input;
        for pod in input.children.pods.values().filter(|pod| pod.is_alive()) {
            let is_it =
                |entry: &&AttemptEnd| entry.reason == Reason::Unkillable && entry.pod.as_ref() == Some(&pod.name);
            let Some(entry) = self.status.restarts.iter().find(is_it) else { continue };
            let left = ENDS_BY_ITSELF - entry.time.map_or(0, |time| seconds(time, input.now));
            if left > 0 {
                self.requeue(left);
                continue;
            }
            let message = entry.to_string();
            self.release(pod, true);
            self.event(true, "Unkillable", message);
        }
    }

    /// Nobody knows whether that worker still runs. Its node may come back; else another pod takes its place.
    pub(super) fn node_is_silent(&mut self, silent: &[&ObservedPod]) {
        let Some(first) = silent.iter().min_by_key(|pod| pod.place()) else { return };
        let since = first.unreachable.map_or_else(String::new, |since| format!(" since {since:.0}"));
        let is_news = self.reason_of(ConditionType::Running) != Some(Reason::NodeLost);
        let told = |what: &str| format!("{}: its node has not answered{since}, {what}", first.describe());
        if self.runs_on() {
            let message = told("and its program runs on: the other workers hear it");
            if is_news {
                self.event(true, "NodeSilent", message.clone());
            }
            self.status.state = Some(State::Running);
            return self.set(ConditionType::Running, true, Reason::NodeLost, &message);
        }
        let now = self.input.now;
        let (lost, waiting): (Vec<_>, Vec<_>) =
            silent.iter().copied().partition(|pod| self.lost_at(pod).is_some_and(|at| at <= now));
        let due = waiting.iter().filter_map(|pod| self.lost_at(pod)).min();
        if let Some(due) = due {
            self.requeue(seconds(now, due).max(1));
        }
        let limit = self.input.plan.policy.failure.node_lost_seconds;
        let message = match (lost.is_empty(), due) {
            (false, _) => told(&format!(
                "for longer than {limit} s (failurePolicy.nodeLostSeconds): its pod is deleted without the node's word, \
                 and another one takes its place"
            )),
            (true, Some(_)) => told(&format!(
                "and the gang can't go on without it. If it does not come back within {limit} s of its last sign of life \
                 (failurePolicy.nodeLostSeconds), another pod takes its place"
            )),
            (true, None) => told(
                "and no other worker is heard that would have stopped with it: its program may still run. If the node is \
                 gone for good, delete the Node or taint it node.kubernetes.io/out-of-service, and another pod takes its \
                 place",
            ),
        };
        if is_news {
            self.event(true, "NodeSilent", message.clone());
        }
        for pod in &lost {
            let disruption = pod.lost();
            let facts = WorkerFacts { disruption: disruption.as_ref(), ..WorkerFacts::from(*pod) };
            let Some(cause) = first_cause([facts]) else { continue };
            self.keep_loss(&cause);
            self.release(pod, true);
            self.event(true, "NodeLost", cause.to_string());
        }
        self.status.state = Some(State::Initializing);
        self.set(ConditionType::Running, false, Reason::NodeLost, &message);
    }

    /// The least and the most workers that may run together: so many were decided, and so many the leader tells of.
    fn sizes(&self) -> (u32, u32) {
        let decided = if self.input.plan.gang.elastic.is_some() { self.size() } else { self.input.plan.gang.size() };
        let decided = u32::from(decided);
        let told = self.gang().map(|gang| gang.workers).filter(|workers| *workers > 0);
        let told = told.unwrap_or(decided);
        (decided.min(told), decided.max(told))
    }

    /// Whether the leader tells that all programs run: of a node whose kubelet alone is silent.
    pub(super) fn runs_on(&self) -> bool {
        let is_heard = self.input.agent.is_some_and(|agent| agent.failing_since.is_none());
        is_heard && self.gang().is_some_and(|gang| gang.phase == GangPhase::Running)
    }

    /// When the worker in this pod is given up whose node is silent. A program runs with all of its gang or not at all:
    /// where another worker is seen without it, its agent has stopped it by the end of its lease. Where all are silent, or there
    /// is no other, it may still write checkpoints, and who deletes its pod has to know better.
    fn lost_at(&self, pod: &ObservedPod) -> Option<Timestamp> {
        // A worker that waits in an elastic gang has nothing that would have stopped.
        let (least, most) = self.sizes();
        let is_seen = |other: &ObservedPod| {
            let has_run = other.started().is_some() || other.ended.is_some();
            let runs_with_it = other.index < least || pod.index >= most;
            let is_other = other.incarnation == pod.incarnation && other.place() != pod.place();
            is_other && runs_with_it && other.unreachable.is_none() && has_run
        };
        let more = i64::from(self.input.plan.policy.failure.node_lost_seconds) - NOTICED_AFTER;
        let at = pod.unreachable?.checked_add(SignedDuration::from_secs(more.max(0))).ok()?;
        self.input.children.pods.values().any(|other| is_seen(other)).then_some(at)
    }
}
