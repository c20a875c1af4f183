//! Decoding of objects one by one, so that a single object never fails its list or watch.

use super::{State, TrainingJob, TuningJob, place};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Limits for decoding an object. The API server accepts 1.5 MiB of JSON, nested 10,000 levels deep.
struct Bounds {
    /// Bytes of JSON.
    bytes: usize,
    /// Bytes of the spec, if it has a separate limit.
    spec_bytes: Option<usize>,
    /// Nesting depth of objects and arrays. Without it, what is decoded is at most 128 deep, as `serde_json` limits it.
    depth: Option<usize>,
    /// Number of values. Each takes about 30 to 100 bytes of memory, however short its text is.
    values: usize,
}

impl Bounds {
    /// Limits for a TrainingJob, which is kept in memory as long as it exists.
    const JOB: Self = Self { bytes: 1024 * 1024, spec_bytes: Some(256 * 1024), depth: Some(64), values: 20_000 };
    /// Limits for a TuningJob, whose status may have a thousand trials.
    const SEARCH: Self = Self { bytes: 1200 * 1024, spec_bytes: Some(256 * 1024), depth: Some(64), values: 60_000 };
    /// Limits for other objects. They admit every child that the operator creates for a TrainingJob within its own limits.
    const OTHER: Self = Self { bytes: 3 * 1024 * 1024, spec_bytes: None, depth: None, values: 50_000 };
}

/// Maximum bytes of the error about one object.
const MAX_ERROR: usize = 1024;
/// Maximum bytes of conditions kept from an object that can't be decoded.
const MAX_CONDITIONS: usize = 64 * 1024;

/// An object from the API server, decoded separately and within limits.
///
/// It needs a `Deserializer` of `serde_json`, which every client has. The object's text is first captured as it is, at any
/// depth, and then decoded. A wrong type, deep nesting or a large object therefore does not fail the list around it.
#[derive(Clone, Debug)]
pub struct Guarded<K = TrainingJob>(pub Result<K, Unreadable>);

/// An object that can't be decoded or exceeds the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// The field and the error, in at most 1 KiB.
    pub error: String,
    /// Whether the object exceeds the limits; otherwise one of its values is invalid.
    pub is_out_of_bounds: bool,
    /// Metadata reduced to names, versions and times.
    pub metadata: ObjectMeta,
    /// Conditions from its status.
    pub conditions: Vec<Condition>,
    /// State from its status.
    pub state: Option<String>,
}

impl Unreadable {
    /// Treats a job with a state of a newer operator as unreadable. It may have ended, and running it again would waste GPU
    /// time.
    #[must_use]
    pub fn by_state(job: &TrainingJob) -> Option<Self> {
        let status = job.status.as_ref().filter(|status| status.state == Some(State::Unknown))?;
        Some(Self {
            error: "status.state: a value of a newer operator".to_owned(),
            is_out_of_bounds: false,
            metadata: job.metadata.clone(),
            conditions: status.conditions.clone(),
            state: Some(State::Unknown.as_str().to_owned()),
        })
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

impl std::error::Error for Unreadable {}

impl<'de, K: DeserializeOwned + Resource<DynamicType = ()>> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let bounds = match K::kind(&()) {
            kind if kind == TrainingJob::kind(&()) => Bounds::JOB,
            kind if kind == TuningJob::kind(&()) => Bounds::SEARCH,
            _ => Bounds::OTHER,
        };
        read(text.get(), &bounds).map(Guarded).map_err(D::Error::custom)
    }
}

/// The parts that are read from an object that can't be decoded.
#[derive(Deserialize)]
struct Head<'a> {
    metadata: HeadMeta,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
struct HeadStatus<'a> {
    #[serde(borrow)]
    conditions: Option<&'a RawValue>,
    state: Option<String>,
}

