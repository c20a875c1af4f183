//! Decides whose turn a pass is, so that a flood of jobs in one namespace delays no other namespace. Pure: the caller
//! passes the time.
//!
//! Each namespace has a share of the concurrent passes. At most [`AT_ONCE`] of its new jobs begin at once, and after
//! that a fixed number each second. Each new job costs a dozen requests, and as many again from the controllers that see
//! its objects. While other namespaces have jobs, too, both are much lower, and changed specs are limited as well. A job
//! that has to wait is called when its turn has come, those of the first [`Kind`] first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// New jobs of one namespace that begin without waiting, if it is the only one with jobs.
pub(super) const AT_ONCE: u32 = 128;
/// The same if other namespaces have jobs.
pub(super) const AT_ONCE_SHARED: u32 = 8;
/// The part of the rate at which new jobs begin if other namespaces have jobs.
const SHARE_OF_RATE: f64 = 0.2;
/// Changed specs of one namespace that are taken over without waiting, if other namespaces have jobs. So many jobs can be
/// suspended by one command.
pub(super) const CHANGES_AT_ONCE: u32 = 32;
/// The rate at which the next changed specs are taken over then, by that of new jobs. A change costs far less.
const CHANGES_BY_NEW: f64 = 0.4;
/// How long a namespace counts as one that has jobs, after its last pass.
const ACTIVE: Duration = Duration::from_secs(600);
/// Interval at which waiting jobs are checked for their turn.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long the place of a called job is reserved. A job that was deleted meanwhile never takes it.
const KEPT: Duration = Duration::from_secs(1);

/// Why a job needs a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is under way.
    Known,
    /// Its spec is another one than in its last pass.
    Changed,
    /// No pass has processed it yet.
    New,
}

#[derive(Debug)]
pub(super) struct FairQueue<J> {
    /// Concurrent passes of one namespace.
    places: usize,
    /// New jobs of one namespace that begin each second, after the first, if it is the only one with jobs.
    each_second: u16,
    namespaces: HashMap<String, NamespaceQueue<J>>,
}

/// How many passes of a kind may begin.
#[derive(Clone, Copy, Debug)]
struct Rate {
    at_once: f64,
    each_second: f64,
}

impl Rate {
    const UNLIMITED: Self = Self { at_once: f64::MAX, each_second: f64::MAX };
}

/// The rate of each [`Kind`].
type Rates = [Rate; 3];

/// The passes of one namespace.
#[derive(Debug)]
struct NamespaceQueue<J> {
    inside: HashSet<J>,
    /// Jobs that were called, and when.
    called: HashMap<J, Instant>,
    /// The waiting jobs of each [`Kind`].
    lines: [Line<J>; 3],
    /// When the budgets of the lines were last updated.
    counted: Instant,
    /// When its last pass began or ended.
    last_pass: Instant,
}

/// Waiting jobs of one kind.
#[derive(Debug)]
struct Line<J> {
    /// In order of arrival. A job that is not in `waiting` has left.
    jobs: VecDeque<J>,
    waiting: HashSet<J>,
    /// How many may begin.
    budget: f64,
}

impl<J: Clone + Eq + Hash> Line<J> {
    fn new() -> Self {
        Self { jobs: VecDeque::new(), waiting: HashSet::new(), budget: f64::MAX }
    }

    fn push(&mut self, job: &J) {
        if self.waiting.insert(job.clone()) {
            self.jobs.push_back(job.clone());
        }
    }

    /// Takes the first job, if it may begin.
    fn pop(&mut self) -> Option<J> {
        if self.waiting.is_empty() || !self.may_begin() {
            return None;
        }
        while let Some(job) = self.jobs.pop_front() {
            if self.waiting.remove(&job) {
                return Some(job);
            }
        }
        None
    }

    /// Whether one more may begin, which is then counted.
    fn may_begin(&mut self) -> bool {
        let may = self.budget >= 1.0;
        self.budget -= f64::from(u8::from(may));
        may
    }

    fn clear(&mut self) {
        self.jobs.clear();
        self.waiting.clear();
    }
}

