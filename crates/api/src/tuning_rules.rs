//! Checks of a search by the API server: rules for the fields that a TuningJob and a TrainingJob's
//! `hyperParameterTuningConfig` share, and for those of a TuningJob alone.

use super::Rule;

/// Rules for both. `at` is relative to the object with the fields.
pub const TUNING_RULES: &[Rule] = &[
    Rule {
        at: "",
        field: ".parameters",
        rule: "has(self.parameters) && size(self.parameters) > 0",
        wrong: "parameters declares no hyperparameter to search",
        remedy: "add at least one, such as `lr: {type: double, min: 0.0001, max: 0.1, scale: log}`",
        example: "tuning-no-parameters",
    },
    Rule {
        at: "",
        field: ".parameters",
        rule: "!has(self.parameters) || self.parameters.all(k, size(k) <= 63 && k.matches('^[A-Za-z]([-_.A-Za-z0-9]*[A-Za-z0-9])?$'))",
        wrong: "{a name in parameters|parameters.%|self.parameters.filter(k, !(size(k) <= 63 && k.matches('^[A-Za-z]([-_.A-Za-z0-9]*[A-Za-z0-9])?$')))[0]} is not a valid name",
        remedy: "use up to 63 letters, digits, '_', '-' and '.', beginning with a letter",
        example: "tuning-parameter-name",
    },
    Rule {
        at: "parameters{}",
        field: ".choices",
        rule: "(self.type == 'categorical') == (has(self.choices) && size(self.choices) > 0)",
        wrong: "choices is for categorical hyperparameters, which need it",
        remedy: "list the choices of a categorical; give an int or a double min and max, or values",
        example: "tuning-choices",
    },
    Rule {
        at: "parameters{}",
        field: "",
        rule: "self.type != 'categorical' || !(has(self.min) || has(self.max) || has(self.step) || has(self.scale) || has(self.values))",
        wrong: "a categorical hyperparameter has no order",
        remedy: "remove min, max, step, scale and values, and list its choices",
        example: "tuning-categorical-range",
    },
    Rule {
        at: "parameters{}",
        field: "",
        rule: "self.type == 'categorical' || (has(self.values) && size(self.values) > 0) != (has(self.min) && has(self.max))",
        wrong: "an int or a double needs min and max, or values, and not both",
        remedy: "set min and max, or list all values in values",
        example: "tuning-no-range",
    },
    Rule {
        at: "parameters{}",
        field: ".max",
        rule: "!(has(self.min) && has(self.max)) || self.min < self.max",
        wrong: "max is not above min",
        remedy: "raise max or lower min; remove the hyperparameter if it has a single value, and set it in the template",
        example: "tuning-empty-range",
    },
    Rule {
        at: "parameters{}",
        field: ".min",
        rule: "!has(self.scale) || self.scale != 'log' || (has(self.min) && self.min > 0.0)",
        wrong: "scale log needs a min above 0",
        remedy: "raise min above 0, or remove scale",
        example: "tuning-log-zero",
    },
    Rule {
        at: "parameters{}",
        field: ".step",
        rule: "!has(self.step) || (self.step > 0.0 && has(self.min) && !(has(self.scale) && self.scale == 'log'))",
        wrong: "step must be above 0, and is allowed only with min and max on a linear scale",
        remedy: "correct or remove step; list the values in values for other distances",
        example: "tuning-step",
    },
    Rule {
        at: "parameters{}",
        field: "",
        rule: "self.type != 'int' || (!has(self.min) || double(int(self.min)) == self.min) && (!has(self.max) || double(int(self.max)) == self.max) && (!has(self.step) || double(int(self.step)) == self.step) && (!has(self.values) || self.values.all(v, double(int(v)) == v))",
        wrong: "an int has whole numbers only",
        remedy: "use whole numbers for min, max, step and values, or the type double",
        example: "tuning-fraction",
    },
    Rule {
        at: "",
        field: ".parameters",
        rule: "!has(self.method) || self.method != 'grid' || !has(self.parameters) || self.parameters.all(k, self.parameters[k].type != 'double' || has(self.parameters[k].step) || has(self.parameters[k].values))",
        wrong: "a grid needs finitely many values, and {a double of parameters|parameters.%|self.parameters.filter(k, self.parameters[k].type == 'double' && !has(self.parameters[k].step) && !has(self.parameters[k].values))[0]} has none of step and values",
        remedy: "set step or values, or use method random or bayes",
        example: "tuning-continuous-grid",
    },
    Rule {
        at: "",
        field: ".parallelTrials",
        rule: "!has(self.parallelTrials) || self.parallelTrials <= self.maxTrials",
        wrong: "parallelTrials is above maxTrials",
        remedy: "lower parallelTrials or raise maxTrials",
        example: "tuning-parallel",
    },
    Rule {
        at: "",
        field: ".maxTrials",
        rule: "!has(self.parameters) || self.maxTrials * (240 + 18 * size(self.parameters)) <= 700000",
        wrong: "the status can't hold that many trials with that many hyperparameters",
        remedy: "lower maxTrials or search fewer hyperparameters: maxTrials x (240 + 18 x their number) is at most 700,000",
        example: "tuning-too-large",
    },
    Rule {
        at: "",
        field: ".gpuHours",
        rule: "!has(self.gpuHours) || self.gpuHours > 0.0",
        wrong: "gpuHours is not above 0",
        remedy: "set the limit in GPU hours, or remove it",
        example: "tuning-gpu-hours",
    },
    Rule {
        at: "",
        field: ".algorithm",
        rule: "!has(self.algorithm) || !has(self.method) || self.method == 'bayes'",
        wrong: "algorithm is for method bayes",
        remedy: "remove algorithm, or set method to bayes",
        example: "tuning-algorithm",
    },
];

