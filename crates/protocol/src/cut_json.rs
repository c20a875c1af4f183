//! Repair of truncated JSON: the kubelet limits the termination messages of a pod's containers to 12 KiB together, and
//! truncates each.

/// Texts that are useful even if truncated. Any other truncated value would be wrong.
const TEXTS: [&str; 3] = ["message", "headline", "stderrTail"];

/// Removes the incomplete value at the end of `text` and closes all brackets. `None` if even the first brace is missing.
pub fn complete(text: &str) -> Option<String> {
    let mut reader = Reader::default();
    for (at, c) in text.char_indices() {
        reader.read(text, at, c);
    }
    reader.end(text)
}

#[derive(Default)]
struct Reader {
    /// Closing brackets for the open objects and arrays.
    open: Vec<char>,
    /// The position up to which the text is usable, with the closing brackets for that position.
    good: Option<(usize, String)>,
    string: Option<Text>,
    /// The name of the member whose value is being read.
    name: Option<String>,
}

struct Text {
    start: usize,
    /// The position up to which the text is complete.
    whole: usize,
    /// Remaining characters of an escape sequence.
    escape: usize,
}

impl Reader {
    fn read(&mut self, text: &str, at: usize, c: char) {
        if let Some(string) = &mut self.string {
            match c {
                _ if string.escape > 0 => {
                    string.escape = if c == 'u' && text[..at].ends_with('\\') { 4 } else { string.escape - 1 }
                }
                '\\' => string.escape = 1,
                '"' => return self.end_string(text, at),
                _ => {}
            }
            if string.escape == 0 {
                string.whole = at + c.len_utf8();
            }
            return;
        }
        match c {
            '"' => self.string = Some(Text { start: at + 1, whole: at + 1, escape: 0 }),
            '{' | '[' => {
                self.open.push(if c == '{' { '}' } else { ']' });
                self.name = None;
                self.keep(at + 1);
            }
            '}' | ']' => {
                self.open.pop();
                self.name = None;
                self.keep(at + 1);
            }
            // A number may precede it, which has no end of its own.
            ',' => {
                self.name = None;
                self.keep(at);
            }
            _ => {}
        }
    }

    fn end_string(&mut self, text: &str, at: usize) {
        let Some(string) = self.string.take() else { return };
        if self.open.last() == Some(&'}') && self.name.is_none() {
            self.name = Some(text[string.start..at].to_owned());
        } else {
            self.keep(at + 1);
        }
    }

    fn keep(&mut self, end: usize) {
        self.good = Some((end, self.open.iter().rev().collect()));
    }

    fn end(self, text: &str) -> Option<String> {
        if let Some(string) = self.string
            && self.name.is_some_and(|name| TEXTS.contains(&name.as_str()))
        {
            let closing: String = self.open.iter().rev().collect();
            // The rest of a truncated character.
            let text = text[..string.whole].trim_end_matches('\u{fffd}');
            return Some(format!("{text}\"{closing}"));
        }
        let (end, closing) = self.good?;
        Some(format!("{}{closing}", &text[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn truncated_json_keeps_complete_values() {
        for (cut, kept) in [
            (r#"{"a":1,"b":{"c":"x","d":[1,2"#, json!({ "a": 1, "b": { "c": "x", "d": [1] } })),
            (r#"{"a":1,"b":12"#, json!({ "a": 1 })),
            (r#"{"a":"x"#, json!({})),
            (r#"{"a":tru"#, json!({})),
            (r#"{"a":1,"mess"#, json!({ "a": 1 })),
            (r#"{"message":"one\ntw"#, json!({ "message": "one\ntw" })),
            (r#"{"message":"one\"#, json!({ "message": "one" })),
            (r#"{"message":"one\u00"#, json!({ "message": "one" })),
            (r#"{"message":"one\u0041\\"#, json!({ "message": "oneA\\" })),
            ("{\"message\":\"gr\u{fffd}", json!({ "message": "gr" })),
            (r#"{"e":{"message":"no ","#, json!({ "e": { "message": "no ," } })),
        ] {
            let completed = complete(cut).unwrap();
            let value: Value =
                serde_json::from_str(&completed).unwrap_or_else(|error| panic!("{cut}: {completed}: {error}"));
            if !cut.ends_with(',') {
                assert_eq!(value, kept, "{cut}");
            }
        }
        assert_eq!(complete(""), None);
    }
}
