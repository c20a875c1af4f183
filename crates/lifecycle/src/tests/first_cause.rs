//! Why a worker failed, and which worker of a gang failed first.

use failure::{Disruption, FailedInit, WaitingState, WorkerFacts, first_cause};
use jiff::Timestamp;
use observe::{Container, ObservedPod};
use protocol::reason::Reason;
use protocol::report::{GpuMemory, LastProgress, LaunchError, LaunchErrorKind, Phase, Report, Unkillable};
use protocol::role::RoleName;
use text::error_pattern::{ErrorMatch, ErrorPattern};
use text::exception::Exception;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn placed(index: u32) -> ObservedPod {
    ObservedPod {
        uid: format!("pod-1-{index}"),
        name: format!("x-training-{index}-abcde"),
        index,
        incarnation: 1,
        created: Some(at(0)),
        node: Some(format!("node-{index}")),
        ..ObservedPod::default()
    }
}

fn running(index: u32) -> ObservedPod {
    ObservedPod { training: Container::Running { since: Some(at(5)) }, ..placed(index) }
}

fn ended(index: u32, exit_code: i32, second: i64) -> ObservedPod {
    ObservedPod {
        ended: Some(false),
        training: Container::Terminated {
            started: Some(at(5)),
            finished: Some(at(second)),
            exit_code,
            reason: "Error".into(),
            report: None,
            message: None,
        },
        ..placed(index)
    }
}

/// A worker whose agent has reported the end of its program: at this millisecond after second 20, with this on stderr.
pub(crate) fn failed_worker(index: u32, millis: i64, stderr: &str) -> ObservedPod {
    let finished = Timestamp::from_millisecond(at(20).as_millisecond() + millis).unwrap();
    let report = Report {
        version: 1,
        phase: Phase::Exited,
        exit_code: Some(1),
        finished_at: Some(finished),
        stderr_tail: stderr.into(),
        ..Report::default()
    };
    let mut pod = ended(index, 1, finished.as_second() - at(0).as_second());
    if let Container::Terminated { report: of_pod, .. } = &mut pod.training {
        *of_pod = Some(Box::new(report));
    }
    pod
}

/// The worker was asked to stop before its program ended, at this second.
pub(crate) fn stopped(mut pod: ObservedPod, second: i64) -> ObservedPod {
    if let Container::Terminated { report: Some(report), .. } = &mut pod.training {
        report.stopped_by = Some(15);
    }
    ObservedPod { deletion: Some(at(second)), ..pod }
}

pub(crate) const LOST: &str = "\
[rank0]: Traceback (most recent call last):
[rank0]:   File \"t.py\", line 1
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1
";
pub(crate) const BAD: &str = "\
[rank1]: Traceback (most recent call last):
[rank1]:   File \"t.py\", line 1
[rank1]: ValueError: label 11
";
/// torchrun's closing message, for rank 3 and this exit code.
fn torchrun(exit_code: i32) -> String {
    format!(
        "E0101 10:00:00.000000 7 torch/distributed/elastic/api.py:1] failed (exitcode: {exit_code}) local_rank: 1 (pid: 21) of binary: python\n\
         Traceback (most recent call last):\n  File \"torchrun\"\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
         ============\nt.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : x\n\
         \x20 rank      : 3 (local_rank: 1)\n  exitcode  : {exit_code} (pid: 21)\n============\n"
    )
}

/// The message of Paddle's launcher for a process that ended with this code. The output of that process went to stdout.
fn paddle(code: i32) -> String {
    format!(
        "LAUNCH INFO 2026-11-23 08:27:00,978 Pod failed\nLAUNCH ERROR 2026-11-23 08:27:00,978 Container failed !!!\n\
         Container rank 0 status failed cmd ['/usr/bin/python3', '-u', 't.py'] code {code} log /w/log/workerlog.0\n\
         LAUNCH INFO 2026-11-23 08:27:00,980 Exit code {code}\n"
    )
}

/// The same pod with its report changed.
fn with_report(mut pod: ObservedPod, change: impl FnOnce(&mut Report)) -> ObservedPod {
    if let Container::Terminated { report: Some(report), exit_code, .. } = &mut pod.training {
        change(report);
        let otherwise = if report.phase == Phase::Exited { 1 } else { 137 };
        *exit_code = report.signal.map_or(otherwise, |signal| 128 + signal);
    }
    pod
}

fn after(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(at(20).as_millisecond() + millis).unwrap()
}

/// The program raised this at that millisecond after second 20.
fn raised(pod: ObservedPod, class: &str, message: &str, millis: i64) -> ObservedPod {
    let exception = Exception {
        class: class.into(),
        message: message.into(),
        file: Some("train.py".into()),
        line: Some(88),
        rank: Some(25),
        time: after(millis),
        ..Exception::default()
    };
    with_report(pod, |report| report.exception = Some(exception))
}

fn said(pod: ObservedPod, kind: ErrorPattern, text: &str, millis: i64) -> ObservedPod {
    let time = after(millis);
    with_report(pod, |report| {
        report.error_patterns.push(ErrorMatch { kind, time, last_time: time, text: text.into(), count: 1 });
    })
}

const WATCHDOG: &str = "[rank3]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)";
const NCCL: &str = "NCCL error in: NCCLUtils.hpp:268, unhandled system error";
const ECC: &str =
    "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported";
const OOM: &str = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation";

/// The message of the first cause among these pods, without the name of the worker.
fn cause(pods: &[ObservedPod]) -> (String, String) {
    let cause = first_cause(pods.iter()).unwrap();
    let (who, what) =
        cause.to_string().split_once("node-").map(|(who, what)| (who.to_owned(), what.to_owned())).unwrap();
    assert!(who.starts_with(&format!("worker {0} (pod x-training-{0}-abcde, ", cause.worker.unwrap())), "{who}");
    (cause.reason.to_string(), what)
}

