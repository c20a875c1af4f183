//! A line with the word epoch and a number, as programs print it in forms of their own: `Epoch 3/10 loss: 0.12`.

use super::pairs::{held_out, pairs};
use super::run::{Epoch, Run, StepMatch};
use super::step_line::is_report;
use super::words::{is_of_a_checkpoint, is_of_another_time};
use protocol::progress::Update;

regexes! {
    // PyTorch's ImageNet example and its derivatives, including torchvision's `MetricLogger` (DETR, MAE).
    FROM_0 = r"^Epoch: \[[0-9]+\] *\[ *[0-9]+/[0-9]+\]";
}

/// A line that measures something, or begins an epoch.
pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let (epoch, found) = Epoch::find(text)?;
    let (before, after) = (&text[..found.start()], &text[found.end()..]);
    // A run that resumes does not print its epoch 0.
    run.counts_from_0 |= epoch.of.is_none() && FROM_0.is_match(&text[found.start()..]);
    // "Best epoch: 7, val_loss: 0.3": such values were printed in the epoch itself.
    let is_past = is_of_another_time(before) || is_of_a_checkpoint(before);
    let mut update = Update::default();
    let held_out = held_out(text);
    pairs(text, held_out, &mut update);
    let step = StepMatch::find_in_epoch(after).filter(|_| held_out.is_none());
    if update.metrics.is_empty() && step.is_none() {
        // "Epoch 3" alone on its line, or with decoration. A sentence that mentions an epoch says nothing.
        let alone = found.len() + 10 >= text.len() || after.starts_with(" | ") || is_alone(before, after);
        return Some(if (alone || epoch.of.is_some()) && !is_past { run.begin(epoch) } else { Update::default() });
    }
    if is_past {
        return Some(Update::default());
    }
    let measures = |name: &String| name.contains("loss") || name.contains("acc");
    let is_measured = |step: StepMatch| !update.metrics.is_empty() || is_report(&step, &update, run);
    let is_reported = update.metrics.keys().any(measures) || step.is_some_and(is_measured);
    if epoch.of.is_none() && !is_reported {
        return Some(if after.starts_with(" | ") { run.begin(epoch) } else { Update::default() });
    }
    let within = match step {
        Some(StepMatch { number, of: Some(steps), .. }) => run.within(epoch, number, steps),
        _ => Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() },
    };
    run.begun = None;
    Some(Update { metrics: update.metrics, percentages: update.percentages, ..within })
}

/// Whether an epoch has at most a word beside it, after a logger's prefix: `INFO:base:Train Epoch: 1 [0%]`.
fn is_alone(before: &str, after: &str) -> bool {
    let own = before.rsplit([':', '>', ']', '|']).next().unwrap_or(before);
    !after.contains(char::is_alphabetic) && own.trim().len() <= 10
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::LOSS;

    /// They count epochs from 0, which a run that resumes does not show.
    #[test]
    fn imagenet_style_epochs_count_from_0() {
        let step = |line: &str| counts(&progress(None, line))[2];
        assert_eq!(step("Epoch: [1][3/8]\tTime 0.9 (0.9)\tLoss 2.5 (2.6)"), Some(11.0));
        assert_eq!(step("Epoch: [2]  [  10/1000]  eta: 0:10:00  loss: 5.12 (6.1)"), Some(2010.0));
        for line in [
            "Epoch [2/9], Step [3/8], Loss: 0.5",
            "Epoch: 2 [3/8] Loss: 0.5",
            "Epoch: [2/9][3/8] Loss: 0.5",
            "epoch [2][3/8] loss: 0.5",
            "Epoch[2](3/8): Loss: 0.5",
        ] {
            assert_eq!(step(line), Some(11.0), "{line}");
        }
    }

    /// As VITS and So-VITS-SVC print them.
    #[test]
    fn bare_epoch_after_a_logger_prefix_is_parsed() {
        let epoch = |line: &str| counts(&progress(None, &format!("{line} 1\n{line} 2")))[0];
        for line in
            ["INFO:base:====> Epoch:", "INFO:base:Train Epoch:", "[2025-03-06] [INFO] Epoch", "10:00:00 | epoch"]
        {
            assert_eq!(epoch(line), Some(1.0), "{line}");
        }
        for line in [
            "nothing of the old epoch",
            "we keep the weights of epoch",
            "INFO: resumed from epoch",
            "best: epoch of files in",
            "see the plot for epoch",
        ] {
            assert_eq!(epoch(line), None, "{line}");
        }
    }

    /// As its Speedometer and its module print it.
    #[test]
    fn mxnet() {
        let (updates, last) = read(&mut Text::new(Some(3.0)), recorded!("mxnet-1.9.stderr"));
        assert_eq!(counts(&last)[..2], [Some(2.0), Some(3.0)]);
        assert_eq!(names(&last), ["Speed", "accuracy", "cross-entropy"]);
        assert_eq!(updates[0].epoch, Some(0.0));
    }

    /// By a chief with parameter servers, in a loop of its own.
    #[test]
    fn tensorflow() {
        let last = progress(None, std::str::from_utf8(recorded!("tensorflow-2.21-ps.stdout")).unwrap());
        assert_eq!((counts(&last), last.metric(LOSS)), ([Some(17.0), Some(20.0), None, None], Some(0.1802)));
    }

    /// What `paddle.distributed.launch` passes on of its first process, in a loop as Paddle's examples have it.
    #[test]
    fn paddle_under_its_launcher() {
        let (updates, last) = read(&mut Text::default(), recorded!("paddle-3.3.stdout"));
        assert_eq!(
            (counts(&last), last.metric(LOSS)),
            ([Some(5.0), Some(5.0), Some(100.0), Some(100.0)], Some(0.2816))
        );
        assert_eq!(updates.len(), 10);
    }

    /// As `Model.fit` prints it.
    #[test]
    fn paddle() {
        let lines = "Epoch 1/3\nstep 10/20 [=====>....] - loss: 0.5000 - acc: 0.7500 - ETA: 1s - 21ms/step\n\
                     step 20/20 [==========] - loss: 0.2500 - acc: 0.8000 - 20ms/step";
        let last = progress(None, lines);
        assert_eq!((counts(&last), last.metric(LOSS)), ([Some(1.0), Some(3.0), Some(20.0), Some(60.0)], Some(0.25)));
    }

    #[test]
    fn torchrun_demo_counts_only_the_first_rank() {
        let (updates, last) = read(&mut Text::default(), recorded!("torchrun-demo.stdout"));
        assert_eq!(counts(&last), [Some(4.0), Some(4.0), None, None]);
        assert_eq!((last.metric(LOSS), last.metric("test_accuracy")), (Some(0.1825), Some(0.95)));
        assert_eq!(updates.iter().map(|update| update.epoch.unwrap()).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(last.percent(), Some(100.0));
    }
}
