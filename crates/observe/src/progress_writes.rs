//! When news of a job's progress is written. Pure: the caller passes the time.

use jiff::Timestamp;
use std::time::{Duration, Instant};

/// Minimum age of the written progress before newer progress alone is written. The operator learns within 2 s what a
/// program reports every 5 s, and a status has whole seconds. So it writes every other report, as it comes.
const APART: Duration = Duration::from_millis(8100);
/// Age at which a report that came too early is written, if it is still the newest.
const AT_LAST: Duration = Duration::from_secs(13);
/// Age at which the status is written without a newer report, if other facts are new, such as the remaining time.
const NO_NEWS: Duration = Duration::from_secs(20);

/// When a program reported what its job's status contains, and which newer report waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgressWrites {
    at: Option<Instant>,
    waits: Option<Timestamp>,
}

impl ProgressWrites {
    /// How long the write of what is known has to wait. `news` is the time of the program's report, if it is not
    /// written yet.
    pub fn wait(&mut self, news: Option<Timestamp>, now: Instant) -> Duration {
        let since = self.at.map_or(NO_NEWS, |at| now.saturating_duration_since(at));
        // The caller may ask again although no answer has come.
        let is_new = news.is_some() && news != self.waits;
        let last = if news.is_some() { AT_LAST } else { NO_NEWS };
        let wait = if is_new && since >= APART { Duration::ZERO } else { last.saturating_sub(since) };
        if !wait.is_zero() {
            self.waits = news.or(self.waits);
        }
        wait
    }

    /// Records that a status of this age was written.
    pub fn record_write(&mut self, now: Instant, age: Duration) {
        *self = Self { at: now.checked_sub(age.min(APART)), waits: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program reports a step every `period`. An operator that is late by up to `late` asks it every 2 s. Returns how
    /// old the status ever was, and how often it was written within ten minutes. All in ms.
    fn ten_minutes(period: u64, phase: u64, late: u64) -> (u64, u64) {
        let zero = Instant::now() + Duration::from_secs(60);
        let time = |at: u64| zero + Duration::from_millis(at);
        let (mut turn, mut reported, mut known, mut due) = (ProgressWrites::default(), None, None, None);
        let (mut oldest, mut writes, mut asked) = (0, 0, 0);
        for at in (0..600_000).step_by(100) {
            // Now and then there is another reason to look.
            let mut is_turn = due.is_some_and(|due| at >= due) || at % 3700 == 0;
            if at >= asked {
                // As lagging as it may be, and then not at all.
                asked = at / 2000 * 2000 + 2000 + (at * 31 / 100) % (late + 1);
                let news = at.checked_sub(phase).map(|since| since / period * period + phase);
                is_turn |= news != known;
                known = news;
            }
            // Other facts may differ even without a new report of the program, such as the time that is left.
            if is_turn {
                let news = known
                    .filter(|_| known != reported)
                    .map(|at| Timestamp::from_millisecond(i64::try_from(at).unwrap()).unwrap());
                let wait = turn.wait(news, time(at));
                due = Some(at + u64::try_from(wait.as_millis()).unwrap());
                if wait.is_zero() {
                    // Times in a status have whole seconds.
                    let age = known.map_or(0, |known| at - known / 1000 * 1000);
                    turn.record_write(time(at), Duration::from_millis(age));
                    (reported, due, writes) = (known, None, writes + 1);
                }
            }
            if let Some(reported) = reported {
                oldest = oldest.max(at - reported);
            }
        }
        (oldest, writes)
    }

    #[test]
    fn progress_every_five_seconds_stays_fresh_with_few_writes() {
        for late in [0, 400, 900] {
            for phase in (0..5000).step_by(100) {
                let (oldest, writes) = ten_minutes(5000, phase, late);
                assert!(oldest <= 13_500, "{oldest} ms, of phase {phase}, late by up to {late} ms");
                assert!(writes <= 600_000 / 8000, "{writes} writes, of phase {phase}, late by up to {late} ms");
            }
        }
    }

    #[test]
    fn progress_writes_are_timely_and_throttled_at_any_period() {
        for period in (300..30_000).step_by(700) {
            for phase in (0..period).step_by(300) {
                let (oldest, writes) = ten_minutes(period, phase, 900);
                assert!(oldest <= period + 11_000, "{oldest} ms, of one every {period} ms");
                assert!(writes <= 600_000 / 6000, "{writes} writes, of one every {period} ms");
            }
        }
    }
}
