//! What runs in a worker.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// Framework of the program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// torchrun; `MASTER_ADDR`, `PET_*`.
    Pytorch,
    /// `TF_CONFIG`: workers that are all equal, or a chief with workers and parameter servers.
    Tensorflow,
    /// `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`.
    Jax,
    /// `DMLC_TRACKER_URI` and what else a program hands to `xgboost.collective`.
    Xgboost,
    /// `PADDLE_*`, which `paddle.distributed.launch` reads.
    Paddle,
    /// `DMLC_*` of workers, servers and a scheduler, which is added if no role is it.
    Mxnet,
    /// `mpirun` on the first worker, or in the role launcher, starts its processes on all workers, by their agents.
    Mpi,
    /// Nothing but what every gang has; any roles.
    None,
}

impl Framework {
    /// As it stands in the spec.
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

/// Requests and limits, as in a container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What each worker is given at least.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub requests: BTreeMap<String, Quantity>,
    /// What each worker may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub limits: BTreeMap<String, Quantity>,
}

impl Resources {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// Processes per worker (torchrun's `nproc_per_node`), before [`plan`] resolves it to a number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum ProcsPerWorker {
    /// So many.
    Number(u16),
    /// By what the worker has.
    Kind(ProcsKind),
}

/// How the number of processes follows from the worker.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProcsKind {
    /// The GPUs if there are any, else 1.
    Auto,
    /// The CPU limit.
    Cpu,
    /// The GPUs.
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
