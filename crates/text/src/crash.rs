//! Reports in which runtimes say why they end a program: a panic, an uncaught exception, an abort.
//!
//! Such a report first says what happened and then, at length, where. Python's are in [`crate::exception`] and
//! [`crate::stderr`], since Python also reports them by itself. [`FORMS`] has all the others, one row for each.

use crate::split_rank;
use regex::{Regex, RegexSet};
use std::ops::Range;
use std::sync::LazyLock;

/// A report among the lines of a program.
#[derive(Debug, PartialEq)]
pub struct Crash<'t> {
    /// The line that says what happened, as it was printed.
    pub line: &'t str,
    /// What happened, in one line, together with the most informative detail of the rest.
    pub text: String,
    /// The lines of the report.
    pub lines: Range<usize>,
}

/// The form of one runtime's report.
struct ReportFormat {
    /// The line that says what happened. The group `what`, if there is one, is the part of it that is shown.
    first: &'static str,
    /// Pattern that one of the next `near` lines must match. Without it the text is no report.
    proof: Option<&'static str>,
    near: usize,
    /// What else of the report is shown.
    more: ExtraText,
    /// How many other lines may follow. A program that prints more has survived.
    followed_by: usize,
}

/// What is shown besides the first line of a report.
enum ExtraText {
    Nothing,
    /// The next line, if the first one ends with a colon.
    Next,
    /// The first line of the report that matches, between these words.
    First(&'static str, [&'static str; 2]),
    /// The same for the last line that matches.
    Last(&'static str, [&'static str; 2]),
}

/// Lines after the first one in which the proof of a report must come, where it is not the next line.
const NEAR: usize = 12;
/// Lines of other processes that may follow a report.
const OTHERS: usize = 100;
/// Lines that may follow one that only has a level: a program may log such a line and go on.
const PARTING: usize = 5;

const REPORT: ReportFormat =
    ReportFormat { first: "", proof: None, near: NEAR, more: ExtraText::Nothing, followed_by: OTHERS };
const CAUSED: [&str; 2] = [" (caused by ", ")"];

