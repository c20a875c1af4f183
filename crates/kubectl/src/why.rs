//! The diagnosis of a job, in sentences for a person.

use super::advice::{Names, advice, needs_another_spec};
use super::blame::{Blame, node_to_blame};
use super::facts::{Facts, TrialOf, WorkerState};
use super::screen::{DisplayOptions, Screen, Style, age, count, number, span};
use api::{AttemptEnd, Condition, Reason, RestartPolicy, State};
use jiff::Timestamp;
use protocol::attempt::RepeatedFailure;
use serde::Serialize;
use std::collections::BTreeSet;

/// Seconds without progress after which a running program is worth a look. Evaluations and checkpoints are shorter.
const QUIET: i64 = 600;
/// The same for a program whose steps are all done. It still writes its model and its last checkpoint.
const QUIET_AT_THE_END: i64 = 120;
/// Seconds by which one program may report progress before the operator sees all programs run.
const FIRST_WORDS: i64 = 30;
/// Seconds for which a program that has just started is not judged.
const WARM_UP: i64 = 300;
/// The GPU use, in percent, below which something else slows the program down.
const LOW_GPU: f64 = 50.0;
/// Seconds after which a running operator would have noticed a job.
const UNNOTICED: i64 = 30;
/// What to do about a job that failed because its attempts repeat the same failure.
const REPEATED: &str = "Three attempts failed for the same reason at the same step, resumed from the same checkpoint. Another \
                        attempt would fail, too. Read the log of the worker that the message names, and check the data \
                        of that step.";

/// The state of a job, for a user.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// No operator has noticed it.
    Unnoticed,
    /// It waits for nodes, quota or an object.
    Pending,
    /// It has nodes, and waits for images, volumes or programs.
    Starting,
    /// An attempt has failed and the next one follows.
    Restarting,
    /// It runs, and nothing speaks against it.
    Running,
    /// It runs, and something holds it up.
    Slow,
    /// Its programs have succeeded, and their result has yet to be published.
    Publishing,
    /// It was asked to stop.
    Suspended,
    /// It succeeded.
    Completed,
    /// It won't run any more.
    Failed,
    /// It is on its way out.
    Deleting,
}

/// What is known of a job, and what to do.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The state of the job, in one word.
    pub verdict: Health,
    /// The reason of the status that decides, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What makes it wait or made it fail, in the words of the component that reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What is known of it, in sentences.
    pub says: Vec<String>,
    /// What to do, in sentences. Empty if nothing has to be done.
    pub advice: Vec<String>,
}

impl Diagnosis {
    /// Judges these facts.
    #[must_use]
    pub fn from_facts(facts: &Facts) -> Self {
        let mut it = Self { verdict: Health::Pending, reason: None, message: None, says: vec![], advice: vec![] };
        match (facts.deleting, facts.status.state) {
            (Some(since), _) => {
                it.verdict = Health::Deleting;
                it.say(format!("{} is being deleted (requested {} ago).", facts.name, age(since, facts.time)));
                it.advise(format!(
                    "Wait for the grace period of its pods. If the TrainingJob stays, check its finalizers, of which this \
                     operator sets none: kubectl get tj {} -n {} -o yaml",
                    facts.name, facts.namespace
                ));
            }
            (_, None) => it.unnoticed(facts),
            (_, Some(State::Pending)) => it.pending(facts),
            (_, Some(State::Initializing)) => it.starting(facts),
            (_, Some(State::Running)) => it.running(facts),
            (_, Some(State::Suspended)) => it.suspended(facts),
            (_, Some(State::Completed)) => it.completed(facts),
            (_, Some(State::Failed)) => it.failed(facts),
            (_, Some(State::Unknown)) => it.of_newer_operator(facts),
        }
        it.checkpoints(facts);
        it.search(facts);
        if facts.is_behind() {
            it.say("The operator has not yet observed the last change of the spec.".into());
        }
        for unread in &facts.unread {
            it.say(format!("Not read: {unread}."));
        }
        it
    }

