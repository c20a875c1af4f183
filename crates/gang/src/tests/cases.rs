//! Cases of a few lines: budgets, and single turns that neither model nor simulation reaches.

use super::super::member::Member;
use super::super::message::{
    Beat, Choice, Command, Directive, Finish, History, Incarnation, LeaderMessage, MemberId, MemberMessage, Message,
    Outcome, RunEnd, Time,
};
use super::super::{Conn, Exit, Gang, Input, Memory, Order, Phase, Setup, Timing};
use super::model::three;
use super::state::{Fault, State, Step};
use super::world::{seconds, worker};
use failure::restart::Policy;
use protocol::gang::Restarts;
use std::collections::{BTreeSet, VecDeque};

const POLICY: Policy = Policy { restarts: Restarts::OnFailure, backoff_limit: 3, interruptions: 2, rules: Vec::new() };

fn leader() -> Incarnation {
    Incarnation { boot: 1, pod: "leader".to_owned() }
}

fn command(at: u64, echo: Time, directive: Directive) -> LeaderMessage {
    let command = Command { leader: leader(), directive, history: History::default(), clear: false };
    LeaderMessage::Command(Beat { at: Time(at), echo: Some(echo) }, Box::new(command))
}

fn start(attempt: u32) -> Directive {
    Directive::Start { attempt, size: 3, port: 29500, choice: Choice::default() }
}

fn follower(now: Time) -> Member {
    let incarnation = Incarnation { boot: 2, pod: "pod".to_owned() };
    let (timing, memory) = (Timing::default(), Memory::default());
    Member::new(Setup { job: "job".to_owned(), member: worker(1), incarnation, timing, memory, leader: None }, now)
}

#[test]
fn late_start_command_is_ignored() {
    for (late, starts) in [(0, true), (9_999, true), (10_000, false), (60_000, false)] {
        let (sent, mut out) = (Time(1_000_000), vec![]);
        let mut member = follower(sent);
        member.connected(sent, Conn(1), &mut out);
        member.received(sent, Conn(1), command(5, sent, Directive::Prepare { attempt: 3 }), &mut out);
        out.clear();
        member.received(Time(sent.0 + late), Conn(1), command(6, sent, start(3)), &mut out);
        assert_eq!(out.iter().any(|order| matches!(order, Order::Start { attempt: 3, .. })), starts, "{late} ms");
    }
}

#[test]
fn cut_off_member_stops_and_exits_0_only_on_gang_success() {
    let (now, mut out) = (Time(1_000_000), vec![]);
    let mut member = follower(now);
    member.connected(now, Conn(1), &mut out);
    for directive in [Directive::Prepare { attempt: 1 }, start(1)] {
        member.received(now, Conn(1), command(5, now, directive), &mut out);
    }
    let mut at = |time: u64| {
        out.clear();
        member.settle(Time(now.0 + time), &mut out);
        out.iter().find_map(|order| if let Order::Stop { grace, .. } = order { Some(*grace) } else { None })
    };
    assert_eq!([at(2_000), at(9_999), at(10_000), at(10_001)], [None, None, Some(seconds(5)), None]);
    // The program exits 0 while it is being stopped. It has not succeeded, so the agent stays.
    member.ended(Time(now.0 + 10_500), 1, RunEnd { outcome: Outcome::Succeeded, report: String::new() });
    out.clear();
    member.settle(Time(now.0 + 10_500), &mut out);
    let status = member.status();
    assert!(
        matches!(&status.run.as_ref().unwrap().state, super::super::message::RunState::Ended(end) if end.outcome == Outcome::Stopped)
    );
    assert!(!out.iter().any(|order| matches!(order, Order::Exit(_))));
    let past = History { finish: Some(Finish::Succeeded), ..History::default() };
    member.adopt_history(Time(now.0 + 11_000), &past, &mut out);
    member.settle(Time(now.0 + 11_000), &mut out);
    assert!(out.contains(&Order::Exit(Exit::Succeeded)));
}

/// A leading worker, a chief and a parameter server. All their messages arrive at once.
struct Trio {
    gangs: Vec<Gang>,
    orders: Vec<Vec<Order>>,
    now: Time,
}

