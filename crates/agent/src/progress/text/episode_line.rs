//! Reinforcement learning that counts in episodes: `Episode 10 Last reward: 35.00`.

use super::number::{ends_count, group};
use super::pairs::{is_held_out, pairs};
use super::run::{Run, Unit};
use super::words::{is_of_a_checkpoint, qualifiers};
use protocol::progress::Update;

regexes! {
    EPISODE = r"(?i)\bepisode *[:=#]? *\[? *(", count!(), r")(?: *(?:/|of) *(", count!(), "))?";
    REWARD = r"(?i)\b(?:[a-z]+_)?(?:reward|return|score)s?(?:: *| *= *| +)-?[0-9.]";
}

/// An episode is a step, unless the program also prints steps.
pub(super) fn line(text: &str, run: &mut Run) -> Option<Update> {
    let found = EPISODE.captures(text).filter(|_| run.unit != Unit::Steps)?;
    let (start, end) = (found.get(0)?.start(), found.get(2).or(found.get(1))?.end());
    let (before, after) = (&text[..start], &text[end..]);
    let is_foreign = is_held_out(before) || is_of_a_checkpoint(before) || qualifiers(before).is_none();
    if is_foreign || !ends_count(after) || !REWARD.is_match(after) {
        return None;
    }
    run.unit = Unit::Episodes;
    let mut update = Update { step: group(&found, 1), steps: group(&found, 2), ..Update::default() };
    pairs(text, None, &mut update);
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;

    #[test]
    fn episode_with_a_reward_counts_as_a_step() {
        for (line, step, steps) in [
            ("Episode 10\tLast reward: 35.00\tAverage reward: 12.44", 10.0, None),
            ("Episode 10/500, Reward: 35.0, Epsilon: 0.9", 10.0, Some(500.0)),
            ("Episode: 10, total reward: -35.0, loss: 0.5", 10.0, None),
            ("Episode 10 | score = 35", 10.0, None),
        ] {
            assert_eq!(counts(&progress(None, line)), [None, None, Some(step), steps], "{line}");
        }
        let both = "step 300 | loss: 0.5\nEpisode 3, reward: 9.0";
        assert_eq!(counts(&progress(None, both))[2], Some(300.0));
    }

    #[test]
    fn lines_resembling_an_episode_are_ignored() {
        for line in [
            "Episode 10 begins",
            "Episode 4: A New Hope, score of the reviewers",
            "best episode 10, reward: 35.0",
            "eval episode 10, reward: 35.0",
            "resumed from episode 10, reward: 35.0",
            "Episode 10.5, reward: 35.0",
            "10 episodes, reward: 35.0",
            "episode_length: 10, reward: 35.0",
        ] {
            assert_eq!(counts(&progress(None, line)), [None; 4], "{line}");
        }
    }
}
