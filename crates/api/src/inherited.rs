//! What a job has from elsewhere than its own spec.

use super::{TakenRuntime, schema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;

/// What the job has from its template and from the defaults, as they were when it was created: changes of either, and upgrades
/// of the operator, concern later jobs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Inherited {
    /// The template that the job has taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<TakenRuntime>,
    /// The part of a spec that holds where neither the job nor its template says anything.
    pub defaults: RecordedDefaults,
}

/// A part of a spec, kept as JSON text: there are thousands of jobs, and as a [`Value`] it is five times as large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedDefaults(Box<str>);

impl RecordedDefaults {
    /// It as JSON, to read in: an object.
    ///
    /// # Panics
    /// Never: it was made of JSON.
    #[must_use]
    #[expect(clippy::expect_used, reason = "text of ours, which always has this form")]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).expect("it was made of JSON")
    }
}

impl From<&Value> for RecordedDefaults {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Default for RecordedDefaults {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl Serialize for RecordedDefaults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RecordedDefaults {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::from(&value))
    }
}

impl JsonSchema for RecordedDefaults {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RecordedDefaults".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema::anything(generator)
    }
}
