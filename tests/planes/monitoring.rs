//! Monitoring: every alert fires when it should and is silent otherwise, every query of the dashboards returns data,
//! and the documentation describes all of it.
//!
//! Prometheus and its promtool are Debian's, unpacked into the cache and never installed.

use api::{self, State, TrainingJob, TuningJob, TuningState};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nix::sys::signal::Signal;
use protocol::checkpoints::{CheckpointPolicy, POLICY_FILE};
use protocol::proof::KEY_FILE;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::cluster::{self, Cluster, DENIES, tools};
use testkit::prometheus::{self, Prometheus};
use testkit::wait::{SOON, eventually};
use testkit::{ask, free_port, root};

/// What NVIDIA's exporter reports about a worker's GPU, with the labels that it has in Kubernetes.
const DCGM: [(&str, &str); 6] = [
    ("DCGM_FI_DEV_GPU_UTIL", "87"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.41"),
    ("DCGM_FI_DEV_FB_USED", "61234"),
    ("DCGM_FI_DEV_POWER_USAGE", "512.3"),
    ("DCGM_FI_DEV_GPU_TEMP", "58"),
    ("DCGM_FI_DEV_XID_ERRORS", "0"),
];

fn read(path: &str) -> String {
    fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboards() -> BTreeMap<String, Value> {
    let files = fs::read_dir(root("deploy/monitoring/dashboards")).unwrap().map(|file| file.unwrap().path());
    let parsed = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let board = serde_json::from_str(&fs::read_to_string(&path).unwrap());
        (name, board.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    };
    files.map(parsed).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// All panels, including those of folded rows.
fn panels(board: &Value) -> Vec<&Value> {
    list(&board["panels"]).iter().flat_map(|panel| [panel].into_iter().chain(list(&panel["panels"]))).collect()
}

fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/rules.yaml")).unwrap();
    list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"])).cloned().collect()
}

/// The query of the autoscaler's example, which is the number of workers of an elastic job.
fn autoscaler_query() -> String {
    let example: Value = serde_saphyr::from_str(&read("examples/autoscaler/queue-depth.yaml")).unwrap();
    text(&example["spec"]["triggers"][0]["metadata"]["query"]).to_owned()
}

/// The names of metrics in a text, as Prometheus sees them.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("trainingjob_") && !word.ends_with('_')).collect()
}

/// The operator's metrics, whose names are string constants of the code.
fn metrics_of_the_operator() -> BTreeSet<String> {
    let files = ["metrics", "jobs", "searches"].map(|file| read(&format!("src/telemetry/{file}.rs")));
    let constants = files.iter().flat_map(|code| code.split("#[cfg(test)]").next().unwrap().split('"'));
    let is_name =
        |text: &&str| text.starts_with("trainingjob_") && text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    constants.filter(is_name).map(str::to_owned).collect()
}

fn metrics_of_the_agent() -> BTreeSet<String> {
    let code = read("crates/agent/src/serve/metrics.rs");
    let constants = code.split("#[cfg(test)]").next().unwrap().split('"');
    let names = constants.filter(|text| text.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
    names.map(|name| format!("trainingjob_worker_{name}")).collect()
}

// ---- what needs nothing but the files

/// `prometheusrule.yaml` has the rules of `rules.yaml` in the Prometheus operator's format.
#[test]
fn both_rule_files_have_the_same_rules() {
    const HEAD: &str =
        "# Made from rules.yaml by `UPDATE=1 cargo test --test planes monitoring`: change that file, not this one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: trainingjob-operator
spec:
";
    let rules = read("deploy/monitoring/rules.yaml");
    let lines = rules.lines().skip_while(|line| *line != "groups:");
    let lines = lines.map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
    let current = format!("{HEAD}{}", lines.collect::<String>());
    let path = "deploy/monitoring/prometheusrule.yaml";
    if std::env::var_os("UPDATE").is_some() {
        fs::write(root(path), current).unwrap();
    } else {
        assert!(
            read(path) == current,
            "{path} is not made from rules.yaml: UPDATE=1 cargo test --test planes monitoring"
        );
    }
}

#[test]
fn every_alert_has_a_runbook() {
    let page = read("docs/monitoring.md");
    for alert in alerts() {
        let name = text(&alert["alert"]);
        let url = format!("docs/monitoring.md#{}", name.to_lowercase());
        assert_eq!(text(&alert["annotations"]["runbook_url"]), url);
        assert!(page.contains(&format!("\n### {name}\n")), "docs/monitoring.md has no section {name}");
        assert!(["info", "warning", "critical"].contains(&text(&alert["labels"]["severity"])), "{name}");
    }
}

#[test]
fn documented_metrics_match_the_code() {
    let (operate, monitoring) = (read("docs/operate.md"), read("docs/monitoring.md"));
    let reported = |name: &String, page: &str| page.contains(&format!("`{name}`"));
    let missing: Vec<_> = metrics_of_the_operator().into_iter().filter(|name| !reported(name, &operate)).collect();
    assert!(missing.is_empty(), "docs/operate.md does not tell of {missing:?}");
    let of_agents: BTreeSet<_> = metrics_in(&monitoring).into_iter().map(str::to_owned).collect();
    let known = metrics_of_the_agent();
    let made_up: Vec<_> =
        of_agents.iter().filter(|name| name.starts_with("trainingjob_worker_") && !known.contains(*name)).collect();
    assert!(made_up.is_empty(), "docs/monitoring.md tells of metrics that no agent has: {made_up:?}");
}

/// Every metric in a query exists.
#[test]
fn every_queried_metric_exists() {
    let known: BTreeSet<_> = metrics_of_the_operator().into_iter().chain(metrics_of_the_agent()).collect();
    let exists = |name: &str| {
        let parts_of_histograms = ["_bucket", "_sum", "_count"];
        known.contains(name)
            || parts_of_histograms.iter().any(|part| name.strip_suffix(part).is_some_and(|name| known.contains(name)))
    };
    let mut queries: Vec<String> = alerts().iter().map(|alert| text(&alert["expr"]).to_owned()).collect();
    queries.push(autoscaler_query());
    for board in dashboards().values() {
        let targets = panels(board).into_iter().flat_map(|panel| list(&panel["targets"]));
        queries.extend(targets.map(|target| text(&target["expr"]).to_owned()));
        queries.extend(list(&board["templating"]["list"]).iter().map(|v| text(&v["definition"]).to_owned()));
    }
    let asked: BTreeSet<&str> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    assert!(asked.len() > 40, "{asked:?}");
    let made_up: Vec<_> = asked.into_iter().filter(|name| !exists(name)).collect();
    assert!(made_up.is_empty(), "nobody tells {made_up:?}");
}

#[test]
fn dashboards_are_complete() {
    let boards = dashboards();
    assert_eq!(boards.keys().collect::<Vec<_>>(), ["fleet", "job", "operator", "tuning"]);
    for (name, board) in &boards {
        assert_eq!(text(&board["uid"]), format!("trainingjob-{name}"));
        let ids: Vec<_> = panels(board).into_iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{name}: panels of one id");
        for panel in panels(board).into_iter().filter(|panel| panel["type"] != "row") {
            let title = text(&panel["title"]);
            assert!(!title.is_empty() && !text(&panel["description"]).is_empty(), "{name}: {title}");
            assert!(!list(&panel["targets"]).is_empty(), "{name}: {title} asks nothing");
            for place in [panel].into_iter().chain(list(&panel["targets"])) {
                assert_eq!(place["datasource"]["uid"], "${datasource}", "{name}: {title}");
            }
            let grid = &panel["gridPos"];
            assert!(grid["x"].as_u64().unwrap() + grid["w"].as_u64().unwrap() <= 24, "{name}: {title} is too wide");
        }
    }
}

// ---- what needs programs

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn promtool(args: &[&str]) {
    let output = Command::new(prometheus::folder().join("promtool")).args(args).current_dir(root("")).output().unwrap();
    assert!(output.status.success(), "promtool {args:?}: {}", said(&output));
}

#[test]
fn documented_scrape_config_is_valid() {
    let page = read("docs/monitoring.md");
    let (_, rest) = page.split_once("```yaml\nscrape_configs:").expect("docs/monitoring.md shows scrape_configs");
    let shown = format!("scrape_configs:{}", rest.split("```").next().unwrap());
    // Debian's Prometheus is built without the discovery by Kubernetes.
    let known = shown.lines().filter(|line| !line.contains("kubernetes_sd_configs:") && !line.contains("- {role: "));
    let config = testkit::scratch().join("shown.yaml");
    fs::write(&config, known.collect::<Vec<_>>().join("\n")).unwrap();
    promtool(&["check", "config", config.to_str().unwrap()]);
}

#[test]
fn alerts_fire_and_stay_silent_as_expected() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", "deploy/monitoring/rules.yaml"]);
    promtool(&["test", "rules", "tests/monitoring/alerts.yaml"]);

    let cases: Value = serde_saphyr::from_str(&read("tests/monitoring/alerts.yaml")).unwrap();
    let cases: Vec<&Value> = list(&cases["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])).collect();
    for alert in cases.iter().flat_map(|case| list(&case["exp_alerts"])) {
        let (labels, description) = (&alert["exp_labels"], text(&alert["exp_annotations"]["description"]));
        let (_, command) = description.rsplit_once(": kubectl trainingjob ").expect(description);
        let name = |label: &str| {
            text(&labels[label]).replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.', "")
        };
        if labels.get("training_job").is_some() {
            let of_job = format!(" {} -n {}", name("training_job"), name("namespace"));
            assert!(
                command.contains(&of_job),
                "the description does not end with a command for{of_job}: {description}"
            );
        }
    }
    for alert in alerts() {
        let fires = |case: &Value| !list(&case["exp_alerts"]).is_empty();
        let of_it: Vec<_> = cases.iter().filter(|case| case["alertname"] == alert["alert"]).collect();
        assert!(of_it.iter().any(|case| fires(case)), "{} never fires", alert["alert"]);
        assert!(of_it.iter().any(|case| !fires(case)), "{} is never silent", alert["alert"]);
    }
}

/// The objects of an installation.
fn kustomized(path: &str) -> Vec<Value> {
    let output = Command::new(tools().join("kubectl")).arg("kustomize").arg(root(path)).output().unwrap();
    assert!(output.status.success(), "{path}: {}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split("\n---\n").map(|object| serde_saphyr::from_str(object).unwrap()).collect()
}

#[test]
fn monitors_select_the_operator_and_its_agents() {
    let (monitoring, operator) = (kustomized("deploy/monitoring"), kustomized("deploy/cluster"));
    let one = |objects: &[Value], kind: &str| -> Value {
        let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).cloned().collect();
        assert_eq!(found.len(), 1, "{kind}");
        found.into_iter().next().unwrap()
    };
    let (monitor, service) = (one(&monitoring, "ServiceMonitor"), one(&operator, "Service"));
    for object in &monitoring {
        assert_eq!(object["metadata"]["namespace"], service["metadata"]["namespace"]);
    }
    for (name, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&service["metadata"]["labels"][name], value);
    }
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], service["spec"]["ports"][0]["name"]);
    assert_eq!(monitor["spec"]["endpoints"][0]["honorLabels"], true);
    // Any user may label pods so. Prometheus takes only the agents' metrics from them, and a limited number.
    let workers = one(&monitoring, "PodMonitor");
    let kept = json!({ "sourceLabels": ["__name__"], "regex": "trainingjob_worker_.*", "action": "keep" });
    assert_eq!(list(&workers["spec"]["podMetricsEndpoints"][0]["metricRelabelings"]), [kept]);
    assert_eq!(workers["spec"]["sampleLimit"], 2000);
    assert_eq!(workers["spec"]["podMetricsEndpoints"][0].get("honorLabels"), None);
    assert_eq!(list(&one(&monitoring, "PrometheusRule")["spec"]["groups"]).len(), 2);

    let maps = monitoring.iter().filter(|object| object["kind"] == "ConfigMap");
    let names: BTreeSet<_> = maps
        .inspect(|map| assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1"))
        .map(|map| map["data"].as_object().unwrap().keys().next().unwrap().clone())
        .collect();
    assert_eq!(names, BTreeSet::from(["fleet.json", "job.json", "operator.json", "tuning.json"].map(str::to_owned)));
    // `kubectl apply` stores a ConfigMap once more in its own annotation, which holds 256 KiB.
    assert!(monitoring.iter().all(|object| object.to_string().len() < 200_000));
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, log: &Path) -> Self {
        let output = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Process {
    /// Sends a signal that an agent passes on to its program.
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let begin = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of a page that was answered with 200.
fn get(port: u16, path: &str) -> Option<String> {
    ask(port, "GET", path, "")
}

/// Serves [`DCGM`] until the process ends. Returns its port.
fn dcgm_exporter() -> u16 {
    let labels = r#"{gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H200",Hostname="node-0",namespace="train",pod="runs-training-0-abcde",container="training"}"#;
    let page: String =
        DCGM.iter().map(|(name, value)| format!("# TYPE {name} gauge\n{name}{labels} {value}\n")).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
            let _ = stream.read(&mut request);
            let head =
                format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}", page.len());
            let _ = write!(stream, "{head}\r\n\r\n{page}");
        }
    });
    port
}

