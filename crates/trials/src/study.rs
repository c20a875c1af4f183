//! The declarations of a TuningJob, checked and converted to the types of the crate `search`.

use api::{
    EarlierTrial, MetricStrategy, ParameterKind, ParameterScale, TrialState, TrialStatus, Tuning, TuningAlgorithm,
    TuningGoal, TuningJob, TuningJobStatus, TuningMethod, TuningParameter,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use search::asha::Asha;
use search::{Algorithm, Goal, History, Method, Outcome, Parameter, ParameterType, Parameters, Settings, Space, Trial};
use search::{Condition, Scale, Value};
use serde_json::Number;
use std::collections::BTreeMap;

/// A search whose declarations are valid.
pub struct Study<'a> {
    /// The declarations.
    pub tuning: &'a Tuning,
    pub(crate) space: Space,
    pub(crate) settings: Settings,
    pub(crate) asha: Option<Asha>,
    /// Names in the order of a trial's values.
    names: Vec<String>,
}

impl<'a> Study<'a> {
    /// Checks the declarations of a TuningJob, and its template as far as it concerns the search.
    ///
    /// # Errors
    /// All reasons for which they are rejected, with the fields and the remedies.
    pub fn new(job: &'a TuningJob) -> Result<Self, String> {
        let tuning = &job.spec.tuning;
        let mut problems = Vec::new();
        let declared: BTreeMap<String, Parameter> =
            tuning.parameters.iter().map(|(name, declared)| (name.clone(), parameter(tuning, declared))).collect();
        let space = Space::new(&declared).map_err(|found| problems.extend(found.iter().map(ToString::to_string))).ok();
        problems.extend(problems_of_names(job));
        problems.extend(problems_of_template(job));
        let seed = job.status.as_ref().and_then(|status| status.seed).or(tuning.seed);
        let settings = Settings {
            method: match tuning.method() {
                TuningMethod::Grid => Method::Grid,
                TuningMethod::Random => Method::Random,
                TuningMethod::Bayes => Method::Bayes,
            },
            algorithm: match tuning.algorithm.unwrap_or_default() {
                TuningAlgorithm::Auto => Algorithm::Auto,
                TuningAlgorithm::Gp => Algorithm::Gp,
                TuningAlgorithm::Tpe => Algorithm::Tpe,
            },
            goal: goal(tuning),
            seed: seed.and_then(|seed| u64::try_from(seed).ok()).unwrap_or_else(|| seed_of(job)),
        };
        let asha = asha(tuning);
        if let Some(Err(problem)) = asha.map(|asha| asha.check()) {
            problems.push(problem.to_string());
        }
        match space {
            Some(space) if problems.is_empty() => {
                let names = space.names().map(str::to_owned).collect();
                Ok(Self { tuning, space, settings, asha, names })
            }
            _ => Err(problems.join("; ")),
        }
    }

    /// Seed of the search: that of the spec, or one derived from the UID.
    #[must_use]
    pub fn seed(&self) -> i64 {
        i64::try_from(self.settings.seed).unwrap_or(i64::MAX)
    }

    /// Names of the hyperparameters, in the order of a trial's values.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the last reading is a trial's result, and not the best one.
    pub(crate) fn takes_last(&self) -> bool {
        self.tuning.metric.strategy.unwrap_or_default() == MetricStrategy::Last
    }

    /// Whether the value `one` is better than `other`. NaN and infinities are never better.
    #[must_use]
    pub fn is_better(&self, one: f64, other: f64) -> bool {
        self.settings.goal.loss(one) < self.settings.goal.loss(other)
    }

    /// Encodes the values of a trial as in the status.
    pub(crate) fn encode(&self, parameters: &Parameters) -> Vec<Option<Number>> {
        let number = |name: &String| match parameters.get(name)? {
            Value::Int(value) => Some(Number::from(*value)),
            Value::Double(value) => Number::from_f64(*value),
            Value::Text(text) => {
                let choices = &self.tuning.parameters.get(name)?.choices;
                choices.iter().position(|choice| choice == text).map(Number::from)
            }
            Value::Bool(_) => None,
        };
        self.names.iter().map(number).collect()
    }

    /// Decodes the hyperparameters of a trial from the status.
    pub(crate) fn decode(&self, values: &[Option<Number>]) -> Parameters {
        let value = |name: &String, number: &Number| {
            let declared = self.tuning.parameters.get(name)?;
            Some(match declared.kind {
                ParameterKind::Int => Value::Int(whole(number)?),
                ParameterKind::Double => Value::Double(number.as_f64()?),
                ParameterKind::Categorical => {
                    Value::Text(declared.choices.get(usize::try_from(number.as_u64()?).ok()?)?.clone())
                }
            })
        };
        let known = self.names.iter().zip(values);
        known.filter_map(|(name, number)| Some((name.clone(), value(name, number.as_ref()?)?))).collect()
    }

