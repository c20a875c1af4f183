//! Proof that an answer comes from the agent of the requested job, and belongs to this request.
//!
//! The operator derives a key for each job from its own key, and mounts it into the job's pods by a Secret. It sends a new
//! nonce with each request. The agent signs the nonce and the body of its answer with the job's key. The body names the
//! pod, so that the signature covers the pod as well.

use ring::hmac;
use std::fmt;

/// Key of the Secret that holds the job's key, and name of the file in the pods.
pub const KEY_FILE: &str = "answers";
/// Query parameter of the request that holds the nonce.
pub const NONCE_PARAMETER: &str = "nonce";
/// Header of the answer that holds the proof.
pub const PROOF_HEADER: &str = "x-trainingjob-proof";

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 16;

/// Purpose of a signature: a signature for one purpose is invalid for another.
const JOB_KEY: &[u8] = b"trainingjob answers v1";
const ANSWER: &[u8] = b"trainingjob answer v1";

/// The operator's own key.
#[derive(Clone, Debug)]
pub struct OperatorKey(hmac::Key);

impl OperatorKey {
    /// Creates a key from these bytes. `None` if their number is wrong or they are all equal.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let bytes = <[u8; KEY_BYTES]>::try_from(bytes).ok()?;
        bytes.iter().any(|byte| *byte != bytes[0]).then(|| Self::from_random(bytes))
    }

    /// Creates a key from random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// Derives the key of the job with this UID.
    #[must_use]
    pub fn job_key(&self, uid: &str) -> AnswerKey {
        let mut bytes = [0; KEY_BYTES];
        bytes.copy_from_slice(hmac::sign(&self.0, &joined(&[JOB_KEY, uid.as_bytes()])).as_ref());
        AnswerKey(bytes)
    }
}

/// The key with which the agents of one job sign their answers.
#[derive(Clone, PartialEq, Eq)]
pub struct AnswerKey([u8; KEY_BYTES]);

impl AnswerKey {
    /// The key in the format of the job's Secret and of the file in the pods.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.0)
    }

    /// Parses a key from that format; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        from_hex(text.trim_ascii()).map(Self)
    }

    /// Creates the proof for an answer with this body to the request with this nonce.
    #[must_use]
    pub fn prove(&self, nonce: Nonce, body: &[u8]) -> String {
        hex(hmac::sign(&self.key(), &joined(&[ANSWER, &nonce.0, body])).as_ref())
    }

    /// Verifies a proof in constant time.
    #[must_use]
    pub fn is_proof(&self, proof: &[u8], nonce: Nonce, body: &[u8]) -> bool {
        let signature = from_hex::<KEY_BYTES>(proof);
        signature.is_some_and(|it| hmac::verify(&self.key(), &joined(&[ANSWER, &nonce.0, body]), &it).is_ok())
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for AnswerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerKey(..)")
    }
}

/// A random value that makes each request unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    /// Creates a nonce from random bytes.
    #[must_use]
    pub fn new(random: [u8; NONCE_BYTES]) -> Self {
        Self(random)
    }

    /// The query of a request with this nonce.
    #[must_use]
    pub fn to_query(self) -> String {
        format!("{NONCE_PARAMETER}={}", hex(&self.0))
    }

    /// The nonce in a request's query, if it is present and well formed.
    #[must_use]
    pub fn in_query(query: &str) -> Option<Self> {
        let value = |pair: &str| {
            pair.split_once('=').filter(|(name, _)| *name == NONCE_PARAMETER).map(|(_, it)| from_hex(it.as_bytes()))
        };
        query.split('&').find_map(value).flatten().map(Self)
    }
}

/// Joins the parts with their lengths, so that different lists of parts never give the same bytes.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let length = |part: &&[u8]| (part.len() as u64).to_be_bytes();
    parts.iter().flat_map(|part| length(part).into_iter().chain(part.iter().copied())).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<Vec<u8>>>()?;
    bytes.try_into().ok().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(byte: u8) -> OperatorKey {
        let mut bytes = [byte; KEY_BYTES];
        bytes[0] = 0;
        OperatorKey::new(&bytes).unwrap()
    }

    #[test]
    fn proof_matches_only_its_operator_job_nonce_and_body() {
        let (key, nonce, body) = (operator(1).job_key("uid-a"), Nonce::new([7; 16]), b"{\"loss\":1}");
        let proof = key.prove(nonce, body);
        let proves = |key: &AnswerKey, nonce, body: &[u8], proof: &str| key.is_proof(proof.as_bytes(), nonce, body);
        assert!(proves(&key, nonce, body, &proof));
        assert!(!proves(&key, nonce, b"{\"loss\":2}", &proof), "another body");
        assert!(!proves(&key, Nonce::new([8; 16]), body, &proof), "another question");
        assert!(!proves(&operator(1).job_key("uid-b"), nonce, body, &proof), "another job");
        assert!(!proves(&operator(2).job_key("uid-a"), nonce, body, &proof), "another operator");
        for wrong in ["", "00", &proof[2..], &format!("{proof}00"), &"0".repeat(64), "no hexadecimal digits"] {
            assert!(!proves(&key, nonce, body, wrong), "{wrong:?}");
        }
    }

    /// Agents and operators of different versions must compute the same keys and proofs.
    #[test]
    fn keys_and_proofs_are_stable_across_versions() {
        let key = operator(1).job_key("6f1f4d1e-0000-4000-8000-000000000001");
        assert_eq!(key.to_text(), "739c4efbb0b8d370c551ecf15fbaacae50ea934ccc88b9364a2332bac8c4f775");
        assert_eq!(
            key.prove(Nonce::new([7; 16]), b"{}"),
            "9d761d44e5d8e4e20c99461bd0d26d1f633681a5e2ee1a08d2f9335e70299cc9"
        );
    }

    #[test]
    fn answer_key_round_trips_through_text() {
        let key = operator(1).job_key("uid");
        assert_eq!(AnswerKey::parse(format!("{}\n", key.to_text()).as_bytes()), Some(key.clone()));
        let text = key.to_text();
        for wrong in ["", "0", &text[1..], &text[2..], &format!("{text}00"), &format!("{text}0"), &"g".repeat(64)] {
            assert_eq!(AnswerKey::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert!(!format!("{key:?} {:?}", operator(1)).contains(&text[..4]));
    }

    #[test]
    fn weak_operator_key_is_rejected() {
        assert!(OperatorKey::new(&[]).is_none() && OperatorKey::new(&[0; 32]).is_none());
        assert!(OperatorKey::new(b"0123456789012345678901234567890").is_none(), "31 bytes");
    }

    #[test]
    fn nonce_is_parsed_from_query() {
        let nonce = Nonce::new(std::array::from_fn(|at| at as u8 * 17));
        assert_eq!(nonce.to_query(), "nonce=00112233445566778899aabbccddeeff");
        for query in ["nonce=00112233445566778899AABBCCDDEEFF", "a=b&nonce=00112233445566778899aabbccddeeff&c"] {
            assert_eq!(Nonce::in_query(query), Some(nonce), "{query}");
        }
        for query in [
            "",
            "nonce",
            "nonce=",
            "nonce=00",
            "nonce=0g112233445566778899aabbccddeeff",
            "xnonce=00112233445566778899aabbccddeeff",
        ] {
            assert_eq!(Nonce::in_query(query), None, "{query}");
        }
    }
}
