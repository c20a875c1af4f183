//! Why a worker's program failed, according to its agent's report.

use super::facts::{Container, WorkerFacts};
use super::finding::Finding;
use super::{ending, memory};
use jiff::{SignedDuration, Timestamp};
use protocol::hang::Hang;
use protocol::reason::Reason;
use protocol::report::{Phase, Report};
use protocol::stacks::StackLocation;
use regex::Regex;
use std::sync::LazyLock;
use text::error_pattern::{ErrorMatch, ErrorPattern, words};
use text::exception::{Exception, ExceptionKind, sort};
use text::mpi;
use text::origin::{FailureOrigin, origin_of};
use text::signal::{SIGABRT, SIGTERM};
use text::split_rank;
use text::stderr::{code_of_paddle, exception, first_rank};

/// The strongest evidence in the agent's report. `progress` is the time of the latest progress report of any worker.
pub fn finding(worker: &WorkerFacts<'_>, progress: Option<Timestamp>) -> Option<Finding> {
    let Container::Terminated { exit_code, reason, report, .. } = worker.training else { return None };
    let report = report.as_deref();
    let code = report.and_then(|report| report.exit_code).unwrap_or(*exit_code);
    let finding = if reason == "OOMKilled" { memory::finding(report) } else { reported(worker, report?, progress)? };
    Some(Finding { exit_code: Some(code), ..finding })
}

fn reported(worker: &WorkerFacts<'_>, report: &Report, progress: Option<Timestamp>) -> Option<Finding> {
    let by_line = report.error_patterns.iter().find(|known| Some(known.kind) == report.ended_for);
    if let Some(lost) = by_line.filter(|known| known.kind == ErrorPattern::LostDaemon) {
        let what = format!("mpirun has lost another worker and exited 0 all the same: {}", lost.text);
        let origin = FailureOrigin::Peer;
        return Some(Finding { origin, time: Some(lost.time), ..Finding::why(Reason::ExitCode, what) });
    }
    if let Some(lost) = by_line {
        let what = format!("its loss is NaN or infinite, and failurePolicy.nanPolicy is Fail: {}", lost.text);
        return Some(Finding { time: Some(lost.time), ..Finding::why(Reason::NanLoss, what) });
    }
    let hang = report.hang.as_ref().map(of_hang);
    if report.ended_for == Some(ErrorPattern::Hang) {
        return hang;
    }
    if report.exit_code == Some(0) {
        return hang; // otherwise it was only asked to stop
    }
    if report.ended_by_oom() {
        return Some(memory::finding(Some(report)));
    }
    // This agent was killed with its program, so its report may not cover the program's end.
    if report.phase != Phase::Exited {
        return None;
    }
    // If another worker has made progress, the image has what this worker lacks.
    let is_start = ending::is_start(worker, report) && progress.is_none();
    let raised = report.exception.as_ref();
    let is_end = raised.is_some_and(|raised| is_end(worker, report, raised, progress));
    let exception = raised.filter(|_| is_end).map(|raised| {
        let is_permanent = is_start && raised.thread.is_none() && is_of_start(&raised.class, &raised.message);
        Finding {
            rank: raised.rank,
            time: Some(raised.time),
            permanent: is_permanent && report.own_signal().is_none(),
            ..of_exception(&raised.class, &raised.message, raised.text())
        }
    });
    // For programs whose Python does not report exceptions. Otherwise stderr repeats the reported exception, and this
    // is only its first line.
    let is_news = |line: &&str| raised.is_none_or(|raised| !raised.is_in(line));
    let line = report.last_traceback();
    let line = line.as_deref().filter(is_news).and_then(|line| of_line(line, is_start && !report.python_tells));
    let pattern = |kind| report.last_match(kind).map(of_match);
    let [timeout, error, no_memory, hardware] =
        [ErrorPattern::NcclTimeout, ErrorPattern::NcclError, ErrorPattern::CudaOutOfMemory, ErrorPattern::GpuHardware]
            .map(pattern);
    // A broken GPU causes many failures, but only in code that uses GPUs.
    let hardware = hardware.filter(|_| exception.as_ref().is_none_or(|raised| is_about_gpus(&raised.what)));
    // Native code that fails to allocate aborts. A program that another signal ended has caught the error.
    let no_memory = no_memory.filter(|_| report.own_signal().is_none_or(|signal| signal == SIGABRT));
    // Among findings of the same origin a hardware failure wins, and then the first one in this list.
    let stated = [timeout, exception, hardware, killed_rank(report), line, no_memory, error, hang];
    let stated = stated.into_iter().flatten().min_by_key(|finding| (finding.origin, !finding.is_of_node()))?;
    // When a rank fails, mpirun ends the others and names the rank that failed.
    let rank = stated.rank.or_else(|| mpi::first_process(&report.stderr_tail)?.rank);
    let what = match stated.reason {
        Reason::CudaOutOfMemory => memory::with_gpu(stated.what, stated.time, report),
        _ => stated.what,
    };
    Some(Finding { what, rank, ..stated })
}