/// Decodes one object. The whole response is an error only if it contains no object with metadata.
fn read<K: DeserializeOwned>(text: &str, bounds: &Bounds) -> serde_json::Result<Result<K, Unreadable>> {
    if let Some(beyond) = bounds.exceeded(text) {
        return unreadable(text, &beyond, true).map(Err);
    }
    let error = match serde_json::from_str::<K>(text) {
        Ok(object) => return Ok(Ok(object)),
        Err(error) => error,
    };
    let (path, error) = (place::path(text, &error), error.to_string());
    // Line and column are those of a text that users never see.
    let error = error.rsplit_once(" at line ").map_or(error.as_str(), |(error, _)| error);
    let error = if path.is_empty() { error.to_owned() } else { format!("{path}: {error}") };
    unreadable(text, &error, false).map(Err)
}

fn unreadable(text: &str, error: &str, is_out_of_bounds: bool) -> serde_json::Result<Unreadable> {
    let Head { metadata, status, .. } = serde_json::from_str(text)?;
    let status =
        status.and_then(|status| serde_json::from_str::<HeadStatus<'_>>(status.get()).ok()).unwrap_or_default();
    let conditions = status.conditions.map(RawValue::get).filter(|conditions| conditions.len() <= MAX_CONDITIONS);
    let end = (0..=MAX_ERROR.min(error.len())).rev().find(|end| error.is_char_boundary(*end)).unwrap_or_default();
    Ok(Unreadable {
        error: error[..end].to_owned(),
        is_out_of_bounds,
        metadata: ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        },
        conditions: conditions.and_then(|conditions| serde_json::from_str(conditions).ok()).unwrap_or_default(),
        state: status.state,
    })
}

impl Bounds {
    /// Describes the first limit that an object exceeds.
    fn exceeded(&self, text: &str) -> Option<String> {
        let too_long = too_long("the object", text, self.bytes);
        let beyond = too_long.or_else(|| self.too_deep_or_many("the object", text));
        let longest_spec = self.spec_bytes.unwrap_or(self.bytes);
        if beyond.is_none() && text.len() <= longest_spec {
            return None;
        }
        // What a person wrote is named before what follows from it, such as metadata.managedFields.
        let spec = serde_json::from_str::<Head<'_>>(text).ok().and_then(|head| head.spec).map(RawValue::get);
        let of_spec = spec.and_then(|spec| {
            self::too_long("spec", spec, longest_spec).or_else(|| self.too_deep_or_many("spec", spec))
        });
        of_spec.or(beyond)
    }

    fn too_deep_or_many(&self, what: &str, text: &str) -> Option<String> {
        // Each value takes at least one byte. Most pods are short enough, and their watch brings the most text.
        if self.depth.is_none() && text.len() <= self.values {
            return None;
        }
        let Size { depth, values } = size(text);
        if let Some(most) = self.depth.filter(|most| depth > *most) {
            return Some(format!("{what} is nested {depth} levels deep, at most {most} are read"));
        }
        (values > self.values).then(|| format!("{what} has {values} values, at most {} are read", self.values))
    }
}

fn too_long(what: &str, text: &str, max: usize) -> Option<String> {
    let too_long = || format!("{what} is {} KiB of JSON, at most {} KiB are read", text.len() / 1024, max / 1024);
    (text.len() > max).then(too_long)
}

struct Size {
    depth: usize,
    values: usize,
}

