//! Limits a panic to the work that caused it, such as parsing foreign text, so that PID 1 goes on.

use crate::agent_log::AgentLog;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

#[cfg(not(panic = "unwind"))]
compile_error!("the agent survives a panic of its parsers by unwinding: the profile must not say panic = \"abort\"");

/// Highest number of panics that are logged, because a parser may panic at every line.
const MAX_TOLD: u32 = 3;

/// Does `work`. Returns `None` if it panics, and the agent goes on without its result.
///
/// Work that is half done stays so. It may only concern observations of the program, which matter less than the
/// program.
pub fn catch_parser_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = SURVIVES.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    SURVIVES.set(before);
    result.ok()
}

thread_local! {
    /// Whether this thread's current work may panic.
    static SURVIVES: Cell<bool> = const { Cell::new(false) };
}

/// Logs survived panics with [`AgentLog`], which never blocks, while std's hook would block on a full stderr. A panic that
/// is not survived is left to std's hook, because it may be the last thing that happens.
pub fn log_panics(log: &Arc<AgentLog>) {
    let log = Arc::clone(log);
    let logged_so_far = AtomicU32::new(0);
    let of_std = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !SURVIVES.get() {
            of_std(panic);
        } else if logged_so_far.fetch_add(1, SeqCst) < MAX_TOLD {
            let thread = std::thread::current();
            let thread = thread.name().unwrap_or("unnamed");
            log.say(format_args!("this is a bug, and the program goes on: {panic} (thread {thread})"));
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parser_panic_is_contained() {
        assert_eq!(catch_parser_panic(|| 1), Some(1));
        assert_eq!(
            catch_parser_panic(|| -> u8 { panic!("of a parser, which is meant to be seen in this test's output") }),
            None
        );
    }
}
