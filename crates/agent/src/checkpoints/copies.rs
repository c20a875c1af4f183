//! Copies in object stores. A separate thread makes them, so neither the training nor the scans of the folder wait for
//! them.

use crate::checkpoints::found::{failing, kept};
use crate::checkpoints::problem::in_store;
use crate::checkpoints::{AttemptStage, CheckpointManager, block_on, stand_back};
use crate::panics::catch_parser_panic;
use checkpoint::budget::Budget;
use checkpoint::files::Member;
use checkpoint::found::{FoundCheckpoint, Verdict};
use checkpoint::inventory::Inventory;
use checkpoint::keep::{RetentionRules, to_delete};
use checkpoint::series::{Series, saves};
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use protocol::checkpoints::{CheckpointPolicy, GoodCheckpoint, Problem, StorePlace};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use store::{Access, Destination, ErrorKind, Manifest, Store, StoreError};

/// First and longest interval between retries after a failure. The interval doubles in between.
const AGAIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];
/// How long to wait for the other workers' files of a checkpoint while no worker shows that it sends.
const PARTS: Duration = Duration::from_secs(600);
/// Files beside a checkpoint are copied with it up to the checkpoint's size plus this, in bytes.
const LARGE: u64 = 1 << 30;
/// Interval between checks whether the other workers' files are there.
const PARTS_AGAIN: Duration = Duration::from_secs(2);

/// A place in a store, and what it is for.
#[derive(Clone)]
pub(super) struct CopyTarget {
    pub uri: String,
    place: StorePlace,
    interval: Duration,
    /// Whether it holds copies of checkpoints that are kept elsewhere.
    pub is_backup: bool,
}

/// The stores of a policy: where checkpoints are kept, then where they are copied to.
pub(super) fn places(policy: &CheckpointPolicy) -> impl Iterator<Item = CopyTarget> {
    let store = policy.store.clone().map(|place| (place, Duration::ZERO, false));
    let backup = policy.backup.clone().map(|backup| (backup.place, Duration::from_secs(backup.interval_seconds), true));
    let all = store.into_iter().chain(backup);
    all.map(|(place, interval, is_backup)| CopyTarget { uri: place.uri.clone(), place, interval, is_backup })
}

impl CopyTarget {
    /// Opens it with the credentials as they are now.
    pub(super) fn open(&self, writer: &str) -> Result<Store, StoreError> {
        open(Destination::parse(&self.uri)?, &self.place, writer)
    }

    /// The name of a round in which every worker puts its files into this place and no other.
    fn round(&self, of: &str) -> String {
        format!("{} {of}", self.uri)
    }

    /// Whether it is this place that a round is for.
    pub(super) fn is_for(&self, round: &str) -> bool {
        round.strip_prefix(&self.uri).is_some_and(|rest| rest.starts_with(' '))
    }

    /// Whether its credentials are likely those of `destination`: of the same cloud.
    fn serves(&self, destination: &Destination) -> bool {
        Destination::parse(&self.uri).is_ok_and(|ours| ours.scheme == destination.scheme)
    }
}

/// Opens a URI that a user names, with the settings of the job's own store of that cloud, if it has one.
pub(super) fn open_uri(policy: &CheckpointPolicy, uri: &str) -> Result<Store, StoreError> {
    let destination = Destination::parse(uri)?;
    let place = places(policy).find(|place| place.serves(&destination)).map(|place| place.place);
    open(destination, &place.unwrap_or_default(), &policy.uid)
}

fn open(mut destination: Destination, place: &StorePlace, writer: &str) -> Result<Store, StoreError> {
    destination.account = destination.account.or_else(|| place.azure_account.clone());
    let access = Access {
        endpoint: place.endpoint.clone(),
        region: place.region.clone(),
        credentials: place.credentials.as_ref().map(PathBuf::from),
        ..Access::default()
    };
    Store::open(&destination, &access, writer)
}

/// The status of the copies in one store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyStatus {
    /// The store, with the prefix.
    pub uri: String,
    /// Whether a copy that a user requested is still pending.
    pub is_urgent: bool,
    /// The newest copy.
    pub last: Option<GoodCheckpoint>,
    /// Why the last try failed.
    pub error: Option<String>,
}

