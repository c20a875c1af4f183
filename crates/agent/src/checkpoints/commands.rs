//! Commands on the checkpoints of a job, run by a user, or by the operator while no worker runs.

use crate::checkpoints::block_on;
use crate::checkpoints::copies::{
    CopyStatus, CopyTarget, copied as as_copied, copy_beside, open_uri, places, uncopied,
};
use crate::checkpoints::folder_manager::{fetch_uri, keep};
use crate::checkpoints::found::{bad_ones, depth, describe, kept, look_at, verify_for_start};
use crate::checkpoints::problem::{failed, in_store, refused};
use crate::serve::local::{copy_statuses, hurry_copies};
use checkpoint::budget::Budget;
use checkpoint::choose::{Candidate, Location, Query, Wish, choose, explain};
use checkpoint::folder::Folder;
use checkpoint::found::{FoundCheckpoint, Verdict};
use checkpoint::inventory::{Inventory, Proofs, Scan, Stage};
use checkpoint::keep::{RetentionDecision, decide_all, saves_to_delete};
use checkpoint::remove::{empty_trash, remove_save};
use checkpoint::report::Report as Table;
use checkpoint::series::saves;
use checkpoint::space::space;
use checkpoint::wording::shown;
use jiff::Timestamp;
use protocol::checkpoints::{CheckpointPolicy, Checkpoints};
use protocol::report::{LaunchError, LaunchErrorKind, Report, VERSION};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::{Manifest, StoreError};

/// The requested command.
pub enum Command {
    /// List the checkpoints on the volume and in the stores.
    List,
    /// Read every byte of the checkpoints on the volume. Fails if one is corrupted.
    Verify,
    /// Explain which checkpoint an attempt would resume from, and why not a newer one.
    Why,
    /// Delete checkpoints that the rules don't keep, or only print them.
    Prune {
        /// Only print what would be deleted.
        dry_run: bool,
    },
    /// Copy the newest save now.
    Backup {
        /// Where the job's own agent answers, if it runs.
        state: Option<PathBuf>,
    },
    /// Fetch a checkpoint from a store.
    Restore {
        /// Its path. Without it, the newest checkpoint.
        checkpoint: Option<String>,
        /// The destination folder, below the root unless it is absolute.
        to: PathBuf,
    },
    /// Check before the first attempt whether it can resume from `resumeFrom`.
    Check {
        /// Whether the volume is there, so that a checkpoint in a store can be fetched to it.
        has_volume: bool,
    },
    /// After the last attempt, copy checkpoints that are not copied yet.
    Copy,
}

/// One command over the checkpoints of a job.
pub struct Commands {
    /// The job's policy.
    pub policy: CheckpointPolicy,
    /// Where its checkpoints are.
    pub root: PathBuf,
    /// Whether to print JSON.
    pub json: bool,
}

/// The checkpoints of one place.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LocationListing {
    place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoints: Option<Table>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// How long requests to a store that does not answer are retried.
const PATIENCE: Duration = Duration::from_secs(120);
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Interval between checks whether the agent has made the requested copies.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

impl Commands {
    /// Runs the command and prints its result.
    ///
    /// # Errors
    /// What was found wrong, or could not be done.
    pub fn run(&self, command: &Command) -> Result<(), LaunchError> {
        match command {
            Command::List => self.list(),
            Command::Verify => self.verify(),
            Command::Why => self.why(),
            Command::Prune { dry_run } => self.prune(*dry_run),
            Command::Restore { checkpoint, to } => self.restore(checkpoint.as_deref(), to),
            Command::Check { has_volume } => self.check(*has_volume),
            Command::Backup { state } => self.backup(state.as_deref()),
            Command::Copy => self.copy().map(drop),
        }
    }

