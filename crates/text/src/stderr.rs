//! Why a program ended, according to the last lines of its stderr.

use crate::crash::{self, Crash};
use crate::exception::is_of_signal;
use crate::mpi;
use crate::origin::{FailureOrigin, origin_of};
use crate::split_rank;
use regex::Regex;
use std::borrow::Cow;
use std::sync::LazyLock;

/// What the last lines of a program say about its end.
#[derive(Debug, PartialEq)]
pub struct StatedCause<'t> {
    /// What happened, in one line.
    pub text: Cow<'t, str>,
    /// The line that says so, as it was printed.
    pub line: &'t str,
    /// The program's last line, unless it belongs to the report that `line` begins.
    pub after: Option<&'t str>,
    /// Whether a runtime or the program itself reports why it ends: an exception, a panic, an abort.
    pub is_report: bool,
}

/// Returns the most informative line of `text`, on one line; see [`telling`].
pub fn cause_line(text: &str) -> Option<Cow<'_, str>> {
    stated_cause(text).map(|stated_cause| stated_cause.text)
}

/// Returns the most informative line of `text`: the last exception of Python or [report](crash) of another runtime.
/// Without these it is the last line that is not in torchrun's closing summary, which says only that some rank failed.
///
/// A rank that complains of others reports no failure of its own. Its line counts only if no line is more informative.
pub fn stated_cause(text: &str) -> Option<StatedCause<'_>> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    let own = mpi::without_mpirun(&without_torchrun(&lines));
    let crashes = crash::reports(&own);
    let failure = |wanted| last_failure(&own, &crashes, wanted);
    let line = || other_line(text, &lines, &own).map(|line| plain(text, line));
    failure(FailureOrigin::Own)
        .or_else(|| killed_line(&lines, &own).map(|line| plain(text, line)))
        .or_else(|| failure(FailureOrigin::Gang))
        .or_else(|| failure(FailureOrigin::Peer))
        .or_else(line)
}

/// Wraps a line that is not a report of a runtime.
fn plain<'t>(text: &'t str, line: &'t str) -> StatedCause<'t> {
    let line = line.trim();
    StatedCause { text: line.into(), line, after: last_line(text), is_report: false }
}

/// Returns the last exception or report of a runtime with this origin.
fn last_failure<'t>(lines: &[&'t str], crashes: &[Crash<'t>], wanted: FailureOrigin) -> Option<StatedCause<'t>> {
    let exception = last_exception(lines, |line| origin_of(line) == wanted);
    let crash = crashes.iter().rev().find(|crash| origin_of(&crash.text) == wanted);
    let end = match (exception, crash) {
        // Text that a report quotes may look like an exception.
        (Some(at), Some(crash)) if at >= crash.lines.end => at + 1,
        (_, Some(crash)) => crash.lines.end,
        (Some(at), None) => at + 1,
        (None, None) => return None,
    };
    let after = lines[end..].iter().rev().find(|line| is_own(line.trim())).map(|line| line.trim());
    let crash = crash.filter(|crash| crash.lines.end == end);
    Some(match (crash, exception) {
        (Some(crash), _) => StatedCause { text: crash.text.clone().into(), line: crash.line, after, is_report: true },
        (None, at) => {
            let line = lines.get(at?)?.trim();
            let line = line.strip_prefix("| ").unwrap_or(line);
            StatedCause { text: line.into(), line, after, is_report: true }
        }
    })
}

/// Returns a launcher's line about a rank or process that a signal ended, or that has lost its peer. SIGABRT from
/// torchrun does not count, because a library ends a complaining rank by it.
fn killed_line<'t>(lines: &[&'t str], own: &[&'t str]) -> Option<&'t str> {
    torchruns(own, |line| line.contains("failed (exitcode: -") && !line.contains("(exitcode: -6)"))
        .or_else(|| mpi::killed_line(lines))
        .or_else(|| lines.iter().find(|line| mpi::is_lost(line)).copied())
}

/// Returns a line of torchrun, without the time and the place in its source.
fn torchruns<'t>(own: &[&'t str], wanted: impl Fn(&str) -> bool) -> Option<&'t str> {
    let line = own.iter().rev().find(|line| wanted(line))?;
    Some(line.split_once("] ").map_or(*line, |(_, text)| text))
}

