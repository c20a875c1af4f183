//! Evaluation of `failurePolicy.rules`. The gang's leader and the operator use the same function.

use super::attempt::{AttemptEnd, Class};
use super::progress_pattern::classes;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Maximum bytes of one compiled regular expression; the total is shared equally. The limits keep compilation in the
/// operator fast.
const MAX_BYTES: usize = 1024 * 1024;
const MAX_BYTES_IN_ALL: usize = 2 * MAX_BYTES;
/// Maximum bytes of cache for matching each pattern; less would make matching slower.
const MAX_BYTES_OF_CACHE: usize = 512 * 1024;
/// Maximum number of character classes in all patterns, because each one is compiled with the tables of Unicode.
const MAX_CLASSES_IN_ALL: usize = 128;
/// Maximum nesting of groups, brackets and repetitions.
const MAX_DEPTH: u32 = 50;

/// Rule for one kind of failure. All conditions that are set must match, and at least one must be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRule {
    /// Exit codes of the program that match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<i32>,
    /// Reasons of the cause that match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Regular expression that must match within the message of the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Consequence of the failure.
    pub action: RuleAction,
}

/// Consequence of a failure that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RuleAction {
    /// No further attempt.
    Fail,
    /// Another attempt, which does not count against `backoffLimit`.
    Ignore,
    /// Another attempt, even if a retry can't help; it counts against `backoffLimit`. Also stands for unknown values of a
    /// newer operator (serde requires it last).
    #[default]
    #[serde(other)]
    Restart,
}

/// Applies the first matching rule to the end of an attempt. A requested attempt is no failure.
#[must_use]
pub fn apply(rules: &[FailureRule], end: AttemptEnd) -> AttemptEnd {
    if end.class() == Class::Requested {
        return end;
    }
    let max_bytes = share(rules.len());
    let matches = |rule: &FailureRule| rule.matches(end.reason.as_str(), &end.message, end.exit_code, max_bytes);
    let Some(at) = rules.iter().position(matches) else { return end };
    let action = rules[at].action;
    AttemptEnd {
        disruption: action == RuleAction::Ignore,
        permanent: action == RuleAction::Fail,
        rule: u32::try_from(at + 1).ok(),
        ..end
    }
}

impl FailureRule {
    fn matches(&self, reason: &str, message: &str, exit_code: Option<i32>, max_bytes: usize) -> bool {
        let is_empty = self.exit_codes.is_empty() && self.reasons.is_empty() && self.message.is_none();
        let is_code = || self.exit_codes.is_empty() || exit_code.is_some_and(|code| self.exit_codes.contains(&code));
        let is_reason = || self.reasons.is_empty() || self.reasons.iter().any(|known| known == reason);
        // It is compiled each time, because attempts seldom fail. An invalid pattern was refused and never matches.
        let is_found = |pattern: &String| compile(pattern, max_bytes).is_ok_and(|pattern| pattern.is_match(message));
        !is_empty && is_code() && is_reason() && self.message.as_ref().is_none_or(is_found)
    }
}

/// Returns the invalid regular expressions by the index of their rule, each with the error and the remedy.
#[must_use]
pub fn refusals(rules: &[FailureRule]) -> Vec<(usize, String)> {
    let (max_bytes, mut classes_in_all) = (share(rules.len()), 0);
    let patterns = rules.iter().enumerate().filter_map(|(index, rule)| Some((index, rule.message.as_ref()?)));
    patterns
        .filter_map(|(index, pattern)| {
            classes_in_all += classes(pattern);
            // A pattern over the budget is not compiled.
            if classes_in_all > MAX_CLASSES_IN_ALL {
                return Some((
                    index,
                    format!(
                        "{pattern:?} has too many classes of characters: all rules together may have \
                         {MAX_CLASSES_IN_ALL} of \\p{{...}} and [...]; write . or \\S where that finds the same, or use \
                         fewer rules"
                    ),
                ));
            }
            Some((index, refusal(pattern, max_bytes)?))
        })
        .collect()
}

