//! The part of an agent that leads the gang: it knows the members, runs attempts and decides what follows from their
//! ends.
//!
//! Each message updates the seat of its sender. [`Leader::settle`] then looks at all seats and the time, and moves to
//! the next phase if nothing blocks it. So the order of the messages does not matter.

use super::agent::Setup;
use super::message::{
    Beat, Choice, Command, Directive, Finish, History, Incarnation, LeaderMessage, MAX_DETAIL, MAX_TEXT, MemberId,
    Message, Status, Time, cut, millis,
};
use super::policy::{EndCause, EndedAttempt, Judge, begin};
use super::seat::{Holder, Link, Seat};
use super::view::{BlockReason, ChoiceState, Phase, View};
use super::{Conn, Order, Timing};
use failure::restart::{Next, Policy, decide, ruled};
use protocol::attempt::AttemptEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The leader's configuration.
#[derive(Clone, Debug, Hash)]
pub struct LeaderSetup {
    /// All members of the next attempt, the leader's own among them.
    pub members: BTreeSet<MemberId>,
    /// The members whose success makes the gang succeed, whatever the other members do by then. If empty, all decide.
    pub deciding: BTreeSet<MemberId>,
    /// Earlier attempts may have had members that are not members any more.
    pub was_larger: bool,
    /// The user's policy.
    pub policy: Policy,
    /// Judges an attempt that has ended.
    pub judge: Judge,
    /// The first rendezvous port, and the number of ports: at least two, preferably more.
    pub ports: (u16, u16),
}

/// The leader's state.
#[derive(Clone, Debug, Hash)]
pub struct Leader {
    pub(super) setup: LeaderSetup,
    pub(super) me: MemberId,
    pub(super) job: String,
    pub(super) incarnation: Incarnation,
    pub(super) timing: Timing,
    /// The seats of members and spares.
    pub(super) seats: BTreeMap<MemberId, Seat>,
    /// All members of the attempt that runs or ends, or else of the next one.
    pub(super) members: BTreeSet<MemberId>,
    /// Connections without a hello: the member and pod that they belong to, and when they opened.
    pub(super) strangers: BTreeMap<Conn, (MemberId, String, Time)>,
    /// The member that each other connection belongs to.
    pub(super) guests: BTreeMap<Conn, MemberId>,
    pub(super) history: History,
    pub(super) phase: Phase,
    /// Everything that any earlier leader started has stopped by this time.
    pub(super) quiet_at: Time,
    /// The last attempt whose leader has reported that its own processes have stopped.
    pub(super) cleared: u32,
    leaving: Option<i32>,
    /// The command that was sent last.
    word: Option<Command>,
    /// The last attempt that was judged, for the view.
    pub(super) judged: Option<AttemptEnd>,
}

impl Leader {
    pub(super) fn new(setup: LeaderSetup, agent: &Setup, now: Time) -> Self {
        let (timing, history) = (agent.timing, agent.memory.history.clone());
        let members = setup.members.clone();
        let seats = members.iter().map(|member| (member.clone(), Seat::default())).collect();
        let phase = match history.finish {
            Some(_) => Phase::Over { since: now },
            None => Phase::Gathering {
                attempt: history.attempt.saturating_add(1),
                not_before: now,
                choice: ChoiceState::NotYet,
            },
        };
        let strangers = BTreeMap::new();
        let quiet_at = if setup.was_larger { now + timing.lease + timing.fence() } else { Time::default() };
        Self {
            setup,
            me: agent.member.clone(),
            job: agent.job.clone(),
            incarnation: agent.incarnation.clone(),
            timing,
            seats,
            members,
            strangers,
            guests: BTreeMap::new(),
            history,
            phase,
            quiet_at,
            cleared: 0,
            leaving: None,
            word: None,
            judged: None,
        }
    }

    /// The driver has chosen a checkpoint, or has reported why it could not.
    pub(super) fn chosen(&mut self, now: Time, attempt: u32, chosen: Result<Choice, String>) {
        let Phase::Gathering { attempt: next, choice, .. } = &mut self.phase else { return };
        if *next != attempt || *choice != ChoiceState::Asked {
            return;
        }
        match chosen {
            Ok(chosen) if chosen.detail.len() > MAX_DETAIL => {
                let report = "the details of the checkpoint choice are too long to be sent".to_owned();
                self.phase = ending(attempt, EndCause::Unchosen(report), now, Duration::ZERO);
            }
            Ok(chosen) => {
                *choice = ChoiceState::Choice(Choice { checkpoint: cut(chosen.checkpoint, MAX_TEXT), ..chosen });
            }
            Err(report) => self.phase = ending(attempt, EndCause::Unchosen(report), now, Duration::ZERO),
        }
    }

