//! `run`, `attach` and `wait`: follow a job to its end, and exit with its result.

use super::cluster::Cluster;
use super::facts::Facts;
use super::job_reader::now;
use super::logs::{self, LogQuery};
use super::pod_selection::{Indices, PodSelection, roles};
use super::screen::{DisplayOptions, bar, span};
use super::why::Diagnosis;
use api::{Guarded, State, TrainingJob};
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Interval between two looks of `wait`.
const LOOK: Duration = Duration::from_secs(1);
/// Gangs with more pods than this show only the first worker, unless others are chosen.
const ALL_SHOWN: usize = 8;
/// How long the API server may be unreachable.
const UNREACHABLE: Duration = Duration::from_secs(300);

/// The outcome for a job, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has reached the goal, or is Completed.
    Met,
    /// It failed, or ended in another way.
    Failed,
    /// The time is up.
    Late,
    /// It was deleted.
    Deleted,
    /// It was stopped, and nothing runs.
    Stopped,
}

impl Outcome {
    /// The exit code of the command. 1 and 2 are errors of the command itself.
    #[must_use]
    pub fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Met => 0,
            Self::Failed => 3,
            Self::Late => 4,
            Self::Deleted => 5,
            Self::Stopped => 6,
        })
    }
}

/// What `wait` waits for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitGoal {
    /// The job is Completed.
    #[default]
    Completed,
    /// The job is Failed.
    Failed,
    /// All workers run.
    Running,
    /// The job is stopped, and no worker runs.
    Suspended,
    /// The job is Completed or Failed.
    Finished,
}

impl WaitGoal {
    /// Whether a job in this state has reached the goal, or never will.
    fn outcome(self, state: Option<State>) -> Option<Outcome> {
        let is_met = match (self, state?) {
            (Self::Completed, State::Completed)
            | (Self::Failed, State::Failed)
            | (Self::Running, State::Running | State::Completed)
            | (Self::Suspended, State::Suspended)
            | (Self::Finished, State::Completed | State::Failed) => true,
            (_, state) if state.is_finished() => false,
            _ => return None,
        };
        Some(if is_met { Outcome::Met } else { Outcome::Failed })
    }
}

/// Waits until a job has reached the goal, and prints its state then.
///
/// # Errors
/// If there is no such job, or the cluster is unreachable for minutes.
pub async fn wait(
    cluster: &Cluster,
    name: &str,
    goal: WaitGoal,
    timeout: Option<Duration>,
) -> anyhow::Result<(Outcome, String)> {
    let first = cluster.find(name).await?;
    let (namespace, uid) = (first.namespace().unwrap_or_default(), first.uid());
    let begun = Instant::now();
    let mut reached = Instant::now();
    let mut job = first;
    loop {
        let state = job.status.as_ref().and_then(|status| status.state);
        if let Some(outcome) = goal.outcome(state) {
            return Ok((outcome, describe(&job)));
        }
        if timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
            let waited = span(i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX));
            return Ok((Outcome::Late, format!("{}, after {waited}", describe(&job))));
        }
        tokio::time::sleep(LOOK).await;
        let api = cluster.api::<Guarded>(&namespace);
        let what = format!("get TrainingJob {name} in namespace {namespace}");
        match cluster.ask(&what, api.get_opt(name)).await {
            Ok(Some(found)) if found.uid() == uid => {
                reached = Instant::now();
                if let Ok(found) = found.0 {
                    job = found;
                }
            }
            Ok(_) => return Ok((Outcome::Deleted, format!("{name} was deleted"))),
            Err(error) if reached.elapsed() >= UNREACHABLE => return Err(error),
            Err(_) => {}
        }
    }
}

/// Describes the state of a job in one line.
fn describe(job: &TrainingJob) -> String {
    let name = job.name_any();
    let status = job.status.clone().unwrap_or_default();
    let state = status.state.map_or("not seen by the operator yet", State::as_str);
    match (&status.failure_reason, status.state) {
        (Some(reason), Some(State::Failed)) => {
            let words = status.failure_message.as_deref().map(|words| format!(": {words}")).unwrap_or_default();
            format!("{name} is {state}, {reason}{words}")
        }
        _ => format!("{name} is {state}"),
    }
}

/// Shows the logs and the progress of a job until it has ended or is stopped.
///
/// # Errors
/// If there is no such job, or its logs may not be read.
pub async fn attach(
    cluster: &Cluster,
    name: &str,
    mut choice: PodSelection,
    tail: Option<i64>,
    look: DisplayOptions,
    out: &mut dyn Write,
) -> anyhow::Result<(Outcome, String)> {
    let job = cluster.find(name).await?;
    let pods: usize = roles(&job).iter().map(|(_, replicas)| *replicas as usize).sum();
    if choice.is_all() && pods > ALL_SHOWN {
        logs::remark(&format!("showing worker 0 of {pods} pods; --worker 0-{} shows others", pods - 1));
        choice.worker = Some(Indices(BTreeSet::from([0])));
    }
    let is_finished = job.status.as_ref().and_then(|status| status.state).is_some_and(State::is_finished);
    if !is_finished {
        let wanted = LogQuery { choice, follow: true, progress: true, tail, ..LogQuery::default() };
        let namespace = job.namespace().unwrap_or_default();
        let followed = logs::run(cluster, name, wanted, look, out);
        tokio::select! {
            followed = followed => followed?,
            _ = tokio::signal::ctrl_c() => {
                logs::remark(&format!(
                    "{name} goes on. To follow it again: kubectl trainingjob attach {name} -n {namespace}; to stop it: kubectl \
                     trainingjob stop {name} -n {namespace}"
                ));
                return Ok((Outcome::Met, String::new()));
            }
        }
    }
    let api = cluster.api::<Guarded>(&job.namespace().unwrap_or_default());
    let found = cluster.ask(&format!("get TrainingJob {name}"), api.get_opt(name)).await?;
    let Some(found) = found.filter(|found| found.uid() == job.uid()).and_then(|found| found.0.ok()) else {
        return Ok((Outcome::Deleted, format!("{name} was deleted")));
    };
    let outcome = match found.status.as_ref().and_then(|status| status.state) {
        Some(State::Completed) => Outcome::Met,
        Some(State::Failed) => Outcome::Failed,
        _ => Outcome::Stopped,
    };
    Ok((outcome, conclusion(&found, outcome)))
}

