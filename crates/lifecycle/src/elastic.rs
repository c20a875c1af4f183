//! The number of workers in an elastic gang.
//!
//! The Job has the number of pods in `numWorkers`, and Kubernetes places them when there is room. The gang consists of
//! the first of them by index, in the number that is decided here. The agents of the others wait. The ConfigMap takes
//! the decision to the agent of worker 0, which ends the attempt in order and begins the next one with that number.

use super::decision::Action;
use super::effects::Effects;
use super::view::{View, number_of, worker};
use super::waiting;
use api::{ElasticStatus, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::{ObservedJob, ObservedPod};
use plan::{Elastic, labels};
use protocol::gang::{GangPhase, GangStatus};

/// Message for a gang whose pods all have nodes.
pub(super) const EVERY_WORKER_HAS_A_NODE: &str = "every worker has a node";
/// Seconds after which surplus workers go even if the leader has not reported that its gang runs without them.
const UNHEARD: i64 = 180;
/// Seconds after which a new answer of the leader is looked for.
const ASK_AGAIN: i64 = 2;

/// The recorded sizes after this reconciliation, and why the gang has got another size if it has.
pub(super) fn decided(view: &View<'_>) -> (Option<ElasticStatus>, Option<String>) {
    let (plan, known) = (view.input.plan, view.record.elastic.clone());
    // A refused number is ignored, and a running gang keeps its size.
    if view.input.refused.is_some() {
        return (known, None);
    }
    let Some(elastic) = &plan.gang.elastic else {
        return (known.filter(|_| !(view.is_suspending() || view.is_to_start())), None);
    };
    let desired = plan.gang.workers().replicas;
    let all = || ElasticStatus {
        workers: desired,
        largest: desired,
        changed: None,
        since: None,
        selector: labels::text(&labels::worker_selector(plan)),
    };
    if view.is_suspending() || view.is_to_start() {
        return (Some(all()), None); // workers that run nothing yet are all wanted
    }
    if !view.has_size() {
        return (known, None);
    }
    let known = known.unwrap_or_else(all);
    let since = known.since.as_ref().map_or(view.now(), |since| since.0);
    let wanted = view.wanted_size(elastic, known.workers);
    let waits = wanted.as_ref().is_some_and(|wanted| !wanted.at_once);
    let left = if waits { i64::from(elastic.wait_seconds) - view.since(since) } else { 0 };
    match wanted.filter(|_| left <= 0) {
        Some(BetterSize { size, why, .. }) => {
            let largest = known.largest.max(size);
            let changed = Some(Time(view.now()));
            let from = number_of(known.workers.into(), "worker");
            let status = ElasticStatus { workers: size, largest, changed, since: None, ..known };
            (Some(status), Some(format!("from {from} to {size}: {why}")))
        }
        None => (Some(ElasticStatus { since: (left > 0).then_some(Time(since)), ..known }), None),
    }
}

impl<'a> View<'a> {
    /// The number of workers in the gang.
    pub(super) fn size(&self) -> u16 {
        let desired = self.input.plan.gang.workers().replicas;
        let decided = self.input.plan.gang.elastic.as_ref().and(self.record.elastic.as_ref());
        decided.map_or(desired, |decided| decided.workers)
    }

    /// Whether the gang is ready for a decision on its size: it has its Jobs, and no queue holds it.
    pub(super) fn has_size(&self) -> bool {
        let is_there = !self.is_settled() && self.gang_job().is_some() && !self.is_losing_job();
        is_there && self.failed_job().is_none() && self.held().is_none()
    }

    /// The pods of the gang, and those beyond the size of their role: spare workers of an elastic gang, and pods that
    /// another client added by enlarging a Job.
    pub(super) fn members(&self) -> (Vec<&'a ObservedPod>, Vec<&'a ObservedPod>) {
        let role = |pod: &ObservedPod| self.input.plan.gang.role(pod.role);
        let is_one = |pod: &ObservedPod| role(pod).is_some_and(|role| pod.index < role.pods(self.size()).into());
        self.pods.iter().copied().partition(|pod| is_one(pod))
    }

    /// A better size.
    fn wanted_size(&self, elastic: &Elastic, size: u16) -> Option<BetterSize> {
        let (desired, room) = (self.input.plan.gang.workers().replicas, self.room());
        let all = number_of(desired.into(), "worker");
        if desired < size {
            return Some(BetterSize { size: desired, at_once: true, why: format!("numWorkers is {desired}") });
        }
        if room.there >= desired && size < desired {
            return Some(BetterSize { size: desired, at_once: true, why: format!("all {all} are there") });
        }
        if room.there > size {
            let why = format!("{} of {all} have been there for {} s", room.there, elastic.wait_seconds);
            return Some(BetterSize { size: room.there, at_once: false, why });
        }
        let is_short = room.placed < size && room.placed >= elastic.min;
        is_short.then(|| {
            let why = format!(
                "only {} of {all} have found room for {} s (elastic.waitSeconds); it grows when there is more",
                room.placed, elastic.wait_seconds
            );
            BetterSize { size: room.placed, at_once: false, why }
        })
    }

    fn room(&self) -> PlacedWorkers {
        let desired = self.input.plan.gang.workers().replicas;
        // A pod continues to run if only its kubelet is silent.
        let runs_on = self.programs_run();
        let stays =
            |pod: &ObservedPod| pod.is_alive() && pod.deletion.is_none() && (pod.unreachable.is_none() || runs_on);
        let is = |index: u16, test: fn(&ObservedPod) -> bool| {
            let is_so = |pod: &&ObservedPod| pod.index == u32::from(index) && stays(pod) && test(pod);
            self.done.contains(&worker(index)) || self.pods.iter().copied().any(|pod| is_so(&pod))
        };
        let is_placed = |index| is(index, |pod| pod.node.is_some());
        // The number of first workers that pass the test.
        let first = |is: &dyn Fn(u16) -> bool| (0..desired).find(|index| !is(*index)).unwrap_or(desired);
        PlacedWorkers {
            placed: (0..desired).map(|index| u16::from(is_placed(index))).sum(),
            first: first(&is_placed),
            there: first(&|index| is(index, ObservedPod::runs)),
        }
    }

    /// Makes the Job and the leader follow the size. The Job gets the wanted number of pods, and the node of worker 0
    /// delivers the new size to its agent.
    pub(super) fn follow_size(&self) -> Effects {
        let plan = self.input.plan;
        let elastic = plan.gang.elastic.as_ref().filter(|_| self.input.refused.is_none() && self.has_size());
        let (Some(elastic), Some(job), Some(status)) = (elastic, self.gang_job(), &self.record.elastic) else {
            return Effects::default();
        };
        let left = status.since.as_ref().map(|since| i64::from(elastic.wait_seconds) - self.since(since.0));
        let (size, desired, there) = (self.size(), plan.gang.workers().replicas, job.parallelism);
        // If one of the first workers finds no room, a later one gives up its own. The gang could not run without the
        // first one anyway.
        let is_idle = self.room().first < size;
        let pods = if is_idle { size } else { desired };
        let is_more = there.is_some_and(|there| there > pods.into());
        let needed = if is_more && !is_idle { self.surplus_is_needed_for(pods) } else { None };
        let scales = there.is_some_and(|there| there < pods.into()) || (is_more && needed.is_none());
        let scale = scales.then(|| Action::ScaleJob { name: job.name.clone(), uid: job.uid.clone(), pods });
        let effects = Effects::from_actions(scale).waking(left.filter(|left| *left > 0)).waking(needed);
        if elastic.workers != size {
            return effects.waking(Some(1)); // the next pass has the ConfigMap
        }
        let changed = status.changed.as_ref().map(|time| time.0);
        let knows = |pod: &ObservedPod| match pod.gang_size {
            Some(reported) => reported == size,
            None => changed.is_none_or(|changed| pod.created.is_some_and(|created| created > changed)),
        };
        let hasten = |pod: &&ObservedPod| Action::NudgePod { name: pod.name.clone(), uid: pod.uid.clone(), size };
        let first = self.pods.iter().find(|pod| pod.index == 0 && pod.runs() && !knows(pod));
        effects.and(Effects::from_actions(first.map(hasten)))
    }

    /// Seconds for which workers beyond this number are still needed. An attempt runs with them, or may begin with
    /// them, until the leader reports that its gang does without them. A report from before it could know the size does
    /// not count.
    fn surplus_is_needed_for(&self, pods: u16) -> Option<i64> {
        let changed = self.record.elastic.as_ref()?.changed.as_ref()?.0;
        let does_without = |gang: &GangStatus| gang.phase == GangPhase::Over || gang.workers <= pods.into();
        let does_without = self.gang.is_some_and(does_without);
        // The status has whole seconds.
        let is_new = self.input.agent.is_some_and(|agent| agent.time.as_second() > changed.as_second());
        let is_needed = !(does_without && is_new) && self.pods.iter().any(|pod| pod.runs());
        let left = UNHEARD - self.since(changed);
        // An answer that is the same as the last one triggers no pass.
        let look_again = if does_without { left.min(ASK_AGAIN) } else { left };
        (is_needed && left > 0).then_some(look_again)
    }

    /// Whether the gang was to have this worker when its pod went. Otherwise the pod is no loss, whether or not a
    /// leader is heard.
    pub(super) fn was_wanted(&self, gone: &ObservedPod) -> bool {
        let changed = self.record.elastic.as_ref().and_then(|elastic| elastic.changed.as_ref()).map(|time| time.0);
        let went_before = changed.is_some_and(|changed| gone.deletion.is_some_and(|deletion| deletion < changed));
        self.input.plan.gang.elastic.is_none() || (gone.index < self.size().into() && !went_before)
    }

    /// The message that every worker has a node, also for a gang that runs without some workers.
    pub(super) fn placed(&self, job: &ObservedJob, spares: &[&ObservedPod]) -> String {
        let (size, desired) = (self.size(), self.input.plan.gang.workers().replicas);
        if size >= desired {
            return EVERY_WORKER_HAS_A_NODE.to_owned();
        }
        let missing = usize::from(desired - size).saturating_sub(spares.len());
        let of_job = self.input.children.event.as_ref().filter(|event| event.about == job.uid);
        let why = waiting::for_nodes(spares, missing, None, of_job).filter(|why| why.reason != Reason::Scheduling);
        let why = why.map(|why| format!("; {}", why.message)).unwrap_or_default();
        format!(
            "the gang is of {size} of {} by now, each of which has a node{why}",
            number_of(desired.into(), "worker")
        )
    }

    /// Removes surplus pods from the Job of a gang that has succeeded without some of its workers.
    pub(super) fn complete_without(&self, job: &ObservedJob) -> Option<Action> {
        self.input.plan.gang.elastic.as_ref()?;
        let first = (0..u16::MAX).find(|index| !self.done.contains(&worker(*index))).unwrap_or(u16::MAX);
        let runs_on = self.pods.iter().any(|pod| pod.index < first.into() && pod.is_alive());
        let is_more = job.parallelism.is_some_and(|pods| pods > first.into());
        let waits = self.pods.iter().any(|pod| pod.index >= first.into() && pod.runs() && pod.deletion.is_none());
        (first > 0 && is_more && !runs_on && !waits).then(|| Action::ScaleJob {
            name: job.name.clone(),
            uid: job.uid.clone(),
            pods: first,
        })
    }
}

/// A better size for the gang.
struct BetterSize {
    size: u16,
    /// It need not last for a while first.
    at_once: bool,
    why: String,
}

/// The room that the workers have found.
struct PlacedWorkers {
    /// Workers with a node.
    placed: u16,
    /// Number of leading workers, by index, that all have a node.
    first: u16,
    /// Number of leading workers, by index, whose agents all run.
    there: u16,
}
