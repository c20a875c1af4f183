//! The first cause of a failed attempt, and the decision on what follows from it ([`restart`]).
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! [`first_cause`] finds the root, which is the earliest failure that is not such an echo. Its input is
//! [`WorkerFacts`], which the operator takes from pods and an agent from itself.
//!
//! `gang` ranks which worker failed first. Three modules look for the cause of each worker's failure. `disruption`
//! examines what happened to its pod, `evidence` its agent's report, and `ending` how its containers ended. All of them
//! are pure.

mod disruption;
mod ending;
mod evidence;
mod facts;
mod finding;
mod gang;
mod memory;
pub mod restart;

pub use facts::{Container, Disruption, FailedInit, WaitingState, WorkerFacts};
pub use gang::{POD_DELETED, first_cause};
