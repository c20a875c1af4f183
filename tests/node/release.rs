//! A release by Helm while jobs run. The previous version is installed, upgraded to this one, rolled back, uninstalled
//! and installed again. docs/install.md ("Helm") shows the commands. The previous version has no chart, so this
//! version's templates take its files.
//!
//! A rollback is the downgrade of docs/api.md, with the older CRDs too.

use super::training::{Target, Training};
use super::world::{World, is_built, training};
use api::State::{Completed, Running};
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testkit::process::Signal;
use testkit::{root, scratch};

const OWN: &str = "trainingjob-system";
const WORKERS: u32 = 2;

/// The cluster, helm, and the folder of the previous version.
fn world() -> Option<(&'static World, PathBuf, PathBuf)> {
    static WORLD: OnceLock<World> = OnceLock::new();
    if !is_built() {
        return None;
    }
    let given = ["TRAININGJOB_TEST_HELM", "TRAININGJOB_TEST_TAG"].map(|name| (name, std::env::var_os(name)));
    let [(_, Some(helm)), (_, Some(tag))] = given else {
        let missing = given.iter().find(|(_, value)| value.is_none()).map_or("", |(name, _)| *name);
        testkit::skipped(&format!("{missing} is not set: `tests/run --soak --only helm` makes what it names"));
        return None;
    };
    let (helm, tag) = (PathBuf::from(helm), PathBuf::from(tag));
    let image = tag.join("image.tar");
    let flags = ["--image", image.to_str().expect("a path of the cache")];
    let world = WORLD.get_or_init(|| World::without_operator("release", &flags));
    if world.cluster.name().is_none() {
        testkit::skipped("TRAININGJOB_TEST_KUBECONFIG names a cluster whose operator is not ours to replace");
        return None;
    }
    Some((world, helm, tag))
}

#[tokio::test]
#[ignore = "soak: an operator that is compiled of the tag before; proved in make test by files::chart::chart_renders_the_same_objects_as_kustomize"]
async fn helm_release_is_upgraded_rolled_back_and_uninstalled_live() {
    let Some((world, program, tag)) = world() else { return };
    let helm = Helm { world, program };
    let (before, now) = (chart_of(&tag), root("charts/trainingjob-operator"));
    helm.runs(&["install", "tj", &before, "--create-namespace", "--set", "image.tag=older"]);
    let older_crd = helm.crd();

    let space = world.space("release", json!({})).await;
    let finished = space.submit("finished", json!({ "command": ["true"], "numWorkers": 1 })).await;
    let running = Training::submit(&space, "running", WORKERS, json!({}), json!({})).await;
    let struck = Training::submit(&space, "struck", WORKERS, json!({}), json!({})).await;
    finished.state(Completed).await;
    for gang in [&running, &struck] {
        gang.meets(1).await;
    }
    let (pods, programs) = (containers(&running), running.members());
    let mut saved = running.saves(5).await;

    helm.runs(&["upgrade", "tj", &now, "--set", "image.tag=dev"]);
    assert_ne!(helm.crd(), older_crd, "an upgrade brings the new CRDs");
    saved = running.saves(saved + 5).await;
    struck.strike(Target::Rank(1), Signal::KILL);
    struck.meets(2).await;
    struck.until("the restart", |status| status.restart_count == Some(1)).await;
    let new = Training::submit(&space, "new", WORKERS, json!({}), json!({})).await;
    new.meets(1).await;

    // The older operator continues jobs of its own and of the newer one.
    helm.runs(&["rollback", "tj", "1"]);
    assert_eq!(helm.crd(), older_crd, "a rollback brings back the CRDs of that revision");
    saved = running.saves(saved + 5).await;
    let progress = new.saves(5).await;
    let is_later = |step: Option<i64>| step.is_some_and(|step| step >= i64::from(progress + 5));
    let status = new.until("its progress", |status| is_later(status.current_step)).await;
    assert_eq!((status.state, status.attempt), (Some(Running), Some(1)));
    struck.strike(Target::Rank(0), Signal::KILL);
    struck.meets(3).await;
    struck.until("the second restart", |status| status.restart_count == Some(2)).await;
    let downgraded = space.submit("downgraded", json!({ "command": ["true"], "numWorkers": 1 })).await;
    downgraded.state(Completed).await;

    let jobs = helm.jobs(&space.name);
    helm.runs(&["uninstall", "tj"]);
    let left = ["get", "deployments,services,serviceaccounts", "-n", OWN, "-o", "name", "-l"];
    let left = world.cluster.kubectl(&[&left[..], &["app.kubernetes.io/name=trainingjob-operator"]].concat());
    assert_eq!(left, "", "the operator is gone");
    assert_eq!(helm.jobs(&space.name), jobs, "an uninstall keeps the CRDs and all jobs");
    saved = running.saves(saved + 5).await;

    // Under the same name and namespace, because the CRDs that were kept belong to that release.
    helm.runs(&["install", "tj", &now, "--set", "image.tag=dev"]);
    assert_ne!(helm.crd(), older_crd);
    running.saves(saved + 5).await;
    for gang in [&struck, &new] {
        gang.completes(WORKERS).await;
    }
    let gone: Vec<_> = programs.iter().filter(|member| !member.process.is_alive()).collect();
    assert!(gone.is_empty(), "no process of a running job has ended: {gone:?}");
    let status = running.completes(WORKERS).await;
    assert_eq!(containers(&running), pods, "no pod is made again, and no container started again");
    assert_eq!((status.attempt, status.restart_count), (Some(1), Some(0)));
    assert_eq!(running.folder().await.history(), [(1, 0)]);
    assert_eq!(finished.status().state, Some(Completed));
    space.end().await;
}

