//! One control plane for all of these tests: what becomes of a TrainingJob whatever people and other controllers do to its
//! objects, and what `kubectl trainingjob` shows of it.
//!
//! etcd, API server, controller manager and scheduler are real, the kubelets simulated. The operator runs in this
//! process, with the rights of `deploy/namespaced`.

mod children;
mod cli;
mod delivery;
mod gang;
mod group;
mod life;
mod reports;
mod roles;
mod runtimes;
mod strangers;
mod takeover;
mod tensorboard;
mod waiting;
mod world;
