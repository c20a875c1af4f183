//! Readings of a job's objective, the metric by which its runs are compared.
//!
//! The agent keeps one [`Objective`] for as long as its container lives, and the operator merges it into the status. Merging
//! the same one again changes nothing, so that no reading is lost or counted twice, whoever looks how often.

use super::number;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Maximum number of rungs. Each is at least twice as far as the one before, so that more can't be reached.
pub const MAX_RUNGS: usize = 64;

/// Readings of the objective, over all attempts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Objective {
    /// Name of the metric. Empty in an agent's report.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(required))]
    pub metric: String,
    /// Number of readings. Readings that a later attempt repeats count again.
    pub count: u64,
    /// The last reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Measurement>,
    /// The best reading. NaN is never the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Measurement>,
    /// For each rung that was reached, in ascending order, the first reading at its step or later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rungs: Vec<RungReading>,
    /// Number of readings of each of the last agents, by which a reading is counted once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentCount>,
}

/// One reading of the objective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Measurement {
    /// Value of the metric. NaN and infinities are the strings "NaN", "+Inf" and "-Inf".
    #[serde(with = "number")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "number_schema"))]
    pub value: f64,
    /// Step of the program at the reading, if the program reports steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// The reading that was recorded for one rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RungReading {
    /// Step of the reading, which is the rung's step or a later one.
    pub step: i64,
    /// Value of the metric. NaN and infinities are the strings "NaN", "+Inf" and "-Inf".
    #[serde(with = "number")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "number_schema"))]
    pub value: f64,
}

/// Number of readings of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentCount {
    /// Time at which the agent started, to the millisecond. It identifies the agent.
    #[cfg_attr(feature = "schema", schemars(schema_with = "date_time"))]
    pub since: Timestamp,
    /// Attempt of its last reading.
    pub attempt: u32,
    /// Number of its readings.
    pub count: u64,
}

/// A number, or one of three strings. JSON has no other form for them, and a CRD has no type for both.
#[cfg(feature = "schema")]
fn number_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

#[cfg(feature = "schema")]
fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "format": "date-time" })
}
