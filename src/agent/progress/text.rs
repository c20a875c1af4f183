//! Progress read off the lines that training programs print by themselves.
//!
//! Each form is recognised by what nothing else looks like, and a line that could mean two things is taken for neither.

use crate::agent::progress::json;
use crate::protocol::progress::{LOSS, Update};
use crate::protocol::text::printable;
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// What one program has printed so far, as far as later lines need it.
#[derive(Debug, Default)]
pub struct Text {
    /// Epochs in all where the text doesn't say it.
    epochs: Option<f64>,
    /// Steps in all, from whoever told: they tell the training's bar from others.
    steps: Option<f64>,
    /// A line that only began an epoch. It counts once something of it was reported, or the next one began.
    begun: Option<Epoch>,
    /// The last epoch with its step, and whether steps go on over epochs.
    at: Option<(f64, f64)>,
    steps_go_on: bool,
    /// Steps in an epoch, of Keras' bar.
    per_epoch: Option<f64>,
    counts_from_0: bool,
    has_epochs: bool,
    /// Of all ranks that print, the first one is believed.
    rank: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    number: f64,
    of: Option<f64>,
}

macro_rules! regexes {
    ($($name:ident = $($part:expr),+;)*) => {
        $(static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(concat!($($part),+)).expect("a constant"));)*
    };
}

/// A number as programs print it; it ends where [`ends_number`] says so.
macro_rules! number {
    () => {
        "[-+]?(?:(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|inf(?:inity)?))"
    };
}

regexes! {
    RANK = r"(?i)\[(?:rank|default) ?([0-9]+)(?:/[0-9]+)?\]";
    DICT = r"'([A-Za-z_][A-Za-z0-9_./ -]*)': *(?:[a-z][a-z0-9_.]*\()?'?(", number!(), r")'?\)?[,}]";
    MEGATRON = r"\biteration +([0-9]+)/ *([0-9]+) *\|";
    DEEPSPEED = r"\bstep=([0-9]+), skipped=[0-9]+, lr=\[([^\],]*)";
    DEEPSPEED_TIMER = r"\bRunningAvgSamplesPerSec=([0-9.]+), CurrSamplesPerSec=([0-9.]+)";
    DEEPSPEED_STEP = r"/global_step=([0-9]+),";
    TRAINER_EPOCHS = r"^Num Epochs = ([0-9,]+)$";
    TRAINER_STEPS = r"^Total optimization steps = ([0-9,]+)$";
    BAR = r"[0-9]+%\|[^|]*\| *([0-9]+)/([0-9]+) \[(.*)";
    RICH_BAR = r"^Epoch ([0-9]+)/([0-9]+) .* ([0-9]+)/([0-9]+) +[0-9:]+ • ";
    KERAS = r"^([0-9]+)/([0-9]+) .*[0-9][mu]?s/(?:step|epoch)\b(.*)";
    EPOCH = r"(?i)\bepoch\]? *[:=#]? *\[? *([0-9]+(?:[.][0-9]+)?)(?: *(?:/|of) *([0-9]+))?";
    STEP = r"(?i)\b(?:global[_ ])?(?:step|iter|iteration)\]? *[:=#]? *\[? *([0-9]+)(?: *(?:/|of) *([0-9]+))?";
    PAIR = r"((?i:(?:train|training|val|valid|validation|test|eval|evaluation|lm|learning|avg|average|mean|total|running|grad) )?[A-Za-z_][A-Za-z0-9_./@-]*) ?[:=] *(",
        number!(), ")";
    HELD_OUT = r"(?i)\b(val|valid|validation|test|eval|evaluation)\b";
}

impl Text {
    /// `epochs`: in all, for programs whose text has no total.
    pub fn new(epochs: Option<f64>) -> Self {
        Self { epochs, ..Self::default() }
    }

    /// Somebody else has told how many steps there are.
    pub fn expect_steps(&mut self, steps: Option<f64>) {
        self.steps = steps.or(self.steps);
    }

