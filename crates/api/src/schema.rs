//! The CRD: the derived schema, reduced and completed so that it can be applied.

use super::{
    Rule, RuntimeKind, RuntimeParameter, TrainingJob, TuningJob, defaults,
    rules::{self, MUTABLE, RULES},
    runtime::PARAMETER_RULES,
    tuning_rules::{TUNING_CHANGES, TUNING_JOB_RULES, TUNING_RULES},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames, JSONSchemaProps,
    JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube::CustomResourceExt;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

/// Fields with types of Kubernetes, which contain hundreds of descriptions.
const EMBEDDED: [&str; 7] = [
    "spec.env[]",
    "spec.envFrom[]",
    "spec.volumes[]",
    "spec.volumeMounts[]",
    "spec.imagePullSecrets[]",
    "spec.scheduling.affinity",
    "spec.scheduling.tolerations[]",
];

/// Fields that keep only their own description. A quantity alone takes two pages, a variable is already described in
/// `spec.env`, and a search in TuningJob.
const PLAIN: [&str; 7] = [
    "spec.hyperParameterTuningConfig",
    "spec.resources.requests",
    "spec.resources.limits",
    "spec.roles[].env[]",
    "spec.roles[].podTemplate",
    "spec.roles[].resources.requests",
    "spec.roles[].resources.limits",
];

/// Length limits that the types of Kubernetes lack. The API server needs them to estimate the cost of a rule.
const LENGTHS: [(&str, i64); 21] = [
    ("spec.runtimeRef.parameters{}", 1024),
    ("spec.labels{}", 63),
    ("spec.annotations{}", 2048),
    ("spec.env[].name", 253),
    ("spec.volumes[].name", 63),
    ("spec.volumeMounts[].name", 63),
    ("spec.volumeMounts[].mountPath", 1024),
    ("spec.imagePullSecrets[].name", 253),
    ("spec.resources.requests{}", 64),
    ("spec.resources.limits{}", 64),
    ("spec.checkpoint.storage.size", 64),
    ("spec.hyperparameters.additionalParams{}", 4096),
    ("spec.scheduling.nodeSelector{}", 63),
    ("spec.checkpoint.resumeArgs[]", 4096),
    ("spec.roles[].env[].name", 253),
    ("spec.roles[].resources.requests{}", 64),
    ("spec.roles[].resources.limits{}", 64),
    ("spec.roles[].command[]", 131_071),
    ("spec.roles[].args[]", 131_071),
    ("spec.command[]", 131_071),
    ("spec.args[]", 131_071),
];

/// The CustomResourceDefinition as applied.
///
/// # Panics
/// If a path in the tables names no field, which the tests detect.
#[must_use]
#[expect(clippy::expect_used, reason = "the derived CRD has these parts, which every run of crdgen shows")]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = TrainingJob::crd();
    let root = crd
        .spec
        .versions
        .first_mut()
        .and_then(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
        .expect("the derived CRD has one version with a schema");
    root.description =
        Some("One distributed training: a gang of workers that starts, fails and restarts together.".into());
    root.title = None;
    // Without a length here the API server takes any rule about the name for too expensive.
    let name = JSONSchemaProps { type_: Some("string".into()), max_length: Some(253), ..JSONSchemaProps::default() };
    let metadata = JSONSchemaProps {
        type_: Some("object".into()),
        properties: Some([("name".to_owned(), name)].into()),
        ..JSONSchemaProps::default()
    };
    root.properties.get_or_insert_default().insert("metadata".into(), metadata);
    for path in EMBEDDED {
        // Readers of `kubectl explain` need the first sentences of the first level. All levels take 230 kB.
        for_each_child(at(root, path), &mut |field| {
            keep_first_sentence(field);
            for_each_child(field, &mut forget_descriptions);
        });
    }
    for path in PLAIN {
        for_each_child(at(root, path), &mut forget_descriptions);
    }
    for (path, length) in LENGTHS {
        at(root, path).max_length = Some(length);
    }
    for_each_child(root, &mut tidy);
    for (path, default) in defaults::all() {
        describe_default(at(root, &format!("spec.{path}")), &default);
    }
    for rule in RULES {
        let entry = rule.message_expression();
        // A job with a template is exempt: before it runs, the operator checks the effective spec by these rules.
        let cel = if rule.at == "spec" { format!("has(self.runtimeRef) || ({})", rule.cel()) } else { rule.cel() };
        add(
            at(root, rule.at),
            ValidationRule { message_expression: entry, ..refusal(cel, rule.message(), rule.field) },
        );
    }
    add_rules(root, "spec.hyperParameterTuningConfig", TUNING_RULES);
    forbid_changes(at(root, "spec"));
    forbid_changes_of_running(root);
    forbid_other_size(root);
    crd
}

/// Adds rules whose paths begin at `base`.
fn add_rules(root: &mut JSONSchemaProps, base: &str, rules: &[Rule]) {
    for rule in rules {
        let path = [base, rule.at].join(".");
        let entry = rule.message_expression();
        add(
            at(root, path.trim_matches('.')),
            ValidationRule { message_expression: entry, ..refusal(rule.cel(), rule.message(), rule.field) },
        );
    }
}

/// The CustomResourceDefinition of TuningJob. The operator validates the template by a dry run, because the rules of a
/// TrainingJob would count against the limits of this kind as well.
///
/// # Panics
/// If the derived CRDs have no schema, which the tests detect.
#[must_use]
#[expect(clippy::expect_used, reason = "the derived CRDs have these parts, which every run of crdgen shows")]
pub fn tuning_crd() -> CustomResourceDefinition {
    let mut job = crd();
    let job = root_of(&mut job).expect("a TrainingJob has a schema");
    forget_rules(job);
    let mut template = at(job, "spec").clone();
    template.description = Some(
        "Spec of the trials, as in a TrainingJob. It is validated when the TuningJob is accepted. Each trial has its own \
         checkpoints and results."
            .into(),
    );
    template.properties.get_or_insert_default().retain(|name, _| !NOT_IN_TRIALS.contains(&name.as_str()));
    let name = job.properties.get_or_insert_default().get("metadata").cloned().expect("it limits the name");
    let mut crd = TuningJob::crd();
    let root = root_of(&mut crd).expect("a TuningJob has a schema");
    root.description = Some("A hyperparameter search whose trials are TrainingJobs.".into());
    root.title = None;
    root.properties.get_or_insert_default().insert("metadata".into(), name);
    for_each_child(root, &mut tidy);
    *at(root, "spec.template.spec") = template;
    for path in ["status.trials[].values[]", "status.earlier[].values[]"] {
        at(root, path).nullable = Some(true);
    }
    add_rules(root, "spec", TUNING_RULES);
    add_rules(root, "", TUNING_JOB_RULES);
    let (rule, message) = TUNING_CHANGES;
    add(at(root, "spec"), refusal(rule.to_owned(), message.to_owned(), ""));
    crd
}

/// Fields of a TrainingJob's spec that the template of a search does not have.
pub const NOT_IN_TRIALS: [&str; 3] = ["code", "hyperParameterTuningConfig", "suspend"];

fn root_of(crd: &mut CustomResourceDefinition) -> Option<&mut JSONSchemaProps> {
    crd.spec.versions.first_mut()?.schema.as_mut()?.open_api_v3_schema.as_mut()
}

/// Fields of a TrainingJob's spec that a template does not have.
pub const NOT_IN_RUNTIMES: [&str; 4] = ["code", "hyperParameterTuningConfig", "runtimeRef", "suspend"];

/// The CustomResourceDefinition of a kind of template: a TrainingJob's spec without required fields. The operator validates
/// the merged spec when a job uses the template.
///
/// # Panics
/// If the derived CRD has no schema, which the tests detect.
#[must_use]
#[expect(clippy::expect_used, reason = "the derived CRD has these parts, which every run of crdgen shows")]
pub fn runtime_crd(kind: RuntimeKind) -> CustomResourceDefinition {
    let mut crd = crd();
    let (singular, short) = match kind {
        RuntimeKind::ClusterTrainingRuntime => ("clustertrainingruntime", "ctr"),
        RuntimeKind::TrainingRuntime => ("trainingruntime", "tr"),
    };
    crd.metadata.name = Some(format!("{}.{}", kind.plural(), crd.spec.group));
    crd.spec.names = CustomResourceDefinitionNames {
        kind: kind.as_str().into(),
        list_kind: Some(format!("{}List", kind.as_str())),
        plural: kind.plural().into(),
        singular: Some(singular.into()),
        short_names: Some(vec![short.into()]),
        categories: None,
    };
    let is_of_cluster = kind == RuntimeKind::ClusterTrainingRuntime;
    crd.spec.scope = if is_of_cluster { "Cluster" } else { "Namespaced" }.into();
    let version = crd.spec.versions.first_mut().expect("the derived CRD has one version");
    version.subresources = None;
    let column = |name: &str, type_: &str, json_path: &str| CustomResourceColumnDefinition {
        name: name.into(),
        type_: type_.into(),
        json_path: json_path.into(),
        ..CustomResourceColumnDefinition::default()
    };
    version.additional_printer_columns = Some(vec![
        column("Framework", "string", ".spec.framework"),
        column("Workers", "integer", ".spec.numWorkers"),
        column("GPUs", "integer", ".spec.gpusPerWorker"),
        column("Image", "string", ".spec.image"),
        column("Age", "date", ".metadata.creationTimestamp"),
    ]);
    let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
    let root = root.expect("it has a schema");
    root.description = Some("What TrainingJobs begin with that name it in spec.runtimeRef.".into());
    forget_rules(root);
    let fields = root.properties.get_or_insert_default();
    fields.retain(|name, _| name == "spec");
    let spec = fields.get_mut("spec").expect("a TrainingJob has a spec");
    spec.required = None;
    let fields = spec.properties.get_or_insert_default();
    fields.retain(|name, _| !NOT_IN_RUNTIMES.contains(&name.as_str()));
    fields.insert("parameters".to_owned(), runtime_parameters());
    crd
}

/// The parameters of a template.
#[expect(clippy::expect_used, reason = "the derived schema has this form, which every run of crdgen shows")]
fn runtime_parameters() -> JSONSchemaProps {
    let generator = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true).into_generator();
    let mut entry = generator.into_root_schema_for::<RuntimeParameter>();
    ["$schema", "title", "description"].iter().for_each(|key| drop(entry.remove(*key)));
    let mut entry: JSONSchemaProps = serde_json::from_value(entry.to_value()).expect("it is a schema");
    for_each_child(&mut entry, &mut tidy);
    for (rule, message) in PARAMETER_RULES {
        add(&mut entry, refusal(rule.to_owned(), message.to_owned(), ""));
    }
    JSONSchemaProps {
        type_: Some("array".into()),
        description: Some(
            "Parameters of the template, at most 32. `$<params.NAME>` in text of this spec is replaced by the value that a job \
             gives in `runtimeRef.parameters`."
                .into(),
        ),
        max_items: Some(32),
        items: Some(JSONSchemaPropsOrArray::Schema(Box::new(entry))),
        x_kubernetes_list_type: Some("map".into()),
        x_kubernetes_list_map_keys: Some(vec!["name".into()]),
        ..JSONSchemaProps::default()
    }
}

