//! Conditions as meta/v1 wants them: one per type, the time is that of the last change of status.

use api::{ConditionType, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition of this type, if it was ever set.
#[must_use]
pub fn condition(conditions: &[Condition], type_: impl AsRef<str>) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == type_.as_ref())
}

/// The condition of this type, if it has this status.
#[must_use]
pub fn condition_is(conditions: &[Condition], type_: impl AsRef<str>, status: bool) -> Option<&Condition> {
    condition(conditions, type_).filter(|c| c.status == word(status))
}

/// Status times are in whole seconds, or each read-back would differ from what was meant.
#[must_use]
pub fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
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
