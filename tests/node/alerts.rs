//! Every alert of deploy/monitoring/rules.yaml fires, and resolves once its cause is fixed. The series are those that
//! the operator and the agents serve on real nodes, in a real Prometheus.
//!
//! The times of the rules on jobs are a twentieth of the shipped ones. Those on the operator are as shipped. ALERT, a
//! part of the name of a case, selects cases.

use super::behind;
use super::stores::Bucket;
use super::wait::eventually;
use super::world::{SOON, Space, World, is_built, merged};
use api::State::{Running, Suspended};
use futures::future::{LocalBoxFuture, join_all};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use regex::{Captures, Regex};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::cluster::DENIES;
use testkit::process::{Process, Signal};
use testkit::prometheus::Prometheus;
use testkit::root;
use testkit::servers::{BUCKET, Fault, SECRET};

/// How many times faster than shipped the alerts on jobs are.
const FASTER: u64 = 20;
/// Limit for an alert to fire, or to resolve. Those on the operator take a quarter of an hour as shipped.
const LIMIT: Duration = Duration::from_secs(1500);

/// The shipped rules, and the same with faster rules on jobs.
fn rules() -> (Value, Value) {
    let shipped: Value =
        serde_saphyr::from_str(&fs::read_to_string(root("deploy/monitoring/rules.yaml")).unwrap()).unwrap();
    let mut rules = shipped.clone();
    let jobs = rules["groups"].as_array_mut().unwrap().iter_mut().find(|group| group["name"] == "trainingjobs");
    for rule in jobs.unwrap()["rules"].as_array_mut().unwrap() {
        rule["expr"] = json!(faster(rule["expr"].as_str().unwrap()));
        if let Some(time) = rule["for"].as_str() {
            rule["for"] = json!(divided(time));
        }
    }
    (shipped, rules)
}

/// An expression with its ranges, steps and limits in seconds divided by `FASTER`.
fn faster(expression: &str) -> String {
    let range = Regex::new(r"\[(\d+[smh])(?::(\d+[smh]))?\]").unwrap();
    let divide = |found: &Captures<'_>| {
        let step = found.get(2).map(|step| format!(":{}", divided(step.as_str()))).unwrap_or_default();
        format!("[{}{step}]", divided(&found[1]))
    };
    let expression = range.replace_all(expression, divide);
    // Smaller numbers count looks, or are shares.
    let limit = Regex::new(r"([<>] )(\d{4,})\b").unwrap();
    let divide = |found: &Captures<'_>| format!("{}{}", &found[1], found[2].parse::<u64>().unwrap() / FASTER);
    limit.replace_all(&expression, divide).into_owned()
}

/// A duration of Prometheus, divided.
fn divided(duration: &str) -> String {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("{duration}"),
    };
    format!("{}ms", number.parse::<u64>().unwrap() * seconds * 1000 / FASTER)
}

#[test]
fn alert_rule_durations_are_scaled_down() {
    let shipped =
        "time() - max by (namespace) (a) > 1800 and count_over_time((b == 1)[30m:1m]) >= 30 unless c[1h:15s] < 0.5";
    let made = "time() - max by (namespace) (a) > 90 and count_over_time((b == 1)[90000ms:3000ms]) >= 30 unless c[180000ms:750ms] < 0.5";
    assert_eq!(faster(shipped), made);
    assert_eq!(divided("15m"), "45000ms");
}

#[tokio::test]
#[ignore = "soak: 25 minutes of waiting; proved in make test by planes::monitoring::every_query_returns_data and \
            planes::monitoring::alerts_fire_and_stay_silent_as_expected"]
