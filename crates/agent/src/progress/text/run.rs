//! The position of a program in its run, according to its output so far.

use super::number::{ends_count, group, parse};
use protocol::progress::Update;
use regex::{Captures, Match, Regex};
use std::collections::{BTreeMap, VecDeque};

/// The parts of one program's output so far that later lines need.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Total epochs, if the output does not say them.
    pub epochs: Option<f64>,
    /// Total steps, from any source. They distinguish the training's bar from others.
    pub steps: Option<f64>,
    /// An epoch that a line only began. It counts when something of it is reported, or the next one begins.
    pub begun: Option<Epoch>,
    /// The last epoch with its step, and whether steps go on over epochs.
    at: Option<(f64, f64)>,
    steps_go_on: bool,
    /// Steps in an epoch, from Keras' bar.
    pub per_epoch: Option<f64>,
    /// The values of the last bars when they stood at 0, by title.
    bars: VecDeque<(String, BTreeMap<String, f64>)>,
    pub counts_from_0: bool,
    pub has_epochs: bool,
    /// The last step that stood alone on its line.
    alone: Option<BareStep>,
    pub unit: Unit,
    pub next_round: NextRound,
    /// Metrics that the job names.
    pub named: Vec<String>,
}

/// The unit of the run's steps, which is that of the first one.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Unit {
    #[default]
    Unknown,
    Steps,
    Episodes,
}

/// A step that stood alone on its line.
#[derive(Clone, Copy, Debug)]
struct BareStep {
    number: f64,
    of: Option<f64>,
    /// Whether a loss came after it.
    measured: bool,
}

/// The round that LightGBM's next line of a round belongs to.
#[derive(Debug, Default, PartialEq)]
pub(super) enum NextRound {
    #[default]
    Now,
    /// Its best round, as an earlier line announced.
    Best,
}

/// The number of an epoch, and the total.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    pub number: f64,
    pub of: Option<f64>,
}

/// A step in a line, the total, and the text around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepMatch<'t> {
    pub number: f64,
    pub of: Option<f64>,
    pub before: &'t str,
    pub after: &'t str,
}

regexes! {
    EPOCH = r"(?i)\bepoch(?:\(train\))?\]? *[:=#]? *\[? *([0-9]+(?:[.][0-9]+)?)(?: *(?:/|of) *([0-9]+))?";
    STEP = r"(?i)\b(?:global[_ ])?(?:step|iter|iteration)(?:\(train\))?\]? *[:=#]? *\[? *(", count!(),
        r")(?: *(?:/|of) *(", count!(), "))?";
    NAMED_BATCH = r"(?i)^[\]),:|]* *[\[(|-]? *(?:batch[ :#]*\[?|iters:) *(", count!(), r")(?: *(?:/|of) *(", count!(), "))?";
    BATCH = r"(?i)^\]? *(?:[\[(] *|\|? *|: +)(", count!(), ") */ *(", count!(), r")(?:[\])]| *batches\b| [a-z_]+=)";
}

impl Epoch {
    /// The first epoch in `text`, and its match.
    pub fn find(text: &str) -> Option<(Self, Match<'_>)> {
        let found = EPOCH.captures(text)?;
        let epoch = Self { number: group(&found, 1)?, of: group(&found, 2).filter(|&of| of > 0.0) };
        Some((epoch, found.get(0)?))
    }
}

impl<'t> StepMatch<'t> {
    /// The first step in `text`.
    pub fn find(text: &'t str) -> Option<Self> {
        STEP.captures_iter(text).find_map(|found| Self::from_captures(&found, text))
    }

    /// The step at the beginning of `text`, which follows an epoch: a step, or the batch of a data loader.
    pub fn find_in_epoch(text: &'t str) -> Option<Self> {
        let batch = BATCH.captures(text).or_else(|| NAMED_BATCH.captures(text));
        batch.and_then(|found| Self::from_captures(&found, text)).or_else(|| Self::find(text))
    }

    /// The step without a name that `regex` finds.
    pub fn find_bare(regex: &Regex, text: &'t str) -> Option<Self> {
        let number = regex.captures(text)?.get(1)?;
        let (before, after) = (&text[..number.start()], &text[number.end()..]);
        Some(Self { number: parse(number.as_str())?, of: None, before, after })
    }