    /// Reason and message in one line; empty if nothing decides.
    #[must_use]
    pub fn headline(&self) -> String {
        match (&self.reason, &self.message) {
            (Some(reason), Some(message)) => format!("{reason}: {message}"),
            (Some(text), None) | (None, Some(text)) => text.clone(),
            (None, None) => String::new(),
        }
    }

    fn say(&mut self, sentence: String) {
        self.says.push(sentence);
    }

    fn advise(&mut self, sentence: impl Into<String>) {
        self.advice.push(sentence.into());
    }

    /// Takes reason and message from the deciding condition.
    fn decided_by(&mut self, condition: &Condition) {
        self.reason = Some(condition.reason.clone());
        self.message = Some(condition.message.clone()).filter(|m| !m.is_empty());
    }

    fn advise_on(&mut self, facts: &Facts, reason: &str) {
        let Some(advice) = advice(reason, Names::for_reason(facts, reason)) else { return };
        if self.advice.contains(&advice) {
            return;
        }
        self.advise(advice);
        // A failed job gets this advice whatever the reason.
        if needs_another_spec(reason) && self.verdict != Health::Failed {
            self.advise_on_spec(facts);
        }
    }

    fn advise_on_reason(&mut self, facts: &Facts) {
        if let Some(reason) = self.reason.clone() {
            self.advise_on(facts, &reason);
        }
    }

    /// Most of the spec may change while no program runs.
    fn advise_on_spec(&mut self, facts: &Facts) {
        let (name, namespace) = (&facts.name, &facts.namespace);
        let stops = facts.status.start_time.is_some() && facts.status.state == Some(State::Running);
        let stop = if stops {
            format!("stop the job (kubectl trainingjob stop {name} -n {namespace} --wait), then ")
        } else {
            String::new()
        };
        let advice = format!(
            "To change the spec, {stop}apply the corrected file or set fields: kubectl trainingjob resubmit {name} -n \
             {namespace} --set FIELD=VALUE. Framework, template and storage can't change: that takes a new job."
        );
        if !self.advice.contains(&advice) {
            self.advise(advice);
        }
    }

    fn unnoticed(&mut self, facts: &Facts) {
        self.verdict = Health::Unnoticed;
        let seconds = facts.created.map_or(0, |then| facts.time.duration_since(then).as_secs());
        if let Some(accepted) = facts.condition_is("Accepted", false) {
            self.decided_by(accepted);
            self.say(format!("The operator cannot process {}: {}", facts.name, sentence(&accepted.message)));
            return self.advise_on_reason(facts);
        }
        self.say(format!("No operator has processed {}, which was created {} ago.", facts.name, span(seconds)));
        if seconds < UNNOTICED {
            self.advise("Nothing yet: check again in a moment.");
        } else {
            self.advise(format!(
                "Check that the operator runs (kubectl get pods -n trainingjob-system) and watches namespace {}.",
                facts.namespace
            ));
        }
    }

    fn pending(&mut self, facts: &Facts) {
        self.verdict = Health::Pending;
        self.say(format!("{}.", has_been(facts, "Pending")));
        // It waits for its template.
        if let Some(accepted) = facts.condition_is("Accepted", false) {
            self.decided_by(accepted);
            self.say(sentence(&accepted.message));
            return self.advise_on_reason(facts);
        }
        match facts.condition_is("Scheduled", false) {
            Some(scheduled) => self.waits_by(facts, scheduled),
            None => self.say("The condition Scheduled gives no reason yet.".into()),
        }
        let gpus = match facts.spec.gpus_per_worker() {
            0 => String::new(),
            n => format!(" with {} each ({} in total)", count(n.into(), "GPU"), count(facts.gpus().into(), "GPU")),
        };
        self.say(format!("It requests {}{gpus}.", count(facts.spec.num_workers().into(), "worker")));
        self.restarted(facts);
        self.advise_on_reason(facts);
        self.needless_gpus(facts);
        // While pods are being made and placed, every gang is half placed for a moment.
        let is_being_placed = self.reason.as_deref() == Some("Scheduling");
        let holds = !is_being_placed && self.half_placed(facts);
        if !holds && !is_being_placed && self.reason.as_deref() != Some("Queued") {
            self.advise("Nothing is lost by waiting: the job starts by itself once the cause is fixed.");
        }
    }

