//! A traceback in the message of an exception, as PyTorch's data loaders and spawned processes pass it on.

use regex::Regex;
use std::sync::LazyLock;

/// An exception that was raised in another process, and where.
#[derive(Debug, PartialEq)]
pub struct NestedException<'m> {
    pub class: &'m str,
    pub message: &'m str,
    /// File of the innermost frame that is in the user's code and not in a library.
    pub file: &'m str,
    pub line: u64,
    /// Name of the process, such as `DataLoader worker process 0`, if known.
    pub process: Option<String>,
}

/// Returns the last exception whose traceback is in `message`. In a chain this is the one raised last, and in nested
/// tracebacks the innermost one.
pub fn nested(message: &str) -> Option<NestedException<'_>> {
    static FRAME: LazyLock<Regex> = LazyLock::new(|| crate::constant(r#"(?m)^ +File "([^"\n]+)", line (\d+)"#));
    static RAISED: LazyLock<Regex> = LazyLock::new(|| crate::constant(r"(?m)^([A-Za-z_][\w.]*)(?:: ?|$)"));
    let traceback = last_traceback(message)?;
    let frames: Vec<(&str, u64, usize)> = FRAME
        .captures_iter(traceback)
        .filter_map(|frame| {
            let (whole, [file, line]) = (frame.get(0)?, frame.extract().1);
            Some((file, line.parse().ok()?, whole.end()))
        })
        .collect();
    let &(innermost, _, after) = frames.last()?;
    let own = frames.iter().rev().find(|(file, ..)| is_users(file)).or(frames.last());
    let &(file, line, _) = own.filter(|_| !innermost.is_empty())?;
    // The exception follows the frames' source lines and the marks under these, all of which are indented.
    let rest = &traceback[after..];
    let start = rest.match_indices('\n').map(|(at, _)| at + 1).find(|&at| {
        let line = &rest[at..];
        !line.starts_with([' ', '\n', '\r']) && !line.is_empty()
    })?;
    let raised =
        RAISED.captures(&rest[start..]).filter(|raised| raised.get(0).is_some_and(|whole| whole.start() == 0))?;
    let class = raised.get(1)?.as_str();
    let message_of = rest[start..].get(raised.get(0)?.end()..).unwrap_or_default();
    Some(NestedException { class, message: message_of.trim_end(), file, line, process: process(message) })
}

/// Text after the last header. torch/utils/data/_utils/worker.py and torch/multiprocessing/spawn.py keep Python's.
fn last_traceback(message: &str) -> Option<&str> {
    static HEADER: LazyLock<Regex> =
        LazyLock::new(|| crate::constant(r"(?m)^(?:Original )?Traceback \(most recent call last\):[ \r]*$"));
    HEADER.find_iter(message).last().map(|header| &message[header.end()..])
}

fn process(message: &str) -> Option<String> {
    static CAUGHT: LazyLock<[Regex; 2]> = LazyLock::new(|| {
        [
            r"(?m)^(?:\S+: )?Caught \S+ in ([^\n]{1,80})\.$",
            r"(?m)^-- Process (\d+) terminated with the following error:",
        ]
        .map(crate::constant)
    });
    let [caught, spawned] = CAUGHT.each_ref().map(|words| words.captures_iter(message).last());
    let caught = caught.map(|found| found[1].to_owned());
    match (caught, spawned) {
        (Some(caught), Some(process)) => Some(format!("{caught} of spawned process {}", &process[1])),
        (None, Some(process)) => Some(format!("spawned process {}", &process[1])),
        (caught, None) => caught,
    }
}

fn is_users(file: &str) -> bool {
    !["site-packages", "dist-packages", "<frozen ", "/lib/python3"].iter().any(|library| file.contains(library))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &str = "Caught RuntimeError in DataLoader worker process 0.\n\
        Original Traceback (most recent call last):\n\
        \x20 File \"/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py\", line 349, in _worker_loop\n\
        \x20   data = fetcher.fetch(index)\n\
        \x20          ^^^^^^^^^^^^^^^^^^^^\n\
        \x20 File \"/app/train.py\", line 12, in __getitem__\n\
        \x20   return self.images[index].cuda()\n\
        \x20 File \"/usr/lib/python3.11/site-packages/torch/cuda/__init__.py\", line 5, in _lazy_init\n\
        RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`.\n";

    #[test]
    fn traceback_of_data_loader_worker_is_unwrapped() {
        let found = nested(LOADER).unwrap();
        assert_eq!((found.class, found.file, found.line), ("RuntimeError", "/app/train.py", 12));
        assert_eq!(found.message, "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`.");
        assert_eq!(found.process.as_deref(), Some("DataLoader worker process 0"));
    }

    #[test]
    fn nested_traceback_of_spawned_process_is_unwrapped() {
        let spawned = "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n\
                       \x20 File \"/app/train.py\", line 7, in work\n    raise KeyError('x')\nKeyError: 'x'\n";
        let found = nested(spawned).unwrap();
        assert_eq!((found.class, found.message, found.line), ("KeyError", "'x'", 7));
        assert_eq!(found.process.as_deref(), Some("spawned process 1"));
        let both = format!(
            "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File \"/app/train.py\", line 7, in work\nRuntimeError: {LOADER}\n"
        );
        let found = nested(&both).unwrap();
        assert_eq!((found.message.lines().next(), found.line), (Some("CUDA error: out of memory"), 12));
        assert_eq!(found.process.as_deref(), Some("DataLoader worker process 0 of spawned process 1"));
        let chained = "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 1\n\nDuring handling of the above \
                       exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"a.py\", line 3\nmine.Stop\n";
        assert_eq!(nested(chained).map(|found| (found.class, found.message, found.line)), Some(("mine.Stop", "", 3)));
    }

    #[test]
    fn nested_traceback_lookalikes_are_ignored() {
        for message in [
            "No 'Traceback (most recent call last):' in the child's log",
            "see log\nTraceback (most recent call last):\nit was lost",
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call last):\n  File \"t.py\", line 3, in forward\n    x <--- HERE\nRuntimeError: bad",
            "Caught fire in DataLoader worker process 0.",
            "  File \"config.yaml\", line 3\nKeyError: said a parser of YAML",
            "Traceback (most recent call last):\n  File \"t.py\", line 3, in f\n    cut off here",
        ] {
            assert_eq!(nested(message), None, "{message}");
        }
    }
}
