//! Tables with a name and a number in each row: `| step | 1200 |`, `|    total_timesteps | 2048 |`. The loggers of
//! OpenAI's Baselines, of its diffusion models and of Stable Baselines3 draw them.

use super::number::parse;
use super::run::Run;
use protocol::progress::Update;

regexes! {
    ROW = r"^\| +([a-z_]+(?:/[a-z_]+)?) +\| (", number!(), r") *\|$";
}

pub(super) fn line(text: &str, _: &mut Run) -> Option<Update> {
    const STEPS: [&str; 4] = ["step", "total_timesteps", "time/total_timesteps", "misc/total_timesteps"];
    const LOSSES: [&str; 2] = ["loss", "train/loss"];
    let row = ROW.captures(text)?;
    let (name, value) = (&row[1], parse(&row[2])?);
    let mut update = Update::default();
    if STEPS.contains(&name) {
        update.step = Some(value);
    } else if LOSSES.contains(&name) {
        update.set("train_loss", value);
    }
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;
    use protocol::progress::LOSS;

    #[test]
    fn openai() {
        let table = "------------------------\n| grad_norm  | 0.261   |\n| loss       | 0.128   |\n| loss_q0    | 0.31    |\n| samples    | 7.9e+05 |\n| step       | 1.23e+04 |\n------------------------\n";
        let last = progress(None, table);
        assert_eq!((counts(&last)[2], last.metric(LOSS)), (Some(12300.0), Some(0.128)));
    }

    #[test]
    fn stable_baselines() {
        let table = "----------------------------------\n| time/               |          |\n|    fps              | 1204     |\n|    total_timesteps  | 2048     |\n| train/              |          |\n|    loss             | 8.8      |\n----------------------------------\n";
        let last = progress(None, table);
        assert_eq!((counts(&last)[2], last.metric(LOSS)), (Some(2048.0), Some(8.8)));
    }

    #[test]
    fn lines_resembling_a_table_row_are_ignored() {
        for line in [
            "| step | what it does |",
            "| step | 3 | 4 |",
            "|step|3|",
            "| best step | 3 |",
            "| loss | MSE |",
            "| steps | 3 |",
            "step | 3 |",
            "| step | 3 of 4 |",
        ] {
            assert_eq!(read(&mut Text::default(), line.as_bytes()).0, [], "{line}");
        }
    }
}
