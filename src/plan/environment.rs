//! Environment variables that belong to the gang.

use super::{Refusals, names};
use k8s_openapi::api::core::v1::EnvVar;

/// What a worker learns of its gang and of itself: with another value there the gang would wait for itself for ever.
const RESERVED: [&str; 21] = [
    "ATTEMPT",
    "CHECKPOINT_DIR",
    "GPUS_PER_WORKER",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_NAME",
    "NODE_RANK",
    "NPROC_PER_NODE",
    "NUM_WORKERS",
    "POD_NAME",
    "POD_NAMESPACE",
    "RANK",
    "RESUME_FROM_CHECKPOINT",
    "TF_CONFIG",
    "TRAINING_JOB_NAME",
    "WORLD_SIZE",
];
/// Options of torchrun, and what the agent may come to need.
const RESERVED_PREFIXES: [&str; 2] = ["PET_", "TRAININGJOB_"];

/// Bytes that Linux allows for one variable with its name and the closing zero (`MAX_ARG_STRLEN`).
const MAX_VARIABLE: usize = 128 * 1024;

/// Whether a variable belongs to the gang and can't be set by people.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
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

/// Bytes of TF_CONFIG as the container runtime passes it to the agent, with the name and the closing zero.
pub(crate) fn tf_config_bytes(name: &str, num_workers: i32) -> usize {
    let around = r#"TF_CONFIG={"cluster":{"worker":[]},"task":{"type":"worker","index":}}"#.len() + 1;
    let index = (num_workers - 1).max(0).to_string().len();
    let workers: usize =
        (0..num_workers).map(|i| names::worker_host(name, i).len() + r#"":$(MASTER_PORT)","#.len()).sum();
    around + index + workers - 1
}
