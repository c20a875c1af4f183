//! Two short-lived pods on two nodes that connect to each other.

use super::{CheckInput, CheckResult, container, only_operator};
use crate::checkpoints::signals::Signals;
use crate::cluster::Cluster;
use anyhow::bail;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use serde_json::json;
use std::time::{Duration, Instant};

/// The default master port of a job, and one that NCCL may choose.
const PORTS: [u16; 2] = [29500, 50000];
/// Seconds that a pod may live, whatever happens to this command.
const LIVES: i64 = 180;
/// How long a pod may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(90);
/// Seconds for which a port is tried.
const TRIED: u32 = 15;
const LOOK: Duration = Duration::from_millis(500);
const SUBJECT: &str = "ports";

/// Runs the two pods, and deletes them. The error is the exit code after a signal.
///
/// # Errors
/// If a signal ended it.
pub async fn ports(cluster: &Cluster, seen: &CheckInput, image: Option<String>) -> Result<CheckResult, u8> {
    let operators = only_operator(seen).and_then(container).and_then(|container| container.image.clone());
    let Some(image) = image.or(operators) else {
        return Ok(CheckResult::not_checked(
            SUBJECT,
            "no single operator is known whose image has the agent: name one with --image",
        ));
    };
    let Ok(mut signals) = Signals::new() else {
        return Ok(CheckResult::not_checked(SUBJECT, "no signal can be listened to"));
    };
    let random: u32 = rand::random();
    let names = ["a", "b"].map(|which| format!("trainingjob-ports-{random:08x}-{which}"));
    let line = tokio::select! {
        line = tried(cluster, &seen.namespace, &names, &image) => {
            Ok(line.unwrap_or_else(|error| CheckResult::not_checked(SUBJECT, format!("{error:#}"))))
        }
        code = signals.next() => Err(code),
    };
    for name in &names {
        let what = format!("delete pod {name} in namespace {}", seen.namespace);
        let params = DeleteParams::default().grace_period(0);
        match cluster.api::<Pod>(&seen.namespace).delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                crate::logs::remark(&format!("{:#}; it ends after {LIVES} s", cluster.explain(&what, &error)));
            }
            Ok(_) => {}
        }
    }
    line
}

async fn tried(cluster: &Cluster, namespace: &str, names: &[String; 2], image: &str) -> anyhow::Result<CheckResult> {
    let ports = PORTS.map(|port| port.to_string()).join(",");
    let [listens, connects] = names;
    let create = async |pod: Pod| {
        let what = format!("create pod {} in namespace {namespace}", pod.name_any());
        cluster.ask(&what, cluster.api::<Pod>(namespace).create(&PostParams::default(), &pod)).await
    };
    let listen = format!("--seconds={LIVES}");
    create(pod(listens, image, &["ports", "--listen", &ports, &listen], None)?).await?;
    let first = until(cluster, namespace, listens, "Running").await?;
    let address = first.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let seconds = format!("--seconds={TRIED}");
    let args = ["ports", "--connect", &ports, "--host", &address, &seconds];
    create(pod(connects, image, &args, Some(&node(&first)))?).await?;
    let second = until(cluster, namespace, connects, "Succeeded").await?;
    let (from, to) = (node(&second), node(&first));
    let place = if from == to {
        format!("both on node {to}, for no other has room")
    } else {
        format!("from node {from} to node {to}")
    };
    if phase(&second) == "Succeeded" {
        return Ok(CheckResult::ok(
            SUBJECT,
            format!("a pod reaches another one on {} ({place})", PORTS.map(|it| it.to_string()).join(" and ")),
        ));
    }
    let what = format!("read the log of pod {connects} in namespace {namespace}");
    let log = cluster.ask(&what, cluster.api::<Pod>(namespace).logs(connects, &LogParams::default())).await?;
    let why: Vec<&str> = log.lines().filter(|line| !line.ends_with(": ok")).collect();
    let what = format!("list NetworkPolicies in namespace {namespace}");
    let policies = cluster.ask(&what, cluster.api::<NetworkPolicy>(namespace).list(&ListParams::default())).await;
    let all: Vec<String> =
        policies.map(|all| all.items.iter().filter(|it| selects_all(it)).map(ResourceExt::name_any).collect())?;
    let remedy = match all.as_slice() {
        [] => "allow TCP between the nodes' pods: check the network plugin and firewalls between the nodes".to_owned(),
        all => format!(
            "NetworkPolicy {} selects all pods of namespace {namespace}: add one that allows the workers of a job to reach each other on all ports",
            all.join(", ")
        ),
    };
    Ok(CheckResult::failed(SUBJECT, format!("a pod does not reach another one ({place}): {}", why.join("; ")), remedy))
}

/// Whether a policy applies to pods of every kind.
fn selects_all(policy: &NetworkPolicy) -> bool {
    let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.clone()).unwrap_or_default();
    selector.match_labels.is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.is_none_or(|expressions| expressions.is_empty())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Waits until a pod has this phase, or has failed after it ran.
async fn until(cluster: &Cluster, namespace: &str, name: &str, wanted: &str) -> anyhow::Result<Pod> {
    let begun = Instant::now();
    let what = format!("get pod {name} in namespace {namespace}");
    loop {
        let pod = cluster.ask(&what, cluster.api::<Pod>(namespace).get(name)).await?;
        let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        if (phase(&pod) == wanted && has_address) || (wanted != "Running" && phase(&pod) == "Failed") {
            return Ok(pod);
        }
        if phase(&pod) == "Failed" || begun.elapsed() >= PATIENCE {
            let status = pod.status.unwrap_or_default();
            let waits = status.container_statuses.iter().flatten().find_map(|it| it.state.as_ref()?.waiting.clone());
            let waits =
                waits.map(|it| format!("{}: {}", it.reason.unwrap_or_default(), it.message.unwrap_or_default()));
            let mut conditions = status.conditions.iter().flatten().filter(|it| it.status == "False");
            let unmet = conditions.find_map(|it| it.message.clone());
            bail!("pod {name} did not start: {}", waits.or(unmet).unwrap_or_else(|| "the reason is not known".into()));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns a pod that any Pod Security level admits. With `apart` it prefers another node.
fn pod(name: &str, image: &str, args: &[&str], apart: Option<&str>) -> anyhow::Result<Pod> {
    let affinity = apart.map(|node| {
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "preference": { "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": [node] }] },
        }] } })
    });
    Ok(serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": "kubectl-trainingjob" } },
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false, "activeDeadlineSeconds": LIVES,
            "terminationGracePeriodSeconds": 1, "affinity": affinity,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "ports", "image": image, "command": ["/agent"], "args": args,
                "resources": {
                    "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "cpu": "200m", "memory": "64Mi" },
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    }))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_pod_selector_selects_all_pods() {
        let policy = |spec| serde_json::from_value::<NetworkPolicy>(json!({ "metadata": {}, "spec": spec })).unwrap();
        assert!(selects_all(&policy(json!({ "podSelector": {}, "policyTypes": ["Ingress"] }))));
        assert!(!selects_all(&policy(json!({ "podSelector": { "matchLabels": { "a": "b" } } }))));
    }

    #[test]
    fn the_second_pod_prefers_another_node() {
        let made = serde_json::to_value(pod("x", "i", &["ports"], Some("gpu-1")).unwrap()).unwrap();
        let preferred = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/preference/matchFields/0/values/0";
        assert_eq!(made.pointer(preferred), Some(&json!("gpu-1")));
        assert!(pod("x", "i", &[], None).unwrap().spec.unwrap().affinity.is_none());
    }
}