const FORMS: &[ReportFormat] = &[
    // Rust: since 1.73 the message is on the next line, since 1.91 with the thread's number.
    ReportFormat {
        first: r"^thread '[^']*'(?: \(\d+\))? panicked at (?:\S.*:\d+:\d+:|'.*', \S.*:\d+:\d+)$",
        more: ExtraText::Next,
        ..REPORT
    },
    // Rust: what `main` returns, as the crate anyhow shows it.
    ReportFormat {
        first: r"^Error: .+$",
        proof: Some(r"^Caused by:$"),
        more: ExtraText::Last(r"^ {4,}(?:\d+: )?(\S.*)$", CAUSED),
        ..REPORT
    },
    // Go.
    ReportFormat {
        first: r"^(?:panic|fatal error): .+$",
        proof: Some(r"^(?:goroutine \d+ .*\[.+\]:|runtime stack:)$"),
        ..REPORT
    },
    // Java and other languages of its virtual machine.
    ReportFormat {
        first: r#"^Exception in thread "[^"]*" [\w.$]+(?:: .*)?$"#,
        more: ExtraText::Last(r"^Caused by: (\S.*)$", CAUSED),
        ..REPORT
    },
    ReportFormat {
        first: r"^Error: .+$",
        proof: Some(r"^Caused by: [\w.$]+(?:: .*)?$"),
        more: ExtraText::Last(r"^Caused by: (\S.*)$", CAUSED),
        ..REPORT
    },
    ReportFormat {
        first: r"^# (?P<what>A fatal error has been detected by the Java Runtime Environment):$",
        more: ExtraText::First(
            r"^# +(SIG[A-Z]+ \(.*|Internal Error \(.*|Out of Memory Error \(.*|fatal error: .*)$",
            [": ", ""],
        ),
        ..REPORT
    },
    ReportFormat {
        first: r"^# (?P<what>There is insufficient memory for the Java Runtime Environment to continue)\.$",
        more: ExtraText::First(r"^# (Native memory allocation .*)$", [": ", ""]),
        ..REPORT
    },
    ReportFormat { first: r"^Terminating due to java\.lang\.OutOfMemoryError: .+$", ..REPORT },
    // C++ by GCC's library, and by LLVM's.
    ReportFormat {
        first: r"^terminate called (?:after throwing an instance of '.+'|without an active exception|recursively)$",
        more: ExtraText::First(r"^ +what\(\): +(\S.*)$", [": ", ""]),
        ..REPORT
    },
    ReportFormat { first: r"^libc\+\+abi(?:\.dylib)?: terminating (?:due to|with) uncaught .+$", ..REPORT },
    // C: assert(), and glibc about a heap or a stack that was overwritten.
    ReportFormat { first: r"^\S+: \S+:\d+: .+: Assertion `.+' failed\.$", ..REPORT },
    ReportFormat {
        first: r"(?x)^(?: (?:malloc|malloc_consolidate|calloc|realloc|free) \(\):\ (?:corrupted|invalid|unaligned|unsorted|mismatching|memory\ corruption|double\ free|too\ many)\b.*
            | munmap_chunk\(\):\ invalid\ pointer | double\ free\ or\ corruption\ \(.+\) | corrupted\ (?:size\ vs\.\ prev_size|double-linked\ list)\b.*
            | \*\*\*\ (?:stack\ smashing|buffer\ overflow)\ detected\ \*\*\*:.* | Fatal\ glibc\ error:\ .+ )$",
        ..REPORT
    },
    // The sanitizers of GCC and Clang. Their summary names kind, file, line and function.
    ReportFormat {
        first: r"^==\d+==ERROR: (?P<what>(?:\w+Sanitizer): .+)$",
        more: ExtraText::First(r"^SUMMARY: \w+Sanitizer: (.+)$", [" (", ")"]),
        ..REPORT
    },
    ReportFormat { first: r"^SUMMARY: (?P<what>(?:\w+Sanitizer): .+)$", ..REPORT },
    // glog and Abseil, by which XLA and TensorFlow abort.
    ReportFormat { first: r"^F\d{4,8} \d\d:\d\d:\d+\.\d+ +\d+ (?P<what>\S+:\d+\] .+)$", ..REPORT },
    // Python itself, which has crashed.
    ReportFormat {
        first: r"^Fatal Python error: .+$",
        more: ExtraText::First(r#"^ +(File ".+", line \d+ in .+)$"#, [" (", ")"]),
        ..REPORT
    },
    // Julia.
    ReportFormat { first: r"^ERROR: .+$", proof: Some(r"^Stacktrace:$"), ..REPORT },
    // R.
    ReportFormat {
        first: r"^Error(?: in .+)?:(?: .*)?$",
        proof: Some(r"^Execution halted$"),
        more: ExtraText::Next,
        ..REPORT
    },
    // Node.js: most of its errors look like Python's and are found as such.
    ReportFormat { first: r"^\w*Error \[\w+\]: .+$", proof: Some(r"^ +at .+\d\)?(?: \{)?$"), ..REPORT },
    ReportFormat { first: r"^\[?(?P<what>UnhandledPromiseRejection: .+?)\]?(?: \{)?$", ..REPORT },
    ReportFormat { first: r"^FATAL ERROR: .+$", proof: Some(r"^----- .+ -----$|^ ?\d+: 0x[0-9a-f]+ "), ..REPORT },
    // Ruby.
    ReportFormat { first: r"^\S+:\d+:in [`'].+': .+ \([A-Z][\w:]*\)$", ..REPORT },
    // .NET.
    ReportFormat {
        first: r"^Unhandled exception[.:] \S.+$",
        more: ExtraText::Last(r"^ *---> (\S.*)$", CAUSED),
        ..REPORT
    },
    // PHP, Swift, OCaml.
    ReportFormat { first: r"^(?:PHP |\S+\.swift:\d+: )?Fatal error: .+$", ..REPORT },
    // Dart.
    ReportFormat { first: r"^Unhandled exception:$", proof: Some(r"^#\d+ +\S"), more: ExtraText::Next, ..REPORT },
    // Zig.
    ReportFormat { first: r"^thread \d+ panic: .+$", proof: Some(r"^\S+:\d+:\d+: 0x[0-9a-f]+ in "), ..REPORT },
    // Deno and Bun, Octave.
    ReportFormat {
        first: r"^error: .+$",
        proof: Some(r"^ +at \S.*:\d+:\d+\)?$|^error: called from$"),
        near: 1,
        ..REPORT
    },
    // Haskell, before GHC 9.10 and since.
    ReportFormat { first: r"^\S+: .+$", proof: Some(r"^CallStack \(from HasCallStack\):$"), near: 1, ..REPORT },
    ReportFormat { first: r"^\S+: Uncaught exception \S+:$", more: ExtraText::Next, ..REPORT },
    // Perl's Carp, Tcl.
    ReportFormat {
        first: r"^.+ at \S+ line \d+\.$",
        proof: Some(r"^\t\S+\(.*\) called at .+ line \d+$"),
        near: 1,
        ..REPORT
    },
    ReportFormat { first: r"^\S.*$", proof: Some(r"^    while executing$"), near: 1, ..REPORT },
    // CMake.
    ReportFormat { first: r"^CMake Error(?: at .+)?:$", more: ExtraText::Next, ..REPORT },
    // Lua.
    ReportFormat { first: r"^(?:\S*/)?(?:lua|luajit)[\d.]*: .+$", proof: Some(r"^stack traceback:$"), ..REPORT },
    // Elixir.
    ReportFormat { first: r"^\*\* \([A-Z][\w.]*\) .+$", ..REPORT },
    // Fortran by GCC and by Intel.
    ReportFormat { first: r"^Fortran runtime error: .+$", ..REPORT },
    ReportFormat { first: r"^forrtl: (?:severe|error) \(\d+\): .+$", ..REPORT },
    // Lines that a program logs at the highest level, with or without a time.
    ReportFormat {
        first: r"(?x)^(?: (?:[\[(<]?\d{4}[-/]\d\d[-/]\d\d\ )?[\[(<]?\S*\d\d:\d\d\S*\s+(?:\S+\s+){0,4}?[\[(<|]?(?:FATAL|CRITICAL)[\])>:|]?\s
            | [\[(<](?:FATAL|CRITICAL)[\])>]:?\s | (?:FATAL|CRITICAL)(?::\s|\s+[-|]\s) )\s*\S.*$",
        followed_by: PARTING,
        ..REPORT
    },
    ReportFormat { first: r"^CRITICAL:[\w.]+:.+$", followed_by: PARTING, ..REPORT },
];

