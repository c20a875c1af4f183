//! How the agent gets into the pods.

use crate::world::{is_oldest, plane};
use api::State::Running;
use plan::AgentDelivery;
use serde_json::json;

/// An operator of one namespace may not look at the nodes. It uses the way that always works, and does not ask again.
/// The API server accepts the way that the operator is configured to use.
#[tokio::test]
async fn agent_is_delivered_as_configured_or_by_the_fallback() {
    if is_oldest() {
        return; // it has no image volumes, so no node is asked for
    }
    let space = plane().space("delivery", json!({})).await;
    for (wanted, jobs, is_image) in [(AgentDelivery::Auto, ["a", "b"], false), (AgentDelivery::Image, ["c", "d"], true)]
    {
        let operator = space.operator_that_delivers(wanted).await;
        for name in jobs {
            space.submit(name, json!({})).await.state(Running).await;
            let pod = space.pods(name).await[0].spec.clone().unwrap();
            let image = pod.volumes.iter().flatten().find_map(|volume| volume.image.clone()?.reference);
            let expected = is_image.then(|| "localhost/trainingjob-operator:dev".to_owned());
            assert_eq!((image, pod.init_containers.is_none()), (expected, is_image), "{name}");
        }
        operator.end().await;
        let asked: Vec<_> = space.requests().into_iter().filter(|request| request.resource == "nodes").collect();
        assert!(asked.len() == 1 && asked[0].forbidden, "{asked:?}");
    }
    space.close(&["nodes"]).await;
}
