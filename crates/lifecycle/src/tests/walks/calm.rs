//! What Kubernetes and a healthy gang do once nothing fails any more.

use super::world::{World, at, end_program, fetched_model};
use crate::{condition, condition_is};
use api::{ConditionType, Reason, State};
use observe::{AgentAnswer, Container, ObservedPod};
use protocol::agent_status::AgentStatus;
use protocol::gang::{GangPhase, GangStatus};
use protocol::report::Report;
use protocol::result::Publication;
use protocol::role::RoleName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Looks within which a job must recover from any fault, half a minute each: more than an hour.
const CALM: u32 = 150;

/// The course of events without further faults.
impl World {
    /// Whatever happened to the job, it runs again, ends, or waits for a person.
    pub(super) fn comes_out(mut self) -> Result<(), String> {
        (self.refused, self.held, self.stopped, self.refusal) = (false, false, false, false);
        self.spec.suspend = false;
        self.children.workloads_unlisted = false;
        self.children.event = None;
        self.uncount_what_did_not_succeed();
        let is_heard = self.rng.one_in(2);
        (self.agent, self.silent_since) = (None, None);
        let mut actions = Vec::new();
        for _ in 0..CALM {
            self.children.blocked.clear();
            self.nodes_and_queue_are_well();
            self.jobs_as_kubernetes_does();
            self.agent = self.leader().filter(|_| is_heard);
            self.second += 30;
            let plan = self.plan();
            let verdict = self.decide(&plan, &self.status);
            self.status = verdict.status;
            actions = verdict.actions;
            for action in &actions {
                self.act(action);
            }
            let runs = condition_is(&self.status.conditions, ConditionType::Running, true).is_some();
            let waits = condition(&self.status.conditions, ConditionType::Scheduled);
            let for_person = waits.is_some_and(|waits| waits.reason == Reason::NoUsableCheckpoint.as_str());
            let is_over = self.status.state.is_some_and(State::is_finished);
            if is_over || for_person || (self.status.state == Some(State::Running) && runs) {
                return Ok(());
            }
        }
        let (jobs, upkeep): (Vec<_>, _) = (self.children.jobs.values().collect(), &self.children.upkeep);
        let pods: Vec<_> = self.children.pods.values().collect();
        Err(format!("heard: {is_heard}, {actions:?}, {:?}, {upkeep:?}, jobs {jobs:?}, pods {pods:?}", self.status))
    }

    fn nodes_and_queue_are_well(&mut self) {
        let now = at(self.second);
        self.children.workload.take_if(|workload| workload.deleting);
        if let Some(workload) = &mut self.children.workload {
            (workload.admitted, workload.reserved, workload.evicted, workload.finished) = (true, true, false, false);
        }
        self.children.upkeep.take_if(|upkeep| upkeep.deleting);
        if let Some(upkeep) = &mut self.children.upkeep {
            upkeep.ended = Some(true);
            let model = fetched_model();
            let published = Some(Publication::default());
            let report = Report { fetched: vec![model], published, ..Report::default() };
            self.children.upkeep_words = Some((upkeep.uid.clone(), report));
        }
        let jobs: BTreeMap<RoleName, u32> =
            self.children.jobs.values().map(|job| (job.role, job.incarnation)).collect();
        for pod in self.children.pods.values_mut() {
            pod.unreachable = None;
            // Pods marked for disruption go, and so do pods without a Job.
            let is_orphan = jobs.get(&pod.role) != Some(&pod.incarnation);
            if pod.is_alive() && (pod.disruption.is_some() || is_orphan) {
                pod.deletion = pod.deletion.or(Some(now));
            }
            if pod.deletion.is_some() {
                pod.gone = true;
            } else if pod.is_alive() {
                pod.node.get_or_insert_with(|| "node".into());
                pod.scheduled_at.get_or_insert(now);
                (pod.unschedulable, pod.waiting, pod.killed) = (None, None, None);
                if !pod.runs() {
                    pod.training = Container::Running { since: Some(now) };
                }
            }
        }
    }