/// Finds the reports in `lines`, none of which is empty.
///
/// Reports that directly follow each other are one failure and its echo. Only the first one counts.
pub fn reports<'t>(lines: &[&'t str]) -> Vec<Crash<'t>> {
    static FIRSTS: LazyLock<RegexSet> = LazyLock::new(|| set(FORMS.iter().map(|form| form.first)));
    let lines: Vec<&str> = lines.iter().map(|line| split_rank(line).1.trim_end()).collect();
    let mut found: Vec<(Crash<'t>, usize)> = Vec::new();
    for at in 0..lines.len() {
        if found.last().is_some_and(|(known, _)| known.lines.contains(&at)) {
            continue;
        }
        let forms = FIRSTS.matches(lines[at]);
        let Some((crash, followed_by)) = forms.iter().find_map(|form| read(&lines, at, form)) else { continue };
        match found.last_mut().filter(|(known, _)| known.lines.end == at) {
            Some((known, _)) => known.lines.end = crash.lines.end,
            None => found.push((crash, followed_by)),
        }
    }
    let is_end = |(crash, followed_by): &(Crash<'_>, usize)| lines.len() - crash.lines.end <= *followed_by;
    found.into_iter().filter(is_end).map(|(crash, _)| crash).collect()
}

/// Parses the report that begins at this line in this form.
fn read<'t>(lines: &[&'t str], at: usize, form: usize) -> Option<(Crash<'t>, usize)> {
    static EACH: LazyLock<Vec<[Option<Regex>; 3]>> = LazyLock::new(|| {
        let more = |form: &ReportFormat| match form.more {
            ExtraText::First(pattern, _) | ExtraText::Last(pattern, _) => Some(crate::constant(pattern)),
            ExtraText::Nothing | ExtraText::Next => None,
        };
        FORMS
            .iter()
            .map(|form| [Some(crate::constant(form.first)), form.proof.map(crate::constant), more(form)])
            .collect()
    });
    let (line, rest) = (lines[at], &lines[at + 1..]);
    let (ReportFormat { more, near, followed_by, .. }, [first, proof, pattern]) = (FORMS.get(form)?, EACH.get(form)?);
    let proven = match proof {
        Some(proof) => rest.iter().take(*near).position(|line| proof.is_match(line))? + 1,
        None => 0,
    };
    let found = first.as_ref()?.captures(line)?;
    let mut text = found.name("what").map_or(line, |what| what.as_str()).trim().to_owned();
    let next = rest.first().filter(|_| matches!(more, ExtraText::Next) && line.ends_with(':'));
    let begun = proven.max(usize::from(next.is_some()));
    let length = begun + rest[begun..].iter().take_while(|line| is_body(line)).count();
    if let Some(next) = next {
        text = format!("{text} {}", next.trim());
    }
    if let (ExtraText::First(_, [before, after]) | ExtraText::Last(_, [before, after]), Some(pattern)) = (more, pattern)
    {
        let of = |line: &&'t str| Some(pattern.captures(line)?.get(1)?.as_str());
        // Lines of a stack trace name no cause.
        let mut reported = rest[..length].iter().take_while(|line| !is_stack(line)).filter_map(of);
        let reported = if matches!(more, ExtraText::First(..)) { reported.next() } else { reported.last() };
        if let Some(reported) = reported {
            text = format!("{text}{before}{reported}{after}");
        }
    }
    Some((Crash { line, text, lines: at..at + 1 + length }, *followed_by))
}

