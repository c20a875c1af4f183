//! What the cluster can do to bring the agent into pods: looked at when Jobs are made, and remembered for some minutes.

use super::error::{call, refusal};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use plan::{AgentDelivery, Delivery, node_has_image_volumes, server_has_image_volumes};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tracing::{info, warn};

/// As long as this what was found holds. A cluster's nodes are upgraded in hours.
const HOLDS: Duration = Duration::from_secs(300);
/// Nodes that are read at a time: each tells all images that it has, which may be tens of kilobytes.
const PAGE: u32 = 100;

/// Decides how the agent comes into new pods.
#[derive(Default)]
pub(super) struct Deliveries {
    wanted: AgentDelivery,
    found: Mutex<Option<Found>>,
}

/// What was found, and when.
struct Found {
    at: Instant,
    delivery: Delivery,
    why: &'static str,
}

impl Deliveries {
    pub(super) fn new(wanted: AgentDelivery) -> Self {
        Self { wanted, found: Mutex::default() }
    }

    /// How the agent comes into the pods of a Job that is made now. What the cluster doesn't tell is no obstacle: an init
    /// container always works.
    pub(super) async fn now(&self, client: &Client) -> Delivery {
        if let Some(decided) = self.wanted.decided() {
            return decided;
        }
        let mut found = self.found.lock().await;
        if let Some(known) = found.as_ref().filter(|found| found.at.elapsed() < HOLDS) {
            return known.delivery;
        }
        let (delivery, why) = look(client).await;
        // Said once, and again when it changes.
        if found.as_ref().is_none_or(|before| before.why != why) {
            info!(delivery = ?delivery, "the agent's delivery: {why}");
        }
        *found = Some(Found { at: Instant::now(), delivery, why });
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
