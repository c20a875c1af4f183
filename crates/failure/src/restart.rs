//! Decision on what follows the end of an attempt: another attempt, or the end of the job.
//!
//! All these decisions are made here. The leader of a gang decides for attempts that end in their pods. The operator
//! decides for attempts whose pods are gone or have no leader. Both use the same [`RestartHistory`], so an end that one
//! of them has judged is not judged again by the other. docs/failures.md has the rules as a table.

use protocol::attempt::{AttemptEnd, Class, RepeatedFailure, RestartHistory};
use protocol::failure_rules::{self, FailureRule};
use protocol::gang::Restarts;
use protocol::reason::Reason;
use std::time::Duration;
use text::start_of;

/// An attempt that ran this long was no quick failure, whatever it reported.
const QUICK: Duration = Duration::from_secs(300);
/// Longest wait before another attempt after failures.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The same after disruptions, whose cause may last longer.
const LONGEST_WAIT_DISRUPTED: Duration = Duration::from_secs(300);
/// Number of quick disruptions in a row that ends the job.
pub const INTERRUPTIONS: u32 = 10;
/// Characters that are kept of the reason and of the checkpoint of a failure, to recognize the same failure later.
const KEPT: usize = 160;

/// The fields of `failurePolicy` that decide on restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// `failurePolicy.restartPolicy`.
    pub restarts: Restarts,
    /// `failurePolicy.backoffLimit`: restarts after failures of the program.
    pub backoff_limit: u32,
    /// Quick disruptions in a row, without progress, of which the last one ends the job: [`INTERRUPTIONS`].
    pub interruptions: u32,
    /// `failurePolicy.rules`.
    pub rules: Vec<FailureRule>,
}

/// What follows from the end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt, after a back-off.
    Restart {
        /// Shortest time between the end and the next attempt.
        after: Duration,
    },
    /// Another attempt, once the user has chosen what it may start from.
    Wait,
    /// No other attempt.
    Stop {
        /// Why not, in a few words for brackets. Empty if the cause already says it.
        why: String,
    },
}

/// Decides what follows from the end of an attempt, and adds the end to the history. For an end that is already in the
/// history it returns the earlier decision.
///
/// The first rule that applies decides:
/// 1. After a requested end (`Restarted`, `Resized`) another attempt starts at once.
/// 2. `restartPolicy: Never` ends the job.
/// 3. If no checkpoint of the job can be used, the job waits for the user's decision.
/// 4. A disruption restarts, unless it is the tenth in a row that came within five minutes and without progress.
/// 5. A permanent failure ends the job, unless `restartPolicy` is `Always` and no rule of the user says Fail.
/// 6. A failure after `backoffLimit` restarts ends the job.
/// 7. The same failure for the third time, at the same step and from the same checkpoint, ends the job.
/// 8. Any other failure restarts.
pub fn decide(policy: &Policy, history: &mut RestartHistory, end: &AttemptEnd) -> Next {
    if end.attempt > history.judged {
        let stops = weigh(policy, history, end);
        history.judged = end.attempt;
        history.stopped = stops;
    }
    match &history.stopped {
        Some(why) => Next::Stop { why: why.clone() },
        None if end.waits_for_word() => Next::Wait,
        None => Next::Restart { after: back_off(history, end.class()) },
    }
}

/// Applies `failurePolicy.rules` to the end of an attempt.
#[must_use]
pub fn ruled(policy: &Policy, end: AttemptEnd) -> AttemptEnd {
    failure_rules::apply(&policy.rules, end)
}

/// How long after the last end of this class the next attempt may start: 0, 1, 2, 4 ... 60 s after quick failures in a row, up
/// to 300 s after quick disruptions.
fn back_off(history: &RestartHistory, class: Class) -> Duration {
    let (in_a_row, longest) = match class {
        Class::Requested => return Duration::ZERO,
        Class::Failure => (history.failures_in_a_row, LONGEST_WAIT),
        Class::Disruption => (history.disruptions_in_a_row, LONGEST_WAIT_DISRUPTED),
    };
    let doublings = in_a_row.checked_sub(2);
    doublings.map_or(Duration::ZERO, |n| {
        1u64.checked_shl(n).map_or(longest, |seconds| Duration::from_secs(seconds).min(longest))
    })
}

