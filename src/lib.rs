//! Kubernetes operator for distributed training.
//!
//! One [`api::TrainingJob`] becomes one gang of workers. The rooms, in the order in which a job flows through them:
//! [`api`] -> [`plan`] -> [`build`] -> [`controller`] (apply) -> [`observe`] -> [`lifecycle`] -> [`controller`] (status).
//! `ARCHITECTURE.md` tells what may depend on what.

pub mod agent;
pub mod api;
pub mod build;
pub mod cause;
pub mod checkpoint;
pub mod cli;
pub mod controller;
pub mod exposition;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gang;
pub mod lifecycle;
pub mod observe;
pub mod plan;
pub mod protocol;
pub mod store;
pub mod telemetry;
pub mod usage;
