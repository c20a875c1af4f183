//! Environment variables reserved for the gang.

use super::{Refusals, Role, names};
use api::{Framework, RESERVED_ENV, RESERVED_ENV_PREFIXES};
use k8s_openapi::api::core::v1::EnvVar;
use protocol::role::RoleName;

/// Maximum bytes in Linux of one argument, or of one variable with its name and the terminating zero (`MAX_ARG_STRLEN`).
const MAX_VARIABLE: usize = 128 * 1024;

/// Whether a variable is reserved for the operator and can't be set by users.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED_ENV.contains(&name) || RESERVED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Rejects reserved variables. `path` is the path of the list, for example `spec.env`.
pub(super) fn check(path: &str, env: &[EnvVar], errors: &mut Refusals) {
    for (index, variable) in env.iter().enumerate() {
        if !is_reserved(&variable.name) {
            continue;
        }
        let remedy = if variable.name.starts_with("PET_") {
            "give torchrun the option on its command line"
        } else {
            "remove it, or copy it to a name of your own with $(...)"
        };
        errors.push(
            format!("{path}[{index}].name"),
            format!("{} is set by the operator for the whole gang: {remedy}", variable.name),
        );
    }
}

/// Rejects a gang whose list of hosts exceeds the kernel's limit for a variable.
pub(super) fn check_hosts(framework: Framework, name: &str, most_workers: u16, roles: &[Role], errors: &mut Refusals) {
    let variable = match framework {
        Framework::Tensorflow => "TF_CONFIG",
        Framework::None if roles.len() > 1 => "TRAININGJOB_CLUSTER",
        _ => return,
    };
    let of = |role: &Role| (role.name, role.pods(most_workers));
    let bytes = hosts_bytes(name, roles.iter().map(of));
    if bytes > MAX_VARIABLE {
        let field = if roles.len() > 1 { "spec.roles" } else { "spec.numWorkers" };
        errors.push(
            field,
            format!("makes a {variable} of {bytes} bytes and Linux passes on at most {MAX_VARIABLE}: use fewer workers or a shorter name"),
        );
    }
}

/// Bytes of TF_CONFIG as the container runtime passes it to the agent: an argument with the name and the terminating zero.
/// It counts all roles, although a pod may receive fewer.
pub fn hosts_bytes(name: &str, roles: impl Iterator<Item = (RoleName, u16)>) -> usize {
    let of_role = |(role, replicas): (RoleName, u16)| {
        let hosts = (0..u32::from(replicas)).map(|i| names::host(name, role, i).len() + r#"":$(MASTER_PORT)","#.len());
        let task = role.as_str().len() + replicas.saturating_sub(1).to_string().len();
        (hosts.sum::<usize>() - 1 + role.as_str().len() + r#""":[],"#.len(), task)
    };
    let around = r#"--env=TF_CONFIG={"cluster":{},"task":{"type":"","index":}}"#.len() + 1;
    let (hosts, task) =
        roles.map(of_role).fold((0, 0), |(all, longest), (hosts, task)| (all + hosts, longest.max(task)));
    around + hosts - 1 + task
}
