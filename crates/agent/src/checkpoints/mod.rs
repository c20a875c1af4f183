//! Manages the checkpoints. The checkpoint manager chooses the one that a run resumes from, and watches what the program writes. It
//! deletes checkpoints that are not needed any more, and copies those that must outlive the pod.
//!
//! All of it happens in separate threads at the lowest priority for processor and disk, so the training never waits for
//! it. If all workers share a folder, one worker's agent manages it. If each worker has its own, each agent manages its
//! own.

pub mod choice;
pub mod commands;
mod copies;
mod folder_manager;
mod found;
mod heartbeat;
mod problem;
mod start;

use crate::agent_log::AgentLog;
use crate::checkpoints::choice::{NoRounds, ROUNDS, ResumeChoice, Rounds};
pub use crate::checkpoints::copies::CopyStatus;
use crate::checkpoints::copies::{Copies, places};
use crate::checkpoints::folder_manager::FolderManager;
use crate::gang::{self, read_key};
use crate::panics::catch_parser_panic;
use crate::run::view::CurrentRun;
use crate::variables::variable;
use crate::wake::Wake;
use crate::{now, read_json};
use ::gang::frame::AnswerKey;
use checkpoint::budget::Budget;
use checkpoint::folder::Folder;
use checkpoint::inventory::Proofs;
use checkpoint::ledger;
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use protocol::attempt::AttemptEnd;
use protocol::checkpoints::{CheckpointPolicy, Checkpoints};
use protocol::gang::GangPast;
use protocol::report::{LaunchError, LaunchErrorKind};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Interval between scans of the folder.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// The interval is at least this many times the duration of a scan, for slow file servers.
const SHARE: u32 = 10;
/// How long an attempt waits for a folder or a store that can't be read, or that another job writes to.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long the end of a pod may wait for the scan of the program's last files.
const LAST_LOOK: Duration = Duration::from_secs(30);
/// How long the end of a pod may wait for copies of files that would be lost with it.
const LAST_COPY: Duration = Duration::from_secs(6 * 60 * 60);

/// Manages the checkpoints as long as the container lives.
pub struct CheckpointManager {
    policy_file: PathBuf,
    /// The policy as it was when the container started.
    policy: CheckpointPolicy,
    /// Where the checkpoints are.
    root: PathBuf,
    /// Index of this worker.
    index: u32,
    /// When the container started, which distinguishes it from every other start.
    started: Timestamp,
    current: Arc<CurrentRun>,
    wake: Arc<Wake>,
    log: Arc<AgentLog>,
    state: Mutex<State>,
    /// Wakes the thread.
    changed: Condvar,
    /// Stops long operations of the work that was begun last.
    stop: Mutex<Arc<AtomicBool>>,
    /// Checkpoints that this container has read. An attempt that resumes from one of them does not read it again.
    proofs: Proofs,
    /// Bytes of checkpoints that were read, and how many those were when the last program ended.
    read: Arc<AtomicU64>,
    read_at_end: AtomicU64,
    /// The thread that does the work.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// Copies in the stores, over all attempts of this pod.
    copies: Mutex<Vec<Arc<Copies>>>,
    /// When an attempt first resumed from `resumeFrom`, as the operator or this agent knows it.
    wish_used: Mutex<Option<UsedWish>>,
    /// Whether there is a gang, which decides how an attempt has ended.
    in_gang: bool,
    /// The key with which the first worker's agent proves the rounds. None if there are no other workers.
    rounds_key: Option<AnswerKey>,
    /// Whether it was logged that something else answers at the first worker's address.
    has_met_stranger: AtomicBool,
    /// The checkpoint of the last attempt, if that ended before real work. The way it ended decides whether that
    /// counts.
    unjudged: Mutex<Option<String>>,
    /// Whether this job has left the folder, so that no other job waits for it any more.
    has_left: AtomicBool,
}

/// Records that an attempt has resumed from `resumeFrom`, or from the checkpoint that a restart request named.
#[derive(Clone, Debug)]
struct UsedWish {
    /// When that happened for the first time.
    time: Timestamp,
    /// The restart request.
    request: Option<String>,
}

impl UsedWish {
    fn from_past(past: &GangPast) -> Option<Self> {
        Some(Self { time: past.wish_used?, request: past.request.clone() })
    }
}

#[derive(Default)]
struct State {
    chosen: Option<Result<ResumeChoice, LaunchError>>,
    published: Option<Checkpoints>,
    /// What is still to be done.
    until: AttemptStage,
    has_settled: bool,
    /// The work that was requested last waits for the work before it.
    is_pending: bool,
    /// The checkpoints whose files every worker has to put into the store.
    rounds: Rounds,
}