#[test]
#[expect(clippy::large_stack_arrays, clippy::too_many_lines, reason = "a table")]
fn every_failure_has_a_reason_and_message() {
    let ended = |stderr: &str| failed_worker(1, 900, stderr);
    let plain = || ended("step 3\n");
    let by_signal = |signal| with_report(plain(), |report| (report.exit_code, report.signal) = (None, Some(signal)));
    let unstarted = |kind, message: &str| {
        let error = LaunchError { kind, message: message.into() };
        with_report(ended(""), |report| (report.exit_code, report.error) = (None, Some(error)))
    };
    let exited = |code, stderr: &str| with_report(ended(stderr), |report| report.exit_code = Some(code));
    let with_gpu = |pod| {
        let gib = f64::from(1 << 30);
        let gpu = GpuMemory { index: 3, used: 78.2 * gib, total: 79.6 * gib, time: after(-11_200) };
        with_report(pod, |report| report.gpu_memory = Some(gpu))
    };
    let killed = |phase| with_report(by_signal(9), |report| (report.phase, report.signal) = (phase, None));
    let memory = "killed for using more memory than resources.limits.memory allows; raise it or use less";
    let sigkill = "ended by SIGKILL (sender unknown, usually the kernel's OOM killer): raise resources.limits.memory, or \
                   use less memory";
    let nan = "its loss is NaN or infinite, and failurePolicy.nanPolicy is Fail: Epoch 2/9 loss: nan";
    for (pod, reason, words) in [
        // Python exceptions, which are reported by Python with file and line, or else read from stderr.
        (
            raised(plain(), "ValueError", "bad\nshape", 800),
            "PythonException",
            "1), rank 25: ValueError: bad at train.py:88",
        ),
        (ended(BAD), "PythonException", "1), rank 1: ValueError: label 11"),
        (ended(&format!("{BAD}{}", torchrun(1))), "PythonException", "1), rank 1: ValueError: label 11"),
        (ended("Error: no such file\n"), "ExitCode", "1): exit code 1: Error: no such file"),
        (ended("ValueError: said, not raised\n"), "ExitCode", "1): exit code 1: ValueError: said, not raised"),
        (
            raised(plain(), "ModuleNotFoundError", "No module named 'x'", 800),
            "ImportError",
            "1), rank 25: ModuleNotFoundError: No module named 'x' at train.py:88",
        ),
        (
            raised(plain(), "SyntaxError", "invalid syntax", 800),
            "PythonException",
            "1), rank 25: SyntaxError: invalid syntax at train.py:88",
        ),
        (
            raised(plain(), "torch.OutOfMemoryError", OOM, 800),
            "CudaOutOfMemory",
            "1), rank 25: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. at train.py:88",
        ),
        (
            raised(plain(), "ValueError", "The loss is NaN.", 800),
            "NaNLoss",
            "1), rank 25: ValueError: The loss is NaN. at train.py:88",
        ),
        (
            raised(plain(), "DistBackendError", NCCL, 800),
            "NcclError",
            "1), rank 25: DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error at train.py:88",
        ),
        // Messages of libraries.
        (
            said(by_signal(6), ErrorPattern::NcclTimeout, WATCHDOG, 800),
            "NcclTimeout",
            "1), rank 3: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        ),
        (
            said(by_signal(6), ErrorPattern::NcclError, NCCL, 800),
            "NcclError",
            "1): NCCL error in: NCCLUtils.hpp:268, unhandled system error",
        ),
        (
            said(by_signal(6), ErrorPattern::CudaOutOfMemory, "CUDA error: out of memory", 800),
            "CudaOutOfMemory",
            "1): CUDA error: out of memory",
        ),
        (
            said(by_signal(11), ErrorPattern::CudaOutOfMemory, "CUDA error: out of memory", 800),
            "Signal",
            "1): ended by SIGSEGV: step 3",
        ),
        (
            said(plain(), ErrorPattern::CudaOutOfMemory, "caught and told", -600_000),
            "ExitCode",
            "1): exit code 1: step 3",
        ),
        (said(plain(), ErrorPattern::NanLoss, "Epoch 2/9 loss: nan", 800), "ExitCode", "1): exit code 1: step 3"),
        (
            with_report(said(by_signal(15), ErrorPattern::NanLoss, "Epoch 2/9 loss: nan", 800), |r| {
                r.ended_for = Some(ErrorPattern::NanLoss);
            }),
            "NaNLoss",
            &format!("1): {nan}"),
        ),
        // An exception raised long before the end is no cause: it was caught, or the thread was not needed.
        (raised(plain(), "KeyError", "'x'", -600_000), "ExitCode", "1): exit code 1: step 3"),
        (
            raised(ended("Traceback (most recent call last):\n  x\nKeyError: 'x'\n"), "KeyError", "'x'", -600_000),
            "ExitCode",
            "1): exit code 1: KeyError: 'x'",
        ),
        // Memory of the container.
        (with_report(plain(), |r| r.oom_kills = 1), "OOMKilled", &format!("1): {memory}")),
        (
            with_report(raised(plain(), "RuntimeError", "DataLoader worker (pid 9) is killed", 800), |r| {
                r.oom_kills = 1;
            }),
            "OOMKilled",
            &format!("1): {memory}"),
        ),
        (
            with_report(plain(), |r| (r.oom_kills, r.oom_time) = (1, Some(after(-600_000)))),
            "ExitCode",
            "1): exit code 1: step 3",
        ),
        // Signals to the program, to a rank, or to all processes including the agent.
        (by_signal(11), "Signal", "1): ended by SIGSEGV: step 3"),
        (by_signal(9), "Signal", &format!("1): {sigkill}")),
        (ended(&torchrun(-11)), "Signal", "1), rank 3: ended by SIGSEGV"),
        (ended(&format!("{LOST}{}", torchrun(-11))), "Signal", "1), rank 3: ended by SIGSEGV"),
        (ended(&format!("{LOST}{}", torchrun(-6))), "Signal", "1), rank 3: ended by SIGABRT"),
        (ended(&paddle(-11)), "Signal", "1): ended by SIGSEGV"),
        (killed(Phase::Running), "Signal", &format!("1): {sigkill}")),
        (raised(killed(Phase::Running), "KeyError", "'x'", 800), "Signal", &format!("1): {sigkill}")),
        (
            with_report(plain(), |r| (r.exit_code, r.stopped_by) = (Some(0), Some(15))),
            "Signal",
            "1): asked to stop by SIGTERM, which Kubernetes did not send (exit code 0)",
        ),
        // A shell reports the signal that ended its program by its exit code.
        (exited(139, "step 3\n"), "Signal", "1): ended by SIGSEGV (exit code 139): step 3"),
        (
            exited(134, "free(): invalid pointer\nAborted (core dumped)\n"),
            "Signal",
            "1): ended by SIGABRT (exit code 134): free(): invalid pointer",
        ),
        (exited(137, "step 3\n"), "Signal", &format!("1): {sigkill} (exit code 137)")),
        (exited(139, BAD), "Signal", "1): ended by SIGSEGV (exit code 139): [rank1]: ValueError: label 11"),
        (exited(128, "step 3\n"), "ExitCode", "1): exit code 128: step 3"),
        (exited(129, "step 3\n"), "ExitCode", "1): exit code 129: step 3"),
        (exited(130, "step 3\n"), "ExitCode", "1): exit code 130: step 3"),
        (exited(160, "step 3\n"), "ExitCode", "1): exit code 160: step 3"),
        (exited(255, "step 3\n"), "ExitCode", "1): exit code 255: step 3"),
        // Runtimes other than Python.
        (
            exited(101, "thread 'main' panicked at src/main.rs:4:5:\nno labels\nnote: run with `RUST_BACKTRACE=1`\n"),
            "ExitCode",
            "1): exit code 101: thread 'main' panicked at src/main.rs:4:5: no labels",
        ),
        (
            with_report(
                ended("terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad file\n"),
                |r| (r.exit_code, r.signal) = (None, Some(6)),
            ),
            "Signal",
            "1): ended by SIGABRT: terminate called after throwing an instance of 'std::runtime_error': bad file",
        ),
        // An exception that was caught and logged before is not the cause that the program itself gives for its end.
        (
            exited(
                9,
                "ERROR:root:no cache\nTraceback (most recent call last):\n  x\nKeyError: 'x'\nFATAL: the data is damaged\n",
            ),
            "ExitCode",
            "1): exit code 9: FATAL: the data is damaged",
        ),
        // Hardware.
        (
            raised(plain(), "torch.AcceleratorError", ECC, 800),
            "GpuHardwareError",
            "1), rank 25: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered at train.py:88",
        ),
        (
            said(by_signal(6), ErrorPattern::GpuHardware, "CUDA error: uncorrectable ECC error encountered", 800),
            "GpuHardwareError",
            "1): CUDA error: uncorrectable ECC error encountered",
        ),
        (
            said(
                raised(plain(), "RuntimeError", "CUDA error: unspecified launch failure", 800),
                ErrorPattern::GpuHardware,
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.",
                700,
            ),
            "GpuHardwareError",
            "1): NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.",
        ),
        (
            said(
                raised(plain(), "ValueError", "bad", 800),
                ErrorPattern::GpuHardware,
                "NVRM: Xid (PCI:0000:3b:00): 79,",
                700,
            ),
            "PythonException",
            "1), rank 25: ValueError: bad at train.py:88",
        ),
        (
            said(plain(), ErrorPattern::GpuHardware, "CUDA error: uncorrectable ECC error encountered", -600_000),
            "ExitCode",
            "1): exit code 1: step 3",
        ),
        (
            raised(plain(), "RuntimeError", "CUDA error: device-side assert triggered", 800),
            "PythonException",
            "1), rank 25: RuntimeError: CUDA error: device-side assert triggered at train.py:88",
        ),
        // Memory of the GPU, which PyTorch reports by itself and CUDA does not.
        (
            with_gpu(raised(plain(), "RuntimeError", "CUDA error: out of memory", 800)),
            "CudaOutOfMemory",
            "1), rank 25: RuntimeError: CUDA error: out of memory at train.py:88 (GPU 3: 78.2 of 79.6 GiB in use 12 s before)",
        ),
        (
            with_gpu(raised(
                plain(),
                "torch.OutOfMemoryError",
                "CUDA out of memory. GPU 0 has 79 GiB of which 1 GiB is free.",
                800,
            )),
            "CudaOutOfMemory",
            "1), rank 25: torch.OutOfMemoryError: CUDA out of memory. GPU 0 has 79 GiB of which 1 GiB is free. at train.py:88",
        ),
        (
            with_gpu(raised(plain(), "ValueError", "bad", 800)),
            "PythonException",
            "1), rank 25: ValueError: bad at train.py:88",
        ),
        // Exit codes.
        (plain(), "ExitCode", "1): exit code 1: step 3"),
        (ended(&torchrun(42)), "ExitCode", "1), rank 3: exit code 42"),
        // Programs that never ran.
        (unstarted(LaunchErrorKind::CommandNotFound, "no train"), "CommandNotFound", "1): no train"),
        (unstarted(LaunchErrorKind::LaunchFailed, "no memory"), "CommandNotFound", "1): no memory"),
        (
            unstarted(LaunchErrorKind::InvalidOption, "--progress-pattern \"(\" is no regular expression"),
            "InvalidSpec",
            "1): monitoring.progress.patterns: \"(\" is no regular expression",
        ),
    ] {
        assert_eq!(cause(&[pod]), (reason.to_owned(), words.to_owned()));
    }
}

#[test]
fn container_status_gives_cause_without_agent_report() {
    let ended_as = |code: i32, reason: &str, words: &str| {
        let mut pod = ended(1, code, 20);
        if let Container::Terminated { reason: of_pod, message, .. } = &mut pod.training {
            (*of_pod, *message) = (reason.into(), Some(words.to_owned()).filter(|words| !words.is_empty()));
        }
        cause(&[pod])
    };
    let reported = |reason: &str, words: &str| (reason.to_owned(), format!("1): {words}"));
    assert_eq!(ended_as(137, "OOMKilled", "").0, "OOMKilled");
    assert_eq!(
        ended_as(128, "StartError", "no such dir"),
        reported("ContainerConfig", "its container can't be started: no such dir")
    );
    assert_eq!(
        ended_as(137, "ContainerStatusUnknown", "could not be located"),
        reported("ContainerStatusUnknown", "could not be located")
    );
    assert!(ended_as(137, "Error", "").1.starts_with("1): ended by SIGKILL (sender unknown"));
    assert_eq!(ended_as(2, "Error", "panic: x"), reported("ExitCode", "exit code 2: panic: x"));
}

#[test]
fn permanent_failures_are_recognized() {
    let usage = "usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n";
    let plain = || failed_worker(1, 900, "");
    let exit_2 = |stderr: &str| with_report(failed_worker(1, 900, stderr), |report| report.exit_code = Some(2));
    let unstarted =
        |kind| with_report(plain(), |report| report.error = Some(LaunchError { kind, message: "no".into() }));
    for (pod, permanent) in [
        (raised(plain(), "ModuleNotFoundError", "No module named 'x'", 800), true),
        (raised(plain(), "SyntaxError", "invalid syntax", 800), true),
        (raised(plain(), "ValueError", "bad", 800), false),
        (exit_2(usage), true),
        (failed_worker(1, 900, &format!("{usage}{}", torchrun(2))), true),
        (exit_2("Usage: t [OPTIONS]\n\nError: No such option: --x\n"), true),
        (failed_worker(1, 900, usage), false),
        (exit_2("no such file\n"), false),
        (unstarted(LaunchErrorKind::PermissionDenied), true),
        (unstarted(LaunchErrorKind::InvalidOption), true),
        (unstarted(LaunchErrorKind::LaunchFailed), false),
    ] {
        let reported = first_cause([&pod]).unwrap();
        assert_eq!(reported.permanent, permanent, "{}", reported.message);
        // In a program that has worked before it has another cause, such as a file server.
        let always =
            matches!(&pod.training, Container::Terminated { report: Some(report), .. } if report.error.is_some());
        let later = first_cause([&ObservedPod { incarnation: 2, ..pod.clone() }]).unwrap();
        let trained = with_report(pod.clone(), |report| report.progress = Some(LastProgress::default()));
        let trained = first_cause([&trained]).unwrap();
        assert_eq!(
            (later.permanent, trained.permanent),
            (permanent && always, permanent && always),
            "{}",
            reported.message
        );
    }
}

/// Which worker of a gang is named, and why.
#[test]
fn first_cause_is_preferred_over_its_echoes() {
    let root = |pods: &[ObservedPod]| {
        let cause = first_cause(pods.iter()).unwrap();
        (cause.worker.unwrap(), cause.reason.to_string())
    };
    let is = |worker: u32, reason: &str| (worker, reason.to_owned());
    let bad = |index, millis| raised(failed_worker(index, millis, ""), "ValueError", "bad", millis - 100);
    let timeout =
        |index, millis| said(failed_worker(index, millis, ""), ErrorPattern::NcclTimeout, WATCHDOG, millis - 100);
    let nccl = |index, millis| raised(failed_worker(index, millis, ""), "DistBackendError", NCCL, millis - 100);
    let by_signal =
        |index, millis, signal| with_report(failed_worker(index, millis, ""), |report| report.signal = Some(signal));

    assert_eq!(
        root(&[failed_worker(0, 300, LOST), failed_worker(1, 900, BAD)]),
        is(1, "PythonException"),
        "though it ended later"
    );
    assert_eq!(
        root(&[failed_worker(0, 300, &paddle(-6)), bad(1, 900)]),
        is(1, "PythonException"),
        "gloo aborts the others"
    );
    assert_eq!(
        root(&[failed_worker(0, 800, BAD), failed_worker(1, 300, BAD)]),
        is(1, "PythonException"),
        "the earlier, by milliseconds"
    );
    assert_eq!(
        root(&[failed_worker(0, 300, LOST), failed_worker(1, 200, LOST)]),
        is(1, "PythonException"),
        "the network, for all we know"
    );
    assert_eq!(
        root(&[failed_worker(0, 300, "terminate called: gloo: broken pipe\n"), failed_worker(1, 900, "")]),
        is(1, "ExitCode"),
        "in any language"
    );

    // The Job controller deletes the worker that failed first, because the pod with the echo has ended before.
    assert_eq!(root(&[failed_worker(0, 300, LOST), stopped(failed_worker(1, 900, BAD), 20)]), is(1, "PythonException"));
    assert_eq!(
        root(&[failed_worker(0, 300, LOST), stopped(failed_worker(1, 900, LOST), 20)]),
        is(0, "PythonException")
    );
    assert_eq!(
        root(&[failed_worker(0, 300, LOST), stopped(failed_worker(1, 900, "saving"), 20)]),
        is(0, "PythonException")
    );
    let mut stopping = stopped(bad(1, 1900), 20);
    assert_eq!(
        root(&[failed_worker(0, 300, LOST), stopping.clone()]),
        is(0, "PythonException"),
        "raised for it was told to stop"
    );
    stopping = with_report(stopping, |report| report.oom_kills = 1);
    assert_eq!(root(&[failed_worker(0, 300, LOST), stopping]), is(1, "OOMKilled"));
    // mpiexec ends without a message, and stops the process that raised the exception.
    let caught = |millis| with_report(bad(1, millis), |report| report.stopped_by = Some(15));
    assert_eq!(root(&[failed_worker(0, 500, ""), caught(550)]), is(1, "PythonException"));
    assert_eq!(root(&[failed_worker(0, 500, ""), caught(700)]), is(0, "ExitCode"), "raised for it was told to stop");
    assert_eq!(root(&[failed_worker(0, 500, "the licence has expired"), caught(550)]), is(0, "ExitCode"));
    let saving = with_report(failed_worker(1, 550, "saving"), |report| report.stopped_by = Some(15));
    assert_eq!(root(&[failed_worker(0, 500, ""), saving]), is(0, "ExitCode"));
    // Another client deletes the pod, and the other worker loses its peer.
    assert_eq!(root(&[failed_worker(0, 900, LOST), stopped(failed_worker(1, 300, "saving"), 20)]), is(1, "PodDeleted"));
    assert_eq!(root(&[failed_worker(0, 900, LOST), stopped(failed_worker(1, 300, BAD), 20)]), is(1, "PodDeleted"));
    assert_eq!(root(&[timeout(0, 900), stopped(failed_worker(1, 300, "saving"), 20)]), is(1, "PodDeleted"));

    let killed = with_report(failed_worker(0, 300, LOST), |report| report.oom_kills = 1);
    assert_eq!(
        root(&[killed, failed_worker(1, 900, LOST)]),
        is(0, "OOMKilled"),
        "the lost peer was one of its own ranks"
    );

    // A joint operation fails for all of its workers.
    assert_eq!(
        root(&[nccl(0, 300), raised(failed_worker(1, 900, ""), "torch.OutOfMemoryError", OOM, 800)]),
        is(1, "CudaOutOfMemory")
    );
    assert_eq!(root(&[timeout(0, 300), by_signal(1, 900, 11)]), is(1, "Signal"));
    assert_eq!(root(&[failed_worker(0, 200, LOST), timeout(1, 900)]), is(1, "NcclTimeout"), "it lost its peer by that");
    assert_eq!(root(&[nccl(0, 900), timeout(1, 300)]), is(1, "NcclTimeout"), "the network, for all we know");
    assert_eq!(
        root(&[raised(failed_worker(0, 300, ""), "E", "NCCL error: remote process exited", 200), nccl(1, 900)]),
        is(1, "NcclError")
    );

    // An evicted worker breaks the others' collectives.
    let disruption = Disruption { reason: "EvictionByEvictionAPI".into(), message: String::new(), time: Some(at(20)) };
    let evicted = ObservedPod { disruption: Some(Box::new(disruption)), ..running(1) };
    assert_eq!(root(&[nccl(0, -900), evicted]), is(1, "Evicted"));
}

/// A rank fails and can't end, for example because NCCL would wait for the others. Their collectives time out after
/// minutes.
#[test]
fn a_rank_that_fails_and_hangs_is_the_cause() {
    const MINUTES: i64 = 10 * 60_000;
    let timed_out = said(failed_worker(0, MINUTES, ""), ErrorPattern::NcclTimeout, WATCHDOG, MINUTES - 500);
    let hung = stopped(raised(failed_worker(1, MINUTES + 900, ""), "ValueError", "bad", 0), 20 + 600);
    let progress = |millis| LastProgress { time: Some(after(millis)), ..LastProgress::default() };
    let root = |first: &ObservedPod, second: &ObservedPod| {
        let cause = first_cause([first, second]).unwrap();
        (cause.worker.unwrap(), cause.reason.to_string())
    };
    let trained_until = |millis| with_report(timed_out.clone(), |report| report.progress = Some(progress(millis)));
    assert_eq!(root(&trained_until(100), &hung), (1, "PythonException".into()));
    assert_eq!(root(&trained_until(MINUTES / 2), &hung), (0, "NcclTimeout".into()), "the gang went on after it");
    assert_eq!(root(&timed_out, &hung), (0, "NcclTimeout".into()), "nobody knows");
    let thread = with_report(hung.clone(), |report| report.exception.as_mut().unwrap().thread = Some("loader".into()));
    assert_eq!(root(&trained_until(100), &thread), (0, "NcclTimeout".into()));
    // Another client deletes the hung pod.
    let lost = raised(
        failed_worker(0, MINUTES + 1900, ""),
        "RuntimeError",
        "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        MINUTES + 1500,
    );
    let lost = with_report(lost, |report| report.progress = Some(progress(100)));
    assert_eq!(root(&lost, &hung), (1, "PythonException".into()));
}

#[test]
fn gpu_hardware_error_counts_as_disruption() {
    let broken = raised(failed_worker(1, 900, ""), "torch.AcceleratorError", ECC, 800);
    // The others' collectives fail because of it, and one of them reports that sooner.
    let echo = said(failed_worker(0, 300, ""), ErrorPattern::NcclTimeout, WATCHDOG, 200);
    let cause = first_cause([&echo, &broken]).unwrap();
    assert_eq!((cause.reason, cause.node.as_deref()), (Reason::GpuHardwareError, Some("node-1")));
    assert!(cause.disruption && !cause.permanent);
    let own = raised(failed_worker(1, 900, ""), "RuntimeError", "CUDA error: device-side assert triggered", 800);
    assert!(!first_cause([&own]).unwrap().disruption);
}

#[test]
fn library_missing_on_one_node_is_not_permanent() {
    let lacks = |message: &str| raised(failed_worker(1, 900, ""), "ImportError", message, 800);
    let permanent = |pods: &[&ObservedPod]| {
        let cause = first_cause(pods.iter().copied()).unwrap();
        assert_eq!((cause.worker, cause.reason), (Some(1), Reason::ImportError));
        cause.permanent
    };
    let driver = "libcuda.so.1: cannot open shared object file: No such file or directory";
    assert!(!permanent(&[&lacks(driver)]));
    let module = lacks("cannot import name 'x' from 'y'");
    assert!(permanent(&[&module]));
    let other = stopped(failed_worker(0, 950, "step 3\n"), 21);
    assert!(permanent(&[&module, &other]), "nobody has got any further");
    let steps = with_report(other, |report| {
        report.progress = Some(LastProgress { time: Some(after(100)), ..LastProgress::default() });
    });
    assert!(!permanent(&[&module, &steps]));
}

/// A pod that failed for a reason given by its node, and its container.
fn ended_by_node(reason: &str, message: &str, training: Container) -> ObservedPod {
    let words = WaitingState { reason: reason.into(), message: message.into() };
    ObservedPod { ended: Some(false), pod_reason: Some(Box::new(words)), training, ..placed(1) }
}

#[test]
fn caught_exception_is_not_the_cause() {
    const CAUGHT: &str = "ERROR:root:no fast attention\nTraceback (most recent call last):\n  File \"t.py\", line 1\nModuleNotFoundError: No module named 'flash_attn'\n";
    let reports = |pod: ObservedPod| with_report(pod, |report| report.python_tells = true);
    let all = |pod: &ObservedPod| {
        let cause = first_cause([pod]).unwrap();
        (cause.reason.to_string(), cause.permanent, cause.to_string())
    };
    // Observed: a program logs an exception that it caught, and dies of another cause.
    let crashed =
        with_report(failed_worker(1, 900, CAUGHT), |report| (report.exit_code, report.signal) = (None, Some(11)));
    for pod in [crashed.clone(), reports(crashed)] {
        let (reason, permanent, message) = all(&pod);
        assert_eq!((reason.as_str(), permanent), ("Signal", false), "{message}");
    }
    let killed = failed_worker(1, 900, &format!("{CAUGHT}{}", torchrun(-11)));
    assert_eq!(all(&killed).0, "Signal");
    // An error read from stderr is never permanent if Python would have reported it.
    let (reason, permanent, _) = all(&reports(failed_worker(1, 900, CAUGHT)));
    assert_eq!((reason.as_str(), permanent), ("ImportError", false), "it may have ended by sys.exit for that");
    assert!(all(&failed_worker(1, 900, CAUGHT)).1, "its Python does not tell");
    // The exception was raised minutes ago, according to the time of its line.
    for (reports, millis, reason) in [
        (true, -90_000, "ExitCode"),
        (true, -30_000, "ImportError"),
        (false, -90_000, "ImportError"),
        (false, -600_000, "ExitCode"),
    ] {
        let pod = with_report(failed_worker(1, 900, CAUGHT), |report| {
            (report.python_tells, report.line_time) = (reports, Some(after(millis)));
        });
        let reported = all(&pod);
        assert_eq!(reported.0, reason, "{millis}");
        assert!(reason == "ImportError" || reported.2.ends_with(": exit code 1"), "{}", reported.2);
    }
}

#[test]
fn helper_exception_is_not_the_cause_of_death_by_signal() {
    let crashed = || {
        with_report(failed_worker(1, 900, "step 3\n"), |report| (report.exit_code, report.signal) = (None, Some(11)))
    };
    let by = |by_program| {
        let pod = with_report(raised(crashed(), "ModuleNotFoundError", "No module named 'x'", 800), |report| {
            report.exception.as_mut().unwrap().by_program = by_program;
        });
        let cause = first_cause([&pod]).unwrap();
        (cause.reason.to_string(), cause.permanent)
    };
    assert_eq!(by(Some(false)), ("Signal".into(), false));
    assert_eq!(by(Some(true)), ("ImportError".into(), false), "aborted by a library after it had raised");
    // An exception of a thread is not the program's.
    let thread =
        with_report(raised(failed_worker(1, 900, ""), "ModuleNotFoundError", "No module named 'x'", 800), |report| {
            report.exception.as_mut().unwrap().thread = Some("loader".into());
        });
    assert!(!first_cause([&thread]).unwrap().permanent);
}

#[test]
fn pod_rejected_by_node_counts_as_disruption() {
    for (reason, message) in [
        ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to no healthy devices present"),
        ("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000"),
        ("OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
        ("Preempting", "Preempted in order to admit critical pod"),
    ] {
        let cause = first_cause([&ended_by_node(reason, message, Container::Waiting)]).unwrap();
        assert_eq!((cause.reason, cause.disruption), (Reason::NodeRejected, true), "{reason}");
        assert!(
            cause.message.ends_with(&format!("its node would not run it ({reason}: {message})")),
            "{}",
            cause.message
        );
        assert_eq!((cause.node.as_deref(), cause.time), (Some("node-1"), Some(at(0))));
    }
    // A pod that no node would run, a pod that ran already, and reasons of other components with the same name.
    let sysctl = ended_by_node("SysctlForbidden", "forbidden sysctl: kernel.x", Container::Waiting);
    let deadline = ended_by_node("DeadlineExceeded", "Pod was active on the node longer than", Container::Waiting);
    let ran = ObservedPod {
        pod_reason: Some(Box::new(WaitingState { reason: "NodeAffinity".into(), ..WaitingState::default() })),
        ..failed_worker(1, 900, BAD)
    };
    let out_of = ended_by_node("OutOf", "", Container::Waiting);
    let no_word = ObservedPod { pod_reason: None, ..out_of.clone() };
    for (pod, reason) in [
        (sysctl, "SysctlForbidden"),
        (deadline, "DeadlineExceeded"),
        (ran, "PythonException"),
        (out_of, "OutOf"),
        (no_word, "PodFailed"),
    ] {
        let cause = first_cause([&pod]).unwrap();
        assert_eq!((cause.reason.as_str(), cause.disruption), (reason, false));
    }
}

#[test]
fn exceeded_storage_is_a_failure_and_node_pressure_a_disruption() {
    let killed = || stopped(failed_worker(1, 900, "step 3\n"), 20).training;
    for (message, what) in [
        (
            "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Gi\". ",
            "its emptyDir cache holds more than its sizeLimit of 1Gi",
        ),
        (
            "Container training exceeded its local ephemeral storage limit \"2Gi\". ",
            "its container training uses more storage of the node than resources.limits.ephemeral-storage allows, 2Gi",
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1.5Gi. ",
            "it uses more storage of the node than resources.limits.ephemeral-storage of its containers allow, 1.5Gi together",
        ),
    ] {
        // Its peer lost the connection, and ended in the same second.
        let pods = [ended_by_node("Evicted", message, killed()), failed_worker(0, 100, LOST)];
        let cause = first_cause(&pods).unwrap();
        assert_eq!((cause.worker, cause.reason, cause.disruption), (Some(1), Reason::StorageExceeded, false));
        assert!(cause.message.contains(what), "{}", cause.message);
        assert!(!cause.permanent);
    }
    for (message, training) in [
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 2Gi, available: 1Gi. Container training was using 5Gi, request is 0, has larger consumption of ephemeral-storage. ",
            killed(),
        ),
        (
            "The node was low on resource: memory. Container training was using 1Gi, request is 0, has larger consumption of memory. ",
            killed(),
        ),
        ("Pod was rejected: The node had condition: [DiskPressure]. ", Container::Waiting),
        ("A volume named \"Usage of EmptyDir volume\" has the limit 1Gi", killed()),
        ("", killed()),
    ] {
        let cause = first_cause([&ended_by_node("Evicted", message, training)]).unwrap();
        assert_eq!((cause.reason, cause.disruption), (Reason::Evicted, true), "{message}");
    }
}

#[test]
fn failed_init_container_is_named_with_message_and_time() {
    let failed = |exit_code: i32, reason: &str, message: Option<&str>| {
        let init = FailedInit {
            name: "fetch".into(),
            exit_code,
            reason: reason.into(),
            message: message.map(str::to_owned),
            finished: Some(at(30)),
        };
        ObservedPod { ended: Some(false), failed_init: Some(Box::new(init)), ..placed(1) }
    };
    for (pod, what) in [
        (failed(3, "Error", Some("trying\nno such bucket\n")), "failed with exit code 3: no such bucket"),
        (failed(3, "Error", None), "failed with exit code 3"),
        (
            failed(128, "StartError", Some("exec: \"sh\": not found")),
            "failed with exit code 128: exec: \"sh\": not found",
        ),
        (failed(128, "ContainerCannotRun", None), "failed with exit code 128: ContainerCannotRun"),
        (failed(139, "Error", None), "was ended by SIGSEGV"),
        (failed(137, "OOMKilled", None), "was killed for using more memory than its limit allows"),
    ] {
        let cause = first_cause([&pod]).unwrap();
        assert_eq!((&cause.reason, cause.time), (&Reason::InitContainer, Some(at(30))));
        assert_eq!(
            cause.to_string(),
            format!("worker 1 (pod x-training-1-abcde, node node-1): its init container fetch {what}")
        );
    }
    // Its pod was created at second 0, and its peer failed before it.
    let pods = [failed(3, "Error", None), failed_worker(0, 900, BAD)];
    assert_eq!(first_cause(&pods).unwrap().worker, Some(0));
}

#[test]
fn oom_kill_reports_limit_peak_and_rank() {
    use protocol::reason::Reason;
    use protocol::report::Memory;
    let memory = |limit, peak| Some(Memory { limit, peak, shared: None });
    let killed = |stderr: &str, of| {
        with_report(failed_worker(1, 900, stderr), |report| (report.oom_kills, report.memory) = (1, of))
    };
    let mebi = |n: u64| Some(n << 20);
    let words = "killed for using more memory than resources.limits.memory allows";
    for (pod, rank, what) in [
        (
            killed("", memory(mebi(200), mebi(200))),
            None,
            format!("{words} (the limit is 200Mi, the peak was 200Mi); raise it or use less"),
        ),
        (
            killed("", Some(Memory { limit: mebi(200), peak: mebi(200), shared: mebi(150) })),
            None,
            format!("{words} (the limit is 200Mi, the peak was 200Mi, 150Mi is in /dev/shm); raise it or use less"),
        ),
        (
            killed("", Some(Memory { limit: mebi(200), peak: None, shared: mebi(10) })),
            None,
            format!("{words} (the limit is 200Mi); raise it or use less"),
        ),
        (
            killed(&torchrun(-9), memory(mebi(200), None)),
            Some(3),
            format!("{words} (the limit is 200Mi); raise it or use less"),
        ),
        (killed(&torchrun(-11), None), None, format!("{words}; raise it or use less")),
        (
            raised(killed("", None), "RuntimeError", "DataLoader worker (pid 91) is killed by signal: Killed. ", 800),
            Some(25),
            format!("one of its DataLoader workers was {words}; raise it or use less"),
        ),
    ] {
        let cause = first_cause([&pod]).unwrap();
        assert_eq!((&cause.reason, cause.rank), (&Reason::OomKilled, rank));
        assert!(cause.to_string().ends_with(&format!(": {what}")), "{cause}");
    }
}

#[test]
fn connection_error_of_program_itself_is_not_an_echo() {
    let own = |index, millis| {
        raised(
            failed_worker(index, millis, ""),
            "ConnectionResetError",
            "[Errno 104] Connection reset by peer",
            millis - 100,
        )
    };
    let lost = |index, millis| {
        raised(
            failed_worker(index, millis, ""),
            "RuntimeError",
            "[gloo/transport/tcp/pair.cc:534] Connection closed by peer",
            millis - 100,
        )
    };
    assert_eq!(first_cause(&[lost(0, 300), own(1, 900)]).unwrap().worker, Some(1));
}

/// The peer may be named in a later line of the message than the first.
#[test]
fn lost_peer_is_detected_below_first_line() {
    let line =
        "xgboost.core.XGBoostError: [22:34:03] /workspace/src/collective/result.cc:83: [metric.cu:385|22:34:03]:";
    let more = "\n\n- [allreduce.cc:135|22:34:03]: Ring Allreduce failed.\n- [socket.h:79|22:34:03]: Poll error";
    let (class, first) = line.split_once(": ").unwrap();
    let stderr = format!("Traceback (most recent call last):\n  File \"t.py\", line 1\n{line}{more}\n");
    let lost = raised(failed_worker(0, 300, &stderr), class, &format!("{first}{more}"), 200);
    let bad = raised(failed_worker(1, 900, ""), "ValueError", "label 11", 400);
    assert_eq!(first_cause(&[lost, bad]).unwrap().worker, Some(1));
}

/// The agent also looks for the cause, for itself and without any pod.
#[test]
fn first_cause_is_found_without_a_pod_object() {
    let ObservedPod { training, .. } = failed_worker(1, 900, BAD);
    let facts = WorkerFacts {
        role: RoleName::WORKER,
        index: 1,
        pod: "x-training-1-abcde",
        node: Some("node-1"),
        attempt: 1,
        created: None,
        deletion: None,
        gone: false,
        ended: None,
        pod_reason: None,
        disruption: None,
        failed_init: None,
        training: &training,
    };
    let cause = first_cause([facts]).unwrap();
    assert_eq!(
        (cause.pod.as_deref(), cause.rank, cause.reason),
        (Some("x-training-1-abcde"), Some(1), Reason::PythonException)
    );
}

mod cut {
    use super::*;
    use proptest::prelude::*;

    /// The deciding facts of a message that the kubelet has truncated to these bytes.
    fn judged(message: &[u8]) -> Option<(String, Option<i32>, bool)> {
        let mut pod = failed_worker(1, 900, "");
        let Container::Terminated { report, message: of_pod, .. } = &mut pod.training else { unreachable!() };
        let text = String::from_utf8_lossy(message).into_owned();
        *report = Report::parse(&text).map(Box::new);
        *of_pod = report.is_none().then_some(text);
        let cause = first_cause([&pod])?;
        Some((cause.reason.to_string(), cause.rank, cause.permanent))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10))]
        /// A message truncated at any place that has its reason also has its rank. Truncation never denies a retry.
        #[test]
        fn message_truncated_anywhere_keeps_rank_and_allows_retry(words in "(?s).{0,600}", tail in "(?s).{0,3000}", kind in 0..4, trained: bool, reports: bool) {
            let plain = with_report(failed_worker(1, 900, &tail), |report| {
                report.python_tells = reports;
                report.progress = trained.then(|| LastProgress { step: Some(3.0), loss: Some(0.5), time: Some(after(0)), ..LastProgress::default() });
            });
            let pod = match kind {
                0 => raised(plain, "ModuleNotFoundError", &format!("No module named {words}"), 800),
                1 => raised(plain, "torch.OutOfMemoryError", &format!("CUDA out of memory. {words}"), 800),
                2 => said(plain, ErrorPattern::NcclTimeout, WATCHDOG, 800),
                _ => with_report(plain, |report| {
                    report.error = Some(LaunchError { kind: LaunchErrorKind::PermissionDenied, message: words.clone() });
                }),
            };
            let Container::Terminated { report: Some(report), .. } = &pod.training else { unreachable!() };
            let message = report.to_message();
            let whole = judged(message.as_bytes()).unwrap();
            let mut known_from = None;
            for end in 0..=message.len() {
                let cut = judged(&message.as_bytes()[..end]).unwrap();
                if cut.0 == whole.0 {
                    prop_assert_eq!(&cut, &whole, "cut to {} bytes: {}", end, message);
                    known_from = known_from.or(Some(end));
                } else {
                    prop_assert!(!cut.2, "cut to {} bytes: {}", end, message);
                    prop_assert!(known_from.is_none(), "known from {:?} on, but not of {end}: {message}", known_from);
                }
            }
            // In a pod with 24 containers each has that many bytes.
            prop_assert!(known_from.is_some_and(|known| known <= 512), "known from {:?} on: {message}", known_from);
        }
    }
}

/// A process that can't be ended blocks the next attempt in its pod, so it must be reported whatever else failed.
#[test]
fn unkillable_process_takes_precedence_as_cause() {
    let failed = raised(failed_worker(0, 900, ""), "ValueError", "bad shape", 100);
    let left = |pod| {
        with_report(pod, |report| {
            let text = "process 57 (python3, state D) outlived SIGKILL for 120 s".to_owned();
            report.unkillable = Some(Unkillable { time: at(1000), text });
        })
    };
    for stuck in [failed_worker(1, 900, ""), raised(failed_worker(1, 900, ""), "ValueError", "bad shape", 50)] {
        let cause = first_cause([&failed, &left(stuck)]).unwrap();
        assert_eq!((&cause.reason, cause.node.as_deref()), (&Reason::Unkillable, Some("node-1")));
        assert!(cause.disruption && !cause.permanent);
        assert!(cause.to_string().ends_with("node node-1): process 57 (python3, state D) outlived SIGKILL for 120 s"));
    }
}