impl Trio {
    fn new(deciding: &[MemberId]) -> Self {
        let members = [worker(0), MemberId::new("chief", 0), MemberId::new("ps", 0)];
        let gang = |(seat, member): (usize, &MemberId)| {
            let leader = (seat == 0).then(|| super::super::LeaderSetup {
                members: members.iter().cloned().collect(),
                deciding: deciding.iter().cloned().collect(),
                was_larger: false,
                policy: POLICY,
                judge: super::super::policy::by_what_was_seen,
                ports: (29500, 2),
            });
            let (incarnation, member) = (Incarnation { boot: 1, pod: format!("p{seat}") }, member.clone());
            let (timing, memory) = (Timing::default(), Memory::default());
            Gang::new(Setup { job: "job".to_owned(), member, incarnation, timing, memory, leader }, Time(1))
        };
        let gangs = members.iter().enumerate().map(gang).collect();
        let mut trio = Self { gangs, orders: vec![Vec::new(); 3], now: Time(1000) };
        for (seat, member) in members.iter().enumerate().skip(1) {
            let conn = Conn(seat as u64);
            trio.take(0, Input::Accepted { conn, member: member.clone(), pod: format!("p{seat}") });
            trio.take(seat, Input::Dialed(conn));
        }
        trio
    }

    fn take(&mut self, seat: usize, input: Input) {
        let mut mail = VecDeque::from([(seat, input)]);
        while let Some((seat, input)) = mail.pop_front() {
            for order in self.gangs[seat].step(self.now, input) {
                match order {
                    Order::Send { conn, message } => {
                        let to = if seat == 0 { conn.0 as usize } else { 0 };
                        mail.push_back((to, Input::Received(conn, message)));
                    }
                    Order::Choose { attempt } => mail.push_back((seat, Input::Chosen(attempt, Ok(Choice::default())))),
                    order => self.orders[seat].push(order),
                }
            }
        }
    }

    fn ended(&mut self, seat: usize, outcome: Outcome) -> Vec<Vec<Order>> {
        self.orders.iter_mut().for_each(Vec::clear);
        self.take(seat, Input::Ended { attempt: 1, outcome, report: String::new() });
        self.orders.clone()
    }
}

/// All agents are terminated at once, as by a suspension. Rank 0 saves for long, and the others have nothing to save.
#[test]
fn departed_member_does_not_shorten_grace_of_saving_member() {
    let mut trio = Trio::new(&[]);
    (0..3).for_each(|seat| trio.take(seat, Input::Terminated(15)));
    let orders = trio.ended(1, Outcome::Stopped);
    assert!(orders[1].contains(&Order::Exit(Exit::Signalled(15))), "{orders:?}");
    let mut later = |conn: u64| {
        trio.take(0, Input::Closed(Conn(conn)));
        trio.orders.iter_mut().for_each(Vec::clear);
        trio.now = Time(trio.now.0 + 4_000);
        (0..3).rev().filter(|seat| ![1, conn as usize].contains(seat)).for_each(|seat| trio.take(seat, Input::Tick));
        trio.orders[0].iter().find_map(|order| if let Order::Stop { grace, .. } = order { Some(*grace) } else { None })
    };
    assert_eq!(later(1), None);
    assert_eq!(later(2), Some(Timing::default().short_grace), "this one may run on");
}

#[test]
fn gang_succeeds_when_deciding_members_succeed() {
    let mut trio = Trio::new(&[MemberId::new("chief", 0)]);
    assert!(trio.orders.iter().all(|orders| matches!(orders[..], [Order::Start { attempt: 1, size: 3, .. }])));
    let nothing = trio.ended(2, Outcome::Succeeded);
    assert_eq!(nothing, vec![Vec::new(); 3], "a parameter server that ends is no end");
    let grace = Timing::default().grace;
    let orders = trio.ended(1, Outcome::Succeeded);
    assert_eq!(orders[0], [Order::Stop { attempt: 1, grace }], "what goes on is ended, with time to save");
    assert_eq!([&orders[1][..], &orders[2][..]], [&[Order::Exit(Exit::Succeeded)]; 2]);
    let orders = trio.ended(0, Outcome::Stopped);
    assert_eq!(orders[0], [Order::Exit(Exit::Succeeded)]);
}