fn refusal(pattern: &str, max_bytes: usize) -> Option<String> {
    let error = compile(pattern, max_bytes).err()?;
    Some(match error {
        regex::Error::CompiledTooBig(_) => format!(
            "{pattern:?} is too large: compiled it takes more than {} KiB (at most {} KiB for one, {} KiB for all \
             rules together in equal shares); write + instead of a high count such as {{1,200}}, or [0-9] instead of \\d",
            max_bytes / 1024,
            MAX_BYTES / 1024,
            MAX_BYTES_IN_ALL / 1024
        ),
        error => {
            // The error contains a picture of several lines.
            let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            format!(
                "{pattern:?} is no regular expression: {error}; write one without look-around and back-references, and \
                 \\ before each of . * + ? ( ) [ ] {{ }} | that is meant as it stands"
            )
        }
    })
}

/// Maximum bytes for each pattern if there are this many rules.
fn share(rules: usize) -> usize {
    MAX_BYTES.min(MAX_BYTES_IN_ALL / rules.max(1))
}

fn compile(pattern: &str, max_bytes: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(max_bytes).dfa_size_limit(MAX_BYTES_OF_CACHE).nest_limit(MAX_DEPTH).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;
    use serde_json::{Value, json};

    fn rules(rules: Value) -> Vec<FailureRule> {
        serde_json::from_value(rules).unwrap()
    }

    fn decided(of: &Value, reason: &str, message: &str, code: Option<i32>) -> Option<String> {
        let end = AttemptEnd { exit_code: code, ..AttemptEnd::new(1, Reason::from(reason), message) };
        let end = apply(&rules(of.clone()), end);
        let rule = end.rule?;
        let written = end.to_string();
        let from = written.rfind(&format!("rule {rule} of"))?;
        Some(written[from..].trim_end_matches(')').to_owned())
    }

    #[test]
    fn first_fully_matching_rule_decides() {
        let of = json!([
            { "exitCodes": [42, 43], "reasons": ["ExitCode"], "message": "quota", "action": "Fail" },
            { "exitCodes": [42], "action": "Ignore" },
            { "reasons": ["ImportError", "OOMKilled"], "action": "Restart" },
            { "message": "(?i)xid [0-9]+", "action": "Ignore" },
        ]);
        let rule = |n: u32, action: &str| Some(format!("rule {n} of failurePolicy.rules: {action}"));
        assert_eq!(decided(&of, "ExitCode", "worker 1: exit code 42: quota exceeded", Some(42)), rule(1, "Fail"));
        assert_eq!(decided(&of, "Signal", "worker 1: exit code 42: quota exceeded", Some(42)), rule(2, "Ignore"));
        assert_eq!(decided(&of, "ExitCode", "worker 1: exit code 43", Some(43)), None);
        assert_eq!(decided(&of, "OOMKilled", "worker 1: killed", Some(137)), rule(3, "Restart"));
        assert_eq!(decided(&of, "NcclError", "worker 1, rank 3: NVRM: XID 79", Some(1)), rule(4, "Ignore"));
        assert_eq!(decided(&json!([]), "OOMKilled", "worker 1: killed", None), None);
        assert_eq!(decided(&json!([{ "action": "Fail" }]), "OOMKilled", "", None), None, "it says nothing");
    }

    /// Ends that must not match, although similar: no exit code, another exit code, a reason with the same beginning.
    #[test]
    fn similar_failures_do_not_match() {
        let of = json!([
            { "exitCodes": [1], "action": "Fail" },
            { "reasons": ["Signal"], "action": "Fail" },
            { "message": "^quota", "action": "Fail" },
        ]);
        for (reason, message, code) in [
            ("NodeLost", "worker 1: its agent has fallen silent", None),
            ("ExitCode", "worker 1: exit code 11", Some(11)),
            ("SignalHandler", "worker 1: exit code 3", Some(3)),
            ("ExitCode", "exit code 3: no quota", Some(3)),
            ("signal", "worker 1: Quota", Some(2)),
        ] {
            assert_eq!(decided(&of, reason, message, code), None, "{message}");
        }
    }

    /// The place of a failure is not part of the text that is matched.
    #[test]
    fn failure_place_is_not_matched() {
        let rules = rules(json!([{ "message": "worker|pod|node", "action": "Fail" }]));
        let end =
            AttemptEnd { worker: Some(1), pod: Some("pod".to_owned()), node: Some("node".to_owned()), ..end("x") };
        assert_eq!(apply(&rules, end.clone()), end);
    }

    #[test]
    fn requested_restart_is_not_a_failure() {
        let of = json!([{ "reasons": ["Restarted", "Resized"], "action": "Fail" }]);
        for reason in ["Restarted", "Resized"] {
            assert_eq!(decided(&of, reason, "", None), None, "{reason}");
        }
    }

    fn end(message: &str) -> AttemptEnd {
        AttemptEnd::new(1, Reason::ExitCode, message)
    }

    #[test]
    fn unusable_rule_pattern_is_refused_with_reason() {
        for (pattern, words) in [("(loss", "unclosed group"), ("a(?=b)", "look-around"), ("\\w{500}", "too large")] {
            let reported = refusal_of(pattern).unwrap();
            assert!(reported.contains(words) && reported.contains(&format!("{pattern:?}")), "{reported}");
            assert!(!reported.contains('\n'), "{reported}");
            assert_eq!(decided(&json!([{ "message": pattern, "action": "Fail" }]), "ExitCode", pattern, None), None);
        }
        assert!(refusal_of(&format!("{}1{}", "(".repeat(60), ")".repeat(60))).unwrap().contains("nest"));
        assert_eq!(refusal_of(r"(?i)cuda error|xid \d+"), None);
    }

    fn refusal_of(pattern: &str) -> Option<String> {
        refusals(&rules(json!([{ "message": pattern, "action": "Fail" }]))).pop().map(|(_, why)| why)
    }

    /// The limit covers all rules together, because the operator compiles them on its only thread.
    #[test]
    fn all_rules_share_one_budget() {
        let rule = |message: String| FailureRule { message: Some(message), ..FailureRule::default() };
        // The worst 20 of 512 characters: over 3,000 classes, of which 128 are compiled.
        let worst = vec![rule(format!("(?i)[{}]", r"\pL".repeat(169))); 20];
        let refused = refusals(&worst);
        assert_eq!(refused.len(), 20);
        assert!(refused.iter().all(|(_, why)| why.contains("too many classes") && why.contains("may have 128")));
        let few = [rule(format!("(?i)[{}]", r"\pL".repeat(127))), rule("[0-9]".into())];
        assert_eq!(refusals(&few).iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
        // Alone it may take what twenty of it together may not. A refused pattern never matches.
        let medium = rule(r"\w{20}".into());
        assert_eq!(refusals(std::slice::from_ref(&medium)), []);
        let twenty = vec![medium; 20];
        assert_eq!(refusals(&twenty).len(), 20);
        assert!(refusals(&twenty)[0].1.contains("more than 102 KiB"));
        assert_eq!(apply(&twenty, end(&"x".repeat(30))).rule, None);
        // Patterns that users write are small enough.
        let usual = [r"(?i)cuda error|xid \d+", r"NCCL .* timed out after \d+ms", "^OSError: .*No space left"];
        let twenty: Vec<_> = usual.iter().cycle().take(20).map(|pattern| rule((*pattern).to_owned())).collect();
        assert_eq!(refusals(&twenty), []);
    }

    #[test]
    fn unknown_rule_action_means_restart() {
        let of = json!([{ "reasons": ["Signal"], "action": "Wait", "newer": 1 }]);
        assert_eq!(decided(&of, "Signal", "", None).unwrap(), "rule 1 of failurePolicy.rules: Restart");
    }
}
