//! `--set PATH=VALUE`: changes of a spec on the command line.

use serde_json::{Map, Value};
use std::str::FromStr;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Names and numbers, as in `checkpoint.retention` or `args[0]`.
    path: Vec<PathPart>,
    /// The new value; null removes the field.
    value: Value,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum PathPart {
    Field(String),
    Entry(usize),
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: write PATH=VALUE, such as hyperparameters.batchSize=16 or args[2]=3e-4");
        let (path, value) = text.split_once('=').ok_or_else(wrong)?;
        let path = path.strip_prefix("spec.").unwrap_or(path);
        let mut steps = Vec::new();
        for part in path.split('.') {
            let (field, mut entries) = part.split_at(part.find('[').unwrap_or(part.len()));
            if field.is_empty() || !field.chars().all(|c| c.is_ascii_alphanumeric() || "-_/".contains(c)) {
                return Err(wrong());
            }
            steps.push(PathPart::Field(field.to_owned()));
            while let Some(rest) = entries.strip_prefix('[') {
                let (entry, rest) = rest.split_once(']').ok_or_else(wrong)?;
                steps.push(PathPart::Entry(entry.parse().map_err(|_| wrong())?));
                entries = rest;
            }
            if !entries.is_empty() {
                return Err(wrong());
            }
        }
        let value = serde_saphyr::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        Ok(Self { path: steps, value, text: path.to_owned() })
    }
}

impl Assignment {
    /// Changes `spec`.
    ///
    /// # Errors
    /// If the path leads through a value that has no fields or entries.
    pub fn apply(&self, spec: &mut Value) -> Result<(), String> {
        let mut at = spec;
        let (last, before) = self.path.split_last().ok_or_else(|| "an empty path".to_owned())?;
        for step in before {
            at = self.enter(at, step)?;
            if at.is_null() {
                *at = Value::Object(Map::new());
            }
        }
        match (last, at) {
            (PathPart::Field(field), Value::Object(fields)) if self.value.is_null() => drop(fields.remove(field)),
            (PathPart::Field(field), Value::Object(fields)) => drop(fields.insert(field.clone(), self.value.clone())),
            (PathPart::Entry(index), Value::Array(list)) if *index < list.len() && self.value.is_null() => {
                list.remove(*index);
            }
            (PathPart::Entry(index), Value::Array(list)) if *index < list.len() => list[*index] = self.value.clone(),
            (PathPart::Entry(index), Value::Array(list)) if *index == list.len() => list.push(self.value.clone()),
            (_, at) => return Err(self.wrong(at)),
        }
        Ok(())
    }

    fn enter<'a>(&self, at: &'a mut Value, step: &PathPart) -> Result<&'a mut Value, String> {
        let wrong = self.wrong(at);
        match (step, at) {
            (PathPart::Field(field), Value::Object(fields)) => Ok(fields.entry(field.clone()).or_insert(Value::Null)),
            (PathPart::Entry(index), Value::Array(list)) => list.get_mut(*index).ok_or(wrong),
            _ => Err(wrong),
        }
    }

    fn wrong(&self, at: &Value) -> String {
        let kind = match at {
            Value::Object(_) => "an object, whose fields have names",
            Value::Array(_) => "a list, whose entries have numbers from 0 and no gaps",
            _ => "neither an object nor a list",
        };
        format!("--set {}: a part of the path is {kind}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(spec: &Value, text: &str) -> Result<Value, String> {
        let mut spec = spec.clone();
        text.parse::<Assignment>()?.apply(&mut spec)?;
        Ok(spec)
    }

    #[test]
    fn set_adds_changes_and_removes_fields() {
        let spec =
            json!({ "image": "a", "args": ["x", "y"], "checkpoint": { "retention": 3 }, "env": [{ "name": "A" }] });
        for (text, field, value) in [
            ("image=b:2", "/image", json!("b:2")),
            ("spec.image=b", "/image", json!("b")),
            ("numWorkers=4", "/numWorkers", json!(4)),
            ("suspend=true", "/suspend", json!(true)),
            ("checkpoint.retention=5", "/checkpoint/retention", json!(5)),
            ("resources.limits.memory=8Gi", "/resources/limits/memory", json!("8Gi")),
            ("scheduling.nodeSelector.a/b=c", "/scheduling/nodeSelector/a~1b", json!("c")),
            ("args[1]=z", "/args", json!(["x", "z"])),
            ("args[2]=3e-4", "/args", json!(["x", "y", 3e-4])),
            ("args=[a, b]", "/args", json!(["a", "b"])),
            ("args[0]=", "/args", json!(["y"])),
            ("env[0].value=a=b", "/env/0/value", json!("a=b")),
        ] {
            assert_eq!(set(&spec, text).unwrap().pointer(field), Some(&value), "{text}");
        }
        assert_eq!(set(&spec, "checkpoint.retention=null").unwrap()["checkpoint"], json!({}));
        for text in ["image", "=1", "a..b=1", "a[=1", "a[x]=1", "a[0]b=1", "image.b=1", "args[7]=1", "args.x=1"] {
            assert!(set(&spec, text).is_err(), "{text}");
        }
    }
}
