//! Changes of pods and Jobs in Protobuf, reduced to what the operator keeps.
//!
//! The API server has the Protobuf of a change ready for its own controllers, while its JSON would be made for the
//! operator alone. Most of a change is never read, and in Protobuf it is skipped without being looked at. Numbers and
//! types of the fields are those of the files `generated.proto` in Kubernetes' modules `api` and `apimachinery`.

use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use std::str::{self, Utf8Error};

/// What the API server writes before each object.
const MAGIC: &[u8] = b"k8s\0";

/// Why a change can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    /// It isn't one that the API server would send.
    #[error("a change is no Protobuf of Kubernetes: {0}")]
    Invalid(#[from] prost::DecodeError),
    /// Its object doesn't begin like one of Kubernetes.
    #[error("a change has no object of Kubernetes")]
    NoObject,
    /// Its object is neither a pod nor a Job.
    #[error("a change is about an object of kind {0:?}, which isn't read in Protobuf")]
    Kind(String),
    /// It can't be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// One change of a watch (a `WatchEvent` in Protobuf, without its length), as the line of JSON that a watch in JSON would
/// have, with a line feed. It contains only the fields of [`SlimPod`](crate::SlimPod) and [`SlimJob`](crate::SlimJob).
///
/// # Errors
/// If it is not a change of a pod or Job, nor an error of the API server.
pub fn json_of_change(change: Bytes) -> Result<Vec<u8>, ProtobufError> {
    let change = WatchEvent::decode(change)?;
    let mut object = change.object.ok_or(ProtobufError::NoObject)?.raw;
    if !object.starts_with(MAGIC) {
        return Err(ProtobufError::NoObject);
    }
    let Unknown { type_meta, raw } = Unknown::decode(object.split_off(MAGIC.len()))?;
    let types = type_meta.unwrap_or_default();
    let line = match &*types.kind {
        b"Pod" => line(&change.r#type, &types, Pod::decode(raw)?),
        b"Job" => line(&change.r#type, &types, Job::decode(raw)?),
        b"Status" => line(&change.r#type, &types, Status::decode(raw)?),
        kind => return Err(ProtobufError::Kind(String::from_utf8_lossy(kind).into_owned())),
    };
    Ok(line?)
}

fn line(r#type: &Bytes, types: &TypeMeta, object: impl Serialize) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Line<'a, O> {
        #[serde(serialize_with = "text")]
        r#type: &'a Bytes,
        object: Typed<'a, O>,
    }
    #[derive(Serialize)]
    struct Typed<'a, O> {
        #[serde(flatten)]
        types: &'a TypeMeta,
        #[serde(flatten)]
        object: O,
    }
    let mut line = Vec::with_capacity(2048);
    serde_json::to_writer(&mut line, &Line { r#type, object: Typed { types, object } })?;
    line.push(b'\n');
    Ok(line)
}

/// Texts are pieces of the change, which are not copied before they are written.
fn text<S: Serializer>(text: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(str::from_utf8(text).map_err(S::Error::custom)?)
}

fn texts<S: Serializer>(texts: &[Bytes], serializer: S) -> Result<S::Ok, S::Error> {
    let texts: Result<Vec<_>, _> = texts.iter().map(|text| str::from_utf8(text)).collect();
    texts.map_err(S::Error::custom)?.serialize(serializer)
}

fn map<S: Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
    let entries: Result<Vec<_>, _> =
        entries.iter().map(|entry| Ok((str::from_utf8(&entry.key)?, str::from_utf8(&entry.value)?))).collect();
    serializer.collect_map(entries.map_err(S::Error::custom::<Utf8Error>)?)
}

/// In Protobuf a text that isn't set is empty, and in JSON it is absent.
fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(bytes = "bytes", tag = "1")]
    r#type: Bytes,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// What stands around each object: its kind, and its fields.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    api_version: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text")]
    kind: Bytes,
}

/// An error of the API server, in place of an object.
#[derive(Clone, PartialEq, Serialize, Message)]
#[expect(clippy::struct_field_names, reason = "as Kubernetes calls it")]
struct Status {
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text")]
    status: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(serialize_with = "text")]
    message: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(serialize_with = "text")]
    reason: Bytes,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    namespace: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    uid: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    #[serde(serialize_with = "text")]
    resource_version: Bytes,
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "is_unset")]
    creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "is_unset")]
    deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    #[serde(skip_serializing_if = "is_unset")]
    deletion_grace_period_seconds: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    #[serde(serialize_with = "map", skip_serializing_if = "is_unset")]
    labels: Vec<Entry>,
    #[prost(message, repeated, tag = "12")]
    #[serde(serialize_with = "map", skip_serializing_if = "is_unset")]
    annotations: Vec<Entry>,
    #[prost(message, repeated, tag = "13")]
    #[serde(skip_serializing_if = "is_unset")]
    owner_references: Vec<OwnerReference>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    #[serde(serialize_with = "texts", skip_serializing_if = "is_unset")]
    finalizers: Vec<Bytes>,
}

