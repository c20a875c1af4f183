//! Where tests kill the process.

/// An instant at which the process can be killed, which tests do.
pub(super) fn step() {
    #[cfg(test)]
    crate::testing::step();
}
