//! The same ends of attempts, judged by the leader of a gang and by the operator: one answer.

use super::*;
use ::gang::message::{Choice, Incarnation as Life, MemberId, Outcome, Time as Clock};
use ::gang::policy::EndedAttempt;
use ::gang::{Exit, Gang, Input as Word, LeaderSetup, Memory, Order, Setup, Timing};
use proptest::strategy::ValueTree;
use protocol::report::{LastProgress, LaunchError, LaunchErrorKind, Report};
use std::collections::{BTreeMap, BTreeSet};

/// How an attempt may end.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Exit(i32),
    Crash,
    NotFound,
    NoCheckpoint,
    Evicted,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    kind: Kind,
    ran: i64,
    step: Option<u32>,
    checkpoint: u32,
}

/// What follows: another attempt after this many seconds, a wait for the user's decision, or the end with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Follows {
    Restart(i64),
    Wait,
    Stop(String),
}

/// The operator of a gang whose pods end with each attempt and whose leader reports nothing.
struct Operator(World);

impl Operator {
    fn judge(&mut self, number: u32, attempt: Attempt) -> (AttemptEnd, Follows) {
        let world = &mut self.0;
        let start = world.second;
        let runs = |index| ObservedPod {
            created: Some(at(start)),
            training: Container::Running { since: Some(at(start)) },
            ..placed(index, number)
        };
        world.see(Some(job(number)), [0, 1].map(runs));
        world.step();
        let checkpoint = world.status.checkpoint.get_or_insert_default();
        checkpoint.resumed_from = Some(path(attempt.checkpoint));
        world.second = start + attempt.ran;
        let pods = [0, 1].map(|index| self.ended(number, index, start, attempt));
        let world = &mut self.0;
        let failed = ObservedJob { failed: Some(("BackoffLimitExceeded".into(), "it has".into())), ..job(number) };
        world.see(Some(failed), pods);
        world.step();
        let end = world.status.restarts.last().unwrap().clone();
        assert_eq!(end.attempt, number, "{:?}", world.status);
        if world.status.state == Some(State::Failed) {
            return (end, Follows::Stop(world.status.failure_message.clone().unwrap()));
        }
        world.see(None, []);
        world.children.pods.clear();
        let ended_at = world.second;
        loop {
            let verdict = world.step();
            if verdict.actions.iter().any(|action| matches!(action, Action::CreateJobs(..))) {
                return (end, Follows::Restart(world.second - ended_at));
            }
            if world.condition("Scheduled").1 == "NoUsableCheckpoint" {
                return (end, Follows::Wait);
            }
            world.second += i64::try_from(verdict.requeue.expect("it waits for a time").as_secs()).unwrap();
        }
    }

    /// Worker 1 ends the attempt, and worker 0 is stopped because of it.
    fn ended(&self, number: u32, index: u32, start: i64, attempt: Attempt) -> ObservedPod {
        let now = self.0.second;
        let (code, signal) = match attempt.kind {
            Kind::Exit(code) => (code, None),
            Kind::Crash => (139, Some(11)),
            Kind::NotFound => (127, None),
            Kind::NoCheckpoint => (126, None),
            Kind::Evicted => (143, Some(15)),
        };
        let error = match attempt.kind {
            Kind::NotFound => Some(LaunchErrorKind::CommandNotFound),
            Kind::NoCheckpoint => Some(LaunchErrorKind::NoUsableCheckpoint),
            _ => None,
        };
        let error = error.map(|kind| LaunchError { kind, message: "not there".to_owned() });
        let is_first = index == 1;
        let report = Report {
            version: 1,
            attempt: number,
            exit_code: Some(code).filter(|_| signal.is_none() && is_first),
            signal: if is_first { signal } else { Some(15) },
            stopped_by: Some(15).filter(|_| !is_first || matches!(attempt.kind, Kind::Evicted)),
            error: error.filter(|_| is_first),
            progress: attempt.step.map(|step| LastProgress { step: Some(step.into()), ..LastProgress::default() }),
            ..Report::default()
        };
        let mut pod = ended(index, number, if is_first { code } else { 143 }, now);
        pod.created = Some(at(start));
        if let Container::Terminated { started, report: words, .. } = &mut pod.training {
            *started = Some(at(start));
            *words = Some(Box::new(report));
        }
        if is_first && matches!(attempt.kind, Kind::Evicted) {
            let (reason, message) = ("EvictionByEvictionAPI".to_owned(), "evicted".to_owned());
            pod.disruption = Some(Box::new(Disruption { reason, message, time: Some(at(now)) }));
        }
        pod
    }
}

