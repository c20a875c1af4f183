//! Progress read off the lines that training programs print by themselves, one small file for each form.
//!
//! Each form is recognised by what nothing else looks like, and a line that could mean two things is taken for neither.

#[macro_use]
mod number;
mod deepspeed;
mod epoch_line;
mod hugging_face;
mod keras;
mod loss_line;
mod megatron;
mod pairs;
mod rich;
mod run;
#[cfg(test)]
mod testing;
mod tqdm;
mod words;
mod xgboost;

use crate::progress::json;
use protocol::progress::Update;
use run::Run;
use std::sync::LazyLock;
use text::printable;

/// What a line of one form says: nothing if it is of another, an empty update if it is of this one and yet tells nothing.
type Form = fn(&str, &mut Run) -> Option<Update>;

/// The first one that knows a line reads it.
const FORMS: [Form; 11] = [
    hugging_face::dict,
    json_line,
    megatron::line,
    deepspeed::line,
    hugging_face::start,
    rich::bar,
    tqdm::bar,
    keras::line,
    xgboost::line,
    epoch_line::line,
    loss_line::line,
];

/// Reads the lines of one program.
#[derive(Debug, Default)]
pub struct Text {
    run: Run,
    /// Of all ranks that print, the first one is believed.
    rank: Option<u64>,
}

regexes! {
    RANK = r"(?i)\[(?:rank|default) ?([0-9]+)(?:/[0-9]+)?\]";
}

impl Text {
    /// `epochs`: in all, for programs whose text has no total.
    pub fn new(epochs: Option<f64>) -> Self {
        Self { run: Run::new(epochs), rank: None }
    }

    /// Somebody else has told how many steps there are.
    pub fn expect_steps(&mut self, steps: Option<f64>) {
        self.run.steps = steps.or(self.run.steps);
    }

    /// What `line` says, which is without its end.
    pub fn line(&mut self, line: &[u8]) -> Option<Update> {
        // Nearly all that is printed ends here.
        static WORTH_A_LOOK: LazyLock<regex::bytes::Regex> = LazyLock::new(|| {
            text::constant_bytes(r"(?i-u)epoch|loss|iteration|step|progress|percent|[0-9]%\||[0-9]\]\t")
        });
        if !WORTH_A_LOOK.is_match(line) {
            return None;
        }
        let text = printable(line);
        let text = text.trim();
        if self.is_of_a_later_rank(text) {
            return None;
        }
        let update = FORMS.iter().find_map(|form| form(text, &mut self.run))?;
        self.run.has_epochs |= update.epoch.is_some();
        self.run.steps = update.steps.or(self.run.steps);
        Some(update).filter(|update| !update.is_empty())
    }

    fn is_of_a_later_rank(&mut self, text: &str) -> bool {
        let Some(rank) = RANK.captures(text).and_then(|rank| rank[1].parse().ok()) else { return false };
        let first = self.rank.get_or_insert(rank);
        *first = rank.min(*first);
        rank > *first
    }
}

fn json_line(text: &str, _: &mut Run) -> Option<Update> {
    text.find("{\"").filter(|_| text.ends_with('}')).and_then(|at| json::parse_line(&text[at..]))
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use proptest::prelude::*;
    use protocol::progress::{ACCURACY, LOSS};

    #[test]
    fn epochs_in_many_forms() {
        for (line, expected, loss) in [
            ("[EPOCH] 3 loss=0.12", [Some(3.0), Some(10.0), None, None], Some(0.12)),
            ("Epoch 3/5 loss: 0.12", [Some(3.0), Some(5.0), None, None], Some(0.12)),
            (
                "2026-03-02 10:00:00,123 - INFO - epoch=3 | train_loss=1.2e-1 | time=12.5s",
                [Some(3.0), Some(10.0), None, None],
                Some(0.12),
            ),
            ("Epoch [3/5], Step [100/200], Loss: 0.12", [Some(3.0), Some(5.0), Some(500.0), Some(1000.0)], Some(0.12)),
            (
                "Epoch 3/5: 50%|█████     | 50/100 [00:05<00:05, 9.5it/s, loss=0.12]",
                [Some(3.0), Some(5.0), Some(250.0), Some(500.0)],
                Some(0.12),
            ),
            (r#"{"epoch": 3, "loss": 0.12, "step": 7}"#, [Some(3.0), Some(10.0), Some(7.0), None], Some(0.12)),
            ("step 7/9 | loss: 0.12", [None, Some(10.0), Some(7.0), Some(9.0)], Some(0.12)),
            ("iter 7: loss=inf", [None, Some(10.0), Some(7.0), None], Some(f64::INFINITY)),
            (
                "Steps:  10%|█         | 100/1000 [00:01<00:09, 99it/s, lr=1e-5, loss=0.12]",
                [None, Some(10.0), Some(100.0), Some(1000.0)],
                Some(0.12),
            ),
            (
                "Epoch 3/5\n----------\ntrain Loss: 0.12 Acc: 91.5%\nval Loss: 0.5 Acc: 0.8",
                [Some(3.0), Some(5.0), None, None],
                Some(0.12),
            ),
            ("Epoch 3\nsaved\nEpoch 4\n", [Some(3.0), Some(10.0), None, None], None),
        ] {
            let progress = progress(Some(10.0), line);
            assert_eq!((counts(&progress), progress.metric(LOSS)), (expected, loss), "{line}");
        }
        let both = progress(None, "Epoch 3/5\ntrain Loss: 0.12 Acc: 91.5%\nval Loss: 0.5 Acc: 0.8");
        assert_eq!(names(&both), ["accuracy", "loss", "val_acc", "val_loss"]);
        assert_eq!((both.metric(ACCURACY), both.metric("val_acc")), (Some(0.915), Some(0.8)));
        assert!(progress(None, "Epoch 3/10 loss: NaN").metric(LOSS).unwrap().is_nan());
    }

    #[test]
    fn what_only_looks_like_progress() {
        for line in [
            "Step 1/3: downloading the data",
            "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00, 1.5it/s]",
            "Validation DataLoader 0:  50%|█████     | 1/2 [00:00<00:00, 9.5it/s, loss=0.5]",
            "training on 1437 digits, 718 of them here, epochs 1 to 4",
            "checkpoint saved: /checkpoints/epoch=3-val_loss=0.12.ckpt",
            "Epoch 3, global step 40: 'val_loss' reached 0.12",
            "{'model': 'mlp', 'lr': 0.1}",
            r#"{"level": "info", "msg": "loss is computed", "step": 3}"#,
            "label_smoothing_loss: 0.1",
            "loss: information",
            "loss: 3.5GB",
            "the epoch 1970 began the count",
        ] {
            assert_eq!(read(&mut Text::new(Some(10.0)), line.as_bytes()).0, [], "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(lines in prop::collection::vec("(?s).{0,60}|[Ee]poch[ :]?[0-9/.%| \\[\\]]{0,12}(loss[=:][0-9nai.e-]{0,6})?", 0..8)) {
            let mut text = Text::new(None);
            for line in lines {
                if let Some(update) = text.line(line.as_bytes()) {
                    prop_assert!(!update.is_empty());
                }
            }
        }
    }
}
