//! Each check, with its result when all is well and when it is not.

use super::*;
use serde_json::{from_value, json};

fn healthy() -> CheckInput {
    let operator = json!({
        "metadata": { "name": "trainingjob-operator", "namespace": "trainingjob-system" },
        "spec": { "replicas": 2, "selector": {}, "template": { "spec": { "containers": [
            { "name": "operator", "image": format!("registry.test:5000/trainingjob-operator:{VERSION}") },
        ] } } },
        "status": { "readyReplicas": 2 },
    });
    let lease = json!({
        "metadata": { "name": "trainingjob-operator" },
        "spec": {
            "holderIdentity": "trainingjob-operator-a", "leaseDurationSeconds": 9,
            "renewTime": "2027-01-15T08:00:00.000000Z",
        },
    });
    let node = json!({
        "metadata": { "name": "gpu-1" },
        "status": { "allocatable": { "nvidia.com/gpu": "8" }, "nodeInfo": {
            "architecture": "", "bootID": "", "containerRuntimeVersion": "containerd://2.1.0", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "v1.35.0", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": "",
        } },
    });
    let class = json!({
        "metadata": { "name": "fast", "annotations": { DEFAULT_CLASS: "true" } }, "provisioner": "csi.test",
    });
    let job = json!({
        "metadata": { "name": "bert" }, "spec": {}, "status": { "state": "Running" },
        "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
    });
    CheckInput {
        now: "2027-01-15T08:00:02Z".parse().unwrap(),
        namespace: "team".into(),
        kinds: vec![(api::crd(), Ok(Some(api::crd())))],
        operators: Ok(vec![from_value(operator).unwrap()]),
        pods: Ok(Vec::new()),
        lease: Ok(Some(from_value(lease).unwrap())),
        mine: Ok(granted(20)),
        operators_rights: Ok(granted(60)),
        server: ("1".into(), "35".into()),
        nodes: Ok(vec![from_value(node).unwrap()]),
        classes: Ok(vec![from_value(class).unwrap()]),
        jobs: Ok(vec![from_value(job).unwrap()]),
    }
}

fn rendered(seen: &CheckInput) -> String {
    render(&judge(seen), DisplayOptions::default())
}

#[test]
fn check_passes_on_healthy_cluster() {
    assert!(!has_failed(&judge(&healthy())));
    insta::assert_snapshot!(rendered(&healthy()));
}

#[test]
fn check_fails_when_nothing_is_installed() {
    let seen = CheckInput {
        kinds: vec![(api::crd(), Ok(None))],
        operators: Ok(Vec::new()),
        lease: Err("no single operator is known".into()),
        operators_rights: Err("no single operator is known".into()),
        nodes: Ok(Vec::new()),
        classes: Ok(Vec::new()),
        jobs: Ok(Vec::new()),
        ..healthy()
    };
    assert!(has_failed(&judge(&seen)));
    insta::assert_snapshot!(rendered(&seen));
}

#[test]
fn every_failed_check_has_a_remedy() {
    let mut seen = healthy();
    let mut older = api::crd();
    let schema = older.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    spec.properties.as_mut().unwrap().remove("elastic");
    seen.kinds[0].1 = Ok(Some(older));
    let operator = &mut seen.operators.as_mut().unwrap()[0];
    operator.status.as_mut().unwrap().ready_replicas = Some(1);
    let spec = operator.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    spec.containers[0].image = Some("trainingjob-operator:0.1.0".into());
    spec.containers[0].args = Some(vec!["--agent-delivery=image".into()]);
    seen.now = "2027-01-15T08:01:00Z".parse().unwrap();
    seen.mine.as_mut().unwrap().denied = vec![Right::new("create", "", "pods/exec")];
    seen.operators_rights.as_mut().unwrap().denied =
        vec![Right::new("list", "", "nodes"), Right::new("create", "batch", "jobs")];
    let status = seen.nodes.as_mut().unwrap()[0].status.as_mut().unwrap();
    status.node_info.as_mut().unwrap().kubelet_version = "v1.34.0".into();
    seen.classes.as_mut().unwrap()[0].metadata.annotations = None;
    let condition = json!([{
        "type": "AgentReady", "status": "False", "reason": "NeverAnswered", "message": "no answer from 10.0.0.1:9402",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }]);
    seen.jobs.as_mut().unwrap()[0].status.as_mut().unwrap().conditions = from_value(condition).unwrap();
    let lines = judge(&seen);
    assert!(
        lines.iter().all(|l| (l.outcome == Outcome::Failed && l.remedy.is_some()) || l.subject == "GPUs"),
        "{lines:?}"
    );
    insta::assert_snapshot!(rendered(&seen));
}

/// The old replica stays ready until the new one is, which is never.
#[test]
fn stuck_rollout_is_reported_with_its_cause() {
    let pod = json!({
        "metadata": { "name": "trainingjob-operator-b", "namespace": "trainingjob-system" },
        "status": { "containerStatuses": [{
            "name": "operator", "image": "", "imageID": "", "ready": false, "restartCount": 3,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s" } },
            "lastState": { "terminated": { "exitCode": 1, "message": "starting\nError: LOG_LEVEL \"loud\" is not a level" } },
        }] },
    });
    let seen = CheckInput { pods: Ok(vec![from_value(pod).unwrap()]), ..healthy() };
    let line = judge(&seen).into_iter().find(|line| line.subject == "operator").unwrap();
    let words = "pod trainingjob-system/trainingjob-operator-b does not run (CrashLoopBackOff): Error: LOG_LEVEL \"loud\" is not a level";
    assert_eq!((line.outcome, line.says.as_str()), (Outcome::Failed, words));
    assert!(line.remedy.unwrap().ends_with("kubectl logs trainingjob-operator-b -n trainingjob-system --previous"));
}

/// Rights that are all granted.
fn granted(count: usize) -> Rights {
    Rights { granted: vec![Right::new("create", "", "pods/exec"); count], denied: Vec::new() }
}

#[test]
fn viewer_rights_pass_and_partial_editor_rights_fail() {
    let [read, change] = [Right::new("list", "", "pods"), Right::new("create", "", "pods/exec")];
    let other = Right::new("delete", "batch", "jobs");
    let outcome = |granted: &[&Right], denied: &[&Right]| {
        let [granted, denied] = [granted, denied].map(|some| some.iter().copied().cloned().collect());
        own_rights(&CheckInput { mine: Ok(Rights { granted, denied }), ..healthy() }).outcome
    };
    assert_eq!(outcome(&[&read], &[&change, &other]), Outcome::Ok);
    assert_eq!(outcome(&[&read, &change], &[&other]), Outcome::Failed);
    assert_eq!(outcome(&[], &[&read, &change, &other]), Outcome::Failed);
}

/// A user may have few rights to read. That is no failure.
#[test]
fn unreadable_resources_are_not_checked() {
    let no = || "you may not list it".to_owned();
    let seen = CheckInput {
        kinds: vec![(api::crd(), Err(no()))],
        operators: Err(no()),
        lease: Err(no()),
        operators_rights: Err(no()),
        nodes: Err(no()),
        classes: Err(no()),
        ..healthy()
    };
    let lines = judge(&seen);
    assert!(!has_failed(&lines));
    assert_eq!(lines.iter().filter(|line| line.outcome == Outcome::NotChecked).count(), 8);
}