fn set<'p>(patterns: impl Iterator<Item = &'p str>) -> RegexSet {
    #[expect(clippy::expect_used, reason = "constants")]
    RegexSet::new(patterns).expect("constants")
}

/// Whether a line within a report says where something happened, or comes from a shell or launcher that comments on it.
fn is_body(line: &str) -> bool {
    static BODY: LazyLock<Regex> = LazyLock::new(|| {
        crate::constant(
            r"(?x)^(?: \s | \# | ==\d+== | =+$ | \*\*\*\ | Caused\ by:  | note:\ | (?i:stack\ ?(?:back)?trace:) | goroutine\ \d+ | \[signal\ SIG
            | created\ by\ | \S+\(.*\)$ | frame\ \# | Exception\ raised\ from\ | Current\ (?:thread\ 0x|stack\ trace:) | \d+\ {2,}\S | Thread\ 0x | Extension\ modules:
            | Calls:\ | CallStack\ \( | error:\ called\ from$ | \S+:\d+:\d+:\ 0x[0-9a-f]+\ in\  | \x22.*\x22$ | --\ Configuring\ incomplete | Execution\ halted$ | in\ expression\ starting\ at\ | -----\ | Node\.js\ v\d | exit\ status\ \d+$ | \}$
            | (?:READ|WRITE)\ of\ size | 0x[0-9a-f]+\ is\ located | (?:freed|allocated|previously\ allocated)\ by\ thread\ | SUMMARY:\  | AddressSanitizer
            | (?:\S+:\ (?:line\ )?\d*:?\ +\d*\ +)? (?:Aborted|Segmentation\ fault|Killed|Bus\ error) )",
        )
    });
    BODY.is_match(line)
}