async fn every_alert_fires_and_resolves_on_real_series() {
    if !is_built() {
        return;
    }
    // A cluster of its own, because a node is cut off, a kind removed and the operator taken away.
    let world: &'static World =
        Box::leak(Box::new(World::up("alerts", &["--kcm-arg=--node-monitor-grace-period=20s"])));
    if world.cluster.name().is_none() {
        return testkit::skipped("TRAININGJOB_TEST_KUBECONFIG names a cluster that is not ours to break");
    }
    for node in ["1", "2"] {
        world.cluster.devcluster(&["node", "add", node]);
    }
    let space = world.space("alerts", json!({})).await;
    let trial = Trial::begin(&space).await;
    let cases: Vec<(&str, LocalBoxFuture<'_, Vec<String>>)> = vec![
        ("fails", Box::pin(trial.fails())),
        ("waits", Box::pin(trial.waits())),
        ("slow", Box::pin(trial.slow())),
        ("flat", Box::pin(trial.flat())),
        ("restarts", Box::pin(trial.restarts())),
        ("repeats", Box::pin(trial.repeats())),
        ("stops", Box::pin(trial.stops())),
        ("silent", Box::pin(trial.silent())),
        ("grows", Box::pin(trial.grows())),
        ("mute", Box::pin(trial.mute())),
        ("saves_nothing", Box::pin(trial.saves_nothing())),
        ("stores", Box::pin(trial.stores())),
        ("damaged", Box::pin(trial.damaged())),
        ("full", Box::pin(trial.full())),
        ("denied", Box::pin(trial.denied())),
        ("no_kind", Box::pin(trial.no_kind())),
    ];
    let only = std::env::var("ALERT").unwrap_or_default();
    let cases = cases.into_iter().filter(|(name, _)| name.contains(&only)).map(|(_, case)| case);
    let mut rows = join_all(cases).await.concat();
    if "operator_is_away".contains(&only) {
        rows.extend(trial.operator_is_away().await);
    }
    let head = "| alert | what happened | fired after, s | what fixed it | resolved after, s |\n|---|---|---|---|---|";
    let _ = writeln!(std::io::stderr(), "{head}\n{}", rows.join("\n"));
    let reported: BTreeSet<_> = rows.iter().map(|row| row.split('`').nth(1).unwrap().to_owned()).collect();
    let (shipped, _) = rules();
    let groups = shipped["groups"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let all: BTreeSet<_> = all.map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect();
    assert!(!only.is_empty() || reported == all, "{:?}", all.difference(&reported));
    drop(trial);
    space.end().await;
}

struct Trial<'a> {
    space: &'a Space,
    prometheus: Prometheus,
    /// The task that finds the series of each running pod.
    targets: tokio::task::JoinHandle<()>,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.targets.abort();
    }
}

