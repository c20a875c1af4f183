//! The rules of the life of a job, each as a case, and what no sequence of observations may break.

use super::*;
use crate::api::{Reason, RestartPolicy, State, SuccessPolicy, TrainingJob, TrainingJobSpec, TrainingJobStatus};
use crate::observe::{
    AgentAnswer, Blocked, ChildKey, Children, Container, Disruption, JobSeen, ObjectEvent, PodSeen, Waiting,
};
use crate::plan::{self, Incarnation, Role, Runtime};
use crate::protocol::agent_status::AgentStatus;
use crate::protocol::error_pattern::{ErrorMatch, ErrorPattern};
use crate::protocol::exception::Exception;
use crate::protocol::metric_history::{MetricHistory, NumberedReading};
use crate::protocol::progress::{Reading, Source};
use crate::protocol::report::{LaunchError, LaunchErrorKind, Phase, Reached, Report};
use jiff::Timestamp;
use proptest::prelude::*;

mod agents;

const N: i32 = 2;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn spec() -> TrainingJobSpec {
    TrainingJobSpec { num_workers: N, gpus_per_worker: Some(4), ..TrainingJobSpec::default() }
}

fn create(number: i32) -> Action {
    Action::CreateJobs(Incarnation { number, attempt: number })
}

fn job(attempt: i32) -> JobSeen {
    JobSeen {
        uid: format!("job-{attempt}"),
        name: "x-training".into(),
        role: Role::WORKER,
        incarnation: attempt,
        created: Some(at(0)),
        taken_up: Some(at(0)),
        ..JobSeen::default()
    }
}

fn pod(index: i32, attempt: i32) -> PodSeen {
    PodSeen {
        uid: format!("pod-{attempt}-{index}"),
        name: format!("x-training-{index}-abcde"),
        index,
        incarnation: attempt,
        created: Some(at(0)),
        ..PodSeen::default()
    }
}

fn placed(index: i32, attempt: i32) -> PodSeen {
    PodSeen { node: Some(format!("node-{index}")), scheduled_at: Some(at(1)), ..pod(index, attempt) }
}

fn running(index: i32, attempt: i32) -> PodSeen {
    PodSeen { training: Container::Running { since: Some(at(5)) }, ..placed(index, attempt) }
}

