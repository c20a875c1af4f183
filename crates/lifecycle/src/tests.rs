//! The rules of a job's lifecycle, each as a case, and what no sequence of observations may break.

use super::*;
use api::{AttemptEnd, Reason, RestartPolicy, State, SuccessPolicy, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use first_cause::{BAD, LOST, failed_worker, stopped};
use jiff::Timestamp;
use observe::{
    AgentAnswer, Blocked, ChildKey, Children, Container, Disruption, ObjectEvent, ObservedJob, ObservedPod,
    WaitingState,
};
use plan::{self, Incarnation, OperatorInfo};
use proptest::prelude::*;
use protocol::agent_status::AgentStatus;
use protocol::gang::GangPast;
use protocol::metric_history::{MetricHistory, NumberedReading};
use protocol::progress::{Reading, Source};
use protocol::report::Report;
use protocol::role::RoleName;
use serde_json::json;
use std::num::NonZeroU16;
use text::error_pattern::{ErrorMatch, ErrorPattern};

mod agents;
mod changed;
mod checkpoints;
mod data;
mod elastic;
mod findings;
mod first_cause;
mod gang;
mod goodput;
mod group;
mod judges;
mod lost;
mod objective;
mod publishing;
mod queue;
mod restart_request;
mod roles;
mod rules;
mod search;
mod waits;
mod walks;

const N: u32 = 2;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn spec() -> TrainingJobSpec {
    TrainingJobSpec { num_workers: NonZeroU16::new(2), gpus_per_worker: Some(4), ..TrainingJobSpec::default() }
}

fn create(number: u32) -> Action {
    Action::CreateJobs(Incarnation { number, attempt: number }, GangPast::default())
}

const FAILED_ONCE: [u32; 2] = [1, 0];
const DISRUPTED_ONCE: [u32; 2] = [0, 1];

/// Whether the second incarnation is created, after the first one had this number of failures and disruptions.
fn makes_second(verdict: &Decision, [failures, disruptions]: [u32; 2]) -> bool {
    verdict.actions.iter().any(|action| match action {
        Action::CreateJobs(Incarnation { number: 2, attempt: 2 }, GangPast { restarts, .. }) => {
            (restarts.failures, restarts.disruptions) == (failures, disruptions)
                && (restarts.failures_in_a_row, restarts.disruptions_in_a_row) == (failures, disruptions)
                && restarts.judged == 1
        }
        _ => false,
    })
}

fn create_after(number: u32, past: GangPast) -> Action {
    Action::CreateJobs(Incarnation { number, attempt: number }, past)
}

fn job(attempt: u32) -> ObservedJob {
    ObservedJob {
        uid: format!("job-{attempt}"),
        name: "x-training".into(),
        role: RoleName::WORKER,
        incarnation: attempt,
        first_attempt: attempt,
        created: Some(at(0)),
        taken_up: Some(at(0)),
        ..ObservedJob::default()
    }
}

fn pod(index: u32, attempt: u32) -> ObservedPod {
    ObservedPod {
        uid: format!("pod-{attempt}-{index}"),
        name: format!("x-training-{index}-abcde"),
        index,
        incarnation: attempt,
        created: Some(at(0)),
        ..ObservedPod::default()
    }
}

fn placed(index: u32, attempt: u32) -> ObservedPod {
    ObservedPod { node: Some(format!("node-{index}")), scheduled_at: Some(at(1)), ..pod(index, attempt) }
}

fn running(index: u32, attempt: u32) -> ObservedPod {
    ObservedPod { training: Container::Running { since: Some(at(5)) }, ..placed(index, attempt) }
}

fn ended(index: u32, attempt: u32, exit_code: i32, second: i64) -> ObservedPod {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    ObservedPod {
        ended: Some(exit_code == 0),
        training: Container::Terminated {
            started: Some(at(5)),
            finished: Some(at(second)),
            exit_code,
            reason: reason.into(),
            report: None,
            message: None,
        },
        ..placed(index, attempt)
    }
}

/// One job over several decisions; the status of each is what the next one starts from.
struct World {
    spec: TrainingJobSpec,
    status: TrainingJobStatus,
    children: Children,
    agent: Option<AgentAnswer>,
    agent_silent_since: Option<Timestamp>,
    agent_refusal: Option<&'static str>,
    held: Option<&'static str>,
    stop: Option<&'static str>,
    transfer: Option<AgentAnswer>,
    second: i64,
    refused: Option<String>,
    /// Value of the annotation that requests a restart.
    asked: Option<&'static str>,
    /// The annotation that names a checkpoint.
    from: Option<&'static str>,
    /// The annotation of a backup.
    ended: Option<String>,
    generation: i64,
}

impl World {
    fn new() -> Self {
        Self {
            spec: spec(),
            status: TrainingJobStatus::default(),
            children: Children::default(),
            agent: None,
            agent_silent_since: None,
            agent_refusal: None,
            held: None,
            stop: None,
            transfer: None,
            second: 0,
            refused: None,
            asked: None,
            from: None,
            ended: None,
            generation: 1,
        }
    }

    fn plan(&self) -> plan::Plan {
        let mut job = TrainingJob::new("x", self.spec.clone());
        let asked = self.asked.map(|value| (plan::labels::RESTART_REQUESTED.to_owned(), value.to_owned()));
        let from = self.from.map(|value| (plan::labels::RESTART_FROM.to_owned(), value.to_owned()));
        let ended = self.ended.clone().map(|value| (plan::labels::ENDED.to_owned(), value));
        job.metadata.annotations = Some(asked.into_iter().chain(from).chain(ended).collect());
        job.status = Some(self.status.clone());
        let runtime = OperatorInfo { agent_image: "agent".into(), ..OperatorInfo::default() };
        plan::resolve(&job, &runtime).plan
    }

    fn step(&mut self) -> Decision {
        let verdict = decide(&Input {
            plan: &self.plan(),
            generation: Some(self.generation),
            status: &self.status,
            refused: self.refused.as_deref(),
            children: &self.children,
            agent: self.agent.as_ref(),
            agent_silent_since: self.agent_silent_since,
            held: self.held,
            stop: self.stop,
            agent_refusal: self.agent_refusal,
            transfer: self.transfer.as_ref(),
            now: at(self.second),
        });
        self.status = verdict.status.clone();
        verdict
    }

    fn see(&mut self, job: Option<ObservedJob>, pods: impl IntoIterator<Item = ObservedPod>) {
        self.children.jobs = job.into_iter().map(|job| (RoleName::WORKER, Box::new(job))).collect();
        for pod in pods {
            self.children.pods.insert(pod.uid.clone(), Box::new(pod));
        }
    }

    fn to_running() -> Self {
        let mut world = Self::new();
        world.step();
        world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
        world.second = 10;
        world.step();
        assert_eq!(world.status.state, Some(State::Running));
        world
    }

    /// Worker 1 exits with 1 at `second`, and the Job controller removes worker 0.
    fn fail(&mut self, attempt: u32, second: i64) -> Decision {
        self.second = second;
        let cleaned = ObservedPod { deletion: Some(at(second + 1)), gone: true, ..running(0, attempt) };
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(attempt) };
        self.see(Some(failed), [cleaned, ended(1, attempt, 1, second)]);
        self.step()
    }

    fn condition(&self, type_: &str) -> (&str, &str, &str) {
        condition(&self.status.conditions, type_).map_or(("", "", ""), |c| (&c.status, &c.reason, &c.message))
    }
}