    /// Says how to change a job that requests GPUs only because that is the default.
    fn needless_gpus(&mut self, facts: &Facts) {
        let is_missing = facts.condition_is("Scheduled", false).is_some_and(|scheduled| lacks_gpus(&scheduled.message));
        if is_missing && facts.spec.gpus_per_worker() > 0 {
            self.advise(format!(
                "If the program needs no GPU, write gpusPerWorker: 0 (run: --gpus 0), because the default is 1. To change \
                 this job: kubectl trainingjob resubmit {} -n {} --set gpusPerWorker=0",
                facts.name, facts.namespace
            ));
        }
    }

    /// Says what a condition says, and since when.
    fn waits_by(&mut self, facts: &Facts, condition: &Condition) {
        self.decided_by(condition);
        let since = age(condition.last_transition_time.0, facts.time);
        let (type_, reason) = (&condition.type_, &condition.reason);
        self.say(match condition.message.as_str() {
            "" => format!("The condition {type_} has been {} for {since} ({reason}).", condition.status),
            words => {
                format!(
                    "The condition {type_} has been {} for {since} ({reason}): {}",
                    condition.status,
                    sentence(words)
                )
            }
        });
    }

    fn starting(&mut self, facts: &Facts) {
        if let Some(restarting) = facts.condition_is("Restarting", true) {
            self.verdict = Health::Restarting;
            self.decided_by(restarting);
            let (last, attempt) = (facts.status.restarts.last(), facts.status.attempt.unwrap_or(1));
            let ended = last.map_or(attempt - 1, |last| last.attempt);
            let how = if last.is_some_and(AttemptEnd::was_interrupted) { "was interrupted" } else { "failed" };
            let since = age(restarting.last_transition_time.0, facts.time);
            let reason = &restarting.reason;
            self.say(format!(
                "{} is restarting: attempt {ended} {how} {since} ago ({reason}): {}",
                facts.name,
                sentence(&restarting.message)
            ));
            if let Some(scheduled) = facts.condition_is("Scheduled", false).filter(|c| c.reason != "Scheduling") {
                self.say(format!(
                    "The next attempt is waiting ({}): {}",
                    scheduled.reason,
                    sentence(&scheduled.message)
                ));
                self.advise_on(facts, &scheduled.reason);
                self.half_placed(facts);
            } else if let Some(running) = facts.condition_is("Running", false).filter(|c| is_start(c, restarting)) {
                // The next attempt in the same pods has no number before it begins.
                let attempt = attempt.max(ended + 1);
                self.say(format!("Attempt {attempt} is starting ({}): {}", running.reason, sentence(&running.message)));
                self.advise_on(facts, &running.reason);
            } else {
                self.say(stopping(facts).unwrap_or_else(|| {
                    "The back-off between attempts that fail within five minutes is 1 s, 2 s, 4 s, and up to 60 s."
                        .into()
                }));
            }
            self.restarted(facts);
            self.advise_on_reason(facts);
            return;
        }
        self.verdict = Health::Starting;
        let been = has_been(facts, "Initializing");
        self.say(format!("{been}: every worker has a node, but not every program is running yet."));
        if let Some(running) = facts.condition_is("Running", false) {
            self.waits_by(facts, running);
        }
        self.restarted(facts);
        self.advise_on_reason(facts);
    }

    /// The programs have succeeded, and what they wrote has yet to be published.
    fn publishing(&mut self, facts: &Facts, condition: &Condition) {
        self.verdict = Health::Publishing;
        self.say(format!("The programs of {} have succeeded, and their result is not published yet.", facts.name));
        self.waits_by(facts, condition);
        self.advise_on_reason(facts);
    }

