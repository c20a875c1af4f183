//! tqdm's bars, also Lightning's.

use super::number::parse;
use super::pairs::{is_held_out, pairs};
use super::run::{Epoch, Run};
use protocol::progress::{LEARNING_RATE, LOSS, Update};

regexes! {
    BAR = r"[0-9]+%\|[^|]*\| *([0-9]+)/([0-9]+) \[(.*)";
    YOLO = r"^([0-9]+)/([0-9]+) +[0-9.]+G +[0-9]";
    TORCHTUNE = r"^([0-9]+)\|[0-9]+\|Loss: ", number!(), ":$";
}

/// Anything may have a bar. The training's bar shows an epoch, a loss, a learning rate or the right total. Metrics
/// follow the bar, or are in its title, as in torchtune's: `1|25|Loss: 1.84: 12%|█▎        | 25/200 [00:40<04:40]`.
pub(super) fn bar(text: &str, run: &mut Run) -> Option<Update> {
    let bar = text.contains("%|").then(|| BAR.captures(text)).flatten()?;
    let title = text[..bar.get(0)?.start()].trim();
    let (step, steps) = (parse(&bar[1])?, parse(&bar[2])?);
    if is_held_out(title) || title.starts_with("Sanity Checking") {
        return Some(Update::default());
    }
    run.counts_from_0 |= bar[3].contains("v_num=");
    let torchtunes = TORCHTUNE.captures(title).and_then(|found| parse(&found[1]));
    let torchtunes = torchtunes.map(|number| Epoch { number, of: None });
    let epoch = torchtunes.or_else(|| yolos_epoch(title, run));
    let mut update = match epoch.or_else(|| Some(Epoch::find(title)?.0)) {
        Some(epoch) => run.within(epoch, step, steps),
        None => Update::default(),
    };
    pairs(&bar[3], None, &mut update);
    pairs(title, None, &mut update);
    let is_of_training = [LOSS, LEARNING_RATE].iter().any(|&name| update.metrics.contains_key(name));
    run.measured(title, step, &mut update.metrics);
    if update.epoch.is_some() {
        return Some(update);
    }
    let counts = Update { step: Some(step), steps: Some(steps), ..Update::default() };
    if is_of_training {
        let at = run.begun.map_or(counts, |epoch| run.within(epoch, step, steps));
        return Some(Update { metrics: update.metrics, percentages: update.percentages, ..at });
    }
    Some(if run.steps == Some(steps) { counts } else { Update::default() })
}

/// The epoch in the title of the bars of YOLOv5, which counts from 0 up to the last one, and of Ultralytics, which
/// counts from 1: `0/299  3.2G  0.11  0.05  0.03  128  640`. Losses without names follow the GPU memory.
fn yolos_epoch(title: &str, run: &mut Run) -> Option<Epoch> {
    let found = YOLO.captures(title)?;
    let (number, of) = (parse(&found[1])?, parse(&found[2])?);
    run.counts_from_0 |= number == 0.0;
    Some(Epoch { number, of: Some(if run.counts_from_0 { of + 1.0 } else { of }) })
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
    fn initial_placeholder_in_a_bar_is_not_a_reading() {
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

    #[test]
    fn torchtune() {
        let bars = "\r  0%|          | 0/200 [00:00<?, ?it/s]\r1|25|Loss: 1.84:  12%|█▎        | 25/200 [00:40<04:40,  1.6s/it]\
                    \r1|26|Loss: 1.7962749004364014:  13%|█▎        | 26/200 [00:42<04:40,  1.6s/it]";
        let last = progress(Some(3.0), bars);
        assert_eq!(counts(&last), [Some(1.0), Some(3.0), Some(26.0), Some(600.0)]);
        assert_eq!(last.metric(LOSS), Some(1.796_274_900_436_401_4));
        let second = progress(Some(3.0), "2|225|Loss: 1.5: 12%|█▎   | 25/200 [00:40<04:40,  1.6s/it]");
        assert_eq!(counts(&second), [Some(2.0), Some(3.0), Some(225.0), Some(600.0)]);
        assert!(progress(None, "2|225|Loss: nan: 12%|█▎   | 25/200 [00:40<04:40]").metric(LOSS).unwrap().is_nan());
    }

    #[test]
    fn diffusers() {
        let bar = "Steps:  10%|█         | 100/1000 [00:10<01:30,  9.9it/s, lr=1e-05, step_loss=0.12]";
        let last = progress(None, bar);
        assert_eq!(counts(&last), [None, None, Some(100.0), Some(1000.0)]);
        assert_eq!((last.metric(LOSS), last.metric(LEARNING_RATE)), (Some(0.12), Some(1e-5)));
        let without = progress(None, "Steps:  10%|█    | 100/1000 [00:10<01:30,  9.9it/s, lr=1e-05]");
        assert_eq!(counts(&without)[2..], [Some(100.0), Some(1000.0)]);
    }

    #[test]
    fn yolo() {
        let bar = |title: &str| format!("      {title}:  50%|█████     | 4/8 [00:01<00:00,  3.9it/s]\n");
        let v5 = [
            bar("0/299      3.2G      0.11      0.05      0.03       128       640"),
            bar("1/299 3.2G 0.1 0.05 0.03 128 640"),
        ];
        assert_eq!(counts(&progress(None, &v5.concat())), [Some(1.0), Some(300.0), Some(12.0), Some(2400.0)]);
        let v8 = bar("2/100      2.55G      1.234      2.345       1.23         45        640");
        assert_eq!(counts(&progress(None, &v8)), [Some(2.0), Some(100.0), Some(12.0), Some(800.0)]);
        for title in ["3/9 files", "1/2 3.2GB downloaded", "shard 1/2 3.2G 5", "3/9", "1/2 3.2G"] {
            assert_eq!(read(&mut Text::default(), bar(title).as_bytes()).0, [], "{title}");
        }
    }

    #[test]
    fn loss_in_a_bar_title_is_parsed() {
        for title in ["loss 0.1200", "train loss: 0.12", "epoch 3 iter 25: train loss 0.12000. lr 1.0e-05", "loss=0.12"]
        {
            let last = progress(None, &format!("{title}:  12%|█▎   | 25/200 [00:40<04:40,  1.6s/it]"));
            assert_eq!((last.metric(LOSS), counts(&last)[2].is_some()), (Some(0.12), true), "{title}");
        }
        for title in [
            "Downloading loss.py",
            "best loss: 0.12",
            "1|25|Files: 3",
            "target loss 0.1",
            "val loss 0.12",
            "Loading model-0.12.safetensors",
        ] {
            let bar = format!("{title}:  12%|█▎   | 25/200 [00:40<04:40,  1.6s/it]");
            assert_eq!(read(&mut Text::default(), bar.as_bytes()).0, [], "{title}");
        }
    }
}
