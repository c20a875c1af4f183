//! Passes against a test API server that answers as each test defines, and against test agents.

use super::*;
use api::Reason;
use futures::StreamExt;
use http::Method;
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use kube::runtime::watcher::Event;
use observe::{AgentPolls, ChildKey, ObservedPod};
use parking_lot::Mutex;
use plan::Delivery;
use protocol::proof::{Nonce, PROOF_HEADER};
use protocol::role::RoleName;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::num::NonZeroU16;

/// Requests to the API server: method, path, body.
type Request = (Method, String, Value);

/// An API server that answers with a code and an object, and its log.
fn api(answer: impl Fn(&Request) -> (u16, Value) + Send + Sync + 'static) -> (Client, Arc<Mutex<Vec<Request>>>) {
    api_that_hangs(|_| false, answer)
}

/// The same, but it gives no answer to some requests.
fn api_that_hangs(
    hangs: impl Fn(&Request) -> bool + Send + Sync + 'static,
    answer: impl Fn(&Request) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<Request>>>) {
    let hangs = Arc::new(hangs);
    let (log, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
    let seen = log.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (log, answer, hangs) = (seen.clone(), answer.clone(), hangs.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let asked = (parts.method, parts.uri.path().to_owned(), serde_json::from_slice(&body).unwrap_or_default());
            if hangs(&asked) {
                return std::future::pending().await;
            }
            let (code, object) = answer(&asked);
            log.lock().push(asked);
            let body = match object {
                Value::String(text) => text.into_bytes(),
                object => serde_json::to_vec(&object).unwrap(),
            };
            let answer = http::Response::builder().status(code).body(Full::new(bytes::Bytes::from(body)));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    (Client::new(service, "ns"), log)
}

/// An API server without objections. It stores what is written, and returns the job for reads.
fn agrees((method, path, body): &Request) -> (u16, Value) {
    match *method {
        Method::POST => {
            let mut object = body.clone();
            object["metadata"]["uid"] = format!("uid-of-{path}").into();
            object["metadata"]["resourceVersion"] = "9".into();
            (201, object)
        }
        Method::PUT => {
            let mut object = body.clone();
            object["metadata"]["resourceVersion"] = "8".into();
            (200, object)
        }
        _ if path.ends_with("/trainingjobs/x") => (200, serde_json::to_value(job()).unwrap()),
        Method::GET if path.ends_with("/events") => {
            (200, json!({ "apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": [] }))
        }
        _ => (404, refusal(404, "NotFound", "not found")),
    }
}

fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": message,
    })
}

fn job() -> TrainingJob {
    let job = json!({
        "apiVersion": "ml.example.com/v1", "kind": "TrainingJob",
        "metadata": { "name": "x", "namespace": "ns", "uid": "job", "resourceVersion": "7", "generation": 1 },
        "spec": { "model": "m", "dataset": "d", "numWorkers": 1 },
    });
    serde_json::from_value(job).unwrap()
}

fn key() -> JobKey {
    JobKey { namespace: "ns".into(), uid: "job".into() }
}

fn context(client: Client, agent_access: AgentAccess) -> Arc<Context> {
    let context = Context {
        client,
        options: Options { agent_access, ..Options::default() },
        patience: error::WRITE,
        index: Arc::default(),
        jobs: std::sync::OnceLock::new(),
        searches: tuning::Searches::new().0,
        asker: ask::Asker::new(),
        deliveries: delivery::Deliveries::default(),
        event_reads: events::EventReads::new(),
        publisher: events::Publisher::new(Duration::from_millis(1)),
        metrics: Arc::new(Metrics::new()),
        queued: tokio::sync::Notify::new(),
        touch: mpsc::unbounded().0,
        fair_queue: Mutex::new(FairQueue::new(1, 1)),
        full: tokio::sync::Notify::new(),
    };
    context.index.update(&key(), |cell| cell.meet("x"));
    Arc::new(context)
}

/// The status is written by then, so the events are true whatever the actions lead to.
#[tokio::test]
async fn events_are_published_although_an_action_fails() {
    let (client, log) = api(|request| match request {
        (method, path, _) if method == Method::POST && path.ends_with("/services") => {
            (503, refusal(503, "ServiceUnavailable", "etcd has no leader"))
        }
        request => agrees(request),
    });
    let context = context(client, AgentAccess::Off);
    assert!(reconcile_job(&context, &job()).await.is_err());
    let reported =
        || log.lock().iter().any(|(_, path, body)| path.contains("events.k8s.io") && body["reason"] == "Created");
    // Events are published beside the pass.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(reported(), "{:?}", log.lock());
}

