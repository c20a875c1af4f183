//! The words before a name, which may make it the name of something else.

/// Words for data that the program does not learn from.
pub(super) const HELD_OUT: [&str; 6] = ["val", "valid", "validation", "test", "eval", "evaluation"];
/// Words for the data, the averaging, or an end. A loss with them is still the training's.
const KNOWN: [&str; 34] = [
    "train",
    "training",
    "lm",
    "learning",
    "grad",
    "avg",
    "average",
    "averaged",
    "mean",
    "running",
    "smoothed",
    "total",
    "overall",
    "global",
    "local",
    "current",
    "set",
    "batch",
    "minibatch",
    "mini-batch",
    "epoch",
    "step",
    "iter",
    "iteration",
    "info",
    "debug",
    "with",
    "and",
    "done",
    "end",
    "ended",
    "finished",
    "complete",
    "completed",
];
/// Words for another time than now, or for a goal.
const OF_ANOTHER_TIME: [&str; 14] = [
    "best", "lowest", "highest", "initial", "previous", "target", "goal", "top", "from", "since", "until", "till",
    "resume", "resumed",
];

regexes! {
    RESUMED = r"(?i)\b(?:restor(?:ed|ing)|resum(?:ed?|ing))\b|^(?:re)?load(?:ed|ing)\b";
    LOADED = r"(?i)\b(?:re)?load(?:ed|ing)?\b";
    CHECKPOINT = r"(?i)\b(?:checkpoint|ckpt|snapshot|model|weights|state)\b";
}

/// Whether `before` says that the following values were read from a checkpoint.
pub(super) fn is_of_a_checkpoint(before: &str) -> bool {
    RESUMED.is_match(before) || (LOADED.is_match(before) && CHECKPOINT.is_match(before))
}

/// The words right before the end of `before`, the nearest first, up to the first separator.
fn back(before: &str) -> impl Iterator<Item = &str> {
    let mut rest = before;
    std::iter::from_fn(move || {
        let text = rest.trim_end_matches(' ');
        let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '%' | '@');
        let word = &text[text.trim_end_matches(is_of_word).len()..];
        rest = &text[..text.len() - word.len()];
        // " - ", "..." and " / " are separators.
        word.ends_with(|c: char| c.is_alphanumeric() || c == '%').then(|| word.trim_start_matches(['-', '.', '/', '@']))
    })
}

/// Whether a word right before the end of `before` refers to another time.
pub(super) fn is_of_another_time(before: &str) -> bool {
    back(before).any(|word| OF_ANOTHER_TIME.contains(&word.to_ascii_lowercase().as_str()))
}

/// The words before the name that begins where `before` ends, the nearest first. `None` if one of them isn't known, as
/// in `aux loss` or `target loss`. Words before a number belong to the number: `step 3 loss`, but not `top 5 accuracy`.
pub(super) fn qualifiers(before: &str) -> Option<Vec<&str>> {
    if before.ends_with(char::is_alphanumeric) || is_of_another_time(before) {
        return None;
    }
    let words: Vec<&str> = back(before).take_while(|word| !word.starts_with(|c: char| c.is_ascii_digit())).collect();
    let is_known = |word: &&str| {
        let word = word.to_ascii_lowercase();
        KNOWN.contains(&word.as_str()) || HELD_OUT.contains(&word.as_str())
    };
    words.iter().all(is_known).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualifiers_are_read_up_to_a_separator() {
        for (before, words) in [
            ("", Some(&[][..])),
            ("Epoch 3 | ", Some(&[])),
            ("aux: ", Some(&[])),
            ("aux - ", Some(&[])),
            ("aux\t", Some(&[])),
            ("(Train ", Some(&["Train"])),
            ("x, val  avg ", Some(&["avg", "val"])),
            ("step 3 ", Some(&[])),
            ("epoch done in 12s, ", Some(&[])),
            ("aux ", None),
            ("aux train ", None),
            ("top 5 ", None),
            ("best epoch 3 train ", None),
            ("5", None),
        ] {
            assert_eq!(qualifiers(before).as_deref(), words, "{before}");
        }
    }
}
