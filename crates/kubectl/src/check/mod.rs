//! `check`: whether the operator is installed, works, and finds what jobs need.
//!
//! [`judge`] decides on what [`look`] has read.

pub mod ports;
mod rights;

use super::cluster::Cluster;
use super::screen::{DisplayOptions, Screen, Style, span};
use api::{ConditionType, Guarded, RuntimeKind, State, TrainingJob};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::ListParams;
use rights::{Right, Rights};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Label of the operator's Deployment, and its value.
pub(super) const OPERATOR: &str = "app.kubernetes.io/name=trainingjob-operator";
/// Name of the operator's lease, unless its Deployment sets another one.
const LEASE: &str = "trainingjob-operator";
/// Annotation that makes a StorageClass the default.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// A lease older than this many times its duration belongs to no living leader.
const STALE: i64 = 2;
/// Pages of 500 objects that are read at most.
const PAGES: usize = 20;

/// The result of one check.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// All is as it should be.
    Ok,
    /// The user has to do something.
    Failed,
    /// It could not be read, or does not apply.
    NotChecked,
}

/// One check.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CheckResult {
    /// What was checked.
    pub subject: &'static str,
    /// The result.
    pub outcome: Outcome,
    /// What was found.
    pub says: String,
    /// What the user has to do, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl CheckResult {
    fn ok(subject: &'static str, says: impl Into<String>) -> Self {
        Self { subject, outcome: Outcome::Ok, says: says.into(), remedy: None }
    }

    fn failed(subject: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject, outcome: Outcome::Failed, says: says.into(), remedy: Some(remedy.into()) }
    }

    fn not_checked(subject: &'static str, says: impl Into<String>) -> Self {
        Self { subject, outcome: Outcome::NotChecked, says: says.into(), remedy: None }
    }
}

/// Whether one of these checks has failed.
#[must_use]
pub fn has_failed(lines: &[CheckResult]) -> bool {
    lines.iter().any(|line| line.outcome == Outcome::Failed)
}

/// What was read, or why it could not be read.
type Read<T> = Result<T, String>;

/// Everything that is judged.
pub struct CheckInput {
    /// When it was read.
    pub now: Timestamp,
    /// Namespace of the caller's jobs.
    pub namespace: String,
    /// The installed kinds, beside those of this version.
    pub kinds: Vec<(CustomResourceDefinition, Read<Option<CustomResourceDefinition>>)>,
    /// Deployments of operators.
    pub operators: Read<Vec<Deployment>>,
    /// Pods of operators.
    pub pods: Read<Vec<Pod>>,
    /// The lease of the only operator.
    pub lease: Read<Option<Lease>>,
    /// Rights that the caller lacks.
    pub mine: Read<Rights>,
    /// Rights that the operator lacks.
    pub operators_rights: Read<Rights>,
    /// Version of the API server.
    pub server: (String, String),
    /// All nodes.
    pub nodes: Read<Vec<Node>>,
    /// All storage classes.
    pub classes: Read<Vec<StorageClass>>,
    /// The jobs of the namespace.
    pub jobs: Read<Vec<TrainingJob>>,
}

