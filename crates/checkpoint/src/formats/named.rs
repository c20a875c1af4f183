//! Values in the names of files and folders.

use regex::Regex;
use std::collections::BTreeMap;
use std::sync::LazyLock;

#[expect(clippy::expect_used, reason = "a constant")]
static STEP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)(?:^|[^a-z])(?:global[-_]?)?(?:step|iter|iteration|checkpoint|ckpt)s?[-_=]?(\d{1,18})(?:\D|$)")
        .expect("the pattern is right")
});
#[expect(clippy::expect_used, reason = "a constant")]
static EPOCH: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)(?:^|[^a-z])epoch[-_=]?(\d{1,9})(?:\D|$)").expect("the pattern is right"));
#[expect(clippy::expect_used, reason = "a constant")]
static METRIC: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"([A-Za-z_][A-Za-z0-9_]*)=([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)").expect("the pattern is right")
});

/// The step of `step-300.pt`, `global_step10`, `iter_0000040`, `checkpoint-4`, `epoch=1-step=8.ckpt` or a folder `300`.
pub fn step(name: &str) -> Option<u64> {
    if name.len() <= 18 && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return name.parse().ok();
    }
    STEP.captures_iter(name).last()?[1].parse().ok()
}

/// The epoch of `epoch=1-step=8.ckpt`.
pub fn epoch(name: &str) -> Option<f64> {
    EPOCH.captures(name)?[1].parse().ok()
}

/// Metrics that Lightning puts into a name: `epoch=1-val_loss=0.30.ckpt`.
pub fn metrics(name: &str) -> BTreeMap<String, f64> {
    METRIC
        .captures_iter(name)
        .filter(|found| !matches!(&found[1], "epoch" | "step"))
        .filter_map(|found| {
            Some((found[1].to_string(), found[2].parse().ok().filter(|number: &f64| number.is_finite())?))
        })
        .collect()
}

/// The number between `before` and `after`.
pub fn number(name: &str, before: &str, after: &str) -> Option<u64> {
    let digits = name.strip_prefix(before)?.strip_suffix(after)?;
    if digits.is_empty() || digits.len() > 18 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Whether `found` is one flipped bit away from one of `known`: not a newer version's name, but a damaged one.
pub fn is_damaged(found: &str, known: &[&str]) -> bool {
    let bits = |known: &str| {
        let pairs = found.bytes().zip(known.bytes());
        pairs.map(|(ours, theirs)| (ours ^ theirs).count_ones()).sum::<u32>()
    };
    known.iter().any(|known| known.len() == found.len() && bits(known) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_epochs_and_metrics_are_parsed_from_names() {
        let steps = [
            ("step-300.pt", Some(300)),
            ("global_step10", Some(10)),
            ("iter_0000040", Some(40)),
            ("checkpoint-4", Some(4)),
            ("epoch=1-step=8.ckpt", Some(8)),
            ("epoch=1-step=8-v1.ckpt", Some(8)),
            ("ckpt_7.pt", Some(7)),
            ("300", Some(300)),
            ("resnet50.pt", None),
            ("model.pt", None),
            ("footstep.pt", None),
            ("99999999999999999999", None),
        ];
        for (name, expected) in steps {
            assert_eq!(step(name), expected, "{name}");
        }
        assert_eq!(epoch("epoch=1-step=8.ckpt"), Some(1.0));
        assert_eq!(epoch("model.pt"), None);
        assert_eq!(
            metrics("epoch=1-step=8-val_loss=0.30-lr=1e-05.ckpt"),
            BTreeMap::from([("val_loss".to_string(), 0.3), ("lr".to_string(), 1e-5)])
        );
        assert_eq!(number("rng_state_12.pth", "rng_state_", ".pth"), Some(12));
        assert_eq!(number("rng_state_.pth", "rng_state_", ".pth"), None);
    }

    #[test]
    fn name_one_bit_off_is_recognized_as_damaged() {
        assert!(is_damaged("global_stdp", &["global_step"]));
        assert!(!is_damaged("global_step", &["global_step"]));
        assert!(!is_damaged("save_steps", &["eval_steps"]));
    }
}
