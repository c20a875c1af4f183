//! Agents as plain processes: one alone, gangs of them, and the programs that they start.

mod agent;
mod gang;
mod keeper;
mod mpi;
mod pods;
mod trackers;
mod workload;