/// The message at the end.
fn conclusion(job: &TrainingJob, outcome: Outcome) -> String {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let more = match outcome {
        Outcome::Failed => format!(". To see what to do: kubectl trainingjob why {name} -n {namespace}"),
        Outcome::Stopped => format!(". To resume it: kubectl trainingjob resume {name} -n {namespace}"),
        _ => String::new(),
    };
    let duration = job.status.as_ref().and_then(|status| status.duration.clone());
    let after = duration.filter(|_| outcome == Outcome::Met).map(|time| format!(" after {time}")).unwrap_or_default();
    format!("{}{after}{more}", describe(job))
}

/// Returns the line below the logs: state, bar, counts, loss, time left.
#[must_use]
pub fn progress_line(job: &TrainingJob, width: usize) -> String {
    let facts = Facts::from_job(job, now());
    let status = &facts.status;
    let state = status.state.map_or("Pending", State::as_str);
    let mut parts = vec![format!("{} {state}", facts.name)];
    if let Some(percent) = facts.percent() {
        parts.push(format!("{} {}", bar(percent, 20), status.progress.clone().unwrap_or_default()));
    }
    let of = |what: &str, now: Option<i64>, all: Option<i64>| {
        Some(format!("{what} {}{}", now?, all.map(|all| format!("/{all}")).unwrap_or_default()))
    };
    parts.extend(of("epoch", status.current_epoch, status.total_epochs));
    parts.extend(of("step", status.current_step, status.total_steps));
    let loss = status.metrics.as_ref().and_then(|metrics| metrics.loss);
    parts.extend(loss.map(|loss| format!("loss {}", super::screen::number(loss))));
    if status.state == Some(State::Running) {
        parts.extend(status.estimated_seconds_remaining.map(|left| format!("{} left", span(left))));
    } else {
        parts.push(waiting(&facts));
    }
    parts.retain(|part| !part.is_empty());
    super::screen::shortened(&parts.join("  "), width)
}

/// Returns what a job waits for, in few words.
#[must_use]
pub fn waiting(facts: &Facts) -> String {
    if facts.is_finished() || facts.status.state == Some(State::Running) {
        return String::new();
    }
    Diagnosis::from_facts(facts).headline()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{ProgramMetrics, TrainingJobSpec, TrainingJobStatus};

    #[test]
    fn wait_goal_is_met_or_unreachable() {
        use State::{Completed, Failed, Initializing, Pending, Running, Suspended};
        let table = [
            (WaitGoal::Completed, vec![Completed], vec![Failed]),
            (WaitGoal::Failed, vec![Failed], vec![Completed]),
            (WaitGoal::Running, vec![Running, Completed], vec![Failed]),
            (WaitGoal::Suspended, vec![Suspended], vec![Completed, Failed]),
            (WaitGoal::Finished, vec![Completed, Failed], vec![]),
        ];
        for (goal, met, never) in table {
            for state in [Pending, Initializing, Running, Suspended, Completed, Failed] {
                let expected = match state {
                    state if met.contains(&state) => Some(Outcome::Met),
                    state if never.contains(&state) => Some(Outcome::Failed),
                    _ => None,
                };
                assert_eq!(goal.outcome(Some(state)), expected, "{goal:?} {state:?}");
            }
            assert_eq!(goal.outcome(None), None);
        }
    }

    #[test]
    fn progress_line_and_conclusion_show_known_values() {
        let mut job = TrainingJob::new("bert", TrainingJobSpec::default());
        job.metadata.namespace = Some("team".into());
        job.status = Some(TrainingJobStatus {
            state: Some(State::Running),
            progress: Some("45%".into()),
            current_epoch: Some(2),
            total_epochs: Some(4),
            current_step: Some(450),
            total_steps: Some(1000),
            metrics: Some(ProgramMetrics { loss: Some(0.51234), ..ProgramMetrics::default() }),
            estimated_seconds_remaining: Some(754),
            ..TrainingJobStatus::default()
        });
        insta::assert_snapshot!(progress_line(&job, 120), @"bert Running  [#########-----------] 45%  epoch 2/4  step 450/1000  loss 0.5123  12m left");
        assert!(progress_line(&job, 30).chars().count() <= 30);
        if let Some(status) = &mut job.status {
            (status.state, status.duration) = (Some(State::Completed), Some("12m3s".into()));
        }
        insta::assert_snapshot!(conclusion(&job, Outcome::Met), @"bert is Completed after 12m3s");
        if let Some(status) = &mut job.status {
            status.state = Some(State::Failed);
            status.failure_reason = Some("OOMKilled".into());
            status.failure_message = Some("worker 1: killed".into());
        }
        insta::assert_snapshot!(conclusion(&job, Outcome::Failed), @"bert is Failed, OOMKilled: worker 1: killed. To see what to do: kubectl trainingjob why bert -n team");
    }
}