/// Reads everything that is judged.
///
/// # Errors
/// If the API server does not answer.
pub async fn look(cluster: &Cluster) -> anyhow::Result<CheckInput> {
    let version = cluster.ask("read the version of the API server", cluster.client().apiserver_version()).await?;
    let namespace = cluster.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let ours = [api::crd(), api::tuning_crd()].into_iter().chain(RuntimeKind::ALL.into_iter().map(api::runtime_crd));
    let mut kinds = Vec::new();
    for our in ours {
        let name = our.name_any();
        let api = cluster.everywhere::<CustomResourceDefinition>();
        let found = text(cluster.ask(&format!("get CustomResourceDefinition {name}"), api.get_opt(&name)).await);
        kinds.push((our, found));
    }
    let labelled = ListParams::default().labels(OPERATOR);
    let pods = cluster.ask("list Pods in all namespaces", cluster.everywhere().list(&labelled)).await;
    let operators = cluster.ask("list Deployments in all namespaces", cluster.everywhere().list(&labelled)).await;
    let operators: Read<Vec<Deployment>> = text(operators.map(|list| list.items));
    let only = operators.as_ref().ok().and_then(|all| <&[_; 1]>::try_from(all.as_slice()).ok()).map(|[only]| only);
    let (lease, operators_rights) = match only {
        Some(operator) => {
            let (place, name) = (operator.namespace().unwrap_or_default(), lease_name(operator));
            let what = format!("get Lease {name} in namespace {place}");
            let lease = text(cluster.ask(&what, cluster.api::<Lease>(&place).get_opt(&name)).await);
            (lease, rights::of_operator(cluster, operator, &namespace).await.map_err(|error| format!("{error:#}")))
        }
        None => (Err("no single operator is known".into()), Err("no single operator is known".into())),
    };
    let all = cluster.everywhere::<Node>();
    let nodes = text(cluster.pages("list Nodes", &all, PAGES).await);
    let all = cluster.everywhere::<StorageClass>();
    let classes = text(cluster.pages("list StorageClasses", &all, PAGES).await);
    let what = format!("list TrainingJobs in namespace {namespace}");
    let jobs = text(cluster.pages(&what, &cluster.api::<Guarded>(&namespace), PAGES).await);
    Ok(CheckInput {
        now: super::job_reader::now(),
        kinds,
        operators,
        pods: text(pods.map(|list| list.items)),
        lease,
        mine: rights::own_rights(cluster, &namespace).await.map_err(|error| format!("{error:#}")),
        operators_rights,
        server: (version.major, version.minor),
        nodes,
        classes,
        jobs: jobs.map(|jobs| jobs.into_iter().filter_map(|job| job.0.ok()).collect()),
        namespace,
    })
}

fn text<T>(read: anyhow::Result<T>) -> Read<T> {
    read.map_err(|error| format!("{error:#}"))
}

/// Judges what was read, with one line for each check.
#[must_use]
pub fn judge(seen: &CheckInput) -> Vec<CheckResult> {
    let mut lines =
        vec![kinds(seen), operator(seen), version(seen), lease(seen), own_rights(seen), operators_rights(seen)];
    lines.extend([delivery(seen), gpus(seen), storage(seen), agents(seen)]);
    lines
}

/// Renders the lines for a terminal.
#[must_use]
pub fn render(lines: &[CheckResult], look: DisplayOptions) -> String {
    let mut screen = Screen::new(look);
    for line in lines {
        let (style, word) = match line.outcome {
            Outcome::Ok => (Style::Good, "ok"),
            Outcome::Failed => (Style::Bad, "failed"),
            Outcome::NotChecked => (Style::Dim, "not checked"),
        };
        screen.long_field(word, style, &format!("{}: {}", line.subject, line.says));
        if let Some(remedy) = &line.remedy {
            screen.long_field("", Style::Plain, remedy);
        }
    }
    screen.text()
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const INSTALL: &str = "kubectl apply -k deploy/";

fn kinds(seen: &CheckInput) -> CheckResult {
    let subject = "CustomResourceDefinitions";
    let (mut missing, mut differing, mut unread) = (Vec::new(), Vec::new(), None);
    for (our, found) in &seen.kinds {
        match found {
            Ok(None) => missing.push(our.name_any()),
            Ok(Some(found)) => differing.extend(difference(our, found)),
            Err(why) => unread = Some(why),
        }
    }
    if !missing.is_empty() {
        let remedy = format!("install the operator: {INSTALL}");
        return CheckResult::failed(subject, format!("not installed: {}", missing.join(", ")), remedy);
    }
    if !differing.is_empty() {
        let remedy = format!(
            "install the CustomResourceDefinitions and the plugin of the same version (the plugin is {VERSION})"
        );
        return CheckResult::failed(subject, differing.join("; "), remedy);
    }
    match unread {
        Some(why) => CheckResult::not_checked(subject, why.as_str()),
        None => CheckResult::ok(
            subject,
            format!("{} are installed, with the fields of version {VERSION}", seen.kinds.len()),
        ),
    }
}

/// Returns the fields that only one of the two has.
fn difference(our: &CustomResourceDefinition, found: &CustomResourceDefinition) -> Option<String> {
    let (ours, theirs) = (fields(our), fields(found));
    let only = |all: &BTreeSet<String>, other: &BTreeSet<String>| all.difference(other).next().cloned();
    let name = our.name_any();
    match (only(&ours, &theirs), only(&theirs, &ours)) {
        (Some(field), _) => Some(format!("{name} is older than this plugin: it has no field {field}")),
        (None, Some(field)) => Some(format!("{name} is newer than this plugin, which does not know its field {field}")),
        (None, None) => None,
    }
}

fn fields(crd: &CustomResourceDefinition) -> BTreeSet<String> {
    fn collect(schema: &Value, path: &str, all: &mut BTreeSet<String>) {
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            collect(below, &path, all);
            all.insert(path);
        }
        for below in [&schema["items"], &schema["additionalProperties"]].into_iter().filter(|below| below.is_object()) {
            collect(below, path, all);
        }
    }
    let mut all = BTreeSet::new();
    for version in &crd.spec.versions {
        let schema = version.schema.as_ref().and_then(|schema| serde_json::to_value(&schema.open_api_v3_schema).ok());
        collect(&schema.unwrap_or_default(), "", &mut all);
    }
    all
}

