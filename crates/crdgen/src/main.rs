//! Prints what is made from the types in `crates/api`: the CRD in `crds/`, the tables in `docs/`.

use anyhow::Context as _;
use api::{
    self, CHANGEABLE, CHANGEABLE_WITHIN, MUTABLE, MUTABLE_WITHIN, RULES, RuntimeKind, SCHEMA_REFUSALS, defaults,
};
use clap::Parser;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use std::fmt::{self, Write};

/// Prints the CustomResourceDefinition of TrainingJob as YAML, or a table for the documentation.
#[derive(Parser)]
#[command(version)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Args {
    /// Print docs/fields.md: every field of the spec with its type, default and meaning.
    #[arg(long, conflicts_with_all = ["refusals", "shape"])]
    fields: bool,
    /// Print every field of spec and status with its type and bounds, as tests/fixtures/api keeps it for each version.
    #[arg(long, conflicts_with = "refusals")]
    shape: bool,
    /// Print docs/refusals.md: everything that the API server refuses, and what to write instead.
    #[arg(long)]
    refusals: bool,
    /// Print the CustomResourceDefinition of a kind of template instead: ClusterTrainingRuntime or TrainingRuntime.
    #[arg(long, conflicts_with_all = ["fields", "refusals", "shape"], value_name = "KIND")]
    runtime: Option<String>,
    /// Print the CustomResourceDefinition of TuningJob instead.
    #[arg(long, conflicts_with_all = ["fields", "refusals", "shape", "runtime"])]
    tuning: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let text = match () {
        () if args.fields => fields()?,
        () if args.refusals => refusals()?,
        () if args.shape => shape()?,
        () => {
            let (option, crd) = match args.runtime.as_deref() {
                None if args.tuning => (" -- --tuning".to_owned(), api::tuning_crd()),
                None => (String::new(), api::crd()),
                Some(kind) => {
                    let kind = RuntimeKind::ALL.into_iter().find(|known| known.as_str() == kind);
                    let kind = kind.context("--runtime is ClusterTrainingRuntime or TrainingRuntime")?;
                    (format!(" -- --runtime {}", kind.as_str()), api::runtime_crd(kind))
                }
            };
            format!(
                "# Made by `cargo run --bin crdgen{option}` from crates/api; do not edit.\n{}",
                serde_saphyr::to_string(&serde_json::to_value(crd)?)?
            )
        }
    };
    println!("{}", text.trim_end());
    Ok(())
}

fn fields() -> anyhow::Result<String> {
    let crd = serde_json::to_value(api::crd())?;
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut text = String::from(
        "# Every field of a TrainingJob's spec\n\n\
         Made by `cargo run --bin crdgen -- --fields` from the CRD. `kubectl explain trainingjob.spec` tells the same, \
         and what lies below the types of Kubernetes itself.\n\n\
         | field | type | default | what it does |\n|---|---|---|---|\n",
    );
    rows(&mut text, "", &serde_json::from_value(spec.clone())?)?;
    Ok(text)
}

fn shape() -> anyhow::Result<String> {
    let crd = serde_json::to_value(api::crd())?;
    let properties = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut text = String::from("field\ttype\trequired\tleast\tmost\tvalues\n");
    for part in ["spec", "status"] {
        shape_of(&mut text, part, false, &serde_json::from_value(properties[part].clone())?)?;
    }
    Ok(text)
}

/// A line for the field at `path`, and for all below it that are ours.
fn shape_of(text: &mut String, path: &str, is_required: bool, schema: &JSONSchemaProps) -> fmt::Result {
    let kind = schema.type_.as_deref().unwrap_or("any");
    let required = if is_required { "required" } else { "" };
    let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
    let values: Vec<_> = schema.enum_.iter().flatten().filter_map(|value| value.0.as_str()).collect();
    let (least, most) = (bound(schema.minimum), bound(schema.maximum));
    writeln!(text, "{path}\t{kind}\t{required}\t{least}\t{most}\t{}", values.join(","))?;
    let name = path.rsplit('.').next().unwrap_or_default();
    if OF_KUBERNETES.contains(&name) || name == "affinity" {
        return Ok(());
    }
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        shape_of(text, &format!("{path}.{name}"), required.contains(name), field)?;
    }
    if let Some(JSONSchemaPropsOrBool::Schema(entry)) = &schema.additional_properties {
        shape_of(text, &format!("{path}{{}}"), false, entry)?;
    }
    if let Some(JSONSchemaPropsOrArray::Schema(entry)) = &schema.items {
        shape_of(text, &format!("{path}[]"), false, entry)?;
    }
    Ok(())
}