/// A worker's program. It reports its progress, saves once, and warns of what may end it.
const PROGRAM: &str = r#"
echo "RuntimeError: CUDA out of memory"
mkdir "$CHECKPOINT_DIR/step-1"
echo weights > "$CHECKPOINT_DIR/step-1/weights.bin"
touch "$CHECKPOINT_DIR/step-1/.complete"
step=0
while sleep 1; do
  step=$((step + 1))
  echo '{"step":'$step',"total_steps":1000,"epoch":1,"total_epochs":3,"loss":0.5,"accuracy":0.75,"throughput":12,"eta":600}' \
    >> "$TRAININGJOB_PROGRESS_FILE"
done
"#;

struct World {
    client: Client,
    folder: PathBuf,
    cluster: Cluster,
}

impl World {
    async fn new() -> Self {
        let cluster = Cluster::up("monitoring", &["--control-only", "--no-audit", "--simulated-nodes", "2"]);
        let folder = testkit::scratch().join("monitoring");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let client = cluster.client().await;
        for name in ["trainingjob-system", "train"] {
            let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        }
        Self { client, folder, cluster }
    }

    fn operator(&self, port: u16) -> Process {
        let mut command = Command::new(testkit::binary("operator"));
        command.args(["--metrics-address", &format!("127.0.0.1:{port}"), "--identity", "operator-0"]);
        // Agents are asked at their pods' addresses, as in a cluster.
        command.env("AGENT_ACCESS", "direct");
        command.env("KUBECONFIG", self.cluster.kubeconfig()).env_remove("KUBERNETES_SERVICE_HOST");
        Process::start(&mut command, &self.folder.join("operator.log"))
    }

