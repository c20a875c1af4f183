//! Rules for a gang whose Jobs exist.

use super::ending::disruption_of_gang;
use super::phase::Phase;
use super::view::View;
use super::waiting::{self, WaitReason};
use super::{fetch, progress};
use api::{ConditionType, Reason};
use observe::{ObservedJob, ObservedPod};
use plan::{Completion, Role};
use protocol::gang::{GangPhase, GangStatus};
use protocol::role::ReplicaId;

/// Seconds for which a new gang may wait for its members before that is reported.
const FORMED_WITHIN: i64 = 10;
/// Seconds for which a gang may wait for its members before the proxy of a service mesh is reported.
const FORMED_IN_MESH_WITHIN: i64 = 60;
/// Seconds beyond the grace period that agents may take to end all that they run. This is several times what they take
/// to give up a process that can't be ended.
const STOPPED_WITHIN: i64 = 900;

impl<'a> View<'a> {
    /// Whether the outcome no longer depends on how the gang does: it has succeeded, or is to stop.
    pub(super) fn is_settled(&self) -> bool {
        self.has_succeeded()
            || self.condition_status(ConditionType::Stopping) == Some(true)
            || self.is_suspending()
            || self.past_deadline().is_some()
    }

    pub(super) fn is_losing_job(&self) -> bool {
        self.jobs.iter().any(|job| job.deleting)
    }