fn path(checkpoint: u32) -> String {
    format!("checkpoint-{checkpoint}")
}

/// The leader of a gang of one worker whose pod stays, with the ends that the operator has found.
struct Leader {
    gang: Gang,
    now: Clock,
    orders: Vec<Order>,
}

impl Leader {
    fn new(plan: &plan::Plan) -> Self {
        let member = MemberId::new("worker", 0);
        let leader = LeaderSetup {
            members: BTreeSet::from([member.clone()]),
            deciding: BTreeSet::new(),
            was_larger: false,
            policy: plan.policy.failure.restart.clone(),
            judge: |ended: &EndedAttempt| {
                let report = ended.members.values().find_map(|member| Some(&member.end.as_ref()?.report));
                serde_json::from_str(report.unwrap()).unwrap()
            },
            ports: (29500, 2),
        };
        let setup = Setup {
            job: "job".to_owned(),
            member,
            incarnation: Life { boot: 1, pod: "pod".to_owned() },
            timing: Timing::default(),
            memory: Memory::default(),
            leader: Some(leader),
        };
        Self { gang: Gang::new(setup, Clock(0)), now: Clock(0), orders: Vec::new() }
    }

    /// Advances the time until the next attempt starts. The error is how the gang has ended.
    fn start(&mut self, checkpoint: u32) -> Result<u32, String> {
        let more = self.gang.step(self.now, Word::Tick);
        self.orders.extend(more);
        for _ in 0..10_000 {
            let mut word = Word::Tick;
            for order in std::mem::take(&mut self.orders) {
                match order {
                    Order::Choose { attempt } => {
                        let choice = Choice { checkpoint: path(checkpoint), detail: String::new() };
                        word = Word::Chosen(attempt, Ok(choice));
                    }
                    Order::Start { attempt, .. } => return Ok(attempt),
                    Order::Exit(Exit::Failed(why)) => return Err(why),
                    _ => {}
                }
            }
            if word == Word::Tick {
                self.now = self.gang.wake_at(self.now).unwrap_or(self.now);
            }
            self.orders = self.gang.step(self.now, word);
        }
        panic!("it never starts: {:?}", self.gang);
    }

    fn end(&mut self, number: u32, attempt: Attempt, end: &AttemptEnd) {
        self.now = self.now + std::time::Duration::from_secs(u64::try_from(attempt.ran).unwrap());
        let report = serde_json::to_string(&AttemptEnd { resumed_from: None, ran_seconds: 0, ..end.clone() }).unwrap();
        self.orders = self.gang.step(self.now, Word::Ended { attempt: number, outcome: Outcome::Failed, report });
    }
}

/// Ends of all kinds, mostly evictions, and one failure that repeats.
fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    let any = prop_oneof![
        6 => (1..4i32).prop_map(Kind::Exit),
        3 => Just(Kind::Crash),
        6 => Just(Kind::Evicted),
        1 => Just(Kind::NotFound),
        1 => Just(Kind::NoCheckpoint),
    ];
    let evicted = prop_oneof![1 => (1..4i32).prop_map(Kind::Exit), 40 => Just(Kind::Evicted)];
    let same = prop_oneof![8 => Just(Kind::Exit(2)), 1 => Just(Kind::Evicted)];
    let ran = || prop_oneof![4 => 1..30i64, 1 => 295..305i64];
    let attempt = |(kind, ran, step, checkpoint)| Attempt { kind, ran, step, checkpoint };
    let of = |strategy: BoxedStrategy<_>| proptest::collection::vec(strategy.prop_map(attempt), 16);
    prop_oneof![
        of((any, ran(), proptest::option::of(0..4u32), 0..2u32).boxed()),
        of((evicted, 1..30i64, Just(None), Just(0)).boxed()),
        of((same, ran(), (1..3u32).prop_map(Some), 0..2u32).boxed()),
    ]
}

