//! LightGBM's lines: of `log_evaluation` in Python, and of its own program.

use super::number::parse;
use super::run::{NextRound, Run};
use protocol::progress::Update;

regexes! {
    ROUND = r"^\[([0-9]+)\]((?:\t[^\t:']+'s [^\t:]+: ", number!(), r"(?: \+ ", number!(), ")?)+)$";
    VALUE = r"([^\t:']+'s [^\t:]+): (", number!(), ")";
    METRIC = r"^\[LightGBM\] \[Info\] Iteration:([0-9]+), ((training|valid_[0-9]+) \S+) : (", number!(), ")$";
    FINISHED = r"^\[LightGBM\] \[Info\] [0-9.]+ seconds elapsed, finished iteration ([0-9]+)$";
}

/// `[10]<TAB>training's binary_logloss: 0.3<TAB>valid_0's auc: 0.9`: a round is a step, from 1. At an early stop the
/// best round's values are printed again. They are skipped, because they belong to an earlier round.
pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    if text.ends_with("est iteration is:") {
        run.next_round = NextRound::Best;
        return Some(Update::default());
    }
    if text.starts_with("[LightGBM]") {
        if let Some(found) = METRIC.captures(text) {
            let mut update = Update { step: parse(&found[1]), ..Update::default() };
            update.set(metric(&found[2], &found[3]), parse(&found[4])?);
            return Some(update);
        }
        return Some(Update { step: parse(&FINISHED.captures(text)?[1]), ..Update::default() });
    }
    let found = text.starts_with('[').then(|| ROUND.captures(text)).flatten()?;
    if std::mem::take(&mut run.next_round) == NextRound::Best {
        return Some(Update::default());
    }
    let mut update = Update { step: parse(&found[1]), ..Update::default() };
    for value in VALUE.captures_iter(&found[2]) {
        let set = value[1].split('\'').next().unwrap_or_default();
        update.set(metric(&value[1], set), parse(&value[2])?);
    }
    Some(update)
}

/// The first loss of the training data is the loss. All other metrics keep their names.
fn metric<'n>(name: &'n str, set: &str) -> &'n str {
    if set.starts_with("train") && name.ends_with("loss") { "train_loss" } else { name }
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::LOSS;

    #[test]
    fn lightgbm() {
        let rounds = "[LightGBM] [Info] Total Bins 6132\n\
                      Training until validation scores don't improve for 5 rounds\n\
                      [10]\ttraining's binary_logloss: 0.31\ttraining's auc: 0.9\tvalid_0's binary_logloss: 0.41\n\
                      [20]\ttraining's binary_logloss: 2.1e-01\ttraining's auc: 0.95\tvalid_0's binary_logloss: 0.35\n";
        let last = progress(None, rounds);
        assert_eq!((counts(&last), last.metric(LOSS)), ([None, None, Some(20.0), None], Some(0.21)));
        assert_eq!(names(&last), ["loss", "training's auc", "valid_0's binary_logloss"]);
        for end in ["Early stopping, best iteration is:", "Did not meet early stopping. Best iteration is:"] {
            let best =
                format!("{rounds}{end}\n[15]\ttraining's binary_logloss: 0.25\tvalid_0's binary_logloss: 0.34\n");
            let last = progress(None, &best);
            assert_eq!((counts(&last)[2], last.metric(LOSS)), (Some(20.0), Some(0.21)), "{end}");
        }
        let folds = progress(None, "[10]\tcv_agg's valid l2: 0.24 + 0.01");
        assert_eq!((counts(&folds)[2], folds.metric("cv_agg's valid l2")), (Some(10.0), Some(0.24)));
    }

    #[test]
    fn lightgbm_cli_output_is_parsed() {
        let lines = "[LightGBM] [Info] Iteration:7, training binary_logloss : 0.31\n\
                     [LightGBM] [Info] Iteration:7, valid_1 auc : 0.9\n\
                     [LightGBM] [Info] 0.008123 seconds elapsed, finished iteration 7";
        let last = progress(None, lines);
        assert_eq!((counts(&last), last.metric(LOSS)), ([None, None, Some(7.0), None], Some(0.31)));
        assert_eq!(names(&last), ["loss", "valid_1 auc"]);
    }

    #[test]
    fn lines_resembling_lightgbm_are_ignored() {
        for line in [
            "[LightGBM] [Info] Total Bins 6132",
            "[LightGBM] [Info] Number of data points in the train set: 7000, number of used features: 28",
            "[LightGBM] [Warning] No further splits with positive gain, best gain: -inf at iteration 7",
            "[LightGBM] [Info] Start training from score -0.1",
            "[10]\tvalid_0: 0.24",
            "[10]\tit's l2: x",
            "[10] valid_0's l2: 0.24",
            "best [10]\tvalid_0's l2: 0.24",
            "[10]\tvalid_0's l2: 0.24 is the loss",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }
}
