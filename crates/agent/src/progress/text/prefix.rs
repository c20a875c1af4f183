//! Prefixes that launchers put before each line of their processes.

use super::number::parse;

regexes! {
    RAY = r"^\((?:[A-Za-z_][^()]*(?:\([^()]*\)[^()]*)?)?\bpid=[0-9]+[^()]*\) ?";
    TORCHRUN = r"^\[[A-Za-z_][A-Za-z_-]*([0-9]+)\]: ?";
    MPIRUN = r"^\[(?:[0-9]+,)?([0-9]+)\]<std(?:out|err)>: ?";
    RANK = r"(?i)\[(?:rank|default|gpu)[: ]? ?([0-9]+)(?:/[0-9]+)?\]";
}

/// `line` without what a launcher has put around it, and the rank that stands there or elsewhere in it.
///
/// - Ray: `(RayTrainWorker pid=71, ip=10.0.0.3) step 3`, with ` [repeated 4x across cluster]` at its end where others have
///   said the same. A process has no rank there.
/// - torchrun: `[default1]:step 3`, `[rank1]: step 3`, with the role for `default`.
/// - mpirun, horovodrun: `[1,3]<stdout>:step 3`, `[3]<stderr>:step 3`.
pub(super) fn split(line: &str) -> (Option<f64>, &str) {
    let line = without_ray(line);
    let marked = line.starts_with('[').then(|| TORCHRUN.captures(line).or_else(|| MPIRUN.captures(line))).flatten();
    match marked.as_ref().and_then(|found| Some((parse(&found[1])?, found.get(0)?.end()))) {
        Some((rank, end)) => (Some(rank), line[end..].trim()),
        None => (RANK.captures(line).and_then(|rank| parse(&rank[1])), line),
    }
}

fn without_ray(line: &str) -> &str {
    let Some(found) = line.starts_with('(').then(|| RAY.find(line)).flatten() else { return line };
    let rest = &line[found.end()..];
    rest.find(" [repeated ").map_or(rest, |end| &rest[..end]).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_prefixes_and_ranks_are_recognized() {
        for (line, rank, rest) in [
            ("(RayTrainWorker pid=71) step 3", None, "step 3"),
            ("(RayTrainWorker pid=71, ip=10.0.0.3) step 3 [repeated 4x across cluster]", None, "step 3"),
            ("(train_fn pid=71)  3/9 ===", None, "3/9 ==="),
            ("(pid=71) step 3", None, "step 3"),
            ("(Actor(loop) pid=71) step 3", None, "step 3"),
            ("(train_fn pid=71) [rank1]: step 3", Some(1.0), "step 3"),
            ("[default1]:step 3", Some(1.0), "step 3"),
            ("[rank12]: step 3", Some(12.0), "step 3"),
            ("[trainer0]:[INFO] step 3", Some(0.0), "[INFO] step 3"),
            ("[1,3]<stdout>:step 3", Some(3.0), "step 3"),
            ("[3]<stderr>: step 3", Some(3.0), "step 3"),
            ("[RANK2] step 3", Some(2.0), "[RANK2] step 3"),
            ("[GPU0] Epoch 3", Some(0.0), "[GPU0] Epoch 3"),
            ("2026-03-02 [Rank 1/8] step 3", Some(1.0), "2026-03-02 [Rank 1/8] step 3"),
        ] {
            assert_eq!(split(line), (rank, rest), "{line}");
        }
    }

    #[test]
    fn text_resembling_a_launcher_prefix_is_kept() {
        for line in [
            "(pid 71) step 3",
            "(loss of pid=x) step 3",
            "(step 3)",
            "[12]\ttrain-rmse:0.5",
            "[default]: step 3",
            "[10:21:01] step 3",
            "[1,3] step 3",
            "[Epoch 3] loss: 0.5",
            "a list [rank1]: step 3",
        ] {
            assert_eq!(split(line).1, line);
        }
    }
}
