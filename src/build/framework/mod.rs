//! What each framework expects in the environment, one small file each.

mod jax;
mod pytorch;
mod tensorflow;

use crate::api::Framework;
use crate::plan::{Plan, Role};
use k8s_openapi::api::core::v1::EnvVar;

/// The framework's own variables; they may refer to the container's.
pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    match plan.gang.rendezvous.framework {
        Framework::Pytorch => pytorch::env(plan, role),
        Framework::Tensorflow => tensorflow::env(plan),
        Framework::Jax => jax::env(plan),
    }
}

/// As it stands in the spec.
pub(super) fn name(framework: Framework) -> &'static str {
    match framework {
        Framework::Pytorch => "pytorch",
        Framework::Tensorflow => "tensorflow",
        Framework::Jax => "jax",
    }
}
