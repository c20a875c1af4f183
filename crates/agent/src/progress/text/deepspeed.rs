//! DeepSpeed's lines.

use super::number::parse;
use super::run::Run;
use protocol::progress::Update;

regexes! {
    DEEPSPEED = r"\bstep=([0-9]+), skipped=[0-9]+, lr=\[([^\],]*)";
    DEEPSPEED_TIMER = r"\bRunningAvgSamplesPerSec=([0-9.]+), CurrSamplesPerSec=([0-9.]+)";
    DEEPSPEED_STEP = r"/global_step=([0-9]+),";
}

/// Lines of its engine and of its throughput timer.
pub(super) fn line(text: &str, _: &mut Run) -> Option<Update> {
    if let Some(found) = DEEPSPEED.captures(text) {
        let mut update = Update { step: parse(&found[1]), ..Update::default() };
        _ = parse(&found[2]).map(|rate| update.set("lr", rate));
        return Some(update);
    }
    let found = DEEPSPEED_TIMER.captures(text)?;
    let step = DEEPSPEED_STEP.captures(text).and_then(|step| parse(&step[1]));
    let mut update = Update { step, ..Update::default() };
    update.set("throughput", parse(&found[1])?);
    update.set("CurrSamplesPerSec", parse(&found[2])?);
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::{LEARNING_RATE, THROUGHPUT};

    #[test]
    fn deepspeed() {
        let (updates, last) = read(&mut Text::default(), recorded!("deepspeed.stderr"));
        assert_eq!(updates.len(), 4);
        assert_eq!(counts(&last), [None, None, Some(20.0), None]);
        assert_eq!((last.metric(LEARNING_RATE), last.metric(THROUGHPUT)), (Some(4e-5), Some(223.75)));
    }
}
