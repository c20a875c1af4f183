//! What people see: lines that fit the terminal, colours where they are wanted.

use jiff::{SignedDuration, Timestamp};
use std::io::IsTerminal;

/// What a piece of text means; a terminal shows it in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Nothing in particular.
    #[default]
    Plain,
    /// A heading.
    Bold,
    /// Aside.
    Dim,
    /// All is well.
    Good,
    /// On its way.
    Busy,
    /// Look here.
    Bad,
    /// Of this worker.
    Rank(i32),
}

impl Style {
    /// Parameter of the escape sequence "Select Graphic Rendition".
    fn code(self) -> &'static str {
        // Neither red, which means trouble, nor black or white, one of which is the background.
        const RANKS: [&str; 10] = ["36", "32", "33", "35", "34", "96", "92", "93", "95", "94"];
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Busy => "33",
            Self::Bad => "31",
            Self::Rank(rank) => RANKS[usize::try_from(rank).unwrap_or(0) % RANKS.len()],
        }
    }

    /// The text in this style.
    #[must_use]
    pub fn paint(self, text: &str, colour: bool) -> String {
        match self.code() {
            code if colour && !code.is_empty() && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// How there is to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Columns; `None` where nothing limits them, as in a file.
    pub width: Option<usize>,
    /// Rows, on a terminal.
    pub height: Option<usize>,
    /// Whether colours may be used.
    pub colour: bool,
    /// Whether somebody looks at it, and a screen can be cleared.
    pub terminal: bool,
}

impl Look {
    /// Of standard output: colours only on a terminal and never with `NO_COLOR`; `COLUMNS` goes before the terminal's width.
    #[must_use]
    pub fn of_stdout() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal();
        let size = terminal.then(terminal_size::terminal_size).flatten();
        let columns = set("COLUMNS").and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        Self {
            width: columns.or(size.map(|(width, _)| usize::from(width.0))),
            height: size.map(|(_, height)| usize::from(height.0)),
            colour: terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb"),
            terminal,
        }
    }
}

/// A piece of a line.
pub type Part<'a> = (Style, &'a str);

/// Columns of the names of fields.
const LABEL: usize = 13;
/// Lines of prose are no longer than this, however wide the terminal.
const PROSE: usize = 110;

/// Text in the making.
pub struct Screen {
    look: Look,
    text: String,
}

impl Screen {
    /// An empty one.
    #[must_use]
    pub fn new(look: Look) -> Self {
        Self { look, text: String::new() }
    }

    /// All of it.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }

    /// An empty line.
    pub fn gap(&mut self) {
        self.text.push('\n');
    }

