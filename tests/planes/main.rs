//! Tests that each need a control plane of their own kind: with Kueue, with several operators, with Prometheus, with gang scheduling.

mod gang_scheduling;
mod kueue;
mod leader;
mod monitoring;