fn rows(text: &mut String, prefix: &str, schema: &JSONSchemaProps) -> fmt::Result {
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let ours = matches!(field.type_.as_deref(), Some("object")) && name != "affinity";
        let in_schema = field.default.clone().map(|default| default.0).filter(|default| !default.is_object());
        let default = match in_schema.or_else(|| defaults::for_path(&format!("{prefix}{name}"))) {
            _ if required.contains(name) => "**required**".to_owned(),
            Some(value) => format!("`{value}`").replace('"', ""),
            None => String::new(),
        };
        let meaning = field.description.as_deref().unwrap_or_default();
        // The column before says it.
        let meaning = meaning.strip_suffix(&format!(" Default: {}.", default.trim_matches('`'))).unwrap_or(meaning);
        let meaning = meaning.replace('\n', " ").replace('|', "\\|");
        writeln!(text, "| `{prefix}{name}` | {} | {default} | {meaning} |", kind(field))?;
        if ours {
            rows(text, &format!("{prefix}{name}."), field)?;
        }
        if !OF_KUBERNETES.contains(&name.as_str())
            && let Some(JSONSchemaPropsOrArray::Schema(entry)) = &field.items
        {
            rows(text, &format!("{prefix}{name}[]."), entry)?;
        }
    }
    Ok(())
}

/// Lists whose entries are types of Kubernetes itself.
const OF_KUBERNETES: [&str; 6] = ["env", "envFrom", "imagePullSecrets", "tolerations", "volumeMounts", "volumes"];

fn kind(field: &JSONSchemaProps) -> String {
    if let Some(values) = &field.enum_ {
        return values.iter().map(|value| value.0.as_str().unwrap_or_default()).collect::<Vec<_>>().join(", ");
    }
    match field.type_.as_deref() {
        Some("array") => match &field.items {
            Some(JSONSchemaPropsOrArray::Schema(items)) => match kind(items).split_once(", ") {
                Some((first, others)) if items.enum_.is_some() => format!("list of {first}, {others}"),
                Some((kind, range)) => format!("list of {kind}s, {range}"),
                None => format!("list of {}s", kind(items)),
            },
            _ => "list".into(),
        },
        Some("object") if field.additional_properties.is_some() => "map".into(),
        Some(kind @ ("integer" | "number")) => match (field.minimum, field.maximum) {
            (Some(least), Some(most)) => format!("{kind}, {least} to {most}"),
            (Some(least), None) => format!("{kind}, from {least}"),
            _ => kind.into(),
        },
        Some(kind) => kind.into(),
        None => "integer or string".into(),
    }
}

fn refusals() -> anyhow::Result<String> {
    let mut text = String::from(
        "# What the API server refuses\n\n\
         Made by `cargo run --bin crdgen -- --refusals` from the rules of the CRD. Each row is shown by a file in \
         `examples/bad`, which a test applies to a real API server. Of an entry of a list or a map, the message has the \
         name: `the variable MASTER_ADDR of env`, say, for `this variable of env`. What only the operator can see is \
         reported by the condition `Accepted` of the job.\n\n\
         | file | field | what it says | what to write instead |\n|---|---|---|---|\n",
    );
    for rule in RULES {
        let (field, wrong, remedy) = (rule.path().replace("{}", ".NAME"), rule.wrong_in_general(), rule.remedy);
        writeln!(text, "| [{0}](../examples/bad/{0}.yaml) | `{field}` | {wrong} | {remedy} |", rule.example)?;
    }
    text.push_str(
        "\n## By type and range\n\nThe API server's own words. A field for which [fields.md](fields.md) lists values takes \
         no other: the refusal lists them, too, and the remedy is to write one of them.\n\n\
         | file | field | what it says | what to write instead |\n|---|---|---|---|\n",
    );
    for refusal in SCHEMA_REFUSALS {
        let (field, says, remedy) = (refusal.field, refusal.says, refusal.remedy);
        writeln!(text, "| [{0}](../examples/bad/{0}.yaml) | `{field}` | {says} | {remedy} |", refusal.example)?;
    }
    write!(
        text,
        "\n## After creation\n\n\
         These may change, be added or be removed, and labels and annotations, too:\n\n- `{}`\n{}- `numWorkers` with \
         `elastic`\n\nThese may change while no program runs: before the job has started, while it is suspended, and once it \
         has failed:\n\n- `{}`\n{}\nWhile the job runs, such a change is refused, here for `image`:\n\n> {}\n\nOnce the job is \
         Completed, the refusal is:\n\n> {}\n\nEvery other change is refused at any time, here for `framework`:\n\n> {}\n",
        MUTABLE.join("`\n- `"),
        MUTABLE_WITHIN.map(|(object, fields)| format!("- `{}` of `{object}`\n", fields.join("` and `"))).concat(),
        CHANGEABLE.join("`\n- `"),
        CHANGEABLE_WITHIN.map(|(object, fields)| format!("- `{}` of `{object}`\n", fields.join("`, `"))).concat(),
        api::running_message(&api::immutable("image")),
        api::completed_message(&api::immutable("image")),
        api::immutable_message(&api::immutable("framework")),
    )?;
    Ok(text)
}
