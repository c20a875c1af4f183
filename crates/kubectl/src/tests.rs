//! What users see, for facts made by hand.

use super::advice::{ADVICE, NEEDS_ANOTHER_SPEC, Names, advice};
use super::complete::{Completion as Completed, candidates};
use super::facts::{Event, Facts, TrialOf, Worker, WorkerState, last_events};
use super::logs::{LogFormat, LogLine, Source, culprit};
use super::screen::{DisplayOptions, Screen, Style, age, bar, number, ranges, read_span, shortened, span};
use super::top::{Row, sort};
use super::why::{Diagnosis, Health};
use super::{Args, cluster, status, top, why};
use api::{
    AllocatedResources, AttemptEnd, BestCheckpoint, CheckpointStatus, Condition, KeepBest, ProgramMetrics, Reason,
    RestartHistory, State, TrainingJobSpec, TrainingJobStatus, Workers,
};
use clap::CommandFactory;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use observe::{Container, ObservedPod, WaitingState};
use protocol::attempt::RepeatedFailure;
use protocol::report::{Phase, Report};
use protocol::role::{ReplicaId, RoleName};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Mutex;
use unicode_width::UnicodeWidthStr;

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn condition(type_: &str, status: bool, reason: &str, message: &str, seconds: i64) -> Condition {
    Condition {
        type_: type_.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(at(seconds)),
        observed_generation: Some(1),
    }
}

/// A job of two workers with two GPUs each, in this state for so many seconds.
fn job(state: Option<State>, conditions: &[Condition], seconds: i64) -> Facts {
    Facts {
        time: at(0),
        namespace: "team".into(),
        name: "bert".into(),
        created: Some(at(-7200)),
        since: Some(at(-seconds)),
        generation: Some(1),
        spec: TrainingJobSpec {
            num_workers: NonZeroU16::new(2),
            gpus_per_worker: Some(2),
            ..TrainingJobSpec::default()
        },
        status: TrainingJobStatus {
            state,
            observed_generation: Some(1),
            conditions: conditions.to_vec(),
            attempt: Some(1),
            restart_count: Some(0),
            workers: Some(Workers { desired: 2, pending: 2, ..Workers::default() }),
            ..TrainingJobStatus::default()
        },
        checkpoints: Some("claim bert-checkpoints at /checkpoints".into()),
        ..Facts::default()
    }
}

fn worker(index: u32, state: WorkerState, node: &str) -> Worker {
    Worker {
        index,
        attempt: 1,
        pod: format!("bert-training-{index}-abcde"),
        node: (!node.is_empty()).then(|| node.into()),
        state,
        ..Worker::default()
    }
}

fn running() -> Facts {
    let mut facts = job(Some(State::Running), &[condition("Running", true, "Running", "every worker runs", -754)], 754);
    facts.workers = vec![worker(0, WorkerState::Running, "gpu-1"), worker(1, WorkerState::Running, "gpu-2")];
    facts.status.workers = Some(Workers { desired: 2, active: 2, ..Workers::default() });
    facts.status.resources = Some(AllocatedResources { allocated_gpus: 4, allocated_nodes: 2 });
    facts.status.progress = Some("45%".into());
    (facts.status.current_epoch, facts.status.total_epochs) = (Some(9), Some(20));
    (facts.status.current_step, facts.status.total_steps) = (Some(450), Some(1000));
    facts.status.estimated_seconds_remaining = Some(900);
    facts.status.last_progress_time = Some(Time(at(-5)));
    facts.status.metrics = Some(ProgramMetrics {
        loss: Some(0.123_456),
        learning_rate: Some(0.0001),
        throughput: Some(1234.5),
        gpu_utilization: Some(91.0),
        custom_metrics: BTreeMap::from([("eval_loss".into(), 0.5), ("grad_norm".into(), 1.25)]),
        ..ProgramMetrics::default()
    });
    facts.events = vec![
        Event {
            time: at(-760),
            type_: "Normal".into(),
            reason: "Scheduled".into(),
            kind: "TrainingJob".into(),
            object: "bert".into(),
            message: "every worker has a node".into(),
            count: 1,
            alike: 0,
        },
        Event {
            time: at(-755),
            type_: "Warning".into(),
            reason: "FailedMount".into(),
            kind: "Pod".into(),
            object: "bert-training-0-abcde".into(),
            message: "MountVolume.SetUp failed".into(),
            count: 3,
            alike: 0,
        },
    ];
    facts
}

const UNSCHEDULABLE: &str = "worker 0 (and 1 more of 2 workers): 0/4 nodes are available: 4 Insufficient nvidia.com/gpu. no new claims to deallocate";

fn pending() -> Facts {
    let mut facts =
        job(Some(State::Pending), &[condition("Scheduled", false, "Unschedulable", UNSCHEDULABLE, -720)], 720);
    facts.workers = vec![worker(0, WorkerState::Waiting, ""), worker(1, WorkerState::Waiting, "")];
    facts
}

fn restart(attempt: u32, reason: &str, message: &str, code: Option<i32>) -> AttemptEnd {
    AttemptEnd {
        time: Some(at(-60 * i64::from(10 - attempt))),
        worker: Some(1),
        pod: Some("bert-training-1-abcde".into()),
        node: Some("gpu-2".into()),
        exit_code: code,
        ran_seconds: 42,
        ..AttemptEnd::new(attempt, reason.into(), message)
    }
}

fn failed() -> Facts {
    let what = "exit code 1: ValueError: label 11 at train.py:88";
    let words = &format!("worker 1 (pod bert-training-1-abcde, node gpu-2): {what}");
    let mut facts = job(Some(State::Failed), &[condition("Failed", true, "ExitCode", words, -300)], 300);
    facts.status.attempt = Some(4);
    facts.status.start_time = Some(Time(at(-4000)));
    facts.status.duration = Some("1h1m40s".into());
    facts.status.restart_count = Some(3);
    facts.status.restarts = (1..=4).map(|attempt| restart(attempt, "ExitCode", what, Some(1))).collect();
    facts.status.failure_reason = Some("ExitCode".into());
    facts.status.failure_message = Some(format!("{words} (after 3 restarts; failurePolicy.backoffLimit is 3)"));
    facts.status.workers = Some(Workers { desired: 2, failed: 2, ..Workers::default() });
    facts.workers = vec![
        Worker { attempt: 4, exit_code: Some(143), ..worker(0, WorkerState::Stopped, "gpu-1") },
        Worker {
            attempt: 4,
            exit_code: Some(1),
            message: Some("ValueError: label 11".into()),
            ..worker(1, WorkerState::Failed, "gpu-2")
        },
    ];
    facts
}

fn plain() -> DisplayOptions {
    DisplayOptions { width: Some(100), ..DisplayOptions::default() }
}

fn on_screen(facts: &Facts) -> String {
    status::render(facts, &Diagnosis::from_facts(facts), plain())
}

fn diagnosed(facts: &Facts) -> (Health, String, String) {
    let diagnosis = Diagnosis::from_facts(facts);
    (diagnosis.verdict, diagnosis.says.join(" "), diagnosis.advice.join(" "))
}

// ---- status

#[test]
fn status_shows_running_job() {
    insta::assert_snapshot!(on_screen(&running()));
}

#[test]
fn status_shows_pending_job() {
    insta::assert_snapshot!(on_screen(&pending()));
}

#[test]
fn status_shows_failed_job() {
    insta::assert_snapshot!(on_screen(&failed()));
}

