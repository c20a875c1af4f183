//! What follows from the end of an attempt: another one, or the end of the gang.
//!
//! After quick failures in a row, counted over the disruptions between them, the next attempt waits 0, 1, 2, 4 ... 60 s; after
//! disruptions in a row 0, 1, 2, 4 ... 300 s. (Gangs that are made anew wait 1 s after the first failure, too: see `lifecycle`.)

use super::message::{Cause, Choice, End, Finish, History, MAX_TEXT, MemberId, Outcome, Repeat, cut};
use protocol::failure_rules::{FailureRule, Ruling, first_match};
use protocol::gang::Restarts;
use std::collections::BTreeMap;
use std::time::Duration;

/// An attempt that lasted so long was no quick failure, whatever it told.
const QUICK: Duration = Duration::from_secs(300);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT_DISRUPTED: Duration = Duration::from_secs(300);
/// So many equal failures in a row are enough.
const NO_PROGRESS: u32 = 3;

/// What a person has decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// `failurePolicy.restartPolicy`.
    pub restarts: Restarts,
    /// `failurePolicy.backoffLimit`: restarts after failures of the program.
    pub failures: u32,
    /// Restarts after disruptions; no limit without one.
    pub disruptions: Option<u32>,
    /// `failurePolicy.rules`.
    pub rules: Vec<FailureRule>,
}

impl Policy {
    /// What the first rule that matches makes of a judgement. What was asked for is no failure.
    pub fn rule(&self, judged: Judgement) -> Judgement {
        let Judgement { cause: Cause { reason, message }, exit_code, .. } = &judged;
        let ruling = first_match(&self.rules, reason, message, *exit_code).filter(|_| judged.counts != Counts::Nothing);
        let Some(ruling) = ruling else { return judged };
        Judgement {
            cause: Cause { reason: reason.clone(), message: ruling.told(message) },
            counts: if ruling.is_disruption() { Counts::Disruption } else { Counts::Failure },
            permanent: ruling.is_permanent(),
            ruling: Some(ruling),
            ..judged
        }
    }
}

/// What ended an attempt, as the leader saw it first. It need not be the cause: a lost node shows later than the failures
/// that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// A member's program failed, or its agent stopped it by itself.
    Failed(MemberId),
    /// A member fell silent, or came back without memory.
    Lost(MemberId),
    /// A member's agent was told to end by this signal.
    Left(MemberId, i32),
    /// The leader was lost: its successor found the attempt begun.
    LeaderLost,
    /// Somebody asked for another attempt, with these words.
    Ordered(String),
    /// The next attempt has other members, so many instead of so many.
    Resized {
        /// Members of this attempt.
        from: usize,
        /// Members of the next one.
        to: usize,
    },
    /// What it should go on from could not be told: the leader's report.
    Unchosen(String),
}

/// How one member came out of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberEnd {
    /// How its processes ended; none for a member that was lost, or had started none.
    pub end: Option<End>,
    /// It was lost: silent, or its agent came back without memory.
    pub lost: bool,
    /// The signal that told its agent to end.
    pub leaving: Option<i32>,
}

/// An attempt that has ended: all that there is to judge by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    /// Its number.
    pub attempt: u32,
    /// What ended it.
    pub why: Why,
    /// How each member came out of it.
    pub members: BTreeMap<MemberId, MemberEnd>,
}

/// What an attempt that ended counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    /// A failure of the program.
    Failure,
    /// Something that the program can't help.
    Disruption,
    /// Nothing: somebody asked for it.
    Nothing,
}

/// Why an attempt ended, and what it counts as: what `cause` finds in the reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Judgement {
    /// The first cause.
    pub cause: Cause,
    /// What it counts as.
    pub counts: Counts,
    /// Trying again can't help.
    pub permanent: bool,
    /// The largest step that was told.
    pub step: Option<u64>,
    /// Exit code of the program that failed first.
    pub exit_code: Option<i32>,
    /// The rule that has decided what it counts as, and whether it is permanent.
    pub ruling: Option<Ruling>,
}

/// The last attempt that was judged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Judged {
    /// How it ended.
    pub ended: Ended,
    /// What that means.
    pub judgement: Judgement,
    /// How long it ran, as far as that is known.
    pub ran: Duration,
}

/// Judges an attempt. It has to be pure, and quick.
pub type Judge = fn(&Ended) -> Judgement;

/// What follows from the end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Another attempt, not sooner than after this time.
    Restart(Duration),
    /// The end.
    Fail(Cause),
}

/// Decides what follows, and writes it into the history: budgets, back-off, causes that trying again can't mend, and the rule
/// that the same failure at the same step, gone on from the same checkpoint, ends the gang the third time. Of a program that
/// tells no steps nobody knows that.
///
/// `ran` is how long the attempt ran, as far as that is known.
pub fn decide(policy: &Policy, history: &mut History, attempt: u32, judged: &Judgement, ran: Duration) -> Verdict {
    let verdict = weigh(policy, history, judged, ran);
    history.attempt = history.attempt.max(attempt);
    history.judged = history.judged.max(attempt);
    let verdict = match verdict {
        Verdict::Fail(Cause { reason, message }) => {
            Verdict::Fail(Cause { reason: cut(reason, MAX_TEXT), message: cut(message, MAX_TEXT) })
        }
        restart @ Verdict::Restart(_) => restart,
    };
    if let Verdict::Fail(cause) = &verdict {
        history.finish = Some(Finish::Failed(cause.clone()));
    }
    verdict
}

