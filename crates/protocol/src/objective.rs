//! Readings of a job's objective, the metric by which its runs are compared.
//!
//! The agent keeps one [`Objective`] for as long as its container lives, and the operator merges it into the status.
//! Merging the same one again changes nothing, so that no reading is lost or counted twice, however often it is merged.

use super::number;
use serde::{Deserialize, Serialize};

/// Maximum number of rungs. Each is at least twice as far as the one before, so that more can't be reached.
pub const MAX_RUNGS: usize = 64;
/// Maximum number of agents whose counts a status keeps. An agent keeps fewer.
const MAX_AGENTS: usize = 8;
/// Maximum number of agents whose counts a report has: this one, and those before it in its pod.
const MAX_REPORTED_AGENTS: usize = 3;
/// Maximum number of rungs that a report has, the last ones. The operator has read the others by then.
const MAX_REPORTED_RUNGS: usize = 24;
/// Maximum number of readings that is believed: an API server takes no larger number.
const MAX_COUNT: u64 = i64::MAX as u64;
/// Maximum bytes of the names of other metrics.
const MAX_NAMES: usize = 300;

/// How readings become records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectiveRule {
    /// Name of the metric, as the program reports it.
    pub metric: String,
    /// Whether higher values are better.
    pub max: bool,
    /// Steps at which a reading is recorded.
    pub rungs: Option<RungSteps>,
}

/// The steps `min_step * factor^i`, for i from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RungSteps {
    /// Step of the first rung, at least 1.
    pub min_step: i64,
    /// Ratio of each rung's step to the one before, at least 2.
    pub factor: i64,
}

impl RungSteps {
    /// Number of rungs at or below `step`.
    fn reached(self, step: i64) -> usize {
        let next = |rung: &i64| rung.checked_mul(self.factor.max(2));
        std::iter::successors(Some(self.min_step.max(1)), next).take(MAX_RUNGS).take_while(|rung| *rung <= step).count()
    }
}

/// Readings of the objective, over all attempts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Objective {
    /// Name of the metric.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metric: String,
    /// Number of readings. Readings that a later attempt repeats count again.
    pub count: u64,
    /// The last reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Measurement>,
    /// The best reading. NaN is never the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Measurement>,
    /// For each rung that was reached, in ascending order, the first reading at its step or later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rungs: Vec<RungReading>,
    /// Number of rungs before the first of `rungs`, in a report that has not all of them.
    #[serde(skip)]
    pub left_out: usize,
    /// Names of the metrics that the program reports, as long as there is no reading of the objective.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reported: Vec<String>,
    /// Number of readings of each of the last agents, by which a reading is counted once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentCount>,
}

/// One reading of the objective.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// Value of the metric. NaN and infinities are the strings "NaN", "+Inf" and "-Inf".
    #[serde(with = "number")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "number_schema"))]
    pub value: f64,
    /// Step of the program at the reading, if the program reports steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
}

/// The reading that was recorded for one rung.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RungReading {
    /// Step of the reading, which is the rung's step or a later one.
    pub step: i64,
    /// Value of the metric. NaN and infinities are the strings "NaN", "+Inf" and "-Inf".
    #[serde(with = "number")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "number_schema"))]
    pub value: f64,
}

/// Number of readings of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentCount {
    /// Time at which the agent started, in milliseconds since 1970. It identifies the agent.
    pub since: i64,
    /// Attempt of its last reading.
    pub attempt: u32,
    /// Number of its readings.
    pub count: u64,
}

impl Objective {
    /// Creates the objective of an agent that starts now. `before` is from the last report of its pod's earlier agents.
    #[must_use]
    pub fn begin(before: Option<Self>, since: i64) -> Self {
        let mut objective = before.unwrap_or_default();
        // The clock may have been set back.
        let since = objective.agents.iter().map(|agent| agent.since + 1).fold(since, i64::max);
        objective.add_agent(AgentCount { since, attempt: 0, count: 0 }, MAX_REPORTED_AGENTS);
        objective
    }

