//! What a line measures: `name: number` and `name=number`.

use super::number::{ends_number, parse};
use crate::protocol::progress::Update;

regexes! {
    PAIR = r"((?i:(?:train|training|val|valid|validation|test|eval|evaluation|lm|learning|avg|average|mean|total|running|grad) )?[A-Za-z_][A-Za-z0-9_./@-]*) ?[:=] *(",
        number!(), ")";
    HELD_OUT = r"(?i)\b(val|valid|validation|test|eval|evaluation)\b";
}

/// Whether `text` speaks of held-out data.
pub(super) fn is_held_out(text: &str) -> bool {
    HELD_OUT.is_match(text)
}

/// What a line measures that doesn't speak of the training: `val` of `val Loss: 0.5 Acc: 0.9`.
pub(super) fn held_out(text: &str) -> Option<&str> {
    let before = &text[..PAIR.find(text)?.start()];
    let found = HELD_OUT.find_iter(before).last()?;
    (!before.to_ascii_lowercase().contains("train")).then(|| found.as_str())
}

/// All `name: number` and `name=number` in `text`, those of held-out data under their own names.
pub(super) fn pairs(text: &str, held_out: Option<&str>, update: &mut Update) {
    // Counts and labels, and what stands in the line as a count already.
    const NO_METRICS: [&str; 13] = [
        "epoch",
        "epochs",
        "step",
        "steps",
        "global_step",
        "iter",
        "iteration",
        "v_num",
        "rank",
        "local_rank",
        "world_size",
        "eta",
        "progress",
    ];
    // "val Loss: 0.5": the word before the first name is part of it.
    let mut held_out = held_out.map(str::to_ascii_lowercase);
    for pair in PAIR.captures_iter(text) {
        let (Some(name), Some(number)) = (pair.get(1), pair.get(2)) else { continue };
        let after = &text[number.end()..];
        if !ends_number(after) || NO_METRICS.contains(&name.as_str().to_ascii_lowercase().as_str()) {
            continue;
        }
        let Some(mut value) = parse(number.as_str()) else { continue };
        let mut name = name.as_str().to_owned();
        if let Some((word, rest)) = name.split_once(' ')
            && HELD_OUT.is_match(word)
        {
            held_out.get_or_insert(word.to_ascii_lowercase());
            name = format!("{}_{}", word.to_ascii_lowercase(), rest.to_ascii_lowercase());
        } else if let Some(word) = &held_out
            && ["loss", "acc", "accuracy"].contains(&name.to_ascii_lowercase().as_str())
        {
            name = format!("{word}_{}", name.to_ascii_lowercase());
        }
        if after.starts_with('%') && name.to_ascii_lowercase().contains("acc") {
            value /= 100.0;
        }
        update.set(&name, value);
    }
}
