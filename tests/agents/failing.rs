//! Programs that fail, in many languages and with many tools, and the reason reported for each: the table of
//! docs/programs.md.

use super::agent::{Runs, cause};
use protocol::report::{Phase, Report};
use std::fs;
use std::path::Path;
use std::process::Command;
use testkit::room::Room;
use testkit::skipped;

/// A program that fails, and what a person would say about it.
struct Program {
    tool: &'static str,
    /// What it does wrong.
    what: &'static str,
    /// A shell script that runs in an empty folder.
    script: &'static str,
    /// The reason, and the message after the worker's name.
    verdict: &'static str,
}

const fn row(tool: &'static str, what: &'static str, script: &'static str, verdict: &'static str) -> Program {
    Program { tool, what, script, verdict }
}

/// Programs that start within milliseconds.
const QUICK: &[Program] = &[
    row("sh", "says nothing", "exit 3", "ExitCode: exit code 3"),
    row(
        "sh",
        "has no such command",
        "no-such-trainer --epochs 3",
        "ExitCode: exit code 127: sh: 1: no-such-trainer: not found",
    ),
    row("sh", "lacks a variable", ": ${DATA_URL:?is not set}", "ExitCode: exit code 2: sh: 1: DATA_URL: is not set"),
    row(
        "sh",
        "reads a file that is not there",
        "set -e; exec < data/train.bin",
        "ExitCode: exit code 2: sh: 1: cannot open data/train.bin: No such file",
    ),
    row(
        "sh",
        "passes on what a signal did",
        "sh -c 'kill -SEGV $$'; exit $?",
        "Signal: ended by SIGSEGV (exit code 139): Segmentation fault",
    ),
    row(
        "sh",
        "says why, then tidies up",
        "echo 'ERROR: no space left in /scratch' >&2; echo 'removing 3 temporary files' >&2; exit 1",
        "ExitCode: exit code 1: ERROR: no space left in /scratch",
    ),
    row(
        "bash",
        "uses a variable that is not set",
        "bash -uc 'echo $LABELS'",
        "ExitCode: exit code 127: bash: line 1: LABELS: unbound variable",
    ),
    row(
        "bash",
        "stops at a pipe",
        "bash -c 'set -eo pipefail; cat labels.txt | sort | head -n 1; echo trained'",
        "ExitCode: exit code 1: cat: labels.txt: No such file or directory",
    ),
    row("timeout", "takes too long", "timeout 0.1 sleep 9", "ExitCode: exit code 124"),
    row(
        "awk",
        "reads a file that is not there",
        "awk '{ sum += $1 }' losses.csv",
        "ExitCode: exit code 2: awk: cannot open losses.csv (No such file or directory)",
    ),
    row(
        "perl",
        "dies",
        "perl -e 'print \"step 1\\n\"; die \"no labels in shard 7\\n\"'",
        "ExitCode: exit code 255: no labels in shard 7",
    ),
    row(
        "perl",
        "dies in a call",
        "perl -e 'use Carp; sub load { Carp::confess(\"bad shard\") } load(7)'",
        "ExitCode: exit code 255: bad shard at -e line 1.",
    ),
    row("perl", "lacks a module", "perl -e 'use No::Such;'", "ExitCode: exit code 2: Can't locate No/Such.pm"),
    row(
        "make",
        "has a recipe that fails",
        "printf 'train:\\n\\t@cat train.conf\\n' > Makefile; make train",
        "ExitCode: exit code 2: cat: train.conf: No such file or directory",
    ),
    row(
        "make",
        "has no such rule",
        "make train",
        "ExitCode: exit code 2: make: *** No rule to make target 'train'.  Stop.",
    ),
    row(
        "git",
        "is in no repository",
        "GIT_DIR=nowhere git log",
        "ExitCode: exit code 128: fatal: not a git repository: 'nowhere'",
    ),
    row("Python", "raises", "python3 -c 'raise ValueError(\"bad batch\")'", "PythonException: ValueError: bad batch"),
    row(
        "Python",
        "logs and handles one, then gives up",
        "cat > t.py <<'X'\nimport logging, sys\ntry:\n    open('cache')\nexcept OSError:\n    logging.exception('no cache')\nprint('FATAL: no data left', file=sys.stderr)\nsys.exit(9)\nX\npython3 t.py",
        "ExitCode: exit code 9: FATAL: no data left",
    ),
    row(
        "Python",
        "ends with words",
        "python3 -c 'import sys; sys.exit(\"no data for fold 3\")'",
        "ExitCode: exit code 1: no data for fold 3",
    ),
    row(
        "Python",
        "raises from another",
        "cat > t.py <<'X'\ntry:\n    {}['lr']\nexcept KeyError as e:\n    raise RuntimeError('no learning rate') from e\nX\npython3 t.py",
        "PythonException: RuntimeError: no learning rate",
    ),
    row(
        "Python",
        "raises a group",
        "python3 -c 'raise ExceptionGroup(\"two shards\", [ValueError(\"a\"), OSError(\"b\")])'",
        "PythonException: ExceptionGroup: two shards (2 sub-exceptions)",
    ),
    row(
        "Python",
        "fails in a child process",
        "cat > t.py <<'X'\nimport multiprocessing as m, sys\ndef work(): raise OSError('shard 7 is cut off')\nif __name__ == '__main__':\n    p = m.get_context('fork').Process(target=work); p.start(); p.join(); sys.exit(p.exitcode)\nX\npython3 t.py",
        "PythonException: OSError: shard 7 is cut off",
    ),
    row(
        "Python",
        "fails in a thread",
        "cat > t.py <<'X'\nimport threading, sys\ndef work(): raise OSError('shard 7 is cut off')\nt = threading.Thread(target=work); t.start(); t.join()\nsys.exit('the loader died')\nX\npython3 t.py",
        "PythonException: OSError: shard 7 is cut off",
    ),
    row(
        "Python",
        "lacks a module",
        "python3 -c 'import no_such_library'",
        "ImportError: ModuleNotFoundError: No module named 'no_such_library'",
    ),
    row(
        "Python",
        "is called wrongly",
        "python3 -c 'import argparse; p = argparse.ArgumentParser(\"train\"); p.parse_args()' --lr 1",
        "ExitCode: exit code 2: train: error: unrecognized arguments: --lr 1",
    ),
    row(
        "Python",
        "touches foreign memory",
        "python3 -c 'import ctypes; ctypes.string_at(0)'",
        "Signal: ended by SIGSEGV",
    ),
    row(
        "Python",
        "the same with faulthandler",
        "python3 -X faulthandler -c 'import ctypes; ctypes.string_at(0)'",
        "Signal: ended by SIGSEGV (exit code 139): Fatal Python error: Segmentation fault",
    ),
    row(
        "Python",
        "logs as critical",
        "python3 -c 'import logging, sys; logging.critical(\"no licence\"); sys.exit(4)'",
        "ExitCode: exit code 4: CRITICAL:root:no licence",
    ),
    row(
        "Python",
        "logs an error with its time",
        "cat > t.py <<'X'\nimport logging, sys\nlogging.basicConfig(format='12:00:00 %(levelname)s %(name)s: %(message)s', level='INFO')\nlogging.error('no labels in shard 7')\nlogging.info('closing 4 files')\nsys.exit(1)\nX\npython3 t.py",
        "ExitCode: exit code 1: 12:00:00 ERROR root: no labels in shard 7",
    ),
    row(
        "sqlite3",
        "has no such table",
        "python3 -c 'import sqlite3; sqlite3.connect(\":memory:\").execute(\"select * from runs\")'",
        "PythonException: sqlite3.OperationalError: no such table: runs",
    ),
];

