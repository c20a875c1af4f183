//! The file that declares a search.

use anyhow::{Context, anyhow};
use search::{Algorithm, Goal, Method, Parameter, Settings, Space};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SpaceFile {
    metric: Metric,
    method: Method,
    #[serde(default)]
    algorithm: Algorithm,
    parameters: BTreeMap<String, Parameter>,
    pub max_trials: Option<usize>,
    pub parallel_trials: Option<usize>,
    seed: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metric {
    /// Not used here: the program prints one value only.
    #[serde(default, rename = "name")]
    _name: Option<String>,
    goal: Goal,
}

impl SpaceFile {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| anyhow!("--space: {} cannot be read ({error}); name a JSON file", path.display()))?;
        let mut json = serde_json::Deserializer::from_str(&text);
        let file = serde_path_to_error::deserialize(&mut json).with_context(|| path.display().to_string())?;
        json.end().with_context(|| path.display().to_string())?;
        Ok(file)
    }

    /// All problems are in one error, a line each.
    pub fn space(&self) -> anyhow::Result<Space> {
        Space::new(&self.parameters).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow!("{}", lines.join("\n"))
        })
    }

    pub fn settings(&self, seed: Option<u64>) -> Settings {
        let seed = seed.or(self.seed).unwrap_or(0);
        Settings { method: self.method, algorithm: self.algorithm, goal: self.metric.goal, seed }
    }
}
