//! Values that a job inherits from its template and the defaults.

use super::{AppliedRuntime, schema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Values that the job inherits from its template and from the defaults, as recorded when it was created.
/// Later changes to the template or the defaults, and operator upgrades, affect new jobs only.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Inherited {
    /// Template that the job was created with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<AppliedRuntime>,
    /// Partial spec that applies to every field set neither by the job nor by its template.
    pub defaults: RecordedDefaults,
    /// Addresses of the names in `model` and `dataset`, from the operator's list of names when the job was created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
}

/// Partial spec, kept as JSON text: there are thousands of jobs, and a [`Value`] takes five times the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedDefaults(Box<str>);

impl RecordedDefaults {
    /// The partial spec as a JSON object.
    ///
    /// # Panics
    /// Never: the text was serialized from JSON.
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
        serde_transcode::transcode(&mut serde_json::Deserializer::from_str(&self.0), serializer)
    }
}

impl<'de> Deserialize<'de> for RecordedDefaults {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = Vec::new();
        serde_transcode::transcode(deserializer, &mut serde_json::Serializer::new(&mut text))
            .map_err(D::Error::custom)?;
        String::from_utf8(text).map(|text| Self(text.into())).map_err(D::Error::custom)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn recorded_defaults_are_the_same_in_text_and_as_value() {
        let value = json!({
            "checkpoint": { "keep": 3, "enabled": false },
            "env": [{ "name": "A", "value": "\"<&> \u{1}" }, null],
            "lr": [0.1, 1e300, -1, u64::MAX],
        });
        let recorded = RecordedDefaults::from(&value);
        assert_eq!(recorded.value(), value);
        assert_eq!(serde_json::to_value(&recorded).unwrap(), value);
        assert_eq!(serde_json::to_string(&recorded).unwrap(), value.to_string());
        assert_eq!(serde_json::from_value::<RecordedDefaults>(value.clone()).unwrap(), recorded);
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap().replace('<', "\\u003c")] {
            assert_eq!(serde_json::from_str::<RecordedDefaults>(&text).unwrap(), recorded, "{text}");
        }
    }
}
