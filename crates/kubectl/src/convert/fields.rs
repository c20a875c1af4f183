//! An object as it was written. Each field is taken out once, and a note reports each field that is left over.

use super::notes::Notes;
use serde_json::{Map, Value};

/// Input that can't be read at all.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConvertError(pub String);

/// An object with the path of fields that leads to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// A null value counts as not written.
    pub fn new(path: impl Into<String>, value: Value) -> Result<Self, ConvertError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            Value::Null => Ok(Self { path, map: Map::new() }),
            other => Err(wrong(&path, "an object", &other)),
        }
    }

    /// Returns the path of a field of the object.
    pub fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    /// Takes an object. An absent one counts as an object without fields.
    pub fn object(&mut self, key: &str) -> Result<Self, ConvertError> {
        let path = self.at(key);
        Self::new(path, self.take(key).unwrap_or_default())
    }

    pub fn list(&mut self, key: &str) -> Result<Vec<Value>, ConvertError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong(&self.at(key), "a list", &other)),
        }
    }

    /// Takes a list of objects, each with its path.
    pub fn objects(&mut self, key: &str) -> Result<Vec<Self>, ConvertError> {
        let path = self.at(key);
        self.list(key)?.into_iter().enumerate().map(|(i, item)| Self::new(format!("{path}[{i}]"), item)).collect()
    }

    pub fn text(&mut self, key: &str) -> Result<Option<String>, ConvertError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.at(key), "text", &other)),
        }
    }

    pub fn number(&mut self, key: &str) -> Result<Option<i64>, ConvertError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.as_i64() {
                Some(number) => Ok(Some(number)),
                None => Err(wrong(&self.at(key), "a whole number", &value)),
            },
        }
    }

    pub fn flag(&mut self, key: &str) -> Result<Option<bool>, ConvertError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.at(key), "true or false", &other)),
        }
    }

    /// Puts back an object that was taken.
    pub fn put(&mut self, key: &str, object: Self) {
        if !object.is_empty() {
            self.map.insert(key.to_owned(), Value::Object(object.map));
        }
    }

    /// Takes a field, if it is there, and reports why it has no place here.
    pub fn lose(&mut self, key: &str, notes: &mut Notes, says: &str) {
        if self.take(key).is_some() {
            notes.lost(self.at(key), says);
        }
    }

    /// Returns the fields that have not been taken.
    pub fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Reports all fields that have not been taken.
    pub fn left(self, notes: &mut Notes) {
        for (key, value) in &self.map {
            if !is_nothing(value) {
                notes.lost(self.at(key), "has no place here");
            }
        }
    }
}

/// Whether a value has no content.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn wrong(path: &str, wanted: &str, found: &Value) -> ConvertError {
    let found = match found {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let path = if path.is_empty() { "the document" } else { path };
    ConvertError(format!("{path} must be {wanted}, and is {found}"))
}
