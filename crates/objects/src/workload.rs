//! The Workload by which Kueue admits all roles of a gang together or not at all. A gang of workers alone has none,
//! because Kueue creates the Workload of its one Job, which is labelled.

use super::{job, metadata, names};
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use kube::CustomResource;
use plan::{Incarnation, Plan};
use protocol::gang::GangPast;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The fields that we set in a Workload of Kueue.
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
    /// The class of its priority; without one the priority is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Value of the priority.
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
    /// What each requests, and where it may run.
    pub template: PodTemplateSpec,
}

/// A class of priorities.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct PriorityClassRef {
    /// API group of the class.
    pub group: String,
    /// Kind of the class.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl PriorityClassRef {
    /// A PriorityClass of Kubernetes.
    #[must_use]
    pub fn of_pods(name: &str) -> Self {
        Self { group: "scheduling.k8s.io".to_owned(), kind: "PriorityClass".to_owned(), name: name.to_owned() }
    }
}

/// The part of a ResourceFlavor of Kueue that is read: the nodes that it stands for.
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
    /// Tolerations that its pods need there.
    pub tolerations: Vec<Toleration>,
}

/// The Workload of a gang, if it has one. Its class determines the priority.
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
