//! Metrics whose every reading counts, because decisions that depend on them must not miss a reading between two
//! requests.

use protocol::metric_history::MetricHistory;
use protocol::progress::{Progress, Source, Update, field_metric};
use std::collections::BTreeMap;

/// The watched metrics, by the names under which they were requested.
#[derive(Debug, Default)]
pub struct MetricHistories(BTreeMap<String, Watch>);

#[derive(Debug, Default)]
struct Watch {
    watched: MetricHistory,
    seen: LastReport,
}

/// The last report of a metric, to distinguish a reading from a repetition.
///
/// A repetition is no new reading. A bar shows the last loss each time it is drawn, and the Hugging Face Trainer posts
/// its last evaluation with every message. An evaluation has more than one value (the time that it took). Where they
/// are reported, the other values distinguish a new evaluation with the same result from a repetition.
#[derive(Debug, Default)]
pub struct LastReport {
    /// The source of the last report. Sources after it in the order do not count any more.
    source: Option<Source>,
    /// The last values of the metric and of those measured with it.
    said: Vec<(String, u64)>,
    /// The step and epoch that were reported with it.
    place: [Option<u64>; 2],
}

impl LastReport {
    /// Whether `update` has a new reading of `metric`. With `by_step`, the same values with another step or epoch are a
    /// new reading, unless they were posted.
    pub fn is_new(&mut self, metric: &str, update: &Update, source: Source, by_step: bool) -> bool {
        let said = alike(metric, update);
        let place = [update.step, update.epoch].map(|value| value.map(f64::to_bits));
        let has_moved = || {
            let is_elsewhere = |(new, old): (&Option<u64>, &Option<u64>)| new.is_some() && new != old;
            by_step
                && matches!(source, Source::Output | Source::File)
                && place.iter().zip(&self.place).any(is_elsewhere)
        };
        let differs = || said != self.said || has_moved();
        let is_new = self.source.is_none_or(|known| source < known || (source == known && differs()));
        if is_new {
            (self.source, self.said, self.place) = (Some(source), said, place);
        }
        is_new
    }
}

impl MetricHistories {
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| (name.clone(), Watch::default())).collect())
    }

    /// Takes in `update` from `source`, after `progress` has taken it in.
    pub fn read(&mut self, update: &Update, source: Source, progress: &Progress) {
        for (name, watch) in &mut self.0 {
            let metric = field_metric(name);
            let Some(&value) = update.metrics.get(metric) else { continue };
            if watch.seen.is_new(metric, update, source, false) {
                let step = progress.step.map(|step| step.value);
                watch.watched.add(value, step, update.percentages.contains(metric));
            }
        }
    }

    pub fn watched(&self) -> BTreeMap<String, MetricHistory> {
        self.0.iter().map(|(name, watch)| (name.clone(), watch.watched.clone())).collect()
    }
}

/// The values in `update` of `metric` and of all metrics measured with it, in training or in one kind of evaluation.
fn alike(metric: &str, update: &Update) -> Vec<(String, u64)> {
    let kind = kind(metric);
    let alike = update.metrics.iter().filter(|(name, _)| self::kind(name) == kind);
    // By their bits: NaN is NaN again.
    alike.map(|(name, value)| (name.clone(), value.to_bits())).collect()
}

