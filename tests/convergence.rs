//! What becomes of a TrainingJob on a real control plane, whatever people and other controllers do to its objects.
//!
//! etcd, API server, controller manager and scheduler are real, the kubelets simulated. The operator runs in this
//! process, with the rights of `deploy/namespaced`.

#[path = "convergence/children.rs"]
mod children;
mod common;
#[path = "convergence/delivery.rs"]
mod delivery;
#[path = "convergence/gang.rs"]
mod gang;
#[path = "convergence/group.rs"]
mod group;
#[path = "convergence/life.rs"]
mod life;
#[path = "convergence/roles.rs"]
mod roles;
#[path = "convergence/runtimes.rs"]
mod runtimes;
#[path = "convergence/strangers.rs"]
mod strangers;
#[path = "convergence/takeover.rs"]
mod takeover;
#[path = "convergence/tensorboard.rs"]
mod tensorboard;
#[path = "convergence/waiting.rs"]
mod waiting;
#[path = "convergence/world.rs"]
mod world;