impl<'a> Trial<'a> {
    async fn begin(space: &'a Space) -> Self {
        let folder = testkit::scratch().join("alerts");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let (_, rules) = rules();
        fs::write(folder.join("rules.yaml"), rules.to_string()).unwrap();
        let found = |name: &str| json!([{ "files": [folder.join(name)], "refresh_interval": "1s" }]);
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [folder.join("rules.yaml")],
            "scrape_configs": [
                { "job_name": "operator", "honor_labels": true, "file_sd_configs": found("operator.json") },
                { "job_name": "workers", "file_sd_configs": found("workers.json") },
            ],
        });
        let targets = tokio::spawn(find_targets(space.clone(), folder.clone()));
        let prometheus = Prometheus::start(&config, &folder);
        eventually("the operator's series", SOON, async || prometheus.query("trainingjob_build_info")).await;
        Self { space, prometheus, targets }
    }

    /// A job of one worker with this cause, until the cause is fixed.
    async fn submit(&self, name: &str, cause: &str, fields: Value) -> super::world::Job {
        let one = json!({ "numWorkers": 1, "command": ["python3", "/programs/alerts.py", cause] });
        self.space.submit(name, merged(one, &fields)).await
    }

    /// Waits until all of these alerts on the job fire, fixes their cause, and waits until they resolve. Returns a row
    /// for each.
    async fn meet(
        &self,
        alerts: &[&str],
        job: Option<&str>,
        what: &str,
        (fixed_by, fix): (&str, impl AsyncFnOnce()),
    ) -> Vec<String> {
        let fired = join_all(alerts.iter().map(|alert| self.until(alert, job, true))).await;
        fix().await;
        let resolved = join_all(alerts.iter().map(|alert| self.until(alert, job, false))).await;
        let times = fired.into_iter().zip(resolved);
        let row = |(alert, (fired, resolved)): (&&str, (u64, u64))| {
            format!("| `{alert}` | {what} | {fired} | {fixed_by} | {resolved} |")
        };
        alerts.iter().zip(times).map(row).collect()
    }

    /// The seconds until this alert fires, or stops firing.
    async fn until(&self, alert: &str, job: Option<&str>, fires: bool) -> u64 {
        let (at, what) = (Instant::now(), if fires { "to fire" } else { "to resolve" });
        let is_so = async || (self.prometheus.fires(alert, job)? == fires).then_some(());
        eventually(&format!("{alert} of {job:?} {what}"), LIMIT, is_so).await;
        let _ = writeln!(std::io::stderr(), "{alert} of {} {what}: {} s", job.unwrap_or("-"), at.elapsed().as_secs());
        at.elapsed().as_secs()
    }

    /// Signals to the program of a job that its cause is fixed.
    fn touch(&self, job: &str) {
        let labels = format!("training-job={job},batch.kubernetes.io/job-completion-index=0");
        let pods = ["get", "pods", "-n", &self.space.name, "-l", &labels, "-o", "name"];
        let pods = self.space.world.cluster.kubectl(&pods);
        let pod = pods.lines().next().expect("a pod");
        let touch = ["exec", "-n", &self.space.name, pod, "-c", "training", "--", "touch", "/tmp/fixed"];
        self.space.world.cluster.kubectl(&touch);
    }

    async fn fails(&self) -> Vec<String> {
        let never = json!({ "command": ["sh", "-c", "exit 1"], "failurePolicy": { "restartPolicy": "Never" } });
        self.submit("fails", "", never).await;
        let what = "its program exits with 1";
        self.meet(&["TrainingJobFailed"], Some("fails"), what, ("an hour has passed", async || {})).await
    }

    async fn waits(&self) -> Vec<String> {
        let nowhere = json!({ "scheduling": { "nodeSelector": { "alerts": "here" } } });
        self.submit("waits", "", nowhere).await;
        let fix = async || {
            self.space.world.cluster.kubectl(&["label", "node", "node0", "alerts=here"]);
        };
        let what = "no node has the label that it asks for";
        self.meet(&["TrainingJobPending"], Some("waits"), what, ("a node gets the label", fix)).await
    }

    async fn slow(&self) -> Vec<String> {
        let mounts = json!([
            { "name": "programs", "mountPath": "/programs" },
            { "name": "programs", "mountPath": "/usr/local/bin/nvidia-smi", "subPath": "nvidia-smi" },
        ]);
        let fields = json!({
            "monitoring": { "minThroughput": 20 }, "volumeMounts": mounts,
            "volumes": [{ "name": "programs", "configMap": { "name": "programs", "defaultMode": 0o755 } }],
        });
        self.submit("slow", "slow", fields).await;
        let alerts = ["TrainingJobThroughputLow", "TrainingJobGpusIdle", "TrainingJobLossNaN", "TrainingJobGpuLost"];
        let what = "a throughput of 12 instead of 20, GPUs at 20 % of which one goes, a loss of NaN";
        let fix = async || self.touch("slow");
        self.meet(&alerts, Some("slow"), what, ("the program reports 30 and 0.5, two GPUs are at 95 %", fix)).await
    }

    async fn flat(&self) -> Vec<String> {
        self.submit("flat", "flat", json!({ "monitoring": { "plateauSeconds": 60 } })).await;
        let fix = async || self.touch("flat");
        let what = "the loss stays 0.5 with `plateauSeconds: 60`";
        self.meet(&["TrainingJobLossPlateau"], Some("flat"), what, ("the loss falls", fix)).await
    }

    async fn restarts(&self) -> Vec<String> {
        let limit = |limit: u32| json!({ "failurePolicy": { "backoffLimit": limit } });
        let job = self.submit("restarts", "fails-four-times", limit(5)).await;
        let alerts = ["TrainingJobRestarting", "TrainingJobRestartsNearLimit"];
        let fix = async || {
            job.patch(json!({ "suspend": true })).await;
            job.state(Suspended).await;
            job.patch(merged(limit(20), &json!({ "suspend": false }))).await;
        };
        let what = "it fails four times with `backoffLimit: 5`";
        self.meet(
            &alerts,
            Some("restarts"),
            what,
            ("it is stopped, gets `backoffLimit: 20` and goes on; an hour has passed", fix),
        )
        .await
    }

    async fn repeats(&self) -> Vec<String> {
        self.submit("repeats", "fails", json!({ "failurePolicy": { "backoffLimit": 1000 } })).await;
        let fix = async || self.touch("repeats");
        let what = "it fails again and again, and has saved nothing";
        self.meet(&["TrainingJobGoodputLow"], Some("repeats"), what, ("it fails no more", fix)).await
    }

    async fn stops(&self) -> Vec<String> {
        self.submit("stops", "stops", json!({ "failurePolicy": { "hang": { "timeoutSeconds": 30 } } })).await;
        let alerts = ["TrainingJobHangSuspected", "TrainingJobNoProgress"];
        let fix = async || self.touch("stops");
        let what = "it makes no step after the sixth, and sleeps";
        self.meet(&alerts, Some("stops"), what, ("it makes steps again", fix)).await
    }

    async fn silent(&self) -> Vec<String> {
        let fields = json!({
            "scheduling": { "nodeSelector": { "kubernetes.io/hostname": "node2" } },
            "failurePolicy": { "nodeLostSeconds": 3600 },
        });
        let job = self.submit("silent", "", fields).await;
        job.state(Running).await;
        self.space.world.cluster.devcluster(&["node", "cut", "2"]);
        let fix = async || self.space.world.cluster.devcluster(&["node", "mend", "2"]);
        self.meet(&["TrainingJobNodeSilent"], Some("silent"), "its node is cut off", ("the node is back", fix)).await
    }

    async fn grows(&self) -> Vec<String> {
        let apart = json!([{
            "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "training-job": "grows" } },
        }]);
        let there = json!([{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": ["node0", "node1"] },
        ] }]);
        let affinity = json!({
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": apart },
            "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": there } },
        });
        let elastic = json!({ "minWorkers": 2, "maxWorkers": 3, "waitSeconds": 5 });
        let fields = json!({ "numWorkers": 3, "elastic": elastic, "scheduling": { "affinity": affinity } });
        let job = self.submit("grows", "", fields).await;
        let fix = async || job.patch(json!({ "numWorkers": 2 })).await;
        let what = "two of three workers have room";
        self.meet(&["TrainingJobBelowSize"], Some("grows"), what, ("`numWorkers: 2`", fix)).await
    }

    async fn mute(&self) -> Vec<String> {
        let job = self.submit("mute", "", json!({})).await;
        job.state(Running).await;
        let is_agent = |process: &Process| {
            let is_of_job = process.variable("POD_NAME").is_some_and(|pod| pod.starts_with("mute-training-0-"));
            is_of_job && process.command.starts_with(b"/trainingjob/agent\0run\0")
        };
        let found = Process::with_variable("POD_NAME").into_iter().find(is_agent);
        let agent = found.expect("its agent runs");
        agent.send_signal(Signal::STOP);
        let fix = async || {
            agent.send_signal(Signal::CONT);
        };
        self.meet(&["TrainingJobAgentUnreadable"], Some("mute"), "its agent stops (SIGSTOP)", ("SIGCONT", fix)).await
    }

    async fn saves_nothing(&self) -> Vec<String> {
        self.submit("unsaved", "saves-nothing", kept()).await;
        let fix = async || self.touch("unsaved");
        let what = "it trains for two hours and saves nothing";
        self.meet(&["TrainingJobNoCheckpoint"], Some("unsaved"), what, ("it saves", fix)).await
    }

    /// The alerts on a backup, and on a result.
    async fn stores(&self) -> Vec<String> {
        let bucket = Bucket::open(self.space).await;
        let backup = merged(kept()["checkpoint"].clone(), &json!({ "backup": bucket.backup("late") }));
        let late = self.submit("late", "copies", json!({ "checkpoint": backup })).await;
        self.space.create::<Secret>(bucket.data_keys("data-keys", "wrong")).await;
        // A job asks the store before it begins.
        late.state(Running).await;
        bucket.proxy.set(|asked| if asked.target.contains("late") { Fault::Answer(503) } else { Fault::Pass });
        let writes = "echo '{\"step\": 1}'; echo tuned > $OUTPUT_DIR/weights";
        let output = json!({
            "credentialsSecret": "data-keys", "output": format!("s3://{BUCKET}/results"), "command": ["sh", "-c", writes],
        });
        self.submit("result", "", merged(kept(), &output)).await;
        let copied = async || bucket.proxy.set(|_| Fault::Pass);
        let published = async || {
            let patch = Patch::Merge(bucket.data_keys("data-keys", SECRET));
            self.space.api::<Secret>().patch("data-keys", &PatchParams::default(), &patch).await.unwrap();
            let (done, said) = self.space.plugin(&["restart", "result"]).await;
            assert!(done, "{said}");
        };
        let late = self.meet(
            &["TrainingJobBackupLate"],
            Some("late"),
            "the store of its copies answers 503",
            ("the store answers", copied),
        );
        let result = self.meet(
            &["TrainingJobResultUnpublished"],
            Some("result"),
            "the store refuses its key",
            ("the Secret is corrected, `kubectl trainingjob restart`", published),
        );
        let (late, result) = tokio::join!(late, result);
        [late, result].concat()
    }

    async fn damaged(&self) -> Vec<String> {
        self.submit("damaged", "damaged", kept()).await;
        let fix = async || self.touch("damaged");
        let what = "the header of a checkpoint is nonsense";
        let alert = ["TrainingJobCheckpointsUnhealthy"];
        self.meet(&alert, Some("damaged"), what, ("it is written again", fix)).await
    }

    async fn full(&self) -> Vec<String> {
        let request = json!({ "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } });
        self.space.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": "small" }, "spec": request })).await;
        let volume = Memory::mount(behind(self.space, "small").await);
        let storage = json!({ "storage": { "type": "pvc", "pvcName": "small" } });
        let job = self.submit("full", "large", json!({ "checkpoint": storage })).await;
        let fix = async || volume.size("64m");
        let what = "a checkpoint of 5 MiB on a volume of 8 MiB";
        let rows = self.meet(&["TrainingJobCheckpointVolumeFull"], Some("full"), what, ("the volume grows", fix)).await;
        job.delete().await;
        let labels = ListParams::default().labels("training-job=full");
        eventually("its pod to go", SOON, async || {
            self.space.api::<Pod>().list(&labels).await.unwrap().items.is_empty().then_some(())
        })
        .await;
        rows
    }

    async fn denied(&self) -> Vec<String> {
        let cluster = &self.space.world.cluster;
        cluster.kubectl_with(&["apply", "-f", "-"], DENIES);
        self.submit("denied", "", json!({})).await;
        let fix = async || {
            cluster.kubectl_with(&["delete", "-f", "-"], DENIES);
        };
        let what = "a policy refuses what it writes";
        self.meet(&["TrainingJobReconcileErrors"], None, what, ("the policy goes", fix)).await
    }

    async fn no_kind(&self) -> Vec<String> {
        let cluster = &self.space.world.cluster;
        cluster.kubectl(&["delete", "crd", "tuningjobs.ml.example.com"]);
        let fix = async || cluster.apply_crd(&api::tuning_crd());
        self.meet(&["TrainingJobWatchErrors"], None, "the kind TuningJob is removed", ("it is back", fix)).await
    }

    /// First the operator does not exist at all, and then a replica does not get the lease.
    async fn operator_is_away(&self) -> Vec<String> {
        let cluster = &self.space.world.cluster;
        let kubectl = |args: &[&str]| cluster.kubectl(&[args, &["-n", "trainingjob-system"]].concat());
        let scale = |replicas: &str| kubectl(&["scale", "deployment/trainingjob-operator", "--replicas", replicas]);
        scale("0");
        let mut holder = None;
        let somebody = async || {
            holder = Some(tokio::spawn(hold_lease(self.space.clone())));
            scale("1");
        };
        let mut rows =
            self.meet(&["TrainingJobOperatorDown"], None, "it has no replica", ("it gets one", somebody)).await;
        let released = async || holder.take().unwrap().abort();
        let what = "another client holds its lease";
        rows.extend(self.meet(&["TrainingJobOperatorNoLeader"], None, what, ("that client ends", released)).await);
        rows
    }
}

/// Holds the operator's lease under another name, as long as it runs.
async fn hold_lease(space: Space) {
    let leases: Api<Lease> = Api::namespaced(space.client.clone(), "trainingjob-system");
    loop {
        let now = jiff::Timestamp::now();
        let held =
            json!({ "holderIdentity": "somebody", "leaseDurationSeconds": 60, "renewTime": format!("{now:.6}") });
        let patch = Patch::Merge(json!({ "spec": held }));
        leases.patch("trainingjob-operator", &PatchParams::default(), &patch).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Checkpoints on a claim of the job's own.
fn kept() -> Value {
    json!({ "checkpoint": { "storage": { "type": "pvc", "size": "1Gi" } } })
}

/// Repeatedly writes where the operator and the agents of a namespace serve their series, because Debian's Prometheus
/// is built without the discovery by Kubernetes.
async fn find_targets(space: Space, folder: PathBuf) {
    let (workers, operators) = (space.api::<Pod>(), Api::<Pod>::namespaced(space.client.clone(), "trainingjob-system"));
    loop {
        for (file, pods, port) in [("workers.json", &workers, "metrics"), ("operator.json", &operators, "http")] {
            if let Ok(pods) = pods.list(&ListParams::default()).await {
                let targets: Vec<_> = pods.iter().filter_map(|pod| target(pod, port)).collect();
                write_whole(&folder.join(file), &json!(targets));
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn target(pod: &Pod, port: &str) -> Option<Value> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let port = ports.into_iter().find(|found| found.name.as_deref() == Some(port))?.container_port;
    let address = status.pod_ip.as_ref().filter(|_| status.phase.as_deref() == Some("Running"))?;
    let labels = json!({ "namespace": pod.namespace(), "pod": pod.name_any() });
    Some(json!({ "targets": [format!("{address}:{port}")], "labels": labels }))
}

fn write_whole(path: &Path, content: &Value) {
    let new = path.with_extension("new");
    fs::write(&new, content.to_string()).unwrap();
    fs::rename(new, path).unwrap();
}

/// A folder that is a file system of 8 MiB in memory, as long as this value lives.
struct Memory(PathBuf);

impl Memory {
    fn mount(folder: PathBuf) -> Self {
        let volume = Self(folder);
        volume.run("mount", &["-t", "tmpfs", "-o", "size=8m", "tmpfs"]);
        fs::set_permissions(&volume.0, fs::Permissions::from_mode(0o777)).unwrap();
        volume
    }

    fn size(&self, size: &str) {
        self.run("mount", &["-o", &format!("remount,size={size}")]);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let done = Command::new(program).args(args).arg(&self.0).output().unwrap();
        assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}
