//! `kubectl trainingjob`: what a job does, and why it does not.
//!
//! [`facts`] has what is known, [`job_reader`] and [`logs`] read it from the cluster; the rest is functions from facts to text.
//! [`convert`] and [`plan`] are functions of what stands in a file.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

pub mod advice;
pub mod backup;
pub mod blame;
pub mod bundle;
pub mod check;
pub mod checkpoints;
pub mod cluster;
pub mod code;
mod complete;
pub mod control;
pub mod convert;
pub mod enter;
pub mod facts;
pub mod follow;
pub mod gpus;
pub mod job_reader;
pub mod logs;
pub mod plan;
pub mod pod_selection;
pub mod resubmit;
pub mod run;
pub mod runbook;
pub mod screen;
pub mod set;
pub mod stacks;
pub mod status;
mod terminal;
pub mod top;
pub mod tune;
pub mod why;

use clap::{Parser, Subcommand, ValueEnum};
use cluster::{Cluster, ClusterArgs, NamedObject};
use facts::Facts;
use futures::future::LocalBoxFuture;
use jiff::SignedDuration;
use job_reader::JobReader;
use kube::ResourceExt as _;
use kube::api::ListParams;
use screen::DisplayOptions;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tune::Search;
use why::Diagnosis;

/// How long `--watch` waits between two looks.
const WATCH: Duration = Duration::from_secs(2);

/// Shows what TrainingJobs do, and why they don't.
///
/// As `kubectl trainingjob`, once this program is on PATH.
#[derive(Parser)]
#[command(name = "kubectl-trainingjob", bin_name = "kubectl trainingjob", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: ClusterArgs,
    /// Form of what is printed.
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Output,
}

/// For whom the output is meant.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs: one document with the same facts; of logs and with --watch, one a line.
    Json,
    /// Only of `tune`: one row for each trial, one column for each hyperparameter.
    #[value(hide = true)]
    Csv,
    /// Only of `best` and of `run --dry-run`: objects for `kubectl apply -f -`.
    #[value(hide = true)]
    Yaml,
}

/// The form of output that only this command has.
fn form_of(command: &str) -> Option<&'static str> {
    match command {
        "tune" => Some("csv"),
        "best" | "run" => Some("yaml"),
        _ => None,
    }
}