fn reasons(verdict: &Decision) -> Vec<&str> {
    verdict.events.iter().map(|e| e.reason).collect()
}

#[test]
fn job_passes_through_states_in_order() {
    let mut world = World::new();
    let first = world.step();
    assert_eq!(world.status.state, Some(State::Pending));
    assert_eq!(first.actions, [Action::Ensure, create(1)]);
    assert_eq!(reasons(&first), ["Created"]);

    world.see(Some(job(1)), [placed(0, 1), pod(1, 1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Pending), "one worker has no node");

    world.see(Some(job(1)), [placed(1, 1)]);
    assert_eq!(reasons(&world.step()), ["Scheduled"]);
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(world.status.resources.unwrap().allocated_gpus, 8);

    world.see(Some(job(1)), [running(0, 1)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing), "a pod that pulls is not running");
    assert_eq!(world.status.start_time.as_ref().unwrap().0, at(5));

    world.see(Some(job(1)), [running(1, 1)]);
    assert_eq!(reasons(&world.step()), ["Started"]);
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!(world.status.workers.unwrap().active, 2);

    world.see(Some(job(1)), [ended(0, 1, 0, 60)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running), "one has ended well, the other runs");

    world.second = 65;
    world.see(Some(job(1)), [ended(1, 1, 0, 64)]);
    assert_eq!(reasons(&world.step()), ["Completed"]);
    assert_eq!(world.status.state, Some(State::Completed));
    assert_eq!(world.status.duration.as_deref(), Some("1m"));
    assert_eq!(world.status.resources.unwrap().allocated_gpus, 0);
    assert_eq!(world.condition("Succeeded").0, "True");

    let after = world.step();
    assert!(after.actions.is_empty() && after.events.is_empty());
}

#[test]
fn gang_first_seen_running_emits_only_started_event() {
    let mut world = World::new();
    world.step();
    world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
    assert_eq!(reasons(&world.step()), ["Started"]);
    assert_eq!(world.condition("Scheduled").0, "True");
}

/// The status records such a wait only in the state and a condition.
#[test]
fn job_that_waited_for_template_still_emits_created_event() {
    let mut world = World::new();
    world.status.state = Some(State::Pending);
    assert_eq!(reasons(&world.step()), ["Created"]);
    assert_eq!(reasons(&world.step()), [""; 0]);
}

#[test]
fn repeated_step_decides_nothing_new() {
    let mut world = World::to_running();
    let again = world.step();
    assert_eq!((again.status, again.actions, again.events), (world.status.clone(), vec![Action::Ensure], vec![]));
}

#[test]
fn scheduled_condition_quotes_the_scheduler() {
    let mut world = World::new();
    world.step();
    let words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    let wait = |index| ObservedPod {
        unschedulable: Some(Box::new(WaitingState { reason: "Unschedulable".into(), message: words.into() })),
        ..pod(index, 1)
    };
    world.see(Some(job(1)), [wait(0), wait(1)]);
    world.step();
    assert_eq!(
        world.condition("Scheduled"),
        ("False", "Unschedulable", &*format!("worker 0 (and 1 more of 2 workers): {words}"))
    );
}

#[test]
fn refused_pods_are_explained_from_job_events() {
    let mut world = World::new();
    world.step();
    world.see(Some(job(1)), []);
    world.second = 1;
    assert!(world.step().read_events_of.is_empty(), "pods may take a moment");
    world.second = 5;
    world.see(Some(ObservedJob { taken_up: None, ..job(1) }), []);
    assert!(world.step().read_events_of.is_empty(), "the Job controller has not come to it");
    world.see(Some(job(1)), []);
    assert_eq!(world.step().read_events_of, ["job-1"]);
    world.children.events_read_at = Some(at(5));
    world.children.event = Some(ObjectEvent {
        about: "job-1".into(),
        reason: "PodSecurity".into(),
        message: "violates PodSecurity".into(),
    });
    let reported = world.step();
    assert!(reported.read_events_of.is_empty(), "it was just looked up");
    assert_eq!(world.condition("Scheduled").1, "PodSecurity");
    assert_eq!(world.condition("Scheduled").2, "2 of 2 workers have no pod: violates PodSecurity");
}

#[test]
fn image_pull_failure_is_reported_with_worker() {
    let mut world = World::new();
    world.step();
    let waiting = Some(Box::new(WaitingState { reason: "ErrImagePull".into(), message: "not found".into() }));
    world.see(Some(job(1)), [running(0, 1), ObservedPod { waiting, ..placed(1, 1) }]);
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(
        world.condition("Running"),
        ("False", "ImagePull", "worker 1 (pod x-training-1-abcde, node node-1): not found")
    );
}

#[test]
fn unfinished_init_container_is_named() {
    let mut world = World::new();
    world.step();
    let running_init = Some("slow-disk".into());
    world.see(Some(job(1)), [running(0, 1), ObservedPod { running_init, ..placed(1, 1) }]);
    world.step();
    let words = "worker 1 (pod x-training-1-abcde, node node-1): its init container slow-disk has not ended";
    assert_eq!(world.condition("Running"), ("False", "Starting", words));
}

#[test]
fn failed_worker_restarts_gang_after_cause_is_recorded() {
    let mut world = World::to_running();
    let verdict = world.fail(1, 20);
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!(world.status.restart_count, Some(1));
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(verdict.actions, [Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }]);
    let entry = &world.status.restarts[0];
    assert_eq!(
        (entry.worker, entry.exit_code, entry.reason.as_str(), entry.ran_seconds),
        (Some(1), Some(1), "ExitCode", 15)
    );
    assert_eq!(entry.to_string(), "worker 1 (pod x-training-1-abcde, node node-1): exit code 1");

    // The old Job is being deleted. Nothing is created, and its deletion is requested again only until it has begun.
    assert_eq!(world.step().actions.len(), 1);
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());

    world.see(None, []);
    assert!(makes_second(&world.step(), FAILED_ONCE));

    world.see(Some(job(2)), [running(0, 2), running(1, 2)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!(world.condition("Restarting").0, "False");
}

#[test]
fn back_off_doubles_up_to_60_seconds() {
    let mut world = World::to_running();
    let mut waits = Vec::new();
    world.spec.failure_policy.backoff_limit = Some(9);
    for attempt in 1..9 {
        world.fail(attempt, 20);
        world.see(None, []);
        waits.push(world.step().requeue.map(|wait| wait.as_secs()));
    }
    assert_eq!(waits[1..], [1, 2, 4, 8, 16, 32, 60].map(Some));
}

#[test]
fn exhausted_budget_fails_job_with_first_cause() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(2);
    for attempt in 1..=2 {
        world.fail(attempt, 20);
        assert_eq!(world.status.attempt, Some(attempt + 1));
    }
    let verdict = world.fail(3, 20);
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.status.failure_reason, Some("ExitCode".into()));
    let message = world.status.failure_message.clone().unwrap();
    assert!(message.ends_with("exit code 1 (after 2 restarts; failurePolicy.backoffLimit is 2)"), "{message}");
    assert_eq!(reasons(&verdict), ["Failed"]);
    assert!(!verdict.actions.iter().any(|a| matches!(a, Action::DeleteJob { .. })), "its pods stay for their logs");
}