fn kind(name: &str) -> Option<&str> {
    const KINDS: [&str; 6] = ["eval", "val", "valid", "validation", "test", "dev"];
    let (kind, _) = name.split_once(['_', '/', '-', ' '])?;
    KINDS.contains(&kind).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::text::Text;
    use jiff::Timestamp;

    struct World {
        watches: MetricHistories,
        progress: Progress,
    }

    impl World {
        fn new(names: &[&str]) -> Self {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            Self { watches: MetricHistories::new(&names), progress: Progress::default() }
        }

        fn say(&mut self, source: Source, values: &[(&str, f64)]) {
            let mut update = Update::default();
            values.iter().for_each(|&(name, value)| update.set(name, value));
            self.progress.merge(&update, source, Timestamp::UNIX_EPOCH);
            self.watches.read(&update, source, &self.progress);
        }

        fn readings(&self, name: &str) -> Vec<(u64, String, Option<f64>)> {
            let watched = self.watches.watched().remove(name).unwrap();
            watched.recent.iter().map(|reading| (reading.n, reading.value.to_string(), reading.step)).collect()
        }
    }

    fn reading(n: u64, value: &str, step: Option<f64>) -> (u64, String, Option<f64>) {
        (n, value.to_owned(), step)
    }

    #[test]
    fn readings_carry_a_number_and_their_step() {
        let mut world = World::new(&["acc", "eval_loss"]);
        world.say(Source::Output, &[("step", 10.0), ("accuracy", 0.5)]);
        world.say(Source::Output, &[("step", 20.0), ("loss", 0.1)]);
        world.say(Source::Output, &[("Acc", f64::NAN)]);
        assert_eq!(world.readings("acc"), [reading(1, "0.5", Some(10.0)), reading(2, "NaN", Some(20.0))]);
        assert_eq!(world.readings("eval_loss"), []);
        assert_eq!(world.watches.watched().len(), 2, "those of which nothing was said are named too");
        let json = serde_json::to_value(world.watches.watched()).unwrap();
        let expected = serde_json::json!({"count": 2, "recent": [{"n": 1, "value": 0.5, "step": 10}, {"n": 2, "value": "NaN", "step": 20}]});
        assert_eq!(json["acc"], expected);
    }

    #[test]
    fn percentage_readings_are_marked_as_such() {
        let mut world = World::new(&["accuracy"]);
        for line in ["Epoch 1/9 acc: 91.5%", "Epoch 2/9 Accuracy: 93.5 %", "Epoch 3/9 acc: 0.95"] {
            let update = Text::new(None).line(line.as_bytes()).unwrap();
            world.watches.read(&update, Source::Output, &world.progress);
        }
        let json = serde_json::to_value(world.watches.watched()).unwrap();
        let percentage = |n: u64, value: f64| serde_json::json!({"n": n, "value": value, "isPercentage": true});
        let expected = [percentage(1, 0.915), percentage(2, 0.935), serde_json::json!({"n": 3, "value": 0.95})];
        assert_eq!(json["accuracy"]["recent"], serde_json::json!(expected));
    }

    #[test]
    fn lower_priority_source_is_ignored_after_a_higher_one() {
        let mut world = World::new(&["loss"]);
        world.say(Source::Checkpoint, &[("loss", 4.0)]);
        world.say(Source::Output, &[("loss", 3.0)]);
        world.say(Source::Checkpoint, &[("loss", 2.0)]);
        world.say(Source::Post, &[("loss", 3.0)]);
        world.say(Source::Output, &[("loss", 1.0)]);
        assert_eq!(world.readings("loss").iter().map(|r| r.1.as_str()).collect::<Vec<_>>(), ["4", "3", "3"]);
    }

    #[test]
    fn repeated_value_is_not_a_new_reading() {
        let mut world = World::new(&["loss", "eval_loss"]);
        let evaluated = |time: f64| [("eval_loss", 0.7), ("eval_runtime", time)];
        for (step, time) in [(1.0, 5.0), (2.0, 5.0), (3.0, 6.0), (4.0, 6.0)] {
            let training = [("step", step), ("loss", 0.5), ("grad_norm", if step < 3.0 { 1.0 } else { 2.0 })];
            world.say(Source::Post, &[&training[..], &evaluated(time)].concat());
        }
        world.say(Source::Post, &[("loss", f64::NAN)]);
        world.say(Source::Post, &[("loss", f64::NAN)]);
        let steps = |name| world.readings(name).iter().map(|r| r.2.unwrap()).collect::<Vec<_>>();
        assert_eq!(steps("eval_loss"), [1.0, 3.0], "the same value, of another evaluation");
        assert_eq!(steps("loss"), [1.0, 3.0, 4.0]);
    }

    #[test]
    fn last_hundred_readings_are_kept() {
        let mut world = World::new(&["loss"]);
        (0..250).for_each(|n| world.say(Source::Output, &[("loss", f64::from(n))]));
        let watched = world.watches.watched().remove("loss").unwrap();
        assert_eq!((watched.count, watched.recent.len()), (250, 100));
        assert_eq!((watched.recent[0].n, watched.recent[99].n), (151, 250));
    }
}