fn ended(index: i32, attempt: i32, exit_code: i32, second: i64) -> PodSeen {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    PodSeen {
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
    second: i64,
    refused: Option<String>,
}

impl World {
    fn new() -> Self {
        Self {
            spec: spec(),
            status: TrainingJobStatus::default(),
            children: Children::default(),
            agent: None,
            second: 0,
            refused: None,
        }
    }

    fn step(&mut self) -> Verdict {
        let job = TrainingJob::new("x", self.spec.clone());
        let runtime = Runtime { agent_image: "agent".into(), agent_image_pull_policy: None };
        let verdict = decide(&Input {
            plan: &plan::resolve(&job, &runtime).plan,
            generation: Some(1),
            status: &self.status,
            refused: self.refused.as_deref(),
            children: &self.children,
            agent: self.agent.as_ref(),
            now: at(self.second),
        });
        self.status = verdict.status.clone();
        verdict
    }

    fn see(&mut self, job: Option<JobSeen>, pods: impl IntoIterator<Item = PodSeen>) {
        self.children.jobs = job.into_iter().map(|job| (Role::WORKER, job)).collect();
        for pod in pods {
            self.children.pods.insert(pod.uid.clone(), pod);
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

    /// Worker 1 exits with 1 at `second`, worker 0 is cleaned away by the Job controller.
    fn fail(&mut self, attempt: i32, second: i64) -> Verdict {
        self.second = second;
        let cleaned = PodSeen { deletion: Some(at(second + 1)), gone: true, ..running(0, attempt) };
        let failed = JobSeen { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(attempt) };
        self.see(Some(failed), [cleaned, ended(1, attempt, 1, second)]);
        self.step()
    }

    fn condition(&self, type_: &str) -> (&str, &str, &str) {
        condition(&self.status.conditions, type_).map_or(("", "", ""), |c| (&c.status, &c.reason, &c.message))
    }
}

fn reasons(verdict: &Verdict) -> Vec<&str> {
    verdict.events.iter().map(|e| e.reason).collect()
}

#[test]
fn a_job_goes_through_its_states_each_when_it_is_true() {
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
fn what_was_decided_once_is_not_decided_again() {
    let mut world = World::to_running();
    let again = world.step();
    assert_eq!((again.status, again.actions, again.events), (world.status.clone(), vec![Action::Ensure], vec![]));
}

#[test]
fn the_scheduler_is_quoted() {
    let mut world = World::new();
    world.step();
    let words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    let wait = |index| PodSeen {
        unschedulable: Some(Waiting { reason: "Unschedulable".into(), message: words.into() }),
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
fn refused_pods_are_looked_up_and_named() {
    let mut world = World::new();
    world.step();
    world.see(Some(job(1)), []);
    world.second = 1;
    assert!(world.step().read_events_of.is_empty(), "pods may take a moment");
    world.second = 5;
    world.see(Some(JobSeen { taken_up: None, ..job(1) }), []);
    assert!(world.step().read_events_of.is_empty(), "the Job controller has not come to it");
    world.see(Some(job(1)), []);
    assert_eq!(world.step().read_events_of, ["job-1"]);
    world.children.events_read_at = Some(at(5));
    world.children.event = Some(ObjectEvent {
        about: "job-1".into(),
        reason: "PodSecurity".into(),
        message: "violates PodSecurity".into(),
    });
    let told = world.step();
    assert!(told.read_events_of.is_empty(), "it was just looked up");
    assert_eq!(world.condition("Scheduled").1, "PodSecurity");
    assert_eq!(world.condition("Scheduled").2, "2 of 2 workers have no pod: violates PodSecurity");
}

#[test]
fn an_image_that_cannot_be_pulled_is_named() {
    let mut world = World::new();
    world.step();
    let waiting = Some(Waiting { reason: "ErrImagePull".into(), message: "not found".into() });
    world.see(Some(job(1)), [running(0, 1), PodSeen { waiting, ..placed(1, 1) }]);
    world.step();
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(
        world.condition("Running"),
        ("False", "ImagePull", "worker 1 (pod x-training-1-abcde, node node-1): not found")
    );
}

#[test]
fn a_failed_worker_restarts_the_gang_after_its_cause_is_kept() {
    let mut world = World::to_running();
    let verdict = world.fail(1, 20);
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!(world.status.restart_count, Some(1));
    assert_eq!(world.status.state, Some(State::Initializing));
    assert_eq!(verdict.actions, [Action::Ensure, Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }]);
    let entry = &world.status.restarts[0];
    assert_eq!(
        (entry.worker, entry.exit_code, entry.reason.as_str(), entry.ran_seconds),
        (Some(1), Some(1), "ExitCode", 15)
    );
    assert_eq!(entry.message, "worker 1 (pod x-training-1-abcde, node node-1): exit code 1");

    // The old Job is on its way: nothing is created, and its deletion is asked for again only while it was not.
    assert_eq!(world.step().actions.len(), 1);
    world.see(Some(JobSeen { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());

    world.see(None, []);
    let waiting = world.step();
    assert!(waiting.actions.is_empty(), "back-off of 1 s");
    assert_eq!(waiting.requeue, Some(std::time::Duration::from_secs(1)));
    world.second = 21;
    assert_eq!(world.step().actions, [Action::Ensure, create(2)]);

    world.see(Some(job(2)), [running(0, 2), running(1, 2)]);
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
    assert_eq!(world.condition("Restarting").0, "False");
}

#[test]
fn back_off_doubles_and_a_disruption_waits_not_at_all() {
    let mut world = World::to_running();
    let mut waits = Vec::new();
    world.spec.failure_policy.backoff_limit = Some(9);
    for attempt in 1..9 {
        world.fail(attempt, 20);
        world.see(None, []);
        waits.push(world.step().requeue.unwrap().as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn the_budget_counts_gangs_and_then_the_first_cause_is_the_reason() {
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
    assert!(
        message.ends_with("exit code 1 (attempt 3 after 2 restarts; failurePolicy.backoffLimit is 2)"),
        "{message}"
    );
    assert_eq!(reasons(&verdict), ["Failed"]);
    assert!(!verdict.actions.iter().any(|a| matches!(a, Action::DeleteJob { .. })), "its pods stay for their logs");
}

#[test]
fn a_disruption_does_not_count_even_when_its_pod_is_gone() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    let disruption = Disruption {
        reason: "EvictionByEvictionAPI".into(),
        message: "Eviction API: evicting".into(),
        time: Some(at(20)),
    };
    // The peer's failure is an echo: it lost its connection.
    let evicted = PodSeen { disruption: Some(disruption), deletion: Some(at(20)), gone: true, ..running(0, 1) };
    world.second = 22;
    let failed = JobSeen { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed), [evicted, ended(1, 1, 1, 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "Evicted");
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(1), Some(1)));
    world.see(None, []);
    assert!(world.step().actions.contains(&create(2)), "at once");
}

#[test]
fn evidence_outlives_its_pod_and_the_operator() {
    let mut world = World::to_running();
    let disruption =
        Disruption { reason: "PreemptionByScheduler".into(), message: "preempted".into(), time: Some(at(20)) };
    world.second = 20;
    world.see(Some(job(1)), [PodSeen { disruption: Some(disruption), ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.attempt, Some(1), "the gang has not ended");
    // Another operator comes up and finds no pod at all.
    world.children.pods.clear();
    world.see(Some(JobSeen { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) }), []);
    world.step();
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), ("Preempted", Some(1)));
}

/// Nobody lived to see the eviction; the Job's condition keeps the fact.
#[test]
fn a_disruption_that_nobody_saw_does_not_count() {
    for (reason, told, disruptions) in
        [("PodFailurePolicy", "Disrupted", Some(1)), ("BackoffLimitExceeded", "PodsLost", None)]
    {
        let mut world = World::to_running();
        world.children.pods.clear();
        world.see(Some(JobSeen { failed: Some((reason.into(), String::new())), ..job(1) }), []);
        world.step();
        assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), (told, disruptions));
    }
}

/// Pods of the second attempt are seen, and of Jobs still the first one's.
#[test]
fn a_watch_of_jobs_that_is_behind_is_no_deleted_job() {
    let mut world = World::to_running();
    assert!(!misses_job(&world.status, &world.children));
    (world.status.attempt, world.status.incarnation) = (Some(2), Some(2));
    assert!(!misses_job(&world.status, &world.children), "attempt 2 has not begun");
    world.see(Some(job(1)), [running(0, 2)]);
    assert!(misses_job(&world.status, &world.children));
    world.see(Some(job(2)), []);
    assert!(!misses_job(&world.status, &world.children));
}

/// The watch of Jobs may be ahead of that of pods.
#[test]
fn a_failed_job_waits_for_the_words_of_its_pods() {
    let mut world = World::to_running();
    let failed = JobSeen { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed.clone()), [running(0, 1), running(1, 1)]);
    world.step();
    assert!(world.status.restarts.is_empty(), "{:?}", world.status.restarts);
    world.see(Some(failed), [ended(0, 1, 3, 6), ended(1, 1, 1, 7)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "ExitCode");
}

#[test]
fn a_pod_deleted_by_hand_is_the_cause_and_not_its_peers_complaint() {
    let mut world = World::to_running();
    let deleted = PodSeen { deletion: Some(at(19)), ..ended(0, 1, 143, 21) };
    world.second = 22;
    let failed = JobSeen { failed: Some(("BackoffLimitExceeded".into(), String::new())), ..job(1) };
    world.see(Some(failed), [deleted, ended(1, 1, 1, 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "PodDeleted");
}

#[test]
fn a_worker_replaced_inside_its_job_restarts_the_gang() {
    let mut world = World::to_running();
    let vanished = PodSeen { gone: true, ..running(1, 1) };
    let new = PodSeen { uid: "another".into(), created: Some(at(20)), ..running(1, 1) };
    world.see(Some(job(1)), [vanished, new]);
    let verdict = world.step();
    assert_eq!((world.status.attempt, world.status.restarts[0].reason.as_str()), (Some(2), "PodDeleted"));
    assert!(verdict.actions.contains(&Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }));
}

/// A worker whose agent has told how its program ended: at this millisecond after second 20, with this on stderr.
fn told(index: i32, millis: i64, stderr: &str) -> PodSeen {
    let finished = Timestamp::from_millisecond(at(20).as_millisecond() + millis).unwrap();
    let report = Report {
        version: 1,
        phase: Phase::Exited,
        exit_code: Some(1),
        finished_at: Some(finished),
        stderr_tail: stderr.into(),
        ..Report::default()
    };
    let mut pod = ended(index, 1, 1, finished.as_second() - at(0).as_second());
    if let Container::Terminated { report: of_pod, .. } = &mut pod.training {
        *of_pod = Some(Box::new(report));
    }
    pod
}

/// It was told to stop before its program ended, at this second.
fn stopped(mut pod: PodSeen, second: i64) -> PodSeen {
    if let Container::Terminated { report: Some(report), .. } = &mut pod.training {
        report.stopped_by = Some(15);
    }
    PodSeen { deletion: Some(at(second)), ..pod }
}

const LOST: &str = "\
[rank0]: Traceback (most recent call last):
[rank0]:   File \"t.py\", line 1
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1
";
const BAD: &str = "\
[rank1]: Traceback (most recent call last):
[rank1]:   File \"t.py\", line 1
[rank1]: ValueError: label 11
";
/// torchrun's closing words, of rank 3 and this exit code.
fn torchrun(exit_code: i32) -> String {
    format!(
        "E0101 10:00:00.000000 7 torch/distributed/elastic/api.py:1] failed (exitcode: {exit_code}) local_rank: 1 (pid: 21) of binary: python\n\
         Traceback (most recent call last):\n  File \"torchrun\"\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
         ============\nt.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : x\n\
         \x20 rank      : 3 (local_rank: 1)\n  exitcode  : {exit_code} (pid: 21)\n============\n"
    )
}

/// The same pod with its report changed.
fn but(mut pod: PodSeen, change: impl FnOnce(&mut Report)) -> PodSeen {
    if let Container::Terminated { report: Some(report), exit_code, .. } = &mut pod.training {
        change(report);
        let otherwise = if report.phase == Phase::Exited { 1 } else { 137 };
        *exit_code = report.signal.map_or(otherwise, |signal| 128 + signal);
    }
    pod
}

fn after(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(at(20).as_millisecond() + millis).unwrap()
}

/// It raised this at that millisecond after second 20.
fn raised(pod: PodSeen, class: &str, message: &str, millis: i64) -> PodSeen {
    let exception = Exception {
        class: class.into(),
        message: message.into(),
        file: Some("train.py".into()),
        line: Some(88),
        rank: Some(25),
        thread: None,
        time: after(millis),
    };
    but(pod, |report| report.exception = Some(exception))
}

fn said(pod: PodSeen, kind: ErrorPattern, text: &str, millis: i64) -> PodSeen {
    let time = after(millis);
    but(pod, |report| {
        report.error_patterns.push(ErrorMatch { kind, time, last_time: time, text: text.into(), count: 1 })
    })
}

const WATCHDOG: &str = "[rank3]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)";
const NCCL: &str = "NCCL error in: NCCLUtils.hpp:268, unhandled system error";
const OOM: &str = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation";

/// How the first cause of these is told, without the name of the worker.
fn cause(pods: &[PodSeen]) -> (String, String) {
    let cause = first_cause(pods.iter()).unwrap();
    let (who, what) = cause.message.split_once("node-").unwrap();
    assert!(who.starts_with(&format!("worker {0} (pod x-training-{0}-abcde, ", cause.worker.unwrap())), "{who}");
    (cause.reason.to_string(), what.to_owned())
}

#[test]
fn every_failure_has_a_reason_and_words() {
    let ended = |stderr: &str| told(1, 900, stderr);
    let plain = || ended("step 3\n");
    let by_signal = |signal| but(plain(), |report| (report.exit_code, report.signal) = (None, Some(signal)));
    let unstarted = |kind, message: &str| {
        let error = LaunchError { kind, message: message.into() };
        but(ended(""), |report| (report.exit_code, report.error) = (None, Some(error)))
    };
    let killed = |phase| but(by_signal(9), |report| (report.phase, report.signal) = (phase, None));
    let memory = "killed for using more memory than resources.limits.memory allows; raise it or use less";
    let sigkill = "ended by SIGKILL, and nobody says by whom; mostly the kernel does that for lack of memory: raise \
                   resources.limits.memory, or use less";
    let nan = "its loss is NaN or infinite, and failurePolicy.nanPolicy is Fail: Epoch 2/9 loss: nan";
    for (pod, reason, words) in [
        // What Python raised, told by itself with file and line, else read off stderr.
        (
            raised(plain(), "ValueError", "bad\nshape", 800),
            "PythonException",
            "1), rank 25: ValueError: bad at train.py:88",
        ),
        (ended(BAD), "PythonException", "1), rank 1: ValueError: label 11"),
        (ended(&format!("{BAD}{}", torchrun(1))), "PythonException", "1), rank 1: ValueError: label 11"),
        (ended("Error: no such file\n"), "ExitCode", "1): exit code 1: Error: no such file"),
        (ended("ValueError: said, not raised\n"), "ExitCode", "1): exit code 1: ValueError: said, not raised"),
        (
            raised(plain(), "ModuleNotFoundError", "No module named 'x'", 800),
            "ImportError",
            "1), rank 25: ModuleNotFoundError: No module named 'x' at train.py:88",
        ),
        (
            raised(plain(), "SyntaxError", "invalid syntax", 800),
            "PythonException",
            "1), rank 25: SyntaxError: invalid syntax at train.py:88",
        ),
        (
            raised(plain(), "torch.OutOfMemoryError", OOM, 800),
            "CudaOutOfMemory",
            "1), rank 25: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. at train.py:88",
        ),
        (
            raised(plain(), "ValueError", "The loss is NaN.", 800),
            "NaNLoss",
            "1), rank 25: ValueError: The loss is NaN. at train.py:88",
        ),
        (
            raised(plain(), "DistBackendError", NCCL, 800),
            "NcclError",
            "1), rank 25: DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error at train.py:88",
        ),
        // What libraries said.
        (
            said(by_signal(6), ErrorPattern::NcclTimeout, WATCHDOG, 800),
            "NcclTimeout",
            "1), rank 3: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        ),
        (
            said(by_signal(6), ErrorPattern::NcclError, NCCL, 800),
            "NcclError",
            "1): NCCL error in: NCCLUtils.hpp:268, unhandled system error",
        ),
        (
            said(by_signal(6), ErrorPattern::CudaOutOfMemory, "CUDA error: out of memory", 800),
            "CudaOutOfMemory",
            "1): CUDA error: out of memory",
        ),
        (
            said(plain(), ErrorPattern::CudaOutOfMemory, "caught and told", -600_000),
            "ExitCode",
            "1): exit code 1: step 3",
        ),
        (said(plain(), ErrorPattern::NanLoss, "Epoch 2/9 loss: nan", 800), "ExitCode", "1): exit code 1: step 3"),
        (
            but(said(by_signal(15), ErrorPattern::NanLoss, "Epoch 2/9 loss: nan", 800), |r| {
                r.ended_for = Some(ErrorPattern::NanLoss)
            }),
            "NaNLoss",
            &format!("1): {nan}"),
        ),
        // What was raised long before is no cause: it was caught, or the thread was not needed.
        (raised(plain(), "KeyError", "'x'", -600_000), "ExitCode", "1): exit code 1: step 3"),
        (
            raised(ended("Traceback (most recent call last):\n  x\nKeyError: 'x'\n"), "KeyError", "'x'", -600_000),
            "ExitCode",
            "1): exit code 1: KeyError: 'x'",
        ),
        // Memory of the container.
        (but(plain(), |r| r.oom_kills = 1), "OOMKilled", &format!("1): {memory}")),
        (
            but(raised(plain(), "RuntimeError", "DataLoader worker (pid 9) is killed", 800), |r| r.oom_kills = 1),
            "OOMKilled",
            &format!("1): {memory}"),
        ),
        (
            but(plain(), |r| (r.oom_kills, r.oom_time) = (1, Some(after(-600_000)))),
            "ExitCode",
            "1): exit code 1: step 3",
        ),
        // Signals: of the program, of a rank, of all with the agent.
        (by_signal(11), "Signal", "1): ended by SIGSEGV: step 3"),
        (by_signal(9), "Signal", &format!("1): {sigkill}")),
        (ended(&torchrun(-11)), "Signal", "1), rank 3: ended by SIGSEGV"),
        (ended(&format!("{LOST}{}", torchrun(-11))), "Signal", "1), rank 3: ended by SIGSEGV"),
        (ended(&format!("{LOST}{}", torchrun(-6))), "Signal", "1), rank 3: ended by SIGABRT"),
        (killed(Phase::Running), "Signal", &format!("1): {sigkill}")),
        (raised(killed(Phase::Running), "KeyError", "'x'", 800), "Signal", &format!("1): {sigkill}")),
        (
            but(plain(), |r| (r.exit_code, r.stopped_by) = (Some(0), Some(15))),
            "Signal",
            "1): told to stop by SIGTERM, and not by Kubernetes (exit code 0)",
        ),
        // Exit codes.
        (plain(), "ExitCode", "1): exit code 1: step 3"),
        (ended(&torchrun(42)), "ExitCode", "1), rank 3: exit code 42"),
        // What never ran.
        (unstarted(LaunchErrorKind::CommandNotFound, "no train"), "CommandNotFound", "1): no train"),
        (unstarted(LaunchErrorKind::LaunchFailed, "no memory"), "CommandNotFound", "1): no memory"),
        (
            unstarted(LaunchErrorKind::InvalidOption, "--progress-pattern \"(\" is no regular expression"),
            "InvalidSpec",
            "1): monitoring.progress.patterns: \"(\" is no regular expression",
        ),
    ] {
        assert_eq!(cause(&[pod]), (reason.to_owned(), words.to_owned()));
    }
}

#[test]
fn containers_tell_where_no_agent_could() {
    let ended_as = |code: i32, reason: &str, words: &str| {
        let mut pod = ended(1, 1, code, 20);
        if let Container::Terminated { reason: of_pod, message, .. } = &mut pod.training {
            (*of_pod, *message) = (reason.into(), Some(words.to_owned()).filter(|words| !words.is_empty()));
        }
        cause(&[pod])
    };
    let told = |reason: &str, words: &str| (reason.to_owned(), format!("1): {words}"));
    assert_eq!(ended_as(137, "OOMKilled", "").0, "OOMKilled");
    assert_eq!(
        ended_as(128, "StartError", "no such dir"),
        told("ContainerConfig", "its container can't be started: no such dir")
    );
    assert_eq!(
        ended_as(137, "ContainerStatusUnknown", "could not be located"),
        told("ContainerStatusUnknown", "could not be located")
    );
    assert!(ended_as(137, "Error", "").1.starts_with("1): ended by SIGKILL, and nobody says by whom"));
    assert_eq!(ended_as(2, "Error", "panic: x"), told("ExitCode", "exit code 2: panic: x"));
}

#[test]
fn what_trying_again_cannot_mend() {
    let usage = "usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n";
    let plain = || told(1, 900, "");
    let exit_2 = |stderr: &str| but(told(1, 900, stderr), |report| report.exit_code = Some(2));
    let unstarted = |kind| but(plain(), |report| report.error = Some(LaunchError { kind, message: "no".into() }));
    for (pod, permanent) in [
        (raised(plain(), "ModuleNotFoundError", "No module named 'x'", 800), true),
        (raised(plain(), "SyntaxError", "invalid syntax", 800), true),
        (raised(plain(), "ValueError", "bad", 800), false),
        (exit_2(usage), true),
        (told(1, 900, &format!("{usage}{}", torchrun(2))), true),
        (exit_2("Usage: t [OPTIONS]\n\nError: No such option: --x\n"), true),
        (told(1, 900, usage), false),
        (exit_2("no such file\n"), false),
        (unstarted(LaunchErrorKind::PermissionDenied), true),
        (unstarted(LaunchErrorKind::InvalidOption), true),
        (unstarted(LaunchErrorKind::LaunchFailed), false),
    ] {
        let told = first_cause([&pod].into_iter()).unwrap();
        assert_eq!(told.permanent, permanent, "{}", told.message);
        // In a program that has worked before it comes of something else, such as a file server.
        let always =
            matches!(&pod.training, Container::Terminated { report: Some(report), .. } if report.error.is_some());
        let later = first_cause([&PodSeen { incarnation: 2, ..pod.clone() }].into_iter()).unwrap();
        let trained = but(pod.clone(), |report| report.progress = Some(Reached::default()));
        let trained = first_cause([&trained].into_iter()).unwrap();
        assert_eq!(
            (later.permanent, trained.permanent),
            (permanent && always, permanent && always),
            "{}",
            told.message
        );
    }
}

/// Who of a gang is named, and why.
#[test]
fn the_first_cause_and_not_its_echo() {
    let root = |pods: &[PodSeen]| {
        let cause = first_cause(pods.iter()).unwrap();
        (cause.worker.unwrap(), cause.reason)
    };
    let is = |worker: i32, reason: &str| (worker, Reason::from(reason));
    let bad = |index, millis| raised(told(index, millis, ""), "ValueError", "bad", millis - 100);
    let timeout = |index, millis| said(told(index, millis, ""), ErrorPattern::NcclTimeout, WATCHDOG, millis - 100);
    let nccl = |index, millis| raised(told(index, millis, ""), "DistBackendError", NCCL, millis - 100);
    let by_signal = |index, millis, signal| but(told(index, millis, ""), |report| report.signal = Some(signal));

    assert_eq!(root(&[told(0, 300, LOST), told(1, 900, BAD)]), is(1, "PythonException"), "though it ended later");
    assert_eq!(root(&[told(0, 800, BAD), told(1, 300, BAD)]), is(1, "PythonException"), "the earlier, by milliseconds");
    assert_eq!(
        root(&[told(0, 300, LOST), told(1, 200, LOST)]),
        is(1, "PythonException"),
        "the network, for all we know"
    );
    assert_eq!(root(&[told(0, 300, "broken pipe\n"), told(1, 900, "")]), is(1, "ExitCode"), "in any language");

    // The Job controller deletes the one that failed first, since the echo's pod has ended before.
    assert_eq!(root(&[told(0, 300, LOST), stopped(told(1, 900, BAD), 20)]), is(1, "PythonException"));
    assert_eq!(root(&[told(0, 300, LOST), stopped(told(1, 900, LOST), 20)]), is(0, "PythonException"));
    assert_eq!(root(&[told(0, 300, LOST), stopped(told(1, 900, "saving"), 20)]), is(0, "PythonException"));
    let mut stopping = stopped(bad(1, 1900), 20);
    assert_eq!(
        root(&[told(0, 300, LOST), stopping.clone()]),
        is(0, "PythonException"),
        "raised for it was told to stop"
    );
    stopping = but(stopping, |report| report.oom_kills = 1);
    assert_eq!(root(&[told(0, 300, LOST), stopping]), is(1, "OOMKilled"));
    // Somebody deletes it, and the other one loses its peer.
    assert_eq!(root(&[told(0, 900, LOST), stopped(told(1, 300, "saving"), 20)]), is(1, "PodDeleted"));
    assert_eq!(root(&[told(0, 900, LOST), stopped(told(1, 300, BAD), 20)]), is(1, "PodDeleted"));
    assert_eq!(root(&[timeout(0, 900), stopped(told(1, 300, "saving"), 20)]), is(1, "PodDeleted"));

    let killed = but(told(0, 300, LOST), |report| report.oom_kills = 1);
    assert_eq!(root(&[killed, told(1, 900, LOST)]), is(0, "OOMKilled"), "the lost peer was one of its own ranks");

    // What several do together fails for all of them.
    assert_eq!(
        root(&[nccl(0, 300), raised(told(1, 900, ""), "torch.OutOfMemoryError", OOM, 800)]),
        is(1, "CudaOutOfMemory")
    );
    assert_eq!(root(&[timeout(0, 300), by_signal(1, 900, 11)]), is(1, "Signal"));
    assert_eq!(root(&[told(0, 200, LOST), timeout(1, 900)]), is(1, "NcclTimeout"), "it lost its peer by that");
    assert_eq!(root(&[nccl(0, 900), timeout(1, 300)]), is(1, "NcclTimeout"), "the network, for all we know");
    assert_eq!(
        root(&[raised(told(0, 300, ""), "E", "NCCL error: remote process exited", 200), nccl(1, 900)]),
        is(1, "NcclError")
    );

    // An evicted worker breaks the others' collectives.
    let disruption = Disruption { reason: "EvictionByEvictionAPI".into(), message: String::new(), time: Some(at(20)) };
    let evicted = PodSeen { disruption: Some(disruption), ..running(1, 1) };
    assert_eq!(root(&[nccl(0, -900), evicted]), is(1, "Evicted"));
}

/// A rank fails and can't end, say since NCCL would wait for the others; their collectives time out after minutes.
#[test]
fn a_rank_that_fails_and_hangs_is_the_cause() {
    const MINUTES: i64 = 10 * 60_000;
    let timed_out = said(told(0, MINUTES, ""), ErrorPattern::NcclTimeout, WATCHDOG, MINUTES - 500);
    let hung = stopped(raised(told(1, MINUTES + 900, ""), "ValueError", "bad", 0), 20 + 600);
    let progress = |millis| Reached { time: Some(after(millis)), ..Reached::default() };
    let root = |first: &PodSeen, second: &PodSeen| {
        let cause = first_cause([first, second].into_iter()).unwrap();
        (cause.worker.unwrap(), cause.reason)
    };
    let trained_until = |millis| but(timed_out.clone(), |report| report.progress = Some(progress(millis)));
    assert_eq!(root(&trained_until(100), &hung), (1, "PythonException".into()));
    assert_eq!(root(&trained_until(MINUTES / 2), &hung), (0, "NcclTimeout".into()), "the gang went on after it");
    assert_eq!(root(&timed_out, &hung), (0, "NcclTimeout".into()), "nobody knows");
    let thread = but(hung.clone(), |report| report.exception.as_mut().unwrap().thread = Some("loader".into()));
    assert_eq!(root(&trained_until(100), &thread), (0, "NcclTimeout".into()));
    // Somebody lost patience.
    let lost = raised(told(0, MINUTES + 1900, ""), "RuntimeError", "Connection closed by peer", MINUTES + 1500);
    let lost = but(lost, |report| report.progress = Some(progress(100)));
    assert_eq!(root(&lost, &hung), (1, "PythonException".into()));
}

#[test]
fn a_better_cause_replaces_an_echo_that_was_seen_first() {
    let mut world = World::to_running();
    world.second = 22;
    world.see(Some(job(1)), [told(0, 300, LOST)]);
    world.step();
    assert_eq!(world.status.restarts[0].worker, Some(0));
    world.see(Some(job(1)), [stopped(told(1, 900, BAD), 20)]);
    world.step();
    assert_eq!(world.status.restarts[0].worker, Some(1));
    let message = world.condition("Restarting").2;
    assert!(message.ends_with("(pod x-training-1-abcde, node node-1), rank 1: ValueError: label 11"), "{message}");
}

#[test]
fn a_pod_that_does_not_end_is_named_with_the_remedy() {
    let mut world = World::to_running();
    let disruption =
        Disruption { reason: "DeletionByTaintManager".into(), message: "tainted".into(), time: Some(at(20)) };
    let lost = PodSeen { disruption: Some(disruption), deletion: Some(at(20)), end_by: Some(at(80)), ..running(1, 1) };
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
fn what_the_events_of_a_job_said_is_not_said_of_its_pods() {
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
    let told = ("False", "Storage", "worker 1 (pod x-training-1-abcde, node node-1): no such claim");
    assert_eq!(world.condition("Running"), told);
}

#[test]
fn out_of_memory_and_a_typo_have_names() {
    let oom = PodSeen {
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
    let typo = PodSeen {
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
    world.see(Some(JobSeen { failed: Some((String::new(), String::new())), ..job(1) }), [typo, ended(1, 1, 0, 6)]);
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
fn suspend_and_resume() {
    let mut world = World::to_running();
    world.spec.suspend = true;
    let verdict = world.step();
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!(verdict.actions, [Action::DeleteJob { name: "x-training".into(), uid: "job-1".into() }]);
    assert_eq!(world.status.state, Some(State::Running), "not suspended before no pod runs");
    assert_eq!(world.condition("Suspended").1, "Suspending");

    world.second = 40;
    world.see(None, [0, 1].map(|index| PodSeen { gone: true, ..running(index, 1) }));
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

#[test]
fn created_suspended_has_no_job() {
    let mut world = World::new();
    world.spec.suspend = true;
    assert_eq!(world.step().actions, [Action::Ensure], "as in a job that ran before");
    assert_eq!(world.status.state, Some(State::Suspended));
    world.spec.suspend = false;
    assert_eq!(world.step().actions, [Action::Ensure, create(1)]);
}

#[test]
fn the_deadline_counts_from_the_first_start_without_the_time_suspended() {
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
    world.see(Some(JobSeen { complete: true, ..job(1) }), []);
    assert_eq!(world.step().requeue, Some(std::time::Duration::from_secs(30)), "also when nothing else happens");
    world.second = 40;
    assert_eq!(world.step().actions, [Action::DeleteOwner]);
}

#[test]
fn a_refused_spec_fails_only_what_does_not_run() {
    let mut world = World::new();
    world.refused = Some("spec.resources.limits.cpu: 1x is no quantity".into());
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.condition("Accepted"), ("False", "InvalidSpec", "spec.resources.limits.cpu: 1x is no quantity"));

    let mut world = World::to_running();
    world.refused = Some("an operator of another version thinks otherwise".into());
    world.step();
    assert_eq!(world.status.state, Some(State::Running));
}

#[test]
fn a_name_that_is_taken_is_reported() {
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
fn a_job_that_the_api_server_finds_invalid_has_failed_in_its_words() {
    let mut world = World::new();
    world.step();
    let message =
        "Job x-training is invalid: spec.template.spec.volumes[0]: may not specify more than 1 volume type".to_owned();
    world
        .children
        .blocked
        .insert(ChildKey::job(Role::WORKER), Blocked { reason: "Invalid".into(), message: message.clone() });
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.condition("Accepted"), ("False", "InvalidSpec", &*message));
}

#[test]
fn a_job_deleted_before_it_had_a_pod_comes_back() {
    let mut world = World::new();
    world.step();
    world.see(Some(JobSeen { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());
    world.see(None, []);
    assert!(world.step().actions.contains(&create(1)));
}

/// What ran under the Job ends with it: it comes back as another attempt, when no pod of this one is left.
#[test]
fn a_job_deleted_by_hand_comes_back_as_another_attempt() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.see(Some(JobSeen { deleting: true, ..job(1) }), []);
    assert!(world.step().actions.is_empty());
    assert_eq!(world.status.state, Some(State::Initializing));
    world.second = 20;
    let stopping = |index| PodSeen { deletion: Some(at(12)), ..running(index, 1) };
    world.see(None, [stopping(0), stopping(1)]);
    let verdict = world.step();
    assert_eq!((verdict.actions.as_slice(), reasons(&verdict)), (&[][..], vec!["Restarting"]));
    assert_eq!(
        world.condition("Scheduled"),
        ("False", "OldPods", "waiting for the last pods of attempt 1 to end, x-training-0-abcde among them")
    );
    assert_eq!(world.status.attempt, Some(2));
    assert_eq!((world.status.restart_count, world.status.disruption_count), (Some(1), Some(1)), "nobody's failure");
    world.see(None, [0, 1].map(|index| PodSeen { gone: true, ..stopping(index) }));
    assert_eq!(world.step().actions, [Action::Ensure, create(2)]);
    assert_eq!(world.status.restarts[0].reason, "JobDeleted");
}

/// The watches of pods and of Jobs are not in step: pods that go are seen before the Job that goes.
#[test]
fn pods_deleted_with_their_job_are_not_the_cause() {
    let mut world = World::to_running();
    world.second = 20;
    world.see(Some(job(1)), [PodSeen { deletion: Some(at(20)), gone: true, ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.restarts[0].reason, "PodDeleted");
    world.see(None, [PodSeen { deletion: Some(at(20)), gone: true, ..running(1, 1) }]);
    world.step();
    assert_eq!((world.status.restarts[0].reason.as_str(), world.status.disruption_count), ("JobDeleted", Some(1)));
}

/// Kueue preempts by suspending the Job: its pods go, and later others come under the same Job.
#[test]
fn a_job_suspended_by_a_queue_manager_has_not_failed() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    let stopped = |index| PodSeen { deletion: Some(at(20)), gone: true, ..running(index, 1) };
    world.second = 20;
    world.see(Some(job(1)), [stopped(0)]); // seen before the change of the Job
    world.step();
    let held = JobSeen { suspended_by_queue: true, ..job(1) };
    world.see(Some(held), [stopped(1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 0));
    assert_eq!((world.condition("Scheduled").1, world.condition("Running").0), ("Queued", "False"));
    let workers = world.status.workers.unwrap();
    assert_eq!((workers.active, workers.failed, workers.pending), (0, 0, 2));

    world.second = 60;
    let later = |index| PodSeen {
        uid: format!("later-{index}"),
        created: Some(at(60)),
        training: Container::Running { since: Some(at(61)) },
        ..running(index, 1)
    };
    // All within one second: made, stopped, and the Job let go again.
    let quick = PodSeen { uid: "quick".into(), deletion: Some(at(60)), gone: true, ..later(0) };
    world.see(Some(JobSeen { resumed: Some(at(60)), ..job(1) }), [quick, later(0), later(1)]);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restart_count), (Some(State::Running), Some(0)));
}

#[test]
fn a_job_made_smaller_than_its_gang_has_not_failed() {
    let mut world = World::to_running();
    world.second = 20;
    let gone = PodSeen { deletion: Some(at(20)), gone: true, ..running(1, 1) };
    world.see(Some(job(1)), [gone]); // seen before the change of the Job
    world.step();
    world.see(Some(JobSeen { parallelism: Some(1), ..job(1) }), []);
    assert_eq!(world.step().actions, [Action::Ensure]);
    assert_eq!((world.status.state, world.status.restarts.len()), (Some(State::Pending), 0));
    assert_eq!(world.condition("Scheduled").1, "Parallelism");
}

#[test]
fn a_failure_outlives_its_job() {
    let mut world = World::to_running();
    world.spec.failure_policy.backoff_limit = Some(0);
    world.second = 20;
    world.see(Some(job(1)), [ended(1, 1, 3, 20)]);
    world.step();
    world.see(None, [PodSeen { gone: true, ..running(0, 1) }]);
    world.step();
    assert_eq!(world.status.state, Some(State::Failed));
    assert_eq!(world.status.failure_reason, Some("ExitCode".into()));
}

#[test]
fn a_job_deleted_after_its_workers_ended_well_is_complete() {
    let mut world = World::to_running();
    world.see(None, [0, 1].map(|index| PodSeen { gone: true, ..ended(index, 1, 0, 20) }));
    world.step();
    assert_eq!(world.status.state, Some(State::Completed));
}

#[test]
fn pods_left_without_their_job_are_named() {
    let mut world = World::to_running();
    world.see(None, []);
    world.step();
    let why = "pod x-training-0-abcde of attempt 1 runs on without its Job; delete it, since attempt 2 starts when no pod is left";
    assert_eq!(world.condition("Scheduled"), ("False", "OldPods", why));
    world.spec.suspend = true;
    world.step();
    assert_ne!(world.status.state, Some(State::Suspended), "a pod runs");
}

fn any_pod() -> impl Strategy<Value = PodSeen> {
    let state = prop_oneof![
        Just(pod as fn(i32, i32) -> PodSeen),
        Just(placed as fn(i32, i32) -> PodSeen),
        Just(running as fn(i32, i32) -> PodSeen),
        Just((|i, a| ended(i, a, 0, 20)) as fn(i32, i32) -> PodSeen),
        Just((|i, a| ended(i, a, 1, 20)) as fn(i32, i32) -> PodSeen),
    ];
    (0..N, 1..3i32, state, any::<bool>(), any::<bool>()).prop_map(|(index, attempt, make, gone, disrupted)| PodSeen {
        gone,
        disruption: disrupted.then(|| Disruption { reason: "x".into(), message: String::new(), time: Some(at(20)) }),
        ..make(index, attempt)
    })
}

fn any_job() -> impl Strategy<Value = Option<JobSeen>> {
    proptest::option::of((1..3i32, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(attempt, deleting, complete, failed)| JobSeen {
            deleting,
            complete: complete && !failed,
            failed: failed.then(|| ("BackoffLimitExceeded".into(), String::new())),
            ..job(attempt)
        },
    ))
}

proptest! {
    /// Whatever is seen, in whatever order: the attempt only grows, the end is the end, a Job is never created beside
    /// another one nor while suspended, and a decision repeated on its own result writes nothing new.
    #[test]
    fn no_observation_breaks_the_rules(
        steps in proptest::collection::vec((any_job(), proptest::collection::vec(any_pod(), 0..4), any::<bool>(), 0..100i64), 1..12)
    ) {
        let mut world = World::new();
        for (job, pods, suspend, later) in steps {
            let before = world.status.clone();
            world.spec.suspend = suspend;
            world.second += later;
            world.children.pods.clear();
            world.see(job, pods);
            let verdict = world.step();
            prop_assert!(world.status.attempt >= before.attempt);
            if before.state.is_some_and(State::is_finished) {
                prop_assert_eq!(&world.status.state, &before.state);
            }
            for action in &verdict.actions {
                if let Action::CreateJobs(attempt) = action {
                    prop_assert!(world.children.jobs.is_empty() && !suspend);
                    prop_assert!(!world.children.pods.values().any(|p| p.is_alive() && p.incarnation < attempt.number));
                    prop_assert_eq!(Some(attempt.attempt), world.status.attempt);
                }
                if let Action::DeleteJob { uid, .. } = action {
                    prop_assert_eq!(Some(uid), world.children.job(Role::WORKER).map(|j| &j.uid));
                }
            }
            prop_assert!(world.status.restarts.len() <= 10);
            let settled = world.step().status;
            prop_assert_eq!(&settled, &world.step().status);
        }
    }
}