#[test]
fn disruption_of_gone_pod_does_not_spend_budget() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    let disruption = Disruption {
        reason: "EvictionByEvictionAPI".into(),
        message: "Eviction API: evicting".into(),
        time: Some(at(20)),
    };
    // The peer's failure is an echo: it lost its connection.
    let evicted =
        ObservedPod { disruption: Some(Box::new(disruption)), deletion: Some(at(20)), gone: true, ..running(0, 1) };
    world.second = 22;
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed), [evicted, ended(1, 1, 1, 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "Evicted");
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(1), Some(1)));
    world.see(None, []);
    assert!(makes_second(&world.step(), DISRUPTED_ONCE), "at once");
}

#[test]
fn recorded_disruption_outlives_pod_and_operator() {
    let mut world = World::to_running();
    let disruption =
        Disruption { reason: "PreemptionByScheduler".into(), message: "preempted".into(), time: Some(at(20)) };
    world.second = 20;
    world.see(Some(job(1)), [ObservedPod { disruption: Some(Box::new(disruption)), ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.attempt, Some(1), "the gang has not ended");
    // Another operator comes up and finds no pod at all.
    world.children.pods.clear();
    world.see(Some(ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) }), []);
    world.step();
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), ("Preempted", Some(1)));
}

/// No observer saw what took the pods. A pod whose program has failed would still exist.
#[test]
fn unobserved_loss_of_pods_counts_as_disruption() {
    for (reason, reported) in [("PodFailurePolicy", "Disrupted"), ("BackoffLimitExceeded", "PodsLost")] {
        let mut world = World::to_running();
        world.children.pods.clear();
        world.see(Some(ObservedJob { failed: Some((reason.into(), String::new())), ..job(1) }), []);
        world.step();
        assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), (reported, Some(1)));
    }
}

