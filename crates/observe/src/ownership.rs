//! Ownership of Jobs and pods. Labels can be copied, also by accident, so the controlling owner decides.

use super::cell::UpkeepPod;
use super::owner::is_upkeep;
use super::owner::{controller, is_training_job};
use super::{Cell, ChildKey, ObservedPod, SlimJob, SlimPod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use objects::labels;
use plan::names;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// What distinguishes a job's own pods from those that only carry its labels.
#[derive(Clone, Debug, Default)]
pub struct Ownership {
    /// UIDs of the Jobs that were seen, by incarnation. Their pods' final reports come when the Jobs are gone.
    jobs: BTreeMap<u32, BTreeSet<String>>,
    /// The current or last controller of each pod, by the pod's UID. Pods with the same controller share one value.
    controllers: BTreeMap<String, Arc<OwnerReference>>,
    /// Pods with our labels that are not ours, as far as is known.
    strangers: BTreeMap<String, Box<ObservedPod>>,
}

impl Cell {
    /// The TrainingJob has been seen.
    pub fn meet(&mut self, name: &str) {
        self.known = true;
        if self.name != name {
            name.clone_into(&mut self.name);
            self.sort_out();
        }
    }

    /// Files a Job, unless it is not ours or a newer version is known.
    pub fn put_job(&mut self, job: &SlimJob) {
        if is_upkeep(&job.metadata) {
            return self.put_upkeep(job);
        }
        let Some(seen) = job.seen().filter(|_| self.has_job(job)) else { return };
        let children = &mut self.children;
        if !children.is_news(ChildKey::job(seen.role), &job.metadata) {
            return;
        }
        // Once a newer Job exists, pods of earlier incarnations that are gone are not needed any more.
        children.pods.retain(|_, pod| pod.incarnation >= seen.incarnation || !pod.gone);
        let left = |number: &u32| children.pods.values().any(|pod| pod.incarnation == *number);
        self.ours.jobs.retain(|number, _| *number >= seen.incarnation || left(number));
        self.ours.jobs.entry(seen.incarnation).or_default().insert(seen.uid.clone());
        children.events_read_in_vain = 0;
        children.jobs.insert(seen.role, Box::new(seen));
        self.sort_out();
    }

    /// Files the Job that looks after the checkpoints, if our TrainingJob controls it.
    fn put_upkeep(&mut self, job: &SlimJob) {
        let is_its = controller(&job.metadata).is_some_and(is_training_job);
        let is_named = self.name.is_empty() || job.metadata.name == Some(names::upkeep_name(&self.name));
        if let Some(seen) = job.upkeep().filter(|_| is_its && is_named)
            && self.children.is_news(ChildKey::UPKEEP, &job.metadata)
        {
            self.children.upkeep = Some(seen);
        }
    }

    /// Files a pod that looks after the checkpoints, and its final report. Its Job decides whether the report counts.
    pub(super) fn put_upkeep_pod(&mut self, pod: &SlimPod, gone: bool) {
        let (uid, name) = (pod.uid().unwrap_or_default(), pod.name_any());
        if gone || pod.has_ended() {
            self.upkeep_pods.remove(&uid);
        } else {
            let job = controller(&pod.metadata).map(|job| job.uid.clone()).unwrap_or_default();
            let ip = pod.status.pod_ip.clone().filter(|_| pod.status.phase.as_deref() == Some("Running"));
            self.upkeep_pods.insert(uid, UpkeepPod { name, job, ip });
        }
        let words = controller(&pod.metadata).map(|job| job.uid.clone()).zip(pod.upkeep_words());
        if words.is_some() {
            self.children.upkeep_words = words;
        }
    }

    /// Removes a Job that is gone.
    pub(super) fn drop_job(&mut self, job: &SlimJob) {
        self.children.upkeep.take_if(|seen| Some(&seen.uid) == job.metadata.uid.as_ref());
        if let Some(role) = job.role().filter(|_| self.has_job(job)) {
            self.children.is_news(ChildKey::job(role), &job.metadata);
            self.children.jobs.retain(|_, seen| Some(&seen.uid) != job.metadata.uid.as_ref());
            self.sort_out();
        }
    }

    /// Removes all Jobs but these.
    pub(super) fn keep_jobs(&mut self, listed: &HashSet<String>) {
        self.children.jobs.retain(|_, job| listed.contains(&job.uid));
        self.children.upkeep.take_if(|upkeep| !listed.contains(&upkeep.uid));
        self.sort_out();
    }

    /// Files a pod with ours, or with those that may turn out to be ours.
    pub(super) fn put_pod(&mut self, pod: Box<ObservedPod>, meta: &ObjectMeta) {
        if let Some(controller) = controller(meta) {
            // A client that orphans pods removes their owner. They still belong to the same job.
            let same = self.ours.controllers.values().find(|known| ***known == *controller).cloned();
            self.ours.controllers.insert(pod.uid.clone(), same.unwrap_or_else(|| Arc::new(controller.clone())));
        }
        if self.has_pod(&pod) {
            self.ours.strangers.remove(&pod.uid);
            self.children.events_read_in_vain = 0;
            self.children.pods.insert(pod.uid.clone(), pod);
        } else {
            self.children.pods.remove(&pod.uid);
            if pod.gone {
                self.ours.strangers.remove(&pod.uid);
                self.ours.controllers.remove(&pod.uid);
            } else {
                self.ours.strangers.insert(pod.uid.clone(), pod);
            }
        }
    }

    /// A pod that was filed, whether it belongs to the job or not.
    pub(super) fn filed_pod(&self, uid: &str) -> Option<&ObservedPod> {
        self.children.pods.get(uid).or_else(|| self.ours.strangers.get(uid)).map(|pod| &**pod)
    }

    /// Files a pod that was read besides the watch, unless the watch has shown it and so knows more.
    pub fn find_pod(&mut self, pod: &SlimPod) {
        let is_known = |uid: &String| self.children.pods.contains_key(uid) || self.ours.strangers.contains_key(uid);
        let seen = pod.seen(false).filter(|seen| !is_upkeep(&pod.metadata) && !is_known(&seen.uid));
        if let Some(seen) = seen {
            self.put_pod(Box::new(seen), &pod.metadata);
        }
    }

    /// Notes the name of its TrainingJob, by the label of its pods.
    pub(super) fn note_name(&mut self, meta: &ObjectMeta) {
        let name = meta.labels.as_ref().and_then(|labels| labels.get(labels::TRAINING_JOB));
        if let Some(name) = name.filter(|name| **name != self.pods_of) {
            self.pods_of.clone_from(name);
        }
    }

    /// Name of a pod that may still run a program or look after the checkpoints, if there is one.
    pub(super) fn living_pod(&self) -> Option<&str> {
        let pods = self.children.pods.values().chain(self.ours.strangers.values());
        let alive = pods.filter(|pod| pod.is_alive()).map(|pod| pod.name.as_str());
        alive.chain(self.upkeep_pods.values().map(|pod| pod.name.as_str())).min()
    }

    /// Marks all pods as gone but these.
    pub(super) fn keep_pods(&mut self, listed: &HashSet<String>) {
        self.upkeep_pods.retain(|uid, _| listed.contains(uid));
        for pod in self.children.pods.values_mut() {
            pod.gone |= !listed.contains(&pod.uid);
        }
        self.ours.strangers.retain(|uid, _| listed.contains(uid));
    }

    /// Whether a Job is ours: it has the name that ours has, and our TrainingJob controls it. A known Job is also ours
    /// if a person has removed its owner.
    fn has_job(&self, job: &SlimJob) -> bool {
        let meta = &job.metadata;
        let is_known = || self.children.jobs.values().any(|known| Some(&known.uid) == meta.uid.as_ref());
        let named = |role| names::role_job_name(&self.name, role);
        let is_named = || self.name.is_empty() || meta.name.is_some() && meta.name == job.role().map(named);
        match controller(meta) {
            Some(controller) => is_training_job(controller) && is_named(),
            None => is_known(),
        }
    }

    /// Whether a pod is ours: the Job of its incarnation controls it, or one of that name where none is known. A pod
    /// that never had a controller counts where there is no Job, because the next gang has to wait for it.
    fn has_pod(&self, pod: &ObservedPod) -> bool {
        let Some(controller) = self.ours.controllers.get(&pod.uid) else {
            return !self.children.jobs.values().any(|job| job.incarnation == pod.incarnation && !job.deleting);
        };
        let is_job = controller.kind == "Job" && controller.api_version.starts_with("batch/");
        let is_named = || self.name.is_empty() || controller.name == names::role_job_name(&self.name, pod.role);
        let known = self.ours.jobs.get(&pod.incarnation);
        is_job && known.map_or_else(is_named, |uids| uids.contains(&controller.uid))
    }

    /// Separates ours from the others again, because more is known.
    fn sort_out(&mut self) {
        let all = std::mem::take(&mut self.children.pods).into_iter();
        let all: Vec<_> = all.chain(std::mem::take(&mut self.ours.strangers)).collect();
        for (uid, pod) in all {
            if self.has_pod(&pod) {
                self.children.pods.insert(uid, pod);
            } else if !pod.gone {
                self.ours.strangers.insert(uid, pod);
            }
        }
        let Ownership { controllers, strangers, .. } = &mut self.ours;
        controllers.retain(|uid, _| self.children.pods.contains_key(uid) || strangers.contains_key(uid));
    }
}