/// Whether a message mentions GPUs or a library that computes on them.
fn is_about_gpus(words: &str) -> bool {
    static NAMES: LazyLock<Regex> =
        LazyLock::new(|| text::constant(r"(?i)cuda|cudnn|cublas|nccl|\bgpus?\b|\bhip\b|rocm|\bxla|nvml"));
    NAMES.is_match(words)
}

/// Whether an exception is why the program ended. Either the program ended soon after it, or no worker made progress
/// any more, for example because the others wait for a failed rank that can't end. An exception raised after the
/// request to stop does not count. If a signal ended the program, only an exception of that process itself counts.
fn is_end(worker: &WorkerFacts<'_>, report: &Report, raised: &Exception, progress: Option<Timestamp>) -> bool {
    /// Progress that was under way at the exception may be reported this much later.
    const UNDER_WAY: SignedDuration = SignedDuration::from_secs(30);
    const SECOND: SignedDuration = SignedDuration::from_secs(1);
    let stopped = worker.deletion.filter(|_| report.stopped_by.is_some());
    if stopped.is_some_and(|asked| raised.time.duration_since(asked) >= SECOND)
        || report.stopped_at.is_some_and(|asked| raised.time > asked)
    {
        return false;
    }
    // An exit code alone does not say which process a signal ended.
    if report.signal.is_some() && report.own_signal().is_some() && raised.by_program == Some(false) {
        return false;
    }
    let was_last = || progress.is_some_and(|progress| progress.duration_since(raised.time) <= UNDER_WAY);
    report.last_exception().is_some() || (raised.thread.is_none() && was_last())
}

/// Whether the exception can't occur in a program that has worked before. A missing library may be one of the node's,
/// such as its driver's.
fn is_of_start(class: &str, message: &str) -> bool {
    let may_be_of_node = message.contains("cannot open shared object file");
    !may_be_of_node && matches!(sort(class, message), ExceptionKind::Import | ExceptionKind::Syntax)
}

fn of_exception(class: &str, message: &str, what: String) -> Finding {
    let reason = match sort(class, message) {
        ExceptionKind::CudaOutOfMemory => Reason::CudaOutOfMemory,
        ExceptionKind::GpuHardware => Reason::GpuHardwareError,
        ExceptionKind::NcclTimeout => Reason::NcclTimeout,
        ExceptionKind::NcclError => Reason::NcclError,
        ExceptionKind::NanLoss => Reason::NanLoss,
        ExceptionKind::Import => Reason::ImportError,
        ExceptionKind::Syntax | ExceptionKind::Other => Reason::PythonException,
    };
    Finding { origin: origin_of(&format!("{class}: {message}")), ..Finding::why(reason, what) }
}

fn of_line(line: &str, is_start: bool) -> Option<Finding> {
    let (rank, class, message) = exception(line)?;
    let permanent = is_start && is_of_start(class, message);
    Some(Finding { rank, permanent, ..of_exception(class, message, split_rank(line).1.to_owned()) })
}

fn of_match(found: &ErrorMatch) -> Finding {
    let reason = match found.kind {
        ErrorPattern::NcclTimeout => Reason::NcclTimeout,
        ErrorPattern::CudaOutOfMemory => Reason::CudaOutOfMemory,
        ErrorPattern::GpuHardware => Reason::GpuHardwareError,
        _ => Reason::NcclError,
    };
    let (rank, words) = words(&found.text);
    Finding { origin: origin_of(&found.text), rank, time: Some(found.time), ..Finding::why(reason, words) }
}

/// A rank that waits in a collective may not be to blame, so its hang counts as a failure of the gang.
fn of_hang(hang: &Hang) -> Finding {
    let origin = match hang.place {
        StackLocation::Stopped | StackLocation::Elsewhere => FailureOrigin::Own,
        StackLocation::Collective | StackLocation::Unknown => FailureOrigin::Gang,
    };
    Finding { origin, rank: hang.rank, time: Some(hang.time), ..Finding::why(Reason::Hang, hang.text.clone()) }
}

/// The rank that a signal ended, according to torchrun, mpirun or Paddle's launcher. Libraries use an abort to end a
/// process that complains about others.
fn killed_rank(report: &Report) -> Option<Finding> {
    let tail = &report.stderr_tail;
    let stated = first_rank(tail).or_else(|| code_of_paddle(tail).map(|code| (None, code)));
    let (rank, code) = stated.filter(|(_, code)| *code < 0 && *code != -SIGTERM)?;
    let of_mpi = mpi::first_process(tail);
    let may_be_any = of_mpi.as_ref().is_some_and(|first| first.may_be_any);
    let origin = if code == -SIGABRT || may_be_any { FailureOrigin::Gang } else { FailureOrigin::Own };
    let on_node = of_mpi.and_then(|first| first.node).map(|node| format!(" (on {node})")).unwrap_or_default();
    let how = match may_be_any {
        true => {
            "ended by SIGKILL: by the kernel, mostly for lack of memory, or by mpiexec itself because another process \
                 had failed, of which it tells nothing"
                .to_owned()
        }
        false => ending::ended_by(-code),
    };
    Some(Finding { rank, origin, ..Finding::why(Reason::Signal, how + &on_node) })
}