/// A job with everything that can be known of checkpoints.
fn checkpointing() -> Facts {
    let mut facts = running();
    facts.spec.checkpoint.keep_best = Some(KeepBest { metric: "eval_loss".into(), mode: None });
    facts.status.checkpoint = Some(CheckpointStatus {
        latest_path: Some("checkpoint-1200".into()),
        latest_step: Some(1200),
        latest_epoch: Some(3),
        last_checkpoint_time: Some(Time(at(-240))),
        checkpoint_count: Some(3),
        complete_count: None,
        corrupted_count: Some(1),
        best: Some(BestCheckpoint { path: "checkpoint-900".into(), value: Some(0.25), step: Some(900) }),
        last_backup_time: Some(Time(at(-540))),
        last_backup_path: Some("checkpoint-1000".into()),
        pending_backup: Some("checkpoint-1200".into()),
        resumed_from: Some("checkpoint-600".into()),
        resume_from_used: None,
        restart_from: None,
        resume_checked: None,
    });
    let words = "checkpoint-1100 is corrupted: optimizer.pt ends after 512 of 1024 bytes";
    facts.status.conditions.push(condition("CheckpointsHealthy", false, "CheckpointCorrupted", words, -200));
    facts
}

#[test]
fn status_shows_checkpoints() {
    insta::assert_snapshot!(on_screen(&checkpointing()));
}

#[test]
fn status_warns_of_checkpoints_in_empty_dir() {
    let mut facts = running();
    let words = plan::Checkpoint::IN_EMPTY_DIR;
    facts.status.conditions.push(condition("CheckpointsDurable", false, "CheckpointsInEmptyDir", words, -200));
    let (shown, (_, says, advice)) = (on_screen(&facts), diagnosed(&facts));
    let reported = format!("{says} {advice}");
    assert!(shown.contains("checkpoints are in an emptyDir: they are lost with the pod"), "{shown}");
    assert!(!shown.contains("What to do"), "nothing is wrong: {shown}");
    for words in
        ["in an emptyDir: they are lost with the pod", "kubectl trainingjob resubmit bert", "checkpoint.storage"]
    {
        assert!(reported.contains(words), "{reported}");
    }
    facts.status.state = Some(State::Completed);
    assert!(!on_screen(&facts).contains("emptyDir"), "too late");
}

#[test]
fn status_shows_only_known_checkpoint_values() {
    let mut facts = running();
    facts.status.checkpoint = Some(CheckpointStatus { latest_path: Some("last.ckpt".into()), ..Default::default() });
    let text = on_screen(&facts);
    assert!(text.contains("at /checkpoints\n             newest   last.ckpt\nLast events"), "{text}");
    for (checkpoint_count, complete_count, reported) in [
        (Some(1), None, "last.ckpt\n"),
        (Some(1), Some(1), "last.ckpt  (complete)\n"),
        (Some(3), None, "last.ckpt  (3 good in all)\n"),
        (Some(3), Some(2), "last.ckpt  (3 good (2 complete))\n"),
    ] {
        let latest_path = Some("last.ckpt".into());
        let status = CheckpointStatus { latest_path, checkpoint_count, complete_count, ..Default::default() };
        facts.status.checkpoint = Some(status);
        let text = on_screen(&facts);
        assert!(text.contains(reported), "{text}");
    }
    facts.status.checkpoint = Some(CheckpointStatus { pending_backup: Some("a".into()), ..Default::default() });
    let text = on_screen(&facts);
    assert!(text.contains("\n             copied   none  (a has yet to be copied)\n"), "{text}");
    let (_, says, _) = diagnosed(&facts);
    assert!(!says.contains("has yet to be copied"), "it is under way: {says}");
    facts.status.state = Some(State::Completed);
    assert!(diagnosed(&facts).1.contains("Checkpoint a has yet to be copied."));
}

#[test]
fn why_reports_checkpoint_problems() {
    insta::assert_snapshot!(why::render(&Diagnosis::from_facts(&checkpointing()), plain()));
    assert_eq!(diagnosed(&checkpointing()).0, Health::Running, "it trains nonetheless");
    for reason in ["CheckpointCorrupted", "NearlyFull", "BackupFailing", "FolderShared", "FolderUnusable", "Suspect"] {
        assert!(advice(reason, BERT).is_some(), "{reason}");
    }
}

#[test]
fn status_renders_with_minimal_facts() {
    let text = on_screen(&Facts { name: "new".into(), namespace: "team".into(), ..Facts::default() });
    assert!(text.starts_with("new  in namespace team\nState        no state yet\nWaits for    No operator"), "{text}");
    for state in [State::Initializing, State::Suspended, State::Completed] {
        let text = on_screen(&job(Some(state), &[], 60));
        assert!(text.contains(state.as_str()), "{text}");
    }
}

