//! JSON as Python writes it: with `NaN` and `Infinity`, which are not valid JSON.

use serde_json::Value;

/// `NaN` and `Infinity` become `null`.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes).or_else(|error| match plain(bytes) {
        Some(bytes) => serde_json::from_slice(&bytes),
        None => Err(error),
    })
}

fn plain(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut text, mut changed) = (bytes, false, false);
    while let Some((&byte, tail)) = rest.split_first() {
        let strange = [&b"NaN"[..], b"-Infinity", b"Infinity"].into_iter().find(|name| !text && rest.starts_with(name));
        if let Some(name) = strange {
            out.extend_from_slice(b"null");
            rest = &rest[name.len()..];
            changed = true;
            continue;
        }
        out.push(byte);
        rest = tail;
        if byte == b'\\' && text {
            let Some((&escaped, tail)) = rest.split_first() else { break };
            out.push(escaped);
            rest = tail;
        } else if byte == b'"' {
            text = !text;
        }
    }
    changed.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use serde_json::json;

    #[test]
    fn nan_and_infinity_become_null() {
        let parsed = parse(br#"{"loss": NaN, "best": -Infinity, "name": "NaN \" Infinity"}"#).unwrap();
        assert_eq!(parsed, json!({"loss": null, "best": null, "name": "NaN \" Infinity"}));
        assert!(parse(br#"{"loss": Nan}"#).is_err());
        assert!(parse(br#"{"loss": "NaN \"#).is_err());
    }
}
