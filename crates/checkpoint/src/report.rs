//! Reports about checkpoints: JSON for programs, and a table for people.

use crate::choose::Choice;
use crate::found::{Depth, Format, Verdict};
use crate::inventory::{KnownCheckpoint, Scan, Stage};
use crate::keep::RetentionDecision;
use crate::space::Space;
use crate::wording::{age, align, bytes, shown};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Report about a root.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The newest first.
    pub checkpoints: Vec<CheckpointRow>,
    /// What the scan could not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Other jobs that use the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<String>,
    /// How much room there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// What the run resumes from, if the caller asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

/// Report about one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRow {
    /// Path relative to the root, unescaped: it may contain line breaks.
    pub path: String,
    /// Optimiser steps done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Epochs done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// What the program measured.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When the last of its files was written.
    pub modified: Timestamp,
    /// Format in which it was written.
    pub format: Format,
    /// Whether it is good.
    pub verdict: Verdict,
    /// How thoroughly it was checked.
    pub depth: Depth,
    /// Its lifecycle stage.
    pub stage: Stage,
    /// Whether this job has written it.
    pub own: bool,
    /// Attempts that resumed from it and failed before their first progress.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_starts: u32,
    /// Why it would be deleted now, if it would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// Why it would be kept now, if the caller asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Report {
    /// Report about a scan.
    #[must_use]
    pub fn from_scan(scan: &Scan, space: Option<Space>) -> Self {
        Self {
            checkpoints: scan.found.iter().map(CheckpointRow::from_known).collect(),
            notes: scan.notes.clone(),
            shared_with: scan.others.clone(),
            space,
            choice: None,
        }
    }

    /// Adds for each checkpoint why it would be deleted or kept.
    #[must_use]
    pub fn with_fates(mut self, fates: &[(&KnownCheckpoint, RetentionDecision)]) -> Self {
        for line in &mut self.checkpoints {
            match fates.iter().find(|(known, _)| known.found.path == line.path) {
                Some((_, RetentionDecision::Delete(rule))) => line.delete = Some(rule.why().to_owned()),
                Some((_, RetentionDecision::Keep(rule))) => line.keep = Some(rule.why().to_owned()),
                None => {}
            }
        }
        self
    }

    /// Table for people: one line per checkpoint, and below it everything else.
    #[must_use]
    pub fn table(&self, now: Timestamp) -> String {
        let mut rows = vec![["STEP", "EPOCH", "SIZE", "AGE", "FORMAT", "VERDICT", "PATH"].map(str::to_owned)];
        rows.extend(self.checkpoints.iter().map(|line| line.row(now)));
        let mut text = if self.checkpoints.is_empty() { "no checkpoints\n".to_owned() } else { align(&rows) };
        if !self.shared_with.is_empty() {
            let names: Vec<String> = self.shared_with.iter().map(|name| shown(name)).collect();
            text += &format!("shared with {}: nothing is deleted\n", names.join(", "));
        }
        for note in &self.notes {
            text += &format!("note: {}\n", shown(note));
        }
        if let Some(space) = &self.space {
            text += &format!("{} of {} are free\n", bytes(space.free), bytes(space.total));
        }
        text
    }
}

impl CheckpointRow {
    fn from_known(known: &KnownCheckpoint) -> Self {
        let found = known.found.clone();
        Self {
            path: found.path,
            step: found.step,
            epoch: found.epoch,
            metrics: found.metrics,
            bytes: found.bytes,
            modified: found.modified,
            format: found.format,
            verdict: found.verdict,
            depth: found.depth,
            stage: known.stage,
            own: known.own,
            failed_starts: known.failed_starts,
            delete: None,
            keep: None,
        }
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let none = || "-".to_owned();
        let why = match (&self.delete, &self.keep) {
            (Some(why), _) => format!(" (delete: {why})"),
            (None, Some(why)) => format!(" (keep: {why})"),
            (None, None) => String::new(),
        };
        [
            self.step.map_or_else(none, |step| step.to_string()),
            self.epoch.map_or_else(none, |epoch| {
                format!("{epoch:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
            }),
            bytes(self.bytes),
            age(self.modified, now),
            self.format.as_str().to_owned(),
            self.verdict(),
            shown(&self.path) + &why,
        ]
    }

    fn verdict(&self) -> String {
        let more = match self.depth {
            _ if self.failed_starts > 0 => format!(", failed starts: {}", self.failed_starts),
            Depth::Content => String::new(),
            Depth::Structure => ", not read to its end yet".to_owned(),
        };
        match (&self.verdict, self.stage) {
            (Verdict::Valid, _) => format!("Valid{more}"),
            (Verdict::Complete { why }, _) => format!("Complete{more}: {}", shown(why)),
            (Verdict::Corrupted { file, why }, _) if file.is_empty() => format!("Corrupted: {}", shown(why)),
            (Verdict::Corrupted { file, why }, _) => format!("Corrupted: {}: {}", shown(file), shown(why)),
            (Verdict::Incomplete { why }, Stage::Writing) => format!("being written: {}", shown(why)),
            (Verdict::Incomplete { why }, Stage::Unread) => format!("unknown: {}", shown(why)),
            (Verdict::Incomplete { why }, _) => format!("Incomplete: {}", shown(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn line(path: &str, verdict: Verdict) -> CheckpointRow {
        CheckpointRow {
            path: path.to_owned(),
            step: Some(500),
            epoch: Some(1.5),
            metrics: BTreeMap::new(),
            bytes: 3 << 30,
            modified: Timestamp::from_second(NOW.as_second() - 7300).unwrap(),
            format: Format::HuggingFace,
            verdict,
            depth: Depth::Content,
            stage: Stage::Written,
            own: true,
            failed_starts: 0,
            delete: None,
            keep: None,
        }
    }

    #[test]
    fn table_shows_each_checkpoint_with_its_verdict() {
        let bad = Verdict::Corrupted { file: "a\x1b[31m.pt".into(), why: "is cut short".into() };
        let report = Report {
            checkpoints: vec![
                CheckpointRow { delete: Some("it is old".into()), ..line("checkpoint-500", Verdict::Valid) },
                line("checkpoint-400", Verdict::Complete { why: "a has no checksum".into() }),
                CheckpointRow { step: None, epoch: None, bytes: 12, modified: NOW, ..line("line\nbreak", bad) },
            ],
            notes: vec!["lost: Permission denied".into()],
            shared_with: vec!["llama".into()],
            space: Some(Space { free: 1 << 30, total: 2 << 30, free_inodes: 0, inodes: 0 }),
            choice: None,
        };
        let table = "\
STEP   EPOCH   SIZE      AGE   FORMAT         VERDICT                                   PATH
500    1.5     3.0 GiB   2h    Hugging Face   Valid                                     checkpoint-500 (delete: it is old)
500    1.5     3.0 GiB   2h    Hugging Face   Complete: a has no checksum               checkpoint-400
-      -       12 B      0s    Hugging Face   Corrupted: a\\u{1b}[31m.pt: is cut short   line\\nbreak
shared with llama: nothing is deleted
note: lost: Permission denied
1.0 GiB of 2.0 GiB are free
";
        assert_eq!(report.table(NOW), table);
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        assert_eq!(Report::default().table(NOW), "no checkpoints\n");
    }
}
