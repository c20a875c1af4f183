//! What runs in a worker: framework, resources and processes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// Framework of the program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// torchrun, with `MASTER_ADDR` and `PET_*`.
    Pytorch,
    /// `TF_CONFIG`: equal workers, or a chief with workers and parameter servers.
    Tensorflow,
    /// `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`.
    Jax,
    /// `DMLC_TRACKER_URI` and the other values that a program passes to `xgboost.collective`.
    Xgboost,
    /// `PADDLE_*`, read by `paddle.distributed.launch`.
    Paddle,
    /// `DMLC_*` of workers, servers and a scheduler. The operator adds a scheduler unless a role has that name.
    Mxnet,
    /// `mpirun` on the first worker, or in the role launcher. The agents start its processes on all workers.
    Mpi,
    /// Only the variables that every gang has, and any roles.
    None,
}

impl Framework {
    /// The framework as written in the spec.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pytorch => "pytorch",
            Self::Tensorflow => "tensorflow",
            Self::Jax => "jax",
            Self::Xgboost => "xgboost",
            Self::Paddle => "paddle",
            Self::Mxnet => "mxnet",
            Self::Mpi => "mpi",
            Self::None => "none",
        }
    }
}

/// Resource requests and limits, as in a container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Minimum resources reserved for each pod, at most 64 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub requests: BTreeMap<String, Quantity>,
    /// Maximum resources that each pod may use, at most 64 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub limits: BTreeMap<String, Quantity>,
}

impl Resources {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// Processes per worker (torchrun's `nproc_per_node`), before the crate `plan` resolves them to a number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum ProcsPerWorker {
    /// A fixed number.
    Number(u16),
    /// A number derived from the worker's resources.
    Kind(ProcsKind),
}

/// Resource from which the number of processes is derived.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProcsKind {
    /// One process per GPU (at least 1) if the framework has a launcher for it, else 1.
    Auto,
    /// The CPU limit.
    Cpu,
    /// The number of GPUs.
    Gpu,
}

impl JsonSchema for ProcsPerWorker {
    fn schema_name() -> Cow<'static, str> {
        "ProcsPerWorker".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "maxLength": 8,
        })
    }
}
