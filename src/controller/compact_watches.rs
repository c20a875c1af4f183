//! Watches of pods and Jobs in Protobuf. The client reads the lines of JSON that it expects.
//!
//! In a burst most of what the operator receives are changes of pods. See [`observe::json_of_change`] for what is saved.

use crate::telemetry::is_watch;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Either, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio_util::codec::{Decoder, FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use tower::layer::layer_fn;
use tower::{BoxError, Layer, Service};
use tracing::warn;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// As Kubernetes' own controllers ask.
const EITHER: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");

/// A layer that asks the API server for the changes of pods and Jobs in Protobuf, and passes them on as lines of JSON
/// with the fields that the operator reads.
///
/// An API server may answer in JSON. After a change that can't be read, such as one with a text that is not UTF-8, all
/// watches that begin are in JSON.
pub fn compact_watches<S>() -> impl Layer<S, Service = CompactWatches<S>> {
    layer_fn(|inner| CompactWatches { inner, only_json: Arc::default() })
}

/// A client whose watches of pods and Jobs are in Protobuf.
pub struct CompactWatches<S> {
    inner: S,
    only_json: Arc<AtomicBool>,
}

impl<S, B> Service<Request<Body>> for CompactWatches<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Either<B, UnsyncBoxBody<Bytes, BoxError>>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if is_compact(request.uri()) && !self.only_json.load(Ordering::Relaxed) {
            request.headers_mut().insert(ACCEPT, EITHER);
        }
        let only_json = self.only_json.clone();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await?;
            let is_protobuf = |value: &HeaderValue| value.as_bytes().starts_with(PROTOBUF.as_bytes());
            if !answer.headers().get(CONTENT_TYPE).is_some_and(is_protobuf) {
                return Ok(answer.map(Either::Left));
            }
            Ok(answer.map(|body| {
                let reader = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
                let lines = FramedRead::new(reader, Changes { lengths: LengthDelimitedCodec::new(), only_json });
                Either::Right(
                    StreamBody::new(lines.map_ok(http_body::Frame::data).map_err(BoxError::from)).boxed_unsync(),
                )
            }))
        }
        .boxed()
    }
}

/// Whether a request watches the pods or Jobs of a namespace, or of all.
fn is_compact(uri: &Uri) -> bool {
    let is_watched = |path: &str| {
        let all = path.strip_prefix("/api/v1").or_else(|| path.strip_prefix("/apis/batch/v1"));
        matches!(all.and_then(|path| path.rsplit('/').next()), Some("pods" | "jobs"))
    };
    is_watched(uri.path()) && is_watch(uri)
}

/// Changes, each with its length before it, as lines of JSON.
struct Changes {
    lengths: LengthDelimitedCodec,
    only_json: Arc<AtomicBool>,
}

