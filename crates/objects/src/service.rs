//! The headless Service: a DNS name for each worker, or for the first one.

use super::{labels, metadata, names};
use api::HostNames;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use plan::Plan;
use std::collections::BTreeMap;

/// The Service that gives the workers their DNS names; the same for every incarnation.
#[must_use]
pub fn service(plan: &Plan) -> Service {
    Service {
        metadata: metadata(plan, names::service_name(&plan.identity.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            // Workers look for each other before any of them can be ready.
            publish_not_ready_addresses: Some(true),
            // By UID, because pods of a predecessor of the same name that are still ending have the same hostnames.
            selector: Some(selector(plan)),
            ports: Some(vec![ServicePort {
                name: Some("master".to_owned()),
                port: plan.gang.rendezvous.master_port.into(),
                target_port: Some(IntOrString::Int(plan.gang.rendezvous.master_port.into())),
                protocol: Some("TCP".to_owned()),
                // A mesh that guesses the protocol waits for the client's first bytes, and takes some of them for HTTP.
                app_protocol: Some("tcp".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Each selected pod costs a write of the Service's endpoints whenever it appears or disappears.
fn selector(plan: &Plan) -> BTreeMap<String, String> {
    let mut selector = labels::gang_selector(plan);
    if plan.gang.rendezvous.host_names == HostNames::FirstWorker {
        selector.insert(labels::COMPLETION_INDEX.to_owned(), "0".to_owned());
    }
    selector
}