    /// Measured values of a running job that are lower than they should be.
    fn low_values(&mut self, facts: &Facts, ran: i64) -> Vec<String> {
        let (status, mut why_slow) = (&facts.status, Vec::new());
        let gpu = status.metrics.as_ref().and_then(|m| m.gpu_utilization);
        if let Some(gpu) = gpu.filter(|gpu| *gpu < LOW_GPU && facts.gpus() > 0 && ran >= WARM_UP) {
            why_slow.push(format!("GPU utilization was {} % when last measured.", number(gpu)));
            self.advise(
                "Idle GPUs usually wait for data. Use more data loader workers, data closer to the nodes, or a larger batch. \
                 Other causes are frequent evaluations, frequent checkpoints and slow links between the nodes.",
            );
        }
        let throughput = status.metrics.as_ref().and_then(|m| m.throughput).zip(facts.spec.monitoring.min_throughput);
        if let Some((now, wanted)) = throughput.filter(|(now, wanted)| now < wanted && ran >= WARM_UP) {
            why_slow.push(format!(
                "Throughput was {} when last reported, below monitoring.minThroughput {}.",
                number(now),
                number(wanted)
            ));
            self.advise(format!(
                "Compare GPUs, CPU and memory of the workers on the job dashboard with an earlier time. If the rate is as good as \
                 it gets, lower the field: kubectl patch tj {} -n {} --type merge -p \
                 '{{\"spec\":{{\"monitoring\":{{\"minThroughput\":{}}}}}}}'",
                facts.name,
                facts.namespace,
                number(now)
            ));
        }
        why_slow
    }

