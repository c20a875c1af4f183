//! How many of its workers an elastic gang is of.
//!
//! The Job has as many pods as `numWorkers` asks for, and Kubernetes places them when there is room. The gang is of the first of
//! them by index, as many as was decided here; the agents of the others wait. The decision goes by the ConfigMap to the agent of
//! worker 0, which ends the attempt in order and begins the next one with as many.

use super::step::{Step, number_of, seconds};
use super::verdict::Action;
use super::waiting;
use api::{ElasticStatus, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::{ObservedJob, ObservedPod};
use plan::{Elastic, labels};
use protocol::gang::{GangPhase, GangStatus};
use protocol::role::{Place, RoleName};

/// Seconds after which workers that are too many go although the leader has not said that the gang does without them.
const UNHEARD: i64 = 180;

impl Step<'_> {
    /// Workers that the gang is of.
    pub(super) fn size(&self) -> u16 {
        let desired = self.input.plan.gang.workers().replicas;
        let decided = self.input.plan.gang.elastic.as_ref().and(self.status.elastic.as_ref());
        decided.map_or(desired, |decided| decided.workers)
    }

    /// Of workers that run nothing yet all are wanted. A number that is refused is not followed.
    pub(super) fn reset_size(&mut self) {
        if self.input.refused.is_some() {
            return;
        }
        let plan = self.input.plan;
        let desired = plan.gang.workers().replicas;
        self.status.elastic = plan.gang.elastic.as_ref().map(|_| ElasticStatus {
            workers: desired,
            largest: desired,
            changed: None,
            since: None,
            selector: labels::text(&labels::worker_selector(plan)),
        });
    }

    /// The workers that the gang is of, and the others.
    pub(super) fn members<'p>(&self, pods: Vec<&'p ObservedPod>) -> (Vec<&'p ObservedPod>, Vec<&'p ObservedPod>) {
        let (size, is_elastic) = (self.size(), self.input.plan.gang.elastic.is_some());
        pods.into_iter().partition(|pod| !is_elastic || pod.index < size.into())
    }

    /// Decides how many there are, and has the Job and the leader follow.
    pub(super) fn resize(&mut self, job: &ObservedJob) {
        let plan = self.input.plan;
        // Of a spec that is refused the agents hear nothing: what runs goes on at its size.
        let Some(elastic) = plan.gang.elastic.as_ref().filter(|_| self.input.refused.is_none()) else { return };
        if self.status.elastic.is_none() {
            self.reset_size();
        }
        let (now, old, room) = (self.input.now, self.size(), self.room());
        let wanted = self.wanted(elastic, &room);
        let since =
            self.status.elastic.as_ref().and_then(|elastic| elastic.since.as_ref()).map_or(now, |since| since.0);
        let waits = wanted.as_ref().is_some_and(|wanted| !wanted.at_once);
        let left = if waits { i64::from(elastic.wait_seconds) - seconds(since, now) } else { 0 };
        if left > 0 {
            self.requeue(left);
        }
        if let Some(status) = &mut self.status.elastic {
            status.since = (left > 0).then_some(Time(since));
        }
        if let (Some(Wanted { size, why, .. }), Some(status)) = (wanted.filter(|_| left <= 0), &mut self.status.elastic)
        {
            (status.workers, status.largest) = (size, status.largest.max(size));
            status.changed = Some(Time(now));
            self.event(size < old, "Resized", format!("from {} to {size}: {why}", number_of(old.into(), "worker")));
        }
        self.follow(job, plan.gang.workers().replicas, &room);
    }

    /// The size that would do better.
    fn wanted(&self, elastic: &Elastic, room: &Room) -> Option<Wanted> {
        let (desired, size) = (self.input.plan.gang.workers().replicas, self.size());
        let all = number_of(desired.into(), "worker");
        if desired < size {
            return Some(Wanted { size: desired, at_once: true, why: format!("numWorkers is {desired}") });
        }
        if room.there >= desired && size < desired {
            return Some(Wanted { size: desired, at_once: true, why: format!("all {all} are there") });
        }
        if room.there > size {
            let why = format!("{} of {all} have been there for {} s", room.there, elastic.wait_seconds);
            return Some(Wanted { size: room.there, at_once: false, why });
        }
        let is_short = room.placed < size && room.placed >= elastic.min;
        is_short.then(|| {
            let why = format!(
                "only {} of {all} have found room for {} s (elastic.waitSeconds); it grows when there is more",
                room.placed, elastic.wait_seconds
            );
            Wanted { size: room.placed, at_once: false, why }
        })
    }

    fn room(&self) -> Room {
        let pods = self.pods(self.incarnation());
        let desired = self.input.plan.gang.workers().replicas;
        let done = self.done(&pods);
        // One whose kubelet alone is silent runs on.
        let runs_on = self.runs_on();
        let stays =
            |pod: &ObservedPod| pod.is_alive() && pod.deletion.is_none() && (pod.unreachable.is_none() || runs_on);
        let is_placed = |index: u16| {
            let has_node = |pod: &&ObservedPod| pod.index == u32::from(index) && stays(pod) && pod.node.is_some();
            done.contains(&worker(index)) || pods.iter().any(has_node)
        };
        let is_there = |index: u16| {
            let runs = |pod: &&ObservedPod| pod.index == u32::from(index) && stays(pod) && pod.runs();
            done.contains(&worker(index)) || pods.iter().any(runs)
        };
        // As many of the first ones as are so.
        let first = |is: &dyn Fn(u16) -> bool| (0..desired).find(|index| !is(*index)).unwrap_or(desired);
        Room {
            placed: (0..desired).map(|index| u16::from(is_placed(index))).sum(),
            first: first(&is_placed),
            there: first(&is_there),
        }
    }

    /// The Job has as many pods as are wanted, and the node of worker 0 brings its agent the news.
    fn follow(&mut self, job: &ObservedJob, desired: u16, room: &Room) {
        let size = self.size();
        // Where one of the first finds no room a later one gives up its own; the gang has not run without the first one anyway.
        let is_idle = room.first < size;
        let pods = if is_idle { size } else { desired };
        if job
            .parallelism
            .is_some_and(|there| there < pods.into() || (there > pods.into() && (is_idle || self.may_go(pods))))
        {
            self.verdict.actions.push(Action::ScaleJob { name: job.name.clone(), uid: job.uid.clone(), pods });
        }
        if self.input.plan.gang.elastic.as_ref().is_some_and(|elastic| elastic.workers != size) {
            return self.requeue(1); // the ConfigMap is the next pass's
        }
        let changed = self.status.elastic.as_ref().and_then(|elastic| elastic.changed.as_ref()).map(|time| time.0);
        let knows = |pod: &ObservedPod| match pod.gang_size {
            Some(told) => told == size,
            None => changed.is_none_or(|changed| pod.created.is_some_and(|created| created > changed)),
        };
        let all = self.pods(self.incarnation());
        if let Some(pod) = all.into_iter().find(|pod| pod.index == 0 && pod.runs() && !knows(pod)) {
            let (name, uid) = (pod.name.clone(), pod.uid.clone());
            self.verdict.actions.push(Action::HastenPod { name, uid, size });
        }
    }

    /// Whether no attempt runs any more with workers beyond so many; else they would be missed.
    fn may_go(&mut self, pods: u16) -> bool {
        let runs = |gang: &GangStatus| matches!(gang.phase, GangPhase::Running | GangPhase::Stopping);
        let needs = |gang: &GangStatus| runs(gang) && gang.workers > pods.into();
        let is_needed = self.gang().is_none_or(needs) && self.pods(self.incarnation()).iter().any(|pod| pod.runs());
        let changed = self.status.elastic.as_ref().and_then(|elastic| elastic.changed.as_ref()).map(|time| time.0);
        let left = changed.map_or(0, |changed| UNHEARD - seconds(changed, self.input.now));
        if is_needed && left > 0 {
            self.requeue(left);
        }
        !is_needed || left <= 0
    }

    /// A pod that goes while nobody needs it is none of the Job's failures.
    pub(super) fn let_go(&mut self, spares: &[&ObservedPod]) {
        let goes = |pod: &&&ObservedPod| pod.is_alive() && pod.tracked && pod.deletion.is_some();
        for pod in spares.iter().filter(goes) {
            self.release(pod, false);
        }
    }

    /// Whether the gang was to have this worker when its pod went; else its going is no loss, whoever hears a leader.
    pub(super) fn was_wanted(&self, gone: &ObservedPod) -> bool {
        let changed =
            self.status.elastic.as_ref().and_then(|elastic| elastic.changed.as_ref()).map(|changed| changed.0);
        let went_before = changed.is_some_and(|changed| gone.deletion.is_some_and(|deletion| deletion < changed));
        self.input.plan.gang.elastic.is_none() || (gone.index < self.size().into() && !went_before)
    }

    /// That every worker has a node, as it is told of a gang that runs without some.
    pub(super) fn placed(&self, job: &ObservedJob, spares: &[&ObservedPod]) -> String {
        let (size, desired) = (self.size(), self.input.plan.gang.workers().replicas);
        if size >= desired {
            return "every worker has a node".to_owned();
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

    /// Of a gang that has succeeded without some of its workers the Job is done without them.
    pub(super) fn complete_without(&mut self, job: &ObservedJob) {
        if self.input.plan.gang.elastic.is_none() {
            return;
        }
        let pods = self.pods(self.incarnation());
        let done = self.done(&pods);
        let first = (0..u16::MAX).find(|index| !done.contains(&worker(*index))).unwrap_or(u16::MAX);
        let runs_on = pods.iter().any(|pod| pod.index < first.into() && pod.is_alive());
        let is_more = job.parallelism.is_some_and(|pods| pods > first.into());
        let waits = pods.iter().any(|pod| pod.index >= first.into() && pod.runs() && pod.deletion.is_none());
        if first > 0 && is_more && !runs_on && !waits {
            self.verdict.actions.push(Action::ScaleJob { name: job.name.clone(), uid: job.uid.clone(), pods: first });
        }
    }
}

/// Another size.
struct Wanted {
    size: u16,
    /// It need not be seen for a while.
    at_once: bool,
    why: String,
}

/// What room the workers have found.
struct Room {
    /// Workers with a node.
    placed: u16,
    /// Of the first ones by index those with a node.
    first: u16,
    /// Of the first ones by index those whose agents are there.
    there: u16,
}

fn worker(index: u16) -> Place {
    Place { role: RoleName::WORKER, index: index.into() }
}
