//! TrainingJobs with `hyperParameterTuningConfig`: each owns a TuningJob of its name, and reports its state.

use super::Requeue;
use super::error::Error;
use super::pass::{CreateOutcome, Pass};
use api::{Reason, TrainingJob, Tuning};
use jiff::Timestamp;
use kube::ResourceExt;
use observe::Blocked;
use std::time::Duration;

/// When to try again what could not be created.
const AGAIN: Duration = Duration::from_secs(30);

impl Pass<'_, TrainingJob> {
    /// One pass over a job that is a search.
    pub(super) async fn search(&mut self, tuning: &Tuning) -> Result<Requeue, Error> {
        if !self.context.has_listed_searches() {
            return Ok(Requeue(Some(super::tuning::UNLISTED)));
        }
        let stored = self.current_status();
        let found = self.context.own_search(self.owner);
        let is_over = stored.state.is_some_and(api::State::is_finished);
        let mut blocked: Option<(Reason, String)> = None;
        let mut requeue = Requeue::default();
        if found.is_none() && !is_over {
            self.confirm().await?;
            if let CreateOutcome::Blocked(Blocked { reason, message }) =
                self.create(&trials::own_search(self.owner, tuning)).await?
            {
                let name = self.owner.name_any();
                blocked = Some((reason, format!("TuningJob {name} can't be created: {message}")));
                requeue.within(AGAIN);
            }
        }
        let search = found.as_ref().and_then(|found| found.0.as_ref().ok());
        let now = lifecycle::whole_second(Timestamp::now());
        // What has ended stays so when its search is deleted. And the watch has yet to show one that was just created.
        let status = match (search, is_over || stored.state.is_some() && blocked.is_none()) {
            (None, true) => stored.clone(),
            _ => {
                let job = TrainingJob { status: Some(stored.clone()), ..self.owner.clone() };
                trials::status_of_search(&job, search, blocked.as_ref(), now)
            }
        };
        requeue.within(self.write_status(&stored, &status).await?);
        let ttl = self.owner.spec.ttl_seconds_after_finished.map(i64::from);
        if let (Some(ttl), Some(end)) = (ttl, status.completion_time.as_ref()) {
            let left = ttl - now.duration_since(end.0).as_secs();
            match u64::try_from(left).ok().filter(|left| *left > 0) {
                Some(left) => requeue.within(Duration::from_secs(left)),
                None => {
                    self.confirm().await?;
                    self.delete_owner().await?;
                }
            }
        }
        Ok(requeue)
    }
}
