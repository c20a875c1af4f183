//! `runbook`: what an alert means and which commands to run, from the page that the alerts link to.

use super::cluster::near;
use anyhow::bail;
use std::collections::BTreeSet;

/// The page with the runbooks of all alerts.
const PAGE: &str = include_str!("../../../docs/monitoring.md");

/// Returns the runbook of an alert.
///
/// # Errors
/// If there is no such alert. The error names similar ones.
pub fn runbook(alert: &str) -> anyhow::Result<String> {
    let sections = sections();
    let found = sections.iter().find(|(name, _)| name.eq_ignore_ascii_case(alert));
    if let Some((_, text)) = found {
        return Ok(text.clone());
    }
    let names: BTreeSet<String> = sections.into_iter().map(|(name, _)| name).collect();
    let near = near(alert, &names);
    let meant = if near.is_empty() { names.into_iter().collect() } else { near };
    bail!("there is no alert {alert}; did you mean {}?", meant.join(" or "))
}

/// Returns name and text of each runbook.
fn sections() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let name = heading.trim_start_matches('#').trim();
            is_open = name.starts_with("TrainingJob") && name.chars().all(|c| c.is_ascii_alphanumeric());
            if is_open {
                all.push((name.to_owned(), String::new()));
            }
        }
        if let (true, Some((_, text))) = (is_open, all.last_mut()) {
            text.push_str(line);
            text.push('\n');
        }
    }
    all.into_iter().map(|(name, text)| (name, text.trim_end().to_owned() + "\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::understood;

    const RULES: &str = include_str!("../../../deploy/monitoring/rules.yaml");

    #[test]
    fn each_alert_ends_with_a_valid_command() {
        let label = |name: &str| format!("{{{{ $labels.{name} | reReplaceAll \"[^a-z0-9.-]\" \"\" }}}}");
        for alert in RULES.split("- alert: ").skip(1) {
            let name = alert.lines().next().unwrap();
            let description = alert.split("runbook_url:").next().unwrap().trim_end();
            let line = description.lines().last().unwrap().replace(&label("training_job"), "JOB");
            let line = line.replace(&label("namespace"), "NAMESPACE");
            let (_, command) = line.split_once(": kubectl trainingjob ").unwrap_or_else(|| panic!("{name}: {line}"));
            let names_job = command.contains(" JOB -n NAMESPACE") || command == format!("runbook {name}");
            assert!(names_job, "{name}: {command}");
            understood(&format!("kubectl trainingjob {command}"))
                .unwrap_or_else(|why| panic!("{name}: {command}: {why}"));
        }
    }

    #[test]
    fn each_alert_has_a_runbook() {
        let alerts: Vec<&str> = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() > 10, "{alerts:?}");
        for alert in alerts {
            let text = runbook(alert).unwrap();
            assert!(text.contains(alert) && text.lines().count() > 2, "{text}");
        }
        assert!(runbook("trainingjobfailed").is_ok());
        let unknown = runbook("TrainingJobFaild").unwrap_err().to_string();
        assert!(unknown.contains("did you mean TrainingJobFailed"), "{unknown}");
    }
}
