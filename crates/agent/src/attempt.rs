//! What changes from one run of the program to the next.

use crate::keeper::choice::Choice;
use crate::remote::Shell;
use protocol::gang::GangEnd;
use std::net::IpAddr;

/// What changes from one run to the next.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub number: Option<u32>,
    pub master_port: Option<u16>,
    /// Where the first worker is, by number.
    pub master_ip: Option<IpAddr>,
    /// Whom it has, where that is another number in each attempt.
    pub workers: Option<Workers>,
    /// By what one member starts the programs of the others, where that is so.
    pub shell: Option<Box<Shell>>,
    /// Digest of the code that it runs, if that is delivered to the pods.
    pub code: Option<String>,
    /// Empty for a start from nothing.
    pub resume_from: String,
    /// Steps that the checkpoint has behind it.
    pub resume_step: Option<u64>,
    /// What of the gang belongs into the last words; none where there is no gang.
    pub gang: Option<GangEnd>,
}

impl Attempt {
    /// The same attempt, which goes on from what was chosen.
    #[must_use]
    pub fn from(&self, choice: &Choice) -> Self {
        let resume_step = choice.from.as_ref().and_then(|kept| kept.step);
        Self { resume_from: choice.path.clone(), resume_step, code: choice.code.clone(), ..self.clone() }
    }
}

/// The workers of an attempt of an elastic gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    /// How many there are.
    pub count: u32,
    /// Where their ranks listen, in order, as a JSON array.
    pub addresses: String,
}