#[derive(Subcommand)]
enum Command {
    /// Creates a TrainingJob, sends it the code of a folder, and follows it to its end: run -- torchrun train.py.
    ///
    /// Needs the right to create TrainingJobs and ConfigMaps (role `edit`), and no registry. Ctrl-C ends only the command;
    /// `attach` follows the job again. Exit code: 0 if the job is Completed, 3 if it failed, 5 if it was deleted.
    Run {
        #[command(flatten)]
        args: Box<run::JobArgs>,
        /// Prints the objects and creates none: -o yaml, or -o json.
        #[arg(long)]
        dry_run: bool,
        /// Returns when the job is created.
        #[arg(short, long)]
        detach: bool,
    },
    /// Follows the logs and the progress of a job to its end, and exits with its result.
    ///
    /// Exit code: 0 if the job is Completed, 3 if it failed, 5 if it was deleted.
    Attach {
        /// Name of the TrainingJob.
        job: String,
        #[command(flatten)]
        choice: pod_selection::PodSelection,
        /// Only so many last lines of each worker, from before.
        #[arg(long, value_parser = clap::value_parser!(i64).range(0..), allow_hyphen_values = true)]
        tail: Option<i64>,
    },
    /// Waits until a job is in a state, for scripts.
    ///
    /// Exit code: 0 if it is, 3 if the job has ended otherwise, 4 at the timeout, 5 if the job was deleted.
    Wait {
        /// Name of the TrainingJob.
        job: String,
        /// The state.
        #[arg(long = "for", value_enum, default_value_t)]
        goal: follow::WaitGoal,
        /// How long that is waited for: 90s, 10m, 1h30m. Without it, for ever.
        #[arg(long, value_parser = screen::read_span)]
        timeout: Option<SignedDuration>,
    },
    /// One job on one screen: state, workers, progress, metrics, what it waits for or why it failed, last events.
    Status {
        /// Name of the TrainingJob.
        job: String,
        /// Shows it again and again, until the job has ended.
        #[arg(short, long)]
        watch: bool,
    },
    /// What the workers and all other roles print, in the order of time, each line with role and index.
    Logs {
        /// Name of the TrainingJob.
        job: String,
        #[command(flatten)]
        choice: pod_selection::PodSelection,
        /// Goes on until the job has ended, also through restarts.
        #[arg(short, long)]
        follow: bool,
        /// Only so many last lines of each worker.
        #[arg(long, value_parser = clap::value_parser!(i64).range(0..), allow_hyphen_values = true)]
        tail: Option<i64>,
        /// Only lines this young: 90s, 10m, 1h30m.
        #[arg(long, value_parser = screen::read_span)]
        since: Option<SignedDuration>,
        /// The worker that caused the last failure: its log, or the last words that were kept of it.
        #[arg(long, conflicts_with_all = ["role", "worker", "follow"])]
        failed: bool,
        /// With the time of each line.
        #[arg(long)]
        timestamps: bool,
    },
    /// All jobs: state, workers, progress, loss, GPUs and their use.
    Top {
        #[command(flatten)]
        filter: top::Filter,
        /// Shows them again and again.
        #[arg(short, long)]
        watch: bool,
    },
    /// One search on one screen: state, best trial, importance of the hyperparameters, failures, all trials.
    ///
    /// With `-o csv` it prints one row for each trial and one column for each hyperparameter.
    Tune {
        /// Name of the TuningJob.
        search: String,
        /// Order of the trials.
        #[arg(long, value_enum, default_value_t)]
        sort: tune::TrialOrder,
        /// Shows it again and again, until the search has ended.
        #[arg(short, long)]
        watch: bool,
    },
    /// The best trial of a search, with its hyperparameters.
    ///
    /// With `-o yaml` it prints a TrainingJob NAME-best with these hyperparameters, for `kubectl apply -f -`.
    Best {
        /// Name of the TuningJob.
        search: String,
    },
    /// Why a job or a search waits, is slow or has failed, and what to do.
    Why {
        /// Name of the TrainingJob, or of a TuningJob; `tuningjob/NAME` is always a TuningJob.
        job: String,
    },
    /// What the processes of its workers are doing: the call stacks of every Python, and which one is stopped.
    ///
    /// The agent in each worker's container is asked, which takes the right to exec into pods (role `edit`).
    Stacks {
        /// Name of the TrainingJob.
        job: String,
        #[command(flatten)]
        choice: pod_selection::PodSelection,
    },
    /// Its checkpoints, as its own agent sees them: lists, verifies, prunes and restores them.
    ///
    /// The agent runs in worker 0 if that worker runs, which takes the right to exec into pods. Otherwise it runs in a
    /// short Job, which takes the right to create and delete Jobs.
    Checkpoints {
        /// Name of the TrainingJob.
        job: String,
        #[command(subcommand)]
        verb: Option<checkpoints::Verb>,
        /// How long a Job that is made for it may take to start: 90s, 10m, 1h30m.
        #[arg(long, global = true, value_parser = screen::read_span, default_value = "5m")]
        timeout: SignedDuration,
    },
    /// Stops the workers with their grace period, and keeps the job: `resume` continues it. Of a search, stops all trials.
    Stop {
        /// Name of the TrainingJob, or of a TuningJob; `tuningjob/NAME` is always a TuningJob.
        job: String,
        /// Returns only when no worker runs any more.
        #[arg(long)]
        wait: bool,
        /// How long that is waited for: 90s, 10m, 1h30m.
        #[arg(long, value_parser = screen::read_span, default_value = "10m", requires = "wait")]
        timeout: SignedDuration,
    },
    /// Continues a job or a search that was stopped.
    Resume {
        /// Name of the TrainingJob, or of a TuningJob; `tuningjob/NAME` is always a TuningJob.
        job: String,
    },
    /// Begins another attempt, of a job that runs (in the same pods) or of one that has failed (with a new budget).
    Restart {
        /// Name of the TrainingJob.
        job: String,
        /// Sends this folder first. The next attempt runs its code, in the same pods. Only for a job that has `code`.
        #[arg(long, value_name = "DIR")]
        code: Option<PathBuf>,
        /// The next attempt resumes from this checkpoint, as `checkpoints` lists it, once. A stopped job is resumed.
        #[arg(long, value_name = "CHECKPOINT")]
        from: Option<String>,
    },
    /// Runs a job again with another spec: --set image=b:2.
    ///
    /// A job that has failed, is stopped or has not started is changed in its place. A failed job then starts again from its newest
    /// checkpoint, with a new budget. A Completed job is created again under another name.
    Resubmit {
        /// Name of the TrainingJob.
        job: String,
        /// Name of a new TrainingJob with the spec and the code of this one.
        #[arg(long)]
        name: Option<String>,
        /// A field of the spec; may be repeated. VALUE is YAML, and null removes the field.
        #[arg(long, value_name = "PATH=VALUE")]
        set: Vec<set::Assignment>,
    },
    /// Runs a command beside the program of a worker, with its environment and in its working directory.
    Exec {
        /// Name of the TrainingJob.
        job: String,
        #[command(flatten)]
        one: enter::One,
        /// The command, and its arguments.
        #[arg(last = true, required = true, value_names = ["COMMAND", "ARG"])]
        command: Vec<String>,
    },
    /// Opens a shell beside the program of a worker, with its environment and in its working directory.
    Shell {
        /// Name of the TrainingJob.
        job: String,
        #[command(flatten)]
        one: enter::One,
    },
    /// Forwards ports of this machine to a worker: 6006, or 8080:80.
    PortForward {
        /// Name of the TrainingJob.
        job: String,
        /// The ports.
        #[arg(required = true)]
        ports: Vec<String>,
        #[command(flatten)]
        one: enter::One,
    },
    /// Copies files from or to a worker: cp x :/out/model.pt . (needs tar in the image).
    Cp {
        /// Name of the TrainingJob.
        job: String,
        /// From where. The worker's path begins with a colon.
        from: String,
        /// To where.
        to: String,
        #[command(flatten)]
        one: enter::One,
    },
    /// Which GPUs of which nodes are free, and which jobs hold the others.
    ///
    /// Needs the right to list nodes and the pods of all namespaces.
    Gpus,
    /// Whether the operator is installed, works, and finds what jobs need: one line for each check, with the remedy.
    ///
    /// What you may not read is not checked. Exit code: 1 if a check failed.
    Check {
        /// Also whether two short pods on two nodes reach each other. They are removed afterwards, also after Ctrl-C.
        #[arg(long)]
        ports: bool,
        /// Image with the agent for these pods; default: the operator's.
        #[arg(long, requires = "ports")]
        image: Option<String>,
    },
    /// Prints TrainingJobs for `kubectl apply -f -` in another cluster, or after they were deleted.
    ///
    /// A job that has ended is marked, so that it does not run again. Other jobs resume from the newest checkpoint on their volume.
    Backup {
        /// Names of TrainingJobs; default: all of the namespace.
        jobs: Vec<String>,
    },
    /// Writes all that is known of a job into an archive for support: objects, events, logs, stacks, `why`.
    ///
    /// Secrets that are known by their names or forms are removed. Look at the files before you share them.
    Bundle {
        /// Name of the TrainingJob.
        job: String,
        /// The archive, which must not exist; -o FILE.tar.gz means the same. Default: NAME-TIME.tar.gz.
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// What an alert means, and what to type. No cluster is asked.
    Runbook {
        /// Name of the alert, such as TrainingJobFailed.
        alert: String,
    },
    /// The effective spec of a job: each value and its origin, and the objects that would be created. Creates none.
    #[command(group = clap::ArgGroup::new("what").required(true))]
    Plan {
        /// Name of the TrainingJob.
        #[arg(group = "what")]
        job: Option<String>,
        /// The TrainingJobs in this file instead, or in the standard input if it is `-`. A cluster is needed only for the
        /// template of a job with runtimeRef.
        #[arg(short, long, group = "what")]
        file: Option<PathBuf>,
    },
    /// Prints TrainingJobs made of jobs of other kinds, with a comment for all that has no place in them.
    ///
    /// Kubeflow's PyTorchJob, TFJob, MPIJob, XGBoostJob, PaddleJob, JAXJob and MXJob, the Trainer's TrainJob and OME's TrainingJob with
    /// their runtime in the same file, JobSets and Jobs. No cluster is asked. It exits with 1 if a job does not mean what it
    /// meant, and with 2 if the file can't be read.
    Convert {
        /// A file with one or more of them, or the standard input if it is `-`.
        #[arg(short, long)]
        file: PathBuf,
        /// What the field `model` is to say.
        #[arg(long)]
        model: Option<String>,
        /// What the field `dataset` is to say.
        #[arg(long)]
        dataset: Option<String>,
        /// The namespace of Oracle Object Storage in which the buckets of OME's `oci://BUCKET/PATH` are.
        #[arg(long, value_name = "NAMESPACE")]
        oci_namespace: Option<String>,
    },
    /// Prints a script that completes the command `kubectl-trainingjob`.
    Completion {
        /// The shell.
        shell: complete::Shell,
    },
}

/// Does what the arguments say, and prints it. The future is boxed so that all of it is compiled here, and not in the
/// program.
pub fn main(args: Vec<OsString>) -> LocalBoxFuture<'static, ExitCode> {
    Box::pin(act(args))
}

