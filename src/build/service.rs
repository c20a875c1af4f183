//! The headless Service: a DNS name for each worker.

use super::{labels, metadata, names};
use crate::plan::Plan;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub(super) fn service(plan: &Plan) -> Service {
    Service {
        metadata: metadata(plan, names::service_name(&plan.identity.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            // Workers look for each other before any of them can be ready.
            publish_not_ready_addresses: Some(true),
            // By UID: pods of a predecessor of the same name that are still ending have the same hostnames.
            selector: Some(labels::gang_selector(plan)),
            ports: Some(vec![ServicePort {
                name: Some("master".to_owned()),
                port: plan.gang.rendezvous.master_port,
                target_port: Some(IntOrString::Int(plan.gang.rendezvous.master_port)),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
