//! What a job waits for, and why a job can't run at all, in the words that users read.

use crate::world::{BY_HAND, Space, Watched, parsed, plane};
use api::State::{Failed, Initializing, Pending, Running, Suspended};
use api::{TrainingJob, TrainingJobStatus};
use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testkit::cluster::job;
use testkit::wait::{SOON, eventually};

/// Hundreds of new jobs arrive at once. The operator still looks at the jobs under way. A job that was deleted while it
/// waited takes no turn of a later one.
#[tokio::test]
async fn flood_of_new_jobs_does_not_delay_running_jobs() {
    const FLOOD: usize = 300;
    let space = plane().space("flood", json!({})).await;
    let operator = space.operator_that_begins(1).await;
    let under_way = space.submit("under-way", json!({ "numWorkers": 1 })).await;
    under_way.state(Running).await;
    let flood: Vec<_> = (0..FLOOD).map(|i| job(&format!("flood-{i}"), &json!({ "suspend": true }))).collect();
    futures::stream::iter(flood)
        .for_each_concurrent(4, async |flood| drop(space.create::<TrainingJob>(flood).await))
        .await;
    under_way.set(json!({ "suspend": true })).await;
    under_way.state(Suspended).await;
    let all = space.api::<TrainingJob>().list(&ListParams::default()).await.unwrap();
    let are_new = all.iter().filter(|job| job.status.is_none()).count();
    assert!(are_new > 0, "none of {} waits", all.items.len());
    let waiting = || operator.metric("trainingjob_reconciliations_waiting");
    eventually("the metric to say so", SOON, async || (waiting() > 0.0).then_some(())).await;

    let names = all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("flood-"));
    futures::stream::iter(names).for_each_concurrent(4, async |name| space.delete::<TrainingJob>(&name).await).await;
    let after = space.submit("after", json!({ "numWorkers": 1 })).await;
    after.state(Running).await;
    eventually("none to wait any more", SOON, async || (waiting() == 0.0).then_some(())).await;
    space.end(operator).await;
}

/// What some versions of the scheduler say as well: Kubernetes 1.34 and 1.36 do, and 1.37 does not.
const ON_CLAIMS: &str = " no new claims to deallocate,";

/// What `kubectl describe` shows: the condition's reason and message, word for word.
async fn says(job: &Watched, type_: &str, reason: &str, message: &str) {
    let found = |status: &TrainingJobStatus| {
        let of_type = status.conditions.iter().find(|c| c.type_ == type_);
        let says = |text: &str| text.replace(ON_CLAIMS, "") == message;
        of_type.is_some_and(|c| (c.status.as_str(), c.reason.as_str()) == ("False", reason) && says(&c.message))
    };
    job.until(&format!("{type_}=False {reason}: {message}"), found).await;
    let described = job.described().replace(ON_CLAIMS, "");
    assert!(described.contains(message), "{described}");
}

#[tokio::test]
async fn waiting_job_names_the_missing_resource() {
    let space = plane().space("waiting", json!({})).await;
    let operator = space.operator().await;
    let volume = |claim: &str| {
        json!({
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
            "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
        })
    };
    let no_pod = |why: &str| format!("2 of 2 workers have no pod: {why}");
    let no_node = |why: &str| {
        format!(
            "worker 0 (and 1 more of 2 workers): 0/4 nodes are available: {why} preemption: 0/4 nodes are available: 4 \
             Preemption is not helpful for scheduling."
        )
    };
    let cases = [
        (
            "gpu",
            json!({ "gpusPerWorker": 16 }),
            "Unschedulable",
            no_node("4 Insufficient nvidia.com/gpu."),
        ),
        (
            "selector",
            json!({ "scheduling": { "nodeSelector": { "there": "nowhere" } } }),
            "Unschedulable",
            no_node("4 node(s) didn't match Pod's node affinity/selector."),
        ),
        (
            "claim",
            volume("missing"),
            "Unschedulable",
            "worker 0 (and 1 more of 2 workers): 0/4 nodes are available: persistentvolumeclaim \"missing\" not found. \
             not found"
                .to_owned(),
        ),
        (
            "priority",
            json!({ "scheduling": { "priority": "missing" } }),
            "PodsRefused",
            no_pod("no PriorityClass with name missing was found"),
        ),
        (
            "account",
            json!({ "serviceAccountName": "missing" }),
            "PodsRefused",
            no_pod(&format!(
                "error looking up service account {}/missing: serviceaccount \"missing\" not found",
                space.name
            )),
        ),
    ];
    join_all(cases.map(async |(name, spec, reason, message)| {
        let job = space.submit(name, spec).await;
        says(&job, "Scheduled", reason, &message).await;
        assert_eq!(job.states(), [Pending]);
        assert_eq!(job.status().workers.unwrap().pending, 2);
    }))
    .await;
    space.end(operator).await;
}

