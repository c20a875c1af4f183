//! Events of the API that report what no other object shows: refused pods of a Job, volumes that don't mount.

use super::ObjectEvent;
use api::Reason;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;

/// The newest warning among the Events of one object, reported like the other reasons.
///
/// It has the object's UID, because what kept the Job's pods from being created says nothing about existing pods.
#[must_use]
pub fn most_telling(events: &[Event]) -> Option<ObjectEvent> {
    events.iter().filter_map(|event| Some((time(event), classify(event)?))).max_by_key(|(at, _)| *at).map(|(_, n)| n)
}

fn time(event: &Event) -> Option<Timestamp> {
    event
        .series
        .as_ref()
        .and_then(|s| s.last_observed_time.as_ref().map(|t| t.0))
        .or(event.last_timestamp.as_ref().map(|t| t.0))
        .or(event.event_time.as_ref().map(|t| t.0))
}

fn classify(event: &Event) -> Option<ObjectEvent> {
    let message = event.message.clone().unwrap_or_default();
    let reason = match event.reason.as_deref()? {
        "FailedCreate" if message.contains("violates PodSecurity") => Reason::PodSecurity,
        "FailedCreate" if message.contains("exceeded quota") => Reason::QuotaExceeded,
        "FailedCreate" => Reason::PodsRefused,
        "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => Reason::Storage,
        "FailedCreatePodSandBox" | "NetworkNotReady" => Reason::Network,
        _ => return None,
    };
    let about = event.involved_object.uid.clone().unwrap_or_default();
    Some(ObjectEvent { about, reason, message: without_prefix(&message).to_owned() })
}

/// Removes the generated pod name that the Job controller puts before the cause, because the same cause must read the
/// same.
fn without_prefix(message: &str) -> &str {
    message
        .strip_prefix("Error creating: ")
        .map_or(message, |rest| rest.split_once(" is forbidden: ").map_or(rest, |(_, cause)| cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn event(reason: &str, message: &str, second: i64) -> Event {
        Event {
            involved_object: ObjectReference { uid: Some("job".into()), ..ObjectReference::default() },
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                Timestamp::from_second(second).unwrap(),
            )),
            ..Event::default()
        }
    }

    #[test]
    fn newest_event_cause_is_kept_without_pod_name() {
        let events = [
            event(
                "FailedCreate",
                r#"Error creating: pods "x-training-0-abc" is forbidden: exceeded quota: q, requested: pods=1"#,
                2,
            ),
            event("SuccessfulCreate", "Created pod: x", 3),
            event("FailedMount", "MountVolume.SetUp failed", 1),
        ];
        let note = most_telling(&events).unwrap();
        assert_eq!(
            (note.reason.as_str(), note.message.as_str()),
            ("QuotaExceeded", "exceeded quota: q, requested: pods=1")
        );
    }

    #[test]
    fn pod_security_denial_keeps_its_own_message() {
        let words = r#"violates PodSecurity "restricted:latest": runAsNonRoot != true"#;
        let event = event("FailedCreate", &format!(r#"Error creating: pods "x-0" is forbidden: {words}"#), 1);
        let expected = ObjectEvent { about: "job".into(), reason: Reason::PodSecurity, message: words.into() };
        assert_eq!(most_telling(&[event]).unwrap(), expected);
    }
}