/// Rules for a TuningJob alone.
pub const TUNING_JOB_RULES: &[Rule] = &[
    Rule {
        at: "",
        field: ".metadata.name",
        rule: "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 40",
        wrong: "metadata.name becomes part of the names of trials and must be a DNS label of at most 40 characters",
        remedy: "use up to 40 lower-case letters, digits and '-', beginning with a letter, as in my-search",
        example: "tuning-name",
    },
    Rule {
        at: "spec.template.spec",
        field: ".checkpoint.resumeFrom",
        rule: "!has(self.checkpoint) || !has(self.checkpoint.resumeFrom)",
        wrong: "trials begin from nothing, and checkpoint.resumeFrom would give all of them the same beginning",
        remedy: "remove it; give the program a checkpoint to begin with as `model` or in `data`",
        example: "tuning-resume-from",
    },
];

/// The rule for changes of a TuningJob's spec.
pub(super) const TUNING_CHANGES: (&str, &str) = (
    "self == oldSelf || (self.template == oldSelf.template && self.metric == oldSelf.metric && \
     self.parameters == oldSelf.parameters && \
     (has(self.method) ? self.method : 'bayes') == (has(oldSelf.method) ? oldSelf.method : 'bayes') && \
     (has(self.algorithm) ? self.algorithm : 'auto') == (has(oldSelf.algorithm) ? oldSelf.algorithm : 'auto') && \
     has(self.seed) == has(oldSelf.seed) && (!has(self.seed) || self.seed == oldSelf.seed) && \
     has(self.earlyStopping) == has(oldSelf.earlyStopping) && \
     (!has(self.earlyStopping) || self.earlyStopping == oldSelf.earlyStopping) && \
     has(self.warmStartFrom) == has(oldSelf.warmStartFrom) && \
     (!has(self.warmStartFrom) || self.warmStartFrom == oldSelf.warmStartFrom))",
    "only maxTrials, parallelTrials, maxFailedTrials, gpuHours and suspend can change after creation: create another \
     TuningJob, which may begin with the results of this one by warmStartFrom",
);
