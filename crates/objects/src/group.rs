//! The PodGroup by which a scheduler places the workers together or not at all, and how their pods name it.

use super::{job, metadata};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::CustomResource;
use plan::quantity::Amount;
use plan::{Group, GroupKind, Incarnation, Plan, Role, labels};
use protocol::gang::GangPast;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A PodGroup of any kind. It lives as long as the workers' Job, so that a replaced pod joins the others in it.
#[derive(Clone, Debug, PartialEq)]
pub enum PodGroup {
    /// Volcano's.
    Volcano(VolcanoPodGroup),
    /// The coscheduling plugin's.
    Coscheduling(CoschedulingPodGroup),
    /// Kubernetes' own.
    Native(NativePodGroup),
}

/// The fields that we set in a PodGroup of Volcano.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "scheduling.volcano.sh",
    version = "v1beta1",
    kind = "PodGroup",
    root = "VolcanoPodGroup",
    plural = "podgroups",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolcanoPodGroupSpec {
    /// How many pods are placed together.
    pub min_member: i32,
    /// What they request together. Volcano checks its queue for that before it looks at any node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub min_resources: BTreeMap<String, Quantity>,
    /// The queue, where it isn't the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The PriorityClass, which orders the groups of a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// The fields that we set in a PodGroup of the coscheduling plugin. `minResources` is not one: pods that are held back
/// for those are not retried when others end, but minutes later.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "scheduling.x-k8s.io",
    version = "v1alpha1",
    kind = "PodGroup",
    root = "CoschedulingPodGroup",
    plural = "podgroups",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct CoschedulingPodGroupSpec {
    /// How many pods are placed together.
    pub min_member: i32,
}

/// The fields that we set in a PodGroup of Kubernetes.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "scheduling.k8s.io",
    version = "v1alpha2",
    kind = "PodGroup",
    root = "NativePodGroup",
    plural = "podgroups",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct NativePodGroupSpec {
    /// How its pods are placed.
    pub scheduling_policy: SchedulingPolicy,
}

/// How the pods of a PodGroup of Kubernetes are placed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(default)]
pub struct SchedulingPolicy {
    /// Together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangPolicy>,
}

/// How many pods are placed together.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPolicy {
    /// Minimum number of pods; fewer are not placed.
    pub min_count: i32,
}

/// The PodGroup of a job, if it has one.
#[must_use]
pub fn pod_group(plan: &Plan) -> Option<PodGroup> {
    let Group { name, kind } = plan.gang.group.as_ref()?;
    let (metadata, members) = (metadata(plan, name.clone()), i32::from(plan.gang.least()));
    Some(match kind {
        GroupKind::Volcano { queue } => PodGroup::Volcano(VolcanoPodGroup {
            metadata,
            spec: VolcanoPodGroupSpec {
                min_member: members,
                min_resources: resources(plan),
                queue: queue.clone(),
                priority_class_name: plan.gang.workers().pod.scheduling.priority.clone(),
            },
        }),
        GroupKind::Coscheduling => PodGroup::Coscheduling(CoschedulingPodGroup {
            metadata,
            spec: CoschedulingPodGroupSpec { min_member: members },
        }),
        GroupKind::Native => PodGroup::Native(NativePodGroup {
            metadata,
            spec: NativePodGroupSpec {
                scheduling_policy: SchedulingPolicy { gang: Some(GangPolicy { min_count: members }) },
            },
        }),
    })
}

/// Makes the pods of a template name their group, and sends them to its scheduler if the job names no other.
/// Kubernetes' own group is in a field that the types here lack, see [`with_group`].
pub(super) fn join(plan: &Plan, role: &Role, template: &mut PodTemplateSpec) {
    let Some(Group { name, kind }) = &plan.gang.group else { return };
    let metadata = template.metadata.get_or_insert_default();
    let (list, key, scheduler) = match kind {
        GroupKind::Volcano { .. } => (&mut metadata.annotations, labels::VOLCANO_GROUP, "volcano"),
        GroupKind::Coscheduling => (&mut metadata.labels, labels::COSCHEDULING_GROUP, "scheduler-plugins-scheduler"),
        GroupKind::Native => return,
    };
    let list = list.get_or_insert_default();
    list.insert(key.to_owned(), name.clone());
    if matches!(kind, GroupKind::Volcano { .. }) && plan.gang.has_roles() {
        list.entry(labels::VOLCANO_TASK.to_owned()).or_insert_with(|| role.name.to_string());
    }
    template.spec.get_or_insert_default().scheduler_name.get_or_insert_with(|| scheduler.to_owned());
}