/// Which of a job's good checkpoints a store is still to get, the newest first. It gets the newest saves of each series,
/// as many as are kept there, or all if `retention` is 0. A backup gets the newest save.
pub(super) fn uncopied<'a>(
    good: impl IntoIterator<Item = &'a FoundCheckpoint>,
    is_backup: bool,
    retention: usize,
    has: impl Fn(&FoundCheckpoint) -> bool,
) -> Vec<&'a FoundCheckpoint> {
    let most = match retention {
        _ if is_backup => 1,
        0 => usize::MAX,
        retention => retention,
    };
    let mut counts: BTreeMap<Series, usize> = BTreeMap::new();
    let mut uncopied = Vec::new();
    for save in saves(good, |found| found).into_iter().take(if is_backup { 1 } else { usize::MAX }) {
        if !save.series.iter().any(|series| counts.get(series).is_none_or(|count| *count < most)) {
            continue;
        }
        uncopied.extend(save.items.iter().copied().filter(|found| !has(found)));
        for series in save.series {
            *counts.entry(series).or_default() += 1;
        }
    }
    uncopied
}

/// The copies of one folder in one store.
pub(super) struct Copies {
    place: CopyTarget,
    /// Whether the program's files are lost with the pod.
    is_last_chance: bool,
    /// Whether the checkpoints are kept in another store as well.
    is_second: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The retention rules of the store.
    keep: RetentionRules,
    /// Good checkpoints to copy.
    wanted: Vec<FoundCheckpoint>,
    /// Files beside the checkpoints, by folder.
    beside: BTreeMap<String, Vec<Member>>,
    /// Path and time of the checkpoints in the store. `None` until the store has been listed.
    have: Option<BTreeMap<String, Timestamp>>,
    /// Path of the checkpoint that is being copied.
    copying: Option<String>,
    /// Paths of checkpoints that are incomplete or were changed. The next scan brings them up to date.
    passed_over: BTreeSet<String>,
    /// Scans so far.
    looks: u64,
    /// The newest copy.
    last: Option<GoodCheckpoint>,
    error: Option<StoreError>,
    /// No more checkpoints follow. The wanted ones are copied at once.
    drains: bool,
    /// Whether a copy that a user requested is still pending.
    is_urgent: bool,
    /// The thread has ended.
    is_drained: bool,
}

impl State {
    fn has(&self, found: &FoundCheckpoint) -> bool {
        self.have.as_ref().is_some_and(|have| have.get(&found.path) == Some(&found.modified))
    }

    /// Checkpoints that are still to be copied, the newest first.
    fn waiting(&self, is_backup: bool) -> Vec<&FoundCheckpoint> {
        let possible = self.wanted.iter().filter(|found| !self.passed_over.contains(&found.path));
        uncopied(possible, is_backup, self.keep.retention, |found| self.has(found))
    }

    /// Whether another file of the same save is still to be copied.
    fn has_rest(&self, path: &str) -> bool {
        let all = saves(&self.wanted, |found| found);
        let save = all.into_iter().find(|save| save.items.iter().any(|found| found.path == path));
        save.is_some_and(|save| save.items.iter().any(|found| !self.has(found)))
    }
}

impl Copies {
    /// Starts the thread. Returns `None` if the kernel denies one.
    pub(super) fn start(manager: &Arc<CheckpointManager>, place: CopyTarget) -> Option<Self> {
        let is_last_chance = manager.is_only_copy();
        let is_second = place.is_backup && manager.policy.store.is_some();
        let shared = Arc::<Shared>::default();
        let (theirs, at, manager) = (Arc::clone(&shared), place.clone(), Arc::clone(manager));
        let work = move || {
            stand_back();
            let _ = catch_parser_panic(|| work(&theirs, &at, &manager));
            theirs.state.lock().is_drained = true;
            theirs.changed.notify_all();
        };
        thread::Builder::new().name("copies".to_owned()).spawn(work).ok()?;
        Some(Self { place, is_last_chance, is_second, shared })
    }

    /// Whether this very checkpoint is in the store.
    pub(super) fn has(&self, found: &FoundCheckpoint) -> bool {
        self.shared.state.lock().has(found)
    }