/// Its pods, and how often the container of each was restarted.
fn containers(gang: &Training) -> BTreeMap<String, i32> {
    let restarts = |pod| training(pod).map_or(-1, |container| container.restart_count);
    gang.pods().iter().map(|pod| (pod.uid().unwrap(), restarts(pod))).collect()
}

/// The chart's templates with the files of another version. A template whose files that version lacks renders nothing.
fn chart_of(version: &Path) -> String {
    let folder = scratch().join("chart-before");
    let files = folder.join("files");
    fs::create_dir_all(&files).unwrap();
    let chart = PathBuf::from(root("charts/trainingjob-operator"));
    for name in ["Chart.yaml", "values.yaml", "values.schema.json", "templates"] {
        symlink(chart.join(name), folder.join(name)).unwrap();
    }
    for link in fs::read_dir(chart.join("files")).unwrap().map(Result::unwrap) {
        // ../../../deploy/admin, say
        let to = fs::read_link(link.path()).unwrap();
        let to = version.join(to.strip_prefix("../../..").unwrap());
        if to.exists() {
            symlink(to, files.join(link.file_name())).unwrap();
        }
    }
    folder.to_str().unwrap().to_owned()
}

struct Helm {
    world: &'static World,
    program: PathBuf,
}

impl Helm {
    /// Runs a command on the release, with the images that the nodes have. Waits until the operator is Ready.
    fn runs(&self, args: &[&str]) {
        let mut helm = Command::new(&self.program);
        helm.args(args).args(["--namespace", OWN, "--kubeconfig"]).arg(self.world.cluster.kubeconfig());
        helm.args(["--wait", "--timeout", "300s"]);
        if matches!(args[0], "install" | "upgrade") {
            helm.args(["--set", "image.repository=localhost/trainingjob-operator,image.pullPolicy=Never"]);
        }
        let done = helm.output().unwrap();
        assert!(done.status.success(), "helm {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// The CRD of TrainingJobs in the API server.
    fn crd(&self) -> Value {
        let found = ["get", "crd", "trainingjobs.ml.example.com", "-o", "json"];
        let mut found: Value = serde_json::from_str(&self.world.cluster.kubectl(&found)).unwrap();
        found["spec"].take()
    }

    /// The UID of each TrainingJob of a namespace.
    fn jobs(&self, namespace: &str) -> BTreeMap<String, String> {
        let found = ["get", "trainingjobs", "-n", namespace, "-o", "json"];
        let found: Value = serde_json::from_str(&self.world.cluster.kubectl(&found)).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let uid = |job: &Value| (text(&job["metadata"]["name"]), text(&job["metadata"]["uid"]));
        found["items"].as_array().unwrap().iter().map(uid).collect()
    }
}