/// The Job controller deletes the pods of a Job that has failed. The pod that failed it is the missing one.
#[test]
fn missing_pod_of_failed_job_counts_as_lost() {
    for (seen, reported, disruptions) in [(vec![0], "PodsLost", Some(1)), (vec![0, 1], "PodDeleted", None)] {
        let mut world = World::to_running();
        world.children.pods.clear();
        world.second = 20;
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
        let deleted = |gone| move |index| ObservedPod { deletion: Some(at(20)), gone, ..running(index, 1) };
        world.see(Some(failed.clone()), seen.iter().copied().map(deleted(false)));
        world.step();
        world.second = 30;
        world.see(Some(failed), seen.iter().copied().map(deleted(true)));
        world.step();
        assert_eq!((world.status.attempt, world.status.restarts.len()), (Some(2), 1), "{seen:?}");
        assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), (reported, disruptions));
    }
}

/// After a break of the watch, the Job controller has seen a success whose pod is gone since.
#[test]
fn worker_with_unseen_success_is_not_lost() {
    let job = || ObservedJob { completed: [0].into(), ..job(1) };
    let unseen = || ObservedPod { gone: true, ..running(0, 1) };
    let mut world = World::to_running();
    world.second = 20;
    world.see(Some(job()), [unseen()]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    let workers = world.status.workers.unwrap();
    assert_eq!((workers.active, workers.succeeded, workers.failed), (1, 1, 0));
    world.second = 30;
    world.see(Some(job()), [ended(1, 1, 1, 30)]);
    world.step();
    let end = &world.status.restarts[0];
    assert_eq!((end.reason.as_str(), end.worker), ("ExitCode", Some(1)), "of the worker that failed");

    let mut world = World::to_running();
    world.second = 20;
    let both = ObservedJob { completed: [0, 1].into(), ..job() };
    world.see(Some(both), [unseen(), ended(1, 1, 0, 20)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

/// For example its node was to be drained, and the program was faster.
#[test]
fn evicted_worker_that_succeeded_has_not_failed() {
    let mut world = World::new();
    world.step();
    let moved =
        observe::Disruption { reason: "EvictionByEvictionAPI".into(), message: "moved".into(), time: Some(at(18)) };
    world.second = 20;
    let done = ObservedPod { disruption: Some(Box::new(moved)), deletion: Some(at(18)), ..ended(0, 1, 0, 19) };
    world.see(Some(ObservedJob { completed: [0].into(), ..job(1) }), [done, running(1, 1)]);
    world.step();
    assert_eq!((world.status.state, world.condition("Running").0), (Some(State::Running), "True"));
    assert!(world.status.restarts.is_empty());
}

/// Pods of the second attempt are seen, but still only the first attempt's Jobs.
#[test]
fn stale_job_watch_is_not_a_deleted_job() {
    let mut world = World::to_running();
    assert!(!misses_job(&world.plan(), &world.status, &world.children));
    (world.status.attempt, world.status.incarnation, world.status.workers) = (Some(2), Some(2), None);
    assert!(!misses_job(&world.plan(), &world.status, &world.children), "attempt 2 has not begun");
    world.see(Some(job(1)), [running(0, 2)]);
    assert!(misses_job(&world.plan(), &world.status, &world.children));
    world.see(Some(job(2)), []);
    assert!(!misses_job(&world.plan(), &world.status, &world.children));
}

/// A pod whose place is done needs no final report, and a pod that was looked for once is gone.
#[test]
fn unseen_pods_of_failed_job_are_looked_up_once() {
    let mut world = World::to_running();
    let misses = |world: &World| misses_pods(&world.status, &world.children).map(|job| job.uid.clone());
    let failed =
        || ObservedJob { parallelism: Some(2), failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.children.pods.clear();
    world.see(Some(ObservedJob { parallelism: Some(2), ..job(1) }), [running(0, 1)]);
    assert_eq!(misses(&world), None, "the Job goes on");
    world.see(Some(failed()), [running(0, 1), running(1, 1)]);
    assert_eq!(misses(&world), None, "their ends are on their way");
    world.children.pods.clear();
    world.see(Some(failed()), [running(0, 1)]);
    assert_eq!(misses(&world), Some(job(1).uid));
    world.see(Some(ObservedJob { completed: [1].into(), ..failed() }), [running(0, 1)]);
    assert_eq!(misses(&world), None, "worker 1 is done");
    world.see(Some(failed()), [running(0, 1)]);
    world.children.pods_read_of.insert(RoleName::WORKER, job(1).uid);
    assert_eq!(misses(&world), None, "it was looked for");
    world.children.pods_read_of.clear();
    world.status.incarnation = Some(2);
    assert_eq!(misses(&world), None, "it is of an earlier incarnation");
}

/// An operator that starts may see nothing yet of a running gang.
#[test]
fn started_job_is_remembered_when_watches_are_empty() {
    let mut world = World::to_running();
    (world.children.jobs, world.children.pods) = Default::default();
    assert!(misses_job(&world.plan(), &world.status, &world.children));
    world.spec.suspend = true;
    world.step();
    assert_eq!((world.status.state, world.status.attempt), (Some(State::Suspended), Some(2)));
    world.see(Some(job(1)), [running(0, 1), running(1, 1)]);
    let seen = world.step();
    assert!(seen.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }), "{seen:?}");
}

/// The watch of Jobs may be ahead of the watch of pods.
#[test]
fn failed_job_waits_for_final_reports_of_its_pods() {
    let mut world = World::to_running();
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed.clone()), [running(0, 1), running(1, 1)]);
    world.step();
    assert!(world.status.restarts.is_empty(), "{:?}", world.status.restarts);
    world.see(Some(failed), [ended(0, 1, 3, 6), ended(1, 1, 1, 7)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "ExitCode");
}

#[test]
fn manually_deleted_pod_is_the_cause_not_its_peers_error() {
    let mut world = World::to_running();
    let deleted = ObservedPod { deletion: Some(at(19)), ..ended(0, 1, 143, 21) };
    world.second = 22;
    let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed), [deleted, ended(1, 1, 1, 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "PodDeleted");
}

#[test]
fn a_worker_replaced_inside_its_job_restarts_the_gang() {
    let mut world = World::to_running();
    let vanished = ObservedPod { gone: true, ..running(1, 1) };
    let new = ObservedPod { uid: "another".into(), created: Some(at(20)), ..running(1, 1) };
    world.see(Some(job(1)), [vanished, new]);
    let verdict = world.step();
    assert_eq!((world.status.attempt, world.status.restarts[0].reason.as_str()), (Some(2), "PodDeleted"));
    assert!(verdict.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }));
}

