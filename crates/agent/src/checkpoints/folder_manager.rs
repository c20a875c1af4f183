//! Manages one folder of checkpoints.

use crate::checkpoints::choice::{CheckpointOrigin, ResumeChoice};
use crate::checkpoints::copies::{Copies, CopyTarget, PartSender, open_uri, places, put_together};
use crate::checkpoints::found::{bad_ones, depth, kept, look_at, verify_for_start};
use crate::checkpoints::heartbeat::Heartbeat;
use crate::checkpoints::problem::{doubt, failed, refused};
use crate::checkpoints::start::{Work, is_own_failure};
use crate::checkpoints::{AttemptStage, CheckpointManager, block_on, stand_back};
use crate::gang::judge::alone;
use crate::now;
use crate::panics::catch_parser_panic;
use checkpoint::best::{BEST, link_best, unlink_best};
use checkpoint::budget::Budget;
use checkpoint::choose::{Candidate, Doubt, Location, Query, Start, Wish, choose};
use checkpoint::files::Member;
use checkpoint::folder::Folder;
use checkpoint::found::{Depth, FoundCheckpoint, Verdict};
use checkpoint::inventory::{Inventory, KnownCheckpoint, Proofs, Read, Reading, Scan, Stage};
use checkpoint::keep::{Mode, RetentionRules, saves_to_delete};
use checkpoint::remove::{empty_trash, remove_save};
use checkpoint::series::{Series, saves};
use checkpoint::space::{nearly_full, space};
use checkpoint::wording::shown;
use jiff::{SignedDuration, Timestamp};
use protocol::attempt::AttemptEnd;
use protocol::checkpoints::{CheckpointPolicy, Checkpoints, GoodCheckpoint, Problem, ProblemKind};
use protocol::report::{LaunchError, LaunchErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use store::{ErrorKind, Manifest, StoreError};

/// Rate limit for reading checkpoints, in bytes per second, so that the training's own reads do not wait.
const PACE: u64 = 256 << 20;
/// Highest multiple of `PACE` while several checkpoints wait to be read.
const MOST_PACES: usize = 8;
/// Time limit of one scan of the folder. The next scan does the rest.
const LOOK: Duration = Duration::from_secs(60);
/// How long a worker waits for the checkpoint that the first worker has fetched.
const FETCH: Duration = Duration::from_secs(600);
/// Limit of entries that are listed before a start, if the usual limit does not suffice.
const MANY: u64 = 5_000_000;
/// How long the first worker's agent may be silent before it counts as gone.
const GONE: Duration = Duration::from_secs(15);
/// Interval between status updates while the end of the pod waits for copies.
const TELL: Duration = Duration::from_secs(5);
/// Interval between checks whether a store's answer is still wanted.
const CALLED_OFF: Duration = Duration::from_millis(200);
/// Interval between requests to a store that does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Folder below the root for checkpoints that were fetched for `resumeFrom`.
const FETCHED: &str = "resumed-from";

/// Manages one folder during one attempt.
pub(super) struct FolderManager<'a> {
    manager: &'a Arc<CheckpointManager>,
    inventory: Inventory,
    started: Timestamp,
    attempt: u32,
    resumed: Option<GoodCheckpoint>,
    /// Whether it is known if the checkpoint that the attempt began with has worked.
    is_judged: bool,
    deleted: u64,
    /// Paths of checkpoints written by several workers whose files this worker has put into the store.
    put: BTreeSet<String>,
    copies: Vec<Arc<Copies>>,
    /// Sends this worker's files of a checkpoint.
    sender: Option<PartSender>,
    /// The files that were sent in each round.
    sent: BTreeMap<String, Vec<Member>>,
    /// Reads a checkpoint while scans continue.
    reader: Option<Reader>,
    /// Stops long operations.
    stop: Arc<AtomicBool>,
    heartbeat: Option<Heartbeat>,
}