    fn running(&mut self, facts: &Facts) {
        if let Some(unpublished) = facts.condition_is("ResultPublished", false) {
            return self.publishing(facts, unpublished);
        }
        let status = &facts.status;
        let ran = facts.since.map_or(0, |since| facts.time.duration_since(since).as_secs());
        let mut no_progress = None;
        let mut why_slow = Vec::new();
        let is_of_now = |time: &Timestamp| facts.since.is_none_or(|s| s.duration_since(*time).as_secs() <= FIRST_WORDS);
        let reported = status.last_progress_time.as_ref().map(|time| time.0).filter(is_of_now);
        let all_done = status.progress.as_deref() == Some("100%");
        match reported {
            Some(last) if all_done && facts.time.duration_since(last).as_secs() >= QUIET_AT_THE_END => {
                let since = age(last, facts.time);
                no_progress = Some(format!("All steps were done {since} ago, and the program has not exited."));
            }
            Some(last) if facts.time.duration_since(last).as_secs() >= QUIET => {
                let since = age(last, facts.time);
                no_progress =
                    Some(format!("The program last reported progress {since} ago, at {last:.0}{}.", at_step(facts)));
            }
            Some(last) => {
                self.say(format!("The program reported progress {} ago{}.", age(last, facts.time), at_step(facts)));
            }
            None if status.last_progress_time.is_some() && ran >= QUIET => {
                no_progress = Some(format!(
                    "The program has reported no progress since this attempt started, {} ago.",
                    span(ran)
                ));
            }
            None => self.say("The program has reported no progress, so its pace is unknown.".into()),
        }
        if let Some(nan) = facts.condition_is("LossFinite", false) {
            self.decided_by(nan);
            let since = age(nan.last_transition_time.0, facts.time);
            why_slow.push(format!("The loss has been NaN or infinite for {since}: {}", sentence(&nan.message)));
            self.advise_on_reason(facts);
        }
        if let Some(flat) = facts.condition_is("LossImproving", false) {
            why_slow.push(format!("The loss no longer improves: {}", sentence(&flat.message)));
            self.advise_on(facts, &flat.reason);
        }
        if let Some(silent) = facts.condition_is("AgentReady", false) {
            // A job may make progress although its agent does not answer.
            no_progress = None;
            let since = age(silent.last_transition_time.0, facts.time);
            self.say(format!("The agent has not answered for {since}: {}", sentence(&silent.message)));
            self.advise_on(facts, &silent.reason);
        } else if no_progress.is_none() && why_slow.is_empty() {
            let stalled = facts.condition_is("ProgressStalled", true);
            no_progress = stalled.map(|stalled| format!("Progress has stalled: {}", sentence(&stalled.message)));
        }
        if let Some(enough) = facts.condition_is("Stopping", true) {
            let (reason, message) = (&enough.reason, sentence(&enough.message));
            self.say(format!("The success policy is met ({reason}), and the workers are stopping: {message}"));
        }
        why_slow.extend(self.low_values(facts, ran));
        let quiet = no_progress.is_some();
        if quiet {
            self.advise(format!(
                "See what the workers are doing (kubectl trainingjob stacks {0} -n {1}) and what they print (kubectl \
                 trainingjob logs {0} -n {1} -f --tail 20). A long evaluation or checkpoint reports no progress either.",
                facts.name, facts.namespace
            ));
            self.advise(format!(
                "If the program hangs, restart it in the same pods, which does not count against backoffLimit: kubectl \
                 trainingjob restart {} -n {}",
                facts.name, facts.namespace
            ));
        }
        let why_slow: Vec<_> = no_progress.into_iter().chain(why_slow).collect();
        self.verdict = if why_slow.is_empty() { Health::Running } else { Health::Slow };
        let learns = ["LossFinite", "LossImproving"].iter().all(|type_| facts.condition_is(type_, false).is_none());
        let how = match (why_slow.is_empty(), learns) {
            (true, _) => "",
            (false, true) => ", but is slow or stuck",
            (false, false) => ", but is not learning",
        };
        self.says.insert(0, format!("{}{how}.", has_been(facts, "Running")));
        self.says.splice(1..1, why_slow);
        if let Some(left) = status.estimated_seconds_remaining.filter(|_| !quiet) {
            self.say(format!("About {} remain.", span(left)));
        }
        let ended = facts.workers.iter().filter(|w| w.state == WorkerState::Succeeded).count();
        if ended > 0 {
            let all = count(facts.spec.num_workers().into(), "worker");
            self.say(format!("{ended} of {all} have succeeded. The others are still running."));
        }
        self.restarted(facts);
        if let Some(last) = status.restarts.last().filter(|_| status.restarts.len() > 2) {
            let before = self.advice.len();
            self.advise_on(facts, last.reason.as_str());
            if self.advice.len() == before {
                self.advise(format!(
                    "Check the causes of its restarts: kubectl trainingjob status {} -n {}",
                    facts.name, facts.namespace
                ));
            }
        }
    }

    fn suspended(&mut self, facts: &Facts) {
        self.verdict = Health::Suspended;
        self.say(format!("{}: no worker is running, and claims stay.", has_been(facts, "Suspended")));
        let held = facts.trial_of.as_ref().and_then(|of| Some((of, facts.condition_is("Suspended", true)?)));
        if let Some((of, held)) = held.filter(|_| !facts.spec.suspend) {
            self.say(sentence(&held.message));
            self.advise(format!(
                "To resume the search with its trials: kubectl trainingjob resume tuningjob/{} -n {}",
                of.tuning_job, facts.namespace
            ));
        } else if facts.spec.suspend {
            self.say("spec.suspend is true.".into());
            self.advise(format!("To resume the job: kubectl trainingjob resume {} -n {}", facts.name, facts.namespace));
        } else {
            self.say("spec.suspend is false again, so the job is about to start.".into());
        }
        self.restarted(facts);
    }

    fn of_newer_operator(&mut self, facts: &Facts) {
        let version = env!("CARGO_PKG_VERSION");
        self.say(format!("{} is in a state that version {version} of this plugin does not know.", facts.name));
        self.advise("Upgrade the plugin: a newer operator has set the state.");
        if let Some(refused) = facts.condition_is("Accepted", false) {
            self.decided_by(refused);
            self.say(sentence(&format!("{}: {}", refused.reason, refused.message)));
            self.advise_on_reason(facts);
        }
    }