    fn from_captures(found: &Captures, text: &'t str) -> Option<Self> {
        let last = found.get(2).or(found.get(1))?;
        let (before, after) = (&text[..found.get(0)?.start()], &text[last.end()..]);
        ends_count(after).then_some(Self { number: group(found, 1)?, of: group(found, 2), before, after })
    }
}

impl Run {
    pub fn new(epochs: Option<f64>) -> Self {
        Self { epochs, ..Self::default() }
    }

    /// Takes in that an epoch has begun. Nothing is known of it yet, but the epoch before it is over.
    pub fn begin(&mut self, epoch: Epoch) -> Update {
        let before = self.begun.replace(epoch).filter(|before| before.number + 1.0 == epoch.number);
        Update { epoch: before.map(|before| before.number), epochs: epoch.of, ..Update::default() }
    }

    /// The update of a line with `step` and no epoch. The step belongs to the epoch that has begun, if there is one.
    pub fn at(&mut self, step: Option<StepMatch>) -> Update {
        let counts = |step: StepMatch| Update { step: Some(step.number), steps: step.of, ..Update::default() };
        match (step, self.begun) {
            (Some(StepMatch { number, of: Some(steps), .. }), Some(epoch)) => self.within(epoch, number, steps),
            (None, Some(epoch)) => Update { epoch: Some(epoch.number), epochs: epoch.of, ..Update::default() },
            // A step of the epoch or of the run: the line does not say which.
            (Some(_), _) if self.has_epochs => Update { is_certain: true, ..Update::default() },
            (Some(step), None) => counts(step),
            _ => Update::default(),
        }
    }

    /// Whether `step`, alone on its line, continues the one before it, with the same total. A total below ten may
    /// belong to anything: a recipe, a build, a headline. A training prints a loss between two of them.
    pub fn goes_on(&mut self, step: &StepMatch) -> bool {
        let before = self.alone.replace(BareStep { number: step.number, of: step.of, measured: false });
        before.is_some_and(|before| {
            let follows = before.of == step.of && before.number < step.number;
            follows && (before.measured || step.of.unwrap_or(step.number) >= 10.0)
        })
    }

    /// Takes in a loss without a step. It belongs to the last step that stood alone.
    pub fn measured_after_step(&mut self) {
        if let Some(alone) = &mut self.alone {
            alone.measured = true;
        }
    }

    /// Converts step `step` of the `steps` in `epoch` to steps of the run.
    pub fn within(&mut self, epoch: Epoch, step: f64, steps: f64) -> Update {
        self.counts_from_0 |= epoch.number == 0.0;
        let epochs = epoch.of.or(self.epochs);
        let done = epoch.number - if self.counts_from_0 { 0.0 } else { 1.0 };
        // The next epoch continues the count of the last one, and its step fits the position in the run.
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

    /// Removes from `shown` the values that a bar has shown since it stood at 0. A bar at 0 shows initial values,
    /// possibly 0, which stay until something is measured.
    pub fn measured(&mut self, title: &str, step: f64, shown: &mut BTreeMap<String, f64>) {
        const BARS: usize = 8;
        if step == 0.0 {
            self.bars.retain(|(known, _)| known != title);
            self.bars.truncate(BARS - 1);
            self.bars.push_front((title.to_owned(), std::mem::take(shown)));
        } else if let Some((_, first)) = self.bars.iter_mut().find(|(known, _)| known == title) {
            first.retain(|name, value| {
                let stands = shown.get(name).is_some_and(|now| now.to_bits() == value.to_bits());
                // Another value than 0 may have been measured at the first step.
                stands && (*value == 0.0 || step < 2.0)
            });
            shown.retain(|name, _| !first.contains_key(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;

    #[test]
    fn steps_may_continue_across_epochs() {
        let one = "Epoch 1/4, step 90/400, loss: 0.5\n";
        let two = "Epoch 2/4, step 110/400, loss: 0.5\n";
        assert_eq!(counts(&progress(None, &format!("{one}{two}"))), [Some(2.0), Some(4.0), Some(110.0), Some(400.0)]);
        let missed = "Epoch 1/4, step 10/100, loss: 0.5\nEpoch 2/4, step 20/100, loss: 0.5\n";
        assert_eq!(counts(&progress(None, missed)), [Some(2.0), Some(4.0), Some(120.0), Some(400.0)]);
    }
}
