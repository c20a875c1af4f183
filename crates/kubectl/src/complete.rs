//! Completions: a script for the program itself, and the answers that `kubectl` asks for when it completes a plugin.

use super::Args;
use super::cluster::{Cluster, ClusterArgs};
use clap::{Arg, Command, CommandFactory};
use kube::ResourceExt;
use kube::api::ListParams;
use std::time::Duration;

/// A shell that completions are made for.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Commands for a TrainingJob or a TuningJob.
const WITH_SEARCHES: [&str; 3] = ["why", "stop", "resume"];

/// How long a user may wait for a list of jobs after the Tab key.
const PATIENCE: Duration = Duration::from_secs(3);

/// Writes the completion script of a shell, for the program by its own name.
#[must_use]
pub fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut command = Args::command().bin_name("kubectl-trainingjob");
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kubectl-trainingjob", &mut script);
    script
}

/// Returns the candidates for the last of these words, one on each line with its description. A last line for cobra,
/// the library of kubectl's command line, says "no file names", unless the word is one.
pub async fn answer(words: &[String]) -> String {
    let command = Args::command();
    let mut candidates = match candidates(&command, words) {
        Completion::These(candidates) => candidates,
        Completion::Jobs => named(words, true, false).await,
        Completion::Searches => named(words, false, true).await,
        Completion::JobsAndSearches => named(words, true, true).await,
        Completion::File => return ":0\n".into(),
    };
    let begun = words.last().map_or("", String::as_str);
    candidates.retain(|candidate| candidate.starts_with(begun));
    candidates.push(":4".into());
    candidates.join("\n") + "\n"
}

/// What may come next on the command line.
#[derive(Debug, PartialEq)]
pub(super) enum Completion {
    These(Vec<String>),
    Jobs,
    Searches,
    JobsAndSearches,
    File,
}

pub(super) fn candidates(root: &Command, words: &[String]) -> Completion {
    let (begun, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut commands = vec![root];
    let mut positional = 0;
    let mut value_of: Option<&Arg> = None;
    for word in before {
        if value_of.take().is_some() {
            continue;
        }
        let command = commands[commands.len() - 1];
        if word.starts_with('-') {
            value_of = option(&commands, word).filter(|arg| arg.get_action().takes_values() && !word.contains('='));
        } else if let (true, Some(sub)) = (command.has_subcommands(), command.find_subcommand(word)) {
            commands.push(sub);
            positional = 0;
        } else {
            positional += 1;
        }
    }
    let command = commands[commands.len() - 1];
    let reported = |name: String, help: Option<String>| help.map_or(name.clone(), |help| format!("{name}\t{help}"));
    let values = |arg: &Arg| {
        let values = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
        values.map(|value| value.get_name().to_owned()).collect()
    };
    if let Some(arg) = value_of {
        if arg.get_id() == "file" || arg.get_id() == "code" {
            return Completion::File;
        }
        let mut all: Vec<String> = values(arg);
        all.extend(super::form_of(command.get_name()).filter(|_| arg.get_id() == "output").map(str::to_owned));
        return Completion::These(all);
    }
    if begun.starts_with('-') {
        let mut options: Vec<String> = options(&commands)
            .filter_map(|arg| Some(reported(format!("--{}", arg.get_long()?), arg.get_help().map(ToString::to_string))))
            .collect();
        options.sort();
        options.dedup();
        return Completion::These(options);
    }
    let next = command.get_positionals().nth(positional);
    if next.is_none() && command.has_subcommands() {
        let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let named =
            subcommands.map(|sub| reported(sub.get_name().to_owned(), sub.get_about().map(ToString::to_string)));
        return Completion::These(named.collect());
    }
    match next {
        Some(arg) if arg.get_id() == "search" => Completion::Searches,
        Some(arg) if arg.get_id() == "job" && WITH_SEARCHES.contains(&command.get_name()) => {
            Completion::JobsAndSearches
        }
        Some(arg) if arg.get_id() == "job" => Completion::Jobs,
        Some(arg) => Completion::These(values(arg)),
        None => Completion::These(Vec::new()),
    }
}

/// Returns the options of the last of these commands, with those of the others that also apply to it.
#[expect(clippy::expect_used, reason = "the first one is the program itself")]
fn options<'a>(commands: &[&'a Command]) -> impl Iterator<Item = &'a Arg> {
    let (command, before) = commands.split_last().expect("the program is a command");
    let global = before.iter().flat_map(|command| command.get_arguments()).filter(|arg| arg.is_global_set());
    command.get_arguments().chain(global.collect::<Vec<_>>()).filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

fn option<'a>(commands: &[&'a Command], word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or(word);
    options(commands).find(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| name.ends_with(short)),
    })
}

/// Lists the names of TrainingJobs and TuningJobs, in the namespace and the cluster that the words name. It lists none
/// if they are not available at once.
async fn named(words: &[String], with_jobs: bool, with_searches: bool) -> Vec<String> {
    let value = |names: &[&str]| {
        let at = words.iter().position(|word| names.contains(&word.as_str()));
        let after = at.and_then(|at| words.get(at + 1)).cloned();
        let joined =
            |name: &&str| words.iter().find_map(|word| word.strip_prefix(&format!("{name}=")).map(str::to_owned));
        after.or_else(|| names.iter().find_map(joined))
    };
    let place = ClusterArgs {
        namespace: value(&["-n", "--namespace"]),
        all_namespaces: words.iter().any(|word| word == "-A" || word == "--all-namespaces"),
        context: value(&["--context"]),
        kubeconfig: value(&["--kubeconfig"]).map(Into::into),
    };
    let list = async {
        let cluster = Cluster::reach(&place).await?;
        let mut names: Vec<String> = Vec::new();
        if with_jobs {
            names.extend(cluster.jobs(&ListParams::default()).await?.iter().map(ResourceExt::name_any));
        }
        if with_searches {
            // A cluster may lack the kind.
            let searches = cluster.searches(&ListParams::default()).await.unwrap_or_default();
            names.extend(searches.iter().map(ResourceExt::name_any));
        }
        names.sort();
        names.dedup();
        anyhow::Ok(names)
    };
    tokio::time::timeout(PATIENCE, list).await.ok().and_then(Result::ok).unwrap_or_default()
}