impl<J: Clone + Eq + Hash> NamespaceQueue<J> {
    fn new(now: Instant) -> Self {
        let lines = [Line::new(), Line::new(), Line::new()];
        Self { inside: HashSet::new(), called: HashMap::new(), lines, counted: now, last_pass: now }
    }

    fn count(&mut self, rates: &Rates, now: Instant) {
        let since = now.saturating_duration_since(self.counted).as_secs_f64();
        for (line, rate) in self.lines.iter_mut().zip(rates) {
            line.budget = (line.budget + since * rate.each_second).min(rate.at_once);
        }
        self.counted = now;
        self.called.retain(|_, since| *since + KEPT > now);
    }

    fn has_place(&self, places: usize) -> bool {
        self.inside.len() + self.called.len() < places
    }

    /// Calls the next jobs, as long as there are places.
    fn call(&mut self, places: usize, rates: &Rates, now: Instant) -> Vec<J> {
        self.count(rates, now);
        let mut all = Vec::new();
        while self.has_place(places) {
            let Some(job) = self.lines.iter_mut().find_map(Line::pop) else { break };
            self.called.insert(job.clone(), now);
            all.push(job);
        }
        all
    }

    /// Removes a job from its line.
    fn forget(&mut self, job: &J) {
        for line in &mut self.lines {
            line.waiting.remove(job);
        }
    }

    fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    fn is_active(&self, now: Instant) -> bool {
        !self.inside.is_empty() || self.waiting() > 0 || now < self.last_pass + ACTIVE
    }
}

impl<J: Clone + Eq + Hash> FairQueue<J> {
    /// Allows `places` concurrent passes of each namespace (at least one), and `each_second` new jobs per second.
    pub fn new(places: usize, each_second: u16) -> Self {
        Self { places: places.max(1), each_second, namespaces: HashMap::new() }
    }

    /// Whether a pass may begin; if not, its job waits until it is called.
    pub fn enter(&mut self, namespace: &str, job: &J, kind: Kind, now: Instant) -> bool {
        let rates = self.rates(namespace, now);
        let queue = match self.namespaces.get_mut(namespace) {
            Some(queue) => queue,
            None => {
                self.namespaces.retain(|_, queue| queue.is_active(now));
                self.namespaces.entry(namespace.to_owned()).or_insert_with(|| NamespaceQueue::new(now))
            }
        };
        queue.count(&rates, now);
        let has_place = queue.has_place(self.places);
        let line = &mut queue.lines[kind as usize];
        // Jobs that already wait go first.
        let may = queue.called.remove(job).is_some() || (line.waiting.is_empty() && has_place && line.may_begin());
        if may {
            queue.forget(job);
            queue.inside.insert(job.clone());
            queue.last_pass = now;
        } else {
            line.push(job);
        }
        may
    }

    /// How many passes of a namespace may begin, which depends on whether others have jobs.
    fn rates(&self, namespace: &str, now: Instant) -> Rates {
        let is_shared = self.namespaces.iter().any(|(name, queue)| name != namespace && queue.is_active(now));
        let rate = |at_once: u32, share: f64| Rate {
            at_once: at_once.into(),
            each_second: f64::from(self.each_second) * share,
        };
        let [new, changed] = if is_shared {
            [rate(AT_ONCE_SHARED, SHARE_OF_RATE), rate(CHANGES_AT_ONCE, CHANGES_BY_NEW)]
        } else {
            [rate(AT_ONCE, 1.0), Rate::UNLIMITED]
        };
        [Rate::UNLIMITED, changed, new]
    }

    /// Ends a pass. Returns the jobs that are called next.
    pub fn leave(&mut self, namespace: &str, job: &J, now: Instant) -> Vec<J> {
        let (rates, places) = (self.rates(namespace, now), self.places);
        let Some(queue) = self.namespaces.get_mut(namespace) else { return Vec::new() };
        queue.inside.remove(job);
        queue.last_pass = now;
        queue.call(places, &rates, now)
    }

    /// Removes a deleted job from its line.
    pub fn forget(&mut self, namespace: &str, job: &J) {
        if let Some(queue) = self.namespaces.get_mut(namespace) {
            queue.forget(job);
        }
    }

    /// Empties all lines. The caller wakes every existing job again.
    pub fn forget_lines(&mut self) {
        self.namespaces.values_mut().flat_map(|queue| &mut queue.lines).for_each(Line::clear);
    }