/// A beat without news keeps its member's lease. It does not make the leader look at all other members.
#[test]
fn leader_handles_heartbeat_without_checking_other_members() {
    let mut trio = Trio::new(&[]);
    let sent = |orders: Vec<Order>| {
        let messages = orders.into_iter().filter_map(|order| match order {
            Order::Send { conn, message } if conn != Conn(0) => Some(Input::Received(conn, message)),
            _ => None,
        });
        messages.collect::<Vec<_>>()
    };
    let began = trio.now;
    for second in (2..=60).step_by(2) {
        trio.now = began + seconds(second);
        for reported in sent(trio.gangs[0].step(trio.now, Input::Tick)) {
            let Input::Received(Conn(seat), _) = reported else { unreachable!() };
            let beats = sent(trio.gangs[seat as usize].step(trio.now, reported));
            assert_eq!(beats.len(), 1, "member {seat} after {second} s");
            assert!(trio.gangs[0].hear(trio.now, &beats[0]), "member {seat} after {second} s");
        }
    }
    assert!(matches!(trio.gangs[0].phase(), Some(Phase::Running { attempt: 1, .. })));
    // A message with news is handled differently, and so is the first message of a member that was silent for too long.
    let news = sent(trio.gangs[1].step(trio.now + seconds(2), Input::Idle(true)));
    assert!(!trio.gangs[0].hear(trio.now + seconds(2), &news[0]), "{news:?}");
    let beat = sent(trio.gangs[2].step(trio.now + seconds(4), Input::Tick));
    assert!(!trio.gangs[0].hear(trio.now + seconds(20), &beat[0]));
    assert!(!trio.gangs[0].hear(trio.now + seconds(4), &Input::Closed(Conn(2))));
}

/// A member that waits for another member does not hang.
#[test]
fn gang_is_idle_when_all_running_members_are_idle() {
    let mut trio = Trio::new(&[]);
    for seat in [0, 2] {
        trio.take(seat, Input::Idle(true));
        assert!(!trio.gangs[0].is_idle(), "the chief works");
    }
    trio.take(1, Input::Idle(true));
    assert!(trio.gangs[0].is_idle() && !trio.gangs[1].is_idle(), "that only the leader knows");
    trio.take(2, Input::Idle(false));
    assert!(!trio.gangs[0].is_idle());
    assert_eq!(trio.ended(2, Outcome::Succeeded), vec![Vec::new(); 3]);
    assert!(trio.gangs[0].is_idle(), "who has succeeded has nothing more to do");
    trio.ended(1, Outcome::Failed);
    assert!(!trio.gangs[0].is_idle(), "it ends");
}

#[test]
fn all_members_decide_by_default_and_any_failure_fails_gang() {
    let mut trio = Trio::new(&[]);
    assert_eq!(trio.ended(1, Outcome::Succeeded), vec![Vec::new(); 3]);
    assert_eq!(trio.ended(2, Outcome::Succeeded), vec![Vec::new(); 3]);
    assert!(trio.ended(0, Outcome::Succeeded).iter().flatten().any(|order| matches!(order, Order::Exit(_))));
    let mut trio = Trio::new(&[MemberId::new("chief", 0)]);
    let orders = trio.ended(2, Outcome::Failed);
    assert!(orders[..2].iter().all(|orders| matches!(orders[..], [Order::Stop { attempt: 1, .. }])), "{orders:?}");
}