    /// What `line` says, which is without its end.
    pub fn line(&mut self, line: &[u8]) -> Option<Update> {
        // Nearly all that is printed ends here.
        static WORTH_A_LOOK: LazyLock<regex::bytes::Regex> = LazyLock::new(|| {
            regex::bytes::Regex::new(r"(?i-u)epoch|loss|iteration|step|progress|percent|[0-9]%\|").expect("a constant")
        });
        if !WORTH_A_LOOK.is_match(line) {
            return None;
        }
        let text = printable(line);
        let text = text.trim();
        if self.is_of_a_later_rank(text) {
            return None;
        }
        let update = dict(text)
            .or_else(|| text.find("{\"").filter(|_| text.ends_with('}')).and_then(|at| json::parse_line(&text[at..])))
            .or_else(|| megatron(text))
            .or_else(|| deepspeed(text))
            .or_else(|| trainer(text))
            .or_else(|| self.rich_bar(text));
        let update = match update {
            Some(update) => Some(update),
            None => match BAR.captures(text) {
                Some(bar) => self.bar(text, &bar),
                None => match KERAS.captures(text) {
                    Some(keras) => self.keras(&keras),
                    None => match EPOCH.captures(text) {
                        Some(epoch) => self.epoch(text, &epoch),
                        None => self.bare(text),
                    },
                },
            },
        }?;
        self.has_epochs |= update.epoch.is_some();
        self.steps = update.steps.or(self.steps);
        Some(update).filter(|update| !update.is_empty())
    }

    fn is_of_a_later_rank(&mut self, text: &str) -> bool {
        let Some(rank) = RANK.captures(text).and_then(|rank| rank[1].parse().ok()) else { return false };
        let first = self.rank.get_or_insert(rank);
        *first = rank.min(*first);
        rank > *first
    }

    /// tqdm's, also Lightning's. There are bars for anything: the training's tells an epoch, a loss or the right total.
    fn bar(&mut self, text: &str, bar: &Captures) -> Option<Update> {
        let start = bar.get(0)?.start();
        let title = text[..start].trim();
        let (step, steps) = (parse(&bar[1])?, parse(&bar[2])?);
        if HELD_OUT.is_match(title) || title.starts_with("Sanity Checking") {
            return None;
        }
        self.counts_from_0 |= bar[3].contains("v_num=");
        let mut update = match EPOCH.captures(title) {
            Some(epoch) => self.within(number_of(&epoch)?, step, steps),
            None => Update::default(),
        };
        pairs(&bar[3], None, &mut update);
        if update.epoch.is_some() {
            return Some(update);
        }
        if update.metrics.contains_key(LOSS) {
            return Some(match self.begun {
                Some(epoch) => Update { metrics: update.metrics, ..self.within(epoch, step, steps) },
                None => Update { step: Some(step), steps: Some(steps), ..update },
            });
        }
        (self.steps == Some(steps)).then(|| Update { step: Some(step), steps: Some(steps), ..Update::default() })
    }

    /// Lightning's bar where rich is installed: `Epoch 2/9 ━━━ 40/40 0:00:01 • 0:00:00 62.69it/s v_num: 0.000`. It
    /// counts from 0, and 9 is the number of the last one.
    fn rich_bar(&mut self, text: &str) -> Option<Update> {
        let bar = RICH_BAR.captures(text)?;
        self.counts_from_0 = true;
        let epoch = Epoch { number: parse(&bar[1])?, of: Some(parse(&bar[2])? + 1.0) };
        let mut update = self.within(epoch, parse(&bar[3])?, parse(&bar[4])?);
        pairs(&text[bar.get(0)?.end()..], None, &mut update);
        Some(update)
    }

    /// Keras prints the same for an evaluation, but there without an epoch before it or with another total.
    fn keras(&mut self, keras: &Captures) -> Option<Update> {
        let epoch = self.begun?;
        let (step, steps) = (parse(&keras[1])?, parse(&keras[2])?);
        if *self.per_epoch.get_or_insert(steps) != steps {
            return None;
        }
        let mut update = self.within(epoch, step, steps);
        pairs(&keras[3], None, &mut update);
        Some(update)
    }