#[test]
fn a_better_cause_replaces_an_echo_that_was_seen_first() {
    let mut world = World::to_running();
    world.second = 22;
    world.see(Some(job(1)), [failed_worker(0, 300, LOST)]);
    world.step();
    assert_eq!(world.status.restarts[0].worker, Some(0));
    world.see(Some(job(1)), [stopped(failed_worker(1, 900, BAD), 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].worker, Some(1));
    let message = world.condition("Restarting").2;
    assert!(message.ends_with("(pod x-training-1-abcde, node node-1), rank 1: ValueError: label 11"), "{message}");
}

#[test]
fn pod_that_does_not_terminate_is_named_with_remedy() {
    let mut world = World::to_running();
    let disruption =
        Disruption { reason: "DeletionByTaintManager".into(), message: "tainted".into(), time: Some(at(20)) };
    let lost = ObservedPod {
        disruption: Some(Box::new(disruption)),
        deletion: Some(at(20)),
        end_by: Some(at(80)),
        ..running(1, 1)
    };
    world.second = 21;
    world.see(Some(job(1)), [lost]);
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(74)));
    let cause = "worker 1 (pod x-training-1-abcde, node node-1): its node is lost (tainted)";
    assert_eq!(world.condition("Restarting"), ("True", "NodeLost", cause));
    world.second = 95;
    world.step();
    let (_, reason, message) = world.condition("Restarting");
    assert_eq!(reason, "NodeLost");
    assert!(
        message.starts_with(&format!("{cause}; waiting for worker 1 (pod x-training-1-abcde, node node-1)")),
        "{message}"
    );
    assert!(message.contains("delete the Node"), "{message}");
}

#[test]
fn job_event_is_not_attributed_to_its_pods() {
    let mut world = World::new();
    world.step();
    let note = |about: &str| {
        Some(ObjectEvent { about: about.into(), reason: "Storage".into(), message: "no such claim".into() })
    };
    world.see(Some(job(1)), [running(0, 1), placed(1, 1)]);
    world.children.event = note("job-1");
    world.step();
    assert_eq!(world.condition("Running").1, "Starting");
    world.children.event = note("pod-1-1");
    world.step();
    let reported = ("False", "Storage", "worker 1 (pod x-training-1-abcde, node node-1): no such claim");
    assert_eq!(world.condition("Running"), reported);
}

#[test]
fn oom_kill_and_unknown_command_have_reasons() {
    let oom = ObservedPod {
        training: Container::Terminated {
            started: Some(at(5)),
            finished: Some(at(20)),
            exit_code: 137,
            reason: "OOMKilled".into(),
            report: None,
            message: None,
        },
        ..ended(0, 1, 137, 20)
    };
    assert_eq!(first_cause([&oom].into_iter()).unwrap().reason, "OOMKilled");

    let message = r#"{"version":1,"phase":"Exited","exitCode":127,"error":{"kind":"CommandNotFound","message":"torchrum: not found in PATH"}}"#;
    let report = Report::parse(message).map(Box::new);
    let typo = ObservedPod {
        training: Container::Terminated {
            started: Some(at(5)),
            finished: Some(at(5)),
            exit_code: 127,
            reason: "Error".into(),
            report,
            message: None,
        },
        ..ended(0, 1, 127, 5)
    };
    let mut world = World::to_running();
    world.see(Some(ObservedJob { failed: Some((String::new(), String::new())), ..job(1) }), [typo, ended(1, 1, 0, 6)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Failed), "nobody pays for three gangs to learn of a typo");
    assert_eq!(world.status.failure_reason, Some("CommandNotFound".into()));
}

#[test]
fn restart_policy_never_means_one_attempt() {
    let mut world = World::to_running();
    world.spec.failure_policy.restart_policy = Some(RestartPolicy::Never);
    world.fail(1, 20);
    assert_eq!(world.status.state, Some(State::Failed));
}

