//! Workers that are lost while their gang stays. Only their pods are replaced.
//!
//! The agents gather again around new members, so the other pods can stay. But a pod that ends counts for its Job,
//! whose `backoffLimit` is 0, and then all pods go. So the operator removes a pod that was asked to end from the Job's
//! count before it ends. It does so by the finalizer through which the Job controller counts. The controller then sees
//! a worker without a pod, and creates one without the back-off of 10, 20, 40 s that it has after failures. If the
//! operator is too late for that, or hears no leader, the Job fails and the next incarnation follows.

use super::decision::{Action, Input};
use super::effects::Effects;
use super::phase::{Phase, Silence};
use super::view::View;
use api::{AttemptEnd, Reason};
use failure::{WorkerFacts, first_cause};
use jiff::{SignedDuration, Timestamp};
use observe::ObservedPod;
use protocol::gang::GangPhase;

/// Seconds for which a node has been silent when Kubernetes reports it: the default `--node-monitor-grace-period` of
/// its controller manager. This is more than twice the lease by which the agents of that node have stopped their
/// programs.
const NOTICED_AFTER: i64 = 50;
/// Seconds that a pod may take to end by itself after its agent has given it up.
const ENDS_BY_ITSELF: i64 = 30;

impl<'a> View<'a> {
    /// Whether the rest of the gang takes in new pods. If no pod of a gang was left, its new pods start from the
    /// beginning and do not know of earlier attempts.
    pub(super) fn can_readmit(&self) -> bool {
        if self.gang.is_none_or(|gang| gang.phase == GangPhase::Over) {
            return false;
        }
        let eldest = self.all_pods.iter().filter(|pod| !pod.gone).filter_map(|pod| pod.created).min();
        let lost = self.all_pods.iter().filter(|pod| pod.gone && !pod.succeeded());
        let last_loss = lost.filter_map(|pod| pod.deletion).max();
        eldest.is_some_and(|eldest| last_loss.is_none_or(|loss| eldest < loss))
    }

