//! Counting workers, GPUs and nodes.

use super::step::Step;
use api::{AllocatedResources, RoleStatus, State, Workers};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::ObservedPod;
use plan::Role;
use std::collections::BTreeSet;

/// A number of pods or nodes, as the status has it.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Step<'_> {
    pub(super) fn count(&mut self) {
        let gang = &self.input.plan.gang;
        let pods = self.pods(self.incarnation());
        let held: Vec<_> = pods.iter().filter(|p| p.is_alive() && p.node.is_some()).collect();
        let nodes: BTreeSet<_> = held.iter().filter_map(|pod| pod.node.as_deref()).collect();
        let ended = self.status.state.is_some_and(State::is_finished);
        let gpus = held.iter().filter_map(|pod| Some(u32::from(gang.role(pod.role)?.gpus))).sum();
        self.status.resources = Some(AllocatedResources {
            allocated_gpus: if ended { 0 } else { gpus },
            allocated_nodes: if ended { 0 } else { count(nodes.len()) },
        });
        self.status.workers = Some(self.count_of(gang.workers(), &pods));
        let others = gang.roles.iter().filter(|role| !role.name.is_worker());
        let status = |role: &Role| RoleStatus { name: role.name.to_string(), count: self.count_of(role, &pods) };
        self.status.roles = others.map(status).collect();
    }

    fn count_of(&self, role: &Role, pods: &[&ObservedPod]) -> Workers {
        let desired = u32::from(role.replicas);
        let pods: Vec<_> = pods.iter().copied().filter(|pod| pod.role == role.name).collect();
        let of = |test: fn(&ObservedPod) -> bool| count(pods.iter().filter(|pod| test(pod)).count());
        let (active, failed) = (of(ObservedPod::runs), of(ObservedPod::failed));
        let done = self.done(&pods).into_iter().filter(|place| place.role == role.name);
        let succeeded = count(done.count());
        let ended = self.status.state.is_some_and(State::is_finished);
        let idle = ended || self.status.state == Some(State::Suspended);
        let completed = self.status.state == Some(State::Completed);
        // Whoever had not ended well by then was stopped, whether or not its pod is there to be counted.
        let failed = match self.status.state {
            Some(State::Failed) if self.status.start_time.is_some() => desired.saturating_sub(succeeded),
            _ => failed,
        };
        let all = role.pods(self.size()).into();
        Workers {
            desired,
            active: if idle { 0 } else { active },
            succeeded: if completed { all } else { succeeded },
            failed,
            pending: if idle { 0 } else { desired.saturating_sub(active + succeeded + failed) },
        }
    }

    pub(super) fn note_start(&mut self) {
        if self.status.start_time.is_none() {
            // A node's clock may be behind: no program starts before its pod is made.
            let started = |pod: &ObservedPod| Some(pod.started()?.max(pod.created?));
            self.status.start_time = self.input.children.pods.values().filter_map(|pod| started(pod)).min().map(Time);
        }
    }
}
