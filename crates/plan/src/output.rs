//! Where the program writes its results, and which of them are published.

use super::effective::Effective;
use super::storage::paths;
use super::{ClaimPath, Input, Refusals, Source};
use address::Address;
use api::{TrainingJob, TrainingJobStatus};
use protocol::result::{BaseModel, Origin};
use std::collections::BTreeMap;

/// Where the program writes its results.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A folder of a claim, which is mounted.
    Claim(ClaimPath),
    /// A folder on the volume of the checkpoints, from which a Job publishes the result.
    Published(Box<Publishing>),
}

impl Output {
    /// How the result is published, if it is.
    #[must_use]
    pub fn publishing(&self) -> Option<&Publishing> {
        match self {
            Self::Claim(_) => None,
            Self::Published(publishing) => Some(publishing),
        }
    }
}

/// How a result is published.
#[derive(Clone, Debug, PartialEq)]
pub struct Publishing {
    /// Canonical address.
    pub uri: String,
    /// Name of the publication: JOB-UID.
    pub name: String,
    /// Folder of the result, from the root of the checkpoints' volume.
    pub folder: String,
    /// The registered model that gets a version, if one does.
    pub register: Option<Registering>,
    /// What the result was made from, with the metrics of the last status.
    pub origin: Origin,
}

/// The registered model that gets a version for a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registering {
    /// Tracking URI of the MLflow server.
    pub mlflow: String,
    /// Name of the registered model.
    pub model: String,
}

/// Annotation of a TrainingJob with the revision of its program's code.
pub const CODE_REVISION: &str = "ml.example.com/code-revision";
/// The longest code revision that is kept, in characters.
const LONGEST_REVISION: usize = 128;

pub(super) fn resolve(
    job: &TrainingJob,
    effective: &Effective,
    inputs: &[Input],
    errors: &mut Refusals,
) -> Option<Output> {
    let spec = &effective.spec;
    let uri = spec.output.as_deref()?;
    if uri.starts_with("pvc://") || !uri.contains("://") {
        return ClaimPath::resolve("spec.output", uri, errors).map(Output::Claim);
    }
    let address = match Address::parse_result(uri) {
        Ok(address) => address,
        Err(error) => {
            errors.push("spec.output", error.to_string());
            return None;
        }
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let name = format!("{}-{}", text(&job.metadata.name), text(&job.metadata.uid));
    let monitoring = &spec.monitoring;
    let register = monitoring.mlflow_registered_model.clone().zip(monitoring.mlflow_tracking_uri.clone());
    let revision = job.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CODE_REVISION));
    let origin = Origin {
        job: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        image: spec.image.clone(),
        spec_digest: Some(effective.intent()),
        metrics: job.status.as_ref().map(metrics).unwrap_or_default(),
        base_models: inputs.iter().map(base_model).collect(),
        code_revision: revision.map(|revision| revision.chars().take(LONGEST_REVISION).collect()),
    };
    Some(Output::Published(Box::new(Publishing {
        uri: address.to_string(),
        folder: format!("{}/{name}", paths::RESULTS),
        name,
        register: register.map(|(model, mlflow)| Registering { mlflow, model }),
        origin,
    })))
}

fn base_model(input: &Input) -> BaseModel {
    let (uri, revision) = match &input.source {
        Source::Name(text) | Source::Stream(text) => (text.clone(), None),
        Source::Claim(place) => {
            let path = place.path.as_deref().map(|path| format!("/{path}")).unwrap_or_default();
            (format!("pvc://{}{path}", place.claim), None)
        }
        Source::Image(reference) => (format!("oci://{reference}"), None),
        Source::Fetch { uri, fetched } => (uri.clone(), fetched.as_ref().map(|fetched| fetched.revision.clone())),
    };
    BaseModel { uri, revision }
}

/// Metrics of the program, by their names in the status.
fn metrics(status: &TrainingJobStatus) -> BTreeMap<String, f64> {
    let Some(metrics) = &status.metrics else { return BTreeMap::new() };
    let ours = [("loss", metrics.loss), ("accuracy", metrics.accuracy), ("learningRate", metrics.learning_rate)];
    let ours = ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    ours.chain(metrics.custom_metrics.clone()).collect()
}
