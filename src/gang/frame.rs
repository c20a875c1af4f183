//! How messages cross a connection that anybody in the cluster may have opened.
//!
//! The leader sends a nonce. The follower answers with a nonce of its own, who it is, and an HMAC-SHA256 of all of it by
//! the job's secret; the leader proves itself likewise. Until then no frame is longer than [`MAX_UNPROVEN`] bytes, and
//! nothing but that fixed form is read. Afterwards every frame has its number and an HMAC by a key of this connection and
//! direction, so that one that is forged, repeated, left out, or out of order ends the connection before it is read.
//!
//! A frame is its length (four bytes, the largest first) and so many bytes. Pure: bytes in, bytes and messages out.

use super::message::{MemberId, Message, Time};
use ring::hmac;
use std::time::Duration;

/// Longest frame of somebody who has proven nothing, in bytes without its length.
pub const MAX_UNPROVEN: usize = 256;
/// Longest frame, in bytes without its length.
pub const MAX_FRAME: usize = 64 * 1024;
/// How long a connection may take until both sides have proven themselves.
pub const PROVEN_WITHIN: Duration = Duration::from_secs(5);
/// How long a frame that has begun may take.
pub const FRAME_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of a nonce. It comes from the operating system's random numbers.
pub const NONCE: usize = 32;

const MAC: usize = 32;
const LENGTH: usize = 4;
const NUMBER: usize = 8;
const PROTOCOL: &[u8] = b"trainingjob-gang-1";

/// Why a connection is of no use. The texts are for the log; nothing is told to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// Not of the form that it has to have.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
    /// Made without the secret, or not for this place in this connection.
    #[error("a frame is not signed by a member of this gang, or is not the one that was to come next")]
    Forged,
    /// Something to be sent before both have proven themselves.
    #[error("the connection is not proven yet")]
    NotProven,
}

/// What a connection has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The other side has the secret. The leader learns who it is.
    Proven(Option<(MemberId, String)>),
    /// A message. It is well formed, and no text of it is too long.
    Message(Message),
}

/// The job's secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// From the bytes of the Secret's value: at least 16 random ones.
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn sign(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            // With their lengths, so that no two lists of parts look the same.
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        context.sign()
    }

    fn verify(&self, parts: &[&[u8]], mac: &[u8]) -> Result<(), FrameError> {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(&(part.len() as u64).to_be_bytes());
            all.extend_from_slice(part);
        }
        hmac::verify(&self.0, &all, mac).map_err(|_| FrameError::Forged)
    }
}

/// Both nonces, and who the follower says it is: what every proof and key of a connection depends on.
#[derive(Clone)]
struct Session {
    job: String,
    leader: [u8; NONCE],
    follower: [u8; NONCE],
    /// Role, index and pod, as they were sent.
    identity: Vec<u8>,
}

impl Session {
    fn parts<'a>(&'a self, purpose: &'a [u8]) -> [&'a [u8]; 6] {
        [PROTOCOL, purpose, self.job.as_bytes(), &self.leader, &self.follower, &self.identity]
    }

    fn key(&self, secret: &Secret, purpose: &[u8]) -> Secret {
        Secret::new(secret.sign(&self.parts(purpose)).as_ref())
    }

    fn proven(&self, secret: &Secret, is_leader: bool) -> State {
        let (up, down) = (self.key(secret, b"up"), self.key(secret, b"down"));
        let (inbound, outbound) = if is_leader { (up, down) } else { (down, up) };
        State::Proven { inbound, outbound, received: 0, sent: 0 }
    }
}

enum State {
    /// The leader, who has sent its nonce.
    Challenged {
        nonce: [u8; NONCE],
    },
    /// A follower, who waits for the leader's nonce.
    Dialed {
        nonce: [u8; NONCE],
        identity: Vec<u8>,
    },
    /// A follower, who has answered.
    Answered(Session),
    Proven {
        inbound: Secret,
        outbound: Secret,
        received: u64,
        sent: u64,
    },
}

/// One side of a connection.
pub struct Channel {
    secret: Secret,
    job: String,
    state: State,
    /// A frame that has begun, with its length.
    begun: Vec<u8>,
    deadline: Option<Time>,
}

impl Channel {
    /// The leader's side of a connection that it has accepted, and what it sends first. `job` is the UID of the TrainingJob.
    pub fn accept(secret: Secret, job: String, nonce: [u8; NONCE], now: Time) -> (Self, Vec<u8>) {
        let first = frame(&[&nonce]);
        let (state, deadline) = (State::Challenged { nonce }, Some(now + PROVEN_WITHIN));
        (Self { secret, job, state, begun: Vec::new(), deadline }, first)
    }