    /// Returns the jobs whose turn has come by `now`.
    pub fn look(&mut self, now: Instant) -> Vec<J> {
        let rates: Vec<Rates> = self.namespaces.keys().map(|name| self.rates(name, now)).collect();
        let places = self.places;
        self.namespaces.values_mut().zip(rates).flat_map(|(queue, rates)| queue.call(places, &rates, now)).collect()
    }

    /// Number of waiting jobs.
    pub fn waiting(&self) -> usize {
        self.namespaces.values().map(NamespaceQueue::waiting).sum()
    }

    /// Whether no job waits, and none was called that has yet to come.
    pub fn is_idle(&self) -> bool {
        self.namespaces.values().all(|queue| queue.waiting() == 0 && queue.called.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH_SECOND: u16 = 20;

    #[test]
    fn fair_queue_limits_each_namespace_separately() {
        let (mut it, now) = (FairQueue::new(2, EACH_SECOND), Instant::now());
        let mut enter = |namespace, job| it.enter(namespace, &job, Kind::Known, now);
        assert!(enter("flood", 1) && enter("flood", 2));
        assert!(!enter("flood", 3) && !enter("flood", 4) && !enter("flood", 3));
        assert!(enter("quiet", 5), "another namespace is not held up");
        assert_eq!(it.leave("flood", &1, now), [3], "in the order of coming, each once");
        assert!(!it.enter("flood", &1, Kind::Known, now), "a job that comes again is the last");
        assert!(it.enter("flood", &3, Kind::Known, now), "a called job has a place");
        assert_eq!(it.leave("flood", &2, now), [4]);
        assert_eq!(it.leave("flood", &3, now), [1]);
        assert!(it.enter("flood", &4, Kind::Known, now) && it.enter("flood", &1, Kind::Known, now) && it.is_idle());
    }

    /// The jobs that are called in the next second, which all begin.
    fn in_a_second(it: &mut FairQueue<usize>, now: &mut Instant) -> Vec<usize> {
        let mut called = Vec::new();
        for _ in 0..20 {
            *now += LOOK;
            called.extend(it.look(*now));
        }
        assert!(called.iter().all(|job| it.enter("flood", job, Kind::New, *now)));
        called
    }

    #[test]
    fn new_jobs_of_the_only_namespace_start_at_the_full_rate() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        let began = (0..1000).filter(|job| it.enter("flood", job, Kind::New, now)).count();
        assert_eq!(began, AT_ONCE as usize);
        assert!(it.enter("flood", &5000, Kind::Known, now), "a job under way is not held up");
        for second in 0..5 {
            let first = AT_ONCE as usize + second * usize::from(EACH_SECOND);
            let called = in_a_second(&mut it, &mut now);
            assert_eq!(called, (first..first + usize::from(EACH_SECOND)).collect::<Vec<_>>());
        }
        assert_eq!(it.waiting(), 1000 - AT_ONCE as usize - 5 * usize::from(EACH_SECOND));
    }

    #[test]
    fn new_jobs_start_slowly_while_other_namespaces_have_jobs() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        assert!(it.enter("quiet", &6000, Kind::New, now) && it.leave("quiet", &6000, now).is_empty());
        let began = (0..1000).filter(|job| it.enter("flood", job, Kind::New, now)).count();
        assert_eq!(began, AT_ONCE_SHARED as usize);
        assert!(it.enter("quiet", &6001, Kind::New, now) && it.leave("quiet", &6001, now).is_empty());
        assert_eq!(in_a_second(&mut it, &mut now), [8, 9, 10, 11], "a fifth of the rate");
        now += ACTIVE;
        let (last, next) = (in_a_second(&mut it, &mut now), in_a_second(&mut it, &mut now));
        assert!(last.len() > usize::from(EACH_SECOND), "what was not begun meanwhile: {last:?}");
        assert_eq!(next.len(), usize::from(EACH_SECOND), "nothing of the other was heard for long");
    }

