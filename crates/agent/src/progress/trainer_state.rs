//! The Hugging Face Trainer's state in the newest checkpoint.
//!
//! The folder may hold states of earlier programs, which describe another run or another attempt.

use crate::progress::json;
use protocol::progress::Update;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

/// Highest number of bytes of a state that is read, because its history grows with every logged step.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// How long the program's start may wait for the list of existing states.
const PATIENCE: Duration = Duration::from_secs(2);
/// Coarsest resolution of file times.
const GRANULARITY: Duration = Duration::from_secs(2);

/// Looks for `trainer_state.json` in `directory` and in the directories in it.
pub struct TrainerStates {
    directory: PathBuf,
    started: SystemTime,
    /// The states at the start. Until they are known, no state counts as this program's.
    before: Arc<OnceLock<EarlierStates>>,
    /// The state that was read last.
    last: Option<State>,
}

/// A state's file, as its file system describes it.
#[derive(Clone, PartialEq, Eq)]
struct State {
    path: PathBuf,
    modified: SystemTime,
    bytes: u64,
}

/// The states from before the program.
struct EarlierStates {
    states: Vec<State>,
    /// The step in the newest of them.
    step: Option<f64>,
}

impl TrainerStates {
    /// Has to be called right before the program is started.
    pub fn new(directory: PathBuf) -> Self {
        let before = Arc::new(OnceLock::new());
        let (theirs, folder) = (Arc::clone(&before), directory.clone());
        let (is_over, over) = mpsc::channel::<()>();
        // In a separate thread, because a file server that does not answer must not block the program's start.
        let _ = thread::Builder::new().name("checkpoints".to_owned()).spawn(move || {
            let _ = EarlierStates::look(&folder).map(|before| theirs.set(before));
            drop(is_over);
        });
        let _ = over.recv_timeout(PATIENCE);
        Self { directory, started: SystemTime::now(), before, last: None }
    }

    /// The progress in this program's newest state, unless it was read before or isn't complete yet.
    pub fn newest(&mut self) -> Option<Update> {
        let Some(before) = self.before.get() else {
            let _ = EarlierStates::look(&self.directory).map(|before| self.before.set(before));
            return None;
        };
        let states = states(&self.directory).ok()?.into_iter().filter(|state| !before.states.contains(state));
        let newest = states.max_by_key(|state| state.modified)?;
        if self.last.as_ref() == Some(&newest) {
            return None;
        }
        let update = newest.read().ok()?;
        // A file server may list existing states late, and old checkpoints may be copied to the folder. If its clock is
        // behind, the step decides instead of the time.
        let is_own = newest.modified + GRANULARITY >= self.started
            || update.as_ref().is_some_and(|update| before.step.is_some_and(|step| update.step > Some(step)));
        self.last = Some(newest);
        update.filter(|_| is_own)
    }
}

impl EarlierStates {
    fn look(directory: &Path) -> io::Result<Self> {
        let states = states(directory)?;
        let newest = states.iter().max_by_key(|state| state.modified);
        let step = newest.and_then(|state| state.read().ok()??.step);
        Ok(Self { states, step })
    }
}

impl State {
    /// Reads the state. `None` if it is too large, incomplete or no state.
    fn read(&self) -> io::Result<Option<Update>> {
        if self.bytes > MAX_BYTES {
            return Ok(None);
        }
        let mut text = Vec::new();
        File::open(&self.path)?.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(json::trainer_state(&String::from_utf8_lossy(&text)))
    }
}