    /// Sets the checkpoints to copy, and the files beside them. The checkpoints are good, or may be together with files
    /// of other workers. `keep` decides which of them stay in the store.
    pub(super) fn want(
        &self,
        found: Vec<FoundCheckpoint>,
        keep: RetentionRules,
        beside: BTreeMap<String, Vec<Member>>,
    ) {
        let mut state = self.shared.state.lock();
        (state.wanted, state.keep, state.beside) = (found, keep, beside);
        state.passed_over.clear();
        state.looks += 1;
        state.drains = false;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether the end of the pod waits for this store, because uncopied files are lost with the pod. It does not wait
    /// for a failing backup if the job has another store.
    pub(super) fn is_needed(&self) -> bool {
        self.is_last_chance && !(self.is_second && self.failing().is_some())
    }

    /// Waits until all wanted checkpoints are copied, for at most `time`; no more follow. Returns whether they are.
    pub(super) fn drain(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.shared.state.lock();
        state.drains = true;
        self.shared.changed.notify_all();
        while !state.is_drained && !self.shared.changed.wait_until(&mut state, until).timed_out() {}
        state.is_drained
    }

    /// Whether the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.state.lock().is_drained
    }

    /// Copies pending checkpoints without waiting for the interval.
    pub(super) fn copy_now(&self) {
        self.shared.state.lock().is_urgent = true;
        self.shared.changed.notify_all();
    }

    /// The status of the copies.
    pub(super) fn status(&self) -> CopyStatus {
        let state = self.shared.state.lock();
        CopyStatus {
            uri: self.place.uri.clone(),
            is_urgent: state.is_urgent && !state.is_drained,
            last: state.last.clone(),
            error: state.error.as_ref().map(ToString::to_string),
        }
    }

    /// Paths of checkpoints that have to stay on the volume until they are copied. The end of a pod that does not wait
    /// for this store cuts off what is being copied, so that need not stay.
    pub(super) fn held(&self, until: AttemptStage) -> BTreeSet<String> {
        let is_cut_off = until == AttemptStage::Pod && !self.is_needed();
        let state = self.shared.state.lock();
        let waiting = state.waiting(self.place.is_backup).into_iter().map(|found| found.path.clone());
        waiting.chain(state.copying.clone().filter(|_| !is_cut_off)).collect()
    }

    /// The last copy.
    pub(super) fn last(&self) -> Option<GoodCheckpoint> {
        self.shared.state.lock().last.clone()
    }

    /// Path of the newest checkpoint, if it is not copied yet.
    pub(super) fn pending(&self) -> Option<String> {
        let state = self.shared.state.lock();
        let newest = state.wanted.iter().max_by(|a, b| a.newer(b));
        newest.filter(|found| !state.has(found)).map(|found| found.path.clone())
    }

    /// Why copies fail.
    pub(super) fn failing(&self) -> Option<Problem> {
        self.shared.state.lock().error.as_ref().map(failing)
    }
}

