//! What each framework expects in the environment, one small file each.

mod jax;
mod mpi;
mod mxnet;
mod none;
mod paddle;
mod pytorch;
mod tensorflow;
mod xgboost;

use api::Framework;
use k8s_openapi::api::core::v1::EnvVar;
use plan::{Plan, Role};

/// The framework's own variables; they may refer to the container's.
pub(super) fn env(plan: &Plan, role: &Role) -> Vec<EnvVar> {
    match plan.gang.rendezvous.framework {
        Framework::Pytorch => pytorch::env(plan, role),
        Framework::Tensorflow => tensorflow::env(plan, role),
        Framework::Jax => jax::env(plan),
        Framework::Xgboost => xgboost::env(plan),
        Framework::Paddle => paddle::env(plan, role),
        Framework::Mxnet => mxnet::env(plan, role),
        Framework::Mpi => mpi::env(plan),
        Framework::None => none::env(plan),
    }
}
