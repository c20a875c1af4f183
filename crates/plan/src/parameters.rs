//! Parameters of a template. Their values replace `$<params.NAME>` in its text.
//!
//! A value is inserted once and unchanged. Text in a value that looks like a placeholder stays text.

use api::RuntimeParameter;
use serde_json::Value;
use std::collections::BTreeMap;

/// Beginning of a placeholder, which ends with [`END`].
const BEGIN: &str = "$<params.";
const END: char = '>';
/// Maximum bytes of the values in all places together. A short template could otherwise become a huge spec.
const MOST_INSERTED: usize = 256 * 1024;
/// Maximum number of problems that one message names.
const MOST_PROBLEMS: usize = 5;

/// Replaces the placeholders in all text of `template`, the spec of a template without its `parameters`.
///
/// # Errors
/// All parameters without a value, values that the template does not allow, and placeholders of no parameter.
pub(super) fn expand(
    template: &mut Value,
    parameters: &[RuntimeParameter],
    given: &BTreeMap<String, String>,
) -> Result<(), String> {
    let mut expansion =
        Expansion { values: BTreeMap::new(), known: known(parameters), room: MOST_INSERTED, problems: Vec::new() };
    for name in given.keys().filter(|name| parameters.iter().all(|parameter| parameter.name != **name)) {
        expansion
            .refuse(format!("runtimeRef.parameters.{name}: {}; remove it or correct its name", expansion.unknown()));
    }
    for parameter in parameters {
        let name = &parameter.name;
        let Some(value) = given.get(name).or(parameter.default.as_ref()) else {
            expansion.refuse(format!("runtimeRef.parameters.{name} is missing and has no default: write its value"));
            continue;
        };
        if !parameter.allowed.is_empty() && !parameter.allowed.contains(value) {
            let allowed = parameter.allowed.join(", ");
            expansion.refuse(format!("runtimeRef.parameters.{name} is {value:?}: write one of {allowed}"));
        }
        expansion.values.insert(name, value);
    }
    if expansion.problems.is_empty() {
        expansion.walk("", template);
    }
    if expansion.problems.is_empty() { Ok(()) } else { Err(expansion.problems.join("; ")) }
}

/// The names of the parameters, for messages.
fn known(parameters: &[RuntimeParameter]) -> String {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    if names.is_empty() { "no parameters".to_owned() } else { format!("the parameters {}", names.join(", ")) }
}

struct Expansion<'a> {
    values: BTreeMap<&'a str, &'a str>,
    known: String,
    room: usize,
    problems: Vec<String>,
}