#[expect(clippy::match_same_arms, reason = "each arm is a rule of its own")]
fn work(shared: &Shared, place: &CopyTarget, manager: &CheckpointManager) {
    let (root, uid) = (&manager.root, &manager.policy.uid);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let mut failures = 0_u32;
    let mut due = Instant::now();
    loop {
        let (found, look) = {
            let mut state = shared.state.lock();
            let found = loop {
                let next = state.waiting(place.is_backup).first().copied().cloned();
                let is_asked = state.have.is_some();
                state.is_urgent &= next.is_some() || !is_asked;
                if state.drains && next.is_none() && is_asked {
                    return;
                }
                let wait = due.saturating_duration_since(Instant::now());
                let is_due = wait.is_zero() || state.is_urgent || (state.drains && failures == 0);
                match next {
                    _ if !is_asked && is_due => break None,
                    Some(found) if is_due => break Some(found),
                    Some(_) => drop(shared.changed.wait_for(&mut state, wait)),
                    None if is_asked => shared.changed.wait(&mut state),
                    None => drop(shared.changed.wait_for(&mut state, wait)),
                }
            };
            (found, state.looks)
        };
        shared.state.lock().copying = found.as_ref().map(|found| found.path.clone());
        let done: Result<Done, StoreError> = runtime.block_on(async {
            let store = place.open(uid)?;
            match &found {
                None => Ok(Done::Listed(store.list().await?.manifests)),
                Some(found) => {
                    let beside = shared.state.lock().beside.clone();
                    copy_beside(&store, root, found, &beside).await?;
                    let manifest = match manager.is_sharded() {
                        true => gather(manager, &store, place, found).await?,
                        false => store.upload(root, found).await?,
                    };
                    if !place.is_backup {
                        let keep = shared.state.lock().keep.clone();
                        rotate(&store, uid, &keep).await;
                    }
                    let _ = store.sweep().await;
                    Ok(Done::Copied(Box::new(manifest)))
                }
            }
        });
        let mut state = shared.state.lock();
        state.copying = None;
        match done {
            Ok(Done::Listed(manifests)) => {
                state.last = manifests.iter().filter(|it| it.writer == *uid).max_by_key(|it| it.stored).map(copied);
                // A checkpoint of another writer at the same path is no copy of this job's.
                let own = manifests.into_iter().filter(|it| it.writer == *uid);
                state.have = Some(own.map(|it| (it.path, it.modified)).collect());
                (failures, state.error) = (0, None);
                due = next_due(state.last.as_ref(), place.interval);
            }
            Ok(Done::Copied(manifest)) => {
                let kept = copied(&manifest);
                // The newest is copied first, and others may follow.
                if state.last.as_ref().is_none_or(|last| kept.step >= last.step) {
                    state.last = Some(kept);
                }
                let path = manifest.path.clone();
                state.have.get_or_insert_default().insert(manifest.path, manifest.modified);
                (failures, state.error) = (0, None);
                due = Instant::now() + if state.has_rest(&path) { Duration::ZERO } else { place.interval };
            }
            // The program still writes the checkpoint, or has removed it. This does not hold for the results of a later
            // scan: the checkpoint may be complete by now, and no scan follows the last one.
            Err(error) if error.trouble == ErrorKind::Changed => {
                if state.looks == look {
                    state.passed_over.extend(found.map(|found| found.path));
                }
                due = Instant::now();
            }
            Err(error) => {
                due = Instant::now() + (AGAIN[0] * 2_u32.saturating_pow(failures.min(8))).min(AGAIN[1]);
                failures = failures.saturating_add(1);
                (state.error, state.is_urgent) = (Some(error), false);
            }
        }
        shared.changed.notify_all();
    }
}

/// The result of an exchange with a store.
enum Done {
    Listed(Vec<Manifest>),
    Copied(Box<Manifest>),
}

/// When the next copy is due. A backup from before the agent's start counts.
fn next_due(last: Option<&GoodCheckpoint>, interval: Duration) -> Instant {
    let age = last.and_then(|kept| kept.time).map(|time| Timestamp::now().duration_since(time));
    let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or(interval);
    Instant::now() + interval.saturating_sub(age)
}

/// Copies the files beside the checkpoints of a folder before the checkpoints, so that a copy is never without them.
/// Large files are not copied unasked, because they are no configuration.
pub(super) async fn copy_beside(
    store: &Store,
    root: &Path,
    found: &FoundCheckpoint,
    beside: &BTreeMap<String, Vec<Member>>,
) -> Result<(), StoreError> {
    let folder = found.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let Some(members) = beside.get(folder) else { return Ok(()) };
    let most = found.bytes.saturating_add(LARGE);
    let mut bytes = 0_u64;
    let mut members = members.clone();
    members.sort_by_key(|member| member.size);
    members.retain(|member| {
        bytes = bytes.saturating_add(member.size);
        bytes <= most
    });
    members.sort_by(|a, b| a.path.cmp(&b.path));
    match store.upload_beside(root, folder, &members).await {
        // A growing log is copied with the next checkpoint, as it is then.
        Err(error) if error.trouble == ErrorKind::Changed => Ok(()),
        other => other,
    }
}