    /// Another client is deleting this Job, and its pods go first. A Job that is no longer wanted has an old number.
    pub(super) fn losing_job(&self) -> Option<Phase<'a>> {
        self.gang_job().filter(|_| self.is_losing_job())?;
        let end = self.has_begun().then(|| self.end_by_deleted_job());
        let follows = end.as_ref().is_some_and(|end| self.may_restart(end));
        Some(Phase::LosingJob { end, follows })
    }

    pub(super) fn queued(&self) -> Option<Phase<'a>> {
        self.gang_job().filter(|_| self.failed_job().is_none())?;
        self.held().map(|job| Phase::Queued { job })
    }

    pub(super) fn shrunk(&self) -> Option<Phase<'a>> {
        self.gang_job().filter(|_| self.failed_job().is_none())?;
        let gang = &self.input.plan.gang;
        let of = |job: &ObservedJob| Some((gang.role(job.role)?, job.parallelism?));
        let mut roles = self.jobs.iter().filter_map(|job| of(job)).filter(|_| gang.elastic.is_none());
        let (role, pods) = roles.find(|(role, pods)| *pods < role.replicas.into())?;
        Some(Phase::Shrunk { role: role.name, wanted: role.replicas, pods })
    }

    /// Places of the gang that need a pod and have none.
    pub(super) fn missing(&self, pods: &[&ObservedPod]) -> Vec<ReplicaId> {
        let mut provided = self.done_among(pods);
        provided.extend(pods.iter().map(|pod| pod.replica_id()));
        let places = |role: &Role| {
            let name = role.name;
            (0..role.pods(self.size()).into()).map(move |index| ReplicaId { role: name, index })
        };
        let roles = self.input.plan.gang.roles.iter();
        roles.flat_map(places).filter(|place| !provided.contains(place)).collect()
    }

    /// The Job of the first place without a pod, otherwise the workers' Job.
    pub(super) fn awaited_job(&self, missing: &[ReplicaId]) -> Option<&'a ObservedJob> {
        missing.first().and_then(|place| self.input.children.job(place.role)).or_else(|| self.gang_job())
    }

    pub(super) fn unscheduled(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        let pods = self.staying_pods();
        let missing = self.missing(&pods);
        let job = self.awaited_job(&missing)?;
        let of_job = self.input.children.event.as_ref().filter(|event| event.about == job.uid);
        let why = waiting::for_nodes(&pods, missing.len(), Some(&self.input.plan.gang), of_job)?;
        Some(Phase::Unscheduled { why })
    }

    fn all_run(&self) -> bool {
        self.staying_pods().iter().all(|pod| pod.runs() || pod.succeeded())
    }

    /// The pods run but their programs don't: the agents stop an attempt, or wait for all members.
    pub(super) fn gathering(&self) -> Option<Phase<'a>> {
        self.gang_job().filter(|_| self.all_run())?;
        let gang = self.gang.filter(|gang| matches!(gang.phase, GangPhase::Gathering | GangPhase::Stopping))?;
        if self.formed_in().is_some() {
            return None;
        }
        let is_stopping = gang.phase == GangPhase::Stopping;
        let waits_for = match gang.waits_for.as_str() {
            "" if is_stopping => "the programs of this attempt are stopping",
            "" => "the agents of all workers find each other",
            words => words,
        };
        let reason = if is_stopping { Reason::Stopping } else { Reason::Starting };
        let message = format!("{waits_for}{}", self.words_on_mesh().filter(|_| !is_stopping).unwrap_or_default());
        Some(Phase::Gathering { why: WaitReason { reason, message } })
    }

    /// Seconds until a new gang should have formed. Programs find each other within moments.
    pub(super) fn formed_in(&self) -> Option<i64> {
        self.gang.filter(|gang| gang.phase == GangPhase::Gathering && gang.ended.is_empty())?;
        let started = self.pods.iter().filter_map(|pod| pod.started()).max()?;
        let left = FORMED_WITHIN - self.since(started);
        (left > 0).then_some(left.max(1))
    }

    /// The proxy of a service mesh in the pods, and the seconds until it is reported.
    fn mesh(&self) -> Option<(&'static str, i64)> {
        let proxy = self.pods.iter().find_map(|pod| pod.mesh)?;
        let started = self.pods.iter().filter_map(|pod| pod.started()).max()?;
        Some((proxy, FORMED_IN_MESH_WITHIN - self.since(started)))
    }

    /// What may keep the members of a gang from finding each other, once they have taken long.
    fn words_on_mesh(&self) -> Option<String> {
        let (proxy, _) = self.mesh().filter(|(_, left)| *left <= 0)?;
        Some(format!(
            "; a service mesh's proxy ({proxy}) runs in the pods and may hold up what the workers send each other: switch its \
             injection off (docs/jobs.md, \"Service meshes\")"
        ))
    }

    /// Seconds until a gathering gang is checked again for its mesh.
    pub(super) fn words_on_mesh_in(&self) -> Option<i64> {
        self.gang.filter(|gang| gang.phase != GangPhase::Stopping)?;
        self.mesh().map(|(_, left)| left).filter(|left| *left > 0)
    }

    /// Seconds until agents have taken too long to stop their programs, negative afterwards. Agents give up processes
    /// that can't be ended, so a longer wait means that one of them or its node has a problem.
    pub(super) fn stopped_in(&self) -> Option<i64> {
        let is_stopping = |gang: &&GangStatus| gang.phase == GangPhase::Stopping && self.agent_answers();
        let since = self.gang.filter(is_stopping)?.stopping_since?;
        Some(self.stop_limit() - self.since(self.by_our_clock(since)))
    }

    fn stop_limit(&self) -> i64 {
        self.input.plan.gang.workers().pod.grace_seconds.saturating_add(STOPPED_WITHIN)
    }

    /// The end of an attempt whose agents have not stopped their programs in time.
    pub(super) fn unstoppable(&self, phase: Phase<'a>) -> Phase<'a> {
        let (Phase::Gathering { why }, Some(left)) = (&phase, self.stopped_in()) else { return phase };
        if left > 0 {
            return phase;
        }
        let message = format!("the programs have not stopped within {} s: {}", self.stop_limit(), why.message);
        let end = self.end_by(&disruption_of_gang(Reason::Unkillable, &message));
        match self.judged(end) {
            Phase::Restarting { end, history, .. } => Phase::Restarting { until: Some(Box::new(phase)), end, history },
            Phase::Failed { reason, message, judged, .. } => {
                Phase::Failed { until: Some(Box::new(phase)), reason, message, judged }
            }
            other => other,
        }
    }

    pub(super) fn starting(&self) -> Option<Phase<'a>> {
        self.gang_job().filter(|_| !self.all_run())?;
        let fetching = fetch::message_of_worker(self).map(|message| WaitReason { reason: Reason::Fetching, message });
        let for_start = || waiting::for_start(&self.staying_pods(), self.input.children.event.as_ref());
        Some(Phase::Starting { why: fetching.unwrap_or_else(for_start) })
    }

    /// All programs run, until the agents report that the success policy is met.
    pub(super) fn running(&self) -> Option<Phase<'a>> {
        self.gang_job()?;
        let agent = self.input.agent.filter(|agent| agent.is_of(self.current.attempt));
        let policy = &self.input.plan.policy.success;
        let enough = agent.and_then(|agent| progress::success(policy, &self.record, agent));
        Some(match enough {
            Some((reason, message)) => Phase::StoppingEarly { until: Some(Box::new(Phase::Running)), reason, message },
            None => Phase::Running,
        })
    }

    /// A Job of an incarnation that has begun is gone. Its pods end, so the Job's return is another incarnation.
    pub(super) fn job_lost(&self) -> Option<Phase<'a>> {
        self.has_lost_job().then(|| self.judged(self.end_by_deleted_job()))
    }

    /// Whether every deciding program exited with code 0. The status then says so until the result is published,
    /// because the pods may go meanwhile. The Job itself reports it only with its next sync, up to a second later. It
    /// would report something else for a pod with side-cars that fail or never end.
    pub(super) fn has_succeeded(&self) -> bool {
        let decides = || {
            if self.input.plan.gang.elastic.is_some() {
                // Only the agents know which size it was. They exit with 0 when all programs have, and the first
                // worker's agent exits last.
                return self.done.contains(&ReplicaId::FIRST_WORKER);
            }
            self.input.plan.gang.deciding().all(|place| self.done.contains(&place))
        };
        let has_ended = || self.worker_job().is_some_and(|job| job.complete) || decides();
        self.unpublished_since().is_some() || has_ended() && !self.awaits_last_reading()
    }

    /// Whether the first worker's last report, with readings of the objective that are still unknown, has yet to come.
    /// The watch of Jobs may be ahead of the watch of pods.
    fn awaits_last_reading(&self) -> bool {
        let is_to_come = |pod: &ObservedPod| {
            let is_first = pod.incarnation == self.current.number && pod.replica_id() == ReplicaId::FIRST_WORKER;
            is_first && pod.runs() && !pod.gone && self.done.contains(&pod.replica_id())
        };
        let has_objective = self.input.plan.monitoring.objective.is_some();
        has_objective && self.input.children.pods.values().any(|pod| is_to_come(pod))
    }

    pub(super) fn completed(&self) -> Option<Phase<'a>> {
        self.has_succeeded().then(|| {
            // The programs may have ended by themselves while they were being stopped.
            let (reason, message) = self.enough().unwrap_or_else(|| {
                let roles = self.input.plan.gang.roles.iter();
                let deciding = roles.filter_map(|role| match role.completion {
                    Completion::EveryReplica => Some(format!("every {}", role.name)),
                    Completion::First => Some(format!("{} 0", role.name)),
                    Completion::Ended => None,
                });
                let deciding = deciding.collect::<Vec<_>>().join(" and ");
                (Reason::Completed, format!("{deciding} exited with code 0"))
            });
            self.done(reason, message)
        })
    }

    /// The part of the success policy that was met. Since then the gang is being stopped, whatever happens to it.
    fn enough(&self) -> Option<(Reason, String)> {
        let stopping = super::condition_is(&self.record.conditions, ConditionType::Stopping, true)?;
        Some((Reason::from(stopping.reason.as_str()), stopping.message.clone()))
    }

    pub(super) fn stopping_early(&self) -> Option<Phase<'a>> {
        let by_search = || self.input.stop.map(|message| (Reason::StoppedBySearch, message.to_owned()));
        let (reason, message) = self.enough().or_else(by_search)?;
        let stops = !self.jobs.is_empty() || self.all_pods.iter().any(|pod| pod.is_alive());
        Some(if stops { Phase::StoppingEarly { until: None, reason, message } } else { self.done(reason, message) })
    }
}