    /// Sets the user's current policy.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.setup.policy = policy;
    }

    /// Another attempt was requested.
    pub(super) fn restart(&mut self, now: Time, words: String) {
        match &mut self.phase {
            Phase::Gathering { not_before, .. } => *not_before = now,
            Phase::Running { attempt, since, .. } => {
                self.phase = ending(*attempt, EndCause::Ordered(words), now, now.since(*since));
            }
            Phase::Ending { .. } | Phase::Over { .. } => {}
        }
    }

    /// The agent has received a termination signal.
    pub(super) fn terminated(&mut self, signal: i32) {
        self.leaving.get_or_insert(signal);
    }

    /// Does what time or a message has made due, and sends all members what is new.
    pub(super) fn settle(&mut self, now: Time, out: &mut Vec<Order>) {
        for holder in self.seats.values_mut().filter_map(|seat| seat.holder.as_mut()) {
            if now.since(holder.heard) >= self.timing.lease
                && let Some(link) = holder.link.take()
            {
                holder.unlinked = now;
                self.guests.remove(&link.conn);
                out.push(Order::Close { conn: link.conn, why: "the member is silent".to_owned() });
            }
        }
        while let Some(next) = self.next(now, out) {
            self.phase = next;
        }
        self.send_commands(now, out);
    }

    /// The phase that follows from the current state, if it is a different one.
    fn next(&mut self, now: Time, out: &mut Vec<Order>) -> Option<Phase> {
        match &self.phase {
            Phase::Gathering { attempt, not_before, choice } => {
                let (attempt, not_before, choice) = (*attempt, *not_before, choice.clone());
                if let Some(run) = self.last_run().filter(|run| *run > self.history.restarts.judged) {
                    self.history.attempt = self.history.attempt.max(run);
                    return Some(ending(run, EndCause::LeaderLost, now, Duration::ZERO));
                }
                self.seat_members();
                let is_clear = self.spares().all(|seat| self.is_clear(seat, now));
                if !is_clear || !self.of_members().all(|seat| self.is_there(seat, attempt, now)) || !self.is_quiet(now)
                {
                    return None;
                }
                match choice {
                    ChoiceState::NotYet => {
                        out.push(Order::Choose { attempt });
                        Some(Phase::Gathering { attempt, not_before, choice: ChoiceState::Asked })
                    }
                    ChoiceState::Choice(choice) if now >= not_before => {
                        begin(&mut self.history, attempt, &choice, self.setup.ports);
                        self.quiet_at = Time::default();
                        Some(Phase::Running { attempt, port: self.history.port, choice, since: now })
                    }
                    ChoiceState::Asked | ChoiceState::Choice(_) => None,
                }
            }
            Phase::Running { attempt, since, .. } => {
                let (attempt, ran) = (*attempt, now.since(*since));
                if self.has_succeeded(attempt) {
                    self.history.finish = Some(Finish::Succeeded);
                    return Some(Phase::Over { since: now });
                }
                self.why_to_end(attempt, now).map(|why| ending(attempt, why, now, ran))
            }
            Phase::Ending { attempt, why, since, ran } => {
                let (attempt, why, since, ran) = (*attempt, why.clone(), *since, *ran);
                if let Some(run) = self.last_run().filter(|run| *run > attempt) {
                    self.history.attempt = self.history.attempt.max(run);
                    return Some(ending(run, EndCause::LeaderLost, now, Duration::ZERO));
                }
                let is_settled = |seat: &Seat| seat.is_settled(attempt, since, now, &self.timing);
                let are_settled = self.of_members().all(is_settled);
                are_settled.then(|| self.judge(attempt, why, [since, now], ran))
            }
            Phase::Over { .. } => None,
        }
    }

    fn judge(&mut self, attempt: u32, why: EndCause, [since, now]: [Time; 2], ran: Duration) -> Phase {
        let mut wait = Duration::ZERO;
        if self.history.restarts.judged < attempt {
            let why = match why {
                // The member leaves because the next attempt does not need it any more.
                EndCause::Left(member, _) if !self.setup.members.contains(&member) => self.resized(),
                why => why,
            };
            let members = self.members.iter().filter_map(|member| Some((member, self.seats.get(member)?)));
            let members = members.map(|(member, seat)| (member.clone(), seat.came_out(attempt))).collect();
            let end = (self.setup.judge)(&EndedAttempt { attempt, why, members });
            let checkpoint = Some(self.history.checkpoint.clone()).filter(|path| !path.is_empty());
            let end = ruled(
                &self.setup.policy,
                AttemptEnd { resumed_from: checkpoint, ran_seconds: i64::try_from(ran.as_secs()).unwrap_or(0), ..end },
            );
            self.history.attempt = self.history.attempt.max(attempt);
            match decide(&self.setup.policy, &mut self.history.restarts, &end) {
                Next::Restart { after } => wait = after,
                Next::Stop { why } => self.history.finish = Some(failed(end.ends_job(&why))),
                Next::Wait => self.history.finish = Some(failed(end.to_string())),
            }
            self.judged = Some(end);
            if self.history.finish.is_some() {
                return Phase::Over { since: now };
            }
        }
        let seen = self.seats.values().filter_map(|seat| Some(seat.holder.as_ref()?.status.seen)).max();
        let last = self.history.attempt.max(attempt).max(seen.unwrap_or(0));
        Phase::Gathering { attempt: last.saturating_add(1), not_before: since + wait, choice: ChoiceState::NotYet }
    }

    /// The last attempt that any member has run.
    fn last_run(&self) -> Option<u32> {
        self.seats.values().filter_map(|seat| Some(seat.holder.as_ref()?.status.run.as_ref()?.attempt)).max()
    }

    /// Takes over a changed set of members.
    fn seat_members(&mut self) {
        if self.members != self.setup.members {
            self.members.clone_from(&self.setup.members);
            for member in &self.members {
                self.seats.entry(member.clone()).or_default();
            }
        }
    }

    fn has_succeeded(&self, attempt: u32) -> bool {
        let deciding = &self.setup.deciding;
        let decides =
            |member: &MemberId| self.members.contains(member) && (deciding.is_empty() || deciding.contains(member));
        let mut seats = self.seats.iter().filter(|(member, _)| decides(member));
        seats.all(|(_, seat)| seat.succeeded == attempt)
    }

    fn of_members(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|(member, _)| self.members.contains(member)).map(|(_, seat)| seat)
    }

    /// The seats of spares, which run nothing.
    fn spares(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().filter(|(member, _)| !self.members.contains(member)).map(|(_, seat)| seat)
    }

    /// Whether all processes have ended that were started in a spare's place when it was a member.
    pub(super) fn is_clear(&self, seat: &Seat, now: Time) -> bool {
        let is_over =
            |holder: &Holder| holder.is_out_of(self.history.attempt) || now >= holder.received + self.timing.fence();
        now >= seat.fence && seat.holder.as_ref().is_none_or(is_over)
    }

    fn is_there(&self, seat: &Seat, attempt: u32, now: Time) -> bool {
        now >= seat.fence && seat.holder.as_ref().is_some_and(|holder| holder.is_ready(attempt, now, &self.timing))
    }

    /// Whether no unknown agent can still run what an earlier leader started. Either enough time has passed, or each
    /// place's agent of the last attempt has reported that it has stopped.
    pub(super) fn is_quiet(&self, now: Time) -> bool {
        let Some(last) = self.last_run().filter(|_| now < self.quiet_at) else { return now >= self.quiet_at };
        let run = |seat: &Seat| seat.holder.as_ref()?.status.run.clone().filter(|run| run.attempt == last);
        let runs: BTreeMap<_, _> = self.seats.iter().filter_map(|(member, seat)| Some((member, run(seat)?))).collect();
        let was_here = runs.values().any(|run| run.leader.pod == self.incarnation.pod);
        let is_known = !runs.contains_key(&self.me) && (was_here || self.cleared == last);
        // It does not matter which members the attempt had, because the number of places is the same.
        let size = runs.values().map(|run| run.size).max().filter(|size| *size > 0);
        size.is_some_and(|size| runs.len() + usize::from(is_known) >= size as usize)
    }

    /// Whether no program of the running attempt shows progress.
    pub(super) fn is_idle(&self) -> bool {
        let Phase::Running { attempt, .. } = &self.phase else { return false };
        let is_idle = |seat: &Seat| seat.holder.as_ref().is_some_and(|holder| holder.status.idle);
        self.of_members().all(|seat| seat.succeeded == *attempt || is_idle(seat))
    }

    fn resized(&self) -> EndCause {
        EndCause::Resized { from: self.members.len(), to: self.setup.members.len() }
    }

    fn why_to_end(&self, attempt: u32, now: Time) -> Option<EndCause> {
        if let Some(signal) = self.leaving {
            return Some(EndCause::Left(self.me.clone(), signal));
        }
        // A resize does not end an attempt that is about to succeed, because its work would be repeated.
        if self.members != self.setup.members && self.of_members().all(|seat| seat.succeeded != attempt) {
            return Some(self.resized());
        }
        self.seats.iter().filter(|(member, _)| self.members.contains(member)).find_map(|(member, seat)| {
            let Some(holder) = &seat.holder else { return Some(EndCause::Lost(member.clone())) };
            if let Some(signal) = holder.status.leaving {
                return Some(EndCause::Left(member.clone(), signal));
            }
            if holder.status.seen > attempt {
                return Some(EndCause::LeaderLost);
            }
            // This holds even after it succeeded. It may have found another leader, which relies on this one having
            // stopped.
            if holder.is_gone(now, &self.timing) {
                return Some(EndCause::Lost(member.clone()));
            }
            match seat.succeeded == attempt {
                true => None,
                false if seat.lost == attempt => Some(EndCause::Lost(member.clone())),
                false => (holder.status.closed >= attempt).then(|| EndCause::Failed(member.clone())),
            }
        })
    }

    fn directive(&self, now: Time) -> Directive {
        match &self.phase {
            // The next leader makes the next attempt. It could not use a number that a member has prepared for.
            Phase::Gathering { attempt, .. } if self.leaving.is_some() => {
                Directive::Stop { attempt: attempt.saturating_sub(1), grace: millis(self.timing.short_grace) }
            }
            Phase::Gathering { attempt, .. } => Directive::Prepare { attempt: *attempt },
            Phase::Running { attempt, port, choice, .. } => {
                let size = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
                Directive::Start { attempt: *attempt, size, port: *port, choice: choice.clone() }
            }
            Phase::Ending { attempt, why, .. } => {
                // A member that has ended its program and left does not shorten the grace of members that still save.
                let is_lost = |seat: &Seat| {
                    let holder = seat.holder.as_ref();
                    holder.is_none_or(|h| h.is_gone(now, &self.timing) && !h.is_out_of(*attempt))
                };
                let is_asked = matches!(why, EndCause::Left(..) | EndCause::Ordered(_) | EndCause::Resized { .. });
                let may_save = is_asked && !self.of_members().any(is_lost);
                let grace = if may_save { self.timing.grace } else { self.timing.short_grace };
                Directive::Stop { attempt: *attempt, grace: millis(grace) }
            }
            Phase::Over { .. } => Directive::Exit,
        }
    }

    fn send_commands(&mut self, now: Time, out: &mut Vec<Order>) {
        let own = self.seats.get(&self.me).and_then(|seat| seat.holder.as_ref());
        let command = Command {
            leader: self.incarnation.clone(),
            directive: self.directive(now),
            history: self.history.clone(),
            clear: self.leaving.is_some() && own.is_some_and(|own| own.is_out_of(self.history.attempt)),
        };
        let is_news = self.word.as_ref() != Some(&command);
        if is_news {
            self.word = Some(command.clone());
        }
        let spared = match &command.directive {
            Directive::Start { attempt, .. } => {
                Command { directive: Directive::Prepare { attempt: *attempt }, ..command.clone() }
            }
            _ => command.clone(),
        };
        let beat = self.timing.beat;
        let is_due = |link: &Link| now.since(link.sent) >= beat;
        let links = || self.seats.values().filter_map(|seat| seat.holder.as_ref()?.link.as_ref());
        // Messages that are almost due are sent with those that are due. Thousands of members then do not cause
        // thousands of turns.
        let sent_before = if links().any(is_due) { beat * 7 / 8 } else { beat };
        for (member, seat) in &mut self.seats {
            let Some(link) = seat.holder.as_mut().and_then(|holder| holder.link.as_mut()) else { continue };
            link.is_commanded &= !is_news;
            if link.is_commanded && !link.asks && now.since(link.sent) < sent_before {
                continue;
            }
            let command = if self.members.contains(member) { &command } else { &spared };
            (link.is_commanded, link.sent, link.asks) = (true, now, false);
            let down = LeaderMessage::Command(Beat { at: now, echo: Some(link.echo) }, Box::new(command.clone()));
            out.push(Order::Send { conn: link.conn, message: Message::Down(down) });
        }
    }

    /// Whether every member knows how the gang ended. After [`Timing::linger`] disconnected members are not waited for.
    pub(super) fn is_finished(&self, now: Time) -> bool {
        let Phase::Over { since } = self.phase else { return false };
        let is_over = now.since(since) >= self.timing.linger;
        if !self.strangers.is_empty() && !is_over {
            return false;
        }
        self.seats.iter().filter(|(member, _)| **member != self.me).all(|(member, seat)| match &seat.holder {
            // A disconnected spare need not know.
            _ if !self.members.contains(member) && seat.holder.as_ref().is_none_or(|holder| holder.link.is_none()) => {
                true
            }
            Some(holder) => holder.status.over || (holder.link.is_none() && is_over),
            None => is_over,
        })
    }

    /// The latest time at which [`Leader::settle`] has to be called.
    pub(super) fn wake_at(&self, now: Time) -> Option<Time> {
        let Timing { beat, lease, reconnect, linger, .. } = self.timing;
        let of_seat = |seat: &Seat| {
            let of_holder = seat.holder.as_ref().map(|holder| {
                let sent = holder.link.as_ref().map_or(holder.unlinked + reconnect, |link| link.sent + beat);
                [sent, holder.heard + lease, holder.received + lease, holder.received + self.timing.fence()]
            });
            of_holder.into_iter().flatten().chain([seat.fence])
        };
        let of_phase = match &self.phase {
            Phase::Gathering { not_before, .. } => *not_before,
            Phase::Running { .. } => now,
            Phase::Ending { since, .. } => *since + lease,
            Phase::Over { since } => *since + linger,
        };
        let times = self.seats.values().flat_map(of_seat).chain([of_phase, self.quiet_at]);
        times.filter(|time| *time > now).min()
    }
}

