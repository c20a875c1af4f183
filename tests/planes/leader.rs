//! Several operators run as processes. One acts, and another one takes over, whatever happens to the first.
//!
//! They work for all namespaces, with only the rights of `deploy`.

use api::{self, RuntimeKind, State, TrainingJob};
use futures::{StreamExt, future};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::config::Kubeconfig;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::cluster::{self, Cluster};
use testkit::wait::{SOON, eventually};
use testkit::{free_port, root};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Duration of a lease that is not renewed. A living leader renews it within 1.5 s, and the others look every 2.25 s at
/// the latest. A dead leader is replaced within 15 s, of which this is the waiting. The rest depends on the machine.
const LASTS: i32 = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_operator_leads_and_a_standby_takes_over() {
    let world = World::new().await;
    let first = world.operator("first", &world.direct).await;
    first.leads(SOON).await;
    let mut second = world.operator("second", &world.direct).await;
    second.stands_by().await;
    for operator in [&first, &second] {
        assert_eq!(operator.get("/healthz").await.as_deref(), Some("ok\n"), "{}", operator.name);
    }
    assert_eq!(first.get("/readyz").await.as_deref(), Some("ok: leading\n"));
    assert_eq!(second.get("/readyz").await.as_deref(), Some("ok: standby\n"));
    world.submit("a").await;
    world.runs("a").await;
    let pods = world.pods().await;

    // Killed: the operator does not give back the lease.
    first.signal("KILL");
    let killed = Instant::now();
    world.submit("b").await;
    second.leads(SOON).await;
    println!("killed: the other one leads after {:.1} s", killed.elapsed().as_secs_f64());
    assert_eq!(world.handed_over("first", "second").await, How::RanOut);
    world.runs("b").await;
    assert!(pods.is_subset(&world.pods().await), "what runs goes on");

    // Stopped by SIGTERM: the operator gives back the lease.
    let mut third = world.operator("third", &world.cut_off).await;
    third.stands_by().await;
    second.signal("TERM");
    let reported = Instant::now();
    third.leads(SOON).await;
    println!("told to stop: the other one leads after {:.1} s", reported.elapsed().as_secs_f64());
    assert_eq!(world.handed_over("second", "third").await, How::GivenBack);
    assert!(second.end().await.success(), "{}", second.log());
    world.submit("c").await;
    world.runs("c").await;

    // Cut off from the API server: the leader steps down by itself before the other operator acts.
    let fourth = world.operator("fourth", &world.direct).await;
    fourth.stands_by().await;
    world.cable.send(false).unwrap();
    let cut = Instant::now();
    fourth.leads(SOON).await;
    println!("cut off: the other one leads after {:.1} s", cut.elapsed().as_secs_f64());
    assert_eq!(world.handed_over("third", "fourth").await, How::RanOut);
    assert!(!third.end().await.success(), "it says that it did not mean to end");
    assert!(third.log().contains("lost the lease trainingjob-system/trainingjob-operator"), "{}", third.log());
    // Both logs use the same clock.
    let stepped_down = third.logged("giving up leadership");
    let began = fourth.logged("watching TrainingJobs");
    assert!(stepped_down < began, "it steps down at {stepped_down}, and the other one acts from {began} on");
    world.submit_by_template("d").await;
    world.runs("d").await;
    assert!(pods.is_subset(&world.pods().await), "what runs goes on");

    // A standby that gets SIGTERM exits at once and disturbs no other operator.
    let mut fifth = world.operator("fifth", &world.direct).await;
    fifth.stands_by().await;
    fifth.signal("TERM");
    assert!(fifth.end().await.success(), "{}", fifth.log());
    assert!(fourth.is_leader().await);

    world.nothing_was_forbidden_or_done_twice();
    world.requests_have_a_priority_level_of_their_own();
    world.operator_cannot_read_secrets_of_others().await;
}

/// How a lease passed to its next holder.
#[derive(Debug, PartialEq)]
enum How {
    /// The lease expired without a renewal.
    RanOut,
    /// The holder gave it back.
    GivenBack,
}

struct World {
    cluster: Cluster,
    /// Every version of the lease.
    leases: Arc<Mutex<Vec<LeaseSpec>>>,
    client: Client,
    /// Kubeconfig of the operator's service account.
    direct: PathBuf,
    /// The same through a cable that can be cut.
    cut_off: PathBuf,
    cable: watch::Sender<bool>,
}