/// All states that are there now. Empty if the folder does not exist.
fn states(directory: &Path) -> io::Result<Vec<State>> {
    let below = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        below => below?.flatten().map(|entry| entry.path()),
    };
    let state = |path: PathBuf| {
        let path = path.join("trainer_state.json");
        let metadata = fs::metadata(&path).ok()?;
        Some(State { modified: metadata.modified().ok()?, bytes: metadata.len(), path })
    };
    Ok(below.chain([directory.to_owned()]).filter_map(state).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Room(PathBuf);

    impl Drop for Room {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Room {
        fn new(test: &str) -> Self {
            Self(std::env::temp_dir().join(format!("checkpoints-{test}-{}", std::process::id())))
        }

        /// Writes a state so many seconds from now.
        fn save(&self, name: &str, text: &str, seconds: i64) {
            fs::create_dir_all(self.0.join(name)).unwrap();
            let path = self.0.join(name).join("trainer_state.json");
            fs::write(&path, text).unwrap();
            let (now, distance) = (SystemTime::now(), Duration::from_secs(seconds.unsigned_abs()));
            let time = if seconds < 0 { now - distance } else { now + distance };
            File::open(path).unwrap().set_modified(time).unwrap();
        }
    }

    fn step(states: &mut TrainerStates) -> Option<f64> {
        states.newest()?.step
    }

    #[test]
    fn newest_complete_trainer_state_is_used() {
        let room = Room::new("newest");
        let mut checkpoints = TrainerStates::new(room.0.clone());
        assert_eq!(checkpoints.newest(), None);
        room.save("checkpoint-900", r#"{"global_step": 900}"#, 1);
        room.save("checkpoint-100", r#"{"global_step": 100}"#, 2);
        assert_eq!(step(&mut checkpoints), Some(100.0));
        assert_eq!(checkpoints.newest(), None);
        room.save("checkpoint-200", r#"{"global_st"#, 3);
        assert_eq!(checkpoints.newest(), None);
        room.save("checkpoint-200", r#"{"global_step": 200}"#, 3);
        assert_eq!(step(&mut checkpoints), Some(200.0));
    }

    #[test]
    fn preexisting_trainer_states_are_ignored() {
        let room = Room::new("before");
        room.save("checkpoint-800", r#"{"global_step": 800}"#, -3600);
        // By the clock of a file server that is ahead.
        room.save("checkpoint-900", r#"{"global_step": 900}"#, 3600);
        let mut checkpoints = TrainerStates::new(room.0.clone());
        assert_eq!(checkpoints.newest(), None);
        assert_eq!(checkpoints.newest(), None);
        room.save("checkpoint-100", r#"{"global_step": 100}"#, 0);
        assert_eq!(step(&mut checkpoints), Some(100.0), "older than the old one, and this program's");
        room.save("checkpoint-900", r#"{"global_step": 900}"#, 3700);
        assert_eq!(step(&mut checkpoints), Some(900.0), "written anew");
    }

    #[test]
    fn older_trainer_state_counts_only_with_a_higher_step() {
        let room = Room::new("beyond");
        let save = |step: u32| {
            room.save(&format!("checkpoint-{step}"), &format!(r#"{{"global_step": {step}}}"#), i64::from(step) - 7200);
        };
        save(500);
        let mut checkpoints = TrainerStates::new(room.0.clone());
        save(499);
        assert_eq!(step(&mut checkpoints), None);
        room.save("copied", r#"{"global_step": 500}"#, -3600);
        assert_eq!(step(&mut checkpoints), None, "a copy");
        room.save("checkpoint-510", r#"{"global_step": 510}"#, -3500);
        assert_eq!(step(&mut checkpoints), Some(510.0), "the server's clock is behind");
        let empty = Room::new("copied");
        let mut checkpoints = TrainerStates::new(empty.0.clone());
        empty.save("checkpoint-700", r#"{"global_step": 700}"#, -3600);
        assert_eq!(step(&mut checkpoints), None, "a program that fetches its old checkpoints");
    }

    #[test]
    fn oversized_trainer_state_is_checked_only_once() {
        let room = Room::new("large");
        let mut checkpoints = TrainerStates::new(room.0.clone());
        room.save("checkpoint-1", r#"{"global_step": 1}"#, 1);
        let path = room.0.join("checkpoint-1/trainer_state.json");
        File::options().write(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(checkpoints.newest(), None);
        assert!(checkpoints.last.as_ref().is_some_and(|last| last.bytes == MAX_BYTES + 1), "it is remembered");
        room.save("checkpoint-2", r#"{"global_step": 2}"#, 2);
        assert_eq!(step(&mut checkpoints), Some(2.0));
    }
}
