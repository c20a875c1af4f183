//! Minimisation of a smooth function within bounds: L-BFGS on the coordinates that are not held by a bound.
//!
//! The direction is that of limited-memory BFGS (Nocedal and Wright, Numerical Optimization, algorithm 7.4). Steps are
//! projected into the bounds and shortened until the decrease is sufficient (Armijo's rule).

/// Pairs of steps and gradients that are remembered.
const MEMORY: usize = 10;
/// Share of the expected decrease that is sufficient.
const SUFFICIENT: f64 = 1e-4;
const MOST_SHORTENINGS: usize = 20;

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub iterations: usize,
    /// Largest component of the gradient that counts as 0.
    pub gradient: f64,
}

/// The lowest point found, and its value. `function` returns value and gradient.
pub(crate) fn minimize(
    mut function: impl FnMut(&[f64]) -> (f64, Vec<f64>),
    start: &[f64],
    bounds: &[(f64, f64)],
    limits: Limits,
) -> (Vec<f64>, f64) {
    let mut at = projected(start, bounds);
    let (mut value, mut gradient) = function(&at);
    let mut memory: Vec<CurvaturePair> = Vec::new();
    for _ in 0..limits.iterations {
        let free: Vec<bool> = (0..at.len()).map(|i| !is_held(at[i], gradient[i], bounds[i])).collect();
        let steepest = gradient.iter().zip(&free).filter(|(_, free)| **free).map(|(g, _)| g.abs()).fold(0.0, f64::max);
        if !value.is_finite() || steepest.is_nan() || steepest < limits.gradient {
            break;
        }
        let mut direction = direction(&gradient, &free, &memory);
        if dot(&direction, &gradient) >= 0.0 {
            memory.clear();
            direction = self::direction(&gradient, &free, &memory);
        }
        let mut length = if memory.is_empty() { (0.25 / steepest).min(1.0) } else { 1.0 };
        let mut next = None;
        for _ in 0..MOST_SHORTENINGS {
            let moved: Vec<f64> = at.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            let moved = projected(&moved, bounds);
            let expected: f64 = moved.iter().zip(&at).zip(&gradient).map(|((new, old), g)| (new - old) * g).sum();
            let (new_value, new_gradient) = function(&moved);
            if expected < 0.0 && new_value <= value + SUFFICIENT * expected {
                next = Some((moved, new_value, new_gradient));
                break;
            }
            length *= 0.4;
        }
        let Some((moved, new_value, new_gradient)) = next else {
            if memory.is_empty() {
                break;
            }
            memory.clear();
            continue;
        };
        let step: Vec<f64> = moved.iter().zip(&at).map(|(new, old)| new - old).collect();
        let change: Vec<f64> = new_gradient.iter().zip(&gradient).map(|(new, old)| new - old).collect();
        let curvature = dot(&step, &change);
        if curvature > 1e-12 * dot(&change, &change) {
            if memory.len() == MEMORY {
                memory.remove(0);
            }
            memory.push(CurvaturePair { step, change, curvature });
        }
        (at, value, gradient) = (moved, new_value, new_gradient);
    }
    (at, value)
}

struct CurvaturePair {
    step: Vec<f64>,
    change: Vec<f64>,
    curvature: f64,
}

fn direction(gradient: &[f64], free: &[bool], memory: &[CurvaturePair]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().zip(free).map(|(g, free)| if *free { -g } else { 0.0 }).collect();
    let mut shares = vec![0.0; memory.len()];
    for (share, pair) in shares.iter_mut().zip(memory).rev() {
        *share = dot(&pair.step, &direction) / pair.curvature;
        add(&mut direction, -*share, &pair.change);
    }
    if let Some(last) = memory.last() {
        let scale = last.curvature / dot(&last.change, &last.change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (share, pair) in shares.iter().zip(memory) {
        let back = dot(&pair.change, &direction) / pair.curvature;
        add(&mut direction, share - back, &pair.step);
    }
    direction.iter_mut().zip(free).filter(|(_, free)| !**free).for_each(|(d, _)| *d = 0.0);
    direction
}

fn is_held(at: f64, gradient: f64, (low, high): (f64, f64)) -> bool {
    (at <= low && gradient > 0.0) || (at >= high && gradient < 0.0)
}

fn projected(point: &[f64], bounds: &[(f64, f64)]) -> Vec<f64> {
    point.iter().zip(bounds).map(|(x, (low, high))| x.clamp(*low, *high)).collect()
}

fn add(sum: &mut [f64], factor: f64, other: &[f64]) {
    sum.iter_mut().zip(other).for_each(|(x, y)| *x += factor * y);
}

/// In four sums, which the compiler computes side by side.
pub(crate) fn dot(one: &[f64], other: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (ones, others) = (one.chunks_exact(4), other.chunks_exact(4));
    let rest: f64 = ones.remainder().iter().zip(others.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in ones.zip(others) {
        for lane in 0..4 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    (sums[0] + sums[2]) + (sums[1] + sums[3]) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { iterations: 200, gradient: 1e-9 };

    fn rosenbrock(at: &[f64]) -> (f64, Vec<f64>) {
        let (x, y) = (at[0], at[1]);
        let valley = y - x * x;
        (100.0 * valley * valley + (1.0 - x) * (1.0 - x), vec![-400.0 * x * valley - 2.0 * (1.0 - x), 200.0 * valley])
    }

    #[test]
    fn minimizer_finds_rosenbrock_minimum() {
        let (at, value) = minimize(rosenbrock, &[-1.2, 1.0], &[(-5.0, 5.0); 2], LIMITS);
        assert!(value < 1e-12, "{at:?} {value}");
    }

    #[test]
    fn minimizer_stays_within_bounds() {
        let (at, _) = minimize(rosenbrock, &[-1.2, 1.0], &[(-5.0, 0.5), (-5.0, 5.0)], LIMITS);
        assert!((at[0] - 0.5).abs() < 1e-9 && (at[1] - 0.25).abs() < 1e-6, "{at:?}");
    }
}
