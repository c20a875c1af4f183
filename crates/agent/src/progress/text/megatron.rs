//! Megatron-LM's lines.

use super::number::group;
use super::run::Run;
use protocol::progress::Update;

regexes! {
    MEGATRON = r"\biteration +([0-9]+)/ *([0-9]+) *\|";
}

/// ` iteration       10/    5000 | learning rate: 1.2E-05 | lm loss: 1.04E+01 |`
pub(super) fn line(text: &str, _: &mut Run) -> Option<Update> {
    let found = MEGATRON.captures(text)?;
    let mut update = Update { step: group(&found, 1), steps: group(&found, 2), ..Update::default() };
    for part in text[found.get(0)?.end()..].split('|') {
        if let Some((name, value)) = part.split_once(':')
            && let Ok(value) = value.trim().parse()
        {
            update.set(name.trim(), value);
        }
    }
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::{LEARNING_RATE, LOSS};

    #[test]
    fn megatron_lm() {
        let (updates, last) = read(&mut Text::default(), recorded!("megatron.stdout"));
        assert_eq!(counts(&updates_of(&updates[..1])), [None, None, Some(10.0), Some(2000.0)]);
        assert_eq!(counts(&last), [None, None, Some(20.0), Some(2000.0)]);
        assert_eq!((last.metric(LOSS), last.metric(LEARNING_RATE)), (Some(9.871034), Some(4e-6)));
        assert_eq!(last.metric("throughput per GPU (TFLOP/s/GPU)"), Some(304.3));
        assert!(progress(None, " iteration 3/ 9 | lm loss: NAN |").metric(LOSS).unwrap().is_nan());
    }
}