/// The largest example, on a cluster that has no such nodes, and at first not even its PriorityClass.
#[tokio::test]
async fn advanced_example_reports_why_it_waits() {
    let space = plane().space("advanced", json!({})).await;
    let operator = space.operator().await;
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/advanced.yaml")).unwrap();
    let example: Value = serde_saphyr::from_str(&text).unwrap();
    let job = space.submit("advanced-training", example["spec"].clone()).await;
    let class = "8 of 8 workers have no pod: no PriorityClass with name high-priority was found";
    says(&job, "Scheduled", "PodsRefused", class).await;
    let classes: Api<PriorityClass> = Api::all(space.client.clone());
    let high: PriorityClass =
        serde_json::from_value(json!({ "metadata": { "name": "high-priority" }, "value": 1000 })).unwrap();
    classes.create(&PostParams::default(), &high).await.unwrap();
    let words = "worker 0 (and 7 more of 8 workers): 0/4 nodes are available: 4 node(s) didn't match Pod's node \
                 affinity/selector. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.";
    says(&job, "Scheduled", "Unschedulable", words).await;
    assert_eq!(job.states(), [Pending]);
    classes.delete("high-priority", &DeleteParams::default()).await.unwrap();
    space.end(operator).await;
}

/// A missing claim is found without help once it exists. So are the others.
#[tokio::test]
async fn job_starts_once_the_missing_claim_exists() {
    let space = plane().space("found", json!({})).await;
    let operator = space.operator().await;
    let job = space
        .submit(
            "x",
            json!({
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "late" } }],
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
            }),
        )
        .await;
    job.condition("Scheduled", "False", "Unschedulable").await;
    let claim = json!({ "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } } });
    space.create::<PersistentVolumeClaim>(json!({ "metadata": { "name": "late" }, "spec": claim })).await;
    job.state(Running).await;
    space.end(operator).await;
}

#[tokio::test]
async fn quota_refusals_are_quoted() {
    let space = plane().space("quota", json!({})).await;
    let operator = space.operator().await;
    let quota = async |hard: Value| {
        space.create::<ResourceQuota>(json!({ "metadata": { "name": "small" }, "spec": { "hard": hard } })).await;
        let known = |q: &ResourceQuota| q.status.as_ref().is_some_and(|s| s.used.is_some());
        space.until("small", "to be counted", known).await;
    };
    // A quota of pods, which only the Job's Events report ...
    quota(json!({ "pods": "0" })).await;
    let pods = space.submit("pods", json!({})).await;
    let refused = "exceeded quota: small, requested: pods=1, used: pods=0, limited: pods=0";
    says(&pods, "Scheduled", "QuotaExceeded", &format!("2 of 2 workers have no pod: {refused}")).await;
    space.delete::<ResourceQuota>("small").await;
    pods.state(Running).await;
    // ... and a quota of objects, which the API server reports to the operator itself.
    quota(json!({ "count/jobs.batch": "1" })).await;
    let jobs = space.submit("jobs", json!({})).await;
    let refused =
        "exceeded quota: small, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1";
    says(&jobs, "Scheduled", "QuotaExceeded", &format!("Job: jobs.batch \"jobs-training\" is forbidden: {refused}"))
        .await;
    space.delete::<ResourceQuota>("small").await;
    jobs.state(Running).await;
    space.end(operator).await;
}

#[tokio::test]
async fn pod_security_violation_is_quoted() {
    let space = plane().space("restricted", json!({ "pod-security.kubernetes.io/enforce": "restricted" })).await;
    let operator = space.operator().await;
    let job = space.submit("refused", json!({})).await;
    let words = "2 of 2 workers have no pod: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
                 (container \"training\" must set securityContext.allowPrivilegeEscalation=false), unrestricted \
                 capabilities (container \"training\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot \
                 != true (pod or container \"training\" must set securityContext.runAsNonRoot=true), seccompProfile (pod \
                 or container \"training\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
                 \"Localhost\")";
    says(&job, "Scheduled", "PodSecurity", words).await;
    let conforming = json!({ "podTemplate": { "spec": {
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{ "name": "training", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }],
    } } });
    space.submit("admitted", conforming).await.state(Running).await;
    space.end(operator).await;
}

/// Nodes exist, but images and volumes do not. The words are the kubelet's.
#[tokio::test]
async fn cause_of_a_delayed_program_start_is_named() {
    let space = plane().space("starting", json!({})).await;
    let operator = space.operator().await;
    let by_hand = json!({ "podTemplate": { "metadata": { "annotations": { BY_HAND: "" } } } });
    let job = space.submit("x", by_hand).await;
    let pods = space.placed("x", 2).await;
    says(&job, "Running", "Starting", "images, volumes and programs are starting").await;
    let waiting = |container: &str, reason: &str, message: &str| {
        json!([{
            "name": container, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": reason, "message": message } },
        }])
    };
    let words = "Back-off pulling image \"none\": ErrImagePull: no such host";
    space.set_pod(&pods[1], json!({ "containerStatuses": waiting("training", "ImagePullBackOff", words) })).await;
    let node = pods[1].spec.as_ref().unwrap().node_name.clone().unwrap();
    let of = |pod: usize, words: &str| {
        let node = pods[pod].spec.as_ref().unwrap().node_name.clone().unwrap();
        format!("worker {pod} (pod {}, node {node}): {words}", pods[pod].name_any())
    };
    says(&job, "Running", "ImagePull", &of(1, words)).await;
    assert!(node.starts_with("sim-"));
    // The operator's own image, in the init container. The first worker takes precedence.
    let words = "Back-off pulling image \"localhost/trainingjob-operator:dev\"";
    space.set_pod(&pods[0], json!({ "initContainerStatuses": waiting("agent", "ErrImagePull", words) })).await;
    says(&job, "Running", "ImagePull", &of(0, words)).await;
    assert_eq!(job.states(), [Pending, Initializing]);
    space.end(operator).await;
}

#[tokio::test]
async fn invalid_spec_fails_with_its_reason() {
    let space = plane().space("refused", json!({})).await;
    let operator = space.operator().await;
    let typed = json!({ "podTemplate": { "spec": { "terminationGracePeriodSeconds": "long", "tolerationz": [] } } });
    let invalid = json!({ "volumes": [{ "name": "v", "emptyDir": {}, "hostPath": { "path": "/" } }] });
    let (typed, invalid) = (space.submit("typed", typed).await, space.submit("invalid", invalid).await);
    for job in [&typed, &invalid] {
        job.state(Failed).await;
    }
    let message = "spec.podTemplate.spec.terminationGracePeriodSeconds: invalid type: string \"long\", expected i64";
    says(&typed, "Accepted", "InvalidSpec", message).await;
    refused(&space, &typed, message).await;
    let message = "Job.batch \"invalid-training\" is invalid: spec.template.spec.volumes[3].hostPath: Forbidden: may \
                   not specify more than 1 volume type";
    says(&invalid, "Accepted", "InvalidSpec", message).await;
    refused(&space, &invalid, message).await;
    space.end(operator).await;
}

async fn refused(space: &Space, job: &Watched, message: &str) {
    let status = job.status();
    assert_eq!(status.failure_reason, Some("InvalidSpec".into()));
    assert_eq!(status.failure_message.as_deref(), Some(message));
    assert!(space.pods(&job.name).await.is_empty());
}

/// The policy that denies the Job is quoted, at a restart as at the start. The job waits until it is allowed.
#[tokio::test]
async fn policy_denial_is_quoted_and_the_job_waits() {
    let space = plane().space("denied", json!({})).await;
    let operator = space.operator().await;
    let first = space.submit("first", json!({})).await;
    first.state(Running).await;
    let policy = format!("denied-{}", std::process::id());
    let here = json!({ "matchLabels": { "kubernetes.io/metadata.name": space.name } });
    let jobs =
        json!([{ "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"] }]);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(space.client.clone());
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": { "namespaceSelector": here, "resourceRules": jobs },
        "validations": [{ "expression": "false", "message": "not before Monday" }],
    });
    policies
        .create(&PostParams::default(), &parsed(json!({ "metadata": { "name": policy }, "spec": spec })))
        .await
        .unwrap();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(space.client.clone());
    let spec = json!({ "policyName": policy, "validationActions": ["Deny"] });
    bindings
        .create(&PostParams::default(), &parsed(json!({ "metadata": { "name": policy }, "spec": spec })))
        .await
        .unwrap();
    let probe = json!({ "metadata": { "name": "probe" }, "spec": { "suspend": true, "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "x", "image": "x" }] } } } });
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the policy to be in force", SOON, async || {
        space.api::<Job>().create(&dry, &parsed(probe.clone())).await.err()
    })
    .await;

    let words = |name: &str| {
        format!(
            "Job: jobs.batch \"{name}-training\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' \
             denied request: not before Monday"
        )
    };
    let second = space.submit("second", json!({})).await;
    says(&second, "Scheduled", "Denied", &words("second")).await;
    space.delete::<Job>("first-training").await;
    says(&first, "Scheduled", "Denied", &words("first")).await;
    bindings.delete(&policy, &DeleteParams::default()).await.unwrap();
    policies.delete(&policy, &DeleteParams::default()).await.unwrap();
    second.state(Running).await;
    first.until("attempt 2 to run", |s| s.attempt == Some(2) && s.state == Some(Running)).await;
    space.end(operator).await;
}

