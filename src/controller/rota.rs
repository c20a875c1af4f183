//! Whose agent is asked when. Pure: the time is the caller's.
//!
//! Each pod has its own next time. So many questions are under way at most, and of those that may be in vain fewer: an
//! agent that answers at once waits for none that does not, and one namespace's slow agents for none of another's.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long an agent that answers is left alone: it is looked every second who is due, so that it is asked every 2 s. A status is
/// as new as what is written: of a program that tells a step every 5 s, that is at most 2 s old when every other step is written.
const EVERY: Duration = Duration::from_millis(1200);
/// How soon one is asked again that did not answer, twice as late each time.
const AGAIN: Duration = Duration::from_secs(5);
/// How often one is asked at the least.
const SELDOM: Duration = Duration::from_secs(30);
/// How long the answer of an agent may take ...
const PATIENCE: Duration = Duration::from_secs(3);
/// ... and of one that was never asked: where the network drops what is sent, a thousand pods come to the same at once.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(1);
/// Questions at one time ...
const SIDE_BY_SIDE: usize = 32;
/// ... and of these such that may be in vain, or take long ...
const IN_VAIN: usize = 24;
/// ... of one namespace.
const IN_VAIN_OF_ONE: usize = IN_VAIN / 2;
/// An answer that takes longer is a slow one.
const SLOW: Duration = Duration::from_millis(500);
/// Who was not in the line for so long is forgotten. A silent one among thousands may be late for minutes.
const FORGOTTEN: Duration = Duration::from_secs(1800);

/// What is known of an agent; the first one here is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Answers,
    New,
    /// It answers, and takes its time.
    Slow,
    /// How often in a row it gave no answer.
    Silent(u32),
}

#[derive(Debug)]
struct Turn {
    standing: Standing,
    due: Instant,
}

/// Somebody's turn.
#[derive(Debug)]
pub(super) struct Question<T> {
    /// UID of the pod.
    pub pod: String,
    namespace: String,
    /// How long its answer may take.
    pub patience: Duration,
    pub whom: T,
    since: Instant,
}

impl<T> Question<T> {
    /// The question without whom it is for.
    pub fn split(self) -> (Question<()>, T) {
        let Self { pod, namespace, patience, whom, since } = self;
        (Question { pod, namespace, patience, whom: (), since }, whom)
    }
}

#[derive(Debug)]
pub(super) struct Rota<T> {
    /// By the pod's UID.
    turns: HashMap<String, Turn>,
    /// Pods that are being asked.
    asking: HashMap<String, Standing>,
    /// How many questions to agents of a namespace are under way that may be in vain.
    in_vain: HashMap<String, usize>,
    /// Pods that are due: the one that is asked next comes last.
    line: Vec<(Standing, Instant, Due<T>)>,
}

/// A pod that is due.
#[derive(Clone, Debug)]
pub(super) struct Due<T> {
    /// UID of the pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    pub whom: T,
}

impl<T> Rota<T> {
    pub fn new() -> Self {
        Self { turns: HashMap::new(), asking: HashMap::new(), in_vain: HashMap::new(), line: Vec::new() }
    }

    /// Whether a pod may stand in the line: its time has come, and it is not being asked.
    pub fn is_due(&self, pod: &str, now: Instant) -> bool {
        !self.asking.contains_key(pod) && self.turns.get(pod).is_none_or(|turn| turn.due <= now)
    }

    /// Lines up anew who is due.
    pub fn line_up(&mut self, due: Vec<Due<T>>, now: Instant) {
        let asking = &self.asking;
        self.turns.retain(|pod, turn| asking.contains_key(pod) || turn.due + FORGOTTEN > now);
        let turns = &mut self.turns;
        let place = |due: Due<T>| {
            let turn = turns.entry(due.pod.clone()).or_insert(Turn { standing: Standing::New, due: now });
            (turn.standing, turn.due, due)
        };
        self.line = due.into_iter().map(place).collect();
        self.line.sort_by_key(|(standing, due, ..)| Reverse((*standing, *due)));
    }

    /// The next question, if one more may be asked now.
    pub fn next(&mut self, now: Instant) -> Option<Question<T>> {
        if self.asking.len() >= SIDE_BY_SIDE {
            return None;
        }
        let may_be_in_vain = self.in_vain.values().sum::<usize>() < IN_VAIN;
        let may = |(standing, _, due): &(Standing, Instant, Due<T>)| {
            let of_its = || self.in_vain.get(&due.namespace).copied().unwrap_or_default();
            *standing == Standing::Answers || (may_be_in_vain && of_its() < IN_VAIN_OF_ONE)
        };
        // Those that answer at once come first: if one that may be in vain can't be asked, neither can any other of its namespace.
        let at = self.line.iter().rposition(may)?;
        let (standing, _, Due { pod, namespace, whom }) = self.line.remove(at);
        if standing != Standing::Answers {
            *self.in_vain.entry(namespace.clone()).or_default() += 1;
        }
        self.asking.insert(pod.clone(), standing);
        let patience = if standing == Standing::New { PATIENCE_AT_FIRST } else { PATIENCE };
        Some(Question { pod, namespace, patience, whom, since: now })
    }

