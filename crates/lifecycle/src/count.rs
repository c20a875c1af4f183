//! Counting workers, GPUs and nodes.

use super::conditions::condition_is;
use super::view::View;
use api::{AllocatedResources, ConditionType, Reason, RoleStatus, State, TrainingJobStatus, Workers};
use observe::ObservedPod;
use plan::Role;
use std::collections::BTreeSet;

/// The record of the view with the counts of its incarnation.
pub(super) fn counted(view: View<'_>) -> TrainingJobStatus {
    let gang = &view.input.plan.gang;
    let held: Vec<_> = view.pods.iter().filter(|pod| pod.is_alive() && pod.node.is_some()).collect();
    let nodes: BTreeSet<_> = held.iter().filter_map(|pod| pod.node.as_deref()).collect();
    let ended = view.record.state.is_some_and(State::is_finished);
    let gpus = held.iter().filter_map(|pod| Some(u32::from(gang.role(pod.role)?.gpus))).sum();
    let resources = AllocatedResources {
        allocated_gpus: if ended { 0 } else { gpus },
        allocated_nodes: if ended { 0 } else { number(nodes.len()) },
    };
    let workers = view.count(gang.workers());
    let others = gang.roles.iter().filter(|role| !role.name.is_worker());
    let roles = others.map(|role| RoleStatus { name: role.name.to_string(), count: view.count(role) });
    let roles: Vec<RoleStatus> = roles.collect();
    let counts = || roles.iter().map(|role| role.count).chain([workers]);
    let of = |count: fn(&Workers) -> u32| counts().map(|workers| count(&workers)).sum::<u32>();
    let ready = Some(format!("{}/{}", of(|workers| workers.active), of(|workers| workers.desired)));
    let reason = waits_for(&view.record);
    TrainingJobStatus { resources: Some(resources), workers: Some(workers), roles, ready, reason, ..view.record }
}

/// What a job waits for or why it failed, from the deciding condition.
fn waits_for(record: &TrainingJobStatus) -> Option<Reason> {
    let is_false =
        |type_| condition_is(&record.conditions, type_, false).map(|reported| Reason::from(reported.reason.as_str()));
    match record.state? {
        State::Failed => record.failure_reason.clone(),
        State::Pending | State::Initializing => {
            is_false(ConditionType::Scheduled).or_else(|| is_false(ConditionType::Running))
        }
        State::Running | State::Suspended | State::Completed | State::Unknown => None,
    }
}

/// A number of pods or nodes, in the type of the status.
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl View<'_> {
    fn count(&self, role: &Role) -> Workers {
        let (desired, state) = (u32::from(role.replicas), self.record.state);
        let pods: Vec<_> = self.pods.iter().filter(|pod| pod.role == role.name).collect();
        let of = |test: fn(&ObservedPod) -> bool| number(pods.iter().filter(|pod| test(pod)).count());
        let (active, failed) = (of(ObservedPod::runs), of(ObservedPod::failed));
        let succeeded = number(self.done.iter().filter(|place| place.role == role.name).count());
        let idle = state.is_some_and(State::is_finished) || state == Some(State::Suspended);
        // A worker that had not succeeded by then was stopped, whether or not its pod still exists.
        let failed = match state {
            Some(State::Failed) if self.record.start_time.is_some() => desired.saturating_sub(succeeded),
            _ => failed,
        };
        let all = role.pods(self.size()).into();
        Workers {
            desired,
            active: if idle { 0 } else { active },
            succeeded: if state == Some(State::Completed) { all } else { succeeded },
            failed,
            pending: if idle { 0 } else { desired.saturating_sub(active + succeeded + failed) },
        }
    }
}
