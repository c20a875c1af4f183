//! The part of an agent that runs the processes of one member, as its leader orders.
//!
//! The member obeys whichever leader it is connected to. It starts an attempt only if it has prepared for exactly that
//! one and none of its own processes lives. Its lease runs from when it sent the last message that the leader is known
//! to have received. After the lease it stops its program, whatever it receives.

use super::agent::Setup;
use super::message::{
    Beat, Command, Directive, Finish, Hello, History, Incarnation, LeaderMessage, MAX_REPORT, MemberId, MemberMessage,
    Message, Outcome, Run, RunEnd, RunState, Status, Time, VERSION, cut, millis,
};
use super::{Conn, Exit, Memory, Order, Timing};
use std::time::Duration;

/// A member's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    id: MemberId,
    job: String,
    incarnation: Incarnation,
    timing: Timing,
    history: History,
    status: Status,
    link: Option<Link>,
    /// The time since which there has been no link.
    unlinked: Time,
    contact: Option<Contact>,
    /// When it sent the last message that the leader has received.
    heard: Time,
    /// When the processes that are being stopped get SIGKILL.
    kill: Time,
    /// When a leaving agent stops waiting for its last message to be confirmed.
    farewell: Option<Time>,
    is_displaced: bool,
    exited: bool,
}

/// The connection to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    conn: Conn,
    /// The `at` of the leader's last message.
    echo: Option<Time>,
    /// The status that was sent last, and when.
    reported: Status,
    sent: Time,
    /// When that status was first sent.
    news: Time,
    opened: Time,
}

/// The last leader that the member heard of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Contact {
    leader: Incarnation,
    /// When the member last sent it a message.
    sent: Time,
    /// No process of the leader's own member lives any more.
    clear: bool,
}

impl Member {
    /// A member that runs nothing yet.
    pub fn new(setup: Setup, now: Time) -> Self {
        let Setup { job, member: id, incarnation, timing, memory, leader: _ } = setup;
        let Memory { history, seen, run } = memory;
        // The processes of an earlier agent of this pod are dead, whatever state it last recorded.
        let run = run.map(|run| match run.state {
            RunState::Ended(_) => run,
            _ => Run { state: RunState::Ended(RunEnd { outcome: Outcome::Stopped, report: String::new() }), ..run },
        });
        let seen = seen.max(history.attempt);
        let closed = run.as_ref().map_or(0, |run| run.attempt).max(history.attempt);
        Self {
            id,
            job,
            incarnation,
            timing,
            history,
            status: Status { seen, closed, run, leaving: None, over: false, idle: false },
            link: None,
            unlinked: now,
            contact: None,
            heard: now,
            kill: now,
            farewell: None,
            is_displaced: false,
            exited: false,
        }
    }

    /// The member's status.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// The memory for a later agent of this pod.
    pub fn memory(&self) -> Memory {
        Memory { history: self.history.clone(), seen: self.status.seen, run: self.status.run.clone() }
    }

    /// A connection to the leader has opened. An older one is closed.
    pub(super) fn connected(&mut self, now: Time, conn: Conn, out: &mut Vec<Order>) {
        if self.is_displaced {
            return out.push(Order::Close { conn, why: "a later agent holds this place".to_owned() });
        }
        self.unlink(now, Some("there is a newer one"), out);
        let former = self.contact.as_ref().map(|c| (c.leader.clone(), millis(now.since(c.sent))));
        let run = self.status.run.as_ref();
        let cleared = self.contact.as_ref().is_some_and(|c| c.clear && run.is_some_and(|run| run.leader == c.leader));
        let hello = Hello {
            version: VERSION,
            job: self.job.clone(),
            member: self.id.clone(),
            incarnation: self.incarnation.clone(),
            history: self.history.clone(),
            former,
            cleared,
            status: self.status.clone(),
        };
        let beat = Beat { at: now, echo: None };
        out.push(Order::Send { conn, message: Message::Up(MemberMessage::Hello(beat, Box::new(hello))) });
        self.link = Some(Link { conn, echo: None, reported: self.status.clone(), sent: now, news: now, opened: now });
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, now: Time, conn: Conn) {
        if self.link.as_ref().is_some_and(|link| link.conn == conn) {
            self.link = None;
            self.unlinked = now;
        }
    }

