//! Which GPUs of which nodes are free, and which jobs hold the others.

use super::screen::{DisplayOptions, Screen, Style, count};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use plan::labels::TRAINING_JOB;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The GPUs of one kind of one node.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The node.
    pub node: String,
    /// The resource, such as nvidia.com/gpu.
    pub resource: String,
    /// Number of GPUs that pods may request.
    pub allocatable: i64,
    /// Number of GPUs that the pods on the node request.
    pub requested: i64,
    /// Number of GPUs that another pod can get. It is 0 if the node takes no pods.
    pub free: i64,
    /// Why the node takes no new pods: NotReady or Cordoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<&'static str>,
    /// The holders: NAMESPACE/JOB, or pod NAMESPACE/POD for a pod without a TrainingJob.
    pub holders: BTreeSet<String>,
}

/// Whether a resource of a node is a GPU or another accelerator, by the names that device plugins give.
#[must_use]
pub fn is_gpu(resource: &str) -> bool {
    let Some((domain, name)) = resource.split_once('/') else { return false };
    domain == "gpu.intel.com"
        || ["gpu", "gaudi", "tpu", "neuron", "neuroncore", "neurondevice"].contains(&name)
        || name.starts_with("gpu.")
        || (domain == "nvidia.com" && name.starts_with("mig-"))
}

/// The GPUs of the nodes, by their names. Pods that have ended hold none.
#[must_use]
pub fn rows(nodes: &[Node], pods: &[Pod]) -> Vec<Row> {
    let mut held: BTreeMap<(&str, &str), (i64, BTreeSet<String>)> = BTreeMap::new();
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(spec) = pod.spec.as_ref().filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else { continue };
        let Some(node) = spec.node_name.as_deref() else { continue };
        let namespace = pod.namespace().unwrap_or_default();
        let holder = match pod.labels().get(TRAINING_JOB) {
            Some(job) => format!("{namespace}/{job}"),
            None => format!("pod {namespace}/{}", pod.name_any()),
        };
        for (resource, quantity) in spec.containers.iter().flat_map(|container| requests(container.resources.as_ref()))
        {
            let all = held.entry((node, resource)).or_default();
            all.0 += whole(quantity);
            all.1.insert(holder.clone());
        }
    }
    let mut rows = Vec::new();
    for node in nodes {
        let name = node.name_any();
        let closed = closed(node);
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        for (resource, quantity) in allocatable.into_iter().flatten().filter(|(resource, _)| is_gpu(resource)) {
            let (requested, holders) = held.get(&(&*name, &**resource)).cloned().unwrap_or_default();
            let free = if closed.is_some() { 0 } else { (whole(quantity) - requested).max(0) };
            rows.push(Row {
                node: name.clone(),
                resource: resource.clone(),
                allocatable: whole(quantity),
                requested,
                free,
                closed,
                holders,
            });
        }
    }
    rows.sort_by(|a, b| (&a.node, &a.resource).cmp(&(&b.node, &b.resource)));
    rows
}

/// Extended resources have equal requests and limits, and only the limit need be written.
fn requests(resources: Option<&ResourceRequirements>) -> impl Iterator<Item = (&str, &Quantity)> {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    limits.into_iter().flatten().map(|(name, quantity)| (&**name, quantity)).filter(|(name, _)| is_gpu(name))
}

/// Devices are counted in whole numbers.
fn whole(quantity: &Quantity) -> i64 {
    quantity.0.parse().unwrap_or(0)
}

fn closed(node: &Node) -> Option<&'static str> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    if ready { cordoned.then_some("Cordoned") } else { Some("NotReady") }
}

