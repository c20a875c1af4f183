//! The program's output: forwards it, keeps its end for the report, and reads it for progress and evidence.

pub mod forwarder;
pub mod lines;
pub mod parser;
pub mod queue;
pub mod recent_lines;
