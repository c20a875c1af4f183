//! Delivery of the agent into the workers' pods. The cluster's capabilities decide, unless the administrator has chosen a
//! method.

use clap::ValueEnum;

/// Method by which the agent gets into a worker's pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// An init container copies it from its image. Every cluster supports this.
    #[default]
    Init,
    /// Its image is mounted as a volume.
    Image,
}

/// Delivery method requested by the administrator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AgentDelivery {
    /// By an image volume if the API server and the nodes support them, else by an init container.
    Auto,
    /// Always by an image volume.
    Image,
    /// Always by an init container.
    #[default]
    Init,
}

impl AgentDelivery {
    /// The requested method; `None` if the cluster decides.
    #[must_use]
    pub fn decided(self) -> Option<Delivery> {
        match self {
            Self::Auto => None,
            Self::Image => Some(Delivery::Image),
            Self::Init => Some(Delivery::Init),
        }
    }
}

/// The first version of Kubernetes in which image volumes are enabled without a feature gate.
const KUBERNETES: (u32, u32) = (1, 35);
/// The first versions of the container runtimes that support image volumes.
const RUNTIMES: [(&str, (u32, u32)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 33))];

/// Whether an API server of this version accepts image volumes. Some providers write a minor version as 35+.
#[must_use]
pub fn server_has_image_volumes(major: &str, minor: &str) -> bool {
    version(&format!("{major}.{minor}")).is_some_and(|version| version >= KUBERNETES)
}

/// Whether a node can run a pod with an image volume. `kubelet` is a version such as `v1.35.2-gke.100`, and `runtime` a
/// runtime such as `containerd://2.2.1`.
#[must_use]
pub fn node_has_image_volumes(kubelet: &str, runtime: &str) -> bool {
    let kubelet = version(kubelet.trim_start_matches('v'));
    let runtime = runtime.split_once("://").is_some_and(|(name, text)| {
        let least = RUNTIMES.iter().find(|(known, _)| *known == name).map(|(_, least)| *least);
        version(text.trim_start_matches('v')).zip(least).is_some_and(|(version, least)| version >= least)
    });
    kubelet.is_some_and(|version| version >= KUBERNETES) && runtime
}

/// The first two numbers of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_volumes_need_server_1_35() {
        for (major, minor, has) in [
            ("1", "34", false),
            ("1", "34+", false),
            ("1", "35", true),
            ("1", "35+", true),
            ("1", "36", true),
            ("2", "0", true),
            ("1", "", false),
            ("", "36", false),
        ] {
            assert_eq!(server_has_image_volumes(major, minor), has, "{major}.{minor}");
        }
    }

    #[test]
    fn image_volumes_need_recent_kubelet_and_runtime() {
        for (kubelet, runtime, has) in [
            ("v1.35.0", "containerd://2.2.1", true),
            ("v1.35.2-gke.100", "containerd://2.1.0", true),
            ("v1.36.0-rc.1", "cri-o://1.35.0", true),
            ("v1.35.1+k3s1", "containerd://v2.2.0-k3s1", true),
            ("v1.34.9", "containerd://2.2.1", false),
            ("v1.9.3", "containerd://2.2.1", false),
            // This kubelet still accepts it.
            ("v1.35.0", "containerd://1.7.28", false),
            ("v1.35.0", "containerd://2.0.5", false),
            ("v1.35.0", "containerd://Unknown", false),
            ("v1.35.0", "docker://28.0.1", false),
            ("v1.35.0", "", false),
            ("kwok-v0.7.0", "kwok", false),
            ("fake", "containerd://2.2.1", false),
            ("", "", false),
        ] {
            assert_eq!(node_has_image_volumes(kubelet, runtime), has, "{kubelet}, {runtime}");
        }
    }

    #[test]
    fn configured_delivery_overrides_detection() {
        let decided = [AgentDelivery::Auto, AgentDelivery::Image, AgentDelivery::Init].map(AgentDelivery::decided);
        assert_eq!(decided, [None, Some(Delivery::Image), Some(Delivery::Init)]);
    }
}
