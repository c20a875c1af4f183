//! `kubectl trainingjob` against a real API server: its output on jobs that run, wait and fail, and its errors.
//!
//! The simulated nodes log nothing. Only logs that are kept are tested here.

use crate::world::{BY_HAND, DURATION, Space, Watched, parsed, plane};
use api::State::{Completed, Failed, Pending, Running};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal::SIGINT;
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use testkit::binary;
use testkit::cluster::tools;
use testkit::root;
use testkit::wait::{SOON, eventually};

/// A kubeconfig of the cluster, which impersonates this user if there is one.
fn kubeconfig(user: Option<&str>) -> PathBuf {
    let text = plane().cluster.kubectl(&["config", "view", "--raw", "-o", "json"]);
    let mut config: Value = serde_json::from_str(&text).unwrap();
    if let Some(user) = user {
        config["users"][0]["user"]["as"] = json!(user);
    }
    let path = testkit::scratch().join(format!("plugin-{}", user.unwrap_or("admin")));
    // Another test may be reading it.
    let thread = format!("{:?}", std::thread::current().id());
    let new = path.with_file_name(format!("plugin-new-{}", thread.trim_matches(|c: char| !c.is_ascii_digit())));
    std::fs::write(&new, config.to_string()).unwrap();
    std::fs::rename(&new, &path).unwrap();
    path
}

fn run(kubeconfig: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary("kubectl-trainingjob"));
    command.args(args).env("KUBECONFIG", kubeconfig).env_remove("COLUMNS").stdin(Stdio::null());
    command.output().unwrap()
}

/// The output of a command that succeeds.
async fn output_of(space: &Space, args: &[&str]) -> String {
    let args: Vec<String> = args.iter().chain(&["-n", &space.name]).map(|arg| (*arg).to_owned()).collect();
    // The operator works in this process and must not be held up.
    tokio::task::spawn_blocking(move || {
        let output = run(&kubeconfig(None), &args.iter().map(String::as_str).collect::<Vec<_>>());
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{args:?}: {out}{err}");
        println!("$ kubectl trainingjob {}\n{out}{err}", args.join(" "));
        out
    })
    .await
    .unwrap()
}

