//! The program's output: passed on, kept for the report, and read for progress and evidence.

pub mod forwarder;
pub mod lines;
pub mod parser;
pub mod queue;
pub mod recent_lines;
