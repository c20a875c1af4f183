//! tqdm's bars, also Lightning's.

use super::number::parse;
use super::pairs::{is_held_out, pairs};
use super::run::{Epoch, Run};
use protocol::progress::{LOSS, Update};

regexes! {
    BAR = r"[0-9]+%\|[^|]*\| *([0-9]+)/([0-9]+) \[(.*)";
}

/// There are bars for anything: the training's tells an epoch, a loss or the right total.
pub(super) fn bar(text: &str, run: &mut Run) -> Option<Update> {
    let bar = BAR.captures(text)?;
    let title = text[..bar.get(0)?.start()].trim();
    let (step, steps) = (parse(&bar[1])?, parse(&bar[2])?);
    if is_held_out(title) || title.starts_with("Sanity Checking") {
        return Some(Update::default());
    }
    run.counts_from_0 |= bar[3].contains("v_num=");
    let mut update = match Epoch::find(title) {
        Some((epoch, _)) => run.within(epoch, step, steps),
        None => Update::default(),
    };
    pairs(&bar[3], None, &mut update);
    let has_loss = update.metrics.contains_key(LOSS);
    run.measured(title, step, &mut update.metrics);
    if update.epoch.is_some() {
        return Some(update);
    }
    let counts = Update { step: Some(step), steps: Some(steps), ..Update::default() };
    if has_loss {
        let at = run.begun.map_or(counts, |epoch| run.within(epoch, step, steps));
        return Some(Update { metrics: update.metrics, percentages: update.percentages, ..at });
    }
    Some(if run.steps == Some(steps) { counts } else { Update::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::text::testing::*;

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
    }

    #[test]
    fn what_a_bar_shows_from_its_start_is_no_reading() {
        let bar = |step: u32, postfix: &str| format!("\rTraining:  1%|  | {step}/100 [00:00<00:01, 9it/s{postfix}]");
        let losses = |bars: &[(u32, &str)]| {
            let stream: String = bars.iter().map(|&(step, postfix)| bar(step, postfix)).collect();
            let (updates, progress) = read(&mut Text::new(None), stream.as_bytes());
            assert!(!updates.is_empty() && updates.iter().all(|update| update.steps == Some(100.0)), "{bars:?}");
            (
                updates.iter().filter_map(|update| update.metrics.get(LOSS)).copied().collect::<Vec<_>>(),
                progress.step.unwrap().value,
            )
        };
        for bars in [
            &[(0, ", loss=0")][..],
            &[(0, ", loss=0.000"), (1, ", loss=0.000"), (50, ", loss=0.000")],
            &[(0, ", v=1, loss=inf"), (1, ", v=1, loss=inf")],
            &[(0, ", loss=nan")],
            &[(0, ", loss=0, acc=0"), (0, ", loss=0, acc=0"), (7, ", loss=0, acc=0.5")],
        ] {
            assert_eq!(losses(bars), (vec![], f64::from(bars.last().unwrap().0)), "{bars:?}");
        }
        assert_eq!(losses(&[(0, ", loss=0"), (1, ", loss=0"), (2, ", loss=0.5"), (3, ", loss=0")]).0, [0.5, 0.0]);
        assert_eq!(losses(&[(0, ""), (0, ", loss=2.5"), (2, ", loss=2.5")]).0, [2.5]);
        assert!(losses(&[(0, ", loss=nan"), (2, ", loss=nan")]).0[0].is_nan());
        assert_eq!(losses(&[(1, ", loss=0")]).0, [0.0]);
    }
}
