//! When news of a job's progress is written. Pure: the time is the caller's.

use jiff::Timestamp;
use std::time::{Duration, Instant};

/// How old what is written gets at least, before it is written again for nothing but newer progress. The operator hears within
/// 2 s of what a program tells every 5 s, and a status has whole seconds: of that it writes every other one, as it comes.
const APART: Duration = Duration::from_millis(8100);
/// How old it gets if what came too early is still the newest.
const AT_LAST: Duration = Duration::from_secs(13);
/// How old it gets if nothing newer has come, but something else is known, such as how long it may take.
const NO_NEWS: Duration = Duration::from_secs(20);

/// When a program told what its job's status says, and which news of it waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgressTurn {
    at: Option<Instant>,
    waits: Option<Timestamp>,
}

impl ProgressTurn {
    /// How long what is known by now has to wait: `news` is when the program told it, if that is not written yet.
    pub fn wait(&mut self, news: Option<Timestamp>, now: Instant) -> Duration {
        let since = self.at.map_or(NO_NEWS, |at| now.saturating_duration_since(at));
        // Somebody may look again although no answer has come.
        let is_new = news.is_some() && news != self.waits;
        let last = if news.is_some() { AT_LAST } else { NO_NEWS };
        let wait = if is_new && since >= APART { Duration::ZERO } else { last.saturating_sub(since) };
        if !wait.is_zero() {
            self.waits = news.or(self.waits);
        }
        wait
    }

    /// It is written, and so old.
    pub fn told(&mut self, now: Instant, age: Duration) {
        *self = Self { at: now.checked_sub(age.min(APART)), waits: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that tells a step every `period` is asked every 2 s, by an operator that is late by up to `late`: how old the
    /// status ever was, and how often it was written within ten minutes. All in ms.
    fn ten_minutes(period: u64, phase: u64, late: u64) -> (u64, u64) {
        let zero = Instant::now() + Duration::from_secs(60);
        let time = |at: u64| zero + Duration::from_millis(at);
        let (mut turn, mut told, mut known, mut due) = (ProgressTurn::default(), None, None, None);
        let (mut oldest, mut writes, mut asked) = (0, 0, 0);
        for at in (0..600_000).step_by(100) {
            // Now and then somebody looks for a reason of its own.
            let mut is_turn = due.is_some_and(|due| at >= due) || at % 3700 == 0;
            if at >= asked {
                // As lagging as it may be, and then not at all.
                asked = at / 2000 * 2000 + 2000 + (at * 31 / 100) % (late + 1);
                let news = at.checked_sub(phase).map(|since| since / period * period + phase);
                is_turn |= news != known;
                known = news;
            }
            // What is known otherwise may differ even where the program has told nothing new, such as the time that is left.
            if is_turn {
                let news = known
                    .filter(|_| known != told)
                    .map(|at| Timestamp::from_millisecond(i64::try_from(at).unwrap()).unwrap());
                let wait = turn.wait(news, time(at));
                due = Some(at + u64::try_from(wait.as_millis()).unwrap());
                if wait.is_zero() {
                    // As whole seconds tell it.
                    let age = known.map_or(0, |known| at - known / 1000 * 1000);
                    turn.told(time(at), Duration::from_millis(age));
                    (told, due, writes) = (known, None, writes + 1);
                }
            }
            if let Some(told) = told {
                oldest = oldest.max(at - told);
            }
        }
        (oldest, writes)
    }

    #[test]
    fn what_is_told_every_five_seconds_is_new_in_the_status_and_seldom_written() {
        for late in [0, 400, 900] {
            for phase in (0..5000).step_by(100) {
                let (oldest, writes) = ten_minutes(5000, phase, late);
                assert!(oldest <= 13_500, "{oldest} ms, of phase {phase}, late by up to {late} ms");
                assert!(writes <= 600_000 / 8000, "{writes} writes, of phase {phase}, late by up to {late} ms");
            }
        }
    }

    #[test]
    fn however_often_a_program_speaks_it_is_told_and_not_too_often() {
        for period in (300..30_000).step_by(700) {
            for phase in (0..period).step_by(300) {
                let (oldest, writes) = ten_minutes(period, phase, 900);
                assert!(oldest <= period + 11_000, "{oldest} ms, of one every {period} ms");
                assert!(writes <= 600_000 / 6000, "{writes} writes, of one every {period} ms");
            }
        }
    }
}