/// Depth and number of values of a JSON text, computed in one pass and without a stack.
fn size(text: &str) -> Size {
    let (mut now, mut depth, mut values) = (0_usize, 0, 1);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                now += 1;
                depth = depth.max(now);
                values += 1;
            }
            b'}' | b']' => now = now.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
    }
    Size { depth, values }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|unreadable| &mut unreadable.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::{Value, json};

    fn job(name: &str, spec: &str) -> String {
        let spec = if spec.is_empty() { String::new() } else { format!(",{spec}") };
        format!(
            r#"{{"apiVersion":"ml.example.com/v1","kind":"TrainingJob","metadata":{{"name":"{name}","namespace":"ns","uid":"u-{name}",
            "resourceVersion":"7","generation":3,"labels":{{"l":"v"}},"managedFields":[{{"fieldsV1":{{"f:a":{{}}}}}}]}},
            "spec":{{"model":"m","dataset":"d","numWorkers":1{spec}}},
            "status":{{"state":"Running","conditions":[{{"type":"Running","status":"True","reason":"R","message":"m",
            "lastTransitionTime":"2026-01-01T00:00:00Z"}}]}}}}"#
        )
    }

    #[test]
    fn state_of_a_newer_operator_is_read_and_left_alone() {
        let newer = job("newer", "").replace(r#""state":"Running""#, r#""state":"Archived""#);
        let jobs = list(&[newer, job("good", "")]).items;
        let [newer, good] = &jobs[..] else { panic!("two jobs") };
        let state = |job: &Guarded| job.0.as_ref().unwrap().status.as_ref().unwrap().state;
        assert_eq!((state(newer), state(good)), (Some(State::Unknown), Some(State::Running)));
        assert!(!State::Unknown.is_finished(), "nobody guesses that it is over");
        let left = Unreadable::by_state(newer.0.as_ref().unwrap()).unwrap();
        assert_eq!(
            (left.to_string().as_str(), left.conditions.len()),
            ("status.state: a value of a newer operator", 1)
        );
        assert_eq!(Unreadable::by_state(good.0.as_ref().unwrap()), None);
    }

    /// An API server with an older CRD must accept the status that a newer operator writes. `kind` is copied from the spec.
    #[test]
    fn status_schema_has_no_enum_except_runtime_kind() {
        fn enums(at: &str, schema: &Value, found: &mut Vec<String>) {
            if schema.get("enum").is_some() {
                found.push(at.to_owned());
            }
            for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
                enums(&format!("{at}.{name}"), inner, found);
            }
            for inner in ["items", "additionalProperties"].iter().filter_map(|key| schema.get(*key)) {
                enums(&format!("{at}[]"), inner, found);
            }
        }
        let crd = serde_json::to_value(<TrainingJob as kube::CustomResourceExt>::crd()).unwrap();
        let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        assert!(status["properties"]["state"]["type"] == "string", "{status}");
        let mut found = Vec::new();
        enums("status", status, &mut found);
        assert_eq!(found, ["status.inherited.runtime.kind"]);
    }

    fn nested(depth: usize) -> String {
        format!(r#""podTemplate":{}1{}"#, r#"{"a":"#.repeat(depth), "}".repeat(depth))
    }

    fn list(items: &[String]) -> ObjectList<Guarded> {
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":"9","continue":"more"}},"items":[{}]}}"#,
            items.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn list_tolerates_the_worst_objects_an_api_server_admits() {
        let ones = format!(r#""podTemplate":{{"spec":{{"containers":[{}1]}}}}"#, "1,".repeat(700_000));
        let text = format!(r#""podTemplate":{{"a":"{}"}}"#, "x".repeat(1_400_000));
        let large = format!(r#""podTemplate":{{"a":"{}"}}"#, "x".repeat(300_000));
        let many = format!(r#""podTemplate":{{"a":[{}1]}}"#, "1,".repeat(30_000));
        let cases = [
            ("deep", nested(200), "spec is nested 201 levels deep, at most 64"),
            ("deepest", nested(9_000), "spec is nested 9001 levels deep"),
            ("ones", ones, "spec is 1367 KiB of JSON, at most 256 KiB"),
            ("text", text, "spec is 1367 KiB of JSON"),
            ("large", large, "spec is 293 KiB of JSON, at most 256 KiB"),
            ("many", many, "values, at most 20000"),
        ];
        let items: Vec<_> = cases.iter().map(|(name, spec, _)| job(name, spec)).chain([job("good", "")]).collect();
        let list = list(&items);
        assert_eq!(
            (list.metadata.resource_version.as_deref(), list.metadata.continue_.as_deref()),
            (Some("9"), Some("more"))
        );
        let good = list.items.last().unwrap().0.as_ref().unwrap();
        assert_eq!(good.labels().len(), 1);
        for (object, (name, _, words)) in list.items.iter().zip(cases) {
            let unreadable = object.0.as_ref().unwrap_err();
            assert!(unreadable.error.contains(words) && unreadable.is_out_of_bounds, "{name}: {unreadable}");
            assert!(unreadable.error.len() <= MAX_ERROR);
            let meta = object.meta();
            assert_eq!(
                (object.name_any(), object.namespace(), object.uid()),
                (name.into(), Some("ns".into()), Some(format!("u-{name}")))
            );
            assert_eq!((meta.resource_version.as_deref(), meta.generation), (Some("7"), Some(3)));
            assert!(meta.labels.is_none() && meta.managed_fields.is_none(), "only what its status needs is kept");
            assert_eq!((unreadable.state.as_deref(), unreadable.conditions.len()), (Some("Running"), 1));
        }
    }

    #[test]
    fn depth_is_counted_from_the_object_rather_than_its_list() {
        let most = Bounds::JOB.depth.unwrap();
        let list = list(&[job("at", &nested(most - 2)), job("beyond", &nested(most - 1))]);
        assert!(list.items[0].0.is_ok());
        assert!(list.items[1].0.as_ref().unwrap_err().error.contains("the object is nested 65 levels deep"));
    }

    #[test]
    fn invalid_value_error_is_located_and_bounded() {
        let wrong = format!(r#""ttlSecondsAfterFinished":"{}""#, "x".repeat(200_000));
        let list = list(&[job("wrong", &wrong)]);
        let unreadable = list.items[0].0.as_ref().unwrap_err();
        assert!(unreadable.error.starts_with("spec.ttlSecondsAfterFinished: invalid type: string"), "{unreadable}");
        assert!(!unreadable.is_out_of_bounds && unreadable.error.len() <= MAX_ERROR);
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_depth() {
        let Size { depth, values } = size(r#"{"a":"[[[{{,,\"[\\","b":[1,"]"]}"#);
        assert_eq!((depth, values), (2, 5));
    }

    #[test]
    fn watch_handles_deep_objects_bookmarks_and_expiry() {
        let event = |kind: &str, object: &str| {
            serde_json::from_str::<WatchEvent<Guarded>>(&format!(r#"{{"type":"{kind}","object":{object}}}"#)).unwrap()
        };
        let WatchEvent::Modified(deep) = event("MODIFIED", &job("deep", &nested(200))) else { panic!() };
        assert!(deep.0.is_err());
        assert_eq!(deep.resource_version().as_deref(), Some("7"), "the watch goes on from here");
        let WatchEvent::Added(good) = event("ADDED", &job("good", "")) else { panic!() };
        assert!(good.0.is_ok());
        let mark = r#"{"apiVersion":"ml.example.com/v1","kind":"TrainingJob","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"model":""}}"#;
        let WatchEvent::Bookmark(mark) = event("BOOKMARK", mark) else { panic!() };
        assert_eq!(mark.metadata.resource_version, "12");
        let gone = r#"{"apiVersion":"v1","kind":"Status","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}"#;
        let WatchEvent::Error(gone) = event("ERROR", gone) else { panic!() };
        assert_eq!(gone.code, 410);
    }

    /// Clients with write access can set an object's managedFields at any depth, including those of child objects.
    #[test]
    fn deep_or_many_managed_fields_do_not_break_a_list() {
        type Kind = Guarded<k8s_openapi::api::core::v1::ConfigMap>;
        let fields = format!("{}{}", r#"{"f:a":"#.repeat(150) + "{}", "}".repeat(150));
        let config = |name: &str, fields: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","resourceVersion":"1","managedFields":[{{"fieldsV1":{fields}}}]}},"data":{{}}}}"#
            )
        };
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{{"resourceVersion":"9"}},"items":[{},{},{}]}}"#,
            config("deep", &fields),
            config("many", &format!(r#"{{"f:a":[{}1]}}"#, "1,".repeat(60_000))),
            config("good", "{}")
        );
        let list: ObjectList<Kind> = serde_json::from_str(&text).unwrap();
        let error = |item: usize| list.items[item].0.as_ref().unwrap_err().error.as_str();
        assert!(error(0).contains("recursion limit exceeded"), "{}", error(0));
        assert!(error(1).contains("values, at most 50000 are read"), "{}", error(1));
        assert!(list.items[2].0.is_ok());
    }

    #[test]
    fn object_can_be_deserialized_from_a_value() {
        let value: Value = serde_json::from_str(&job("x", "")).unwrap();
        assert!(serde_json::from_value::<Guarded>(value).unwrap().0.is_ok());
        assert!(
            serde_json::from_value::<Guarded>(json!({ "spec": {} })).is_err(),
            "there is no object without metadata"
        );
    }
}