    #[test]
    fn changed_specs_are_limited_while_other_namespaces_have_jobs() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        let changed = |it: &mut FairQueue<_>, now| {
            let began = (0..1000).filter(|job| it.enter("edits", job, Kind::Changed, now)).count();
            assert!(it.enter("edits", &5000, Kind::Known, now), "a job under way is not held up");
            began
        };
        assert_eq!(changed(&mut it, now), 1000, "alone");
        assert!(it.enter("quiet", &6000, Kind::Known, now));
        assert_eq!(changed(&mut it, now), CHANGES_AT_ONCE as usize);
        assert!(it.enter("quiet", &6001, Kind::Changed, now));
        for second in 0..3 {
            let mut called = Vec::new();
            for _ in 0..20 {
                now += LOOK;
                called.extend(it.look(now));
            }
            let first = CHANGES_AT_ONCE as usize + second * 8;
            assert_eq!(called, (first..first + 8).collect::<Vec<_>>(), "two fifths of the rate");
            assert!(called.iter().all(|job| it.enter("edits", job, Kind::Changed, now)));
        }
    }

    #[test]
    fn namespace_whose_last_pass_takes_long_counts_as_one_with_jobs() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        assert!(it.enter("slow", &6000, Kind::Known, now));
        now += ACTIVE * 2;
        assert_eq!((0..1000).filter(|job| it.enter("flood", job, Kind::New, now)).count(), AT_ONCE_SHARED as usize);
    }

    #[test]
    fn running_job_is_called_before_new_job() {
        let (mut it, now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(
            it.enter("a", &1, Kind::New, now)
                && !it.enter("a", &2, Kind::New, now)
                && !it.enter("a", &3, Kind::Known, now)
        );
        assert_eq!(it.leave("a", &1, now), [3]);
        assert!(it.enter("a", &3, Kind::Known, now));
        assert_eq!(it.leave("a", &3, now), [2]);
    }

    #[test]
    fn called_job_that_never_enters_does_not_block_queue() {
        let (mut it, mut now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(
            it.enter("a", &1, Kind::Known, now)
                && !it.enter("a", &2, Kind::Known, now)
                && !it.enter("a", &3, Kind::Known, now)
        );
        assert_eq!(it.leave("a", &1, now), [2]);
        assert!(it.look(now).is_empty() && !it.is_idle());
        now += KEPT;
        assert_eq!(it.look(now), [3], "2 was called and has not come: its job is gone");
        assert!(it.enter("a", &3, Kind::Known, now) && !it.enter("a", &4, Kind::Known, now));
        now += KEPT * 100;
        assert!(it.look(now).is_empty(), "3 is inside, however long it takes");
        assert_eq!(it.leave("a", &3, now), [4]);
    }

    #[test]
    fn job_deleted_while_waiting_takes_no_turn() {
        let (mut it, now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(it.enter("a", &1, Kind::New, now));
        assert!((2..2000).all(|job| !it.enter("a", &job, Kind::New, now)));
        assert!(!it.enter("a", &2, Kind::Changed, now), "it stands in two lines");
        (2..1999).for_each(|job| it.forget("a", &job));
        assert!(!it.enter("a", &1000, Kind::New, now), "created again under the same name: where it stood");
        assert_eq!(it.waiting(), 2);
        assert_eq!(it.leave("a", &1, now), [1000]);
        assert!(it.enter("a", &1000, Kind::New, now) && !it.enter("a", &3, Kind::New, now));
        assert_eq!(it.leave("a", &1000, now), [1999]);
        it.forget_lines();
        assert_eq!(it.waiting(), 0);
    }

    #[test]
    fn fair_queue_keeps_nothing_of_gone_jobs() {
        let (mut it, mut now) = (FairQueue::new(3, EACH_SECOND), Instant::now());
        for namespace in 0..100 {
            for job in 0..20 {
                it.enter(&namespace.to_string(), &job, Kind::New, now);
            }
            for job in 0..3 {
                it.leave(&namespace.to_string(), &job, now);
            }
        }
        while it.waiting() > 0 {
            now += KEPT;
            it.look(now);
        }
        now += ACTIVE;
        it.look(now);
        assert!(it.is_idle(), "{it:?}");
        assert!(it.enter("a", &1, Kind::Known, now) && it.namespaces.len() == 1, "{it:?}");
    }
}
