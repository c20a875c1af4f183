//! The history that a watch has seen, which may be incomplete. Of two changes in quick succession it may show the last.

use std::fmt::Debug;

/// Asserts that all of these were seen in this order, with anything between them except `never`.
pub fn assert_in_order<T: PartialEq + Debug>(seen: &[T], wanted: &[T], never: &[T]) {
    let mut rest = seen.iter();
    let in_order = wanted.iter().all(|one| rest.any(|other| other == one));
    assert!(in_order, "{seen:?} are not {wanted:?} in this order");
    assert!(!seen.iter().any(|one| never.contains(one)), "{seen:?} has one of {never:?}");
}
