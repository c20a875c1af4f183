//! A line without the word epoch that has a loss: `step 7/9 | loss: 0.12`.

use super::pairs::{held_out, pairs};
use super::run::{Run, find_step};
use crate::protocol::progress::Update;

const LOSSES: [&str; 8] =
    ["loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "eval_loss", "val loss", "test loss"];

pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let mut update = Update::default();
    pairs(text, held_out(text), &mut update);
    if !LOSSES.iter().any(|&name| update.metrics.contains_key(name)) {
        return None;
    }
    let at = match (find_step(text), run.begun) {
        (Some((step, Some(steps))), Some(epoch)) => run.within(epoch, step, steps),
        (None, Some(epoch)) => Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() },
        // Of the epoch or of all: it doesn't say.
        (Some(_), _) if run.has_epochs => Update::default(),
        (Some((step, steps)), None) => Update { step: Some(step), steps, ..Update::default() },
        _ => Update::default(),
    };
    Some(Update { metrics: update.metrics, ..at })
}