    fn completed(&mut self, facts: &Facts) {
        self.verdict = Health::Completed;
        let ago = facts.since.map(|then| format!(" {} ago", age(then, facts.time))).unwrap_or_default();
        let took = facts.status.duration.as_ref().map(|took| format!(", after {took}")).unwrap_or_default();
        self.say(format!("{} completed{ago}{took}.", facts.name));
        if let Some(succeeded) = facts.condition_is("Succeeded", true) {
            self.decided_by(succeeded);
            self.say(sentence(&format!("{}: {}", succeeded.reason, succeeded.message)));
        }
        if let Some(published) = facts.condition_is("ResultPublished", true) {
            self.say(sentence(&published.message));
        }
        self.restarted(facts);
    }

    fn failed(&mut self, facts: &Facts) {
        self.verdict = Health::Failed;
        let status = &facts.status;
        self.reason = status.failure_reason.as_ref().map(ToString::to_string);
        self.message.clone_from(&status.failure_message);
        let ago = facts.since.map(|then| format!(" {} ago", age(then, facts.time))).unwrap_or_default();
        let reason = self.reason.clone().unwrap_or_else(|| "the status has no reason".into());
        let attempts = match status.attempt {
            Some(n) if status.start_time.is_some() => format!(" in attempt {n}"),
            _ => ", before anything ran".into(),
        };
        self.say(format!("{} failed{ago}{attempts}: {reason}.", facts.name));
        if let Some(message) = &status.failure_message {
            self.say(sentence(message));
        }
        let last = status.restarts.last();
        let by_signal = last.filter(|last| last.reason == Reason::Signal);
        if let Some(code) = by_signal.and_then(|last| last.exit_code) {
            self.say(match (code, code - 128) {
                (code, signal @ 1..=64) => format!("The exit code was {code} (128 + signal {signal})."),
                (code, _) => format!("The exit code was {code}."),
            });
        }
        if last.is_some_and(|last| last.permanent)
            && facts.spec.failure_policy.restart_policy() != RestartPolicy::Always
        {
            self.say("A retry could not have helped.".into());
        }
        self.restarted(facts);
        let repeated = status.restart_history.as_ref().and_then(|history| history.repeated.as_ref());
        if repeated.is_some_and(|repeated| repeated.times >= RepeatedFailure::ENOUGH) {
            self.advise(REPEATED);
        } else {
            self.advise_on_reason(facts);
        }
        let log = format!("kubectl trainingjob logs {} -n {} --failed", facts.name, facts.namespace);
        let is_named = self.advice.iter().any(|advice| advice.contains(&log));
        if !is_named && last.and_then(|last| last.worker).is_some() {
            self.advise(format!("To read the log of the worker that caused the failure: {log}"));
        }
        self.advise(format!(
            "To restart the job unchanged, with a new restart budget: kubectl trainingjob restart {} -n {}",
            facts.name, facts.namespace
        ));
        self.advise_on_spec(facts);
    }

    /// Says from which checkpoint the job could resume, and what is wrong with its checkpoints.
    fn checkpoints(&mut self, facts: &Facts) {
        if let Some(status) = &facts.status.checkpoint {
            if let Some(path) = &status.resumed_from {
                self.say(format!("This attempt resumed from checkpoint {path}."));
            }
            if let Some(path) = &status.latest_path {
                let step = status.latest_step.map(|step| format!(", step {step}")).unwrap_or_default();
                let age = status.last_checkpoint_time.as_ref().map(|time| format!(", {} old", age(time.0, facts.time)));
                let age = age.unwrap_or_default();
                self.say(format!("The newest good checkpoint is {path}{step}{age}."));
            }
            if let Some(path) = status.pending_backup.as_ref().filter(|_| facts.is_finished()) {
                self.say(format!("Checkpoint {path} has yet to be copied."));
            }
        }
        if let Some(bad) = facts.condition_is("CheckpointsDurable", false).filter(|_| !facts.is_finished()) {
            self.say(sentence(&bad.message));
            self.advise_on(facts, &bad.reason);
        }
        if let Some(bad) = facts.condition_is("CheckpointsHealthy", false) {
            let since = age(bad.last_transition_time.0, facts.time);
            self.say(format!("Checkpoint problem for {since} ({}): {}", bad.reason, sentence(&bad.message)));
            self.advise_on(facts, &bad.reason);
            self.advise(format!(
                "To list the checkpoints and the state of each: kubectl trainingjob checkpoints {} -n {}",
                facts.name, facts.namespace
            ));
        }
    }