/// The error with which a command fails.
fn refused(kubeconfig: &Path, args: &[&str]) -> String {
    let output = run(kubeconfig, args);
    let error = String::from_utf8(output.stderr).unwrap();
    println!("$ kubectl trainingjob {}\n{error}", args.join(" "));
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert!(output.stdout.is_empty());
    error
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_show_running_waiting_and_failed_jobs() {
    let space = plane().space("plugin", json!({})).await;
    let operator = space.operator().await;
    let runs = space.submit("runs", json!({})).await;
    let waits = space.submit("waits", json!({ "gpusPerWorker": 16 })).await;
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let fails =
        space.submit("fails", json!({ "podTemplate": by_hand, "failurePolicy": { "restartPolicy": "Never" } })).await;
    let typo = json!({ "podTemplate": { "spec": { "terminationGracePeriodSeconds": "long" } } });
    space.submit("typo", typo).await.state(Failed).await;
    let pods = space.placed("fails", 2).await;
    let ended = |code: i32, message: &str| {
        json!({
            "phase": "Failed",
            "containerStatuses": [{
                "name": "training", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": {
                    "exitCode": code, "reason": "Error", "message": message, "finishedAt": "2026-01-01T00:00:00Z",
                    "startedAt": "2026-01-01T00:00:00Z",
                } },
            }],
        })
    };
    let report =
        json!({ "version": 1, "phase": "Exited", "exitCode": 3, "stderrTail": "first\nValueError: label 11\n" });
    space.set_pod(&pods[1], ended(3, &report.to_string())).await;
    let stopped = json!({ "version": 1, "phase": "Exited", "exitCode": 143, "stoppedBy": 15 });
    space.set_pod(&pods[0], ended(143, &stopped.to_string())).await;
    runs.state(Running).await;
    waits.condition("Scheduled", "False", "Unschedulable").await;
    fails.state(Failed).await;

    // ---- plan
    let text = output_of(&space, &["plan", "runs"]).await;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let planned: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "Job").collect();
    let made: Job = space.get("runs-training").await.unwrap();
    let made = serde_json::to_value(&made).unwrap();
    let [planned] = planned[..] else { panic!("{text}") };
    for annotation in ["ml.example.com/intent", "ml.example.com/first-attempt"] {
        let annotation = format!("/metadata/annotations/{}", annotation.replace('/', "~1"));
        assert!(made.pointer(&annotation).is_some(), "{made}");
        assert_eq!(planned.pointer(&annotation), made.pointer(&annotation));
    }
    assert_eq!(planned["metadata"]["ownerReferences"], made["metadata"]["ownerReferences"]);
    let args = "/spec/template/spec/containers/0/args";
    assert_eq!(planned.pointer(args), made.pointer(args));
    assert!(text.contains("\n# numWorkers "), "{text}");

    // ---- status
    let text = output_of(&space, &["status", "runs"]).await;
    assert!(text.starts_with(&format!("runs  in namespace {}\nState        Running for ", space.name)), "{text}");
    for words in ["Attempt      1; 3 more allowed\n", "Workers      2 running of 2, on ", "  running\n", "  Started "] {
        assert!(text.contains(words), "{words:?}: {text}");
    }
    let status = json_of(&output_of(&space, &["status", "runs", "-o", "json"]).await);
    assert_eq!(status["status"]["state"], "Running");
    assert_eq!(status["diagnosis"]["verdict"], "Running");
    let nodes: Vec<&str> = (0..2).map(|n| status["workers"][n]["node"].as_str().unwrap()).collect();
    assert!(nodes.iter().all(|node| text.contains(&format!("\n  {node}  "))), "{nodes:?} {text}");
    assert_eq!((&status["workers"][1]["worker"], &status["workers"][1]["rank"]), (&json!(1), &Value::Null));

    let text = output_of(&space, &["status", "waits"]).await;
    assert!(text.contains("\nWaits for    Unschedulable: worker 0 (and 1 more of 2 workers): 0/4 nodes"), "{text}");
    assert!(text.contains("\n  no node  0-1      waiting for a node  0/4 nodes"), "{text}");
    assert!(text.contains("What to do: kubectl trainingjob why waits -n"), "{text}");

    let text = output_of(&space, &["status", "fails"]).await;
    assert!(text.contains("\nState        Failed "), "{text}");
    assert!(text.contains("\nWhy          ExitCode: worker 1 (pod fails-training-1-"), "{text}");
    assert!(text.contains("failed  exit code 3, ValueError: label 11\n"), "{text}");
    // Events of the job itself, and of its Job.
    eventually("the events of the Job", SOON, async || {
        let events = json_of(&output_of(&space, &["status", "fails", "-o", "json"]).await)["events"].clone();
        let of = |kind: &str, reason: &str| {
            events.as_array().unwrap().iter().any(|event| event["kind"] == kind && event["reason"] == reason)
        };
        (of("TrainingJob", "Failed") && of("Job", "SuccessfulCreate") && of("Pod", "Scheduled")).then_some(())
    })
    .await;

    // ---- why
    let text = output_of(&space, &["why", "waits"]).await;
    assert!(text.starts_with("waits has been Pending for "), "{text}");
    assert!(text.contains("4 Insufficient nvidia.com/gpu"), "{text}");
    assert!(text.contains("It requests 2 workers with 16 GPUs each (32 GPUs in total).\n"), "{text}");
    assert!(text.contains("\nWhat to do\n- Free nodes, add nodes, or request less."), "{text}");
    let text = output_of(&space, &["why", "fails"]).await;
    assert!(text.contains("in attempt 1: ExitCode.\n") && text.contains("): exit code 3: ValueError"), "{text}");
    assert!(text.contains("ValueError: label 11 (failurePolicy.restartPolicy is Never)."), "{text}");
    assert!(text.contains(&format!("kubectl trainingjob logs fails -n {} --failed\n", space.name)), "{text}");
    let why = json_of(&output_of(&space, &["why", "typo", "-o", "json"]).await);
    assert_eq!((&why["verdict"], &why["reason"]), (&json!("Failed"), &json!("InvalidSpec")));
    assert!(why["says"].as_array().unwrap().iter().any(|says| says.as_str().unwrap().contains("\"long\"")), "{why}");
    assert!(output_of(&space, &["why", "runs"]).await.starts_with("runs has been Running for "));

    // ---- top
    let text = output_of(&space, &["top"]).await;
    let first: Vec<&str> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(first, ["NAME", "runs", "waits", "fails", "typo", "4"], "{text}");
    assert!(text.ends_with("4 jobs: 2 Failed, 1 Pending, 1 Running\n"), "{text}");
    let top = json_of(&output_of(&space, &["top", "-o", "json"]).await);
    assert_eq!(top["jobs"][0]["name"], "runs");
    assert_eq!(top["jobs"][1]["reason"], "Unschedulable");

    // ---- the last output of a worker without a log: the simulated kubelet has none
    let text = output_of(&space, &["logs", "fails", "--failed"]).await;
    assert_eq!(text, "[1] first\n[1] ValueError: label 11\n");
    let line = output_of(&space, &["logs", "fails", "--failed", "-o", "json"]).await;
    let line = json_of(line.lines().nth(1).unwrap());
    assert_eq!((&line["line"], &line["worker"]), (&json!("ValueError: label 11"), &json!(1)));

    // ---- the end of a watch
    let namespace = space.name.clone();
    let watching = tokio::task::spawn_blocking(move || {
        run(&kubeconfig(None), &["status", "runs", "--watch", "-o", "json", "-n", &namespace])
    });
    for pod in &space.placed("runs", 2).await {
        space
            .patch::<k8s_openapi::api::core::v1::Pod>(
                pod.metadata.name.as_deref().unwrap(),
                json!({ "metadata": { "annotations": { DURATION: "1s" } } }),
            )
            .await;
    }
    let seen = watching.await.unwrap();
    assert!(seen.status.success());
    let states: Vec<Value> =
        String::from_utf8(seen.stdout).unwrap().lines().map(|line| json_of(line)["status"]["state"].clone()).collect();
    assert_eq!(states.last(), Some(&json!("Completed")), "{states:?}");
    space.end(operator).await;
}

