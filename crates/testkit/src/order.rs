//! What a watch has seen, which is not always everything: of two changes that follow each other fast it may show the last.

use std::fmt::Debug;

/// All of these were seen in this order, with whatever else between them but what should never be.
pub fn assert_in_order<T: PartialEq + Debug>(seen: &[T], wanted: &[T], never: &[T]) {
    let mut rest = seen.iter();
    let in_order = wanted.iter().all(|one| rest.any(|other| other == one));
    assert!(in_order, "{seen:?} are not {wanted:?} in this order");
    assert!(!seen.iter().any(|one| never.contains(one)), "{seen:?} has one of {never:?}");
}