/// The table that `kubectl trainingjob gpus` prints.
#[must_use]
pub fn render(rows: &[Row], look: DisplayOptions) -> String {
    let cells: Vec<Vec<(Style, String)>> = rows
        .iter()
        .map(|row| {
            let style = if row.free > 0 { Style::Good } else { Style::Plain };
            vec![
                (Style::Bold, row.node.clone()),
                (Style::Plain, row.resource.clone()),
                (Style::Plain, row.allocatable.to_string()),
                (Style::Plain, row.requested.to_string()),
                (style, row.free.to_string()),
                (Style::Bad, row.closed.unwrap_or_default().to_owned()),
                (Style::Plain, row.holders.iter().cloned().collect::<Vec<_>>().join(", ")),
            ]
        })
        .collect();
    let mut screen = Screen::new(look);
    screen.table(&["NODE", "RESOURCE", "GPUS", "USED", "FREE", "CLOSED", "HELD BY"], &cells, &[6, 0]);
    let (free, all) = rows.iter().fold((0, 0), |(free, all), row| (free + row.free, all + row.allocatable));
    let nodes: BTreeSet<&str> = rows.iter().map(|row| &*row.node).collect();
    let nodes = count(i64::try_from(nodes.len()).unwrap_or(i64::MAX), "node");
    screen.line(&[(Style::Dim, &format!("{free} of {} free, on {nodes}", count(all, "GPU")))]);
    screen.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn node(name: &str, allocatable: &Value, ready: &str, cordoned: bool) -> Node {
        from_value(json!({
            "metadata": { "name": name }, "spec": { "unschedulable": cordoned },
            "status": { "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn pod(name: &str, job: Option<&str>, node: Option<&str>, gpus: &str, phase: &str) -> Pod {
        let labels = job.map_or_else(|| json!({}), |job| json!({ TRAINING_JOB: job }));
        from_value(json!({
            "metadata": { "name": name, "namespace": "team", "labels": labels },
            "spec": { "nodeName": node, "containers": [
                { "name": "training", "resources": { "limits": { "nvidia.com/gpu": gpus, "cpu": "4" } } },
                { "name": "beside" },
            ] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn found() -> Vec<Row> {
        let eight = json!({ "nvidia.com/gpu": "8", "cpu": "64", "hugepages-2Mi": "0" });
        let nodes = [
            node("b", &eight, "True", false),
            node("a", &eight, "True", true),
            node("c", &json!({ "nvidia.com/mig-1g.10gb": "7" }), "Unknown", false),
            node("cpu", &json!({ "cpu": "8" }), "True", false),
        ];
        let pods = [
            pod("bert-0", Some("bert"), Some("b"), "4", "Running"),
            pod("bert-1", Some("bert"), Some("b"), "1", "Pending"),
            pod("notebook", None, Some("b"), "1", "Running"),
            pod("old", Some("old"), Some("b"), "8", "Succeeded"),
            pod("waits", Some("waits"), None, "8", "Pending"),
        ];
        rows(&nodes, &pods)
    }

    #[test]
    fn free_gpus_exclude_requested_and_closed_nodes() {
        let found = found();
        let numbers: Vec<_> = found.iter().map(|r| (&*r.node, r.allocatable, r.requested, r.free, r.closed)).collect();
        assert_eq!(
            numbers,
            [("a", 8, 0, 0, Some("Cordoned")), ("b", 8, 6, 2, None), ("c", 7, 0, 0, Some("NotReady")),]
        );
        let holders: Vec<_> = found[1].holders.iter().collect();
        assert_eq!(holders, ["pod team/notebook", "team/bert"]);
        let text = render(&found, DisplayOptions::default());
        assert!(text.ends_with("2 of 23 GPUs free, on 3 nodes\n"), "{text}");
    }

    #[test]
    fn gpus_are_recognized_by_resource_name() {
        for gpu in ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "gpu.intel.com/xe", "google.com/tpu"] {
            assert!(is_gpu(gpu), "{gpu}");
        }
        for other in
            ["cpu", "gpu", "memory", "rdma/hca", "example.com/gpu-licence", "amd.com/mig-1", "vpc.amazonaws.com/efa"]
        {
            assert!(!is_gpu(other), "{other}");
        }
    }
}