impl World {
    async fn new() -> Self {
        let cluster = Cluster::up("leader", &["--control-only", "--simulated-nodes", "1"]);
        cluster.apply_crd(&api::crd());
        for kind in RuntimeKind::ALL {
            cluster.apply_crd(&api::runtime_crd(kind));
        }
        let installation = cluster.kubectl(&["kustomize", &root("deploy")]);
        let rights: Vec<&str> = installation
            .split("\n---\n")
            .filter(|object| {
                let object: Value = serde_saphyr::from_str(object).unwrap();
                !["Deployment", "CustomResourceDefinition"].contains(&object["kind"].as_str().unwrap())
            })
            .collect();
        cluster.kubectl(&["create", "namespace", "trainingjob-system"]);
        cluster.kubectl_with(&["apply", "-f", "-"], &rights.join("\n---\n"));
        let token = cluster.kubectl(&["create", "token", "trainingjob-operator", "-n", "trainingjob-system"]);
        cluster.kubectl(&["create", "namespace", "elsewhere"]);

        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).unwrap();
        let server = kubeconfig.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
        let (cable, connected) = watch::channel(true);
        let through = cable_to(server.trim_start_matches("https://").parse().unwrap(), connected).await;
        let direct = account(&kubeconfig, token.trim(), &server, "direct");
        let cut_off = account(&kubeconfig, token.trim(), &format!("https://{through}"), "cut-off");
        let client = cluster.client().await;
        let leases = watch_lease(&client);
        Self { cluster, leases, client, direct, cut_off, cable }
    }

    /// How the lease passed from one operator to the next, by the times that both wrote into it.
    async fn handed_over(&self, from: &str, to: &str) -> How {
        let is_of = |lease: &LeaseSpec, name| lease.holder_identity.as_deref() == Some(name);
        let versions = eventually(&format!("the lease of {to}"), SOON, async || {
            let versions = self.leases.lock().unwrap().clone();
            versions.iter().any(|lease| is_of(lease, to)).then_some(versions)
        })
        .await;
        let last = versions.iter().rposition(|lease| is_of(lease, from)).unwrap();
        let taken = versions.iter().position(|lease| is_of(lease, to)).unwrap();
        if taken != last + 1 {
            return How::GivenBack; // a version between the two has no holder
        }
        let (last, taken) = (&versions[last], &versions[taken]);
        assert_eq!(last.lease_duration_seconds, Some(LASTS));
        let waited = taken.acquire_time.as_ref().unwrap().0.duration_since(last.renew_time.as_ref().unwrap().0);
        assert!(waited.as_secs() >= i64::from(LASTS), "{to} took the lease {waited} after {from} had renewed it");
        How::RanOut
    }

    /// Starts an operator and waits until it serves its metrics.
    async fn operator(&self, name: &'static str, kubeconfig: &Path) -> Operator {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let log = testkit::scratch().join(format!("{name}.log"));
        let process = Command::new(testkit::binary("operator"))
            .args(["--metrics-address", &address.to_string(), "--identity", name, "--agent-access", "off"])
            .env("KUBECONFIG", kubeconfig)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let operator = Operator { name, process, address, log };
        operator.wait("to serve its health", SOON, async || operator.get("/healthz").await.is_some()).await;
        operator
    }

    /// Submits a job that a template, shared by all namespaces, defines completely.
    async fn submit_by_template(&self, name: &str) {
        let kind = RuntimeKind::ClusterTrainingRuntime;
        let spec = json!({
            "numWorkers": 2, "gpusPerWorker": 0, "image": "none", "networking": { "backend": "gloo" },
            "checkpoint": { "enabled": false }, "env": [{ "name": "A", "value": "theirs" }],
        });
        let template = json!({
            "apiVersion": "ml.example.com/v1", "kind": kind.as_str(), "metadata": { "name": "shared" }, "spec": spec,
        });
        self.cluster.kubectl_with(&["apply", "-f", "-"], &template.to_string());
        let job = json!({
            "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name },
            "spec": { "runtimeRef": { "kind": kind.as_str(), "name": "shared" }, "model": "none", "dataset": "none" },
        });
        self.jobs().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
        let what = format!("{name} to begin with its template");
        let of = async || self.jobs().get(name).await.unwrap().status?.inherited?.runtime;
        let taken = eventually(&what, SOON, of).await;
        assert_eq!((taken.kind, taken.name.as_str(), taken.generation), (kind, "shared", 1));
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "elsewhere");
        let params = ListParams::default().labels(&format!("training-job={name}"));
        let pod = eventually("a pod of it", SOON, async || pods.list(&params).await.unwrap().items.pop()).await;
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap_or_default();
        let theirs = env.iter().find(|variable| variable.name == "A").and_then(|variable| variable.value.as_deref());
        assert_eq!(theirs, Some("theirs"));
    }

    async fn submit(&self, name: &str) {
        let job = cluster::job(name, &json!({}));
        self.jobs().create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    }

    fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), "elsewhere")
    }

    async fn runs(&self, name: &str) {
        let begin = Instant::now();
        while self.jobs().get(name).await.unwrap().status.and_then(|s| s.state) != Some(State::Running) {
            assert!(begin.elapsed() < SOON, "waited {SOON:?} for {name} to run");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn pods(&self) -> BTreeSet<String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "elsewhere");
        pods.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|pod| pod.metadata.uid).collect()
    }

    /// From the API server's audit log: RBAC forbade nothing, and no create found that the object already existed.
    fn nothing_was_forbidden_or_done_twice(&self) {
        let log = fs::read_to_string(self.cluster.kubeconfig().parent().unwrap().join("log/audit.jsonl")).unwrap();
        let user = r#""username":"system:serviceaccount:trainingjob-system:trainingjob-operator""#;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(user)).collect();
        assert!(lines.iter().any(|line| line.contains(r#""resource":"jobs""#)), "no line of the operators");
        let refused = |line: &&&str| {
            let line: Value = serde_json::from_str(line).unwrap();
            // A job with its template is dry-run under its own name, which is taken if nothing else is wrong with it.
            let is_trial = line["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All"));
            line["annotations"]["authorization.k8s.io/decision"] == "forbid"
                || (line["verb"] == "create" && line["responseStatus"]["code"] == 409 && !is_trial)
        };
        let refused: Vec<_> = lines.iter().filter(refused).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    }

    /// The API server counts the requests of each FlowSchema, before it looks at the rights of their user. docs/install.md
    /// says how many of 600 a level serves at one time.
    fn requests_have_a_priority_level_of_their_own(&self) {
        let _ = self.cluster.try_kubectl(&["delete", "tj", "none", "-n", "elsewhere", "--as", "someone"], "");
        let metrics = self.cluster.kubectl(&["get", "--raw", "/metrics"]);
        let sum = |metric: &str, label: &str, name: &str| {
            let (metric, label) = (format!("apiserver_flowcontrol_{metric}{{"), format!("{label}=\"{name}\""));
            let lines = metrics.lines().filter(|line| line.starts_with(&metric) && line.contains(&label));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
        };
        let counted = |schema: &str| sum("dispatched_requests_total", "flow_schema", schema);
        assert_eq!(sum("upper_limit_seats", "priority_level", "trainingjob-users"), 2.0, "{metrics}");
        let seats = sum("nominal_limit_seats", "priority_level", "trainingjob-operator");
        assert!((110.0..125.0).contains(&seats), "{seats} are not about 118");
        assert!(counted("trainingjob-operator") > 10.0, "{metrics}");
        assert!(counted("trainingjob-users") > 0.0, "{metrics}");
        assert_eq!(counted("service-accounts"), 0.0, "the operator's account is the only one outside kube-system");
    }

    async fn operator_cannot_read_secrets_of_others(&self) {
        let kubeconfig = Kubeconfig::read_from(&self.direct).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::all(Client::try_from(config).unwrap());
        let answer = secrets.list(&ListParams::default()).await;
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.is_forbidden()), "{answer:?}");
    }
}