/// Gathers a checkpoint whose files lie in the workers' own folders. This worker sends its files, then waits for those
/// of the others, which ask for the rounds. A round is named after its content, so that a retry continues with the
/// files that were sent before. It ends with its attempt, or when no worker has shown for a while that it sends.
async fn gather(
    manager: &CheckpointManager,
    store: &Store,
    place: &CopyTarget,
    found: &FoundCheckpoint,
) -> Result<Manifest, StoreError> {
    let round = place.round(&format!("{} {} {}", found.path, found.modified, manager.started));
    let found = &FoundCheckpoint { verdict: put_together(), ..found.clone() };
    let inventory = Inventory::new(&manager.root, "", "");
    let lacks = |files: &[Member]| {
        inventory.lacks(found, files, &Budget::default()).unwrap_or_else(|error| Some(error.to_string()))
    };
    manager.call_for(&found.path, &round);
    let result = async {
        store.upload_part(&manager.root, found, 0, &round).await?;
        let mut since = Instant::now();
        let mut signs = Vec::new();
        loop {
            match store.finish(found, manager.policy.workers, &round, lacks).await {
                Err(error) if error.trouble == ErrorKind::Incomplete && !manager.calls_for(&round) => {
                    let message = format!("{}: another attempt has begun", found.path);
                    return Err(StoreError::new(ErrorKind::Changed, message));
                }
                Err(error) if error.trouble == ErrorKind::Incomplete => {
                    let seen = store.signs(&found.path, manager.policy.workers, &round).await?;
                    if seen != signs {
                        (signs, since) = (seen, Instant::now());
                    }
                    if since.elapsed() >= PARTS {
                        return Err(error);
                    }
                    tokio::time::sleep(PARTS_AGAIN).await;
                }
                other => return other,
            }
        }
    };
    let result = result.await;
    manager.call_off(&round);
    result
}

/// The verdict on a checkpoint whose files several workers have written, each into its own folder.
pub(super) fn put_together() -> Verdict {
    Verdict::Complete { why: "of the files of other workers only names and lengths were looked at".to_owned() }
}

/// Deletes checkpoints that the rules don't keep from the store in which this job keeps its checkpoints. A deletion
/// that fails is retried with the next copy.
async fn rotate(store: &Store, uid: &str, keep: &RetentionRules) {
    let Ok(listing) = store.list().await else { return };
    // Checkpoints of other writers may have the same paths. They belong neither to this job nor to its saves.
    let own: Vec<_> = listing.manifests.iter().filter(|manifest| manifest.writer == uid).collect();
    let all: Vec<_> = own.iter().map(|manifest| in_store(manifest, uid)).collect();
    for path in to_delete(&all, keep, Timestamp::now()) {
        if let Some(manifest) = own.iter().find(|manifest| manifest.path == path) {
            let _ = store.remove(manifest).await;
        }
    }
}

/// A thread that sends this worker's files of a checkpoint while scans continue.
pub(super) struct PartSender {
    pub path: String,
    pub round: String,
    pub members: Vec<Member>,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    stop: Arc<AtomicBool>,
}

impl PartSender {
    /// Starts the thread. Returns `None` if the kernel denies one.
    pub(super) fn start(
        manager: &Arc<CheckpointManager>,
        place: &CopyTarget,
        found: &FoundCheckpoint,
        round: &str,
    ) -> Option<Self> {
        let stop = Arc::<AtomicBool>::default();
        let (theirs, manager, place) = (Arc::clone(&stop), Arc::clone(manager), place.clone());
        let (path, members) = (found.path.clone(), found.members.clone());
        let (found, name) = (found.clone(), round.to_owned());
        let send = move || {
            stand_back();
            let store = place.open(&manager.policy.uid)?;
            let sent = block_on(async {
                let sent = store.upload_part(&manager.root, &found, manager.index, &name);
                tokio::select! {
                    sent = sent => sent,
                    () = stopped(&theirs) => {
                        Err(StoreError::new(ErrorKind::Changed, format!("{}: it is not asked for any more", found.path)))
                    }
                }
            });
            manager.changed.notify_all();
            sent
        };
        let thread = thread::Builder::new().name("part".to_owned()).spawn(send).ok()?;
        Some(Self { path, round: round.to_owned(), members, thread: Some(thread), stop })
    }

    /// Whether the thread has ended.
    pub(super) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The result of the sending.
    pub(super) fn end(mut self) -> Result<(), StoreError> {
        let thread = self.thread.take();
        let failed =
            || Err(StoreError::new(ErrorKind::Local, format!("{}: the thread that sends it failed", self.path)));
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| failed()))
    }
}

impl Drop for PartSender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The copy for the status, with the time at which it was complete.
pub(super) fn copied(manifest: &Manifest) -> GoodCheckpoint {
    GoodCheckpoint { time: Some(manifest.stored), ..kept(&manifest.found(), None) }
}
