//! Progress read off the lines that training programs print by themselves, one small file for each form.
//!
//! Each form is recognised by features that no other line has. A line that could mean two things counts as neither.

#[macro_use]
mod number;
mod deepspeed;
mod episode_line;
mod epoch_line;
mod hugging_face;
mod keras;
mod lightgbm;
mod loss_line;
mod megatron;
mod pairs;
mod prefix;
mod rich;
mod run;
mod step_line;
mod table;
#[cfg(test)]
mod testing;
mod tqdm;
mod unnamed_epoch;
mod words;
mod xgboost;

use crate::progress::json;
use protocol::progress::{Update, field_metric};
use run::{Run, Unit};
use std::sync::LazyLock;
use text::printable;

/// Reads a line of one form. `None` if the line has another form, an empty update if it has this form without progress.
type Form = fn(&str, &mut Run) -> Option<Update>;

/// The first form that recognises a line reads it.
const FORMS: [Form; 17] = [
    hugging_face::dict,
    json_line,
    megatron::line,
    deepspeed::line,
    hugging_face::start,
    hugging_face::end,
    rich::bar,
    tqdm::bar,
    keras::line,
    xgboost::line,
    lightgbm::line,
    table::line,
    unnamed_epoch::line,
    epoch_line::line,
    episode_line::line,
    loss_line::line,
    step_line::line,
];

/// Reads the lines of one program.
#[derive(Debug, Default)]
pub struct Text {
    run: Run,
    /// The lowest rank that has printed so far. Only its lines are read.
    rank: Option<f64>,
}

impl Text {
    /// `epochs` is the total, for programs that print none.
    pub fn new(epochs: Option<f64>) -> Self {
        Self { run: Run::new(epochs), rank: None }
    }

    /// Sets the metrics that the job names. A line of JSON with one of them and a step is progress.
    #[must_use]
    pub fn naming<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.run.named = names.into_iter().map(|name| field_metric(name).to_owned()).collect();
        self
    }

    /// Sets the total number of steps, from another source.
    pub fn expect_steps(&mut self, steps: Option<f64>) {
        self.run.steps = steps.or(self.run.steps);
    }

    /// Reads the progress in `line`, which has no line end.
    pub fn line(&mut self, line: &[u8]) -> Option<Update> {
        // Nearly all that is printed ends here.
        static WORTH_A_LOOK: LazyLock<regex::bytes::Regex> = LazyLock::new(|| {
            text::constant_bytes(r"(?i-u)epoch|epis|loss|iter[a( :=#\[]|step|progress|percent|[0-9]%\||[0-9]\]\t")
        });
        if !WORTH_A_LOOK.is_match(line) {
            return None;
        }
        let text = printable(line);
        let (rank, text) = prefix::split(text.trim());
        if rank.is_some_and(|rank| self.is_later(rank)) {
            return None;
        }
        let update = FORMS.iter().find_map(|form| form(text, &mut self.run))?;
        self.run.has_epochs |= update.epoch.is_some();
        if update.step.is_some() && self.run.unit == Unit::Unknown {
            self.run.unit = Unit::Steps;
        }
        self.run.steps = update.steps.or(self.run.steps);
        Some(update).filter(|update| !update.is_empty())
    }

    fn is_later(&mut self, rank: f64) -> bool {
        let first = self.rank.get_or_insert(rank);
        *first = rank.min(*first);
        rank > *first
    }
}

