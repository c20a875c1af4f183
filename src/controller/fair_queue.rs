//! Decides whose turn a pass is, so that a flood of jobs in one namespace delays no other namespace. Pure: the caller
//! passes the time.
//!
//! Each namespace has a share of the concurrent passes. At most [`AT_ONCE`] of its new jobs begin at once, and after
//! that a fixed number each second. While other namespaces have jobs, too, both are much lower. Each new job costs a
//! dozen requests, and as many again from the controllers that see its objects. A job that has to wait is called when
//! its turn has come. Jobs under way are called before new ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// New jobs of one namespace that begin without waiting, if it is the only one with jobs.
pub(super) const AT_ONCE: u32 = 128;
/// The same if other namespaces have jobs.
pub(super) const AT_ONCE_SHARED: u32 = 8;
/// The part of the rate at which new jobs begin if other namespaces have jobs.
const SHARE_OF_RATE: f64 = 0.2;
/// How long a namespace counts as one that has jobs, after its last pass.
const ACTIVE: Duration = Duration::from_secs(600);
/// Interval at which waiting jobs are checked for their turn.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long the place of a called job is reserved. A job that was deleted meanwhile never takes it.
const KEPT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct FairQueue<J> {
    /// Concurrent passes of one namespace.
    places: usize,
    /// New jobs of one namespace that begin each second, after the first, if it is the only one with jobs.
    each_second: u16,
    lanes: HashMap<String, NamespaceQueue<J>>,
}

/// How many new jobs of a namespace may begin.
#[derive(Clone, Copy, Debug)]
struct Budget {
    at_once: f64,
    each_second: f64,
}

/// The passes of one namespace.
#[derive(Debug)]
struct NamespaceQueue<J> {
    inside: HashSet<J>,
    /// Jobs that were called, and when.
    called: HashMap<J, Instant>,
    /// Waiting jobs that are under way.
    known: Fifo<J>,
    /// Waiting jobs that are new.
    new: Fifo<J>,
    /// New jobs that may begin, as of `counted`.
    may_begin: f64,
    counted: Instant,
    /// When its last pass began or ended.
    last_pass: Instant,
}

#[derive(Debug)]
struct Fifo<J> {
    /// In order of arrival. A job that is not in `waiting` has left.
    line: VecDeque<J>,
    waiting: HashSet<J>,
}

impl<J: Clone + Eq + Hash> Fifo<J> {
    fn new() -> Self {
        Self { line: VecDeque::new(), waiting: HashSet::new() }
    }

    fn push(&mut self, job: &J) {
        if self.waiting.insert(job.clone()) {
            self.line.push_back(job.clone());
        }
    }

    fn pop(&mut self) -> Option<J> {
        while let Some(job) = self.line.pop_front() {
            if self.waiting.remove(&job) {
                return Some(job);
            }
        }
        None
    }
}

impl<J: Clone + Eq + Hash> NamespaceQueue<J> {
    fn new(now: Instant) -> Self {
        Self {
            inside: HashSet::new(),
            called: HashMap::new(),
            known: Fifo::new(),
            new: Fifo::new(),
            may_begin: AT_ONCE.into(),
            counted: now,
            last_pass: now,
        }
    }

    fn count(&mut self, budget: Budget, now: Instant) {
        let since = now.saturating_duration_since(self.counted).as_secs_f64();
        self.may_begin = (self.may_begin + since * budget.each_second).min(budget.at_once);
        self.counted = now;
        self.called.retain(|_, since| *since + KEPT > now);
    }

    fn has_place(&self, places: usize) -> bool {
        self.inside.len() + self.called.len() < places
    }

    /// Takes one of the new jobs that may begin.
    fn begin(&mut self) -> bool {
        let may = self.may_begin >= 1.0;
        self.may_begin -= f64::from(u8::from(may));
        may
    }

    /// Calls the next jobs, as long as there are places.
    fn call(&mut self, places: usize, budget: Budget, now: Instant) -> Vec<J> {
        self.count(budget, now);
        let mut all = Vec::new();
        while self.has_place(places) {
            let known = self.known.pop();
            let job =
                known.or_else(|| if self.new.waiting.is_empty() || !self.begin() { None } else { self.new.pop() });
            let Some(job) = job else { break };
            self.called.insert(job.clone(), now);
            all.push(job);
        }
        all
    }

    fn has_line(&self) -> bool {
        !self.known.waiting.is_empty() || !self.new.waiting.is_empty()
    }

