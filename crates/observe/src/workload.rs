//! A gang's Workload of Kueue as the operator keeps it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use objects::Workload;
use protocol::role::RoleName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The part of a Workload that the watch decodes.
#[derive(kube::Resource, Serialize, Deserialize, Clone, Debug, Default)]
#[resource(inherit = Workload)]
pub struct SlimWorkload {
    /// Name, UID, labels, deletion.
    #[serde(deserialize_with = "super::slim::metadata")]
    pub metadata: ObjectMeta,
    /// Its status.
    #[serde(default)]
    pub status: SlimWorkloadStatus,
}

/// The part of a Workload's status that the watch decodes.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct SlimWorkloadStatus {
    /// Admitted, Evicted and others.
    pub conditions: Vec<Condition>,
    /// What was assigned to it.
    pub admission: Option<Admission>,
}

/// What was assigned to a Workload.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Admission {
    /// The assignment of each role.
    pub pod_set_assignments: Vec<Assignment>,
}

/// What was assigned to a role.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Assignment {
    /// The role.
    pub name: String,
    /// The flavor of nodes by resource.
    pub flavors: BTreeMap<String, String>,
}

/// What the index keeps of a Workload.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct ObservedWorkload {
    /// Its UID: the precondition of its deletion.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its deletion has begun.
    pub deleting: bool,
    /// It has what it asks for, and is not being evicted.
    pub admitted: bool,
    /// It holds a part of a quota, also before its admission and during its eviction.
    pub reserved: bool,
    /// It is being evicted.
    pub evicted: bool,
    /// Kueue knows that its pods run.
    pub pods_ready: bool,
    /// Kueue knows that it is over.
    pub finished: bool,
    /// Kueue's message on what it waits for.
    pub words: String,
    /// The flavors that were assigned to each role.
    pub flavors: BTreeMap<RoleName, BTreeSet<String>>,
}

impl SlimWorkload {
    /// Extracts the part of a Workload that is kept.
    #[must_use]
    pub fn seen(&self) -> Option<ObservedWorkload> {
        let condition = |type_: &str| self.status.conditions.iter().find(|condition| condition.type_ == type_);
        let is = |type_: &str| condition(type_).is_some_and(|condition| condition.status == "True");
        let mut words = ["QuotaReserved", "Admitted", "Evicted"].into_iter().filter_map(|type_| {
            let condition = condition(type_)?;
            let says_why = if type_ == "Evicted" { condition.status == "True" } else { condition.status != "True" };
            (says_why && !condition.message.is_empty()).then(|| condition.message.clone())
        });
        let assignments = self.status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
        let flavors = assignments.filter_map(|assignment| {
            Some((RoleName::parse(&assignment.name)?, assignment.flavors.values().cloned().collect()))
        });
        Some(ObservedWorkload {
            uid: self.metadata.uid.clone()?,
            name: self.metadata.name.clone()?,
            deleting: self.metadata.deletion_timestamp.is_some(),
            admitted: is("Admitted") && !is("Evicted") && !is("Finished"),
            reserved: self.status.admission.is_some(),
            evicted: is("Evicted"),
            pods_ready: is("PodsReady"),
            finished: is("Finished"),
            words: words.next().unwrap_or_default(),
            flavors: flavors.collect(),
        })
    }
}
