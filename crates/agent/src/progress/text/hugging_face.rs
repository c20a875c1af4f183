//! The Hugging Face Trainer's dictionaries, and its lines at the start and the end.

use super::number::parse;
use super::run::{Epoch, Run};
use protocol::progress::{LOSS, Update};

regexes! {
    DICT = r"'([A-Za-z_][A-Za-z0-9_./ -]*)': *(?:[a-z][a-z0-9_.]*\()?'?(", number!(), r")'?\)?[,}]";
    START = r"^(?:.*\bINFO\b.*[>:\]-] *)?(Num Epochs|Total optimization steps) = (", count!(), ")$";
    // Names in a column as wide as `train_samples_per_second`, which a program's own `train_loss = 0.5` is not.
    END = r"^train_loss {15,}= +(", number!(), ")$";
}

/// The Hugging Face Trainer's Python dictionary with an epoch. Version 5 quotes the numbers. In Accelerate's examples
/// the epoch precedes it: `epoch 0: {'accuracy': 0.8}`.
pub(super) fn dict(text: &str, _: &mut Run) -> Option<Update> {
    let (before, dict) = text.find("{'").filter(|_| text.ends_with('}')).map(|at| text.split_at(at))?;
    let epoch = Epoch::find(before).filter(|(_, found)| found.start() == 0 && before[found.end()..].trim() == ":");
    let mut update = Update { epoch: epoch.map(|(epoch, _)| epoch.number), ..Update::default() };
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

/// A line that the Hugging Face Trainer logs at its start at log level INFO, after a logger's prefix. The examples of
/// Accelerate and Diffusers log it too.
pub(super) fn start(text: &str, _: &mut Run) -> Option<Update> {
    let found = text.contains(" = ").then(|| START.captures(text)).flatten()?;
    let number = parse(&found[2]);
    Some(match &found[1] {
        "Num Epochs" => Update { epochs: number, ..Update::default() },
        _ => Update { steps: number, ..Update::default() },
    })
}

/// A row of the table that its examples print at the end: `  train_loss               =     0.1234` is the mean over all steps.
pub(super) fn end(text: &str, _: &mut Run) -> Option<Update> {
    let value = text.starts_with("train_loss  ").then(|| END.captures(text)).flatten()?;
    let mut update = Update::default();
    update.metrics.insert("train_loss".to_owned(), parse(&value[1])?);
    Some(update)
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
    fn hugging_face_trainer_4_with_progress_bars() {
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
    fn hugging_face_trainer_start_banner_sets_totals() {
        let start = "***** Running training *****\n  Num examples = 9,000\n  Num Epochs = 3\n  Total optimization steps = 3,375\n";
        assert_eq!(counts(&progress(None, start)), [None, Some(3.0), None, Some(3375.0)]);
        let bar = "\r  1%|          | 20/3375 [00:01<00:01, 19.1it/s]\r";
        assert_eq!(counts(&progress(None, &format!("{start}{bar}"))), [None, Some(3.0), Some(20.0), Some(3375.0)]);
    }

    /// `log_metrics` prints the mean at the end. The loss stays that of the last step.
    #[test]
    fn mean_loss_in_the_final_table_is_not_the_loss() {
        let mut text = Text::new(None);
        let lines = "{'loss': 0.6924, 'grad_norm': 0.9, 'learning_rate': 1e-05, 'epoch': 3.0}\n***** train metrics *****\n  \
                     epoch                    =        3.0\n  total_flos               =   123456GF\n  \
                     train_loss               =     0.1234\n  train_runtime            = 0:00:12.34\n  \
                     train_samples_per_second =      1.234\n";
        let (_, progress) = read(&mut text, lines.as_bytes());
        assert_eq!((progress.metric(LOSS), progress.metric("train_loss")), (Some(0.6924), Some(0.1234)));
        for line in [
            "train_loss = 0.5",
            "  train_loss = 0.5",
            "  train_loss    =    0.5",
            "epoch 3: train_loss               =     0.5",
            "step 7: train_loss                =     0.5",
        ] {
            assert_eq!(super::end(line, &mut Run::default()), None, "{line}");
        }
    }

    #[test]
    fn trainer_banner_is_parsed_after_logger_prefixes() {
        for before in [
            "",
            "[INFO|trainer.py:2413] 2025-03-06 12:04:09,914 >>   ",
            "03/06/2025 12:04:09 - INFO - __main__ -   ",
            "INFO:__main__:  ",
            "[2025-03-06 12:04:09,914] [    INFO] -   ",
            "[default0]:[INFO|trainer.py:2413] 2025-03-06 12:04:09,914 >>   ",
        ] {
            let start = format!("{before}Num Epochs = 3\n{before}Total optimization steps = 1,000");
            assert_eq!(counts(&progress(None, &start)), [None, Some(3.0), None, Some(1000.0)], "{before}");
        }
        for line in [
            "expected: Total optimization steps = 1000",
            "INFO Total optimization steps = 1000",
            "[INFO] Total optimization steps = 1000 at most",
            "[INFO] Total optimization steps = 10.5",
            "[INFO] Total optimization steps = None",
            "[INFO] previous Total optimization steps = 1000",
            "INFORMATION: Num Epochs = 3",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }

    #[test]
    fn epoch_before_a_metrics_dictionary_is_parsed() {
        let last = progress(None, "epoch 2: {'accuracy': 0.8456, 'f1': 0.8912}");
        assert_eq!((counts(&last)[0], last.metric("f1")), (Some(2.0), Some(0.8912)));
        for line in [
            "best epoch 2: {'accuracy': 0.8456}",
            "epoch 2 of the config {'accuracy': 0.8456}",
            "args of epoch 2: {'lr': 0.1}",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }
}
