use super::super::message::{
    Beat, Choice, Command, Directive, Finish, History, Incarnation, LeaderMessage, MAX_DETAIL, MAX_REPORT, MAX_TEXT,
    MemberMessage, Outcome, Run, RunEnd, RunState, Status,
};
use super::*;
use proptest::prelude::*;
use protocol::attempt::{RepeatedFailure, RestartHistory};

const NOW: Time = Time(1000);

/// A key that starts with this word.
fn secret(word: &[u8]) -> Secret {
    Secret::new(&[word, &[7; Secret::MIN_BYTES]].concat()).unwrap()
}

#[test]
fn weak_key_is_rejected() {
    for weak in [&b""[..], b"\n", b"0123456789abcdef", &[0; 32], b"0123456789abcdef0123456789abcde"] {
        assert_eq!(Secret::new(weak).err(), Some(WeakSecret(weak.len())));
    }
    assert!(Secret::new(b"0123456789abcdef0123456789abcdef").is_ok());
}

#[test]
fn answer_is_bound_to_secret_job_question_and_nonce() {
    let key = |word, job, question| AnswerKey::derive(&secret(word), job, question);
    let ours = key(b"secret", "job", "/rounds");
    let answer = ours.prove(b"nonce", b"text");
    assert_eq!(ours.verify(b"nonce", &answer), Ok(&b"text"[..]));
    assert_eq!(ours.verify(b"nonce", &ours.prove(b"nonce", b"")), Ok(&b""[..]));
    for other in [key(b"public", "job", "/rounds"), key(b"secret", "jo", "/rounds"), key(b"secret", "job", "/round")] {
        assert_eq!(other.verify(b"nonce", &answer), Err(FrameError::Forged));
    }
    assert_eq!(ours.verify(b"another", &answer), Err(FrameError::Forged));
    // The boundary between nonce and text is signed too.
    assert_eq!(ours.verify(b"noncet", &[&answer[..MAC], b"ext"].concat()), Err(FrameError::Forged));
    for at in 0..answer.len() {
        let mut changed = answer.clone();
        changed[at] ^= 1;
        assert_eq!(ours.verify(b"nonce", &changed), Err(FrameError::Forged), "{at}");
    }
    assert!(ours.verify(b"nonce", &answer[..MAC - 1]).is_err());
}

fn pair(of_leader: &[u8], of_follower: &[u8]) -> (Channel, Channel, Vec<u8>) {
    let mut leader = Channel::accept(secret(of_leader), "job".to_owned(), [1; NONCE], NOW);
    let (job, member) = ("job".to_owned(), MemberId::new("worker", 3));
    let (follower, hello) = Channel::dial(secret(of_follower), job, [2; NONCE], &member, "pod-uid", NOW).unwrap();
    let mut first = vec![];
    assert_eq!(leader.receive(&hello, NOW, &mut first), Ok(vec![]));
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
    Message::Up(MemberMessage::Status(Beat { at: Time(at), echo: None }, Status::default()))
}

