//! What a line measures: `name: number` and `name=number`.

use super::number::{ends_number, parse};
use super::words::{HELD_OUT, is_of_another_time, qualifiers};
use protocol::progress::{Update, field_metric};

regexes! {
    PAIR = r"([A-Za-z_][A-Za-z0-9_./@-]*) ?[:=] *(", number!(), ")";
    HELD_OUT_WORD = r"(?i)\b(val|valid|validation|test|eval|evaluation)\b";
}

/// Whether `text` speaks of held-out data.
pub(super) fn is_held_out(text: &str) -> bool {
    HELD_OUT_WORD.is_match(text)
}

/// What a line measures that doesn't speak of the training: `val` of `val Loss: 0.5 Acc: 0.9`.
pub(super) fn held_out(text: &str) -> Option<&str> {
    let before = &text[..PAIR.find(text)?.start()];
    let found = HELD_OUT_WORD.find_iter(before).last()?;
    (!before.to_ascii_lowercase().contains("train")).then(|| found.as_str())
}

/// All `name: number` and `name=number` in `text`, those of held-out data under their own names. Of those that mean the
/// same the first counts.
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
        let Some(value) = parse(number.as_str()) else { continue };
        let Some(name) = full_name(&text[..name.start()], name.as_str(), &mut held_out) else { continue };
        let metric = field_metric(&name);
        if update.metrics.contains_key(metric) {
            continue;
        }
        let is_percentage = after.trim_start_matches(' ').starts_with('%') && name.to_ascii_lowercase().contains("acc");
        if is_percentage {
            update.percentages.insert(metric.to_owned());
        }
        update.set(&name, if is_percentage { value / 100.0 } else { value });
    }
}

/// `name` with the words `before` it that belong to it; `None` if they say that it isn't what it is called.
fn full_name(before: &str, name: &str, held_out: &mut Option<String>) -> Option<String> {
    // Words that make a name of their own with what follows, unless that is a loss or an accuracy.
    const JOINED: [&str; 8] = ["lm", "learning", "grad", "avg", "average", "mean", "total", "running"];
    let lower = name.to_ascii_lowercase();
    let is_of_training = |word: &&str| ["train", "training"].iter().any(|known| word.eq_ignore_ascii_case(known));
    let measures = ["loss", "acc", "accuracy"].contains(&lower.as_str());
    let words = match qualifiers(before) {
        Some(words) => words,
        None if measures || lower.contains("loss") || lower.contains("acc") || is_of_another_time(before) => {
            return None;
        }
        None => Vec::new(),
    };
    let of_held_out = words.iter().map(|word| word.to_ascii_lowercase()).find(|word| HELD_OUT.contains(&word.as_str()));
    if let Some(word) = of_held_out {
        held_out.get_or_insert_with(|| word.clone());
        return Some(format!("{word}_{lower}"));
    }
    match (&*held_out, words.first()) {
        (Some(word), _) if measures && !words.iter().any(is_of_training) => Some(format!("{word}_{lower}")),
        (_, Some(word))
            if !measures && (JOINED.contains(&word.to_ascii_lowercase().as_str()) || is_of_training(word)) =>
        {
            Some(format!("{word} {name}"))
        }
        _ => Some(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_an_accuracy_with_its_sign() {
        let accuracy = |line: &str| {
            let mut update = Update::default();
            pairs(line, None, &mut update);
            (update.metrics.get("accuracy").copied(), update.percentages.contains("accuracy"))
        };
        for line in ["acc: 91.5%", "Accuracy = 91.5 %", "loss: 1 accuracy: 91.5%, lr: 0.1"] {
            assert_eq!(accuracy(line), (Some(0.915), true), "{line}");
        }
        for line in [
            "acc: 91.5",
            "acc: 91.5 50%|###",
            "acc: 91.5, 50% done",
            "acc: 91.5 (of 100%)",
            "[50%] acc: 91.5",
            "acc: 91.5 | %",
        ] {
            assert_eq!(accuracy(line), (Some(91.5), false), "{line}");
        }
        let mut update = Update::default();
        pairs("loss: 5%, sparsity=50%", None, &mut update);
        assert_eq!((update.metrics["loss"], update.metrics["sparsity"], update.percentages.len()), (5.0, 50.0, 0));
    }
}
