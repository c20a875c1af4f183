//! Progress by the user's own regular expressions.

use crate::protocol::progress::Update;
use crate::protocol::text::printable;
use regex::Regex;

/// Regular expressions with named groups, each tried on every line.
#[derive(Clone, Debug, Default)]
pub struct ProgressPatterns(Vec<Regex>);

impl ProgressPatterns {
    /// # Errors
    /// If one is no regular expression, or has no named group; in words that name it.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        patterns.iter().map(|pattern| parse(pattern)).collect::<Result<_, _>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What `line` says. A group that matched no number says nothing.
    pub fn line(&self, line: &[u8]) -> Option<Update> {
        let text = printable(line);
        let mut update = Update::default();
        for pattern in &self.0 {
            let Some(found) = pattern.captures(&text) else { continue };
            for name in pattern.capture_names().flatten() {
                if let Some(value) = found.name(name).and_then(|value| value.as_str().trim().parse().ok()) {
                    update.set(name, value);
                }
            }
        }
        // Whoever wrote the pattern says what is what.
        Some(update).filter(|update| !update.is_empty()).map(|update| Update { is_certain: true, ..update })
    }
}

fn parse(pattern: &str) -> Result<Regex, String> {
    const NEEDED: &str = "name what it finds by groups such as (?P<epoch>\\d+), (?P<epochs>\\d+), (?P<step>\\d+), \
                          (?P<steps>\\d+), (?P<loss>\\S+), (?P<accuracy>\\S+), (?P<lr>\\S+), (?P<throughput>\\S+); any \
                          other name is a metric of its own";
    let regex = Regex::new(pattern)
        .map_err(|error| format!("progress-pattern {pattern:?} is no regular expression: {error}; {NEEDED}"))?;
    if regex.capture_names().flatten().next().is_none() {
        return Err(format!("progress-pattern {pattern:?} has no named group: {NEEDED}"));
    }
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::progress::Source;

    #[test]
    fn groups_by_name() {
        let patterns = ["^it (?P<step>\\d+) of (?P<steps>\\d+)", "l=(?P<loss>\\S+)(?: ppl=(?P<ppl>\\S+))?"];
        let patterns = ProgressPatterns::new(&patterns.map(str::to_owned)).unwrap();
        let update = patterns.line(b"\x1b[1mit\x1b[0m 3 of 10 l=nan ppl=\xff").unwrap();
        assert_eq!((update.step, update.steps, update.metrics.len()), (Some(3.0), Some(10.0), 1));
        assert!(update.lost().unwrap().is_nan());
        assert_eq!(patterns.line(b"l=1.5 ppl=2").unwrap().metrics["ppl"], 2.0);
        assert!(patterns.line(b"l=1.5").unwrap().is_sure(Source::Output), "the pattern says what it is");
        assert_eq!(patterns.line(b"Epoch 3/10 loss: 0.5"), None);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (pattern, words) in [("(?P<loss>", "unclosed group"), ("loss=(\\S+)", "no named group"), ("", "no named")] {
            let error = ProgressPatterns::new(&[pattern.to_owned()]).unwrap_err();
            assert!(error.contains(words) && error.contains(&format!("{pattern:?}")), "{error}");
        }
    }
}