    /// A line with the word epoch and a number.
    fn epoch(&mut self, text: &str, found: &Captures) -> Option<Update> {
        let epoch = number_of(found)?;
        let found = found.get(0)?;
        let mut update = Update::default();
        pairs(text, held_out(text), &mut update);
        let step = STEP.captures(&text[found.end()..]);
        if update.metrics.is_empty() && step.is_none() {
            // "Epoch 3" alone on its line, or with decoration; a sentence that mentions one says nothing.
            let alone = found.len() + 10 >= text.len();
            return (alone || epoch.of.is_some()).then(|| self.begin(epoch));
        }
        let measures = |name: &String| name.contains("loss") || name.contains("acc");
        if epoch.of.is_none() && !update.metrics.keys().any(measures) {
            return None;
        }
        let within = match step.as_ref().and_then(|step| Some((parse(&step[1])?, parse(step.get(2)?.as_str())?))) {
            Some((step, steps)) => self.within(epoch, step, steps),
            None => Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() },
        };
        self.begun = None;
        Some(Update { metrics: update.metrics, ..within })
    }

    /// An epoch has begun, of which nothing is known yet; that the one before it is over is.
    fn begin(&mut self, epoch: Epoch) -> Update {
        let before = self.begun.replace(epoch).filter(|before| before.number + 1.0 == epoch.number);
        Update { epoch: before.map(|before| before.number), epochs: epoch.of, ..Update::default() }
    }

    /// A line without the word epoch that has a loss.
    fn bare(&mut self, text: &str) -> Option<Update> {
        let mut update = Update::default();
        pairs(text, held_out(text), &mut update);
        if !["loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "eval_loss", "val loss", "test loss"]
            .iter()
            .any(|&name| update.metrics.contains_key(name))
        {
            return None;
        }
        let step = STEP.captures(text);
        let step = step.and_then(|step| Some((parse(&step[1])?, step.get(2).and_then(|of| parse(of.as_str())))));
        let metrics = std::mem::take(&mut update.metrics);
        let update = match (step, self.begun) {
            (Some((step, Some(steps))), Some(epoch)) => self.within(epoch, step, steps),
            (None, Some(epoch)) => Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() },
            // Of the epoch or of all: it doesn't say.
            (Some(_), _) if self.has_epochs => Update::default(),
            (Some((step, steps)), None) => Update { step: Some(step), steps, ..Update::default() },
            _ => Update::default(),
        };
        Some(Update { metrics, ..update })
    }

    /// Step `step` of the `steps` in `epoch`, as steps of the run.
    fn within(&mut self, epoch: Epoch, step: f64, steps: f64) -> Update {
        self.counts_from_0 |= epoch.number == 0.0;
        let epochs = epoch.of.or(self.epochs);
        let done = epoch.number - if self.counts_from_0 { 0.0 } else { 1.0 };
        // The next epoch goes on counting where the last one ended, and stands where the run would stand.
        self.steps_go_on |= self.at.is_some_and(|(number, last)| epoch.number > number && step > last)
            && epochs.is_some_and(|epochs| step / steps >= done / epochs);
        self.at = Some((epoch.number, step));
        let mut update = Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() };
        // At 0 Lightning draws the bar of the next epoch under the number of the last one.
        if step > 0.0 && self.steps_go_on {
            (update.step, update.steps) = (Some(step), Some(steps));
        } else if step > 0.0 {
            update.step = Some(done * steps + step);
            update.steps = epochs.map(|epochs| epochs * steps);
        }
        update
    }
}

