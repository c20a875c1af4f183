//! What the cluster says about each TrainingJob: an index in memory, fed by watches, read without I/O.
//!
//! Everything about a job is filed under the namespace and the UID of its TrainingJob, which its label
//! [`labels::UID`](objects::labels::UID) carries. Pods stay in the index after their deletion until their incarnation
//! is over, because a worker's final report comes only with its last event.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

mod agents;
mod board;
mod bucket;
mod cell;
mod children;
pub mod digest;
pub mod events;
mod index;
mod job;
mod owner;
mod ownership;
mod pod;
mod progress_writes;
mod protobuf;
mod slim;
mod workload;

pub use agents::{AgentAnswer, AgentPolls};
pub use board::{BoardPart, ObservedTensorBoard};
pub use bucket::Bucket;
pub use cell::{Basis, Cell, Publications, ResolvedSpec, Writes};
pub use children::{Blocked, ChildKey, ChildKind, Children, ObjectEvent, ObservedChild, ObservedUpkeep, version};
pub use failure::{Container, Disruption, WaitingState};
pub use index::{Index, JobKey, ObservedClaim};
pub use job::{ObservedJob, SlimJob};
pub use owner::{is_upkeep, owner, role};
pub use pod::{JOB_TRACKING, ObservedPod, SlimPod};
pub use progress_writes::ProgressWrites;
pub use protobuf::{ProtobufError, json_of_change};
pub use workload::{Admission, Assignment, ObservedWorkload, SlimWorkload, SlimWorkloadStatus};