/// Returns the most informative line of a text without a report.
fn other_line<'t>(text: &str, lines: &[&'t str], own: &[&'t str]) -> Option<&'t str> {
    let last = || error_line(own).or_else(|| own.iter().rev().find(|line| !is_closing(line)).or(own.last()).copied());
    own.iter()
        .rev()
        .find(|line| is_usage_error(text, line))
        .copied()
        .or_else(|| torchruns(own, |line| line.contains("failed (exitcode:")))
        .or_else(|| last().filter(|_| !lines.iter().any(|line| mpi::is_error(line))))
        .or_else(|| mpi::cause_line(lines))
        .or_else(last)
        .or_else(|| lines.iter().rev().find(|line| line.trim_start().starts_with("exitcode")).copied())
        .or_else(|| lines.last().copied())
}

/// Returns the last line that is logged as an error. The program may log a few more lines while it tidies up.
fn error_line<'t>(own: &[&'t str]) -> Option<&'t str> {
    const PARTING: usize = 5;
    static ERROR: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant(
            r"(?x)^(?: (?:[\[(<]?\d{4}[-/]\d\d[-/]\d\d[\ T])?[\[(<]?\S*\d\d:\d\d\S*\s+(?:\S+\s+){0,4}?[\[(<|]?ERROR[\])>:|]?\s
            | [\[(<]ERROR[\])>]:?\s | ERROR(?::|\s+[-|])\s | ERROR:[\w.]+: )\s*\S",
        )
    });
    own.iter().rev().take(PARTING + 1).find(|line| ERROR.is_match(line)).copied()
}

/// Whether a line of `make`, `go run`, Node.js, R or Perl says only that something has ended.
fn is_closing(line: &str) -> bool {
    static CLOSING: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant(
            r"^(?:g?make(?:\[\d+\])?: \*\*\* .*\bError \d+|exit status \d+|BEGIN failed--compilation aborted at .+ line \d+\.|Node\.js v\d+\.\d+\.\d+|\(Use `node --.*|Execution halted)$",
        )
    });
    CLOSING.is_match(line)
}

/// Returns `lines` without the traceback of torchrun's `ChildFailedError` and the summary after it, between rulers.
fn without_torchrun<'t>(lines: &[&'t str]) -> Vec<&'t str> {
    let Some(error) = lines.iter().rposition(|line| line.contains("ChildFailedError")) else { return lines.to_vec() };
    let start = lines[..error].iter().rposition(|line| is_traceback(line)).unwrap_or(error);
    let is_ruler = |line: &&str| line.len() >= 8 && line.bytes().all(|b| b == b'=');
    let end = lines.iter().rposition(is_ruler).filter(|&end| end > error).unwrap_or(error);
    [&lines[..start], &lines[end + 1..]].concat()
}

/// Whether `line` of `text` reports wrong arguments of a program (Python's argparse and click).
pub fn is_usage_error(text: &str, line: &str) -> bool {
    static ERROR: LazyLock<Regex> = LazyLock::new(|| crate::constant(r"^(?:\S+: error|Error): "));
    ERROR.is_match(line) && text.lines().any(|line| line.starts_with("usage: ") || line.starts_with("Usage: "))
}

/// Returns the rank that torchrun or mpirun names as the first to fail: its number, if known, and its exit code,
/// negative for a signal.
pub fn first_rank(text: &str) -> Option<(Option<u64>, i32)> {
    let of_torchrun = first_of_torchrun(text).map(|(rank, code)| (Some(rank), code));
    of_torchrun.or_else(|| mpi::first_process(text).map(|first| (first.rank, first.code)))
}

