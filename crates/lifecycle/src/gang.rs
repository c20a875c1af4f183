//! What the leader of a gang tells: attempts end and begin in the pods that exist.

use super::conditions::whole_second;
use super::evidence;
use super::step::{Step, seconds};
use super::waiting::Why;
use api::{AttemptEnd, ConditionType, Reason, State};
use failure::restart::decide;
use failure::{Container, WorkerFacts, first_cause};
use jiff::SignedDuration;
use observe::{ObservedJob, ObservedPod};
use plan::Incarnation;
use protocol::attempt::RestartHistory;
use protocol::gang::{GangPast, GangPhase, GangStatus, KILLED, MAX_RESTARTS};
use std::ops::Range;

/// How long nothing is said of a gang that has just been made and waits for its members, in seconds.
const FORMED_WITHIN: i64 = 10;
/// How long nothing is said of the proxy of a service mesh while a gang waits for its members, in seconds.
const FORMED_IN_MESH_WITHIN: i64 = 60;
/// How long agents may take beyond the grace to end all that they run, in seconds: several times what they take to give up what
/// can't be ended.
const STOPPED_WITHIN: i64 = 900;

impl<'a> Step<'a> {
    /// Takes in which attempt runs, and how those before it ended: by the leader's last answer, and by what stands in the last
    /// words of its members, for nobody may have asked it.
    pub(super) fn note_gang(&mut self) {
        if let Some(gang) = self.gang() {
            self.note_history(&gang.restarts);
            self.note_attempts(gang.attempt, &gang.ended);
        }
        for pod in self.pods(self.incarnation()) {
            let Some((report, end)) = pod.report().and_then(|report| Some((report, report.gang.as_ref()?))) else {
                continue;
            };
            self.note_history(&end.restarts);
            // How the last one ended its pods tell better.
            let is_before = |ended: &&AttemptEnd| ended.attempt < report.attempt;
            let before = end.ended.iter().filter(is_before).cloned().collect::<Vec<_>>();
            self.note_attempts(report.attempt, &before);
        }
    }

