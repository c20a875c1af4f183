//! Removal of secrets from objects and texts before they are shared.

use regex::{Captures, Regex};
use serde_json::Value;
use std::sync::LazyLock;

/// Placeholder for a secret.
pub const REDACTED: &str = "REDACTED";

/// Words in the name of a variable or a flag that make its value a secret.
const WORDS: [&str; 12] = [
    "TOKEN",
    "KEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
    "ACCESSKEY",
    "AUTH",
    "AUTHORIZATION",
];

/// Annotations that repeat a whole object.
const COPIES: [&str; 1] = ["kubectl.kubernetes.io/last-applied-configuration"];

/// Whether the name of a variable, a flag or a key says that its value is a secret: `HF_TOKEN`, `--api-key`, `secretKey`.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in name.chars() {
        if !letter.is_ascii_alphanumeric() || (letter.is_ascii_uppercase() && before.is_ascii_lowercase()) {
            words.push(String::new());
        }
        if letter.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(letter.to_ascii_uppercase());
        }
        before = letter;
    }
    words.iter().any(|word| WORDS.contains(&word.as_str()))
}

/// Returns an object without its secrets: values of variables by their names, arguments by their flags, and all texts.
#[must_use]
pub fn object(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            let is_variable = fields.get("value").is_some_and(Value::is_string) && is_secret(name);
            let redacted = fields.iter().map(|(key, value)| {
                let is_copy = COPIES.contains(&key.as_str());
                let hidden = is_copy || (key == "value" && is_variable);
                let value = match value {
                    Value::String(_) if hidden => REDACTED.into(),
                    // Settings of a program, and Kubernetes' own ones: the name of a key, or a word.
                    Value::Object(map) if key == "data" => data(map),
                    Value::Object(map) if key == "binaryData" => sizes(map),
                    other => object(other),
                };
                (key.clone(), value)
            });
            redacted.collect()
        }
        Value::Array(all) => {
            let is_flag = |text: &str| text.starts_with('-') && !text.contains('=') && is_secret(text);
            let follows = |at: usize| {
                at.checked_sub(1).and_then(|before| all[before].as_str()).is_some_and(is_flag)
                    && all[at].as_str().is_some_and(|value| !value.starts_with('-'))
            };
            (0..all.len()).map(|at| if follows(at) { REDACTED.into() } else { object(&all[at]) }).collect()
        }
        Value::String(words) => text(words).into(),
        other => other.clone(),
    }
}

/// Redacts the data of a ConfigMap: each value by its key, and as a text.
fn data(map: &serde_json::Map<String, Value>) -> Value {
    let redacted = map.iter().map(|(key, value)| {
        let value = if value.is_string() && is_secret(key) { REDACTED.into() } else { object(value) };
        (key.clone(), value)
    });
    redacted.collect()
}

fn sizes(map: &serde_json::Map<String, Value>) -> Value {
    let length = |value: &Value| value.as_str().map_or(0, str::len) / 4 * 3;
    map.iter().map(|(key, value)| (key.clone(), Value::from(format!("{} bytes", length(value))))).collect()
}

/// `scheme://user:password@`, and `https://token@` for HTTP.
static USERS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\b(https?://)[^\s/@]+@|\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@"));
/// Signatures and tokens in the query of an address.
static QUERIES: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)([?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential|sig|signature|token|access_token|api_key|key|password)=)[^&\s"']+"#,
    )
});
/// What follows `Bearer` or `Basic`.
static BEARERS: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(bearer|basic)(\s+)([A-Za-z0-9._~+/-]{16,}=*)"));
/// Tokens that are known by their beginnings.
static TOKENS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|glpat-[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})",
    )
});
/// `NAME=value`, and `"name": "value"` of JSON.
static ASSIGNMENTS: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"([A-Za-z][\w.-]*)(=["']?|["']\s*:\s*["'])([^\s"',;&]+)"#));

#[expect(clippy::expect_used, reason = "constant expressions, which a test compiles")]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid expression")
}