    /// A message from the leader has arrived.
    pub(super) fn received(&mut self, now: Time, conn: Conn, down: LeaderMessage, out: &mut Vec<Order>) {
        let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) else { return };
        let (beat, command) = match down {
            LeaderMessage::Command(beat, command) => (beat, *command),
            LeaderMessage::Refused(why) => return self.unlink(now, Some(&why), out),
            LeaderMessage::Displaced => {
                // No leader may rely on this agent's messages any more.
                self.is_displaced = true;
                self.stop(now, self.timing.short_grace, out);
                return self.unlink(now, Some("a later agent holds this place"), out);
            }
        };
        if link.echo.is_some_and(|last| beat.at < last) {
            return;
        }
        link.echo = Some(beat.at);
        // A leader cannot have received a message that was not sent yet.
        self.heard = self.heard.max(beat.echo.unwrap_or_default().min(now));
        self.meet(now, &command, out);
        if command.history.is_newer_than(&self.history) {
            self.history = command.history;
        }
        self.obey(now, command.leader, command.directive, out);
    }

    /// The sender of this command is the leader now. A program that another leader started is stopped.
    fn meet(&mut self, now: Time, command: &Command, out: &mut Vec<Order>) {
        let sent = self.link.as_ref().map_or(now, |link| link.sent);
        match &mut self.contact {
            Some(contact) if contact.leader == command.leader => contact.clear = command.clear,
            contact => *contact = Some(Contact { leader: command.leader.clone(), sent, clear: command.clear }),
        }
        if self.status.run.as_ref().is_some_and(|run| run.is_alive() && run.leader != command.leader) {
            self.stop(now, self.timing.short_grace, out);
        }
    }

    fn obey(&mut self, now: Time, leader: Incarnation, directive: Directive, out: &mut Vec<Order>) {
        match directive {
            Directive::Prepare { attempt } if attempt >= self.status.seen => {
                self.status.seen = attempt;
                self.status.closed = self.status.closed.max(attempt.saturating_sub(1));
                if self.status.run.as_ref().is_some_and(|run| run.is_alive() && run.attempt < attempt) {
                    self.stop(now, self.timing.short_grace, out);
                }
            }
            // The leader knows less than this member. It will learn that, and send a larger number.
            Directive::Prepare { .. } => {}
            Directive::Start { attempt, size, port, choice } => {
                if self.may_start(now, attempt) {
                    self.status.run = Some(Run { attempt, size, leader, state: RunState::Running });
                    out.push(Order::Start { attempt, size, port, choice });
                }
            }
            Directive::Stop { attempt, grace } => {
                self.status.seen = self.status.seen.max(attempt);
                self.status.closed = self.status.closed.max(attempt);
                if self.status.run.as_ref().is_some_and(|run| run.attempt <= attempt) {
                    self.stop(now, Duration::from_millis(grace), out);
                }
            }
            // The program may save. If the gang has succeeded without it, it has done nothing wrong.
            Directive::Exit if self.history.finish == Some(Finish::Succeeded) => self.stop(now, self.timing.grace, out),
            Directive::Exit => self.stop(now, self.timing.short_grace, out),
        }
    }

    /// An order to start may be late, or come from another leader.
    fn may_start(&self, now: Time, attempt: u32) -> bool {
        let status = &self.status;
        attempt == status.seen
            && attempt > status.closed
            && status.run.as_ref().is_none_or(|run| !run.is_alive() && run.attempt < attempt)
            && status.leaving.is_none()
            && self.history.finish.is_none()
            && !self.is_expired(now)
    }

    fn is_expired(&self, now: Time) -> bool {
        now.since(self.heard) >= self.timing.lease
    }

    /// Stops the program. While it is being stopped, its grace may be shortened but never extended.
    fn stop(&mut self, now: Time, grace: Duration, out: &mut Vec<Order>) {
        let Some(run) = self.status.run.as_mut().filter(|run| run.is_alive()) else { return };
        if run.state == RunState::Stopping && now + grace >= self.kill {
            return;
        }
        run.state = RunState::Stopping;
        self.kill = now + grace;
        self.status.closed = self.status.closed.max(run.attempt);
        out.push(Order::Stop { attempt: run.attempt, grace });
    }

    /// The program has failed. Its remaining processes may still live.
    pub(super) fn failing(&mut self, now: Time, attempt: u32, out: &mut Vec<Order>) {
        if self.status.run.as_ref().is_some_and(|run| run.attempt == attempt && run.state == RunState::Running) {
            self.stop(now, self.timing.short_grace, out);
        }
    }

    /// Records whether the program shows no sign of progress.
    pub(super) fn idle(&mut self, is_idle: bool) {
        self.status.idle = is_idle && self.status.is_alive();
    }

    /// None of the attempt's processes lives any more.
    pub(super) fn ended(&mut self, now: Time, attempt: u32, end: RunEnd) {
        let Some(run) = self.status.run.as_mut().filter(|run| run.attempt == attempt && run.is_alive()) else { return };
        let outcome = match (&run.state, end.outcome) {
            // A program that was stopped has not done its work, whatever it reports.
            (RunState::Stopping, Outcome::Succeeded) => Outcome::Stopped,
            (_, outcome) => outcome,
        };
        run.state = RunState::Ended(RunEnd { outcome, report: cut(end.report, MAX_REPORT) });
        self.status.closed = self.status.closed.max(attempt);
        self.status.idle = false;
        self.leave(now);
    }

    /// The agent has received a termination signal.
    pub(super) fn terminated(&mut self, now: Time, signal: i32, out: &mut Vec<Order>) {
        self.status.leaving.get_or_insert(signal);
        self.stop(now, self.timing.grace, out);
        self.leave(now);
    }

    /// Adopts the operator's history if it is newer.
    pub(super) fn adopt_history(&mut self, now: Time, history: &History, out: &mut Vec<Order>) {
        if history.is_newer_than(&self.history) {
            self.history = history.clone();
            if self.history.finish.is_some() {
                self.stop(now, self.timing.short_grace, out);
            }
        }
    }

    fn leave(&mut self, now: Time) {
        if self.status.leaving.is_some() && !self.status.is_alive() {
            self.farewell.get_or_insert(now + self.timing.farewell);
        }
    }

    /// Does what time has made due, and sends the leader what is new.
    pub(super) fn settle(&mut self, now: Time, out: &mut Vec<Order>) {
        let is_gone = self.link.is_none() && now.since(self.unlinked) >= self.timing.reconnect;
        if self.status.is_alive() && (is_gone || self.is_expired(now)) {
            self.stop(now, self.timing.short_grace, out);
        }
        if self.link.as_ref().is_some_and(|link| now.since(self.heard.max(link.opened)) >= self.timing.lease) {
            self.unlink(now, Some("the leader is silent"), out);
        }
        let exit = self.exit(now);
        self.status.over |= exit.is_some() && self.history.finish.is_some();
        self.report(now, out);
        if let Some(exit) = exit
            && !self.exited
        {
            self.exited = true;
            out.push(Order::Exit(exit));
        }
    }

    fn exit(&self, now: Time) -> Option<Exit> {
        if self.status.is_alive() {
            return None;
        }
        if let Some(finish) = &self.history.finish {
            return Some(match finish {
                Finish::Succeeded => Exit::Succeeded,
                Finish::Failed(cause) => Exit::Failed(cause.clone()),
            });
        }
        if self.is_displaced {
            return Some(Exit::Displaced);
        }
        let signal = self.status.leaving?;
        let is_known = self.link.as_ref().is_none_or(|link| link.reported == self.status && self.heard >= link.news);
        let is_time = self.farewell.is_none_or(|until| now >= until);
        (is_known || is_time).then_some(Exit::Signalled(signal))
    }

    fn report(&mut self, now: Time, out: &mut Vec<Order>) {
        let Some(link) = &mut self.link else { return };
        let is_news = link.reported != self.status;
        if !is_news && now.since(link.sent) < self.timing.beat {
            return;
        }
        if is_news {
            link.reported.clone_from(&self.status);
            link.news = now;
        }
        link.sent = now;
        let beat = Beat { at: now, echo: link.echo };
        out.push(Order::Send {
            conn: link.conn,
            message: Message::Up(MemberMessage::Status(beat, self.status.clone())),
        });
        if let Some(contact) = &mut self.contact {
            contact.sent = now;
        }
    }

    /// Ends the connection, if there is one.
    fn unlink(&mut self, now: Time, why: Option<&str>, out: &mut Vec<Order>) {
        if let Some(link) = self.link.take() {
            self.unlinked = now;
            out.push(Order::Close { conn: link.conn, why: why.unwrap_or_default().to_owned() });
        }
    }

    /// Whether it has a connection to a leader.
    pub(super) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// The place that it holds, and the UID of its pod.
    pub(super) fn name(&self) -> (MemberId, String) {
        (self.id.clone(), self.incarnation.pod.clone())
    }

    /// The latest time at which [`Member::settle`] has to be called.
    pub(super) fn wake_at(&self, now: Time) -> Option<Time> {
        let beat = self.link.as_ref().map(|link| link.sent + self.timing.beat);
        let silent = self.link.as_ref().map(|link| self.heard.max(link.opened) + self.timing.lease);
        let running = self.status.run.as_ref().is_some_and(|run| run.state == RunState::Running);
        let lease = running.then(|| self.heard + self.timing.lease);
        let gone = (running && self.link.is_none()).then(|| self.unlinked + self.timing.reconnect);
        let times = [beat, silent, lease, gone, self.farewell];
        times.into_iter().flatten().filter(|time| *time > now).min()
    }
}

#[cfg(test)]
impl Member {
    /// The leader that it has heard last.
    pub(super) fn last_leader(&self) -> Option<&Incarnation> {
        self.contact.as_ref().map(|contact| &contact.leader)
    }
}

#[cfg(test)]
impl super::tests::Times for Member {
    fn each(&mut self, _: Time, f: &mut dyn FnMut(&mut Time)) {
        // Forgets values that do not affect decisions any more.
        if self.link.is_some() {
            self.unlinked = Time::default();
        }
        if self.status.run.as_ref().is_none_or(|run| run.state != RunState::Stopping) {
            self.kill = Time::default();
        }
        f(&mut self.unlinked);
        f(&mut self.kill);
        self.farewell.iter_mut().for_each(&mut *f);
        self.contact.iter_mut().for_each(|contact| f(&mut contact.sent));
        if let Some(link) = &mut self.link {
            for time in [&mut link.news, &mut link.opened] {
                *time = if *time <= self.heard { Time::default() } else { *time };
                f(time);
            }
            link.echo.iter_mut().for_each(&mut *f);
            f(&mut link.sent);
        }
        f(&mut self.heard);
    }
}