    /// Formats the hyperparameters of a trial as text.
    #[must_use]
    pub fn texts(&self, values: &[Option<Number>]) -> BTreeMap<String, String> {
        self.decode(values).into_iter().map(|(name, value)| (name, value.to_string())).collect()
    }

    /// Suggests the values of a recorded trial again, from the knowledge at that time. `None` past the end of a grid.
    #[must_use]
    pub fn suggestion(&self, status: &api::TuningJobStatus, at: usize) -> Option<Vec<Option<Number>>> {
        let (before, row) = (status.trials.get(..at)?, status.trials.get(at)?);
        let history = self.history(&status.earlier, before, row.after);
        let suggested = search::suggest(&self.space, &self.settings, &history).ok()??;
        Some(self.encode(&suggested))
    }

    /// Number of trials that the search will have at most: `maxTrials`, or the points of a smaller grid.
    #[must_use]
    pub fn most_trials(&self) -> u32 {
        let most = self.tuning.max_trials;
        let is_grid = self.tuning.method() == TuningMethod::Grid;
        let size = is_grid.then(|| search::grid_size(&self.space, usize::try_from(most).unwrap_or(usize::MAX)).ok());
        size.flatten().and_then(|size| u32::try_from(size).ok()).map_or(most, |size| size.min(most))
    }

    /// Share of each hyperparameter in the differences between the results so far, the largest first. Empty if there are too
    /// few results.
    #[must_use]
    pub fn importance(&self, status: &TuningJobStatus) -> Vec<(String, f64)> {
        let history = self.history(&status.earlier, &status.trials, u32::MAX);
        search::importance(&self.space, self.settings.goal, &history).unwrap_or_default()
    }

    /// Returns what is known when `ends` trials have ended.
    pub(crate) fn history(&self, earlier: &[EarlierTrial], trials: &[TrialStatus], ends: u32) -> History {
        let outcome = |trial: &TrialStatus| match (trial.end, trial.state) {
            (Some(end), _) if end > ends => Outcome::Running,
            (Some(_), TrialState::Succeeded) => Outcome::Finished { value: trial.value.unwrap_or(f64::NAN) },
            (Some(_), TrialState::Stopped) => Outcome::Stopped {
                step: trial.step.and_then(|step| u64::try_from(step).ok()).unwrap_or_default(),
                value: trial.value.unwrap_or(f64::NAN),
            },
            (Some(_), _) => Outcome::Failed,
            (None, _) => Outcome::Running,
        };
        let of_earlier = |trial: &EarlierTrial| Trial {
            parameters: self.decode(&trial.values),
            outcome: trial.value.map_or(Outcome::Failed, |value| Outcome::Finished { value }),
        };
        History {
            earlier: earlier.iter().map(of_earlier).collect(),
            trials: trials
                .iter()
                .map(|trial| Trial { parameters: self.decode(&trial.values), outcome: outcome(trial) })
                .collect(),
        }
    }
}

pub(crate) fn goal(tuning: &Tuning) -> Goal {
    match tuning.metric.goal {
        TuningGoal::Minimize => Goal::Minimize,
        TuningGoal::Maximize => Goal::Maximize,
    }
}

pub(crate) fn asha(tuning: &Tuning) -> Option<Asha> {
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let stopping = tuning.early_stopping?;
    Some(Asha { min_step: number(stopping.min_step), factor: number(stopping.factor()) })
}

/// Converts a whole number, which JSON may have as 16.0.
#[expect(clippy::cast_possible_truncation, reason = "whole numbers up to 2^53, as the space has them")]
fn whole(number: &Number) -> Option<i64> {
    number.as_i64().or_else(|| number.as_f64().filter(|value| value.fract() == 0.0).map(|value| value as i64))
}

fn parameter(tuning: &Tuning, declared: &TuningParameter) -> Parameter {
    let when = declared.when.as_ref().map(|when| {
        let parent = tuning.parameters.get(&when.parameter).map(|parent| parent.kind);
        let value = |value: &IntOrString| match (parent, value) {
            (Some(ParameterKind::Categorical) | None, IntOrString::Int(number)) => Value::Text(number.to_string()),
            (Some(ParameterKind::Categorical) | None, IntOrString::String(text)) => Value::Text(text.clone()),
            (Some(ParameterKind::Int | ParameterKind::Double), IntOrString::Int(number)) => {
                Value::Int((*number).into())
            }
            (Some(ParameterKind::Int | ParameterKind::Double), IntOrString::String(text)) => {
                text.parse().map_or_else(|_| Value::Text(text.clone()), Value::Double)
            }
        };
        Condition { parameter: when.parameter.clone(), values: when.values.iter().map(value).collect() }
    });
    Parameter {
        kind: match declared.kind {
            ParameterKind::Int => ParameterType::Int,
            ParameterKind::Double => ParameterType::Double,
            ParameterKind::Categorical => ParameterType::Categorical,
        },
        min: declared.min,
        max: declared.max,
        step: declared.step,
        scale: declared.scale.map(|scale| match scale {
            ParameterScale::Linear => Scale::Linear,
            ParameterScale::Log => Scale::Log,
        }),
        values: Some(declared.values.clone()).filter(|values| !values.is_empty()),
        choices: (declared.kind == ParameterKind::Categorical || !declared.choices.is_empty())
            .then(|| declared.choices.iter().cloned().map(Value::Text).collect()),
        when,
    }
}

