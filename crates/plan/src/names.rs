//! Names of a TrainingJob's objects.

use super::Refusals;
use protocol::role::RoleName;

/// Maximum length of a pod's host name, `<job>-<index>`.
const HOST: usize = 63;

/// The Indexed Job of the workers.
#[must_use]
pub fn job_name(name: &str) -> String {
    role_job_name(name, RoleName::WORKER)
}

/// The Indexed Job of a role.
#[must_use]
pub fn role_job_name(name: &str, role: RoleName) -> String {
    if role.is_worker() { format!("{name}-training") } else { format!("{name}-{role}") }
}

/// The headless Service, which is also the workers' subdomain.
#[must_use]
pub fn service_name(name: &str) -> String {
    format!("{name}-headless")
}

/// The ConfigMap.
#[must_use]
pub fn config_name(name: &str) -> String {
    format!("{name}-config")
}

/// A ConfigMap with a part of the code's archive. The user creates it, and not the operator.
#[must_use]
pub fn code_name(name: &str, part: usize) -> String {
    format!("{name}-code-{part}")
}

/// The claim for checkpoints, if the spec names none.
#[must_use]
pub fn claim_name(name: &str) -> String {
    format!("{name}-checkpoints")
}

/// The Secret with the job's keys. The operator has no permission to read the owner of an existing Secret. The name
/// therefore contains a part of the UID, which no earlier job of the same name has.
#[must_use]
pub fn keys_name(name: &str, uid: &str) -> String {
    format!("{name}-keys-{}", part_of(uid))
}

/// The NetworkPolicy of the pods. The operator has no permission to read the owner of an existing one, see [`keys_name`].
#[must_use]
pub fn network_policy_name(name: &str, uid: &str) -> String {
    format!("{name}-isolation-{}", part_of(uid))
}

/// The PodGroup. The UID makes it unique, because a PodGroup of an earlier job of the same name may exist until its last
/// pod is gone. The name is short, because it is also the value of a label.
#[must_use]
pub fn pod_group_name(name: &str, uid: &str) -> String {
    format!("{name}-{}", part_of(uid))
}

/// The Workload of a gang with several roles in a Kueue queue.
#[must_use]
pub fn workload_name(name: &str, uid: &str) -> String {
    pod_group_name(name, uid)
}

fn part_of(uid: &str) -> String {
    uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect::<String>().to_ascii_lowercase()
}

/// The Job that manages checkpoints while no worker runs.
#[must_use]
pub fn upkeep_name(name: &str) -> String {
    format!("{name}-upkeep")
}

/// The Deployment of a TensorBoard, and its Service.
#[must_use]
pub fn tensorboard_name(name: &str) -> String {
    format!("{name}-tensorboard")
}

/// DNS name of a worker within its namespace. It is short because the resolver's search path leads to the Service.
#[must_use]
pub fn worker_host(name: &str, index: u32) -> String {
    host(name, RoleName::WORKER, index)
}

/// DNS name of a role's pod within its namespace.
#[must_use]
pub fn host(name: &str, role: RoleName, index: u32) -> String {
    format!("{}-{index}.{}", role_job_name(name, role), service_name(name))
}

/// Whether `text` can be the name of a Service or a pod's host name (RFC 1035 label).
#[must_use]
pub fn dns_label(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Whether `text` can be the name of most objects (RFC 1123 subdomain).
#[must_use]
pub fn dns_subdomain(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|label| {
            label.starts_with(alphanumeric)
                && label.ends_with(alphanumeric)
                && label.chars().all(|c| alphanumeric(c) || c == '-')
        })
}

pub(super) fn check(name: &str, num_workers: u16, errors: &mut Refusals) {
    if !dns_label(name) {
        errors.push(
            "metadata.name",
            format!("{name:?} can't name a Service: use lower-case letters, digits and -, beginning with a letter"),
        );
    }
    check_host(name, RoleName::WORKER, num_workers, errors);
}

/// Rejects a role if the host name of its last pod is too long.
pub(super) fn check_host(name: &str, role: RoleName, replicas: u16, errors: &mut Refusals) {
    let more = role_job_name("", role).len() + 1 + replicas.saturating_sub(1).to_string().len();
    if name.len() + more > HOST {
        let pods = if role.is_worker() { "workers".to_owned() } else { format!("pods of role {role}") };
        errors.push(
            "metadata.name",
            format!(
                "has {} characters; with {replicas} {pods} at most {} fit into their hostnames",
                name.len(),
                HOST - more
            ),
        );
    }
}