#[test]
fn hello_with_wrong_job_member_or_pod_is_refused() {
    let leads = super::super::LeaderSetup {
        members: [worker(0), worker(1)].into(),
        deciding: BTreeSet::new(),
        was_larger: false,
        policy: POLICY,
        judge: super::super::policy::by_what_was_seen,
        ports: (29500, 2),
    };
    let setup = |member, incarnation, leader| Setup {
        job: "job".to_owned(),
        member,
        incarnation,
        timing: Timing::default(),
        memory: Memory::default(),
        leader,
    };
    let now = Time(5);
    let hello = |job: &str, index, pod: &str| {
        let incarnation = Incarnation { boot: 2, pod: pod.to_owned() };
        let mut gang = Gang::new(Setup { job: job.to_owned(), ..setup(worker(index), incarnation, None) }, now);
        let orders = gang.step(now, Input::Dialed(Conn(1)));
        orders
            .into_iter()
            .find_map(|order| if let Order::Send { message, .. } = order { Some(message) } else { None })
            .unwrap()
    };
    for (hello, is_taken) in [
        (hello("job", 1, "pod"), true),
        (hello("other", 1, "pod"), false),
        (hello("job", 2, "pod"), false),
        (hello("job", 1, "another"), false),
    ] {
        let mut gang = Gang::new(setup(worker(0), leader(), Some(leads.clone())), now);
        gang.step(now, Input::Accepted { conn: Conn(7), member: worker(1), pod: "pod".to_owned() });
        let orders = gang.step(now, Input::Received(Conn(7), hello));
        let refused =
            |order: &Order| matches!(order, Order::Send { message: Message::Down(LeaderMessage::Refused(_)), .. });
        assert_eq!(!orders.iter().any(refused), is_taken);
        assert_eq!(!orders.iter().any(|order| matches!(order, Order::Close { conn: Conn(7), .. })), is_taken);
        // A message before the hello is ignored. A message from the wrong side closes the connection.
        let status = Message::Up(MemberMessage::Status(Beat::default(), Default::default()));
        assert!(gang.step(now, Input::Received(Conn(8), status)).is_empty());
        let wrong = gang.step(now, Input::Received(Conn(9), Message::Down(LeaderMessage::Displaced)));
        assert!(matches!(wrong[..], [Order::Close { conn: Conn(9), .. }]));
    }
}

/// Takes the steps that happen without faults, until the attempt runs or all is over.
fn go_on(state: &mut State, attempt: u32) {
    for _ in 0..30 {
        for i in 0..state.world.agents.len() {
            state.take(Step::Dial(i));
            if state.world.kill_at(i).is_some() {
                state.take(Step::Stopped(i));
            }
            state.take(Step::Choose(i));
        }
        state.deliver_all();
        let runs = |attempt: u32| {
            let run =
                state.world.agents.iter().map(|agent| agent.process.as_ref().map_or(0, |process| process.attempt));
            run.min() == Some(attempt)
        };
        if state.world.is_over() || runs(attempt) {
            return;
        }
        state.tick();
    }
}

#[test]
fn second_program_failure_exceeds_backoff_limit_of_one() {
    let mut state = three(0, true);
    state.suffer(Fault::Fail(1));
    go_on(&mut state, 2);
    assert_eq!((state.world.attempt.number, state.world.attempt.seats.len()), (2, 3));
    assert_eq!(state.world.agents[2].gang.memory().history.restarts.failures, 1);
    state.suffer(Fault::Fail(2));
    go_on(&mut state, 3);
    let why = |finish: Option<Finish>| if let Some(Finish::Failed(why)) = finish { why } else { String::new() };
    let expected = "worker 2: its program failed (after 1 restart; failurePolicy.backoffLimit is 1)";
    assert_eq!((state.world.is_over(), why(state.world.finish).as_str()), (true, expected));
}

#[test]
fn failures_caused_by_lost_node_count_as_disruption() {
    let mut state = three(0, true);
    state.suffer(Fault::Cut(1));
    state.suffer(Fault::Fail(2));
    go_on(&mut state, 2);
    let view = state.world.agents[0].gang.memory().history.restarts;
    assert_eq!((view.judged, view.failures, view.disruptions), (1, 0, 1));
}

