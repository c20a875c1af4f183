//! JSON as Python writes it.

use super::fault::Fault;
use crate::files::Files;
use serde::de::DeserializeOwned;

/// Reads a JSON file of at most `limit` bytes.
///
/// # Errors
/// [`Fault::Cut`] if it ends too early. [`std::io::ErrorKind::FileTooLarge`] if it is longer.
pub fn read<T: DeserializeOwned>(files: &dyn Files, path: &str, limit: u64) -> Result<T, Fault> {
    parse(files.read(path, limit)?)
}

/// Reads JSON. Python's `NaN` and `Infinity`, which no other JSON has, become `null`.
///
/// # Errors
/// [`Fault::Cut`] if it ends too early.
pub fn parse<T: DeserializeOwned>(bytes: Vec<u8>) -> Result<T, Fault> {
    // Whole, for what is skipped is not looked at; and Python takes none of it if one letter is no UTF-8.
    let Ok(text) = String::from_utf8(bytes) else { return Fault::wrong("is JSON that is no text") };
    match serde_json::from_str(&finite(text)) {
        Ok(value) => Ok(value),
        Err(error) if error.is_eof() => Fault::cut("ends within its JSON"),
        Err(error) => Fault::wrong(format!("can't be read: {error}")),
    }
}

fn finite(text: String) -> String {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return text;
    }
    let mut finite = String::with_capacity(text.len());
    let mut rest = text.as_str();
    let mut quoted = false;
    while let Some(first) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !quoted && rest.starts_with(word));
        let length = match (word, first) {
            (Some(word), _) => {
                finite.push_str("null");
                rest = &rest[word.len()..];
                continue;
            }
            // What is escaped ends no string.
            (None, '\\') if quoted => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, '"') => {
                quoted = !quoted;
                1
            }
            (None, other) => other.len_utf8(),
        };
        finite.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn non_finite_numbers_become_null_outside_strings() {
        let text = r#"{"a": NaN, "b": [-Infinity, Infinity, -1.5], "c": "NaN \" NaN", "NaN": "é\\"}"#;
        let value: Value = parse(text.into()).unwrap();
        assert_eq!(value, json!({"a": null, "b": [null, null, -1.5], "c": "NaN \" NaN", "NaN": "é\\"}));
    }

    #[test]
    fn truncated_json_is_distinguished_from_invalid_json() {
        assert!(matches!(parse::<Value>(b"{\"a\": [1,".to_vec()), Err(Fault::Cut(_))));
        assert!(matches!(parse::<Value>(Vec::new()), Err(Fault::Cut(_))));
        assert!(matches!(parse::<Value>(b"{\"a\" 1}".to_vec()), Err(Fault::Wrong(_))));
        let skipped = parse::<serde::de::IgnoredAny>(b"{\"a\": \"\xe9\"}".to_vec());
        assert!(matches!(skipped, Err(Fault::Wrong(_))));
    }
}
