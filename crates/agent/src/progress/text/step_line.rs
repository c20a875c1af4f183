//! A line without the word epoch that has a step and no loss: `step 120/4000 | lr 3.0e-04 | 12.5 it/s`.

use super::pairs::{is_held_out, pairs};
use super::run::{Run, StepMatch};
use super::words::{is_of_a_checkpoint, qualifiers};
use protocol::progress::{ACCURACY, LEARNING_RATE, THROUGHPUT, Update};

regexes! {
    RATE = r"(?i)[0-9] ?(?:(?:it|iters?|steps?|tok|tokens|samples|examples|images|imgs?)/s(?:ec)?|m?s(?:ec)?/(?:it|iter|step|batch))\b";
    RETURN = r"(?i)\b(?:[a-z]+_)?(?:reward|return)(?:_mean)?s?(?:: *|=)\[?-?[0-9.]+\]?(?:$|[,;|)]| +[|,])";
}

/// Anything may have steps, so a step counts only if the line shows that it is of a training. See [`tells`].
pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let step = StepMatch::find(text)?;
    let mut update = Update::default();
    pairs(text, None, &mut update);
    if !is_report(&step, &update, run) {
        return Some(Update::default());
    }
    let at = run.at(Some(step));
    // The line does not say whether the step is of the epoch or of the run, so no decision depends on its metrics.
    Some(Update { metrics: update.metrics, percentages: update.percentages, is_certain: false, ..at })
}

/// Whether `step` is one of the training. One of these has to hold:
///
/// - The line has a learning rate, an accuracy, a norm of gradients, a perplexity, a reward or a rate (see `measured`).
/// - The total is the training's.
/// - The step stands alone on its line and continues the one before.
pub(super) fn is_report(step: &StepMatch, measured: &Update, run: &mut Run) -> bool {
    const OF_TRAINING: [&str; 6] = [LEARNING_RATE, ACCURACY, THROUGHPUT, "grad_norm", "ppl", "perplexity"];
    let is_foreign = step.before.ends_with(['/', '-', '.', '_', '\\'])
        || is_held_out(step.before)
        || is_of_a_checkpoint(step.before)
        || qualifiers(step.before).is_none();
    if is_foreign {
        return false;
    }
    let is_alone = !step.after.contains(|c: char| c.is_alphabetic());
    (is_alone && run.goes_on(step))
        || (step.of.is_some() && step.of == run.steps)
        || OF_TRAINING.iter().any(|&name| measured.metrics.contains_key(name))
        || RATE.is_match(step.after)
        || RETURN.is_match(step.after)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::{LEARNING_RATE, THROUGHPUT};

    #[test]
    fn step_with_a_training_metric_counts_without_a_loss() {
        for (line, step, steps) in [
            ("step 120/4000 | lr 3.0e-04", 120.0, Some(4000.0)),
            ("step 120/4000 lr=0.1", 120.0, Some(4000.0)),
            ("2026-03-02 10:00:00,123 - INFO - iter 1,200 of 4,000: 12.5 it/s", 1200.0, Some(4000.0)),
            ("Training step 120/4000 (3.0%) 81.2ms/step", 120.0, Some(4000.0)),
            ("[rank 0] global_step: 120, grad_norm: 0.5", 120.0, None),
            ("INFO:root:iteration 120 | tok/sec: 1,048,576", 120.0, None),
            ("step 120: accuracy=0.5", 120.0, None),
            ("global_step=120, episodic_return=[22.]", 120.0, None),
            ("step 120 | mean_reward: -3.5", 120.0, None),
        ] {
            let last = progress(None, line);
            assert_eq!(counts(&last), [None, None, Some(step), steps], "{line}");
        }
        let last = progress(None, "step 120/4000 | learning rate 3.0e-04 | tok/sec 1,048,576");
        assert_eq!((last.metric(LEARNING_RATE), last.metric(THROUGHPUT)), (Some(3e-4), Some(1_048_576.0)));
    }

    #[test]
    fn bare_steps_count_from_the_second_line() {
        let last = |lines: &str| counts(&progress(None, lines))[2];
        assert_eq!(last("Step 100/4000"), None);
        assert_eq!(last("Step 100/4000\nStep 200/4000 (5.0%)"), Some(200.0));
        assert_eq!(last("[10:00:00] iteration 10\n[10:00:01] iteration 20"), Some(20.0));
        for lines in [
            "Step 1/3\nStep 2/3\nStep 3/3",
            "Step 1\nStep 2\nStep 3",
            "step 20\nstep 20",
            "step 20\nstep 10",
            "step 20/100\nstep 30/200",
            "Sampling step 20/50\nSampling step 30/50",
            "val step 20/50\nval step 30/50",
        ] {
            assert_eq!(last(lines), None, "{lines}");
        }
    }

    /// As `time_sequence_prediction` of PyTorch's examples prints them.
    #[test]
    fn bare_steps_with_losses_between_them_count() {
        let last = |lines: &str| counts(&progress(None, lines))[2];
        assert_eq!(last("STEP:  0\nloss: 0.5\nloss: 0.4\ntest loss: 0.6\nSTEP:  1\nloss: 0.3"), Some(1.0));
        for lines in [
            "Step 1\nloss: 0.5",
            "Step 1\nloss: 0.5\nStep 1\nloss: 0.4",
            "Step 1\nStep 2\nloss: 0.5",
            "Step 1/3\nloss: 0.5\nStep 2/4\nloss: 0.4",
            "Step 1: prepare\nloss: 0.5\nStep 2: evaluate\nloss: 0.4",
        ] {
            assert_eq!(last(lines), None, "{lines}");
        }
    }

    #[test]
    fn step_of_the_known_total_counts() {
        let known = "Total optimization steps = 4,000\n";
        assert_eq!(counts(&progress(None, &format!("{known}step 120/4000: saving")))[2], Some(120.0));
        assert_eq!(counts(&progress(None, &format!("{known}step 2/3: saving")))[2], None);
    }

    #[test]
    fn lines_resembling_a_step_are_ignored() {
        for line in [
            "step 12/40 done",
            "Step 3/12 : RUN pip install torch",
            "step 2 of 5: tokenizing, 0.5 s each",
            "saved /checkpoints/step 100/model.pt, lr 0.1",
            "loaded step_1000.pt at 3.5 it/s",
            "restored step 1000 of 4000, lr=0.1",
            "denoising step 12/50, 3.1 it/s",
            "eval step 12/40, 3.1 it/s",
            "step 12:30:01 was the last one, lr 0.1",
            "step 1.2s/it",
            "step 2026-03-02 lr=0.1",
            "the step size is 0.1, lr 0.5",
            "using optimizer.step 2.8.0 with lr=0.1",
            "iterator 12/40 at 3 it/s",
            "footstep 12/40 3 it/s",
            "step 12: the reward is 3.5",
            "step 12 returns: 3 values",
            "step 12: no return=3.5 here: None",
            "step 12: reward_fn=dense",
            "step 12: return code: 0",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }
}
