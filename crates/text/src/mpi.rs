//! What `mpirun` reports about the process that failed first, for Open MPI 4 and 5, and for MPICH and its derivatives.

use crate::signal::{SIGABRT, SIGKILL, SIGSEGV};
use regex::Regex;
use std::sync::LazyLock;

/// The process that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstProcess {
    /// Rank of the process. MPICH does not print it if a signal ended the process.
    pub rank: Option<u64>,
    /// Host name of its machine, as the machine gives it.
    pub node: Option<String>,
    /// Exit code of the process, negative for a signal.
    pub code: i32,
    /// Whether another process may have failed first. MPICH kills the others after a failure, and may name any of them.
    pub may_be_any: bool,
}

/// Returns where in a piece of stdout MPICH begins to report how a process ended. Only MPICH prints this to stdout,
/// line by line, and nothing else follows.
pub fn farewell_on_stdout(piece: &[u8]) -> Option<usize> {
    static BANNER: LazyLock<regex::bytes::Regex> = LazyLock::new(|| {
        let words = r"(?m-u)^(?:={60,}\n)?=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n";
        crate::constant_bytes(words)
    });
    BANNER.find(piece).map(|found| found.start())
}

/// Returns the process that failed first, if `mpirun` has reported one.
pub fn first_process(text: &str) -> Option<FirstProcess> {
    static TOLD: LazyLock<[Regex; 5]> = LazyLock::new(|| {
        [
            // Open MPI and MPICH, for a process that has called MPI_Abort.
            r"(?m)^MPI_ABORT was invoked on rank (?<rank>\d+) in communicator .*\n(?:with errorcode (?<code>-?\d+)\.$| +Proc: .*\n +Errorcode: (?<code5>-?\d+)$)",
            r"(?m)^Abort\((?<code>-?\d+)\) on node \d+ \(rank (?<rank>\d+) in comm \d+\): application called MPI_Abort\(",
            // Open MPI, which runs prterun itself since version 5.
            r"(?m)^(?:mpirun|mpiexec|orterun|prterun) noticed that process rank (?<rank>\d+) with PID \d+ on node (?<node>\S+) exited on\s+signal (?<signal>\d+)\b",
            // Open MPI in the process itself. `mpirun` may notice a peer of it first.
            r"(?m)^\[(?<node>[^\s:\[\]]+):\d+\] \*\*\* Process received signal \*\*\*\n\[[^\s\[\]]+:\d+\] Signal: .* \((?<signal>\d+)\)$",
            r"(?m)^(?:mpirun|mpiexec|orterun|prterun) detected that one or more processes exited with non-zero status,\s+thus causing\s+the job to be terminated\. The first process to do so was:\s+Process name: \[.*,(?<rank>\d+)\]\s+Exit code: +(?<code>\d+)\s",
        ]
        .map(crate::constant)
    });
    static MPICHS: LazyLock<Regex> = LazyLock::new(|| {
        let words = r"(?m)^=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n(?:=   PID \d+ RUNNING AT (?<node>\S+)\n)?=   EXIT CODE: (?<code>\d+)\n(?:=.*\n)*(?:YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .* \(signal (?<signal>\d+)\)$)?";
        crate::constant(words)
    });
    static INTELS: LazyLock<Regex> = LazyLock::new(|| {
        let words = r"(?m)^=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK (?<rank>\d+) PID \d+ RUNNING AT (?<node>\S+)\n=   (?:KILLED BY SIGNAL: (?<signal>\d+) \(.*\)|EXIT STATUS: (?<code>\d+))$";
        crate::constant(words)
    });
    // Lines of other processes may come between these lines.
    let is_farewell = |line: &&str| line.starts_with('=') || line.starts_with("YOUR APPLICATION TERMINATED WITH");
    let farewell: String = text.split_inclusive('\n').filter(is_farewell).collect();
    // Intel MPI reports every process in the order of ranks, including those that it has killed itself.
    let is_killed = |found: &regex::Captures| found.name("signal").is_some_and(|signal| signal.as_str() == "9");
    let intels =
        || INTELS.captures_iter(&farewell).find(|found| !is_killed(found)).or_else(|| INTELS.captures(&farewell));
    let found = TOLD.iter().find_map(|words| words.captures(text));
    let found = found.or_else(|| MPICHS.captures(&farewell)).or_else(intels)?;
    let number = |name: &str| found.name(name).and_then(|number| number.as_str().parse::<i32>().ok());
    // MPICH reports the signal of a process on another machine as if it were an exit code.
    let is_signal = |code: &i32| found[0].contains("BAD TERMINATION") && [SIGABRT, SIGKILL, SIGSEGV].contains(code);
    let signal = number("signal").or_else(|| number("code").filter(is_signal));
    let may_be_any = found[0].contains("BAD TERMINATION") && signal == Some(SIGKILL);
    Some(FirstProcess {
        rank: found.name("rank").and_then(|rank| rank.as_str().parse().ok()),
        node: found.name("node").map(|node| node.as_str().to_owned()),
        code: signal.map(|signal| -signal).or_else(|| number("code")).or_else(|| number("code5"))?,
        may_be_any,
    })
}

