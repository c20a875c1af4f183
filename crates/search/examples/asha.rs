//! Early stopping on real trials: epochs that asynchronous successive halving saves, and the best accuracy with and without it.
//!
//! Each trial trains a network with one hidden layer on 1,437 images of 8x8 digits, and is evaluated on 360 others after each epoch.
//! Searches with and without early stopping have the same seed. A virtual clock decides in which order readings come: each
//! trial has a pace that depends on the seed. The images come from stdin, a line of 64 pixels and a label each, as scikit-learn ships
//! them:
//!
//! ```sh
//! gzip -dc digits.csv.gz | cargo run --release --package search --example asha -- 20 2 4
//! ```
//!
//! The numbers are those of seeds, `minStep` and `factor`.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use search::asha::{Asha, Reading, Rungs};
use search::{Algorithm, Goal, History, Method, Outcome, Parameters, Settings, Space, Trial, suggest};
use std::error::Error;
use std::io::Read;

const TRIALS: usize = 32;
const PARALLEL: usize = 4;
const EPOCHS: u64 = 27;
const PIXELS: usize = 64;
const CLASSES: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<u64> = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, default: u64| given.get(at).copied().unwrap_or(default);
    let (seeds, asha) = (number(0, 20), Asha { min_step: number(1, 2), factor: number(2, 4) });
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let images: Vec<Image> = text.lines().map(image).collect::<Result<_, _>>()?;
    let space = space()?;
    println!("seed  epochs  with early stopping  saved  best accuracy  with early stopping  ratio");
    let (mut saved, mut within) = (Vec::new(), 0);
    for seed in 0..seeds {
        let (all, best) = search(&space, &images, seed, None)?;
        let (fewer, best_stopped) = search(&space, &images, seed, Some(asha))?;
        let (share, ratio) = (1.0 - fewer as f64 / all as f64, best_stopped / best);
        println!("{seed:4}  {all:6}  {fewer:19}  {:4.0}%  {best:13.4}  {best_stopped:19.4}  {ratio:.4}", share * 100.0);
        saved.push(share);
        within += u64::from(ratio >= 0.99);
    }
    saved.sort_by(f64::total_cmp);
    let median = saved[saved.len() / 2] * 100.0;
    println!("median of the epochs saved: {median:.0}%; best within 1% of no stopping: {within} of {seeds} seeds");
    Ok(())
}

struct Image {
    pixels: [f32; PIXELS],
    label: usize,
}

fn image(line: &str) -> Result<Image, Box<dyn Error>> {
    let cells: Vec<f32> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let (label, cells) = cells.split_last().ok_or("an empty line")?;
    let mut pixels = [0.0; PIXELS];
    for (pixel, cell) in pixels.iter_mut().zip(cells) {
        *pixel = cell / 16.0;
    }
    Ok(Image { pixels, label: *label as usize })
}

fn space() -> Result<Space, Box<dyn Error>> {
    let declared = serde_json::from_value(serde_json::json!({
        "learning_rate": { "type": "double", "min": 0.0001, "max": 1, "scale": "log" },
        "momentum": { "type": "double", "min": 0, "max": 0.99 },
        "width": { "type": "int", "values": [4, 8, 16, 32, 64] },
        "batch_size": { "type": "int", "values": [8, 16, 32, 64, 128] },
    }))?;
    Space::new(&declared).map_err(|problems| problems[0].to_string().into())
}

/// A trial under way.
struct Running {
    number: usize,
    network: Network,
    readings: Vec<Reading>,
    /// When its next reading comes, and the time between two.
    next: f64,
    pace: f64,
}

/// Runs a search. Returns the epochs of all trials, and the best accuracy.
fn search(space: &Space, images: &[Image], seed: u64, asha: Option<Asha>) -> Result<(u64, f64), Box<dyn Error>> {
    let settings = Settings { method: Method::Bayes, algorithm: Algorithm::Auto, goal: Goal::Maximize, seed };
    let (mut history, mut rungs, mut running) = (History::default(), Rungs::default(), Vec::new());
    let (mut now, mut epochs, mut best) = (0.0, 0, 0.0_f64);
    loop {
        while running.len() < PARALLEL && history.trials.len() < TRIALS {
            let parameters = suggest(space, &settings, &history)?.ok_or("the space has no more points")?;
            let number = history.trials.len() + 1;
            let mut draw = ChaCha8Rng::seed_from_u64(seed * 1000 + number as u64);
            let pace = 0.5 + uniform(&mut draw);
            let network = Network::new(&parameters, draw);
            running.push(Running { number, network, readings: Vec::new(), next: now + pace, pace });
            history.trials.push(Trial { parameters, outcome: Outcome::Running });
        }
        let first = running.iter().enumerate().min_by(|(_, a), (_, b)| a.next.total_cmp(&b.next));
        let Some(at) = first.map(|(at, _)| at) else { return Ok((epochs, best)) };
        let trial = &mut running[at];
        now = trial.next;
        trial.next += trial.pace;
        trial.network.train(images);
        epochs += 1;
        let reading = Reading { step: trial.readings.len() as u64 + 1, value: trial.network.accuracy(images) };
        trial.readings.push(reading);
        best = best.max(reading.value);
        let reached = trial.readings.iter().map(|reading| reading.value).fold(0.0, f64::max);
        let stop = asha.and_then(|asha| {
            asha.record(&mut rungs, trial.number, &trial.readings);
            asha.decide(Goal::Maximize, &rungs, trial.number)
        });
        let outcome = match stop {
            _ if reading.step == EPOCHS => Outcome::Finished { value: reached },
            Some(_) => Outcome::Stopped { step: reading.step, value: reached },
            None => continue,
        };
        history.trials[trial.number - 1].outcome = outcome;
        running.remove(at);
    }
}

