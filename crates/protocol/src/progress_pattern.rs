//! Progress parsed by the user's regular expressions.

use crate::progress::Update;
use regex::{Regex, RegexBuilder};
use text::printable;

/// Regular expressions with named groups, each tried on every line.
#[derive(Clone, Debug, Default)]
pub struct ProgressPatterns(Vec<Regex>);

impl ProgressPatterns {
    /// # Errors
    /// If a pattern is invalid, has no named group or is too large; the error names the pattern.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        compile(patterns).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the invalid patterns by their index, each with the error.
    pub fn refusals(patterns: &[String]) -> Vec<(usize, String)> {
        compile(patterns).enumerate().filter_map(|(index, result)| Some((index, result.err()?))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses `line`. Groups that match no number are ignored.
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
        // The user's pattern defines what each number means.
        Some(update).filter(|update| !update.is_empty()).map(|update| Update { is_certain: true, ..update })
    }
}

/// Maximum bytes of one compiled pattern; the total is shared equally. Most patterns need about ten thousand bytes. The
/// operator compiles them along with its other work, and every agent keeps them in memory.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_BYTES_IN_ALL: usize = 2 * MAX_BYTES;
/// Maximum number of character classes in all patterns, because each one is compiled with the tables of Unicode.
const MAX_CLASSES_IN_ALL: usize = 128;
/// Maximum nesting of groups, brackets and repetitions.
const MAX_DEPTH: u32 = 50;
/// Maximum bytes of cache for matching each pattern; less would make matching slower.
const MAX_BYTES_OF_CACHE: usize = 512 * 1024;

fn compile(patterns: &[String]) -> impl Iterator<Item = Result<Regex, String>> {
    let max_bytes = MAX_BYTES.min(MAX_BYTES_IN_ALL / patterns.len().max(1));
    let mut classes_in_all = 0;
    patterns.iter().map(move |pattern| {
        classes_in_all += classes(pattern);
        if classes_in_all > MAX_CLASSES_IN_ALL {
            return Err(format!(
                "progress-pattern {pattern:?} has too many classes of characters: all patterns together may have \
                 {MAX_CLASSES_IN_ALL} of \\p{{...}} and [...]; write . or \\S where that finds the same, or use fewer patterns"
            ));
        }
        parse(pattern, max_bytes)
    })
}

/// Upper bound for the number of brackets and Unicode classes in `pattern`, including literal characters that look like
/// them.
pub(crate) fn classes(pattern: &str) -> usize {
    let mut bytes = pattern.bytes();
    let mut count = 0;
    while let Some(byte) = bytes.next() {
        let is_class = match byte {
            b'\\' => matches!(bytes.next(), Some(b'p' | b'P')),
            byte => byte == b'[',
        };
        count += usize::from(is_class);
    }
    count
}

fn parse(pattern: &str, max_bytes: usize) -> Result<Regex, String> {
    const NEEDED: &str = "name what it finds by groups such as (?P<epoch>\\d+), (?P<epochs>\\d+), (?P<step>\\d+), \
                          (?P<steps>\\d+), (?P<loss>\\S+), (?P<accuracy>\\S+), (?P<lr>\\S+), (?P<throughput>\\S+); any \
                          other name is a metric of its own";
    let regex = RegexBuilder::new(pattern)
        .size_limit(max_bytes)
        .dfa_size_limit(MAX_BYTES_OF_CACHE)
        .nest_limit(MAX_DEPTH)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => format!(
                "progress-pattern {pattern:?} is too large: compiled it takes more than {} KiB (at most {} KiB for one, \
                 {} KiB for all together in equal shares); write + instead of a high count such as {{1,200}}, [0-9] \
                 instead of \\d, [A-Za-z] instead of \\w, or use fewer patterns",
                max_bytes / 1024,
                MAX_BYTES / 1024,
                MAX_BYTES_IN_ALL / 1024
            ),
            error => format!("progress-pattern {pattern:?} is no regular expression: {error}; {NEEDED}"),
        })?;
    if regex.capture_names().flatten().next().is_none() {
        return Err(format!("progress-pattern {pattern:?} has no named group: {NEEDED}"));
    }
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Source;

    #[test]
    fn named_groups_become_progress_fields() {
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
    fn invalid_progress_pattern_is_reported() {
        for (pattern, words) in [("(?P<loss>", "unclosed group"), ("loss=(\\S+)", "no named group"), ("", "no named")] {
            let error = ProgressPatterns::new(&[pattern.to_owned()]).unwrap_err();
            assert!(error.contains(words) && error.contains(&format!("{pattern:?}")), "{error}");
        }
    }

    #[test]
    fn oversized_progress_pattern_is_refused_by_name() {
        let refused = |patterns: &[String]| {
            let error = ProgressPatterns::new(patterns).unwrap_err();
            let refusals = ProgressPatterns::refusals(patterns);
            assert_eq!(refusals[0].1, error);
            (refusals.iter().map(|(index, _)| *index).collect::<Vec<_>>(), error)
        };
        let good = || r"it (?P<step>\d+)/(?P<steps>\d+) .* l=(?P<loss>\S+)".to_owned();
        let large = r"(?P<loss>\w{300})".to_owned();
        let (indices, error) = refused(&[good(), large.clone(), good()]);
        assert_eq!(indices, [1]);
        assert!(error.contains(&format!("{large:?} is too large")) && error.contains("more than 682 KiB"), "{error}");
        // Alone it may take what sixteen of it together may not.
        let medium = r"(?P<loss>\w{20})".to_owned();
        assert!(ProgressPatterns::new(std::slice::from_ref(&medium)).is_ok());
        assert_eq!(refused(&vec![medium; 16]).0.len(), 16);
        let classes = format!("(?i)(?P<loss>[{}])", r"\pL".repeat(127));
        assert!(ProgressPatterns::new(std::slice::from_ref(&classes)).is_ok());
        let (indices, error) = refused(&[classes, good(), "(?P<loss>[0-9])".to_owned()]);
        assert_eq!(indices, [2]);
        assert!(error.contains("too many classes") && error.contains("may have 128"), "{error}");
        let deep = format!("(?P<loss>{}1{})", "(".repeat(60), ")".repeat(60));
        assert!(refused(&[deep]).1.contains("nest"), "the limit's name");
    }

    #[test]
    fn usual_progress_patterns_are_accepted() {
        let patterns = [
            r"it (?P<step>\d+)/(?P<steps>\d+) .* l=(?P<loss>\S+)",
            r"^\[(?P<ts>[-\w: ,.]+)\] step (?P<step>\d{1,9}) \| loss (?P<loss>[-+.\d]+) \| (?P<throughput>[\d.]+) tok/s",
            r"(?i)epoch\D+(?P<epoch>\d+)\D+(?P<epochs>\d+).*?loss\s+(?P<loss>\S+)",
            r"\w+ \w+ (?P<loss>\S+)",
            r"\S{1,40} (?P<loss>\S{1,20})",
            r"[A-Za-z]{1,100} (?P<loss>[0-9.]{1,100})",
        ];
        let sixteen: Vec<String> = patterns.iter().cycle().take(16).map(|&pattern| pattern.to_owned()).collect();
        assert_eq!(ProgressPatterns::refusals(&sixteen), []);
        assert_eq!(classes(r"[a-z]\[\\[x]\p{L}\PN\\p\d"), 4);
    }
}
