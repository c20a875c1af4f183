//! Where a job is in its life, which decides what is to be done about it.

use super::conditions::condition_is;
use super::step::Step;
use api::ConditionType;
use observe::ObservedJob;

/// Where a job that has not ended is in its life. The first one here that holds counts.
pub(super) enum Stage<'a> {
    /// Every worker's program has ended well.
    Succeeded,
    /// The success policy is met, and its workers are being stopped.
    GoodEnough,
    /// Somebody wants it to stop and to be kept.
    Suspending,
    /// It was active for longer than it may be, both in seconds.
    PastDeadline { active: i64, deadline: i64 },
    /// The Jobs of this incarnation are there, of which this is the workers'.
    Running(&'a ObservedJob),
    /// This incarnation had begun, and a Job of it is gone.
    JobGone,
    /// This incarnation has yet to begin.
    Starting,
    /// This incarnation can't begin, for this reason, until the spec is corrected.
    Waiting(String),
    /// The job can't run, for this reason, and never did.
    Refused(String),
}

/// Tells the stage, and changes nothing.
pub(super) fn stage<'a>(step: &Step<'a>) -> Stage<'a> {
    let job = step.current_job();
    if job.is_some_and(|job| job.complete) || step.all_succeeded() {
        return Stage::Succeeded;
    }
    if condition_is(&step.status.conditions, ConditionType::Stopping, true).is_some() {
        return Stage::GoodEnough;
    }
    if step.input.plan.policy.suspend {
        return Stage::Suspending;
    }
    if let Some((active, deadline)) = step.active_of_deadline().filter(|(active, deadline)| active >= deadline) {
        return Stage::PastDeadline { active, deadline };
    }
    match job {
        Some(_) if step.lacks_job() => Stage::JobGone,
        Some(job) => Stage::Running(job),
        None if step.begun(step.incarnation()) => Stage::JobGone,
        None => match (step.input.refused, step.job_is_invalid()) {
            // A field that may change is put right as easily as it was made wrong, and a newer operator may refuse what an older
            // one ran. So only the first look at a job is final.
            (Some(why), _) if step.input.status.state.is_none() => Stage::Refused(why.to_owned()),
            (Some(why), _) => Stage::Waiting(why.to_owned()),
            // The API server has taken this Job before: what it holds against it now may pass, and it is asked again.
            (None, Some(why)) if !step.has_run() => Stage::Refused(why),
            (None, _) => Stage::Starting,
        },
    }
}