/// Returns a text without credentials in addresses, bearer tokens, known tokens and assignments to secret names.
#[must_use]
pub fn text(words: &str) -> String {
    let words = USERS.replace_all(words, |found: &Captures<'_>| {
        let scheme = found.get(1).or(found.get(2)).map_or("", |scheme| scheme.as_str());
        format!("{scheme}{REDACTED}@")
    });
    let words = QUERIES.replace_all(&words, format!("${{1}}{REDACTED}"));
    let words = BEARERS.replace_all(&words, |found: &Captures<'_>| match &found[3] {
        // Words of a sentence have no digits.
        value if value.contains(|c: char| c.is_ascii_digit()) => format!("{}{}{REDACTED}", &found[1], &found[2]),
        _ => found[0].to_owned(),
    });
    let words = TOKENS.replace_all(&words, REDACTED);
    let words = ASSIGNMENTS.replace_all(&words, |found: &Captures<'_>| {
        let (name, value) = (&found[1], &found[3]);
        // A lone `key` is part of many harmless texts, and a number is a setting.
        let is_plain = name.eq_ignore_ascii_case("key") || value.parse::<f64>().is_ok() || value == REDACTED;
        if is_secret(name) && !is_plain { format!("{name}{}{REDACTED}", &found[2]) } else { found[0].to_owned() }
    });
    words.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_in_text_are_redacted() {
        for (words, expected) in [
            ("https://me:pw1@git.test/a", "https://REDACTED@git.test/a"),
            ("clone https://ghp_x@git.test/a", "clone https://REDACTED@git.test/a"),
            ("redis://:pw@cache:6379", "redis://REDACTED@cache:6379"),
            ("GET /a?X-Amz-Signature=12ab&b=1", "GET /a?X-Amz-Signature=REDACTED&b=1"),
            ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer REDACTED"),
            ("login hf_abcdefghijklmnopqrstuvwx done", "login REDACTED done"),
            ("WANDB_API_KEY=0a1b2c python3", "WANDB_API_KEY=REDACTED python3"),
            (r#"{"token": "s3cr3t", "n": 1}"#, r#"{"token": "REDACTED", "n": 1}"#),
            ("--password=hunter2", "--password=REDACTED"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "REDACTED"),
        ] {
            assert_eq!(text(words), expected);
        }
    }

    #[test]
    fn harmless_text_is_not_redacted() {
        for words in [
            "max_tokens=4096 TOKENIZERS_PARALLELISM=false",
            "dataset hf://gpt2@main and oci://registry.test/a/b@sha256:0123",
            "the bearer of authentication-information is refused",
            "s3://bucket/key=5/part, lr=0.1, monkey=banana, keyboard=us",
            "mail me@example.test: tokens: 812 per second",
            "token_count=17, num_key_value_heads=8",
        ] {
            assert_eq!(text(words), words);
        }
    }

    #[test]
    fn secrets_in_objects_are_redacted() {
        let pod = json!({
            "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b" } },
            "env": [
                { "name": "HF_TOKEN", "value": "abc" }, { "name": "MAX_TOKENS", "value": "5" },
                { "name": "DB_PASSWORD", "valueFrom": { "secretKeyRef": { "name": "s", "key": "password" } } },
            ],
            "args": ["--api-key", "abc", "--lr", "0.1", "--token=x1"],
            "data": { "password": "x", "gang.json": "{\"port\":1}" },
            "binaryData": { "part": "AAAAAAAA" },
        });
        assert_eq!(
            object(&pod),
            json!({
                "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "REDACTED", "a": "b" } },
                "env": [
                    { "name": "HF_TOKEN", "value": "REDACTED" }, { "name": "MAX_TOKENS", "value": "5" },
                    { "name": "DB_PASSWORD", "valueFrom": { "secretKeyRef": { "name": "s", "key": "password" } } },
                ],
                "args": ["--api-key", "REDACTED", "--lr", "0.1", "--token=REDACTED"],
                "data": { "password": "REDACTED", "gang.json": "{\"port\":1}" },
                "binaryData": { "part": "6 bytes" },
            })
        );
    }
}