/// A key with its value, of a map.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    kind: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(serialize_with = "text")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(serialize_with = "text")]
    uid: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    #[serde(serialize_with = "text")]
    api_version: Bytes,
    #[prost(bool, optional, tag = "6")]
    #[serde(skip_serializing_if = "is_unset")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    #[serde(skip_serializing_if = "is_unset")]
    block_owner_deletion: Option<bool>,
}

/// A time that isn't set is a message without fields.
#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).serialize(serializer)
    }
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "is_unset")]
    status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    containers: Vec<Container>,
    #[prost(bytes = "bytes", tag = "10")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    node_name: Bytes,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    name: Bytes,
    #[prost(message, repeated, tag = "25")]
    #[serde(skip_serializing_if = "is_unset")]
    restart_policy_rules: Vec<Unread>,
}

/// A message of which only the presence is read.
#[derive(Clone, Copy, PartialEq, Serialize, Message)]
struct Unread {}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    phase: Bytes,
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    conditions: Vec<Condition>,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    message: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    reason: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    #[serde(rename = "podIP", serialize_with = "text", skip_serializing_if = "is_unset")]
    pod_ip: Bytes,
    #[prost(message, repeated, tag = "8")]
    #[serde(skip_serializing_if = "is_unset")]
    container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    #[serde(skip_serializing_if = "is_unset")]
    init_container_statuses: Vec<ContainerStatus>,
}

/// Of a pod, or of a Job.
#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    r#type: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text")]
    status: Bytes,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "is_unset")]
    last_probe_time: Option<Time>,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "is_unset")]
    last_transition_time: Option<Time>,
    #[prost(bytes = "bytes", tag = "5")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    reason: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    message: Bytes,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text")]
    name: Bytes,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    state: Option<ContainerState>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "is_unset")]
    last_state: Option<ContainerState>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct ContainerState {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    waiting: Option<Waiting>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    running: Option<Running>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "is_unset")]
    terminated: Option<Terminated>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct Waiting {
    #[prost(bytes = "bytes", tag = "1")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    reason: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    message: Bytes,
}

#[derive(Clone, Copy, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct Running {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    started_at: Option<Time>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    #[prost(int32, tag = "1")]
    exit_code: i32,
    #[prost(int32, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    signal: i32,
    #[prost(bytes = "bytes", tag = "3")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    reason: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    message: Bytes,
    #[prost(message, optional, tag = "5")]
    #[serde(skip_serializing_if = "is_unset")]
    started_at: Option<Time>,
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "is_unset")]
    finished_at: Option<Time>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct Job {
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    spec: Option<JobSpec>,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "is_unset")]
    status: Option<JobStatus>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct JobSpec {
    #[prost(int32, optional, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    parallelism: Option<i32>,
    #[prost(message, optional, tag = "6")]
    #[serde(skip_serializing_if = "is_unset")]
    template: Option<PodTemplate>,
    #[prost(bool, tag = "10")]
    suspend: bool,
}

#[derive(Clone, PartialEq, Serialize, Message)]
struct PodTemplate {
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    spec: Option<PodTemplateSpec>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct PodTemplateSpec {
    #[prost(message, optional, tag = "43")]
    #[serde(skip_serializing_if = "is_unset")]
    scheduling_group: Option<Unread>,
}

#[derive(Clone, PartialEq, Serialize, Message)]
#[serde(rename_all = "camelCase")]
struct JobStatus {
    #[prost(message, repeated, tag = "1")]
    #[serde(skip_serializing_if = "is_unset")]
    conditions: Vec<Condition>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "is_unset")]
    start_time: Option<Time>,
    #[prost(bytes = "bytes", tag = "7")]
    #[serde(serialize_with = "text", skip_serializing_if = "is_unset")]
    completed_indexes: Bytes,
}