/// Adds an end to the history. Returns `Some` if no other attempt follows, with the reason unless the cause says it.
fn weigh(policy: &Policy, history: &mut RestartHistory, end: &AttemptEnd) -> Option<String> {
    let ran = Duration::from_secs(u64::try_from(end.ran_seconds).unwrap_or(0));
    if end.step > history.step || ran >= QUICK || end.reason == Reason::Restarted {
        (history.failures_in_a_row, history.disruptions_in_a_row) = (0, 0);
    }
    if end.reason == Reason::Restarted {
        history.repeated = None;
    }
    history.step = history.step.max(end.step);
    match end.class() {
        Class::Requested => return None,
        _ if policy.restarts == Restarts::Never => return Some("failurePolicy.restartPolicy is Never".to_owned()),
        _ if end.waits_for_word() => {
            // A job that waits for the user's decision spends no budget.
            history.disruptions = history.disruptions.saturating_add(1);
            return None;
        }
        Class::Disruption => {
            history.disruptions_in_a_row = history.disruptions_in_a_row.saturating_add(1);
            let in_a_row = history.disruptions_in_a_row;
            if in_a_row >= policy.interruptions {
                let minutes = QUICK.as_secs() / 60;
                return Some(format!(
                    "{in_a_row} interruptions in a row, each within {minutes} minutes of its start and without progress: \
                     look for what drives the workers away"
                ));
            }
            history.disruptions = history.disruptions.saturating_add(1);
            return None;
        }
        Class::Failure => {}
    }
    if end.permanent && (policy.restarts != Restarts::Always || end.rule.is_some()) {
        return Some(String::new());
    }
    let repeated = repeated(history, end);
    history.repeated.clone_from(&repeated);
    if history.failures >= policy.backoff_limit {
        return Some(match history.failures {
            0 => "failurePolicy.backoffLimit is 0".to_owned(),
            1 => format!("after 1 restart; failurePolicy.backoffLimit is {}", policy.backoff_limit),
            restarts => format!("after {restarts} restarts; failurePolicy.backoffLimit is {}", policy.backoff_limit),
        });
    }
    if let Some(RepeatedFailure { step, times, .. }) =
        repeated.filter(|repeated| repeated.times >= RepeatedFailure::ENOUGH)
    {
        return Some(format!("{times} times in a row at step {step}, without a newer checkpoint"));
    }
    history.failures = history.failures.saturating_add(1);
    history.failures_in_a_row = history.failures_in_a_row.saturating_add(1);
    history.disruptions_in_a_row = 0;
    None
}

/// The failure, and how often it has occurred in a row. `None` if the step that the program reached is unknown.
fn repeated(history: &RestartHistory, end: &AttemptEnd) -> Option<RepeatedFailure> {
    let checkpoint = end.resumed_from.as_deref().unwrap_or_default();
    let this = RepeatedFailure {
        reason: start_of(end.reason.as_str(), KEPT).to_owned(),
        step: end.step?,
        checkpoint: end_of(checkpoint).to_owned(),
        times: 1,
    };
    let before = history.repeated.as_ref().filter(|&known| RepeatedFailure { times: 1, ..known.clone() } == this);
    let times = before.map_or(1, |before| before.times.saturating_add(1));
    Some(RepeatedFailure { times, ..this })
}

