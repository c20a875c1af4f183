//! Properties that all methods have, over random spaces.

use crate::asha::{Asha, Reading, Rungs};
use crate::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const METHODS: [(Method, Algorithm); 3] =
    [(Method::Random, Algorithm::Auto), (Method::Bayes, Algorithm::Tpe), (Method::Bayes, Algorithm::Gp)];

fn parameters(json: serde_json::Value) -> BTreeMap<String, Parameter> {
    serde_json::from_value(json).unwrap()
}

fn space(json: serde_json::Value) -> Space {
    Space::new(&parameters(json)).unwrap()
}

fn mixed() -> Space {
    space(serde_json::json!({
        "lr": {"type": "double", "min": 1e-5, "max": 0.1, "scale": "log"},
        "batch": {"type": "int", "min": 8, "max": 128, "step": 8},
        "layers": {"type": "int", "min": 1, "max": 500, "scale": "log"},
        "dropout": {"type": "double", "min": 0, "max": 0.6, "step": 0.1},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
        "momentum": {"type": "double", "min": 0, "max": 1, "when": {"parameter": "optimizer", "values": ["sgd"]}},
        "warmup": {"type": "int", "values": [100, 0, 10], "when": {"parameter": "dropout", "values": [0.1, 0.3]}},
    }))
}

fn settings(method: Method, algorithm: Algorithm, seed: u64) -> Settings {
    Settings { method, algorithm, goal: Goal::Minimize, seed }
}

/// A smooth function of all numbers, with so few digits that every JSON parser reads it exactly.
fn loss(parameters: &Parameters) -> f64 {
    let sum: f64 = parameters.values().filter_map(Value::number).map(|x| libm::cos(x) + 0.001 * x).sum();
    (sum * 1e6).round() / 1e6
}

/// A search of `count` trials of which every `parallel`-th one still runs, one in five fails and one is NaN.
fn searched(space: &Space, settings: &Settings, count: usize, parallel: usize) -> History {
    let mut history = History::default();
    for number in 0..count {
        let parameters = suggest(space, settings, &history).unwrap().unwrap();
        let value = if number == 7 { f64::NAN } else { loss(&parameters) };
        history.trials.push(Trial { parameters, outcome: Outcome::Running });
        if number >= parallel {
            let ended = &mut history.trials[number - parallel];
            let value = if number - parallel == 7 { f64::NAN } else { loss(&ended.parameters) };
            ended.outcome = if number % 5 == 4 { Outcome::Failed } else { Outcome::Finished { value } };
        } else if parallel == 0 {
            history.trials[number].outcome = Outcome::Finished { value };
        }
    }
    history
}

fn texts(history: &History) -> Vec<String> {
    history.trials.iter().map(|trial| serde_json::to_string(&trial.parameters).unwrap()).collect()
}

#[test]
fn suggestions_are_the_same_on_every_machine() {
    let shown = |(method, algorithm)| {
        let history = searched(&mixed(), &settings(method, algorithm, 3), 14, 2);
        serde_json::to_string(&history.trials[13].parameters).unwrap()
    };
    assert_eq!(METHODS.map(shown), GOLDEN);
}

/// Another result is another search: a search that began with an earlier version cannot be continued exactly.
const GOLDEN: [&str; 3] = [
    r#"{"batch":120,"dropout":0.0,"layers":1,"lr":0.0001148310458,"momentum":0.7244018449,"optimizer":"sgd"}"#,
    r#"{"batch":16,"dropout":0.5,"layers":5,"lr":0.00003987509276,"optimizer":"adam"}"#,
    r#"{"batch":48,"dropout":0.6,"layers":14,"lr":0.00007885145646,"optimizer":"adam"}"#,
];

#[test]
fn replayed_history_gives_same_suggestions() {
    for (method, algorithm) in METHODS {
        let settings = settings(method, algorithm, 11);
        let history = searched(&mixed(), &settings, 24, 3);
        let text = serde_json::to_string(&history).unwrap();
        let again = searched(&mixed(), &settings, 24, 3);
        assert_eq!(serde_json::to_string(&again).unwrap(), text, "{method:?} {algorithm:?}");
        // As another process reads it.
        let read: History = serde_json::from_str(&text).unwrap();
        assert_eq!(suggest(&mixed(), &settings, &read), suggest(&mixed(), &settings, &history));
    }
}

