//! Decides which agent is asked when. Pure: the caller passes the time.
//!
//! Each pod has its own next time. The number of concurrent questions is limited, more strictly for those that may get
//! no answer. An agent that answers at once never waits for a silent one. One namespace's slow agents never delay those
//! of another.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long an agent that answers is left alone. Due agents are looked up every second, so that each is asked every 2
/// s. A status is as fresh as its last write. If a program reports a step every 5 s, every other step is written, and
/// is at most 2 s old by then.
const EVERY: Duration = Duration::from_millis(1200);
/// Delay before an agent that did not answer is asked again. It doubles each time.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest time between two questions to an agent.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer of an agent may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same for an agent that was never asked. Where the network drops packets, a thousand new pods may be silent at
/// once.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(1);
/// Concurrent questions.
const SIDE_BY_SIDE: usize = 32;
/// Concurrent questions that may get no answer, or a slow one.
const MAX_UNANSWERED: usize = 24;
/// The same for one namespace.
const IN_VAIN_OF_ONE: usize = MAX_UNANSWERED / 2;
/// An answer that takes longer counts as slow.
const SLOW: Duration = Duration::from_millis(500);
/// A pod that was not asked for this long after it was due is forgotten. Among thousands, a silent one may be late for
/// minutes.
const FORGOTTEN: Duration = Duration::from_secs(1800);

/// What is known of an agent. Agents of the variants that come first are asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PodHealth {
    Answers,
    New,
    /// It answers slowly.
    Slow,
    /// Number of unanswered questions in a row.
    Silent(u32),
}

#[derive(Debug)]
struct ScheduledPoll {
    standing: PodHealth,
    due: Instant,
}

/// A question to one agent.
#[derive(Debug)]
pub(super) struct AgentQuestion<T> {
    /// UID of the pod.
    pub pod: String,
    namespace: String,
    /// How long its answer may take.
    pub patience: Duration,
    pub whom: T,
    since: Instant,
}

impl<T> AgentQuestion<T> {
    /// Separates the question from its recipient.
    pub fn split(self) -> (AgentQuestion<()>, T) {
        let Self { pod, namespace, patience, whom, since } = self;
        (AgentQuestion { pod, namespace, patience, whom: (), since }, whom)
    }
}

#[derive(Debug)]
pub(super) struct PollSchedule<T> {
    /// By the pod's UID.
    turns: HashMap<String, ScheduledPoll>,
    /// Pods that are being asked.
    asking: HashMap<String, PodHealth>,
    /// Concurrent questions that may get no answer, by namespace.
    in_vain: HashMap<String, usize>,
    /// Due pods. The last one is asked next.
    line: Vec<(PodHealth, Instant, DuePoll<T>)>,
}

/// A pod that is due.
#[derive(Clone, Debug)]
pub(super) struct DuePoll<T> {
    /// UID of the pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    pub whom: T,
}

impl<T> PollSchedule<T> {
    pub fn new() -> Self {
        Self { turns: HashMap::new(), asking: HashMap::new(), in_vain: HashMap::new(), line: Vec::new() }
    }

    /// Whether a pod may stand in the line: it is due, and it is not being asked.
    pub fn is_due(&self, pod: &str, now: Instant) -> bool {
        !self.asking.contains_key(pod) && self.turns.get(pod).is_none_or(|turn| turn.due <= now)
    }

    /// Replaces the line with the pods that are due.
    pub fn line_up(&mut self, due: Vec<DuePoll<T>>, now: Instant) {
        let asking = &self.asking;
        self.turns.retain(|pod, turn| asking.contains_key(pod) || turn.due + FORGOTTEN > now);
        let turns = &mut self.turns;
        let place = |due: DuePoll<T>| {
            let turn = turns.entry(due.pod.clone()).or_insert(ScheduledPoll { standing: PodHealth::New, due: now });
            (turn.standing, turn.due, due)
        };
        self.line = due.into_iter().map(place).collect();
        self.line.sort_by_key(|(standing, due, ..)| Reverse((*standing, *due)));
    }