/// A claim that nothing ever provides, and a job that keeps its checkpoints on it. A pod that mounts the claim waits
/// for ever.
async fn with_unbound_claim(space: &Space, name: &str) -> Watched {
    let claim = json!({
        "metadata": { "name": "unbound" },
        "spec": { "accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } } },
    });
    space.create::<PersistentVolumeClaim>(claim).await;
    let job = space.submit(name, json!({ "checkpoint": { "storage": { "type": "pvc", "pvcName": "unbound" } } })).await;
    job.condition("Scheduled", "False", "Unschedulable").await;
    job
}

/// The Jobs that the plugin has created.
async fn errands(space: &Space) -> Vec<Job> {
    let of_plugin = ListParams::default().labels("app.kubernetes.io/managed-by=kubectl-trainingjob");
    space.api::<Job>().list(&of_plugin).await.unwrap().items
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_command_asks_the_agent() {
    let space = plane().space("plugin-checkpoints", json!({})).await;
    let operator = space.operator().await;
    let off = space.submit("off", json!({})).await;
    let runs = space.submit("runs", json!({ "checkpoint": {} })).await;
    let short = json!({ "metadata": { "annotations": { DURATION: "1s" } } });
    let over = space.submit("over", json!({ "checkpoint": {}, "podTemplate": short })).await;
    let no_claim = json!({ "checkpoint": { "storage": { "type": "pvc", "pvcName": "nowhere" } } });
    let claimless = space.submit("claimless", no_claim).await;
    let kept = with_unbound_claim(&space, "kept").await;
    off.state(Running).await;
    runs.state(Running).await;
    over.state(Completed).await;
    claimless.condition("Scheduled", "False", "Unschedulable").await;

    // ---- no agent to ask
    let ns = space.name.clone();
    tokio::task::spawn_blocking(move || {
        let refused = |args: &[&str]| refused(&kubeconfig(None), &[&["checkpoints"], args, &["-n", &ns]].concat());
        let error = refused(&["off"]);
        assert!(error.starts_with("error: off keeps no checkpoints: its checkpoint.enabled is false"), "{error}");
        let error = refused(&["over", "why"]);
        assert!(error.starts_with("error: over is Completed, and its checkpoints are gone with its pods"), "{error}");
        let error = refused(&["claimless"]);
        assert!(error.starts_with("error: there is no PersistentVolumeClaim nowhere in namespace "), "{error}");
        // A simulated node runs nothing.
        let error = refused(&["runs", "verify"]);
        assert!(error.contains("\nerror: can't run the agent in pod runs-training-0-"), "{error}");
    })
    .await
    .unwrap();
    assert_eq!(errands(&space).await, [], "a Job was made for nothing");

    // ---- a Job that waits until a signal ends the command
    let mut command = Command::new(binary("kubectl-trainingjob"));
    command.args(["checkpoints", "kept", "restore", "--to", "/checkpoints/again", "-n", &space.name]);
    command.env("KUBECONFIG", kubeconfig(None)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut plugin = command.spawn().unwrap();
    let mut said = BufReader::new(plugin.stderr.take().unwrap()).lines();
    let (mut said, waits) = tokio::task::spawn_blocking(move || {
        let waits = said.by_ref().map(Result::unwrap).find(|line| line.contains("waiting for a node: "));
        (said, waits.expect("it says what it waits for"))
    })
    .await
    .unwrap();
    println!("{waits}");
    assert!(waits.contains("Unschedulable: 0/4 nodes are available"), "{waits}");
    assert!(waits.contains("unbound immediate PersistentVolumeClaims"), "{waits}");
    let [errand] = &errands(&space).await[..] else { panic!("not one Job: {:?}", errands(&space).await) };
    assert!(errand.metadata.name.as_ref().unwrap().starts_with("kept-checkpoints-"), "{errand:?}");
    assert_eq!(errand.metadata.owner_references.as_ref().unwrap()[0].name, "kept");
    // As the API server has stored it, without fields that it does not know.
    let pod = errand.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    // The values that users may change do not determine what is run.
    assert_eq!(pod.containers[0].image, kept.status().agent_image);
    let args = pod.containers[0].args.as_ref().unwrap();
    assert_eq!(args[..2], ["checkpoints", "restore"]);
    assert_eq!(args.last().unwrap(), "--to=/checkpoints/again");
    nix::sys::signal::kill(Pid::from_raw(i32::try_from(plugin.id()).unwrap()), SIGINT).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let rest: Vec<String> = said.by_ref().map(Result::unwrap).collect();
        (plugin.wait().unwrap(), rest)
    });
    let (status, rest) = ended.await.unwrap();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    eventually("the end of the Job", SOON, async || errands(&space).await.is_empty().then_some(())).await;

    // ---- one that does not start in time
    let ns = space.name.clone();
    let error = tokio::task::spawn_blocking(move || {
        let args = ["checkpoints", "kept", "--timeout", "2s", "-n", &ns];
        let output = run(&kubeconfig(None), &args);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        String::from_utf8(output.stderr).unwrap()
    })
    .await
    .unwrap();
    assert!(error.contains("error: the agent did not start within 2s: Job kept-checkpoints-"), "{error}");
    assert!(error.contains("--timeout gives it longer"), "{error}");
    eventually("the end of the Job", SOON, async || errands(&space).await.is_empty().then_some(())).await;
    // The operator has ignored both.
    assert_eq!(kept.status().attempt, Some(1));
    assert_eq!(kept.states(), [Pending]);
    space.end(operator).await;
}

/// Jobs that had ended stay ended, and create nothing. A suspended job is as it was.
#[tokio::test]
async fn restored_jobs_do_not_run_again() {
    let space = plane().space("plugin-backup", json!({})).await;
    let operator = space.operator().await;
    let short = json!({ "metadata": { "annotations": { DURATION: "1s" } } });
    let done = space.submit("done", json!({ "podTemplate": short })).await;
    let bad = json!({ "command": ["x"], "failurePolicy": { "backoffLimit": 0 }, "podTemplate": {
        "metadata": { "annotations": { BY_HAND: "" } },
    } });
    let failed = space.submit("failed", bad).await;
    let paused = space.submit("paused", json!({ "suspend": true })).await;
    done.state(Completed).await;
    paused.state(api::State::Suspended).await;
    for pod in space.placed("failed", 2).await {
        let end = json!({ "exitCode": 1, "reason": "Error", "finishedAt": Timestamp::now() });
        let container = json!({
            "name": "training", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": end },
        });
        space.set_pod(&pod, json!({ "phase": "Failed", "containerStatuses": [container] })).await;
    }
    let was = failed.state(Failed).await;
    let text = output_of(&space, &["backup"]).await;
    for name in ["done", "failed", "paused"] {
        space.api::<api::TrainingJob>().delete(name, &DeleteParams::foreground()).await.unwrap();
    }
    let jobs = space.api::<api::TrainingJob>();
    eventually("the end of the jobs", SOON, async || {
        jobs.list(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
    })
    .await;
    let file = testkit::scratch().join("backup.yaml");
    std::fs::write(&file, &text).unwrap();
    let path = file.to_str().unwrap().to_owned();
    tokio::task::spawn_blocking(move || plane().cluster.kubectl(&["apply", "-f", &path])).await.unwrap();
    let restored = eventually("the states of before", SOON, async || {
        let all = jobs.list(&ListParams::default()).await.unwrap().items;
        let state = |job: &api::TrainingJob| job.status.as_ref().and_then(|status| status.state);
        (all.len() == 3 && all.iter().all(|job| state(job).is_some())).then_some(all)
    })
    .await;
    let states: Vec<_> = restored.iter().map(|job| job.status.as_ref().unwrap().state.unwrap()).collect();
    assert_eq!(states, [Completed, Failed, api::State::Suspended]);
    let status = restored[1].status.as_ref().unwrap();
    assert_eq!((&status.failure_reason, &status.completion_time), (&was.failure_reason, &was.completion_time));
    let children = space.api::<Job>().list(&ListParams::default()).await.unwrap().items;
    assert!(children.iter().all(|job| job.metadata.deletion_timestamp.is_some()), "{children:?}");
    space.end(operator).await;
}

/// The bundle says that a simulated node has no logs. The archive contains no Secrets.
#[tokio::test]
async fn bundle_includes_everything_but_secrets() {
    let space = plane().space("plugin-bundle", json!({})).await;
    let operator = space.operator().await;
    let env = json!([{ "name": "HF_TOKEN", "value": "s3cr3t" }, { "name": "MAX_TOKENS", "value": "17" }]);
    let job = space.submit("bundled", json!({ "env": env })).await;
    job.state(Running).await;
    let file = testkit::scratch().join("bundled.tar.gz");
    let _ = std::fs::remove_file(&file);
    let path = file.to_str().unwrap().to_owned();
    let text = output_of(&space, &["bundle", "bundled", "-o", &path]).await;
    assert!(text.contains("Look at the files before you share them"), "{text}");
    assert!(text.contains("not in it: logs/bundled-training-0-"), "{text}");
    let all = Command::new("tar").args(["-xzOf", &path]).output().unwrap();
    let all = String::from_utf8(all.stdout).unwrap();
    for there in ["kind: TrainingJob", "bundled-training-0", "gang.json", "Workers  ", "REDACTED", "MAX_TOKENS"] {
        assert!(all.contains(there), "{there}: {all}");
    }
    assert!(!all.contains("s3cr3t") && !all.contains("kind: Secret"), "{all}");
    let ns = space.name.clone();
    tokio::task::spawn_blocking(move || {
        let error = refused(&kubeconfig(None), &["bundle", "bundled", "-o", &path, "-n", &ns]);
        assert!(error.contains("can't create "), "an archive is not overwritten: {error}");
    })
    .await
    .unwrap();
    space.end(operator).await;
}

/// The operator runs in this process, so that no Deployment exists. All else is as installed.
#[tokio::test]
async fn check_reports_each_missing_part_on_its_own_line() {
    let space = plane().space("plugin-check", json!({})).await;
    let ns = space.name.clone();
    tokio::task::spawn_blocking(move || {
        let checked = |user: Option<&str>| {
            let output = run(&kubeconfig(user), &["check", "-n", &ns, "-o", "json"]);
            let lines = json_of(&String::from_utf8(output.stdout).unwrap());
            println!("{lines:#}");
            let outcome = |subject: &str| {
                let line = lines.as_array().unwrap().iter().find(|line| line["subject"] == subject).unwrap();
                (line["outcome"].as_str().unwrap().to_owned(), line["says"].as_str().unwrap().to_owned())
            };
            (output.status.code(), ["CustomResourceDefinitions", "operator", "your rights", "GPUs"].map(outcome))
        };
        let (code, [kinds, operator, mine, gpus]) = checked(None);
        assert_eq!((code, mine.0.as_str()), (Some(1), "ok"), "{mine:?}");
        // This cluster has all kinds but one.
        let (outcome, says) = kinds;
        assert_eq!((outcome.as_str(), says.as_str()), ("failed", "not installed: tuningjobs.ml.example.com"));
        assert!(operator.0 == "failed" && operator.1.starts_with("no Deployment has the label "), "{operator:?}");
        assert_ne!(gpus.0, "notChecked");
        let (_, [kinds, operator, mine, gpus]) = checked(Some("nobody"));
        assert_eq!([&kinds.0, &operator.0, &gpus.0], ["notChecked"; 3]);
        assert!(mine.0 == "failed" && mine.1.starts_with("you may not get trainingjobs, "), "{mine:?}");
    })
    .await
    .unwrap();
}

/// Commands on files need no cluster.
#[test]
fn files_are_planned_and_converted_without_a_cluster() {
    let nowhere = Path::new("/no/such/kubeconfig");
    let example = root("examples/distributed.yaml");
    let planned = run(nowhere, &["plan", "-f", &example]);
    assert_eq!(planned.status.code(), Some(0), "{planned:?}");
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.contains("kind: Job\n"), "{text}");
    let planned = json_of(&String::from_utf8(run(nowhere, &["plan", "-f", &example, "-o", "json"]).stdout).unwrap());
    assert_eq!(planned[0]["objects"][0]["kind"], "Service");
    let refused = run(nowhere, &["plan", "-f", &root("tests/fixtures/convert/tensorflow-first.yaml")]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");

    let code =
        |name: &str| run(nowhere, &["convert", "-f", &root(&format!("tests/fixtures/convert/{name}"))]).status.code();
    assert_eq!(code("pytorch-two.yaml"), Some(0));
    assert_eq!((code("mpi.yaml"), code("tensorflow-first.yaml")), (Some(0), Some(1)));
    assert_eq!(code("nothing.yaml"), Some(2));
    assert_eq!(run(nowhere, &["convert", "-f", &example]).status.code(), Some(2), "it is one of ours");
    let mut piped = Command::new(binary("kubectl-trainingjob"));
    let input = std::fs::File::open(root("tests/fixtures/convert/pytorch-two.yaml")).unwrap();
    let output = piped.args(["convert", "-f", "-", "--model", "bert"]).stdin(input).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("\n  model: bert\n"));
    let fixture = root("tests/fixtures/convert/tensorflow-first.yaml");
    let as_json = json_of(&String::from_utf8(run(nowhere, &["convert", "-f", &fixture, "-o", "json"]).stdout).unwrap());
    assert_eq!(as_json[0]["job"]["kind"], "TrainingJob");
    assert!(as_json[0]["notes"].as_array().unwrap().iter().any(|note| note["lost"] == true), "{as_json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_suggest_a_remedy() {
    let space = plane().space("plugin-errors", json!({})).await;
    let (ns, operator) = (space.name.clone(), space.operator().await);
    space.submit("bert", json!({})).await.state(Running).await;
    with_unbound_claim(&space, "kept").await;
    let elsewhere = plane().space("plugin-empty", json!({})).await;
    let empty = elsewhere.name.clone();
    // A user with only the right to view, by the roles that come with the installation.
    let role = std::fs::read_to_string(root("deploy/admin/users.yaml")).unwrap();
    let role: Value = serde_saphyr::from_str(role.split("\n---\n").next().unwrap()).unwrap();
    let roles: Api<ClusterRole> = Api::all(space.client.clone());
    roles.create(&PostParams::default(), &parsed(role)).await.unwrap();
    let viewer = "plugin-viewer";
    space
        .create::<RoleBinding>(json!({
            "metadata": { "name": "viewer" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": viewer }],
        }))
        .await;
    eventually("the role of viewers", SOON, async || {
        let (viewer, ns) = (kubeconfig(Some(viewer)), ns.clone());
        let output = tokio::task::spawn_blocking(move || run(&viewer, &["status", "bert", "-n", &ns])).await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success() && !text.contains("Not read") && text.contains("Last events")).then_some(())
    })
    .await;

    tokio::task::spawn_blocking(move || {
        let admin = kubeconfig(None);
        let error = refused(&admin, &["status", "bret", "-n", &ns]);
        assert_eq!(error, format!("error: there is no TrainingJob bret in namespace {ns}; did you mean bert?\n"));
        let error = refused(&admin, &["why", "bert", "-n", &empty]);
        let there = format!("there is one in namespace {ns}: add -n {ns}");
        assert_eq!(error, format!("error: there is no TrainingJob bert in namespace {empty}; {there}\n"));
        assert!(run(&admin, &["status", "bert", "-A"]).status.success());

        let error = refused(&admin, &["logs", "bert", "-n", &ns, "--worker", "2"]);
        assert_eq!(error, "error: bert has 2 workers, there is no worker 2: --worker takes 0 to 1\n");
        let error = refused(&admin, &["logs", "bert", "-n", &ns, "--failed"]);
        assert!(error.contains("no attempt of bert has failed"), "{error}");

        let error = refused(&kubeconfig(Some("nobody")), &["status", "bert", "-n", &ns]);
        assert!(error.starts_with(&format!("error: you may not get TrainingJob bert in namespace {ns}: ")), "{error}");
        assert!(error.contains("Ask for the role `view`"), "{error}");
        let error = refused(&kubeconfig(Some("plugin-viewer")), &["top", "-A"]);
        assert!(error.starts_with("error: you may not list TrainingJobs in all namespaces: "), "{error}");

        let checked = run(&kubeconfig(Some("plugin-viewer")), &["check", "-n", &ns, "-o", "json"]);
        let lines = json_of(&String::from_utf8(checked.stdout).unwrap());
        let mine = lines.as_array().unwrap().iter().find(|line| line["subject"] == "your rights").unwrap();
        assert_eq!(mine["outcome"], "ok", "{mine}");

        let error = refused(&kubeconfig(Some("plugin-viewer")), &["checkpoints", "kept", "-n", &ns]);
        assert!(error.starts_with("error: you may not create Job kept-checkpoints-"), "{error}");
        assert!(error.contains("Ask for the role `edit` in that namespace"), "{error}");

        let error = refused(&admin, &["top", "--context", "other"]);
        assert!(error.contains("no context other: choose one of "), "{error}");
        let error = refused(Path::new("/nowhere/kubeconfig"), &["top"]);
        assert!(error.starts_with("error: no cluster: "), "{error}");
        let dead = testkit::scratch().join("plugin-dead");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&admin).unwrap()).unwrap();
        // Port 9 is that of the service "discard", which no server offers any more.
        config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:9");
        std::fs::write(&dead, config.to_string()).unwrap();
        let error = refused(&dead, &["top"]);
        assert!(error.contains("no answer from https://127.0.0.1:9/: Connection refused"), "{error}");

        let empty = run(&admin, &["top", "-n", &empty]);
        assert!(empty.status.success());
        assert!(String::from_utf8_lossy(&empty.stderr).starts_with("There are no TrainingJobs in namespace "));
        as_a_plugin(&admin, &ns);
    })
    .await
    .unwrap();
    roles.delete("trainingjobs-view", &DeleteParams::default()).await.unwrap();
    Api::<Namespace>::all(space.client.clone()).delete(&elsewhere.name, &DeleteParams::default()).await.unwrap();
    space.end(operator).await;
}

