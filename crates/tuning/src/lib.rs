//! A search for hyperparameters without a cluster: each trial is one run of a program.
//!
//! The program reads the parameters as a JSON object from stdin. The last line that it prints is the value of the metric.

mod space_file;
mod trial;

use anyhow::{Context, bail};
use clap::Parser;
use nix::libc::{SIGINT, SIGTERM};
use search::{History, Outcome, Parameters, Settings, Trial};
use serde::Serialize;
use serde::ser::SerializeMap;
use space_file::SpaceFile;
use std::io::Write;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use trial::{Child, ProgramEnd};

/// Search the hyperparameters of a program, without a cluster.
///
/// One JSON line is printed for each trial, in the order in which the trials end. A trial has failed if its program
/// exits with another code than 0 or prints no number. Its line has the value null, and the reason in `failed`. NaN and
/// infinities are values, printed as strings.
#[derive(Clone, Debug, Parser)]
#[command(name = "tuning", max_term_width = 100)]
pub struct Arguments {
    /// JSON file with `metric`, `method` and `parameters`; `algorithm`, `maxTrials`, `parallelTrials` and `seed` are
    /// optional.
    #[arg(long, value_name = "FILE")]
    pub space: PathBuf,
    /// Number of trials; the default is `maxTrials` of the file.
    #[arg(long, value_name = "N")]
    pub trials: Option<usize>,
    /// Most trials that run at the same time; the default is `parallelTrials` of the file, or 1.
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,
    /// Seed of the search; the default is `seed` of the file, or 0.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Program of a trial, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A signal ended the run and its programs.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted {
    signal: i32,
}

impl Interrupted {
    /// Exit code that shells use for the signal.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ended by signal {}", self.signal)
    }
}

impl std::error::Error for Interrupted {}

/// Runs all trials, or as many as a grid has points, and writes their lines.
///
/// # Errors
/// A file or a flag that is refused, a program that can't be started, lines that can't be written, or [`Interrupted`].
pub fn run(arguments: &Arguments, lines: &mut impl Write) -> anyhow::Result<()> {
    let file = SpaceFile::read(&arguments.space)?;
    let space = file.space().with_context(|| arguments.space.display().to_string())?;
    let Some(trials) = arguments.trials.or(file.max_trials) else {
        bail!("--trials: the number of trials is not set; add --trials N");
    };
    let parallel = arguments.parallel.or(file.parallel_trials).unwrap_or(1);
    if trials == 0 || parallel == 0 {
        bail!("--trials, --parallel: 0 trials would run; set 1 or more");
    }
    let settings = file.settings(arguments.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let mut run = Run { arguments, space, settings, trials, history: History::default(), running: Vec::new() };
    runtime.block_on(run.all(parallel, lines))
}

struct Run<'a> {
    arguments: &'a Arguments,
    space: search::Space,
    settings: Settings,
    trials: usize,
    history: History,
    /// Number of the trial, and its program.
    running: Vec<(usize, Child)>,
}

impl Run<'_> {
    async fn all(&mut self, parallel: usize, lines: &mut impl Write) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt()).context("handling SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("handling SIGTERM")?;
        let (sender, mut endings) = mpsc::unbounded_channel();
        while self.running.len() < parallel && self.start_next(&sender)? {}
        while !self.running.is_empty() {
            let signal = tokio::select! {
                biased;
                _ = interrupt.recv() => SIGINT,
                _ = terminate.recv() => SIGTERM,
                Some((trial, ending)) = endings.recv() => {
                    self.end(trial, &ending, lines)?;
                    self.start_next(&sender)?;
                    continue;
                }
            };
            // Dropping `running` ends the programs.
            return Err(Interrupted { signal }.into());
        }
        Ok(())
    }

    /// Whether there was another trial to start.
    fn start_next(&mut self, sender: &mpsc::UnboundedSender<(usize, ProgramEnd)>) -> anyhow::Result<bool> {
        if self.history.trials.len() == self.trials {
            return Ok(false);
        }
        let suggestion = search::suggest(&self.space, &self.settings, &self.history);
        let Some(parameters) = suggestion.with_context(|| self.arguments.space.display().to_string())? else {
            return Ok(false);
        };
        let number = self.history.trials.len() + 1;
        let sender = sender.clone();
        // A receiver that is gone no longer waits for any trial.
        let report = move |ending| drop(sender.send((number, ending)));
        let child = Child::start(&self.arguments.command, serde_json::to_string(&parameters)?, report)?;
        self.running.push((number, child));
        self.history.trials.push(Trial { parameters, outcome: Outcome::Running });
        Ok(true)
    }

    fn end(&mut self, number: usize, ending: &ProgramEnd, lines: &mut impl Write) -> anyhow::Result<()> {
        self.running.retain(|(running, _)| *running != number);
        let trial = &mut self.history.trials[number - 1];
        trial.outcome = match ending {
            ProgramEnd::Value(value) => Outcome::Finished { value: *value },
            ProgramEnd::Failed(_) => Outcome::Failed,
        };
        let line = serde_json::to_string(&TrialLine { trial: number, parameters: &trial.parameters, ending })?;
        writeln!(lines, "{line}").and_then(|()| lines.flush()).context("writing to stdout")
    }
}

/// The line that is printed for one trial.
struct TrialLine<'a> {
    trial: usize,
    parameters: &'a Parameters,
    ending: &'a ProgramEnd,
}

impl Serialize for TrialLine<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Number(#[serde(with = "protocol::number")] f64);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("trial", &self.trial)?;
        map.serialize_entry("parameters", self.parameters)?;
        match self.ending {
            ProgramEnd::Value(value) => map.serialize_entry("value", &Number(*value))?,
            ProgramEnd::Failed(reason) => {
                map.serialize_entry("value", &None::<f64>)?;
                map.serialize_entry("failed", reason)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
