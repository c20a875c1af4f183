//! How messages cross a connection that any client in the cluster may have opened.
//!
//! The follower and the leader each send a nonce. The follower starts, because a proxy of a service mesh lets only the
//! dialing side begin. The follower then sends its identity with an HMAC-SHA256 of all of it, keyed with the job's
//! secret. The leader proves itself likewise. Until then no frame is longer than [`MAX_UNPROVEN`] bytes, and only that
//! fixed form is read. Afterwards every frame has its number and an HMAC by a key of this connection and direction. A
//! forged, repeated, missing or reordered frame ends the connection before it is read.
//!
//! A frame is its length (four bytes, big-endian) and that many bytes. The module is pure: bytes in, bytes and messages
//! out.

mod answer;

pub use answer::AnswerKey;

use super::message::{MemberId, Message, Time};
use ring::hmac;
use std::marker::PhantomData;
use std::time::Duration;

/// Longest frame of an unproven peer, in bytes without its length.
pub const MAX_UNPROVEN: usize = 256;
/// Longest frame, in bytes without its length.
pub const MAX_FRAME: usize = 64 * 1024;
/// The time limit for both sides to prove themselves.
pub const PROVEN_WITHIN: Duration = Duration::from_secs(5);
/// The time limit for the rest of a frame that has begun.
pub const FRAME_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of a nonce. A nonce comes from a generator that the operating system has seeded.
pub const NONCE: usize = 32;

const MAC: usize = 32;
const LENGTH: usize = 4;
const NUMBER: usize = 8;

/// The messages of a proven connection.
pub trait Payload: Sized {
    /// Names the protocol, so that a proof for one protocol is not valid in another.
    const PROTOCOL: &'static [u8];

    /// Encodes the message.
    ///
    /// # Errors
    /// If it cannot be sent.
    fn to_bytes(&self) -> Result<Vec<u8>, FrameError>;

    /// Decodes a message.
    ///
    /// # Errors
    /// If the bytes are not a message, or one that is not allowed.
    fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError>;
}

impl Payload for Message {
    const PROTOCOL: &'static [u8] = b"trainingjob-gang-1";

    fn to_bytes(&self) -> Result<Vec<u8>, FrameError> {
        self.check().map_err(FrameError::Malformed)?;
        serde_json::to_vec(self).map_err(|_| FrameError::Malformed("it can't be written as JSON"))
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let message: Self = serde_json::from_slice(bytes).map_err(|_| FrameError::Malformed("it is no message"))?;
        message.check().map_err(FrameError::Malformed)?;
        Ok(message)
    }
}

/// Why a connection is of no use. The texts are for the log, and are not sent to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// Not in the required form.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
    /// Made without the secret, or not for this position in this connection.
    #[error("a frame is not signed by a member of this gang, or is not the one that was to come next")]
    Forged,
    /// A message was to be sent before both sides had proven themselves.
    #[error("the connection is not proven yet")]
    NotProven,
}

/// What arrived on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<M = Message> {
    /// The other side has the secret. The leader learns its identity.
    Proven(Option<(MemberId, String)>),
    /// A message. It is well formed, and no text of it is too long.
    Message(M),
}

/// The job's secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// A secret so weak that any client could prove to be a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gang's key has {0} bytes, or only one value in all of them: it needs {MIN} random ones", MIN = Secret::MIN_BYTES)]
pub struct WeakSecret(usize);

impl Secret {
    /// The minimum length of a key, in bytes.
    pub const MIN_BYTES: usize = 32;

    /// Makes the key from the bytes of the Secret's value.
    ///
    /// # Errors
    /// If there are too few bytes (for example none), or all are equal. The operator cannot have made such a key.
    pub fn new(bytes: &[u8]) -> Result<Self, WeakSecret> {
        let is_varied = bytes.iter().any(|byte| *byte != bytes[0]);
        if bytes.len() < Self::MIN_BYTES || !is_varied {
            Err(WeakSecret(bytes.len()))
        } else {
            Ok(Self::derived(bytes))
        }
    }