    /// Records a reading of this agent.
    pub fn record(&mut self, rule: &ObjectiveRule, attempt: u32, value: f64, step: Option<i64>) {
        let reading = Measurement { value, step };
        self.count += 1;
        if let Some(agent) = self.agents.last_mut() {
            (agent.attempt, agent.count) = (attempt, agent.count + 1);
        }
        self.last = Some(reading);
        self.best = better(rule, self.best, Some(reading));
        self.reported.clear();
        if let (Some(rungs), Some(step)) = (rule.rungs, step) {
            let reached = rungs.reached(step);
            while self.left_out + self.rungs.len() < reached {
                self.rungs.push(RungReading { step, value });
            }
        }
    }

    /// Notes which metrics there are, as long as there is no reading of the objective.
    pub fn note_reported<'n>(&mut self, names: impl Iterator<Item = &'n String>) {
        if self.count > 0 {
            return;
        }
        let mut left = MAX_NAMES;
        let fits = |name: &&String| {
            left = left.saturating_sub(name.len() + 3);
            left > 0
        };
        self.reported = names.take_while(fits).cloned().collect();
    }

    /// Takes in what an agent reports. To take the same in again changes nothing.
    pub fn merge(&mut self, rule: &ObjectiveRule, stated: &Self) {
        let mut has_more = false;
        let last_known = self.agents.iter().map(AgentCount::order).max();
        for agent in &stated.agents {
            let known = self.agents.iter_mut().find(|known| known.since == agent.since);
            let agent = AgentCount { count: agent.count.min(MAX_COUNT), ..*agent };
            let more = agent.count.saturating_sub(known.as_ref().map_or(0, |known| known.count));
            match known {
                Some(known) if more > 0 => *known = agent,
                None if more > 0 => self.add_agent(agent, MAX_AGENTS),
                _ => {}
            }
            self.count = self.count.saturating_add(more).min(MAX_COUNT);
            has_more |= more > 0;
        }
        let is_latest = stated.agents.iter().map(AgentCount::order).max() >= last_known;
        if has_more && is_latest {
            self.last = stated.last.or(self.last);
        }
        if has_more {
            self.best = better(rule, self.best, stated.best);
        }
        // Of rungs that were left out the first reading is lost. The next one that is known was at their step or later, too.
        for (index, reading) in (stated.left_out..).zip(&stated.rungs) {
            while self.rungs.len() <= index && self.rungs.len() < MAX_RUNGS {
                self.rungs.push(*reading);
            }
        }
        match self.count {
            0 if stated.reported.is_empty() => {}
            0 => self.note_reported(stated.reported.iter().filter(|name| !name.contains(char::is_control))),
            _ => self.reported.clear(),
        }
    }

    /// What a report has of it: the name of the metric is known, and there is little room.
    #[must_use]
    pub fn last_words(&self) -> Self {
        let mut words = Self { metric: String::new(), ..self.clone() };
        words.keep_rungs(MAX_REPORTED_RUNGS);
        words
    }

    /// Leaves out all rungs but the last ones.
    pub fn keep_rungs(&mut self, number: usize) {
        let surplus = self.rungs.len().saturating_sub(number);
        self.rungs.drain(..surplus);
        self.left_out += surplus;
    }

    fn add_agent(&mut self, agent: AgentCount, most: usize) {
        self.agents.push(agent);
        let surplus = self.agents.len().saturating_sub(most);
        self.agents.drain(..surplus);
    }
}

/// NaN equals NaN here: a status that has one must not differ from itself, because it would be written for ever.
impl PartialEq for Measurement {
    fn eq(&self, other: &Self) -> bool {
        (self.step, is_same(self.value, other.value)) == (other.step, true)
    }
}

impl PartialEq for RungReading {
    fn eq(&self, other: &Self) -> bool {
        (self.step, is_same(self.value, other.value)) == (other.step, true)
    }
}

