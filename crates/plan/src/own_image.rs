//! The image that delivers the agent into the workers' pods, unless the administrator names one: that of the operator's own
//! pod.
//!
//! The digest is used if it is known. A tag may refer to another image tomorrow, or on another node.

use k8s_openapi::api::core::v1::Pod;

/// The operator's image, as named by its own pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnImage {
    /// Image by digest if the node reports one from the same repository, else as in the pod's spec.
    pub image: String,
    /// Pull policy of the container.
    pub pull_policy: Option<String>,
    /// Whether the node has yet to report the digest. Kubelets do so shortly after a container's start.
    pub awaits_digest: bool,
}

/// Name of the operator's container in `deploy/`.
const CONTAINER: &str = "operator";

/// The image of the container `operator`, or of the only container. A service mesh may insert its proxy before it. `None`
/// if there is neither.
#[must_use]
pub fn own_image(pod: &Pod) -> Option<OwnImage> {
    let containers = &pod.spec.as_ref()?.containers;
    let container = match containers.as_slice() {
        [only] => only,
        several => several.iter().find(|container| container.name == CONTAINER)?,
    };
    let (image, pull_policy) = (container.image.clone()?, container.image_pull_policy.clone());
    // With policy Never the image was loaded into the nodes, where it may have no digest.
    if image.contains('@') || pull_policy.as_deref() == Some("Never") {
        return Some(OwnImage { image, pull_policy, awaits_digest: false });
    }
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let own = statuses.into_iter().flatten().find(|status| status.name == container.name);
    // Until it is reported as running, the ID may be that of the container before it.
    let running = own.filter(|own| own.state.as_ref().is_some_and(|state| state.running.is_some()));
    Some(OwnImage {
        image: running.and_then(|running| pinned(&image, &running.image_id)).unwrap_or(image),
        pull_policy,
        awaits_digest: running.is_none(),
    })
}

/// The image by the digest in a runtime's image ID: `docker-pullable://REPOSITORY@sha256:...`, usually without the scheme.
fn pinned(image: &str, id: &str) -> Option<String> {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    let (its_repository, digest) = id.split_once('@')?;
    let (algorithm, hash) = digest.split_once(':')?;
    let is_digest = !algorithm.is_empty() && hash.len() >= 32 && hash.chars().all(|c| c.is_ascii_hexdigit());
    // The tag is removed, because some runtimes refuse a reference that has both.
    let own = repository(image);
    (is_digest && full_name(own) == full_name(its_repository)).then(|| format!("{own}@{digest}"))
}

/// An image's name without its tag. The port of a registry is not a tag.
fn repository(image: &str) -> &str {
    let name = image.rfind('/').map_or(0, |slash| slash + 1);
    image[name..].find(':').map_or(image, |colon| &image[..name + colon])
}

