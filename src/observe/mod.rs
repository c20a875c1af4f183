//! What the cluster says about each TrainingJob: an index in memory, fed by watches, read without I/O.
//!
//! Everything of a job is filed under the UID of its TrainingJob, which its label
//! [`labels::UID`](crate::build::labels::UID) carries. Pods stay in the index after their deletion until
//! their attempt is over, for the last words of a worker come only with its last event.

pub mod digest;
pub mod events;
mod index;
mod job;
mod pod;
mod polled;
mod slim;

pub use crate::cause::{Container, Disruption, Waiting};
pub use index::{Blocked, ChildKind, ChildSeen, ClaimSeen, Family, Index, Note, owner, version};
pub use job::{JobSeen, SlimJob};
pub use pod::{PodSeen, SlimPod};
pub use polled::{Polled, Seen};
