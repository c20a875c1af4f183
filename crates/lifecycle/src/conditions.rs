//! Conditions as meta/v1 defines them: one per type, with the time of its last change of status.

use api::{ConditionType, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition of this type, if it exists.
#[must_use]
pub fn condition(conditions: &[Condition], type_: impl AsRef<str>) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == type_.as_ref())
}

/// The condition of this type, if it has this status.
#[must_use]
pub fn condition_is(conditions: &[Condition], type_: impl AsRef<str>, status: bool) -> Option<&Condition> {
    condition(conditions, type_).filter(|c| c.status == word(status))
}

/// Truncates to seconds, the resolution of status times. Otherwise each read-back would differ from the written value.
#[must_use]
pub fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A change of a condition.
pub(super) struct ConditionChange {
    pub(super) type_: ConditionType,
    change: Change,
    pub(super) reason: Reason,
    message: String,
}

enum Change {
    /// Sets the condition to this status.
    Is(bool),
    /// Sets the condition to False if it was True.
    Clear,
    /// Sets the condition to False if it exists. The final status is then the same, whatever was seen on the way.
    Close,
}

impl ConditionChange {
    pub(super) fn set(type_: ConditionType, status: bool, reason: Reason, message: &str) -> Self {
        ConditionChange { type_, change: Change::Is(status), reason, message: message.to_owned() }
    }

    pub(super) fn clear(type_: ConditionType, reason: Reason) -> Self {
        ConditionChange { type_, change: Change::Clear, reason, message: String::new() }
    }

    pub(super) fn close(type_: ConditionType, reason: Reason) -> Self {
        ConditionChange { type_, change: Change::Close, reason, message: String::new() }
    }

    /// Applies the change to the conditions.
    pub(super) fn write(&self, conditions: &mut Vec<Condition>, generation: Option<i64>, now: Timestamp) {
        let (type_, was) = (self.type_, condition(conditions, self.type_).map(|c| c.status == word(true)));
        let status = match self.change {
            Change::Is(status) => status,
            Change::Clear if was == Some(true) => false,
            Change::Close if was.is_some() => false,
            Change::Clear | Change::Close => return,
        };
        set_condition(conditions, type_, status, &self.reason, &self.message, generation, now);
    }
}

fn word(status: bool) -> &'static str {
    if status { "True" } else { "False" }
}

/// Sets a condition; its transition time changes only with its status. The message is cut to the API's 32,768 bytes.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    type_: ConditionType,
    status: bool,
    reason: &Reason,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let status = word(status);
    let new = Condition {
        type_: type_.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: message.chars().take(8192).collect(),
        observed_generation: generation,
        last_transition_time: Time(now),
    };
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        None => conditions.push(new),
        Some(old) => {
            let since = if old.status == status { old.last_transition_time.clone() } else { Time(now) };
            *old = Condition { last_transition_time: since, ..new };
        }
    }
}
