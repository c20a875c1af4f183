//! JSON numbers that may be NaN or infinite, which JSON lacks. They are encoded as the strings of Prometheus.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes whole numbers without a fraction: 30 instead of 30.0.
///
/// # Errors
/// Those of the serializer.
#[expect(clippy::cast_possible_truncation, reason = "checked on the left")]
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match *value {
        value if value.is_nan() => serializer.serialize_str("NaN"),
        f64::INFINITY => serializer.serialize_str("+Inf"),
        f64::NEG_INFINITY => serializer.serialize_str("-Inf"),
        value if value.fract() == 0.0 && value.abs() < EXACT => serializer.serialize_i64(value as i64),
        value => serializer.serialize_f64(value),
    }
}

/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Number(f64),
        Text(String),
    }
    match Value::deserialize(deserializer)? {
        Value::Number(number) => Ok(number),
        Value::Text(text) => text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a number"))),
    }
}

/// The same encoding for optional numbers.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    struct Number(#[serde(with = "super")] f64);

    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(Number).serialize(serializer)
    }

    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Number>::deserialize(deserializer)?.map(|number| number.0))
    }
}