/// The full name of a repository with its optional parts: `docker.io/library/NAME`.
fn full_name(repository: &str) -> String {
    let is_registry = |host: &str| host.contains(['.', ':']) || host == "localhost";
    let (host, path) = match repository.split_once('/') {
        Some((host, path)) if is_registry(host) => (host, path),
        _ => ("docker.io", repository),
    };
    match (host, path.contains('/')) {
        ("docker.io" | "index.docker.io", false) => format!("docker.io/library/{path}"),
        ("docker.io" | "index.docker.io", true) => format!("docker.io/{path}"),
        _ => format!("{host}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn digest_replaces_tag_of_same_repository() {
        for (image, id, expected) in [
            // containerd and CRI-O.
            ("registry.example/ml/operator:1", "registry.example/ml/operator@", Some("registry.example/ml/operator@")),
            ("registry.example/ml/operator", "registry.example/ml/operator@", Some("registry.example/ml/operator@")),
            // cri-dockerd.
            ("r.example/operator:1", "docker-pullable://r.example/operator@", Some("r.example/operator@")),
            // A port is no tag.
            ("r.example:5000/operator", "r.example:5000/operator@", Some("r.example:5000/operator@")),
            ("r.example:5000/operator:1", "r.example:5000/operator@", Some("r.example:5000/operator@")),
            ("localhost:5000/operator:1", "localhost:5000/operator@", Some("localhost:5000/operator@")),
            ("r.example:5000/operator:1", "r.example/operator@", None),
            // Docker Hub's names may omit these parts.
            ("operator:1", "docker.io/library/operator@", Some("operator@")),
            ("ml/operator:1", "docker.io/ml/operator@", Some("ml/operator@")),
            ("docker.io/operator:1", "docker-pullable://operator@", Some("docker.io/operator@")),
            ("ml/operator:1", "docker.io/library/operator@", None),
            ("localhost/operator:1", "docker.io/localhost/operator@", None),
            // From a mirror, or loaded into the node under another name.
            ("registry.example/operator:1", "mirror.example/operator@", None),
            ("operator:1", "docker.io/library/import-2026-11-25@", None),
        ] {
            let found = pinned(image, &format!("{id}{DIGEST}"));
            assert_eq!(found, expected.map(|name| format!("{name}{DIGEST}")), "{image}, {id}");
        }
    }

    #[test]
    fn image_id_without_repository_and_digest_is_not_pinned() {
        for id in [
            "",
            DIGEST,
            &format!("docker://{DIGEST}"),
            "operator@",
            "operator@sha256:",
            "operator@sha256:x",
            "operator:1",
        ] {
            assert_eq!(pinned("operator:1", id), None, "{id}");
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "as the tests write it")]
    fn own(image: &str, policy: Option<&str>, statuses: Value) -> OwnImage {
        let spec = json!({ "containers": [{ "name": "operator", "image": image, "imagePullPolicy": policy }] });
        let pod = json!({ "spec": spec, "status": { "containerStatuses": statuses } });
        own_image(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn status(container: &str, state: &str) -> Value {
        json!({
            "name": container, "image": "i", "imageID": format!("r.example/operator@{DIGEST}"), "ready": false,
            "restartCount": 0, "state": { state: if state == "terminated" { json!({ "exitCode": 0 }) } else { json!({}) } },
        })
    }

    #[test]
    fn digest_is_taken_from_running_container() {
        let pinned = format!("r.example/operator@{DIGEST}");
        let of = |statuses| own("r.example/operator:1", Some("IfNotPresent"), statuses);
        let policy = Some("IfNotPresent".to_owned());
        let known = OwnImage { image: pinned, pull_policy: policy.clone(), awaits_digest: false };
        assert_eq!(of(json!([status("other", "running"), status("operator", "running")])), known);
        let unknown = OwnImage { image: "r.example/operator:1".to_owned(), pull_policy: policy, awaits_digest: true };
        let early = [Value::Null, json!([]), json!([status("other", "running")])];
        let stale = ["waiting", "terminated"].map(|state| json!([status("operator", state)]));
        for statuses in early.into_iter().chain(stale) {
            assert_eq!(of(statuses.clone()), unknown, "{statuses}");
        }
    }

    /// Istio and Linkerd insert their container first if programs must wait for it.
    #[test]
    fn operator_container_is_found_at_any_position() {
        let image = |names: &[&str]| {
            let containers: Vec<_> =
                names.iter().map(|name| json!({ "name": name, "image": format!("r.example/{name}:1") })).collect();
            let pod = json!({ "metadata": {}, "spec": { "containers": containers } });
            own_image(&serde_json::from_value(pod).unwrap()).map(|own| own.image)
        };
        let own = Some("r.example/operator:1".to_owned());
        assert_eq!(image(&["istio-proxy", "operator"]), own);
        assert_eq!(image(&["operator", "istio-proxy"]), own);
        assert_eq!(image(&["controller"]), Some("r.example/controller:1".to_owned()), "the only one");
        assert_eq!(image(&["istio-proxy", "controller"]), None, "which is it?");
        assert_eq!(image(&[]), None);
    }

    #[test]
    fn pinned_or_never_pulled_image_is_unchanged() {
        let running = || json!([status("operator", "running")]);
        let written = "r.example/operator:1@sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
        for (image, policy) in [(written, "IfNotPresent"), ("r.example/operator:1", "Never")] {
            let expected =
                OwnImage { image: image.to_owned(), pull_policy: Some(policy.to_owned()), awaits_digest: false };
            assert_eq!(own(image, Some(policy), running()), expected);
            assert_eq!(own(image, Some(policy), Value::Null), expected);
        }
        assert_eq!(own_image(&Pod::default()), None);
    }
}
