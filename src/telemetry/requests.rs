//! Requests to the API server, counted and timed as they leave.

use super::Metrics;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tower::layer::layer_fn;
use tower::{Layer, Service};

/// A layer that counts the client's requests in `metrics`.
pub fn count_requests<S>(metrics: Arc<Metrics>) -> impl Layer<S, Service = CountingClient<S>> {
    layer_fn(move |inner| CountingClient { inner, metrics: metrics.clone() })
}

/// A client that counts.
pub struct CountingClient<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B, R> Service<Request<B>> for CountingClient<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (verb, resource) = verb_and_resource(request.method(), request.uri());
        let metrics = self.metrics.clone();
        let mut pending = Pending { metrics, verb, resource, started: Instant::now(), code: "cancelled".into() };
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            pending.code = answer.as_ref().map_or_else(|_| "error".into(), |answer| answer.status().as_str().into());
            drop(pending);
            answer
        }
        .boxed()
    }
}

/// A request under way. It is counted when dropped, so that abandoned requests count too.
struct Pending {
    metrics: Arc<Metrics>,
    verb: &'static str,
    resource: String,
    started: Instant,
    code: String,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.metrics.requested(self.verb, &self.resource, &self.code, self.started.elapsed());
    }
}

/// Verb and resource of a request in the terms of RBAC, such as `update` and `trainingjobs/status`. No names.
fn verb_and_resource(method: &Method, uri: &Uri) -> (&'static str, String) {
    let mut path = uri.path().split('/').filter(|part| !part.is_empty());
    let root = path.next().unwrap_or_default();
    let prefix = match root {
        "api" => 1,
        "apis" => 2,
        _ => return (verb(method, uri, false), root.to_owned()),
    };
    let mut path: Vec<&str> = path.skip(prefix).collect();
    if path.len() > 2 && path[0] == "namespaces" {
        path.drain(..2);
    }
    let resource = match (path.first(), path.get(2)) {
        (Some(resource), Some(sub)) => format!("{resource}/{sub}"),
        (Some(resource), None) => (*resource).to_owned(),
        (None, _) => String::new(),
    };
    (verb(method, uri, path.len() > 1), resource)
}

/// Whether a request to this address is a watch.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| matches!(part, "watch=true" | "watch=1")))
}

fn verb(method: &Method, uri: &Uri, named: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET", _) if is_watch(uri) => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_labels_omit_object_names() {
        for (method, uri, verb, resource) in [
            ("PUT", "/apis/ml.example.com/v1/namespaces/a/trainingjobs/x/status", "update", "trainingjobs/status"),
            ("GET", "/apis/ml.example.com/v1/trainingjobs?watch=true&resourceVersion=7", "watch", "trainingjobs"),
            ("GET", "/apis/ml.example.com/v1/namespaces/a/trainingjobs?limit=500", "list", "trainingjobs"),
            ("POST", "/apis/batch/v1/namespaces/namespaces/jobs", "create", "jobs"),
            ("DELETE", "/apis/batch/v1/namespaces/a/jobs/x-training", "delete", "jobs"),
            ("GET", "/api/v1/namespaces/a/pods/x", "get", "pods"),
            ("GET", "/api/v1/namespaces/a", "get", "namespaces"),
            ("GET", "/version", "list", "version"),
            ("GET", "/apis", "list", ""),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(verb_and_resource(&method, &uri.parse().unwrap()), (verb, resource.to_owned()), "{uri}");
        }
    }

    #[tokio::test]
    async fn every_request_is_counted_even_if_cancelled() {
        let metrics = Arc::new(Metrics::new());
        let answer = |code: u16| async move {
            match code {
                0 => std::future::pending().await,
                1 => Err("connection refused"),
                code => Ok(Response::builder().status(code).body(()).unwrap()),
            }
        };
        let mut client = count_requests(metrics.clone()).layer(tower::service_fn(|r: Request<u16>| answer(*r.body())));
        for code in [200, 409, 409, 1] {
            let _ = client.call(Request::get("/api/v1/namespaces/a/pods").body(code).unwrap()).await;
        }
        drop(client.call(Request::get("/api/v1/namespaces/a/pods").body(0).unwrap()));
        let text = metrics.render();
        for (code, count) in [("200", 1), ("409", 2), ("error", 1), ("cancelled", 1)] {
            let line =
                format!("trainingjob_api_requests_total{{code=\"{code}\",resource=\"pods\",verb=\"list\"}} {count}");
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let timed = "trainingjob_api_request_duration_seconds_count{resource=\"pods\",verb=\"list\"} 5";
        assert!(text.contains(timed), "{text}");
    }
}