fn first_of_torchrun(text: &str) -> Option<(u64, i32)> {
    static FIELDS: LazyLock<[Regex; 2]> =
        LazyLock::new(|| [r"(?m)^ *rank *: (\d+)", r"(?m)^ *exitcode *: (-?\d+)"].map(crate::constant));
    let (_, cause) = text.rsplit_once("Root Cause (first observed failure)")?;
    let [rank, code] = FIELDS.each_ref().map(|field| Some(field.captures(cause)?.extract::<1>().1[0]));
    Some((rank?.parse().ok()?, code?.parse().ok()?))
}

/// Returns the exit code of the process that Paddle's launcher names as the first to fail, negative for a signal. The
/// launcher gives the number among its own processes, not the rank.
pub fn code_of_paddle(text: &str) -> Option<i32> {
    static FAILED: LazyLock<Regex> =
        LazyLock::new(|| crate::constant(r"(?m)^Container rank \d+ status failed cmd \[.*\] code (-?\d+) log "));
    FAILED.captures(text)?.extract::<1>().1[0].parse().ok()
}

/// Parses the last line of a Python traceback: rank, class and message. Torchrun's at a signal is none.
pub fn exception(line: &str) -> Option<(Option<u64>, &str, &str)> {
    let (rank, text) = split_rank(line);
    let (class, message) = text.split_once(':').unwrap_or((text, ""));
    let message = message.trim();
    // Shells and Go print "Error: ..." too.
    let is_one = is_exception(class) && class != "Error" && !is_of_signal(class, message);
    is_one.then_some((rank, class, message))
}

/// Returns the last line of `text` that the program itself printed, not torchrun's closing summary or a tracker's line.
pub fn last_line(text: &str) -> Option<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    without_torchrun(&lines).iter().rev().find(|line| is_own(line)).copied()
}

/// Whether a line is neither from another rank, nor from torchrun, nor from a tracker.
fn is_own(line: &str) -> bool {
    let is_others = ["wandb: ", "[rank", "[default"].iter().any(|mark| line.starts_with(mark));
    !is_others && !line.contains("torch/distributed/elastic") && !line.contains("torch.distributed.elastic")
}

/// Whether `text` contains a Python traceback.
pub fn has_traceback(text: &str) -> bool {
    text.lines().any(is_traceback)
}

/// Returns the index of the last exception in `lines`.
fn last_exception(lines: &[&str], wanted: impl Fn(&str) -> bool) -> Option<usize> {
    let mut found = None;
    let mut in_traceback = false;
    let mut in_group = false;
    for (at, line) in lines.iter().enumerate() {
        let text = without_rank(line);
        let of_group = text.strip_prefix("  | ").filter(|text| in_group && !text.starts_with(' '));
        in_group = (in_group && of_group.is_none()) || text == GROUP;
        if let Some(text) = of_group {
            in_traceback = false;
            found = Some(at).filter(|_| wanted(text)).or(found);
        } else if is_traceback(text) {
            in_traceback = true;
        } else if !is_within(text) && (in_traceback || names_exception(text)) {
            in_traceback = false;
            let is_of_signal = text.split_once(": ").is_some_and(|(class, message)| is_of_signal(class, message));
            let is_echo = is_of_signal || (found.is_some() && is_of_child_python(text));
            if !is_echo && wanted(text) {
                found = Some(at);
            }
        }
    }
    found
}

/// Whether `line` is from a launcher whose child is a Python program that has failed and has reported that before.
fn is_of_child_python(line: &str) -> bool {
    static CHILD: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant(r"\bCalledProcessError: Command '\[?'?\S*python[\d.]*'?[ ,].* returned non-zero exit status ")
    });
    CHILD.is_match(line)
}

/// First line of Python's traceback of a group of exceptions.
const GROUP: &str = "  + Exception Group Traceback (most recent call last):";

