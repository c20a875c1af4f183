//! `/metrics`, `/healthz`, `/readyz`.

use super::{Metrics, Phase};
use axum::{Router, http::StatusCode, routing::get};
use std::sync::Arc;

/// Serves until the process ends. A standby replica is ready, or a roll-out would wait for ever for two leaders.
///
/// # Errors
/// Where connections can't be accepted.
pub async fn serve(listener: tokio::net::TcpListener, metrics: Arc<Metrics>) -> std::io::Result<()> {
    let ready = metrics.clone();
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match ready.phase() {
                    Phase::Standby => (StatusCode::OK, "ok: standby\n"),
                    Phase::Leading => (StatusCode::OK, "ok: leading\n"),
                    Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
                    Phase::Syncing => (
                        StatusCode::SERVICE_UNAVAILABLE,
                        "leading, but the API server has not listed everything yet: is the CRD installed, may the service account list?\n",
                    ),
                }
            }),
        )
        .route(
            "/metrics",
            get(move || async move {
                ([(axum::http::header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
            }),
        );
    axum::serve(listener, routes).await
}