    /// The agent of worker 0 of the job `runs`, which manages its checkpoints. Its GPUs are simulated, and the second
    /// one appears only once.
    fn agent(&self, port: u16, pod: &str, key: &[u8]) -> Process {
        let smi = self.folder.join("nvidia-smi");
        let script = "#!/bin/sh\necho '0, GPU-0, 40, 1024, 81559, 300, 50'\nmkdir \"$0.seen\" && echo '1, GPU-1, 40, 1024, 81559, 300, 50'\nexit 0\n";
        fs::write(&smi, script).unwrap();
        fs::set_permissions(&smi, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", self.folder.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(testkit::binary("agent"));
        command.args(["run", "--attempt", "1", "--grace-seconds", "1", "--metrics-port", &port.to_string()]);
        command.arg("--termination-log").arg(self.folder.join("termination-log"));
        let checkpoints = self.folder.join("checkpoints");
        fs::create_dir(&checkpoints).unwrap();
        let policy = CheckpointPolicy {
            uid: "uid-of-runs".into(),
            job: "runs".into(),
            workers: 1,
            shared: true,
            retention: 3,
            ..CheckpointPolicy::default()
        };
        let policy_file = self.folder.join(POLICY_FILE);
        fs::write(&policy_file, serde_json::to_vec(&policy).unwrap()).unwrap();
        command.arg("--checkpoints").arg(policy_file).env("CHECKPOINT_DIR", checkpoints);
        let key_file = self.folder.join("answers");
        fs::write(&key_file, key).unwrap();
        command.arg("--answer-key").arg(key_file);
        command.args(["--", "sh", "-c", PROGRAM]);
        command.env("PATH", path).env("TRAINING_JOB_NAME", "runs").env("NODE_RANK", "0");
        // The operator believes only the very pod that it asks, by the key of the pod's job.
        command.env("POD_UID", pod);
        Process::start(&mut command, &self.folder.join("agent.log"))
    }

    fn prometheus(&self, operator: u16, agent: u16, dcgm: u16) -> Prometheus {
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "5s" },
            "rule_files": [root("deploy/monitoring/rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": "operator", "honor_labels": true,
                    "static_configs": [{
                        "targets": [format!("127.0.0.1:{operator}")],
                        "labels": { "namespace": "trainingjob-system", "pod": "operator-0" },
                    }],
                },
                {
                    "job_name": "workers",
                    "static_configs": [{
                        "targets": [format!("127.0.0.1:{agent}")],
                        "labels": { "namespace": "train", "pod": "runs-training-0-abcde" },
                    }],
                },
                {
                    "job_name": "dcgm", "honor_labels": true,
                    "static_configs": [{ "targets": [format!("127.0.0.1:{dcgm}")] }],
                },
            ],
        });
        Prometheus::start(&config, &self.folder)
    }

    fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), "train")
    }

    #[expect(clippy::unused_async, reason = "called as others are")]
    async fn submit(&self, name: &str, fields: Value) {
        let mut job = cluster::job(name, &fields);
        job["metadata"]["namespace"] = json!("train");
        // The operator asks its agents on this machine.
        job["spec"]["podTemplate"]["metadata"]["annotations"]["simulated/ip"] = json!("127.0.0.1");
        // kubectl leaves out fields that this version does not have yet, with a warning.
        self.cluster.kubectl_with(&["create", "--validate=warn", "-f", "-"], &job.to_string());
    }

    /// A suspended search with one trial that has ended.
    async fn search(&self) {
        let parameters = json!({ "x": { "type": "double", "min": 0, "max": 1 } });
        let search = json!({
            "apiVersion": "ml.example.com/v1", "kind": "TuningJob",
            "metadata": { "name": "search", "namespace": "train" },
            "spec": {
                "maxTrials": 2, "gpuHours": 5, "suspend": true, "metric": { "name": "loss", "goal": "minimize" },
                "parameters": parameters, "template": { "spec": cluster::job("trial", &json!({}))["spec"] },
            },
        });
        self.cluster.kubectl_with(&["create", "--validate=warn", "-f", "-"], &search.to_string());
        let searches: Api<TuningJob> = Api::namespaced(self.client.clone(), "train");
        eventually("the search to be suspended", SOON, async || {
            let status = searches.get("search").await.unwrap().status?;
            (status.state == Some(TuningState::Suspended)).then_some(())
        })
        .await;
        let trial = json!({ "trial": 1, "values": [0.5], "state": "Succeeded", "after": 0, "end": 1, "value": 0.25, "gpuHours": 1.5 });
        let patch = Patch::Merge(json!({ "status": { "trials": [trial] } }));
        searches.patch_status("search", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn until(&self, name: &str, state: State, attempt: u32) {
        eventually(&format!("attempt {attempt} of {name} to be {}", state.as_str()), SOON, async || {
            let status = self.jobs().get(name).await.unwrap().status?;
            (status.state == Some(state) && status.attempt == Some(attempt)).then_some(())
        })
        .await;
    }

    async fn pods(&self, job: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "train");
        pods.list(&ListParams::default().labels(&format!("training-job={job}"))).await.unwrap().items
    }

    async fn set_pod(&self, pod: &Pod, status: Value) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "train");
        let patch = Patch::Merge(json!({ "status": status }));
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Ends one worker of the running attempt with exit code 1.
    async fn fail(&self, job: &str) {
        let pods = self.pods(job).await;
        let runs = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
        };
        let end = json!({ "exitCode": 1, "reason": "Error", "finishedAt": jiff::Timestamp::now() });
        let container = json!({
            "name": "training", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": end },
        });
        let pod = pods.iter().find(runs).expect("a pod that runs");
        self.set_pod(pod, json!({ "phase": "Failed", "containerStatuses": [container] })).await;
    }

    /// Makes a queue manager hold the Job of this job.
    async fn hold(&self, job: &str) {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), "train");
        let name = format!("{job}-training");
        eventually("its Job", SOON, async || jobs.get(&name).await.ok()).await;
        let patch = Patch::Merge(json!({ "spec": { "suspend": true } }));
        jobs.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes the node of a worker of the job stop answering, or answer again.
    async fn silence(&self, job: &str, is_silent: bool) {
        let ready = if is_silent { "False" } else { "True" };
        let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "lastTransitionTime": jiff::Timestamp::now() });
        let conditions = ["PodScheduled", "Initialized", "ContainersReady"].map(|type_| condition(type_, "True"));
        let conditions: Vec<_> = conditions.into_iter().chain([condition("Ready", ready)]).collect();
        self.set_pod(&self.pods(job).await[0], json!({ "conditions": conditions })).await;
    }

    /// The number of series that each query returns, by the query's kind and place.
    #[expect(clippy::unused_self, reason = "called as others are")]
    fn queries(&self, prometheus: u16) -> Vec<(String, u64)> {
        let url = format!("http://127.0.0.1:{prometheus}");
        let output = Command::new(root("tests/monitoring/queries")).env("PROM_URL", url).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let line = |line: &str| {
            let fields: Vec<&str> = line.splitn(4, '\t').collect();
            let [kind, series, place, query] = fields[..] else { panic!("{line}") };
            (format!("{kind} {place}: {query}"), series.parse().unwrap())
        };
        text.lines().map(line).collect()
    }
}

