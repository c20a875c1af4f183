//! Kubeflow's PaddleJob.

use super::fields::{ConvertError, Fields};
use super::kubeflow::{self, Kind};
use super::{converted::ConvertedJob, gang};

const KIND: Kind = Kind { roles: "paddleReplicaSpecs", container: "paddle", port: "master", restart: "OnFailure" };

pub(super) fn convert(ours: &mut ConvertedJob, mut spec: Fields) -> Result<(), ConvertError> {
    let roles = kubeflow::roles(&KIND, &["Master", "Worker"], ours, &mut spec)?;
    kubeflow::workers(&KIND, ours, &roles)?;
    gang::framework(ours, "paddle");
    // The original's Master pods are servers, not ranks.
    if let Some(servers) = roles.iter().find(|role| role.name == "Master") {
        ours.hold(
            &servers.path,
            "makes it a job of parameter servers, which framework paddle does not set up: here they are workers",
        );
    }
    spec.lose("elasticPolicy", &mut ours.notes, "is Paddle's own elastic training, which has no place here");
    kubeflow::policy(ours, spec, &roles)
}
