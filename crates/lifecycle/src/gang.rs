//! What the leader of a gang tells: attempts end and begin in the pods that exist.

use super::conditions::whole_second;
use super::step::{Step, seconds};
use super::waiting::Why;
use super::{Cause, evidence};
use api::{ConditionType, Reason, Restart, State};
use failure::{Container, WorkerFacts, first_cause};
use jiff::SignedDuration;
use observe::{ObservedJob, ObservedPod};
use plan::Incarnation;
use protocol::gang::{EndedAttempt, GangPast, GangPhase, GangStatus, KILLED, MAX_RESTARTS};
use protocol::role::{Place, RoleName};
use std::ops::Range;

/// How long nothing is said of a gang that has just been made and waits for its members, in seconds.
const FORMED_WITHIN: i64 = 10;

impl<'a> Step<'a> {
    /// Takes in which attempt runs, and how those before it ended: by the leader's last answer, and by what stands in the last
    /// words of its members, for nobody may have asked it.
    pub(super) fn note_gang(&mut self) {
        if let Some(gang) = self.gang() {
            self.note_attempts(gang.attempt, &gang.ended);
            self.note_restarts(gang.failures, gang.disruptions);
        }
        for pod in self.pods(self.incarnation()) {
            let Some((report, end)) = pod.report().and_then(|report| Some((report, report.gang.as_ref()?))) else {
                continue;
            };
            // How the last one ended its pods tell better.
            let before = end.ended.iter().filter(|ended| ended.attempt < report.attempt).cloned().collect::<Vec<_>>();
            self.note_attempts(report.attempt, &before);
            self.note_restarts(end.failures, end.disruptions);
        }
    }

    /// What the leader told last, if it is in a pod of this incarnation.
    pub(super) fn gang(&self) -> Option<&'a GangStatus> {
        let agent = &self.input.agent?.status;
        let is_ours = |uid: &String| self.all_pods(self.incarnation()).iter().any(|pod| pod.uid == *uid);
        agent.gang.as_ref().filter(|_| agent.pod_uid.as_ref().is_some_and(is_ours))
    }

    /// `running` is the last attempt that has begun, `ended` are those before it that did not end well, the oldest first.
    fn note_attempts(&mut self, running: u32, ended: &[EndedAttempt]) {
        let (known, first) = (self.incarnation().attempt, self.current_job().map_or(1, |job| job.first_attempt));
        let Ok(attempt) = i32::try_from(running) else { return };
        // Of pods that have begun none yet; or of a Job that was held back and let go while nobody looked, whose pods count
        // anew.
        if attempt < known {
            return;
        }
        let ended: Vec<_> = ended.iter().rev().take(MAX_RESTARTS).rev().collect();
        for (at, end) in ended.iter().enumerate() {
            let Some(number) = i32::try_from(end.attempt).ok().filter(|number| (first..=attempt).contains(number))
            else {
                continue;
            };
            self.keep_told(number, end);
            let next = ended.get(at + 1).map_or(running, |next| next.attempt);
            if (known..attempt).contains(&number)
                && let Some(entry) = self.status.restarts.iter().find(|entry| entry.attempt == number).cloned()
            {
                self.tell_restart(&entry, next);
            }
        }
        self.note_attempt(attempt);
    }

    /// Attempts only grow.
    fn note_attempt(&mut self, attempt: i32) {
        let known = self.incarnation();
        if attempt > known.attempt {
            self.set_incarnation(Incarnation { attempt, ..known });
            if self.status.state == Some(State::Running) {
                self.status.state = Some(State::Initializing); // its start is told like any other
            }
        }
    }

    /// Both count up to the beginning of the last attempt: what follows from its end is not among them.
    fn note_restarts(&mut self, failures: u32, disruptions: u32) {
        let count = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        let most = |known: &mut Option<i32>, n: i32| *known = (*known).max(Some(n).filter(|n| *n > 0));
        most(&mut self.status.restart_count, count(failures.saturating_add(disruptions)));
        most(&mut self.status.disruption_count, count(disruptions));
    }

    /// Files how an attempt ended that the leader tells of, unless that is known.
    fn keep_told(&mut self, attempt: i32, end: &EndedAttempt) {
        let current = self.incarnation();
        let pods = self.pods(current);
        let place = place(end);
        let pod = place.and_then(|place| pods.iter().find(|pod| pod.place() == place));
        let cause = Cause {
            reason: reason(&end.reason),
            message: message(end, pod.copied()),
            role: place.map(|place| place.role).unwrap_or_default(),
            worker: end.worker,
            pod: pod.map(|pod| pod.name.clone()),
            node: pod.and_then(|pod| pod.node.clone()),
            rank: end.rank,
            exit_code: end.exit_code,
            disruption: end.disruption,
            permanent: end.permanent,
            rule: end.rule,
            time: end.time.map(whole_second),
        };
        // What follows has been decided by then.
        let decided =
            |found: Cause| Cause { disruption: end.disruption, permanent: end.permanent, rule: end.rule, ..found };
        let cause = pod.and_then(|pod| out_of_memory(pod, end)).map_or(cause, decided);
        let time = self.by_our_clock(current, cause.time.unwrap_or(self.input.now));
        let ran_seconds = i64::try_from(end.ran_seconds).unwrap_or(i64::MAX);
        evidence::add(&mut self.status.restarts, evidence::entry(attempt, &cause, time, ran_seconds));
    }

    /// Tells that an attempt has ended and another one follows.
    pub(super) fn tell_restart(&mut self, entry: &Restart, next: impl std::fmt::Display) {
        let ended = if entry.was_interrupted() { "was interrupted" } else { "failed" };
        let note = format!("attempt {} {ended}, attempt {next} follows: {}", entry.attempt, entry.message);
        self.event(entry.reason != Reason::Resized, "Restarting", note);
    }

    /// Whether the leader has judged how the last attempt ended, and gathers for the next one: what happens to the pods
    /// now is no part of that end.
    pub(super) fn is_between_attempts(&self) -> bool {
        let attempt = self.incarnation().attempt;
        self.gang().is_some_and(|gang| {
            let has_ended = gang.ended.iter().any(|end| i64::from(end.attempt) == i64::from(attempt));
            gang.phase == GangPhase::Gathering && has_ended
        })
    }

    /// Whether the pods run and their programs don't: the gang stops, or waits for all to be there.
    pub(super) fn forms(&mut self) -> bool {
        let Some(gang) = self.gang() else { return false };
        if gang.phase == GangPhase::Gathering && gang.ended.is_empty() {
            // Programs that have just been started find each other in no time.
            let started = self.pods(self.incarnation()).iter().filter_map(|pod| pod.started()).max();
            let ran = started.map_or(i64::MAX, |started| seconds(started, self.input.now));
            if ran < FORMED_WITHIN {
                self.requeue((FORMED_WITHIN - ran).max(1));
                return false;
            }
        }
        matches!(gang.phase, GangPhase::Gathering | GangPhase::Stopping)
    }

    /// The gang stops, or waits for all to be there. True if that took too long.
    pub(super) fn forming(&mut self, job: &ObservedJob) -> bool {
        let Some(gang) = self.gang() else { return false };
        let is_stopping = gang.phase == GangPhase::Stopping;
        let waits_for = match gang.waits_for.as_str() {
            "" if is_stopping => "the programs of this attempt are stopping",
            "" => "the agents of all workers find each other",
            words => words,
        };
        let reason = if is_stopping { Reason::Stopping } else { Reason::Starting };
        let why = Why { reason, message: waits_for.to_owned() };
        self.status.state = Some(State::Initializing);
        if let Some(last) = self.kept(self.incarnation()).cloned() {
            self.set(ConditionType::Restarting, true, last.reason, &last.message);
        }
        self.set(ConditionType::Running, false, why.reason.clone(), &why.message);
        let is_heard = self.input.agent.is_some_and(|agent| agent.failing_since.is_none());
        is_heard && !is_stopping && self.past_start(job, &why)
    }

    /// Why the leader begins no further attempt, as its members' last words tell.
    pub(super) fn gang_failed(&self) -> Option<(Reason, String)> {
        let pods = self.pods(self.incarnation());
        let failed = |pod: &&ObservedPod| pod.report()?.gang.as_ref()?.failed.clone();
        pods.iter().find_map(failed).map(|(word, message)| (reason(&word), message))
    }

    /// What was before the pods that are about to be made.
    pub(super) fn past(&self) -> GangPast {
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let in_a_row = |disruptions| u32::try_from(self.quick_in_a_row(disruptions)).unwrap_or(u32::MAX);
        let disruptions = self.status.disruption_count.unwrap_or(0);
        GangPast {
            failures: count(self.status.restart_count.unwrap_or(0) - disruptions),
            disruptions: count(disruptions),
            failures_in_a_row: in_a_row(false),
            disruptions_in_a_row: in_a_row(true),
            wish_used: self.status.checkpoint.as_ref().and_then(|status| Some(status.resume_from_used.as_ref()?.0)),
        }
    }
}

