//! What the agents answered when they were last asked, by the UID of their TrainingJob.

use crate::agent::serve::status::Status;
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The last answer for each TrainingJob, shared by who asks and who tells.
#[derive(Debug, Default)]
pub struct Polled(Mutex<HashMap<String, Poll>>);

#[derive(Debug, Default)]
struct Poll {
    answer: Option<(Arc<Status>, Timestamp)>,
    failing_since: Option<Timestamp>,
}

/// The last good answer of a job's agent.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What it said.
    pub status: Arc<Status>,
    /// When.
    pub time: Timestamp,
    /// Since when it gives none any more.
    pub failing_since: Option<Timestamp>,
}

impl Polled {
    /// The agent answered.
    pub fn answered(&self, uid: &str, status: Status) {
        let poll = Poll { answer: Some((Arc::new(status), Timestamp::now())), failing_since: None };
        self.lock().insert(uid.to_owned(), poll);
    }

    /// It did not, or with something that can't be read.
    pub fn failed(&self, uid: &str) {
        self.lock().entry(uid.to_owned()).or_default().failing_since.get_or_insert_with(Timestamp::now);
    }

    /// The last good answer; none if there never was one.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Seen> {
        let polls = self.lock();
        let Poll { answer, failing_since } = polls.get(uid)?;
        let (status, time) = answer.clone()?;
        Some(Seen { status, time, failing_since: *failing_since })
    }

    /// Whether the agent answered when it was last asked; none if it never was.
    #[must_use]
    pub fn is_up(&self, uid: &str) -> Option<bool> {
        self.lock().get(uid).map(|poll| poll.failing_since.is_none())
    }

    /// A TrainingJob that exists no more.
    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Only these TrainingJobs exist.
    pub fn retain(&self, there: &HashSet<String>) {
        self.lock().retain(|uid, _| there.contains(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Poll>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_outlives_failures_and_not_its_job() {
        let polled = Polled::default();
        assert_eq!((polled.is_up("a"), polled.get("a").is_some()), (None, false));
        polled.failed("a");
        assert_eq!((polled.is_up("a"), polled.get("a").is_some()), (Some(false), false), "it never answered");
        polled.answered("a", Status { percent: Some(5.0), ..Status::default() });
        polled.answered("b", Status::default());
        assert_eq!(polled.is_up("a"), Some(true));
        polled.failed("a");
        let first = polled.get("a").unwrap();
        polled.failed("a");
        let second = polled.get("a").unwrap();
        assert_eq!(second.status.percent, Some(5.0));
        assert!(first.failing_since.is_some() && first.failing_since == second.failing_since);
        polled.retain(&HashSet::from(["a".to_owned()]));
        assert!(polled.get("a").is_some() && polled.get("b").is_none());
        polled.forget("a");
        assert_eq!(polled.is_up("a"), None);
    }
}