/// A Job with all fields of the API server, including those that the types here lack.
#[derive(kube::Resource, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[resource(inherit = Job)]
pub struct WholeJob {
    /// Name, UID, labels.
    pub metadata: ObjectMeta,
    /// All the rest.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The Job with Kubernetes' own group, if its pods have one. Otherwise the Job is posted as it is.
///
/// # Panics
/// Never: a Job is plain data.
#[must_use]
#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
pub fn with_group(plan: &Plan, job: &Job) -> Option<WholeJob> {
    let group = plan.gang.group.as_ref().filter(|group| group.kind == GroupKind::Native)?;
    let mut whole = serde_json::to_value(job).expect("a Job is plain data");
    if let Some(pod) = whole.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut) {
        pod.insert("schedulingGroup".to_owned(), json!({ "podGroupName": group.name }));
    }
    Some(serde_json::from_value(whole).expect("a Job has metadata"))
}

/// Total requests of the pods that the gang needs to run.
fn resources(plan: &Plan) -> BTreeMap<String, Quantity> {
    let mut all = Amounts::default();
    for role in &plan.gang.roles {
        let template = job::job(plan, role, Incarnation::FIRST, &GangPast::default()).spec.map(|spec| spec.template);
        let pod = template.and_then(|template| template.spec).unwrap_or_default();
        let count = role.pods(plan.gang.fewest_workers());
        let of_role = requests(&pod).0.into_iter().map(|(name, amount)| (name, amount.times(count.into())));
        all.add(&Amounts(of_role.collect()));
    }
    all.0.into_iter().map(|(name, amount)| (name, Quantity(amount.to_string()))).collect()
}

/// Amounts by resource.
#[derive(Clone, Default)]
struct Amounts(BTreeMap<String, Amount>);

impl Amounts {
    /// The requests of a container. A limit counts as the request where there is none.
    fn from_resources(resources: Option<&ResourceRequirements>) -> Self {
        let lists = resources.into_iter().flat_map(|resources| [&resources.limits, &resources.requests]);
        let amounts = lists.flatten().flatten();
        Self(amounts.filter_map(|(name, amount)| Some((name.clone(), Amount::parse(&amount.0)?))).collect())
    }

    fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.0.get(name).map_or(*amount, |known| known.plus(*amount));
            self.0.insert(name.clone(), sum);
        }
    }

    fn at_least(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let most = self.0.get(name).map_or(*amount, |known| *known.max(amount));
            self.0.insert(name.clone(), most);
        }
    }
}

/// The requests of a pod as a scheduler counts them: those of its containers and of the init containers that keep
/// running beside them. If another init container needs more before them, that counts instead.
fn requests(pod: &PodSpec) -> Amounts {
    let of = |container: &Container| Amounts::from_resources(container.resources.as_ref());
    let (mut beside, mut before) = (Amounts::default(), Amounts::default());
    for container in pod.init_containers.iter().flatten() {
        let goes_on = container.restart_policy.as_deref() == Some("Always");
        let mut now = beside.clone();
        now.add(&of(container));
        before.at_least(&now);
        if goes_on {
            beside = now;
        }
    }
    let mut all = beside;
    pod.containers.iter().for_each(|container| all.add(&of(container)));
    all.at_least(&before);
    let overhead = pod.overhead.iter().flatten();
    all.add(&Amounts(overhead.filter_map(|(name, it)| Some((name.clone(), Amount::parse(&it.0)?))).collect()));
    all
}