impl Decoder for Changes {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, received: &mut BytesMut) -> io::Result<Option<Bytes>> {
        let change = self.lengths.decode(received);
        let line = change.and_then(|change| {
            let line = change.map(|change| observe::json_of_change(change.freeze())).transpose();
            line.map_err(io::Error::other)
        });
        line.map(|line| line.map(Bytes::from)).inspect_err(|error| {
            warn!(%error, "watching pods and Jobs in JSON from now on");
            self.only_json.store(true, Ordering::Relaxed);
        })
    }

    /// As in JSON, a change that was cut off is dropped with its watch.
    fn decode_eof(&mut self, received: &mut BytesMut) -> io::Result<Option<Bytes>> {
        self.decode(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;
    use parking_lot::Mutex;
    use std::convert::Infallible;
    use tower::ServiceExt;

    #[test]
    fn only_watches_of_pods_and_jobs_are_in_protobuf() {
        for (uri, expected) in [
            ("/api/v1/pods?&watch=true&timeoutSeconds=290", true),
            ("/api/v1/namespaces/a/pods?watch=true", true),
            ("/apis/batch/v1/namespaces/pods/jobs?labelSelector=a&watch=true", true),
            ("/api/v1/namespaces/a/pods?limit=25", false),
            ("/api/v1/namespaces/a/pods/watch=true", false),
            ("/api/v1/namespaces/a/services?watch=true", false),
            ("/api/v1/namespaces/a/pods/jobs/log?watch=true", false),
            ("/apis/jobs.example.com/v1/jobs?watch=true", false),
            ("/apis/apps/v1/deployments?watch=true", false),
            ("/version", false),
        ] {
            assert_eq!(is_compact(&uri.parse().unwrap()), expected, "{uri}");
        }
    }

    /// A field of bytes, whose number and length fit into one byte each.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    /// A change of an object of this kind, as the API server sends it.
    fn change(r#type: &[u8], kind: &[u8], object: &[u8]) -> Vec<u8> {
        let types = [field(1, b"v1"), field(2, kind)].concat();
        let unknown = [field(1, &types), field(2, object)].concat();
        let object = [b"k8s\0", &*unknown].concat();
        let event = [field(1, r#type), field(2, &field(1, &object))].concat();
        [&u32::try_from(event.len()).unwrap().to_be_bytes(), &*event].concat()
    }

    /// A pod with this name.
    fn added(name: &[u8]) -> Vec<u8> {
        change(b"ADDED", b"Pod", &field(1, &field(1, name)))
    }

    /// What the requests of a client accept.
    type Accepted = Arc<Mutex<Vec<Option<HeaderValue>>>>;

    /// A client that is sent `received` in pieces of this length, and what its requests accept.
    fn client(received: Vec<u8>, length: usize) -> (impl AsyncFnMut() -> Result<Vec<u8>, String>, Accepted) {
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let seen = accepted.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            seen.lock().push(request.headers().get(ACCEPT).cloned());
            let pieces: Vec<_> = received.chunks(length).map(Bytes::copy_from_slice).collect();
            let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(http_body::Frame::data(piece)));
            let body = StreamBody::new(futures::stream::iter(frames));
            let answer = Response::builder().header(CONTENT_TYPE, "application/vnd.kubernetes.protobuf;stream=watch");
            futures::future::ready(Ok::<_, Infallible>(answer.body(body).unwrap()))
        });
        let mut service = compact_watches().layer(service);
        let watch = async move || {
            let request = Request::get("/api/v1/pods?watch=true").body(Body::empty()).unwrap();
            let answer = service.ready().await.unwrap().call(request).await.unwrap();
            answer.into_body().collect().await.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
        };
        (watch, accepted)
    }

    #[tokio::test]
    async fn changes_are_read_whatever_pieces_they_arrive_in() {
        let line = |name: &str| {
            format!(
                "{{\"type\":\"ADDED\",\"object\":{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{name}\",\"resourceVersion\":\"\"}}}}}}\n"
            )
        };
        let all = [added(b"a"), added("\u{e9}".as_bytes()), added(b"c")].concat();
        for length in 1..all.len() {
            let (mut watch, _) = client(all.clone(), length);
            assert_eq!(
                String::from_utf8(watch().await.unwrap()).unwrap(),
                [line("a"), line("\u{e9}"), line("c")].concat()
            );
            // What was cut off is dropped with its watch.
            let (mut watch, _) = client(all[..all.len() - 1].to_vec(), length);
            assert_eq!(String::from_utf8(watch().await.unwrap()).unwrap(), [line("a"), line("\u{e9}")].concat());
        }
    }

    #[tokio::test]
    async fn error_of_the_api_server_is_read_from_a_watch() {
        let code = [6 << 3, 0x9a, 0x03];
        let status = [field(2, b"Failure"), field(3, b"too old"), field(4, b"Expired"), code.to_vec()].concat();
        let (mut watch, accepted) = client(change(b"ERROR", b"Status", &status), 7);
        let line = watch().await.unwrap();
        let event = serde_json::from_slice::<WatchEvent<observe::SlimPod>>(&line).unwrap();
        let WatchEvent::Error(status) = event else { panic!("{event:?}") };
        assert_eq!((status.code, &*status.reason, &*status.message), (410, "Expired", "too old"));
        watch().await.unwrap();
        assert_eq!(*accepted.lock(), [Some(EITHER), Some(EITHER)]);
    }

    /// A client that writes what can't be read in Protobuf hides no change from the operator.
    #[tokio::test]
    async fn watches_are_in_json_after_a_change_that_cannot_be_read() {
        for (what, received) in [
            ("a text that is not UTF-8", added(b"\xff")),
            (
                "an object without its mark",
                [&[0, 0, 0, 13][..], &field(1, b"ADDED"), &field(2, &field(1, b"ab"))].concat(),
            ),
            ("no object", [&[0, 0, 0, 7][..], &field(1, b"ADDED")].concat()),
            ("a length of 4 GiB", vec![255; 9]),
        ] {
            let (mut watch, accepted) = client(received, 4);
            watch().await.unwrap_err();
            let _ = watch().await;
            assert_eq!(*accepted.lock(), [Some(EITHER), None], "{what}");
        }
    }
}
