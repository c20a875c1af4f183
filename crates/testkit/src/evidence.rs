//! The evidence that is written about a failed test before its namespace is deleted.
//!
//! It lies below the folder that `TRAININGJOB_EVIDENCE` names, or target/evidence, in PROGRAM/TEST/NAMESPACE. It
//! consists of the history of each job's status, all objects, events, the logs of all pods and of the operator, and the
//! load of the machine.

use crate::cluster::Cluster;
use crate::job::{Job, Seen};
use crate::root;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// The folder of the test that runs on this thread.
pub fn folder(namespace: &str) -> PathBuf {
    let all = std::env::var_os("TRAININGJOB_EVIDENCE").map_or_else(|| root("target/evidence").into(), PathBuf::from);
    let program = std::env::current_exe().ok().and_then(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let program = program.unwrap_or_else(|| "tests".into());
    // Cargo ends the name of a test program with a hash.
    let program = program.rsplit_once('-').map_or(program.as_str(), |(name, _)| name);
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or("test").replace("::", ".");
    all.join(program).join(test).join(namespace)
}

/// A namespace of a test. If the test fails, the content of the namespace is written to files. The namespace is then
/// deleted without waiting, so that its jobs do not take the machine from later tests.
pub struct Guard {
    cluster: &'static Cluster,
    namespace: String,
    jobs: Mutex<Vec<(String, watch::Receiver<Seen>)>>,
    /// The operator's log.
    operator: Box<dyn Fn() -> String + Send + Sync>,
}

impl Guard {
    pub fn new(
        cluster: &'static Cluster,
        namespace: &str,
        operator: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self { cluster, namespace: namespace.to_owned(), jobs: Mutex::default(), operator: Box::new(operator) }
    }

    /// Adds a job whose history is to be written.
    pub fn add(&self, job: &Job) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push((job.name.clone(), job.seen()));
    }

    // Nothing here may panic: it runs while a panic unwinds.
    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("machine.txt"), machine())?;
        for (name, seen) in &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            let seen = seen.borrow();
            fs::write(folder.join(format!("{name}.history.tsv")), seen.history())?;
            let pods: Vec<_> = seen.pods.values().collect();
            fs::write(folder.join(format!("{name}.pods.json")), serde_json::to_string_pretty(&pods)?)?;
        }
        fs::write(folder.join("operator.log"), (self.operator)())?;
        let kinds = "trainingjobs,jobs,pods,services,configmaps,persistentvolumeclaims,networkpolicies";
        let logs = ["logs", "-l", "!none", "--all-containers", "--prefix", "--timestamps", "--tail=-1"];
        let logs = [&logs[..], &["--ignore-errors", "--max-log-requests=1000"]].concat();
        for (file, args) in [
            ("objects.yaml", &["get", kinds, "-o", "yaml"][..]),
            ("pods.txt", &["get", "pods", "-o", "wide"][..]),
            ("nodes.txt", &["describe", "nodes"][..]),
            ("events.txt", &["get", "events", "--sort-by=.metadata.creationTimestamp", "-o", "wide"][..]),
            ("logs.txt", &logs[..]),
            ("logs-previous.txt", &[&logs[..], &["--previous"]].concat()[..]),
        ] {
            fs::write(folder.join(file), self.kubectl(args))?;
        }
        Ok(())
    }

    fn kubectl(&self, args: &[&str]) -> Vec<u8> {
        // An API server that does not answer is one of the ways to fail.
        let args = [args, &["-n", &self.namespace, "--request-timeout=10s"]].concat();
        self.cluster.try_kubectl(&args, "").unwrap_or_else(String::into_bytes)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let folder = folder(&self.namespace);
        let mut errors = io::stderr();
        match self.write(&folder) {
            Ok(()) => drop(writeln!(errors, "evidence: {}", folder.display())),
            Err(error) => drop(writeln!(errors, "no evidence in {}: {error}", folder.display())),
        }
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
    }
}

/// The load of this machine.
fn machine() -> String {
    let mut text = String::new();
    for file in ["/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/meminfo"] {
        let _ = writeln!(text, "---- {file}\n{}", fs::read_to_string(file).unwrap_or_else(|error| error.to_string()));
    }
    text
}
