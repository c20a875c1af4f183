//! `exec`, `shell`, `port-forward` and `cp`: a worker by its number, with the environment of its program. kubectl does the rest.

use super::cluster::{Cluster, ClusterArgs as Where};
use super::job_reader::pods;
use super::pod_selection::roles;
use anyhow::{Context as _, bail};
use api::TrainingJob;
use kube::ResourceExt;
use plan::storage::paths;
use plan::template::TRAINING;
use protocol::code::FOLDER;
use protocol::role::{ReplicaId, RoleName};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::{Command, ExitCode};

/// Which worker is meant.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct One {
    /// Index of the worker, or with --role of the pod of that role.
    #[arg(short, long, visible_alias = "index", default_value_t = 0)]
    pub worker: u32,
    /// Role of the pod, such as ps.
    #[arg(short, long, value_parser = super::pod_selection::role_name)]
    pub role: Option<RoleName>,
}

impl One {
    fn place(&self) -> ReplicaId {
        ReplicaId { role: self.role.unwrap_or(RoleName::WORKER), index: self.worker }
    }
}

/// Finds the running pod of a place.
///
/// # Errors
/// If the job has no such worker, or it does not run.
async fn pod(cluster: &Cluster, job: &TrainingJob, place: ReplicaId) -> anyhow::Result<String> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let all = roles(job);
    let Some((_, replicas)) = all.iter().find(|(role, _)| *role == place.role) else {
        let names: Vec<String> = all.iter().map(|(role, _)| role.to_string()).collect();
        bail!("{name} has no role {}: --role takes {}", place.role, names.join(", "));
    };
    if place.index >= u32::from(*replicas) {
        bail!("{name} has no {place}: --worker takes 0 to {}", replicas.saturating_sub(1));
    }
    let pods = pods(cluster, job).await?;
    let newest =
        pods.into_iter().filter(|pod| pod.replica_id() == place && pod.runs()).max_by_key(|pod| pod.incarnation);
    match newest {
        Some(pod) => Ok(pod.name),
        None => bail!("{place} of {name} does not run now; to see why: kubectl trainingjob why {name} -n {namespace}"),
    }
}

/// Commands that a shell runs first, which set the program's variables and its working directory.
fn prelude() -> String {
    let (state, code) = (paths::STATE, format!("{}/{FOLDER}", paths::STATE));
    format!("[ ! -r {state}/env ] || . {state}/env; [ ! -d {code} ] || cd {code}; ")
}

/// What a command in a container gets as its input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Nothing,
    Stream,
    Terminal,
}

impl Input {
    fn detect() -> Self {
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            Self::Terminal
        } else if is_null() {
            Self::Nothing
        } else {
            Self::Stream
        }
    }
}

/// Whether the standard input is `/dev/null`, as in cron.
#[cfg(unix)]
fn is_null() -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path| std::fs::metadata(path).map(|file| file.rdev()).ok();
    device("/dev/stdin").is_some_and(|stdin| Some(stdin) == device("/dev/null"))
}

#[cfg(not(unix))]
fn is_null() -> bool {
    false
}

/// Arguments of kubectl that run a command in a container with the environment of its program.
///
/// An input that ends at once is not passed on. containerd may miss its end, and the command would wait forever.
fn exec_args(pod: &str, command: &[String], input: Input) -> Vec<String> {
    let mut args = vec!["exec".to_owned()];
    args.extend((input != Input::Nothing).then(|| "-i".to_owned()));
    args.extend((input == Input::Terminal).then(|| "-t".to_owned()));
    args.extend([pod, "-c", TRAINING, "--", "sh", "-c"].map(str::to_owned));
    if command.is_empty() {
        args.push(prelude() + "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi");
    } else {
        args.push(prelude() + "exec \"$@\"");
        args.push("sh".to_owned());
        args.extend(command.iter().cloned());
    }
    args
}

/// Runs a command beside the program of a worker. Without a command it runs a shell.
///
/// # Errors
/// If the worker does not run, or there is no kubectl.
pub async fn exec(cluster: &Cluster, at: &Where, job: &str, one: &One, command: &[String]) -> anyhow::Result<ExitCode> {
    let job = cluster.find(job).await?;
    let pod = pod(cluster, &job, one.place()).await?;
    kubectl(at, &job, exec_args(&pod, command, Input::detect()))
}

