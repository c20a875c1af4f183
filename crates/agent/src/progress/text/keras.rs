//! The lines of Keras' `fit`.

use super::number::parse;
use super::pairs::pairs;
use super::run::Run;
use protocol::progress::Update;

regexes! {
    KERAS = r"^([0-9]+)/([0-9]+) .*[0-9][mu]?s/(?:step|epoch)\b(.*)";
}

/// Keras prints the same line for an evaluation, but without an epoch before it or with another total.
pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let keras = KERAS.captures(text)?;
    let Some(epoch) = run.begun else { return Some(Update::default()) };
    let (step, steps) = (parse(&keras[1])?, parse(&keras[2])?);
    if *run.per_epoch.get_or_insert(steps) != steps {
        return Some(Update::default());
    }
    let mut update = run.within(epoch, step, steps);
    pairs(&keras[3], None, &mut update);
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::{ACCURACY, LOSS};

    #[test]
    fn keras() {
        let recorded = std::str::from_utf8(recorded!("keras-3.15.stdout")).unwrap();
        let (fit, verbose_2) = recorded.split_once("--- verbose=2\n").unwrap();
        let last = progress(None, fit);
        assert_eq!(counts(&last), [Some(3.0), Some(3.0), Some(48.0), Some(48.0)]);
        assert_eq!((last.metric(LOSS), last.metric(ACCURACY)), (Some(0.5744), Some(0.6797)));
        assert_eq!((last.metric("val_loss"), last.metrics.len()), (Some(0.5674), 4));
        let (updates, last) = read(&mut Text::new(None), verbose_2.as_bytes());
        assert_eq!((updates[0].epoch, updates[0].epochs), (None, Some(2.0)), "an epoch that has only begun");
        assert_eq!((updates[1].epoch, updates[1].step, updates[1].steps), (Some(1.0), Some(16.0), Some(32.0)));
        assert_eq!(counts(&last), [Some(2.0), Some(2.0), Some(32.0), Some(32.0)]);
        let evaluated = format!("{fit}\n8/8 ━━━━━━━━━━━━━━━━━━━━ 0s 2ms/step - accuracy: 0.1 - loss: 9.9\n");
        assert_eq!(progress(None, &evaluated).metric(LOSS), Some(0.5744));
        let old = "Epoch 2/4\n 3/10 [===>..........] - ETA: 1s - loss: 0.5 - acc: 0.25\n10/10 [====] - 2s 2ms/step - loss: 0.25 - acc: 0.5\n";
        assert_eq!(counts(&progress(None, old)), [Some(2.0), Some(4.0), Some(20.0), Some(40.0)]);
    }
}