/// Programs that need a compiler or a virtual machine.
const SLOW: &[Program] = &[
    row(
        "C",
        "writes to no memory",
        "printf 'int main(void) { volatile int *p = 0; *p = 1; }' > t.c; cc t.c -o t && exec ./t",
        "Signal: ended by SIGSEGV",
    ),
    row(
        "C",
        "divides by zero",
        "printf 'int main(int n, char **v) { return 7 / (n - 1); }' > t.c; cc t.c -o t && exec ./t",
        "Signal: ended by SIGFPE",
    ),
    row(
        "C",
        "asserts",
        "printf '#include <assert.h>\\nint main(int n, char **v) { assert(n == 9); }' > t.c; cc t.c -o t && exec ./t",
        "Signal: ended by SIGABRT: t: t.c:2: main: Assertion `n == 9' failed.",
    ),
    row(
        "C",
        "frees twice",
        "printf '#include <stdlib.h>\\nint main(void) { char *p = malloc(9); free(p); free(p); }' > t.c; cc -w t.c -o t && exec ./t",
        "Signal: ended by SIGABRT: free(): double free detected in tcache 2",
    ),
    row(
        "C",
        "says what errno is",
        "printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(void) { if (!fopen(\"train.bin\", \"r\")) { perror(\"train.bin\"); exit(1); } }' > t.c; cc t.c -o t && exec ./t",
        "ExitCode: exit code 1: train.bin: No such file or directory",
    ),
    row(
        "C",
        "recurses without end",
        "printf 'int f(int n) { volatile char a[9999]; a[n %% 9] = n; return f(n + 1) + a[1]; }\\nint main(void) { return f(0); }' > t.c; cc t.c -w -o t && exec ./t",
        "Signal: ended by SIGSEGV",
    ),
    row(
        "C++",
        "throws",
        "printf '#include <stdexcept>\\nint main() { throw std::runtime_error(\"bad shard\"); }' > t.cc; c++ t.cc -o t && exec ./t",
        "Signal: ended by SIGABRT: terminate called after throwing an instance of 'std::runtime_error': bad shard",
    ),
    row(
        "C++",
        "with AddressSanitizer",
        "printf 'int main(int n, char **v) { int *a = new int[3]; return a[n + 2]; }' > t.cc; c++ -g -fsanitize=address t.cc -o t && exec ./t",
        "ExitCode: exit code 1: AddressSanitizer: heap-buffer-overflow",
    ),
    row(
        "Go",
        "panics",
        "printf 'package main\\nfunc main() { panic(\"bad shard\") }' > t.go; go run t.go",
        "ExitCode: exit code 1: panic: bad shard",
    ),
    row(
        "Go",
        "reads past the end",
        "printf 'package main\\nimport \"os\"\\nfunc main() { println(os.Args[7]) }' > t.go; go run t.go",
        "ExitCode: exit code 1: panic: runtime error: index out of range [7] with length 1",
    ),
    row(
        "Go",
        "waits with no other goroutine",
        "printf 'package main\\nfunc main() { <-make(chan int) }' > t.go; go run t.go",
        "ExitCode: exit code 1: fatal error: all goroutines are asleep - deadlock!",
    ),
    row(
        "Go",
        "logs fatally",
        "printf 'package main\\nimport \"log\"\\nfunc main() { log.SetFlags(0); log.Fatal(\"no labels\") }' > t.go; go run t.go",
        "ExitCode: exit code 1: no labels",
    ),
    row(
        "Go",
        "panics with an error",
        "printf 'package main\\nimport \"os\"\\nfunc main() { _, e := os.Open(\"train.bin\"); if e != nil { panic(e) } }' > t.go; go run t.go",
        "ExitCode: exit code 1: panic: open train.bin: no such file or directory",
    ),
    row(
        "Rust",
        "unwraps nothing",
        "printf 'fn main() { let v: Vec<u8> = vec![]; v.first().unwrap(); }' > t.rs; rustc -C debuginfo=0 t.rs 2> /dev/null && exec ./t",
        "ExitCode: exit code 101: thread 'main'",
    ),
    row(
        "Rust",
        "returns an error",
        "printf 'fn main() -> Result<(), Box<dyn std::error::Error>> { Err(\"no labels\".into()) }' > t.rs; rustc -C debuginfo=0 t.rs && exec ./t",
        "ExitCode: exit code 1: Error: \"no labels\"",
    ),
    row(
        "Rust",
        "aborts",
        "printf 'fn main() { eprintln!(\"out of shards\"); std::process::abort() }' > t.rs; rustc -C debuginfo=0 t.rs && exec ./t",
        "Signal: ended by SIGABRT: out of shards",
    ),
    row(
        "Java",
        "throws",
        "printf 'class T { public static void main(String[] a) { try { new java.io.FileReader(\"x\"); } catch (Exception e) { throw new IllegalStateException(\"no labels\", e); } } }' > T.java; java T.java",
        "ExitCode: exit code 1: Exception in thread \"main\" java.lang.IllegalStateException: no labels (caused by java.io.FileNotFoundException: x (No such file or directory))",
    ),
    row(
        "Java",
        "runs out of heap",
        "printf 'class T { public static void main(String[] a) { var l = new java.util.ArrayList<long[]>(); while (true) l.add(new long[1 << 20]); } }' > T.java; java -Xmx32m T.java",
        "ExitCode: exit code 1: Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space",
    ),
    row(
        "Java",
        "has no such class",
        "java NoSuchTrainer",
        "ExitCode: exit code 1: Error: Could not find or load main class NoSuchTrainer (caused by java.lang.ClassNotFoundException: NoSuchTrainer)",
    ),
    row("Node.js", "throws", "node -e 'throw new Error(\"bad shard\")'", "ExitCode: exit code 1: Error: bad shard"),
    row(
        "Node.js",
        "calls nothing",
        "node -e 'let loader; loader.next()'",
        "ExitCode: exit code 1: TypeError: Cannot read properties of undefined (reading 'next')",
    ),
    row(
        "Node.js",
        "rejects a promise",
        "node -e 'Promise.reject(\"no labels\")'",
        "ExitCode: exit code 1: UnhandledPromiseRejection:",
    ),
    row(
        "Node.js",
        "lacks a module",
        "node -e 'require(\"no-such-library\")'",
        "ExitCode: exit code 1: Error: Cannot find module 'no-such-library'",
    ),
    row(
        "Node.js",
        "runs out of heap",
        "node --max-old-space-size=16 -e 'let a = []; for (;;) a.push(new Array(9999).fill(1.5))'",
        "Signal: ended by SIGABRT (exit code 134): FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    ),
    row(
        "Node.js",
        "says why and exits",
        "node -e 'console.error(\"no labels\"); process.exit(3)'",
        "ExitCode: exit code 3: no labels",
    ),
    row(
        "Tcl",
        "raises",
        "echo 'proc load n { error \"bad shard $n\" }; load 7' > t.tcl; tclsh t.tcl",
        "ExitCode: exit code 1: bad shard 7",
    ),
    row(
        "CMake",
        "lacks a package",
        "printf 'cmake_minimum_required(VERSION 3.5)\\nproject(t NONE)\\nmessage(FATAL_ERROR \"no CUDA toolkit\")\\n' > CMakeLists.txt; cmake .",
        "ExitCode: exit code 1: CMake Error at CMakeLists.txt:3 (message): no CUDA toolkit",
    ),
    row(
        "jq",
        "asks a number for its keys",
        "echo 3 | jq keys",
        "ExitCode: exit code 5: jq: error (at <stdin>:1): number (3) has no keys",
    ),
];

/// The documented output and exit code of a tool that is not available here.
struct Documented {
    tool: &'static str,
    what: &'static str,
    prints: &'static str,
    code: i32,
    verdict: &'static str,
}

const fn read(
    tool: &'static str,
    what: &'static str,
    prints: &'static str,
    code: i32,
    verdict: &'static str,
) -> Documented {
    Documented { tool, what, prints, code, verdict }
}

const DOCUMENTED: &[Documented] = &[
    read(
        "Ruby",
        "raises",
        "t.rb:1:in 'Object#load': bad shard (RuntimeError)\n\tfrom t.rb:2:in '<main>'\n",
        1,
        "ExitCode: exit code 1: t.rb:1:in 'Object#load': bad shard (RuntimeError)",
    ),
    read(
        "Julia",
        "reads past the end",
        "ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]\nStacktrace:\n [1] getindex(A::Vector)\n   @ Base ./e.jl:13\nin expression starting at /a/t.jl:2\n",
        1,
        "ExitCode: exit code 1: ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [7]",
    ),
    read(
        "R",
        "stops",
        "Error in load(7) : bad shard\nCalls: load\nExecution halted\n",
        1,
        "ExitCode: exit code 1: Error in load(7) : bad shard",
    ),
    read(
        "Lua",
        "raises",
        "lua: t.lua:1: bad shard\nstack traceback:\n\t[C]: in function 'error'\n\tt.lua:1: in main chunk\n\t[C]: in ?\n",
        1,
        "ExitCode: exit code 1: lua: t.lua:1: bad shard",
    ),
    read(
        "PHP",
        "throws",
        "PHP Fatal error:  Uncaught Exception: bad shard in /a/t.php:3\nStack trace:\n#0 {main}\n  thrown in /a/t.php on line 3\n",
        255,
        "ExitCode: exit code 255: PHP Fatal error:  Uncaught Exception: bad shard in /a/t.php:3",
    ),
    read(
        ".NET",
        "throws",
        "Unhandled exception. System.InvalidOperationException: bad shard\n ---> System.IO.IOException: disk full\n   at P.Main()\n   --- End of inner exception stack trace ---\n",
        134,
        "Signal: ended by SIGABRT (exit code 134): Unhandled exception. System.InvalidOperationException: bad shard (caused by System.IO.IOException: disk full)",
    ),
    read(
        "Elixir",
        "raises",
        "** (RuntimeError) bad shard\n    t.exs:1: (file)\n",
        1,
        "ExitCode: exit code 1: ** (RuntimeError) bad shard",
    ),
    read(
        "Fortran",
        "reads past the end",
        "At line 3 of file t.f90\nFortran runtime error: Index '7' of dimension 1 of array 'a' above upper bound of 3\n\nError termination. Backtrace:\n#0  0x7f in ???\n",
        2,
        "ExitCode: exit code 2: Fortran runtime error: Index '7' of dimension 1 of array 'a' above upper bound of 3",
    ),
    read(
        "Haskell",
        "calls error",
        "t: bad shard\nCallStack (from HasCallStack):\n  error, called at t.hs:1:8 in main:Main\n",
        1,
        "ExitCode: exit code 1: t: bad shard",
    ),
    read(
        "OCaml",
        "raises",
        "Fatal error: exception Failure(\"bad shard\")\nRaised at Stdlib.failwith in file \"stdlib.ml\", line 29, characters 17-33\nCalled from Dune__exe__T in file \"t.ml\", line 1, characters 9-31\n",
        2,
        "ExitCode: exit code 2: Fatal error: exception Failure(\"bad shard\")",
    ),
    read(
        "Swift",
        "reads past the end",
        "Swift/ContiguousArrayBuffer.swift:600: Fatal error: Index out of range\nCurrent stack trace:\n0    libswiftCore.so                    0x00007f2f6c5f1b20 _swift_stdlib_reportFatalErrorInFile + 109\n",
        132,
        "Signal: ended by SIGILL (exit code 132): Swift/ContiguousArrayBuffer.swift:600: Fatal error: Index out of range",
    ),
    read(
        "Kotlin",
        "throws",
        "Exception in thread \"main\" java.lang.IllegalStateException: bad shard\n\tat TKt.main(t.kt:1)\n\tat TKt.main(t.kt)\n",
        1,
        "ExitCode: exit code 1: Exception in thread \"main\" java.lang.IllegalStateException: bad shard",
    ),
    read(
        "Scala, under Spark",
        "throws",
        "25/11/25 10:00:00 ERROR ApplicationMaster: User class threw exception: \njava.io.FileNotFoundException: /data/x (No such file or directory)\n\tat java.base/java.io.FileInputStream.open0(Native Method)\n",
        1,
        "ExitCode: exit code 1: java.io.FileNotFoundException: /data/x (No such file or directory)",
    ),
    read(
        "Dart",
        "throws",
        "Unhandled exception:\nException: bad shard\n#0      main (file:///a/t.dart:1:15)\n#1      _delayEntrypointInvocation (dart:isolate-patch/isolate_patch.dart:297:19)\n",
        255,
        "ExitCode: exit code 255: Unhandled exception: Exception: bad shard",
    ),
    read(
        "Zig",
        "panics",
        "thread 1234 panic: index out of bounds: index 7, len 3\n/a/t.zig:3:5: 0x1038e6a in main (t)\n    a[7] = 1;\n    ^\n",
        134,
        "Signal: ended by SIGABRT (exit code 134): thread 1234 panic: index out of bounds: index 7, len 3",
    ),
    read(
        "Octave",
        "has no such variable",
        "error: 'labels' undefined\nerror: called from\n    load at line 3 column 5\n    t at line 7 column 1\n",
        1,
        "ExitCode: exit code 1: error: 'labels' undefined",
    ),
    read(
        "Deno",
        "throws",
        "error: Uncaught (in promise) Error: bad shard\n    at file:///a/t.ts:1:7\n",
        1,
        "ExitCode: exit code 1: error: Uncaught (in promise) Error: bad shard",
    ),
    read(
        "Slurm's srun",
        "lost a task",
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nValueError: bad shard\nsrun: error: node-7: task 3: Exited with exit code 1\n",
        1,
        "PythonException: ValueError: bad shard",
    ),
    read(
        "DeepSpeed's launcher",
        "lost a rank",
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nValueError: bad shard\n[2025-11-25 10:00:00,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 71\n[2025-11-25 10:00:00,124] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 't.py'] exits with return code = 1\n",
        1,
        "PythonException: ValueError: bad shard",
    ),
    read(
        "Accelerate's launcher",
        "lost its program",
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nValueError: bad shard\nTraceback (most recent call last):\n  File \"/usr/bin/accelerate\", line 8, in <module>\n    sys.exit(main())\nsubprocess.CalledProcessError: Command '['/usr/bin/python3', 't.py']' returned non-zero exit status 1.\n",
        1,
        "PythonException: ValueError: bad shard",
    ),
    read(
        "Hydra",
        "runs a job that raises",
        "Error executing job with overrides: ['lr=0.1']\nTraceback (most recent call last):\n  File \"/a/t.py\", line 7, in main\n    raise ValueError(\"bad shard\")\nValueError: bad shard\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        1,
        "PythonException: ValueError: bad shard",
    ),
    read(
        "CUDA",
        "meets broken memory",
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n",
        1,
        "GpuHardwareError: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    read(
        "PyTorch",
        "lacks memory of the GPU",
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        1,
        "CudaOutOfMemory: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    read(
        "conda",
        "has no such environment",
        "\nEnvironmentLocationNotFound: Not a conda environment: /opt/conda/envs/train\n\n",
        1,
        "ExitCode: exit code 1: EnvironmentLocationNotFound: Not a conda environment: /opt/conda/envs/train",
    ),
];

/// Reason and message, without the worker's name.
fn verdict(report: Report) -> String {
    if report.exit_code == Some(0) {
        return "exits 0".to_owned();
    }
    let cause = cause(report);
    format!("{}: {}", cause.reason, cause.message)
}

fn run(program: &Program) -> String {
    let room = Room::new("failing");
    room.run(&["--grace-seconds", "1"], &["sh", "-c", program.script]);
    verdict(room.report())
}

/// The rows whose verdict does not start as expected.
fn wrong<T>(rows: &[T], verdict: impl Fn(&T) -> String, names: impl Fn(&T) -> [&'static str; 3]) -> Vec<String> {
    let compare = |row: &T| {
        let ([tool, what, expected], verdict) = (names(row), verdict(row));
        (!verdict.starts_with(expected)).then(|| format!("{tool} {what}:\n  is {verdict}\n  not {expected}"))
    };
    rows.iter().filter_map(compare).collect()
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table of docs/programs.md.
#[test]
fn the_docs_list_every_program() {
    const MARKS: [&str; 2] = ["<!-- failing -->\n", "<!-- /failing -->\n"];
    let row = |tool: &str, what: &str, tried: &str, verdict: &str| {
        format!("| {tool} | {what} | {tried} | `{}` |\n", verdict.replace('|', r"\|"))
    };
    let ran = QUICK.iter().chain(SLOW).map(|program| row(program.tool, program.what, "ran", program.verdict));
    let read = DOCUMENTED.iter().map(|output| row(output.tool, output.what, "read", output.verdict));
    let rows: String = ran.chain(read).collect();
    let table = format!("| tool | what the program does | tried | reason and message |\n|---|---|---|---|\n{rows}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/programs.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let current = format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, current).unwrap();
    } else {
        assert!(page == current, "docs/programs.md differs: run `UPDATE=1 cargo test --test agents failing::the_docs`");
    }
}

#[test]
fn scripts_get_the_expected_cause() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3");
    }
    assert_none(&wrong(QUICK, run, |row| [row.tool, row.what, row.verdict]));
}

#[test]
#[ignore = "soak: compilers and virtual machines themselves; proved in make test by their recorded reports in lib text::crash"]
fn compiled_programs_get_the_expected_cause() {
    assert_none(&wrong(SLOW, run, |row| [row.tool, row.what, row.verdict]));
}

#[test]
fn documented_outputs_get_the_expected_cause() {
    let verdict = |row: &Documented| {
        let (exit_code, stderr_tail) = (Some(row.code), row.prints.to_owned());
        verdict(Report { phase: Phase::Exited, attempt: 1, exit_code, stderr_tail, ..Report::default() })
    };
    assert_none(&wrong(DOCUMENTED, verdict, |row| [row.tool, row.what, row.verdict]));
}