#[test]
fn different_seed_gives_different_search() {
    for (method, algorithm) in METHODS {
        let [one, other] = [1, 2].map(|seed| texts(&searched(&mixed(), &settings(method, algorithm, seed), 12, 0)));
        assert!(one.iter().zip(&other).all(|(one, other)| one != other), "{method:?} {algorithm:?}");
    }
}

#[test]
fn running_trials_are_not_suggested_again() {
    for (method, algorithm) in METHODS {
        let settings = settings(method, algorithm, 5);
        let mut history = searched(&mixed(), &settings, 12, 0);
        for _ in 0..8 {
            let parameters = suggest(&mixed(), &settings, &history).unwrap().unwrap();
            history.trials.push(Trial { parameters, outcome: Outcome::Running });
        }
        let texts = texts(&history);
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), texts.len(), "{method:?} {algorithm:?}");
    }
}

#[test]
fn small_space_is_exhausted_before_a_point_repeats() {
    let space = space(serde_json::json!({
        "a": {"type": "int", "min": 1, "max": 4},
        "b": {"type": "categorical", "choices": ["x", "y", true, 2.5]},
    }));
    for (method, algorithm) in METHODS {
        let texts = texts(&searched(&space, &settings(method, algorithm, 1), 18, 0));
        assert_eq!(texts[..16].iter().collect::<BTreeSet<_>>().len(), 16, "{method:?} {algorithm:?}");
    }
}

#[test]
fn failing_values_and_regions_are_avoided() {
    // The best value is near the region where everything fails.
    let space = space(serde_json::json!({
        "x": {"type": "double", "min": 0, "max": 1},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
    }));
    for algorithm in [Algorithm::Gp, Algorithm::Tpe] {
        let settings = settings(Method::Bayes, algorithm, 1);
        let mut history = History::default();
        for _ in 0..60 {
            let parameters = suggest(&space, &settings, &history).unwrap().unwrap();
            let x = parameters["x"].number().unwrap();
            let is_bad = x < 0.5 || parameters["kind"] == Value::Text("b".into());
            let outcome = if is_bad { Outcome::Failed } else { Outcome::Finished { value: (x - 0.6) * (x - 0.6) } };
            history.trials.push(Trial { parameters, outcome });
        }
        let (_, best) = settings.goal.best(&history.trials).unwrap();
        let failed = history.trials[30..].iter().filter(|trial| trial.outcome == Outcome::Failed).count();
        assert!(best < 0.001 && failed <= 15, "{algorithm:?}: best {best}, {failed} of the last 30 failed");
    }
}

#[test]
fn non_finite_results_count_as_the_worst() {
    for (method, algorithm) in METHODS {
        let settings = settings(method, algorithm, 2);
        let history = searched(&mixed(), &settings, 20, 0);
        let with = |value: f64| {
            let mut history = history.clone();
            history.trials[3].outcome = Outcome::Finished { value };
            suggest(&mixed(), &settings, &history).unwrap().unwrap()
        };
        assert_eq!(with(f64::NAN), with(f64::INFINITY));
        assert_eq!(with(f64::NAN), with(f64::NEG_INFINITY));
        assert_ne!(Some(4), settings.goal.best(&history.trials).map(|(number, _)| number));
    }
    let all = [f64::NAN; 12].map(|value| Trial {
        parameters: suggest(&mixed(), &settings(Method::Random, Algorithm::Auto, 1), &History::default())
            .unwrap()
            .unwrap(),
        outcome: Outcome::Finished { value },
    });
    let history = History { trials: all.to_vec(), ..History::default() };
    for (method, algorithm) in METHODS {
        assert!(suggest(&mixed(), &settings(method, algorithm, 1), &history).unwrap().is_some());
    }
}

