//! What a decision rests on, and what comes of it.

use api::TrainingJobStatus;
use jiff::Timestamp;
use observe::{AgentAnswer, Children};
use plan::{Incarnation, Plan, Upkeep};
use protocol::gang::GangPast;
use protocol::role::RoleName;
use std::time::Duration;

/// What a decision rests on.
pub struct Input<'a> {
    /// What is to be, as far as it can be told: of a job that is refused its sizes and policies.
    pub plan: &'a Plan,
    /// Why the spec can't run, if it can't.
    pub refused: Option<&'a str>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The status as last known.
    pub status: &'a TrainingJobStatus,
    /// What was seen of its objects.
    pub children: &'a Children,
    /// What its agents answered last.
    pub agent: Option<&'a AgentAnswer>,
    /// Since when they don't answer, though they are asked; also if they never did.
    pub agent_silent_since: Option<Timestamp>,
    /// Why the last answer was not believed, if one came.
    pub agent_refusal: Option<&'a str>,
    /// Why the job is suspended besides its own `suspend`, if it is: its search is.
    pub held: Option<&'a str>,
    /// Why its search stops the job, if it does.
    pub stop: Option<&'a str>,
    /// Last answer of the agent that fetches content or publishes the result at present.
    pub transfer: Option<&'a AgentAnswer>,
    /// Now, in whole seconds.
    pub now: Timestamp,
}

/// What is to be done, in this order: the status is written, then the actions are taken, then the events are told.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// The status as it should be.
    pub status: TrainingJobStatus,
    /// What to do once that is written.
    pub actions: Vec<Action>,
    /// What to tell once that is done.
    pub events: Vec<Event>,
    /// UIDs of objects whose Events are to be read: what keeps them from starting stands nowhere else.
    pub read_events_of: Vec<String>,
    /// When to decide again if nothing is seen before.
    pub requeue: Option<Duration>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make what is missing of Service, ConfigMap and claim (at first also the gang's key and its NetworkPolicy), and put right what was changed.
    Ensure,
    /// Make the Jobs of this incarnation, which this was before.
    CreateJobs(Incarnation, GangPast),
    /// Make sure that the PodGroup is there.
    EnsureGroup,
    /// Make the Workload by which Kueue admits all roles together.
    EnsureWorkload,
    /// Let this Job go, as its Workload was admitted.
    LetJobGo {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// Whose pods it has.
        role: RoleName,
    },
    /// Hold this Job back: its pods go, and it stays.
    HoldJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Tell Kueue how the gang stands.
    TellWorkload(News),
    /// Take the Workload out of its queue.
    DeleteWorkload {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Make the Job that looks after the checkpoints.
    CreateUpkeep(Upkeep),
    /// Delete this Job and its pods.
    DeleteJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Delete this Job of a job that is over, with its pods, unless it has ended by now: then the pods stay for their logs.
    EndJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
    },
    /// Take this pod from its Job's count, so that the Job makes another one when it is gone and does not fail by it.
    ReleasePod {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// Delete it, and don't wait for its node to say that it has ended.
        force: bool,
    },
    /// Give this Job so many pods.
    ScaleJob {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// How many.
        pods: u16,
    },
    /// Have the node of this pod bring what has changed of its ConfigMap.
    HastenPod {
        /// Its name.
        name: String,
        /// Its UID, the precondition.
        uid: String,
        /// The size of the gang that the ConfigMap tells by now.
        size: u16,
    },
    /// Delete the TrainingJob itself: its time after the end is over.
    DeleteOwner,
}

/// What Kueue is told of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Every program runs.
    Runs,
    /// What was taken back is used by nobody any more.
    Left,
    /// The job is over.
    Ended {
        /// It has done what it was to do.
        succeeded: bool,
    },
}

impl Action {
    /// Whether it has no time to wait until the status tells of it: what its pod's end would do can't be undone. It is right
    /// however old the view of the TrainingJob is.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::ReleasePod { force: false, .. })
    }

    /// Whether it makes what an attempt needs to start.
    pub(super) fn makes(&self) -> bool {
        matches!(self, Self::Ensure | Self::CreateJobs(..) | Self::CreateUpkeep(_))
    }
}

/// An Event on the TrainingJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Warning, else Normal.
    pub warning: bool,
    /// One CamelCase word, past tense.
    pub reason: &'static str,
    /// A sentence with names.
    pub note: String,
}