fn forget_rules(schema: &mut JSONSchemaProps) {
    schema.x_kubernetes_validations = None;
    for_each_child(schema, &mut forget_rules);
}

/// An object that was validated elsewhere.
pub(super) fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// An object whose fields the API server keeps without a schema; the crate `plan` validates it.
pub(super) fn pod_template(_: &mut SchemaGenerator) -> Schema {
    let part = |description| serde_json::json!({ "description": description, "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json_schema!({
        "type": "object",
        "properties": {
            "metadata": part("Labels and annotations of the workers."),
            "spec": part("As in a Pod; checked when the job is accepted."),
        },
    })
}

/// Adds the rule that compares the job with its old version. It is attached to the spec, because a rule at a field is not
/// evaluated when the field is added or removed.
///
/// One rule covers all fields and first checks whether anything changed. A status update changes nothing in the spec, and
/// for each property that a rule names the API server searches all properties.
fn forbid_changes(spec: &mut JSONSchemaProps) {
    let fixed: Vec<_> = fixed_fields(spec)
        .into_iter()
        .filter(|path| !rules::is_changeable(path))
        .map(|path| same_at(spec, "", path))
        .collect();
    let same = all_same(&fixed);
    let reported = rules::immutable_message(&"%s".repeat(fixed.len())).replace('\'', "\\'");
    add(
        spec,
        ValidationRule {
            message_expression: Some(format!("'{reported}'.format([{}])", changed(&fixed))),
            ..refusal(format!("self == oldSelf || {same}"), rules::immutable_message(" this;"), "")
        },
    );
}