/// Returns `lines` without what `mpirun` prints when a process has failed, which says only that.
pub fn without_mpirun<'t>(lines: &[&'t str]) -> Vec<&'t str> {
    let lines: Vec<&str> = lines.iter().copied().filter(|line| !is_hydras(line)).collect();
    let mut own = Vec::new();
    let mut rest = lines.as_slice();
    while let Some((line, after)) = rest.split_first() {
        let begins =
            |words: &[&str]| after.first().is_some_and(|next| words.iter().any(|words| next.starts_with(words)));
        let end = match () {
            () if is_ruler(line, b'-') && begins(&CLOSING) => after.iter().position(|line| is_ruler(line, b'-')),
            () if (is_ruler(line, b'=') && begins(&[BAD_TERMINATION])) || line.starts_with(BAD_TERMINATION) => {
                // At most three lines follow below the ruler. Other processes may print lines above it.
                let end = after.iter().position(|line| is_ruler(line, b'='));
                own.extend(after[..end.unwrap_or(0)].iter().filter(|line| !line.starts_with('=')));
                end.map(|end| end + after[end + 1..].iter().take(3).take_while(|line| is_below(line)).count())
            }
            () => None,
        };
        match end {
            Some(end) => rest = &after[end + 1..],
            None => {
                own.push(*line);
                rest = after;
            }
        }
    }
    own.retain(|line| !is_mpichs_abort(line) && !is_librarys(line));
    own
}

/// Returns the most informative line of `mpirun` or of a process's MPI, for a process that printed nothing itself. It
/// names a failed MPI operation, a signal, or that the program has given up.
pub fn cause_line<'t>(lines: &[&'t str]) -> Option<&'t str> {
    let find = |is: &dyn Fn(&str) -> bool| lines.iter().find(|line| is(line)).copied();
    find(&is_error)
        .map(|line| plain(line).trim_start_matches("*** "))
        .or_else(|| find(&|line| ENDED.is_match(line)))
        .or_else(|| find(&|line| line.starts_with("MPI_ABORT was invoked on rank ") || is_mpichs_abort(line)))
}

/// Whether a line of our remote shell, Open MPI or MPICH reports an unreachable worker.
pub fn is_lost(line: &str) -> bool {
    static LOST: LazyLock<Regex> = LazyLock::new(|| {
        let words = r"^agent: \S+: the connection was lost before the command had ended$|^(?:ORTE|PRTE) has lost communication with a remote daemon\.$|^\[mpiexec@\S+\] control_cb \(\S+\): assert \(!closed\) failed$";
        crate::constant(words)
    });
    LOST.is_match(line)
}

/// Returns the line about a process that a signal ended.
pub fn killed_line<'t>(lines: &[&'t str]) -> Option<&'t str> {
    lines.iter().find(|line| ENDED.is_match(line)).copied()
}