#[test]
fn status_why_and_top_fit_terminal_width() {
    for make in [running, pending, failed, checkpointing] {
        let facts = make();
        for width in [30, 60, 80, 120] {
            let look = DisplayOptions { width: Some(width), colour: false, ..DisplayOptions::default() };
            let diagnosis = Diagnosis::from_facts(&facts);
            let row = [Row::from_facts(&facts)];
            let texts = [
                status::render(&facts, &diagnosis, look),
                why::render(&diagnosis, look),
                top::render(&row, true, look),
            ];
            for line in texts.iter().flat_map(|text| text.lines()) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn colour_does_not_change_text() {
    for facts in [running(), pending(), failed()] {
        let coloured = DisplayOptions { colour: true, ..plain() };
        let text = status::render(&facts, &Diagnosis::from_facts(&facts), coloured);
        assert!(text.contains("\x1b["));
        let mut bare = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("\x1b[") {
            bare += before;
            rest = after.split_once('m').unwrap().1;
        }
        assert_eq!(bare + rest, on_screen(&facts));
    }
}

/// Letters of some scripts, and signs such as an emoji, take two columns each.
#[test]
fn wide_characters_count_as_two_columns() {
    let columns = |text: &str| text.lines().map(UnicodeWidthStr::width).max().unwrap_or(0);
    let mut facts = failed();
    facts.status.failure_message = Some("ValueError: 訓練データが壊れています 🙈 ".repeat(9));
    facts.status.restarts[3].message = "訓練データが壊れています".repeat(9);
    facts.workers[1].message = Some("訓練データが壊れています".repeat(9));
    facts.status.metrics = Some(ProgramMetrics {
        custom_metrics: BTreeMap::from([("精度の平均".repeat(4), 0.5)]),
        ..ProgramMetrics::default()
    });
    for width in [30, 31, 60, 80] {
        let look = DisplayOptions { width: Some(width), ..DisplayOptions::default() };
        let diagnosis = Diagnosis::from_facts(&facts);
        for text in [status::render(&facts, &diagnosis, look), why::render(&diagnosis, look)] {
            assert!(columns(&text) <= width, "{width}: {text}");
        }
    }
    assert_eq!(shortened("訓練データ", 5), "訓練…");
    assert_eq!(shortened("訓練", 4), "訓練");
    let mut screen = Screen::new(DisplayOptions::default());
    let cells = ["訓練", "abcdef"].map(|name| vec![(Style::Plain, name.to_owned()), (Style::Plain, "x".into())]);
    screen.table(&["A", "B"], &cells, &[]);
    assert_eq!(screen.text(), "A        B\n訓練     x\nabcdef   x\n");
}

#[test]
fn messages_cannot_move_the_cursor() {
    let mut facts = pending();
    facts.status.conditions[0].message = "\x1b[2J\x07lost\r\nlines".into();
    let text = on_screen(&facts);
    assert!(!text.contains(['\x1b', '\r', '\x07']), "{text:?}");
    assert!(text.contains("lost lines"), "{text}");
}

#[test]
fn status_of_large_gang_fits_on_one_screen() {
    let mut facts = running();
    facts.spec.num_workers = NonZeroU16::new(512);
    facts.workers = (0..512).map(|n| worker(n, WorkerState::Running, &format!("gpu-{:02}", n / 8))).collect();
    facts.workers[300].state = WorkerState::Failed;
    let text = on_screen(&facts);
    assert!(text.lines().count() < 45, "{text}");
    assert!(text.contains("  gpu-37  300      failed\n  gpu-00  0-7      running\n"), "{text}");
    assert!(text.contains("and 50 more; -o json has them all"), "{text}");
}

#[test]
fn workers_without_a_pod_are_listed() {
    let mut facts = pending();
    facts.spec.num_workers = NonZeroU16::new(8);
    facts.workers.truncate(1);
    assert!(on_screen(&facts).contains("  no pod yet  1-7\n"), "{}", on_screen(&facts));
}

#[test]
fn status_shows_early_stopping() {
    let mut facts = running();
    let stopping = serde_json::json!({ "metric": "eval_loss", "best": 0.4321, "evaluationsSinceBest": 1 });
    facts.status.early_stopping = serde_json::from_value(stopping).unwrap();
    assert!(on_screen(&facts).contains("Early stop   eval_loss: best 0.4321, 1 evaluation since then\n"));
}

#[test]
fn status_shows_objective_line() {
    let mut facts = running();
    let mut line = |objective: serde_json::Value| {
        facts.status.objective = serde_json::from_value(objective).unwrap();
        let text = on_screen(&facts);
        text.lines().find_map(|line| line.strip_prefix("Objective")).unwrap().trim().to_owned()
    };
    let read = serde_json::json!({
        "metric": "eval_loss", "count": 12, "last": { "value": "NaN", "step": 500 }, "best": { "value": 0.4321 },
    });
    assert_eq!(line(read), "eval_loss: best 0.4321, last NaN (step 500), 12 readings");
    assert_eq!(line(serde_json::json!({ "metric": "eval_loss", "count": 0 })), "eval_loss: no reading");
}

#[test]
fn restart_cause_fits_on_one_line() {
    let mut facts = failed();
    facts.status.restarts[3].reason = "Signal".into();
    facts.status.restarts[3].message = "ended by SIGSEGV".into();
    facts.status.restarts[2].worker = None;
    facts.status.restarts[2].message = "its Job was deleted, and not by the operator".into();
    let text = status::render(&facts, &Diagnosis::from_facts(&facts), DisplayOptions::default());
    assert!(text.contains("after 42s: Signal, worker 1 (gpu-2): ended by SIGSEGV\n"), "{text}");
    assert!(text.contains("after 42s: ExitCode, its Job was deleted, and not by the operator\n"), "{text}");
}

// ---- workers

fn pod(training: Container) -> ObservedPod {
    ObservedPod {
        name: "x-training-1-abcde".into(),
        index: 1,
        incarnation: 2,
        node: Some("n".into()),
        training,
        ..ObservedPod::default()
    }
}

fn ended(exit_code: i32, reason: &str, report: Option<Report>) -> Container {
    Container::Terminated {
        started: Some(at(-9)),
        finished: Some(at(-1)),
        exit_code,
        reason: reason.into(),
        report: report.map(Box::new),
        message: None,
    }
}

#[test]
fn worker_state_is_derived_from_its_pod() {
    let report = |code: i32, stopped_by: Option<i32>, tail: &str| Report {
        version: 1,
        phase: Phase::Exited,
        exit_code: Some(code),
        stopped_by,
        stderr_tail: tail.into(),
        ..Report::default()
    };
    let waiting =
        |reason: &str, message: &str| Some(Box::new(WaitingState { reason: reason.into(), message: message.into() }));
    let cases = [
        (ObservedPod { node: None, ..pod(Container::Waiting) }, WorkerState::Waiting, None, None),
        (
            ObservedPod { node: None, unschedulable: waiting("Unschedulable", "0/4 nodes"), ..pod(Container::Waiting) },
            WorkerState::Waiting,
            None,
            Some("0/4 nodes"),
        ),
        (
            ObservedPod { waiting: waiting("ImagePullBackOff", "no such host"), ..pod(Container::Waiting) },
            WorkerState::Starting,
            None,
            Some("ImagePullBackOff: no such host"),
        ),
        (pod(Container::Running { since: None }), WorkerState::Running, None, None),
        (
            ObservedPod { deletion: Some(at(0)), ..pod(Container::Running { since: None }) },
            WorkerState::Stopping,
            None,
            None,
        ),
        (pod(ended(0, "Completed", None)), WorkerState::Succeeded, Some(0), None),
        (
            pod(ended(1, "Error", Some(report(1, None, "ValueError: no")))),
            WorkerState::Failed,
            Some(1),
            Some("ValueError: no"),
        ),
        (pod(ended(143, "Error", Some(report(0, Some(15), "")))), WorkerState::Stopped, Some(0), None),
        (pod(ended(137, "OOMKilled", None)), WorkerState::Failed, Some(137), Some("OOMKilled")),
    ];
    for (pod, state, code, message) in cases {
        let worker = Worker::from_observed(&pod);
        assert_eq!((worker.state, worker.exit_code, worker.message.as_deref()), (state, code, message), "{pod:?}");
    }
}

#[test]
fn events_of_other_jobs_are_left_out() {
    let event = |kind: &str, name: &str, uid: &str| {
        let event = serde_json::json!({
            "metadata": { "name": "e" }, "reason": "R", "message": "m", "type": "Normal",
            "involvedObject": { "kind": kind, "name": name, "uid": uid },
            "eventTime": "2026-01-01T00:00:00.000000Z",
        });
        Event::from_event(
            &serde_json::from_value(event).unwrap(),
            "x",
            Some("u"),
            &[RoleName::WORKER, RoleName::literal("ps")],
        )
        .is_some()
    };
    assert!(event("TrainingJob", "x", "u"));
    assert!(!event("TrainingJob", "x", "of the one before"));
    assert!(event("Job", "x-training", ""));
    assert!(event("Pod", "x-training-0-abcde", ""));
    assert!(!event("Pod", "x-training-0-training-0-abcde", ""), "of a job x-training-0");
    assert!(!event("Pod", "x-training-server-abcde", ""));
    assert!(!event("Service", "x-headless", ""));
}

#[test]
fn similar_pod_events_are_merged() {
    let event = |kind: &str, reason: &str, object: &str, seconds: i64| Event {
        time: at(seconds),
        kind: kind.into(),
        reason: reason.into(),
        object: object.into(),
        ..Event::default()
    };
    let mut events: Vec<Event> = (0..512).map(|n| event("Pod", "Pulled", &format!("x-{n}"), n - 600)).collect();
    events.extend([event("TrainingJob", "Started", "x", -700), event("TrainingJob", "Started", "x", -50)]);
    events.push(event("Pod", "FailedMount", "x-7", -60));
    let last: Vec<_> = last_events(events.clone(), 20).into_iter().map(|e| (e.reason, e.object, e.alike)).collect();
    let expected = [("Started", "x", 0), ("Pulled", "x-511", 511), ("FailedMount", "x-7", 0), ("Started", "x", 0)];
    assert_eq!(last, expected.map(|(reason, object, alike)| (reason.to_owned(), object.to_owned(), alike)));
    assert_eq!(last_events(events, 1)[0].time, at(-50));
}

// ---- why

#[test]
fn job_unseen_by_operator_is_diagnosed() {
    let mut facts = job(None, &[], 5);
    facts.created = Some(at(-5));
    let (verdict, _, advice) = diagnosed(&facts);
    assert_eq!((verdict, advice.as_str()), (Health::Unnoticed, "Nothing yet: check again in a moment."));
    facts.created = Some(at(-3600));
    let (_, says, advice) = diagnosed(&facts);
    assert_eq!(says, "No operator has processed bert, which was created 1h ago.");
    assert!(advice.contains("watches namespace team"), "{advice}");
    facts.status.conditions = vec![condition("Accepted", false, "Unreadable", "spec.workingDir: invalid type", -5)];
    assert_eq!(diagnosed(&facts).1, "The operator cannot process bert: spec.workingDir: invalid type.");
}

#[test]
fn unknown_state_is_not_treated_as_finished() {
    let mut facts = job(None, &[], 5);
    facts.status.state = serde_json::from_str("\"Archived\"").unwrap();
    let (_, says, advice) = diagnosed(&facts);
    assert!(says.starts_with("bert is in a state that version ") && !facts.is_finished(), "{says}");
    assert!(advice.starts_with("Upgrade the plugin"), "{advice}");
}

#[test]
fn why_explains_pending_job() {
    insta::assert_snapshot!(why::render(&Diagnosis::from_facts(&pending()), plain()));
}

#[test]
fn job_waiting_for_its_template_is_diagnosed() {
    let mut facts = pending();
    facts.spec.num_workers = NonZeroU16::new(0);
    let words = "there is no ClusterTrainingRuntime gpu: create it, and the job begins";
    facts.status.conditions = vec![condition("Accepted", false, "RuntimeNotFound", words, -5)];
    let (_, says, advice) = diagnosed(&facts);
    assert!(says.contains(words) && !says.contains("It requests"), "{says}");
    assert!(advice.contains("kubectl get ctr,tr"), "{advice}");
}

/// A gang of four workers with eight GPUs each, two of which have a node.
fn half_placed() -> Facts {
    let mut facts = pending();
    (facts.spec.num_workers, facts.spec.gpus_per_worker) = (NonZeroU16::new(4), Some(8));
    facts.status.resources = Some(AllocatedResources { allocated_gpus: 16, allocated_nodes: 2 });
    let words = format!("{UNSCHEDULABLE}; 2 scheduled workers are holding 16 idle GPUs");
    facts.status.conditions = vec![condition("Scheduled", false, "Unschedulable", &words, -720)];
    facts.workers = vec![
        worker(0, WorkerState::Starting, "gpu-1"),
        worker(1, WorkerState::Running, "gpu-2"),
        worker(2, WorkerState::Waiting, ""),
        worker(3, WorkerState::Waiting, ""),
    ];
    facts
}

#[test]
fn job_lacking_gpu_nodes_gets_cpu_resubmit_advice() {
    let way = "resubmit bert -n team --set gpusPerWorker=0";
    let mut facts = pending();
    assert!(diagnosed(&facts).2.contains(way));
    facts.spec.gpus_per_worker = Some(0);
    assert!(!diagnosed(&facts).2.contains(way));
    facts.spec.gpus_per_worker = Some(1);
    let of = |words: &str| condition("Scheduled", false, "Unschedulable", words, -720);
    for (words, has) in [
        ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient amd.com/gpu.", true),
        ("0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient memory.", false),
        ("0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: }.", false),
    ] {
        facts.status.conditions = vec![of(words)];
        assert_eq!(diagnosed(&facts).2.contains(way), has, "{words}");
    }
}

#[test]
fn half_placed_gang_is_diagnosed_with_idle_gpus() {
    let (_, says, advice) = diagnosed(&half_placed());
    assert_eq!(says.matches("idle").count(), 1, "the condition says it already: {says}");
    for words in
        ["scheduling.queue", "scheduling.gang", "kubectl trainingjob stop bert -n team", "startDeadlineSeconds"]
    {
        assert!(advice.contains(words), "{words}: {advice}");
    }
    assert!(!advice.contains("Nothing is lost by waiting"), "{advice}");
    // Without the right to see pods, the status tells as much.
    let blind = Facts { workers: vec![], unread: vec!["you may not list pods".into()], ..half_placed() };
    assert!(diagnosed(&blind).2.contains("scheduling.queue"), "{}", diagnosed(&blind).2);
    let mut cpus = half_placed();
    cpus.spec.gpus_per_worker = Some(0);
    cpus.status.resources = Some(AllocatedResources { allocated_gpus: 0, allocated_nodes: 2 });
    assert!(
        diagnosed(&cpus).1.contains("2 of its 4 workers have a node and hold idle CPUs and memory"),
        "{}",
        diagnosed(&cpus).1
    );
}

#[test]
#[expect(clippy::large_stack_arrays, reason = "a table")]
fn idle_gpu_advice_requires_half_placed_gang() {
    let none = pending();
    let mut at_once = half_placed();
    at_once.status.conditions = vec![condition("Scheduled", false, "Scheduling", "2 of 4 workers have a node", -3)];
    let mut old = half_placed();
    old.status.attempt = Some(2);
    old.status.resources = None;
    let mut gone = half_placed();
    gone.workers.iter_mut().for_each(|worker| worker.state = WorkerState::Stopped);
    gone.status.resources = None;
    for facts in [&mut old, &mut gone] {
        facts.status.conditions = pending().status.conditions;
    }
    for facts in [none, at_once, old, gone, running()] {
        let (_, says, advice) = diagnosed(&facts);
        assert!(!says.contains("idle") && !advice.contains("scheduling.queue"), "{says} {advice}");
    }
}

#[test]
fn starting_job_is_diagnosed_with_image_pull_failure() {
    let words = "worker 1 (pod p, node n): Back-off pulling image \"none\"";
    let facts = job(Some(State::Initializing), &[condition("Running", false, "ImagePull", words, -90)], 90);
    let (verdict, says, advice) = diagnosed(&facts);
    assert_eq!(verdict, Health::Starting);
    assert_eq!(
        says,
        format!(
            "bert has been Initializing for 1m30s: every worker has a node, but not every program is running yet. The \
             condition Running has been False for 1m30s (ImagePull): {words}."
        )
    );
    assert!(advice.starts_with("Correct spec.image"), "{advice}");
}

#[test]
fn restarting_job_is_diagnosed_between_attempts() {
    let words = "worker 1 (pod p, node n): killed for using more memory";
    let mut facts = job(
        Some(State::Initializing),
        &[condition("Restarting", true, "OOMKilled", words, -20), condition("Running", false, "OOMKilled", words, -20)],
        20,
    );
    facts.status.attempt = Some(2);
    facts.status.restart_count = Some(1);
    facts.status.restarts = vec![restart(1, "OOMKilled", "killed for using more memory", Some(137))];
    let (verdict, says, advice) = diagnosed(&facts);
    assert_eq!(verdict, Health::Restarting);
    assert!(
        says.starts_with(&format!("bert is restarting: attempt 1 failed 20s ago (OOMKilled): {words}. ")),
        "{says}"
    );
    assert!(
        says.ends_with("restarted once. It has used 1 of the 3 restarts that failurePolicy.backoffLimit allows."),
        "{says}"
    );
    assert!(advice.contains("resources.limits.memory"), "{advice}");
    // What holds the next attempt up is said first.
    facts.status.conditions.push(condition("Scheduled", false, "QuotaExceeded", "exceeded quota: small", -10));
    let (_, says, advice) = diagnosed(&facts);
    assert!(says.contains("The next attempt is waiting (QuotaExceeded): exceeded quota: small."), "{says}");
    assert!(advice.starts_with("Have the ResourceQuota"), "{advice}");
}

#[test]
fn healthy_running_job_needs_no_advice() {
    let (verdict, says, advice) = diagnosed(&running());
    assert_eq!((verdict, advice.as_str()), (Health::Running, ""));
    assert_eq!(
        says,
        "bert has been Running for 12m. The program reported progress 5s ago: 45%, epoch 9 of 20, step 450 of 1000. About \
         15m remain."
    );
    let mut silent = running();
    silent.status.last_progress_time = None;
    assert_eq!(diagnosed(&silent).0, Health::Running, "a program that reports nothing is not slow for that");
    assert!(diagnosed(&silent).1.contains("its pace is unknown"));
}

#[test]
fn slow_or_stuck_job_is_diagnosed_with_advice() {
    let mut stuck = running();
    stuck.status.last_progress_time = Some(Time(at(-660)));
    let (verdict, says, advice) = diagnosed(&stuck);
    assert_eq!(verdict, Health::Slow);
    assert!(
        says.starts_with(
            "bert has been Running for 12m, but is slow or stuck. The program last reported progress 11m ago"
        ),
        "{says}"
    );
    assert!(!says.contains("remain"), "{says}");
    assert!(advice.contains("kubectl trainingjob logs bert -n team -f"), "{advice}");
    assert!(advice.contains("kubectl trainingjob restart bert -n team"), "{advice}");

    let mut done = running();
    done.status.progress = Some("100%".into());
    done.status.last_progress_time = Some(Time(at(-180)));
    let (verdict, says, advice) = diagnosed(&done);
    assert_eq!(verdict, Health::Slow);
    assert!(says.contains("All steps were done 3m ago, and the program has not exited."), "{says}");
    assert!(advice.contains("kubectl trainingjob stacks bert -n team"), "{advice}");
    done.status.last_progress_time = Some(Time(at(-60)));
    assert_eq!(diagnosed(&done).0, Health::Running, "it may save its model");

    // What an earlier attempt reported says nothing of this one until it has had the time.
    let mut restarted = running();
    restarted.status.last_progress_time = Some(Time(at(-900)));
    restarted.since = Some(at(-300));
    assert_eq!(diagnosed(&restarted).0, Health::Running);
    restarted.since = Some(at(-899));
    assert!(diagnosed(&restarted).1.contains("last reported progress 15m ago"), "its first words came before Running");
    restarted.since = Some(at(-700));
    assert!(diagnosed(&restarted).1.contains("no progress since this attempt started, 11m ago"));

    let mut idle = running();
    idle.status.metrics.as_mut().unwrap().gpu_utilization = Some(12.0);
    let (verdict, says, advice) = diagnosed(&idle);
    assert_eq!(verdict, Health::Slow);
    assert!(says.contains("GPU utilization was 12 %"), "{says}");
    assert!(advice.contains("data loader"), "{advice}");
    assert!(on_screen(&idle).contains("\nSlow         GPU utilization was 12 %"), "{}", on_screen(&idle));
    idle.since = Some(at(-60));
    assert_eq!(diagnosed(&idle).0, Health::Running, "it warms up");
    idle.since = Some(at(-754));
    idle.spec.gpus_per_worker = Some(0);
    assert_eq!(diagnosed(&idle).0, Health::Running, "it has no GPUs");
}

#[test]
fn job_below_min_throughput_is_slow() {
    let mut slow = running();
    slow.status.metrics.as_mut().unwrap().throughput = Some(4.0);
    slow.spec.monitoring.min_throughput = Some(4.0);
    assert_eq!(diagnosed(&slow).0, Health::Running, "it is as fast as it should be");
    slow.spec.monitoring.min_throughput = Some(5.0);
    let (verdict, says, advice) = diagnosed(&slow);
    assert_eq!(verdict, Health::Slow);
    assert!(says.contains("Throughput was 4 when last reported, below monitoring.minThroughput 5."), "{says}");
    assert!(advice.contains(r#"-p '{"spec":{"monitoring":{"minThroughput":4}}}'"#), "{advice}");
}

#[test]
fn conditions_of_running_job_are_diagnosed() {
    let with = |found: Condition| {
        let mut facts = running();
        facts.status.conditions.push(found);
        diagnosed(&facts)
    };
    let (verdict, says, advice) = with(condition("LossFinite", false, "NaNLoss", "step 40 loss nan", -90));
    assert_eq!(verdict, Health::Slow);
    assert!(says.starts_with(
        "bert has been Running for 12m, but is not learning. The loss has been NaN or infinite for 1m30s: step 40"
    ));
    assert!(advice.starts_with("Lower the learning rate"), "{advice}");
    let flat = "the loss has not been lower than 0.4 at step 900 for 3600 s (monitoring.plateauSeconds is 3600)";
    let (verdict, says, advice) = with(condition("LossImproving", false, "LossPlateau", flat, -9));
    assert_eq!(verdict, Health::Slow);
    assert!(
        says.starts_with(
            "bert has been Running for 12m, but is not learning. The loss no longer improves: the loss has"
        ),
        "{says}"
    );
    assert!(advice.contains("raise monitoring.plateauSeconds: kubectl edit tj bert -n team"), "{advice}");
    let (verdict, says, _) = with(condition("ProgressStalled", true, "NoProgress", "nothing for 10 minutes", -9));
    assert_eq!(verdict, Health::Slow);
    assert!(says.contains("Progress has stalled: nothing for 10 minutes."), "{says}");
    let (verdict, says, advice) = with(condition("AgentReady", false, "Unreachable", "no answer", -60));
    assert_eq!(verdict, Health::Running, "what is not heard may well go on");
    assert!(says.contains("The agent has not answered for 1m: no answer.") && !advice.is_empty(), "{says}");
    let (_, says, _) = with(condition("Stopping", true, "EarlyStopped", "eval_loss 0.4", -3));
    assert!(
        says.contains("The success policy is met (EarlyStopped), and the workers are stopping: eval_loss 0.4."),
        "{says}"
    );
}

#[test]
fn program_output_in_message_does_not_affect_diagnosis() {
    let mut facts = running();
    let line = "the loss is not a number: progress 3%, loss nan";
    facts.status.conditions.push(condition("LossFinite", false, "NaNLoss", line, -90));
    let (verdict, says, advice) = diagnosed(&facts);
    assert_eq!(verdict, Health::Slow);
    assert!(
        says.contains("The loss has been NaN or infinite for 1m30s: the loss is not a number: progress 3%"),
        "{says}"
    );
    assert!(says.contains("About 15m remain."), "it does report progress: {says}");
    assert!(!advice.contains("If the program hangs"), "{advice}");

    facts.status.conditions.push(condition("AgentReady", false, "Unreachable", "no answer", -60));
    let (verdict, says, _) = diagnosed(&facts);
    assert_eq!(verdict, Health::Slow, "that the agent is silent takes back no loss");
    assert!(says.contains("The loss has been NaN or infinite for 1m30s"), "{says}");
}

#[test]
fn why_explains_failed_job() {
    insta::assert_snapshot!(why::render(&Diagnosis::from_facts(&failed()), plain()));
}

#[test]
fn exit_code_of_a_signal_is_explained() {
    let mut facts = failed();
    facts.status.failure_message = Some("worker 1 (pod p, node n): ended by SIGSEGV".into());
    facts.status.restarts[3].exit_code = Some(139);
    facts.status.restarts[3].reason = Reason::Signal;
    assert!(diagnosed(&facts).1.contains("The exit code was 139 (128 + signal 11)."));
}

/// A job whose attempts ended by these reasons, each with its worker, its node and the words of that worker.
fn failed_by(ends: &[(&str, u32, &str, &str)]) -> Facts {
    let mut facts = failed();
    let cause = |(attempt, (reason, worker, node, words)): (u32, &(&str, u32, &str, &str))| AttemptEnd {
        worker: Some(*worker),
        node: Some((*node).to_owned()),
        ..restart(attempt, reason, words, None)
    };
    facts.status.restarts = (1..).zip(ends).map(cause).collect();
    facts
}

#[test]
fn node_that_repeatedly_fails_workers_is_named() {
    let ends = [
        ("Signal", 1, "gpu-17", "ended by SIGSEGV"),
        ("PythonException", 3, "gpu-17", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
        ("UnexpectedAdmissionError", 1, "gpu-17", "Allocate failed due to no healthy devices present"),
    ];
    let (_, says, advice) = diagnosed(&failed_by(&ends));
    assert!(says.contains("The first failure was on node gpu-17 every time."), "{says}");
    assert!(advice.contains("kubectl cordon gpu-17"), "{advice}");
    // What the program did in between speaks neither for nor against the node.
    let key = ("PythonException", 0, "gpu-4", ", rank 0: KeyError: 'labels' at train.py:88");
    let (_, says, advice) = diagnosed(&failed_by(&[ends[0], key, ends[1]]));
    assert!(
        says.contains("Of the last 3 failures, 2 are of a kind that nodes cause, all of them on node gpu-17."),
        "{says}"
    );
    assert!(advice.contains("kubectl cordon gpu-17"), "{advice}");
}

#[test]
fn node_is_not_blamed_for_program_failures() {
    let harmless = [
        // The worker is always placed on the same node, and its program is always wrong.
        ("PythonException", "KeyError: 'labels' at train.py:88"),
        ("PythonException", "KeyError: 'CUDA error: uncorrectable ECC error encountered' at log.py:9"),
        ("PythonException", "torch.AcceleratorError: CUDA error: device-side assert triggered"),
        ("PythonException", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        ("ExitCode", "exit code 1: read 3 of the CUDA error reports: no CUDA-capable device is detected in 2 of them"),
        ("CudaOutOfMemory", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("OOMKilled", "killed for using more memory than its limit"),
        ("NaNLoss", "its loss is NaN"),
    ];
    for (reason, words) in harmless {
        let (_, says, advice) = diagnosed(&failed_by(&[(reason, 1, "gpu-17", words), (reason, 1, "gpu-17", words)]));
        assert!(!says.contains("on node gpu-17") && !advice.contains("cordon"), "{reason}: {words}: {says} {advice}");
    }
    // A worker that also fails on other nodes brings the failure along.
    let crash = |worker, node| ("Signal", worker, node, "ended by SIGSEGV");
    let elsewhere = ("PythonException", 1, "gpu-4", "KeyError: 'labels' at train.py:88");
    for ends in [
        vec![crash(1, "gpu-17"), crash(1, "gpu-17"), crash(1, "gpu-4")],
        vec![crash(1, "gpu-17"), crash(1, "gpu-17"), elsewhere],
        vec![crash(1, "gpu-17"), crash(2, "gpu-18")],
        vec![crash(1, "gpu-17")],
    ] {
        let advice = diagnosed(&failed_by(&ends)).2;
        assert!(!advice.contains("cordon"), "{ends:?}: {advice}");
    }
}

#[test]
fn invalid_spec_is_diagnosed_without_attempts() {
    let mut facts = job(Some(State::Failed), &[], 5);
    facts.status.failure_reason = Some("InvalidSpec".into());
    facts.status.failure_message = Some("spec.resources.limits.cpu: 1x is no quantity".into());
    let (_, says, advice) = diagnosed(&facts);
    assert_eq!(
        says,
        "bert failed 5s ago, before anything ran: InvalidSpec. spec.resources.limits.cpu: 1x is no quantity."
    );
    assert!(!advice.contains("--failed"), "{advice}");
}

#[test]
fn suspended_completed_and_deleted_jobs_are_diagnosed() {
    let mut facts = job(Some(State::Suspended), &[], 600);
    facts.spec.suspend = true;
    let (verdict, says, advice) = diagnosed(&facts);
    assert_eq!(verdict, Health::Suspended);
    assert!(says.starts_with("bert has been Suspended for 10m: no worker is running"), "{says}");
    assert!(advice.contains("kubectl trainingjob resume bert -n team"), "{advice}");

    let succeeded = condition("Succeeded", true, "Completed", "every worker exited with code 0", -60);
    let mut facts = job(Some(State::Completed), &[succeeded], 60);
    facts.status.duration = Some("2h0m0s".into());
    let (verdict, says, advice) = diagnosed(&facts);
    assert_eq!((verdict, advice.as_str()), (Health::Completed, ""));
    assert_eq!(says, "bert completed 1m ago, after 2h0m0s. Completed: every worker exited with code 0.");

    facts.deleting = Some(at(-3));
    assert_eq!(diagnosed(&facts).0, Health::Deleting);
}

#[test]
fn diagnosis_reports_unread_and_unobserved_facts() {
    let mut facts = pending();
    facts.generation = Some(2);
    facts.unread = vec!["you may not list pods in namespace team".into()];
    let says = diagnosed(&facts).1;
    assert!(says.contains("not yet observed the last change of the spec"), "{says}");
    assert!(says.contains("Not read: you may not list pods"), "{says}");
}

/// What `why` says of a trial, and of a job that is a search.
#[test]
fn diagnosis_links_trial_to_its_search() {
    let mut facts = running();
    facts.trial_of = Some(TrialOf { tuning_job: "lr".into(), trial: "7".into() });
    let (_, says, advice) = diagnosed(&facts);
    assert!(says.contains("bert is trial 7 of the search lr (TuningJob)."), "{says}");
    assert!(advice.contains("kubectl trainingjob tune lr -n team"), "{advice}");
    let held = "its search, TuningJob lr, is suspended; resume the search to continue";
    let mut held = job(Some(State::Suspended), &[condition("Suspended", true, "Suspended", held, -9)], 9);
    held.trial_of.clone_from(&facts.trial_of);
    let (_, says, advice) = diagnosed(&held);
    assert!(says.contains("TuningJob lr, is suspended") && !says.contains("about to start"), "{says}");
    assert!(advice.contains("kubectl trainingjob resume tuningjob/lr -n team"), "{advice}");
    let mut short = job(Some(State::Running), &[], 9);
    let config = serde_json::json!({ "maxTrials": 2, "metric": { "name": "loss", "goal": "minimize" } });
    short.spec.hyper_parameter_tuning_config = Some(serde_json::from_value(config).unwrap());
    let (_, says, advice) = diagnosed(&short);
    assert!(says.contains("runs the search of the TuningJob bert"), "{says}");
    assert!(advice.contains("kubectl trainingjob why tuningjob/bert -n team"), "{advice}");
}

// ---- advice

/// The reasons of docs/operate.md, and what is to be done about them there and here.
#[test]
fn every_documented_reason_has_advice() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate.md")).unwrap();
    let section = |title: &str| {
        let (_, rest) = page.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no section {title}"));
        rest.split("\n## ").next().unwrap().to_owned()
    };
    // States, and what a condition says when nothing is wrong.
    let fine = [
        "Valid",
        "Scheduled",
        "Running",
        "Completed",
        "Failed",
        "Suspended",
        "Suspending",
        "Resumed",
        "Restarted",
        "Answers",
        "Progresses",
        "Recovered",
        "EarlyStopped",
        "TargetAccuracyReached",
        "TargetLossReached",
        "CheckpointsGood",
        "Published",
    ];
    let mut reasons = BTreeSet::new();
    for (title, column) in [("Conditions and their reasons", 3), ("Why a job failed or restarted", 1)] {
        for row in section(title).lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cell = row.split('|').nth(column).unwrap_or_default().to_owned();
            // Of "`PodFailed`, or Kubernetes' own word such as ..." only the first counts.
            let words = if column == 1 { 1 } else { usize::MAX };
            reasons.extend(cell.split('`').skip(1).step_by(2).take(words).map(str::to_owned));
        }
    }
    assert!(reasons.contains("Unschedulable") && reasons.contains("OOMKilled"), "{reasons:?}");
    let has_none = |reason: &&String| !fine.contains(&reason.as_str()) && advice(reason, BERT).is_none();
    let missing: Vec<_> = reasons.iter().filter(has_none).collect();
    assert!(missing.is_empty(), "crates/kubectl/src/advice.rs has nothing on {missing:?} of docs/operate.md");
    let names: BTreeSet<&str> = ADVICE.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(names.len(), ADVICE.len(), "a reason stands twice in crates/kubectl/src/advice.rs");
}

/// The job of these tests, without a known failed pod.
const BERT: Names<'static> = Names { namespace: "team", job: "bert", pod: None, node: None };

#[test]
fn advice_fills_in_names_and_has_no_placeholders() {
    let placeholder =
        regex::Regex::new(r"\b(NAME|NAMESPACE|NEW|POD|NODE|CONTAINER|JOB|DIR|UID)\b|<[a-z-]+>|[{}]").unwrap();
    let known = Names { pod: Some("bert-training-0-x"), node: Some("gpu-1"), ..BERT };
    for (reason, text) in ADVICE {
        for names in [BERT, known] {
            let advice = advice(reason, names).unwrap();
            assert!(!placeholder.is_match(&advice) && !advice.contains("()"), "{reason}: {advice}");
        }
        let with_names = advice(reason, known).unwrap();
        assert_eq!(with_names.contains("gpu-1"), text.contains("{node}"), "{reason}: {with_names}");
    }
    // What is printed of the jobs of these tests.
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snapshots");
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        if text.contains("apiVersion:") {
            continue;
        }
        let commands = text.lines().filter(|line| line.contains("kubectl ") && !line.contains("Usage:"));
        for line in commands {
            assert!(!placeholder.is_match(line), "{line}");
        }
    }
    let unknown: Vec<_> = NEEDS_ANOTHER_SPEC.iter().filter(|reason| advice(reason, BERT).is_none()).collect();
    assert!(unknown.is_empty(), "there is no advice on {unknown:?}");
    let facts = job(Some(State::Initializing), &[condition("Running", false, "ImagePull", "no such image", -90)], 90);
    let (_, _, advice) = diagnosed(&facts);
    assert!(advice.contains("kubectl trainingjob resubmit bert -n team --set"), "{advice}");
}

#[test]
fn repeated_failure_is_not_diagnosed_as_hang() {
    let mut facts = failed();
    let repeated = RepeatedFailure { times: RepeatedFailure::ENOUGH, ..RepeatedFailure::default() };
    let history = RestartHistory { repeated: Some(repeated), ..RestartHistory::default() };
    facts.status.restart_history = Some(history);
    let (_, _, advice) = diagnosed(&facts);
    assert!(
        advice.starts_with("Three attempts failed for the same reason") && !advice.contains("The program hangs"),
        "{advice}"
    );
    assert!(advice.contains("kubectl trainingjob restart bert -n team"), "{advice}");
}

// ---- top

#[test]
fn top_lists_all_jobs_in_a_table() {
    let mut other = pending();
    other.name = "gpt".into();
    let mut rows = [Row::from_facts(&failed()), Row::from_facts(&other), Row::from_facts(&running())];
    rows[0].name = "old".into();
    sort(&mut rows);
    let wide = DisplayOptions { width: Some(130), ..DisplayOptions::default() };
    insta::assert_snapshot!(top::render(&rows, true, wide));
}

#[test]
fn long_job_name_is_shortened_in_table() {
    let mut row = Row::from_facts(&running());
    row.name = "a-very-long-name-of-a-job-that-nobody-wants-to-type".into();
    let look = DisplayOptions { width: Some(80), ..DisplayOptions::default() };
    let text = top::render(&[row], false, look);
    assert!(text.contains("a-very-lo") && text.contains('…') && text.contains("15m"), "{text}");
}

// ---- logs

fn worker_place(index: u32) -> ReplicaId {
    ReplicaId { role: RoleName::WORKER, index }
}

#[test]
fn log_lines_are_parsed_and_formatted() {
    let source = Source { pod: "x-training-3-abcde".into(), uid: "u".into(), attempt: 2, place: worker_place(3) };
    let line = LogLine::parse(b"2026-11-21T17:00:00.123456789Z epoch 1 \xff\n");
    assert_eq!(line.time, Some("2026-11-21T17:00:00.123456789Z".parse().unwrap()));
    let form = LogFormat { namespace: "team".into(), job: "x".into(), digits: 2, ..LogFormat::default() };
    assert_eq!(form.render(&source, &line), b"[ 3] epoch 1 \xff\n");
    let timed = LogFormat { timestamps: true, ..form.clone() };
    assert_eq!(timed.render(&source, &line), b"[ 3] 2026-11-21T17:00:00.123Z epoch 1 \xff\n");
    let look = DisplayOptions { colour: true, terminal: true, ..DisplayOptions::default() };
    let coloured = LogFormat { look, ..form.clone() };
    let bar = LogLine::parse(b"2026-11-21T17:00:00Z 10%\r 20%\r 30%\r\n");
    assert_eq!(coloured.render(&source, &bar), b"\x1b[35m[ 3]\x1b[0m  30%\n");
    let of_role = Source { place: ReplicaId { role: RoleName::literal("ps"), index: 3 }, ..source.clone() };
    let with_roles = LogFormat { roles: 6, digits: 1, ..form.clone() };
    assert_eq!(with_roles.render(&of_role, &line), b"[    ps 3] epoch 1 \xff\n");
    assert_eq!(with_roles.render(&source, &line), b"[worker 3] epoch 1 \xff\n");
    let json = LogFormat { json: true, ..form.clone() };
    let object: serde_json::Value = serde_json::from_slice(&json.render(&of_role, &line)).unwrap();
    assert_eq!((&object["worker"], &object["role"]), (&3.into(), &"ps".into()));
    let object: serde_json::Value = serde_json::from_slice(&json.render(&source, &line)).unwrap();
    assert_eq!((&object["worker"], &object["rank"]), (&3.into(), &serde_json::Value::Null));
    assert_eq!(object["attempt"], 2);
    assert_eq!(object["line"], "epoch 1 \u{fffd}");
    assert_eq!(LogLine::parse(b"no time here"), LogLine { time: None, text: b"no time here".to_vec() });
    assert_eq!(LogLine::parse(b"2026-11-21T17:00:00Z \n").text, b"");
    assert_eq!(form.kept(Some(1), Some(worker_place(3)), None, "a\nb"), b"[ 3] a\n[ 3] b\n");
    assert_eq!(form.kept(None, None, None, "spec.image: no"), b"spec.image: no\n");
}

/// An API server with a job `x` whose attempt 1 ends while its log is followed, and whose attempt 2 completes.
///
/// Its answers are fixed. A watch that has sent everything stays silent.
#[expect(clippy::match_same_arms, reason = "each arm is a rule of its own")]
async fn restarting(
    request: http::Request<kube::client::Body>,
    reported: std::sync::Arc<(tokio::sync::Notify, Mutex<Vec<String>>)>,
) -> Result<http::Response<kube::client::Body>, std::convert::Infallible> {
    let (notify, asked) = &*reported;
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    let is_first = {
        let mut asked = asked.lock().unwrap();
        asked.push(format!("{path}?{query}"));
        asked.iter().filter(|other| **other == format!("{path}?{query}")).count() == 1
    };
    let has = |word: &str| query.contains(word);
    let job = |state: &str| {
        serde_json::json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
            "metadata": { "name": "x", "namespace": "team", "uid": "u", "resourceVersion": "1" },
            "spec": { "model": "m", "dataset": "d", "numWorkers": 2 },
            "status": { "state": state, "attempt": 1 },
        })
    };
    let pod = |attempt: u32, rank: i32, ended: bool| {
        let state = if ended {
            serde_json::json!({ "terminated": { "exitCode": 1, "reason": "Error" } })
        } else {
            serde_json::json!({ "running": {} })
        };
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("x-{attempt}-{rank}"), "namespace": "team", "uid": format!("{attempt}-{rank}"),
                "resourceVersion": "1", "labels": { "ml.example.com/incarnation": attempt.to_string(),
                "batch.kubernetes.io/job-completion-index": rank.to_string() } },
            "spec": { "nodeName": "n" },
            "status": { "phase": if ended { "Failed" } else { "Running" },
                "containerStatuses": [{ "name": "training", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": state }] },
        })
    };
    let list =
        |items: Vec<serde_json::Value>| serde_json::json!({ "metadata": { "resourceVersion": "1" }, "items": items });
    // The type comes first, as API servers write it, because an object is decoded as it arrives.
    let applied = |object: serde_json::Value| format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n");
    let answer = if path.ends_with("/log") {
        let name = path.rsplit('/').nth(1).unwrap();
        let first = |rank: u8| format!("2026-01-01T00:00:0{}Z a{rank}\n", 2 - rank);
        match (name, has("follow=true")) {
            ("x-1-0", false) => first(0),
            ("x-1-1", false) => first(1),
            // The lines that are asked for again, one more line, and the connection's end.
            ("x-1-0", true) => first(0) + "2026-01-01T00:00:03Z b0\n",
            ("x-1-1", true) => first(1),
            _ => {
                notify.notify_one();
                "2026-01-01T00:00:09Z c\n".to_owned()
            }
        }
    } else if path.ends_with("/pods") {
        match (has("watch=true"), is_first) {
            (false, _) => list(vec![pod(1, 0, false), pod(1, 1, false)]).to_string(),
            (true, true) => applied(pod(2, 0, false)),
            (true, false) => std::future::pending().await,
        }
    } else if path.contains("/pods/") {
        pod(if path.contains("/x-2") { 2 } else { 1 }, path.ends_with("-1").into(), true).to_string()
    } else if path.ends_with("/trainingjobs/x") {
        job("Running").to_string()
    } else if has("watch=true") {
        if !is_first {
            std::future::pending::<()>().await;
        }
        notify.notified().await;
        applied(job("Completed"))
    } else {
        list(vec![job("Running")]).to_string()
    };
    Ok(http::Response::new(kube::client::Body::from(answer.into_bytes())))
}

#[tokio::test]
async fn logs_follow_through_restarts() {
    let reported = std::sync::Arc::new((tokio::sync::Notify::new(), Mutex::new(Vec::new())));
    let asked = reported.clone();
    let service = tower::service_fn(move |request| restarting(request, reported.clone()));
    let cluster = cluster::Cluster::with_client(kube::Client::new(service, "team"), "team");
    let wanted = super::logs::LogQuery { follow: true, ..Default::default() };
    let mut out = Vec::new();
    let all = super::logs::run(&cluster, "x", wanted, DisplayOptions::default(), &mut out);
    let done = tokio::time::timeout(std::time::Duration::from_secs(60), all).await;
    let asked = asked.1.lock().unwrap().join("\n");
    done.unwrap_or_else(|_| panic!("it does not end; it asked for\n{asked}")).unwrap();
    // First the existing lines in the order of time, then the new lines, each once.
    let text = String::from_utf8(out).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2..].sort_unstable();
    assert_eq!(lines, ["[1] a1", "[0] a0", "[0] b0", "[0] c"], "it asked for\n{asked}");
}

#[test]
fn culprit_is_latest_restart_matching_failure_reason() {
    let restarts = [restart(1, "OOMKilled", "m", None), restart(2, "ExitCode", "m", None)];
    assert_eq!(culprit(&restarts, None).unwrap().attempt, 2);
    assert_eq!(culprit(&restarts, Some("ExitCode")).unwrap().attempt, 2);
    assert_eq!(culprit(&restarts, Some("DeadlineExceeded")), None, "no worker did that");
    assert_eq!(culprit(&[], Some("InvalidSpec")), None);
}

// ---- small things

#[test]
fn numbers_and_durations_are_formatted() {
    let numbers = [0.0, 0.123_456, 1.0, 0.5, 91.0, 1234.5, 123_456.0, 1e-5, 2.5e9, -0.031_25];
    let texts = ["0", "0.1235", "1", "0.5", "91", "1234", "123456", "1.00e-5", "2.50e9", "-0.03125"];
    assert_eq!(numbers.map(number), texts);
    assert_eq!([0, 59, 60, 61, 720, 3600, 11_100].map(span), ["0s", "59s", "1m", "1m1s", "12m", "1h", "3h5m"]);
    assert_eq!([172_800, 187_200].map(span), ["2d", "2d4h"]);
    assert_eq!(age(at(5), at(0)), "0s", "clocks differ");
    assert_eq!(bar(45.0, 10), "[####------]");
    assert_eq!(bar(250.0, 4), "[####]");
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    assert_eq!(read_span("1h30m").unwrap().as_secs(), 5400);
    assert!(read_span("soon").is_err() && read_span("0s").is_err());
}

#[test]
fn similar_names_are_suggested() {
    let names: BTreeSet<String> = ["bert", "bert-large", "gpt", "llama"].map(str::to_owned).into();
    assert_eq!(cluster::near("bret", &names), ["bert"]);
    assert_eq!(cluster::near("bert-lagre", &names), ["bert-large", "bert"]);
    assert_eq!(cluster::near("resnet", &names), [""; 0]);
}

#[test]
fn styles_are_plain_without_colour() {
    assert_eq!(Style::Bad.paint("x", false), "x");
    assert_eq!(Style::Bad.paint("x", true), "\x1b[31mx\x1b[0m");
    assert_eq!(Style::Plain.paint("x", true), "x");
}

#[test]
fn command_line_definition_is_valid() {
    Args::command().debug_assert();
}

#[test]
fn shell_completion_suggests_commands_and_values() {
    let command = Args::command();
    let complete = |words: &[&str]| candidates(&command, &words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
    let names = |wanted: Completed| match wanted {
        Completed::These(all) => all.iter().map(|c| c.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        names(complete(&[""])),
        [
            "run",
            "attach",
            "wait",
            "status",
            "logs",
            "top",
            "tune",
            "best",
            "why",
            "stacks",
            "checkpoints",
            "stop",
            "resume",
            "restart",
            "resubmit",
            "exec",
            "shell",
            "port-forward",
            "cp",
            "gpus",
            "check",
            "backup",
            "bundle",
            "runbook",
            "plan",
            "convert",
            "completion"
        ]
    );
    assert_eq!(complete(&["plan", ""]), Completed::Jobs);
    assert_eq!(complete(&["convert", "-f", ""]), Completed::File);
    assert_eq!(complete(&["plan", "--file", "jo"]), Completed::File);
    assert_eq!(complete(&["run", "--image", "a", "--code", "s"]), Completed::File);
    assert_eq!(complete(&["wait", ""]), Completed::Jobs);
    assert_eq!(names(complete(&["convert", "-f", "jobs.yaml", ""])), [""; 0]);
    assert_eq!(complete(&["status", ""]), Completed::Jobs);
    assert_eq!(complete(&["logs", "-n", "team", "--tail", "5", "b"]), Completed::Jobs);
    assert_eq!(names(complete(&["status", "bert", ""])), [""; 0]);
    assert_eq!(names(complete(&["top", "-o", ""])), ["table", "json"]);
    assert_eq!(names(complete(&["tune", "x", "-o", ""])), ["table", "json", "csv"]);
    assert_eq!(names(complete(&["best", "-o", ""])), ["table", "json", "yaml"]);
    assert_eq!(names(complete(&["tune", "--sort", ""])), ["number", "value"]);
    for command in ["tune", "best"] {
        assert_eq!(complete(&[command, "-n", "team", ""]), Completed::Searches);
    }
    for command in ["stop", "resume", "why"] {
        assert_eq!(complete(&[command, ""]), Completed::JobsAndSearches);
    }
    assert_eq!(complete(&["restart", ""]), Completed::Jobs);
    assert_eq!(complete(&["bundle", ""]), Completed::Jobs);
    assert_eq!(names(complete(&["completion", ""])), ["bash", "zsh", "fish"]);
    assert_eq!(complete(&["checkpoints", ""]), Completed::Jobs);
    let verbs = ["list", "verify", "why", "prune", "backup", "restore"];
    assert_eq!(names(complete(&["checkpoints", "bert", ""])), verbs);
    assert_eq!(
        names(complete(&["checkpoints", "-n", "team", "bert", "restore", "--to", "/c", "--timeout", "9m", ""])),
        [""; 0]
    );
    let options = names(complete(&["checkpoints", "bert", "prune", "--"]));
    for option in ["--dry-run", "--timeout", "--namespace"] {
        assert!(options.contains(&option.to_owned()), "{options:?}");
    }
    let options = names(complete(&["logs", "--"]));
    for option in ["--worker", "--follow", "--failed", "--namespace", "--output"] {
        assert!(options.contains(&option.to_owned()), "{options:?}");
    }
    assert!(!options.contains(&"--rank".to_owned()), "{options:?}");
}
