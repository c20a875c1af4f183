//! The Workload by which Kueue admits all roles of a gang together or not at all. A gang of workers alone has none: its one Job is
//! labelled, and Kueue makes the Workload itself.

use super::{job, metadata, names};
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use kube::CustomResource;
use plan::{Incarnation, Plan};
use protocol::gang::GangPast;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What we say in a Workload of Kueue.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    /// The pods of each role.
    pub pod_sets: Vec<PodSet>,
    /// The LocalQueue.
    pub queue_name: String,
    /// Whose priority it is; without one it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Which one that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// Equal pods.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct PodSet {
    /// The role.
    pub name: String,
    /// How many.
    pub count: i32,
    /// What each asks for, and where it may run.
    pub template: PodTemplateSpec,
}

/// A class of priorities.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct PriorityClassRef {
    /// Of which API.
    pub group: String,
    /// Of which kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl PriorityClassRef {
    /// One of Kubernetes' own.
    #[must_use]
    pub fn of_pods(name: &str) -> Self {
        Self { group: "scheduling.k8s.io".to_owned(), kind: "PriorityClass".to_owned(), name: name.to_owned() }
    }
}

/// What is read of a ResourceFlavor of Kueue: the nodes that it stands for.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    plural = "resourceflavors",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceFlavorSpec {
    /// Labels of its nodes.
    pub node_labels: BTreeMap<String, String>,
    /// What its pods have to tolerate there.
    pub tolerations: Vec<Toleration>,
}

/// The Workload of a gang that is to have one. The priority is its class's to say.
#[must_use]
pub fn workload(plan: &Plan) -> Option<Workload> {
    let queue_name = plan.gang.queue.clone()?;
    let pod_set = |role: &plan::Role| {
        let template = job::job(plan, role, Incarnation::FIRST, &GangPast::default()).spec.map(|spec| spec.template);
        PodSet { name: role.name.to_string(), count: role.replicas.into(), template: template.unwrap_or_default() }
    };
    let mut pod_sets: Vec<PodSet> = plan.gang.roles.iter().map(pod_set).collect();
    for pod_set in &mut pod_sets {
        // Kueue compares requests with quotas, and needs no program.
        for container in pod_set.template.spec.iter_mut().flat_map(|pod| &mut pod.containers) {
            (container.args, container.env, container.env_from) = (None, None, None);
        }
    }
    Some(Workload {
        metadata: metadata(plan, names::workload_name(&plan.identity.name, &plan.identity.uid)),
        spec: WorkloadSpec { pod_sets, queue_name, ..WorkloadSpec::default() },
    })
}
