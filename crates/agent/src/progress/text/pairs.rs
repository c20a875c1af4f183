//! The metrics of a line: `name: number`, `name=number`, and, for known names, `loss 0.5`.

use super::number::{ends_number, parse};
use super::words::{HELD_OUT, is_of_another_time, qualifiers};
use protocol::progress::{Update, field_metric};
use regex::{Match, Regex};

regexes! {
    PAIR = r"([A-Za-z_][A-Za-z0-9_./@-]*)(?: \(batch\))? ?[:=] *(", number!(), ")";
    WORDS = r"(?i)\b((?:[a-z]+_)?loss|lr|learning rate|ppl|perplexity|acc(?:uracy|@[0-9])?|grad_norm|(?:tok|tokens|samples|images)/s(?:ec)?|ms/batch)[ \t]+(",
        number!(), ")";
    NEXT = r"^[A-Za-z_][A-Za-z0-9_./@-]*(?: ?[:=]|[ \t]) *[-+]?[.]?[0-9]";
    HELD_OUT_WORD = r"(?i)\b(val|valid|validation|test|eval|evaluation)\b";
}

/// Whether `text` mentions held-out data.
pub(super) fn is_held_out(text: &str) -> bool {
    HELD_OUT_WORD.is_match(text)
}

/// The held-out data that a line's metrics are about: `val` in `val Loss: 0.5 Acc: 0.9`.
pub(super) fn held_out(text: &str) -> Option<&str> {
    let first = [PAIR.find(text), WORDS.find(text)].into_iter().flatten().map(|pair| pair.start()).min();
    let before = &text[..first?];
    let found = HELD_OUT_WORD.find_iter(before).last()?;
    (!before.to_ascii_lowercase().contains("train")).then(|| found.as_str())
}

/// A name and its number in a line.
struct Pair<'t> {
    name: Match<'t>,
    number: Match<'t>,
}

/// The pairs of `name: number` and `name=number`, and of known names before a number, in their order.
fn found(text: &str) -> Vec<Pair<'_>> {
    let of = |regex: &'static Regex| {
        regex.captures_iter(text).filter_map(|found| Some(Pair { name: found.get(1)?, number: found.get(2)? }))
    };
    let ends = |pair: &Pair| ends_number(&text[pair.number.end()..]);
    let mut all: Vec<Pair> = of(&PAIR).filter(ends).filter(|pair| !is_ambiguous(pair, text)).collect();
    all.extend(of(&WORDS).filter(ends).filter(|pair| is_measured(pair, text)));
    all.sort_by_key(|pair| pair.name.start());
    all
}

/// Whether a number may have a decimal comma, or be part of a list: `loss: 0,123`.
fn is_ambiguous(pair: &Pair, text: &str) -> bool {
    let (number, after) = (pair.number.as_str(), &text.as_bytes()[pair.number.end()..]);
    let is_cut = after.first() == Some(&b',') && after.get(1).is_some_and(u8::is_ascii_digit);
    let name = pair.name.as_str().to_ascii_lowercase();
    !number.contains(['.', 'e', 'E'])
        && (is_cut || (number.contains(',') && (name.contains("loss") || name.contains("acc"))))
}

/// Whether a number right behind a name is its value. `loss 3 of 4` and `loss 2.0 is too much` are sentences. A
/// measured value is not a whole number, and is followed by another name with its number, or by nothing.
fn is_measured(pair: &Pair, text: &str) -> bool {
    let number = pair.number.as_str();
    let is_whole = number.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b','));
    let after = text[pair.number.end()..].trim_start();
    let follows = match after.chars().next() {
        Some(c) if c.is_alphabetic() => NEXT.is_match(after) && !after.starts_with("of ") && !after.starts_with("to "),
        Some(_) => !after.starts_with("->"),
        None => true,
    };
    follows && (!is_whole || pair.name.as_str().contains('/')) && !is_ambiguous(pair, text)
}

/// Adds all `name: number`, `name=number` and, for known names, `name number` in `text` to `update`. Metrics of
/// held-out data keep their own names. If several names mean the same, the first one counts.
pub(super) fn pairs(text: &str, held_out: Option<&str>, update: &mut Update) {
    // Counts and labels, and names that the line's counts already cover.
    const NO_METRICS: [&str; 14] = [
        "epoch",
        "epochs",
        "step",
        "steps",
        "global_step",
        "iter",
        "iters",
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
    for Pair { name, number } in found(text) {
        if NO_METRICS.contains(&name.as_str().to_ascii_lowercase().as_str()) {
            continue;
        }
        // In "Tokens / Sec: 1234.5" the name is more than the last word.
        if text[..name.start()].ends_with("/ ") {
            continue;
        }
        let Some(value) = parse(number.as_str()) else { continue };
        let Some(name) = full_name(&text[..name.start()], name.as_str(), &mut held_out) else { continue };
        let metric = field_metric(&name);
        if update.metrics.contains_key(metric) {
            continue;
        }
        let after = text[number.end()..].trim_start_matches(' ');
        let is_percentage = after.starts_with('%') && name.to_ascii_lowercase().contains("acc");
        if is_percentage {
            update.percentages.insert(metric.to_owned());
        }
        update.set(&name, if is_percentage { value / 100.0 } else { value });
    }
}

/// `name` with the words in `before` that belong to it. `None` if they show that the value is something else.
fn full_name(before: &str, name: &str, held_out: &mut Option<String>) -> Option<String> {
    // Words that form another name with the next word, unless that is a loss or an accuracy.
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
    fn accuracy_with_a_percent_sign_is_a_percentage() {
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
