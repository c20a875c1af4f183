//! Checks that the commands in pages, examples and alerts are commands of this plugin.

use super::{Args, with_result};
use clap::{CommandFactory as _, Parser as _};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Returns the plugin's commands in a text: between backticks, else to the end of the line or to the next program.
fn commands(text: &str) -> Vec<String> {
    let mut text = text.replace("\\\n", " ");
    // In an alert, a label replaces the name.
    while let Some((begin, length)) = text.find("{{").and_then(|at| Some((at, text[at..].find("}}")? + 2))) {
        text.replace_range(begin..begin + length, "LABEL");
    }
    let mut found = Vec::new();
    for line in text.lines() {
        for (at, _) in line.match_indices("kubectl trainingjob ") {
            let (before, rest) = line.split_at(at);
            let ends: &[&str] = match before.chars().next_back() {
                Some('"') => &["\""],
                _ if before.matches('`').count() % 2 == 1 => &["`"],
                _ => &["`", " && ", "; ", " <<", ")"],
            };
            let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            let alone = [" | ", " > ", " #"].iter().fold(&rest[..end], |line, end| line.split(end).next().unwrap());
            found.push(alone.trim().to_owned());
        }
    }
    found
}

/// Splits a line into the words that a shell would see, with its quotes.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for letter in line.chars() {
        match (letter, quote) {
            (' ', None) => words.push(String::new()),
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            (letter, _) => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a line, as a user types it, is a command of this plugin.
pub(super) fn understood(line: &str) -> Result<(), String> {
    let words: Vec<_> = with_result(shell_words(line).into_iter().skip(1).map(OsString::from).collect());
    // A verb alone stands for all its forms.
    let is_verb = words.len() == 2 && Args::command().find_subcommand(&words[1]).is_some();
    match Args::try_parse_from(words) {
        Err(error) if error.use_stderr() && !is_verb => {
            Err(error.to_string().lines().next().unwrap_or_default().into())
        }
        _ => Ok(()),
    }
}

/// The plugin must accept every command that users paste from a page, an alert or an example.
#[test]
fn every_documented_command_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut files, mut folders) = (vec![root.join("README.md")], Vec::new());
    folders.extend(["docs", "deploy", "examples", "charts"].map(|name| root.join(name)));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for line in commands(&text) {
            seen += 1;
            if let Err(why) = understood(&line) {
                wrong.push(format!("{}: {line}: {why}", file.display()));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