async fn act(args: Vec<OsString>) -> ExitCode {
    let done = match args.get(1) {
        // kubectl asks what may come next: what follows is half a command line, which is not to be parsed.
        Some(word) if word == "__complete" => {
            let words: Vec<String> = args[2..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
            print(&complete::answer(&words).await).map(|()| ExitCode::SUCCESS)
        }
        _ => run(Args::parse_from(with_result(args))).await,
    };
    match done {
        Ok(code) => code,
        // `kubectl trainingjob logs x | head` is no error.
        Err(error) if is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(terminal::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `run --output URI` means the results: an address is no form of output. `bundle -o FILE.tar.gz` means the archive.
fn with_result(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.iter().skip(1).any(|word| word == "bundle") {
        for at in 1..args.len() {
            let next = args.get(at + 1).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            if ["-o", "--output"].iter().any(|flag| args[at] == *flag) && next.ends_with("gz") {
                args[at] = "--to".into();
            }
        }
    }
    let is_run = args.iter().skip(1).any(|word| word == "run");
    let end = args.iter().position(|word| word == "--").unwrap_or(args.len());
    for at in (0..end).filter(|_| is_run) {
        let word = args[at].to_string_lossy().into_owned();
        if let Some(uri) = word.strip_prefix("--output=").filter(|uri| uri.contains("://")) {
            args[at] = format!("--output-uri={uri}").into();
        }
        if word == "--output" && at + 1 < end && args[at + 1].to_string_lossy().contains("://") {
            args[at] = "--output-uri".into();
        }
    }
    args
}

fn is_closed(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[expect(clippy::too_many_lines, reason = "one arm for each command")]
async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let look = DisplayOptions::of_stdout();
    let json = args.output == Output::Json;
    match (args.output, &args.command) {
        (Output::Table | Output::Json, _)
        | (Output::Yaml, Command::Best { .. } | Command::Run { dry_run: true, .. })
        | (Output::Csv, Command::Tune { watch: false, .. }) => {}
        (Output::Csv, Command::Tune { .. }) => anyhow::bail!("-o csv and --watch exclude each other; use one of them"),
        (Output::Csv, _) => anyhow::bail!("-o csv is only for `tune`; use -o json"),
        (Output::Yaml, _) => anyhow::bail!("-o yaml is only for `best` and `run --dry-run`; use -o json"),
    }
    if let Command::Completion { shell } = args.command {
        io::stdout().write_all(&complete::script(shell))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Runbook { alert } = args.command {
        return print(&runbook::runbook(&alert)?).map(|()| ExitCode::SUCCESS);
    }
    if let Command::Convert { file, model, dataset, oci_namespace } = args.command {
        return converted(&file, &convert::Answers { model, dataset, oci_namespace }, json);
    }
    if let Command::Run { args: job, dry_run: true, .. } = &args.command {
        let draft = run::draft(job, args.place.namespace.as_deref())?;
        draft.packed.iter().for_each(print_skipped);
        let documents = draft.documents()?;
        return print(&match args.output {
            Output::Json if documents.len() == 1 => document(&documents[0])?,
            Output::Json => document(&serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": documents }))?,
            _ => documents.iter().map(convert::yaml).collect::<Vec<_>>().join("---\n"),
        })
        .map(|()| ExitCode::SUCCESS);
    }
    if let Command::Plan { file: Some(file), .. } = args.command {
        // As the newest API server would have it.
        let mut jobs = plan::jobs(&read(&file)?, args.place.namespace.as_deref())?;
        if jobs.iter().any(|job| plan::wants(job).is_some()) {
            let cluster = Cluster::reach(&args.place).await?;
            for job in &mut jobs {
                cluster.take_runtime(job).await?;
            }
        }
        return planned(&jobs, true, json);
    }
    let cluster = Cluster::reach(&args.place).await?;
    let done = match args.command {
        Command::Status { job, watch: true } => watch(cluster, &job, json, look).await,
        Command::Status { job, watch: false } => {
            let facts = JobReader::new(cluster).facts(&job).await?;
            let diagnosis = Diagnosis::from_facts(&facts);
            print(&if json {
                document(&StatusDocument { facts, diagnosis })?
            } else {
                status::render(&facts, &diagnosis, look)
            })
        }
        Command::Logs { job, choice, follow, tail, since, failed, timestamps } => {
            let wanted = logs::LogQuery { choice, follow, tail, since, failed, timestamps, json, progress: false };
            logs::run(&cluster, &job, wanted, look, &mut io::BufWriter::new(terminal::stdout())).await
        }
        Command::Gpus => {
            let nodes = cluster.pages("list nodes", &cluster.everywhere(), usize::MAX).await?;
            let pods = cluster.pages("list the pods of all namespaces", &cluster.everywhere(), usize::MAX).await?;
            let rows = gpus::rows(&nodes, &pods);
            if rows.is_empty() && !json {
                anyhow::bail!(
                    "no node has GPUs: install the device plugin of the GPUs' vendor, or set gpusPerWorker: 0 in CPU jobs"
                );
            }
            print(&if json { document(&rows)? } else { gpus::render(&rows, look) })
        }
        Command::Top { filter, watch } => top(&cluster, &filter, watch, args.place.all_namespaces, json, look).await,
        Command::Tune { search, sort, watch: true } => watch_search(&cluster, &search, sort, json, look).await,
        Command::Tune { search, sort, watch: false } => {
            let mut found = Search::from_job(&cluster.search(&search).await?, job_reader::now());
            found.sort(sort);
            print(&match args.output {
                Output::Json => document(&found)?,
                Output::Csv => tune::csv(&found),
                Output::Table | Output::Yaml => tune::render(&found, look),
            })
        }
        Command::Best { search } => {
            let (found, now) = (cluster.search(&search).await?, job_reader::now());
            print(&match args.output {
                Output::Json => document(&tune::Best::from_search(&Search::from_job(&found, now))?)?,
                Output::Yaml => tune::manifest(&found, now)?,
                Output::Table | Output::Csv => tune::Best::from_search(&Search::from_job(&found, now))?.render(look),
            })
        }
        Command::Why { job } => print_why(cluster, &job, json, look).await,
        Command::Stacks { job, choice } => {
            let stacks = stacks::collect(&cluster, &job, &choice).await?;
            print(&if json { document(&stacks)? } else { stacks::render(&stacks) })
        }
        Command::Checkpoints { job, verb, timeout } => {
            let (verb, mut out, mut err) = (verb.unwrap_or_default(), terminal::stdout(), terminal::stderr());
            let mut streams = checkpoints::Streams { out: &mut out, err: &mut err };
            let patience = timeout.unsigned_abs();
            return Ok(checkpoints::run(&cluster, &job, &verb, patience, json, &mut streams).await?.into());
        }
        Command::Stop { job, wait, timeout } => {
            let wait = wait.then(|| timeout.unsigned_abs());
            done_to(&job, &control::stop(&cluster, &job, wait).await?, json)
        }
        Command::Resume { job } => done_to(&job, &control::resume(&cluster, &job).await?, json),
        Command::Restart { job, code, from } => {
            let packed = code.as_deref().map(code::pack).transpose()?;
            packed.iter().for_each(print_skipped);
            done_to(&job, &control::restart(&cluster, &job, packed.as_ref(), from.as_deref()).await?, json)
        }
        Command::Run { args, detach, .. } => {
            let draft = run::draft(&args, None)?;
            draft.packed.iter().for_each(print_skipped);
            let job = draft.create(&cluster).await?;
            let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
            let sent = draft.packed.as_ref().map(|packed| {
                let (files, size) = (packed.files, packed.archive.len().div_ceil(1024));
                format!(
                    " with the code of {} ({size} KiB)",
                    screen::count(i64::try_from(files).unwrap_or(i64::MAX), "file")
                )
            });
            let made = format!("{name} is created in namespace {namespace}{}", sent.unwrap_or_default());
            if detach {
                return done_to(&name, &made, json).map(|()| ExitCode::SUCCESS);
            }
            logs::remark(&made);
            let mut cluster = cluster;
            cluster.namespace = Some(namespace);
            return attached(&cluster, &name, pod_selection::PodSelection::default(), None, look).await;
        }
        Command::Attach { job, choice, tail } => return attached(&cluster, &job, choice, tail, look).await,
        Command::Wait { job, goal, timeout } => {
            let timeout = timeout.map(SignedDuration::unsigned_abs);
            let (outcome, words) = follow::wait(&cluster, &job, goal, timeout).await?;
            return done_to(&job, &words, json).map(|()| outcome.code());
        }
        Command::Exec { job, one, command } => return enter::exec(&cluster, &args.place, &job, &one, &command).await,
        Command::Shell { job, one } => return enter::exec(&cluster, &args.place, &job, &one, &[]).await,
        Command::PortForward { job, ports, one } => {
            return enter::port_forward(&cluster, &args.place, &job, &one, &ports).await;
        }
        Command::Cp { job, from, to, one } => {
            return enter::copy(&cluster, &args.place, &job, &one, [&from, &to]).await;
        }
        Command::Backup { jobs } => {
            let backup = backup::backup(&cluster, &jobs).await?;
            backup.notes.iter().for_each(|note| logs::remark(note));
            print(&if json {
                document(&serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": backup.jobs }))?
            } else {
                backup.render()
            })
        }
        Command::Bundle { job, to } => {
            let bundle = bundle::bundle(&cluster, &job, to).await?;
            print(&if json { document(&bundle)? } else { bundle.render() })
        }
        Command::Check { ports, image } => {
            let seen = check::look(&cluster).await?;
            let mut lines = check::judge(&seen);
            if ports {
                match check::ports::ports(&cluster, &seen, image).await {
                    Ok(line) => lines.push(line),
                    Err(code) => return Ok(code.into()),
                }
            }
            print(&if json { document(&lines)? } else { check::render(&lines, look) })?;
            return Ok(if check::has_failed(&lines) { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Resubmit { job, name, set } => {
            let (name, words) = resubmit::resubmit(&cluster, &job, name.as_deref(), &set).await?;
            done_to(&name, &words, json)
        }
        Command::Plan { job, .. } => {
            let mut job = cluster.find(&job.unwrap_or_default()).await?;
            cluster.take_runtime(&mut job).await?;
            return planned(&[job], cluster.has_restart_rules().await?, json);
        }
        Command::Convert { .. } | Command::Runbook { .. } | Command::Completion { .. } => {
            unreachable!("answered without a cluster")
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Follows a job, and exits with its result.
async fn attached(
    cluster: &Cluster,
    job: &str,
    choice: pod_selection::PodSelection,
    tail: Option<i64>,
    look: DisplayOptions,
) -> anyhow::Result<ExitCode> {
    let mut out = io::BufWriter::new(terminal::stdout());
    let (outcome, words) = follow::attach(cluster, job, choice, tail, look, &mut out).await?;
    out.flush()?;
    if !words.is_empty() {
        logs::remark(&format!("-- {words} --"));
    }
    Ok(outcome.code())
}

fn print_skipped(packed: &code::Packed) {
    if !packed.skipped.is_empty() {
        logs::remark(&format!("not sent: {}", packed.skipped.join(", ")));
    }
}

/// Reads a file, or the standard input.
fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => io::stdin().read_to_string(&mut text).map(|_| text),
        _ => std::fs::read_to_string(file),
    };
    read.map_err(|error| anyhow::anyhow!("can't read {}: {error}", file.display()))
}

/// What `convert -o json` prints of each job.
#[derive(Serialize)]
struct ConvertedDocument {
    job: serde_json::Value,
    notes: convert::Notes,
}

/// Converts the jobs of a file; the exit code tells whether they mean what they meant.
fn converted(file: &Path, answers: &convert::Answers, json: bool) -> anyhow::Result<ExitCode> {
    let converted = read(file).and_then(|text| Ok(convert::convert(&text, answers)?));
    let converted = match converted {
        Ok(converted) => converted,
        Err(wrong) => {
            let _ = writeln!(terminal::stderr(), "error: {wrong:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let jobs = converted.jobs.into_iter().map(|(job, notes)| ConvertedDocument { job, notes });
    print(&if json { document(&jobs.collect::<Vec<_>>())? } else { converted.text })?;
    Ok(if converted.lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints the plans of jobs. The exit code says whether all of them would run.
fn planned(jobs: &[api::TrainingJob], restart_rules: bool, json: bool) -> anyhow::Result<ExitCode> {
    let explanations: Vec<plan::Explanation> = jobs.iter().map(|job| plan::explain(job, restart_rules)).collect();
    let text: Vec<String> = explanations.iter().map(plan::render).collect();
    print(&if json { document(&explanations)? } else { text.join("---\n") })?;
    let refused = explanations.iter().any(|explanations| !explanations.refusals.is_empty());
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says what was done to a job.
fn done_to(job: &str, words: &str, json: bool) -> anyhow::Result<()> {
    print(&if json { document(&serde_json::json!({ "name": job, "message": words }))? } else { format!("{words}\n") })
}

/// What `status -o json` prints.
#[derive(Serialize)]
struct StatusDocument {
    #[serde(flatten)]
    facts: Facts,
    diagnosis: Diagnosis,
}

/// What `why -o json` prints.
#[derive(Serialize)]
struct WhyDocument<'a, State> {
    namespace: &'a str,
    name: &'a str,
    state: Option<State>,
    #[serde(flatten)]
    diagnosis: Diagnosis,
}

/// What `top -o json` prints.
#[derive(Serialize)]
struct TopDocument {
    jobs: Vec<top::Row>,
    /// Jobs that this version can't read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

async fn top(
    cluster: &Cluster,
    filter: &top::Filter,
    watch: bool,
    all_namespaces: bool,
    json: bool,
    look: DisplayOptions,
) -> anyhow::Result<()> {
    if watch && look.terminal && !json {
        draw("\x1b[2J")?;
    }
    loop {
        let all = rows(cluster, filter).await?;
        let text = match (json, watch) {
            (true, true) => serde_json::to_string(&all)? + "\n",
            (true, false) => document(&all)?,
            (false, _) => top::render(&all.jobs, all_namespaces, look),
        };
        if !json && !watch {
            for unread in &all.unread {
                let _ = writeln!(terminal::stderr(), "{unread}");
            }
            if all.jobs.is_empty() {
                let place = cluster.namespace.as_ref().map_or("any namespace".to_owned(), |n| format!("namespace {n}"));
                let such = if filter.leaves_out() { "such " } else { "" };
                let _ = writeln!(io::stderr(), "There are no {such}TrainingJobs in {place}.");
                return Ok(());
            }
        }
        if watch && look.terminal && !json {
            draw(&frame(&text, look))?;
        } else {
            print(&text)?;
        }
        if !watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH).await;
    }
}

async fn rows(cluster: &Cluster, filter: &top::Filter) -> anyhow::Result<TopDocument> {
    let now = job_reader::now();
    let mut all = TopDocument { jobs: Vec::new(), unread: Vec::new() };
    let params = ListParams { label_selector: filter.selector.clone(), ..ListParams::default() };
    for job in cluster.jobs(&params).await? {
        match job.0 {
            Ok(job) => all.jobs.push(top::Row::from_facts(&Facts::from_job(&job, now))),
            Err(invalid) => {
                let name = invalid.metadata.name.clone().unwrap_or_default();
                all.unread.push(format!("{name} can't be read by this version of the plugin: {invalid}"));
            }
        }
    }
    all.jobs = filter.apply(all.jobs);
    Ok(all)
}

/// Shows a job whenever something about it has changed, on a terminal in place.
async fn watch(cluster: Cluster, job: &str, json: bool, look: DisplayOptions) -> anyhow::Result<()> {
    let mut gatherer = JobReader::new(cluster);
    let mut before: Option<serde_json::Value> = None;
    if look.terminal && !json {
        draw("\x1b[2J")?;
    }
    loop {
        let facts = gatherer.facts(job).await?;
        let ended = facts.is_finished();
        let diagnosis = Diagnosis::from_facts(&facts);
        // All but the time.
        let now = serde_json::to_value(Facts { time: jiff::Timestamp::UNIX_EPOCH, ..facts.clone() })?;
        if look.terminal && !json {
            draw(&frame(&status::render(&facts, &diagnosis, look), look))?;
        } else if before.as_ref() != Some(&now) {
            if json {
                print(&(serde_json::to_string(&StatusDocument { facts, diagnosis })? + "\n"))?;
            } else {
                let gap = if before.is_some() { "\n" } else { "" };
                print(&format!("{gap}{}", status::render(&facts, &diagnosis, look)))?;
            }
        }
        if ended {
            return Ok(());
        }
        before = Some(now);
        tokio::time::sleep(WATCH).await;
    }
}

/// Prints why a job or a search stands as it does.
async fn print_why(cluster: Cluster, name: &str, json: bool, look: DisplayOptions) -> anyhow::Result<()> {
    let (text, diagnosis) = if let NamedObject::Search(search) = cluster.named(name).await? {
        let search = Search::from_job(&search, job_reader::now());
        let Search { namespace, name, state, .. } = &search;
        let why = WhyDocument { namespace, name, state: *state, diagnosis: search.diagnosis() };
        (document(&why)?, why.diagnosis)
    } else {
        let facts = JobReader::new(cluster).facts(name).await?;
        let Facts { namespace, name, .. } = &facts;
        let why = WhyDocument { namespace, name, state: facts.status.state, diagnosis: Diagnosis::from_facts(&facts) };
        (document(&why)?, why.diagnosis)
    };
    print(&if json { text } else { why::render(&diagnosis, look) })
}

/// Shows a search whenever something about it has changed, on a terminal in place.
async fn watch_search(
    cluster: &Cluster,
    name: &str,
    sort: tune::TrialOrder,
    json: bool,
    look: DisplayOptions,
) -> anyhow::Result<()> {
    let mut before: Option<api::TuningJob> = None;
    if look.terminal && !json {
        draw("\x1b[2J")?;
    }
    loop {
        let job = cluster.search(name).await?;
        let mut search = Search::from_job(&job, job_reader::now());
        search.sort(sort);
        if look.terminal && !json {
            draw(&frame(&tune::render(&search, look), look))?;
        } else if before.as_ref() != Some(&job) {
            if json {
                print(&(serde_json::to_string(&search)? + "\n"))?;
            } else {
                let gap = if before.is_some() { "\n" } else { "" };
                print(&format!("{gap}{}", tune::render(&search, look)))?;
            }
        }
        if search.is_finished() {
            return Ok(());
        }
        before = Some(job);
        tokio::time::sleep(WATCH).await;
    }
}

/// Draws a screen over the last one: no more lines than the terminal has, or the first ones would roll away.
fn frame(text: &str, look: DisplayOptions) -> String {
    let rows = look.height.unwrap_or(usize::MAX).saturating_sub(1);
    let lines: String = text.lines().take(rows).map(|line| terminal::harmless(line) + "\x1b[K\n").collect();
    format!("\x1b[H{lines}\x1b[J")
}

/// Writes what moves the cursor to a terminal.
fn draw(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn document(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod pages;
#[cfg(test)]
mod tests;