/// What is still to be done in an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AttemptStage {
    /// The program runs.
    #[default]
    Run,
    /// The program has ended, and another attempt may follow in this pod. One more scan follows, without waiting for
    /// copies.
    Attempt,
    /// The program has ended, and the pod with it. Files that would be lost are copied first.
    Pod,
}

impl CheckpointManager {
    /// Reads the policy. If it can't be read, the agent logs that and does not manage the checkpoints.
    pub fn new(
        policy_file: &Path,
        gang: Option<&gang::Options>,
        current: &Arc<CurrentRun>,
        wake: &Arc<Wake>,
        log: &Arc<AgentLog>,
    ) -> Option<Arc<Self>> {
        store::choose_tls();
        let policy = match read_policy(policy_file) {
            Ok(policy) => policy,
            Err(error) => {
                let file = policy_file.display();
                log.say(format_args!("can't read --checkpoints {file}: {error}; the checkpoints are not managed"));
                return None;
            }
        };
        // A gang that needs its key and can't read it does not start.
        let key = gang.and_then(|gang| read_key(gang.key.as_deref()?).ok());
        Some(Arc::new(Self {
            policy_file: policy_file.to_owned(),
            rounds_key: key.map(|key| AnswerKey::derive(&key, &policy.uid, ROUNDS)),
            has_met_stranger: AtomicBool::new(false),
            policy,
            root: PathBuf::from(variable("CHECKPOINT_DIR")?),
            started: Timestamp::now(),
            index: variable("NODE_RANK").and_then(|rank| rank.parse().ok()).unwrap_or(0),
            current: Arc::clone(current),
            wake: Arc::clone(wake),
            log: Arc::clone(log),
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: Mutex::default(),
            proofs: Proofs::default(),
            read: Arc::default(),
            read_at_end: AtomicU64::new(0),
            thread: Mutex::default(),
            copies: Mutex::default(),
            wish_used: Mutex::new(gang.and_then(|gang| UsedWish::from_past(&gang.past))),
            in_gang: gang.is_some(),
            unjudged: Mutex::default(),
            has_left: AtomicBool::new(false),
        }))
    }

    /// The port at which the other workers ask this agent, if they have to and no other port serves.
    pub fn port(&self) -> Option<u16> {
        (self.policy.workers > 1 && self.index == 0 && self.policy.port != 0).then_some(self.policy.port)
    }

    /// Begins an attempt. Chooses a checkpoint, or fetches the chosen one, then watches what the program writes.
    /// `before` is how the attempt before ended, if the gang's leader knows.
    ///
    /// # Errors
    /// Only where the kernel denies a thread.
    pub fn begin(
        self: &Arc<Self>,
        attempt: u32,
        given: Option<ResumeChoice>,
        before: Option<&AttemptEnd>,
    ) -> io::Result<()> {
        let before = before.cloned();
        // Stops the reads of earlier attempts, so that this one does not wait for them.
        self.stop.lock().store(true, Ordering::Relaxed);
        self.work_on(move |manager| manager.work(attempt, given, before.as_ref()))
    }

    /// Copies files that would be lost with the pod. [`CheckpointManager::has_settled`] says when that is done.
    ///
    /// # Errors
    /// Only where the kernel denies a thread.
    pub fn finish(self: &Arc<Self>, attempt: u32) -> io::Result<()> {
        self.work_on(move |manager| {
            manager.state.lock().until = AttemptStage::Pod;
            FolderManager::new(manager, attempt).look(&manager.current_policy(), AttemptStage::Pod);
        })
    }

    /// Releases the folder for other jobs, because no attempt follows in this pod. It does so in a separate thread,
    /// because a file server may hang.
    pub fn leave_folder(self: &Arc<Self>) {
        if self.index != 0 && self.policy.shared {
            return;
        }
        let manager = Arc::clone(self);
        let leave = move || {
            if let Some(thread) = manager.thread.lock().take() {
                let _ = thread.join();
            }
            let _ = Folder::root(&manager.root).and_then(|root| ledger::leave(&root, &manager.policy.uid));
            manager.has_left.store(true, Ordering::Relaxed);
            manager.wake.wake();
        };
        if thread::Builder::new().name("leave".to_owned()).spawn(leave).is_err() {
            self.has_left.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the folder is released.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed) || (self.index != 0 && self.policy.shared)
    }