static ENDED: LazyLock<Regex> = LazyLock::new(|| {
    crate::constant(
        r"^(?:mpirun|mpiexec|orterun|prterun) noticed that process rank \d+ with PID \d+ on node \S+ exited on(?: signal \d+|$)|^YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .* \(signal \d+\)$|^\[[^\s:\[\]]+:\d{5,}\] Signal: .* \(\d+\)$",
    )
});

/// How MPICH's report begins, below a ruler.
const BAD_TERMINATION: &str = "=   BAD TERMINATION OF";

/// How the messages begin that Open MPI prints between two rulers.
const CLOSING: [&str; 14] = [
    "A daemon failed to report back after being spawned",
    "ORTE has lost communication with a remote daemon",
    "PRTE has lost communication with a remote daemon",
    "Primary job  terminated normally, but ",
    "MPI_ABORT was invoked on rank ",
    "mpirun detected that one or more",
    "mpiexec detected that one or more",
    "prterun detected that one or more",
    "mpirun noticed that process rank ",
    "mpiexec noticed that process rank ",
    "prterun noticed that process rank ",
    "mpirun has exited due to process rank ",
    "mpiexec has exited due to process rank ",
    "prterun has exited due to process rank ",
];

fn is_ruler(line: &str, of: u8) -> bool {
    line.len() >= 60 && line.bytes().all(|b| b == of)
}

fn is_below(line: &str) -> bool {
    [
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING",
        "This typically refers to a problem",
        "Please see the FAQ page",
    ]
    .iter()
    .any(|words| line.starts_with(words))
}

/// Whether MPICH's launcher or one of its daemons reports the end of the other.
fn is_hydras(line: &str) -> bool {
    let who = line.strip_prefix('[').and_then(|line| line.split_once("] ")).map(|(who, _)| who);
    who.is_some_and(|who| who.contains('@') && (who.starts_with("mpiexec@") || who.starts_with("proxy:")))
}

/// Whether Open MPI's library in a process printed the line, to report a lost peer or the signal that it received. Its
/// warning about a remote shell that was faster than the library is harmless. The line of its libevent about a socket
/// that a peer has closed is an echo.
fn is_librarys(line: &str) -> bool {
    static OWN: LazyLock<Regex> = LazyLock::new(|| {
        let process = r"^\[[^\s:\[\]]+:\d{5,}\] (?:\*\*\* |Signal: |Signal code: |Associated errno: |Failing at address: |\[ ?\d+\] |plm:(?:ssh|rsh): Warning: setpgid\(\d+,\d+\) failed in (?:parent|child) with errno=)";
        let events = r"^\[warn\] Epoll (?:ADD|MOD|DEL)\(\d+\) on fd \d+ failed\b";
        crate::constant(&format!("(?:{process})|(?:{events})"))
    });
    OWN.is_match(line)
}

/// Returns `line` without the mark of the process that printed it.
fn plain(line: &str) -> &str {
    let rest = line.strip_prefix('[').and_then(|line| line.split_once("] "));
    rest.map_or(line, |(_, rest)| rest)
}

/// Whether a line names the error of a failed MPI operation.
pub fn is_error(line: &str) -> bool {
    plain(line).starts_with("*** MPI_ERR_") && line.contains(": ")
}

