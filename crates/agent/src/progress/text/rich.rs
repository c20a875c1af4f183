//! Lightning's bar if rich is installed.

use super::number::parse;
use super::pairs::pairs;
use super::run::{Epoch, Run};
use protocol::progress::Update;

regexes! {
    RICH_BAR = r"^Epoch ([0-9]+)/([0-9]+) .* ([0-9]+)/([0-9]+) +[0-9:]+ • ";
}

/// `Epoch 2/9 ━━━ 40/40 0:00:01 • 0:00:00 62.69it/s v_num: 0.000`: epochs count from 0, and 9 is the number of the last
/// one.
pub(super) fn bar(text: &str, run: &mut Run) -> Option<Update> {
    let bar = RICH_BAR.captures(text)?;
    run.counts_from_0 = true;
    let epoch = Epoch { number: parse(&bar[1])?, of: Some(parse(&bar[2])? + 1.0) };
    let mut update = run.within(epoch, parse(&bar[3])?, parse(&bar[4])?);
    pairs(&text[bar.get(0)?.end()..], None, &mut update);
    Some(update)
}

#[cfg(test)]
mod tests {
    use crate::progress::text::testing::*;

    #[test]
    fn lightning_with_rich() {
        let (_, rich) = read(&mut Text::new(None), recorded!("lightning-2.6-rich.stdout"));
        assert_eq!(counts(&rich), [Some(2.0), Some(3.0), Some(120.0), Some(120.0)]);
    }
}
