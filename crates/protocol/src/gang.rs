//! What the agents of a gang are given, and what their leader tells of it.

use super::attempt::{AttemptEnd, RestartHistory};
use super::failure_rules::FailureRule;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the file with a [`GangSetup`], and its key in the job's ConfigMap.
pub const SETUP_FILE: &str = "gang.json";
/// Key of the gang's key in its Secret: the text itself, as it stands there, is the key.
pub const KEY_FILE: &str = "key";
/// The variable with the one address at which an agent listens. Without it the agent listens at all addresses.
pub const LISTEN_ADDRESS: &str = "TRAININGJOB_LISTEN_ADDRESS";
/// In the folder of what an agent remembers: what `mpirun` needs.
pub const REMOTE: &str = "remote";
/// In that: what `mpirun` takes for its remote shell. It is the agent, which knows itself by this name.
pub const RSH: &str = "rsh";
/// In that: the workers, as Open MPI wants them.
pub const HOSTFILE: &str = "hostfile";
/// In that: the workers, as MPICH and Intel MPI want them.
pub const HYDRA_HOSTS: &str = "hosts";
/// Exit code of a container whose first process was killed (SIGKILL): its node starts it again in its pod.
pub const KILLED: i32 = 137;
/// Attempts that have ended are told of so many at most.
pub const MAX_RESTARTS: usize = 10;
/// In an agent's last words, for which there is little room, of so many.
pub const LAST_RESTARTS: usize = 3;

/// How the agents of a job form a gang. It may change while they run, of which they heed [`GangSetup::restarts`],
/// [`GangSetup::backoff_limit`], [`GangSetup::rules`] and [`GangSetup::restart_requested`]; and of an elastic gang
/// [`GangSetup::workers`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangSetup {
    /// UID of the TrainingJob.
    pub uid: String,
    /// How many there are, of the smallest indexes; the one of index 0 leads.
    pub workers: u32,
    /// Of an elastic gang: the most workers that its attempts may have had in these pods. What runs is told by its agent how
    /// many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<u32>,
    /// How many members there are of each other role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, u32>,
    /// By whose success the gang has succeeded: so many of each of these roles, the first ones by index. All workers if none
    /// is named; the others are ended then.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub success: BTreeMap<String, u32>,
    /// Where the first worker's pod is found, by name.
    pub leader: String,
    /// Where its agent listens.
    pub port: u16,
    /// Where the ranks meet: here and at the next port, in turns.
    pub master_port: u16,
    /// Of a gang whose programs `mpirun` starts: on the members that decide ([`GangSetup::success`]) the job's program runs,
    /// which is that, and the others serve it as its remote shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpi: Option<MpiSetup>,
    /// When another attempt follows.
    pub restarts: Restarts,
    /// How often after failures of the program.
    pub backoff_limit: u32,
    /// What is to follow from certain failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailureRule>,
    /// The last restart that was asked for, by a value that nobody else has: another one than the leader's agent has begun
    /// with asks for another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_requested: Option<String>,
}

impl GangSetup {
    /// The host name of a worker, by that of the first one: the pods of an Indexed Job are called alike, but for the number at
    /// the end of the first label.
    #[must_use]
    pub fn host(&self, index: u32) -> String {
        let (first, domain) = self.leader.split_at(self.leader.find('.').unwrap_or(self.leader.len()));
        match first.strip_suffix('0').filter(|name| name.ends_with('-')) {
            Some(name) => format!("{name}{index}{domain}"),
            None => self.leader.clone(),
        }
    }
}

/// What a gang needs whose programs `mpirun` starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MpiSetup {
    /// Where the agents listen that serve it as its remote shell.
    pub port: u16,
    /// Processes of each worker.
    pub slots: u32,
}

/// `failurePolicy.restartPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Restarts {
    /// Never.
    #[default]
    Never,
    /// After what another attempt may not meet.
    OnFailure,
    /// After every failure.
    Always,
}

/// What was before these pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPast {
    /// How the attempts before have ended.
    pub restarts: RestartHistory,
    /// When an attempt first resumed from `checkpoint.resumeFrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wish_used: Option<Timestamp>,
}

/// How a gang stands, as its leader tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangStatus {
    /// The last attempt that was begun; 0 before the first one.
    pub attempt: u32,
    /// Workers of the attempt that runs or stops, or else of the next one. 0 is what an older agent tells.
    #[serde(skip_serializing_if = "is_zero")]
    pub workers: u32,
    /// How its attempts have ended, up to the beginning of the last one; with the last one once no other follows.
    pub restarts: RestartHistory,
    /// Where the gang is in its life.
    pub phase: GangPhase,
    /// Since when all stop, while they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping_since: Option<Timestamp>,
    /// What it waits for, while not all run, as a person would tell it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub waits_for: String,
    /// The attempts of these pods that have ended and did not end well, the last ones, the oldest first. Why a pod was told to
    /// end stands on the pod, and the operator knows more of it.
    pub ended: Vec<AttemptEnd>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands a reference
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Where a gang is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangPhase {
    /// All run.
    Running,
    /// All stop.
    Stopping,
    /// It has ended, for good.
    Over,
    /// Waits until all are there and nothing of an earlier attempt lives. Also what a newer agent may call otherwise
    /// (serde wants it last).
    #[default]
    #[serde(other)]
    Gathering,
}

/// What of the gang stands in the last words of each of its agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangEnd {
    /// How its attempts have ended, up to the beginning of the last one; with the last one, and why no further one follows, once
    /// that is so.
    pub restarts: RestartHistory,
    /// The last attempts that did not end well, the oldest first, if this agent led: nobody may have asked it in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<AttemptEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_found_by_the_first_ones_name() {
        let host = |leader: &str, index| GangSetup { leader: leader.to_owned(), ..GangSetup::default() }.host(index);
        assert_eq!(host("job-0-training-0.job-0-headless", 0), "job-0-training-0.job-0-headless");
        assert_eq!(host("job-0-training-0.job-0-headless", 17), "job-0-training-17.job-0-headless");
        assert_eq!(host("127.0.0.1", 3), "127.0.0.1");
        assert_eq!(host("", 3), "");
    }
}
