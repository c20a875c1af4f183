//! Grace periods: that of a pod, and the part of it for the program.

use super::Refusals;
use super::template::TRAINING;
use k8s_openapi::api::core::v1::PodTemplateSpec;

/// Grace period in seconds, unless the template sets one.
const DEFAULT: i64 = 60;

/// Grace period of a pod.
pub(super) struct Grace {
    /// Seconds for the whole pod.
    pub pod: i64,
    /// Seconds for its program, from SIGTERM on.
    pub program: i64,
}

/// Computes the grace period. `field` is the path of the template.
pub(super) fn resolve(field: &str, overlay: &PodTemplateSpec, errors: &mut Refusals) -> Grace {
    let written = overlay.spec.as_ref().and_then(|pod| pod.termination_grace_period_seconds);
    let pod = written.unwrap_or(DEFAULT);
    // The pod's seconds begin before the hook, and SIGTERM follows after it.
    let mut left = pod;
    if let Some((index, seconds)) = sleep(overlay).filter(|(_, seconds)| *seconds > 0) {
        left = pod.saturating_sub(seconds);
        if left <= 0 {
            errors.push(
                format!("{field}.spec.containers[{index}].lifecycle.preStop.sleep.seconds"),
                format!(
                    "is {seconds} of the {pod} s that the pod has to stop, and the program would be killed without a \
                     SIGTERM: write less, or raise {field}.spec.terminationGracePeriodSeconds"
                ),
            );
        }
    }
    // The agent kills the remaining processes in time to report that, before the kubelet kills the agent.
    let program = (left.saturating_mul(3) / 4).max(1);
    Grace { pod, program }
}

/// Seconds that the program's container sleeps before SIGTERM, with its index in the list. The duration of other kinds of
/// hooks is unknown in advance.
fn sleep(overlay: &PodTemplateSpec) -> Option<(usize, i64)> {
    let containers = &overlay.spec.as_ref()?.containers;
    let (index, training) = containers.iter().enumerate().find(|(_, container)| container.name == TRAINING)?;
    Some((index, training.lifecycle.as_ref()?.pre_stop.as_ref()?.sleep.as_ref()?.seconds))
}