    /// A line, cut where the terminal ends.
    pub fn line(&mut self, parts: &[Part<'_>]) {
        let mut letters: Vec<(Style, char)> = parts
            .iter()
            .flat_map(|(style, text)| clean(text).chars().map(|c| (*style, c)).collect::<Vec<_>>())
            .collect();
        while letters.last().is_some_and(|(_, c)| c.is_whitespace()) {
            letters.pop();
        }
        let room = self.look.width.unwrap_or(usize::MAX);
        if letters.len() > room {
            letters.truncate(room.saturating_sub(1));
            letters.push((letters.last().map_or(Style::Plain, |(style, _)| *style), '…'));
        }
        for part in letters.chunk_by(|a, b| a.0 == b.0) {
            let text: String = part.iter().map(|(_, c)| c).collect();
            self.text += &part[0].0.paint(&text, self.look.colour);
        }
        self.text.push('\n');
    }

    /// A named field on one line.
    pub fn field(&mut self, label: &str, parts: &[Part<'_>]) {
        let label = format!("{label:LABEL$}");
        let parts: Vec<_> = std::iter::once((Style::Dim, label.as_str())).chain(parts.iter().copied()).collect();
        self.line(&parts);
    }

    /// A named field with as many lines as it takes: what must be read to its end.
    pub fn long_field(&mut self, label: &str, style: Style, text: &str) {
        let mut label = label;
        for line in self.wrapped(text, LABEL) {
            self.field(label, &[(style, &line)]);
            label = "";
        }
    }

    /// A paragraph, its first line after `mark` and the others below its text.
    pub fn paragraph(&mut self, mark: &str, style: Style, text: &str) {
        let indent = " ".repeat(mark.chars().count());
        let mut before = mark;
        for line in self.wrapped(text, indent.len()) {
            self.line(&[(Style::Plain, before), (style, &line)]);
            before = &indent;
        }
    }

    /// A table with these headings. Where it is too wide, the columns in `flexible` give way.
    pub fn table(&mut self, headings: &[&str], rows: &[Vec<(Style, String)>], flexible: &[usize]) {
        const LEAST: usize = 10;
        let width_of = |column: usize| {
            let cells = rows.iter().map(|row| row[column].1.chars().count());
            cells.chain([headings[column].len()]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..headings.len()).map(width_of).collect();
        let room = self.look.width.unwrap_or(usize::MAX);
        let full = |widths: &[usize], gap: usize| widths.iter().sum::<usize>() + gap * (widths.len() - 1);
        let gap = if full(&widths, 3) > room { 2 } else { 3 };
        for column in flexible {
            let total = full(&widths, gap);
            let less = total.saturating_sub(room).min(widths[*column].saturating_sub(LEAST));
            widths[*column] -= less;
        }
        let heading = headings.iter().map(|heading| (Style::Dim, (*heading).to_owned())).collect();
        for row in std::iter::once(&heading).chain(rows) {
            let cells: Vec<(Style, String)> = row
                .iter()
                .zip(&widths)
                .map(|((style, text), width)| (*style, format!("{:1$}", shortened(text, *width), width + gap)))
                .collect();
            self.line(&cells.iter().map(|(style, text)| (*style, text.as_str())).collect::<Vec<_>>());
        }
    }

    /// `text` in lines that fit beside `indent` columns. Words longer than a line are left for [`Self::line`] to cut.
    fn wrapped(&self, text: &str, indent: usize) -> Vec<String> {
        let room = self.look.width.map_or(usize::MAX, |width| width.min(PROSE).saturating_sub(indent).max(20));
        let mut lines = vec![String::new()];
        for word in clean(text).split_whitespace() {
            // A command or a path must survive to be copied, so a word that is too long is broken, not cut.
            for piece in pieces(word, room) {
                let line = lines.last_mut().expect("there is one");
                let used = line.chars().count();
                if used > 0 && used + 1 + piece.chars().count() > room {
                    lines.push(piece);
                } else {
                    if used > 0 {
                        line.push(' ');
                    }
                    line.push_str(&piece);
                }
            }
        }
        lines
    }
}

fn pieces(word: &str, room: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(room).map(|chunk| chunk.iter().collect()).collect()
}

/// Without what would move the cursor: messages quote what programs print.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// At most so many characters, with a sign that there were more.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// `[#####---------------]` for a quarter.
#[must_use]
pub fn bar(percent: f64, columns: usize) -> String {
    let full = (percent.clamp(0.0, 100.0) / 100.0 * columns as f64).floor() as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(columns - full))
}

/// From `then` to `now` in two units at most: 45s, 12m, 3h5m, 2d4h.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then).as_secs())
}

/// Seconds as [`age`] tells them.
#[must_use]
pub fn span(seconds: i64) -> String {
    let s = seconds.max(0);
    let (d, h, m) = (s / 86400, s / 3600 % 24, s / 60 % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, m) if m < 10 && s % 60 > 0 => format!("{m}m{}s", s % 60),
        (0, 0, m) => format!("{m}m"),
        (0, h, 0) => format!("{h}h"),
        (0, h, m) => format!("{h}h{m}m"),
        (d, 0, _) => format!("{d}d"),
        (d, h, _) => format!("{d}d{h}h"),
    }
}

/// A span as people write it: 90s, 10m, 1h30m.
///
/// # Errors
/// With what would be one.
pub fn read_span(text: &str) -> Result<SignedDuration, String> {
    let span: SignedDuration = text.parse().map_err(|_| "write a span such as 90s, 10m or 1h30m".to_owned())?;
    if span.as_secs() < 1 {
        Err("write a span of at least one second, such as 90s, 10m or 1h30m".into())
    } else {
        Ok(span)
    }
}

/// A measured value in four digits.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    if !(1e-3..1e7).contains(&size) {
        return format!("{value:.2e}");
    }
    let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `1 worker`, `2 workers`.
#[must_use]
pub fn count(n: i64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// 0,1,2,5 is `0-2,5`.
#[must_use]
pub fn ranges(numbers: &[i32]) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text = |(a, b): &(i32, i32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}
