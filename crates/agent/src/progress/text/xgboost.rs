//! The lines of XGBoost's evaluation: `[12]<TAB>train-logloss:0.33<TAB>eval-logloss:0.44`, with the time before it or without.

use super::number::parse;
use super::run::Run;
use protocol::progress::Update;

regexes! {
    ROUND = r"^(?:\[[0-9]{2}:[0-9]{2}:[0-9]{2}\] )?\[([0-9]+)\]((?:\t[^\t:]+-[^\t:-]+:", number!(), ")+)$";
}

/// A round is a step, from 0. The first loss of a set named train is the loss.
pub(super) fn line(text: &str, _: &mut Run) -> Option<Update> {
    let found = ROUND.captures(text)?;
    let mut update = Update { step: parse(&found[1]).map(|round| round + 1.0), ..Update::default() };
    for (name, value) in found[2].split('\t').filter_map(|part| part.rsplit_once(':')) {
        let Some(value) = parse(value) else { continue };
        let is_loss = name.starts_with("train") && name.ends_with("loss");
        update.set(if is_loss { "train_loss" } else { name }, value);
    }
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::LOSS;

    #[test]
    fn xgboost() {
        let (updates, last) = read(&mut Text::default(), recorded!("xgboost-3.2.stdout"));
        assert_eq!((updates.len(), counts(&last)), (8, [None, None, Some(8.0), None]));
        assert_eq!((last.metric(LOSS), last.metric("eval-auc")), (Some(0.04249), Some(1.0)));
        assert_eq!(names(&last), ["eval-auc", "eval-logloss", "loss", "train-auc"]);
        let alone = progress(None, "[0]\ttrain-rmse:1.5e-1\tmy-eval-rmse:nan");
        assert_eq!((alone.metric("train-rmse"), alone.metric(LOSS)), (Some(0.15), None));
        assert!(alone.metric("my-eval-rmse").unwrap().is_nan());
    }

    #[test]
    fn lines_resembling_xgboost_are_ignored() {
        for line in [
            "[12]\tdone",
            "[12]\tuser-id:abc",
            "[12] train-logloss:0.5",
            "[05:12:20] Task 0 got rank 0",
            "a list [12]\ttrain-rmse:0.5",
            "[12]\ttrain-rmse:0.5 of the best",
            "[x]\ttrain-rmse:0.5",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }
}
