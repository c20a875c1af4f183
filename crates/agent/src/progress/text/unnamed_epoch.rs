//! Lines with an epoch and a step that name neither. Examples are timm's `Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.9)`
//! and, in scripts derived from PyTorch's DCGAN, `[0/25][124/1583] Loss_D: 0.37 Loss_G: 2.46`.

use super::number::group;
use super::pairs::pairs;
use super::run::{Epoch, Run};
use protocol::progress::Update;

regexes! {
    TIMM = r"(?:^|[ :-])Train: ([0-9]+) \[ *([0-9]+)/([0-9]+) +\( *[0-9]+%\)\] +Loss: ";
    DCGAN = r"^\[([0-9]+)/([0-9]+)\] ?\[([0-9]+)/([0-9]+)\] +[A-Za-z_]*(?i:loss)[A-Za-z_]*:? +-?[0-9]";
}

pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let timm = || TIMM.captures(text).map(|found| (group(&found, 1), None, group(&found, 2), group(&found, 3)));
    let dcgan =
        || DCGAN.captures(text).map(|found| (group(&found, 1), group(&found, 2), group(&found, 3), group(&found, 4)));
    let (number, of, step, steps) = if text.contains("Train: ") { timm() } else { dcgan() }?;
    let mut update = Update::default();
    pairs(text, None, &mut update);
    update.metrics.remove("Train");
    // Both count epochs from 0, also in a run that resumes.
    run.counts_from_0 = true;
    let within = run.within(Epoch { number: number?, of }, step?, steps?);
    Some(Update { metrics: update.metrics, percentages: update.percentages, ..within })
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::LOSS;

    #[test]
    fn timm() {
        let line = "Train: 2 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: 0.412s,  621.30/s  (0.5s,  512.0/s)  LR: 1.0e-04  Data: 0.01 (0.02)";
        let last = progress(None, line);
        assert_eq!((counts(&last), last.metric(LOSS)), ([Some(2.0), None, Some(2552.0), None], Some(6.93)));
    }

    #[test]
    fn dcgan() {
        let lines = "[0/25][3/10] Loss_D: 0.3 Loss_G: 2.4 D(x): 0.8\n[1/25][3/10] Loss_D: 0.2 Loss_G: 2.5 D(x): 0.8";
        let last = progress(None, lines);
        assert_eq!(counts(&last), [Some(1.0), Some(25.0), Some(13.0), Some(250.0)]);
        assert_eq!((last.metric("Loss_D"), last.metric(LOSS)), (Some(0.2), None));
    }

    #[test]
    fn lines_resembling_an_unnamed_epoch_are_ignored() {
        for line in [
            "Train: 2 files, Loss: none",
            "Train: 2 [50 files]",
            "Test: 2 [  50/1251 (  4%)]  Loss: 6.93",
            "Pretrain: 2 [  50/1251 (  4%)]  Loss: 6.93",
            "[0/25][3/10] files downloaded",
            "[1/2] loss.cpp",
            "[3/9][2/7] compiling loss.cu",
            "see [0/25][3/10] Loss_D: 0.3",
        ] {
            assert_eq!(counts(&progress(None, line)), [None; 4], "{line}");
        }
    }
}