#[test]
fn suspend_stops_gang_and_resume_starts_next_attempt() {
    let mut world = World::to_running();
    world.spec.suspend = true;
    let verdict = world.step();
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!(verdict.actions, [Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }]);
    assert_eq!(world.status.state, Some(State::Running), "not suspended before no pod runs");
    assert_eq!(world.condition("Suspended").1, "Suspending");

    world.second = 40;
    world.see(None, [0, 1].map(|index| ObservedPod { gone: true, ..running(index, 1) }));
    assert_eq!(reasons(&world.step()), ["Suspended"]);
    assert_eq!(world.status.state, Some(State::Suspended));
    assert_eq!(world.step().actions, [Action::Ensure]);

    world.second = 100;
    world.spec.suspend = false;
    let resumed = world.step();
    assert_eq!(resumed.actions, [Action::Ensure, create(2)]);
    assert_eq!((world.status.state, world.status.suspended_seconds), (Some(State::Pending), Some(60)));
    assert_eq!(world.status.restart_count, Some(0), "a resume is no restart");
}

/// The other workers still run when the job is suspended.
#[test]
fn failing_attempt_that_is_suspended_no_longer_runs() {
    for policy in [RestartPolicy::Never, RestartPolicy::OnFailure] {
        let mut world = World::to_running();
        world.spec.failure_policy.restart_policy = Some(policy);
        world.see(Some(job(1)), [running(0, 1), ended(1, 1, 1, 20)]);
        world.second = 21;
        world.step();
        assert_eq!(world.condition("Running").0, "False");
        world.spec.suspend = true;
        world.step();
        assert_eq!((world.status.attempt, world.status.state), (Some(2), Some(State::Initializing)), "{policy:?}");
        assert_eq!(world.condition("Suspended").1, "Suspending");
    }
}

#[test]
fn suspension_revoked_during_stop_starts_next_attempt() {
    let mut world = World::to_running();
    world.spec.suspend = true;
    world.step();
    world.spec.suspend = false;
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), []);
    world.step();
    assert_eq!(world.status.state, Some(State::Pending));
    assert_eq!((world.condition("Running").0, world.condition("Suspended").1), ("False", "Resumed"));
    world.see(None, [0, 1].map(|index| ObservedPod { gone: true, ..running(index, 1) }));
    assert!(world.step().actions.contains(&create(2)));
}

#[test]
fn trainingjob_created_suspended_creates_no_job() {
    let mut world = World::new();
    world.spec.suspend = true;
    assert_eq!(world.step().actions, [Action::Ensure], "as in a job that ran before");
    assert_eq!(world.status.state, Some(State::Suspended));
    world.spec.suspend = false;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
}

#[test]
fn active_deadline_excludes_suspended_time() {
    let mut world = World::to_running();
    world.spec.failure_policy.active_deadline_seconds = Some(100);
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(95)));
    world.status.suspended_seconds = Some(50);
    world.second = 154;
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    world.second = 155;
    let verdict = world.step();
    assert_eq!(world.status.failure_reason, Some("DeadlineExceeded".into()));
    assert_eq!(verdict.actions, [Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }]);
}

#[test]
fn ttl_deletes_the_finished_job() {
    let mut world = World::to_running();
    world.spec.ttl_seconds_after_finished = Some(30);
    world.see(Some(ObservedJob { complete: true, ..job(1) }), []);
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(30)), "also when nothing else happens");
    world.second = 40;
    assert_eq!(world.step().actions, [Action::DeleteOwner]);
}

/// A client that requests checkpoints of a job starts this image, and trusts no ConfigMap.
#[test]
fn status_records_agent_image_and_keeps_recorded_one() {
    let mut world = World::new();
    world.step();
    assert_eq!(world.status.agent_image.as_deref(), Some("agent"));
    (world.status.state, world.status.agent_image) = (Some(State::Completed), None);
    world.step();
    assert_eq!((world.status.state, world.status.agent_image.as_deref()), (Some(State::Completed), Some("agent")));
    world.status.agent_image = Some("of an older version".into());
    world.step();
    assert_eq!(world.status.agent_image.as_deref(), Some("of an older version"), "an upgrade changes nothing");
}

#[test]
fn refused_spec_fails_only_job_that_is_not_running() {
    let mut world = World::new();
    world.refused = Some("spec.resources.limits.cpu: 1x is no quantity".into());
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.condition("Accepted"), ("False", "InvalidSpec", "spec.resources.limits.cpu: 1x is no quantity"));

    let mut world = World::to_running();
    world.refused = Some("an operator of another version thinks otherwise".into());
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    let (status, _, message) = world.condition("Accepted");
    assert!(status == "False" && message.starts_with("an operator of another version thinks otherwise; "), "{message}");
    world.refused = None;
    world.step();
    assert_eq!(world.condition("Accepted").0, "True");
}