    /// Leaves the copying to the agent that manages the checkpoints, if there is one, because two processes would send
    /// the same files.
    fn backup(&self, state: Option<&Path>) -> Result<(), LaunchError> {
        if places(&self.policy).next().is_none() {
            let message =
                "the job copies its checkpoints nowhere: create it with checkpoint.backup, or with a bucket in \
                           checkpoint.storage"
                    .to_owned();
            return Err(LaunchError { kind: LaunchErrorKind::InvalidOption, message });
        }
        let unasked =
            |error: io::Error| LaunchError { kind: LaunchErrorKind::StorageUnavailable, message: error.to_string() };
        let Some(state) = state else { return self.copy().map(drop) };
        hurry_copies(state).map_err(unasked)?;
        let copies = loop {
            let copies = copy_statuses(state).map_err(unasked)?;
            if !copies.iter().any(|copies| copies.is_urgent) {
                break copies;
            }
            std::thread::sleep(LOOK_AGAIN);
        };
        let mut errors = Vec::new();
        for CopyStatus { uri, last, error, .. } in &copies {
            match (error, last) {
                (Some(error), _) => errors.push(error.clone()),
                (None, Some(last)) => println!("the newest copy in {uri} is {}", shown(&last.path)),
                (None, None) => println!("there is no good checkpoint yet to copy to {uri}"),
            }
        }
        if copies.is_empty() {
            errors.push("the agent has not looked at the checkpoints yet: ask again once the program runs".to_owned());
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(LaunchError { kind: LaunchErrorKind::StorageUnavailable, message: errors.join("; ") })
        }
    }

    /// Runs the command for the operator, which reads the returned report.
    pub fn report(&self, command: &Command) -> Report {
        let report = Report { version: VERSION, ..Report::default() };
        let done = match command {
            Command::Copy => self.copy().map(Some),
            other => self.run(other).map(|()| None),
        };
        match done {
            Ok(checkpoints) => Report { exit_code: Some(0), checkpoints, ..report },
            Err(error) => Report { exit_code: Some(1), error: Some(error), ..report },
        }
    }

    /// A scan that writes nothing.
    fn scan(&self) -> (Inventory, Scan) {
        let mut inventory = Inventory::new(&self.root, "", "");
        let scan = inventory.scan(Timestamp::now(), None, &Budget::default());
        (inventory, scan)
    }

