//! The Kubernetes objects of a plan.
//!
//! Pure and infallible, because [`plan`] has refused everything that could go wrong. Building the same plan twice gives
//! the same objects.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod claim;
mod config;
mod environment;
mod fetch;
mod framework;
mod gang;
mod group;
mod isolation;
mod job;
mod pod;
mod publish;
mod service;
mod tensorboard;
mod trackers;
mod upkeep;
mod workload;

pub use claim::claim;
pub use config::config;
pub use fetch::fetch_job;
pub use gang::keys;
pub use group::{
    CoschedulingPodGroup, CoschedulingPodGroupSpec, GangPolicy, NativePodGroup, NativePodGroupSpec, PodGroup,
    SchedulingPolicy, VolcanoPodGroup, VolcanoPodGroupSpec, WholeJob, pod_group, with_group,
};
pub use isolation::network_policy;
pub use plan::{labels, names};
pub use pod::AGENT_PATH;
pub use service::service;
pub use tensorboard::{Board, board};
pub use upkeep::{command_job, errand_name, policy_path, upkeep};
pub use workload::{PodSet, PriorityClassRef, ResourceFlavor, ResourceFlavorSpec, Workload, WorkloadSpec, workload};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use plan::{Incarnation, Plan};
use protocol::gang::GangPast;
use std::collections::BTreeMap;

/// What a TrainingJob becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// Gives the workers their DNS names; the same for every incarnation.
    pub service: Service,
    /// What the program finds at `/etc/training-config`; the same for every incarnation.
    pub config: ConfigMap,
    /// The claim for checkpoints, if one is to be created. It may be left from an earlier job of this name.
    pub claim: Option<PersistentVolumeClaim>,
    /// The pods of one incarnation, a Job for each role.
    pub jobs: Vec<Job>,
}

/// Builds the objects of an incarnation. `past` is the gang's past before it.
#[must_use]
pub fn objects(plan: &Plan, incarnation: Incarnation, past: &GangPast) -> Objects {
    Objects { service: service(plan), config: config(plan), claim: claim(plan), jobs: jobs(plan, incarnation, past) }
}

/// Builds the Jobs of an incarnation, one for each role. `past` is the gang's past before it.
#[must_use]
pub fn jobs(plan: &Plan, incarnation: Incarnation, past: &GangPast) -> Vec<Job> {
    plan.gang.roles.iter().map(|role| job::job(plan, role, incarnation, past)).collect()
}

/// Metadata of an object that is deleted with its TrainingJob.
fn metadata(plan: &Plan, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(plan.identity.namespace.clone()),
        labels: Some(labels::common(plan)),
        annotations: Some(annotations(plan, [(labels::INTENT, plan.identity.intent.clone())])),
        owner_references: Some(vec![plan.identity.owner.clone()]),
        ..ObjectMeta::default()
    }
}

/// The annotations of `spec.annotations` and `own`, which takes precedence.
fn annotations<const N: usize>(plan: &Plan, own: [(&str, String); N]) -> BTreeMap<String, String> {
    let own = own.map(|(key, value)| (key.to_owned(), value));
    plan.identity.annotations.clone().into_iter().chain(own).collect()
}

#[cfg(test)]
mod tests;
