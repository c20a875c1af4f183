//! Versions of results in MLflow's model registry, by its REST API (2.0).

use crate::error::PublishError;
use crate::network::{Answer, Ask, Network, NetworkTimeouts, Payload, Retries, refusal};
use crate::{secret, unreadable};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use protocol::result::ResultRecord;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use text::one_line;

/// The longest answer, in bytes.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
/// Versions of a page.
const PAGE: u32 = 1000;
/// The most pages of versions.
const PAGES: usize = 100;
/// The longest name of a registered model, in characters.
const LONGEST_NAME: usize = 256;

/// MLflow's model registry, and the registered model in it that results become versions of.
pub struct Registry {
    network: Network,
    endpoint: Url,
    /// `Basic ..` or `Bearer ..`.
    token: Option<HeaderValue>,
    model: String,
}

/// A result in MLflow's model registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// The name of the registered model.
    pub model: String,
    /// The version, a number.
    pub version: String,
    /// Whether an earlier call has made it.
    pub was_registered: bool,
}

#[derive(Deserialize)]
struct Version {
    version: Value,
    #[serde(default)]
    source: String,
}

#[derive(Deserialize)]
struct CreatedVersion {
    model_version: Version,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionPage {
    model_versions: Vec<Version>,
    next_page_token: String,
}

type Result<T> = std::result::Result<T, PublishError>;

impl Registry {
    /// A registry at a tracking URI. No request is sent yet.
    ///
    /// The credentials may have `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
    ///
    /// # Errors
    /// If the URI is no server's, or the name or the credentials can't be used. A folder as tracking URI is refused.
    /// MLflow has no interface for writing to it except its own Python code, and no longer opens it unless it is forced
    /// to.
    pub fn open(
        uri: &str,
        model: &str,
        credentials: Option<&Path>,
        ca_bundle: Option<&Path>,
        patience: NetworkTimeouts,
    ) -> Result<Self> {
        let shown = one_line(&address::redacted(uri));
        let endpoint = Url::parse(uri).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(endpoint) = endpoint else {
            let is_folder = !uri.contains("://") || uri.starts_with("file:");
            return Err(PublishError::refused(match is_folder {
                true => format!(
                    "{shown}: models can't be registered in MLflow's file store, which is in maintenance mode; run \
                     mlflow server --backend-store-uri sqlite:///mlflow.db (mlflow migrate-filestore moves the data), \
                     and name its http:// URL"
                ),
                false => format!("{shown}: not the URL of an MLflow server; write http://HOST:PORT or https://HOST"),
            }));
        };
        if !endpoint.username().is_empty() || endpoint.password().is_some() || endpoint.query().is_some() {
            return Err(PublishError::refused(format!(
                "{shown}: credentials can't be part of it; put MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD \
                 into the credentials Secret"
            )));
        }
        let is_odd = |c: char| c.is_control() || matches!(c, '/' | ':' | '"' | '\'' | '`');
        if model.trim().is_empty() || model.contains(is_odd) || model.chars().count() > LONGEST_NAME {
            return Err(PublishError::refused(format!(
                "the registered model {} must have 1 to {LONGEST_NAME} characters without slashes, colons and quotes; \
                 correct its name",
                one_line(model)
            )));
        }
        let certificates = match ca_bundle {
            Some(file) => Some(std::fs::read(file).map_err(|error| unreadable(file, &error))?),
            None => secret(credentials, "ca.crt")?.map(String::into_bytes),
        };
        let network = Network::new(&endpoint, certificates.as_deref(), patience)?;
        Ok(Self { network, endpoint, token: token(credentials)?, model: model.to_owned() })
    }

    fn place(&self) -> String {
        format!("{} (registered model {})", crate::network::place(&self.endpoint), one_line(&self.model))
    }