    /// Names the search that the job is a trial of, or that it runs itself.
    fn search(&mut self, facts: &Facts) {
        let namespace = &facts.namespace;
        if let Some(TrialOf { tuning_job, trial }) = &facts.trial_of {
            self.say(format!("{} is trial {trial} of the search {tuning_job} (TuningJob).", facts.name));
            self.advise(format!("To see the search: kubectl trainingjob tune {tuning_job} -n {namespace}"));
        } else if facts.spec.hyper_parameter_tuning_config.is_some() {
            let name = &facts.name;
            self.say(format!("{name} runs no workers itself: it runs the search of the TuningJob {name}."));
            self.advise(format!("To see the search: kubectl trainingjob tune {name} -n {namespace}"));
            self.advise(format!("To see why it stands so: kubectl trainingjob why tuningjob/{name} -n {namespace}"));
        }
    }

    /// Describes the restarts so far, and what they have in common.
    fn restarted(&mut self, facts: &Facts) {
        let Some(restarts) = facts.status.restart_count.filter(|n| *n > 0) else { return };
        let disruptions = facts.status.disruption_count.unwrap_or(0);
        let counted = restarts.saturating_sub(disruptions);
        let limit = facts.spec.failure_policy.backoff_limit();
        let mut text = format!("The job has been restarted {}", times(restarts));
        if disruptions > 0 {
            let ignored = facts.status.restarts.iter().any(|restart| restart.disruption && restart.rule.is_some());
            let or = if ignored { " or failures that a rule of failurePolicy.rules ignores" } else { "" };
            text +=
                &format!(" ({disruptions} of them after evictions, preemptions or lost nodes{or}, which don't count)");
        }
        self.say(format!(
            "{text}. It has used {counted} of the {limit} restarts that failurePolicy.backoffLimit allows."
        ));
        let causes: Vec<&AttemptEnd> = facts.status.restarts.iter().collect();
        let reasons: BTreeSet<&str> = causes.iter().map(|r| r.reason.as_str()).collect();
        if causes.len() > 1 && reasons.len() == 1 {
            self.say(format!("The last {} attempts ended for the same reason: {}.", causes.len(), causes[0].reason));
        }
        if let Some(Blame { node, failures }) = node_to_blame(&facts.status.restarts) {
            self.say(if failures == causes.len() {
                format!("The first failure was on node {node} every time.")
            } else {
                format!(
                    "Of the last {} failures, {failures} are of a kind that nodes cause, all of them on node {node}.",
                    causes.len()
                )
            });
            self.advise(format!("Check node {node}, and keep new pods off it meanwhile: kubectl cordon {node}"));
        }
    }

