//! The one line of a program's stderr that tells a person why it ended.

/// The most telling line of `text`: of Python's the last exception, else the last line that is not torchrun's
/// closing words (which say only that some rank failed).
///
/// A rank that complains of a lost peer tells nothing of its own: that counts only if nobody tells more.
pub fn telling_line(text: &str) -> Option<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).collect();
    let own = without_torchrun(&lines);
    let torchruns = |words| {
        let line = own.iter().rev().find(|line| line.contains(words))?;
        Some(line.split_once("] ").map_or(*line, |(_, text)| text)) // without time and place in torchrun's source
    };
    last_exception(&own, |line| !is_echo(line))
        .or_else(|| torchruns("failed (exitcode: -")) // a signal, of which its rank could not tell
        .or_else(|| last_exception(&own, is_echo))
        .or_else(|| torchruns("failed (exitcode:"))
        .or_else(|| own.last().copied())
        .or_else(|| lines.iter().rev().find(|line| line.trim_start().starts_with("exitcode")).copied())
        .or_else(|| lines.last().copied())
        .map(str::trim)
}

/// `lines` without the traceback of torchrun's `ChildFailedError` and the summary that follows it between rulers.
fn without_torchrun<'t>(lines: &[&'t str]) -> Vec<&'t str> {
    let Some(error) = lines.iter().rposition(|line| line.contains("ChildFailedError")) else { return lines.to_vec() };
    let start = lines[..error].iter().rposition(|line| is_traceback(line)).unwrap_or(error);
    let is_ruler = |line: &&str| line.len() >= 8 && line.bytes().all(|b| b == b'=');
    let end = lines.iter().rposition(is_ruler).filter(|&end| end > error).unwrap_or(error);
    [&lines[..start], &lines[end + 1..]].concat()
}

/// Whether a line says that a peer has gone: what a rank says when another one failed first.
pub fn is_echo(line: &str) -> bool {
    // Gloo, the kernel, NCCL, PyTorch's store, gRPC.
    const GONE: [&str; 7] = [
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "remote process exit",
        "connection was likely closed",
        "failed to recv, got 0 bytes",
        "socket closed",
    ];
    let line = line.to_lowercase();
    GONE.iter().any(|gone| line.contains(gone))
}

/// Whether a line is a Python exception that is no echo of a peer's end.
pub fn is_own_exception(line: &str) -> bool {
    names_exception(without_rank(line)) && !is_echo(line)
}

fn last_exception<'t>(lines: &[&'t str], wanted: impl Fn(&str) -> bool) -> Option<&'t str> {
    let mut found = None;
    let mut in_traceback = false;
    for line in lines {
        let text = without_rank(line);
        if is_traceback(text) {
            in_traceback = true;
        } else if !text.starts_with(char::is_whitespace) && (in_traceback || names_exception(text)) {
            in_traceback = false;
            // What torchrun raises when it is told to stop: an echo of the signal.
            if !text.contains("SignalException: Process ") && wanted(text) {
                found = Some(*line);
            }
        }
    }
    found
}

fn is_traceback(line: &str) -> bool {
    without_rank(line).starts_with("Traceback (most recent call last):")
}

/// `line` without the mark of the rank that PyTorch's excepthook (`[rank3]: `) or torchrun (`[default3]:`) prepends.
fn without_rank(line: &str) -> &str {
    let unmarked = |mark: &str| {
        let (number, rest) = line.strip_prefix(mark)?.split_once("]:")?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| rest.strip_prefix(' ').unwrap_or(rest))
    };
    unmarked("[rank").or_else(|| unmarked("[default")).unwrap_or(line)
}

/// Whether `line` is `some.module.NameError`, alone or with a message after a colon.
fn names_exception(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or(line);
    (name.ends_with("Error") || name.ends_with("Exception"))
        && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_exception_and_not_torchruns_words() {
        let python =
            "step 3\nTraceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nRuntimeError: boom\n";
        assert_eq!(telling_line(python), Some("RuntimeError: boom"));
        assert_eq!(telling_line(&format!("{python}{TORCHRUN}")), Some("RuntimeError: boom"));
        let ranked =
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\"\n[rank1]: ValueError: bad\n";
        assert_eq!(telling_line(&format!("{ranked}{TORCHRUN}")), Some("[rank1]: ValueError: bad"));
    }

    #[test]
    fn exceptions_without_a_telling_name() {
        let own = "Traceback (most recent call last):\n  File \"t.py\", line 1\n    raise Stop()\n__main__.Stop: enough\nbye\n";
        assert_eq!(telling_line(own), Some("__main__.Stop: enough"));
        assert_eq!(
            telling_line("  File \"t.py\", line 1\n    x x\n      ^\nSyntaxError: invalid syntax\n"),
            Some("SyntaxError: invalid syntax")
        );
        let chained = "Traceback (most recent call last):\nKeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  x\nValueError: 2\n";
        assert_eq!(telling_line(chained), Some("ValueError: 2"));
    }

    #[test]
    fn without_an_exception_the_last_words() {
        assert_eq!(
            telling_line("usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n\n"),
            Some("t.py: error: unrecognized arguments: --x")
        );
        assert!(telling_line(&format!("step 3\n{TORCHRUN}")).unwrap().contains("failed (exitcode: 1)"));
        let closing = TORCHRUN.split_once('\n').unwrap().1;
        assert_eq!(telling_line(closing), Some("exitcode  : 1 (pid: 21)"));
        assert_eq!(telling_line(" \n\n"), None);
    }

    #[test]
    fn a_lost_peer_is_not_the_cause() {
        const LOST: &str = "[rank0]: Traceback (most recent call last):\n[rank0]:   x\n[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711\n";
        let own = "[rank1]: Traceback (most recent call last):\n[rank1]:   x\n[rank1]: ValueError: bad\n";
        assert_eq!(telling_line(&format!("{own}{LOST}{TORCHRUN}")), Some("[rank1]: ValueError: bad"));
        assert!(telling_line(&format!("{LOST}{TORCHRUN}")).is_some_and(is_echo));
        let killed = TORCHRUN.replace("(exitcode: 1)", "(exitcode: -11)");
        assert!(telling_line(&format!("{LOST}{killed}")).unwrap().starts_with("failed (exitcode: -11) local_rank: 0"));
        assert!(is_own_exception("[rank1]: ValueError: bad") && !is_own_exception("torch.Error: Socket closed"));
        assert!(!is_own_exception("W1121 10:00:00 Sending process 21 closing signal SIGTERM"));
    }

    #[test]
    fn a_stopped_torchrun_does_not_hide_the_cause() {
        let text = "Traceback (most recent call last):\n  x\nOSError: disk\nTraceback (most recent call last):\n  x\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n";
        assert_eq!(telling_line(text), Some("OSError: disk"));
    }
}
