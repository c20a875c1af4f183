//! Which worker of a gang failed first.
//!
//! Kubernetes' times are whole seconds. Within one second a disruption precedes a program's failure, and a program's
//! failure precedes a deletion. The agents' milliseconds order the failures of two programs.

use super::facts::{Container, WorkerFacts};
use super::finding::Finding;
use super::{disruption, ending, evidence};
use jiff::Timestamp;
use protocol::attempt::AttemptEnd;
use protocol::reason::Reason;
use protocol::stacks::StackLocation;
use text::origin::FailureOrigin;

/// The message of [`Reason::PodDeleted`].
pub const POD_DELETED: &str = "its pod was deleted, and not by the operator";

/// The first cause among all failed workers; `None` while no worker has failed.
pub fn first_cause<'a, W: Into<WorkerFacts<'a>>>(workers: impl IntoIterator<Item = W>) -> Option<AttemptEnd> {
    let workers: Vec<WorkerFacts<'a>> = workers.into_iter().map(Into::into).collect();
    let progress = workers.iter().filter_map(|worker| worker.report()?.progress?.time).max();
    let ends: Vec<WorkerEnd<'_>> =
        workers.iter().filter_map(|worker| WorkerEnd::from_worker(*worker, progress)).collect();
    let ranked = ends.iter().map(|end| (end, end.rank(&ends)));
    let order = |(end, rank): &(&WorkerEnd<'_>, Rank)| {
        let second = end.second().unwrap_or(Timestamp::MAX);
        (*rank, second, end.kind, end.moment().unwrap_or(second), end.worker.replica_id())
    };
    let step = workers.iter().filter_map(|worker| worker.report()?.progress?.whole_step()).max();
    ranked.min_by_key(order).map(|(end, rank)| AttemptEnd { step, ..end.attempt_end(rank) })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EndKind {
    Disrupted,
    Failed,
    Deleted,
}

/// How likely an end is to be the first cause, most likely first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Its pod can run no other attempt, which has to be reported whatever failed before.
    Unkillable,
    /// The worker failed by itself, or was removed from outside before any worker had failed.
    First,
    /// Stopped while it was failing by itself: a peer that it took along was faster to end. In a gang that hangs, a
    /// rank that waits for no other rank.
    Caught,
    /// Ended without a message, after a worker that was asked to stop had failed. At an `MPI_Abort`, MPICH's `mpiexec`
    /// exits without reading the last output of the processes.
    Mute,
    /// A joint operation of the workers failed, such as a collective that timed out.
    Gang,
    /// The worker lost a peer.
    Echo,
    /// Stopped because another worker had failed.
    Stopped,
}

/// How a worker ended.
struct WorkerEnd<'a> {
    worker: WorkerFacts<'a>,
    kind: EndKind,
    finding: Finding,
}

impl<'a> WorkerEnd<'a> {
    /// `None` if the worker has not failed. `progress` is the time of the latest progress report of any worker.
    fn from_worker(worker: WorkerFacts<'a>, progress: Option<Timestamp>) -> Option<Self> {
        if worker.succeeded() {
            return None;
        }
        if let Some(finding) = disruption::finding(&worker) {
            return Some(Self { worker, kind: EndKind::Disrupted, finding });
        }
        let kind = if failed_by_itself(&worker) {
            EndKind::Failed
        } else if worker.deletion.is_some() || worker.gone {
            EndKind::Deleted
        } else {
            return None;
        };
        let finding = disruption::storage(&worker)
            .or_else(|| evidence::finding(&worker, progress))
            .unwrap_or_else(|| ending::finding(&worker));
        Some(Self { worker, kind, finding })
    }

    /// The time that Kubernetes reports, unless the program reported its failure earlier. It may take long to end.
    fn second(&self) -> Option<Timestamp> {
        match (self.kind, self.worker.training) {
            (EndKind::Disrupted, _) => self.finding.time,
            (EndKind::Deleted, _) => self.worker.deletion,
            (EndKind::Failed, Container::Terminated { finished, .. }) => {
                self.finding.time.map(whole_second).into_iter().chain(*finished).min()
            }
            (EndKind::Failed, _) => self.finding.time.or(self.worker.created),
        }
    }

