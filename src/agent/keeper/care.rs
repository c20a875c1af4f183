//! What is done about one folder.

use crate::agent::keeper::Keeper;
use crate::agent::keeper::choice::Choice;
use crate::protocol::checkpoints::{CheckpointPolicy, Checkpoints};
use crate::protocol::report::LaunchError;

pub(super) struct Care<'a> {
    keeper: &'a Keeper,
}

impl<'a> Care<'a> {
    pub(super) fn new(keeper: &'a Keeper) -> Self {
        Self { keeper }
    }

    pub(super) fn choose(&mut self, attempt: u32) -> Result<Choice, LaunchError> {
        Ok(Choice { attempt, uid: self.keeper.policy.uid.clone(), ..Choice::default() })
    }

    pub(super) fn fetch_as_chosen(&mut self, _choice: &Choice) {}

    pub(super) fn look(&mut self, _policy: &CheckpointPolicy, _is_last: bool) {
        self.keeper.tell(Checkpoints::default());
    }
}