/// Forwards ports of this machine to a worker.
///
/// # Errors
/// If the worker does not run, or there is no kubectl.
pub async fn port_forward(
    cluster: &Cluster,
    at: &Where,
    job: &str,
    one: &One,
    ports: &[String],
) -> anyhow::Result<ExitCode> {
    let job = cluster.find(job).await?;
    let pod = pod(cluster, &job, one.place()).await?;
    let args = ["port-forward".to_owned(), format!("pod/{pod}")].into_iter().chain(ports.iter().cloned());
    kubectl(at, &job, args.collect())
}

/// Copies a file or a folder from or to a worker. The worker's side begins with a colon.
///
/// # Errors
/// If not exactly one side is the worker's, the worker does not run, or there is no kubectl.
pub async fn copy(cluster: &Cluster, at: &Where, job: &str, one: &One, sides: [&str; 2]) -> anyhow::Result<ExitCode> {
    if sides.iter().filter(|side| side.starts_with(':')).count() != 1 {
        bail!(
            "one of the two paths is the worker's, and begins with a colon: cp {job} :/out/model.pt . copies from it"
        );
    }
    let job = cluster.find(job).await?;
    let pod = pod(cluster, &job, one.place()).await?;
    let sides = sides.map(|side| if side.starts_with(':') { format!("{pod}{side}") } else { side.to_owned() });
    let args = ["cp".to_owned(), "-c".to_owned(), TRAINING.to_owned()].into_iter().chain(sides);
    kubectl(at, &job, args.collect())
}

/// Runs kubectl on the same cluster, and returns its exit code.
fn kubectl(at: &Where, job: &TrainingJob, args: Vec<String>) -> anyhow::Result<ExitCode> {
    let mut command = Command::new("kubectl");
    command.args(global(at, &job.namespace().unwrap_or_default())).args(args);
    replace(command).context("can't run kubectl, which this command needs on PATH")
}

/// Replaces this program with the command, so that a signal that ends this program leaves no process behind.
#[cfg(unix)]
fn replace(mut command: Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn replace(mut command: Command) -> io::Result<ExitCode> {
    let code = command.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn global(at: &Where, namespace: &str) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--namespace".into(), namespace.into()];
    if let Some(context) = &at.context {
        args.extend(["--context".into(), context.into()]);
    }
    if let Some(kubeconfig) = &at.kubeconfig {
        args.extend(["--kubeconfig".into(), kubeconfig.into()]);
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_command_has_environment_of_program() {
        let command = ["nvidia-smi".to_owned(), "-q d".to_owned()];
        let args = exec_args("x-training-1-abcde", &command, Input::Terminal);
        insta::assert_snapshot!(args.join(" | "), @r#"exec | -i | -t | x-training-1-abcde | -c | training | -- | sh | -c | [ ! -r /trainingjob/state/env ] || . /trainingjob/state/env; [ ! -d /trainingjob/state/code ] || cd /trainingjob/state/code; exec "$@" | sh | nvidia-smi | -q d"#);
        let shell = exec_args("p", &[], Input::Stream);
        assert_eq!(shell[1..3], ["-i", "p"]);
        let from_cron = exec_args("p", &command, Input::Nothing);
        assert_eq!(from_cron[1..3], ["p", "-c"]);
        assert!(shell.last().unwrap().ends_with("then exec bash; else exec sh; fi"));
        // The behaviour of a real shell.
        let folder = std::env::temp_dir().join(format!("enter-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("code")).unwrap();
        std::fs::write(folder.join("env"), "export RANK='1'\n").unwrap();
        let script = args[9].replace("/trainingjob/state", folder.to_str().unwrap());
        let run = Command::new("sh").args(["-c", &script, "sh", "sh", "-c", "echo $RANK $PWD"]).output().unwrap();
        let said = String::from_utf8(run.stdout).unwrap();
        assert_eq!(said.trim(), format!("1 {}", folder.join("code").display()));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn kubectl_arguments_select_same_cluster() {
        let at = Where { context: Some("c".into()), kubeconfig: Some("/k".into()), ..Where::default() };
        assert_eq!(global(&at, "team"), ["--namespace", "team", "--context", "c", "--kubeconfig", "/k"]);
    }
}