    /// The walk counts indexes at random, but a Job counts only one of whose pods it has seen one succeed. That may be
    /// a pod which seems to live still, or which is gone from the watch.
    fn uncount_what_did_not_succeed(&mut self) {
        for job in self.children.jobs.values_mut() {
            job.completed.retain(|index| {
                let place = (job.role, job.incarnation, *index);
                let mut of_place = self
                    .children
                    .pods
                    .values()
                    .filter(|pod| (pod.role, pod.incarnation, pod.index) == place)
                    .peekable();
                of_place.peek().is_none() || of_place.any(|pod| pod.is_alive() || pod.ended == Some(true))
            });
        }
    }

    /// One sync of each Job: `backoffLimit` is 0, and a pod without the finalizer does not count.
    fn jobs_as_kubernetes_does(&mut self) {
        let (has_workload, gang) = (self.children.workload.is_some(), self.plan().gang);
        let roles: Vec<RoleName> = self.children.jobs.keys().copied().collect();
        for role in roles {
            let job = self.children.jobs.get_mut(&role).unwrap();
            let number = job.incarnation;
            if job.deleting {
                self.children.jobs.remove(&role);
                continue;
            }
            let replicas = gang.role(role).map_or(0, |role| role.replicas);
            if gang.elastic.is_none() {
                job.parallelism = Some(replicas.into());
            }
            if job.suspend && !has_workload {
                (job.suspend, job.suspended_by_queue, job.resumed) = (false, false, Some(at(self.second)));
            }
            if job.complete {
                job.completed.extend(0..replicas.into());
            }
            // The watch of pods finally shows what the Job has seen.
            let (is_complete, completed) = (job.complete, job.completed.clone());
            let of_job = self.children.pods.values_mut().filter(|pod| pod.role == role && pod.incarnation == number);
            for pod in of_job.filter(|pod| !pod.gone && (is_complete || completed.contains(&pod.index))) {
                end_program(pod, at(self.second), at(self.second), 0, None);
            }
            if job.suspend || job.complete {
                continue;
            }
            let wanted = job.parallelism.unwrap_or(2).max(0) as u32;
            let mut missing = Vec::new();
            for index in (0..wanted).filter(|index| !job.completed.contains(index)).collect::<Vec<_>>() {
                let of_place = |pod: &&ObservedPod| pod.role == role && pod.incarnation == number && pod.index == index;
                let pods = self.children.pods.values().map(|pod| &**pod);
                let newest = pods.filter(of_place).max_by_key(|pod| (pod.created, !pod.gone));
                match newest {
                    Some(pod) if pod.ended == Some(true) => _ = job.completed.insert(index),
                    Some(pod) if pod.is_alive() => {}
                    // Pods that went while the Job was suspended do not count.
                    Some(pod) if pod.tracked && pod.deletion.is_none_or(|at| Some(at) > job.resumed) => {
                        job.failed.get_or_insert_with(|| ("BackoffLimitExceeded".into(), "it has".into()));
                    }
                    _ => missing.push(index),
                }
            }
            job.complete = job.failed.is_none() && (0..wanted).all(|index| job.completed.contains(&index));
            if job.failed.is_some() {
                let alive = self.children.pods.values_mut().filter(|pod| pod.role == role && pod.incarnation == number);
                alive.for_each(|pod| pod.deletion = pod.deletion.or(Some(at(self.second))));
            } else {
                missing.into_iter().for_each(|index| self.make_pod(role, index, number));
            }
        }
    }

    /// A leader whose gang runs once all members do.
    fn leader(&self) -> Option<AgentAnswer> {
        let ours = || self.children.pods.values().filter(|pod| pod.incarnation == self.number() && pod.runs());
        let pod_uid = ours().map(|pod| pod.uid.clone()).min();
        pod_uid.as_ref()?;
        let gang = self.plan().gang;
        let size = self.status.elastic.as_ref().map_or(gang.workers().replicas, |elastic| elastic.workers);
        let wanted: u32 = gang.roles.iter().map(|role| u32::from(role.pods(size))).sum();
        let done: usize = self.children.jobs.values().map(|job| job.completed.len()).sum();
        let phase = if ours().count() + done >= wanted as usize { GangPhase::Running } else { GangPhase::Gathering };
        let attempt = self.attempt();
        let gang = GangStatus { attempt, phase, workers: wanted, ..GangStatus::default() };
        let report = Report { attempt, ..Report::default() };
        let status = AgentStatus { pod_uid, gang: Some(gang), report, ..AgentStatus::default() };
        Some(AgentAnswer { status: Arc::new(status), time: at(self.second), failing_since: None, remaining: None })
    }
}