/// The Hugging Face Trainer's: a Python dictionary with an epoch. Version 5 quotes the numbers.
fn dict(text: &str) -> Option<Update> {
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

/// ` iteration       10/    5000 | learning rate: 1.2E-05 | lm loss: 1.04E+01 |`
fn megatron(text: &str) -> Option<Update> {
    let found = MEGATRON.captures(text)?;
    let mut update = Update { step: parse(&found[1]), steps: parse(&found[2]), ..Update::default() };
    for part in text[found.get(0)?.end()..].split('|') {
        if let Some((name, value)) = part.split_once(':')
            && let Ok(value) = value.trim().parse()
        {
            update.set(name.trim(), value);
        }
    }
    Some(update)
}

fn deepspeed(text: &str) -> Option<Update> {
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

/// What the Hugging Face Trainer tells at its start where its log level is INFO.
fn trainer(text: &str) -> Option<Update> {
    let number = |found: Captures| found[1].replace(',', "").parse().ok();
    if let Some(epochs) = TRAINER_EPOCHS.captures(text) {
        return Some(Update { epochs: number(epochs), ..Update::default() });
    }
    Some(Update { steps: number(TRAINER_STEPS.captures(text)?), ..Update::default() })
}

fn number_of(epoch: &Captures) -> Option<Epoch> {
    Some(Epoch { number: parse(&epoch[1])?, of: epoch.get(2).and_then(|of| parse(of.as_str())).filter(|&of| of > 0.0) })
}

/// What a line measures that doesn't speak of the training: `val` of `val Loss: 0.5 Acc: 0.9`.
fn held_out(text: &str) -> Option<&str> {
    let before = &text[..PAIR.find(text)?.start()];
    let found = HELD_OUT.find_iter(before).last()?;
    (!before.to_ascii_lowercase().contains("train")).then(|| found.as_str())
}

/// All `name: number` and `name=number` in `text`, those of held-out data under their own names.
fn pairs(text: &str, held_out: Option<&str>, update: &mut Update) {
    // Counts and labels, and what stands in the line as a count already.
    const NO_METRICS: [&str; 13] = [
        "epoch",
        "epochs",
        "step",
        "steps",
        "global_step",
        "iter",
        "iteration",
        "v_num",
        "rank",
        "local_rank",
        "world_size",
        "eta",
        "progress",
    ];
    // "val Loss: 0.5": the word before the first name is part of it.
    let mut held_out = held_out.map(str::to_ascii_lowercase);
    for pair in PAIR.captures_iter(text) {
        let (Some(name), Some(number)) = (pair.get(1), pair.get(2)) else { continue };
        let after = &text[number.end()..];
        if !ends_number(after) || NO_METRICS.contains(&name.as_str().to_ascii_lowercase().as_str()) {
            continue;
        }
        let Some(mut value) = parse(number.as_str()) else { continue };
        let mut name = name.as_str().to_owned();
        if let Some((word, rest)) = name.split_once(' ')
            && HELD_OUT.is_match(word)
        {
            held_out.get_or_insert(word.to_ascii_lowercase());
            name = format!("{}_{}", word.to_ascii_lowercase(), rest.to_ascii_lowercase());
        } else if let Some(word) = &held_out
            && ["loss", "acc", "accuracy"].contains(&name.to_ascii_lowercase().as_str())
        {
            name = format!("{word}_{}", name.to_ascii_lowercase());
        }
        if after.starts_with('%') && name.to_ascii_lowercase().contains("acc") {
            value /= 100.0;
        }
        update.set(&name, value);
    }
}

/// Whether a number may stand before `after`: not one with a unit, nor part of a name, a date or a version.
fn ends_number(after: &str) -> bool {
    let mut rest = after.chars();
    match rest.next() {
        None => true,
        Some('.' | ':') => rest.next().is_none_or(char::is_whitespace),
        Some(c) => c.is_whitespace() || matches!(c, ',' | ';' | '|' | ')' | ']' | '}' | '\'' | '"' | '%'),
    }
}

fn parse(number: &str) -> Option<f64> {
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::output::lines::Lines;
    use crate::protocol::progress::{ACCURACY, LEARNING_RATE, Progress, Reading, Source, THROUGHPUT};
    use jiff::Timestamp;
    use proptest::prelude::*;

    macro_rules! recorded {
        ($name:literal) => {
            include_bytes!(concat!("../../../tests/fixtures/progress/", $name))
        };
    }

    /// All updates that a stream gives, and what they come to.
    fn read(text: &mut Text, stream: &[u8]) -> (Vec<Update>, Progress) {
        let (mut updates, mut progress) = (Vec::new(), Progress::default());
        let asked = Update { epochs: text.epochs, ..Update::default() };
        progress.merge(&asked, Source::Environment, Timestamp::UNIX_EPOCH);
        Lines::default().push(&[stream, b"\n"].concat(), |line| updates.extend(text.line(line)));
        updates.iter().for_each(|update| _ = progress.merge(update, Source::Output, Timestamp::UNIX_EPOCH));
        (updates, progress)
    }

    /// What a program says that was asked for so many epochs.
    fn progress(epochs: Option<f64>, stream: &str) -> Progress {
        read(&mut Text::new(epochs), stream.as_bytes()).1
    }

    /// (epoch, epochs, step, steps)
    fn counts(progress: &Progress) -> [Option<f64>; 4] {
        [progress.epoch, progress.epochs, progress.step, progress.steps]
            .map(|reading: Option<Reading>| Some(reading?.value))
    }

    fn names(progress: &Progress) -> Vec<&str> {
        progress.metrics.keys().map(String::as_str).collect()
    }

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

    #[test]
    fn lightning() {
        let (updates, last) = read(&mut Text::new(Some(3.0)), recorded!("lightning-2.6.stdout"));
        assert_eq!(counts(&last), [Some(2.0), Some(3.0), Some(120.0), Some(120.0)]);
        assert_eq!((last.metric(LOSS), last.metric("val_acc")), (Some(0.173), Some(1.0)));
        assert_eq!(names(&last), ["loss", "val_acc"]);
        let steps: Vec<f64> = updates.iter().filter_map(|update| update.step).collect();
        assert!(steps.is_sorted() && steps.len() > 60, "{steps:?}");
        let (_, without) = read(&mut Text::new(None), recorded!("lightning-2.6.stdout"));
        assert_eq!((counts(&without), without.percent()), ([Some(2.0), None, Some(120.0), None], None));
        let (_, rich) = read(&mut Text::new(None), recorded!("lightning-2.6-rich.stdout"));
        assert_eq!(counts(&rich), [Some(2.0), Some(3.0), Some(120.0), Some(120.0)]);
    }

    #[test]
    fn keras() {
        let recorded = std::str::from_utf8(recorded!("keras-3.15.stdout")).unwrap();
        let (fit, verbose_2) = recorded.split_once("--- verbose=2\n").unwrap();
        let last = progress(None, fit);
        assert_eq!(counts(&last), [Some(3.0), Some(3.0), Some(48.0), Some(48.0)]);
        assert_eq!((last.metric(LOSS), last.metric(ACCURACY)), (Some(0.5744), Some(0.6797)));
        assert_eq!((last.metric("val_loss"), last.metrics.len()), (Some(0.5674), 4));
        let (updates, last) = read(&mut Text::new(None), verbose_2.as_bytes());
        assert_eq!((updates[0].epoch, updates[0].epochs), (None, Some(2.0)), "an epoch that has only begun");
        assert_eq!((updates[1].epoch, updates[1].step, updates[1].steps), (Some(1.0), Some(16.0), Some(32.0)));
        assert_eq!(counts(&last), [Some(2.0), Some(2.0), Some(32.0), Some(32.0)]);
        let evaluated = format!("{fit}\n8/8 ━━━━━━━━━━━━━━━━━━━━ 0s 2ms/step - accuracy: 0.1 - loss: 9.9\n");
        assert_eq!(progress(None, &evaluated).metric(LOSS), Some(0.5744));
        let old = "Epoch 2/4\n 3/10 [===>..........] - ETA: 1s - loss: 0.5 - acc: 0.25\n10/10 [====] - 2s 2ms/step - loss: 0.25 - acc: 0.5\n";
        assert_eq!(counts(&progress(None, old)), [Some(2.0), Some(4.0), Some(20.0), Some(40.0)]);
    }

    #[test]
    fn megatron_lm() {
        let (updates, last) = read(&mut Text::default(), recorded!("megatron.stdout"));
        assert_eq!(counts(&updates_of(&updates[..1])), [None, None, Some(10.0), Some(2000.0)]);
        assert_eq!(counts(&last), [None, None, Some(20.0), Some(2000.0)]);
        assert_eq!((last.metric(LOSS), last.metric(LEARNING_RATE)), (Some(9.871034), Some(4e-6)));
        assert_eq!(last.metric("throughput per GPU (TFLOP/s/GPU)"), Some(304.3));
        assert!(progress(None, " iteration 3/ 9 | lm loss: NAN |").metric(LOSS).unwrap().is_nan());
    }

    fn updates_of(updates: &[Update]) -> Progress {
        let mut progress = Progress::default();
        updates.iter().for_each(|update| _ = progress.merge(update, Source::Output, Timestamp::UNIX_EPOCH));
        progress
    }

    #[test]
    fn deepspeed() {
        let (updates, last) = read(&mut Text::default(), recorded!("deepspeed.stderr"));
        assert_eq!(updates.len(), 4);
        assert_eq!(counts(&last), [None, None, Some(20.0), None]);
        assert_eq!((last.metric(LEARNING_RATE), last.metric(THROUGHPUT)), (Some(4e-5), Some(223.75)));
    }

    #[test]
    fn the_demo_of_which_the_first_rank_counts() {
        let (updates, last) = read(&mut Text::default(), recorded!("torchrun-demo.stdout"));
        assert_eq!(counts(&last), [Some(4.0), Some(4.0), None, None]);
        assert_eq!((last.metric(LOSS), last.metric("test_accuracy")), (Some(0.1825), Some(0.95)));
        assert_eq!(updates.iter().map(|update| update.epoch.unwrap()).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(last.percent(), Some(100.0));
    }

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
    fn steps_that_go_on_over_epochs() {
        let one = "Epoch 1/4, step 90/400, loss: 0.5\n";
        let two = "Epoch 2/4, step 110/400, loss: 0.5\n";
        assert_eq!(counts(&progress(None, &format!("{one}{two}"))), [Some(2.0), Some(4.0), Some(110.0), Some(400.0)]);
        let missed = "Epoch 1/4, step 10/100, loss: 0.5\nEpoch 2/4, step 20/100, loss: 0.5\n";
        assert_eq!(counts(&progress(None, missed)), [Some(2.0), Some(4.0), Some(120.0), Some(400.0)]);
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