fn is_mpichs_abort(line: &str) -> bool {
    line.starts_with("Abort(") && line.contains("): application called MPI_Abort(")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULER: &str = "--------------------------------------------------------------------------";
    const DOUBLE: &str = "===================================================================================";

    fn between(words: &str) -> String {
        format!("{RULER}\n{words}\n{RULER}\n")
    }

    #[test]
    fn libevent_warning_about_closed_socket_is_removed() {
        let own = |text: &'static str| without_mpirun(&text.lines().collect::<Vec<_>>()).join("\n");
        let echo = "[warn] Epoll MOD(4) on fd 23 failed. Old events were 6; read change was 0 (none); write change was 2 (del): \
                    Bad file descriptor";
        assert_eq!(own(echo), "");
        for line in [
            "[warn] Epoll of 3 rounds on fd 23 failed",
            "[warn] Epoch MOD(4) on fd 23 failed",
            "[warn] loss on fd 23 failed to fall",
            "data.py: [warn] Epoll MOD(4) on fd 23 failed",
            "[warning] Epoll MOD(4) on fd 23 failed",
        ] {
            assert_eq!(own(line), line);
        }
    }

    type FailedProcess<'t> = (Option<u64>, Option<&'t str>, i32);

    fn failed_process(text: &str) -> Option<FailedProcess<'_>> {
        let first = first_process(text)?;
        let node = first.node.map(|node| text.find(&node).map_or("", |at| &text[at..at + node.len()]));
        Some((first.rank, node, first.code))
    }

    fn own(text: &str) -> Vec<&str> {
        without_mpirun(&text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>())
    }

    fn open_mpi() -> [(String, FailedProcess<'static>); 6] {
        let note = "\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\nYou may or may not see output from other processes, depending on\nexactly when Open MPI kills them.";
        let primary = between(
            "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.",
        );
        [
            // 4.1
            (
                between(&format!(
                    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 42.\n{note}"
                )),
                (Some(3), None, 42),
            ),
            (
                primary.clone()
                    + &between(
                        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[3639,1],3]\n  Exit code:    7",
                    ),
                (Some(3), None, 7),
            ),
            (
                primary
                    + &between(
                        "mpirun noticed that process rank 3 with PID 0 on node x-training-1 exited on signal 11 (Segmentation fault).",
                    ),
                (Some(3), Some("x-training-1"), -11),
            ),
            // 5.0
            (
                between(&format!(
                    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n  Proc: [[46326,1],3]\n  Errorcode: 42\n{note}"
                )) + &between(
                    "prterun has exited due to process rank 3 with PID 0 on node vm calling\n\"abort\". This may have caused other processes in the application to be\nterminated by signals sent by prterun (as reported here).",
                ),
                (Some(3), None, 42),
            ),
            (
                "[x-training-0:00010] plm:ssh: Warning: setpgid(17,17) failed in parent with errno=Permission denied(13)\n"
                    .to_owned()
                    + &between(
                    "prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be terminated. The first process to do so was:\n\n   Process name: [prterun-vm-25035@1,3]\n   Exit code:    7",
                ),
                (Some(3), None, 7),
            ),
            (
                between(
                    "prterun noticed that process rank 3 with PID 25191 on node x-training-1 exited on\nsignal 11 (Segmentation fault).",
                ),
                (Some(3), Some("x-training-1"), -11),
            ),
        ]
    }

    const BAD: &str = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 25428 RUNNING AT x-training-1\n=   EXIT CODE: 11\n=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES";
    const STRING: &str = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\nThis typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions\n";
    const ABORT: &str =
        "Abort(42) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 42) - process 3\n";

    #[test]
    fn first_failed_process_is_identified() {
        for (text, expected) in open_mpi() {
            let said = format!("step 3\nlast words\n{text}");
            assert_eq!(failed_process(&said), Some(expected), "{text}");
            assert_eq!(own(&said), ["step 3", "last words"], "{text}");
        }
        assert_eq!(failed_process(ABORT), Some((Some(3), None, 42)));
        let signalled = format!("step 3\n{DOUBLE}\n{BAD}\n{DOUBLE}\n{STRING}");
        assert_eq!(failed_process(&signalled), Some((None, Some("x-training-1"), -11)));
        let failed = format!("step 3\n{DOUBLE}\n{}\n{DOUBLE}\n", BAD.replace("CODE: 11", "CODE: 7"));
        assert_eq!(failed_process(&failed), Some((None, Some("x-training-1"), 7)));
        assert_eq!(own(&format!("step 3\n{BAD}\n{DOUBLE}\n{STRING}")), ["step 3"], "its ruler was read before");
        let remote = format!(
            "step 3\n{DOUBLE}\n{BAD}\n{DOUBLE}\n[proxy:0@x-training-0] main (/src/pmip.c:123): demux engine error waiting for event\n\
             [mpiexec@x-training-0] main (/src/mpiexec.c:270): process manager error waiting for completion\n"
        );
        assert_eq!(failed_process(&remote), Some((None, Some("x-training-1"), -11)));
        let between = format!(
            "{DOUBLE}\n{}\n{DOUBLE}\n{STRING}",
            BAD.replacen(
                '\n',
                "\n[proxy:0@x-training-0] HYD_pmcd_pmip_control_cmd_cb (/src/pmip_cb.c:490): assert (!closed) failed\nstep 3\n\
                 [proxy:0@x-training-0] main (/src/pmip.c:123): demux engine error waiting for event\n",
                1
            )
        );
        assert_eq!(failed_process(&between), Some((None, Some("x-training-1"), -11)));
        for text in [signalled, failed, remote, between, format!("step 3\n{ABORT}")] {
            assert_eq!(own(&text), ["step 3"], "{text}");
        }
    }

    #[test]
    fn first_failed_process_is_identified_under_intel_mpi() {
        let block = |rank: u32, how: &str| {
            format!(
                "\n{DOUBLE}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n\
                 =   RANK {rank} PID 25 RUNNING AT x-training-1\n=   {how}\n{DOUBLE}\n"
            )
        };
        let killed = block(2, "KILLED BY SIGNAL: 9 (Killed)");
        let signalled = format!("step 3\n{killed}{}", block(3, "KILLED BY SIGNAL: 11 (Segmentation fault)"));
        assert_eq!(failed_process(&signalled), Some((Some(3), Some("x-training-1"), -11)));
        let failed = format!("step 3\n{}{killed}", block(1, "EXIT STATUS: 7"));
        assert_eq!(failed_process(&failed), Some((Some(1), Some("x-training-1"), 7)));
        assert!(first_process(&killed).unwrap().may_be_any);
        for text in [&signalled, &failed] {
            assert_eq!(own(text), ["step 3"], "{text}");
        }
        for text in [
            block(3, "KILLED BY SIGNAL: 11"),
            block(3, "EXIT STATUS: none"),
            block(3, "EXIT CODE"),
            killed.replace("RANK 2", "RANK two"),
            killed.replace("=   RANK", "RANK"),
            killed.replace("=   BAD", "= BAD"),
        ] {
            assert_eq!(failed_process(&text), None, "{text}");
        }
    }

    #[test]
    fn mpich_farewell_is_found_on_stdout() {
        let at = |text: &str| farewell_on_stdout(text.as_bytes());
        assert_eq!(at(&format!("step 3\n{DOUBLE}\n{BAD}\n")), Some(7));
        assert_eq!(at(&format!("{BAD}\n")), Some(0), "its ruler was read before");
        for text in [
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            " =   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
            "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES? no\n",
            "= BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    /// If a peer notices the lost connection first, `mpirun` names the peer.
    #[test]
    fn process_killed_by_signal_is_identified_before_its_peer() {
        let segv = "[x-training-1:00040] *** Process received signal ***\n[x-training-1:00040] Signal: Segmentation fault (11)\n\
                    [x-training-1:00040] Signal code:  (0)\n[x-training-1:00040] Failing at address: 0x28\n\
                    [x-training-1:00040] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f21d2c5a050]\n\
                    [x-training-1:00040] *** End of error message ***\n";
        let peer = "[x-training-0:00000] *** An error occurred in Socket closed\n\
                    [x-training-0:00000] *** reported by process [2556493825,1]\n\
                    [x-training-0:00000] *** on a NULL communicator\n[x-training-0:00000] *** Unknown error\n\
                    [x-training-0:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n\
                    [x-training-0:00000] ***    and MPI will try to terminate your MPI job as well)\n";
        let closing = between(
            "prterun has exited due to process rank 1 with PID 0 on node x-training-0 calling\n\"abort\". This may have caused other processes in the application to be\nterminated by signals sent by prterun (as reported here).",
        );
        let said = format!("step 3\n{segv}{peer}{closing}");
        assert_eq!(failed_process(&said), Some((None, Some("x-training-1"), -11)));
        assert_eq!(own(&said), ["step 3"]);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(killed_line(&lines), Some("[x-training-1:00040] Signal: Segmentation fault (11)"));
        assert_eq!(own(&format!("the licence has expired\n{peer}{closing}")), ["the licence has expired"]);
    }

    /// MPICH kills the other processes, and may report one of those first.
    #[test]
    fn killed_process_may_be_any_under_mpich() {
        let killed = format!("{DOUBLE}\n{}\n{DOUBLE}\n", BAD.replace("CODE: 11", "CODE: 9"));
        assert!(first_process(&killed).unwrap().may_be_any);
        assert!(!first_process(&format!("{DOUBLE}\n{BAD}\n{DOUBLE}\n")).unwrap().may_be_any);
    }

    #[test]
    fn most_informative_mpi_line_is_chosen() {
        let line = |text: &str| cause_line(&text.lines().collect::<Vec<_>>()).map(str::to_owned);
        let [abort, exit, signal, _, _, signal5] = open_mpi().map(|(text, _)| text);
        assert_eq!(line(&abort).unwrap(), "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD");
        assert_eq!(line(&exit), None);
        assert!(line(&signal).unwrap().ends_with("exited on signal 11 (Segmentation fault)."));
        assert!(line(&signal5).unwrap().starts_with("prterun noticed that process rank 3"));
        assert_eq!(line(ABORT).unwrap(), ABORT.trim_end());
        let error = "*** An error occurred in MPI_Recv\n*** reported by process [1,0]\n*** MPI_ERR_TRUNCATE: message truncated\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)\n";
        assert_eq!(line(error).unwrap(), "MPI_ERR_TRUNCATE: message truncated");
        let by_process = error.replace("*** ", "[x-training-1:00040] *** ");
        assert_eq!(line(&by_process).unwrap(), "MPI_ERR_TRUNCATE: message truncated");
    }

    #[test]
    fn lost_worker_lines_are_detected() {
        for line in [
            "agent: x-training-1.x-headless: the connection was lost before the command had ended",
            "ORTE has lost communication with a remote daemon.",
            "PRTE has lost communication with a remote daemon.",
            "[mpiexec@x-training-0] control_cb (/mpich-5.0.2/src/pm/hydra/mpiexec/pmiserv_cb.c:280): assert (!closed) failed",
        ] {
            assert!(is_lost(line), "{line}");
        }
        for line in [
            "agent: the connection was lost before the command had ended",
            "x: the connection was lost before the command had ended",
            "agent: x-training-1.x-headless: the connection was lost before the command had ended; tried again",
            "if PRTE has lost communication with a remote daemon.",
            "ORTE has lost communication with a remote daemon, and goes on",
            "the store has lost communication with a remote daemon.",
            // control_cb
            "[mpiexec@x-training-0] control_cb (/src/pmiserv_cb.c:280): assert (!closed)",
            "[proxy:0@x-training-0] control_cb (/src/pmip_cb.c:490): assert (!closed) failed",
            "mpiexec: control_cb (/src/pmiserv_cb.c:280): assert (!closed) failed",
            "[mpiexec@x-training-0] control_cb: assert (!closed) failed",
            "see [mpiexec@x-training-0] control_cb (/src/pmiserv_cb.c:280): assert (!closed) failed",
        ] {
            assert!(!is_lost(line), "{line}");
        }
    }

    /// Lines that a program may print without failing.
    #[test]
    fn mpi_failure_lookalikes_are_ignored() {
        for text in [
            // MPI_ABORT
            "if this hangs, MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.",
            "MPI_ABORT was invoked on rank 3",
            "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
            "MPI_ABORT was invoked on rank r in communicator MPI_COMM_WORLD\nwith errorcode 1.",
            "see the FAQ: MPI_ABORT was invoked",
            // Signal
            "[x-training-1:00040] *** Process received signal ***",
            "[x-training-1:00040] Signal: Segmentation fault (11)",
            "[x-training-1:00040] *** Process received signal ***\n[x-training-1:00040] Signal code:  (0)",
            "> [x-training-1:00040] *** Process received signal ***\n[x-training-1:00040] Signal: Segmentation fault (11)",
            "[x-training-1:00040] *** Process received signal ***\n[x-training-1:00040] Signal: none",
            "*** Process received signal ***\nSignal: Segmentation fault (11)",
            // Abort(
            "Abort(42) on node 3: see the manual",
            "  Abort(42) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 42)",
            "Abort(x) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 42)",
            "would Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(",
            "Abort(42) on node 3 (rank 3 in comm 0): nothing was called",
            // noticed
            "mpirun noticed that process rank 3 with PID 0 on node x-training-1 is slow",
            "# mpirun noticed that process rank 3 with PID 0 on node a exited on signal 9 (Killed).",
            "mpirun noticed that process rank three with PID 0 on node a exited on signal 9 (Killed).",
            "the log says: prterun noticed that process rank 3 with PID 0 on node a exited on\nsignal 9",
            "prterun noticed that process rank 3 with PID 0 on node a exited on\nits own",
            // detected
            "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "prterun detected 8 slots on this node",
            "mpirun detected that one or more processes are idle\n  Process name: [[1,1],3]\n  Exit code:    7\n",
            "> mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[1,1],3]\n  Exit code:    7\n",
            "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: none\n  Exit code:    7\n",
            // BAD TERMINATION
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\n",
            "==   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\n",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: nine\n",
            "=   GOOD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 0\n",
        ] {
            assert_eq!(failed_process(text), None, "{text}");
        }
        for text in [
            format!("{RULER}\nstep 3: loss 0.4\n{RULER}"),
            format!("{RULER}\nmpirun is what starts this\n{RULER}"),
            format!("{RULER}\n| MPI_ABORT was invoked on rank 3 |\n{RULER}"),
            format!("{RULER}\nPrimary job terminated\n{RULER}"),
            "--------\nPrimary job  terminated normally, but 1 process returned\n--------".to_owned(),
            format!("{DOUBLE}\n=   EPOCH 3\n{DOUBLE}"),
            "[mpiexec] done\n[proxy] up\n[mpiexec@x-training-0]\nmpiexec@x-training-0] done\n[proxy:8080] up\n[me@proxy:1] up".to_owned(),
            format!("{RULER}\nprterun noticed that process rank 3 cut off before its ruler"),
            // what Open MPI says in a process
            "*** step 3 ***\n[rank3] *** step 3\n[x-training-0:3] *** step 3\n[x-training-0:00003] step 3 ***\n\
             [x-training-0:00003] signal: up\n[2026-01-01 10:00:00] *** step 3\n[ 3] Signal: Segmentation fault (11)".to_owned(),
            "Warning: setpgid(17,17) failed in parent with errno=Permission denied(13)\n\
             [x-training-0] plm:ssh: Warning: setpgid(17,17) failed in parent with errno=Permission denied(13)\n\
             [x-training-0:00010] plm:ssh: Error: setpgid(17,17) failed in parent with errno=Permission denied(13)\n\
             [x-training-0:00010] train: Warning: setpgid(17,17) failed in parent with errno=Permission denied(13)\n\
             see [x-training-0:00010] plm:ssh: Warning: setpgid(17,17) failed in parent with errno=1\n\
             [x-training-0:00010] plm:ssh: Warning: setpgid(17,17) failed".to_owned(),
        ] {
            assert_eq!(own(&text), text.lines().collect::<Vec<_>>(), "{text}");
        }
        for line in [
            "mpirun noticed that process rank 3 with PID 0 on node a exited on time",
            "*** MPI_ERR_TRUNCATE is what it would say",
            "MPI_ERR_TRUNCATE: message truncated, retried",
            "expect Abort(1) on node",
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: none",
            "an MPI_ABORT was invoked on rank 3",
        ] {
            assert_eq!(cause_line(&[line]), None, "{line}");
        }
    }
}
