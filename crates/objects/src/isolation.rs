//! The NetworkPolicy of a job's pods. Most ports that programs open, above all for the rendezvous, need no
//! authentication.

use super::{labels, metadata, names};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use plan::Plan;

/// Lets the job's pods connect to each other, and other pods to the metrics only.
#[must_use]
pub fn network_policy(plan: &Plan) -> Option<NetworkPolicy> {
    let pods = LabelSelector { match_labels: Some(labels::gang_selector(plan)), match_expressions: None };
    let gang = NetworkPolicyPeer { pod_selector: Some(pods.clone()), ..NetworkPolicyPeer::default() };
    let metrics = plan.monitoring.metrics_port.map(|port| NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    });
    let from_gang = NetworkPolicyIngressRule { from: Some(vec![gang]), ports: None };
    let from_anywhere = metrics.map(|port| NetworkPolicyIngressRule { from: None, ports: Some(vec![port]) });
    plan.gang.isolated.then(|| NetworkPolicy {
        metadata: metadata(plan, names::network_policy_name(&plan.identity.name, &plan.identity.uid)),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some([from_gang].into_iter().chain(from_anywhere).collect()),
            egress: None,
        }),
    })
}
