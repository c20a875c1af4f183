//! Prints the CustomResourceDefinition that `crds/` holds.

fn main() -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&trainingjob_operator::api::crd())?);
    Ok(())
}