fn operator(seen: &CheckInput) -> CheckResult {
    let subject = "operator";
    let all = match &seen.operators {
        Ok(all) => all,
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
    };
    if all.is_empty() {
        let says = format!("no Deployment has the label {OPERATOR}");
        return CheckResult::failed(subject, says, format!("install the operator: {INSTALL}"));
    }
    let named = |it: &Deployment| format!("Deployment {}/{}", it.namespace().unwrap_or_default(), it.name_any());
    let ready = |it: &Deployment| it.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let wanted = |it: &Deployment| it.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    if let Some(down) = all.iter().find(|it| ready(it) < wanted(it).max(1)) {
        let (ready, wanted, place) = (ready(down), wanted(down), down.namespace().unwrap_or_default());
        let says = format!("{} has {ready} of {wanted} replicas ready", named(down));
        let remedy = match wanted {
            0 => format!("start it: kubectl scale deployment {} -n {place} --replicas=2", down.name_any()),
            _ => format!("see why: kubectl describe pods -n {place} -l {OPERATOR}"),
        };
        return CheckResult::failed(subject, says, remedy);
    }
    // While a changed Deployment is rolled out, an old replica may still be ready.
    if let Some((pod, reason, words)) = seen.pods.iter().flatten().find_map(broken) {
        let place = pod.namespace().unwrap_or_default();
        let says = format!("pod {place}/{} does not run ({reason}){words}", pod.name_any());
        return CheckResult::failed(
            subject,
            says,
            format!("see its log: kubectl logs {} -n {place} --previous", pod.name_any()),
        );
    }
    CheckResult::ok(subject, format!("{} is ready", all.iter().map(named).collect::<Vec<_>>().join(" and ")))
}

/// Returns a pod whose container is not started, with the reason and its last words.
fn broken(pod: &Pod) -> Option<(&Pod, String, String)> {
    let status = pod.status.as_ref()?;
    let mut containers = status.container_statuses.iter().flatten();
    containers.find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason =
            waiting.reason.clone().filter(|reason| reason != "ContainerCreating" && reason != "PodInitializing")?;
        let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref()?.message.as_deref());
        let words = last.or(waiting.message.as_deref()).and_then(|words| words.trim().lines().last());
        Some((pod, reason, words.map(|words| format!(": {words}")).unwrap_or_default()))
    })
}

fn container(operator: &Deployment) -> Option<&Container> {
    let containers = &operator.spec.as_ref()?.template.spec.as_ref()?.containers;
    containers.iter().find(|container| container.name == "operator").or(containers.first())
}

fn lease_name(operator: &Deployment) -> String {
    let args = container(operator).and_then(|container| container.args.clone()).unwrap_or_default();
    let next = args.iter().skip_while(|arg| *arg != "--lease-name").nth(1).map(String::as_str);
    args.iter().find_map(|arg| arg.strip_prefix("--lease-name=")).or(next).unwrap_or(LEASE).to_owned()
}

fn only_operator(seen: &CheckInput) -> Option<&Deployment> {
    match seen.operators.as_deref() {
        Ok([only]) => Some(only),
        _ => None,
    }
}

