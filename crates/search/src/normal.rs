//! The normal distribution, by `libm`, whose results are the same on every machine.

use libm::{erfc, exp, log};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Density.
pub(crate) fn density(z: f64) -> f64 {
    exp(-0.5 * z * z) / libm::sqrt(2.0 * PI)
}

/// Probability below `z`.
pub(crate) fn below(z: f64) -> f64 {
    0.5 * erfc(-z * FRAC_1_SQRT_2)
}

/// Probability between two bounds. Computed in the tail that is smaller, where nothing cancels.
pub(crate) fn between(low: f64, high: f64) -> f64 {
    if low > 0.0 { below(-low) - below(-high) } else { below(high) - below(low) }
}

/// Logarithm of the expected improvement in standard deviations, `ln(φ(z) + zΦ(z))`, and its derivative.
///
/// Below -25, where the terms cancel, it is the asymptotic series.
pub(crate) fn log_improvement(z: f64) -> (f64, f64) {
    if z > -25.0 {
        let improvement = density(z) + z * below(z);
        return (log(improvement), below(z) / improvement);
    }
    let inverse = 1.0 / (z * z);
    let series = 1.0 - inverse * (3.0 - inverse * (15.0 - inverse * 105.0));
    let tail = 1.0 - inverse * (1.0 - inverse * (3.0 - inverse * 15.0));
    let value = -0.5 * z * z - 0.5 * log(2.0 * PI) + log(inverse) + log(series);
    (value, -z * tail / series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn improvement_is_continuous_at_formula_change() {
        let (above, below) = (log_improvement(-25.0 + 1e-9), log_improvement(-25.0 - 1e-9));
        assert!((above.0 - below.0).abs() < 1e-6, "{above:?} {below:?}");
        assert!((above.1 - below.1).abs() < 1e-6, "{above:?} {below:?}");
    }

    #[test]
    fn improvement_derivative_matches_finite_differences() {
        for z in [-300.0, -30.0, -26.0, -20.0, -5.0, -1.0, 0.0, 2.0, 8.0] {
            let width = 1e-5;
            let slope = (log_improvement(z + width).0 - log_improvement(z - width).0) / (2.0 * width);
            let derivative = log_improvement(z).1;
            assert!((slope / derivative - 1.0).abs() < 1e-3, "{z}: {slope} {derivative}");
        }
    }

    #[test]
    fn tail_mass_is_positive_on_both_sides() {
        assert!(between(8.0, 8.1) > 0.0);
        assert_eq!(between(8.0, 8.1), between(-8.1, -8.0));
    }
}
