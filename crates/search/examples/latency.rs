//! Time of one suggestion, by the number of trials: `cargo run --release --package search --example latency`.

use search::{Algorithm, Goal, History, Method, Outcome, Parameters, Settings, Space, Trial, Value, suggest};
use std::time::{Duration, Instant};

const PARAMETERS: usize = 20;
const SUGGESTIONS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (algorithm, trials) in
        [(Algorithm::Gp, 50), (Algorithm::Gp, 200), (Algorithm::Gp, 1000), (Algorithm::Tpe, 1000)]
    {
        let space = space()?;
        let settings = Settings { method: Method::Random, algorithm, goal: Goal::Minimize, seed: 1 };
        let mut history = History::default();
        for _ in 0..trials {
            let parameters = next(&space, &settings, &history)?;
            let value =
                parameters.values().filter_map(Value::number).map(|number| (number - 0.3) * (number - 0.3)).sum();
            history.trials.push(Trial { parameters, outcome: Outcome::Finished { value } });
        }
        let mut times = Vec::new();
        for seed in 0..SUGGESTIONS as u64 {
            let start = Instant::now();
            next(&space, &Settings { method: Method::Bayes, seed, ..settings }, &history)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let [median, p99]: [Duration; 2] = [times[SUGGESTIONS / 2], times[SUGGESTIONS * 99 / 100]];
        println!("{algorithm:?}, {trials} trials, {PARAMETERS} parameters: median {median:.1?}, p99 {p99:.1?}");
    }
    Ok(())
}

fn next(space: &Space, settings: &Settings, history: &History) -> Result<Parameters, Box<dyn std::error::Error>> {
    Ok(suggest(space, settings, history)?.ok_or("the space has no more points")?)
}

/// Half of the parameters are continuous, a quarter are whole numbers, and a quarter are categorical.
fn space() -> Result<Space, Box<dyn std::error::Error>> {
    let declared = (0..PARAMETERS).map(|at| {
        let parameter = match at % 4 {
            0 | 1 => serde_json::json!({"type": "double", "min": 0, "max": 1}),
            2 => serde_json::json!({"type": "int", "min": 1, "max": 1000, "scale": "log"}),
            _ => serde_json::json!({"type": "categorical", "choices": ["a", "b", "c", "d"]}),
        };
        Ok((format!("p{at}"), serde_json::from_value(parameter)?))
    });
    let declared = declared.collect::<Result<_, serde_json::Error>>()?;
    Space::new(&declared).map_err(|problems| problems[0].to_string().into())
}
