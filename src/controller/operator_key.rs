//! The operator's own key, from which the key of each job's answers is derived (see [`protocol::proof`]).

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use objects::labels;
use protocol::proof::{KEY_BYTES, OperatorKey};
use std::collections::BTreeMap;
use tracing::info;

/// The Secret that keeps it, in the operator's own namespace. The operator may read no other.
pub const OPERATOR_KEY_SECRET: &str = "trainingjob-operator-answers";
/// Its key in the Secret.
const KEY: &str = "key";

/// Reads the operator's key from its own namespace, and makes it if there is none.
///
/// # Errors
/// Where the API server refuses that, or the Secret has no usable key.
pub async fn operator_key(client: &Client, namespace: &str) -> anyhow::Result<OperatorKey> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let unread = || {
        format!(
            "can't read Secret {namespace}/{OPERATOR_KEY_SECRET}: allow the operator to get it, as deploy/base does"
        )
    };
    let secret = match api.get_opt(OPERATOR_KEY_SECRET).await.with_context(unread)? {
        Some(secret) => secret,
        None => match api.create(&PostParams::default(), &new_secret(rand::random())).await {
            Ok(secret) => {
                info!(namespace, name = OPERATOR_KEY_SECRET, "created the Secret with the operator's key");
                secret
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                api.get(OPERATOR_KEY_SECRET).await.with_context(unread)?
            }
            Err(error) => {
                let words = "allow the operator to create it, as deploy/base does, and see that the namespace exists";
                return Err(error)
                    .with_context(|| format!("can't create Secret {namespace}/{OPERATOR_KEY_SECRET}: {words}"));
            }
        },
    };
    let key = secret.data.as_ref().and_then(|data| OperatorKey::new(&data.get(KEY)?.0));
    key.with_context(|| {
        format!(
            "Secret {namespace}/{OPERATOR_KEY_SECRET} has no {KEY} of {KEY_BYTES} random bytes: restore it, or run `kubectl delete secret {OPERATOR_KEY_SECRET} \
             -n {namespace}` to have the operator recreate it; docs/security.md says what follows for running jobs"
        )
    })
}

fn new_secret(key: [u8; KEY_BYTES]) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(OPERATOR_KEY_SECRET.to_owned()),
            labels: Some(BTreeMap::from([(labels::MANAGED_BY.to_owned(), labels::OPERATOR.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(key.to_vec()))])),
        immutable: Some(true),
        ..Secret::default()
    }
}