#[test]
fn extreme_equal_and_stopped_results_are_fitted() {
    let outcomes =
        [1e300, -1e300, 0.0, 0.0, 5e-324, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|value| Outcome::Finished { value });
    let stopped = [1, 5, 5].map(|step| Outcome::Stopped { step, value: -2.0 });
    for (method, algorithm) in METHODS {
        for outcomes in [[&outcomes[..], &stopped].concat(), vec![outcomes[2]; 12], stopped.repeat(4)] {
            let settings = settings(method, algorithm, 1);
            let mut history = searched(&mixed(), &settings, outcomes.len(), 0);
            history.trials.iter_mut().zip(&outcomes).for_each(|(trial, outcome)| trial.outcome = *outcome);
            let parameters = suggest(&mixed(), &settings, &history).unwrap().unwrap();
            mixed().check(&parameters).unwrap();
        }
    }
}

#[test]
fn maximising_mirrors_minimising() {
    for (method, algorithm) in METHODS {
        let down = settings(method, algorithm, 2);
        let history = searched(&mixed(), &down, 20, 0);
        let mut mirrored = history.clone();
        for trial in &mut mirrored.trials {
            if let Outcome::Finished { value } = &mut trial.outcome {
                *value = -*value;
            }
        }
        let up = Settings { goal: Goal::Maximize, ..down };
        assert_eq!(suggest(&mixed(), &up, &mirrored), suggest(&mixed(), &down, &history));
        assert_eq!(up.goal.best(&mirrored.trials).unwrap().0, down.goal.best(&history.trials).unwrap().0);
    }
}

#[test]
fn earlier_trials_replace_initial_points() {
    let settings = settings(Method::Bayes, Algorithm::Gp, 2);
    let earlier = searched(&mixed(), &settings, 20, 0).trials;
    let warm = History { earlier: earlier.clone(), trials: Vec::new() };
    let first = suggest(&mixed(), &settings, &warm).unwrap().unwrap();
    assert!(earlier.iter().all(|trial| trial.parameters != first));
    assert_ne!(Some(first), suggest(&mixed(), &settings, &History::default()).unwrap());
}

#[test]
fn trials_outside_the_space_are_refused_by_name() {
    let settings = settings(Method::Bayes, Algorithm::Auto, 1);
    let good = suggest(&mixed(), &settings, &History::default()).unwrap().unwrap();
    let problem = |change: &dyn Fn(&mut Parameters)| {
        let mut parameters = good.clone();
        change(&mut parameters);
        let trial = |parameters| Trial { parameters, outcome: Outcome::Failed };
        let history = History { earlier: Vec::new(), trials: vec![trial(good.clone()), trial(parameters)] };
        suggest(&mixed(), &settings, &history).unwrap_err().to_string()
    };
    let cases = [
        problem(&|parameters| drop(parameters.remove("lr"))),
        problem(&|parameters| drop(parameters.insert("lr".into(), Value::Double(1.0)))),
        problem(&|parameters| drop(parameters.insert("batch".into(), Value::Int(9)))),
        problem(&|parameters| drop(parameters.insert("depth".into(), Value::Int(9)))),
    ];
    assert_eq!(
        cases,
        [
            "trials[1].parameters.lr: it is missing; set it",
            "trials[1].parameters.lr: the space does not contain 1; use a value that it declares",
            "trials[1].parameters.batch: the space does not contain 9; use a value that it declares",
            "trials[1].parameters.depth: the space does not declare it; leave it out",
        ]
    );
}

#[test]
fn grid_lists_all_points_in_order() {
    let space = space(serde_json::json!({
        "b": {"type": "categorical", "choices": ["no", "yes"]},
        "a": {"type": "int", "min": 1, "max": 2, "when": {"parameter": "b", "values": ["yes"]}},
        "c": {"type": "double", "min": 0.1, "max": 0.3, "step": 0.1},
    }));
    let settings = settings(Method::Grid, Algorithm::Auto, 1);
    let mut history = History::default();
    while let Some(parameters) = suggest(&space, &settings, &history).unwrap() {
        history.trials.push(Trial { parameters, outcome: Outcome::Failed });
    }
    let expected = [
        r#"{"b":"no","c":0.1}"#,
        r#"{"b":"no","c":0.2}"#,
        r#"{"b":"no","c":0.3}"#,
        r#"{"a":1,"b":"yes","c":0.1}"#,
        r#"{"a":1,"b":"yes","c":0.2}"#,
        r#"{"a":1,"b":"yes","c":0.3}"#,
        r#"{"a":2,"b":"yes","c":0.1}"#,
        r#"{"a":2,"b":"yes","c":0.2}"#,
        r#"{"a":2,"b":"yes","c":0.3}"#,
    ];
    assert_eq!(space.names().collect::<Vec<_>>(), ["b", "a", "c"]);
    assert_eq!(texts(&history), expected);
    assert_eq!(grid_size(&space, 1000), Ok(9));
    assert_eq!(grid_size(&space, 5), Ok(5));
    let problem = grid_size(&mixed(), 5).unwrap_err();
    assert_eq!(problem.field, "parameters.lr.step");
}

