//! Where tests kill the process.

/// An instant at which tests can kill the process.
pub(super) fn step() {
    #[cfg(test)]
    crate::testing::step();
}