/// Adds the rule for fields that may change while no program runs. Only the root sees the status.
fn forbid_changes_of_running(root: &mut JSONSchemaProps) {
    let spec = at(root, "spec");
    let fixed: Vec<_> = fixed_fields(spec)
        .into_iter()
        .filter(|path| rules::is_changeable(path))
        .map(|path| same_at(spec, "spec.", path))
        .collect();
    let same = all_same(&fixed);
    let text = |reported: String| format!("'{}'", reported.replace('\'', "\\'"));
    let fields = "%s".repeat(fixed.len());
    let [running, completed] = [rules::running_message(&fields), rules::completed_message(&fields)].map(text);
    let reported = format!(
        "(has(self.status) && has(self.status.state) && self.status.state == 'Completed' ? {completed} : {running}).format([{}])",
        changed(&fixed)
    );
    add(
        root,
        ValidationRule {
            message_expression: Some(reported),
            ..refusal(
                format!("self.spec == oldSelf.spec || {} || {same}", rules::NO_PROGRAM_RUNS),
                rules::running_message(" this;"),
                ".spec",
            )
        },
    );
}

/// The fields that may not change at any time, as paths below the spec.
fn fixed_fields(spec: &JSONSchemaProps) -> Vec<String> {
    let within = |name: &str| {
        let tables = [&rules::MUTABLE_WITHIN[..], &rules::CHANGEABLE_WITHIN[..]];
        tables.into_iter().flatten().any(|(object, _)| *object == name)
    };
    let is_mutable = |object: &str, field: &str| {
        rules::MUTABLE_WITHIN.iter().any(|(known, fields)| *known == object && fields.contains(&field))
    };
    let mut all = Vec::new();
    for (name, field) in spec.properties.iter().flatten().filter(|(name, _)| !MUTABLE.contains(&name.as_str())) {
        // The pods of a job mount it, or they don't.
        if !within(name) || name == "code" {
            all.push(name.clone());
            continue;
        }
        let parts = field.properties.iter().flatten().filter(|(part, _)| !is_mutable(name, part));
        all.extend(parts.map(|(part, _)| format!("{name}.{part}")));
    }
    all
}

