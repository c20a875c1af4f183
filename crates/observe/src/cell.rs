//! All that is remembered of one TrainingJob, in one place.

use super::ours::Ours;
use super::{AgentPolls, Children, ObservedBoard, ProgressTurn};
use api::TrainingJobStatus;
use plan::Planned;
use std::sync::Arc;
use std::time::Instant;

/// All that is remembered of one TrainingJob.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Its objects.
    pub children: Children,
    /// Its TensorBoard.
    pub board: ObservedBoard,
    /// What its agents answered.
    pub agents: AgentPolls,
    /// What its spec means.
    pub wanted: Option<Arc<Wanted>>,
    /// What the operator wrote to it.
    pub writes: Writes,
    /// Reconciles that failed in a row.
    pub failures: u32,
    /// Passes in a row in which somebody denied the creation of a child.
    pub denials: u32,
    /// The TrainingJob has been seen; what has its UID and was seen before it is nobody's yet.
    pub known: bool,
    /// Its name, once it has been seen.
    pub(super) name: String,
    /// Whose its pods are, and those that are not its.
    pub(super) ours: Ours,
    /// The TrainingJob exists no more; some of its objects still may.
    pub forgotten: bool,
}

impl Cell {
    /// Whether nothing is left to remember.
    pub(super) fn is_over(&self) -> bool {
        let has_board = self.board.deployment.is_some() || self.board.service.is_some();
        (self.forgotten || !self.known) && !has_board && !self.children.exist()
    }
}

/// What one generation of a spec means: it is the same at every pass.
#[derive(Debug)]
pub struct Wanted {
    /// Of the spec.
    pub generation: Option<i64>,
    /// Of an elastic gang the size that it rests on, and the largest one.
    pub size: Option<(i32, i32)>,
    /// What is to be.
    pub planned: Planned,
    /// Why not, if it can't be.
    pub refused: Option<String>,
    /// Digest of the Service as it should be.
    pub service: u64,
    /// Digest of the ConfigMap as it should be.
    pub config: u64,
}

/// What the operator wrote to a TrainingJob's status.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// Version and content of the last write: the watch may not have shown it yet.
    pub last: Option<(u64, TrainingJobStatus)>,
    /// Generation of a spec that can't be read, and why, once the TrainingJob says so.
    pub unreadable: Option<(Option<i64>, String)>,
    /// Since when counters alone differ from what is written.
    pub counters_since: Option<Instant>,
    /// When what the program reports was last written.
    pub progress: ProgressTurn,
}