    /// The next question, if one more may be asked now.
    pub fn next(&mut self, now: Instant) -> Option<AgentQuestion<T>> {
        if self.asking.len() >= SIDE_BY_SIDE {
            return None;
        }
        let may_be_in_vain = self.in_vain.values().sum::<usize>() < MAX_UNANSWERED;
        let may = |(standing, _, due): &(PodHealth, Instant, DuePoll<T>)| {
            let of_its = || self.in_vain.get(&due.namespace).copied().unwrap_or_default();
            *standing == PodHealth::Answers || (may_be_in_vain && of_its() < IN_VAIN_OF_ONE)
        };
        // Agents that answer at once come first. If one that may not answer can't be asked, no other of its namespace
        // can.
        let at = self.line.iter().rposition(may)?;
        let (standing, _, DuePoll { pod, namespace, whom }) = self.line.remove(at);
        if standing != PodHealth::Answers {
            *self.in_vain.entry(namespace.clone()).or_default() += 1;
        }
        self.asking.insert(pod.clone(), standing);
        let patience = if standing == PodHealth::New { PATIENCE_AT_FIRST } else { PATIENCE };
        Some(AgentQuestion { pod, namespace, patience, whom, since: now })
    }

    /// Ends a question.
    pub fn answered(&mut self, question: &AgentQuestion<()>, is_up: bool, now: Instant) {
        let asked_as = self.asking.remove(&question.pod);
        if asked_as.is_some_and(|standing| standing != PodHealth::Answers)
            && let Some(count) = self.in_vain.get_mut(&question.namespace)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.in_vain.remove(&question.namespace);
            }
        }
        let is_slow = now.saturating_duration_since(question.since) > SLOW;
        let Some(turn) = self.turns.get_mut(&question.pod) else { return };
        turn.standing = match turn.standing {
            _ if is_up && is_slow => PodHealth::Slow,
            _ if is_up => PodHealth::Answers,
            PodHealth::Silent(times) => PodHealth::Silent(times.saturating_add(1)),
            PodHealth::Answers | PodHealth::New | PodHealth::Slow => PodHealth::Silent(1),
        };
        let wait = match turn.standing {
            PodHealth::Silent(times) => (AGAIN * 2u32.pow((times - 1).min(8))).min(MAX_INTERVAL),
            PodHealth::Answers | PodHealth::New | PodHealth::Slow => EVERY,
        };
        turn.due = question.since + wait;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long an agent takes to answer; `None` if it never does.
    type Takes = Option<Duration>;

    const AT_ONCE: Takes = Some(Duration::from_millis(10));
    const NEVER: Takes = None;

    /// Agents in simulated time.
    struct World {
        now: Instant,
        schedule: PollSchedule<Takes>,
        asking: Vec<(Instant, AgentQuestion<()>, bool)>,
        /// How often each pod was asked.
        asked: HashMap<String, usize>,
        most: usize,
    }

    impl World {
        fn new() -> Self {
            let (schedule, asking, asked) = (PollSchedule::new(), Vec::new(), HashMap::new());
            Self { now: Instant::now(), schedule, asking, asked, most: 0 }
        }

        /// Lets time pass while these pods run, each with its response time. The namespace is the beginning of the
        /// name.
        fn pass(&mut self, seconds: u32, pods: &[(String, Takes)]) {
            for step in 0..seconds * 10 {
                self.now += Duration::from_millis(100);
                let (over, on): (Vec<_>, Vec<_>) = self.asking.drain(..).partition(|(end, ..)| *end <= self.now);
                self.asking = on;
                over.iter().for_each(|(_, question, is_up)| self.schedule.answered(question, *is_up, self.now));
                if step % 10 == 0 {
                    let due = pods.iter().filter(|(pod, _)| self.schedule.is_due(pod, self.now));
                    let due = due.map(|(pod, takes)| {
                        let namespace = pod.split('-').next().unwrap_or_default().to_owned();
                        DuePoll { pod: pod.clone(), namespace, whom: *takes }
                    });
                    self.schedule.line_up(due.collect(), self.now);
                }
                while let Some(question) = self.schedule.next(self.now) {
                    *self.asked.entry(question.pod.clone()).or_default() += 1;
                    let takes = question.whom.filter(|takes| *takes <= question.patience);
                    let end = self.now + takes.unwrap_or(question.patience);
                    self.asking.push((end, question.split().0, takes.is_some()));
                }
                self.most = self.most.max(self.asking.len());
            }
        }

        fn asked(&mut self, prefix: &str) -> Vec<usize> {
            let counts = self.asked.iter().filter(|(pod, _)| pod.starts_with(prefix)).map(|(_, count)| *count);
            counts.collect()
        }
    }

    fn pods(prefix: &str, count: usize, takes: Takes) -> Vec<(String, Takes)> {
        (0..count).map(|i| (format!("{prefix}-{i}"), takes)).collect()
    }

    /// A sidecar on the agent's port may answer just before the timeout.
    #[test]
    fn slow_agents_do_not_delay_other_namespaces() {
        let mut world = World::new();
        let mut all = pods("slow", 200, Some(Duration::from_millis(900)));
        world.pass(30, &all);
        all.iter_mut().for_each(|(_, takes)| *takes = Some(Duration::from_millis(2900)));
        world.pass(30, &all);
        all.extend(pods("fast", 50, AT_ONCE));
        all.extend(pods("silent", 10, NEVER));
        world.asked.clear();
        world.pass(120, &all);
        let fast = world.asked("fast");
        assert!(fast.len() == 50 && fast.iter().all(|count| *count >= 50), "every 2 s: {fast:?}");
        let silent = world.asked("silent");
        assert!(silent.len() == 10 && silent.iter().all(|count| *count >= 5), "found out when they answer: {silent:?}");
        let slow: usize = world.asked("slow").iter().sum();
        assert!(slow >= 120 / 3 * IN_VAIN_OF_ONE * 3 / 4, "it has its own share: {slow}");
        assert!(world.schedule.in_vain.values().all(|count| *count <= IN_VAIN_OF_ONE));
    }

    #[test]
    fn thousand_silent_agents_do_not_delay_others() {
        let mut world = World::new();
        let mut all = pods("healthy", 200, AT_ONCE);
        world.pass(10, &all);
        all.extend(pods("silent", 1000, NEVER));
        all.extend(pods("late", 20, AT_ONCE));
        world.asked.clear();
        world.pass(120, &all);
        let healthy = world.asked("healthy");
        assert_eq!(healthy.len(), 200);
        // Each is asked at the next look once it is due.
        assert!(healthy.iter().all(|count| (50..=60).contains(count)), "{healthy:?}");
        let late = world.asked("late");
        assert!(late.len() == 20 && late.iter().all(|count| *count >= 12), "found out within the minute: {late:?}");
        let silent = world.asked("silent");
        assert!(silent.len() == 1000 && silent.iter().all(|count| *count <= 6), "{silent:?}");
        assert!(world.most <= SIDE_BY_SIDE, "{}", world.most);
    }

    #[test]
    fn silent_agent_is_polled_less_often_until_it_answers() {
        let mut world = World::new();
        let silent = pods("x", 1, NEVER);
        let times: Vec<_> = (0..12)
            .map(|_| {
                world.pass(10, &silent);
                std::mem::take(&mut world.asked).values().sum::<usize>()
            })
            .collect();
        // At 0, 5, 15, 35, 65, 95 s, each seen at the next look.
        assert_eq!(times.iter().sum::<usize>(), 6, "{times:?}");
        let answers = pods("x", 1, AT_ONCE);
        world.pass(40, &answers);
        world.asked.clear();
        world.pass(60, &answers);
        assert!((25..=30).contains(&world.asked["x-0"]), "{:?}", world.asked);
    }

    #[test]
    fn gone_agents_are_forgotten() {
        let mut world = World::new();
        world.pass(10, &pods("x", 50, AT_ONCE));
        assert_eq!(world.schedule.turns.len(), 50);
        world.now += FORGOTTEN;
        world.pass(10, &pods("y", 1, AT_ONCE));
        assert_eq!(world.schedule.turns.len(), 1);
    }
}