fn uniform(draw: &mut ChaCha8Rng) -> f64 {
    (draw.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
}

/// A network with one hidden layer of rectified units, trained by stochastic gradient descent with momentum.
struct Network {
    width: usize,
    rate: f32,
    momentum: f32,
    batch: usize,
    /// Weights and biases of the hidden layer, then those of the last one; and their velocities.
    weights: [Vec<f32>; 4],
    velocities: [Vec<f32>; 4],
    draw: ChaCha8Rng,
}

impl Network {
    fn new(parameters: &Parameters, mut draw: ChaCha8Rng) -> Self {
        let number = |name: &str| parameters[name].number().unwrap_or_default();
        let width = number("width") as usize;
        let mut layer = |inputs: usize, outputs: usize| {
            let scale = (2.0 / inputs as f64).sqrt();
            (0..inputs * outputs).map(|_| ((uniform(&mut draw) * 2.0 - 1.0) * scale) as f32).collect::<Vec<_>>()
        };
        let weights = [layer(PIXELS, width), vec![0.0; width], layer(width, CLASSES), vec![0.0; CLASSES]];
        let velocities = weights.clone().map(|weights| vec![0.0; weights.len()]);
        let (rate, momentum) = (number("learning_rate") as f32, number("momentum") as f32);
        Self { width, rate, momentum, batch: number("batch_size") as usize, weights, velocities, draw }
    }

    /// One epoch. Every fifth image is held out.
    fn train(&mut self, images: &[Image]) {
        let mut order: Vec<usize> = (0..images.len()).filter(|at| at % 5 != 0).collect();
        for at in (1..order.len()).rev() {
            let other = (uniform(&mut self.draw) * (at + 1) as f64) as usize;
            order.swap(at, other.min(at));
        }
        for batch in order.chunks(self.batch) {
            let mut gradients = self.weights.clone().map(|weights| vec![0.0_f32; weights.len()]);
            for &at in batch {
                self.add_gradients(&images[at], &mut gradients);
            }
            for ((weights, velocities), gradients) in self.weights.iter_mut().zip(&mut self.velocities).zip(&gradients)
            {
                for ((weight, velocity), gradient) in weights.iter_mut().zip(velocities.iter_mut()).zip(gradients) {
                    *velocity = self.momentum * *velocity - self.rate * gradient / batch.len() as f32;
                    *weight += *velocity;
                }
            }
        }
    }

    fn hidden(&self, image: &Image) -> Vec<f32> {
        let mut hidden = self.weights[1].clone();
        for (pixel, weights) in image.pixels.iter().zip(self.weights[0].chunks(self.width)) {
            for (unit, weight) in hidden.iter_mut().zip(weights) {
                *unit += pixel * weight;
            }
        }
        hidden.iter_mut().for_each(|unit| *unit = unit.max(0.0));
        hidden
    }

    fn outputs(&self, hidden: &[f32]) -> Vec<f32> {
        let mut outputs = self.weights[3].clone();
        for (unit, weights) in hidden.iter().zip(self.weights[2].chunks(CLASSES)) {
            for (output, weight) in outputs.iter_mut().zip(weights) {
                *output += unit * weight;
            }
        }
        outputs
    }

    fn add_gradients(&self, image: &Image, gradients: &mut [Vec<f32>; 4]) {
        let hidden = self.hidden(image);
        let outputs = self.outputs(&hidden);
        let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f32> = outputs.iter().map(|output| (output - most).exp()).collect();
        let sum: f32 = exps.iter().sum();
        let mut errors: Vec<f32> = exps.iter().map(|exp| exp / sum).collect();
        errors[image.label] -= 1.0;
        for (at, unit) in hidden.iter().enumerate() {
            let weights = &self.weights[2][at * CLASSES..][..CLASSES];
            let slopes = &mut gradients[2][at * CLASSES..][..CLASSES];
            let mut back = 0.0;
            for ((error, weight), slope) in errors.iter().zip(weights).zip(slopes) {
                *slope += unit * error;
                back += error * weight;
            }
            if *unit > 0.0 {
                gradients[1][at] += back;
                for (pixel, slopes) in image.pixels.iter().zip(gradients[0].chunks_mut(self.width)) {
                    slopes[at] += pixel * back;
                }
            }
        }
        errors.iter().zip(&mut gradients[3]).for_each(|(error, slope)| *slope += error);
    }

    /// Share of the held-out images that it names.
    fn accuracy(&self, images: &[Image]) -> f64 {
        let held_out = images.iter().step_by(5);
        let count = held_out.len();
        let right = held_out.filter(|image| {
            let outputs = self.outputs(&self.hidden(image));
            let best = outputs.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
            best.is_some_and(|(class, _)| class == image.label)
        });
        right.count() as f64 / count as f64
    }
}