fn json_line(text: &str, run: &mut Run) -> Option<Update> {
    text.find("{\"").filter(|_| text.ends_with('}')).and_then(|at| json::parse_line(&text[at..], &run.named))
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::{FORMS, prefix};
    use proptest::prelude::*;
    use protocol::progress::{ACCURACY, LOSS, Progress, THROUGHPUT};
    use std::collections::BTreeSet;

    #[test]
    fn many_epoch_formats_are_parsed() {
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
    fn known_metric_name_before_its_number_is_parsed() {
        for (line, loss) in [
            ("iter 250: loss 2.1234, time 135.52ms, mfu 12.30%", 2.1234),
            ("step 12/4000 loss 0.07", 0.07),
            ("step 12/40: loss 0.07", 0.07),
            ("step 1,200/4,000 | loss 7e-2 lr 0.1", 0.07),
            ("step 12 loss 0.07 acc=0.5 in 3.2s", 0.07),
            ("step 12 loss 0.07 in 3.2 s", 0.07),
            ("Epoch 3 loss 0.07 - 12 ms", 0.07),
            ("step 12 loss nan", f64::NAN),
        ] {
            let last = progress(None, line).metric(LOSS);
            assert_eq!(last.map(f64::to_bits), Some(f64::to_bits(loss)), "{line}");
        }
        for line in [
            "step 12: loss 2.0 is too large, it is skipped",
            "step 12: loss 3 functions are registered",
            "step 12: loss 3 of 4",
            "step 12: loss 0.5 of 4.0",
            "step 12: reduced the loss 0.5",
            "step 12: initial loss 0.5",
            "step 12: best loss 0.5",
            "step 12: loss 2.8.0 is the version",
            "step 12: loss 10:21:01",
            "step 12: loss 0.5ms",
            "step 12: loss_fn 0.5",
            "step 12: loss 0.5 -> 0.4",
            "using loss CrossEntropyLoss(weight=0.5)",
            "saved step 12 to loss 0.5/model.pt",
            "step 12: train.loss.py 3",
        ] {
            assert_eq!(progress(None, line).metric(LOSS), None, "{line}");
        }
    }

    #[test]
    fn decimal_comma_is_not_parsed_as_a_number() {
        for line in
            ["step 3 loss: 0,123", "step 3 loss: 1,234", "step 3 loss=12,5", "step 3 loss 0,123", "step 3 loss: 3,"]
        {
            let loss = progress(None, line).metric(LOSS);
            assert_eq!(loss, line.ends_with("3,").then_some(3.0), "{line}");
        }
        let last = progress(None, "step 1,000/4,000 loss: 1,234.5, tps: 5,123");
        assert_eq!((counts(&last)[2..].to_vec(), last.metric(LOSS)), (vec![Some(1e3), Some(4e3)], Some(1234.5)));
        assert_eq!(last.metric(THROUGHPUT), Some(5123.0));
    }

    #[test]
    fn values_loaded_from_a_checkpoint_are_not_progress() {
        for line in [
            "Checkpoint loaded: epoch=12, loss=0.05",
            "Loading checkpoint: step 1000/4000, loss 0.05",
            "Resuming from checkpoint, epoch 12/90, loss: 0.05",
            "Restored: step 1000, loss: 0.05",
            "reloaded epoch 12/90",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
        for line in
            ["step 7 | data loaded in 0.1s | loss 0.5", "data load 0.1s, step 7, loss 0.5", "stored step 7, loss: 0.5"]
        {
            assert_eq!(counts(&progress(None, line))[2], Some(7.0), "{line}");
        }
    }

    #[test]
    fn evaluation_steps_are_not_training_steps() {
        for line in [
            "val step 3/9 loss: 0.5",
            "Epoch 2/9 val [3/9] loss: 0.5",
            "Test: [ 10/100]\tTime 0.1 (0.2)\tLoss 0.5 (0.6)",
        ] {
            let last = progress(None, line);
            assert_eq!((counts(&last)[2], last.metric(LOSS)), (None, None), "{line}");
            assert!(last.metrics.values().any(|reading| reading.value == 0.5), "{line}");
        }
    }

    #[test]
    fn lines_resembling_progress_are_ignored() {
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

    /// The rows of the table `name` of a page, without the marks of code.
    fn rows(page: &str, name: &str) -> Vec<Vec<String>> {
        let (_, rest) = page.split_once(&format!("<!-- {name} -->\n")).unwrap();
        let (table, _) = rest.split_once(&format!("<!-- /{name} -->")).unwrap();
        let row = |line: &str| -> Vec<String> {
            let cells = line.replace(r"\|", "\u{1}");
            let cells = cells.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{1}', "|"));
            cells.map(|cell| cell.trim_matches('`').to_owned()).collect()
        };
        table.lines().filter(|line| line.contains('`')).map(row).collect()
    }

    /// What the programs of `docs/jobs.md` print: the program, the lines as the table has them, and what it says that they give.
    fn documented() -> Vec<[String; 3]> {
        let rows = rows(include_str!("../../../../../docs/jobs.md"), "formats");
        rows.into_iter().map(|row| row.try_into().unwrap()).collect()
    }

    /// As the table of the docs has it.
    fn shown(progress: &Progress) -> String {
        let [epoch, epochs, step, steps] = counts(progress);
        let count = |name, at: Option<f64>, of: Option<f64>| match (at, of) {
            (Some(at), Some(of)) => Some(format!("{name} {at} of {of}")),
            (Some(at), None) => Some(format!("{name} {at}")),
            (None, Some(of)) => Some(format!("{of} {name}s")),
            (None, None) => None,
        };
        let metrics = progress.metrics.iter().map(|(name, reading)| format!("{name} {}", reading.value));
        let counts = [count("epoch", epoch, epochs), count("step", step, steps)];
        counts.into_iter().flatten().chain(metrics).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn docs_list_every_form_and_its_result() {
        let (mut forms, mut wrong) = (BTreeSet::new(), Vec::new());
        for [program, lines, gives] in documented() {
            let lines = lines.replace(r"\n", "\n").replace(r"\t", "\t");
            let shown = shown(&progress(None, &lines));
            if shown != gives {
                wrong.push(format!("{program}: {lines}\n  gives {shown}"));
            }
            let (before, last) = lines.rsplit_once('\n').unwrap_or_default();
            let last = if last.is_empty() { &lines } else { last };
            let mut text = Text::new(None);
            read(&mut text, before.as_bytes());
            forms.insert(FORMS.iter().position(|form| form(prefix::split(last).1, &mut text.run).is_some()));
        }
        assert!(wrong.is_empty(), "docs/jobs.md says otherwise:\n{}", wrong.join("\n"));
        let missing: Vec<usize> = (0..FORMS.len()).filter(|&form| !forms.contains(&Some(form))).collect();
        assert!(missing.is_empty(), "docs/jobs.md has no line of the forms {missing:?}");
    }

    #[test]
    fn docs_match_the_parsed_output_of_public_scripts() {
        let mut wrong = Vec::new();
        for row in rows(include_str!("../../../../../docs/programs.md"), "scripts") {
            let [script, _, tried, lines, gives, _] = <[String; 6]>::try_from(row).unwrap();
            let shown = shown(&progress(None, &lines.replace(r"\n", "\n").replace(r"\t", "\t")));
            assert!(["ran", "read"].contains(&&*tried), "{script}: {tried}");
            if shown != gives {
                wrong.push(format!("{script}: {lines}\n  gives {shown}"));
            }
        }
        assert!(wrong.is_empty(), "docs/programs.md says otherwise:\n{}", wrong.join("\n"));
    }

    proptest! {
        #[test]
        fn text_parser_survives_arbitrary_lines(lines in prop::collection::vec("(?s).{0,60}|[Ee]poch[ :]?[0-9/.%| \\[\\]]{0,12}(loss[=:][0-9nai.e-]{0,6})?", 0..8)) {
            let mut text = Text::new(None);
            for line in lines {
                if let Some(update) = text.line(line.as_bytes()) {
                    prop_assert!(!update.is_empty());
                }
            }
        }
    }
}
