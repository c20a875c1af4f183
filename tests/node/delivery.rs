//! How the agent gets into the pods, by an image volume and by an init container, both under Pod Security `restricted`.

use super::world::{DEMO_IMAGE, Job, Space, World, training, worker, world};
use super::{SOON, eventually, example};
use api::State::{Completed, Pending, Running};
use api::TrainingJob;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job as KubernetesJob;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{ListParams, PostParams};
use kube::{Resource, ResourceExt};
use plan::{self, Delivery, OperatorInfo};
use protocol::gang::GangPast;
use protocol::proof::OperatorKey;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::fmt::Debug;

/// The prefix of a program that begins when a file exists.
const BEGINS: &str = "until [ -e /tmp/go ]; do sleep 0.2; done; exec ";

/// The example for such namespaces, with a program that begins when a file exists.
fn job(name: &str, program: &str) -> Value {
    let mut job = example("restricted");
    job["metadata"]["name"] = json!(name);
    job["spec"]["image"] = json!(DEMO_IMAGE);
    job["spec"]["hyperparameters"] = json!({ "epochs": 1 });
    job["spec"]["command"] = json!(["sh", "-c", format!("{BEGINS}{program}")]);
    // Its own variable takes precedence over spec.model, which is another one that the program knows.
    job["spec"]["env"] = json!([{ "name": "MODEL", "value": "mlp" }]);
    job
}

