//! Events: those of Jobs and pods are read where only they give the cause. Also counts changes of the status.

use super::error::{Error, call, refusal};
use super::pass::{Pass, post_unread};
use api::{AttemptEnd, State, TrainingJob, TrainingJobStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1;
use kube::Client;
use kube::api::ListParams;
use lifecycle::whole_second;
use observe::events::most_telling;
use parking_lot::Mutex;
use plan::Plan;
use protocol::attempt::Class;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tracing::debug;

/// Share of the time in which Events may be read. For each read the API server searches all Events of the namespace.
/// After a thousand pods were lost at once that takes seconds, and slows down what the jobs wait for.
const SHARE: f64 = 0.1;
/// Reading time that can be saved up, for jobs that begin to wait at the same moment.
const SAVED: Duration = Duration::from_secs(1);
/// Concurrent reads. Others wait until the cost of these is known.
const SIDE_BY_SIDE: usize = 2;

/// Decides whether Events may be read now, by the cost of the reads so far.
pub(super) struct EventReads {
    turn: Semaphore,
    budget: Mutex<Budget>,
}

impl EventReads {
    pub fn new() -> Self {
        Self {
            turn: Semaphore::new(SIDE_BY_SIDE),
            budget: Mutex::new(Budget { left: SAVED.as_secs_f64(), at: Instant::now() }),
        }
    }

    /// Runs a read if the budget allows it; `None` if not.
    async fn read<T>(&self, read: impl Future<Output = T>) -> Option<T> {
        let _turn = self.turn.acquire().await.ok()?;
        let begun = Instant::now();
        if self.budget.lock().left(begun) <= 0.0 {
            return None;
        }
        let read = read.await;
        self.budget.lock().spend(begun.elapsed());
        Some(read)
    }
}

/// Reading time that is left, in seconds.
struct Budget {
    left: f64,
    at: Instant,
}

impl Budget {
    fn left(&mut self, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * SHARE;
        (self.left, self.at) = ((self.left + earned).min(SAVED.as_secs_f64()), now);
        self.left
    }

    fn spend(&mut self, took: Duration) {
        self.left -= took.as_secs_f64();
    }
}

/// Events on their way to the API server. A pass never waits for them.
pub(super) struct Publisher {
    places: Arc<Semaphore>,
    /// Time between the first two tries; it doubles each time.
    pause: Duration,
}

impl Publisher {
    /// Most Events that may be on their way at one time; each takes about 2 KiB.
    const PLACES: u32 = 1000;
    /// Tries to publish one Event.
    const TRIES: u32 = 6;

    pub fn new(pause: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(Self::PLACES as usize)), pause }
    }

    /// Publishes Events of one object, in their order.
    pub fn publish(&self, client: &Client, namespace: &str, facts: Vec<v1::Event>) {
        let count = u32::try_from(facts.len()).unwrap_or(u32::MAX);
        let Ok(places) = self.places.clone().try_acquire_many_owned(count) else {
            return debug!(count, "events not published: too many are on their way");
        };
        let (client, namespace, pause) = (client.clone(), namespace.to_owned(), self.pause);
        tokio::spawn(async move {
            for fact in facts {
                publish(&client, &namespace, &fact, pause).await;
            }
            drop(places);
        });
    }

    /// Waits for the Events that are on their way, for `within` at most.
    pub async fn finish(&self, within: Duration) {
        let _ = tokio::time::timeout(within, self.places.acquire_many(Self::PLACES)).await;
    }
}

/// Publishes an Event. Failures of the API server are retried, refusals of the Event are not.
async fn publish(client: &Client, namespace: &str, fact: &v1::Event, pause: Duration) {
    for number in 0..Publisher::TRIES {
        let Err(error) = call("publish event", post_unread(client, namespace, fact, false)).await else { return };
        let is_final = refusal(&error).is_some_and(|status| status.code != 429 && status.code < 500);
        if is_final || number + 1 == Publisher::TRIES {
            return debug!(%error, "event not published");
        }
        tokio::time::sleep(pause * (1 << number)).await;
    }
}

impl Pass<'_, TrainingJob> {
    /// Reads the Events of waiting objects. Returns true if they changed what is known. If the budget is spent, the
    /// next pass tries again.
    pub(super) async fn read_events(&self, of: &[String]) -> Result<bool, Error> {
        let api = self.api::<core::Event>();
        let mut found = None;
        for uid in of {
            let params = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(100);
            let reading = call("list events", api.list(&params));
            let Some(list) = self.context.event_reads.read(reading).await else { return Ok(false) };
            found = found.or(most_telling(&list?.items));
        }
        let learnt = self.context.index.update_known(&self.key, |cell| {
            let children = &mut cell.children;
            children.events_read_at = Some(whole_second(Timestamp::now()));
            let learnt = children.event != found;
            children.event = found;
            children.events_read_in_vain = if learnt { 0 } else { children.events_read_in_vain.saturating_add(1) };
            learnt
        });
        Ok(learnt.unwrap_or(false))
    }

    /// Counts what the change of status means.
    pub(super) fn count(&self, plan: &Plan, old: &TrainingJobStatus, new: &TrainingJobStatus) {
        let (namespace, metrics) = (&self.key.namespace, &self.context.metrics);
        let framework = plan.gang.rendezvous.framework;
        metrics.changed(self.owner, old, new);
        // A job that waited for its template already has a state here.
        if old.agent_image.is_none() && old.start_time.is_none() && new.agent_image.is_some() {
            metrics.created(namespace, framework);
        }
        let judged = |status: &TrainingJobStatus| status.restart_history.as_ref().map_or(0, |history| history.judged);
        let (known, now) = (judged(old), judged(new));
        let has_stopped = new.state == Some(State::Failed);
        let is_new = |end: &&AttemptEnd| end.attempt > known && end.attempt <= now && end.class() != Class::Requested;
        let restarted = |end: &&AttemptEnd| is_new(end) && !(has_stopped && end.attempt == now);
        for end in new.restarts.iter().filter(restarted) {
            metrics.restarted(namespace, &end.reason);
        }
        if old.state != new.state && new.state.is_some_and(State::is_finished) {
            metrics.ended(namespace, framework, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_reads_are_throttled_by_their_duration() {
        let begun = Instant::now();
        let reads = |took: Duration| {
            let (mut budget, mut reads) = (Budget { left: SAVED.as_secs_f64(), at: begun }, 0);
            for tick in 0..600 {
                if budget.left(begun + Duration::from_millis(100) * tick) > 0.0 {
                    budget.spend(took);
                    reads += 1;
                }
            }
            reads
        };
        assert_eq!(reads(Duration::from_millis(5)), 600, "ten each second");
        assert_eq!(reads(Duration::from_secs(4)), 2, "in a minute");
    }

    #[tokio::test]
    async fn event_read_over_budget_is_skipped() {
        let reads = EventReads::new();
        assert_eq!(reads.read(async { 1 }).await, Some(1));
        reads.budget.lock().spend(Duration::from_secs(5));
        assert_eq!(reads.read(async { panic!("it is not to be asked") }).await, None::<i32>);
    }
}