/// The last characters of a path, because paths differ at their ends.
fn end_of(path: &str) -> &str {
    path.char_indices().rev().take(KEPT).last().map_or("", |(at, _)| &path[at..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::failure_rules::RuleAction;

    const POLICY: Policy =
        Policy { restarts: Restarts::OnFailure, backoff_limit: 3, interruptions: INTERRUPTIONS, rules: Vec::new() };

    fn end(reason: &str, step: Option<i64>) -> AttemptEnd {
        AttemptEnd { step, ..AttemptEnd::new(1, Reason::from(reason), "it broke") }
    }

    fn failure(n: i64) -> AttemptEnd {
        end(&format!("Reason{n}"), None)
    }

    fn disruption() -> AttemptEnd {
        AttemptEnd { disruption: true, ..end("NodeLost", None) }
    }

    fn requested(reason: &str) -> AttemptEnd {
        AttemptEnd { disruption: true, ..end(reason, None) }
    }

    /// The back-off after each end, or why no other attempt follows.
    fn decisions(policy: &Policy, ends: &[AttemptEnd]) -> Vec<Result<u64, String>> {
        let mut history = RestartHistory::default();
        let decide = |(end, attempt): (&AttemptEnd, u32)| {
            let end = ruled(policy, AttemptEnd { attempt, ..end.clone() });
            let next = decide(policy, &mut history, &end);
            let (before, again) = (history.clone(), super::decide(policy, &mut history, &end));
            assert_eq!((&history, &again), (&before, &next), "an end that was judged is not judged again");
            match next {
                Next::Restart { after } => Ok(after.as_secs()),
                Next::Wait => Err("waits".to_owned()),
                Next::Stop { why } => Err(why),
            }
        };
        ends.iter().zip(1..).map(decide).collect()
    }

    fn exceeded() -> Result<u64, String> {
        Err("after 3 restarts; failurePolicy.backoffLimit is 3".to_owned())
    }

    #[test]
    fn failures_use_the_budget_and_back_off_longer() {
        assert_eq!(decisions(&POLICY, &[0, 1, 2, 3].map(failure)), [Ok(0), Ok(1), Ok(2), exceeded()]);
        let unbounded = Policy { backoff_limit: 1000, interruptions: 1000, ..POLICY };
        let waits =
            |one: &dyn Fn(i64) -> AttemptEnd| decisions(&unbounded, &(0..11).map(one).collect::<Vec<AttemptEnd>>());
        assert_eq!(waits(&failure), [0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60].map(Ok));
        assert_eq!(waits(&|_| disruption()), [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300].map(Ok));
        assert_eq!(waits(&|n| end("ExitCode", Some(n * 100))), [0; 11].map(Ok), "progress ends a series");
        assert_eq!(waits(&|n| AttemptEnd { ran_seconds: 300, ..failure(n) }), [0; 11].map(Ok), "time does as well");
        let none = Policy { backoff_limit: 0, ..POLICY };
        assert_eq!(decisions(&none, &[failure(7)]), [Err("failurePolicy.backoffLimit is 0".to_owned())]);
    }

    #[test]
    fn tenth_quick_disruption_in_a_row_ends_the_job() {
        let mut ends = vec![disruption(); 9];
        // A resize neither adds to a series of disruptions nor ends it.
        ends.push(requested("Resized"));
        ends.push(disruption());
        let decided = decisions(&POLICY, &ends);
        assert!(decided[..10].iter().all(Result::is_ok), "{decided:?}");
        assert!(matches!(&decided[10], Err(why) if why.starts_with("10 interruptions in a row")), "{decided:?}");
        for between in [failure(1), requested("Restarted"), AttemptEnd { ran_seconds: 301, ..disruption() }] {
            ends[9] = between;
            assert!(decisions(&POLICY, &ends).iter().all(Result::is_ok), "{:?}", ends[9]);
        }
    }

    #[test]
    fn requested_restart_or_resize_uses_no_budget() {
        let ends = [failure(1), failure(2), requested("Resized"), failure(3), requested("Restarted"), failure(4)];
        assert_eq!(decisions(&POLICY, &ends)[..5], [Ok(0), Ok(1), Ok(0), Ok(2), Ok(0)]);
        assert_eq!(decisions(&POLICY, &ends)[5], exceeded());
    }

    #[test]
    fn failure_rule_is_evaluated_before_budget_and_restart_policy() {
        let rule =
            |reason: &str, action| FailureRule { reasons: vec![reason.to_owned()], action, ..FailureRule::default() };
        let rules = vec![
            rule("ImportError", RuleAction::Restart),
            rule("NodeLost", RuleAction::Fail),
            rule("ExitCode", RuleAction::Ignore),
            rule("NoUsableCheckpoint", RuleAction::Fail),
        ];
        let policy = |restarts| Policy { restarts, rules: rules.clone(), ..POLICY };
        let permanent = AttemptEnd { permanent: true, ..end("ImportError", None) };
        let again = decisions(&policy(Restarts::OnFailure), &vec![permanent; 4]);
        assert_eq!(again, [Ok(0), Ok(1), Ok(2), exceeded()], "it spends the budget");
        let ended = [Err(String::new())];
        assert_eq!(decisions(&policy(Restarts::Always), &[disruption()]), ended);
        let ignored = decisions(&policy(Restarts::OnFailure), &vec![end("ExitCode", Some(7)); 9]);
        assert_eq!(ignored[1..], [1, 2, 4, 8, 16, 32, 64, 128].map(Ok)[..], "as after disruptions");
        assert_eq!(decisions(&policy(Restarts::Always), &[end("NoUsableCheckpoint", None)]), ended);
    }

    #[test]
    fn permanent_failure_ends_the_job_unless_restart_is_always() {
        let permanent = AttemptEnd { permanent: true, ..end("CommandNotFound", None) };
        let once = |restarts| decisions(&Policy { restarts, ..POLICY }, std::slice::from_ref(&permanent));
        let never = || Err("failurePolicy.restartPolicy is Never".to_owned());
        assert_eq!(once(Restarts::OnFailure), [Err(String::new())]);
        assert_eq!(once(Restarts::Never), [never()]);
        assert_eq!(once(Restarts::Always), [Ok(0)]);
        assert_eq!(decisions(&Policy { restarts: Restarts::Never, ..POLICY }, &[disruption()]), [never()]);
    }

    #[test]
    fn job_without_a_usable_checkpoint_waits_without_using_budget() {
        let none = AttemptEnd { permanent: true, ..end("NoUsableCheckpoint", None) };
        let ends = [none.clone(), failure(1), failure(2), none, failure(3)];
        let waits = || Err("waits".to_owned());
        assert_eq!(decisions(&POLICY, &ends), [waits(), Ok(0), Ok(1), waits(), Ok(2)]);
    }

    #[test]
    fn third_identical_failure_from_one_checkpoint_ends_the_job() {
        let policy = Policy { backoff_limit: 1000, ..POLICY };
        let nan = |step| end("NaNLoss", Some(step));
        let again = || Err("3 times in a row at step 7, without a newer checkpoint".to_owned());
        assert_eq!(decisions(&policy, &[nan(7), nan(7), nan(7)]), [Ok(0), Ok(1), again()]);
        let unreported = decisions(&policy, &[0; 4].map(|_| end("ExitCode", None)));
        assert_eq!(unreported, [0, 1, 2, 4].map(Ok), "how far it came is not known");
        let lost = AttemptEnd { disruption: true, ..end("NodeLost", Some(7)) };
        assert_eq!(decisions(&policy, &[nan(7), lost, nan(7), nan(7)])[3], again());
        assert_eq!(decisions(&policy, &[nan(7), nan(7), nan(6), nan(7)])[3], Ok(4));
        let from = |n: i32| AttemptEnd { resumed_from: Some(format!("checkpoint-{}", n / 2)), ..nan(7) };
        let moving = (1..9).map(from).collect::<Vec<_>>();
        assert!(decisions(&policy, &moving).iter().all(Result::is_ok), "a newer checkpoint is progress");
        // Long paths differ at their ends.
        let from = |n: i32| AttemptEnd { resumed_from: Some(format!("{}/{n}", "ü".repeat(900))), ..nan(7) };
        assert!(decisions(&policy, &(1..9).map(from).collect::<Vec<_>>()).iter().all(Result::is_ok));
    }

    /// The words of the last column of the table in docs/failures.md are those of the program.
    #[test]
    fn docs_match_the_failure_messages() {
        let page = include_str!("../../../docs/failures.md");
        let (_, table) = page.split_once("<!-- decisions -->").unwrap();
        let (table, _) = table.split_once("<!-- /decisions -->").unwrap();
        let last = |policy: &Policy, ends: &[AttemptEnd]| decisions(policy, ends).pop().unwrap().unwrap_err();
        let nan = || end("NaNLoss", Some(7));
        let said = [
            last(&Policy { restarts: Restarts::Never, ..POLICY }, &[failure(1)]),
            last(&POLICY, &vec![disruption(); 10]),
            last(&POLICY, &[0, 1, 2, 3].map(failure)),
            last(&POLICY, &[nan(), nan(), nan()]),
        ];
        let written = table.lines().filter_map(|row| row.trim_end_matches(" |").rsplit_once("| `"));
        let written: Vec<_> = written.filter_map(|(_, words)| words.strip_suffix('`')).collect();
        assert_eq!(written, said);
    }

    #[test]
    fn request_resets_the_repeated_failure_count() {
        let policy = Policy { backoff_limit: 1000, ..POLICY };
        let nan = || end("NaNLoss", Some(7));
        let ends = [nan(), nan(), requested("Restarted"), nan(), nan()];
        assert!(decisions(&policy, &ends).iter().all(Result::is_ok));
    }
}
