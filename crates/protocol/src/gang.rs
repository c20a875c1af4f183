//! Configuration of a gang's agents, and the status that their leader reports.

use super::attempt::{AttemptEnd, RestartHistory};
use super::failure_rules::FailureRule;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the file with a [`GangSetup`], and its key in the job's ConfigMap.
pub const SETUP_FILE: &str = "gang.json";
/// Key of the Secret that holds the gang's key, which is used as plain text.
pub const KEY_FILE: &str = "key";
/// Variable with the only address on which an agent listens. Without it the agent listens on all addresses.
pub const LISTEN_ADDRESS: &str = "TRAININGJOB_LISTEN_ADDRESS";
/// Folder with the files for `mpirun`, within the agent's state folder.
pub const REMOTE: &str = "remote";
/// Name in [`REMOTE`] of the remote shell for `mpirun`. It is the agent, which recognizes itself by this name.
pub const RSH: &str = "rsh";
/// Name in [`REMOTE`] of the list of workers in Open MPI's format.
pub const HOSTFILE: &str = "hostfile";
/// Name in [`REMOTE`] of the list of workers in the format of MPICH and Intel MPI.
pub const HYDRA_HOSTS: &str = "hosts";
/// Exit code of a container whose first process was killed (SIGKILL). Its node restarts it in its pod.
pub const KILLED: i32 = 137;
/// Maximum number of ended attempts in a report.
pub const MAX_RESTARTS: usize = 10;
/// Maximum number of ended attempts in an agent's termination message, which has little room.
pub const LAST_RESTARTS: usize = 3;

/// Configuration of a job's gang. It may change while the agents run. They then apply only [`GangSetup::restarts`],
/// [`GangSetup::backoff_limit`], [`GangSetup::rules`], [`GangSetup::code`] and [`GangSetup::restart_requested`]. The agents of an
/// elastic gang also apply [`GangSetup::workers`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangSetup {
    /// UID of the TrainingJob.
    pub uid: String,
    /// Number of workers, those with the smallest indexes. The worker with index 0 leads.
    pub workers: u32,
    /// For an elastic gang: the maximum number of workers that attempts in these pods may have had. The agent passes the
    /// actual number to the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<u32>,
    /// Number of members of each other role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, u32>,
    /// Members whose success makes the gang succeed: the first ones by index of each role listed here. If the map is empty,
    /// all workers decide. All other programs are then stopped.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub success: BTreeMap<String, u32>,
    /// Host name of the first worker's pod.
    pub leader: String,
    /// Port of the first worker's agent.
    pub port: u16,
    /// Port of the rendezvous; attempts alternate between it and the next port.
    pub master_port: u16,
    /// Settings for programs started by `mpirun`. The job's program, which is `mpirun`, runs on the members that decide
    /// ([`GangSetup::success`]). The other members serve as its remote shells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpi: Option<MpiSetup>,
    /// Condition for restarts.
    pub restarts: Restarts,
    /// Maximum number of restarts after failures of the program.
    pub backoff_limit: u32,
    /// Rules for specific failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailureRule>,
    /// Digest of the code that the next attempt runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Unique value of the last restart request. A value that differs from the one at the start of the leader's agent
    /// requests another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_requested: Option<String>,
}

impl GangSetup {
    /// The host name of a worker, derived from that of the first worker. Host names in an Indexed Job differ only in the
    /// number at the end of the first label.
    #[must_use]
    pub fn host(&self, index: u32) -> String {
        let (first, domain) = self.leader.split_at(self.leader.find('.').unwrap_or(self.leader.len()));
        match first.strip_suffix('0').filter(|name| name.ends_with('-')) {
            Some(name) => format!("{name}{index}{domain}"),
            None => self.leader.clone(),
        }
    }
}

/// Settings for a gang whose programs `mpirun` starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MpiSetup {
    /// Port of the agents that serve as remote shells.
    pub port: u16,
    /// Number of processes of each worker.
    pub slots: u32,
}

/// `failurePolicy.restartPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Restarts {
    /// No restarts.
    #[default]
    Never,
    /// Restarts after failures that a retry may fix.
    OnFailure,
    /// Restarts after every failure.
    Always,
}

/// History from before the current pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPast {
    /// Ends of the earlier attempts.
    pub restarts: RestartHistory,
    /// Time at which an attempt first resumed from `checkpoint.resumeFrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish_used: Option<Timestamp>,
    /// The restart request to which `wish_used` belongs, rather than to the field of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// State of a gang, as reported by its leader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangStatus {
    /// Last attempt that began; 0 before the first one.
    pub attempt: u32,
    /// Number of workers in the attempt that is running or stopping, else in the next one. An older agent reports 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub workers: u32,
    /// Ends of the attempts before the last one. The last one is included once no other attempt follows.
    pub restarts: RestartHistory,
    /// Phase of the gang.
    pub phase: GangPhase,
    /// Digest of the code that the last attempt runs. Every agent verifies it before it starts the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Time since which all programs have been stopping, while they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping_since: Option<Timestamp>,
    /// Description of what the gang waits for, while not all programs run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
    /// The last attempts in these pods that ended without success, the oldest first. The operator adds why a pod was
    /// terminated, because that is recorded on the pod.
    pub ended: Vec<AttemptEnd>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands a reference
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Phase of a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangPhase {
    /// All programs run.
    Running,
    /// All programs are stopping.
    Stopping,
    /// The gang has ended permanently.
    Over,
    /// The gang waits for all members, and for the processes of earlier attempts to end. Also stands for unknown values of
    /// a newer agent (serde requires it last).
    #[default]
    #[serde(other)]
    Gathering,
}

/// State of the gang in the termination message of each of its agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangEnd {
    /// Ends of the attempts before the last one. The last one, and why no attempt follows, is included once that is
    /// decided.
    pub restarts: RestartHistory,
    /// The last attempts that ended without success, the oldest first, if this agent was the leader. The operator may not
    /// have read them in time. The end of the last attempt is among them if another member caused it, whose pod may be
    /// gone before the operator sees it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<AttemptEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_host_derives_from_leader_host() {
        let host = |leader: &str, index| GangSetup { leader: leader.to_owned(), ..GangSetup::default() }.host(index);
        assert_eq!(host("job-0-training-0.job-0-headless", 0), "job-0-training-0.job-0-headless");
        assert_eq!(host("job-0-training-0.job-0-headless", 17), "job-0-training-17.job-0-headless");
        assert_eq!(host("127.0.0.1", 3), "127.0.0.1");
        assert_eq!(host("", 3), "");
    }
}