    /// The workers whose pods are going or gone while others stay, if the gang takes in new pods for them.
    pub(super) fn leaving_pods(&self) -> Vec<&'a ObservedPod> {
        let is_wanted = |pod: &ObservedPod| !self.done.contains(&pod.replica_id());
        let goes = |pod: &&ObservedPod| is_wanted(pod) && (pod.gone || pod.deletion.is_some());
        let (going, staying): (Vec<_>, Vec<_>) = self.members().0.into_iter().partition(goes);
        if going.is_empty() {
            return going;
        }
        // When a Job fails, all its pods go after the one by which it failed, and no others are made.
        let job_fails = self.gang_job().is_none() || self.failed_job().is_some();
        let fails = job_fails || staying.iter().any(|pod| pod.failed());
        if fails || !staying.iter().any(|pod| pod.runs()) || !self.can_readmit() { Vec::new() } else { going }
    }

    /// How the attempt ends because of the lost workers.
    pub(super) fn end_by_leaving(&self) -> Option<AttemptEnd> {
        // A worker that was asked to stop ends as requested. For the leader that is no failure, whatever the cause.
        let cause = first_cause(self.leaving_pods()).map(|cause| AttemptEnd { disruption: true, ..cause });
        self.end_by_loss(&cause?)
    }

    /// The end caused by a lost worker, unless the leader has judged the attempt for another reason.
    fn end_by_loss(&self, cause: &AttemptEnd) -> Option<AttemptEnd> {
        let is_known = |end: &AttemptEnd| end.disruption && end.replica_id() == cause.replica_id();
        (!self.is_between_attempts() || self.kept().is_some_and(is_known)).then(|| self.end_by(cause))
    }

    /// Pods of lost workers that have yet to go.
    pub(super) fn replacing(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        self.leaving_pods().iter().any(|pod| !pod.gone).then_some(Phase::Replacing)
    }

    /// The members that stay, without the lost ones.
    pub(super) fn staying_pods(&self) -> Vec<&'a ObservedPod> {
        let going = self.leaving_pods();
        let (mut members, _) = self.members();
        members.retain(|pod| !going.iter().any(|gone| gone.uid == pod.uid));
        members
    }

    /// Workers on nodes that do not answer. Such a node may come back; otherwise other pods take the places.
    pub(super) fn unreachable(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        let is_silent = |p: &&ObservedPod| p.is_alive() && !p.succeeded() && p.unreachable.is_some();
        let silent: Vec<_> = self.staying_pods().into_iter().filter(is_silent).collect();
        let first = silent.iter().copied().min_by_key(|pod| pod.replica_id())?;
        if self.programs_run() {
            return Some(Phase::Unreachable { first, silence: Silence::ProgramsRun });
        }
        let now = self.now();
        let (lost, waiting): (Vec<_>, Vec<_>) =
            silent.into_iter().partition(|pod| self.lost_at(pod).is_some_and(|at| at <= now));
        let is_waited_for = waiting.iter().any(|pod| self.lost_at(pod).is_some());
        let silence = match (lost.is_empty(), is_waited_for) {
            (false, _) => Silence::Lost(lost),
            (true, true) => Silence::MayComeBack,
            (true, false) => Silence::MayRun,
        };
        Some(Phase::Unreachable { first, silence })
    }

    /// Seconds until the next worker on an unreachable node is given up.
    pub(super) fn next_lost_in(&self) -> Option<i64> {
        let silent =
            self.staying_pods().into_iter().filter(|p| p.is_alive() && !p.succeeded() && p.unreachable.is_some());
        silent.filter_map(|pod| self.lost_at(pod)).filter(|at| *at > self.now()).min().and_then(|at| self.until(at))
    }

    /// Why a worker on an unreachable node is lost.
    pub(super) fn cause_of_loss(pod: &ObservedPod) -> Option<AttemptEnd> {
        let disruption = pod.lost();
        first_cause([WorkerFacts { disruption: disruption.as_ref(), ..WorkerFacts::from(pod) }])
    }

    /// The end of the attempt because of these workers on unreachable nodes.
    pub(super) fn end_by_lost_nodes(&self, lost: &[&ObservedPod]) -> Option<AttemptEnd> {
        lost.iter().filter_map(|pod| Self::cause_of_loss(pod)).fold(None, |end, cause| {
            let new = match &end {
                Some(end) => self.with_end(end.clone()).end_by_loss(&cause),
                None => self.end_by_loss(&cause),
            };
            new.or(end)
        })
    }

    /// Gives up pods that were asked to end and whose nodes are lost. Gives up also pods whose agents report a process
    /// that does not end. The kernel then does not let the container end either, so that their nodes never report an
    /// end. All processes left in such a pod have had SIGKILL, and run nothing more.
    pub(super) fn give_up(&self) -> Effects {
        let (_, most) = self.sizes();
        let pods = || self.input.children.pods.values().map(|pod| &**pod).filter(|pod| pod.is_alive());
        let lost = pods().filter(|pod| pod.deletion.is_some()).filter_map(|pod| Some((pod, self.lost_at(pod)?)));
        let lost = lost.map(|(pod, at)| match self.until(at) {
            Some(left) => Effects::default().waking(Some(left)),
            None if pod.index >= most || !self.programs_run() => Effects::from_actions([release(pod, true)]),
            None => Effects::default(),
        });
        let given_up = self.given_up().map(|(pod, _, left)| match left {
            1.. => Effects::default().waking(Some(left)),
            _ => Effects::from_actions([release(pod, true)]),
        });
        lost.chain(given_up).fold(Effects::default(), Effects::and)
    }

    /// Pods that their agents have given up, with the reason and the seconds that each still has to end by itself.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (&'a ObservedPod, &AttemptEnd, i64)> {
        let input: &'a Input<'a> = self.input;
        input.children.pods.values().map(|pod| &**pod).filter(|pod| pod.is_alive()).filter_map(|pod| {
            let is_it = |end: &&AttemptEnd| end.reason == Reason::Unkillable && end.pod.as_ref() == Some(&pod.name);
            let end = self.record.restarts.iter().find(is_it)?;
            Some((pod, end, ENDS_BY_ITSELF - end.time.map_or(0, |time| self.since(time))))
        })
    }

    /// The fewest and the most workers that may run together, from the size that was decided and the size that the
    /// leader reports.
    fn sizes(&self) -> (u32, u32) {
        let decided = if self.input.plan.gang.elastic.is_some() { self.size() } else { self.input.plan.gang.size() };
        let decided = u32::from(decided);
        let reported = self.gang.map(|gang| gang.workers).filter(|workers| *workers > 0).unwrap_or(decided);
        (decided.min(reported), decided.max(reported))
    }

    /// When the worker in this pod, whose node is silent, is given up. A program runs with all of its gang or not at
    /// all. If another worker is seen without it, its agent has stopped it by the end of its lease. If all workers are
    /// silent, or there is no other, it may still write checkpoints. Then only a person with better knowledge may
    /// delete its pod.
    fn lost_at(&self, pod: &ObservedPod) -> Option<Timestamp> {
        // A worker that waits in an elastic gang has no program that would have stopped.
        let (least, most) = self.sizes();
        let is_seen = |other: &ObservedPod| {
            let has_run = other.started().is_some() || other.ended.is_some();
            let runs_with_it = other.index < least || pod.index >= most;
            let is_other = other.incarnation == pod.incarnation && other.replica_id() != pod.replica_id();
            is_other && runs_with_it && other.unreachable.is_none() && has_run
        };
        let more = i64::from(self.input.plan.policy.failure.node_lost_seconds) - NOTICED_AFTER;
        let at = pod.unreachable?.checked_add(SignedDuration::from_secs(more.max(0))).ok()?;
        self.input.children.pods.values().any(|other| is_seen(other)).then_some(at)
    }
}

/// Removes this pod from its Job's count. With `force`, deletes it without waiting for its node.
pub(super) fn release(pod: &ObservedPod, force: bool) -> Action {
    Action::ReleasePod { name: pod.name.clone(), uid: pod.uid.clone(), force }
}