impl Expansion<'_> {
    fn refuse(&mut self, problem: String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn unknown(&self) -> String {
        format!("the template has {}", self.known)
    }

    fn walk(&mut self, path: &str, value: &mut Value) {
        match value {
            Value::String(text) if text.contains(BEGIN) => {
                let expanded = self.text(path, text);
                *text = expanded;
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.walk(&format!("{path}[{index}]"), item);
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    self.walk(&format!("{path}.{key}"), field);
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, path: &str, text: &str) -> String {
        let mut parts = text.split(BEGIN);
        let mut expanded = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let Some((name, after)) = part.split_once(END) else {
                self.refuse(format!(
                    "spec{path} of the template has {BEGIN:?} without {END:?}: write {BEGIN}NAME{END}"
                ));
                continue;
            };
            let Some(value) = self.values.get(name) else {
                let name = text::start_of(name, 64);
                self.refuse(format!("spec{path} of the template has {BEGIN}{name}{END}: {}", self.unknown()));
                continue;
            };
            let Some(room) = self.room.checked_sub(value.len()) else {
                self.refuse(format!(
                    "spec{path} of the template: values are inserted with more than {MOST_INSERTED} bytes"
                ));
                return expanded;
            };
            self.room = room;
            expanded.push_str(value);
            expanded.push_str(after);
        }
        expanded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expanded(template: Value, parameters: Value, given: Value) -> Result<Value, String> {
        let mut template = template;
        let (parameters, given): (Vec<RuntimeParameter>, _) =
            (serde_json::from_value(parameters).unwrap(), serde_json::from_value(given).unwrap());
        expand(&mut template, &parameters, &given).map(|()| template)
    }

    #[test]
    fn values_replace_placeholders_in_all_text() {
        let parameters = json!([{ "name": "team" }, { "name": "size", "default": "small", "enum": ["small", "large"] }, { "name": "e", "default": "" }]);
        let template = json!({
            "image": "$<params.team>/train:$<params.size>$<params.e>", "args": ["--a=$<params.size>", 7, true],
            "podTemplate": { "metadata": { "labels": { "$<params.team>": "$<params.team>" } } },
        });
        let expected = json!({
            "image": "vision/train:small", "args": ["--a=small", 7, true],
            "podTemplate": { "metadata": { "labels": { "$<params.team>": "vision" } } },
        });
        assert_eq!(expanded(template, parameters, json!({ "team": "vision" })), Ok(expected));
    }

    #[test]
    fn placeholder_lookalikes_are_left_unchanged() {
        let harmless = json!([
            "$(params.team) $$(params.team)",
            "${params.team}",
            "{{ params.team }} {{ .Values.params.team }}",
            "python train.py <params.team> out",
            "$<param.team> $<PARAMS.team> $ <params.team>",
            "(?P<team>a)$",
            "%(team)s",
        ]);
        let parameters = json!([{ "name": "team" }]);
        assert_eq!(expanded(harmless.clone(), parameters, json!({ "team": "x" })), Ok(harmless));
    }

    #[test]
    fn parameter_value_is_inserted_once_and_verbatim() {
        let parameters = json!([{ "name": "a" }, { "name": "b" }]);
        for value in ["$<params.b>", "$<params.", "b>", "\"}]}", "$(HOME)", "a\nb: c", "$<params.a>"] {
            let template = json!({ "args": ["$<params.a>", "$<params.b>"] });
            let found = expanded(template, parameters.clone(), json!({ "a": value, "b": "$<params." }));
            assert_eq!(found, Ok(json!({ "args": [value, "$<params."] })), "{value}");
        }
        let split = expanded(json!("$<params.a>b>"), parameters, json!({ "a": "$<params.", "b": "x" }));
        assert_eq!(split, Ok(json!("$<params.b>")), "what two parts make together is text");
    }

    #[test]
    fn parameter_errors_name_the_remedy() {
        let parameters = || json!([{ "name": "team" }, { "name": "size", "default": "s", "enum": ["s", "l"] }]);
        for (template, given, expected) in [
            (json!("x"), json!({}), "runtimeRef.parameters.team is missing and has no default: write its value"),
            (
                json!("x"),
                json!({ "team": "a", "teem": "b" }),
                "runtimeRef.parameters.teem: the template has the parameters team, size; remove it or correct its name",
            ),
            (
                json!("x"),
                json!({ "team": "a", "size": "xl" }),
                "runtimeRef.parameters.size is \"xl\": write one of s, l",
            ),
            (
                json!({ "args": ["$<params.teem>"] }),
                json!({ "team": "a" }),
                "spec.args[0] of the template has $<params.teem>: the template has the parameters team, size",
            ),
            (
                json!({ "image": "a:$<params.team" }),
                json!({ "team": "a" }),
                "spec.image of the template has \"$<params.\" without '>': write $<params.NAME>",
            ),
        ] {
            assert_eq!(expanded(template, parameters(), given), Err(expected.to_owned()));
        }
        let all = expanded(json!("x"), parameters(), json!({ "size": "xl", "a": "" })).unwrap_err();
        assert_eq!(all.matches("; ").count(), 3, "all of it: {all}");
        let none = expanded(json!("$<params.a>"), json!([]), json!({})).unwrap_err();
        assert!(none.ends_with("the template has no parameters"), "{none}");
    }

    #[test]
    fn inserted_values_are_bounded_in_size() {
        let bomb = json!({ "args": ["$<params.a>".repeat(1000)] });
        let error = expanded(bomb, json!([{ "name": "a" }]), json!({ "a": "v".repeat(1024) })).unwrap_err();
        assert_eq!(error, "spec.args[0] of the template: values are inserted with more than 262144 bytes");
        let many: Vec<String> = (0..100).map(|index| format!("$<params.x{index}>")).collect();
        assert!(expanded(json!(many), json!([]), json!({})).unwrap_err().len() < 1000);
    }
}