fn policies() -> impl Strategy<Value = api::FailurePolicy> {
    let restarts = prop_oneof![
        6 => Just(RestartPolicy::OnFailure),
        2 => Just(RestartPolicy::Always),
        1 => Just(RestartPolicy::Never),
    ];
    let rule = |code: i32, action| api::FailureRule { exit_codes: vec![code], reasons: vec![], message: None, action };
    let rules = prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec![rule(1, api::RuleAction::Ignore), rule(127, api::RuleAction::Restart)]),
        1 => Just(vec![rule(3, api::RuleAction::Fail)]),
    ];
    (restarts, prop_oneof![0..4u16, 8..20u16], rules).prop_map(|(restarts, limit, rules)| api::FailurePolicy {
        restart_policy: Some(restarts),
        backoff_limit: Some(limit),
        rules,
        ..api::FailurePolicy::default()
    })
}

#[test]
fn leader_and_operator_judge_alike() {
    let most = std::env::var("TRAININGJOB_ENDS").map_or(2000, |n| n.parse().expect("TRAININGJOB_ENDS is a number"));
    let config = ProptestConfig { cases: u32::MAX, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let (mut judged, mut decided) = (0, BTreeMap::<&str, u32>::new());
    while judged < most {
        let sequence = (policies(), attempts()).new_tree(&mut runner).unwrap().current();
        let (policy, attempts) = sequence;
        let mut operator = Operator(World::new());
        operator.0.spec.failure_policy = policy.clone();
        operator.0.step();
        let mut leader = Leader::new(&operator.0.plan());
        leader.start(attempts[0].checkpoint).unwrap();
        for (at, attempt) in attempts.iter().enumerate() {
            let number = u32::try_from(at + 1).unwrap();
            let (end, follows) = operator.judge(number, *attempt);
            leader.end(number, *attempt, &end);
            let ended_at = leader.now;
            let next = attempts.get(at + 1).map_or(0, |next| next.checkpoint);
            let reported = match leader.start(next) {
                Ok(started) => {
                    assert_eq!(started, number + 1);
                    Follows::Restart(i64::try_from(leader.now.since(ended_at).as_secs()).unwrap())
                }
                // The pods go, and the operator waits without them.
                Err(_) if end.waits_for_word() && matches!(follows, Follows::Wait) => Follows::Wait,
                Err(why) => Follows::Stop(why),
            };
            assert_eq!(reported, follows, "{policy:?}\n{:#?}", &attempts[..=at]);
            judged += 1;
            *decided
                .entry(match &follows {
                    Follows::Restart(0) => "restart at once",
                    Follows::Restart(_) => "restart after a wait",
                    Follows::Wait => "wait for a word",
                    Follows::Stop(why) if why.contains("in a row at step") => "stop: repeated",
                    Follows::Stop(why) if why.contains("interruptions") => "stop: interruptions",
                    Follows::Stop(why) if why.contains("backoffLimit") => "stop: budget",
                    Follows::Stop(why) if why.contains("Never") => "stop: Never",
                    Follows::Stop(_) => "stop: permanent",
                })
                .or_default() += 1;
            if !matches!(follows, Follows::Restart(_)) {
                break;
            }
        }
    }
    println!("{judged} ends of attempts, judged alike: {decided:?}");
    assert_eq!(decided.len(), 8, "each decision was taken: {decided:?}");
}
