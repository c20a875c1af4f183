//! How connections and messages update the leader's seats.

use super::leader::Leader;
use super::message::{
    Beat, Hello, History, LeaderMessage, MAX_PLACES, MemberId, MemberMessage, Message, Time, VERSION, millis,
};
use super::seat::{Holder, Link};
use super::view::{ChoiceState, Phase};
use super::{Conn, Order};

impl Leader {
    pub(super) fn connected(&mut self, now: Time, conn: Conn, member: MemberId, pod: String) {
        self.strangers.insert(conn, (member, pod, now));
    }

    pub(super) fn closed(&mut self, now: Time, conn: Conn) {
        self.strangers.remove(&conn);
        if let Some(holder) = self.holder_of(conn) {
            (holder.link, holder.unlinked) = (None, now);
        }
        self.guests.remove(&conn);
    }

    fn holder_of(&mut self, conn: Conn) -> Option<&mut Holder> {
        self.seats.get_mut(self.guests.get(&conn)?)?.holder.as_mut()
    }

    /// Takes in a message without news from a reachable member, and returns whether it was one. Nothing follows from it
    /// before [`Leader::wake_at`], because it only extends how long the member may be silent.
    pub(super) fn hear(&mut self, now: Time, conn: Conn, message: &Message) -> bool {
        let Message::Up(MemberMessage::Status(beat, status)) = message else { return false };
        let timing = self.timing;
        let Some(holder) = self.holder_of(conn) else { return false };
        if holder.status != *status || holder.is_gone(now, &timing) {
            return false;
        }
        holder.beats(now, *beat);
        true
    }

    pub(super) fn received(&mut self, now: Time, conn: Conn, up: MemberMessage, out: &mut Vec<Order>) {
        match up {
            MemberMessage::Hello(beat, hello) => {
                let Some(stranger) = self.strangers.remove(&conn) else { return };
                if let Err(down) = self.hello(now, conn, stranger, beat, *hello, out) {
                    let why = match &down {
                        LeaderMessage::Refused(why) => why.clone(),
                        _ => "a later agent holds its place".to_owned(),
                    };
                    out.push(Order::Send { conn, message: Message::Down(down) });
                    out.push(Order::Close { conn, why });
                }
            }
            MemberMessage::Status(beat, status) => {
                let Some(seat) = self.guests.get(&conn).and_then(|member| self.seats.get_mut(member)) else { return };
                let Some(holder) = &mut seat.holder else { return };
                if holder.beats(now, beat) {
                    let seen = status.seen;
                    if let Some(link) = &mut holder.link {
                        link.asks |= holder.status != status;
                    }
                    holder.status = status;
                    seat.note();
                    self.outgrow(seen);
                }
            }
        }
    }

    fn hello(
        &mut self,
        now: Time,
        conn: Conn,
        (member, pod, since): (MemberId, String, Time),
        beat: Beat,
        hello: Hello,
        out: &mut Vec<Order>,
    ) -> Result<(), LeaderMessage> {
        let refuse = |why: &str| Err(LeaderMessage::Refused(why.to_owned()));
        let Hello { version, job, incarnation, history, former, cleared, status, .. } = hello;
        if version != VERSION {
            return refuse("the agents speak different versions of the gang's protocol");
        }
        if job != self.job || hello.member != member || incarnation.pod != pod {
            return refuse("the hello is of another job, member or pod than the one that was proven");
        }
        let last = self.history.attempt;
        let is_place = member.role == self.me.role && member.index < MAX_PLACES;
        if !is_place && !self.seats.contains_key(&member) {
            return refuse("the gang has no such member");
        }
        let seat = self.seats.entry(member.clone()).or_default();
        let holder = seat.holder.as_mut();
        let is_same = holder.as_ref().is_some_and(|holder| holder.incarnation == incarnation);
        if let Some(holder) = holder {
            if !is_same && holder.incarnation > incarnation && !holder.is_gone(now, &self.timing) {
                return Err(LeaderMessage::Displaced);
            }
            if let Some(old) = holder.link.take() {
                self.guests.remove(&old.conn);
                out.push(Order::Close { conn: old.conn, why: "there is a newer one".to_owned() });
            }
        }
        if !is_same {
            seat.displace(&incarnation, last, &self.timing);
        }
        // So far the member can only have received this leader's answer to this very connection.
        let heard = seat.holder.as_ref().map_or(since, |holder| holder.heard.max(since));
        let link = Link { conn, echo: beat.at, is_commanded: false, sent: now, asks: true };
        let seen = status.seen;
        let run = status.run.as_ref().map_or(0, |run| run.attempt);
        seat.holder = Some(Holder { incarnation, link: Some(link), unlinked: now, received: now, heard, status });
        seat.note();
        self.guests.insert(conn, member);
        if cleared {
            self.cleared = self.cleared.max(run);
        }
        if let Some((leader, silent)) = former
            && leader != self.incarnation
        {
            let longest = millis(self.timing.lease + self.timing.fence());
            self.quiet_at = self.quiet_at.max(Time(now.0 + longest.saturating_sub(silent)));
        }
        self.learn(now, &history);
        // Another leader may have begun an attempt with that number.
        self.outgrow(if is_same { seen } else { seen.saturating_add(1) });
        Ok(())
    }

    /// Adopts a history that is newer than the leader's own.
    pub(super) fn learn(&mut self, now: Time, history: &History) {
        if history.is_newer_than(&self.history) {
            self.history = history.clone();
            if self.history.finish.is_some() {
                self.phase = Phase::Over { since: now };
            }
            self.outgrow(self.history.attempt.saturating_add(1));
        }
    }

    /// Raises the number of the next attempt to at least `seen`.
    pub(super) fn outgrow(&mut self, seen: u32) {
        if let Phase::Gathering { attempt, choice, .. } = &mut self.phase
            && *attempt < seen
        {
            (*attempt, *choice) = (seen, ChoiceState::NotYet);
        }
    }
}