/// Waits until this alert fires for the job, or fires no more.
async fn until_alert(prometheus: &Prometheus, name: &str, job: &str, fires: bool) {
    let what = if fires { "to fire" } else { "to resolve" };
    eventually(&format!("{name} of {job} {what}"), SOON, async || {
        (prometheus.fires(name, Some(job))? == fires).then_some(())
    })
    .await;
}

/// Waits until the query of the autoscaler's example gives this number of workers for the jobs of the test.
async fn until_workers(prometheus: &Prometheus, number: &str) {
    let query = autoscaler_query().replace("ml-training", "train");
    eventually(&format!("the autoscaler to read {number}"), SOON, async || {
        let [one] = &prometheus.query(&query)?[..] else { return None };
        (one["value"][1] == number).then_some(())
    })
    .await;
}

/// A real Prometheus scrapes a real operator and a real agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_returns_data() {
    let world = World::new().await;
    let [operator, agent] = [free_port(), free_port()];
    // The kind that the operator watches does not exist yet, so that its watch breaks.
    let _operator = world.operator(operator);
    let prometheus = world.prometheus(operator, agent, dcgm_exporter());
    let port = prometheus.port;
    eventually("a broken watch", SOON, async || {
        get(operator, "/metrics")?.contains("trainingjob_watch_errors_total{").then_some(())
    })
    .await;
    world.cluster.apply_crd(&api::crd());
    world.cluster.apply_crd(&api::tuning_crd());
    world.cluster.kubectl_with(&["apply", "-f", "-"], DENIES);
    eventually("the operator to lead", SOON, async || (get(operator, "/readyz")? == "ok: leading\n").then_some(()))
        .await;

    world.search().await;
    let pod_template = |fields: Value| json!({ "podTemplate": { "metadata": { "annotations": fields } } });
    world.submit("runs", json!({ "monitoring": { "metricsPort": agent, "minThroughput": 20 } })).await;
    world.submit("waits", json!({ "scheduling": { "nodeSelector": { "there": "nowhere" } } })).await;
    world.submit("done", pod_template(json!({ "simulated/duration": "1s" }))).await;
    world.submit("fails", json!({ "failurePolicy": { "backoffLimit": 1 } })).await;
    world.submit("denied", json!({})).await;
    world.submit("queued", json!({ "scheduling": { "queue": "gpu" }, "gpusPerWorker": 1 })).await;
    world.submit("grows", json!({ "elastic": { "maxWorkers": 3 } })).await;
    world.submit("silent", json!({ "failurePolicy": { "nodeLostSeconds": 3600 } })).await;
    world.submit("worn", json!({ "failurePolicy": { "backoffLimit": 1 } })).await;
    world.hold("queued").await;

    world.until("runs", State::Running, 1).await;
    let first =
        |pod: &Pod| pod.labels().get("batch.kubernetes.io/job-completion-index").is_some_and(|index| index == "0");
    let first = world.pods("runs").await.into_iter().find(first).expect("worker 0 runs");
    let uid = world.jobs().get("runs").await.unwrap().uid().unwrap();
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "train");
    let secret = secrets.get(&objects::names::keys_name("runs", &uid)).await.unwrap();
    let agent_process = world.agent(agent, &first.uid().unwrap(), &secret.data.unwrap()[KEY_FILE].0);
    let progress = json!({
        "progress": "45%", "currentEpoch": 1, "totalEpochs": 3, "currentStep": 450, "totalSteps": 1000,
        "estimatedSecondsRemaining": 600, "lastProgressTime": "2026-01-02T03:04:05Z",
        "metrics": { "loss": 0.5, "accuracy": 0.75, "throughput": 12.0, "gpuUtilization": 40.0 },
        "earlyStopping": { "metric": "eval_loss", "best": 0.25, "evaluationsSinceBest": 1 },
        // There is no store, so that the agent reports nothing about copies.
        "checkpoint": { "lastBackupTime": "2026-01-02T03:04:05Z", "lastBackupPath": "step-1" },
    });
    let patch = Patch::Merge(json!({ "status": progress }));
    world.jobs().patch_status("runs", &PatchParams::default(), &patch).await.unwrap();
    world.until("done", State::Completed, 1).await;
    world.until("fails", State::Running, 1).await;
    // Prometheus counts an increase only over a value that it has seen before.
    eventually("Prometheus to know of no restart", SOON, async || {
        let answer = get(port, "/api/v1/query?query=trainingjob_restart_duration_seconds_count")?;
        answer.contains(r#""namespace":"train""#).then_some(())
    })
    .await;
    world.fail("fails").await;
    world.until("fails", State::Running, 2).await;
    world.fail("fails").await;
    world.until("fails", State::Failed, 2).await;
    world.until("worn", State::Running, 1).await;
    world.fail("worn").await;
    world.until("silent", State::Running, 1).await;
    world.silence("silent", true).await;
    world.until("grows", State::Running, 1).await;
    // No store exists here that could refuse a result.
    let mut conditions = world.jobs().get("fails").await.unwrap().status.unwrap().conditions;
    let failed = conditions.iter().find(|condition| condition.type_ == "Failed").unwrap();
    let unpublished = api::Condition {
        type_: "ResultPublished".to_owned(),
        status: "False".to_owned(),
        reason: "PublishFailed".to_owned(),
        ..failed.clone()
    };
    conditions.push(unpublished);
    let patch = Patch::Merge(json!({ "status": { "conditions": conditions } }));
    world.jobs().patch_status("fails", &PatchParams::default(), &patch).await.unwrap();
    // The other jobs ran before Prometheus looked for the first time, so that it saw no increase.
    world.submit("later", json!({})).await;
    world.until("later", State::Running, 1).await;

    let begin = Instant::now();
    let answers = loop {
        let answers = world.queries(port);
        let may_lack = |query: &str| query.starts_with("alert ");
        let without: Vec<_> =
            answers.iter().filter(|(query, series)| *series == 0 && !may_lack(query)).map(|(query, _)| query).collect();
        if without.is_empty() {
            break answers;
        }
        assert!(begin.elapsed() < SOON, "without data after {SOON:?}: {without:#?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    assert!(answers.len() > 80, "{answers:#?}");
    for (query, series) in &answers {
        println!("{series}\t{query}");
    }

    // The failed job raises an alert, with nothing simulated between the operator and the alert.
    let alert = eventually("the alert", SOON, async || {
        let is_it = |alert: &Value| alert["labels"]["alertname"] == "TrainingJobFailed" && alert["state"] == "firing";
        prometheus.alerts()?.into_iter().find(is_it)
    })
    .await;
    assert_eq!(alert["labels"]["training_job"], "fails");
    assert_eq!(alert["labels"]["reason"], "ExitCode");
    let rules: Value = serde_json::from_str(&get(port, "/api/v1/rules").unwrap()).unwrap();
    let rules: Vec<&Value> = list(&rules["data"]["groups"]).iter().flat_map(|group| list(&group["rules"])).collect();
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }

    // Alerts fire and resolve with what the operator and the agents see.
    until_alert(&prometheus, "TrainingJobNodeSilent", "silent", true).await;
    until_alert(&prometheus, "TrainingJobRestartsNearLimit", "worn", true).await;
    until_alert(&prometheus, "TrainingJobGpuLost", "runs", true).await;
    world.silence("silent", false).await;
    world.jobs().delete("worn", &Default::default()).await.unwrap();
    drop(agent_process);
    until_alert(&prometheus, "TrainingJobNodeSilent", "silent", false).await;
    until_alert(&prometheus, "TrainingJobRestartsNearLimit", "worn", false).await;
    until_alert(&prometheus, "TrainingJobGpuLost", "runs", false).await;

    // Two workers with a GPU each wait in the queue, and then none does.
    until_workers(&prometheus, "6").await;
    world.jobs().delete("queued", &Default::default()).await.unwrap();
    until_workers(&prometheus, "8").await;

    // A series disappears with its job.
    world.jobs().delete("runs", &Default::default()).await.unwrap();
    eventually("its series to go", SOON, async || {
        let page = get(operator, "/metrics")?;
        (!page.contains("training_job=\"runs\"") && page.contains("training_job=\"fails\"")).then_some(())
    })
    .await;
}
