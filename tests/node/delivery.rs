//! How the agent comes into the pods: by an image volume, and by an init container. Both under Pod Security `restricted`.

use super::world::{DEMO_IMAGE, Job, Space, World, training, worker, world};
use super::{SOON, eventually, example};
use k8s_openapi::api::batch::v1;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use trainingjob_operator::api::State::{Completed, Running};

/// Trains when it is told to.
const SCRIPT: &str = "until [ -e /tmp/go ]; do sleep 0.2; done; exec torchrun train.py";

async fn submit(space: &Space, name: &str) -> Job {
    let mut job = example("restricted");
    job["metadata"]["name"] = json!(name);
    job["spec"]["image"] = json!(DEMO_IMAGE);
    job["spec"]["hyperparameters"] = json!({ "epochs": 1 });
    job["spec"]["command"] = json!(["sh", "-c", SCRIPT]);
    job["spec"]["env"] = json!([{ "name": "MODEL", "value": "mine" }]);
    space.apply(job).await
}

/// The same for every operator that starts from now on.
fn deliver(world: &World, delivery: &str) {
    let deployment = ["deployment/trainingjob-operator", "-n", "ml-training"];
    let [name, flag, namespace] = deployment;
    world.cluster.kubectl(&["set", "env", name, flag, namespace, &format!("AGENT_DELIVERY={delivery}")]);
    world.cluster.kubectl(&["rollout", "status", name, flag, namespace, "--timeout=180s"]);
}

/// What a person sees who opens a shell in a worker.
fn in_shell(space: &Space, pod: &Pod, script: &str) -> String {
    let name = pod.name_any();
    space.world.cluster.kubectl(&["exec", &name, "-n", &space.name, "-c", "training", "--", "sh", "-euc", script])
}

/// Looks at a job that runs, lets it train, and waits for its end.
async fn trains(space: &Space, job: &mut Job, is_image: bool) {
    let pods = job.pods();
    assert_eq!(pods.iter().map(worker).collect::<Vec<_>>(), [0, 1]);
    for pod in &pods {
        let spec = pod.spec.as_ref().unwrap();
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == "trainingjob-agent").unwrap();
        let found = (spec.init_containers.iter().flatten().count(), volume.image.is_some());
        assert_eq!(found, if is_image { (0, true) } else { (1, false) }, "{}", job.name);
        let names: Vec<&str> = spec.containers[0].env.iter().flatten().map(|variable| variable.name.as_str()).collect();
        // The last one is the Job controller's.
        assert_eq!(names, ["POD_NAME", "POD_UID", "NODE_NAME", "NODE_RANK", "MODEL", "JOB_COMPLETION_INDEX"]);
        let found = eventually("the program's variables", SOON, async || {
            let script = "test -f /trainingjob/python/sitecustomize.py; test ! -w /trainingjob/agent; \
                          test -e /trainingjob/state/env || exit 0; . /trainingjob/state/env; \
                          echo $RANK $PET_NNODES $ATTEMPT $MODEL $CHECKPOINT_DIR $POD_NAMESPACE";
            Some(in_shell(space, pod, script)).filter(|found| !found.is_empty())
        })
        .await;
        let expected = format!("{} 2 1 mine /checkpoints {}\n", worker(pod), space.name);
        assert_eq!(found, expected, "{}", job.name);
    }
    for pod in &pods {
        in_shell(space, pod, "touch /tmp/go");
    }
    job.state(Completed).await;
    for pod in job.pods() {
        assert_eq!(training(&pod).unwrap().restart_count, 0);
    }
}

#[tokio::test]
async fn the_agent_comes_either_way_and_no_change_of_it_touches_what_runs() {
    if world().is_none() {
        return;
    }
    // Its own cluster: the operator is told another way of delivery.
    let world: &'static World = Box::leak(Box::new(World::up("delivery", &[])));
    if world.cluster.name().is_none() {
        return eprintln!("SKIPPED: the operator of somebody else's cluster is not told anything");
    }
    let space = world.space("delivery", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let uids = async |job: &Job| -> Value {
        let own: v1::Job = space.api().get(&format!("{}-training", job.name)).await.unwrap();
        let pods: Vec<_> = job.pods().iter().map(ResourceExt::uid).collect();
        json!([own.uid(), pods])
    };
    // The node of the tests has image volumes, which is found out.
    let mut mounted = submit(&space, "mounted").await;
    mounted.state(Running).await;
    let before = uids(&mounted).await;

    deliver(world, "init");
    let mut copied = submit(&space, "copied").await;
    copied.state(Running).await;
    trains(&space, &mut copied, false).await;
    assert_eq!(uids(&mounted).await, before);
    trains(&space, &mut mounted, true).await;
    assert_eq!(uids(&mounted).await, before);
    space.end().await;
}
