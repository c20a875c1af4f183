//! What the agents of a job need to form a gang: their identity, the leader's address, and the key by which they know
//! each other. Also the key by which they prove their answers to the operator.

use super::{environment, metadata, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{KeyToPath, Secret, SecretProjection, SecretVolumeSource, VolumeMount};
use plan::storage::paths;
use plan::{Completion, Plan, Role};
use protocol::gang::{GangPast, GangSetup, KEY_FILE, MpiSetup, SETUP_FILE};
use protocol::proof::{self, AnswerKey};
use std::collections::BTreeMap;

/// The file that describes the gang to its agents. It is in the ConfigMap and not in the pods, because part of it may
/// change while they run.
pub(super) fn setup(plan: &Plan) -> String {
    let restart = &plan.policy.failure.restart;
    let elastic = plan.gang.elastic.as_ref();
    let others = plan.gang.roles.iter().filter(|role| !role.name.is_worker());
    let decides = |role: &Role| (role.name.to_string(), u32::from(role.completion.required_pods(role.replicas)));
    let is_all = !plan.gang.has_roles() && plan.gang.workers().completion == Completion::EveryReplica;
    let deciding = plan.gang.roles.iter().map(decides).filter(|(_, count)| *count > 0);
    let setup = GangSetup {
        uid: plan.identity.uid.clone(),
        workers: elastic.map_or(plan.gang.workers().replicas, |elastic| elastic.workers).into(),
        largest: elastic.map(|elastic| elastic.largest.into()),
        roles: others.map(|role| (role.name.to_string(), role.replicas.into())).collect(),
        success: if is_all { BTreeMap::new() } else { deciding.collect() },
        mpi: plan.gang.rendezvous.mpi_port.map(|port| MpiSetup { port, slots: plan.gang.workers().procs.into() }),
        leader: names::worker_host(&plan.identity.name, 0),
        port: plan.gang.rendezvous.gang_port,
        master_port: plan.gang.rendezvous.master_port,
        restarts: restart.restarts,
        backoff_limit: restart.backoff_limit,
        rules: restart.rules.clone(),
        code: plan.storage.code.clone(),
        restart_requested: plan.policy.restart_requested.clone(),
    };
    json(&setup)
}

/// The agent's arguments about its gang.
pub(super) fn args(plan: &Plan, role: &Role, past: &GangPast) -> Vec<String> {
    let mut args = vec![format!("--gang={}/{SETUP_FILE}", paths::CONFIG)];
    args.extend((!role.name.is_worker()).then(|| format!("--role={}", role.name)));
    args.extend(gang_key(plan).map(|key| key.arg()));
    args.push(format!("--gang-state={}", paths::STATE));
    let past = (*past != GangPast::default()).then(|| json(past));
    args.extend(past.map(|past| format!("--gang-past={}", environment::literal(&past))));
    args
}

/// A key that the agents have.
struct Key {
    /// Its key in the Secret, and the name of the file.
    file: &'static str,
    /// The agent's option for the file.
    option: &'static str,
}

impl Key {
    fn arg(&self) -> String {
        format!("{}={}/{}", self.option, paths::KEYS, self.file)
    }
}

/// The agent's argument for the key of its answers.
pub(super) fn answer_arg(plan: &Plan) -> Option<String> {
    answer_key(plan).map(|key| key.arg())
}

/// The key of the gang; `None` for a worker without others.
fn gang_key(plan: &Plan) -> Option<Key> {
    let has_others = plan.gang.elastic.is_some() || plan.gang.size() > 1;
    has_others.then_some(Key { file: KEY_FILE, option: "--gang-key" })
}

/// The key of the agents' answers; `None` if the operator does not ask them.
fn answer_key(plan: &Plan) -> Option<Key> {
    plan.monitoring.metrics_port.map(|_| Key { file: proof::KEY_FILE, option: "--answer-key" })
}

fn keys_of_pods(plan: &Plan) -> impl Iterator<Item = Key> {
    [gang_key(plan), answer_key(plan)].into_iter().flatten()
}

/// The Secret with the job's keys: the gang's, made of 32 random bytes, and that of the agents' answers. `None` if the
/// pods need neither. It always has both, because it can't be changed, while the needs of the pods may change.
#[must_use]
pub fn keys(plan: &Plan, gang: &[u8; 32], answers: &AnswerKey) -> Option<Secret> {
    keys_of_pods(plan).next()?;
    let gang: String = gang.iter().map(|byte| format!("{byte:02x}")).collect();
    let entry = |file: &str, text: String| (file.to_owned(), ByteString(text.into_bytes()));
    Some(Secret {
        metadata: metadata(plan, names::keys_name(&plan.identity.name, &plan.identity.uid)),
        data: Some(BTreeMap::from([entry(KEY_FILE, gang), entry(proof::KEY_FILE, answers.to_text())])),
        immutable: Some(true),
        ..Secret::default()
    })
}

/// Where the keys come from, as part of the job's configuration.
pub(super) fn key_projection(plan: &Plan) -> Option<SecretProjection> {
    let folder = paths::KEYS.rsplit('/').next().unwrap_or_default();
    let item = |key: Key| KeyToPath { key: key.file.to_owned(), path: format!("{folder}/{}", key.file), mode: None };
    let items: Vec<_> = keys_of_pods(plan).map(item).collect();
    let name = names::keys_name(&plan.identity.name, &plan.identity.uid);
    (!items.is_empty()).then_some(SecretProjection { name, items: Some(items), optional: None })
}

/// The key of the agents' answers alone, for pods that have no part in the gang.
pub(super) fn answer_secret(plan: &Plan) -> Option<SecretVolumeSource> {
    let key = answer_key(plan)?;
    let item = KeyToPath { key: key.file.to_owned(), path: key.file.to_owned(), mode: None };
    Some(SecretVolumeSource {
        secret_name: Some(names::keys_name(&plan.identity.name, &plan.identity.uid)),
        items: Some(vec![item]),
        ..SecretVolumeSource::default()
    })
}

/// Where the agent keeps its state: a volume, or a folder of the volume that brought the agent. That is the only folder
/// in which every user may write.
pub(super) fn state(volume: String, is_part: bool) -> VolumeMount {
    let folder = paths::STATE.rsplit('/').next().map(str::to_owned).filter(|_| is_part);
    VolumeMount { name: volume, mount_path: paths::STATE.to_owned(), sub_path: folder, ..VolumeMount::default() }
}

#[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("a struct of strings and numbers is JSON")
}