fn version(seen: &CheckInput) -> CheckResult {
    let subject = "version";
    let Some(operator) = only_operator(seen) else {
        return CheckResult::not_checked(subject, format!("the plugin is {VERSION}; no single operator is known"));
    };
    let image = container(operator).and_then(|container| container.image.clone()).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let tag = name.split('@').next().unwrap_or_default().split_once(':').map(|(_, tag)| tag.trim_start_matches('v'));
    match tag {
        Some(tag) if tag == VERSION => CheckResult::ok(subject, format!("operator and plugin are {VERSION}")),
        Some(tag) if tag.starts_with(|c: char| c.is_ascii_digit()) => CheckResult::failed(
            subject,
            format!("the operator is {tag}, and the plugin is {VERSION}"),
            format!("install the plugin of version {tag}, or upgrade the operator to {VERSION}"),
        ),
        _ => CheckResult::not_checked(subject, format!("the plugin is {VERSION}; the image {image} names no version")),
    }
}

fn lease(seen: &CheckInput) -> CheckResult {
    let subject = "lease";
    let place = only_operator(seen).and_then(ResourceExt::namespace).unwrap_or_default();
    let logs = || format!("see why no replica leads: kubectl logs -n {place} -l {OPERATOR} --tail=20");
    let lease = match &seen.lease {
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
        Ok(None) => return CheckResult::failed(subject, format!("there is no lease in namespace {place}"), logs()),
        Ok(Some(lease)) => lease,
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let (Some(holder), Some(renewed)) = (holder, spec.renew_time) else {
        return CheckResult::failed(subject, format!("no replica holds Lease {place}/{}", lease.name_any()), logs());
    };
    let age = seen.now.duration_since(renewed.0).as_secs();
    let held = format!("{holder} holds Lease {place}/{}, renewed {} ago", lease.name_any(), span(age.max(0)));
    if age > i64::from(spec.lease_duration_seconds.unwrap_or(15)) * STALE {
        return CheckResult::failed(subject, held, logs());
    }
    CheckResult::ok(subject, held)
}

fn own_rights(seen: &CheckInput) -> CheckResult {
    let subject = "your rights";
    match &seen.mine {
        Err(why) => CheckResult::not_checked(subject, why.as_str()),
        Ok(Rights { denied, granted }) if denied.is_empty() => {
            let all = granted.len();
            CheckResult::ok(
                subject,
                format!("all {all} rights of the plugin's commands in namespace {}", seen.namespace),
            )
        }
        Ok(rights) if rights.are_of_a_viewer() => {
            let says =
                format!("you may read in namespace {}; commands that change something need edit", seen.namespace);
            CheckResult::ok(subject, says)
        }
        Ok(Rights { denied, .. }) => {
            let remedy = format!("ask for the role edit in namespace {} (view is enough to read)", seen.namespace);
            CheckResult::failed(subject, format!("you may not {}", listed(denied)), remedy)
        }
    }
}

fn operators_rights(seen: &CheckInput) -> CheckResult {
    let subject = "operator's rights";
    match &seen.operators_rights {
        Err(why) => CheckResult::not_checked(subject, why.as_str()),
        Ok(Rights { denied, granted }) if denied.is_empty() => {
            CheckResult::ok(subject, format!("all {} are granted", granted.len()))
        }
        // An operator for one namespace has no ClusterRole.
        Ok(Rights { denied, .. }) if denied.iter().all(Right::is_of_cluster) => CheckResult::ok(
            subject,
            format!("those in namespace {} are granted; it may not {}", seen.namespace, listed(denied)),
        ),
        Ok(Rights { denied, .. }) => {
            let remedy = format!("apply its rights again: {INSTALL}");
            CheckResult::failed(subject, format!("it may not {}", listed(denied)), remedy)
        }
    }
}

fn listed(rights: &[Right]) -> String {
    let all: Vec<String> = rights.iter().take(10).map(ToString::to_string).collect();
    let more = rights.len().saturating_sub(all.len());
    all.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

fn delivery(seen: &CheckInput) -> CheckResult {
    let subject = "delivery of the agent";
    let nodes = match &seen.nodes {
        Ok(nodes) => nodes,
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
    };
    let operator = only_operator(seen).and_then(container);
    let args = operator.and_then(|container| container.args.as_deref()).unwrap_or_default();
    let env = operator.into_iter().flat_map(|container| container.env.iter().flatten());
    let env = env.into_iter().find(|env| env.name == "AGENT_DELIVERY").and_then(|env| env.value.as_deref());
    let wanted = args.iter().find_map(|arg| arg.strip_prefix("--agent-delivery=")).or(env).unwrap_or("auto");
    let has_volumes = |node: &&Node| {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        info.is_some_and(|info| plan::node_has_image_volumes(&info.kubelet_version, &info.container_runtime_version))
    };
    let without: Vec<&Node> = nodes.iter().filter(|node| !has_volumes(node)).collect();
    let (major, minor) = &seen.server;
    let server = plan::server_has_image_volumes(major, minor);
    match (wanted, without.first()) {
        ("image", Some(node)) => CheckResult::failed(
            subject,
            format!(
                "--agent-delivery=image, and {} of {} nodes have no image volumes, such as {}",
                without.len(),
                nodes.len(),
                node.name_any()
            ),
            "set --agent-delivery=auto, or upgrade the nodes",
        ),
        ("image", None) => CheckResult::ok(subject, "by image volumes, which all nodes have"),
        ("auto", None) if server && !nodes.is_empty() => {
            CheckResult::ok(subject, "by image volumes, which all nodes have")
        }
        _ => CheckResult::ok(subject, "by an init container, which works in any cluster"),
    }
}

fn gpus(seen: &CheckInput) -> CheckResult {
    let subject = "GPUs";
    let nodes = match &seen.nodes {
        Ok(nodes) => nodes,
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
    };
    let mut found: BTreeMap<String, (i64, BTreeSet<String>)> = BTreeMap::new();
    for row in super::gpus::rows(nodes, &[]) {
        let all = found.entry(row.resource).or_default();
        all.0 += row.allocatable;
        all.1.insert(row.node);
    }
    if found.is_empty() {
        let many = format!("none on {} nodes: jobs need gpusPerWorker: 0, or the nodes the device plugin", nodes.len());
        return CheckResult::ok(subject, many);
    }
    let found: Vec<String> =
        found.iter().map(|(gpu, (sum, on))| format!("{sum} {gpu} on {} of {} nodes", on.len(), nodes.len())).collect();
    CheckResult::ok(subject, found.join(", "))
}

fn storage(seen: &CheckInput) -> CheckResult {
    let subject = "storage";
    let classes = match &seen.classes {
        Ok(classes) => classes,
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
    };
    let is_default = |class: &&StorageClass| class.annotations().get(DEFAULT_CLASS).is_some_and(|it| it == "true");
    let Some(class) = classes.iter().find(is_default) else {
        let remedy = match classes.first() {
            Some(class) => format!(
                "name a class in checkpoint.storage.storageClass, or make one the default: kubectl annotate storageclass {} {DEFAULT_CLASS}=true",
                class.name_any()
            ),
            None => "install a volume provisioner, or use checkpoint.storage with pvcName, nfs or a bucket".to_owned(),
        };
        return CheckResult::failed(
            subject,
            format!("none of {} StorageClasses is the default", classes.len()),
            remedy,
        );
    };
    CheckResult::ok(subject, format!("the default StorageClass is {} ({})", class.name_any(), class.provisioner))
}

fn agents(seen: &CheckInput) -> CheckResult {
    let subject = "agents of running jobs";
    let jobs = match &seen.jobs {
        Ok(jobs) => jobs,
        Err(why) => return CheckResult::not_checked(subject, why.as_str()),
    };
    let running: Vec<&TrainingJob> = jobs
        .iter()
        .filter(|job| job.status.as_ref().is_some_and(|status| status.state == Some(State::Running)))
        .collect();
    let silent: Vec<(String, &str)> = running
        .iter()
        .filter_map(|job| {
            let conditions = &job.status.as_ref()?.conditions;
            let condition = lifecycle::condition_is(conditions, ConditionType::AgentReady, false)?;
            Some((job.name_any(), condition.message.as_str()))
        })
        .collect();
    if let Some((name, message)) = silent.first() {
        let says = format!("{} of {} do not answer: {name}: {message}", silent.len(), running.len());
        let remedy = format!(
            "allow the operator's pods to reach monitoring.metricsPort: kubectl get networkpolicies -n {}",
            seen.namespace
        );
        return CheckResult::failed(subject, says, remedy);
    }
    match running.len() {
        0 => CheckResult::not_checked(subject, format!("no job runs in namespace {}", seen.namespace)),
        running => CheckResult::ok(subject, format!("all {running} answer in namespace {}", seen.namespace)),
    }
}

#[cfg(test)]
mod tests;
