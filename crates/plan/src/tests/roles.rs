//! Roles: inheritance, completion and validation.

use super::*;

fn with(more: &Value) -> Value {
    let mut fields = json!({
        "framework": "none", "image": "trainer:1", "command": ["train"], "args": ["--all"], "gpusPerWorker": 2,
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "1" }],
        "resources": { "requests": { "memory": "8Gi" }, "limits": { "cpu": "4", "amd.com/gpu": 2 } },
        "podTemplate": { "spec": { "terminationGracePeriodSeconds": 90 } },
        "checkpoint": { "enabled": false },
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

fn role_of(role: &Value) -> Role {
    plan(&with(&json!({ "roles": [role] }))).gang.roles.remove(1)
}

#[test]
fn role_inherits_worker_settings_except_gpus() {
    let role = role_of(&json!({ "name": "actor", "replicas": 3 }));
    assert_eq!((role.name.as_str(), role.replicas, role.procs, role.gpus), ("actor", 3, 1, 0));
    assert_eq!(
        (role.pod.image.as_str(), &role.pod.command[..]),
        ("trainer:1", &["train".to_owned(), "--all".into()][..])
    );
    assert_eq!(quantities(role.pod.resources.limits.as_ref()), BTreeMap::from([("cpu", "4")]));
    assert_eq!(quantities(role.pod.resources.requests.as_ref()), BTreeMap::from([("memory", "8Gi")]));
    assert_eq!((role.pod.env.len(), role.pod.grace_seconds), (2, 90));
}

#[test]
fn role_settings_override_inherited_ones() {
    let role = role_of(&json!({
        "name": "actor", "image": "actor:1", "args": ["--some"], "gpusPerReplica": 1, "env": [{ "name": "B", "value": "2" }],
        "podTemplate": { "spec": { "terminationGracePeriodSeconds": 30 } },
    }));
    assert_eq!(
        (role.pod.image.as_str(), &role.pod.command[..]),
        ("actor:1", &["train".to_owned(), "--some".into()][..])
    );
    assert_eq!(quantities(role.pod.resources.limits.as_ref()), BTreeMap::from([("amd.com/gpu", "1"), ("cpu", "4")]));
    let env: Vec<_> = role.pod.env.iter().map(|v| (v.name.as_str(), v.value.as_deref().unwrap())).collect();
    assert_eq!((env, role.pod.grace_seconds), (vec![("A", "1"), ("B", "2")], 30));
    let other = role_of(&json!({ "name": "actor", "command": ["act"], "resources": { "limits": { "cpu": "1" } } }));
    assert_eq!(
        (other.pod.command, other.replicas),
        (vec!["act".to_owned()], 1),
        "the arguments were another command's"
    );
    assert_eq!(quantities(other.pod.resources.limits.as_ref()), BTreeMap::from([("cpu", "1")]));
    assert_eq!(other.pod.resources.requests, None);
}

#[test]
fn success_deciders_depend_on_framework_and_leader_roles() {
    let deciding = |fields: Value| {
        let places = plan(&with(&fields)).gang;
        places.deciding().map(|place| place.to_string()).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(deciding(json!({})), "worker 0, worker 1");
    assert_eq!(deciding(json!({ "roles": [{ "name": "a" }] })), "worker 0, worker 1");
    assert_eq!(deciding(json!({ "roles": [{ "name": "a", "replicas": 2, "leader": true }] })), "a 0, a 1");
    assert_eq!(deciding(json!({ "roles": [{ "name": "chief" }] })), "worker 0, worker 1", "a name like any other");
    let of_tensorflow = |roles: Value| deciding(json!({ "framework": "tensorflow", "roles": roles }));
    assert_eq!(of_tensorflow(json!([{ "name": "evaluator" }])), "worker 0, worker 1");
    assert_eq!(of_tensorflow(json!([{ "name": "ps" }, { "name": "chief" }, { "name": "evaluator" }])), "chief 0");
    // Whatever else is said: the others run what mpirun starts.
    let of_mpi = |roles: Value| deciding(json!({ "framework": "mpi", "roles": roles }));
    assert_eq!(of_mpi(json!([])), "worker 0");
    assert_eq!(of_mpi(json!([{ "name": "launcher", "leader": false }])), "launcher 0");
    let both = json!([{ "name": "chief", "leader": true }, { "name": "evaluator", "leader": true }]);
    assert_eq!(of_tensorflow(both), "chief 0, evaluator 0");
}

#[test]
fn role_errors_are_reported_once_for_that_role() {
    let wrong = |role: Value| refusals(&with(&json!({ "roles": [{ "name": "chief" }, role] })));
    assert_eq!(
        wrong(json!({ "name": "a", "resources": { "limits": { "cpu": "much" } } })),
        ["spec.roles[1].resources.limits.cpu: \"much\" is not a quantity; write for example 500m, 4 or 16Gi"]
    );
    assert_eq!(
        wrong(json!({ "name": "a", "gpusPerReplica": 1, "resources": { "limits": { "nvidia.com/gpu": 2 } } })),
        [
            "spec.roles[1].gpusPerReplica: is 1 and spec.roles[1].resources asks for 2 of nvidia.com/gpu: write the same \
          number in both"
        ]
    );
    assert_eq!(
        wrong(json!({ "name": "a", "podTemplate": { "spec": { "hostname": "h" } } })),
        ["spec.roles[1].podTemplate.spec.hostname: is how the workers find each other: remove it"]
    );
    let variable = wrong(json!({ "name": "a", "env": [{ "name": "C" }, { "name": "RANK" }] }));
    assert!(variable.len() == 1 && variable[0].starts_with("spec.roles[1].env[1].name: RANK is set"), "{variable:?}");
    assert_eq!(wrong(json!({ "name": "A-b" })).len(), 1);
    assert_eq!(wrong(json!({ "name": "chief" })).len(), 1, "twice");
    let inherited = with(&json!({ "roles": [{ "name": "a" }], "resources": { "limits": { "cpu": "much" } } }));
    assert_eq!(refusals(&inherited).len(), 1, "what is inherited is told once");
}

#[test]
fn host_name_of_every_role_must_fit() {
    let named = |name: &str| {
        let spec = with(&json!({ "roles": [{ "name": "a23456789012345", "replicas": 10 }] }));
        accepted(&super::named(name, &spec)).map(|_| ()).map_err(|refusals| refusals.to_string())
    };
    assert_eq!(named(&"n".repeat(45)), Ok(()));
    let why = named(&"n".repeat(46)).unwrap_err();
    assert_eq!(
        why,
        "metadata.name: has 46 characters; with 10 pods of role a23456789012345 at most 45 fit into their hostnames"
    );
}

/// A gang of thousands receives its hosts by files instead of a variable.
#[test]
fn cluster_too_large_for_a_variable_is_refused() {
    let many = json!({ "numWorkers": 4096, "roles": [{ "name": "actor", "replicas": 4096 }] });
    let why = refusals(&with(&many));
    assert!(why.len() == 1 && why[0].starts_with("spec.roles: makes a TRAININGJOB_CLUSTER of "), "{why:?}");
}

#[test]
fn only_roles_with_gpus_get_rdma_devices() {
    let rdma = json!({ "networking": { "rdmaEnabled": true, "rdmaResource": "rdma/hca" } });
    let limits = |gpus: i32| {
        let mut fields = rdma.clone();
        fields["roles"] = json!([{ "name": "a", "gpusPerReplica": gpus }]);
        let role = plan(&with(&fields)).gang.roles.remove(1);
        role.pod.resources.limits.unwrap().contains_key("rdma/hca")
    };
    assert_eq!([limits(0), limits(1)], [false, true]);
}