    fn derived(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn sign(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            // The lengths are signed too, so that no two lists of parts look the same.
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

/// Both nonces and the identity that the follower claims. Every proof and key of a connection depends on them.
#[derive(Clone)]
struct Session {
    protocol: &'static [u8],
    job: String,
    leader: [u8; NONCE],
    follower: [u8; NONCE],
    /// Role, index and pod, as they were sent.
    identity: Vec<u8>,
}

impl Session {
    fn parts<'a>(&'a self, purpose: &'a [u8]) -> [&'a [u8]; 6] {
        [self.protocol, purpose, self.job.as_bytes(), &self.leader, &self.follower, &self.identity]
    }

    fn key(&self, secret: &Secret, purpose: &[u8]) -> Secret {
        Secret::derived(secret.sign(&self.parts(purpose)).as_ref())
    }

    fn proven(&self, secret: &Secret, is_leader: bool) -> State {
        let (up, down) = (self.key(secret, b"up"), self.key(secret, b"down"));
        let (inbound, outbound) = if is_leader { (up, down) } else { (down, up) };
        let outgoing = Some(Outgoing { key: outbound, sent: 0 });
        State::Proven(Box::new(AgreedState { inbound, received: 0, outgoing }))
    }
}

/// The state that both sides have agreed on.
struct AgreedState {
    inbound: Secret,
    received: u64,
    /// None once it was taken out.
    outgoing: Option<Outgoing>,
}

/// The sending half of a proven connection.
pub struct Outgoing {
    key: Secret,
    sent: u64,
}

impl Outgoing {
    /// The frame of a message.
    ///
    /// # Errors
    /// If the message is too long.
    pub fn send<M: Payload>(&mut self, message: &M) -> Result<Vec<u8>, FrameError> {
        let text = message.to_bytes()?;
        let length = NUMBER + MAC + text.len();
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        let number = self.sent.to_be_bytes();
        self.sent += 1;
        Ok(frame(&[&number, self.key.sign(&[&number, &text]).as_ref(), &text]))
    }
}

enum State {
    /// The leader waits for the follower's nonce.
    Accepted {
        nonce: [u8; NONCE],
    },
    /// The leader has answered with its own nonce.
    Challenged {
        leader: [u8; NONCE],
        follower: [u8; NONCE],
    },
    /// The follower has sent its nonce and waits for the leader's.
    Dialed {
        nonce: [u8; NONCE],
        identity: Vec<u8>,
    },
    /// The follower has proven itself.
    Answered(Session),
    Proven(Box<AgreedState>),
}

/// One side of a connection.
pub struct Channel<M = Message> {
    message: PhantomData<M>,
    secret: Secret,
    job: String,
    state: State,
    /// The received part of a frame, with its length.
    begun: Vec<u8>,
    deadline: Option<Time>,
}

impl<M: Payload> Channel<M> {
    /// The leader's side of an accepted connection. Both sides must use the same `job`: the UID of the TrainingJob, and
    /// whatever else a proof must cover, such as the dialed agent.
    #[must_use]
    pub fn accept(secret: Secret, job: String, nonce: [u8; NONCE], now: Time) -> Self {
        let (state, deadline) = (State::Accepted { nonce }, Some(now + PROVEN_WITHIN));
        Self { message: PhantomData, secret, job, state, begun: Vec::new(), deadline }
    }

    /// The follower's side of a connection that it has opened, and the bytes that it sends first.
    ///
    /// # Errors
    /// If the role or the pod is longer than the hello allows: 63 and 64 bytes.
    pub fn dial(
        secret: Secret,
        job: String,
        nonce: [u8; NONCE],
        member: &MemberId,
        pod: &str,
        now: Time,
    ) -> Result<(Self, Vec<u8>), FrameError> {
        let (state, deadline) = (State::Dialed { nonce, identity: identity(member, pod)? }, Some(now + PROVEN_WITHIN));
        Ok((Self { message: PhantomData, secret, job, state, begun: Vec::new(), deadline }, frame(&[&nonce])))
    }

    /// When the connection must be closed if nothing more arrives: it is unproven, or a frame has begun.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Takes in bytes as they arrive, and appends the reply to `answer`. After an error the connection must be closed.
    ///
    /// # Errors
    /// If the bytes are not what had to come next. The error is not sent to the other side.
    pub fn receive(&mut self, mut bytes: &[u8], now: Time, answer: &mut Vec<u8>) -> Result<Vec<Event<M>>, FrameError> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if self.begun.is_empty() && matches!(self.state, State::Proven(_)) {
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
            if matches!(self.state, State::Proven(_)) {
                self.deadline = None;
            }
        }
        Ok(events)
    }

    /// The length of the frame that has begun.
    fn length(&self) -> Result<usize, FrameError> {
        let Some(&[a, b, c, d]) = self.begun.first_chunk() else { return Ok(0) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let most = if matches!(self.state, State::Proven(_)) { MAX_FRAME } else { MAX_UNPROVEN };
        if length > most { Err(FrameError::TooLong(length)) } else { Ok(length) }
    }

    fn take(&mut self, body: &[u8], answer: &mut Vec<u8>) -> Result<Option<Event<M>>, FrameError> {
        match &mut self.state {
            State::Accepted { nonce } => {
                let follower = body.try_into().map_err(|_| FrameError::Malformed("the follower's nonce"))?;
                answer.extend(frame(&[nonce]));
                self.state = State::Challenged { leader: *nonce, follower };
                Ok(None)
            }
            State::Challenged { leader, follower } => {
                let (identity, mac) =
                    body.split_last_chunk::<MAC>().ok_or(FrameError::Malformed("the hello is too short"))?;
                let (job, identity_sent) = (self.job.clone(), identity.to_owned());
                let (leader, follower) = (*leader, *follower);
                let session = Session { protocol: M::PROTOCOL, job, leader, follower, identity: identity_sent };
                self.secret.verify(&session.parts(b"follower"), mac)?;
                let who = sender(identity)?;
                answer.extend(frame(&[self.secret.sign(&session.parts(b"leader")).as_ref()]));
                self.state = session.proven(&self.secret, true);
                Ok(Some(Event::Proven(Some(who))))
            }
            State::Dialed { nonce, identity } => {
                let leader = body.try_into().map_err(|_| FrameError::Malformed("the leader's nonce"))?;
                let (job, identity) = (self.job.clone(), std::mem::take(identity));
                let session = Session { protocol: M::PROTOCOL, job, leader, follower: *nonce, identity };
                let mac = self.secret.sign(&session.parts(b"follower"));
                answer.extend(frame(&[&session.identity, mac.as_ref()]));
                self.state = State::Answered(session);
                Ok(None)
            }
            State::Answered(session) => {
                self.secret.verify(&session.parts(b"leader"), body)?;
                self.state = session.proven(&self.secret, false);
                Ok(Some(Event::Proven(None)))
            }
            State::Proven(proven) => {
                let AgreedState { inbound, received, .. } = &mut **proven;
                let (number, rest) =
                    body.split_first_chunk::<NUMBER>().ok_or(FrameError::Malformed("it is too short"))?;
                let (mac, text) = rest.split_first_chunk::<MAC>().ok_or(FrameError::Malformed("it is too short"))?;
                if u64::from_be_bytes(*number) != *received {
                    return Err(FrameError::Forged);
                }
                inbound.verify(&[number, text], mac)?;
                *received += 1;
                Ok(Some(Event::Message(M::from_bytes(text)?)))
            }
        }
    }

    /// The frame of a message.
    ///
    /// # Errors
    /// If the connection is not proven, or the message is too long.
    pub fn send(&mut self, message: &M) -> Result<Vec<u8>, FrameError> {
        let State::Proven(proven) = &mut self.state else { return Err(FrameError::NotProven) };
        proven.outgoing.as_mut().ok_or(FrameError::NotProven)?.send(message)
    }

    /// The sending half, for another thread than the receiving one. It can be taken once, when the connection is
    /// proven.
    pub fn take_outgoing(&mut self) -> Option<Outgoing> {
        let State::Proven(proven) = &mut self.state else { return None };
        proven.outgoing.take()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "lengths were checked before")]
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(LENGTH + length);
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

/// Role, index and pod in a fixed form. Each text follows its length in one byte.
#[expect(clippy::cast_possible_truncation, reason = "lengths were checked before")]
fn identity(member: &MemberId, pod: &str) -> Result<Vec<u8>, FrameError> {
    let (role, index) = (member.role.as_bytes(), member.index.to_be_bytes());
    if role.len() > 63 || pod.len() > 64 {
        return Err(FrameError::Malformed("the name of role or pod is too long"));
    }
    Ok([&[role.len() as u8], role, &index, &[pod.len() as u8], pod.as_bytes()].concat())
}

fn sender(identity: &[u8]) -> Result<(MemberId, String), FrameError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).ok();
    let read = || {
        let (&length, rest) = identity.split_first()?;
        let (role, rest) = rest.split_at_checked(length.into())?;
        let (&index, rest) = rest.split_first_chunk()?;
        let (&length, pod) = rest.split_first()?;
        let member = MemberId { role: text(role)?, index: u32::from_be_bytes(index) };
        (pod.len() == usize::from(length)).then_some((member, text(pod)?))
    };
    read().ok_or(FrameError::Malformed("the identity that the follower claims"))
}

#[cfg(test)]
mod tests;
