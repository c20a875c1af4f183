//! All ways by which a program can tell the agent something. None of them is needed to run it.

pub mod file_follower;
pub mod folder;

use crate::agent::channels::folder::Folder;
use crate::agent::install;
use crate::agent::observations::Observations;
use crate::agent::output::queue::Queue;
use crate::agent::progress::trainer_state::TrainerStates;
use crate::agent::serve;
use crate::agent::serve::Door;
use crate::agent::serve::gpu::Gpus;
use crate::agent::serve::teller::Teller;
use crate::agent::serve::usage::Meter;
use crate::protocol::progress::Source;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks into the files.
const FILES_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the checkpoints, which may be on a file server.
const CHECKPOINTS_EVERY: Duration = Duration::from_secs(15);

/// A program's environment.
pub type Environment = Vec<(OsString, OsString)>;

/// What could be opened.
pub struct Channels {
    folder: Option<Arc<Folder>>,
    url: Option<String>,
    /// Where `sitecustomize.py` lies.
    python: Option<PathBuf>,
}

impl Channels {
    /// Opens them, and `metrics_port` for those who ask from outside.
    pub fn open(seen: &Arc<Observations>, queue: &Arc<Queue>, metrics_port: Option<u16>) -> Self {
        let secret = format!("{:032x}", rand::random::<u128>());
        let folder = Folder::make(&secret).ok().map(Arc::new);
        if let Some(folder) = &folder {
            let (folder, seen) = (Arc::clone(folder), Arc::clone(seen));
            repeat("files", FILES_EVERY, move || folder.read(&seen));
        }
        // One worker's word is enough for what all of them share.
        let worker: Option<u32> = variable("NODE_RANK").and_then(|rank| rank.parse().ok());
        if let Some(directory) = variable("CHECKPOINT_DIR").filter(|_| worker.unwrap_or(0) == 0) {
            let mut checkpoints = TrainerStates::new(directory.into());
            let seen = Arc::clone(seen);
            repeat("checkpoints", CHECKPOINTS_EVERY, move || {
                if let Some(update) = checkpoints.newest() {
                    seen.progress(Source::Checkpoint, &update, None);
                }
            });
        }
        let public = metrics_port.filter(|&port| port != 0).and_then(|port| match serve::listen(port) {
            Ok(listener) => {
                let teller = Teller {
                    training_job: variable("TRAINING_JOB_NAME"),
                    worker,
                    seen: Arc::clone(seen),
                    queue: Arc::clone(queue),
                    gpus: Gpus::watch(),
                    meter: Meter::default(),
                };
                Some((listener, Arc::new(teller)))
            }
            Err(error) => {
                eprintln!("agent: can't serve --metrics-port {port}: {error}; nobody will see how far the program is");
                None
            }
        });
        let door = Door::open(&secret).ok();
        let url = door.as_ref().and_then(|door| door.url().ok());
        let url = serve::start(door, public, Arc::clone(seen)).ok().and(url);
        Self { folder, url, python: install::python() }
    }

    /// Tells the program where to tell what. What it has of its own stays.
    pub fn add_to(&self, env: &mut Environment) {
        if let Some(folder) = &self.folder {
            set(env, "TRAININGJOB_PROGRESS_FILE", folder.progress());
            set(env, "TRAININGJOB_EXCEPTION_FILE", folder.exceptions());
        }
        if let Some(url) = &self.url {
            set(env, "TRAININGJOB_PROGRESS_URL", url);
            // The Kubeflow SDK's and the Hugging Face Trainer's: neither speaks without a token in a file.
            if let (Some(folder), None) = (&self.folder, get(env, "KUBEFLOW_TRAINER_SERVER_URL")) {
                set(env, "KUBEFLOW_TRAINER_SERVER_URL", url);
                set(env, "KUBEFLOW_TRAINER_SERVER_TOKEN", folder.token());
            }
            reach_directly(env);
        }
        if let (Some(python), Some(_)) = (&self.python, &self.folder) {
            prepend(env, "PYTHONPATH", python.as_os_str(), ":");
        }
    }

    /// Reads what was told by file until now.
    pub fn read(&self, seen: &Observations) {
        if let Some(folder) = &self.folder {
            folder.read(seen);
        }
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            folder.remove();
        }
    }
}

