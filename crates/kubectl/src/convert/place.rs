//! Where data comes from and goes to.

use super::converted::ConvertedJob;
use address::{Address, ContentKind};
use serde_json::{Value, json};

/// Claim named as the cache. The original has none, because each of its jobs has its own volume.
const CACHE: &str = "cache";

/// Size of the claim that holds a result until it is published. The original has none.
const VOLUME: &str = "50Gi";

/// Sets a dataset or a model: a claim to mount, an address to fetch, or a name to pass to the program.
pub(super) fn source(ours: &mut ConvertedJob, field: &str, to: &str, uri: &str) {
    if let Some(claim) = claim(uri) {
        ours.set(to, claim);
        let at = if to == "model" { "/models" } else { "/data" };
        ours.notes.note(field, format!("is mounted at {at}"));
        return;
    }
    let kind = if to == "model" { ContentKind::Model } else { ContentKind::Dataset };
    match (uri.split_once("://"), Address::parse(uri, kind)) {
        (None, _) => ours.set(to, uri),
        (Some(_), Ok(Address::Image(_))) => {
            ours.set(to, uri);
            ours.notes.note(field, "is an image, which is mounted in clusters with image volumes");
        }
        (Some(_), Ok(_)) => {
            ours.set(to, uri);
            ours.set("cache", json!({ "pvcName": CACHE }));
            let says = format!(
                "is fetched before the workers start into the claim {CACHE}, which must be there: all workers mount it. Write \
                 the name of yours into cache.pvcName"
            );
            ours.notes.note(field, says);
        }
        (Some((_, rest)), Err(error)) => {
            ours.set(to, rest.replace("://", "/").trim_matches('/'));
            let variable = to.to_uppercase();
            let says = format!("is not fetched, the program finds the rest of it in {variable}: {error}");
            ours.notes.lost(field, says);
        }
    }
}

/// Sets the Secret with which a dataset or a model is fetched.
pub(super) fn credentials(ours: &mut ConvertedJob, field: &str, secret: &str) {
    match ours.get("credentialsSecret").and_then(Value::as_str).map(str::to_owned) {
        Some(other) if other != secret => {
            let says = format!("a job has one Secret for all addresses: add its keys to those of {other}");
            ours.notes.lost(field, says);
        }
        _ => {
            ours.set("credentialsSecret", secret);
            let says = "its keys must have the names of the stores' clients: HF_TOKEN, AWS_ACCESS_KEY_ID, \
                        AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL";
            ours.notes.note(field, says);
        }
    }
}

/// Sets the place of the results.
pub(super) fn output(ours: &mut ConvertedJob, field: &str, uri: &str) {
    match claim(uri) {
        Some(claim) => {
            ours.set("output", claim);
            ours.notes.note(field, "is mounted at /out, also in OUTPUT_DIR");
        }
        None => match Address::parse_result(uri) {
            Ok(address) => {
                ours.set("output", address.to_string());
                ours.set("checkpoint.storage", json!({ "type": "pvc", "size": VOLUME }));
                let says = format!(
                    "what the program writes to OUTPUT_DIR is published there when it has succeeded. Until then it is on the \
                     volume of checkpoint.storage, a claim of {VOLUME} that is made for the job"
                );
                ours.notes.note(field, says);
            }
            Err(error) => ours.notes.lost(field, format!("nothing is published there: {error}")),
        },
    }
}

/// Parses the address of a claim, if it has our form.
fn claim(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("pvc://")?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let is_name = parts.first().is_some_and(|claim| plan::dns_subdomain(claim));
    (is_name && !parts.contains(&"..")).then(|| format!("pvc://{}", parts.join("/")))
}