    fn url(&self, path: &str) -> Result<Url> {
        let mut url = self.endpoint.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(["api", "2.0", "mlflow"]).extend(path.split('/'))),
            Err(()) => {
                return Err(PublishError::refused(format!("{}: it can't have a path; correct it", self.place())));
            }
        }
        Ok(url)
    }

    /// Sends a request, and retries after temporary failures.
    async fn ask(&self, method: Method, url: &Url, body: Option<&Value>) -> Result<Answer> {
        let mut tries = Retries::new(self.network.patience);
        loop {
            let json = HeaderValue::from_static("application/json");
            let headers = HeaderMap::from_iter([(ACCEPT, json.clone()), (CONTENT_TYPE, json)]);
            let payload = body.map_or(Payload::Empty, |body| Payload::Whole(body.to_string().into()));
            let (token, limit, is_slow) = (self.token.as_ref(), LONGEST_ANSWER, false);
            let failure = match self
                .network
                .send(Ask { method: method.clone(), url, headers, token, payload, is_slow, limit })
                .await
            {
                Ok(answer) => match self.refused(&answer) {
                    error if error.kind == crate::PublishErrorKind::Unavailable => error,
                    _ => return Ok(answer),
                },
                Err(error) => error,
            };
            tries.wait(failure).await?;
        }
    }

    fn refused(&self, answer: &Answer) -> PublishError {
        let body = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
        let said = body["message"].as_str().or(body["error_code"].as_str()).unwrap_or_default();
        let remedy = match (answer.status, &self.token) {
            (404, _) => "check that it is the URL of an MLflow server with a model registry",
            (_, None) => {
                "put MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, into the credentials \
                 Secret"
            }
            _ => "give this account the right to register models, or use another one",
        };
        refusal(&self.place(), answer, said, remedy)
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        if !StatusCode::from_u16(answer.status).is_ok_and(|status| status.is_success()) {
            return Err(self.refused(answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            let place = self.place();
            PublishError::refused(format!(
                "{place}: the answer is not what MLflow's API gives ({error}); check the tracking URI"
            ))
        })
    }

    /// Makes the registered model, unless it is there.
    async fn make_model(&self) -> Result<()> {
        let body = json!({"name": self.model});
        let answer = self.ask(Method::POST, &self.url("registered-models/create")?, Some(&body)).await?;
        let is_there = serde_json::from_slice::<Value>(&answer.body)
            .is_ok_and(|body| body["error_code"] == "RESOURCE_ALREADY_EXISTS");
        if is_there { Ok(()) } else { self.parse::<Value>(&answer).map(drop) }
    }

    /// The version whose source is `source`.
    async fn find(&self, source: &str) -> Result<Option<String>> {
        let mut page_token = String::new();
        for _ in 0..PAGES {
            let mut url = self.url("model-versions/search")?;
            {
                let mut query = url.query_pairs_mut();
                query.append_pair("filter", &format!("name='{}'", self.model));
                query.append_pair("max_results", &PAGE.to_string());
                if !page_token.is_empty() {
                    query.append_pair("page_token", &page_token);
                }
            }
            let found: VersionPage = self.parse(&self.ask(Method::GET, &url, None).await?)?;
            if let Some(version) = found.model_versions.iter().find(|version| version.source == source) {
                return Ok(Some(number(&version.version)));
            }
            page_token = found.next_page_token;
            if page_token.is_empty() {
                return Ok(None);
            }
        }
        Err(PublishError::refused(format!(
            "{}: the list of versions has no end after {PAGES} pages; check the tracking URI",
            self.place()
        )))
    }
}

/// Makes a published result a version of the registered model, unless it is one.
///
/// # Errors
/// What the server answers.
pub async fn register(registry: &Registry, record: &ResultRecord) -> Result<Registration> {
    // The branch of a hub moves, and its commit stays.
    let source = match (record.uri.starts_with("hf://"), &record.revision, record.uri.rsplit_once('@')) {
        (true, Some(commit), Some((repository, _))) => format!("{repository}@{commit}"),
        _ => record.uri.clone(),
    };
    let registration =
        |version, was_registered| Registration { model: registry.model.clone(), version, was_registered };
    registry.make_model().await?;
    if let Some(version) = registry.find(&source).await? {
        return Ok(registration(version, true));
    }
    let origin = &record.origin;
    let job = match (&origin.namespace, &origin.job) {
        (Some(namespace), Some(job)) => Some(format!("{namespace}/{job}")),
        (_, job) => job.clone(),
    };
    let tags = [
        ("trainingjob.job", job),
        ("trainingjob.uid", origin.uid.clone()),
        ("trainingjob.name", Some(record.name.clone())),
        ("trainingjob.digest", Some(record.digest.clone())),
        ("trainingjob.specDigest", origin.spec_digest.clone()),
        ("trainingjob.codeRevision", origin.code_revision.clone()),
    ];
    let tags: Vec<Value> =
        tags.into_iter().filter_map(|(key, value)| value.map(|value| json!({"key": key, "value": value}))).collect();
    let description = format!("{} files, {} bytes", record.file_count, record.bytes);
    let body = json!({"name": registry.model, "source": source, "tags": tags, "description": description});
    let answer = registry.ask(Method::POST, &registry.url("model-versions/create")?, Some(&body)).await?;
    let created: CreatedVersion = registry.parse(&answer)?;
    Ok(registration(number(&created.model_version.version), false))
}

/// A version, which some servers give as a number and others as text.
fn number(version: &Value) -> String {
    version.as_str().map_or_else(|| version.to_string(), one_line)
}

fn token(credentials: Option<&Path>) -> Result<Option<HeaderValue>> {
    let bearer = secret(credentials, "MLFLOW_TRACKING_TOKEN")?.map(|token| format!("Bearer {token}"));
    let user = secret(credentials, "MLFLOW_TRACKING_USERNAME")?;
    let password = secret(credentials, "MLFLOW_TRACKING_PASSWORD")?;
    let basic =
        user.zip(password).map(|(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))));
    let Some(text) = bearer.or(basic) else { return Ok(None) };
    let mut header = HeaderValue::try_from(text).map_err(|_| {
        PublishError::refused("MLFLOW_TRACKING_TOKEN in the credentials is no token; put one line into it")
    })?;
    header.set_sensitive(true);
    Ok(Some(header))
}
