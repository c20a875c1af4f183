//! Environment variables that belong to the gang.

use super::{Refusals, names};
use crate::api::{RESERVED_ENV, RESERVED_ENV_PREFIXES};
use k8s_openapi::api::core::v1::EnvVar;

/// Bytes that Linux allows for one argument, or one variable with its name, with the closing zero (`MAX_ARG_STRLEN`).
const MAX_VARIABLE: usize = 128 * 1024;

/// Whether a variable belongs to the gang and can't be set by people.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED_ENV.contains(&name) || RESERVED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `path` is the list's, for example `spec.env`.
pub(super) fn check(path: &str, env: &[EnvVar], no: &mut Refusals) {
    for (index, variable) in env.iter().enumerate() {
        if !is_reserved(&variable.name) {
            continue;
        }
        let remedy = if variable.name.starts_with("PET_") {
            "give torchrun the option on its command line"
        } else {
            "remove it, or copy it to a name of your own with $(...)"
        };
        no.push(
            format!("{path}[{index}].name"),
            format!("{} is set by the operator for the whole gang: {remedy}", variable.name),
        );
    }
}

/// Refuses a gang whose TF_CONFIG the kernel would not pass on.
pub(super) fn check_tf_config(name: &str, num_workers: i32, no: &mut Refusals) {
    let bytes = tf_config_bytes(name, num_workers);
    if bytes > MAX_VARIABLE {
        no.push(
            "spec.numWorkers",
            format!("makes a TF_CONFIG of {bytes} bytes and Linux passes on at most {MAX_VARIABLE}: use fewer workers or a shorter name"),
        );
    }
}

/// Bytes of TF_CONFIG as the container runtime passes it to the agent: an argument with the name and the closing zero.
pub(crate) fn tf_config_bytes(name: &str, num_workers: i32) -> usize {
    let around = r#"--env=TF_CONFIG={"cluster":{"worker":[]},"task":{"type":"worker","index":}}"#.len() + 1;
    let index = (num_workers - 1).max(0).to_string().len();
    let workers: usize =
        (0..num_workers).map(|i| names::worker_host(name, i).len() + r#"":$(MASTER_PORT)","#.len()).sum();
    around + index + workers - 1
}