    /// What the leader told last, if it is in a pod of this incarnation.
    pub(super) fn gang(&self) -> Option<&'a GangStatus> {
        let agent = &self.input.agent?.status;
        let is_ours = |uid: &String| self.all_pods(self.incarnation()).iter().any(|pod| pod.uid == *uid);
        agent.gang.as_ref().filter(|_| agent.pod_uid.as_ref().is_some_and(is_ours))
    }

    /// `attempt` is the last one that has begun, `ended` are those before it that did not end well, the oldest first.
    fn note_attempts(&mut self, attempt: u32, ended: &[AttemptEnd]) {
        let (known, first) = (self.incarnation().attempt, self.current_job().map_or(1, |job| job.first_attempt));
        // Of pods that have begun none yet; or of a Job that was held back and let go while nobody looked, whose pods count
        // anew.
        if attempt < known {
            return;
        }
        let ended: Vec<_> = ended.iter().rev().take(MAX_RESTARTS).rev().collect();
        for (at, end) in ended.iter().enumerate() {
            if !(first..=attempt).contains(&end.attempt) {
                continue;
            }
            self.keep_told(end);
            let next = ended.get(at + 1).map_or(attempt, |next| next.attempt);
            if end.attempt < attempt
                && let Some(entry) = self.status.restarts.iter().find(|entry| entry.attempt == end.attempt).cloned()
            {
                // What the leader has not added up by itself.
                let mut history = self.history();
                decide(&self.input.plan.policy.failure.restart, &mut history, &entry);
                self.note_history(&history);
                if end.attempt >= known {
                    self.tell_restart(&entry, next);
                }
            }
        }
        self.note_attempt(attempt);
    }

    /// Attempts only grow.
    fn note_attempt(&mut self, attempt: u32) {
        let known = self.incarnation();
        if attempt > known.attempt {
            self.set_incarnation(Incarnation { attempt, ..known });
            if self.status.state == Some(State::Running) {
                self.status.state = Some(State::Initializing); // its start is told like any other
            }
        }
    }

    /// What the ends of the attempts add up to, as far as that is known.
    pub(super) fn history(&self) -> RestartHistory {
        let count = |count: Option<u32>| count.filter(|count| *count > 0);
        // An operator of before there was a history has counted.
        let counted = || match (count(self.status.restart_count), count(self.status.disruption_count).unwrap_or(0)) {
            (None, _) => RestartHistory::default(),
            (Some(restarts), disruptions) => RestartHistory {
                judged: self.incarnation().attempt.saturating_sub(1),
                failures: restarts.saturating_sub(disruptions),
                disruptions,
                ..RestartHistory::default()
            },
        };
        self.status.restart_history.clone().unwrap_or_else(counted)
    }

    /// Takes over a history that knows of more ends.
    pub(super) fn note_history(&mut self, history: &RestartHistory) {
        if history.is_newer_than(&self.history()) {
            self.set_history(history.clone());
        }
    }

    pub(super) fn set_history(&mut self, history: RestartHistory) {
        self.status.restart_count = Some(history.failures.saturating_add(history.disruptions));
        self.status.disruption_count = Some(history.disruptions).filter(|count| *count > 0);
        self.status.restart_history = Some(history);
    }

    /// Files how an attempt ended that the leader tells of, unless that is known.
    fn keep_told(&mut self, end: &AttemptEnd) {
        let current = self.incarnation();
        let pods = self.pods(current);
        let place = end.place();
        let pod = place.and_then(|place| pods.iter().find(|pod| pod.place() == place));
        let cause = AttemptEnd {
            reason: word(&end.reason),
            pod: pod.map(|pod| pod.name.clone()),
            node: pod.and_then(|pod| pod.node.clone()),
            time: end.time.map(whole_second),
            ..end.clone()
        };
        let out_of_memory = pod.and_then(|pod| out_of_memory(pod, end));
        // What follows has been decided by then.
        let decided = |found: AttemptEnd| AttemptEnd {
            reason: found.reason,
            message: found.message,
            exit_code: found.exit_code,
            ..cause.clone()
        };
        let cause = out_of_memory.map_or_else(|| cause.clone(), decided);
        let time = self.by_our_clock(current, cause.time.unwrap_or(self.input.now));
        evidence::add(&mut self.status.restarts, AttemptEnd { time: Some(time), ..cause });
    }

    /// Tells that an attempt has ended and another one follows.
    pub(super) fn tell_restart(&mut self, entry: &AttemptEnd, next: u32) {
        let ended = if entry.was_interrupted() { "was interrupted" } else { "failed" };
        let note = format!("attempt {} {ended}, attempt {next} follows: {entry}", entry.attempt);
        self.event(entry.reason != Reason::Resized, "Restarting", note);
    }

    /// Whether the leader has judged how the last attempt ended, and gathers for the next one: what happens to the pods
    /// now is no part of that end.
    pub(super) fn is_between_attempts(&self) -> bool {
        let attempt = self.incarnation().attempt;
        self.gang().is_some_and(|gang| {
            let has_ended = gang.ended.iter().any(|end| end.attempt == attempt);
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
        let why = Why { reason, message: format!("{waits_for}{}", self.words_on_mesh(is_stopping)) };
        self.status.state = Some(State::Initializing);
        if let Some(last) = self.kept(self.incarnation()).cloned() {
            self.set(ConditionType::Restarting, true, last.reason.clone(), &last.to_string());
        }
        self.set(ConditionType::Running, false, why.reason.clone(), &why.message);
        let is_heard = self.input.agent.is_some_and(|agent| agent.failing_since.is_none());
        if is_heard && is_stopping {
            return self.past_stop(job, gang, &why);
        }
        is_heard && self.past_start(job, &why)
    }

    /// What may keep the members of a gang from finding each other, once that has taken long.
    fn words_on_mesh(&mut self, is_stopping: bool) -> String {
        let pods = self.pods(self.incarnation());
        let proxy = pods.iter().find_map(|pod| pod.mesh.filter(|_| !is_stopping));
        let started = pods.iter().filter_map(|pod| pod.started()).max();
        let Some((proxy, started)) = proxy.zip(started) else { return String::new() };
        let left = FORMED_IN_MESH_WITHIN - seconds(started, self.input.now);
        if left > 0 {
            self.requeue(left);
            return String::new();
        }
        format!(
            "; a service mesh's proxy ({proxy}) runs in the pods and may hold up what the workers send each other: switch its \
             injection off (docs/jobs.md, \"Service meshes\")"
        )
    }

    /// Has the gang made again if its agents have not ended their programs long after they should have. They give up by
    /// themselves what can't be ended, so that something is wrong with one of them, or with its node.
    fn past_stop(&mut self, job: &ObservedJob, gang: &GangStatus, why: &Why) -> bool {
        let Some(since) = gang.stopping_since else { return false };
        let limit = self.input.plan.gang.workers().pod.grace_seconds.saturating_add(STOPPED_WITHIN);
        let left = limit - seconds(self.by_our_clock(self.incarnation(), since), self.input.now);
        if left > 0 {
            self.requeue(left);
            return false;
        }
        let message = format!("the programs have not stopped within {limit} s: {}", why.message);
        let cause = evidence::disruption_of_gang(Reason::Unkillable, &message);
        let entry = self.keep(self.incarnation(), &cause);
        if self.judge(&entry) {
            self.delete(job);
        }
        true
    }

    /// What was before the pods that are about to be made.
    pub(super) fn past(&self) -> GangPast {
        GangPast {
            restarts: self.history(),
            wish_used: self.status.checkpoint.as_ref().and_then(|status| Some(status.resume_from_used.as_ref()?.0)),
        }
    }
}

/// What the leader can't know: that SIGKILL was the kernel's, for lack of memory, stands on the pod alone.
fn out_of_memory(pod: &ObservedPod, end: &AttemptEnd) -> Option<AttemptEnd> {
    let killed_at = pod.out_of_memory?;
    let told = end.time.filter(|_| end.reason == Reason::Signal && end.exit_code == Some(KILLED))?;
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
fn word(reason: &Reason) -> Reason {
    const LONGEST: Range<usize> = 1..64;
    let word = reason.as_str();
    let is_word =
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word && LONGEST.contains(&word.len()) { reason.clone() } else { Reason::Failed }
}