/// The job's condition names a webhook that is down, so that no user has to find it in a log.
#[tokio::test]
async fn unreachable_webhook_is_named() {
    let space = plane().space("webhook", json!({})).await;
    let operator = space.operator().await;
    let name = format!("down-{}", std::process::id());
    let configuration = json!({
        "metadata": { "name": name },
        "webhooks": [{
            "name": "down.example.com", "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": space.name } },
            "rules": [{ "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"] }],
            "clientConfig": { "url": "https://127.0.0.1:1/" },
        }],
    });
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(space.client.clone());
    webhooks.create(&PostParams::default(), &parsed(configuration)).await.unwrap();
    let probe = json!({ "metadata": { "name": "probe" }, "spec": { "suspend": true, "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "x", "image": "x" }] } } } });
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the webhook to be asked", SOON, async || {
        space.api::<Job>().create(&dry, &parsed(probe.clone())).await.err()
    })
    .await;

    let job = space.submit("x", json!({})).await;
    let why = job.condition("Scheduled", "False", "WebhookFailed").await;
    let words = "Job: Internal error occurred: failed calling webhook \"down.example.com\": ";
    assert!(why.message.starts_with(words), "{}", why.message);
    assert_eq!(job.states(), [Pending]);
    webhooks.delete(&name, &DeleteParams::default()).await.unwrap();
    job.state(Running).await;
    space.end(operator).await;
}