fn failed(why: String) -> Finish {
    Finish::Failed(cut(why, MAX_TEXT))
}

fn ending(attempt: u32, why: EndCause, since: Time, ran: Duration) -> Phase {
    Phase::Ending { attempt, why, since, ran }
}

impl Leader {
    /// The state of the gang.
    pub fn view(&self, now: Time) -> View<'_> {
        let missing = |(member, seat)| {
            let is_member = self.members.contains(member);
            Some((member, if is_member { self.missing(seat, now) } else { self.holds_up(seat, now) }?))
        };
        let quiet_in = if self.is_quiet(now) { Duration::ZERO } else { self.quiet_at.since(now) };
        View {
            phase: &self.phase,
            history: &self.history,
            judged: self.judged.as_ref(),
            members: self.members.len(),
            missing: self.seats.iter().filter_map(missing).collect(),
            quiet_in,
        }
    }

    /// Why a spare keeps the next attempt from starting.
    fn holds_up(&self, seat: &Seat, now: Time) -> Option<BlockReason> {
        if !matches!(self.phase, Phase::Gathering { .. }) || self.is_clear(seat, now) {
            return None;
        }
        Some(if now < seat.fence { BlockReason::Fenced(seat.fence.since(now)) } else { BlockReason::Stopping })
    }

    fn missing(&self, seat: &Seat, now: Time) -> Option<BlockReason> {
        let Some(holder) = &seat.holder else { return Some(BlockReason::NeverSeen) };
        let Status { seen, leaving, .. } = holder.status;
        if leaving.is_some() {
            return Some(BlockReason::Leaving);
        }
        match &self.phase {
            Phase::Over { .. } => (!holder.status.over).then_some(BlockReason::Unreachable),
            Phase::Running { attempt, .. } if seat.succeeded == *attempt => None,
            _ if holder.is_gone(now, &self.timing) => Some(BlockReason::Unreachable),
            Phase::Running { .. } => None,
            Phase::Ending { attempt, .. } => (!holder.is_out_of(*attempt)).then_some(BlockReason::Stopping),
            Phase::Gathering { .. } if holder.status.is_alive() => Some(BlockReason::Stopping),
            Phase::Gathering { attempt, .. } if seen != *attempt => Some(BlockReason::Preparing),
            Phase::Gathering { .. } => (now < seat.fence).then(|| BlockReason::Fenced(seat.fence.since(now))),
        }
    }
}
