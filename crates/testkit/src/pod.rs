//! A container without a kubelet.

use k8s_openapi::api::core::v1::Container;
use std::collections::BTreeMap;

/// Environment and arguments of a container as the kubelet makes them. `field` gives the value of a field of the pod.
pub fn as_the_kubelet_does(
    container: &Container,
    field: &dyn Fn(&str) -> String,
    secret: &[(&str, &str)],
) -> (BTreeMap<String, String>, Vec<String>) {
    let mut env = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let from = variable.value_from.as_ref();
        let value = if let Some(field_ref) = from.and_then(|from| from.field_ref.as_ref()) {
            field(&field_ref.field_path)
        } else if let Some(key) = from.and_then(|from| from.secret_key_ref.as_ref()) {
            match secret.iter().find(|(name, _)| *name == key.key) {
                Some((_, value)) => (*value).to_owned(),
                None if key.optional == Some(true) => continue,
                None => panic!("no key {} in the Secret: the pod would not start", key.key),
            }
        } else {
            expand(variable.value.as_deref().unwrap_or_default(), &env)
        };
        env.insert(variable.name.clone(), value);
    }
    let args = container.args.iter().flatten().map(|arg| expand(arg, &env)).collect();
    (env, args)
}

/// Replaces `$(NAME)` of a known variable, and two dollars by one.
fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(start) = rest.find('$') {
        out.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            match env.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}
