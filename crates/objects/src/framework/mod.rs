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

/// Variables by which PyTorch's processes find each other.
const OF_A_GROUP: &str = "RANK,WORLD_SIZE,MASTER_ADDR,MASTER_PORT,PET_MASTER_PORT";
/// Variables that only its launcher reads.
const OF_TORCHRUN: &str = "PET_MASTER_PORT";

/// Variables that no program of the framework expects, separated by commas. The agent knows them, and withholds them
/// from the program. A program that finds `RANK` takes itself for a process of a group, and forms it. Paddle meets at
/// `MASTER_ADDR` instead of where its launcher says.
pub(super) fn withheld(plan: &Plan) -> Option<&'static str> {
    let gang = &plan.gang;
    match gang.rendezvous.framework {
        Framework::Pytorch => None,
        Framework::None if gang.most_workers() <= 1 && !gang.has_roles() => Some(OF_A_GROUP),
        // Programs for Kubeflow's XGBoostJob read what it sets, and programs that mpirun starts may read anything.
        Framework::None | Framework::Xgboost | Framework::Mpi => Some(OF_TORCHRUN),
        Framework::Tensorflow | Framework::Jax | Framework::Paddle | Framework::Mxnet => Some(OF_A_GROUP),
    }
}
