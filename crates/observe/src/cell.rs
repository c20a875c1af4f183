//! All that is remembered of one TrainingJob, in one place.

use super::ownership::Ownership;
use super::{
    AgentAnswer, AgentPolls, Bucket, Children, ObservedPod, ObservedTensorBoard, ObservedUpkeep, ProgressWrites,
};
use api::{DataStatus, TrainingJobStatus};
use jiff::Timestamp;
use plan::{Planned, Upkeep};
use protocol::role::RoleName;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// All that is remembered of one TrainingJob.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Its objects.
    pub children: Children,
    /// Its TensorBoard.
    pub board: ObservedTensorBoard,
    /// What its agents answered.
    pub agents: AgentPolls,
    /// What the agent answered that fetches content or publishes the result.
    pub transfer: AgentPolls,
    /// What its spec means.
    pub wanted: Option<Arc<ResolvedSpec>>,
    /// What the operator wrote to it.
    pub writes: Writes,
    /// What the operator published about it.
    pub publications: Publications,
    /// Reconciles that failed in a row.
    pub failures: u32,
    /// Passes in a row in which the creation of a child was denied.
    pub denials: u32,
    /// Children, by kind and name, whose last write the API server has not answered in time.
    pub timed_out: BTreeSet<String>,
    /// Whether the TrainingJob has been seen. Objects with its UID that were seen before it belong to no job yet.
    pub known: bool,
    /// Its name, once it has been seen.
    pub(super) name: String,
    /// Which pods belong to it, and which do not.
    pub(super) ours: Ownership,
    /// The TrainingJob no longer exists; some of its objects still may.
    pub forgotten: bool,
    /// Name of the TrainingJob by the label of its pods. A job that was deleted before this operator started is never
    /// seen.
    pub(super) pods_of: String,
    /// Living pods of upkeep Jobs, by UID.
    pub(super) upkeep_pods: BTreeMap<String, UpkeepPod>,
}

/// A pod of an upkeep Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct UpkeepPod {
    /// Its name.
    pub name: String,
    /// UID of its Job.
    pub job: String,
    /// Its address, once its container runs.
    pub ip: Option<String>,
}

impl Cell {
    /// The pod whose agent moves data at present: that of the upkeep Job, or the only worker's in its init container.
    #[must_use]
    pub fn transfer_pod(&self) -> Option<ObservedPod> {
        let tasks = [Upkeep::Fetch, Upkeep::Publish].map(Upkeep::as_str);
        let moves = |job: &&ObservedUpkeep| tasks.contains(&job.task.as_str()) && job.ended.is_none() && !job.deleting;
        if let Some(job) = self.children.upkeep.as_ref().filter(moves) {
            let (uid, pod) = self.upkeep_pods.iter().find(|(_, pod)| pod.job == job.uid && pod.ip.is_some())?;
            let (uid, name, ip) = (uid.clone(), pod.name.clone(), pod.ip.clone());
            return Some(ObservedPod { uid, name, ip, ..ObservedPod::default() });
        }
        let number = self.children.job(RoleName::WORKER)?.incarnation;
        let mut pods = self.children.pods.values().map(|pod| &**pod);
        pods.find(|pod| pod.fetches && pod.incarnation == number && pod.is_alive()).cloned()
    }

    /// The last answer of the agent that moves data at present, unless it has been silent for long.
    #[must_use]
    pub fn transfer_answer(&self) -> Option<AgentAnswer> {
        let answer = self.transfer.answer()?;
        let is_silent = |since: Timestamp| Timestamp::now().duration_since(since) >= AgentPolls::SILENT;
        let pod = self.transfer_pod().filter(|_| !answer.failing_since.is_some_and(is_silent))?;
        (answer.status.pod_uid.as_ref() == Some(&pod.uid)).then_some(answer)
    }

    /// Whether nothing is left to remember.
    pub(super) fn is_over(&self) -> bool {
        let has_board = self.board.deployment.is_some() || self.board.service.is_some();
        (self.forgotten || !self.known) && !has_board && !self.children.exist() && self.upkeep_pods.is_empty()
    }
}

/// What a plan takes from the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    /// Size of an elastic gang, and the largest one that it had.
    pub size: Option<(u16, u16)>,
    /// Content that was fetched for the job.
    pub data: Vec<DataStatus>,
    /// Whether the programs have succeeded and their result is to be published, with the metrics of that status.
    pub publishes: bool,
}

/// What one generation of a spec means. It is the same at every pass.
#[derive(Debug)]
pub struct ResolvedSpec {
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// What it depends on besides the spec.
    pub basis: Basis,
    /// The plan.
    pub planned: Planned,
    /// Why the plan is refused, if it is.
    pub refused: Option<String>,
    /// Digest of the Service as it should be.
    pub service: u64,
    /// Digest of the ConfigMap as it should be.
    pub config: u64,
}

/// What the operator wrote to a TrainingJob's status.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// Version and content of the last write, which the watch may not have shown yet.
    pub last: Option<(u64, TrainingJobStatus)>,
    /// Generation of a spec that can't be read, and why, once the TrainingJob says so.
    pub unreadable: Option<(Option<i64>, String)>,
    /// Since when counters alone differ from what is written.
    pub counters_since: Option<Instant>,
    /// When what the program reports was last written.
    pub progress: ProgressWrites,
    /// Writes that follow from observations alone, such as an agent's answer: 30 at once and then one in 10 s.
    pub observations: Bucket<30, 10>,
}

/// Events of one TrainingJob. An agent's answers become Events too, and another program may answer in its place.
#[derive(Clone, Debug, Default)]
pub struct Publications {
    /// The last ones, by the hash in their names.
    last: VecDeque<u64>,
    /// For each reason: 10 at once and then one a minute.
    rates: BTreeMap<&'static str, Bucket<10, 60>>,
}

impl Publications {
    /// Names of Events that are remembered.
    const REMEMBERED: usize = 32;

    /// Whether to publish an Event: none that was just published, and not too many of one reason.
    pub fn admit(&mut self, reason: &'static str, hash: u64, now: Instant) -> bool {
        if self.last.contains(&hash) {
            return false;
        }
        self.rates.retain(|known, rate| *known == reason || !rate.is_full(now));
        if self.rates.entry(reason).or_default().take(now).is_err() {
            return false;
        }
        if self.last.len() == Self::REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(hash);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn events_are_deduplicated_and_rate_limited_per_reason() {
        let (begun, mut publications) = (Instant::now(), Publications::default());
        let mut admitted = 0;
        // Ten new ones every 2 s for an hour.
        for hash in 0..18_000 {
            let now = begun + Duration::from_secs(hash / 10 * 2);
            admitted += u32::from(publications.admit("Restarting", hash, now));
        }
        assert_eq!(admitted, 10 + 59);
        assert!(publications.last.len() == 32 && publications.rates.len() == 1);
        let now = begun + Duration::from_secs(3600);
        assert!(publications.admit("Failed", 1, now), "another reason has its own rate");
        assert!(!publications.admit("Failed", 1, now), "it is published");
        assert!(publications.admit("Failed", 2, now));
        let later = now + Duration::from_secs(3600);
        assert!(publications.admit("Resumed", 3, later));
        assert_eq!(publications.rates.len(), 1, "what is full again is forgotten");
    }
}