/// What the leader can't know: that SIGKILL was the kernel's, for lack of memory, stands on the pod alone.
fn out_of_memory(pod: &ObservedPod, end: &EndedAttempt) -> Option<Cause> {
    let killed_at = pod.out_of_memory?;
    let told = end.time.filter(|_| reason(&end.reason) == Reason::Signal && end.exit_code == Some(KILLED))?;
    // The container may have come back minutes later, and only then was it told.
    let after = told.duration_since(killed_at);
    if after < SignedDuration::from_secs(-5) || after > SignedDuration::from_mins(10) {
        return None;
    }
    let container = Container::Terminated {
        started: None,
        finished: Some(killed_at),
        exit_code: KILLED,
        reason: "OOMKilled".to_owned(),
        report: None,
        message: None,
    };
    let facts = WorkerFacts { ended: Some(false), training: &container, ..WorkerFacts::from(pod) };
    first_cause([facts])
}

/// One CamelCase word, as the API wants it of a condition: an agent may be of any version.
fn reason(word: &str) -> Reason {
    const LONGEST: Range<usize> = 1..64;
    let is_word =
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word && LONGEST.contains(&word.len()) { Reason::from(word) } else { Reason::Failed }
}

/// Who failed first.
fn place(end: &EndedAttempt) -> Option<Place> {
    let role = end.role.as_deref().map_or(Some(RoleName::WORKER), RoleName::parse)?;
    end.worker.map(|index| Place { role, index })
}

/// The leader's words, with the pod for the worker.
fn message(end: &EndedAttempt, pod: Option<&ObservedPod>) -> String {
    let words = place(end).and_then(|place| end.message.strip_prefix(&place.to_string()));
    let words = words.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    match pod.zip(words) {
        Some((pod, words)) => format!("{}{words}", pod.describe()),
        None => end.message.clone(),
    }
}
