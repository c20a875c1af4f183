//! All channels through which a program can report to the agent. None of them is needed to run it.

pub mod file_follower;
pub mod folder;

use crate::channels::folder::Folder;
use crate::install;
use crate::observations::Observations;
use crate::panics::catch_parser_panic;
use crate::progress::trainer_state::TrainerStates;
use crate::run::view::RunView;
use crate::variables::variable;
use protocol::progress::Source;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Interval at which the files are read.
const FILES_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the checkpoints are looked at, which may be on a file server.
const CHECKPOINTS_EVERY: Duration = Duration::from_secs(15);

/// The environment of a program.
pub type Environment = Vec<(OsString, OsString)>;

/// What all runs of the program share.
pub struct Channels {
    /// Runtime on which the files are read.
    runtime: Handle,
    /// Address to which a program can post, without the secret of its run.
    server: Option<String>,
    /// Folder in which checkpoints are looked for.
    checkpoints: Option<PathBuf>,
    /// Folder of `sitecustomize.py`.
    python: Option<PathBuf>,
}

impl Channels {
    /// Finds what this container offers. `server` is the address that accepts posts.
    pub fn new(runtime: Handle, server: Option<String>) -> Self {
        // One worker's report is enough for the folder that all workers share.
        let is_first = variable("NODE_RANK").and_then(|rank| rank.parse().ok()).unwrap_or(0) == 0;
        let checkpoints = variable("CHECKPOINT_DIR").filter(|_| is_first).map(PathBuf::from);
        Self { runtime, server, checkpoints, python: install::python() }
    }

    /// Opens the channels of one run, and reads them from now on.
    pub fn open(&self, run: &RunView) -> RunChannels {
        let folder = Folder::make(&run.secret).ok().map(Arc::new);
        let end = CancellationToken::new();
        if let Some(folder) = &folder {
            let (folder, observations) = (Arc::clone(folder), Arc::clone(&run.observations));
            self.repeat(&end, FILES_EVERY, move || folder.read(&observations));
        }
        if let Some(directory) = &self.checkpoints {
            let mut checkpoints = TrainerStates::new(directory.clone());
            let observations = Arc::clone(&run.observations);
            self.repeat(&end, CHECKPOINTS_EVERY, move || {
                if let Some(update) = checkpoints.newest() {
                    observations.progress(Source::Checkpoint, &update, None);
                }
            });
        }
        let url = self.server.as_ref().map(|server| format!("{server}/{}", run.secret));
        RunChannels { folder, url, python: self.python.clone(), _end: end.drop_guard() }
    }

    /// Repeats `work` at intervals until `end`. It may wait for a file server, and blocks nothing else.
    fn repeat(&self, end: &CancellationToken, every: Duration, mut work: impl FnMut() + Send + 'static) {
        let end = end.clone();
        self.runtime.spawn(async move {
            while !end.is_cancelled() {
                let look = move || {
                    catch_parser_panic(&mut work);
                    work
                };
                // This fails only while the process ends.
                let Ok(looked) = tokio::task::spawn_blocking(look).await else { return };
                work = looked;
                let _ = tokio::time::timeout(every, end.cancelled()).await;
            }
        });
    }
}

/// The channels of one run. Dropping this value ends them and removes their folder.
pub struct RunChannels {
    folder: Option<Arc<Folder>>,
    url: Option<String>,
    python: Option<PathBuf>,
    _end: DropGuard,
}

impl RunChannels {
    /// Adds the variables that name the channels to the program. The program's own settings stay.
    pub fn add_to(&self, env: &mut Environment) {
        if let Some(folder) = &self.folder {
            set(env, "TRAININGJOB_PROGRESS_FILE", folder.progress());
            set(env, "TRAININGJOB_EXCEPTION_FILE", folder.exceptions());
        }
        if let Some(url) = &self.url {
            set(env, "TRAININGJOB_PROGRESS_URL", url);
            // For the Kubeflow SDK and the Hugging Face Trainer. Neither reports without a token in a file.
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

    /// Reads what was written to the files so far.
    pub fn read(&self, observations: &Observations) {
        if let Some(folder) = &self.folder {
            folder.read(observations);
        }
    }

    /// Reads what was written to the files, once no process is left that could write more.
    pub fn read_to_end(&self, observations: &Observations) {
        if let Some(folder) = &self.folder {
            folder.read_to_end(observations);
        }
    }
}

impl Drop for RunChannels {
    fn drop(&mut self) {
        // A task that is reading the folder right now still holds it.
        if let Some(folder) = &self.folder {
            folder.remove();
        }
    }
}

/// Keeps clients from sending requests for this machine through a proxy. They accept the variable in either case, and
/// most look for lower case first.
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

    fn channels() -> RunChannels {
        let folder = Folder::make(&format!("{:032x}", rand::random::<u128>())).unwrap();
        RunChannels {
            folder: Some(Arc::new(folder)),
            url: Some("http://127.0.0.1:9/s".into()),
            python: Some("/a/python".into()),
            _end: CancellationToken::new().drop_guard(),
        }
    }

    #[test]
    fn channels_add_their_variables_and_clean_up_on_drop() {
        let mut env = Environment::new();
        let channels = channels();
        channels.add_to(&mut env);
        let file = |name: &str| std::fs::read_to_string(get(&env, name).unwrap());
        assert_eq!(file("TRAININGJOB_PROGRESS_FILE").unwrap(), "");
        assert_eq!(file("KUBEFLOW_TRAINER_SERVER_TOKEN").unwrap().len(), 32);
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_URL"), get(&env, "TRAININGJOB_PROGRESS_URL"));
        assert_eq!(get(&env, "PYTHONPATH").unwrap(), "/a/python");
        assert!(get(&env, "KUBEFLOW_TRAINER_SERVER_CA_CERT").is_none() && get(&env, "no_proxy").is_none());
        drop(channels);
        assert!(file("TRAININGJOB_PROGRESS_FILE").is_err(), "nothing is left behind");
    }

    #[test]
    fn program_environment_is_preserved() {
        let own = [("KUBEFLOW_TRAINER_SERVER_URL", "https://own"), ("PYTHONPATH", "/own:"), ("X", "1")];
        let mut env = environment(&own);
        channels().add_to(&mut env);
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_URL").unwrap(), "https://own");
        assert_eq!(get(&env, "KUBEFLOW_TRAINER_SERVER_TOKEN"), None);
        assert_eq!(get(&env, "PYTHONPATH").unwrap(), "/a/python:/own:");
        assert_eq!(get(&env, "X").unwrap(), "1");
    }

    #[test]
    fn loopback_bypasses_a_configured_proxy() {
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