/// Whether `line` begins a traceback: Python's own, one that a PyTorch process passes on, or one that Rich has framed.
fn is_traceback(line: &str) -> bool {
    const WORDS: &str = "Traceback (most recent call last)";
    let line = without_rank(line);
    let framed = line.trim_matches(|c: char| "╭─╮+-".contains(c) || c == ' ');
    match line.strip_prefix("Original ").unwrap_or(line).strip_prefix(WORDS) {
        Some(rest) => rest.starts_with(':'),
        None if line == GROUP => true,
        None => framed == WORDS && line.starts_with(['╭', '+']),
    }
}

/// Whether `line` of a traceback, possibly framed by Rich, is not its last one.
fn is_within(line: &str) -> bool {
    line.starts_with(|c: char| c.is_whitespace() || "│╭╰├".contains(c))
        || (line.starts_with(['|', '+']) && line.ends_with(['|', '+']))
}

fn without_rank(line: &str) -> &str {
    split_rank(line).1
}

/// Whether `line` is `some.module.NameError`, alone or with a message after a colon.
fn names_exception(line: &str) -> bool {
    is_exception(line.split(':').next().unwrap_or(line))
}

fn is_exception(class: &str) -> bool {
    ["Error", "Exception", "ExceptionGroup"].iter().any(|end| class.ends_with(end))
        && class.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the most informative line, which must be unchanged.
    fn line(text: &str) -> Option<&str> {
        cause_line(text).map(|line| match line {
            Cow::Borrowed(line) => line,
            Cow::Owned(line) => panic!("{line}"),
        })
    }

    const TORCHRUN: &str = "\
E0101 10:00:00.000000 7 site-packages/torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 1) local_rank: 0 (pid: 21) of binary: /usr/bin/python3
Traceback (most recent call last):
  File \"/usr/bin/torchrun\", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 21)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
";

    #[test]
    fn exception_is_preferred_to_torchrun_message() {
        let python =
            "step 3\nTraceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nRuntimeError: boom\n";
        assert_eq!(line(python), Some("RuntimeError: boom"));
        assert_eq!(line(&format!("{python}{TORCHRUN}")), Some("RuntimeError: boom"));
        let ranked =
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\"\n[rank1]: ValueError: bad\n";
        assert_eq!(line(&format!("{ranked}{TORCHRUN}")), Some("[rank1]: ValueError: bad"));
    }

    #[test]
    fn exceptions_with_unusual_names_are_found() {
        let own = "Traceback (most recent call last):\n  File \"t.py\", line 1\n    raise Stop()\n__main__.Stop: enough\nbye\n";
        assert_eq!(line(own), Some("__main__.Stop: enough"));
        assert_eq!(
            line("  File \"t.py\", line 1\n    x x\n      ^\nSyntaxError: invalid syntax\n"),
            Some("SyntaxError: invalid syntax")
        );
        let chained = "Traceback (most recent call last):\nKeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  x\nValueError: 2\n";
        assert_eq!(line(chained), Some("ValueError: 2"));
    }

    #[test]
    fn last_line_is_used_without_an_exception() {
        assert_eq!(
            line("usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n\n"),
            Some("t.py: error: unrecognized arguments: --x")
        );
        assert!(line(&format!("step 3\n{TORCHRUN}")).unwrap().contains("failed (exitcode: 1)"));
        let closing = TORCHRUN.split_once('\n').unwrap().1;
        assert_eq!(line(closing), Some("exitcode  : 1 (pid: 21)"));
        assert_eq!(line(" \n\n"), None);
    }

    #[test]
    fn exception_group_is_recognized() {
        let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"t.py\", line 1, in <module>\n  |     raise x\n\
                     \x20 | ExceptionGroup: two shards (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ValueError: a\n\
                     \x20   +---------------- 2 ----------------\n    | OSError: b\n    +------------------------------------\n";
        assert_eq!(line(group), Some("ExceptionGroup: two shards (2 sub-exceptions)"));
        assert!(has_traceback(group));
        assert_eq!(line(&format!("{group}bye\n")), Some("ExceptionGroup: two shards (2 sub-exceptions)"));
        assert_eq!(exception("ExceptionGroup: x").map(|(_, class, _)| class), Some("ExceptionGroup"));
        for other in ["| ExceptionGroup", "  | a: 3", "  + Exception Group", "ExceptionGroups: 3", "  | step | 3 |"] {
            assert_eq!(line(&format!("{other}\nbye\n")), Some("bye"), "{other}");
        }
    }

    #[test]
    fn error_logged_before_cleanup_is_the_cause() {
        for error in [
            "ERROR: no labels",
            "[ERROR] no labels",
            "ERROR:root:no labels",
            "2026-11-25 10:00:00,123 ERROR root: no labels",
            "2026-11-25T10:00:00Z ERROR no labels",
            "2026/11/25 10:00:00 [ERROR] no labels",
            "ERROR - no labels",
        ] {
            assert_eq!(line(&format!("step 3\n{error}\nclosing 4 files\n")), Some(error));
            let later = "step 4\nstep 5\nstep 6\nstep 7\nstep 8\nstep 9\n";
            assert_eq!(line(&format!("{error}\n{later}")), Some("step 9"), "{error}");
        }
        for other in
            ["0 ERROR", "ERROR=0", "ERROR rate: 3", "error: none", "no ERROR: x", "ERRORS: 0", "ERROR:", "x ERROR y"]
        {
            assert_eq!(line(&format!("{other}\nbye\n")), Some("bye"), "{other}");
        }
    }

    #[test]
    fn launcher_error_about_its_python_child_is_an_echo() {
        let own = "Traceback (most recent call last):\n  File \"t.py\", line 1\nValueError: bad\n";
        let launcher = |command: &str| {
            format!(
                "Traceback (most recent call last):\n  File \"l.py\", line 8\nsubprocess.CalledProcessError: Command {command} returned non-zero exit status 1.\n"
            )
        };
        for command in ["'['/usr/bin/python3', 't.py']'", "'python t.py'", "'['python3.11', '-u', 't.py']'"] {
            assert_eq!(line(&format!("{own}{}", launcher(command))), Some("ValueError: bad"), "{command}");
            assert!(line(&launcher(command)).unwrap().contains("CalledProcessError"), "{command}");
        }
        for command in [
            "'['ffmpeg', 'a.mp4']'",
            "'nvcc python.cu'",
            "'['/opt/python/bin/ninja', '-v']'",
            "'pythonize t'",
            "'cat t.py'",
        ] {
            assert!(line(&format!("{own}{}", launcher(command))).unwrap().contains("CalledProcessError"), "{command}");
        }
    }

    #[test]
    fn a_lost_peer_is_not_the_cause() {
        const LOST: &str = "[rank0]: Traceback (most recent call last):\n[rank0]:   x\n[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n";
        let own = "[rank1]: Traceback (most recent call last):\n[rank1]:   x\n[rank1]: ValueError: bad\n";
        assert_eq!(line(&format!("{own}{LOST}{TORCHRUN}")), Some("[rank1]: ValueError: bad"));
        assert_eq!(line(&format!("{LOST}{TORCHRUN}")).map(origin_of), Some(FailureOrigin::Peer));
        let killed = TORCHRUN.replace("(exitcode: 1)", "(exitcode: -11)");
        assert!(line(&format!("{LOST}{killed}")).unwrap().starts_with("failed (exitcode: -11) local_rank: 0"));
        let aborted = TORCHRUN.replace("(exitcode: 1)", "(exitcode: -6)");
        assert!(line(&format!("{WAITED}{aborted}")).unwrap().contains("Timed out waiting"));
        assert!(line(&format!("{WAITED}{own}{LOST}{aborted}")).unwrap().contains("ValueError: bad"));
        assert!(line(&aborted).unwrap().starts_with("failed (exitcode: -6)"));
    }

    const WAITED: &str = "[rank2]: Traceback (most recent call last):\n[rank2]:   x\n[rank2]: RuntimeError: [/gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n";

    #[test]
    fn first_failed_rank_is_read_from_torchrun() {
        assert_eq!(first_rank(TORCHRUN), Some((Some(0), 1)));
        let with_others = TORCHRUN
            .replace("  <NO_OTHER_FAILURES>", "[1]:\n  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 22)");
        let killed = with_others.replace(
            "rank      : 0 (local_rank: 0)\n  exitcode  : 1",
            "rank      : 4 (local_rank: 0)\n  exitcode  : -11",
        );
        assert_eq!(first_rank(&killed), Some((Some(4), -11)));
        assert_eq!(first_rank("rank : 1\nexitcode : 2\n"), None);
    }

    #[test]
    fn exit_code_is_read_from_paddle_launcher() {
        let reported = "LAUNCH ERROR 2026-11-23 08:27:00,978 Container failed !!!\n\
                    Container rank 0 status failed cmd ['/usr/bin/python3', '-u', 'train.py'] code -6 log log/workerlog.0\n\
                    LAUNCH INFO 2026-11-23 08:27:00,980 Exit code -6\n";
        assert_eq!(code_of_paddle(reported), Some(-6));
        assert_eq!(code_of_paddle(&reported.replace("code -6 log", "code 1 log")), Some(1));
        for other in [
            "Container rank 0 status running cmd ['python3'] code 0 log log/workerlog.0",
            "Container rank 0 status failed",
            "the Container rank 0 status failed cmd ['python3'] code 1 log x",
            "Container rank a status failed cmd ['python3'] code 1 log x",
            "LAUNCH INFO 2026-11-23 08:27:00,980 Exit code -6",
        ] {
            assert_eq!(code_of_paddle(other), None, "{other}");
        }
    }

    #[test]
    fn exception_lines_are_parsed() {
        assert_eq!(exception("[rank3]: a.b.C_Error: x: y"), Some((Some(3), "a.b.C_Error", "x: y")));
        assert_eq!(exception("[default1]:KeyError: 'x'"), Some((None, "KeyError", "'x'")));
        assert_eq!(exception("AssertionError"), Some((None, "AssertionError", "")));
        for other in ["Error: no such option: --x", "W1121 10:00:00 Sending process 21", "some words: Error", ""] {
            assert_eq!(exception(other), None, "{other}");
        }
        assert_eq!(exception("torch.x.SignalException: Process 7 got signal: 15"), None);
    }

    #[test]
    fn usage_error_under_torchrun_is_the_cause() {
        let usage = "usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n";
        let text = format!("{usage}{}", TORCHRUN.replace("exitcode: 1", "exitcode: 2"));
        assert_eq!(line(&text), Some("t.py: error: unrecognized arguments: --x"));
        assert!(!is_usage_error("kernel.cu:3:5: error: expected", "kernel.cu:3:5: error: expected"));
    }

    #[test]
    fn stopped_torchrun_does_not_hide_cause() {
        let text = "Traceback (most recent call last):\n  x\nOSError: disk\nTraceback (most recent call last):\n  x\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n";
        assert_eq!(line(text), Some("OSError: disk"));
    }

    #[test]
    fn rich_and_data_loader_tracebacks_are_recognized() {
        let rich = "╭───── Traceback (most recent call last) ─────╮\n│ /app/train.py:3 in main                     │\n│ ❱ 3 │   raise Stop(\"no\")                   │\n╰─────────────────────────────────────────────╯\nStop: no images\n";
        let ascii = "+--- Traceback (most recent call last) ---+\n| /app/train.py:3 in main                 |\n+-----------------------------------------+\nStop: no images\n";
        for text in [rich, ascii] {
            assert!(has_traceback(text), "{text}");
            assert_eq!(line(text), Some("Stop: no images"));
        }
        let loader = "Traceback (most recent call last):\n  x\nRuntimeError: Caught Stop in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\nmine.Stop: no images\n";
        assert_eq!(line(loader), Some("mine.Stop: no images"));
        for other in [
            "see the Traceback (most recent call last) above",
            "| Traceback (most recent call last)",
            "Traceback of TorchScript (most recent call last):",
            "no Traceback (most recent call last):",
            "# Traceback (most recent call last)",
            "│ Traceback │",
        ] {
            assert!(!has_traceback(other), "{other}");
        }
    }

    #[test]
    fn last_crash_report_wins_regardless_of_source() {
        let reported = |text: &str| cause_line(text).map(Cow::into_owned);
        let logged =
            "ERROR:root:no cache\nTraceback (most recent call last):\n  File \"t.py\", line 1\nValueError: bad cache\n";
        let panic =
            "thread 'main' panicked at src/main.rs:4:5:\nRuntimeError: quoted\nnote: run with `RUST_BACKTRACE=1`\n";
        let panicked = Some("thread 'main' panicked at src/main.rs:4:5: RuntimeError: quoted".to_owned());
        let fatal = "FATAL: the dataset is damaged\n";
        let damaged = Some(fatal.trim().to_owned());
        let raised = Some("ValueError: bad cache".to_owned());
        assert_eq!(reported(logged), raised);
        assert_eq!(reported(&format!("{logged}{fatal}")), damaged);
        assert_eq!(reported(&format!("{logged}step 3\n{fatal}bye\n")), damaged);
        assert_eq!(reported(&format!("{fatal}{logged}")), raised);
        assert_eq!(reported(&format!("{logged}{panic}")), panicked);
        assert_eq!(reported(&format!("{panic}{logged}")), raised);
        // The rank's own failure counts, although another rank complains later.
        let lost = "[rank0]: Traceback (most recent call last):\n[rank0]:   x\n[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n";
        assert_eq!(reported(&format!("{panic}{lost}{TORCHRUN}")), panicked);
        let echo = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [gloo/transport/tcp/pair.cc:534] Connection closed by peer\n";
        assert_eq!(reported(&format!("{logged}{echo}")), raised);
        assert_eq!(cause_line(echo).map(|line| origin_of(&line)), Some(FailureOrigin::Peer));
    }

    #[test]
    fn output_after_crash_report_is_returned() {
        let after = |text: &str| {
            stated_cause(text).map(|stated_cause| (stated_cause.is_report, stated_cause.after.map(str::to_owned)))
        };
        let panic = "thread 'a' panicked at src/main.rs:4:5:\nboom\nnote: run with `RUST_BACKTRACE=1`\n";
        assert_eq!(after(panic), Some((true, None)));
        assert_eq!(after(&format!("{panic}no images\n")), Some((true, Some("no images".to_owned()))));
        assert_eq!(after(&format!("{panic}wandb: Synced\n")), Some((true, None)));
        assert_eq!(after("no images\n"), Some((false, Some("no images".to_owned()))));
        let raised = "Traceback (most recent call last):\n  x\nOSError: disk\n";
        assert_eq!(after(raised), Some((true, None)));
        assert_eq!(after(&format!("{raised}no images\n")), Some((true, Some("no images".to_owned()))));
    }

    #[test]
    fn closing_lines_of_other_tools_do_not_hide_cause() {
        for closing in [
            "make: *** [Makefile:2: train] Error 2",
            "make[1]: *** [train] Error 9",
            "exit status 2",
            "Node.js v20.20.2",
        ] {
            assert_eq!(line(&format!("no images\n{closing}\n")), Some("no images"), "{closing}");
            assert_eq!(line(&format!("{closing}\n")), Some(closing));
        }
        for last in [
            "make: *** No rule to make target 'train'.  Stop.",
            "make: 3 targets, Error 2",
            "exit status 2 of the loader",
            "the exit status 2",
            "Node.js v20.20.2 is too old",
            "Node.js version 20",
            "sh: line 1: 12 Segmentation fault (core dumped) ./train",
        ] {
            assert_eq!(line(&format!("step 3\n{last}\n")), Some(last));
        }
    }
}
