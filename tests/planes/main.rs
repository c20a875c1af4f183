//! Tests that each need a control plane of their own kind: with gang scheduling, with several operators, with Prometheus, with
//! Kueue.
//!
//! They wait most of the time, so they should run side by side: four threads have all planes start at once, since tests start
//! in the order of their names and those of `queue` come last, of which there are many.

mod gang_scheduling;
mod leader;
mod monitoring;
mod queue;
