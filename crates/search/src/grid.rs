//! The points of a grid: all combinations, the last axis fastest.

use crate::space::Space;

/// The point at an index from 0; `None` if the grid has fewer points or the space is continuous.
pub(crate) fn point(space: &Space, index: usize) -> Option<Vec<f64>> {
    let mut grid = Grid::new(space)?;
    for _ in 0..index {
        grid.advance().then_some(())?;
    }
    Some(grid.coordinates())
}

/// The number of points, counted up to `limit`; `None` if the space is continuous.
pub(crate) fn size(space: &Space, limit: usize) -> Option<usize> {
    let mut grid = Grid::new(space)?;
    let mut count = 1;
    while count < limit && grid.advance() {
        count += 1;
    }
    Some(count)
}

/// Counts like an odometer whose wheels stand still while their condition is not met.
struct Grid<'s> {
    space: &'s Space,
    counts: Vec<f64>,
    positions: Vec<f64>,
}

impl<'s> Grid<'s> {
    fn new(space: &'s Space) -> Option<Self> {
        let counts: Vec<f64> = space.axes.iter().map(|axis| axis.domain.count()).collect::<Option<_>>()?;
        Some(Self { space, positions: vec![0.0; counts.len()], counts })
    }

    /// Whether there was another point.
    fn advance(&mut self) -> bool {
        let here = self.coordinates();
        for at in (0..self.counts.len()).rev() {
            if !here[at].is_nan() && self.positions[at] + 1.0 < self.counts[at] {
                self.positions[at] += 1.0;
                self.positions[at + 1..].fill(0.0);
                return true;
            }
        }
        false
    }

    fn coordinates(&self) -> Vec<f64> {
        let axes = self.space.axes.iter().zip(&self.positions);
        let all: Vec<f64> = axes.map(|(axis, position)| axis.domain.coordinate(*position)).collect();
        self.space.without_inactive(&all)
    }
}
