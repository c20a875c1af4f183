//! Describes processes that outlive SIGKILL.

use procfs::process::Stat;
use protocol::report::MAX_UNKILLABLE;
use std::time::Duration;
use text::start_of;

/// Describes the first of the processes that are `left`, its state, and how many others there are. `waits_in` returns
/// the kernel function in which a process waits, if that is known.
pub fn describe(left: &[Stat], after: Duration, waits_in: impl Fn(i32) -> String) -> String {
    // A process that waits in the kernel is the cause. Its parents may only be waiting for it.
    let Some(first) = left.iter().find(|process| process.state == 'D').or_else(|| left.first()) else {
        return "processes were left after SIGKILL".to_owned();
    };
    let name: String = first.comm.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
    let kernel = waits_in(first.pid);
    let waits_in = if kernel.is_empty() { String::new() } else { format!(", in {kernel}") };
    let others = match left.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let seconds = after.as_secs();
    let text = format!(
        "process {} ({name}, state {}{waits_in}){others} outlived SIGKILL for {seconds} s: a driver, disk or file server of \
         the node does not answer, or the process is another user's",
        first.pid, first.state
    );
    start_of(&text, MAX_UNKILLABLE).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use exposition::usage::stat_of_self;

    fn process(pid: i32, comm: &str, state: char) -> Stat {
        let mut process = stat_of_self().unwrap();
        (process.pid, process.comm, process.state) = (pid, comm.to_owned(), state);
        process
    }

    #[test]
    fn survivor_description_names_the_process_stuck_in_the_kernel() {
        let left = [process(7, "sh", 'S'), process(57, "python3", 'D'), process(58, "python3", 'S')];
        let text = describe(&left, Duration::from_secs(120), |pid| format!("nfs_wait_{pid}"));
        assert!(
            text.starts_with(
                "process 57 (python3, state D, in nfs_wait_57) and 2 more outlived SIGKILL for 120 s: a driver"
            ),
            "{text}"
        );
        let text = describe(&left[..1], Duration::from_secs(3), |_| String::new());
        assert!(text.starts_with("process 7 (sh, state S) outlived SIGKILL for 3 s: "), "{text}");
        assert!(!describe(&[], Duration::ZERO, |_| String::new()).is_empty());
    }

    #[test]
    fn survivor_description_fits_with_any_process_name() {
        let odd = process(i32::MAX, "\u{1}\"\n\u{fffd}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}", 'D');
        let text = describe(&vec![odd; 3], Duration::MAX, |_| "x".repeat(500));
        assert!(text.len() <= MAX_UNKILLABLE && !text.contains('\n'), "{text}");
        assert!(serde_json::to_string(&text).unwrap().len() <= MAX_UNKILLABLE + 8, "{text}");
    }
}
