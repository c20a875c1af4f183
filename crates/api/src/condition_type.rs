//! Types of a TrainingJob's conditions.

/// Types of a TrainingJob's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The spec can run.
    Accepted,
    /// Every worker has a node.
    Scheduled,
    /// Every worker's program runs.
    Running,
    /// The gang is restarting.
    Restarting,
    /// The job is stopped until `suspend` becomes false.
    Suspended,
    /// A goal of the success policy was met, and the workers are stopping.
    Stopping,
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
    /// The agents respond.
    AgentReady,
    /// The loss is finite, neither NaN nor infinite.
    LossFinite,
    /// The loss improves from time to time.
    LossImproving,
    /// The program has reported no progress for a long time.
    ProgressStalled,
    /// No problem with the checkpoints is known.
    CheckpointsHealthy,
    /// Checkpoints outlive their pod. It is only set where they do not.
    CheckpointsDurable,
    /// The result is published under the address of `output`.
    ResultPublished,
    /// The requested TensorBoard can read what the workers write.
    TensorBoard,
}

impl ConditionType {
    /// The type as written in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::Restarting => "Restarting",
            Self::Suspended => "Suspended",
            Self::Stopping => "Stopping",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::AgentReady => "AgentReady",
            Self::LossFinite => "LossFinite",
            Self::LossImproving => "LossImproving",
            Self::ProgressStalled => "ProgressStalled",
            Self::CheckpointsHealthy => "CheckpointsHealthy",
            Self::CheckpointsDurable => "CheckpointsDurable",
            Self::ResultPublished => "ResultPublished",
            Self::TensorBoard => "TensorBoard",
        }
    }
}

impl AsRef<str> for ConditionType {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}