/// Otherwise the API server encodes an object again, and the operator decodes or skips it.
#[tokio::test]
async fn answers_that_are_not_read_have_only_metadata() {
    let answers: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
    let seen = answers.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let seen = seen.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
            let is_partial = parts
                .headers
                .get(http::header::ACCEPT)
                .is_some_and(|accept| accept == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
            let (code, object) = agrees(&(parts.method.clone(), parts.uri.path().to_owned(), body));
            let object = if is_partial { json!({ "metadata": object["metadata"] }) } else { object };
            if parts.method != Method::GET {
                seen.lock().push((parts.uri.path().rsplit('/').next().unwrap().to_owned(), is_partial));
            }
            let body = Full::new(bytes::Bytes::from(serde_json::to_vec(&object).unwrap()));
            Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    let context = context(Client::new(service, "ns"), AgentAccess::Off);
    reconcile_job(&context, &job()).await.unwrap();
    context.publisher.finish(Duration::from_secs(60)).await;
    let mut answers = std::mem::take(&mut *answers.lock());
    answers.sort_unstable();
    answers.dedup();
    let answers: Vec<_> = answers.iter().map(|(what, is_partial)| (what.as_str(), *is_partial)).collect();
    let expected = [
        ("configmaps", false),
        ("events", true),
        ("jobs", false),
        ("networkpolicies", true),
        ("secrets", true),
        ("services", false),
        ("status", true),
    ];
    assert_eq!(answers, expected);
}

/// Reports once that a job can't be read, however deep or large it is, and then reads nothing again.
#[tokio::test]
async fn unreadable_job_is_reported_only_once() {
    let (client, log) = api(|request| match request {
        (method, path, _) if method == Method::PATCH && path.ends_with("/trainingjobs/x/status") => {
            let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
            (200, Value::String(format!(r#"{{"metadata":{{"name":"x","resourceVersion":"8"}},"spec":{deep}}}"#)))
        }
        request => agrees(request),
    });
    let context = context(client, AgentAccess::Off);
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    let text = format!(
        r#"{{"metadata":{{"name":"x","namespace":"ns","uid":"job","resourceVersion":"7","generation":2}},
            "spec":{{"podTemplate":{deep}}},"status":{{"state":"Running"}}}}"#
    );
    let object: Guarded = serde_json::from_str(&text).unwrap();
    for _ in 0..3 {
        reconcile(Arc::new(object.clone()), context.clone()).await.unwrap();
    }
    let log = log.lock();
    assert_eq!(log.len(), 1, "{log:?}");
    let (_, _, patch) = &log[0];
    assert_eq!(patch["metadata"], json!({ "uid": "job", "resourceVersion": "7" }));
    let status = &patch["status"];
    assert_eq!((status.get("state"), &status["observedGeneration"]), (None, &json!(2)), "a merge keeps the state");
    let condition = &patch["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["reason"]), (&json!("Accepted"), &json!("Unreadable")));
    assert_eq!(
        condition["message"],
        "spec is nested 201 levels deep, at most 64 are read; delete the TrainingJob and create it smaller: a large \
         text belongs in a ConfigMap that the workers mount (spec.volumes)"
    );
}

/// A pod that answers in the agent's place may report something new each time that it is asked, every 2 s.
#[tokio::test]
async fn updates_driven_by_agent_answers_are_throttled() {
    let (client, _) = api(agrees);
    let context = context(client, AgentAccess::Off);
    let job = job();
    let pass = Pass::over(&context, &job).unwrap();
    let status = |attempt: u32| api::TrainingJobStatus { attempt: Some(attempt), ..api::TrainingJobStatus::default() };
    let (mut written, mut waits) = (0, None);
    for attempt in 1..100 {
        match pass.throttled(&status(attempt - 1), &status(attempt)) {
            None => written += 1,
            Some(wait) => waits = Some(wait),
        }
    }
    assert_eq!(written, 30);
    assert!(waits.is_some_and(|wait| wait <= Duration::from_secs(10)), "{waits:?}");
    let over = api::TrainingJobStatus { state: Some(State::Failed), ..status(100) };
    assert_eq!(pass.throttled(&status(99), &over), None, "the end is told at once");
    assert_eq!(pass.throttled(&over, &over), None);

    let over = api::TrainingJobStatus { state: Some(State::Failed), ..api::TrainingJobStatus::default() };
    for n in 0..100 {
        let reason = Reason::from(format!("Word{n}").as_str());
        context.metrics.restarted("ns", &reason);
        let failed = api::TrainingJobStatus { failure_reason: Some(reason), ..over.clone() };
        context.metrics.ended("ns", api::Framework::Jax, &failed);
    }
    context.metrics.restarted("ns", &Reason::NodeLost);
    let page = context.metrics.render();
    let restarts: Vec<_> = page.lines().filter(|line| line.starts_with("trainingjob_restarts_total{")).collect();
    assert_eq!(
        restarts,
        [
            r#"trainingjob_restarts_total{namespace="ns",reason="NodeLost"} 1"#,
            r#"trainingjob_restarts_total{namespace="ns",reason="Other"} 100"#
        ]
    );
    assert!(page.contains(r#"trainingjob_failed_total{framework="jax",namespace="ns",reason="Other"} 100"#), "{page}");
}

/// The API server may be unavailable when an Event is created.
#[tokio::test]
async fn event_is_retried_and_published_once() {
    let tries = Arc::new(Mutex::new(0));
    let counted = tries.clone();
    let (client, log) = api(move |request| {
        let mut tries = counted.lock();
        *tries += 1;
        match *tries {
            1 => (429, refusal(429, "TooManyRequests", "slow down")),
            2 => (503, refusal(503, "ServiceUnavailable", "etcd has no leader")),
            _ => agrees(request),
        }
    });
    let context = context(client, AgentAccess::Off);
    let job = job();
    let pass = Pass::over(&context, &job).unwrap();
    let fact = || vec![lifecycle::Event { warning: true, reason: "NodeLost", note: "node n is lost".into() }];
    // The same fact follows from each pass until its pod is gone.
    for _ in 0..5 {
        pass.publish_events(Some(1), fact());
    }
    context.publisher.finish(Duration::from_secs(60)).await;
    assert_eq!((*tries.lock(), log.lock().len()), (3, 3));

    *tries.lock() = 3;
    for n in 0..100 {
        pass.publish_events(
            Some(1),
            vec![lifecycle::Event { warning: true, reason: "Restarting", note: format!("{n}") }],
        );
    }
    context.publisher.finish(Duration::from_secs(60)).await;
    assert_eq!(log.lock().len(), 3 + 10, "more of one reason nobody reads");
}

/// A pass under way leaves nothing behind when its job is deleted.
#[tokio::test]
async fn pass_over_a_deleted_job_leaves_no_state() {
    let index: Arc<Mutex<Option<Arc<Index>>>> = Arc::default();
    let forgets = index.clone();
    let (client, _) = api(move |request| {
        if request.0 == Method::PUT
            && let Some(index) = &*forgets.lock()
        {
            index.forget(&key());
        }
        agrees(request)
    });
    let context = context(client, AgentAccess::Off);
    *index.lock() = Some(context.index.clone());
    let _ = reconcile_job(&context, &job()).await;
    assert!(context.index.read(&key(), |_| ()).is_none());
}

/// A job waits if its namespace has enough passes under way, and is woken when one of them ends.
#[tokio::test]
async fn job_waiting_for_its_turn_sends_no_requests_and_is_woken() {
    let (client, log) = api(agrees);
    let (touch, mut touched) = mpsc::unbounded();
    let context = Arc::new(Context { touch, ..Arc::into_inner(context(client, AgentAccess::Off)).unwrap() });
    let named = |name: &str, namespace: &str| -> Arc<Guarded> {
        let mut object = serde_json::to_value(job()).unwrap();
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let (waits, elsewhere) = (named("x", "ns"), named("x", "quiet"));
    let under_way = context.permit(&named("y", "ns")).unwrap();
    let action = reconcile(waits.clone(), context.clone()).await.unwrap();
    assert_eq!(action, controller::Action::await_change());
    assert!(log.lock().is_empty(), "{:?}", log.lock());
    assert!(context.metrics.render().contains("trainingjob_reconciliations_waiting 1"));
    reconcile(elsewhere, context.clone()).await.unwrap();
    assert!(!log.lock().is_empty() && touched.try_recv().is_err(), "another namespace is not held up");
    drop(under_way);
    assert_eq!(touched.try_recv().unwrap(), ObjectRef::from_obj(&*waits));
    assert!(context.metrics.render().contains("trainingjob_reconciliations_waiting 0"));
    let before = log.lock().len();
    reconcile(waits, context).await.unwrap();
    assert!(log.lock().len() > before);
}

/// Of many changed specs in a namespace, some wait. Deletions and unchanged specs do not.
#[tokio::test]
async fn only_jobs_with_a_changed_spec_wait_after_many_changes() {
    let (client, _) = api(agrees);
    let fair_queue = Mutex::new(FairQueue::new(usize::MAX, 1));
    let context = Context { fair_queue, ..Arc::into_inner(context(client, AgentAccess::Off)).unwrap() };
    let permits = |namespace: &str, observed: Option<i64>, deleted: Option<&str>| {
        let mut object = serde_json::to_value(job()).unwrap();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["uid"] = "another".into();
        object["metadata"]["generation"] = 2.into();
        object["metadata"]["deletionTimestamp"] = deleted.into();
        object["status"] = json!({ "state": "Running", "observedGeneration": observed });
        context.permit(&serde_json::from_value(object).unwrap()).is_some()
    };
    assert!(permits("quiet", Some(2), None));
    assert!((0..fair_queue::CHANGES_AT_ONCE).all(|_| permits("edits", Some(1), None)));
    assert!(!permits("edits", Some(1), None) && !permits("edits", None, None));
    assert!(permits("edits", Some(2), None) && permits("edits", Some(1), Some("2030-01-02T03:04:05Z")));
    assert!(permits("quiet", Some(1), None), "another namespace is not held up");
}

/// A list of nodes with these kubelets, and more to come.
fn nodes(kubelets: &[&str], more: &str) -> (u16, Value) {
    let node = |kubelet: &&str| {
        let software = json!({
            "kubeletVersion": kubelet, "containerRuntimeVersion": "containerd://2.2.1", "architecture": "", "bootID": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        });
        json!({ "metadata": { "name": "n" }, "status": { "nodeInfo": software } })
    };
    let items: Vec<_> = kubelets.iter().map(node).collect();
    (200, json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": { "continue": more }, "items": items }))
}

#[tokio::test]
async fn agent_image_is_mounted_only_if_every_node_supports_it() {
    let forbidden = || (403, refusal(403, "Forbidden", "nodes is forbidden"));
    for (minor, pages, delivery, asked) in [
        ("36", vec![nodes(&["v1.35.0", "v1.36.2"], "")], Delivery::Image, 1),
        ("36", vec![nodes(&["v1.36.2"], "t"), nodes(&["v1.36.2"], "")], Delivery::Image, 2),
        ("36", vec![nodes(&["v1.36.2"], "t"), nodes(&["v1.34.9"], "")], Delivery::Init, 2),
        ("36", vec![nodes(&["v1.34.9"], "t")], Delivery::Init, 1),
        ("36", vec![nodes(&[], "")], Delivery::Init, 1),
        ("34", vec![], Delivery::Init, 0),
        ("36", vec![forbidden()], Delivery::Init, 1),
        ("36", vec![(500, refusal(500, "InternalError", "no"))], Delivery::Init, 1),
    ] {
        let left = Mutex::new(pages.into_iter());
        let (client, log) = api(move |(_, path, _)| match path.as_str() {
            "/version" => {
                let mut version = json!({ "major": "1", "minor": minor });
                for field in
                    ["gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"]
                {
                    version[field] = "".into();
                }
                (200, version)
            }
            "/api/v1/nodes" => left.lock().next().unwrap(),
            other => panic!("{other}"),
        });
        let deliveries = delivery::Deliveries::new(AgentDelivery::Auto);
        // The cluster is looked at once, whatever the result.
        for _ in 0..3 {
            assert_eq!(deliveries.now(&client).await, delivery, "1.{minor}");
        }
        assert_eq!(log.lock().iter().filter(|(_, path, _)| path == "/api/v1/nodes").count(), asked);

        for (wanted, delivery) in [(AgentDelivery::Image, Delivery::Image), (AgentDelivery::Init, Delivery::Init)] {
            let before = log.lock().len();
            assert_eq!(delivery::Deliveries::new(wanted).now(&client).await, delivery);
            assert_eq!(log.lock().len(), before, "nobody is asked");
        }
    }
}

/// Until the end of a list, kube's store has the old objects.
#[tokio::test]
async fn relisted_jobs_are_woken_once_the_store_is_updated() {
    let (client, _) = api(agrees);
    let context = context(client, AgentAccess::Off);
    let (store, writer) = kube::runtime::reflector::store::<Guarded>();
    let named = |name: &str, version: u32| -> Guarded {
        let mut object = serde_json::to_value(job()).unwrap();
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = name.into();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        serde_json::from_value(object).unwrap()
    };
    let (relist, mut relisted) = futures::channel::mpsc::unbounded();
    let (mut events, brought) = futures::channel::mpsc::unbounded();
    let mut woken = watch::woken(context, writer, relist, brought);
    for (version, names) in [(1, &["a", "b"][..]), (3, &["b", "c", "d"])] {
        events.start_send(Ok(Event::Init)).unwrap();
        for name in names {
            events.start_send(Ok(Event::InitApply(named(name, version)))).unwrap();
        }
        assert!(woken.next().now_or_never().is_none() && relisted.try_recv().is_err(), "the list goes on");
        events.start_send(Ok(Event::InitDone)).unwrap();
        assert!(woken.next().now_or_never().is_none());
        relisted.try_recv().expect("all are woken at its end");
        let mut known: Vec<_> = store.state().iter().map(|job| (job.name_any(), job.resource_version())).collect();
        known.sort();
        let expected: Vec<_> = names.iter().map(|name| ((*name).to_owned(), Some(version.to_string()))).collect();
        assert_eq!(known, expected);
        events.start_send(Ok(Event::Apply(named("b", version + 1)))).unwrap();
        let changed = woken.next().now_or_never().flatten().unwrap().unwrap();
        assert_eq!((changed.name_any(), changed.resource_version()), ("b".into(), Some((version + 1).to_string())));
    }
}

/// The parties that refuse the creation of an object, and what happens to the job.
#[tokio::test]
async fn denied_creation_is_not_an_invalid_spec() {
    let own = json!({ "causes": [{ "reason": "FieldValueForbidden", "message": "no", "field": "spec.template" }] });
    let policys =
        json!({ "causes": [{ "message": "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no" }] });
    let none = Value::Null;
    let cases = [
        (422, "Invalid", r#"Job.batch "x-training" is invalid: spec.template: Forbidden: no"#, &own, Reason::Invalid),
        (
            422,
            "Invalid",
            r#"jobs.batch "x-training" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"#,
            &policys,
            Reason::Denied,
        ),
        (
            403,
            "Forbidden",
            r#"jobs.batch "x-training" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"#,
            &none,
            Reason::Denied,
        ),
        (400, "BadRequest", r#"admission webhook "w.example.com" denied the request: no"#, &none, Reason::Denied),
        (
            403,
            "Forbidden",
            r#"admission webhook "w.example.com" denied the request without explanation"#,
            &none,
            Reason::Denied,
        ),
        (422, "Invalid", r#"admission webhook "w.example.com" denied the request: spec: no"#, &own, Reason::Denied),
        (
            500,
            "InternalError",
            r#"Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: no route to host"#,
            &none,
            Reason::WebhookFailed,
        ),
        (403, "Forbidden", r#"jobs.batch "x-training" is forbidden: exceeded quota: q"#, &none, Reason::QuotaExceeded),
        (403, "Forbidden", r#"jobs.batch "x-training" is forbidden: User "u" cannot create"#, &none, Reason::Forbidden),
        // A user's text in the API server's own refusal.
        (
            422,
            "Invalid",
            r#"Job.batch "x-training" is invalid: spec.template: Invalid value: "admission webhook \"w\" denied the request": no"#,
            &own,
            Reason::Invalid,
        ),
        (
            422,
            "Invalid",
            r#"Job.batch "x-training" is invalid: spec.template: Invalid value: "y is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no": no"#,
            &own,
            Reason::Invalid,
        ),
        (
            422,
            "Invalid",
            r#"Job.batch "x-training" is invalid: spec.template: Invalid value: "failed calling webhook \"w\"": no"#,
            &own,
            Reason::Invalid,
        ),
        (
            403,
            "Forbidden",
            r#"jobs.batch "x-training" is forbidden: User "ValidatingAdmissionPolicy 'p' with binding 'b' denied request" cannot create"#,
            &none,
            Reason::Forbidden,
        ),
        (
            403,
            "Forbidden",
            r#"jobs.batch "x-training" is forbidden: exceeded quota: admission webhook "w" denied the request"#,
            &none,
            Reason::QuotaExceeded,
        ),
    ];
    for (code, reason, message, details, expected) in cases {
        let mut answer = refusal(code, reason, message);
        answer["details"] = details.clone();
        let (client, _) = api(move |request| match request {
            (method, path, _) if method == Method::POST && path.ends_with("/jobs") => (code, answer.clone()),
            request => agrees(request),
        });
        let context = context(client, AgentAccess::Off);
        let _ = reconcile_job(&context, &job()).await;
        let blocked = context.index.read(&key(), |c| c.children.blocked.get(&ChildKey::job(RoleName::WORKER)).cloned());
        let blocked = blocked.flatten().map(|blocked| (blocked.reason, blocked.message));
        assert_eq!(blocked, Some((expected, message.to_owned())));
        let status = context.index.read(&key(), |cell| cell.writes.last.clone()).flatten().unwrap().1;
        let is_over = status.state == Some(State::Failed);
        assert_eq!(
            is_over,
            code == 422 && details["causes"][0]["field"].is_string() && message.starts_with("Job"),
            "{message}"
        );
    }
}

fn makes_job(request: &Request) -> bool {
    request.0 == Method::POST && request.1.ends_with("/jobs")
}

fn blocked(context: &Context, key: ChildKey) -> Option<Blocked> {
    context.index.read(&self::key(), |cell| cell.children.blocked.get(&key).cloned()).flatten()
}

/// Several webhooks are asked one after the other, and etcd may hang.
#[tokio::test]
async fn repeated_api_server_timeout_is_reported() {
    let hangs = Arc::new(Mutex::new(true));
    let still = hangs.clone();
    let (client, _) = api_that_hangs(move |request| makes_job(request) && *still.lock(), agrees);
    let mut context = context(client, AgentAccess::Off);
    let set_patience =
        |context: Arc<Context>, patience| Arc::new(Context { patience, ..Arc::into_inner(context).unwrap() });
    context = set_patience(context, Duration::from_secs(1));
    let error = reconcile_job(&context, &job()).await.err().unwrap();
    assert_eq!(error.to_string(), "create child: the API server gave no answer within 1 s");
    assert_eq!(blocked(&context, ChildKey::job(RoleName::WORKER)), None, "once is no pattern");
    for _ in 0..2 {
        let requeue = reconcile_job(&context, &job()).await.unwrap();
        let why = blocked(&context, ChildKey::job(RoleName::WORKER)).unwrap();
        assert_eq!(why.reason, Reason::ApiTimeout);
        assert!(why.message.contains("Job x-training within 1 s, at least twice"), "{}", why.message);
        assert!(requeue.0.is_some_and(|wait| wait <= Duration::from_secs(60)));
        let status = context.index.read(&key(), |cell| cell.writes.last.clone()).flatten().unwrap().1;
        let scheduled = lifecycle::condition_is(&status.conditions, api::ConditionType::Scheduled, false).unwrap();
        assert_eq!(scheduled.reason, "ApiTimeout");
    }
    *hangs.lock() = false;
    context = set_patience(context, error::WRITE);
    reconcile_job(&context, &job()).await.unwrap();
    assert_eq!(blocked(&context, ChildKey::job(RoleName::WORKER)), None);
}

/// A job with a chief. The workers' Job is created last.
fn job_with_roles(fields: &Value) -> TrainingJob {
    let mut object = serde_json::to_value(job()).unwrap();
    let spec = object["spec"].as_object_mut().unwrap();
    spec.extend(fields.as_object().unwrap().clone());
    spec.insert("framework".into(), "tensorflow".into());
    spec.insert("roles".into(), json!([{ "name": "chief", "replicas": 1 }]));
    spec.insert("checkpoint".into(), json!({ "enabled": false }));
    serde_json::from_value(object).unwrap()
}

/// The pods of the other roles would hold nodes while they wait for workers that must not be created.
#[tokio::test]
async fn refused_job_is_retried_before_other_jobs_are_created() {
    let says = Arc::new(Mutex::new("no"));
    let said = says.clone();
    let (client, log) = api(move |request| {
        let is_of_workers = makes_job(request) && request.2["metadata"]["name"] == "x-training";
        let message = match *said.lock() {
            "no" => r#"admission webhook "w.example.com" denied the request: no"#,
            "no trials" => r#"admission webhook "w.example.com" does not support dry run"#,
            _ => return agrees(request),
        };
        if is_of_workers { (400, refusal(400, "BadRequest", message)) } else { agrees(request) }
    });
    let context = context(client, AgentAccess::Off);
    let (job, worker) = (job_with_roles(&json!({})), ChildKey::job(RoleName::WORKER));
    let pass = async || {
        log.lock().clear();
        let _ = reconcile_job(&context, &job).await;
        let made = log.lock();
        let made = made.iter().filter(|request| makes_job(request));
        let name = |request: &Request| request.2["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut names: Vec<_> = made.map(name).collect();
        names.dedup(); // dry run, then creation; and again in the second round
        names
    };
    assert_eq!(pass().await, ["x-chief", "x-training"]);
    assert_eq!(blocked(&context, worker).unwrap().reason, Reason::Denied);
    // As if the Jobs had been deleted since.
    let forget = || context.index.update_known(&key(), |cell| cell.children.jobs.clear());
    forget();
    assert_eq!(pass().await, ["x-training"], "nothing is made for a gang that can't be whole");
    *says.lock() = "no trials";
    forget();
    assert_eq!(pass().await, ["x-training", "x-chief", "x-training"], "what can't be tried is made");
    *says.lock() = "yes";
    forget();
    context.index.update_known(&key(), |cell| {
        cell.children.blocked.insert(worker, Blocked { reason: Reason::Denied, message: "no".into() })
    });
    assert_eq!(pass().await, ["x-training", "x-chief", "x-training"]);
    assert_eq!(blocked(&context, worker), None);
}

/// An operator of one namespace has no right to read cluster-scoped objects.
#[tokio::test]
async fn forbidden_priority_class_is_reported() {
    let (client, _) = api(|request| match request {
        (_, path, _) if path.contains("/priorityclasses/") => {
            (403, refusal(403, "Forbidden", r#"priorityclasses.scheduling.k8s.io "high" is forbidden"#))
        }
        request => agrees(request),
    });
    let context = context(client, AgentAccess::Off);
    let job = job_with_roles(&json!({ "scheduling": { "queue": "q", "priority": "high" } }));
    let plan = plan::resolve(&job, &OperatorInfo::default()).plan;
    Pass::over(&context, &job).unwrap().ensure_workload(&plan).await.unwrap();
    let why = blocked(&context, ChildKey::WORKLOAD).unwrap();
    assert_eq!(why.reason, Reason::Forbidden);
    assert!(why.message.contains("PriorityClass high") && why.message.contains("is forbidden"), "{}", why.message);
}

/// A job that waits for its template has a state, but has not started.
#[tokio::test]
async fn job_waiting_for_its_template_is_counted_once_it_starts() {
    let is_there = Arc::new(Mutex::new(false));
    let there = is_there.clone();
    let stored = Arc::new(Mutex::new(Value::Null));
    let store = stored.clone();
    let (client, _) = api(move |request| match request {
        (_, path, _) if path.ends_with("/clustertrainingruntimes/gpu") => match *there.lock() {
            true => {
                let template = json!({
                    "apiVersion": "ml.example.com/v1", "kind": "ClusterTrainingRuntime",
                    "metadata": { "name": "gpu", "generation": 1, "uid": "t" }, "spec": { "numWorkers": 1 },
                });
                (200, template)
            }
            false => {
                let mut missing = refusal(404, "NotFound", "clustertrainingruntimes \"gpu\" not found");
                missing["details"] = json!({ "name": "gpu" });
                (404, missing)
            }
        },
        (method, path, body) if method == Method::PATCH && path.ends_with("/trainingjobs/x/status") => {
            *store.lock() = body["status"].clone();
            (200, serde_json::to_value(job()).unwrap())
        }
        request => agrees(request),
    });
    let context = context(client, AgentAccess::Off);
    let mut job = job();
    job.spec.runtime_ref = serde_json::from_value(json!({ "name": "gpu" })).unwrap();
    let created =
        || context.metrics.render().contains("trainingjob_created_total{framework=\"pytorch\",namespace=\"ns\"} 1");
    reconcile_job(&context, &job).await.unwrap();
    job.status = serde_json::from_value(stored.lock().clone()).unwrap();
    assert_eq!(job.status.as_ref().and_then(|status| status.state), Some(State::Pending));
    assert!(!created());
    *is_there.lock() = true;
    reconcile_job(&context, &job).await.unwrap();
    assert!(created(), "{}", context.metrics.render());
}

/// An agent behind the API server's proxy, which proves its answers.
async fn answer_of(agent: impl Fn() -> Value + Send + Sync + 'static) -> (bool, AgentPolls) {
    answer_over(move |nonce| {
        let mut answer = agent();
        if let Some(fields) = answer.as_object_mut() {
            fields.entry("podUid").or_insert("pod-0".into());
        }
        // Text that is not JSON is sent as it is.
        proven(nonce, answer.as_str().map_or_else(|| answer.to_string(), str::to_owned))
    })
    .await
}

fn operator_key() -> OperatorKey {
    OperatorKey::from_random([7; 32])
}

/// A body, and the proof of it by the agent of the test's job.
fn proven(nonce: Nonce, body: String) -> (String, Option<String>) {
    let proof = operator_key().job_key("job").prove(nonce, body.as_bytes());
    (body, Some(proof))
}

/// A server behind the API server's proxy, which returns a body and a proof for a nonce.
async fn answer_over(agent: impl Fn(Nonce) -> (String, Option<String>) + Send + Sync + 'static) -> (bool, AgentPolls) {
    let (is_news, cell) = poll_over(agent, false).await;
    (is_news, cell.agents)
}

async fn poll_over(
    agent: impl Fn(Nonce) -> (String, Option<String>) + Send + Sync + 'static,
    fetches: bool,
) -> (bool, Cell) {
    let agent = Arc::new(agent);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let agent = agent.clone();
        async move {
            assert!(request.uri().path().ends_with("/pods/x-training-0-abcde:9400/proxy/status"), "{}", request.uri());
            let nonce = request.uri().query().and_then(Nonce::in_query).expect("each question has a nonce");
            let (body, proof) = agent(nonce);
            let mut answer = http::Response::builder();
            if let Some(proof) = proof {
                answer = answer.header(PROOF_HEADER, proof);
            }
            Ok::<_, Infallible>(answer.body(Full::new(bytes::Bytes::from(body))).unwrap())
        }
    });
    let mut context = Arc::into_inner(context(Client::new(service, "ns"), AgentAccess::Proxy)).unwrap();
    context.options.operator_key = operator_key();
    let pod = ObservedPod { uid: "pod-0".into(), name: "x-training-0-abcde".into(), ..ObservedPod::default() };
    let object: Guarded = serde_json::from_value(serde_json::to_value(job()).unwrap()).unwrap();
    let job = kube::runtime::reflector::ObjectRef::from_obj(&object);
    let asked = poll::PolledJob { key: key(), job, port: 9400, first: Box::new(pod), other: None, moves_data: fetches };
    let polled = poll::poll(&context, &asked, Duration::from_secs(60)).await;
    (polled.is_news, context.index.read(&key(), Cell::clone).unwrap())
}

/// The agent of a fetch reports nothing about the program.
#[tokio::test]
async fn fetch_agent_answers_are_stored_separately() {
    const BODY: &str = r#"{"podUid":"pod-0","fetches":[{"name":"model","stage":"Fetching","bytes":5,"totalBytes":9}]}"#;
    let (is_news, cell) = poll_over(|nonce| proven(nonce, BODY.to_owned()), true).await;
    let answer = cell.transfer.answer().unwrap();
    assert!(is_news && answer.status.fetches[0].bytes == 5);
    assert_eq!(cell.agents.is_up(), None);
    // An agent of another operator, or no agent.
    let (_, cell) = poll_over(|_| (BODY.to_owned(), None), true).await;
    assert_eq!((cell.transfer.is_up(), cell.agents.is_up()), (Some(false), None));
}

/// A party between the operator and an agent, or one that answers in its stead, decides nothing.
#[tokio::test]
async fn unproven_agent_answer_is_rejected() {
    type Attack = Box<dyn Fn(Nonce) -> (String, Option<String>) + Send + Sync>;
    const BODY: &str = r#"{"podUid":"pod-0","progress":{"metrics":{"loss":{"value":0.5,"time":"2030-01-02T03:04:05Z","source":"Output"}}}}"#;
    let (is_news, polls) = answer_over(|nonce| proven(nonce, BODY.to_owned())).await;
    let answer = polls.answer().expect("an answer that is proven is believed");
    assert!(is_news && answer.status.progress.metric("loss") == Some(0.5) && polls.refusal().is_none());

    let older = Nonce::new([9; 16]);
    let others = |nonce: Nonce| OperatorKey::from_random([8; 32]).job_key("job").prove(nonce, BODY.as_bytes());
    let changed = |nonce: Nonce| (BODY.replace("0.5", "0.0"), proven(nonce, BODY.to_owned()).1);
    let of_another_job = |nonce: Nonce| operator_key().job_key("another").prove(nonce, BODY.as_bytes());
    let attacks: [(&str, Attack, &str); 6] = [
        ("a loss that was changed on the way", Box::new(changed), "wrong"),
        ("an older answer", Box::new(move |_| proven(older, BODY.to_owned())), "wrong"),
        ("the key of another job", Box::new(move |nonce| (BODY.to_owned(), Some(of_another_job(nonce)))), "wrong"),
        ("the key of another operator", Box::new(move |nonce| (BODY.to_owned(), Some(others(nonce)))), "wrong"),
        ("a proof of another form", Box::new(|_| (BODY.to_owned(), Some("x".into()))), "wrong"),
        ("an agent without a key", Box::new(|_| (BODY.to_owned(), None)), "missing"),
    ];
    for (what, attack, why) in attacks {
        let (_, polls) = answer_over(attack).await;
        assert!(polls.answer().is_none() && polls.is_up() == Some(false), "{what}");
        let refusal = polls.refusal().unwrap_or_default();
        assert!(refusal.contains(PROOF_HEADER) && refusal.contains(why), "{what}: {refusal}");
        assert!(refusal.contains("kubectl trainingjob stop x -n ns"), "{what}: {refusal}");
    }
}

/// The Secret of the operator's own key, as the API server has it.
fn key_secret(key: &[u8]) -> Value {
    let data = std::collections::BTreeMap::from([("key".to_owned(), k8s_openapi::ByteString(key.to_vec()))]);
    let mut secret =
        serde_json::to_value(k8s_openapi::api::core::v1::Secret { data: Some(data), ..Default::default() }).unwrap();
    secret["metadata"] = json!({ "name": "trainingjob-operator-answers", "namespace": "own" });
    secret
}

#[tokio::test]
async fn operator_key_is_created_once() {
    const PATH: &str = "/api/v1/namespaces/own/secrets";
    // Either this replica creates the Secret, or another one was faster.
    for is_raced in [false, true] {
        let kept = Arc::new(Mutex::new(None::<Value>));
        let (client, log) = api({
            let kept = kept.clone();
            move |(method, path, body)| match (method, &mut *kept.lock()) {
                (&Method::POST, kept @ None) => {
                    assert_eq!(
                        (path.as_str(), &body["metadata"]["name"]),
                        (PATH, &json!("trainingjob-operator-answers"))
                    );
                    *kept = Some(if is_raced { key_secret(b"0123456789abcdefghijklmnopqrstuv") } else { body.clone() });
                    if is_raced { (409, refusal(409, "AlreadyExists", "it is there")) } else { (201, body.clone()) }
                }
                (&Method::GET, Some(secret)) if *path == format!("{PATH}/trainingjob-operator-answers") => {
                    (200, secret.clone())
                }
                (&Method::GET, None) => (404, refusal(404, "NotFound", "not found")),
                _ => panic!("{method} {path}"),
            }
        });
        let first = super::operator_key(&client, "own").await.unwrap().job_key("job");
        let second = super::operator_key(&client, "own").await.unwrap().job_key("job");
        assert_eq!(first, second);
        assert_ne!(first, operator_key().job_key("job"));
        assert_eq!(log.lock().iter().filter(|(method, ..)| method == Method::POST).count(), 1);
    }
}

#[tokio::test]
async fn operator_key_errors_name_secret_and_cause() {
    let error = async |code: u16, object: Value| {
        let (client, _) = api(move |(method, ..)| match *method {
            Method::GET if code != 404 => (code, object.clone()),
            Method::GET => (404, refusal(404, "NotFound", "not found")),
            _ => (404, object.clone()),
        });
        format!("{:#}", super::operator_key(&client, "own").await.unwrap_err())
    };
    for key in [&b"too short"[..], &[0; 32], &[1; 33]] {
        let error = error(200, key_secret(key)).await;
        assert!(error.contains("kubectl delete secret trainingjob-operator-answers -n own"), "{error}");
    }
    let denied = error(403, refusal(403, "Forbidden", "no rights")).await;
    assert!(denied.contains("own/trainingjob-operator-answers") && denied.contains("no rights"), "{denied}");
    let nowhere = error(404, refusal(404, "NotFound", "namespaces \"own\" not found")).await;
    assert!(nowhere.contains("can't create Secret own/") && nowhere.contains("not found"), "{nowhere}");
}

/// Of two pods on their node's network, one may answer for the other.
#[tokio::test]
async fn answer_of_another_pod_is_rejected() {
    let reported = |fields: Value| {
        let mut answer = json!({ "report": { "attempt": 1 }, "percent": 5 });
        answer.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        answer_of(move || answer.clone())
    };
    for fields in [json!({ "podUid": "pod-0" }), json!({ "podUid": "pod-0", "trainingJob": "x" })] {
        let (is_news, polls) = reported(fields.clone()).await;
        assert!(is_news && polls.answer().is_some() && polls.is_up() == Some(true), "{fields}");
    }
    let others =
        [json!({ "podUid": "pod-1" }), json!({ "podUid": "pod-0", "trainingJob": "y" }), json!({ "podUid": "" })];
    // An answer without a pod UID is refused too. The agent of another job may choose to omit it.
    for fields in others.into_iter().chain([json!({ "podUid": null }), json!({ "podUid": null, "trainingJob": "x" })]) {
        let (_, polls) = reported(fields.clone()).await;
        assert!(polls.answer().is_none() && polls.is_up() == Some(false), "{fields}");
    }
}

#[tokio::test]
async fn agent_answer_size_is_bounded() {
    let reading = json!({ "value": 1, "time": "2030-01-02T03:04:05Z", "source": "Post" });
    let many = |n: usize, length: usize| {
        let names = (0..n).map(move |i| format!("{i:0>length$}"));
        names.map(|name| (name, reading.clone())).collect::<serde_json::Map<_, _>>()
    };
    let metrics = |metrics: serde_json::Map<String, Value>| {
        answer_of(move || json!({ "progress": { "metrics": Value::Object(metrics.clone()) } }))
    };
    let kept = |polls: AgentPolls| polls.answer().unwrap().status.progress.metrics.len();
    let (_, polls) = metrics(many(100, 100)).await;
    assert_eq!(kept(polls), 100);
    let (_, polls) = metrics(many(101, 100)).await;
    assert_eq!(kept(polls), 100);
    let (_, polls) = metrics(many(3, 101)).await;
    assert_eq!(kept(polls), 0);
    let (_, polls) = metrics([("a\nb".to_owned(), many(1, 1)["0"].clone())].into_iter().collect()).await;
    assert_eq!(kept(polls), 0);

    let readings: Vec<_> = (1..=150).map(|n| json!({ "n": n, "value": 1 })).collect();
    let watched = move || json!({ "watched": { "loss": { "count": 150, "recent": readings } } });
    let (_, polls) = answer_of(watched).await;
    let history = polls.answer().unwrap().status.histories["loss"].clone();
    assert_eq!((history.recent.len(), history.recent[0].n), (100, 51), "the newest");

    let long = "x".repeat(10_000);
    let line = json!({ "kind": "NanLoss", "text": long, "count": 1 });
    let reported = json!({
        "cause": long,
        "report": { "stderrTail": long, "headline": long, "signs": vec![line; 9],
            "exception": { "message": long } , "error": { "message": long } },
        "gpus": vec![json!({ "uuid": long }); 9],
    });
    let (_, polls) = answer_of(move || reported.clone()).await;
    let status = polls.answer().unwrap().status;
    let size = serde_json::to_string(&*status).unwrap().len();
    assert!(size < 110_000, "{size}");
    assert!(status.report.error_patterns.iter().all(|line| line.text.len() <= 4096));

    let (_, polls) = answer_of(|| Value::String(format!("{}{{}}", " ".repeat(300 * 1024)))).await;
    assert!(polls.answer().is_none() && polls.is_up() == Some(false), "it is not read to its end");
}

fn gang_of(gang: &str) -> TrainingJob {
    let mut job = job();
    job.spec.scheduling = serde_json::from_value(json!({ "gang": gang })).unwrap();
    job.spec.num_workers = NonZeroU16::new(2);
    job
}

fn made(log: &Mutex<Vec<Request>>) -> Vec<(String, Value)> {
    let log = log.lock();
    let posts = log.iter().filter(|(method, path, _)| *method == Method::POST && !path.contains("events.k8s.io"));
    posts.map(|(_, path, body)| (path.rsplit('/').next().unwrap().to_owned(), body.clone())).collect()
}

fn scheduled(log: &Mutex<Vec<Request>>) -> (String, String) {
    let log = log.lock();
    let (_, _, body) =
        log.iter().rfind(|(method, path, _)| *method == Method::PUT && path.ends_with("/status")).unwrap();
    let conditions = body["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "Scheduled").unwrap();
    (condition["reason"].as_str().unwrap().to_owned(), condition["message"].as_str().unwrap().to_owned())
}

/// The kind exists or not. A 404 about something else says nothing about that.
#[tokio::test]
async fn gang_waits_while_podgroup_kind_is_missing() {
    let unknown = || refusal(404, "NotFound", "the server could not find the requested resource");
    for (gang, version, remedy) in [
        ("volcano", "scheduling.volcano.sh/v1beta1", "install Volcano"),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1", "install the coscheduling plugin"),
        ("native", "scheduling.k8s.io/v1alpha2", "--runtime-config=scheduling.k8s.io/v1alpha2=true"),
    ] {
        for answer in [unknown(), "404 page not found\n".into()] {
            let (client, log) = api(move |request| match request {
                (_, path, _) if path.ends_with("/podgroups") => (404, answer.clone()),
                request => agrees(request),
            });
            reconcile_job(&context(client, AgentAccess::Off), &gang_of(gang)).await.unwrap();
            let (reason, message) = scheduled(&log);
            assert_eq!(reason, "GangSchedulerMissing");
            let says =
                format!("PodGroup: the API server has no PodGroup of {version}, which spec.scheduling.gang needs");
            assert!(message.starts_with(&says) && message.contains(remedy), "{message}");
            assert!(made(&log).iter().all(|(kind, _)| kind != "jobs"), "its pods would be placed one by one");
        }
    }
    let gone = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
        "message": "namespaces \"ns\" not found", "details": { "name": "ns", "kind": "namespaces" },
    });
    let (client, _) = api(move |request| match request {
        (_, path, _) if path.ends_with("/podgroups") => (404, gone.clone()),
        request => agrees(request),
    });
    assert!(reconcile_job(&context(client, AgentAccess::Off), &gang_of("native")).await.is_err());
}

#[tokio::test]
async fn podgroup_is_created_before_the_job() {
    let (client, log) = api(agrees);
    let context = context(client, AgentAccess::Off);
    reconcile_job(&context, &gang_of("native")).await.unwrap();
    let made = made(&log);
    let kinds: Vec<&str> = made.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds[kinds.len() - 2..], ["podgroups", "jobs"], "{kinds:?}");
    let [(_, group), (_, job)] = &made[made.len() - 2..] else { unreachable!() };
    assert_eq!(group["apiVersion"], "scheduling.k8s.io/v1alpha2");
    assert_eq!(job["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"], group["metadata"]["name"]);
    let blocked = context.index.read(&key(), |cell| cell.children.blocked.clone()).unwrap();
    assert!(blocked.is_empty(), "{blocked:?}");
}

/// An API server that knows the kind, but not the field of its pods.
#[tokio::test]
async fn dropped_scheduling_group_is_reported() {
    let (client, log) = api(|request| match request {
        (method, path, body) if method == Method::POST && path.ends_with("/jobs") => {
            let mut body = body.clone();
            body["spec"]["template"]["spec"].as_object_mut().unwrap().remove("schedulingGroup");
            agrees(&(method.clone(), path.clone(), body))
        }
        request => agrees(request),
    });
    reconcile_job(&context(client, AgentAccess::Off), &gang_of("native")).await.unwrap();
    let (reason, message) = scheduled(&log);
    assert_eq!(reason, "GangSchedulerMissing");
    assert!(message.starts_with("Job: the API server has dropped schedulingGroup"), "{message}");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let log = log.lock();
    let reported =
        log.iter().filter(|(_, path, body)| path.contains("events.k8s.io") && body["reason"] == "PlacedOneByOne");
    assert_eq!(reported.count(), 1);
}

/// The group of a predecessor, or of the job itself. Kubernetes keeps a group as long as it has living pods.
#[tokio::test]
async fn gang_waits_for_podgroup_being_deleted() {
    let (client, log) = api(|request| match request {
        (method, path, _) if method == Method::POST && path.ends_with("/podgroups") => {
            (409, refusal(409, "AlreadyExists", "podgroups \"x-job\" already exists"))
        }
        (method, path, _) if method == Method::GET && path.contains("/podgroups/") => {
            let metadata = json!({
                "name": "x-job", "namespace": "ns", "uid": "group", "deletionTimestamp": "2030-01-02T03:04:05Z",
                "finalizers": ["scheduling.k8s.io/podgroup-protection"],
            });
            (
                200,
                json!({ "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata, "spec": {} }),
            )
        }
        request => agrees(request),
    });
    reconcile_job(&context(client, AgentAccess::Off), &gang_of("native")).await.unwrap();
    let (reason, message) = scheduled(&log);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("OldObject", "PodGroup: x-job is being deleted; it is made again when it is gone")
    );
    assert!(made(&log).iter().all(|(kind, _)| kind != "jobs"));
}

/// A job that is deleted and recreated under its name starts when the pods of its predecessor have ended.
#[tokio::test]
async fn job_waits_for_pods_of_its_predecessor() {
    let (client, log) = api(agrees);
    let context = context(client, AgentAccess::Off);
    let pod = || {
        let labels = json!({
            "ml.example.com/training-job-uid": "before", "training-job": "x", "ml.example.com/incarnation": "1",
            "batch.kubernetes.io/job-completion-index": "0",
        });
        let metadata = json!({ "name": "x-training-0-abcde", "namespace": "ns", "uid": "pod", "labels": labels });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": "Running" } })).unwrap()
    };
    context.index.pod(&Event::Apply(pod()));
    let is_made = || made(&log).iter().any(|(kind, _)| kind == "jobs");
    let again = reconcile_job(&context, &job()).await.unwrap();
    assert!(!is_made() && again.0.is_some(), "{:?}", made(&log));
    let (reason, message) = scheduled(&log);
    assert_eq!(reason, "OldPods");
    assert!(message.contains("x-training-0-abcde") && message.contains("earlier job named x"), "{message}");
    context.index.pod(&Event::Delete(pod()));
    reconcile_job(&context, &job()).await.unwrap();
    assert!(is_made(), "{:?}", made(&log));
}

/// A new operator whose watches are behind, or only that of pods.
#[tokio::test]
async fn failure_cause_comes_from_pods_not_yet_watched() {
    let labels = json!({
        "ml.example.com/training-job-uid": "job", "training-job": "x", "ml.example.com/incarnation": "1",
        "ml.example.com/role": "worker", "batch.kubernetes.io/job-completion-index": "0",
    });
    let owner = |kind: &str, version: &str, name: &str, uid: &str| {
        let owner = json!({ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true });
        json!([owner])
    };
    let failed = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": "x-training", "namespace": "ns", "uid": "uid-of-job", "resourceVersion": "12", "labels": labels,
            "ownerReferences": owner("TrainingJob", "ml.example.com/v1", "x", "job"),
        },
        "spec": { "parallelism": 1 },
        "status": { "conditions": [{ "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded" }] },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "x-training-0-abcde", "namespace": "ns", "uid": "pod", "labels": labels,
            "ownerReferences": owner("Job", "batch/v1", "x-training", "uid-of-job"),
        },
        "status": { "phase": "Failed", "containerStatuses": [{
            "name": "training", "state": { "terminated": { "exitCode": 3, "finishedAt": "2026-01-02T03:04:05Z" } },
        }] },
    });
    let mut job = job();
    let status = json!({ "state": "Running", "attempt": 1, "startTime": "2026-01-02T03:00:00Z", "workers": {
        "desired": 1, "active": 1, "succeeded": 0, "failed": 0, "pending": 0,
    } });
    job.status = serde_json::from_value(status).unwrap();
    for (by_watch, pods, reason) in
        [(false, vec![pod.clone()], "ExitCode"), (true, vec![pod], "ExitCode"), (true, vec![], "PodsLost")]
    {
        let (listed, read) = (pods.clone(), failed.clone());
        let stored = job.clone();
        let (client, log) = api(move |request| match request {
            (Method::GET, path, _) if path.ends_with("/jobs/x-training") => (200, read.clone()),
            (Method::GET, path, _) if path.ends_with("/trainingjobs/x") => {
                (200, serde_json::to_value(stored.clone()).unwrap())
            }
            (Method::GET, path, _) if path.ends_with("/pods") => {
                (200, json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": listed }))
            }
            request => agrees(request),
        });
        let context = context(client, AgentAccess::Off);
        if by_watch {
            context.index.job(&Event::Apply(serde_json::from_value(failed.clone()).unwrap()));
        }
        for _ in 0..2 {
            let _ = reconcile_job(&context, &job).await;
        }
        let log = log.lock();
        let mut written = log.iter().filter(|(method, path, _)| *method == Method::PUT && path.ends_with("/status"));
        let (_, _, first) = written.next().unwrap();
        let end = &first["status"]["restarts"][0];
        assert_eq!(end["reason"], reason, "by watch: {by_watch}; {first}");
        assert_eq!(log.iter().filter(|(_, path, _)| path.ends_with("/pods")).count(), 1, "read once");
    }
}

/// A change of a job in the second in which its TTL ends prevents the deletion.
#[tokio::test]
async fn ttl_does_not_delete_a_job_changed_meanwhile() {
    let mut job = job();
    job.spec.ttl_seconds_after_finished = Some(0);
    let status = json!({ "state": "Completed", "completionTime": "2026-01-01T00:00:00Z", "attempt": 1 });
    job.status = serde_json::from_value(status).unwrap();
    for changed in [false, true] {
        let stored = job.clone();
        let (client, log) = api(move |request| match request {
            (Method::GET, path, _) if path.ends_with("/trainingjobs/x") => {
                let mut stored = stored.clone();
                stored.metadata.resource_version = Some(if changed { "9" } else { "8" }.to_owned());
                (200, serde_json::to_value(stored).unwrap())
            }
            request => agrees(request),
        });
        let context = context(client, AgentAccess::Off);
        let done = reconcile_job(&context, &job).await;
        let log = log.lock();
        let deleted =
            log.iter().find(|(method, path, _)| *method == Method::DELETE && path.ends_with("/trainingjobs/x"));
        match deleted {
            Some((_, _, body)) => {
                assert_eq!(body["preconditions"], json!({ "uid": "job", "resourceVersion": "8" }), "{log:?}");
            }
            None => assert!(changed && done.is_err(), "{done:?} {log:?}", done = done.is_ok()),
        }
    }
}
