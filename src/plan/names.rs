//! Names of a TrainingJob's objects.

use super::Refusals;

/// Longest `<name>` plus digits of the last worker's index: a hostname `<name>-training-<index>` has at most 63.
const NAME_AND_INDEX: usize = 63 - "-training-".len();

/// The Indexed Job.
#[must_use]
pub fn job_name(name: &str) -> String {
    format!("{name}-training")
}

/// The headless Service, also the workers' subdomain.
#[must_use]
pub fn service_name(name: &str) -> String {
    format!("{name}-headless")
}

/// The ConfigMap.
#[must_use]
pub fn config_name(name: &str) -> String {
    format!("{name}-config")
}

/// The claim for checkpoints, where the spec names none.
#[must_use]
pub fn claim_name(name: &str) -> String {
    format!("{name}-checkpoints")
}

/// The Secret with the key of the gang. The operator may not look whose one of that name is, so that a part of the UID is in
/// it, which no predecessor of the same name has.
#[must_use]
pub fn gang_key_name(name: &str, uid: &str) -> String {
    format!("{name}-gang-{}", part_of(uid))
}

/// The PodGroup. A predecessor's of the same name may stay until the last of its pods is gone, and nobody is to wait for that.
/// It is short, for it is also the value of a label.
#[must_use]
pub fn pod_group_name(name: &str, uid: &str) -> String {
    format!("{name}-{}", part_of(uid))
}

fn part_of(uid: &str) -> String {
    uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect::<String>().to_ascii_lowercase()
}

/// The Job that looks after the checkpoints while no worker runs.
#[must_use]
pub fn upkeep_name(name: &str) -> String {
    format!("{name}-upkeep")
}

/// The Deployment of a TensorBoard, and its Service.
#[must_use]
pub fn tensorboard_name(name: &str) -> String {
    format!("{name}-tensorboard")
}

/// DNS name of a worker within its namespace. Short on purpose: the resolver's search path leads to the Service.
#[must_use]
pub fn worker_host(name: &str, index: i32) -> String {
    format!("{}-{index}.{}", job_name(name), service_name(name))
}

/// Whether `text` can be the name of a Service or a port's hostname (RFC 1035 label).
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

pub(super) fn check(name: &str, num_workers: i32, no: &mut Refusals) {
    if !dns_label(name) {
        no.push(
            "metadata.name",
            format!("{name:?} can't name a Service: use lower-case letters, digits and -, beginning with a letter"),
        );
    }
    let digits = (num_workers - 1).max(0).to_string().len();
    if name.len() + digits > NAME_AND_INDEX {
        no.push(
            "metadata.name",
            format!(
                "has {} characters; with {num_workers} workers at most {} fit into their hostnames",
                name.len(),
                NAME_AND_INDEX - digits
            ),
        );
    }
}
