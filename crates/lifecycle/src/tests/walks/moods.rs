//! Kinds of walks in which events are frequent that are rare in all others.

use super::world::{Rng, World, at, end_program};
use crate::condition_is;
use api::Reason;
use observe::{Blocked, ChildKey};
use protocol::gang::GangPhase;
use protocol::report::{LaunchError, LaunchErrorKind};
use serde_json::{Value, json};
use std::sync::Arc;

/// What is frequent in a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mood {
    /// Nothing more than anything else.
    Any,
    /// Ends of the Jobs that check and copy checkpoints.
    Upkeep,
    /// Nodes that fall silent, and Jobs that vanish with their pods.
    Losses,
    /// Metrics that reach their targets, and programs that exit with code 0.
    Success,
    /// Gangs that take too long to stop.
    Stopping,
}

impl Mood {
    /// Half of all walks are in the first mood.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        *rng.pick(&[
            Mood::Any,
            Mood::Any,
            Mood::Any,
            Mood::Any,
            Mood::Upkeep,
            Mood::Losses,
            Mood::Success,
            Mood::Stopping,
        ])
    }

    /// Adds to the spec what such a walk needs.
    pub(super) fn prepare(self, rng: &mut Rng, spec: &mut Value) {
        match self {
            Mood::Upkeep => {
                spec["checkpoint"] = json!({
                    "enabled": true,
                    "storage": { "type": "pvc" },
                    "backup": { "destination": "s3://b/y" },
                });
                if rng.below(3) > 0 {
                    spec["checkpoint"]["resumeFrom"] = json!("s3://b/x");
                }
            }
            Mood::Losses => spec["failurePolicy"]["nodeLostSeconds"] = json!(100 + rng.below(100)),
            Mood::Success => spec["successPolicy"] = json!({ "targetLoss": 0.1, "targetAccuracy": 0.9 }),
            Mood::Stopping if rng.one_in(2) => spec["failurePolicy"]["restartPolicy"] = json!("Never"),
            Mood::Any | Mood::Stopping => {}
        }
    }

    /// Seconds that may pass between two looks.
    pub(super) fn pauses(self) -> &'static [i64] {
        match self {
            Mood::Losses => &[0, 1, 5, 5, 15, 30, 60, 100],
            _ => &[0, 1, 5, 15, 30, 60, 100, 600, 700],
        }
    }
}

impl World {
    /// Lets happen what the walk's mood makes frequent.
    pub(super) fn follow_mood(&mut self) {
        match self.mood {
            Mood::Any => {}
            Mood::Upkeep => self.end_upkeep(),
            Mood::Losses => self.lose(),
            Mood::Success => {
                let is_stopping = condition_is(&self.status.conditions, "Stopping", true).is_some();
                if self.rng.one_in(if is_stopping { 2 } else { 30 }) {
                    self.exit_well();
                }
            }
            Mood::Stopping => self.stop_for_long(),
        }
    }

    fn exit_well(&mut self) {
        let now = at(self.second);
        for pod in self.children.pods.values_mut().filter(|pod| !pod.gone) {
            end_program(pod, now, now, 0, None);
        }
    }

    fn end_upkeep(&mut self) {
        if self.rng.one_in(20) {
            self.exit_well();
        }
        if self.rng.one_in(5) {
            let blocked = Blocked { reason: Reason::Storage, ..Blocked::deleting("no") };
            self.children.blocked.insert(ChildKey::UPKEEP, blocked);
        }
        let mut report = self.report();
        let kind = *self.rng.pick(&[LaunchErrorKind::CheckpointUnusable, LaunchErrorKind::StorageUnavailable]);
        report.error = self.rng.one_in(2).then(|| LaunchError { kind, message: "it can't be read".into() });
        report.checkpoints = self.rng.one_in(2).then(|| self.checkpoints());
        let (is_over, is_well) = (self.rng.one_in(2), self.rng.one_in(3));
        if let Some(upkeep) = self.children.upkeep.as_mut().filter(|upkeep| is_over && upkeep.ended.is_none()) {
            upkeep.ended = Some(is_well);
            self.children.upkeep_words = Some((upkeep.uid.clone(), report));
        }
    }

    fn lose(&mut self) {
        let now = self.second;
        let restarts = condition_is(&self.status.conditions, "Restarting", true).is_some();
        if restarts && self.rng.one_in(6) {
            self.children.jobs.clear();
            self.children.pods.clear();
        }
        if self.rng.one_in(3)
            && let Some(uid) = self.any_pod()
        {
            let back = self.rng.below(100) as i64;
            let pod = self.children.pods.get_mut(&uid).unwrap();
            pod.unreachable = Some(at(now - back));
            pod.deletion = pod.deletion.or(Some(at(now)));
        }
        if self.rng.one_in(15)
            && let Some(role) = self.any_job()
        {
            let why = *self.rng.pick(&["BackoffLimitExceeded", "PodFailurePolicy"]);
            self.children.jobs.get_mut(&role).unwrap().failed = Some((why.into(), "it has".into()));
            self.children.pods.clear();
        }
        if self.rng.one_in(12)
            && let Some(role) = self.any_job()
        {
            self.asked += u32::from(self.rng.one_in(2));
            if self.rng.one_in(2) {
                self.children.jobs.remove(&role);
            } else {
                self.children.jobs.get_mut(&role).unwrap().deleting = true;
            }
        }
    }

    fn stop_for_long(&mut self) {
        let runs = self.children.pods.values().any(|pod| pod.runs());
        if runs && self.rng.one_in(3) {
            let mut answer = self.answer();
            answer.failing_since = None;
            if let Some(gang) = &mut Arc::make_mut(&mut answer.status).gang {
                gang.phase = GangPhase::Stopping;
                gang.stopping_since = Some(at(self.second - 2400));
                gang.ended.clear();
            }
            self.agent = Some(answer);
        }
    }
}
