//! The types of a TrainingJob's conditions.

/// Types of a TrainingJob's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The spec can run.
    Accepted,
    /// Every worker has a node.
    Scheduled,
    /// Every worker's program runs.
    Running,
    /// The gang starts again.
    Restarting,
    /// The job is stopped until somebody wants it to go on.
    Suspended,
    /// The job is good enough, and its workers are being stopped.
    Stopping,
    /// The job is done.
    Succeeded,
    /// The job won't run any more.
    Failed,
    /// The agents answer.
    AgentReady,
    /// The loss is a number.
    LossFinite,
    /// The program has told nothing for long.
    ProgressStalled,
    /// Nothing is wrong with the checkpoints.
    CheckpointsHealthy,
    /// The TensorBoard that was asked for can see what the workers write.
    TensorBoard,
}

impl ConditionType {
    /// The type as it stands in the status.
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
            Self::ProgressStalled => "ProgressStalled",
            Self::CheckpointsHealthy => "CheckpointsHealthy",
            Self::TensorBoard => "TensorBoard",
        }
    }
}

impl AsRef<str> for ConditionType {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}
