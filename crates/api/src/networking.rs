//! How workers talk to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the workers talk to each other.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// Name of the collective communication backend that the program should use, passed to it as `NCCL_BACKEND` and in the file `backend` of its configuration. The operator sets nothing else by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Backend")]
    pub backend: Option<Backend>,
    /// Port of the rendezvous at worker 0. Attempts alternate between it and the next one, so that no straggler of the last attempt joins; the workers' agents talk to each other at the one after those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65534))]
    pub master_port: Option<u16>,
    /// Uses RDMA: requests `rdmaResource`, adds the capability IPC_LOCK and enables InfiniBand for NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_enabled: Option<bool>,
    /// Extended resource of one RDMA device, for example `rdma/rdma_shared_device_a` or `vpc.amazonaws.com/efa`; required with `rdmaEnabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub rdma_resource: Option<String>,
    /// Isolates the job's pods by a NetworkPolicy: they accept connections from each other on every port, and from elsewhere only on `monitoring.metricsPort`. Takes effect where the cluster's network plugin enforces NetworkPolicies; none is created for pods with `hostNetwork`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<bool>,
    /// Network interface of the workers, for example eth0: `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`. Default: chosen by the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub interface: Option<String>,
    /// Which workers have a host name. `FirstWorker` is enough where programs meet at worker 0 and tell each other their addresses, and spares the cluster a write for each pod that comes or goes. Default: FirstWorker with pytorch, jax, xgboost and paddle, AllWorkers otherwise and with roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HostNames")]
    pub host_names: Option<HostNames>,
}

/// Who has a host name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNames {
    /// Each pod of the gang.
    AllWorkers,
    /// Worker 0 alone.
    FirstWorker,
}

/// Collective communication backends.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NVIDIA's, for GPUs.
    Nccl,
    /// For CPUs.
    Gloo,
    /// The program's own MPI.
    Mpi,
}