    fn is_active(&self, now: Instant) -> bool {
        !self.inside.is_empty() || self.has_line() || now < self.last_pass + ACTIVE
    }
}

impl<J: Clone + Eq + Hash> FairQueue<J> {
    /// Allows `places` concurrent passes of each namespace (at least one), and `each_second` new jobs per second.
    pub fn new(places: usize, each_second: u16) -> Self {
        Self { places: places.max(1), each_second, lanes: HashMap::new() }
    }

    /// Whether a pass may begin; if not, its job waits until it is called.
    pub fn enter(&mut self, namespace: &str, job: &J, is_new: bool, now: Instant) -> bool {
        let budget = self.budget(namespace, now);
        let lane = match self.lanes.get_mut(namespace) {
            Some(lane) => lane,
            None => {
                self.lanes.retain(|_, lane| lane.is_active(now));
                self.lanes.entry(namespace.to_owned()).or_insert_with(|| NamespaceQueue::new(now))
            }
        };
        lane.count(budget, now);
        let line = if is_new { &lane.new } else { &lane.known };
        // Jobs that already wait go first.
        let may = lane.called.remove(job).is_some()
            || (line.waiting.is_empty() && lane.has_place(self.places) && (!is_new || lane.begin()));
        if may {
            lane.inside.insert(job.clone());
            lane.last_pass = now;
        } else if is_new {
            lane.new.push(job);
        } else {
            lane.known.push(job);
        }
        may
    }

    /// How many new jobs of a namespace may begin, which depends on whether others have jobs.
    fn budget(&self, namespace: &str, now: Instant) -> Budget {
        let is_shared = self.lanes.iter().any(|(name, lane)| name != namespace && lane.is_active(now));
        let (at_once, share) = if is_shared { (AT_ONCE_SHARED, SHARE_OF_RATE) } else { (AT_ONCE, 1.0) };
        Budget { at_once: at_once.into(), each_second: f64::from(self.each_second) * share }
    }

    /// Ends a pass. Returns the jobs that are called next.
    pub fn leave(&mut self, namespace: &str, job: &J, now: Instant) -> Vec<J> {
        let (budget, places) = (self.budget(namespace, now), self.places);
        let Some(lane) = self.lanes.get_mut(namespace) else { return Vec::new() };
        lane.inside.remove(job);
        lane.last_pass = now;
        lane.call(places, budget, now)
    }

    /// Removes a deleted job from its line.
    pub fn forget(&mut self, namespace: &str, job: &J) {
        if let Some(lane) = self.lanes.get_mut(namespace) {
            lane.known.waiting.remove(job);
            lane.new.waiting.remove(job);
        }
    }

    /// Empties all lines. The caller wakes every existing job again.
    pub fn forget_lines(&mut self) {
        for lane in self.lanes.values_mut() {
            (lane.known, lane.new) = (Fifo::new(), Fifo::new());
        }
    }

    /// Returns the jobs whose turn has come by `now`.
    pub fn look(&mut self, now: Instant) -> Vec<J> {
        let budgets: Vec<Budget> = self.lanes.keys().map(|name| self.budget(name, now)).collect();
        let places = self.places;
        self.lanes.values_mut().zip(budgets).flat_map(|(lane, budget)| lane.call(places, budget, now)).collect()
    }

    /// Number of waiting jobs.
    pub fn waiting(&self) -> usize {
        self.lanes.values().map(|lane| lane.known.waiting.len() + lane.new.waiting.len()).sum()
    }