fn weigh(policy: &Policy, history: &mut History, judged: &Judgement, ran: Duration) -> Verdict {
    if judged.step > history.step || ran >= QUICK {
        (history.failures_in_a_row, history.disruptions_in_a_row) = (0, 0);
    }
    history.step = history.step.max(judged.step);
    let fail = |reason: &str, why: &str| {
        let message = format!("{}: {} ({why})", judged.cause.reason, judged.cause.message);
        Verdict::Fail(Cause { reason: reason.to_owned(), message })
    };
    match judged.counts {
        Counts::Nothing => return Verdict::Restart(Duration::ZERO),
        _ if policy.restarts == Restarts::Never => return Verdict::Fail(judged.cause.clone()),
        Counts::Disruption => {
            history.disruptions_in_a_row = history.disruptions_in_a_row.saturating_add(1);
            if let Some(limit) = policy.disruptions.filter(|&limit| history.disruptions >= limit) {
                return fail("BackoffLimitExceeded", &format!("after {limit} restarts for disruptions"));
            }
            history.disruptions = history.disruptions.saturating_add(1);
            return Verdict::Restart(wait(history.disruptions_in_a_row, LONGEST_WAIT_DISRUPTED));
        }
        Counts::Failure => {}
    }
    if judged.permanent && (policy.restarts != Restarts::Always || judged.ruling.is_some()) {
        return Verdict::Fail(judged.cause.clone());
    }
    let again = (&judged.cause.reason, judged.step, &history.checkpoint);
    let repeat = history.repeat.take();
    let times = repeat.filter(|r| (&r.reason, r.step, &r.checkpoint) == again).map_or(0, |r| r.times);
    let (reason, checkpoint) = (cut(judged.cause.reason.clone(), MAX_TEXT), history.checkpoint.clone());
    let repeat = Repeat { reason, step: judged.step, checkpoint, times: times.saturating_add(1) };
    let (times, step) = (repeat.times, repeat.step);
    history.repeat = Some(repeat);
    if history.failures >= policy.failures {
        return match policy.failures {
            0 => Verdict::Fail(judged.cause.clone()),
            limit => fail("BackoffLimitExceeded", &format!("after {limit} restarts, as many as backoffLimit allows")),
        };
    }
    if times >= NO_PROGRESS && step.is_some() {
        let at = step.map_or_else(String::new, |step| format!(" at step {step}"));
        return fail("NoProgress", &format!("{times} times in a row{at}, without a newer checkpoint"));
    }
    history.failures = history.failures.saturating_add(1);
    history.failures_in_a_row = history.failures_in_a_row.saturating_add(1);
    history.disruptions_in_a_row = 0;
    Verdict::Restart(wait(history.failures_in_a_row, LONGEST_WAIT))
}

/// Nothing the first time, then 1 s, doubled each time, at most `longest`.
fn wait(times: u32, longest: Duration) -> Duration {
    let Some(doublings) = times.checked_sub(2) else { return Duration::ZERO };
    1u64.checked_shl(doublings).map_or(longest, |seconds| Duration::from_secs(seconds.max(1)).min(longest))
}

/// An attempt begins: what it goes on from, and where its ranks meet. Each number has its port, so that a straggler of the
/// attempt before, even of one that a lost leader has begun unseen, does not meet this one.
#[expect(clippy::cast_possible_truncation, reason = "less than the number of ports")]
pub(crate) fn begin(history: &mut History, attempt: u32, choice: &Choice, (first, count): (u16, u16)) {
    let count = u32::from(count.max(2));
    let port = |number: u32| first.saturating_add((number.wrapping_sub(1) % count) as u16);
    let port = if port(attempt) == history.port { port(attempt.wrapping_add(1)) } else { port(attempt) };
    (history.attempt, history.port) = (attempt, port);
    history.checkpoint.clone_from(&choice.checkpoint);
}

/// Judges by what ended an attempt and who came out of it, without a look at the reports.
pub fn by_what_was_seen(ended: &Ended) -> Judgement {
    let gone = ended.members.iter().find(|(_, member)| member.lost || member.leaving.is_some());
    let failed = ended.members.iter().find(|(_, m)| m.end.as_ref().is_some_and(|end| end.outcome == Outcome::Failed));
    let (counts, reason, message) = match (&ended.why, gone, failed) {
        (Why::Ordered(words), ..) => (Counts::Nothing, "Restarted", words.clone()),
        (Why::Resized { from, to }, ..) => {
            let workers = if *to == 1 { "worker" } else { "workers" };
            (Counts::Nothing, "Resized", format!("the gang goes on with {to} {workers} instead of {from}"))
        }
        (Why::Unchosen(report), ..) => (Counts::Failure, "CheckpointCorrupted", report.clone()),
        (_, Some((member, end)), _) => match end.leaving {
            Some(signal) => (Counts::Disruption, "Disrupted", format!("{member} was told to end by signal {signal}")),
            None => (Counts::Disruption, "NodeLost", format!("{member} was lost")),
        },
        (Why::Lost(member), ..) => (Counts::Disruption, "NodeLost", format!("{member} was lost")),
        (Why::LeaderLost, ..) => (Counts::Disruption, "NodeLost", "the leader was lost".to_owned()),
        (_, _, Some((member, _))) => (Counts::Failure, "ExitCode", format!("{member} failed")),
        (Why::Failed(member) | Why::Left(member, _), ..) => {
            (Counts::Disruption, "Disrupted", format!("{member} stopped"))
        }
    };
    let cause = Cause { reason: reason.to_owned(), message };
    Judgement { cause, counts, permanent: false, step: None, exit_code: None, ruling: None }
}