/// The plugin writes a user's request on the job, and the operator acts on it.
#[tokio::test]
async fn jobs_are_stopped_resumed_and_restarted() {
    let space = plane().space("plugin-control", json!({})).await;
    let operator = space.operator().await;
    let by_hand = json!({ "metadata": { "annotations": { BY_HAND: "" } } });
    let spec = json!({ "numWorkers": 1, "podTemplate": by_hand, "failurePolicy": { "backoffLimit": 0 } });
    let job = space.submit("gpt", spec).await;
    let say = async |state: Value, phase: &str| {
        let pod = eventually("a pod that has not ended", SOON, async || {
            let alive = |pod: &Pod| {
                !matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Failed" | "Succeeded"))
            };
            space.placed("gpt", 1).await.into_iter().find(alive)
        })
        .await;
        let runs = state.get("running").is_some();
        let container = json!({
            "name": "training", "image": "none", "imageID": "", "ready": runs, "started": runs, "restartCount": 0,
            "state": state,
        });
        space.set_pod(&pod, json!({ "phase": phase, "containerStatuses": [container] })).await;
    };
    let running = || json!({ "running": { "startedAt": Timestamp::now() } });
    say(running(), "Running").await;
    job.state(Running).await;

    let text = output_of(&space, &["restart", "gpt"]).await;
    assert!(text.starts_with("gpt restarts: its attempt ends"), "{text}");
    assert_eq!(job.status().incarnation, Some(1));
    let pods = space.pods("gpt").await;
    assert!(pods[0].annotations().contains_key("ml.example.com/look-again"), "its node is made to look");

    say(json!({ "terminated": { "exitCode": 1, "reason": "Error", "finishedAt": Timestamp::now() } }), "Failed").await;
    job.state(Failed).await;
    let text = output_of(&space, &["restart", "gpt"]).await;
    assert_eq!(text, "gpt starts again with a new restart budget\n");
    job.until("new pods", |status| status.incarnation == Some(2)).await;

    let of_pods = space.clone();
    let kubelet = tokio::spawn(async move {
        loop {
            of_pods.remove_stopping("gpt").await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let text = output_of(&space, &["stop", "gpt", "--wait"]).await;
    assert_eq!(text, "gpt is stopped: no worker is running\n");
    assert!(output_of(&space, &["stop", "gpt"]).await.starts_with("gpt is already stopped; "));
    assert!(output_of(&space, &["resume", "gpt", "-o", "json"]).await.contains(r#""message": "gpt resumes: "#));
    say(running(), "Running").await;
    job.state(Running).await;
    kubelet.abort();
    assert_eq!(output_of(&space, &["resume", "gpt"]).await, "gpt is not stopped: its spec.suspend is false\n");
    space.end(operator).await;
}

/// kubectl finds the plugin on PATH, and its completion asks the plugin.
fn as_a_plugin(kubeconfig: &Path, ns: &str) {
    let folder = Path::new(binary("kubectl-trainingjob")).parent().unwrap();
    let path = std::env::join_paths(
        [folder.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let kubectl = Command::new(tools().join("kubectl"))
        .args(["trainingjob", "status", "bert", "-n", ns])
        .env("KUBECONFIG", kubeconfig)
        .env("PATH", path.unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&kubectl.stdout);
    assert!(text.starts_with("bert  in namespace "), "{text}{}", String::from_utf8_lossy(&kubectl.stderr));
    assert!(!text.contains('\x1b'), "colours in a pipe: {text:?}");

    let completed = run(kubeconfig, &["__complete", "status", "-n", ns, "b"]);
    assert_eq!(String::from_utf8_lossy(&completed.stdout), "bert\n:4\n");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(Path::new("/nowhere"), &["completion", shell]);
        assert!(String::from_utf8_lossy(&script.stdout).contains("kubectl-trainingjob"), "{shell}");
    }
}
