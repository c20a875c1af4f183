//! Runs a worker's program as PID 1 of its container; see [`agent`].

use agent::attempt::Attempt;
use agent::checkpoints::{commands, read_policy};
use agent::container::Container;
use agent::context::{Leftovers, Options};
use agent::fetch::FetchArgs;
use agent::gang;
use agent::hang;
use agent::inputs::InputsArgs;
use agent::install;
use agent::outputs::OutputsArgs;
use agent::ports;
use agent::publish::PublishArgs;
use agent::remote::{call::call, serve::serve};
use agent::serve::local::ask;
use agent::variables;
use clap::{Args, Parser, Subcommand, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{SFlag, fstat};
use protocol::gang::{GangPast, RSH};
use protocol::objective::{ObjectiveRule, RungSteps};
use protocol::role::RoleName;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the program of one worker of a TrainingJob and leaves no process behind.
#[derive(Parser)]
#[command(name = "agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
enum Command {
    /// Copy this executable to a volume that the training container mounts
    ///
    /// Writes to the directory of PATH alone (temporary files, then renames), so the root file system may be read-only.
    /// The directory python beside it goes first on the command's PYTHONPATH: it has a sitecustomize.py that tells the
    /// agent of exceptions. Doing it again replaces both.
    Install {
        /// The file to write, mode 0755; its directory must exist
        #[arg(long, value_name = "PATH")]
        to: PathBuf,
    },
    /// Listen on ports for a while, or connect to those of a host; exits 1 if one can't be reached
    Ports {
        /// Listen on these
        #[arg(long, value_name = "PORTS", value_delimiter = ',', required_unless_present = "connect")]
        listen: Vec<u16>,
        /// Connect to these of the host
        #[arg(long, value_name = "PORTS", value_delimiter = ',', conflicts_with = "listen", requires = "host")]
        connect: Vec<u16>,
        /// The host to connect to
        #[arg(long)]
        host: Option<String>,
        /// How long to listen, or to try each port
        #[arg(long, default_value_t = 15)]
        seconds: u64,
    },
    /// Print what the processes of this container's command are doing, as JSON: their call stacks, read by its agent
    ///
    /// Only the user that the agent runs as can ask, from within its pod.
    Stacks {
        /// What the agent was given as --gang-state
        #[arg(long, value_name = "DIR")]
        state: PathBuf,
    },
    /// Run a command, forward signals to it, and end every process that it leaves behind
    ///
    /// Works as PID 1 of the container, or as child subreaper where the pod shares its process namespace.
    ///
    /// stdout and stderr are passed through byte for byte. HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CONT, WINCH and the
    /// real-time signals are forwarded to the command. TERM and INT also start the grace period. At its end every process
    /// that descends from the command is killed, in whatever session or process group it is. Any other signal except CONT
    /// does the same if it comes from outside the container's PID namespace: an image may name another stop signal.
    ///
    /// The agent reads the progress and the metrics of the command from four sources. For each value the first source that
    /// has it wins. The first is a POST to the address in TRAININGJOB_PROGRESS_URL. KUBEFLOW_TRAINER_SERVER_URL has the same
    /// address, and the Hugging Face Trainer posts to it by itself. The second is lines in the file
    /// TRAININGJOB_PROGRESS_FILE. Both are JSON, such as {"step": 10, "total_steps": 100, "loss": 0.5}. The third is the
    /// output, of which many forms are known. The fourth is trainer_state.json in CHECKPOINT_DIR.
    ///
    /// $(NAME) is expanded for the variables that the options below set, --env among them. It is expanded in COMMAND, in its
    /// arguments and in the values of all inherited environment variables. $$(NAME) stands for the literal $(NAME).
    #[command(after_help = "\
Exit code:
  the command's own, or 128+n if signal n ended it
  128+n (143 for TERM) if signal n asked the agent to stop, and the command then exited 0 or was not started
  1    with --gang, if the gang has failed and the command has not, or was ended by KILL (137 means that the agent itself was killed)
  1    if --nan-policy is fail, the loss was NaN or infinite and the command exited 0
  126  COMMAND can't be executed, or an option is wrong
  127  COMMAND, or the interpreter it needs, was not found")]
    Run(RunArgs),
    /// Run what others of the gang want: `run --gang` starts it where mpirun on another member starts the programs
    #[command(hide = true)]
    Serve {
        /// The folder with what it has to know
        folder: PathBuf,
    },
    /// Fetch models and data sets by URI into a cache that many jobs share
    ///
    /// URI is hf://[datasets/]NAMESPACE/NAME[@REVISION][/PATH], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX,
    /// oci://n/NAMESPACE/b/BUCKET/o/PREFIX (Oracle Object Storage) or https://HOST/PATH#sha256=HASH.
    ///
    /// A revision is resolved once. Content that is in the cache is not fetched again. Of several fetchers of the same
    /// content one fetches, and another one takes over if it dies. Interrupted fetches are resumed. Every file is verified.
    ///
    /// Progress is printed to stderr. For each URI one line of JSON is printed to stdout. It has uri, key, revision, path,
    /// bytes, files, and fromNetwork: the bytes that this fetch got over the network.
    #[command(after_help = "\
Exit code:
  1    the fetch failed, and another try may succeed: the network, a full disk, content that changed
  2    another try fails in the same way: 401, 403, 404, a refused URI or content, a wrong hash
  128+n (143 for TERM) if signal n stopped the fetch; what was fetched stays, and another fetch resumes at once")]
    Fetch(FetchArgs),
    /// Fetch what the workers of a job read, before they start; leaves the result as last words
    #[command(hide = true)]
    Inputs(InputsArgs),
    /// Publish the result of a job after its programs have ended; leaves the record as last words
    #[command(hide = true)]
    Outputs(OutputsArgs),
    /// Publish the result of a job under a URI, with its record
    ///
    /// URI is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, oci://n/NAMESPACE/b/BUCKET/o/PREFIX (Oracle
    /// Object Storage) or hf://NAMESPACE/NAME[@BRANCH].
    ///
    /// In an object store the files go to URI/NAME/. The record trainingjob-result.json is written there last, and only if
    /// there is none. In the hub one commit has the files and the record. The repository is made private if it is missing,
    /// and so is the branch.
    ///
    /// An interrupted publication is resumed. If the result is published already, it is compared with the folder. Links
    /// within the folder are followed. .trainingjob and lost+found are left out.
    ///
    /// Progress is printed to stderr. One line of JSON is printed to stdout. It has record (without its files), sent (bytes
    /// that this publication sent) and wasPublished. With --mlflow a second line has registered: model, version and
    /// wasRegistered.
    #[command(after_help = "\
Exit code:
  1    the publication failed, and another try may succeed: the network, files that changed
  2    another try fails in the same way: 401, 403, 404, a refused URI or file name, an empty folder, another result")]
    Publish(PublishArgs),
    /// Look after the checkpoints of a job while no worker runs, or for a person
    Checkpoints {
        #[command(subcommand)]
        verb: Verb,
    },
}

#[derive(Args)]
struct RunArgs {
    /// The gang's attempt, from 1: sets ATTEMPT
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// The rendezvous port of this attempt: sets MASTER_PORT and PET_MASTER_PORT
    #[arg(long, value_name = "PORT")]
    master_port: Option<u16>,
    /// Set a variable for COMMAND and for the agent, over what the environment has; may be repeated
    ///
    /// In VALUE only those of the other options are expanded. With --gang-state all that COMMAND is given so is left in
    /// the file env there, for a shell to read.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    env: Vec<(String, String)>,
    /// Keep variables from COMMAND that the other options set; $(NAME) still stands for their values
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    withhold: Vec<String>,
    /// The checkpoint to resume from: sets RESUME_FROM_CHECKPOINT, which is empty without this
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    resume_from: String,
    /// Manage the job's checkpoints as this JSON file says, and choose the one to resume from. The file is read again before
    /// each look at CHECKPOINT_DIR. The first worker's agent chooses for its gang, and tells the others at MASTER_ADDR what
    /// is put into a store.
    #[arg(long, value_name = "FILE")]
    checkpoints: Option<PathBuf>,
    /// Run COMMAND as often as the gang wants it: JSON that names the gang's members, port and policy. The agent of
    /// the first worker leads; --attempt is the first one of these pods, and --master-port is ignored
    #[arg(long, value_name = "FILE")]
    gang: Option<PathBuf>,
    /// The role of this member of the gang
    #[arg(long, value_name = "NAME", requires = "gang", default_value = "worker", value_parser = role)]
    role: RoleName,
    /// The key by which the gang's agents know each other; needed for more than one worker
    #[arg(long, value_name = "FILE", requires = "gang")]
    gang_key: Option<PathBuf>,
    /// The key by which it proves its answers to the operator; without it /status has no proof
    #[arg(long, value_name = "FILE")]
    answer_key: Option<PathBuf>,
    /// Where an agent that is killed leaves what it knows to the next one of its pod, and where `agent stacks` reaches it
    #[arg(long, value_name = "DIR")]
    gang_state: Option<PathBuf>,
    /// Run COMMAND in the code that the gang names: unpack its archive, which comes in parts to this folder
    #[arg(long, value_name = "DIR", requires = "gang_state")]
    code: Option<PathBuf>,
    /// What was before these pods: JSON
    #[arg(long, value_name = "JSON", requires = "gang", value_parser = past)]
    gang_past: Option<GangPast>,
    /// Add this to COMMAND if there is a checkpoint to resume from; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    resume_arg: Vec<OsString>,
    /// Seconds between a stop and SIGKILL; should be less than the pod's terminationGracePeriodSeconds
    #[arg(long, value_name = "SECONDS", default_value_t = 45)]
    grace_seconds: u32,
    /// Before each run remove what this user has in /dev/shm, which must be this container's alone
    #[arg(long)]
    clear_shm: bool,
    /// Before each run remove the lock files of PyTorch's extensions that lie on the container's own file system
    #[arg(long)]
    clear_locks: bool,
    /// How long processes may outlive SIGKILL until this agent leaves its gang, so that another pod takes its place
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    unkillable_after: u32,
    /// The file kept up to date with what is known of the command: JSON, at most 4096 bytes
    #[arg(long, value_name = "PATH", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    /// Serve /status, /metrics and /healthz on this port, at the address in TRAININGJOB_LISTEN_ADDRESS or at all; 0 is none
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Read progress off lines that match, instead of the forms known by themselves; may be repeated
    ///
    /// Named groups say what is what: epoch, epochs, step, steps, loss, accuracy, lr, throughput; any other name is a
    /// metric of its own. Example: 'it (?P<step>\d+)/(?P<steps>\d+) l=(?P<loss>\S+)'
    #[arg(long, value_name = "REGEX")]
    progress_pattern: Vec<String>,
    /// What a loss that is NaN or infinite means: it is only reported, or ends the command as a failure
    ///
    /// fail: the command gets TERM and the grace, then what is left is killed. A command that exits 0 after such a loss
    /// has failed too.
    #[arg(long, value_name = "POLICY", value_enum, default_value = "report")]
    nan_policy: NanPolicy,
    /// Watch for a hang: the command may hang if it has reported a step and reports no other for this long
    ///
    /// A second sign must agree: no output for as long, no computing process, constant GPU readings, or a process stopped by
    /// a signal. Files that are written in CHECKPOINT_DIR are a sign of life.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    hang_timeout: Option<u32>,
    /// A command that reports no steps, or none any more, may hang if it shows no sign of life for this long
    ///
    /// Signs of life are output, CPU time, data read or written, a GPU in use, and a file written in CHECKPOINT_DIR. In a
    /// gang no member may show any.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    hang_idle_timeout: u32,
    /// What a command that hangs means: it is only reported, or it is ended as a failure
    ///
    /// The stacks of all its processes are printed in either case. fail: then it gets TERM and the grace, and what is
    /// left is killed.
    #[arg(long, value_name = "POLICY", value_enum, default_value = "report", requires = "hang_timeout")]
    hang_policy: HangPolicy,
    /// Keep every reading of this metric for /status, the last 100 of them; may be repeated
    #[arg(long, value_name = "NAME")]
    watch_metric: Vec<String>,
    /// Record the readings of this metric, the job's objective, for /status and the termination message
    #[arg(long, value_name = "NAME")]
    objective: Option<String>,
    /// Whether lower or higher values of the objective are better
    #[arg(long, value_name = "MODE", value_enum, default_value = "min", requires = "objective")]
    objective_mode: ObjectiveMode,
    /// Record the first reading of the objective at each step MIN, MIN * FACTOR, MIN * FACTOR * FACTOR and so on, or later
    #[arg(long, value_name = "MIN:FACTOR", requires = "objective", value_parser = rung_steps)]
    objective_rungs: Option<RungSteps>,
    /// The command, looked up in PATH, and its arguments
    #[arg(last = true, required = true, value_names = ["COMMAND", "ARG"])]
    command: Vec<OsString>,
}

impl RunArgs {
    /// The options that the container is opened with, and its attempt.
    fn split(self) -> (Options, Attempt) {
        let options = Options {
            argv: self.command,
            withheld: self.withhold,
            grace: Duration::from_secs(self.grace_seconds.into()),
            leftovers: Leftovers { shm: self.clear_shm, locks: self.clear_locks },
            unkillable_after: Duration::from_secs(self.unkillable_after.into()),
            termination_log: self.termination_log,
            metrics_port: self.metrics_port,
            answer_key: self.answer_key,
            progress_patterns: self.progress_pattern,
            checkpoints: self.checkpoints,
            resume_args: self.resume_arg,
            fail_on_nan: self.nan_policy == NanPolicy::Fail,
            state: self.gang_state.clone(),
            hang: self.hang_timeout.map(|seconds| hang::Policy {
                timeout: Duration::from_secs(seconds.into()),
                idle_timeout: Duration::from_secs(self.hang_idle_timeout.into()),
                ends: self.hang_policy == HangPolicy::Fail,
            }),
            code: self.code,
            watch_metrics: self.watch_metric,
            objective: self.objective.map(|metric| ObjectiveRule {
                metric,
                max: self.objective_mode == ObjectiveMode::Max,
                rungs: self.objective_rungs,
            }),
            gang: self.gang.map(|setup| gang::Options {
                setup,
                role: self.role,
                key: self.gang_key,
                state: self.gang_state,
                past: self.gang_past.unwrap_or_default(),
                first: self.attempt.unwrap_or(1),
            }),
        };
        let (number, master_port, resume_from) = (self.attempt, self.master_port, self.resume_from);
        (options, Attempt { number, master_port, resume_from, ..Attempt::default() })
    }
}

/// What holds for all that is done about checkpoints.
#[derive(Args)]
struct OfCheckpoints {
    /// What the job asks for: the file that `run --checkpoints` has
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Where its checkpoints are
    #[arg(long, value_name = "DIR", default_value = "/checkpoints")]
    root: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// What there is, on the volume and in the stores
    List(OfCheckpoints),
    /// Read every byte of those on the volume; exits 1 if one is corrupted
    Verify(OfCheckpoints),
    /// Which one an attempt would resume from, and why not a newer one
    Why(OfCheckpoints),
    /// Delete what the job's rules don't keep
    Prune {
        #[command(flatten)]
        of: OfCheckpoints,
        /// Only say what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
    /// Copy the newest good one to the job's store and backup now
    Backup {
        #[command(flatten)]
        of: OfCheckpoints,
        /// What the job's own agent was given as --gang-state, if it runs: it makes the copy then
        #[arg(long, value_name = "DIR")]
        state: Option<PathBuf>,
    },
    /// Fetch a checkpoint from the job's store or backup
    Restore {
        #[command(flatten)]
        of: OfCheckpoints,
        /// A new folder for it, below DIR unless it is absolute
        #[arg(long, value_name = "PATH")]
        to: PathBuf,
        /// Which one, as list prints it; the newest without it
        checkpoint: Option<String>,
    },
    /// What the operator has done while no worker runs; leaves its result as last words
    Upkeep {
        #[command(flatten)]
        of: OfCheckpoints,
        /// The volume is not there
        #[arg(long)]
        without_volume: bool,
        #[arg(value_enum)]
        task: Task,
    },
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Task {
    /// Whether an attempt can resume from resumeFrom
    Check,
    /// Copy what is not copied yet
    Copy,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ObjectiveMode {
    Min,
    Max,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum NanPolicy {
    Report,
    Fail,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum HangPolicy {
    Report,
    Fail,
}

fn rung_steps(text: &str) -> Result<RungSteps, String> {
    let steps = text.split_once(':').and_then(|(min_step, factor)| {
        Some(RungSteps { min_step: min_step.parse().ok()?, factor: factor.parse().ok()? })
    });
    steps
        .filter(|steps| steps.min_step >= 1 && steps.factor >= 2)
        .ok_or_else(|| "write MIN:FACTOR, as in 100:3".to_owned())
}

fn role(name: &str) -> Result<RoleName, String> {
    RoleName::parse(name)
        .ok_or_else(|| "write a lower-case letter, then such letters and digits, 15 at most".to_owned())
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn past(json: &str) -> Result<GangPast, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// Leaves an init container's last words where its node looks for them, if this is a container.
fn leave(words: &str) {
    if let Ok(mut message) = OpenOptions::new().write(true).open("/dev/termination-log") {
        let _ = message.write_all(words.as_bytes());
    }
}

/// Runs a command on checkpoints, and prints what went wrong.
fn checkpoints(verb: Verb) -> ExitCode {
    end_at_request();
    let is_upkeep = matches!(verb, Verb::Upkeep { .. });
    let (of, command) = match verb {
        Verb::List(of) => (of, commands::Command::List),
        Verb::Verify(of) => (of, commands::Command::Verify),
        Verb::Why(of) => (of, commands::Command::Why),
        Verb::Prune { of, dry_run } => (of, commands::Command::Prune { dry_run }),
        Verb::Backup { of, state } => (of, commands::Command::Backup { state }),
        Verb::Restore { of, to, checkpoint } => (of, commands::Command::Restore { checkpoint, to }),
        Verb::Upkeep { of, task: Task::Copy, .. } => (of, commands::Command::Copy),
        Verb::Upkeep { of, without_volume, task: Task::Check } => {
            (of, commands::Command::Check { has_volume: !without_volume })
        }
    };
    let policy = match read_policy(&of.policy) {
        Ok(policy) => policy,
        Err(error) => {
            eprintln!("agent: {}: {error}", of.policy.display());
            return ExitCode::FAILURE;
        }
    };
    let commands = commands::Commands { policy, root: of.root, json: of.json };
    let failed = if is_upkeep {
        let report = commands.report(&command);
        leave(&report.to_message());
        report.error
    } else {
        commands.run(&command).err()
    };
    match failed {
        None => ExitCode::SUCCESS,
        Some(error) => {
            // A pod's log has both streams. The plugin recognises these lines by their prefix.
            error.message.lines().for_each(|line| eprintln!("agent: {line}"));
            ExitCode::FAILURE
        }
    }
}

/// Exits on TERM, INT and HUP, which do not end the first process of a container by default. It also exits when a pipe
/// on stdin is closed, because a process that is executed in a container outlives its caller.
fn end_at_request() {
    let mut signals = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
    if signals.thread_block().is_ok() {
        std::thread::spawn(move || {
            let signal = signals.wait().unwrap_or(Signal::SIGTERM);
            std::process::exit(128 + signal as i32);
        });
    }
    when_stdin_ends(|| std::process::exit(1));
}

/// Calls `act` at the end of a pipe that another program holds open as stdin.
fn when_stdin_ends(act: impl FnOnce() + Send + 'static) {
    let kind = fstat(std::io::stdin()).map(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT);
    if kind.is_ok_and(|kind| kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK) {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            act();
        });
    }
}

fn main() -> ExitCode {
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("agent: {error}");
        ExitCode::FAILURE
    };
    // mpirun calls the agent instead of rsh. The folder of that name has what the agent has to know.
    let mut args = std::env::args_os();
    let name = PathBuf::from(args.next().unwrap_or_default());
    if name.file_name().is_some_and(|name| name == RSH) {
        return ExitCode::from(call(name.parent().unwrap_or(Path::new(".")), args));
    }
    match Cli::parse().command {
        Command::Checkpoints { verb } => checkpoints(verb),
        Command::Fetch(args) => {
            let (ended, stdin_ended) = tokio::sync::oneshot::channel();
            when_stdin_ends(move || _ = ended.send(()));
            ExitCode::from(agent::fetch::run(&args, stdin_ended))
        }
        Command::Inputs(args) => ExitCode::from(agent::inputs::run(&args)),
        Command::Outputs(args) => {
            end_at_request();
            ExitCode::from(agent::outputs::run(&args))
        }
        Command::Publish(args) => {
            end_at_request();
            ExitCode::from(agent::publish::run(&args))
        }
        Command::Serve { folder } => match serve(&folder) {
            Ok(code) => ExitCode::from(code),
            Err(error) => failed(&error),
        },
        Command::Ports { listen, connect, host, seconds } => {
            let time = Duration::from_secs(seconds);
            if !listen.is_empty() {
                return ports::listen(&listen, time).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
            }
            let tried = ports::connect(&host.unwrap_or_default(), &connect, time);
            for (port, answer) in &tried {
                println!("port {port}: {}", answer.as_ref().err().map_or("ok", String::as_str));
            }
            if tried.iter().all(|(_, answer)| answer.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Command::Stacks { state } => match ask(&state) {
            Ok(stacks) => {
                println!("{stacks}");
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error),
        },
        Command::Install { to } => match install::install(&to) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                leave(&error.to_string());
                failed(&error)
            }
        },
        Command::Run(mut run) => {
            variables::give(std::mem::take(&mut run.env));
            let (options, attempt) = run.split();
            match Container::open(options).and_then(|mut container| container.run(&attempt)) {
                // An exit code of a process is a byte, and 128 + the highest signal is 192.
                Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
                Err(error) => failed(&error),
            }
        }
    }
}
