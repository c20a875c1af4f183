//! How the cluster can deliver the agent into pods. The operator looks when it creates Jobs, and remembers the result
//! for five minutes.

use super::error::{call, refusal};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use plan::{AgentDelivery, Delivery, node_has_image_volumes, server_has_image_volumes};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tracing::{info, warn};

/// How long a result is used. Upgrading a cluster's nodes takes hours.
const HOLDS: Duration = Duration::from_secs(300);
/// Nodes that are read at a time. Each lists all its images, which may be tens of kilobytes.
const PAGE: u32 = 100;

/// Decides how the agent is delivered into new pods.
#[derive(Default)]
pub(super) struct Deliveries {
    wanted: AgentDelivery,
    found: Mutex<Option<DeliveryResult>>,
}

/// A result, and when it was found.
struct DeliveryResult {
    at: Instant,
    delivery: Delivery,
    why: &'static str,
}

impl Deliveries {
    pub(super) fn new(wanted: AgentDelivery) -> Self {
        Self { wanted, found: Mutex::default() }
    }

    /// How the agent is delivered into the pods of a Job that is created now. If the cluster does not report what it
    /// can do, an init container is used, which always works.
    pub(super) async fn now(&self, client: &Client) -> Delivery {
        if let Some(decided) = self.wanted.decided() {
            return decided;
        }
        let mut found = self.found.lock().await;
        if let Some(known) = found.as_ref().filter(|found| found.at.elapsed() < HOLDS) {
            return known.delivery;
        }
        let (delivery, why) = look(client).await;
        // Logged once, and again when the reason changes.
        if found.as_ref().is_none_or(|before| before.why != why) {
            info!(delivery = ?delivery, "the agent's delivery: {why}");
        }
        *found = Some(DeliveryResult { at: Instant::now(), delivery, why });
        delivery
    }
}

async fn look(client: &Client) -> (Delivery, &'static str) {
    let init = |why| (Delivery::Init, why);
    match call("get version", client.apiserver_version()).await {
        Ok(version) if server_has_image_volumes(&version.major, &version.minor) => {}
        Ok(_) => return init("the API server is older than 1.35"),
        Err(error) => {
            warn!(%error, "the API server does not tell its version");
            return init("the API server does not tell its version");
        }
    }
    let nodes = Api::<Node>::all(client.clone());
    let mut page = ListParams::default().limit(PAGE);
    let mut seen = false;
    loop {
        let list = match call("list nodes", nodes.list(&page)).await {
            Ok(list) => list,
            Err(error) if refusal(&error).is_some_and(kube::core::Status::is_forbidden) => {
                return init(
                    "the operator may not list nodes, so that it does not know whether they have image volumes; if they \
                     have, say --agent-delivery=image",
                );
            }
            Err(error) => {
                warn!(%error, "can't list nodes");
                return init("the nodes could not be listed");
            }
        };
        if !list.items.iter().all(has_image_volumes) {
            return init("a node has no image volumes: its kubelet is older than 1.35, or its containerd than 2.1");
        }
        seen |= !list.items.is_empty();
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None if seen => return (Delivery::Image, "API server and nodes have image volumes"),
            None => return init("there is no node yet"),
        }
    }
}

fn has_image_volumes(node: &Node) -> bool {
    let software = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    software.is_some_and(|info| node_has_image_volumes(&info.kubelet_version, &info.container_runtime_version))
}