/// A mistake in a field that may change, such as a regular expression of `failurePolicy.rules`, ends nothing.
#[test]
fn spec_turned_invalid_delays_next_attempt_without_failing_job() {
    const WHY: &str = "spec.failurePolicy.rules[0].message: \"(\" is no regular expression";
    let refuse = |world: &mut World| world.refused = Some(WHY.into());

    // A suspended job, even if it has never run.
    for mut world in [World::to_running(), World::new()] {
        world.spec.suspend = true;
        world.step();
        (world.children.jobs, world.children.pods) = Default::default();
        world.step();
        assert_eq!(world.status.state, Some(State::Suspended));
        refuse(&mut world);
        world.step();
        assert_eq!(world.status.state, Some(State::Suspended));
        let (status, reason, message) = world.condition("Accepted");
        assert!((status, reason) == ("False", "InvalidSpec") && message.starts_with(WHY), "{message}");
        // After it is resumed, it waits, and begins when the spec is corrected.
        world.spec.suspend = false;
        assert!(world.step().actions.is_empty());
        assert_eq!((world.status.state, world.condition("Scheduled").1), (Some(State::Suspended), "InvalidSpec"));
        world.refused = None;
        let verdict = world.step();
        assert!(verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))), "{verdict:?}");
        assert_eq!(world.status.state, Some(State::Pending));
    }

    // Its pods are gone. The loss is counted, and the next attempt waits.
    let mut world = World::to_running();
    refuse(&mut world);
    world.fail(1, 60);
    world.see(None, []);
    world.children.pods.values_mut().for_each(|pod| pod.gone = true);
    world.second = 100;
    for _ in 0..3 {
        assert!(world.step().actions.is_empty());
    }
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 1));
    let (_, reason, message) = world.condition("Scheduled");
    let expected = format!("attempt 2 starts when the spec is corrected (kubectl edit trainingjob x): {WHY}");
    assert_eq!((reason, message), ("InvalidSpec", &*expected));
    world.refused = None;
    let second = |action: &Action| matches!(action, Action::CreateJobs(Incarnation { number: 2, .. }, _));
    assert!(world.step().actions.iter().any(second));

    // It was restored without its status, and the first reconciliation finds its attempt at an end.
    let mut world = World::to_running();
    world.status = TrainingJobStatus::default();
    refuse(&mut world);
    world.fail(1, 60);
    world.see(None, []);
    world.children.pods.values_mut().for_each(|pod| pod.gone = true);
    world.second = 100;
    world.step();
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 1));
    assert_eq!(world.condition("Scheduled").1, "InvalidSpec");

    // It waits for its turn, and has never run.
    let mut world = World::new();
    world.step();
    refuse(&mut world);
    world.step();
    assert_eq!(world.status.state, Some(State::Pending));
}

/// A mutating policy or a control plane of two versions may refuse for a while what it accepted before.
#[test]
fn previously_accepted_job_is_retried_when_found_invalid() {
    let mut world = World::to_running();
    world.fail(1, 60);
    world.see(None, []);
    world.children.pods.values_mut().for_each(|pod| pod.gone = true);
    world.second = 100;
    let invalid = Blocked { reason: "Invalid".into(), message: "Job x-training is invalid: spec.template".into() };
    world.children.blocked.insert(ChildKey::job(RoleName::WORKER), invalid);
    let second = |action: &Action| matches!(action, Action::CreateJobs(Incarnation { number: 2, .. }, _));
    assert!(world.step().actions.iter().any(second));
    assert_ne!(world.status.state, Some(State::Failed));
    assert_eq!(world.condition("Scheduled").1, "Invalid");
}

#[test]
fn taken_name_is_reported() {
    let mut world = World::new();
    world
        .children
        .blocked
        .insert(ChildKey::SERVICE, Blocked { reason: "NameTaken".into(), message: "x-headless exists".into() });
    world.step();
    assert_eq!(world.status.state, Some(State::Pending));
    assert_eq!(world.condition("Scheduled"), ("False", "NameTaken", "Service: x-headless exists"));
}

#[test]
fn job_invalid_for_api_server_fails_with_its_message() {
    let mut world = World::new();
    world.step();
    let message =
        "Job x-training is invalid: spec.template.spec.volumes[0]: may not specify more than 1 volume type".to_owned();
    world
        .children
        .blocked
        .insert(ChildKey::job(RoleName::WORKER), Blocked { reason: "Invalid".into(), message: message.clone() });
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.condition("Accepted"), ("False", "InvalidSpec", &*message));
}

#[test]
fn job_deleted_before_first_pod_is_recreated() {
    let mut world = World::new();
    world.step();
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());
    world.see(None, []);
    assert!(world.step().actions.contains(&create(1)));
}

/// The pods of the Job end with it. It returns as another attempt, when no pod of this one is left.
#[test]
fn manually_deleted_job_is_recreated_as_next_attempt() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.see(Some(ObservedJob { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());
    assert_eq!(world.status.state, Some(State::Initializing));
    world.second = 20;
    let stopping = |index| ObservedPod { deletion: Some(at(12)), ..running(index, 1) };
    world.see(None, [stopping(0), stopping(1)]);
    let verdict = world.step();
    assert_eq!((verdict.actions.as_slice(), reasons(&verdict)), (&[][..], vec!["Restarting"]));
    assert_eq!(
        world.condition("Scheduled"),
        ("False", "OldPods", "waiting for the last pods of attempt 1 to end, x-training-0-abcde among them")
    );
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(1), Some(1)), "nobody's failure");
    world.see(None, [0, 1].map(|index| ObservedPod { gone: true, ..stopping(index) }));
    assert!(makes_second(&world.step(), DISRUPTED_ONCE));
    assert_eq!(world.status.restarts[0].reason, "JobDeleted");
}

/// The watches of pods and of Jobs are not synchronized: deleted pods are seen before their deleted Job.
#[test]
fn pods_deleted_with_their_job_are_not_the_cause() {
    let mut world = World::to_running();
    world.second = 20;
    world.see(Some(job(1)), [ObservedPod { deletion: Some(at(20)), gone: true, ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "PodDeleted");
    world.see(None, [ObservedPod { deletion: Some(at(20)), gone: true, ..running(1, 1) }]);
    world.step();
    assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), ("JobDeleted", Some(1)));
}