    /// When its program ended, to the millisecond if its agent has reported it.
    fn ended(&self) -> Option<Timestamp> {
        self.worker.report().and_then(|report| report.finished_at).or_else(|| self.second())
    }

    /// When it failed, to the millisecond if its agent has reported it.
    fn moment(&self) -> Option<Timestamp> {
        self.finding.time.or_else(|| self.ended())
    }

    /// Where its rank is, if it hangs.
    fn hangs_at(&self) -> Option<StackLocation> {
        let hang = self.worker.report()?.hang.as_ref()?;
        (self.finding.reason == Reason::Hang).then_some(hang.place)
    }

    /// Whether the finding says why this worker failed by itself.
    fn is_own(&self) -> bool {
        self.finding.names_cause && self.finding.origin == FailureOrigin::Own
    }

    /// Whether it was asked to stop, and had reported its own failure before `other` ended.
    fn failed_before(&self, other: &Self) -> bool {
        let is_stopped = self.worker.report().is_some_and(|report| report.stopped_by.is_some());
        is_stopped && self.is_own() && self.finding.time.is_some() && self.finding.time < other.ended()
    }

    fn rank(&self, all: &[WorkerEnd<'_>]) -> Rank {
        let stopped = if self.is_own() { Rank::Caught } else { Rank::Stopped };
        match self.kind {
            EndKind::Disrupted if self.finding.reason == Reason::Unkillable => Rank::Unkillable,
            EndKind::Disrupted => Rank::First,
            EndKind::Failed if self.finding.reason == Reason::StorageExceeded => Rank::First, // it is stopped for that
            // All ranks hang, and the first one to report it usually waits for another.
            EndKind::Failed if self.hangs_at() == Some(StackLocation::Stopped) => Rank::First,
            EndKind::Failed if self.hangs_at() == Some(StackLocation::Elsewhere) => Rank::Caught,
            EndKind::Failed if self.worker.report().is_some_and(|report| report.stopped_by.is_some()) => stopped,
            EndKind::Failed => match self.finding.origin {
                FailureOrigin::Own if self.finding.is_mute && all.iter().any(|other| other.failed_before(self)) => {
                    Rank::Mute
                }
                FailureOrigin::Own => Rank::First,
                FailureOrigin::Gang => Rank::Gang,
                FailureOrigin::Peer => Rank::Echo,
            },
            EndKind::Deleted => {
                let mut others = all.iter().filter(|other| other.kind != EndKind::Deleted);
                let first = others.all(|other| self.second() < other.second() || self.ended() < other.ended());
                // It may have been deleted because it had failed and did not end.
                let reported = self.finding.time.filter(|_| self.finding.names_cause);
                let before = reported.is_some() && reported < self.worker.deletion;
                if first && !before { Rank::First } else { stopped }
            }
        }
    }

    fn attempt_end(&self, rank: Rank) -> AttemptEnd {
        let deleted;
        let finding = if self.kind == EndKind::Deleted && rank != Rank::Caught {
            deleted = Finding::new(Reason::PodDeleted, POD_DELETED);
            &deleted
        } else {
            &self.finding
        };
        AttemptEnd {
            time: self.second(),
            role: self.worker.role,
            worker: Some(self.worker.index),
            pod: Some(self.worker.pod).filter(|pod| !pod.is_empty()).map(str::to_owned),
            node: self.worker.node.map(str::to_owned),
            rank: finding.rank.and_then(|rank| i32::try_from(rank).ok()),
            exit_code: finding.exit_code,
            disruption: self.kind == EndKind::Disrupted || finding.is_of_node(),
            permanent: finding.permanent,
            ..AttemptEnd::new(self.worker.attempt, finding.reason.clone(), &finding.what)
        }
    }
}

/// Whether it failed before the deletion of its pod was requested.
fn failed_by_itself(worker: &WorkerFacts<'_>) -> bool {
    match (worker.training, worker.deletion) {
        (Container::Terminated { finished: Some(end), report, .. }, Some(asked)) => {
            *end <= asked && report.as_ref().is_none_or(|report| report.stopped_by.is_none())
        }
        (Container::Terminated { .. }, None) => true,
        (_, Some(_)) => false,
        (_, None) => worker.ended == Some(false),
    }
}

/// Truncates a time to seconds, the resolution of Kubernetes' times.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