/// A leaving leader only ends the last attempt, so its successor does not have to skip a number that nothing has run
/// under.
#[test]
fn terminated_leader_leaves_next_attempt_to_its_successor() {
    let mut state = three(0, true);
    state.suffer(Fault::Terminate(0));
    for i in [1, 2, 0] {
        state.deliver_all();
        state.take(Step::Stopped(i));
    }
    state.deliver_all();
    assert!(!state.world.lives(0), "it has judged the attempt, and is gone");
    state.take(Step::Replace(0));
    go_on(&mut state, 2);
    let view = state.world.agents.last().unwrap().gang.memory().history.restarts;
    assert_eq!((state.world.attempt.number, view.judged), (2, 1));
}

#[test]
fn messages_on_replaced_connection_are_ignored() {
    let (now, mut out) = (Time(1_000_000), vec![]);
    let mut member = follower(now);
    member.connected(now, Conn(1), &mut out);
    member.connected(now, Conn(2), &mut out);
    assert!(matches!(&out[..], [_, Order::Close { conn: Conn(1), .. }, _]));
    member.received(now, Conn(1), command(5, now, Directive::Prepare { attempt: 9 }), &mut out);
    assert_eq!(member.status().seen, 0);
    member.received(now, Conn(2), command(5, now, Directive::Prepare { attempt: 3 }), &mut out);
    member.closed(now, Conn(1));
    assert!(member.status().seen == 3 && member.is_linked());
}

/// Runs all agents that are not cut off. No process ends before it has to.
fn go_on_slowly(state: &mut State, attempt: u32) {
    for _ in 0..30 {
        (0..state.world.agents.len()).for_each(|i| state.take(Step::Dial(i)));
        state.deliver_all();
        (0..state.world.agents.len()).for_each(|i| state.take(Step::Choose(i)));
        state.deliver_all();
        if state.world.attempt.number >= attempt {
            return;
        }
        state.tick();
    }
}

#[test]
fn removed_member_that_may_still_run_delays_next_attempt() {
    let mut state = three(0, true);
    state.suffer(Fault::Cut(2));
    // Another pod waits in its place, and has never run anything.
    state.take(Step::Replace(2));
    state.suffer(Fault::Resize(0, 2));
    go_on_slowly(&mut state, 2);
    assert_eq!(state.world.broken, None);
    assert_eq!((state.world.attempt.number, state.world.attempt.size), (2, 2));
}

/// A new leader that needs no other member, and that no member has informed of what runs.
#[test]
fn new_leader_waits_for_members_of_unknown_state() {
    let mut state = three(0, true);
    state.suffer(Fault::Kill(0));
    state.world.resize(1);
    state.take(Step::Replace(0));
    // If it could ask both, it would not need to wait that long.
    state.suffer(Fault::Cut(1));
    state.suffer(Fault::Cut(2));
    go_on_slowly(&mut state, 2);
    assert_eq!(state.world.broken, None);
    assert!(state.world.attempt.number >= 2 && state.world.attempt.size == 1, "{:?}", state.world.attempt);
}

#[test]
fn resize_does_not_disturb_gang_about_to_succeed() {
    let mut state = three(0, true);
    state.take(Step::Succeed(1));
    state.deliver_all();
    state.suffer(Fault::Resize(0, 2));
    [0, 2].into_iter().for_each(|i| state.take(Step::Succeed(i)));
    go_on(&mut state, 2);
    assert_eq!((state.world.attempt.number, &state.world.finish), (1, &Some(Finish::Succeeded)));
    assert!(state.world.is_over());
}

#[test]
fn standby_runs_nothing_and_exits_with_gang() {
    let mut state = three(0, true);
    state.suffer(Fault::Resize(0, 2));
    go_on(&mut state, 2);
    for _ in 0..20 {
        go_on_slowly(&mut state, 2);
        state.deliver_all();
        state.tick();
    }
    assert_eq!((state.world.attempt.number, state.world.attempt.size), (2, 2));
    assert!(state.world.agents[2].process.is_none() && state.world.agents[2].gang.member.is_linked());
    [0, 1].into_iter().for_each(|i| state.take(Step::Succeed(i)));
    go_on(&mut state, 3);
    assert!(state.world.is_over() && state.world.finish == Some(Finish::Succeeded), "{:?}", state.world.finish);
}
