//! Identity of a gang's members: a role, and an index within that role.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Name of a kind of pods in a gang, such as `worker`. It becomes part of host names, labels and messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleName {
    bytes: [u8; Self::LONGEST],
    len: u8,
}

impl RoleName {
    /// Maximum length of a role name.
    pub const LONGEST: usize = 15;
    /// The role that trains, which every gang has.
    pub const WORKER: Self = Self::literal("worker");

    /// Creates a role from a literal that is known to be valid.
    ///
    /// # Panics
    /// If the name is too long, which is a compile error for constants.
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

    /// Parses a role name: a lower-case letter, followed by lower-case letters and digits. `None` if it is invalid.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = name.len() <= Self::LONGEST && name.starts_with(|c: char| c.is_ascii_lowercase());
        (is_name && name.chars().all(is_part)).then(|| Self::literal(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether this is the role that every gang has.
    #[must_use]
    pub fn is_worker(&self) -> bool {
        *self == Self::WORKER
    }
}

impl Default for RoleName {
    /// Data from versions without other roles has no role field.
    fn default() -> Self {
        Self::WORKER
    }
}

impl Serialize for RoleName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RoleName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::parse(&name).ok_or_else(|| de::Error::custom(format_args!("{name:?} is not the name of a role")))
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

/// A place in a gang, independent of the pod that fills it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// Role of the place.
    pub role: RoleName,
    /// Index within the role, from 0.
    pub index: u32,
}

impl ReplicaId {
    /// The place of the worker that leads the gang.
    pub const FIRST_WORKER: Self = Self { role: RoleName::WORKER, index: 0 };
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.index)
    }
}

impl ReplicaId {
    /// The place with the pod that filled it, if known: `worker 1 (pod x-training-1-abcde, node n)`.
    #[must_use]
    pub fn in_pod(self, pod: Option<&str>, node: Option<&str>) -> String {
        let node = node.map(|node| format!(", node {node}")).unwrap_or_default();
        pod.map_or_else(|| self.to_string(), |pod| format!("{self} (pod {pod}{node})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_names_are_validated() {
        for name in ["worker", "ps", "a", "a0", "abcdefghijklmno"] {
            assert_eq!(RoleName::parse(name).unwrap().as_str(), name);
        }
        for name in ["", "0a", "a-b", "A", "aB", "abcdefghijklmnop", "ä", "a b"] {
            assert_eq!(RoleName::parse(name), None, "{name}");
        }
        assert!(RoleName::parse("chief") < RoleName::parse("ps"));
        assert_eq!(ReplicaId { role: RoleName::literal("ps"), index: 3 }.to_string(), "ps 3");
    }
}
