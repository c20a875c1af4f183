//! Random numbers of a search. They are the same on every machine and in every version of this crate.

use libm::{cos, log, sqrt};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The longest sequence of `sobol_burley`.
const SOBOL_POINTS: usize = 1 << 16;

/// What the numbers are for. Each purpose has a sequence of its own, so that one more number here changes none there.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Random,
    Start,
    Tpe,
    Gp,
    Replacement,
    Importance,
}

/// Random numbers of one suggestion: ChaCha8 with the seed as its key and the number of the trial as its stream.
pub(crate) struct Draw(ChaCha8Rng);

impl Draw {
    pub fn new(seed: u64, purpose: Purpose, trial: usize) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = purpose as u8;
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(trial as u64);
        Self(generator)
    }

    /// Uniform in 0..1. `rand`'s own conversion may change between its versions.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    /// Of a normal distribution with mean 0 and variance 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = sqrt(-2.0 * log(1.0 - self.uniform()));
        radius * cos(std::f64::consts::TAU * self.uniform())
    }

    /// A whole number below `count`, which is one too.
    pub fn below(&mut self, count: f64) -> f64 {
        libm::floor(self.uniform() * count).min(count - 1.0)
    }

    /// An index, drawn by weight.
    pub fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        for (at, weight) in weights.iter().enumerate() {
            if left < *weight {
                return at;
            }
            left -= weight;
        }
        weights.len().saturating_sub(1)
    }

    /// The seed of a sequence of Sobol points.
    pub fn sobol(&mut self) -> Sobol {
        Sobol { seed: self.0.next_u32() }
    }
}

/// Scrambled Sobol points: spread more evenly than independent ones.
pub(crate) struct Sobol {
    seed: u32,
}

impl Sobol {
    /// One coordinate in 0..1 of a point.
    #[expect(clippy::cast_possible_truncation, reason = "both are below 2^16")]
    pub fn coordinate(&self, point: usize, axis: usize) -> f64 {
        f64::from(sobol_burley::sample((point % SOBOL_POINTS) as u32, axis as u32, self.seed))
    }
}
