//! A panic where text of others is looked at ends that look, and not PID 1.

use crate::words::Words;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

#[cfg(not(panic = "unwind"))]
compile_error!("the agent survives a panic of its parsers by unwinding: the profile must not say panic = \"abort\"");

/// Panics that are told of: a parser may meet what it can't bear in every line.
const MAX_TOLD: u32 = 3;

/// Does `work`; `None` if that panics, and everything goes on without what it would have found.
///
/// What `work` has half done stays so. It may only be what is known of the program: that is worth less than the program.
pub fn survive<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = SURVIVES.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    SURVIVES.set(before);
    result.ok()
}

thread_local! {
    /// What this thread does just now may panic.
    static SURVIVES: Cell<bool> = const { Cell::new(false) };
}

/// Tells of panics that are survived in the agent's own words, which block nobody: std's would block on a stderr that is
/// full. Of one that is not survived std tells, as this may be the last that is done.
pub fn tell_of_panics(words: &Arc<Words>) {
    let words = Arc::clone(words);
    let told_so_far = AtomicU32::new(0);
    let of_std = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !SURVIVES.get() {
            of_std(panic);
        } else if told_so_far.fetch_add(1, SeqCst) < MAX_TOLD {
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("unnamed");
            words.say(format_args!("this is a bug, and the program goes on: {panic} (thread {thread})"));
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_own_work_only() {
        assert_eq!(survive(|| 1), Some(1));
        assert_eq!(survive(|| -> u8 { panic!("of a parser, which is meant to be seen in this test's output") }), None);
    }
}
