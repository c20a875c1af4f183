//! Where in a JSON text an error of its decoder is.
//!
//! `serde_path_to_error` finds it by decoding once more, with a copy of the decoder for each type of the API and of
//! Kubernetes. Those copies were a fifth of the operator's code. The position that `serde_json` reports is enough.

use serde_json::Error;

/// A step from a value into one that it contains.
enum Step {
    /// The raw text of the present key, with its quotes, as soon as it has been read.
    Key(Option<(usize, usize)>),
    Index(usize),
}

/// The path of the value that an error of `serde_json` is about, such as `spec.roles[1].replicas`. It is empty for the
/// whole text. Of a field that is missing or unknown, it is the path of the object. Where no array may be, and the first
/// item of one is an array as well, it is the path of that item.
pub fn path(text: &str, error: &Error) -> String {
    let line = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
    let read = text.as_bytes().get(..line + error.column()).unwrap_or(text.as_bytes());
    let mut steps = steps(read);
    // The decoder goes into an array before it says that none may be there.
    let first = text.as_bytes().get(read.len()..).unwrap_or_default().trim_ascii_start().first();
    if read.trim_ascii_end().ends_with(b"[")
        && first != Some(&b'[')
        && error.to_string().starts_with("invalid type: sequence")
    {
        steps.pop();
    }
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Index(index) => path += &format!("[{index}]"),
            Step::Key(None) => {}
            Step::Key(Some((begin, end))) => {
                let raw = text.get(begin..end).unwrap_or_default();
                let key = serde_json::from_str::<String>(raw);
                path += if path.is_empty() { "" } else { "." };
                path += &key.unwrap_or_else(|_| raw.to_owned());
            }
        }
    }
    path
}

/// The way to the value at the end of what a decoder has read.
fn steps(read: &[u8]) -> Vec<Step> {
    let (mut steps, mut string, mut last) = (Vec::new(), None, (0, 0));
    let mut escaped = false;
    for (at, byte) in read.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if string.is_some() => escaped = true,
            b'"' => match string.take() {
                Some(begin) => last = (begin, at + 1),
                None => string = Some(at),
            },
            _ if string.is_some() => {}
            b'{' => steps.push(Step::Key(None)),
            b'[' => steps.push(Step::Index(0)),
            b'}' | b']' => drop(steps.pop()),
            b':' => {
                if let Some(Step::Key(key)) = steps.last_mut() {
                    *key = Some(last);
                }
            }
            b',' => match steps.last_mut() {
                Some(Step::Key(key)) => *key = None,
                Some(Step::Index(index)) => *index += 1,
                None => {}
            },
            _ => {}
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainingJob;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn job() -> Value {
        json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": "x", "labels": { "a.b": "c,d:{[\"\\" }, "generation": 3 },
            "spec": {
                "model": "m", "dataset": "d", "numWorkers": 2, "suspend": false,
                "env": { "A": "[", "B\"": "}" },
                "roles": [{ "name": "a", "replicas": 1 }, { "name": "b", "replicas": 2, "command": ["x", "y"] }],
                "checkpoint": { "enabled": true, "intervalSeconds": 60 },
            },
            "status": { "state": "Running", "restartCount": 1, "conditions": [
                { "type": "Running", "status": "True", "reason": "R", "message": "m",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ] },
        })
    }

    fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
        found.push(at.to_owned());
        for (key, inner) in value.as_object().into_iter().flatten() {
            pointers(inner, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }
        for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
            pointers(inner, &format!("{at}/{index}"), found);
        }
    }

    fn wrong() -> impl Strategy<Value = Value> {
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(-7),
            json!(1.5),
            json!("],\"{:\\"),
            json!([1, "]", [2], {}]),
            json!({ "k": 1 }),
            json!({}),
        ])
    }

    proptest! {
        #[test]
        fn path_is_that_of_serde_path_to_error(at: prop::sample::Index, wrong in wrong(), is_pretty: bool) {
            let mut value = job();
            let mut all = Vec::new();
            pointers(&value, "", &mut all);
            *value.pointer_mut(&all[at.index(all.len())]).unwrap() = wrong;
            let text = if is_pretty { format!("{value:#}") } else { value.to_string() };
            if let Err(error) = serde_json::from_str::<TrainingJob>(&text) {
                let mut decoder = serde_json::Deserializer::from_str(&text);
                let theirs = serde_path_to_error::deserialize::<_, TrainingJob>(&mut decoder).unwrap_err();
                let theirs = theirs.path().to_string();
                prop_assert_eq!(path(&text, &error), if theirs == "." { "" } else { &theirs }, "{}: {}", error, text);
            }
        }
    }
}
