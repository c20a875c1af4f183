//! Requests, limits, GPUs and processes of a worker.

use super::quantity::Amount;
use super::roles::PodInput;
use super::{Refusals, dns_subdomain};
use api::{Framework, ProcsKind, ProcsPerWorker, Resources, TrainingJobSpec};
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};

const DEFAULT_GPU: &str = "nvidia.com/gpu";
/// Maximum number of processes per worker, as in the API.
const MAX_PROCS: u16 = 1024;

/// Resources of a worker.
pub(super) struct Worker {
    pub requirements: ResourceRequirements,
    pub gpus: u16,
    pub procs: u16,
}

pub(super) fn resolve(spec: &TrainingJobSpec, pod: &PodInput<'_>, errors: &mut Refusals) -> Worker {
    let (field, resources) = (&pod.resources.field, &*pod.resources.value);
    let requests = amounts(&format!("{field}.requests"), &resources.requests, errors);
    let limits = amounts(&format!("{field}.limits"), &resources.limits, errors);
    for (name, request) in &requests {
        let Some(limit) = limits.get(name) else { continue };
        if request > limit {
            errors.push(
                format!("{field}.requests.{name}"),
                format!(
                    "{} is more than the limit {}: lower the request or raise {field}.limits.{name}",
                    resources.requests[*name].0, resources.limits[*name].0
                ),
            );
        } else if is_extended(name) && request != limit {
            errors.push(
                format!("{field}.requests.{name}"),
                "differs from its limit: a device is given whole, write the same number in both",
            );
        }
    }

    let mut requirements = Requirements { requests: resources.requests.clone(), limits: resources.limits.clone() };
    requirements.mirror_devices();
    gpus(pod, &requests, &limits, &mut requirements, errors);
    if pod.rdma {
        rdma(spec, &mut requirements, errors);
    }
    Worker {
        gpus: pod.gpus.value,
        procs: procs(spec, pod, limits.get("cpu").copied(), errors),
        requirements: requirements.into(),
    }
}

/// Parses a list of quantities.
fn amounts<'a>(
    field: &str,
    quantities: &'a BTreeMap<String, Quantity>,
    errors: &mut Refusals,
) -> BTreeMap<&'a str, Amount> {
    let mut amounts = BTreeMap::new();
    for (name, quantity) in quantities {
        if !name.contains('/') && !is_native(name) {
            errors.push(
                format!("{field}.{name}"),
                "is not a resource: write cpu, memory, ephemeral-storage, hugepages-SIZE, or a device with its vendor, \
                 such as nvidia.com/gpu",
            );
            continue;
        }
        match Amount::parse(&quantity.0) {
            None => errors.push(
                format!("{field}.{name}"),
                format!("{:?} is not a quantity; write for example 500m, 4 or 16Gi", quantity.0),
            ),
            Some(amount) if amount.is_negative() => {
                errors.push(format!("{field}.{name}"), format!("{} is below zero", quantity.0));
            }
            Some(amount) if is_extended(name) && !amount.is_whole() => {
                errors.push(format!("{field}.{name}"), format!("{} is not a whole number of devices", quantity.0));
            }
            Some(amount) => {
                amounts.insert(name.as_str(), amount);
            }
        }
    }
    amounts
}

/// Requests the GPUs, and checks their number against `gpusPerWorker`.
fn gpus(
    pod: &PodInput<'_>,
    requests: &BTreeMap<&str, Amount>,
    limits: &BTreeMap<&str, Amount>,
    requirements: &mut Requirements,
    errors: &mut Refusals,
) {
    let mut named: BTreeMap<&str, Amount> = requests.clone();
    named.extend(limits);
    named.retain(|name, _| is_gpu(name));
    if named.is_empty() {
        if pod.gpus.value > 0 && !requirements.names(is_gpu) {
            requirements.add(DEFAULT_GPU, pod.gpus.value);
        }
        return;
    }
    let sum: i128 = named.values().map(|amount| amount.floor()).sum();
    if sum != i128::from(pod.gpus.value) {
        let names: Vec<&str> = named.keys().copied().collect();
        errors.push(
            &pod.gpus.field,
            format!(
                "is {} and {} asks for {sum} of {}: write the same number in both",
                pod.gpus.value,
                pod.resources.field,
                names.join(" and ")
            ),
        );
    }
}

fn rdma(spec: &TrainingJobSpec, requirements: &mut Requirements, errors: &mut Refusals) {
    let field = "spec.networking.rdmaResource";
    let example = "for example rdma/rdma_shared_device_a";
    match &spec.networking.rdma_resource {
        None => {
            errors.push(field, format!("is needed with rdmaEnabled: name the resource of the RDMA devices, {example}"));
        }
        Some(name) if !is_extended(name) || !name.split('/').next().is_some_and(dns_subdomain) => {
            errors.push(field, format!("{name:?} is not the name of an extended resource, {example}"));
        }
        Some(name) => {
            if !requirements.names(|other| other == name) {
                requirements.add(name, 1);
            }
        }
    }
}

