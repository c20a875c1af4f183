//! The TensorBoard beside a job: created when the job's program first runs, and recreated when it is deleted.
//!
//! It never delays or fails a training. It comes after the workers, since a volume is bound where its first pod goes.
//! If only one node can mount the volume, TensorBoard stops whenever the worker does, which may have to move. Errors
//! are published and retried later.

use super::error::Error;
use super::pass::{CreateOutcome, Pass};
use api::{State, TrainingJob, TrainingJobStatus};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use objects::{self, Board};
use observe::{ObservedTensorBoard, ResolvedSpec};
use plan::{BoardPlan, TensorBoard};
use serde_json::json;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the watch may take to show what was written.
const ANSWER: Duration = Duration::from_secs(5);
/// Delay before a retry after a failure.
const AGAIN: Duration = Duration::from_secs(60);

/// What a pass has to do for a TensorBoard.
#[derive(Debug, PartialEq)]
struct Todo {
    deployment: bool,
    service: bool,
    /// Replicas to set, if they differ.
    scale: Option<i32>,
}

fn todo(planned: &BoardPlan, status: &TrainingJobStatus, seen: &ObservedTensorBoard) -> Option<Todo> {
    let state = status.state?;
    if status.start_time.is_none() || state.is_finished() {
        return None;
    }
    let replicas = i32::from(!planned.one_node || state == State::Running);
    let ObservedTensorBoard { deployment, service, .. } = seen;
    let todo = Todo {
        deployment: deployment.is_none() && replicas > 0,
        service: service.is_none(),
        // The replicas of the others are left to the user.
        scale: deployment.as_ref().and_then(|d| (planned.one_node && d.replicas != Some(replicas)).then_some(replicas)),
    };
    (todo.deployment || todo.service || todo.scale.is_some()).then_some(todo)
}

impl Pass<'_, TrainingJob> {
    /// Creates what is missing of the job's TensorBoard, if it has one. Returns when to look again.
    pub(super) async fn board(&mut self, wanted: &ResolvedSpec, status: &TrainingJobStatus) -> Option<Duration> {
        let plan = wanted.planned.accepted().ok()?;
        let planned = plan.monitoring.tensorboard.as_ref().and_then(TensorBoard::board_beside_job)?;
        let index = &self.context.index;
        // Nothing counts as missing before Deployments were listed.
        let seen = index.read(&self.key, |cell| cell.board.clone()).filter(|_| index.has_listed::<Deployment>())?;
        let todo = todo(planned, status, &seen)?;
        if let Some(left) = seen.wait.and_then(|wait| wait.checked_duration_since(Instant::now())) {
            return Some(left);
        }
        // If the job is outdated, or no answer came, the next pass comes here too.
        self.confirm().await.ok()?;
        let Board { deployment, service } = objects::board(plan)?;
        let mut trouble = None;
        if todo.service {
            trouble = trouble.or(trouble_of(Box::pin(self.create(&service)).await));
        }
        if todo.deployment {
            trouble = trouble.or(trouble_of(Box::pin(self.create(&deployment)).await));
        }
        if let (Some(replicas), Some(part)) = (todo.scale, &seen.deployment) {
            let scaled = self.scale(&deployment.name_any(), &part.uid, replicas).await;
            trouble = trouble.or(scaled.err().and_then(unexpected));
        }
        let wait = if trouble.is_some() { AGAIN } else { ANSWER };
        if let Some(trouble) = trouble.as_ref().filter(|trouble| seen.published_reason.as_ref() != Some(trouble)) {
            warn!("no TensorBoard: {trouble}");
            let note = format!("The job runs without its TensorBoard, which is tried again every minute: {trouble}");
            self.publish_events(None, vec![lifecycle::Event { warning: true, reason: "TensorBoardFailed", note }]);
        }
        index.update_known(&self.key, |cell| {
            cell.board.wait = Some(Instant::now() + wait);
            cell.board.published_reason = trouble;
        });
        Some(wait)
    }

    async fn scale(&self, name: &str, uid: &str, replicas: i32) -> Result<(), Error> {
        info!(name, replicas, "scaling TensorBoard");
        let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": { "replicas": replicas } }));
        self.context
            .write("scale TensorBoard", self.api::<Deployment>().patch(name, &PatchParams::default(), &patch))
            .await
            .map(drop)
    }
}

/// The error to report after a try to create an object.
fn trouble_of<K>(made: Result<CreateOutcome<K>, Error>) -> Option<String> {
    match made {
        Ok(CreateOutcome::Made(_) | CreateOutcome::Found(_)) => None,
        Ok(CreateOutcome::Blocked(blocked)) => Some(blocked.message),
        Err(error) => unexpected(error),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "takes what its callers need no more")]
fn unexpected(error: Error) -> Option<String> {
    (!error.is_expected()).then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use observe::BoardPart;
    use plan::{BoardVolume, ClaimPath};

    fn planned(one_node: bool) -> BoardPlan {
        let volume = BoardVolume::Claim(ClaimPath { claim: "c".into(), path: None });
        BoardPlan { image: "i".into(), volume, mounted_at: "/checkpoints", one_node }
    }

    fn status(state: State, started: bool) -> TrainingJobStatus {
        let start_time = started.then_some(Time(Timestamp::UNIX_EPOCH));
        TrainingJobStatus { state: Some(state), start_time, ..TrainingJobStatus::default() }
    }

    fn there(replicas: i32) -> ObservedTensorBoard {
        let part = |replicas| Some(BoardPart { uid: "u".into(), replicas });
        ObservedTensorBoard { deployment: part(Some(replicas)), service: part(None), ..ObservedTensorBoard::default() }
    }

    #[test]
    fn tensorboard_is_created_after_workers_start_and_kept() {
        let missing = ObservedTensorBoard::default();
        let both = Some(Todo { deployment: true, service: true, scale: None });
        for (state, started, expected) in [
            (State::Pending, false, None),
            (State::Initializing, false, None),
            (State::Suspended, false, None),
            (State::Running, true, both),
            (State::Completed, true, None),
        ] {
            assert_eq!(todo(&planned(false), &status(state, started), &missing), expected, "{state:?}");
        }
        for replicas in [0, 1] {
            assert_eq!(todo(&planned(false), &status(State::Running, true), &there(replicas)), None);
            assert_eq!(todo(&planned(false), &status(State::Initializing, true), &there(replicas)), None);
        }
    }

    /// The next attempt's worker may be on another node, and could not mount a volume that TensorBoard holds.
    #[test]
    fn tensorboard_releases_single_node_volume() {
        let scale =
            |state, replicas| todo(&planned(true), &status(state, true), &there(replicas)).and_then(|t| t.scale);
        assert_eq!(scale(State::Running, 1), None);
        for state in [State::Initializing, State::Pending, State::Suspended] {
            assert_eq!((scale(state, 1), scale(state, 0)), (Some(0), None));
        }
        assert_eq!(scale(State::Running, 0), Some(1));
        assert_eq!((scale(State::Completed, 1), scale(State::Failed, 0)), (None, None));
    }
}
