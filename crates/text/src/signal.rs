//! Linux signals by number. The plugin may run on another system, but it reads about programs that ended on Linux. The
//! numbers of its own system would be wrong.

/// Sent by a program that gives up by itself.
pub const SIGABRT: i32 = 6;
/// Ends a process at once; sent by the kernel when there is no memory left.
pub const SIGKILL: i32 = 9;
/// Sent by the kernel to a program that touched memory that is not its own.
pub const SIGSEGV: i32 = 11;
/// Asks a program to end.
pub const SIGTERM: i32 = 15;

/// By number from 1, as on all architectures but MIPS, SPARC and Alpha; signal(7) has them.
const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// Returns the name of a signal, such as `SIGKILL` for 9. Returns `None` for real-time signals and invalid numbers.
#[must_use]
pub fn name(signal: i32) -> Option<&'static str> {
    NAMES.get(usize::try_from(signal).ok()?.checked_sub(1)?).copied()
}

/// Returns the signal of an exit code. A shell exits with 128 plus the number of the signal that ended its program.
///
/// Only SIGTERM and signals of the kernel or of the program itself count. Codes above 128 have other meanings too, such
/// as 129 for wrong arguments of git.
#[must_use]
pub fn of_exit_code(code: i32) -> Option<i32> {
    const SIGILL: i32 = 4;
    const SIGBUS: i32 = 7;
    const SIGFPE: i32 = 8;
    const SIGPIPE: i32 = 13;
    const ENDING: [i32; 8] = [SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGPIPE, SIGTERM];
    code.checked_sub(128).filter(|signal| ENDING.contains(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_exit_codes_map_to_signals() {
        assert_eq!([132, 134, 137, 139, 143].map(of_exit_code), [4, 6, 9, 11, 15].map(Some));
        for code in [0, 1, 2, 9, 11, 101, 126, 127, 128, 129, 130, 131, 160, 255, -11, i32::MIN, i32::MAX] {
            assert_eq!(of_exit_code(code), None, "{code}");
        }
    }

    #[test]
    fn signals_have_names() {
        let of = |signals: [i32; 4]| signals.map(|signal| name(signal).unwrap());
        assert_eq!(of([SIGABRT, SIGKILL, SIGSEGV, SIGTERM]), ["SIGABRT", "SIGKILL", "SIGSEGV", "SIGTERM"]);
        assert_eq!([0, -9, 32, 64, i32::MAX].map(name), [None; 5]);
        assert_eq!((name(1), name(31)), (Some("SIGHUP"), Some("SIGSYS")));
    }
}