    /// A question is over.
    pub fn answered(&mut self, question: &Question<()>, is_up: bool, now: Instant) {
        let asked_as = self.asking.remove(&question.pod);
        if asked_as.is_some_and(|standing| standing != Standing::Answers)
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
            _ if is_up && is_slow => Standing::Slow,
            _ if is_up => Standing::Answers,
            Standing::Silent(times) => Standing::Silent(times.saturating_add(1)),
            Standing::Answers | Standing::New | Standing::Slow => Standing::Silent(1),
        };
        let wait = match turn.standing {
            Standing::Silent(times) => (AGAIN * 2u32.pow((times - 1).min(8))).min(SELDOM),
            Standing::Answers | Standing::New | Standing::Slow => EVERY,
        };
        turn.due = question.since + wait;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long an agent takes to answer; none if it never does.
    type Takes = Option<Duration>;

    const AT_ONCE: Takes = Some(Duration::from_millis(10));
    const NEVER: Takes = None;

    /// Agents in a time of the test's own.
    struct World {
        now: Instant,
        rota: Rota<Takes>,
        asking: Vec<(Instant, Question<()>, bool)>,
        /// How often each was asked.
        asked: HashMap<String, usize>,
        most: usize,
    }

    impl World {
        fn new() -> Self {
            let (rota, asking, asked) = (Rota::new(), Vec::new(), HashMap::new());
            Self { now: Instant::now(), rota, asking, asked, most: 0 }
        }

        /// Time goes on, while these pods run; how soon they answer stands with them. The namespace is the beginning of the name.
        fn pass(&mut self, seconds: u32, pods: &[(String, Takes)]) {
            for step in 0..seconds * 10 {
                self.now += Duration::from_millis(100);
                let (over, on): (Vec<_>, Vec<_>) = self.asking.drain(..).partition(|(end, ..)| *end <= self.now);
                self.asking = on;
                over.iter().for_each(|(_, question, is_up)| self.rota.answered(question, *is_up, self.now));
                if step % 10 == 0 {
                    let due = pods.iter().filter(|(pod, _)| self.rota.is_due(pod, self.now));
                    let due = due.map(|(pod, takes)| {
                        let namespace = pod.split('-').next().unwrap_or_default().to_owned();
                        Due { pod: pod.clone(), namespace, whom: *takes }
                    });
                    self.rota.line_up(due.collect(), self.now);
                }
                while let Some(question) = self.rota.next(self.now) {
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

    /// A side-car that holds the agent's port may answer just in time.
    #[test]
    fn slow_answers_of_one_namespace_delay_no_other() {
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
        assert!(world.rota.in_vain.values().all(|count| *count <= IN_VAIN_OF_ONE));
    }

    #[test]
    fn a_thousand_silent_agents_hold_nobody_up() {
        let mut world = World::new();
        let mut all = pods("healthy", 200, AT_ONCE);
        world.pass(10, &all);
        all.extend(pods("silent", 1000, NEVER));
        all.extend(pods("late", 20, AT_ONCE));
        world.asked.clear();
        world.pass(120, &all);
        let healthy = world.asked("healthy");
        assert_eq!(healthy.len(), 200);
        // At the next look once it is due.
        assert!(healthy.iter().all(|count| (50..=60).contains(count)), "{healthy:?}");
        let late = world.asked("late");
        assert!(late.len() == 20 && late.iter().all(|count| *count >= 12), "found out within the minute: {late:?}");
        let silent = world.asked("silent");
        assert!(silent.len() == 1000 && silent.iter().all(|count| *count <= 6), "{silent:?}");
        assert!(world.most <= SIDE_BY_SIDE, "{}", world.most);
    }

    #[test]
    fn a_silent_agent_is_asked_less_often_until_it_answers() {
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
    fn who_is_gone_is_forgotten() {
        let mut world = World::new();
        world.pass(10, &pods("x", 50, AT_ONCE));
        assert_eq!(world.rota.turns.len(), 50);
        world.now += FORGOTTEN;
        world.pass(10, &pods("y", 1, AT_ONCE));
        assert_eq!(world.rota.turns.len(), 1);
    }
}
