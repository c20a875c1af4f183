//! What we own in a child, as one number. It is equal for the object as built and as the API server returns it. It
//! differs after a change by another client. Digests are only compared within one process.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use objects::labels;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Digest of a ConfigMap: labels, owner, data.
#[must_use]
pub fn config(config: &ConfigMap) -> u64 {
    digest(&config.metadata, |hasher| {
        config.data.clone().unwrap_or_default().hash(hasher);
        config.binary_data.as_ref().is_some_and(|data| !data.is_empty()).hash(hasher);
    })
}

/// Digest of a headless Service: labels, owner, selector, ports, and that it publishes workers that are not ready.
#[must_use]
pub fn service(service: &Service) -> u64 {
    digest(&service.metadata, |hasher| {
        let Some(spec) = &service.spec else { return };
        spec.cluster_ip.hash(hasher);
        spec.publish_not_ready_addresses.unwrap_or(false).hash(hasher);
        // Whether the first worker or all are selected is decided at creation, because running programs may use a name.
        let is_first = |key: &str, value: &str| key == labels::COMPLETION_INDEX && value == "0";
        let selector = spec.selector.iter().flatten().filter(|(key, value)| !is_first(key, value));
        selector.collect::<BTreeMap<_, _>>().hash(hasher);
        spec.external_ips.clone().unwrap_or_default().hash(hasher);
        spec.type_.as_deref().unwrap_or("ClusterIP").hash(hasher);
        for port in spec.ports.iter().flatten() {
            (&port.name, port.port, port.protocol.as_deref().unwrap_or("TCP")).hash(hasher);
        }
    })
}

/// Others may add labels, which the digest ignores. Ours may not be changed.
fn digest(meta: &ObjectMeta, content: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    let ours: BTreeMap<_, _> = meta.labels.iter().flatten().filter(|(key, _)| labels::is_common(key)).collect();
    ours.hash(&mut hasher);
    for owner in meta.owner_references.iter().flatten() {
        (&owner.uid, &owner.kind, owner.controller).hash(&mut hasher);
    }
    content(&mut hasher);
    hasher.finish()
}