/// Kueue preempts by suspending the Job: its pods go, and later the same Job creates others.
#[test]
fn a_job_suspended_by_a_queue_manager_has_not_failed() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    let stopped = |index| ObservedPod { deletion: Some(at(20)), gone: true, ..running(index, 1) };
    world.second = 20;
    world.see(Some(job(1)), [stopped(0)]); // seen before the change of the Job
    world.step();
    let held = ObservedJob { suspended_by_queue: true, ..job(1) };
    world.see(Some(held), [stopped(1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 0));
    assert_eq!((world.condition("Scheduled").1, world.condition("Running").0), ("Queued", "False"));
    let workers = world.status.workers.unwrap();
    assert_eq!((workers.active, workers.failed, workers.pending), (0, 0, 2));

    world.second = 60;
    let later = |index| ObservedPod {
        uid: format!("later-{index}"),
        created: Some(at(60)),
        training: Container::Running { since: Some(at(61)) },
        ..running(index, 1)
    };
    // All within one second: created, stopped, and the Job resumed.
    let quick = ObservedPod { uid: "quick".into(), deletion: Some(at(60)), gone: true, ..later(0) };
    world.see(Some(ObservedJob { resumed: Some(at(60)), ..job(1) }), [quick, later(0), later(1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restart_count), (Some(State::Running), Some(0)));
}

#[test]
fn job_scaled_below_gang_size_has_not_failed() {
    let mut world = World::to_running();
    world.second = 20;
    let gone = ObservedPod { deletion: Some(at(20)), gone: true, ..running(1, 1) };
    world.see(Some(job(1)), [gone]); // seen before the change of the Job
    world.step();
    world.see(Some(ObservedJob { parallelism: Some(1), ..job(1) }), []);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 0));
    assert_eq!(world.condition("Scheduled").1, "Parallelism");
}

#[test]
fn failure_reason_outlives_its_job() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.second = 20;
    world.see(Some(job(1)), [ended(1, 1, 3, 20)]);
    world.step();
    world.see(None, [ObservedPod { gone: true, ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.status.failure_reason, Some("ExitCode".into()));
}

#[test]
fn job_deleted_after_its_workers_succeeded_is_completed() {
    let mut world = World::to_running();
    world.see(None, [0, 1].map(|index| ObservedPod { gone: true, ..ended(index, 1, 0, 20) }));
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

#[test]
fn orphaned_pods_are_named() {
    let mut world = World::to_running();
    world.see(None, []);
    world.step();
    let why = "pod x-training-0-abcde of attempt 1 runs on without its Job; delete it, since attempt 2 starts when no pod is left";
    assert_eq!(world.condition("Scheduled"), ("False", "OldPods", why));
    world.spec.suspend = true;
    world.step();
    assert_ne!(world.status.state, Some(State::Suspended), "a pod runs");
}

fn any_pod() -> impl Strategy<Value = ObservedPod> {
    let state = prop_oneof![
        Just(pod as fn(u32, u32) -> ObservedPod),
        Just(placed as fn(u32, u32) -> ObservedPod),
        Just(running as fn(u32, u32) -> ObservedPod),
        Just((|i, a| ended(i, a, 0, 20)) as fn(u32, u32) -> ObservedPod),
        Just((|i, a| ended(i, a, 1, 20)) as fn(u32, u32) -> ObservedPod),
    ];
    (0..N, 1..3u32, state, any::<bool>(), any::<bool>()).prop_map(|(index, attempt, make, gone, disrupted)| {
        ObservedPod {
            gone,
            disruption: disrupted
                .then(|| Box::new(Disruption { reason: "x".into(), message: String::new(), time: Some(at(20)) })),
            ..make(index, attempt)
        }
    })
}

fn any_job() -> impl Strategy<Value = Option<ObservedJob>> {
    proptest::option::of((1..3u32, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(attempt, deleting, complete, failed)| ObservedJob {
            deleting,
            complete: complete && !failed,
            failed: failed.then(|| ("BackoffLimitExceeded".into(), String::new())),
            ..job(attempt)
        },
    ))
}

proptest! {
    /// Whatever is seen, in whatever order, the attempt only grows and the end is final. A Job is never created beside
    /// another one nor while suspended. A decision repeated on its own result writes nothing new.
    #[test]
    fn no_observation_breaks_invariants(
        steps in proptest::collection::vec(
            (any_job(), proptest::collection::vec(any_pod(), 0..4), gang::any_leader(), any::<bool>(), 0..100i64),
            1..12,
        )
    ) {
        let mut world = World::new();
        for (job, pods, agent, suspend, later) in steps {
            let before = world.status.clone();
            world.agent = agent;
            world.spec.suspend = suspend;
            world.second += later;
            world.children.pods.clear();
            world.see(job, pods);
            let verdict = world.step();
            prop_assert!(world.status.attempt >= before.attempt && world.status.incarnation >= before.incarnation);
            prop_assert!(world.status.restart_count >= before.restart_count);
            prop_assert!(world.status.restarts.is_sorted_by_key(|entry| entry.attempt));
            if before.state.is_some_and(State::is_finished) {
                prop_assert_eq!(&world.status.state, &before.state);
            }
            for action in &verdict.actions {
                if let Action::CreateJobs(attempt, _) = action {
                    prop_assert!(world.children.jobs.is_empty() && !suspend);
                    prop_assert!(!world.children.pods.values().any(|p| p.is_alive() && p.incarnation < attempt.number));
                    prop_assert_eq!(Some(attempt.attempt), world.status.attempt);
                }
                if let Action::DeleteJob { uid, .. } = action {
                    prop_assert_eq!(Some(uid), world.children.job(RoleName::WORKER).map(|j| &j.uid));
                }
            }
            prop_assert!(world.status.restarts.len() <= 10);
            let settled = world.step().status;
            prop_assert_eq!(&settled, &world.step().status);
        }
    }
}
