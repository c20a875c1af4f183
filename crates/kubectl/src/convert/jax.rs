//! Kubeflow's JAXJob.

use super::fields::{ConvertError, Fields};
use super::kubeflow::{self, Kind};
use super::{converted::ConvertedJob, gang};

const KIND: Kind = Kind { roles: "jaxReplicaSpecs", container: "jax", port: "jaxjob-port", restart: "Never" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    gang::framework(ours, "jax");
    // The names that its programs use.
    for (name, value) in [
        ("COORDINATOR_ADDRESS", "$(MASTER_ADDR)"),
        ("COORDINATOR_PORT", "$(MASTER_PORT)"),
        ("NUM_PROCESSES", "$(JAX_NUM_PROCESSES)"),
        ("PROCESS_ID", "$(JAX_PROCESS_ID)"),
    ] {
        ours.add_env(name, value);
    }
    kubeflow::policy(ours, spec, &roles)
}
