//! How workers talk to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the workers talk to each other.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// Collective communication backend.
    #[serde(default)]
    pub backend: Backend,
    /// Port of the rendezvous at worker 0. Attempts alternate between it and the next one, so that no straggler of the last attempt joins.
    #[serde(default = "master_port")]
    #[schemars(range(min = 1024, max = 65534))]
    pub master_port: i32,
    /// Uses RDMA: requests `rdmaResource`, adds the capability IPC_LOCK and enables InfiniBand for NCCL.
    #[serde(default)]
    pub rdma_enabled: bool,
    /// Extended resource of one RDMA device, for example `rdma/rdma_shared_device_a` or `vpc.amazonaws.com/efa`; required with `rdmaEnabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub rdma_resource: Option<String>,
    /// Network interface of the workers, for example eth0: `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`. Default: chosen by the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub interface: Option<String>,
}

impl Default for Networking {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            master_port: master_port(),
            rdma_enabled: false,
            rdma_resource: None,
            interface: None,
        }
    }
}

/// Collective communication backends.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NVIDIA's, for GPUs.
    #[default]
    Nccl,
    /// For CPUs.
    Gloo,
    /// The program's own MPI.
    Mpi,
}

fn master_port() -> i32 {
    29500
}