    /// The follower's side of a connection that it has opened. It waits for the leader's word.
    ///
    /// # Errors
    /// If role or pod are longer than the hello has room for: 63 and 64 bytes.
    pub fn dial(
        secret: Secret,
        job: String,
        nonce: [u8; NONCE],
        member: &MemberId,
        pod: &str,
        now: Time,
    ) -> Result<Self, FrameError> {
        let (state, deadline) = (State::Dialed { nonce, identity: identity(member, pod)? }, Some(now + PROVEN_WITHIN));
        Ok(Self { secret, job, state, begun: Vec::new(), deadline })
    }

    /// When the connection has to be closed if it has brought nothing more: an unproven one, or a frame that has begun.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Takes in bytes, as they come. What has to be answered is appended to `answer`. After an error the connection has to be
    /// closed.
    ///
    /// # Errors
    /// Whatever is not what had to come. It is not told to the other side.
    pub fn receive(&mut self, mut bytes: &[u8], now: Time, answer: &mut Vec<u8>) -> Result<Vec<Event>, FrameError> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if self.begun.is_empty() && matches!(self.state, State::Proven { .. }) {
                self.deadline = Some(now + FRAME_WITHIN);
            }
            let wanted = LENGTH.saturating_sub(self.begun.len());
            let whole = if wanted > 0 { LENGTH } else { LENGTH + self.length()? };
            let (now_come, later) = bytes.split_at(bytes.len().min(whole - self.begun.len()));
            self.begun.extend_from_slice(now_come);
            bytes = later;
            if self.begun.len() < LENGTH || self.begun.len() < LENGTH + self.length()? {
                continue;
            }
            let begun = std::mem::take(&mut self.begun);
            events.extend(self.take(&begun[LENGTH..], answer)?);
            if matches!(self.state, State::Proven { .. }) {
                self.deadline = None;
            }
        }
        Ok(events)
    }

    /// The length of the frame that has begun.
    fn length(&self) -> Result<usize, FrameError> {
        let Some(&[a, b, c, d]) = self.begun.first_chunk() else { return Ok(0) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let most = if matches!(self.state, State::Proven { .. }) { MAX_FRAME } else { MAX_UNPROVEN };
        if length > most { Err(FrameError::TooLong(length)) } else { Ok(length) }
    }

    fn take(&mut self, body: &[u8], answer: &mut Vec<u8>) -> Result<Option<Event>, FrameError> {
        match &mut self.state {
            State::Challenged { nonce } => {
                let (&follower, rest) =
                    body.split_first_chunk().ok_or(FrameError::Malformed("the hello is too short"))?;
                let (identity, mac) =
                    rest.split_last_chunk::<MAC>().ok_or(FrameError::Malformed("the hello is too short"))?;
                let session =
                    Session { job: self.job.clone(), leader: *nonce, follower, identity: identity.to_owned() };
                self.secret.verify(&session.parts(b"follower"), mac)?;
                let who = who(identity)?;
                answer.extend(frame(&[self.secret.sign(&session.parts(b"leader")).as_ref()]));
                self.state = session.proven(&self.secret, true);
                Ok(Some(Event::Proven(Some(who))))
            }
            State::Dialed { nonce, identity } => {
                let leader = body.try_into().map_err(|_| FrameError::Malformed("the leader's nonce"))?;
                let session =
                    Session { job: self.job.clone(), leader, follower: *nonce, identity: std::mem::take(identity) };
                let mac = self.secret.sign(&session.parts(b"follower"));
                answer.extend(frame(&[&session.follower, &session.identity, mac.as_ref()]));
                self.state = State::Answered(session);
                Ok(None)
            }
            State::Answered(session) => {
                self.secret.verify(&session.parts(b"leader"), body)?;
                self.state = session.proven(&self.secret, false);
                Ok(Some(Event::Proven(None)))
            }
            State::Proven { inbound, received, .. } => {
                let (number, rest) =
                    body.split_first_chunk::<NUMBER>().ok_or(FrameError::Malformed("it is too short"))?;
                let (mac, text) = rest.split_first_chunk::<MAC>().ok_or(FrameError::Malformed("it is too short"))?;
                if u64::from_be_bytes(*number) != *received {
                    return Err(FrameError::Forged);
                }
                inbound.verify(&[number, text], mac)?;
                *received += 1;
                let message: Message =
                    serde_json::from_slice(text).map_err(|_| FrameError::Malformed("it is no message"))?;
                message.check().map_err(FrameError::Malformed)?;
                Ok(Some(Event::Message(message)))
            }
        }
    }

    /// The bytes of a message.
    ///
    /// # Errors
    /// If the connection is not proven, or the message is too long.
    pub fn send(&mut self, message: &Message) -> Result<Vec<u8>, FrameError> {
        let State::Proven { outbound, sent, .. } = &mut self.state else { return Err(FrameError::NotProven) };
        message.check().map_err(FrameError::Malformed)?;
        let text = serde_json::to_vec(message).map_err(|_| FrameError::Malformed("it can't be written as JSON"))?;
        let length = NUMBER + MAC + text.len();
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        let number = sent.to_be_bytes();
        *sent += 1;
        Ok(frame(&[&number, outbound.sign(&[&number, &text]).as_ref(), &text]))
    }
}

fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(LENGTH + length);
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

/// Role, index and pod in a fixed form: each text with its length in a byte.
fn identity(member: &MemberId, pod: &str) -> Result<Vec<u8>, FrameError> {
    let (role, index) = (member.role.as_bytes(), member.index.to_be_bytes());
    if role.len() > 63 || pod.len() > 64 {
        return Err(FrameError::Malformed("the name of role or pod is too long"));
    }
    Ok([&[role.len() as u8], role, &index, &[pod.len() as u8], pod.as_bytes()].concat())
}

fn who(identity: &[u8]) -> Result<(MemberId, String), FrameError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).ok();
    let read = || {
        let (&length, rest) = identity.split_first()?;
        let (role, rest) = rest.split_at_checked(length.into())?;
        let (&index, rest) = rest.split_first_chunk()?;
        let (&length, pod) = rest.split_first()?;
        let member = MemberId { role: text(role)?, index: u32::from_be_bytes(index) };
        (pod.len() == usize::from(length)).then_some((member, text(pod)?))
    };
    read().ok_or(FrameError::Malformed("who the follower says it is"))
}

#[cfg(test)]
mod tests {
    use super::super::message::{Beat, Status, Up};
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time(1000);

    fn pair(of_leader: &[u8], of_follower: &[u8]) -> (Channel, Channel, Vec<u8>) {
        let (leader, first) = Channel::accept(Secret::new(of_leader), "job".to_owned(), [1; NONCE], NOW);
        let (job, member) = ("job".to_owned(), MemberId::new("worker", 3));
        let follower = Channel::dial(Secret::new(of_follower), job, [2; NONCE], &member, "pod-uid", NOW).unwrap();
        (leader, follower, first)
    }

    fn proven() -> (Channel, Channel) {
        let (mut leader, mut follower, first) = pair(b"secret", b"secret");
        let (mut answer, mut proof, mut nothing) = (vec![], vec![], vec![]);
        assert_eq!(follower.receive(&first, NOW, &mut answer), Ok(vec![]));
        let who = Event::Proven(Some((MemberId::new("worker", 3), "pod-uid".to_owned())));
        assert_eq!(leader.receive(&answer, NOW, &mut proof), Ok(vec![who]));
        assert_eq!(follower.receive(&proof, NOW, &mut nothing), Ok(vec![Event::Proven(None)]));
        assert!(nothing.is_empty() && leader.deadline().is_none() && follower.deadline().is_none());
        (leader, follower)
    }

    fn message(at: u64) -> Message {
        Message::Up(Up::Status(Beat { at: Time(at), echo: None }, Status::default()))
    }

    #[test]
    fn both_prove_themselves_and_then_talk_however_the_bytes_come() {
        let (mut leader, mut follower) = proven();
        let bytes: Vec<u8> = (0..3).flat_map(|at| follower.send(&message(at)).unwrap()).collect();
        for size in [1, 7, bytes.len()] {
            let (mut leader, mut other) = proven();
            assert_eq!((0..3).flat_map(|at| other.send(&message(at)).unwrap()).collect::<Vec<_>>(), bytes);
            let events: Vec<_> =
                bytes.chunks(size).flat_map(|part| leader.receive(part, NOW, &mut vec![]).unwrap()).collect();
            assert_eq!(events, [0, 1, 2].map(|at| Event::Message(message(at))));
        }
        assert!(leader.receive(&bytes[..9], NOW, &mut vec![]).unwrap().is_empty());
        assert_eq!(leader.deadline(), Some(NOW + FRAME_WITHIN), "slow bytes have their time");
        leader.receive(&bytes[9..10], NOW + FRAME_WITHIN, &mut vec![]).unwrap();
        assert_eq!(leader.deadline(), Some(NOW + FRAME_WITHIN), "and no more of it for being slower");
    }

