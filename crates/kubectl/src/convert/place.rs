//! Where data comes from and goes to.

use super::ours::Ours;

/// A dataset or a model: a claim is mounted, anything else is told to the program by its name.
pub(super) fn source(ours: &mut Ours, field: &str, to: &str, uri: &str) {
    if let Some(claim) = claim(uri) {
        ours.set(to, claim);
        let at = if to == "model" { "/models" } else { "/data" };
        ours.notes.note(field, format!("is mounted at {at}"));
        return;
    }
    match uri.split_once("://") {
        None => ours.set(to, uri),
        Some((scheme, rest)) => {
            ours.set(to, rest.replace("://", "/").trim_matches('/'));
            let variable = to.to_uppercase();
            let says = format!(
                "{scheme}:// is not fetched here: the program finds the rest of it in {variable} and must load it itself, or \
                 it is put into a claim, as pvc://CLAIM/PATH"
            );
            ours.notes.lost(field, says);
        }
    }
}

/// The place of the results.
pub(super) fn output(ours: &mut Ours, field: &str, uri: &str) {
    match claim(uri) {
        Some(claim) => {
            ours.set("output", claim);
            ours.notes.note(field, "is mounted at /out, also in OUTPUT_DIR");
        }
        None => {
            let says = format!("nothing writes to {uri} here: a claim can be mounted, as output: pvc://CLAIM/PATH");
            ours.notes.lost(field, says);
        }
    }
}

/// The address of a claim, if it is one of ours.
fn claim(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("pvc://")?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let is_name = parts.first().is_some_and(|claim| plan::dns_subdomain(claim));
    (is_name && !parts.contains(&"..")).then(|| format!("pvc://{}", parts.join("/")))
}