#[test]
fn invalid_spaces_are_refused_by_field() {
    let cases = [
        ("{}", "parameters: the space is empty; declare at least one parameter"),
        (
            r#"{"x": {"type": "double", "min": 1}}"#,
            "parameters.x.max: the range is not complete; set min and max, or values",
        ),
        (
            r#"{"x": {"type": "double", "min": 1, "max": 1}}"#,
            "parameters.x.max: max 1 is not above min 1; raise max or lower min",
        ),
        (
            r#"{"x": {"type": "int", "min": 2, "max": 1}}"#,
            "parameters.x.max: max 1 is not above min 2; raise max or lower min",
        ),
        (
            r#"{"x": {"type": "int", "min": 0.5, "max": 1}}"#,
            "parameters.x.min: 0.5 is not a whole number up to 2^53; correct it",
        ),
        (
            r#"{"x": {"type": "double", "min": 0, "max": 1, "scale": "log"}}"#,
            "parameters.x.min: 0 has no logarithm; raise min above 0, or remove scale",
        ),
        (
            r#"{"x": {"type": "int", "min": 1, "max": 9, "scale": "log", "step": 2}}"#,
            "parameters.x.step: steps on a log scale are not supported; remove step, or list values",
        ),
        (
            r#"{"x": {"type": "double", "min": 0, "max": 1, "step": 0}}"#,
            "parameters.x.step: 0 is not above 0; raise it",
        ),
        (
            r#"{"x": {"type": "double", "min": 0, "values": [1]}}"#,
            "parameters.x.min: values has all values already; remove one of both",
        ),
        (
            r#"{"x": {"type": "double", "values": []}}"#,
            "parameters.x.values: the list is empty; list at least one value",
        ),
        (r#"{"x": {"type": "double", "values": [1, 2, 1]}}"#, "parameters.x.values: 1 is listed twice; remove one"),
        (
            r#"{"x": {"type": "categorical"}}"#,
            "parameters.x.choices: a categorical parameter needs choices; list at least one",
        ),
        (
            r#"{"x": {"type": "categorical", "choices": [1, 1.0]}}"#,
            "parameters.x.choices: 1 is listed twice; remove one",
        ),
        (
            r#"{"x": {"type": "categorical", "choices": ["a"], "values": [1]}}"#,
            "parameters.x.values: a categorical parameter has no order; list its values in choices",
        ),
        (
            r#"{"x": {"type": "int", "min": 1, "max": 2, "choices": ["a"]}}"#,
            "parameters.x.choices: choices are for categorical parameters; use values, or min and max",
        ),
        (
            r#"{"x": {"type": "int", "values": [1], "when": {"parameter": "y", "values": [1]}}}"#,
            "parameters.x.when.parameter: y is not declared; name another parameter",
        ),
        (
            r#"{"x": {"type": "int", "values": [1], "when": {"parameter": "y", "values": [1]}},
                "y": {"type": "double", "min": 0, "max": 1}}"#,
            "parameters.x.when.parameter: y is continuous; name a parameter with a step, values or choices",
        ),
        (
            r#"{"x": {"type": "int", "values": [1], "when": {"parameter": "y", "values": [3]}},
                "y": {"type": "int", "min": 0, "max": 1}}"#,
            "parameters.x.when.values: y is never 3; list values that it can have",
        ),
        (
            r#"{"x": {"type": "int", "values": [1], "when": {"parameter": "x", "values": [1]}}}"#,
            "parameters.x.when.parameter: the conditions form a circle; remove one of them",
        ),
    ];
    for (json, message) in cases {
        let problems = Space::new(&parameters(serde_json::from_str(json).unwrap())).unwrap_err();
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [message], "{json}");
    }
    let both = r#"{"x": {"type": "double", "min": 1}, "y": {"type": "categorical"}}"#;
    assert_eq!(Space::new(&parameters(serde_json::from_str(both).unwrap())).unwrap_err().len(), 2);
}