    #[test]
    fn who_does_not_have_the_secret_gets_nowhere() {
        let (mut leader, mut follower, first) = pair(b"secret", b"another");
        let mut answer = vec![];
        follower.receive(&first, NOW, &mut answer).unwrap();
        let mut told = vec![];
        assert_eq!(leader.receive(&answer, NOW, &mut told), Err(FrameError::Forged));
        assert!(told.is_empty());
        // Nor does a leader without it, not even by sending the follower's own proof back.
        let mac = answer[answer.len() - MAC..].to_owned();
        assert_eq!(follower.receive(&frame(&[&mac]), NOW, &mut told), Err(FrameError::Forged));
        // Nor who says that it is somebody else with the proof of another one.
        let (mut leader, mut follower, first) = pair(b"secret", b"secret");
        answer.clear();
        follower.receive(&first, NOW, &mut answer).unwrap();
        let index = LENGTH + NONCE + 1 + "worker".len() + 3;
        answer[index] ^= 1;
        assert_eq!(leader.receive(&answer, NOW, &mut told), Err(FrameError::Forged));
        // Nor a proof that was given to another challenge, or for another job.
        answer[index] ^= 1;
        for (job, nonce) in [("job", [9; NONCE]), ("other", [1; NONCE])] {
            let (mut other, _) = Channel::accept(Secret::new(b"secret"), job.to_owned(), nonce, NOW);
            assert_eq!(other.receive(&answer, NOW, &mut told), Err(FrameError::Forged));
        }
        assert!(leader.deadline().is_some() && matches!(leader.send(&message(0)), Err(FrameError::NotProven)));
    }

    #[test]
    fn frames_that_are_repeated_left_out_changed_or_sent_back_end_the_connection() {
        let frames = |follower: &mut Channel| [0, 1].map(|at| follower.send(&message(at)).unwrap());
        let refused = |frames: &[Vec<u8>]| {
            let (mut leader, _) = proven();
            frames.iter().map(|frame| leader.receive(frame, NOW, &mut vec![])).find_map(Result::err)
        };
        let (_, mut follower) = proven();
        let [first, second] = frames(&mut follower);
        assert_eq!(refused(&[first.clone(), second.clone()]), None);
        assert_eq!(refused(&[first.clone(), first.clone()]), Some(FrameError::Forged));
        assert_eq!(refused(&[second.clone(), first.clone()]), Some(FrameError::Forged));
        assert_eq!(refused(std::slice::from_ref(&second)), Some(FrameError::Forged));
        for at in LENGTH..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 0x20;
            assert_eq!(refused(&[changed]), Some(FrameError::Forged), "byte {at}");
        }
        assert_eq!(follower.receive(&first, NOW, &mut vec![]), Err(FrameError::Forged));
    }

    #[test]
    fn long_frames_are_refused_by_their_length() {
        let (mut leader, ..) = pair(b"secret", b"secret");
        let error = leader.receive(&257u32.to_be_bytes(), NOW, &mut vec![]);
        assert_eq!(error, Err(FrameError::TooLong(257)));
        let (mut leader, _) = proven();
        let length = MAX_FRAME as u32 + 1;
        assert_eq!(leader.receive(&length.to_be_bytes(), NOW, &mut vec![]), Err(FrameError::TooLong(MAX_FRAME + 1)));
        assert!(leader.begun.capacity() <= MAX_FRAME);
    }

    proptest! {
        #[test]
        fn no_bytes_get_past_the_proof(bytes in prop::collection::vec(any::<u8>(), 0..600), length in 0u32..300) {
            for bytes in [bytes.clone(), [&length.to_be_bytes()[..], &bytes].concat()] {
                let (mut leader, mut follower, first) = pair(b"secret", b"secret");
                let no_event = |received: Result<Vec<Event>, FrameError>| received.map_or(true, |e| e.is_empty());
                prop_assert!(no_event(leader.receive(&bytes, NOW, &mut vec![])));
                prop_assert!(no_event(follower.receive(&bytes, NOW, &mut vec![])));
                let (mut leader, mut answered) = proven();
                prop_assert!(no_event(leader.receive(&bytes, NOW, &mut vec![])));
                prop_assert!(no_event(answered.receive(&bytes, NOW, &mut vec![])));
                prop_assert!(leader.begun.len() <= LENGTH + MAX_FRAME && first.len() == LENGTH + NONCE);
            }
        }
    }
}
