//! The Hugging Face Trainer's state in the newest checkpoint.

use crate::agent::progress::json;
use crate::protocol::progress::Update;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of a state that are read: its history grows with every step that was logged.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Looks for `trainer_state.json` in `directory` and in the directories in it.
pub struct TrainerStates {
    directory: PathBuf,
    read: Option<(PathBuf, SystemTime)>,
}

impl TrainerStates {
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, read: None }
    }

    /// What the newest state says, unless it was read before or isn't whole yet.
    pub fn newest(&mut self) -> Option<Update> {
        let newest = newest(&self.directory)?;
        if self.read.as_ref() == Some(&newest) {
            return None;
        }
        let mut text = String::new();
        File::open(&newest.0).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let update = json::trainer_state(&text)?;
        self.read = Some(newest);
        Some(update)
    }
}

fn newest(directory: &Path) -> Option<(PathBuf, SystemTime)> {
    let below = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let state = |path: PathBuf| {
        let path = path.join("trainer_state.json");
        let modified = fs::metadata(&path).ok()?.modified().ok()?;
        Some((path, modified))
    };
    below.chain([directory.to_owned()]).filter_map(state).max_by(|(_, a), (_, b)| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_newest_that_is_whole() {
        let room = std::env::temp_dir().join(format!("checkpoints-{}", std::process::id()));
        let save = |name: &str, text: &str, second: u64| {
            fs::create_dir_all(room.join(name)).unwrap();
            let path = room.join(name).join("trainer_state.json");
            fs::write(&path, text).unwrap();
            File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        };
        let mut checkpoints = TrainerStates::new(room.clone());
        assert_eq!(checkpoints.newest(), None);
        save("checkpoint-900", r#"{"global_step": 900}"#, 1);
        save("checkpoint-100", r#"{"global_step": 100}"#, 2);
        assert_eq!(checkpoints.newest().unwrap().step, Some(100.0));
        assert_eq!(checkpoints.newest(), None);
        save("checkpoint-200", r#"{"global_st"#, 3);
        assert_eq!(checkpoints.newest(), None);
        save("checkpoint-200", r#"{"global_step": 200}"#, 3);
        assert_eq!(checkpoints.newest().unwrap().step, Some(200.0));
        fs::remove_dir_all(room).unwrap();
    }
}