fn watch_lease(client: &Client) -> Arc<Mutex<Vec<LeaseSpec>>> {
    let leases = Arc::<Mutex<Vec<LeaseSpec>>>::default();
    let api: Api<Lease> = Api::namespaced(client.clone(), "trainingjob-system");
    let versions = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
    let pen = leases.clone();
    tokio::spawn(versions.for_each(move |lease| {
        pen.lock().unwrap().extend(lease.ok().and_then(|lease| lease.spec));
        future::ready(())
    }));
    leases
}

/// A kubeconfig of the service account with this token.
fn account(admin: &Kubeconfig, token: &str, server: &str, name: &str) -> PathBuf {
    let mut config = serde_json::to_value(admin).unwrap();
    config["clusters"][0]["cluster"]["server"] = json!(server);
    config["users"][0]["user"] = json!({ "token": token });
    let path = testkit::scratch().join(format!("{name}.kubeconfig"));
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Forwards connections as long as it is connected. After that it forwards nothing, and neither side gets an error.
async fn cable_to(server: SocketAddr, connected: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut connected = connected.clone();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(server).await else { return };
                let cut = async { drop(connected.wait_for(|connected| !connected).await) };
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => {}
                    () = cut => std::future::pending().await,
                }
            });
        }
    });
    address
}

struct Operator {
    name: &'static str,
    process: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Operator {
    async fn leads(&self, deadline: Duration) {
        self.wait("to lead", deadline, async || self.is_leader().await).await;
    }

    async fn stands_by(&self) {
        let ready = async || self.get("/readyz").await.as_deref() == Some("ok: standby\n");
        self.wait("to be ready as a standby", SOON, ready).await;
        assert!(!self.is_leader().await);
    }

    async fn is_leader(&self) -> bool {
        self.get("/metrics").await.is_some_and(|text| text.lines().any(|line| line == "trainingjob_leader 1"))
    }

    /// The body of a page that was answered with 200.
    async fn get(&self, path: &str) -> Option<String> {
        let answer = tokio::time::timeout(Duration::from_secs(5), async {
            let mut stream = TcpStream::connect(self.address).await.ok()?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        });
        let answer = answer.await.ok()??;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| body.to_owned())
    }

    fn signal(&self, signal: &str) {
        let signal: nix::sys::signal::Signal = format!("SIG{signal}").parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    /// Waits until the operator has exited by itself.
    async fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < SOON, "waited {SOON:?} for {} to end\n{}", self.name, self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn wait(&self, what: &str, deadline: Duration, mut is: impl AsyncFnMut() -> bool) {
        let begin = Instant::now();
        while !is().await {
            assert!(begin.elapsed() < deadline, "waited {deadline:?} for {} {what}\n{}", self.name, self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The time at which it logged this.
    fn logged(&self, words: &str) -> Timestamp {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in\n{log}"));
        line.split_whitespace()
            .next()
            .and_then(|time| time.parse().ok())
            .unwrap_or_else(|| panic!("no time in {line:?}"))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
