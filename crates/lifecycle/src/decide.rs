//! One look at a job: what is seen becomes a status, and what is to be done about it.

use super::count::counted;
use super::effects::{Effects, effects};
use super::events::events;
use super::goodput;
use super::phase::{Phase, phase};
use super::record::take_in;
use super::status::status;
use super::verdict::{Input, Verdict};
use super::view::{View, has_begun, incarnation};
use api::{State, TrainingJobStatus};
use observe::Children;
use plan::{Plan, Role};

/// The most phases of one look: a failed job starts again, an attempt has ended, and the next one starts.
const PHASES: usize = 3;

/// Decides what a job is and what is to be done about it.
#[must_use]
pub fn decide(input: &Input<'_>) -> Verdict {
    let (mut done, mut told) = (Effects::default(), Vec::new());
    let mut before = input.status.clone();
    before.observed_generation = input.generation;
    // A job of an older operator names none. Any agent can report its checkpoints.
    before.agent_image.get_or_insert_with(|| input.plan.runtime.agent_image.clone());
    let mut was_over = true;
    for _ in 0..PHASES {
        let is_over = before.state.is_some_and(State::is_finished);
        let view = if is_over { View::new(input, before.clone()) } else { take_in(input, before.clone()) };
        let phase = phase(&view);
        let after = goodput::with_time(&before, status(&view, &phase), input.now);
        was_over &= matches!(phase, Phase::Over);
        done = done.and(effects(&view, &phase, &after));
        told.extend(events(&view, &phase, &before, &after));
        before = after;
        if !phase.leads_on() {
            break;
        }
    }
    let status = if was_over { before } else { counted(View::new(input, before)) };
    let Effects { actions, read_events_of, requeue } = done;
    Verdict { status, actions, events: told, read_events_of: read_events_of.into_iter().collect(), requeue }
}

/// Whether an incarnation has begun of which a Job is not known, or only that of an earlier one: either it was deleted, or
/// the watch of Jobs is behind.
#[must_use]
pub fn misses_job(plan: &Plan, status: &TrainingJobStatus, children: &Children) -> bool {
    let current = incarnation(status);
    let misses = |role: &Role| children.job(role.name).is_none_or(|job| job.incarnation < current.number);
    plan.gang.roles.iter().any(misses)
        && !status.state.is_some_and(State::is_finished)
        && has_begun(status, children, current)
}