#[test]
fn handshake_and_messages_work_with_any_chunking() {
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
fn peer_without_the_secret_is_rejected() {
    let (mut leader, mut follower, first) = pair(b"secret", b"another");
    let mut answer = vec![];
    follower.receive(&first, NOW, &mut answer).unwrap();
    let mut reported = vec![];
    assert_eq!(leader.receive(&answer, NOW, &mut reported), Err(FrameError::Forged));
    assert!(reported.is_empty());
    // A leader without the secret is rejected too, even if it returns the follower's own proof.
    let mac = answer[answer.len() - MAC..].to_owned();
    assert_eq!(follower.receive(&frame(&[&mac]), NOW, &mut reported), Err(FrameError::Forged));
    // So is an identity that differs from the one in the proof.
    let (mut leader, mut follower, first) = pair(b"secret", b"secret");
    answer.clear();
    follower.receive(&first, NOW, &mut answer).unwrap();
    let index = LENGTH + 1 + "worker".len() + 3;
    answer[index] ^= 1;
    assert_eq!(leader.receive(&answer, NOW, &mut reported), Err(FrameError::Forged));
    // So is a proof for another challenge or another job.
    answer[index] ^= 1;
    for (job, nonce) in [("job", [9; NONCE]), ("other", [1; NONCE])] {
        let mut other = Channel::<Message>::accept(secret(b"secret"), job.to_owned(), nonce, NOW);
        assert_eq!(other.receive(&frame(&[&[2; NONCE]]), NOW, &mut vec![]), Ok(vec![]));
        assert_eq!(other.receive(&answer, NOW, &mut reported), Err(FrameError::Forged));
    }
    assert!(leader.deadline().is_some() && matches!(leader.send(&message(0)), Err(FrameError::NotProven)));
}

#[test]
fn replayed_dropped_altered_or_reflected_frames_are_rejected() {
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
fn leader_sends_nothing_before_the_followers_nonce() {
    let mut leader = Channel::<Message>::accept(secret(b"secret"), "job".to_owned(), [1; NONCE], NOW);
    let mut said = vec![];
    assert_eq!(
        leader.receive(&frame(&[&[2; NONCE - 1]]), NOW, &mut said),
        Err(FrameError::Malformed("the follower's nonce"))
    );
    assert!(said.is_empty());
    let member = MemberId::new("worker", 3);
    let (_, first) = Channel::<Message>::dial(secret(b"secret"), "job".into(), [2; NONCE], &member, "p", NOW).unwrap();
    assert_eq!(first, frame(&[&[2; NONCE]]));
}

#[test]
fn overlong_frame_is_rejected_by_its_length() {
    let (mut leader, ..) = pair(b"secret", b"secret");
    let error = leader.receive(&257u32.to_be_bytes(), NOW, &mut vec![]);
    assert_eq!(error, Err(FrameError::TooLong(257)));
    let (mut leader, _) = proven();
    let length = MAX_FRAME as u32 + 1;
    assert_eq!(leader.receive(&length.to_be_bytes(), NOW, &mut vec![]), Err(FrameError::TooLong(MAX_FRAME + 1)));
    assert!(leader.begun.capacity() <= MAX_FRAME);
}

#[test]
fn longest_message_fits_a_frame_and_longer_ones_are_rejected() {
    // Each of these characters takes six bytes in JSON.
    let text = |length: usize| "\u{1}".repeat(length);
    let past = |long: usize| History {
        checkpoint: text(long),
        restarts: RestartHistory {
            repeated: Some(RepeatedFailure { reason: text(long), step: 1, checkpoint: text(long), times: u32::MAX }),
            stopped: Some(text(long)),
            ..RestartHistory::default()
        },
        finish: Some(Finish::Failed(text(long))),
        ..History::default()
    };
    let leader = |long| Incarnation { boot: u64::MAX, pod: text(long) };
    let command = |long, detail: usize| {
        let choice = Choice { checkpoint: text(long), detail: text(detail) };
        let directive = Directive::Start { attempt: u32::MAX, size: u32::MAX, port: u16::MAX, choice };
        let command = Command { leader: leader(long), directive, history: past(long), clear: true };
        Message::Down(LeaderMessage::Command(Beat::default(), Box::new(command)))
    };
    let hello = |long, report: usize| {
        let end = RunEnd { outcome: Outcome::Succeeded, report: text(report) };
        let run = Run { attempt: 1, size: u32::MAX, leader: leader(long), state: RunState::Ended(end) };
        Message::Up(MemberMessage::Status(Beat::default(), Status { run: Some(run), ..Status::default() }))
    };
    let (mut leader, mut follower) = proven();
    assert!(leader.send(&command(MAX_TEXT, MAX_DETAIL)).is_ok());
    assert!(follower.send(&hello(MAX_TEXT, MAX_REPORT)).is_ok());
    for long in [command(MAX_TEXT + 1, 0), command(0, MAX_DETAIL + 1), hello(0, MAX_REPORT + 1)] {
        assert!(matches!(leader.send(&long), Err(FrameError::Malformed(_))));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_pass_the_handshake(bytes in prop::collection::vec(any::<u8>(), 0..600), length in 0u32..300) {
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
