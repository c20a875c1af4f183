//! The phases of a job's lifecycle, and the order of the rules that find the present one.
//!
//! Each reconciliation finds the phase from the observations and the record. `status.rs` turns it into the status,
//! `effects.rs` into actions.

use super::view::View;
use super::waiting::WaitReason;
use api::{AttemptEnd, Reason};
use observe::{ObservedJob, ObservedPod, ObservedUpkeep};
use plan::Upkeep;
use protocol::attempt::RestartHistory;
use protocol::inputs::FetchedContent;
use protocol::role::RoleName;

/// The phase of a job's lifecycle.
pub(super) enum Phase<'a> {
    /// The job is completed or failed, and only clean-up is left.
    Over,
    /// The job has failed and a person has requested a restart. The next attempt follows, with a new budget.
    StartingAgain { request: String },
    /// The spec has changed since the Jobs were made. The next attempt follows, with the new spec.
    Changed,
    /// The deciding programs have exited with code 0, or all have stopped for the success policy. `published` is a
    /// result that has been published in this reconciliation.
    Completed { reason: Reason, message: String, published: Option<Published<'a>> },
    /// The programs have succeeded, and their result is published.
    Publishing { work: Publication<'a> },
    /// The success policy is met and the workers are stopping.
    StoppingEarly { until: Option<Box<Phase<'a>>>, reason: Reason, message: String },
    /// `spec.suspend` is true and the workers are stopping.
    Suspending { message: String },
    /// `spec.suspend` is true and no worker runs.
    Suspended,
    /// The job fails, by the end of an attempt if one was judged. `until` is the phase before, if the status shows
    /// that.
    Failed {
        until: Option<Box<Phase<'a>>>,
        reason: Reason,
        message: String,
        judged: Option<(AttemptEnd, RestartHistory)>,
    },
    /// The spec can't run, and nothing of the job ever ran.
    Refused { why: String },
    /// The next attempt waits for a spec that can run.
    AwaitingSpec { why: String },

    /// The attempt has ended and the next one follows.
    Restarting { until: Option<Box<Phase<'a>>>, end: AttemptEnd, history: RestartHistory },
    /// Another client deletes a Job of the gang.
    LosingJob { end: Option<AttemptEnd>, follows: bool },
    /// A worker or a Job has failed and the others are stopping.
    Ending { end: Option<AttemptEnd>, follows: bool },

    /// A queue holds this Job.
    Queued { job: &'a ObservedJob },
    /// Another client has made the Job of this role smaller than its gang.
    Shrunk { role: RoleName, wanted: u16, pods: i32 },
    /// Workers are lost, and their pods have yet to go before others take their places.
    Replacing,
    /// Not every worker has a node.
    Unscheduled { why: WaitReason },
    /// Nodes of workers do not answer. `first` is the worker that is named.
    Unreachable { first: &'a ObservedPod, silence: Silence<'a> },
    /// The agents stop an attempt, or wait for all members.
    Gathering { why: WaitReason },
    /// Every worker has a node, and images, volumes or programs are starting.
    Starting { why: WaitReason },
    /// Every worker's program runs, or has exited with code 0.
    Running,

    /// None of the job's checkpoints can be used, and a person has to decide what follows.
    AwaitingCheckpoint { message: String },
    /// Jobs or pods of earlier incarnations have not gone yet.
    AwaitingOldPods { why: Option<String> },
    /// The back-off between two attempts.
    BackingOff { seconds: i64 },
    /// A Job checks `checkpoint.resumeFrom` or fetches content, or another upkeep Job has not gone yet.
    Preparing(Preparation<'a>),
    /// The Jobs of some roles hold nodes while another role's Job can't be made. They are given up for now.
    GivingUpRoles,
    /// Nothing delays the attempt, so its objects are created.
    Creating,
}

/// The consequence of a silent node.
pub(super) enum Silence<'a> {
    /// The leader reports that all programs run.
    ProgramsRun,
    /// These pods have been silent for so long that other pods take their places.
    Lost(Vec<&'a ObservedPod>),
    /// The node may come back before that.
    MayComeBack,
    /// No other worker is seen that would have stopped with it, so that its program may still run.
    MayRun,
}

/// State of an upkeep Job that precedes the workers or publishes their result.
pub(super) enum Preparation<'a> {
    /// Its Job does not exist yet.
    Missing(Upkeep),
    /// Its Job runs.
    UnderWay(Upkeep),
    /// The checkpoint to resume from exists and is good.
    Checked(&'a ObservedUpkeep),
    /// The content is in the cache.
    Fetched(&'a ObservedUpkeep, &'a [FetchedContent]),
    /// The checkpoint can't be used, or the content can't be fetched or published, so the job fails.
    Bad,
    /// The result is published.
    Published(Published<'a>),
    /// It failed for this reason, and is retried.
    TriedAgain(&'a ObservedUpkeep, WaitReason),
    /// An upkeep Job with another task, or one from before a request, has to go first.
    AfterOther(&'a ObservedUpkeep),
    /// The workers start once this upkeep Job is gone.
    GoingOn(&'a ObservedUpkeep),
}

/// State of the publication of a result.
pub(super) enum Publication<'a> {
    /// The status does not report the success yet, or pods have not ended yet.
    NotBegun,
    /// An upkeep Job publishes it.
    Job(Preparation<'a>),
}

/// A published result, and the Job that published it.
pub(super) type Published<'a> = (&'a ObservedUpkeep, &'a protocol::result::Publication);

type Rule<'a> = fn(&View<'a>) -> Option<Phase<'a>>;

/// The present phase, which the first matching rule finds.
pub(super) fn phase<'a>(view: &View<'a>) -> Phase<'a> {
    let rules: [Rule<'a>; 27] = [
        View::over,
        View::completed,
        View::stopping_early,
        View::suspending,
        View::changed,
        View::past_deadline,
        // Rules for a gang whose Jobs exist.
        View::losing_job,
        View::queued,
        View::shrunk,
        View::failing,
        View::replacing,
        View::unscheduled,
        View::unreachable,
        View::gathering,
        View::starting,
        View::running,
        // Rules for a gang whose Jobs do not exist.
        View::job_lost,
        View::refused,
        View::awaiting_spec,
        View::awaiting_checkpoint,
        View::awaiting_old_jobs,
        View::awaiting_old_pods,
        View::backing_off,
        View::checking,
        View::fetching,
        View::after_upkeep,
        View::giving_up_roles,
    ];
    let found = rules.iter().find_map(|rule| rule(view)).unwrap_or(Phase::Creating);
    view.in_time(found)
}

impl Phase<'_> {
    /// Whether another phase follows at once.
    pub(super) fn leads_on(&self) -> bool {
        matches!(self, Phase::StartingAgain { .. } | Phase::Changed | Phase::Restarting { .. })
    }

    /// Whether every worker has a node and reports its state.
    pub(super) fn has_nodes(&self) -> bool {
        matches!(self, Phase::Gathering { .. } | Phase::Starting { .. } | Phase::Running)
    }

    /// Whether the Jobs exist, no queue holds them, and no pod has yet to go.
    pub(super) fn is_of_gang(&self) -> bool {
        self.has_nodes() || matches!(self, Phase::Unscheduled { .. } | Phase::Unreachable { .. })
    }

    /// The phase before, if this reconciliation moved from it to the present one.
    pub(super) fn until(&self) -> Option<&Self> {
        match self {
            Phase::Failed { until, .. } | Phase::Restarting { until, .. } | Phase::StoppingEarly { until, .. } => {
                until.as_deref()
            }
            _ => None,
        }
    }
}