fn any_parameter() -> impl Strategy<Value = serde_json::Value> {
    let low = -1000i32..1000;
    prop_oneof![
        (low.clone(), 1i32..2000).prop_map(|(min, width)| serde_json::json!(
            {"type": "double", "min": f64::from(min) / 7.0, "max": f64::from(min + width) / 7.0})),
        (1i32..1000, 1i32..9999).prop_map(|(min, width)| serde_json::json!(
            {"type": "double", "min": f64::from(min) / 1e6, "max": f64::from(min + width) / 1e6, "scale": "log"})),
        (low.clone(), 1i32..2000, 1i32..300).prop_map(|(min, width, step)| serde_json::json!(
            {"type": "double", "min": f64::from(min) / 10.0, "max": f64::from(min + width) / 10.0,
             "step": f64::from(step) / 10.0})),
        (low, 0i32..2000, 1i32..300).prop_map(|(min, width, step)| serde_json::json!(
            {"type": "int", "min": min, "max": min + width, "step": step})),
        (1i32..1000, 0i32..9999).prop_map(|(min, width)| serde_json::json!(
            {"type": "int", "min": min, "max": min + width, "scale": "log"})),
        (1usize..5)
            .prop_map(|count| serde_json::json!({"type": "double", "values": (&[0.1, 7.0, -3.5, 1e9][..count])})),
        (1usize..5)
            .prop_map(|count| serde_json::json!({"type": "categorical", "choices": (&["a", "b", "c", "d"][..count])})),
    ]
}

/// What the declaration says, checked without the code of the axes.
fn is_declared(declared: &serde_json::Value, value: &Value) -> bool {
    let field = |name: &str| declared[name].as_f64();
    let listed = declared.get("values").or(declared.get("choices"));
    if let Some(listed) = listed {
        return listed.as_array().unwrap().iter().any(|one| match value {
            Value::Text(text) => one == text,
            value => one.as_f64() == value.number(),
        });
    }
    let number = value.number().unwrap();
    let is_whole = declared["type"] != "int" || matches!(value, Value::Int(_));
    let is_step = field("step").is_none_or(|step| {
        let steps = (number - field("min").unwrap()) / step;
        (steps - steps.round()).abs() < 1e-6
    });
    (field("min").unwrap()..=field("max").unwrap()).contains(&number) && is_step && is_whole
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_suggestion_is_within_its_space(declared in proptest::collection::vec(any_parameter(), 1..6), seed: u64) {
        let named: serde_json::Map<_, _> =
            declared.iter().enumerate().map(|(at, one)| (format!("p{at}"), one.clone())).collect();
        let space = space(named.clone().into());
        for (method, algorithm) in METHODS {
            let history = searched(&space, &settings(method, algorithm, seed), 16, 2);
            for trial in &history.trials {
                prop_assert_eq!(space.check(&trial.parameters), Ok(()));
                prop_assert_eq!(trial.parameters.len(), named.len());
                for (name, value) in &trial.parameters {
                    prop_assert!(is_declared(&named[name], value), "{}: {value} {}", name, named[name]);
                }
            }
        }
    }
}

#[test]
fn conditional_parameters_exist_only_under_their_condition() {
    for (method, algorithm) in METHODS {
        let history = searched(&mixed(), &settings(method, algorithm, 4), 30, 3);
        let has = |name: &str| history.trials.iter().filter(|trial| trial.parameters.contains_key(name)).count();
        for trial in &history.trials {
            let is_sgd = trial.parameters["optimizer"] == Value::Text("sgd".into());
            assert_eq!(trial.parameters.contains_key("momentum"), is_sgd, "{trial:?}");
            let dropout = trial.parameters["dropout"].number().unwrap();
            assert_eq!(trial.parameters.contains_key("warmup"), dropout == 0.1 || dropout == 0.3, "{trial:?}");
        }
        assert!((1..30).contains(&has("momentum")) && (1..30).contains(&has("warmup")), "{method:?} {algorithm:?}");
    }
}