/// The job is refused without its podTemplate. With it, torchrun trains in pods as the operator makes them (the node
/// has image volumes). It also starts in pods as the same operator makes them for a cluster without image volumes.
#[tokio::test]
async fn restricted_namespace_works_with_both_agent_deliveries() {
    let Some(world) = world() else { return };
    let space = world.space("restricted", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let mut refused = job("refused", "true");
    refused["spec"].as_object_mut().unwrap().remove("podTemplate");
    let refused = space.apply(refused).await;
    let mounted = space.apply(job("mounted", "torchrun train.py")).await;
    create_by_hand(&space, job("copied", "python3 -c 'print(1)'")).await;

    let (reported, status) = refused.condition("Scheduled", "False", "PodSecurity").await;
    assert_eq!(status.state, Some(Pending));
    let words = r#"violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false"#;
    assert!(reported.message.contains(words), "{}", reported.message);
    assert!(reported.message.starts_with("2 of 2 workers have no pod: "), "{}", reported.message);

    let copied = running(&space, "copied").await;
    begin(&space, "copied", &copied, Delivery::Init).await;
    mounted.state(Running).await;
    begin(&space, "mounted", &mounted.pods(), Delivery::Image).await;
    eventually("the Job that was made by hand to be complete", SOON, async || {
        let job = space.api::<KubernetesJob>().get("copied-training").await.unwrap();
        let status = job.status.unwrap_or_default();
        assert_eq!(status.failed.unwrap_or(0), 0, "{status:?}");
        status.completion_time
    })
    .await;
    mounted.state(Completed).await;
    for pod in space.pods().await {
        assert_eq!(training(&pod).map_or(0, |container| container.restart_count), 0, "{}", pod.name_any());
    }
    space.end().await;
}

/// A change of the delivery leaves what runs as it is.
#[tokio::test]
#[ignore = "soak: the operator rolls out another delivery; proved in make test by restricted_namespace_works_with_both_agent_deliveries \
            and plane::delivery"]
async fn agent_delivery_change_does_not_touch_running_jobs() {
    if world().is_none() {
        return;
    }
    // A cluster of its own, because the operator gets another way of delivery.
    let world: &'static World = Box::leak(Box::new(World::up("delivery", &[])));
    if world.cluster.name().is_none() {
        return testkit::skipped("the operator of a cluster that was there before is not changed");
    }
    let space = world.space("delivery", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let uids = async |job: &Job| -> Value {
        let own: KubernetesJob = space.api().get(&format!("{}-training", job.name)).await.unwrap();
        let pods: Vec<_> = job.pods().iter().map(ResourceExt::uid).collect();
        json!([own.uid(), pods])
    };
    let mounted = space.apply(job("mounted", "torchrun train.py")).await;
    mounted.state(Running).await;
    let before = uids(&mounted).await;

    deliver(world, "init");
    let copied = space.apply(job("copied", "torchrun train.py")).await;
    copied.state(Running).await;
    begin(&space, "copied", &copied.pods(), Delivery::Init).await;
    copied.state(Completed).await;
    assert_eq!(uids(&mounted).await, before);
    begin(&space, "mounted", &mounted.pods(), Delivery::Image).await;
    mounted.state(Completed).await;
    assert_eq!(uids(&mounted).await, before);
    space.end().await;
    world.cluster.devcluster(&["down"]);
}

/// Makes every operator that starts from now on deliver the agent this way.
fn deliver(world: &World, delivery: &str) {
    let deployment = ["deployment/trainingjob-operator", "-n", "trainingjob-system"];
    let [name, flag, namespace] = deployment;
    world.cluster.kubectl(&["set", "env", name, flag, namespace, &format!("AGENT_DELIVERY={delivery}")]);
    world.cluster.kubectl(&["rollout", "status", name, flag, namespace, "--timeout=180s"]);
}

/// Creates what the operator would create for this job in a cluster without image volumes. No TrainingJob exists, so
/// that the cluster's operator does nothing about it. Its agents need no operator to form their gang.
async fn create_by_hand(space: &Space, mut job: Value) {
    job["metadata"]["namespace"] = json!(space.name);
    job["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000001");
    let job: TrainingJob = serde_json::from_value(job).unwrap();
    let runtime = OperatorInfo {
        agent_image: "localhost/trainingjob-operator:dev".to_owned(),
        agent_image_pull_policy: None,
        delivery: Delivery::Init,
        restart_rules: true,
        default_ttl_seconds: None,
        own_namespace: None,
    };
    let planned = plan::resolve(&job, &runtime);
    let plan = planned.accepted().unwrap_or_else(|refusals| panic!("{refusals}"));
    let objects = objects::objects(plan, plan::Incarnation::FIRST, &GangPast::default());
    create::<Service>(space, objects.service).await;
    create::<ConfigMap>(space, objects.config).await;
    if let Some(claim) = objects.claim {
        create::<PersistentVolumeClaim>(space, claim).await;
    }
    let answers = OperatorKey::from_random([7; 32]).job_key(&plan.identity.uid);
    if let Some(keys) = objects::keys(plan, &[7; 32], &answers) {
        create::<Secret>(space, keys).await;
    }
    for job in objects.jobs {
        create::<KubernetesJob>(space, job).await;
    }
}

/// Creates an object without its owner. The owner does not exist, and the object would be removed with it.
async fn create<K>(space: &Space, mut object: K)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
{
    object.meta_mut().owner_references = None;
    space.api::<K>().create(&PostParams::default(), &object).await.unwrap();
}

/// The pods of both workers of a job, once their containers run.
async fn running(space: &Space, job: &str) -> Vec<Pod> {
    let workers = ListParams::default().labels(&format!("training-job={job}"));
    eventually(&format!("the workers of {job} to run"), SOON, async || {
        let mut pods = space.api::<Pod>().list(&workers).await.unwrap().items;
        pods.sort_by_key(worker);
        let runs = |pod: &Pod| training(pod).and_then(|container| container.state?.running).is_some();
        (pods.len() == 2 && pods.iter().all(runs)).then_some(pods)
    })
    .await
}

/// Looks at the pods of a running job, as a person would in a shell, and lets its programs begin.
async fn begin(space: &Space, job: &str, pods: &[Pod], delivery: Delivery) {
    assert_eq!(pods.iter().map(worker).collect::<Vec<_>>(), [0, 1]);
    for pod in pods {
        let spec = pod.spec.as_ref().unwrap();
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == "trainingjob-agent").unwrap();
        let found = (spec.init_containers.iter().flatten().count(), volume.image.is_some());
        let expected = match delivery {
            Delivery::Image => (0, true),
            Delivery::Init => (1, false),
        };
        assert_eq!(found, expected, "{job}");
        let names: Vec<&str> = spec.containers[0].env.iter().flatten().map(|variable| variable.name.as_str()).collect();
        // The last one is the Job controller's.
        assert_eq!(names, ["POD_NAME", "POD_UID", "NODE_NAME", "NODE_RANK", "MODEL", "JOB_COMPLETION_INDEX"]);
        let found = eventually("the program's variables", SOON, async || {
            let script = "test -f /trainingjob/python/sitecustomize.py; test ! -w /trainingjob/agent; \
                          test -e /trainingjob/state/env || exit 0; . /trainingjob/state/env; \
                          echo $RANK $PET_NNODES $ATTEMPT $MODEL $CHECKPOINT_DIR $POD_NAMESPACE";
            Some(in_shell(space, pod, script).await).filter(|found| !found.is_empty())
        })
        .await;
        let expected = format!("{} 2 1 mlp /checkpoints {}\n", worker(pod), space.name);
        assert_eq!(found, expected, "{job}");
    }
    for pod in pods {
        in_shell(space, pod, "touch /tmp/go").await;
    }
}

/// The output of a shell in a worker. A shell that can't be opened is tried again.
async fn in_shell(space: &Space, pod: &Pod, script: &str) -> String {
    let name = pod.name_any();
    let command = ["exec", &name, "-n", &space.name, "-c", "training", "--", "sh", "-euc", script];
    eventually(&format!("a shell in {name} that does {script:?}"), SOON, async || {
        match space.world.cluster.try_kubectl(&command, "") {
            Ok(said) => Some(String::from_utf8(said).unwrap()),
            Err(error) => {
                assert!(!error.contains("command terminated with exit code"), "{name}: {script}: {error}");
                None
            }
        }
    })
    .await
}
