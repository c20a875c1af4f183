//! Records every minute that this job uses its folder of checkpoints, however long a scan takes. Another job that finds
//! an old heartbeat would begin to write there.

use crate::checkpoints::{CheckpointManager, stand_back};
use checkpoint::folder::Folder;
use checkpoint::ledger::{self, RootClaim};
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(60);

/// Runs until it is dropped.
pub(super) struct Heartbeat(Arc<(Mutex<bool>, Condvar)>);

impl Heartbeat {
    pub(super) fn start(manager: &CheckpointManager) -> Self {
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let (root, uid, job) = (manager.root.clone(), manager.policy.uid.clone(), manager.policy.job.clone());
        let theirs = Arc::clone(&stop);
        let beat = move || {
            stand_back();
            let mut is_over = theirs.0.lock();
            loop {
                theirs.1.wait_for(&mut is_over, EVERY);
                if *is_over {
                    return;
                }
                // Under the lock, so that no heartbeat follows the end.
                if let Ok(root) = Folder::root(&root) {
                    let _ = ledger::heartbeat(&root, &uid, &job, RootClaim::Holds, Timestamp::now());
                }
            }
        };
        // Without a thread, the scans record it.
        let _ = thread::Builder::new().name("heartbeat".to_owned()).spawn(beat);
        Self(stop)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
