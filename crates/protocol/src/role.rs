//! What the members of a gang are called: a role, and an index among those of that role.

use std::fmt;

/// The kind of a gang's pods, such as `worker`: it becomes part of host names, labels and messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleName {
    bytes: [u8; Self::LONGEST],
    len: u8,
}

impl RoleName {
    /// Most characters that one may have.
    pub const LONGEST: usize = 15;
    /// The role that trains, which every gang has.
    pub const WORKER: Self = Self::literal("worker");

    /// A name that is known to be one.
    ///
    /// # Panics
    /// If it is too long: of a constant the compiler says so.
    #[must_use]
    pub const fn literal(name: &str) -> Self {
        let (from, mut bytes, mut at) = (name.as_bytes(), [0; Self::LONGEST], 0);
        assert!(from.len() <= Self::LONGEST, "the name of a role is too long");
        while at < from.len() {
            bytes[at] = from[at];
            at += 1;
        }
        #[allow(clippy::cast_possible_truncation)] // it is 15 at most
        Self { bytes, len: from.len() as u8 }
    }

    /// The role of this name: a lower-case letter, then such letters and digits. None if it is not one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = name.len() <= Self::LONGEST && name.starts_with(|c: char| c.is_ascii_lowercase());
        (is_name && name.chars().all(is_part)).then(|| Self::literal(name))
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether it is the role that every gang has.
    #[must_use]
    pub fn is_worker(&self) -> bool {
        *self == Self::WORKER
    }
}

impl Default for RoleName {
    /// What was made before there were others says nothing of it.
    fn default() -> Self {
        Self::WORKER
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A place in a gang, whichever pod holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its role.
    pub role: RoleName,
    /// Among those of its role, from 0.
    pub index: i32,
}

impl Place {
    /// The place of the worker that leads the gang.
    pub const FIRST_WORKER: Self = Self { role: RoleName::WORKER, index: 0 };
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}

/// What a message that begins with a place says behind it: the place may be followed by its pod and node in brackets and by a
/// rank, and is by a colon. The whole message where it begins otherwise.
#[must_use]
pub fn without_place(message: &str) -> &str {
    let of_place = || {
        let (role, rest) = message.split_once(' ')?;
        RoleName::parse(role)?;
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let goes_on = [": ", ", rank ", " (pod "].iter().any(|mark| behind.starts_with(mark));
        let (_, what) = message.split_once(": ").filter(|_| goes_on && behind.len() < rest.len())?;
        Some(what)
    };
    of_place().unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles() {
        for name in ["worker", "ps", "a", "a0", "abcdefghijklmno"] {
            assert_eq!(RoleName::parse(name).unwrap().as_str(), name);
        }
        for name in ["", "0a", "a-b", "A", "aB", "abcdefghijklmnop", "ä", "a b"] {
            assert_eq!(RoleName::parse(name), None, "{name}");
        }
        assert!(RoleName::parse("chief") < RoleName::parse("ps"));
        assert_eq!(Place { role: RoleName::literal("ps"), index: 3 }.to_string(), "ps 3");
    }

    #[test]
    fn what_is_said_of_a_place() {
        for who in
            ["worker 1", "ps 0, rank 3", "chief 12 (pod x-chief-12-abcde, node n: 1), rank 3", "worker 0 (pod p)"]
        {
            let message = format!("{who}: boom: again");
            assert!(without_place(&message).ends_with("boom: again"), "{message}");
            assert_ne!(without_place(&message), message);
        }
        for message in [
            "worker threads failed: ValueError: boom",
            "step 3 of 4: loss is not a number",
            "Epoch 3: boom",
            "the job: boom",
            "worker 1 was lost",
            "",
            "worker 1",
        ] {
            assert_eq!(without_place(message), message);
        }
    }
}