/// A path, and CEL for whether its field is unchanged.
fn same_at(spec: &mut JSONSchemaProps, root: &str, path: String) -> (String, String) {
    let same = match path.as_str() {
        "code" => format!("has(self.{root}code) == has(oldSelf.{root}code)"),
        // Of a job with a template see `forbid_other_size`.
        "numWorkers" => format!(
            "has(self.{root}elastic) || has(self.{root}runtimeRef) || {}",
            unchanged(root, "", &path, at(spec, &path))
        ),
        _ => unchanged(root, "", &path, at(spec, &path)),
    };
    (path, same)
}

fn all_same(fixed: &[(String, String)]) -> String {
    fixed.iter().map(|(_, same)| format!("({same})")).collect::<Vec<_>>().join(" && ")
}

/// CEL for a list with an entry for each field that has changed, and empty texts for the others.
fn changed(fixed: &[(String, String)]) -> String {
    // Joining a list is too expensive in the eyes of the API server, whatever its length; this is not.
    let entry = |(field, same): &(String, String)| format!("({same}) ? '' : '{}'", rules::immutable(field));
    fixed.iter().map(entry).collect::<Vec<_>>().join(", ")
}

/// Adds the same check for the number of workers of a job with a template. Only the status shows whether its template makes
/// it elastic.
fn forbid_other_size(root: &mut JSONSchemaProps) {
    let same = unchanged("spec.", "", "numWorkers", at(root, "spec.numWorkers"));
    let rule = format!(
        "!has(self.spec.runtimeRef) || has(self.spec.elastic) || has(self.status) && has(self.status.elastic) || {} || {same}",
        rules::NO_PROGRAM_RUNS
    );
    let message = rules::running_message(&rules::immutable("numWorkers"));
    add(root, refusal(rule, message, ".spec.numWorkers"));
}

