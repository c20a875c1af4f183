//! Prometheus, as Debian has it: unpacked into the cache and never installed.

use crate::{ask, cache, free_port};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The folder of `prometheus` and `promtool`.
pub fn folder() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        if let Some(folder) = std::env::var_os("TRAININGJOB_TEST_PROMETHEUS") {
            return folder.into();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_both = |folder: &PathBuf| folder.join("prometheus").exists() && folder.join("promtool").exists();
        if let Some(folder) = std::env::split_paths(&path).find(has_both) {
            return folder;
        }
        let folder = cache().join("prometheus");
        if !has_both(&folder) {
            unpack(&cache(), &folder);
        }
        folder
    })
}

/// Unpacks Debian's package, without installing it: that would start a service.
fn unpack(cache: &Path, folder: &Path) {
    let new = cache.join(format!("prometheus.{}", std::process::id()));
    fs::create_dir_all(&new).unwrap();
    let script = "apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; } &&
        dpkg -x prometheus_*.deb all && mv all/usr/bin/prometheus all/usr/bin/promtool . && rm -r all *.deb";
    let done = Command::new("sh").args(["-c", script]).current_dir(&new).output().unwrap();
    if !done.status.success() {
        let _ = fs::remove_dir_all(&new);
        panic!(
            "no Prometheus: put prometheus and promtool on PATH, or name their folder in TRAININGJOB_TEST_PROMETHEUS. \
             Debian's could not be had: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    // Another test program may have been quicker.
    if fs::rename(&new, folder).is_err() {
        fs::remove_dir_all(&new).unwrap();
    }
}

/// A Prometheus that runs, and ends with this value.
pub struct Prometheus {
    pub port: u16,
    process: Child,
}

impl Prometheus {
    /// Starts it with this configuration. Its data and its log are in the folder.
    pub fn start(config: &Value, folder: &Path) -> Self {
        let (path, port) = (folder.join("prometheus.yaml"), free_port());
        fs::write(&path, config.to_string()).unwrap();
        let log = fs::File::create(folder.join("prometheus.log")).unwrap();
        let mut command = Command::new(self::folder().join("prometheus"));
        command.arg(format!("--config.file={}", path.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { port, process }
    }

    /// All alerts that are pending or fire. None while it does not answer.
    pub fn alerts(&self) -> Option<Vec<Value>> {
        let answer: Value = serde_json::from_str(&ask(self.port, "GET", "/api/v1/alerts", "")?).ok()?;
        answer["data"]["alerts"].as_array().cloned()
    }

    /// The result of this query. None while it gives nothing.
    pub fn query(&self, query: &str) -> Option<Vec<Value>> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = ask(self.port, "GET", &format!("/api/v1/query?query={query}"), "")?;
        let answer: Value = serde_json::from_str(&answer).ok()?;
        answer["data"]["result"].as_array().filter(|found| !found.is_empty()).cloned()
    }

    /// Whether this alert fires, for a job if one is named.
    pub fn fires(&self, alert: &str, job: Option<&str>) -> Option<bool> {
        let is_it = |found: &Value| {
            let labels = &found["labels"];
            let is_of_job = job.is_none_or(|job| labels["training_job"] == job);
            labels["alertname"] == alert && is_of_job && found["state"] == "firing"
        };
        Some(self.alerts()?.iter().any(is_it))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
