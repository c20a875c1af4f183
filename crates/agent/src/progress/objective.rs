//! Readings of the job's objective, kept for as long as the container lives.

use crate::now;
use crate::progress::history::LastReport;
use parking_lot::Mutex;
use protocol::objective::{Objective, ObjectiveRule};
use protocol::progress::{Progress, Source, Update, field_metric};
use protocol::report::Report;
use std::path::Path;
use std::sync::Arc;

/// Records the readings of all runs. It holds a bounded number of them, whatever the program reports.
pub struct ObjectiveTracker {
    rule: ObjectiveRule,
    records: Mutex<Objective>,
}

impl ObjectiveTracker {
    /// Begins with the records in the last report of the previous agent of this pod, if `report` is that file.
    pub fn new(rule: ObjectiveRule, report: Option<&Path>) -> Self {
        let text = report.and_then(|file| std::fs::read_to_string(file).ok());
        let before = text.and_then(|text| Report::parse(&text)?.objective);
        Self { rule, records: Mutex::new(Objective::begin(before, now().as_millisecond())) }
    }

    /// The records so far.
    pub fn records(&self) -> Objective {
        self.records.lock().clone()
    }
}

/// The readings of one run.
pub struct RunObjective {
    tracker: Arc<ObjectiveTracker>,
    attempt: u32,
    seen: LastReport,
}

impl RunObjective {
    pub fn new(tracker: Arc<ObjectiveTracker>, attempt: u32) -> Self {
        Self { tracker, attempt, seen: LastReport::default() }
    }

    /// Records what `source` reports in `update`, which `progress` has taken in. Returns whether that is a reading.
    ///
    /// If a line or the progress file has a step, the same value at another step is another reading, because two
    /// evaluations may have the same result. This does not hold for posts, which repeat the last evaluation with each
    /// step.
    pub fn read(&mut self, update: &Update, source: Source, progress: &Progress) -> bool {
        let rule = &self.tracker.rule;
        let metric = field_metric(&rule.metric);
        let Some(&value) = update.metrics.get(metric) else { return false };
        let is_new = self.seen.is_new(metric, update, source, true);
        if is_new {
            let mut records = self.tracker.records.lock();
            records.record(rule, self.attempt, value, progress.step.and_then(|step| whole(step.value)));
        }
        is_new
    }

    /// Records which metrics the program reports, until there is a reading.
    pub fn note(&self, progress: &Progress) {
        let mut records = self.tracker.records.lock();
        if records.count == 0 && !progress.metrics.keys().eq(&records.reported) {
            records.note_reported(progress.metrics.keys());
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "in range")]
fn whole(step: f64) -> Option<i64> {
    (step.is_finite() && step.abs() < 1e15).then_some(step.floor() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::text::Text;
    use jiff::Timestamp;
    use protocol::objective::RungSteps;

    struct World {
        tracker: Arc<ObjectiveTracker>,
        run: RunObjective,
        progress: Progress,
    }

    impl World {
        fn new(metric: &str) -> Self {
            let rungs = Some(RungSteps { min_step: 10, factor: 10 });
            let rule = ObjectiveRule { metric: metric.to_owned(), max: false, rungs };
            let tracker = Arc::new(ObjectiveTracker::new(rule, None));
            Self { run: RunObjective::new(Arc::clone(&tracker), 1), tracker, progress: Progress::default() }
        }

        fn next_run(&mut self, attempt: u32) {
            self.run = RunObjective::new(Arc::clone(&self.tracker), attempt);
            self.progress = Progress::default();
        }

        fn say(&mut self, source: Source, values: &[(&str, f64)]) {
            let mut update = Update::default();
            values.iter().for_each(|&(name, value)| update.set(name, value));
            self.read(source, &update);
        }

        fn read(&mut self, source: Source, update: &Update) {
            self.progress.merge(update, source, Timestamp::UNIX_EPOCH);
            self.run.read(update, source, &self.progress);
            self.run.note(&self.progress);
        }
    }

    #[test]
    fn thousands_of_readings_are_all_counted() {
        let mut world = World::new("eval_loss");
        let mut text = Text::new(None);
        for step in 1..=2000 {
            let line = format!("step {step}/2000 eval_loss={}", (f64::from(step) - 700.0).abs() / 1000.0);
            world.read(Source::Output, &text.line(line.as_bytes()).unwrap());
        }
        let records = world.tracker.records();
        let [last, best] = [records.last, records.best].map(|reading| reading.map(|r| (r.value, r.step.unwrap())));
        assert_eq!((records.count, last, best), (2000, Some((1.3, 2000)), Some((0.0, 700))));
        let rungs: Vec<_> = records.rungs.iter().map(|rung| (rung.step, rung.value)).collect();
        assert_eq!(rungs, [(10, 0.69), (100, 0.6), (1000, 0.3)]);
    }

    #[test]
    fn equal_value_at_another_step_is_a_new_reading() {
        let mut world = World::new("acc");
        for step in [5.0, 10.0, 100.0] {
            world.say(Source::File, &[("step", step), ("accuracy", 0.9)]);
            world.say(Source::File, &[("step", step), ("accuracy", 0.9)]);
        }
        let records = world.tracker.records();
        assert_eq!((records.count, records.rungs.len()), (3, 2));
        // Every post has the last evaluation.
        let mut world = World::new("eval_loss");
        for step in [10.0, 20.0, 100.0] {
            world.say(Source::Post, &[("step", step), ("loss", 1.0 / step), ("eval_loss", 0.9)]);
        }
        let records = world.tracker.records();
        assert_eq!((records.count, records.rungs.len()), (1, 1));
    }

    #[test]
    fn objective_records_survive_a_new_run() {
        let mut world = World::new("loss");
        world.say(Source::Output, &[("step", 20.0), ("loss", 1.0)]);
        world.next_run(2);
        world.say(Source::Output, &[("loss", 1.0)]);
        world.say(Source::Output, &[("step", 12.0), ("loss", f64::NAN)]);
        let records = world.tracker.records();
        assert_eq!((records.count, records.best.unwrap().step), (3, Some(20)));
        assert!(records.last.unwrap().value.is_nan());
        assert_eq!((records.rungs.len(), records.rungs[0].step), (1, 20));
        assert_eq!((records.agents.len(), records.agents[0].attempt), (1, 2));
    }

    #[test]
    fn next_agent_of_a_pod_continues_the_records() {
        let file = std::env::temp_dir().join(format!("objective-{}", std::process::id()));
        let mut world = World::new("loss");
        world.say(Source::Output, &[("step", 20.0), ("loss", 1.0)]);
        let report = Report { version: 1, objective: Some(world.tracker.records()), ..Report::default() };
        std::fs::write(&file, report.to_message()).unwrap();
        let next = ObjectiveTracker::new(world.tracker.rule.clone(), Some(&file)).records();
        std::fs::remove_file(&file).unwrap();
        assert_eq!((next.count, next.rungs, next.agents.len()), (1, world.tracker.records().rungs, 2));
        assert_eq!(ObjectiveTracker::new(world.tracker.rule.clone(), Some(&file)).records().count, 0);
    }

    #[test]
    fn reported_metrics_are_listed_if_the_objective_is_missing() {
        let mut world = World::new("f1");
        world.say(Source::Output, &[("step", 1.0), ("loss", 1.0)]);
        world.say(Source::Output, &[("step", 2.0), ("acc", 0.5)]);
        let records = world.tracker.records();
        assert_eq!((records.count, records.reported), (0, vec!["accuracy".to_owned(), "loss".to_owned()]));
    }
}