/// A thread that reads every byte of one checkpoint.
struct Reader {
    thread: Option<JoinHandle<io::Result<Read>>>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    /// Starts reading, and wakes the manager at the end. Returns `None` if the kernel denies a thread.
    fn start(
        manager: &Arc<CheckpointManager>,
        reading: Reading,
        bytes_per_second: u64,
        keepers: Arc<AtomicBool>,
    ) -> Option<Self> {
        let (stop, manager) = (Arc::<AtomicBool>::default(), Arc::clone(manager));
        let budget = manager.budget().bytes_per_second(bytes_per_second);
        let budget = budget.stopped_by(Arc::clone(&stop)).stopped_by(keepers);
        let read = move || {
            stand_back();
            let path = reading.path().to_owned();
            let read = catch_parser_panic(|| reading.read(&budget));
            manager.changed.notify_all();
            read.unwrap_or_else(|| Err(io::Error::other(format!("the reader of {path} failed"))))
        };
        let thread = thread::Builder::new().name("reader".to_owned()).spawn(read).ok()?;
        Some(Self { thread: Some(thread), stop })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl<'a> FolderManager<'a> {
    pub(super) fn new(manager: &'a Arc<CheckpointManager>, attempt: u32) -> Self {
        let policy = &manager.policy;
        Self {
            manager,
            inventory: Inventory::new(&manager.root, &policy.uid, &policy.job).with_proofs(&manager.proofs),
            started: Timestamp::now(),
            attempt,
            resumed: None,
            is_judged: false,
            deleted: 0,
            put: BTreeSet::new(),
            copies: Vec::new(),
            sender: None,
            sent: BTreeMap::new(),
            reader: None,
            stop: manager.stop_flag(),
            heartbeat: None,
        }
    }

    /// Chooses the checkpoint that the attempt begins with. Waits while something that the choice depends on can't be
    /// read. The error says what could not be read, or why the attempt can't start.
    pub(super) fn choose(&mut self) -> Result<ResumeChoice, LaunchError> {
        let since = Instant::now();
        let mut reported = String::new();
        self.inventory.await_turn(Timestamp::now());
        loop {
            let hindrance = match self.decide()? {
                Ok(choice) => return Ok(choice),
                Err(hindrance) => hindrance,
            };
            let LaunchError { kind, message } = hindrance;
            if reported != message {
                self.manager.log.say(format_args!("the attempt waits: {message}"));
                let problem = match kind {
                    LaunchErrorKind::FolderInUse => ProblemKind::Shared,
                    _ => ProblemKind::Unreadable,
                };
                let problems = vec![Problem { kind: problem, message: message.clone() }];
                self.manager.publish(Checkpoints { problems, ..Checkpoints::default() });
                reported.clone_from(&message);
            }
            if since.elapsed() >= self.manager.patience() || self.manager.until() != AttemptStage::Run {
                // Another attempt tries again.
                let waited = since.elapsed().as_secs();
                return Err(LaunchError { kind, message: format!("{message} (waited for {waited} s)") });
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    /// Chooses the checkpoint that the attempt begins with. The inner error says what the attempt has to wait for.
    fn decide(&mut self) -> Result<Result<ResumeChoice, LaunchError>, LaunchError> {
        let policy = self.manager.current_policy();
        // Before the scan, which orders new checkpoints after those of the stores.
        let listed: Vec<_> = places(&policy).map(|place| (self.listed(&place), place)).collect();
        let scan = self.see_what_is_there();
        let mut others = scan.others.clone();
        if others.is_empty() {
            others = self.inventory.take_turn(Timestamp::now());
        }
        if !others.is_empty() {
            return Ok(Err(LaunchError { kind: LaunchErrorKind::FolderInUse, message: in_use(&others) }));
        }
        if let Ok(root) = Folder::root(&self.manager.root)
            && let Err(error) = unlink_best(&root)
        {
            self.manager.log.say(format_args!("can't remove the link {BEST} of an earlier job: {error}"));
        }
        self.heartbeat.get_or_insert_with(|| Heartbeat::start(self.manager));
        let query = self.query(&policy, &scan, &listed);
        let choice = self.chosen_of(query, &listed);
        for passed in &choice.passed {
            let path = shown(&passed.path);
            self.manager.log.say(format_args!("does not resume from {path}: {}", passed.why));
        }
        let found = match choice.start {
            Start::Unread(message) => {
                return Ok(Err(LaunchError { kind: LaunchErrorKind::StorageUnavailable, message }));
            }
            Start::NoneUsable(why) => return Err(none_usable(&why)),
            Start::Scratch => None,
            Start::From(found, place) => {
                let path = self.manager.root.join(&found.path);
                let from = match place {
                    Location::Volume => CheckpointOrigin::Here,
                    Location::Store(uri) => CheckpointOrigin::Store(uri),
                };
                Some((*found, path, from))
            }
            Start::ResumeFrom => match self.wished(&policy) {
                Err(error) if error.kind == LaunchErrorKind::StorageUnavailable => return Ok(Err(error)),
                found => Some(found?),
            },
        };
        if policy.resume_from.is_none() {
            self.inventory.use_no_wish();
        }
        let choice = checkpoint_choice(&policy, self.attempt);
        self.inventory.resume_from(found.as_ref().map(|(found, ..)| found.path.as_str()));
        let Some((found, path, from)) = found else { return Ok(Ok(choice)) };
        let kept = kept(&found, None);
        let at = found.step.map(|step| format!(" (step {step})")).unwrap_or_default();
        let (read, bytes) = (self.manager.read_since_end(), found.bytes);
        let path_shown = path.display();
        self.manager.log.say(format_args!("resumes from {path_shown}{at}; read {read} bytes to verify its {bytes}"));
        self.resumed = Some(kept.clone());
        Ok(Ok(ResumeChoice { path: path.to_string_lossy().into_owned(), from: Some(kept), fetched: from, ..choice }))
    }

    /// Scans the folder before the program starts. Checkpoints that are there already are not the program's own.
    fn see_what_is_there(&mut self) -> Scan {
        let budget = self.budget();
        let mut scan = self.inventory.scan(Timestamp::now(), Some(self.started), &budget);
        if !scan.whole {
            // Before a start it is worth the time to list the rest of a large folder.
            let budget = self.budget().entries(MANY);
            scan = self.inventory.scan(Timestamp::now(), Some(self.started), &budget);
        }
        if let Ok(root) = Folder::root(&self.manager.root) {
            let _ = empty_trash(&root, &budget);
        }
        scan
    }

    /// Everything that the choice depends on.
    fn query(&self, policy: &CheckpointPolicy, scan: &Scan, listed: &[(Listed, CopyTarget)]) -> Query {
        let (uid, inventory) = (&policy.uid, &self.inventory);
        let manifests = || listed.iter().flat_map(|(list, place)| list.iter().flatten().map(move |it| (it, place)));
        let used = self.manager.wish_used(policy);
        // A job that has written anything has used the `resumeFrom` of its spec. This does not hold for a later
        // request.
        let has_written = policy.request.is_none() && manifests().any(|(manifest, _)| manifest.writer == *uid);
        let wish = Wish::known_to(inventory, policy.wish(), used.is_some() || has_written);
        // The stores have the job's checkpoints from before the request beside those from after it.
        let is_since_request = |manifest: &Manifest| {
            policy.request.is_none() || !inventory.is_new() || used.is_some_and(|used| manifest.modified >= used)
        };
        let counts_there = |manifest: &Manifest| {
            manifest.writer == *uid && inventory.is_since_wish(manifest.order) && is_since_request(manifest)
        };
        let is_copy = |known: &KnownCheckpoint| {
            let same = |it: &Manifest| it.path == known.found.path && it.modified == known.found.modified;
            manifests().any(|(manifest, _)| counts_there(manifest) && same(manifest))
        };
        // If the ledger was lost, the time decides.
        let is_since = |known: &KnownCheckpoint| {
            let path = &known.found.path;
            inventory.is_new() && used.is_some_and(|used| known.found.modified >= used) && !inventory.is_others(path)
        };
        let on_volume = scan.found.iter().map(|known| {
            let candidate = Candidate::known_to(inventory, known);
            Candidate { counts: candidate.counts || is_copy(known) || is_since(known), ..candidate }
        });
        let in_stores = manifests().map(|(manifest, place)| {
            let same = scan.found.iter().find(|known| known.found.path == manifest.path);
            let failed = same.map_or(0, |known| known.failed_starts);
            let candidate = Candidate::in_store(manifest.found(), &place.uri, failed);
            Candidate { counts: counts_there(manifest), ..candidate }
        });
        let candidates: Vec<_> = on_volume.chain(in_stores).collect();
        let is_there = |counts: bool| {
            let on_volume = candidates.iter().filter(|it| it.place == Location::Volume);
            on_volume.into_iter().any(|it| (it.counts || !counts) && it.found.is_good())
        };
        // A checkpoint in the backup was on the volume before. It still is, unless the volume was replaced.
        let is_enough = match wish {
            _ if is_there(true) => true,
            Wish::Unused => self.attempt <= 1 || policy.shared,
            Wish::Used => false,
            Wish::None => policy.shared && is_there(false),
        };
        let unlisted_store = listed.iter().find_map(|(list, place)| {
            let is_needed = if place.is_backup { !is_enough } else { !policy.shared };
            list.as_ref().err().filter(|_| is_needed).map(ToString::to_string)
        });
        let is_missing =
            || matches!(Folder::root(&self.manager.root), Err(error) if error.kind() == io::ErrorKind::NotFound);
        let unlisted = scan.unlisted().filter(|_| !is_missing());
        Query { candidates, wish, unlisted: unlisted.or(unlisted_store), may_start_over: policy.may_start_over }
    }

    /// Chooses a checkpoint and verifies it first. A checkpoint in a store is fetched before it is verified.
    fn chosen_of(&mut self, query: Query, listed: &[(Listed, CopyTarget)]) -> checkpoint::choose::Choice {
        let budget = self.budget();
        let (manager, inventory) = (self.manager, &mut self.inventory);
        let depth = depth(&manager.policy);
        choose(query, |candidate| match &candidate.place {
            Location::Volume => verify_for_start(inventory, &candidate.found, depth, &budget).map(drop),
            Location::Store(uri) => {
                let of = listed.iter().find(|(_, place)| place.uri == *uri);
                let Some((Ok(manifests), place)) = of else { return Err(Doubt::Bad("it is gone".into())) };
                let is_it = |it: &&Manifest| it.path == candidate.found.path && it.modified == candidate.found.modified;
                let manifest = manifests.iter().find(is_it).ok_or_else(|| Doubt::Bad("it is gone".into()))?;
                let store = place.open(&manager.policy.uid).map_err(|error| doubt(&error))?;
                let restore = store.restore_with_beside(manifest, &manager.root);
                for_start(manager, None, uri, restore).map_err(|error| doubt(&error))?;
                // The bytes are those that were uploaded. Whether they can be loaded depends on their format.
                let restored = FoundCheckpoint { members: Vec::new(), ..candidate.found.clone() };
                verify_for_start(inventory, &restored, depth, &budget).map(drop)
            }
        })
    }

    /// The checkpoint of `resumeFrom`, which has to be good. From now on the job's own checkpoints take precedence over
    /// it.
    fn wished(
        &mut self,
        policy: &CheckpointPolicy,
    ) -> Result<(FoundCheckpoint, PathBuf, CheckpointOrigin), LaunchError> {
        let from = policy.resume_from.clone().unwrap_or_default();
        let name = match policy.request {
            Some(_) => format!("restart --from {from}"),
            None => format!("checkpoint.resumeFrom {from}"),
        };
        let (path, place) = if from.contains("://") {
            let path = self.fetch(policy, &from)?;
            (path, CheckpointOrigin::Uri(from.clone()))
        } else {
            (PathBuf::from(&from), CheckpointOrigin::Here)
        };
        let found = look_at(&path, depth(policy), &self.manager.proofs, &self.budget());
        let found = found.map_err(|doubt| refused(doubt, &name))?;
        // The path as scans below the root know it. No scan has a checkpoint that lies elsewhere.
        let known = path.strip_prefix(&self.manager.root).unwrap_or(&path).to_string_lossy().into_owned();
        self.inventory.use_wish(policy.wish().unwrap_or_default());
        self.manager.use_wish(policy);
        Ok((FoundCheckpoint { path: known, ..found }, path, place))
    }

    fn fetch(&self, policy: &CheckpointPolicy, uri: &str) -> Result<PathBuf, LaunchError> {
        let say = |error: &StoreError| self.manager.log.say(error);
        fetch_uri(&self.manager.root, policy, uri, &self.manager.proofs, &self.budget(), &say)
    }

    /// Budget for reads before a start. The next attempt stops them.
    fn budget(&self) -> Budget {
        self.manager.budget().stopped_by(Arc::clone(&self.stop))
    }

    /// Lists the checkpoints of a store.
    fn listed(&mut self, place: &CopyTarget) -> Listed {
        let list = async { place.open(&self.manager.policy.uid)?.list().await };
        let listing = for_start(self.manager, Some(self.manager.patience()), &place.uri, list)?;
        for unreadable in &listing.unreadable {
            self.manager.log.say(unreadable);
        }
        let newest = listing.manifests.iter().map(|manifest| manifest.order).max();
        self.inventory.continue_after(newest.unwrap_or_default());
        Ok(listing.manifests)
    }

    /// Fetches what the first worker has fetched, for a worker with a folder of its own.
    pub(super) fn fetch_as_chosen(&mut self, choice: &ResumeChoice) -> Result<(), LaunchError> {
        self.see_what_is_there();
        self.resumed.clone_from(&choice.from);
        self.inventory.resume_from(choice.from.as_ref().map(|kept| kept.path.as_str()));
        match &choice.fetched {
            CheckpointOrigin::Here => Ok(()),
            CheckpointOrigin::Uri(uri) => self.fetch(&self.manager.policy, uri).map(drop),
            CheckpointOrigin::Store(uri) => {
                let path = choice.from.as_ref().map(|kept| kept.path.clone()).unwrap_or_default();
                let place = places(&self.manager.policy).find(|place| place.uri == *uri);
                let fetch = || {
                    let store = place.as_ref()?.open(&self.manager.policy.uid).ok()?;
                    // Another writer may have put another checkpoint at the same path.
                    let all = for_start(self.manager, Some(FETCH), uri, store.list()).ok()?.manifests;
                    let is_chosen = |it: &Manifest| choice.from.as_ref() == Some(&kept(&it.found(), None));
                    let here = all.iter().filter(|manifest| manifest.path == path);
                    let manifest = here.clone().find(|it| is_chosen(it)).or_else(|| here.clone().next())?;
                    for_start(self.manager, None, uri, store.restore_with_beside(manifest, &self.manager.root)).ok()
                };
                let since = Instant::now();
                while fetch().is_none() {
                    if since.elapsed() >= FETCH || self.manager.until() != AttemptStage::Run {
                        let message = format!("{path} could not be fetched from {uri}, as the first worker has");
                        return Err(LaunchError { kind: LaunchErrorKind::StorageUnavailable, message });
                    }
                    std::thread::sleep(ASK_AGAIN);
                }
                Ok(())
            }
        }
    }

    /// Scans the folder, deletes checkpoints that the rules don't keep, requests copies, and reports the result.
    /// Returns how long the scan took, without waits.
    pub(super) fn look(&mut self, policy: &CheckpointPolicy, until: AttemptStage) -> Duration {
        let is_last = until != AttemptStage::Run;
        let began = Instant::now();
        let mut now = Timestamp::now();
        let budget = self.budget().bytes_per_second(PACE).time(LOOK);
        // The next attempt does not stop this scan, because only checkpoints that it lists are known as this job's own.
        let listing = self.manager.budget().bytes_per_second(PACE).time(LOOK);
        let mut scan = self.inventory.scan(now, Some(self.started), &listing);
        if is_last {
            // No process is left that could write, so the last files need not be unchanged for a while first.
            now += SignedDuration::from_secs(10);
            scan = self.inventory.scan(now, Some(self.started), &listing);
        }
        let took = began.elapsed();
        let most = policy.retention().saturating_add(1);
        // Checkpoints on a volume are read before they are used. If another attempt follows, it does not wait for that
        // here.
        let run = self.manager.current.get();
        let is_done = run.is_some_and(|run| run.observations.snapshot().0.exit_code == Some(0));
        let is_awaited = (until == AttemptStage::Pod && !policy.shared) || is_done;
        self.read_on(&mut scan, most, now, is_last, is_awaited);
        if is_last && is_awaited {
            self.inventory.prove(&mut scan, most, now, &budget);
        }
        self.judge_start(&scan, is_last);
        let is_first = self.manager.index == 0;
        if is_first {
            self.copies = self.manager.copies(policy);
        }
        self.note_put_together(&mut scan);
        for copies in &self.copies {
            let keep = keep(policy, &self.inventory, BTreeSet::new(), &scan);
            copies.want(self.to_copy(&scan, now, until), keep, scan.beside.clone());
        }
        if is_first {
            self.rotate(policy, &mut scan, now, until, &budget);
        } else {
            self.join_in(policy, &scan, until);
        }
        while self.is_leaving(until)
            && !self.copies.iter().filter(|copies| copies.is_needed()).all(|copies| copies.drain(TELL))
        {
            // The status shows what the end of the pod waits for.
            self.manager.publish(self.describe(policy, &scan));
        }
        if is_first {
            self.note_put_together(&mut scan);
            let reported = self.describe(policy, &scan);
            if is_done && policy.shared {
                self.link_best(reported.best.as_ref());
            }
            self.manager.publish(reported);
        }
        if is_last {
            self.manager.call_done();
        }
        // Between two attempts in this pod the job keeps the folder.
        if until == AttemptStage::Pod {
            self.heartbeat = None;
            let _ = self.inventory.leave();
        }
        took
    }

    /// Has another thread read the newest checkpoints, one after the other, and takes in the results. The more
    /// checkpoints wait, the faster it reads, because unproven checkpoints fill the volume.
    fn read_on(&mut self, scan: &mut Scan, most: usize, now: Timestamp, is_last: bool, is_awaited: bool) {
        if let Some(reader) =
            self.reader.take_if(|reader| is_last || reader.thread.as_ref().is_none_or(JoinHandle::is_finished))
        {
            if is_last && !is_awaited {
                reader.stop.store(true, Ordering::Relaxed);
            }
            self.take_in(reader, scan, now);
        }
        let next = scan.to_read(most, now);
        let Some(index) = next.first().filter(|_| !is_last && self.reader.is_none()) else { return };
        match self.inventory.begin_reading(&scan.found[*index].found, false, now, &self.manager.budget()) {
            Ok((_, Some(reading))) => {
                let pace = PACE.saturating_mul(next.len().min(MOST_PACES) as u64);
                self.reader = Reader::start(self.manager, reading, pace, Arc::clone(&self.stop));
            }
            Ok((known, None)) => scan.found[*index] = known,
            Err(error) => scan.notes.push(format!("{}: {error}", shown(&scan.found[*index].found.path))),
        }
    }

    fn take_in(&mut self, mut reader: Reader, scan: &mut Scan, now: Timestamp) {
        let Some(thread) = reader.thread.take() else { return };
        let read = thread.join().unwrap_or_else(|_| Err(io::Error::other("the reader failed")));
        match read.and_then(|read| self.inventory.end_reading(read, now)) {
            Ok(known) => {
                let place = scan.found.iter_mut().find(|it| it.found.path == known.found.path);
                if let Some(place) = place.filter(|place| place.found.members == known.found.members) {
                    *place = known;
                }
            }
            Err(error) => scan.notes.push(format!("a checkpoint could not be read to its end: {error}")),
        }
    }

    /// Whether the end of the pod waits for this scan. A scan that began before the program's end is followed by
    /// another one, and what it waits for may be called off.
    fn is_leaving(&self, until: AttemptStage) -> bool {
        until == AttemptStage::Pod && self.manager.until() == AttemptStage::Pod
    }

    /// Uploads this worker's files when the first worker's agent asks for them, to a store or to the backup. Then
    /// removes older uploaded files from this worker's own folder.
    fn join_in(&mut self, policy: &CheckpointPolicy, scan: &Scan, until: AttemptStage) {
        let places: Vec<_> = places(policy).collect();
        if places.is_empty() {
            return;
        }
        let mut heard = Instant::now();
        loop {
            let rounds = self.manager.rounds_of_first();
            if rounds.is_some() {
                heard = Instant::now();
            }
            if let Some(rounds) = &rounds {
                self.send_parts(&places, &rounds.rounds, scan);
            }
            // A first worker that is gone sends no more requests.
            let is_over = rounds.as_ref().map_or(heard.elapsed() > GONE, |rounds| rounds.done);
            if !self.is_leaving(until) || is_over {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        if until != AttemptStage::Run {
            self.sender = None;
        }
        self.drop_old_parts(policy, scan);
    }

    /// Sends the files of one round after the other in another thread, which has no time limit.
    fn send_parts(&mut self, places: &[CopyTarget], rounds: &[(String, String)], scan: &Scan) {
        let is_called = |round: &str| rounds.iter().any(|(_, called)| called == round);
        if let Some(sender) = self.sender.take_if(|sender| sender.is_done() || !is_called(&sender.round))
            && sender.is_done()
        {
            let (path, round, members) = (sender.path.clone(), sender.round.clone(), sender.members.clone());
            match sender.end() {
                Ok(()) => {
                    self.put.insert(path);
                    self.sent.insert(round, members);
                }
                Err(error) => self.manager.log.say(error),
            }
        }
        for (path, round) in rounds {
            let Some(place) = places.iter().find(|place| place.is_for(round)) else { continue };
            let found = scan.found.iter().find(|known| known.found.path == *path).map(|known| known.found.clone());
            let found = found.unwrap_or_else(|| FoundCheckpoint::nothing_at(path));
            // A checkpoint that was sent before all of it was written is sent again.
            if self.sender.is_none() && self.sent.get(round) != Some(&found.members) {
                self.sender = PartSender::start(self.manager, place, &found, round);
            }
        }
    }

    /// Removes uploaded checkpoints from this worker's own folder, except the newest saves of each series. A single
    /// worker can't decide whether those are complete.
    fn drop_old_parts(&mut self, policy: &CheckpointPolicy, scan: &Scan) {
        let Ok(root) = Folder::root(&self.manager.root) else { return };
        let retention = policy.retention();
        let put = scan.found.iter().filter(|known| known.own && self.put.contains(&known.found.path));
        let saves = saves(put, |known| &known.found);
        for save in saves.iter().filter(|save| retention > 0 && save.position.is_some()) {
            let later = |series: &Series| saves.iter().filter(|other| other.supersedes(save, series)).count();
            if save.series.iter().all(|series| later(series) >= retention) {
                let files: Vec<&FoundCheckpoint> = save.items.iter().map(|known| &known.found).collect();
                if let Err(error) = remove_save(&root, &files, &Budget::default()) {
                    self.manager.log.say(error);
                }
            }
        }
    }

    /// Judges the checkpoint that the attempt began with. A checkpoint with which programs repeatedly fail before they
    /// do any work is not chosen for ever.
    fn judge_start(&mut self, scan: &Scan, is_last: bool) {
        let Some(resumed) = self.resumed.as_ref().filter(|_| !self.is_judged) else { return };
        let Some(run) = self.manager.current.get() else { return };
        let (report, progress, _) = run.observations.snapshot();
        let since = report.started_at.unwrap_or(self.started);
        let work = Work {
            progressed: progress.last().is_some_and(|reading| reading.time > since),
            saved: scan.found.iter().any(|known| known.own && known.found.is_good() && known.found.modified > since),
            ran: report.finished_at.unwrap_or_else(now).duration_since(since),
        };
        if work.is_real() {
            self.inventory.good_start(&resumed.path);
            self.is_judged = true;
        } else if is_last && report.exit_code != Some(0) && report.error.is_none() {
            self.is_judged = true;
            if self.manager.in_gang {
                *self.manager.unjudged.lock() = Some(resumed.path.clone());
            } else if report.stopped_by.is_none() {
                self.count_start(&resumed.path.clone(), &alone(&report));
            }
        }
    }

    /// Judges the checkpoint of the gang's last attempt, whose end is known by now.
    pub(super) fn judge_last_start(&mut self, before: Option<&AttemptEnd>) {
        let path = self.manager.unjudged.lock().take();
        if let Some((path, end)) = path.zip(before) {
            self.see_what_is_there();
            self.count_start(&path, end);
        }
    }

    fn count_start(&mut self, path: &str, end: &AttemptEnd) {
        if is_own_failure(end) {
            self.inventory.failed_start(path);
        }
    }

    /// Marks checkpoints in the store as complete, though only some of their files are here.
    fn note_put_together(&self, scan: &mut Scan) {
        if !self.manager.is_sharded() {
            return;
        }
        let is_incomplete = |known: &KnownCheckpoint| matches!(known.found.verdict, Verdict::Incomplete { .. });
        for known in scan.found.iter_mut().filter(|known| known.own && is_incomplete(known)) {
            if self.copies.iter().any(|copies| copies.has(&known.found)) {
                (known.found.verdict, known.found.depth) = (put_together(), Depth::Content);
                known.stage = Stage::Written;
            }
        }
    }

    /// The job's good checkpoints, the newest first. Where other workers have files of them, it includes those that may
    /// be good. While the program runs, it excludes incomplete checkpoints of an earlier attempt, because some workers
    /// may have rewritten their files and others not yet.
    fn to_copy(&self, scan: &Scan, now: Timestamp, until: AttemptStage) -> Vec<FoundCheckpoint> {
        let may_be = |known: &KnownCheckpoint| {
            let is_part = matches!(known.found.verdict, Verdict::Incomplete { .. });
            let is_of_now = until != AttemptStage::Run || known.found.modified >= self.started;
            self.manager.is_sharded() && is_part && is_of_now && known.is_quiet(now)
        };
        let own = scan.found.iter().filter(|known| known.own && (known.is_proven() || may_be(known)));
        own.map(|known| known.found.clone()).collect()
    }

    /// Deletes checkpoints that the rules don't keep, and removes them from `scan`.
    fn rotate(
        &mut self,
        policy: &CheckpointPolicy,
        scan: &mut Scan,
        now: Timestamp,
        until: AttemptStage,
        budget: &Budget,
    ) {
        let Ok(root) = Folder::root(&self.manager.root) else { return };
        let _ = empty_trash(&root, budget);
        let to_copy = self.copies.iter().flat_map(|copies| copies.held(until)).collect();
        let keep = keep(policy, &self.inventory, to_copy, scan);
        let mut gone = BTreeSet::new();
        for save in saves_to_delete(&scan.found, &keep, now) {
            let files: Vec<&FoundCheckpoint> = save.iter().map(|known| &known.found).collect();
            match remove_save(&root, &files, budget) {
                Ok(()) => gone.extend(files.into_iter().map(|found| found.path.clone())),
                Err(error) => self.manager.log.say(error),
            }
        }
        self.deleted += gone.len() as u64;
        scan.found.retain(|known| !gone.contains(&known.found.path));
    }

    /// Gives the best checkpoint of a finished job a stable path.
    fn link_best(&self, best: Option<&GoodCheckpoint>) {
        let Some(best) = best else { return };
        match Folder::root(&self.manager.root).and_then(|root| link_best(&root, &best.path)) {
            Ok(true) => {}
            Ok(false) => self.manager.log.say(format_args!(
                "the folder of checkpoints has a {BEST} of another origin: no link to {} is made",
                shown(&best.path)
            )),
            Err(error) => self.manager.log.say(format_args!("can't link {BEST} to {}: {error}", shown(&best.path))),
        }
    }

    fn describe(&self, policy: &CheckpointPolicy, scan: &Scan) -> Checkpoints {
        let written = |known: &&KnownCheckpoint| known.found.is_good() && known.stage == Stage::Written;
        let latest = scan.found.iter().find(written).map(|known| kept(&known.found, None));
        let space = Folder::root(&self.manager.root).and_then(|root| space(&root)).ok();
        let best = policy.keep_best.as_ref().and_then(|by| {
            let valued = scan.found.iter().filter(written).filter_map(|known| {
                let metrics = &known.found.metrics;
                let value = metrics.get(&by.metric).or_else(|| metrics.get(&format!("eval_{}", by.metric)))?;
                value.is_finite().then_some((&known.found, *value))
            });
            let better = |a: &f64, b: &f64| if by.max { a > b } else { a < b };
            let best = valued.reduce(|best, other| if better(&other.1, &best.1) { other } else { best })?;
            Some(kept(best.0, Some(best.1)))
        });
        let copied = self.copies.iter().filter_map(|copies| copies.last()).min_by_key(|kept| kept.time);
        Checkpoints {
            best,
            resumed_from: self.resumed.clone(),
            wish_used: None,
            request: None,
            valid: scan.count(|verdict| *verdict == Verdict::Valid),
            complete: scan.count(|verdict| matches!(verdict, Verdict::Complete { .. })),
            incomplete: scan.count(|verdict| matches!(verdict, Verdict::Incomplete { .. })),
            corrupted: scan.count(|verdict| matches!(verdict, Verdict::Corrupted { .. })),
            deleted: self.deleted,
            free_bytes: space.map(|space| space.free),
            total_bytes: space.map(|space| space.total),
            copied,
            to_copy: self.copies.iter().find_map(|copies| copies.pending()),
            problems: self.problems(scan, latest.as_ref(), space),
            latest,
        }
    }

    fn problems(
        &self,
        scan: &Scan,
        latest: Option<&GoodCheckpoint>,
        space: Option<checkpoint::space::Space>,
    ) -> Vec<Problem> {
        let mut problems = bad_ones(scan);
        if let Some(message) = space.and_then(|space| nearly_full(&space, latest.map(|latest| latest.bytes))) {
            problems.push(Problem { kind: ProblemKind::NearlyFull, message });
        }
        problems.extend(self.copies.iter().filter_map(|copies| copies.failing()));
        if !scan.others.is_empty() {
            let names: Vec<_> = scan.others.iter().map(|name| shown(name)).collect();
            let message = format!(
                "the folder of checkpoints is also used by {}: nothing is deleted from it; give each job a claim or a folder \
                 of its own",
                names.join(", ")
            );
            problems.push(Problem { kind: ProblemKind::Shared, message });
        }
        if !scan.whole
            && let Some(note) = scan.notes.first()
        {
            problems.push(Problem { kind: ProblemKind::Unreadable, message: note.clone() });
        }
        problems.sort_by_key(|problem| problem.kind);
        problems
    }
}

/// Waits for a store's work before a start, in however many answers, until the attempt ends or `most` has passed.
/// Fetches have no such limit, because a large checkpoint takes hours.
fn for_start<T>(
    manager: &CheckpointManager,
    most: Option<Duration>,
    uri: &str,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let since = Instant::now();
    let given_up = async {
        while manager.until() == AttemptStage::Run && most.is_none_or(|most| since.elapsed() < most) {
            tokio::time::sleep(CALLED_OFF).await;
        }
    };
    block_on(async {
        tokio::select! {
            done = work => done,
            () = given_up => {
                let waited = since.elapsed().as_secs();
                let remedy = "Check that the endpoint is that of the store, and how much lies below the prefix";
                let why = format!("{uri}: it has answered for {waited} s and is not done. {remedy}");
                Err(StoreError::new(ErrorKind::Unavailable, why))
            }
        }
    })
}

/// The checkpoints of a store, or why they could not be listed.
type Listed = Result<Vec<Manifest>, StoreError>;

/// A choice that begins at step 0.
fn checkpoint_choice(policy: &CheckpointPolicy, attempt: u32) -> ResumeChoice {
    ResumeChoice { uid: policy.uid.clone(), attempt, ..ResumeChoice::default() }
}

fn in_use(others: &[String]) -> String {
    let names: Vec<_> = others.iter().map(|name| shown(name)).collect();
    let names = names.join(", ");
    format!(
        "job {names} writes to the same folder of checkpoints, or did so within the last five minutes; give each job a claim \
         or an nfsPath of its own"
    )
}

fn none_usable(why: &str) -> LaunchError {
    let message = format!(
        "none of this job's checkpoints can be used: {why}; repair one and ask for a restart, or set \
         checkpoint.ifNoneUsable to StartOver to begin at step 0"
    );
    LaunchError { kind: LaunchErrorKind::NoUsableCheckpoint, message }
}

/// The retention rules of the policy.
pub(super) fn keep(
    policy: &CheckpointPolicy,
    inventory: &Inventory,
    to_copy: BTreeSet<String>,
    scan: &Scan,
) -> RetentionRules {
    let mode = |max: bool| if max { Mode::Max } else { Mode::Min };
    RetentionRules {
        retention: policy.retention(),
        best: policy.keep_best.as_ref().map(|best| (best.metric.clone(), mode(best.max))),
        resumed_from: inventory.resumed_from().map(str::to_owned),
        to_copy,
        is_shared: !scan.others.is_empty(),
    }
}

/// Fetches the checkpoint at a URI, once for the job, and returns its local path. Passes temporary errors to `say`.
pub(super) fn fetch_uri(
    root: &Path,
    policy: &CheckpointPolicy,
    uri: &str,
    proofs: &Proofs,
    budget: &Budget,
    say: &dyn Fn(&StoreError),
) -> Result<PathBuf, LaunchError> {
    let failed = |error: &StoreError| {
        let LaunchError { kind, message } = failed(error);
        let of = if policy.request.is_some() { "restart --from" } else { "checkpoint.resumeFrom" };
        LaunchError { kind, message: format!("{of}: {message}") }
    };
    let name = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    // Two addresses may end in the same name.
    let request: String = policy.request.iter().flat_map(|it| it.chars()).filter(char::is_ascii_alphanumeric).collect();
    let folder = format!("{FETCHED}/{}{request}", policy.uid);
    let path = root.join(&folder).join(name);
    // A link there would lead to files that others have written.
    let is_there = Folder::root(root).and_then(|root| root.folder(&folder)).is_ok() && path.exists();
    if is_there && look_at(&path, depth(policy), proofs, budget).is_ok() {
        return Ok(path);
    }
    let since = Instant::now();
    loop {
        let store = open_uri(policy, uri).map_err(|error| failed(&error))?;
        match block_on(store.restore_prefix(root, &folder)) {
            Ok(path) => return Ok(path),
            Err(error) if error.is_temporary() && since.elapsed() < FETCH => {
                say(&error);
                std::thread::sleep(ASK_AGAIN);
            }
            Err(error) => return Err(failed(&error)),
        }
    }
}