    fn work_on(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) -> io::Result<()> {
        // Earlier work has made its last scan, or is asked here to end soon.
        self.end_attempt();
        self.state.lock().is_pending = true;
        *self.stop.lock() = Arc::default();
        let before = self.thread.lock().take();
        let manager = Arc::clone(self);
        let thread = thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
            stand_back();
            // Two threads in one folder would get in each other's way.
            let _ = before.map(thread::JoinHandle::join);
            let reported = manager.state.lock().published.take();
            *manager.state.lock() = State { published: reported, ..State::default() };
            if catch_parser_panic(|| work(&manager)).is_none() {
                // A start from step 0 instead would lose the existing checkpoints.
                let message = "choosing the checkpoint to resume from failed because of a bug in the agent".to_owned();
                manager.choose(Err(LaunchError { kind: LaunchErrorKind::LaunchFailed, message }));
            }
            manager.settle();
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// The checkpoint that the run resumes from, once it is chosen. The error says why the run can't start.
    pub fn chosen(&self) -> Option<Result<ResumeChoice, LaunchError>> {
        let state = self.state.lock();
        state.chosen.clone().filter(|_| !state.is_pending)
    }

    /// The status of the checkpoints that this agent manages.
    pub fn status(&self) -> Option<Checkpoints> {
        self.state.lock().published.clone()
    }

    /// The program has ended, and the pod will. Returns how long it is worth waiting for [`CheckpointManager::has_settled`].
    pub fn look_a_last_time(&self) -> Duration {
        self.end_run(AttemptStage::Pod);
        if self.is_only_copy() { LAST_COPY } else { LAST_LOOK }
    }

    /// The program has ended, and another attempt may follow in this pod. Returns how long it is worth waiting for
    /// [`CheckpointManager::has_settled`].
    pub fn end_attempt(&self) -> Duration {
        self.end_run(AttemptStage::Attempt);
        LAST_LOOK
    }

    fn end_run(&self, until: AttemptStage) {
        let mut state = self.state.lock();
        if state.until == AttemptStage::Run {
            self.read_at_end.store(self.read.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        state.until = until;
        self.changed.notify_all();
    }

    /// Bytes of checkpoints that were read since the last program ended.
    fn read_since_end(&self) -> u64 {
        self.read.load(Ordering::Relaxed).saturating_sub(self.read_at_end.load(Ordering::Relaxed))
    }

    /// Budget for reading checkpoints, which counts the bytes.
    fn budget(&self) -> Budget {
        Budget::default().counted_by(Arc::clone(&self.read))
    }

    /// What is still to be done.
    fn until(&self) -> AttemptStage {
        self.state.lock().until
    }

    /// Whether each worker has its own files of a checkpoint.
    fn is_sharded(&self) -> bool {
        !self.policy.shared && self.policy.workers > 1
    }

    /// Whether the program's files are lost with the pod unless they are copied.
    pub fn is_only_copy(&self) -> bool {
        !self.policy.shared && (self.policy.store.is_some() || self.policy.backup.is_some())
    }

    /// Whether everything is done that the end of the pod has to wait for.
    pub fn has_settled(&self) -> bool {
        let state = self.state.lock();
        state.has_settled && !state.is_pending
    }

    /// When an attempt first resumed from the checkpoint that this policy names.
    fn wish_used(&self, policy: &CheckpointPolicy) -> Option<Timestamp> {
        self.wish_used.lock().as_ref().filter(|used| used.request == policy.request).map(|used| used.time)
    }

    /// Records that an attempt resumes from the checkpoint that this policy names.
    fn use_wish(&self, policy: &CheckpointPolicy) {
        let mut used = self.wish_used.lock();
        if used.as_ref().is_none_or(|used| used.request != policy.request) {
            *used = Some(UsedWish { time: now(), request: policy.request.clone() });
        }
    }

    /// How long an attempt waits for a folder or a store that can't be read.
    fn patience(&self) -> Duration {
        match self.policy.patience_seconds {
            0 => PATIENCE,
            seconds => Duration::from_secs(seconds),
        }
    }

    /// The checkpoints whose files the other workers have to put into the store, as JSON. The answer is proven for the
    /// caller that sent `nonce`. Returns `None` without the gang's key.
    pub fn proven_rounds(&self, nonce: &[u8]) -> Option<Vec<u8>> {
        let rounds = Rounds { uid: self.policy.uid.clone(), ..self.state.lock().rounds.clone() };
        Some(self.rounds_key.as_ref()?.prove(nonce, &serde_json::to_vec(&rounds).ok()?))
    }

    fn call_for(&self, path: &str, round: &str) {
        self.state.lock().rounds.rounds.push((path.to_owned(), round.to_owned()));
    }

    fn call_off(&self, round: &str) {
        self.state.lock().rounds.rounds.retain(|(_, called)| called != round);
    }

    /// Whether a round is still requested. Another attempt, which may rewrite the round's checkpoint, calls off earlier
    /// rounds.
    fn calls_for(&self, round: &str) -> bool {
        self.state.lock().rounds.rounds.iter().any(|(_, called)| called == round)
    }

    fn call_done(&self) {
        self.state.lock().rounds.done = true;
    }

    fn rounds_of_first(&self) -> Option<Rounds> {
        let address = self.address_of_first();
        match block_on(choice::ask_rounds(&address, &self.policy.uid, self.rounds_key.as_ref()?)) {
            Ok(rounds) => Some(rounds),
            Err(NoRounds::Silent) => None,
            Err(NoRounds::Unproven) => {
                if !self.has_met_stranger.swap(true, Ordering::Relaxed) {
                    self.log.say(format_args!(
                        "what answers at {address} does not prove that it is worker 0 of this gang: it is not believed, and no \
                         files are put into a store for it; check that nothing else listens there"
                    ));
                }
                None
            }
        }
    }

    fn address_of_first(&self) -> String {
        format!("{}:{}", variable("MASTER_ADDR").unwrap_or_default(), self.policy.port)
    }

    fn work(self: &Arc<Self>, attempt: u32, given: Option<ResumeChoice>, before: Option<&AttemptEnd>) {
        if self.index != 0 && self.policy.shared {
            return self.choose(Ok(given.unwrap_or_default()));
        }
        let mut folders = FolderManager::new(self, attempt);
        let choice = match given {
            None => {
                folders.judge_last_start(before);
                folders.choose()
            }
            Some(choice) => folders.fetch_as_chosen(&choice).map(|()| choice),
        };
        let goes_on = choice.is_ok();
        self.choose(choice);
        if !goes_on {
            return;
        }
        loop {
            let until = self.until();
            let took = folders.look(&self.current_policy(), until);
            if until != AttemptStage::Run {
                return;
            }
            let every = match self.policy.look_seconds {
                0 => LOOK_EVERY,
                seconds => Duration::from_secs(seconds),
            };
            self.wait(every.max(took * SHARE));
        }
    }

    fn choose(&self, choice: Result<ResumeChoice, LaunchError>) {
        self.state.lock().chosen.get_or_insert(choice);
        self.wake.wake();
    }

    fn publish(&self, reported: Checkpoints) {
        let (wish_used, request) = match &*self.wish_used.lock() {
            Some(used) => (Some(used.time), used.request.clone()),
            None => (None, None),
        };
        let reported = Checkpoints { wish_used, request, ..reported };
        let mut state = self.state.lock();
        let is_news = state.published.as_ref() != Some(&reported);
        state.published = Some(reported);
        drop(state);
        if is_news && let Some(run) = self.current.get() {
            run.observations.changes.change();
        }
    }

    fn settle(&self) {
        self.state.lock().has_settled = true;
        self.wake.wake();
    }

    /// Waits until the time is over or the program has ended.
    fn wait(&self, time: Duration) {
        let mut state = self.state.lock();
        if state.until == AttemptStage::Run {
            self.changed.wait_for(&mut state, time);
        }
    }

    /// The policy as it is now: part of it may be changed while the program runs.
    fn current_policy(&self) -> CheckpointPolicy {
        read_policy(&self.policy_file).unwrap_or_else(|_| self.policy.clone())
    }

    /// The copies in each store. Their threads are started once, and restarted after they have ended.
    fn copies(self: &Arc<Self>, policy: &CheckpointPolicy) -> Vec<Arc<Copies>> {
        let mut copies = self.copies.lock();
        if copies.is_empty() || copies.iter().any(|copies| copies.has_ended()) {
            *copies = places(policy).filter_map(|place| Copies::start(self, place)).map(Arc::new).collect();
        }
        copies.clone()
    }

    /// Copies pending checkpoints without waiting for the interval.
    pub fn hurry_copies(&self) {
        self.copies.lock().iter().for_each(|copies| copies.copy_now());
    }

    /// The status of the copies, by store. Empty before the first scan.
    pub fn copy_statuses(&self) -> Vec<CopyStatus> {
        self.copies.lock().iter().map(|copies| copies.status()).collect()
    }

    fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop.lock())
    }
}

/// Waits for a store's work. One thread waits for one task at a time.
#[expect(clippy::expect_used, reason = "no thread without one")]
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the kernel gives an epoll instance to a process that has a thread").block_on(work)
}

/// Reads a policy.
///
/// # Errors
/// If there is no such file, or it holds something else.
pub fn read_policy(file: &Path) -> io::Result<CheckpointPolicy> {
    read_json(file)
}

/// Lowers this thread's priority, so that it gets processor and disk only when no other thread wants them.
pub fn stand_back() {
    const IOPRIO_WHO_PROCESS: i32 = 1;
    const IDLE: i32 = 3 << 13;
    // SAFETY: both calls take numbers and change this thread alone: on Linux a niceness is a thread's.
    unsafe {
        nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, 19);
        nix::libc::syscall(nix::libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IDLE);
    }
}