/// Whether a line begins a stack trace.
fn is_stack(line: &str) -> bool {
    static STACK: LazyLock<Regex> = LazyLock::new(|| crate::constant(r"^(?i:stack ?(?:back)?trace:)"));
    STACK.is_match(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reports in `text` say.
    fn report_texts(text: &str) -> Vec<String> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        reports(&lines).into_iter().map(|crash| crash.text).collect()
    }

    /// Output of Rust 1.92, Go 1.26, Java 17, Node.js 20, GCC 12 and Python 3.11. The rest is from each runtime's
    /// documentation.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn crash_report_of_each_runtime_is_recognized() {
        for (text, expected) in [
            (
                "step 3\n\nthread 'main' (12) panicked at src/main.rs:4:5:\nindex out of bounds: the len is 3 but the index is 7\n\
                 note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
                "thread 'main' (12) panicked at src/main.rs:4:5: index out of bounds: the len is 3 but the index is 7",
            ),
            (
                "thread 'main' panicked at 'no labels', src/main.rs:4:5\nnote: run with `RUST_BACKTRACE=1`\n",
                "thread 'main' panicked at 'no labels', src/main.rs:4:5",
            ),
            (
                "Error: could not read the config\n\nCaused by:\n    0: a.toml\n    1: No such file or directory (os error 2)\n\n\
                 Stack backtrace:\n   0: anyhow::error::new\n      at /src/lib.rs:3\n",
                "Error: could not read the config (caused by No such file or directory (os error 2))",
            ),
            (
                "panic: runtime error: index out of range [5] with length 1\n\ngoroutine 1 [running]:\nmain.main()\n\t/a/t.go:3 +0x79\nexit status 2\n",
                "panic: runtime error: index out of range [5] with length 1",
            ),
            (
                "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation violation code=0x1 \
                 addr=0x0 pc=0x489b94]\n\ngoroutine 1 gp=0xc0000061c0 m=0 mp=0x5 [running]:\nmain.main()\n\t/a/t.go:3 +0x34\n",
                "panic: runtime error: invalid memory address or nil pointer dereference",
            ),
            (
                "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [sync.WaitGroup.Wait]:\nsync.runtime_SemacquireWaitGroup(0x10?)\n\
                 \t/go/sema.go:114 +0x2e\n",
                "fatal error: all goroutines are asleep - deadlock!",
            ),
            (
                "Exception in thread \"main\" java.lang.IllegalStateException: can't train\n\tat T.main(T.java:1)\n\
                 Caused by: java.lang.RuntimeException: io\n\tat T.main(T.java:1)\nCaused by: java.io.IOException: disk full\n\tat T.f(T.java:1)\n\t... 8 more\n",
                "Exception in thread \"main\" java.lang.IllegalStateException: can't train (caused by java.io.IOException: disk full)",
            ),
            (
                "Error: Could not find or load main class Nope\nCaused by: java.lang.ClassNotFoundException: Nope\n",
                "Error: Could not find or load main class Nope (caused by java.lang.ClassNotFoundException: Nope)",
            ),
            (
                "#\n# A fatal error has been detected by the Java Runtime Environment:\n#\n#  SIGSEGV (0xb) at pc=0x7f, pid=9, tid=10\n#\n# JRE version: 17\n",
                "A fatal error has been detected by the Java Runtime Environment: SIGSEGV (0xb) at pc=0x7f, pid=9, tid=10",
            ),
            (
                "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad file\nAborted\n",
                "terminate called after throwing an instance of 'std::runtime_error': bad file",
            ),
            (
                "terminate called after throwing an instance of 'c10::Error'\n  what():  tensor is empty\nException raised from f at x.cpp:3 \
                 (most recent call first):\nframe #0: c10::Error::Error() + 0x6c\n",
                "terminate called after throwing an instance of 'c10::Error': tensor is empty",
            ),
            ("terminate called without an active exception\n", "terminate called without an active exception"),
            (
                "libc++abi: terminating due to uncaught exception of type std::runtime_error: bad file\n",
                "libc++abi: terminating due to uncaught exception of type std::runtime_error: bad file",
            ),
            (
                "b: b.c:4: main: Assertion `c==9' failed.\nbash: line 1:  9465 Aborted                 ./b 1 2\n",
                "b: b.c:4: main: Assertion `c==9' failed.",
            ),
            (
                "free(): double free detected in tcache 2\nbash:  9464 Aborted                 ./b 1\n",
                "free(): double free detected in tcache 2",
            ),
            ("double free or corruption (out)\nAborted (core dumped)\n", "double free or corruption (out)"),
            ("*** stack smashing detected ***: terminated\n", "*** stack smashing detected ***: terminated"),
            (
                "=================================================================\n==9473==ERROR: AddressSanitizer: heap-buffer-overflow on address \
                 0x602000000015 at pc 0x5578 bp 0x7f sp 0x7f\nWRITE of size 1 at 0x602000000015 thread T0\n    #0 0x5578 in main /a/b.c:4\n\n\
                 0x602000000015 is located 1 bytes to the right of 4-byte region [0x10,0x14)\nallocated by thread T0 here:\n    #0 0x7f in malloc\n\n\
                 SUMMARY: AddressSanitizer: heap-buffer-overflow /a/b.c:4 in main\nShadow bytes around the buggy address:\n  0x0c: 00 00\n==9473==ABORTING\n",
                "AddressSanitizer: heap-buffer-overflow on address 0x602000000015 at pc 0x5578 bp 0x7f sp 0x7f (heap-buffer-overflow /a/b.c:4 in main)",
            ),
            (
                "SUMMARY: UndefinedBehaviorSanitizer: undefined-behavior x.c:3:5\n",
                "UndefinedBehaviorSanitizer: undefined-behavior x.c:3:5",
            ),
            (
                "F1125 10:00:00.123456    57 rendezvous.cc:31] Check failed: n == 4 (3 vs. 4)\n*** Check failure stack trace: ***\n    @ 0x7f google::LogMessage::Fail()\n",
                "rendezvous.cc:31] Check failed: n == 4 (3 vs. 4)",
            ),
            (
                "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f284a1c8b80 (most recent call first):\n  File \"/a/t.py\", line 7 in f\n\
                 \x20 File \"/a/t.py\", line 9 in <module>\n\nExtension modules: numpy (total: 1)\n",
                "Fatal Python error: Segmentation fault (File \"/a/t.py\", line 7 in f)",
            ),
            (
                "ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]\nStacktrace:\n [1] getindex(A::Vector)\n   @ Base ./e.jl:13\n\
                 in expression starting at /a/t.jl:2\n",
                "ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]",
            ),
            (
                "Error in f(3) : could not find function \"g\"\nCalls: f\nExecution halted\n",
                "Error in f(3) : could not find function \"g\"",
            ),
            (
                "Error in readRDS(\"x.rds\") : \n  cannot open the connection\nIn addition: Warning message:\nExecution halted\n",
                "Error in readRDS(\"x.rds\") : cannot open the connection",
            ),
            (
                "TypeError [ERR_INVALID_URL]: Invalid URL\n    at new URL (node:internal/url:806:29) {\n  code: 'x'\n}\n\nNode.js v20.20.2\n",
                "TypeError [ERR_INVALID_URL]: Invalid URL",
            ),
            (
                "node:internal/process/promises:389\n      ^\n\nUnhandledPromiseRejection: it was rejected with the reason \"bad\".\n    at f (node:x:1:2) {\n  code: 'E'\n}\n\nNode.js v20.20.2\n",
                "UnhandledPromiseRejection: it was rejected with the reason \"bad\".",
            ),
            (
                "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n----- Native stack trace -----\n\n 1: 0xb78db3 node::OOMErrorHandler() [node]\n",
                "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
            ),
            ("t.rb:3:in `f': bad (RuntimeError)\n\tfrom t.rb:6:in `<main>'\n", "t.rb:3:in `f': bad (RuntimeError)"),
            (
                "Unhandled exception. System.InvalidOperationException: outer\n ---> System.IO.IOException: disk full\n   at P.Main()\n   --- End of inner exception stack trace ---\n",
                "Unhandled exception. System.InvalidOperationException: outer (caused by System.IO.IOException: disk full)",
            ),
            (
                "PHP Fatal error:  Uncaught Exception: bad in /a/t.php:3\nStack trace:\n#0 {main}\n  thrown in /a/t.php on line 3\n",
                "PHP Fatal error:  Uncaught Exception: bad in /a/t.php:3",
            ),
            ("lua: t.lua:1: bad\nstack traceback:\n\t[C]: in function 'error'\n", "lua: t.lua:1: bad"),
            ("** (RuntimeError) bad\n    t.exs:1: (file)\n", "** (RuntimeError) bad"),
            (
                "Swift/ContiguousArrayBuffer.swift:600: Fatal error: Index out of range\nCurrent stack trace:\n0    libswiftCore.so   0x7f f + 109\n",
                "Swift/ContiguousArrayBuffer.swift:600: Fatal error: Index out of range",
            ),
            (
                "Unhandled exception:\nException: bad\n#0      main (file:///a/t.dart:1:15)\n",
                "Unhandled exception: Exception: bad",
            ),
            (
                "thread 1234 panic: index out of bounds: index 7, len 3\n/a/t.zig:3:5: 0x1038e6a in main (t)\n    a[7] = 1;\n    ^\n",
                "thread 1234 panic: index out of bounds: index 7, len 3",
            ),
            (
                "error: Uncaught (in promise) Error: bad\n    at file:///a/t.ts:1:7\n",
                "error: Uncaught (in promise) Error: bad",
            ),
            ("error: 'x' undefined\nerror: called from\n    f at line 3 column 5\n", "error: 'x' undefined"),
            ("t: bad\nCallStack (from HasCallStack):\n  error, called at t.hs:1:8 in main:Main\n", "t: bad"),
            (
                "t: Uncaught exception ghc-internal:GHC.Internal.Exception.ErrorCall:\n\nbad\n\nHasCallStack backtrace:\n  error, called at t.hs:1:8\n",
                "t: Uncaught exception ghc-internal:GHC.Internal.Exception.ErrorCall: bad",
            ),
            ("bad at t.pl line 1.\n\tmain::load(7) called at t.pl line 2\n", "bad at t.pl line 1."),
            (
                "bad 7\n    while executing\n\"error \"bad $n\"\"\n    (procedure \"load\" line 1)\n    invoked from within\n\"load 7\"\n    (file \"t.tcl\" line 1)\n",
                "bad 7",
            ),
            (
                "-- The C compiler is GNU\nCMake Error at CMakeLists.txt:3 (message):\n  no CUDA toolkit\n\n\n-- Configuring incomplete, errors occurred!\n",
                "CMake Error at CMakeLists.txt:3 (message): no CUDA toolkit",
            ),
            (
                "At line 3 of file t.f90\nFortran runtime error: Index '7' of dimension 1 of array 'a' above upper bound of 3\n",
                "Fortran runtime error: Index '7' of dimension 1 of array 'a' above upper bound of 3",
            ),
            (
                "forrtl: severe (174): SIGSEGV, segmentation fault occurred\n",
                "forrtl: severe (174): SIGSEGV, segmentation fault occurred",
            ),
            ("FATAL: the dataset is damaged\n", "FATAL: the dataset is damaged"),
            ("CRITICAL:root:the dataset is damaged\n", "CRITICAL:root:the dataset is damaged"),
            ("[FATAL] no licence\nbye\n", "[FATAL] no licence"),
            (
                "2026-11-25 10:00:00,123 - trainer - CRITICAL - no licence\n",
                "2026-11-25 10:00:00,123 - trainer - CRITICAL - no licence",
            ),
            (
                "2026-11-25 10:00:00.123 | CRITICAL | __main__:main:12 - no licence\n",
                "2026-11-25 10:00:00.123 | CRITICAL | __main__:main:12 - no licence",
            ),
            ("10:00:00.123 [main] FATAL com.x.T - no licence\n", "10:00:00.123 [main] FATAL com.x.T - no licence"),
        ] {
            assert_eq!(report_texts(text), [expected], "{text}");
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn crash_report_lookalikes_are_ignored() {
        for text in [
            // Rust, Zig.
            "thread 'main' panicked at nothing",
            "the thread 'main' panicked at src/main.rs:4:5:",
            "thread main panicked at src/main.rs:4:5:",
            "thread 'main' panicked",
            "2 threads panicked at src/main.rs:4:5:",
            "Error: no such file",
            "Error: x\ncaused by:\n    y",
            "Errors: 3\nCaused by:\n    y",
            "  Error: x\n  Caused by:\n    y",
            "Error: x\nCaused by: the weather was bad",
            // Go.
            "panic: none",
            "panic: 3\ngoroutines: 7",
            "fatal error: 0.01",
            "do not panic: x\ngoroutine 1 [running]:",
            "panic mode: off\ngoroutine 1 [running]:",
            // Java.
            "Exception in thread pool: none",
            "No Exception in thread \"main\" java.lang.X",
            "Exception in thread \"main\" was handled by the pool",
            "Exception in thread \"a\"",
            "java.lang.IllegalStateException in thread \"main\"",
            "Exceptions in thread \"main\" java.lang.X",
            "A fatal error has been detected by the Java Runtime Environment:",
            "Terminating due to java.lang.OutOfMemoryError",
            // C++, C.
            "terminate called after 3 rounds",
            "terminate called",
            "we terminate called after throwing an instance of 'x'",
            "terminate called after throwing an instance of the model",
            "  what():  bad file",
            "libc++abi: loaded",
            "loss.cu:250: f: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0` failed.",
            "Assertion `x' failed.",
            "assertion: x.c:3: held",
            "tests: t.c:3: 4 Assertions held, 0 failed.",
            "b: b.c:4: main: Assertion `c==9' held.",
            "malloc(): 3 calls",
            "free(): done",
            "free(): 3 invalid pointers",
            "corrupted size of file",
            "double free or corruption",
            "stack smashing detected",
            // Sanitizers.
            "AddressSanitizer: enabled",
            "==12==WARNING: ThreadSanitizer: data race",
            "SUMMARY: 3 epochs",
            "ERROR: AddressSanitizer: x",
            "==x==ERROR: AddressSanitizer: x",
            // glog.
            "F1 10:00:00.1 57 x.cc:1] y",
            "I1125 10:00:00.123456    57 x.cc:31] Check failed",
            "F1125 loss 3",
            "F1125 10:00:00.123456 57 no place",
            "E1125 10:00:00.123456    57 x.cc:31] Check failed",
            // Python.
            "fatal Python error: x",
            "Fatal Python error",
            "no Fatal Python error: x",
            // Julia, R.
            "ERROR: no such file",
            "ERROR: x\nstacktrace: none",
            "ERROR rate: 3\nStacktrace:",
            "Error in percent: 3",
            "Error in f : x\nExecution time 3",
            // Node.js.
            "Error [x] in y",
            "TypeError [ERR_X]: y",
            "FATAL ERROR rate 3",
            "3 UnhandledPromiseRejections: x",
            // Ruby, .NET, PHP.
            "t.rb:3: warning: x (y)",
            "t.rb:3:in `f': see (the docs)",
            "Unhandled exceptions: 3",
            "unhandled exception. x",
            "Fatal errors: 0",
            "No Fatal error: x",
            "Non-Fatal error: x",
            // Lua, Elixir, Fortran.
            "lua: 5.4 loaded",
            "** (3) epochs",
            "** bad",
            "Fortran runtime: 3 s",
            "forrtl: info (3): x",
            // Swift, Dart, Zig, Deno, Octave, Haskell, Perl, Tcl, CMake.
            "t.swift:3: Fatal errors: 0",
            "Unhandled exception:\nnone",
            "Unhandled exceptions:\n#0 none",
            "thread 7 panic: off",
            "thread x panic: y\n/a/t.zig:3:5: 0x1 in main (t)",
            "error: 0.03\nstep 4",
            "error: x\n    at the end of the epoch",
            "the error: called from\nhere",
            "t: bad\nCallStack: empty",
            "CallStack (from HasCallStack):",
            "t: Uncaught exceptions: 3",
            "read 3 rows at t.csv line 1.",
            "step 3\n  while executing 4 workers",
            "    while executing",
            "CMake Error: none seen",
            "CMake Warning at CMakeLists.txt:3 (message):\n  no CUDA toolkit",
            // Levels.
            "FATAL=0 CRITICAL=0",
            "0 FATAL, 0 CRITICAL",
            "NON-FATAL: x",
            "FATALITIES: 3",
            "CRITICAL section entered",
            "step 3 CRITICAL: x",
            "fatal: x",
            "FATAL",
            "FATAL:",
            "epoch 12:30 accuracy of FATALITY 0.3",
            "CRITICAL:root",
            "CRITICAL POINT found at 0.3",
        ] {
            assert_eq!(report_texts(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn survived_crash_report_is_ignored() {
        let steps = |count: usize| (0..count).map(|step| format!("step {step}\n")).collect::<String>();
        let panic = "thread 'loader' panicked at src/a.rs:1:2:\nbad image\n";
        assert_eq!(report_texts(&format!("{panic}{}", steps(3))).len(), 1);
        assert_eq!(report_texts(&format!("{panic}{}", steps(OTHERS + 1))).len(), 0);
        let level = "CRITICAL: no tracker, going on without\n";
        assert_eq!(report_texts(&format!("{level}{}", steps(3))).len(), 1);
        assert_eq!(report_texts(&format!("{level}{}", steps(PARTING + 1))).len(), 0);
    }

    #[test]
    fn echo_after_crash_report_is_not_a_second_report() {
        let echo = "thread 'w' (95) panicked at r.rs:1:96:\nassertion `left == right` failed\n  left: 3\n right: 1\n\
                    note: run with `RUST_BACKTRACE=1`\n\nthread 'main' (94) panicked at r.rs:1:165:\n\
                    called `Result::unwrap()` on an `Err` value: Any { .. }\nnote: run with `RUST_BACKTRACE=1`\n";
        assert_eq!(report_texts(echo), ["thread 'w' (95) panicked at r.rs:1:96: assertion `left == right` failed"]);
        let apart = echo.replace("\n\nthread", "\nstep 9\nthread");
        assert_eq!(report_texts(&apart).len(), 2);
        let ranks = "[rank3]: terminate called after throwing an instance of 'E'\n[rank3]:   what():  bad\n";
        assert_eq!(report_texts(ranks), ["terminate called after throwing an instance of 'E': bad"]);
    }
}
