//! Proofs of single answers to questions that members ask each other outside of a channel.

use super::{FrameError, MAC, Secret};

const PROTOCOL: &[u8] = b"trainingjob-answer-1";

/// The key with which members prove the answers to one question within a job. It is derived from the job's secret for
/// that alone, so its signatures are not valid anywhere else.
///
/// An answer is an HMAC-SHA256 of the client's nonce and the text, and then the text. The client chooses a new nonce
/// for each question, so that no answer is valid for a second one.
#[derive(Clone)]
pub struct AnswerKey(Secret);

impl AnswerKey {
    /// The key for the answers to `question`. `job` is the UID of the TrainingJob.
    #[must_use]
    pub fn derive(secret: &Secret, job: &str, question: &str) -> Self {
        Self(Secret::derived(secret.sign(&[PROTOCOL, question.as_bytes(), job.as_bytes()]).as_ref()))
    }

    /// The answer to a question that came with `nonce`.
    #[must_use]
    pub fn prove(&self, nonce: &[u8], text: &[u8]) -> Vec<u8> {
        [self.0.sign(&[nonce, text]).as_ref(), text].concat()
    }

    /// The text of an answer to the question that went with `nonce`.
    ///
    /// # Errors
    /// If the answer is not from a member, or is to another question.
    pub fn verify<'a>(&self, nonce: &[u8], answer: &'a [u8]) -> Result<&'a [u8], FrameError> {
        let (mac, text) = answer.split_first_chunk::<MAC>().ok_or(FrameError::Malformed("it is too short"))?;
        self.0.verify(&[nonce, text], mac)?;
        Ok(text)
    }
}
