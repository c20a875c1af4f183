//! Network settings of the workers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Network settings of the workers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// Name of the collective communication backend that the program should use.
    /// It is passed as `NCCL_BACKEND` and in the file `backend` of the program's configuration.
    /// With paddle, gloo is also passed as `PADDLE_DISTRI_BACKEND`.
    /// With jax without GPUs, gloo or mpi is also passed as `JAX_CPU_COLLECTIVES_IMPLEMENTATION`.
    /// No other framework reads a variable for it: the program passes it on, for example to `init_process_group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Backend")]
    pub backend: Option<Backend>,
    /// Port of the rendezvous at worker 0, 1024 to 65534.
    /// Attempts alternate between it and the next port, so that stragglers of the previous attempt can't join.
    /// The workers' agents use another nearby port, normally the second one after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1024, max = 65534))]
    pub master_port: Option<u16>,
    /// Whether RDMA is used.
    /// If true, the workers request `rdmaResource`, get the capability IPC_LOCK, and have InfiniBand enabled for NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_enabled: Option<bool>,
    /// Extended resource of one RDMA device, for example `rdma/rdma_shared_device_a` or `vpc.amazonaws.com/efa`.
    /// Required with `rdmaEnabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub rdma_resource: Option<String>,
    /// Whether a NetworkPolicy isolates the job's pods.
    /// The pods then accept connections from each other on every port, and from elsewhere only on `monitoring.metricsPort`.
    /// The policy takes effect if the cluster's network plugin enforces NetworkPolicies.
    /// None is created for pods with `hostNetwork`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<bool>,
    /// Network interface of the workers, for example eth0, passed as `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`.
    /// Default: chosen by the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub interface: Option<String>,
    /// Workers that have a host name.
    /// `FirstWorker` suffices if programs meet at worker 0 and exchange addresses there, and saves one API write per pod change.
    /// It is not allowed with `roles`, tensorflow, mxnet or mpi.
    /// Default: FirstWorker with pytorch, jax, xgboost and paddle.
    /// AllWorkers applies to the other frameworks and with `roles`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HostNames")]
    pub host_names: Option<HostNames>,
}

/// Workers that have a host name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNames {
    /// Each pod of the gang.
    AllWorkers,
    /// Worker 0 only.
    FirstWorker,
}

/// Collective communication backends.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NVIDIA's NCCL, for GPUs.
    Nccl,
    /// Gloo, for CPUs.
    Gloo,
    /// The program's own MPI.
    Mpi,
}
