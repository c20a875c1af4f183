//! A line without the word epoch that has a loss: `step 7/9 | loss: 0.12`.

use super::pairs::{held_out, is_held_out, pairs};
use super::run::{Run, StepMatch};
use super::words::{is_of_a_checkpoint, is_of_another_time};
use protocol::progress::Update;

const LOSSES: [&str; 8] =
    ["loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "eval_loss", "val loss", "test loss"];

regexes! {
    BARE = r"^(", count!(), r") \| (?:train[ _])?loss[: ]";
}

pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    // This is cheaper than looking for all metrics.
    if !text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"loss")) {
        return None;
    }
    let mut update = Update::default();
    pairs(text, held_out(text), &mut update);
    if !LOSSES.iter().any(|&name| update.metrics.contains_key(name)) {
        return None;
    }
    let step = StepMatch::find(text).or_else(|| StepMatch::find_bare(&BARE, text));
    if step.is_none() {
        run.measured_after_step();
    }
    if step.is_some_and(|step| is_of_another_time(step.before) || is_of_a_checkpoint(step.before)) {
        return Some(Update::default());
    }
    // "val step 3/9" is a step of an evaluation, not of the run.
    let at = run.at(step.filter(|step| !is_held_out(step.before)));
    Some(Update { metrics: update.metrics, percentages: update.percentages, ..at })
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::{ACCURACY, LOSS};

    /// The value of `metric` in each of `lines`.
    fn all(metric: &str, lines: &[&str]) -> Vec<Option<f64>> {
        lines.iter().map(|line| progress(Some(10.0), line).metric(metric)).collect()
    }

    #[test]
    fn only_the_training_loss_is_the_loss() {
        let others = [
            "best loss: inf",
            "Best loss = inf",
            "step 0/100 | best loss: inf",
            "Epoch 1/9 best train loss: inf",
            "Epoch 1/9 lowest average loss=inf",
            "[INFO] initial loss: nan",
            "target loss: 0.05",
            "Target Loss=0.05",
            "Epoch 1/9, target loss: 0.05",
            "step 1/100 goal loss: 0.05",
            "training stops at loss: 0.05",
            "step 1/100 stops if mean loss = 0.05",
            "step 3/9 ce loss: 2.1, aux loss: 0.01",
            "Epoch 3/9 aux loss: 0.01",
            "Epoch 3/9 kl loss: 0.01 recon loss: 0.2",
            "step 3/9 | router z loss: 0.001",
            "iter 3: L2 loss=0.001",
            "Best epoch 3 loss: 0.02",
            "Best epoch: 3, loss: 0.02",
            "resuming from epoch 3 (loss: 0.02)",
            "best step 7: loss=0.02",
            "5loss: 0.1, \u{df}loss: 0.1",
        ];
        assert_eq!(all(LOSS, &others), vec![None; others.len()], "{others:?}");
        let accuracies = [
            "Epoch 1/9 top-5 acc: 0.95",
            "Epoch 1/9 top 5 acc: 0.95",
            "Epoch 1/9 Top5 accuracy: 95%",
            "Epoch 1/9 best acc: 0.95",
            "Epoch 1/9 target accuracy: 0.95",
            "Epoch 1/9 per-class acc=0.95",
        ];
        assert_eq!(all(ACCURACY, &accuracies), vec![None; accuracies.len()]);
        let own = [
            "loss: 0.5",
            "INFO loss: 0.5",
            "Epoch 1/9 train loss: 0.5",
            "Epoch 1/9 | 12s | avg loss: 0.5",
            "Epoch 1 finished with loss: 0.5",
            "step 3/9 mean loss=0.5",
            "step 3/9\tLoss: 0.5",
            "iter 3 lr 0.001 loss: 0.5",
            "[rank 0] iter 3 training batch loss: 0.5",
            "rank 0 step 3 loss: 0.5",
            "Epoch 1/9 50% 9.5it/s loss: 0.5",
            "2026-03-02 10:00:00 INFO train.py:33 loss: 0.5",
        ];
        assert_eq!(all(LOSS, &own), vec![Some(0.5); own.len()]);
    }

    /// As llama2.c prints it.
    #[test]
    fn bare_number_before_the_loss_is_the_step() {
        let step = |line: &str| counts(&progress(None, line))[2];
        assert_eq!(step("60 | loss 10.3670 | lr 0.000000e+00 | 136.75ms | mfu 0.00%"), Some(60.0));
        assert_eq!(step("1,200 | train loss: 0.5"), Some(1200.0));
        for line in [
            "0.5 | loss 0.3",
            "rank 3 | loss 0.5",
            "60 | val loss 0.5",
            "60 samples | loss 0.5",
            "60 loss 0.5",
            "60 | lossless 0.5, loss: 0.5",
            "12:60 | loss 0.5",
        ] {
            assert_eq!(step(line), None, "{line}");
        }
    }

    #[test]
    fn first_training_loss_in_a_line_wins() {
        let lines = [
            "step 3/9 loss: 0.5, aux loss: 0.01",
            "step 3/9 loss: 0.5 | loss: 0.01",
            "Epoch 3/9 loss: 0.5 best loss: 0.01",
            "Epoch 3/9 train loss: 0.5 - total: 3 - loss=0.01",
            "Epoch 3/9 ce loss: 0.4, total loss: 0.5, loss: 0.3",
            "Epoch 3/9 (best loss: 0.1) loss: 0.5",
        ];
        assert_eq!(all(LOSS, &lines), vec![Some(0.5); lines.len()]);
    }

    #[test]
    fn held_out_loss_keeps_its_own_name() {
        for (line, name) in [
            ("Epoch 3/9 val loss: 0.5", "val_loss"),
            ("Epoch 3/9 train loss: 1 val avg loss: 0.5", "val_loss"),
            ("Test set: Average loss: 0.5", "test_loss"),
            ("Epoch 3/9 eval Loss: 0.5 train loss: 1", "eval_loss"),
            ("validation mean loss=0.5", "validation_loss"),
        ] {
            assert_eq!(progress(None, line).metric(name), Some(0.5), "{line}");
            assert_ne!(progress(None, line).metric(LOSS), Some(0.5), "{line}");
        }
        for line in ["best val loss: 0.5", "Epoch 3/9 lowest val loss: 0.5", "Best epoch: 7, val_loss: 0.5"] {
            assert_eq!(progress(None, line).metrics.len(), 0, "{line}");
        }
    }

    #[test]
    fn only_loss_with_an_epoch_or_step_is_sure() {
        let is_sure = |lines: &str| {
            let (updates, _) = read(&mut Text::new(None), lines.as_bytes());
            let last = updates.iter().rfind(|update| update.metrics.contains_key(LOSS));
            last.is_some_and(|update| update.is_sure(Source::Output))
        };
        for lines in [
            "Epoch 3/9 loss: nan",
            "step 3 loss: nan",
            "Epoch 3/9\n----\nloss: nan",
            "Epoch 2/9 loss: 1\nstep 3 loss: nan",
            "Epoch 3/5: 50%|█████     | 50/100 [00:05<00:05, 9.5it/s, loss=nan]",
            "Epoch 3/5\n 3/10 [===>..........] - ETA: 1s - 2ms/step - loss: nan",
            " iteration 3/ 9 | lm loss: NAN |",
            "{'loss': nan, 'epoch': 0.5}",
            r#"{"step": 3, "loss": NaN}"#,
        ] {
            assert!(is_sure(lines), "{lines}");
        }
        for lines in [
            "loss: inf",
            "best: loss: inf",
            "target | loss: 0.05",
            "{'loss': 0.05, 'patience': 3}",
            r#"{"loss": 0.05}"#,
            "loss = 0.05 is what we want",
        ] {
            assert!(!is_sure(lines), "{lines}");
        }
    }
}