    /// Whether no job waits, and none was called that has yet to come.
    pub fn is_idle(&self) -> bool {
        self.lanes.values().all(|lane| !lane.has_line() && lane.called.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH_SECOND: u16 = 20;

    #[test]
    fn fair_queue_limits_each_namespace_separately() {
        let (mut it, now) = (FairQueue::new(2, EACH_SECOND), Instant::now());
        let mut enter = |namespace, job| it.enter(namespace, &job, false, now);
        assert!(enter("flood", 1) && enter("flood", 2));
        assert!(!enter("flood", 3) && !enter("flood", 4) && !enter("flood", 3));
        assert!(enter("quiet", 5), "another namespace is not held up");
        assert_eq!(it.leave("flood", &1, now), [3], "in the order of coming, each once");
        assert!(!it.enter("flood", &1, false, now), "whoever comes again goes behind");
        assert!(it.enter("flood", &3, false, now), "who was called has a place");
        assert_eq!(it.leave("flood", &2, now), [4]);
        assert_eq!(it.leave("flood", &3, now), [1]);
        assert!(it.enter("flood", &4, false, now) && it.enter("flood", &1, false, now) && it.is_idle());
    }

    /// The jobs that are called in the next second, which all begin.
    fn in_a_second(it: &mut FairQueue<usize>, now: &mut Instant) -> Vec<usize> {
        let mut called = Vec::new();
        for _ in 0..20 {
            *now += LOOK;
            called.extend(it.look(*now));
        }
        assert!(called.iter().all(|job| it.enter("flood", job, true, *now)));
        called
    }

    #[test]
    fn new_jobs_of_the_only_namespace_start_at_the_full_rate() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        let began = (0..1000).filter(|job| it.enter("flood", job, true, now)).count();
        assert_eq!(began, AT_ONCE as usize);
        assert!(it.enter("flood", &5000, false, now), "a job under way is not held up");
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
        assert!(it.enter("quiet", &6000, true, now) && it.leave("quiet", &6000, now).is_empty());
        let began = (0..1000).filter(|job| it.enter("flood", job, true, now)).count();
        assert_eq!(began, AT_ONCE_SHARED as usize);
        assert!(it.enter("quiet", &6001, true, now) && it.leave("quiet", &6001, now).is_empty());
        assert_eq!(in_a_second(&mut it, &mut now), [8, 9, 10, 11], "a fifth of the rate");
        now += ACTIVE;
        let (last, next) = (in_a_second(&mut it, &mut now), in_a_second(&mut it, &mut now));
        assert!(last.len() > usize::from(EACH_SECOND), "what was not begun meanwhile: {last:?}");
        assert_eq!(next.len(), usize::from(EACH_SECOND), "nothing of the other was heard for long");
    }

    #[test]
    fn namespace_whose_last_pass_takes_long_counts_as_one_with_jobs() {
        let (mut it, mut now) = (FairQueue::new(usize::MAX, EACH_SECOND), Instant::now());
        assert!(it.enter("slow", &6000, false, now));
        now += ACTIVE * 2;
        assert_eq!((0..1000).filter(|job| it.enter("flood", job, true, now)).count(), AT_ONCE_SHARED as usize);
    }

    #[test]
    fn running_job_is_called_before_new_job() {
        let (mut it, now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(it.enter("a", &1, true, now) && !it.enter("a", &2, true, now) && !it.enter("a", &3, false, now));
        assert_eq!(it.leave("a", &1, now), [3]);
        assert!(it.enter("a", &3, false, now));
        assert_eq!(it.leave("a", &3, now), [2]);
    }

    #[test]
    fn called_job_that_never_enters_does_not_block_queue() {
        let (mut it, mut now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(it.enter("a", &1, false, now) && !it.enter("a", &2, false, now) && !it.enter("a", &3, false, now));
        assert_eq!(it.leave("a", &1, now), [2]);
        assert!(it.look(now).is_empty() && !it.is_idle());
        now += KEPT;
        assert_eq!(it.look(now), [3], "2 was called and has not come: its job is gone");
        assert!(it.enter("a", &3, false, now) && !it.enter("a", &4, false, now));
        now += KEPT * 100;
        assert!(it.look(now).is_empty(), "3 is inside, however long it takes");
        assert_eq!(it.leave("a", &3, now), [4]);
    }

    #[test]
    fn job_deleted_while_waiting_takes_no_turn() {
        let (mut it, now) = (FairQueue::new(1, EACH_SECOND), Instant::now());
        assert!(it.enter("a", &1, true, now));
        assert!((2..2000).all(|job| !it.enter("a", &job, true, now)));
        (2..1999).for_each(|job| it.forget("a", &job));
        assert!(!it.enter("a", &1000, true, now), "created again under the same name: where it stood");
        assert_eq!(it.waiting(), 2);
        assert_eq!(it.leave("a", &1, now), [1000]);
        assert!(it.enter("a", &1000, true, now) && !it.enter("a", &3, true, now));
        assert_eq!(it.leave("a", &1000, now), [1999]);
        it.forget_lines();
        assert_eq!(it.waiting(), 0);
    }

    #[test]
    fn fair_queue_keeps_nothing_of_gone_jobs() {
        let (mut it, mut now) = (FairQueue::new(3, EACH_SECOND), Instant::now());
        for namespace in 0..100 {
            for job in 0..20 {
                it.enter(&namespace.to_string(), &job, true, now);
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
        assert!(it.enter("a", &1, false, now) && it.lanes.len() == 1, "{it:?}");
    }
}
