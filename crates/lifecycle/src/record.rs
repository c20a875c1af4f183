//! Adds the observations since the status was written: attempts that the gang's leader reports, progress, checkpoints,
//! and a requested restart.

use super::conditions::whole_second;
use super::decision::Input;
use super::view::{View, incarnation};
use super::{checkpoints, elastic, ending, fetch, history, progress, publishing, restart_request};
use api::{AttemptEnd, CodeStatus, DataStatus, ObjectiveStatus, Reason, State, TrainingJobStatus};
use failure::restart::decide;
use failure::{Container, WorkerFacts, first_cause};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::{AgentAnswer, ObservedPod};
use plan::{Incarnation, Source};
use protocol::attempt::RestartHistory;
use protocol::code::DIGEST;
use protocol::gang::{KILLED, MAX_RESTARTS};
use protocol::inputs::FetchedContent;
use protocol::progress::LOSS;
use protocol::role::ReplicaId;
use std::ops::Range;

/// The view of a job with this previous status.
pub(super) fn take_in<'a>(input: &'a Input<'a>, status: TrainingJobStatus) -> View<'a> {
    let view = View::new(input, with_numbers(input, status)).after(with_start).after(with_gang);
    let view = view
        .after(with_data)
        .after(fetch::with_progress)
        .after(publishing::without_progress)
        .after(with_progress)
        .after(publishing::with_progress)
        .after(checkpoints::with_request)
        .after(with_checkpoints)
        .after(restart_request::accepted);
    let (elastic, resized) = elastic::decided(&view);
    let record = TrainingJobStatus { elastic, ..view.record.clone() };
    View { resized, ..view.with(record) }.after(with_loss)
}

/// Records why workers are lost while others stay. Their pods go.
fn with_loss(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    let is_there = !view.is_settled() && view.gang_job().is_some() && !view.is_losing_job();
    if is_there
        && view.queued().is_none()
        && view.shrunk().is_none()
        && let Some(end) = view.end_by_leaving()
    {
        ending::file(&mut record, end);
    }
    record
}

/// The newest incarnation and attempt among the Jobs.
fn with_numbers(input: &Input<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    let known = incarnation(&record);
    let newest = input.children.jobs.values().max_by_key(|job| job.incarnation);
    let (seen, first) = newest.map_or((1, 1), |job| (job.incarnation, job.first_attempt));
    let attempt = if seen > known.number { known.attempt.max(first) } else { known.attempt };
    (record.incarnation, record.attempt) = (Some(known.number.max(seen)), Some(attempt));
    record.restart_count.get_or_insert(0);
    record
}

fn with_start(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    // A node's clock may be behind, but no program starts before its pod is created.
    let started = |pod: &ObservedPod| Some(pod.started()?.max(pod.created?));
    let first = || view.input.children.pods.values().filter_map(|pod| started(pod)).min().map(Time);
    record.start_time = record.start_time.or_else(first);
    record
}

/// The present attempt, and how earlier ones ended. The sources are the leader's last report and its members' final
/// reports, because the leader may have ended before it was queried.
fn with_gang(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    if let Some(gang) = view.gang {
        record = history::with_newer(record, &gang.restarts);
        record = with_attempts(view, record, gang.attempt, &gang.ended);
        if let Some(digest) = gang.code.as_ref().filter(|digest| is_digest(digest) && gang.attempt > 0) {
            let known = record.code.as_ref().is_some_and(|code| code.digest == *digest);
            record.code =
                if known { record.code } else { Some(CodeStatus { digest: digest.clone(), attempt: gang.attempt }) };
        }
    }
    for pod in &view.pods {
        let Some((report, end)) = pod.report().and_then(|report| Some((report, report.gang.as_ref()?))) else {
            continue;
        };
        record = history::with_newer(record, &end.restarts);
        // The pods show more accurately how the last attempt ended. But the pod that failed first may be gone, and its
        // end unseen.
        let is_known =
            |ended: &&AttemptEnd| ended.attempt < report.attempt || (!ended.disruption && !view.shows(ended));
        let known = end.ended.iter().filter(is_known).cloned().collect::<Vec<_>>();
        record = with_attempts(view, record, report.attempt, &known);
    }
    view.without_guesses(record)
}