/// Resolves the processes per worker to a number, which WORLD_SIZE needs.
fn procs(spec: &TrainingJobSpec, pod: &PodInput<'_>, cpu_limit: Option<Amount>, errors: &mut Refusals) -> u16 {
    const FIELD: &str = "spec.procsPerWorker";
    let gpus = pod.gpus.value;
    let has_launcher = matches!(spec.framework(), Framework::Pytorch | Framework::Paddle | Framework::Mpi);
    let procs = match pod.procs {
        ProcsPerWorker::Number(number) => number,
        // Only torchrun, mpirun and Paddle's launcher start a process per GPU; the others drive all of a worker's GPUs from one process.
        ProcsPerWorker::Kind(ProcsKind::Auto) if has_launcher => gpus.max(1),
        ProcsPerWorker::Kind(ProcsKind::Auto) => 1,
        ProcsPerWorker::Kind(ProcsKind::Gpu) => {
            if gpus == 0 {
                errors.push(
                    FIELD,
                    "is gpu and spec.gpusPerWorker is 0: give the workers GPUs, or write auto or a number",
                );
            }
            gpus.max(1)
        }
        ProcsPerWorker::Kind(ProcsKind::Cpu) => match cpu_limit {
            Some(limit) => match u16::try_from(limit.floor()) {
                Ok(cpus) if cpus <= MAX_PROCS => cpus.max(1),
                _ => {
                    errors.push(FIELD, format!("is cpu and the CPU limit more than {MAX_PROCS}: write a number"));
                    1
                }
            },
            None if pod.resources.value.limits.contains_key("cpu") => 1, // refused as a quantity
            None => {
                errors.push(
                    "spec.resources.limits.cpu",
                    "is needed with procsPerWorker: cpu, which takes its number from it",
                );
                1
            }
        },
    };
    if procs > 1 && !has_launcher && spec.framework() != Framework::None {
        let framework = spec.framework().as_str();
        errors.push(
            FIELD,
            format!(
                "makes {procs} processes, and a {framework} worker is one process that drives all its GPUs: leave it \
                 out, or raise spec.numWorkers"
            ),
        );
    }
    procs
}

/// The workers' resources for pods with a different number of GPUs.
pub(super) fn without_gpus(of_workers: &Resources, gpus: u16) -> Resources {
    let mut resources = of_workers.clone();
    let names = resources.limits.keys().chain(resources.requests.keys()).filter(|name| is_gpu(name));
    let names: BTreeSet<String> = names.cloned().collect();
    resources.requests.retain(|name, _| !is_gpu(name));
    resources.limits.retain(|name, _| !is_gpu(name));
    if let (Some(name), 1, 1..) = (names.first(), names.len(), gpus) {
        resources.limits.insert(name.clone(), Quantity(gpus.to_string()));
    }
    resources
}

/// Whether a resource is defined by Kubernetes itself.
fn is_native(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// Whether a resource is a plugin's device. Its quantity is a whole number, and its request equals its limit.
pub fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Whether a resource counts GPUs, by the names of the vendors' device plugins.
pub fn is_gpu(name: &str) -> bool {
    let Some((domain, name)) = name.split_once('/') else { return false };
    match domain {
        "gpu.intel.com" => matches!(name, "i915" | "xe"),
        "habana.ai" => name == "gaudi",
        _ => matches!(name, "gpu" | "gpu.shared") || name.starts_with("mig-"),
    }
}

struct Requirements {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

impl Requirements {
    fn names(&self, is: impl Fn(&str) -> bool) -> bool {
        self.requests.keys().chain(self.limits.keys()).any(|name| is(name))
    }

    fn add(&mut self, name: &str, count: u16) {
        self.requests.insert(name.to_owned(), Quantity(count.to_string()));
        self.limits.insert(name.to_owned(), Quantity(count.to_string()));
    }

    /// Copies a device from one list to the other: Kubernetes requires its limit, and quotas count its request.
    fn mirror_devices(&mut self) {
        let (requests, limits) = (self.requests.clone(), self.limits.clone());
        for (name, quantity) in requests.into_iter().filter(|(name, _)| is_extended(name)) {
            self.limits.entry(name).or_insert(quantity);
        }
        for (name, quantity) in limits.into_iter().filter(|(name, _)| is_extended(name)) {
            self.requests.entry(name).or_insert(quantity);
        }
    }
}

impl From<Requirements> for ResourceRequirements {
    fn from(it: Requirements) -> Self {
        let some = |map: BTreeMap<_, _>| (!map.is_empty()).then_some(map);
        Self { requests: some(it.requests), limits: some(it.limits), claims: None }
    }
}