#[test]
fn models_beat_random_search() {
    let space = space(serde_json::json!({
        "x": {"type": "double", "min": -5, "max": 10},
        "y": {"type": "double", "min": 0, "max": 15},
        "kind": {"type": "categorical", "choices": ["a", "b", "c"]},
    }));
    let value = |parameters: &Parameters| {
        let number = |name: &str| parameters[name].number().unwrap();
        let penalty = if parameters["kind"] == Value::Text("b".into()) { 0.0 } else { 20.0 };
        let (x, y) = (number("x") - 3.0, number("y") - 2.0);
        x * x + y * y + penalty
    };
    let best = |method, algorithm| {
        let settings = settings(method, algorithm, 1);
        let mut history = History::default();
        for _ in 0..40 {
            let parameters = suggest(&space, &settings, &history).unwrap().unwrap();
            let value = value(&parameters);
            history.trials.push(Trial { parameters, outcome: Outcome::Finished { value } });
        }
        settings.goal.best(&history.trials).unwrap().1
    };
    assert!(best(Method::Bayes, Algorithm::Gp) < 0.01);
    assert!(best(Method::Bayes, Algorithm::Tpe) < best(Method::Random, Algorithm::Auto));
}

fn rungs(asha: Asha, values: &[(usize, u64, f64)]) -> Rungs {
    let mut rungs = Rungs::default();
    for (trial, step, value) in values {
        asha.record(&mut rungs, *trial, &[Reading { step: *step, value: *value }]);
    }
    rungs
}

#[test]
fn asha_stops_trials_not_among_best_of_rung() {
    let asha = Asha { min_step: 1, factor: 2 };
    let rungs = rungs(asha, &[(1, 1, 0.5), (2, 1, 0.4), (3, 1, 0.6), (4, 1, 0.45), (5, 1, f64::NAN), (6, 1, 0.4)]);
    let decided = |trial| asha.decide(Goal::Minimize, &rungs, trial).map(|stop| (stop.step, stop.rank, stop.of));
    assert_eq!([1, 2, 3, 4, 5, 6].map(decided), [None, None, Some((1, 3, 3)), None, Some((1, 5, 5)), None]);
    assert_eq!(asha.decide(Goal::Minimize, &rungs, 7), None);
}

#[test]
fn asha_decides_once_per_rung() {
    let asha = Asha { min_step: 2, factor: 3 };
    assert_eq!([0, 1, 2].map(|rung| asha.step(rung)), [Some(2), Some(6), Some(18)]);
    assert_eq!(asha.step(64), None);
    let mut rungs = rungs(asha, &[(1, 2, 1.0), (2, 2, 2.0), (3, 2, 0.5)]);
    assert_eq!(asha.decide(Goal::Minimize, &rungs, 3), None);
    for trial in 4..10 {
        asha.record(&mut rungs, trial, &[Reading { step: 5, value: 0.1 }]);
    }
    // Worse than all later ones, and yet it continues: it was among the best when it was recorded.
    assert_eq!(asha.decide(Goal::Minimize, &rungs, 3), None);
    let before = rungs.clone();
    // A reading beyond several rungs counts at each; those that are recorded stay.
    asha.record(&mut rungs, 3, &[Reading { step: 7, value: 0.9 }]);
    asha.record(&mut rungs, 3, &[Reading { step: 7, value: 0.1 }]);
    assert_ne!(rungs, before);
    let text = serde_json::to_string(&rungs).unwrap();
    assert!(text.ends_with(r#"[{"trial":3,"value":0.9}]]"#), "{text}");
    assert_eq!(serde_json::from_str::<Rungs>(&text).unwrap(), rungs);
}

#[test]
fn asha_maximises_and_validates_its_settings() {
    let asha = Asha { min_step: 1, factor: 2 };
    let rungs = rungs(asha, &[(1, 1, 0.5), (2, 1, 0.4)]);
    assert!(asha.decide(Goal::Maximize, &rungs, 2).is_some());
    assert!(asha.decide(Goal::Minimize, &rungs, 2).is_none());
    assert_eq!(asha.check(), Ok(()));
    assert_eq!(Asha { min_step: 0, ..asha }.check().unwrap_err().field, "earlyStopping.minStep");
    assert_eq!(Asha { factor: 1, ..asha }.check().unwrap_err().field, "earlyStopping.factor");
}
