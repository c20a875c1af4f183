//! tqdm's bars, also Lightning's.

use super::number::parse;
use super::pairs::{is_held_out, pairs};
use super::run::{Epoch, Run};
use crate::protocol::progress::{LOSS, Update};

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
    if update.epoch.is_some() {
        return Some(update);
    }
    let counts = Update { step: Some(step), steps: Some(steps), ..Update::default() };
    if update.metrics.contains_key(LOSS) {
        let at = run.begun.map_or(counts, |epoch| run.within(epoch, step, steps));
        return Some(Update { metrics: update.metrics, ..at });
    }
    Some(if run.steps == Some(steps) { counts } else { Update::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::progress::text::testing::*;

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
}
