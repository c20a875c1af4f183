//! Registrations in a server that answers as MLflow does.

use crate::stand_in::{Reply, Request, Server};
use crate::tests::{folder, run};
use crate::{
    NetworkTimeouts, Origin, PublishError, PublishErrorKind, Registration, Registry, ResultRecord, record, register,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The registered models and versions of a server.
#[derive(Default)]
struct Store {
    models: Vec<String>,
    versions: Vec<Value>,
}

fn answer(store: &mut Store, request: &Request) -> Reply {
    let fail = |status, code: &str| Reply::new(status, json!({"error_code": code, "message": code}).to_string());
    let body = request.json();
    match request.line().as_str() {
        "POST /base/api/2.0/mlflow/registered-models/create" => {
            let name = body["name"].as_str().unwrap().to_owned();
            if store.models.contains(&name) {
                return fail(400, "RESOURCE_ALREADY_EXISTS");
            }
            store.models.push(name);
            Reply::json(&json!({"registered_model": {}}))
        }
        "GET /base/api/2.0/mlflow/model-versions/search" => {
            assert!(request.query.contains("filter=name%3D%27fine+tuned%27"), "{}", request.query);
            let from: usize =
                request.query.split('&').find_map(|part| part.strip_prefix("page_token=")?.parse().ok()).unwrap_or(0);
            let page: Vec<&Value> = store.versions.iter().skip(from).take(1).collect();
            // Without a page the server leaves the fields out.
            match from + 1 < store.versions.len() {
                _ if page.is_empty() => Reply::json(&json!({})),
                true => Reply::json(&json!({"model_versions": page, "next_page_token": (from + 1).to_string()})),
                false => Reply::json(&json!({"model_versions": page})),
            }
        }
        "POST /base/api/2.0/mlflow/model-versions/create" => {
            let mut version = body;
            version["version"] = (store.versions.len() + 1).to_string().into();
            store.versions.push(version.clone());
            Reply::json(&json!({"model_version": version}))
        }
        _ => fail(404, "ENDPOINT_NOT_FOUND"),
    }
}

fn record(uri: &str, revision: &str) -> ResultRecord {
    let origin = Origin {
        job: Some("digits".to_owned()),
        namespace: Some("team-a".to_owned()),
        spec_digest: Some("ab12".to_owned()),
        ..Origin::default()
    };
    let record = record::new(uri.to_owned(), "digits-5f0e", &origin, Vec::new());
    ResultRecord { revision: Some(revision.to_owned()), ..record }
}

fn open(uri: &str, credentials: Option<&Path>) -> Result<Registry, PublishError> {
    let patience = NetworkTimeouts { back_off: Duration::from_millis(1), ..NetworkTimeouts::default() };
    Registry::open(uri, "fine tuned", credentials, None, patience)
}

#[test]
fn result_is_registered_as_one_version() {
    let store: Arc<Mutex<Store>> = Arc::default();
    let (inner, first) = (Arc::clone(&store), Mutex::new(true));
    let server = Server::new(move |request| match std::mem::take(&mut *first.lock()) {
        true => Reply::new(503, "").with("retry-after", 0),
        false => answer(&mut inner.lock(), request),
    });
    let registry = open(&format!("{}/base/", server.url()), None).unwrap();
    let register = |record: &ResultRecord| run(register(&registry, record)).unwrap();
    let expected = |version: &str, was_registered| Registration {
        model: "fine tuned".to_owned(),
        version: version.to_owned(),
        was_registered,
    };
    let s3 = record("s3://b/out/digits-5f0e", "00");
    assert_eq!(register(&s3), expected("1", false));
    assert_eq!(register(&record("hf://a/b@main", "c0ffee")), expected("2", false));
    assert_eq!(register(&record("hf://a/b@main", "decade")), expected("3", false), "another commit");
    for (again, version) in [(&s3, "1"), (&record("hf://a/b@main", "decade"), "3")] {
        assert_eq!(register(again), expected(version, true));
    }
    let store = store.lock();
    assert_eq!((store.models.len(), store.versions.len()), (1, 3));
    assert_eq!(store.versions[1]["source"], "hf://a/b@c0ffee");
    let tags = &store.versions[0]["tags"];
    for (key, value) in [("job", "team-a/digits"), ("digest", &s3.digest), ("specDigest", "ab12")] {
        let tag = json!({"key": format!("trainingjob.{key}"), "value": value});
        assert!(tags.as_array().unwrap().contains(&tag), "{tags}");
    }
}

#[test]
fn mlflow_credentials_are_sent_and_refusals_are_final() {
    let server = Server::new(|request| match request.headers.get("authorization").map(String::as_str) {
        // user:secret
        Some("Basic dXNlcjpzZWNyZXQ=") => Reply::new(403, r#"{"message":"not\nyours"}"#),
        Some("Bearer token") => Reply::new(404, "<html>"),
        Some(other) => Reply::new(400, other),
        None => Reply::new(401, "Authentication is required"),
    });
    let error = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
        let room = folder(&files);
        let registry = open(&server.url(), Some(room.path())).unwrap();
        let error = run(register(&registry, &record("s3://b/x", "00"))).unwrap_err();
        assert!(error.is_final() && !error.to_string().contains("secret"), "{error}");
        (error.kind, error.to_string())
    };
    let (kind, text) = error(&[]);
    assert!(
        kind == PublishErrorKind::Denied && text.contains("HTTP 401") && text.contains("MLFLOW_TRACKING_TOKEN"),
        "{text}"
    );
    let basic = [("MLFLOW_TRACKING_USERNAME", "user\n"), ("MLFLOW_TRACKING_PASSWORD", "secret")];
    let (kind, text) = error(&basic);
    assert!(kind == PublishErrorKind::Denied && text.contains("not yours; give this account"), "{text}");
    let (kind, text) = error(&[("MLFLOW_TRACKING_TOKEN", "token"), basic[0], basic[1]]);
    assert!(kind == PublishErrorKind::NotFound && text.contains("URL of an MLflow server"), "{text}");
}

#[test]
fn unusable_tracking_uris_and_names_are_refused_with_remedy() {
    for (uri, remedy) in [
        ("/mlruns", "mlflow server --backend-store-uri"),
        ("./mlruns", "mlflow server --backend-store-uri"),
        ("file:///mlruns", "mlflow server --backend-store-uri"),
        ("sqlite:///mlflow.db", "write http://"),
        ("databricks", "mlflow server"),
        ("http://user:hunter2@h", "credentials Secret"),
        ("http://h/?token=hunter2", "credentials Secret"),
    ] {
        let error = open(uri, None).err().unwrap();
        assert!(error.is_final() && error.to_string().contains(remedy), "{uri}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    for name in ["", " ", "a/b", "a:b", "a'b", "a\nb", &"x".repeat(257)] {
        let registry = Registry::open("http://h", name, None, None, NetworkTimeouts::default());
        assert!(registry.err().unwrap().to_string().contains("correct its name"), "{name:?}");
    }
}