/// Returns CEL for whether the effective value of the field at `path` is unchanged. `path` begins at `sure`, an object of the spec
/// that exists in both versions. `at` leads from the place of the rule to the spec.
///
/// Adding or removing an explicit default is no change. Versions with defaults in the schema have stored all of them.
/// Replacing such a job with its original file is not meant as a change.
fn unchanged(at: &str, sure: &str, path: &str, field: &JSONSchemaProps) -> String {
    let of_spec = format!("{sure}{path}");
    let [now, before] = ["self", "oldSelf"].map(|root| format!("{root}.{at}{sure}").trim_end_matches('.').to_owned());
    if let Some(default) = defaults::for_path(&of_spec) {
        let [now, before] = [now, before].map(|root| defaults::written_or(&root, path, &default));
        return format!("{now} == {before}");
    }
    let parts = |sure: &str, path: &str| {
        let parts = field.properties.iter().flatten();
        let part = |(name, part): (&String, &JSONSchemaProps)| unchanged(at, sure, &format!("{path}{name}"), part);
        parts.map(part).collect::<Vec<_>>().join(" && ")
    };
    let has_defaults = defaults::all().iter().any(|(field, _)| field.starts_with(&format!("{of_spec}.")));
    if has_defaults && !defaults::THERE_OR_NOT.contains(&of_spec.as_str()) {
        // An object in which nothing is written is as good as none.
        return parts(sure, &format!("{path}."));
    }
    let [is, was] = [&now, &before].map(|root| defaults::is_written(root, path));
    match has_defaults {
        true => format!("({is}) == ({was}) && (!({is}) || {})", parts(&format!("{of_spec}."), "")),
        // A list has the one value that is written, or none.
        false => format!("({is} ? [{now}.{path}] : []) == ({was} ? [{before}.{path}] : [])"),
    }
}

fn refusal(rule: String, message: String, field: &str) -> ValidationRule {
    let field_path = (!field.is_empty()).then(|| field.to_owned());
    ValidationRule { rule, message: Some(message), field_path, ..ValidationRule::default() }
}

fn add(schema: &mut JSONSchemaProps, rule: ValidationRule) {
    schema.x_kubernetes_validations.get_or_insert_default().push(rule);
}

/// Removes derived properties that the API server does not need.
fn tidy(schema: &mut JSONSchemaProps) {
    // A null is then dropped and defaulted instead of kept.
    schema.nullable = None;
    // Of those that Kubernetes knows the one that holds it.
    match schema.format.as_deref() {
        Some("uint16") => schema.format = Some("int32".to_owned()),
        Some("uint32" | "uint64") => schema.format = Some("int64".to_owned()),
        _ => {}
    }
    // An empty object has no defaults to show.
    if schema.default.as_ref().is_some_and(|default| default.0 == serde_json::json!({})) {
        schema.default = None;
    }
    if let Some(default) = schema.default.clone().filter(|default| !default.0.is_object()) {
        describe_default(schema, &default.0);
    }
    for_each_child(schema, &mut tidy);
}

/// Appends the default to the description: `kubectl explain` does not show defaults, and most are not in the schema.
fn describe_default(schema: &mut JSONSchemaProps, default: &Value) {
    if let Some(description) = &mut schema.description {
        description.push_str(&format!(" Default: {default}.").replace('"', ""));
    }
}

fn keep_first_sentence(schema: &mut JSONSchemaProps) {
    let Some(description) = &mut schema.description else { return };
    let begins_sentence = |at: usize| description[at + 2..].starts_with(char::is_uppercase);
    if let Some((end, _)) = description.match_indices(". ").find(|(at, _)| begins_sentence(*at)) {
        description.truncate(end + 1);
    }
}

fn forget_descriptions(schema: &mut JSONSchemaProps) {
    schema.description = None;
    for_each_child(schema, &mut forget_descriptions);
}

fn for_each_child(schema: &mut JSONSchemaProps, act: &mut dyn FnMut(&mut JSONSchemaProps)) {
    schema.properties.iter_mut().flat_map(|fields| fields.values_mut()).for_each(&mut *act);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        act(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        act(values);
    }
}

/// The schema at a path as in [`rules::Rule::at`].
fn at<'a>(root: &'a mut JSONSchemaProps, path: &str) -> &'a mut JSONSchemaProps {
    path.split('.').filter(|step| !step.is_empty()).fold(root, |schema, step| {
        let name = step.trim_end_matches(['[', ']', '{', '}']);
        let field = schema.properties.as_mut().and_then(|fields| fields.get_mut(name));
        let field = field.unwrap_or_else(|| panic!("{path}: no field {name}"));
        match step.strip_prefix(name) {
            Some("[]") => match &mut field.items {
                Some(JSONSchemaPropsOrArray::Schema(items)) => items,
                _ => panic!("{path}: {name} is no list"),
            },
            Some("{}") => match &mut field.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(values)) => values,
                _ => panic!("{path}: {name} is no map"),
            },
            _ => field,
        }
    })
}
