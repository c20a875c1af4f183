//! How a kill for lack of memory is reported: the limit, the peak, and whose process was killed.

use super::finding::Finding;
use jiff::Timestamp;
use protocol::reason::Reason;
use protocol::report::{Memory, Report};
use text::signal::SIGKILL;
use text::stderr::first_rank;

/// Describes the kill of a process of this container, with its rank where that is known.
pub fn finding(report: Option<&Report>) -> Finding {
    let (rank, who) = report.map_or((None, ""), victim);
    let memory = report.and_then(|report| report.memory).unwrap_or_default();
    Finding { rank, ..Finding::why(Reason::OomKilled, format!("{who}{}", words(memory))) }
}

/// torchrun names the rank that a signal ended. PyTorch's DataLoader names its worker in an exception of the rank.
fn victim(report: &Report) -> (Option<u64>, &'static str) {
    if let Some((rank, _)) = first_rank(&report.stderr_tail).filter(|(_, code)| *code == -SIGKILL) {
        return (rank, "");
    }
    let of_loader = report.last_exception().filter(|raised| {
        let is_of_loader = raised.message.contains("DataLoader worker");
        is_of_loader && (raised.message.contains("killed by signal") || raised.message.contains("exited unexpectedly"))
    });
    of_loader.map_or((None, ""), |raised| (raised.rank, "one of its DataLoader workers was "))
}

/// Adds to `what` how full the GPU was before. PyTorch's own messages already say so.
pub fn with_gpu(what: String, time: Option<Timestamp>, report: &Report) -> String {
    const GIB: f64 = 1_073_741_824.0;
    let Some(gpu) = report.gpu_memory.filter(|_| !what.contains(" is free")) else { return what };
    let before = time.or(report.finished_at).map(|time| time.duration_since(gpu.time).as_secs());
    let when = before.filter(|seconds| *seconds >= 0).map(|seconds| format!(" {seconds} s before")).unwrap_or_default();
    format!("{what} (GPU {}: {:.1} of {:.1} GiB in use{when})", gpu.index, gpu.used / GIB, gpu.total / GIB)
}

fn words(Memory { limit, peak, shared }: Memory) -> String {
    const KILLED: &str = "killed for using more memory than resources.limits.memory allows";
    // A smaller share does not explain the kill.
    let is_much = |shared: &u64| limit.or(peak).is_none_or(|all| *shared >= all / 10) && *shared >= 1 << 20;
    let figures = [
        limit.map(|limit| format!("the limit is {}", mebibytes(limit))),
        peak.map(|peak| format!("the peak was {}", mebibytes(peak))),
        shared.filter(is_much).map(|shared| format!("{} is in /dev/shm", mebibytes(shared))),
    ];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    match figures.is_empty() {
        true => format!("{KILLED}; raise it or use less"),
        false => format!("{KILLED} ({}); raise it or use less", figures.join(", ")),
    }
}

/// In the notation of resource limits: `200Mi`, `1.5Gi`.
fn mebibytes(bytes: u64) -> String {
    const GI: u64 = 1 << 30;
    let mebi = (bytes + (1 << 19)) >> 20;
    match bytes {
        ..=0xF_FFFF => format!("{}Ki", bytes >> 10),
        _ if mebi < 1024 => format!("{mebi}Mi"),
        _ if mebi.is_multiple_of(1024) => format!("{}Gi", mebi >> 10),
        _ => format!("{}.{}Gi", bytes / GI, bytes % GI * 10 / GI),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_formatted_in_binary_units() {
        for (bytes, text) in [
            (200 << 20, "200Mi"),
            ((200 << 20) - 4096, "200Mi"),
            (64 << 10, "64Ki"),
            (1 << 30, "1Gi"),
            (3 << 29, "1.5Gi"),
            (80 << 30, "80Gi"),
        ] {
            assert_eq!(mebibytes(bytes), text);
        }
    }
}