#[expect(clippy::float_cmp, reason = "the very same number")]
fn is_same(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

impl AgentCount {
    /// Order of the agents by their last reading. Attempts go before times, because the clocks of two nodes may differ.
    fn order(&self) -> (u32, i64) {
        (self.attempt, self.since)
    }
}

fn better(rule: &ObjectiveRule, known: Option<Measurement>, other: Option<Measurement>) -> Option<Measurement> {
    let is_value = |reading: &Measurement| !reading.value.is_nan();
    let (known, other) = (known.filter(is_value), other.filter(is_value));
    let (Some(best), Some(new)) = (known, other) else { return known.or(other) };
    let is_better = if rule.max { new.value > best.value } else { new.value < best.value };
    Some(if is_better { new } else { best })
}

/// The form of a report, in few bytes: readings and counts are lists.
pub mod compact {
    use super::{AgentCount, Measurement, Objective, RungReading, number};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Clone, Copy, Serialize, Deserialize)]
    struct Number(#[serde(with = "number")] f64);

    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Words {
        count: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<(Number, Option<i64>)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        best: Option<(Number, Option<i64>)>,
        /// Time, attempt, count.
        agents: Vec<(i64, u32, u64)>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reported: Vec<String>,
        #[serde(skip_serializing_if = "is_zero")]
        left_out: usize,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rungs: Vec<(i64, Number)>,
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
    fn is_zero(value: &usize) -> bool {
        *value == 0
    }

    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(objective: &Option<Objective>, serializer: S) -> Result<S::Ok, S::Error> {
        let reading = |reading: Measurement| (Number(reading.value), reading.step);
        let words = objective.as_ref().map(|objective| Words {
            count: objective.count,
            last: objective.last.map(reading),
            best: objective.best.map(reading),
            agents: objective.agents.iter().map(|a| (a.since, a.attempt, a.count)).collect(),
            reported: objective.reported.clone(),
            left_out: objective.left_out,
            rungs: objective.rungs.iter().map(|rung| (rung.step, Number(rung.value))).collect(),
        });
        words.serialize(serializer)
    }

    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Objective>, D::Error> {
        let reading = |(value, step): (Number, Option<i64>)| Measurement { value: value.0, step };
        let agent = |(since, attempt, count)| AgentCount { since, attempt, count };
        let words = Option::<Words>::deserialize(deserializer)?;
        Ok(words.map(|words| Objective {
            metric: String::new(),
            count: words.count,
            last: words.last.map(reading),
            best: words.best.map(reading),
            agents: words.agents.into_iter().map(agent).collect(),
            reported: words.reported,
            left_out: words.left_out,
            rungs: words.rungs.into_iter().map(|(step, value)| RungReading { step, value: value.0 }).collect(),
        }))
    }
}

/// A number, or one of three strings. JSON has no other form for them, and a CRD has no type for both.
#[cfg(feature = "schema")]
fn number_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(max: bool, rungs: Option<(i64, i64)>) -> ObjectiveRule {
        let rungs = rungs.map(|(min_step, factor)| RungSteps { min_step, factor });
        ObjectiveRule { metric: "m".into(), max, rungs }
    }

    /// Returns the records of an agent with these readings in this attempt.
    fn read(rule: &ObjectiveRule, since: i64, attempt: u32, readings: &[(f64, Option<i64>)]) -> Objective {
        let mut objective = Objective::begin(None, since);
        readings.iter().for_each(|&(value, step)| objective.record(rule, attempt, value, step));
        objective
    }

    fn rungs(objective: &Objective) -> Vec<(i64, f64)> {
        objective.rungs.iter().map(|rung| (rung.step, rung.value)).collect()
    }

    #[test]
    fn first_reading_at_or_after_each_rung_is_recorded() {
        let rule = rule(false, Some((10, 3)));
        let all = read(
            &rule,
            1,
            1,
            &[(9.0, Some(9)), (8.0, Some(10)), (7.0, None), (6.0, Some(29)), (5.0, Some(31)), (f64::NAN, Some(900))],
        );
        // Rungs are 10, 30, 90, 270, 810.
        assert_eq!(rungs(&all)[..2], [(10, 8.0), (31, 5.0)]);
        let steps: Vec<_> = rungs(&all).iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [10, 31, 900, 900, 900], "one reading may reach several rungs");
        assert!(all.rungs[4].value.is_nan());
        let mut on = all.clone();
        on.record(&rule, 2, 1.0, Some(20));
        assert_eq!(on.rungs.len(), 5, "a later attempt overwrites none");
        assert_eq!(read(&rule, 1, 1, &[(1.0, Some(-5)), (1.0, None)]).rungs, []);
    }

    #[test]
    fn number_of_rungs_is_bounded() {
        let all = read(&rule(false, Some((1, 2))), 1, 1, &[(1.0, Some(i64::MAX))]);
        assert_eq!(all.rungs.len(), 63, "more powers of two are no steps");
        let refused_by_the_api = RungSteps { min_step: 0, factor: 0 };
        assert_eq!(refused_by_the_api.reached(4), 3);
    }

    #[test]
    fn best_reading_ignores_nan() {
        let best = |max, values: &[f64]| {
            let readings: Vec<_> = values.iter().map(|value| (*value, None)).collect();
            read(&rule(max, None), 1, 1, &readings).best.map(|best| best.value)
        };
        assert_eq!(best(false, &[f64::NAN, 2.0, 1.0, 3.0, f64::NAN]), Some(1.0));
        assert_eq!(best(true, &[f64::NAN, 2.0, 1.0, 3.0, f64::NAN]), Some(3.0));
        assert_eq!(best(true, &[1.0, f64::INFINITY]), Some(f64::INFINITY));
        assert_eq!(best(false, &[f64::NAN]), None);
        let objective = read(&rule(false, Some((1, 2))), 1, 1, &[(1.0, Some(1)), (f64::NAN, Some(2))]);
        assert_eq!(objective, objective.clone(), "so that a status with NaN is not written again and again");
        let last = objective.last.unwrap();
        assert!(last.value.is_nan() && last.step == Some(2) && objective.count == 2);
    }

    /// Nothing counts twice, whatever is merged again and in whatever order.
    #[test]
    fn attempts_are_counted_once_in_any_order() {
        let rule = rule(false, Some((10, 2)));
        let first = read(&rule, 100, 1, &[(5.0, Some(10)), (4.0, Some(20))]);
        let mut again = Objective::begin(Some(first.last_words()), 90);
        assert_eq!(again.agents[1].since, 101, "a clock that was set back");
        again.record(&rule, 2, 4.5, Some(15));
        // On another node, whose clock is behind.
        let third = read(&rule, 50, 3, &[(4.7, Some(45))]);
        let mut status = Objective { metric: "m".into(), ..Objective::default() };
        for stated in [&first, &again, &third, &first, &again, &third, &first] {
            status.merge(&rule, stated);
        }
        assert_eq!((status.count, status.metric.as_str()), (4, "m"));
        assert_eq!(status.last, Some(Measurement { value: 4.7, step: Some(45) }));
        assert_eq!(status.best, Some(Measurement { value: 4.0, step: Some(20) }));
        assert_eq!(rungs(&status), [(10, 5.0), (20, 4.0), (45, 4.7)]);
        let known = status.clone();
        let older = read(&rule, 100, 1, &[(5.0, Some(10))]);
        status.merge(&rule, &older);
        assert_eq!(status, known, "an older answer of the same agent");
        // An operator that was away, and finds only the last report.
        let mut late = Objective::default();
        late.merge(&rule, &again);
        assert_eq!((late.count, rungs(&late)), (3, vec![(10, 5.0), (20, 4.0)]));
    }

    #[test]
    fn number_of_agents_is_bounded() {
        let rule = rule(true, None);
        let mut status = Objective::default();
        let mut agent = Objective::begin(None, 0);
        for n in 1..50_u32 {
            agent = Objective::begin(Some(agent.last_words()), i64::from(n) * 1000);
            agent.record(&rule, n, f64::from(n), None);
            status.merge(&rule, &agent);
        }
        assert_eq!((status.count, status.agents.len(), agent.agents.len()), (49, MAX_AGENTS, MAX_REPORTED_AGENTS));
        let hostile = AgentCount { since: 1, attempt: 1, count: u64::MAX };
        status.merge(&rule, &Objective { agents: vec![hostile], ..Objective::default() });
        assert_eq!(status.count, MAX_COUNT);
    }

    #[test]
    fn report_keeps_only_last_rungs() {
        let rule = rule(false, Some((1, 2)));
        let readings: Vec<_> = (0..40).map(|n| (f64::from(n), Some(1 << n))).collect();
        let stated = read(&rule, 1, 1, &readings).last_words();
        assert_eq!((stated.left_out, stated.rungs.len()), (16, MAX_REPORTED_RUNGS));
        let mut status = Objective::default();
        status.merge(&rule, &read(&rule, 1, 1, &readings[..20]));
        status.merge(&rule, &stated);
        assert_eq!(status.rungs, read(&rule, 1, 1, &readings).rungs, "the operator knew the others");
        let mut late = Objective::default();
        late.merge(&rule, &stated);
        assert_eq!((late.rungs.len(), late.rungs[0], late.rungs[16]), (40, status.rungs[16], status.rungs[16]));
        // The next agent of the pod knows how many there were.
        let mut next = Objective::begin(Some(stated), 2);
        next.record(&rule, 2, 0.5, Some(1 << 40));
        assert_eq!((next.left_out, next.rungs.len()), (16, MAX_REPORTED_RUNGS + 1));
    }

    #[test]
    fn metric_names_are_kept_until_first_reading() {
        let rule = rule(false, None);
        let mut agent = Objective::begin(None, 1);
        let names = ["accuracy".to_owned(), "loss".to_owned()];
        agent.note_reported(names.iter());
        let mut status = Objective::default();
        status.merge(&rule, &agent);
        status.merge(&rule, &Objective::begin(None, 2));
        assert_eq!((status.count, &status.reported[..]), (0, &names[..]));
        agent.record(&rule, 1, 1.0, None);
        status.merge(&rule, &agent);
        agent.note_reported(names.iter());
        assert!(status.reported.is_empty() && agent.reported.is_empty());
        let long: Vec<String> = (0..100).map(|n| format!("{n}{}", "x".repeat(40))).collect();
        let mut agent = Objective::begin(None, 1);
        agent.note_reported(long.iter());
        assert_eq!(agent.reported.len(), 6);
    }

    #[test]
    fn objective_has_separate_status_and_report_formats() {
        let rule = rule(true, Some((1, 2)));
        let stated = read(&rule, 7, 1, &[(0.1 + 0.2, Some(1)), (f64::NAN, Some(2)), (3.0, None)]);
        let json = serde_json::to_value(&stated).unwrap();
        let expected = json!({
            "count": 3,
            "last": { "value": 3 },
            "best": { "value": 3 },
            "rungs": [{ "step": 1, "value": 0.300_000_000_000_000_04 }, { "step": 2, "value": "NaN" }],
            "agents": [{ "since": 7, "attempt": 1, "count": 3 }],
        });
        assert_eq!(json, expected);
        let read: Objective = serde_json::from_value(json).unwrap();
        assert_eq!(read.rungs[0], stated.rungs[0]);
        let short =
            serde_json::to_string(&crate::report::Report { objective: Some(stated.clone()), ..Default::default() });
        let form = r#""objective":{"count":3,"last":[3,null],"best":[3,null],"agents":[[7,1,3]],"rungs":[[1,0.30000000000000004],[2,"NaN"]]}"#;
        let short = short.unwrap();
        assert!(short.contains(form), "{short}");
        let read = serde_json::from_str::<crate::report::Report>(&short).unwrap().objective.unwrap();
        assert_eq!((read.count, read.last, read.best, &read.agents), (3, stated.last, stated.best, &stated.agents));
        assert_eq!(read.rungs[0], stated.rungs[0]);
        // Cut off within it.
        for end in 1..form.len() {
            let at = short.find(form).unwrap() + end;
            let _ = crate::report::Report::parse(&short[..at]);
        }
    }
}
