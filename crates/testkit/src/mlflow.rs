//! A real MLflow server, and what else experiment trackers need.

use super::packages::packages;
use super::room::Room;
use super::wait::until;
use super::{ask, free_port};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// The longest wait for a server. Servers written in Python start slowly on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
const PACKAGES: [&str; 4] = ["mlflow==3.17.2", "tensorboard==2.21.0", "tensorboardX==2.6.5", "wandb==0.31.0"];

/// A virtual environment with the trackers. It is made once and kept.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| packages("trackers", &PACKAGES))
}

/// A process with its children, ended with the test.
pub struct Group(pub Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id().cast_signed()).expect("a process has a PID");
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// An MLflow server on this machine, whose runs and models are in a folder of the test.
pub struct MlflowServer {
    pub port: u16,
    _process: Group,
}

impl MlflowServer {
    pub fn start(room: &Room) -> Self {
        let port = free_port();
        let log = fs::File::create(room.path("mlflow.log")).unwrap();
        let process = Command::new(python().join("bin/mlflow"))
            // Pods address it by another name than its own.
            .args(["server", "--host", "127.0.0.1", "--allowed-hosts", "*", "--workers", "1"])
            .args(["--port", &port.to_string(), "--backend-store-uri"])
            .arg(format!("sqlite:///{}", room.path("mlflow.db").display()))
            .arg("--artifacts-destination")
            .arg(room.path("artifacts"))
            .current_dir(&room.0)
            .env("HOME", &room.0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn();
        let server = Self { port, _process: Group(process.unwrap()) };
        let search = json!({ "max_results": 1 });
        until("the MLflow server", DEADLINE, || {
            http(port, "POST", "/api/2.0/mlflow/experiments/search", Some(&search))
        });
        server
    }

    pub fn uri(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn get(&self, path: &str) -> Value {
        http(self.port, "GET", path, None).expect("an answer")
    }

    pub fn post(&self, path: &str, body: &Value) -> Value {
        http(self.port, "POST", path, Some(body)).expect("an answer")
    }
}

/// Sends a request to a server of this machine. None if it does not answer with JSON.
pub fn http(port: u16, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
    let body = body.map(Value::to_string).unwrap_or_default();
    serde_json::from_str(&ask(port, method, path, &body)?).ok()
}
