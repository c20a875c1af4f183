//! The Hugging Face Trainer's dictionaries, and its words at the start.

use super::number::parse;
use super::run::Run;
use protocol::progress::{LOSS, Update};
use regex::Captures;

regexes! {
    DICT = r"'([A-Za-z_][A-Za-z0-9_./ -]*)': *(?:[a-z][a-z0-9_.]*\()?'?(", number!(), r")'?\)?[,}]";
    TRAINER_EPOCHS = r"^Num Epochs = ([0-9,]+)$";
    TRAINER_STEPS = r"^Total optimization steps = ([0-9,]+)$";
}

/// The Hugging Face Trainer's: a Python dictionary with an epoch. Version 5 quotes the numbers.
pub(super) fn dict(text: &str, _: &mut Run) -> Option<Update> {
    let dict = text.find("{'").filter(|_| text.ends_with('}')).map(|at| &text[at..])?;
    let mut update = Update::default();
    let ended = dict.contains("'train_runtime'");
    for pair in DICT.captures_iter(dict) {
        let value = parse(&pair[2])?;
        match &pair[1] {
            // The mean over all steps, once at the end.
            "train_loss" if ended => _ = update.metrics.insert("train_loss".to_owned(), value),
            name => update.set(name, value),
        }
    }
    (update.epoch.is_some() || update.metrics.contains_key(LOSS)).then_some(update)
}

/// What the Hugging Face Trainer tells at its start where its log level is INFO.
pub(super) fn start(text: &str, _: &mut Run) -> Option<Update> {
    let number = |found: Captures| found[1].replace(',', "").parse().ok();
    if let Some(epochs) = TRAINER_EPOCHS.captures(text) {
        return Some(Update { epochs: number(epochs), ..Update::default() });
    }
    Some(Update { steps: number(TRAINER_STEPS.captures(text)?), ..Update::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::text::testing::*;
    use protocol::progress::LEARNING_RATE;

    #[test]
    fn hugging_face_trainer_5() {
        let (updates, progress) = read(&mut Text::new(Some(3.0)), recorded!("transformers-5.23.stdout"));
        assert_eq!(updates.len(), 10);
        assert_eq!((updates[0].epoch, updates[0].metrics[LOSS]), (Some(0.5), 0.6916));
        assert_eq!(counts(&progress), [Some(3.0), Some(3.0), None, None]);
        assert_eq!(progress.metric(LOSS), Some(0.6939), "not the mean of the whole run");
        assert_eq!(progress.metric(LEARNING_RATE), Some(1.667e-06));
        assert_eq!(progress.metric("eval_accuracy"), Some(0.5));
    }

    #[test]
    fn hugging_face_trainer_4_with_its_bars() {
        let mut text = Text::new(None);
        let (updates, progress) = read(&mut text, recorded!("transformers-4.57.stdout"));
        assert_eq!(updates.len(), 10);
        assert_eq!(progress.metric(LOSS), Some(0.6924));
        let stderr = recorded!("transformers-4.57.stderr");
        assert_eq!(read(&mut text, stderr).0, [], "bars of nobody knows what");
        text.expect_steps(Some(30.0));
        let (updates, progress) = read(&mut text, stderr);
        assert!(updates.len() > 3);
        assert_eq!(counts(&progress), [None, None, Some(30.0), Some(30.0)]);
    }

    #[test]
    fn hugging_face_trainers_words_at_its_start() {
        let start = "***** Running training *****\n  Num examples = 9,000\n  Num Epochs = 3\n  Total optimization steps = 3,375\n";
        assert_eq!(counts(&progress(None, start)), [None, Some(3.0), None, Some(3375.0)]);
        let bar = "\r  1%|          | 20/3375 [00:01<00:01, 19.1it/s]\r";
        assert_eq!(counts(&progress(None, &format!("{start}{bar}"))), [None, Some(3.0), Some(20.0), Some(3375.0)]);
    }
}