    fn print(&self, table: &Table) {
        if self.json {
            println!("{}", serde_json::to_string(table).unwrap_or_default());
        } else {
            print!("{}", table.table(Timestamp::now()));
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "one of several commands, which can fail")]
    fn list(&self) -> Result<(), LaunchError> {
        let (_, scan) = self.scan();
        let room = Folder::root(&self.root).and_then(|root| space(&root)).ok();
        let mut all = vec![LocationListing {
            place: self.root.display().to_string(),
            checkpoints: Some(Table::from_scan(&scan, room)),
            error: None,
        }];
        for place in places(&self.policy) {
            let listed = self.listed(&place);
            let table = |manifests: &Vec<Manifest>| {
                let found = manifests.iter().map(|manifest| in_store(manifest, &self.policy.uid)).collect();
                Table::from_scan(&Scan { found, whole: true, ..Scan::default() }, None)
            };
            let (checkpoints, error) = (listed.as_ref().ok().map(table), listed.err().map(|error| error.to_string()));
            all.push(LocationListing { place: place.uri.clone(), checkpoints, error });
        }
        if self.json {
            println!("{}", serde_json::to_string(&all).unwrap_or_default());
            return Ok(());
        }
        for (index, at) in all.iter().enumerate() {
            println!("{}in {}:", if index > 0 { "\n" } else { "" }, shown(&at.place));
            if let Some(table) = &at.checkpoints {
                print!("{}", table.table(Timestamp::now()));
            }
            if let Some(error) = &at.error {
                println!("{error}");
            }
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), LaunchError> {
        let scan = Inventory::new(&self.root, "", "").read(Timestamp::now(), &Budget::default());
        self.print(&Table::from_scan(&scan, None));
        let bad = scan.found.iter().filter(|known| known.stage == Stage::Written && !known.found.is_good());
        let bad: Vec<_> =
            bad.map(|known| format!("{}: {}", shown(&known.found.path), describe(&known.found.verdict))).collect();
        if bad.is_empty() { Ok(()) } else { Err(unusable(bad.join("; "))) }
    }

    #[expect(clippy::unnecessary_wraps, reason = "one of several commands, which can fail")]
    fn why(&self) -> Result<(), LaunchError> {
        let (mut inventory, scan) = self.scan();
        let uid = &self.policy.uid;
        let on_volume = scan.found.iter().map(|known| Candidate {
            counts: inventory.is_written_by(uid, &known.found.path),
            was_whole: inventory.was_whole(&known.found.path),
            ..Candidate::on_volume(known)
        });
        let mut candidates: Vec<_> = on_volume.collect();
        for place in places(&self.policy) {
            match self.listed(&place) {
                Ok(manifests) => candidates.extend(manifests.iter().map(|it| Candidate {
                    counts: it.writer == *uid,
                    ..Candidate::in_store(it.found(), &place.uri, 0)
                })),
                Err(error) => println!("{error}"),
            }
        }
        let wish = match self.policy.wish() {
            None => Wish::None,
            Some(from) if inventory.is_used_by(uid, from) => Wish::Used,
            Some(_) => Wish::Unused,
        };
        let query = Query { candidates, wish, unlisted: scan.unlisted(), may_start_over: self.policy.may_start_over };
        let choice = choose(query, |candidate| match &candidate.place {
            Location::Store(_) => Ok(()),
            Location::Volume => {
                verify_for_start(&mut inventory, &candidate.found, depth(&self.policy), &Budget::default()).map(drop)
            }
        });
        if self.json {
            println!("{}", serde_json::to_string(&choice).unwrap_or_default());
        } else {
            explain(&choice).iter().for_each(|line| println!("{line}"));
        }
        Ok(())
    }

    fn prune(&self, dry_run: bool) -> Result<(), LaunchError> {
        let now = Timestamp::now();
        let mut inventory = Inventory::new(&self.root, &self.policy.uid, &self.policy.job);
        let mut scan = inventory.scan(now, None, &Budget::default());
        let most = self.policy.retention().saturating_add(1);
        inventory.prove(&mut scan, most, now, &Budget::default());
        // The stores have to be asked which checkpoints they are still to get.
        let good = || scan.found.iter().filter(|known| known.own && known.is_proven()).map(|known| &known.found);
        let mut to_copy = BTreeSet::new();
        for place in places(&self.policy) {
            let manifests = self.listed(&place).map_err(|error| failed(&error))?;
            let copies = manifests.iter().filter(|manifest| manifest.writer == self.policy.uid);
            let copies: BTreeSet<_> = copies.map(|manifest| (&manifest.path, manifest.modified)).collect();
            let has = |found: &FoundCheckpoint| copies.contains(&(&found.path, found.modified));
            let uncopied = uncopied(good(), place.is_backup, self.policy.retention(), has);
            to_copy.extend(uncopied.into_iter().map(|found| found.path.clone()));
        }
        let rules = keep(&self.policy, &inventory, to_copy, &scan);
        let fates = decide_all(&scan.found, &rules, now);
        if !dry_run {
            let root = Folder::root(&self.root).map_err(|error| broken(&self.root, &error))?;
            for save in saves_to_delete(&scan.found, &rules, now) {
                let files: Vec<_> = save.iter().map(|known| &known.found).collect();
                remove_save(&root, &files, &Budget::default()).map_err(|error| broken(&self.root, &error))?;
            }
            empty_trash(&root, &Budget::default()).map_err(|error| broken(&self.root, &error))?;
        }
        if self.json {
            self.print(&Table::from_scan(&scan, None).with_fates(&fates));
            return Ok(());
        }
        for (known, fate) in &fates {
            let path = shown(&known.found.path);
            match fate {
                RetentionDecision::Keep(rule) => println!("{path}: stays: {}", rule.why()),
                RetentionDecision::Delete(rule) if dry_run => println!("{path}: would be deleted: {}", rule.why()),
                RetentionDecision::Delete(rule) => println!("{path}: deleted: {}", rule.why()),
            }
        }
        if fates.is_empty() {
            println!("there are no checkpoints");
        }
        Ok(())
    }

    fn restore(&self, checkpoint: Option<&str>, to: &Path) -> Result<(), LaunchError> {
        let to = self.root.join(to);
        if to.exists() && to.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(unusable(format!("{} is there already: name a new folder in --to", to.display())));
        }
        let mut errors = Vec::new();
        let mut newest: Option<(CopyTarget, Manifest)> = None;
        for place in places(&self.policy) {
            match self.listed(&place) {
                Ok(manifests) => {
                    let found = manifests.into_iter().find(|it| checkpoint.is_none_or(|path| it.path == path));
                    if let Some(found) = found
                        && newest.as_ref().is_none_or(|(_, known)| found.newer(known).is_gt())
                    {
                        newest = Some((place, found));
                    }
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        let Some((place, manifest)) = newest else {
            let what = checkpoint.map_or("no checkpoint".to_owned(), |path| format!("no checkpoint {}", shown(path)));
            let stores: Vec<_> = places(&self.policy).map(|place| place.uri).collect();
            errors.push(match stores.is_empty() {
                true => {
                    "the job has no object store: neither checkpoint.backup nor a bucket in checkpoint.storage".into()
                }
                false => format!("there is {what} in {}", stores.join(" and in ")),
            });
            return Err(unusable(errors.join("; ")));
        };
        let store = place.open(&self.policy.uid).map_err(|error| failed(&error))?;
        std::fs::create_dir_all(&to).map_err(|error| broken(&to, &error))?;
        let path = block_on(store.restore(&manifest, &to)).map_err(|error| failed(&error))?;
        println!("{} is restored from {} and was read whole: {}", shown(&manifest.path), place.uri, path.display());
        Ok(())
    }

    fn check(&self, has_volume: bool) -> Result<(), LaunchError> {
        let Some(from) = &self.policy.resume_from else { return Ok(()) };
        let (depth, proofs, budget) = (depth(&self.policy), Proofs::default(), Budget::default());
        if !from.contains("://") {
            return match look_at(Path::new(from), depth, &proofs, &budget) {
                Ok(found) => {
                    println!("{from} is good: {}", found.format.as_str());
                    Ok(())
                }
                Err(doubt) => Err(refused(doubt, &format!("checkpoint.resumeFrom {from}"))),
            };
        }
        if has_volume {
            let say = |error: &StoreError| println!("{error}");
            let fetched = fetch_uri(&self.root, &self.policy, from, &proofs, &budget, &say)?;
            return match look_at(&fetched, depth, &proofs, &budget) {
                Ok(_) => Ok(()),
                Err(doubt) => Err(refused(doubt, &format!("checkpoint.resumeFrom {from}"))),
            };
        }
        let (files, bytes) =
            retry(|| block_on(open_uri(&self.policy, from)?.look())).map_err(|error| failed(&error))?;
        println!("{from} is there: {files} files, {bytes} bytes");
        Ok(())
    }

    /// Copies the newest good checkpoint, if it is not copied yet.
    fn copy(&self) -> Result<Checkpoints, LaunchError> {
        let now = Timestamp::now();
        let mut inventory = Inventory::new(&self.root, &self.policy.uid, &self.policy.job);
        let mut scan = inventory.scan(now, None, &Budget::default());
        inventory.prove(&mut scan, 1, now, &Budget::default());
        let good = scan.found.iter().filter(|known| known.own && known.found.is_good());
        let saves = saves(good, |known| &known.found);
        let save = saves.first().map(|save| save.items.clone()).unwrap_or_default();
        let newest = save.first();
        let mut reported = Checkpoints {
            latest: newest.map(|known| kept(&known.found, None)),
            valid: scan.count(|verdict| *verdict == Verdict::Valid),
            complete: scan.count(|verdict| matches!(verdict, Verdict::Complete { .. })),
            incomplete: scan.count(|verdict| matches!(verdict, Verdict::Incomplete { .. })),
            corrupted: scan.count(|verdict| matches!(verdict, Verdict::Corrupted { .. })),
            problems: bad_ones(&scan),
            ..Checkpoints::default()
        };
        for (place, known) in
            places(&self.policy).flat_map(|place| save.iter().map(move |known| (place.clone(), known)))
        {
            let upload = || {
                let store = place.open(&self.policy.uid)?;
                block_on(async {
                    copy_beside(&store, &self.root, &known.found, &scan.beside).await?;
                    store.upload(&self.root, &known.found).await
                })
            };
            match retry(upload) {
                Ok(manifest) => {
                    println!("{} is copied to {}", shown(&manifest.path), place.uri);
                    reported.copied = Some(as_copied(&manifest));
                }
                Err(error) => {
                    println!("{error}");
                    return Err(failed(&error));
                }
            }
        }
        let _ = inventory.leave();
        Ok(reported)
    }

    fn listed(&self, place: &CopyTarget) -> Result<Vec<Manifest>, StoreError> {
        let store = place.open(&self.policy.uid)?;
        block_on(store.list()).map(|listing| listing.manifests)
    }
}

/// Retries `work` while its error is temporary.
fn retry<T>(work: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let since = Instant::now();
    loop {
        match work() {
            Err(error) if error.is_temporary() && since.elapsed() < PATIENCE => std::thread::sleep(ASK_AGAIN),
            other => return other,
        }
    }
}

fn unusable(message: String) -> LaunchError {
    LaunchError { kind: LaunchErrorKind::CheckpointUnusable, message }
}

fn broken(path: &Path, error: &std::io::Error) -> LaunchError {
    LaunchError { kind: LaunchErrorKind::LaunchFailed, message: format!("{}: {error}", path.display()) }
}