/// An agent may send any text.
fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST).is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// `attempt` is the last one that has begun. `ended` are the earlier ones that failed or were interrupted, the oldest
/// first.
fn with_attempts(
    view: &View<'_>,
    mut record: TrainingJobStatus,
    attempt: u32,
    ended: &[AttemptEnd],
) -> TrainingJobStatus {
    let known = incarnation(&record);
    // The pods have begun no attempt yet. Or their Job was suspended and resumed unobserved, so that they count from 1
    // again.
    if attempt < known.attempt {
        return record;
    }
    let first = view.worker_job().map_or(1, |job| job.first_attempt);
    for end in ended.iter().rev().take(MAX_RESTARTS).rev().filter(|end| (first..=attempt).contains(&end.attempt)) {
        ending::add(&mut record.restarts, reported(view, end));
        if end.attempt < attempt
            && let Some(entry) = record.restarts.iter().find(|entry| entry.attempt == end.attempt).cloned()
        {
            // What the leader has not counted itself.
            let mut added = history::restart_history(&record);
            decide(&view.input.plan.policy.failure.restart, &mut added, &entry);
            record = history::with_newer(record, &added);
        }
    }
    if attempt > known.attempt {
        (record.incarnation, record.attempt) = (Some(known.number), Some(attempt));
        if record.state == Some(State::Running) {
            record.state = Some(State::Initializing); // the next attempt starts like any other
        }
    }
    record
}

/// How an attempt ended according to the leader, completed by what its pod shows.
fn reported(view: &View<'_>, end: &AttemptEnd) -> AttemptEnd {
    let time = view.by_our_clock(end.time.map_or(view.now(), whole_second));
    // Another pod may have taken the place since then.
    let was_there = |pod: &ObservedPod| pod.created.is_none_or(|created| created <= time);
    let at_place = view.all_pods.iter().filter(|pod| Some(pod.replica_id()) == end.replica_id());
    let pod = at_place.max_by_key(|pod| (was_there(pod), pod.created));
    let stated = AttemptEnd {
        reason: word(&end.reason),
        pod: pod.map(|pod| pod.name.clone()),
        node: pod.and_then(|pod| pod.node.clone()),
        time: Some(time),
        ..end.clone()
    };
    match pod.and_then(|pod| out_of_memory(pod, end)) {
        // By then the leader has decided what follows.
        Some(AttemptEnd { reason, message, exit_code, .. }) => AttemptEnd { reason, message, exit_code, ..stated },
        None => stated,
    }
}

/// What the leader can't know: only the pod's status says that the kernel sent SIGKILL for lack of memory.
fn out_of_memory(pod: &ObservedPod, end: &AttemptEnd) -> Option<AttemptEnd> {
    let killed_at = pod.out_of_memory?;
    let reported_at = end.time.filter(|_| end.reason == Reason::Signal && end.exit_code == Some(KILLED))?;
    // The container may have returned minutes later, and the kill was only reported then.
    let after = reported_at.duration_since(killed_at);
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
    first_cause([WorkerFacts { ended: Some(false), training: &container, ..WorkerFacts::from(pod) }])
}

/// One CamelCase word, as the API requires for a condition. An agent may be of any version.
fn word(reason: &Reason) -> Reason {
    const LONGEST: Range<usize> = 1..64;
    let word = reason.as_str();
    let is_word =
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word && LONGEST.contains(&word.len()) { reason.clone() } else { Reason::Failed }
}

/// The progress that the programs report, and their progress when they ended.
fn with_progress(view: &View<'_>, mut record: TrainingJobStatus) -> TrainingJobStatus {
    if let Some(agent) = view.agent_of_attempt() {
        record = progress::fold(record, agent);
        let (loss, step) = (agent.status.progress.metrics.get(LOSS), record.current_step);
        record.best_loss = progress::best_loss(record.best_loss.take(), view.current.attempt, step, loss);
        if let Some(policy) = &view.input.plan.policy.success.early_stopping {
            let (since, histories) = (agent.status.report.started_at, &agent.status.histories);
            let known = record.early_stopping.as_ref();
            record.early_stopping = progress::evaluate(policy, known, view.current.attempt, since, histories);
        }
    }
    record.objective = with_objective(view, record.objective.take());
    let last_words = view.pods.iter().find_map(|pod| pod.report()?.progress);
    match last_words {
        Some(reached) => progress::fold_end(record, &reached),
        None => record,
    }
}

/// Readings of the objective, from the last answer and from the final reports of all pods. These may have readings that
/// no answer had. Adding the same readings again changes nothing.
fn with_objective(view: &View<'_>, known: Option<ObjectiveStatus>) -> Option<ObjectiveStatus> {
    let Some(rule) = &view.input.plan.monitoring.objective else { return known };
    let known = known.filter(|known| known.metric == rule.metric);
    let mut objective = known.unwrap_or_else(|| ObjectiveStatus { metric: rule.metric.clone(), ..Default::default() });
    let reports = |place: ReplicaId| {
        let pods = view.input.children.pods.values().filter(move |pod| pod.replica_id() == place);
        let mut stated: Vec<_> =
            pods.filter_map(|pod| Some((pod.incarnation, pod.created, pod.report()?.objective.as_ref()?))).collect();
        stated.sort_by_key(|&(incarnation, created, _)| (incarnation, created));
        stated.into_iter().map(|(.., stated)| stated)
    };
    let of_first: Vec<_> = reports(ReplicaId::FIRST_WORKER).collect();
    let answer = view.input.agent.and_then(|agent| agent.status.objective.as_ref());
    of_first.iter().copied().chain(answer).for_each(|stated| objective.merge(rule, stated));
    // If the first worker has no readings, another member may have them.
    if let Some(other) = view.input.plan.gang.other_reporter() {
        let is_alone = objective.count == 0 && (!of_first.is_empty() || !other.role.is_worker());
        for stated in reports(other) {
            let is_known =
                stated.agents.iter().any(|agent| objective.agents.iter().any(|known| known.since == agent.since));
            if is_alone || is_known {
                objective.merge(rule, stated);
            }
        }
    }
    Some(objective)
}