/// Normalizes the name of a hyperparameter: `learning_rate` and `learningRate` are the same one.
pub(crate) fn normal(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

fn problems_of_names(job: &TuningJob) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<String, &String> = BTreeMap::new();
    for name in job.spec.tuning.parameters.keys() {
        if let Some(other) = seen.insert(normal(name), name) {
            problems.push(format!(
                "parameters.{name}: it is the same hyperparameter as {other} for the program; rename or remove one"
            ));
        }
    }
    let set = job.spec.template.spec.hyperparameters.as_ref();
    let set = set.and_then(|set| serde_json::to_value(set).ok()).unwrap_or_default();
    let fields = set.as_object().into_iter().flatten().filter(|(name, _)| *name != "additionalParams");
    let additional = set["additionalParams"].as_object().into_iter().flatten();
    for (name, _) in fields.chain(additional) {
        if let Some(searched) = seen.get(&normal(name)) {
            problems.push(format!(
                "template.spec.hyperparameters.{name}: parameters.{searched} gives each trial its own value; remove one of both"
            ));
        }
    }
    problems
}

fn problems_of_template(job: &TuningJob) -> Vec<String> {
    let spec = &job.spec.template.spec;
    let mut problems = Vec::new();
    if spec.monitoring.enabled == Some(false) {
        problems.push(
            "template.spec.monitoring.enabled: without it the operator does not see the metric; remove it or set it to true"
                .to_owned(),
        );
    }
    if spec.monitoring.objective.is_some() {
        problems.push("template.spec.monitoring.objective: the search sets it from metric; remove it".to_owned());
    }
    if let Some(storage) = &spec.checkpoint.storage {
        let shared = [("pvcName", storage.pvc_name.is_some()), ("nfsPath", storage.nfs_path.is_some())];
        for (field, _) in shared.iter().filter(|(_, is_set)| *is_set) {
            problems.push(format!(
                "template.spec.checkpoint.storage.{field}: all trials would write into one folder; remove it, so that each trial \
                 gets a claim of its own, or use an object store"
            ));
        }
    }
    problems
}

/// A seed from the UID: FNV-1a, in 53 bits, which every JSON reader keeps.
fn seed_of(job: &TuningJob) -> u64 {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let hash = uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash >> 11
}

/// The results of earlier searches, in the order of `warmStartFrom`: those of ended trials whose values this search contains.
///
/// # Errors
/// A search is missing, or has another metric.
pub fn earlier(study: &Study<'_>, sources: &[(String, Option<&TuningJob>)]) -> Result<Vec<EarlierTrial>, String> {
    let mut all = Vec::new();
    for (name, source) in sources {
        let Some(source) = source else {
            return Err(format!(
                "warmStartFrom: there is no TuningJob {name} in this namespace; create it or remove the entry"
            ));
        };
        let (own, other) = (&study.tuning.metric, &source.spec.tuning.metric);
        if (&own.name, own.goal) != (&other.name, other.goal) {
            return Err(format!(
                "warmStartFrom: TuningJob {name} searches by the metric {} and this one by {}; remove the entry",
                other.name, own.name
            ));
        }
        let theirs =
            Study::new(source).map_err(|why| format!("warmStartFrom: TuningJob {name} can't be read: {why}"))?;
        let status = source.status.clone().unwrap_or_default();
        for trial in
            status.trials.iter().filter(|trial| matches!(trial.state, TrialState::Succeeded | TrialState::Failed))
        {
            let parameters = theirs.decode(&trial.values);
            if study.space.check(&parameters).is_err() {
                continue;
            }
            let value = trial.value.filter(|_| trial.state == TrialState::Succeeded);
            let name = crate::trial::trial_name(name, trial.trial, trial.retries);
            all.push(EarlierTrial { name, values: study.encode(&parameters), value });
        }
    }
    // If the status can't hold all of them, the newest are kept.
    let most = usize::try_from(api::MAX_TRIALS.saturating_sub(study.tuning.max_trials)).unwrap_or_default();
    all.drain(..all.len().saturating_sub(most));
    Ok(all)
}
