//! MPI: what the implementations of `mpirun` read in place of their options. One member runs it. Its `rsh` is the
//! agent, which has the daemons started by the other members' agents.

use crate::environment::{POD_INTERFACE, field, var};
use k8s_openapi::api::core::v1::EnvVar;
use plan::Plan;
use plan::storage::paths;
use protocol::gang::{HOSTFILE, HYDRA_HOSTS, REMOTE, RSH};

pub(super) fn env(plan: &Plan) -> Vec<EnvVar> {
    let file = |name: &str| format!("{}/{REMOTE}/{name}", paths::STATE);
    let (rsh, hosts, hydra) = (file(RSH), file(HOSTFILE), file(HYDRA_HOSTS));
    let slots = plan.gang.workers().procs.to_string();
    let mut env = vec![
        // The address at which serving members listen.
        field("POD_IP", "status.podIP"),
        // Open MPI 4.
        var("OMPI_MCA_plm_rsh_agent", rsh.clone()),
        var("OMPI_MCA_orte_default_hostfile", hosts.clone()),
        var("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
        // Pods share the cores of their node, and each would bind its first process to the first core.
        var("OMPI_MCA_hwloc_base_binding_policy", "none"),
        // Open MPI 5.
        var("PRTE_MCA_plm_ssh_agent", rsh.clone()),
        var("PRTE_MCA_prte_default_hostfile", hosts),
        var("PRTE_MCA_prte_keep_fqdn_hostnames", "true"),
        var("PRTE_MCA_hwloc_default_binding_policy", "none"),
        // MPICH and its derivatives.
        var("HYDRA_LAUNCHER", "ssh"),
        var("HYDRA_LAUNCHER_EXEC", rsh.clone()),
        var("HYDRA_HOST_FILE", hydra.clone()),
        // The daemons call back. Otherwise they get the pod's own name, by which they don't find it.
        var("HYDRA_IFACE", POD_INTERFACE),
        // Intel MPI.
        var("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        var("I_MPI_HYDRA_BOOTSTRAP_EXEC", rsh),
        var("I_MPI_HYDRA_HOST_FILE", hydra),
        var("I_MPI_HYDRA_IFACE", POD_INTERFACE),
        var("I_MPI_PERHOST", slots),
    ];
    // A container's root is not the machine's.
    let roots = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    env.extend(
        roots.iter().chain(&["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"]).map(|name| var(name, "1")),
    );
    env
}
