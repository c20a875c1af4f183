//! What the other tests here judge is complete.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use testkit::support::World;
use testkit::support::witness::{Kind, Space, Witness};

#[test]
fn witness_sees_every_version_from_its_start() {
    testkit::support::run(async {
        let world = World::shared().await;
        world.namespace("witness").await;
        let maps: Api<ConfigMap> = Api::namespaced(world.admin.clone(), "witness");

        let witness = Witness::start(&world.admin).await;
        let mut map = serde_json::from_value(serde_json::json!({ "metadata": { "name": "x" } })).unwrap();
        map = maps.create(&PostParams::default(), &map).await.unwrap();
        let mut versions = vec![map.metadata.resource_version.clone().unwrap()];
        for round in 0..20 {
            map.data = Some([("round".to_owned(), round.to_string())].into());
            map = maps.replace("x", &PostParams::default(), &map).await.unwrap();
            versions.push(map.metadata.resource_version.clone().unwrap());
        }

        let seen = |space: &Space| -> Vec<String> {
            let its = space
                .history
                .iter()
                .filter(|seen| seen.kind == Kind::ConfigMap && seen.object["metadata"]["name"] == "x");
            its.map(|seen| seen.version.to_string()).collect()
        };
        let is_last = |space: &Space| seen(space).last() == versions.last();
        witness.until("witness", "the last version", |space| is_last(space).then_some(())).await.unwrap();
        assert_eq!(witness.read("witness", seen), versions);
        world.forget("witness");
    });
}
