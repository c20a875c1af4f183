//! The input of a decision, and its result.

use api::TrainingJobStatus;
use jiff::Timestamp;
use observe::{AgentAnswer, Children};
use plan::{Incarnation, Plan, Upkeep};
use protocol::gang::GangPast;
use protocol::role::RoleName;
use std::time::Duration;

/// The input of a decision.
pub struct Input<'a> {
    /// The objects that should exist, as far as the spec determines them. For a refused job, its sizes and policies.
    pub plan: &'a Plan,
    /// Why the spec can't run, if it can't.
    pub refused: Option<&'a str>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The last known status.
    pub status: &'a TrainingJobStatus,
    /// The observed state of its objects.
    pub children: &'a Children,
    /// The last answer of its agents.
    pub agent: Option<&'a AgentAnswer>,
    /// Since when its agents have not answered, though they were asked. Also set if they never answered.
    pub agent_silent_since: Option<Timestamp>,
    /// Why the last answer was rejected, if there was one.
    pub agent_refusal: Option<&'a str>,
    /// Why the job is suspended apart from its own `suspend`, if it is: its search is suspended.
    pub held: Option<&'a str>,
    /// Why its search stops the job, if it does.
    pub stop: Option<&'a str>,
    /// The last answer of the agent that is fetching content or publishing the result.
    pub transfer: Option<&'a AgentAnswer>,
    /// Now, in whole seconds.
    pub now: Timestamp,
}

/// The result of a decision, to be carried out in this order: write the status, take the actions, publish the events.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// The status to write.
    pub status: TrainingJobStatus,
    /// The actions to take once the status is written.
    pub actions: Vec<Action>,
    /// The events to publish once the actions are taken.
    pub events: Vec<Event>,
    /// UIDs of objects whose Events are to be read, because only these say what keeps the objects from starting.
    pub read_events_of: Vec<String>,
    /// When to decide again if nothing is observed before.
    pub requeue: Option<Duration>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create what is missing of Service, ConfigMap and claim, and correct what was changed. At first that includes the
    /// gang's key and its NetworkPolicy.
    Ensure,
    /// Create the Jobs of this incarnation, with the gang's past.
    CreateJobs(Incarnation, GangPast),
    /// Ensure that the PodGroup exists.
    EnsureGroup,
    /// Ensure the Workload by which Kueue admits all roles together.
    EnsureWorkload,
    /// Resume this Job, because its Workload was admitted.
    UnsuspendJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// The role of its pods.
        role: RoleName,
    },
    /// Suspend this Job: its pods go, and the Job stays.
    SuspendJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Report the state of the gang to Kueue.
    UpdateWorkload(GangState),
    /// Remove the Workload from its queue.
    DeleteWorkload {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Create the Job that looks after the checkpoints.
    CreateUpkeep(Upkeep),
    /// Delete this Job and its pods.
    DeleteJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Delete this Job of a finished job with its pods, unless it has ended by now. In that case the pods stay for
    /// their logs.
    EndJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Remove this pod from its Job's count, so that the Job replaces it when it is gone and does not fail because of
    /// it.
    ReleasePod {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// Delete the pod without waiting for its node to report that it has ended.
        force: bool,
    },
    /// Set the number of pods of this Job.
    ScaleJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// The number of pods.
        pods: u16,
    },
    /// Make the node of this pod deliver the changes of its ConfigMap.
    NudgePod {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// The size of the gang that the ConfigMap now holds.
        size: u16,
    },
    /// Delete the TrainingJob itself, because its time after the end is over.
    DeleteOwner,
}

/// GangState of a gang for Kueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangState {
    /// Every program runs.
    Runs,
    /// No pod uses what Kueue took back any more.
    Left,
    /// The job is over.
    Ended {
        /// Whether the job succeeded.
        succeeded: bool,
    },
}

impl Action {
    /// Whether the action can't wait until the status is written, because the effect of its pod's end can't be undone.
    /// The action is correct however old the view of the TrainingJob is.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::ReleasePod { force: false, .. })
    }

    /// Whether the action creates what an attempt needs to start.
    pub(super) fn makes(&self) -> bool {
        matches!(self, Self::Ensure | Self::CreateJobs(..) | Self::CreateUpkeep(_))
    }
}

/// An Event on the TrainingJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whether its type is Warning instead of Normal.
    pub warning: bool,
    /// One CamelCase word, past tense.
    pub reason: &'static str,
    /// A sentence with names.
    pub note: String,
}