    /// Says what the placed part of a waiting gang holds, and what would help. Returns whether it holds anything.
    fn half_placed(&mut self, facts: &Facts) -> bool {
        let (placed, all) = (facts.placed(), u32::from(facts.spec.num_workers()));
        if placed < 1 || placed >= all {
            return false;
        }
        let (have, hold) = if placed == 1 { ("has", "holds") } else { ("have", "hold") };
        let gpus = placed * u32::from(facts.spec.gpus_per_worker());
        let held = if gpus == 0 { "idle CPUs and memory".into() } else { count(gpus.into(), "idle GPU") };
        // The condition itself mentions the GPUs.
        let is_said = gpus > 0
            && facts
                .condition_is("Scheduled", false)
                .is_some_and(|c| ["Unschedulable", "SchedulingGated"].contains(&c.reason.as_str()));
        if !is_said {
            self.say(format!(
                "Meanwhile {placed} of its {} {have} a node and {hold} {held} until the others have a node, too.",
                count(all.into(), "worker")
            ));
        }
        self.advise(
            "To keep a gang from holding resources before all of it fits, put it into a Kueue queue (scheduling.queue). \
             A scheduler that places gangs as a whole does the same (scheduling.gang).",
        );
        self.advise(format!(
            "To free what it holds now, stop the job (kubectl trainingjob stop {} -n {}). \
             failurePolicy.startDeadlineSeconds ends such a wait automatically.",
            facts.name, facts.namespace
        ));
        true
    }
}

/// Renders the diagnosis for a terminal.
#[must_use]
pub fn render(diagnosis: &Diagnosis, look: DisplayOptions) -> String {
    let mut screen = Screen::new(look);
    for (n, says) in diagnosis.says.iter().enumerate() {
        // The first sentence is the verdict.
        screen.paragraph("", if n == 0 { style(diagnosis.verdict) } else { Style::Plain }, says);
    }
    if !diagnosis.advice.is_empty() {
        screen.gap();
        screen.line(&[(Style::Bold, "What to do")]);
        for advice in &diagnosis.advice {
            screen.paragraph("- ", Style::Plain, advice);
        }
    }
    screen.text()
}

/// Returns the style of a verdict.
#[must_use]
pub fn style(verdict: Health) -> Style {
    match verdict {
        Health::Running | Health::Completed => Style::Good,
        Health::Failed | Health::Unnoticed => Style::Bad,
        Health::Suspended | Health::Deleting => Style::Dim,
        Health::Pending | Health::Starting | Health::Restarting | Health::Slow | Health::Publishing => Style::Busy,
    }
}

/// Returns whether the condition Running is about the gang that starts, and not about the one that has failed.
fn is_start(running: &Condition, restarting: &Condition) -> bool {
    let starts = ["Starting", "ImagePull", "ContainerConfig", "Storage", "Network"];
    starts.contains(&running.reason.as_str()) && running.reason != restarting.reason
}

/// Begins a sentence: `x has been Running for 12m`.
fn has_been(facts: &Facts, state: &str) -> String {
    match facts.since {
        Some(since) => format!("{} has been {state} for {}", facts.name, age(since, facts.time)),
        None => format!("{} is {state}", facts.name),
    }
}

#[expect(clippy::cast_possible_wrap, reason = "numbers of jobs and pods")]
fn stopping(facts: &Facts) -> Option<String> {
    let alive =
        facts.workers.iter().filter(|w| matches!(w.state, WorkerState::Stopping | WorkerState::Running)).count();
    (alive > 0).then(|| format!("Waiting for {} of the previous attempt to end.", count(alive as i64, "worker")))
}

fn at_step(facts: &Facts) -> String {
    let status = &facts.status;
    let of = |now: i64, all: Option<i64>| all.map_or(now.to_string(), |all| format!("{now} of {all}"));
    let step = status.current_step.map(|step| format!("step {}", of(step, status.total_steps)));
    let epoch = status.current_epoch.map(|epoch| format!("epoch {}", of(epoch, status.total_epochs)));
    let parts: Vec<String> = [status.progress.clone(), epoch, step].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

fn times(n: u32) -> String {
    match n {
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    }
}

/// Ends the words with a full stop.
fn sentence(words: &str) -> String {
    let words = words.trim_end();
    if words.ends_with(['.', '!', '?']) { words.to_owned() } else { format!("{words}.") }
}

/// Whether a scheduler's message names a GPU among the resources that the nodes lack.
fn lacks_gpus(message: &str) -> bool {
    let lacking = message.split("Insufficient ").skip(1);
    let mut names = lacking.filter_map(|rest| rest.split([',', ' ']).next());
    names.any(|name| plan::is_gpu(name.trim_end_matches('.')))
}