fn repeat(name: &str, every: Duration, mut work: impl FnMut() + Send + 'static) {
    let _ = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        loop {
            work();
            std::thread::sleep(every);
        }
    });
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Keeps clients from sending what is for this machine through a proxy. They take the variable in either case, most of
/// them the lower one first.
fn reach_directly(env: &mut Environment) {
    const HERE: &str = "127.0.0.1";
    let has = |env: &Environment, names: [&str; 2]| names.iter().any(|name| get(env, name).is_some());
    if !has(env, ["http_proxy", "HTTP_PROXY"]) && !has(env, ["all_proxy", "ALL_PROXY"]) {
        return;
    }
    let both = ["no_proxy", "NO_PROXY"];
    let there: Vec<&str> = both.into_iter().filter(|name| get(env, name).is_some()).collect();
    for name in if there.is_empty() { &both[..1] } else { &there[..] } {
        let is_all = get(env, name).is_some_and(|value| value == "*");
        if !is_all {
            prepend(env, name, HERE.as_ref(), ",");
        }
    }
}

fn get<'e>(env: &'e Environment, name: &str) -> Option<&'e OsStr> {
    env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
}

fn set(env: &mut Environment, name: &str, value: impl Into<OsString>) {
    env.retain(|(key, _)| key != name);
    env.push((name.into(), value.into()));
}

fn prepend(env: &mut Environment, name: &str, first: &OsStr, separator: &str) {
    let mut value = first.to_owned();
    if let Some(rest) = get(env, name).filter(|rest| !rest.is_empty()) {
        value.push(separator);
        value.push(rest);
    }
    set(env, name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        variables.iter().map(|&(name, value)| (name.into(), value.into())).collect()
    }

    fn ways() -> Channels {
        let folder = Folder::make(&format!("{:032x}", rand::random::<u128>())).unwrap();
        Channels {
            folder: Some(Arc::new(folder)),
            url: Some("http://127.0.0.1:9/s".into()),
            python: Some("/a/python".into()),
        }
    }

    #[test]
    fn what_the_program_is_told() {
        let mut env = Environment::new();
        let ways = ways();
        ways.add_to(&mut env);
        let file = |name: &str| std::fs::read_to_string(get(&env, name).unwrap());
        assert_eq!(file("TRAININGJOB_PROGRESS_FILE").unwrap(), "");
        assert_eq!(file("KUBEFLOW_TRAINER_SERVER_TOKEN").unwrap().len(), 32);
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_URL"), get(&env, "TRAININGJOB_PROGRESS_URL"));
        assert_eq!(get(&env, "PYTHONPATH").unwrap(), "/a/python");
        assert!(get(&env, "KUBEFLOW_TRAINER_SERVER_CA_CERT").is_none() && get(&env, "no_proxy").is_none());
        drop(ways);
        assert!(file("TRAININGJOB_PROGRESS_FILE").is_err(), "nothing is left behind");
    }

    #[test]
    fn what_the_program_has_stays() {
        let own = [("KUBEFLOW_TRAINER_SERVER_URL", "https://own"), ("PYTHONPATH", "/own:"), ("X", "1")];
        let mut env = environment(&own);
        ways().add_to(&mut env);
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_URL").unwrap(), "https://own");
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_TOKEN"), None);
        assert_eq!(get(&env, "PYTHONPATH").unwrap(), "/a/python:/own:");
        assert_eq!(get(&env, "X").unwrap(), "1");
    }

    #[test]
    fn a_proxy_is_gone_around() {
        for (variables, name, value) in [
            (&[("HTTP_PROXY", "p")][..], "no_proxy", "127.0.0.1"),
            (&[("http_proxy", "p"), ("NO_PROXY", "a")][..], "NO_PROXY", "127.0.0.1,a"),
            (&[("all_proxy", "p"), ("no_proxy", "*")][..], "no_proxy", "*"),
        ] {
            let mut env = environment(variables);
            reach_directly(&mut env);
            assert_eq!(get(&env, name).unwrap(), value);
            assert_eq!(env.iter().filter(|(name, _)| name.eq_ignore_ascii_case("no_proxy")).count(), 1);
        }
    }
}