/// The content that the init container of the only worker has fetched.
fn with_data(view: &View<'_>, record: TrainingJobStatus) -> TrainingJobStatus {
    let fetched = view.pods.iter().map(|pod| pod.fetched.as_slice()).find(|fetched| !fetched.is_empty());
    let is_known = record.data.iter().any(|data| data.incarnation == view.current.number);
    match fetched.filter(|_| !is_known) {
        Some(fetched) => with_contents(view, record, fetched),
        None => record,
    }
}

/// The content was fetched, or found in the cache. From now on its address refers to this revision.
pub(super) fn with_contents(
    view: &View<'_>,
    mut record: TrainingJobStatus,
    contents: &[FetchedContent],
) -> TrainingJobStatus {
    for input in &view.input.plan.storage.inputs {
        let Source::Fetch { uri, .. } = &input.source else { continue };
        let Some(content) = contents.iter().find(|content| content.name == input.name) else { continue };
        let known = record.data.iter().position(|data| data.name == input.name);
        let before = known.map(|known| record.data.remove(known)).filter(|data| data.uri == *uri);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        record.data.push(DataStatus {
            name: input.name.clone(),
            uri: uri.clone(),
            revision: content.revision.clone(),
            key: content.key.clone(),
            files: count(content.files),
            bytes: count(content.bytes),
            fetched_bytes: before.map_or(0, |data| data.fetched_bytes).saturating_add(count(content.fetched_bytes)),
            progress: None,
            incarnation: view.current.number,
        });
    }
    record.data.sort_by(|a, b| a.name.cmp(&b.name));
    record
}

/// The state of the checkpoints, from the agent's last answer, or from its final report once it has ended.
fn with_checkpoints(view: &View<'_>, record: TrainingJobStatus) -> TrainingJobStatus {
    match view.checkpoint_report() {
        Some(report) => checkpoints::with(record, &report),
        None => record,
    }
}

impl<'a> View<'a> {
    /// The last answer of an agent on the present attempt, in pods of the present Job.
    pub(super) fn agent_of_attempt(&self) -> Option<&'a AgentAnswer> {
        let agent = self.input.agent.filter(|agent| agent.is_of(self.current.attempt))?;
        // A Job that a queue suspends and resumes keeps the number of its attempt. An answer of its earlier pods does
        // not apply to the present pods.
        let resumed = self.worker_job().and_then(|job| job.resumed);
        resumed.is_none_or(|resumed| agent.time >= resumed).then_some(agent)
    }
}

/// The record of a failed job that starts again, as was requested.
pub(super) fn started_again(view: &View<'_>, request: String) -> TrainingJobStatus {
    let mut record = view.record.clone();
    // The time between the failure and the request does not count.
    let ended = record.completion_time.take();
    record.suspended_at = record.start_time.as_ref().and(ended.clone());
    let (reason, message) = (record.failure_reason.take(), record.failure_message.take());
    (record.duration, record.goodput) = (None, None);
    if view.unpublished_since().is_some() {
        // The programs have succeeded: no attempt follows.
        record.asked_restart = Some(restart_request::handled_restart(view, request, view.current.attempt));
        record.state = Some(State::Running);
        return record;
    }
    // The reason of the job's failure stays readable, even if no attempt of it failed.
    if let Some(reason) = reason {
        let message = message.unwrap_or_default();
        let time = ended.map_or(view.now(), |end| end.0);
        let end = AttemptEnd { time: Some(time), ..AttemptEnd::new(view.current.attempt, reason, message) };
        ending::add(&mut record.restarts, end);
    }
    let next: Incarnation = view.current.next();
    (record.incarnation, record.attempt) = (Some(next.number), Some(next.attempt));
    record.asked_restart = Some(restart_request::handled_restart(view, request, next.attempt));
    let RestartHistory { step, .. } = history::restart_history(&record);
    let judged = next.attempt.saturating_sub(1);
    record = history::with(record, RestartHistory { judged, step, ..RestartHistory::default() });
    record.state = Some(State::Pending);
    record
}
