//! Sizes, ages, names and tables for people.

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

pub use text::{bytes, shown};

/// As kubectl writes it.
pub(super) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Columns under each other.
pub(super) fn align(rows: &[[String; 7]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.width())));
        text += cells.collect::<Vec<_>>().join("   ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    #[test]
    fn sizes_and_ages_are_formatted_briefly() {
        let sizes: Vec<String> = [0, 1023, 1024, 1_048_575, 1 << 20, u64::MAX].map(bytes).into();
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 MiB", "16.0 EiB"]);
        let ago = |seconds| age(Timestamp::from_second(NOW.as_second() - seconds).unwrap(), NOW);
        assert_eq!(
            [-5, 119, 120, 7199, 7200, 172_799, 172_800].map(ago),
            ["0s", "119s", "2m", "119m", "2h", "47h", "2d"]
        );
    }
}
