//! The first cause of a failed attempt, and what follows from it ([`restart`]).
//!
//! One worker fails first and the others follow: their collectives break, and the Job controller deletes their pods.
//! The root is the earliest failure that is not such an echo: [`first_cause`] finds it among [`WorkerFacts`], which the
//! operator takes from pods and an agent has of itself.
//!
//! `gang` ranks who failed first. What each worker's failure was is looked for where it shows best: `disruption` in what
//! happened to its pod, `evidence` in what its agent has left, `ending` in how its containers ended. All of it is pure.

mod disruption;
mod ending;
mod evidence;
mod facts;
mod finding;
mod gang;
mod memory;
pub mod restart;

pub use facts::{Container, Disruption, FailedInit, Waiting, WorkerFacts};
pub use gang::first_cause;
