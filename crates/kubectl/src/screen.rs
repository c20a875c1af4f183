//! What people see: lines that fit the terminal, colours where they are wanted.

use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use jiff::{RoundMode, SignedDuration, Span, SpanRound, Timestamp, Unit};
use std::io::IsTerminal;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What a piece of text means; a terminal shows it in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// It means nothing in particular.
    #[default]
    Plain,
    /// It is a heading.
    Bold,
    /// It is said aside.
    Dim,
    /// It says that all is well.
    Good,
    /// It says that something is on its way.
    Busy,
    /// It is where to look first.
    Bad,
    /// It is the mark of the worker with this index.
    Worker(u32),
}

impl Style {
    fn ansi(self) -> anstyle::Style {
        use AnsiColor::{
            Blue, BrightBlue, BrightCyan, BrightGreen, BrightMagenta, BrightYellow, Cyan, Green, Magenta, Red, Yellow,
        };
        // Neither red, which means trouble, nor black or white, one of which is the background.
        const WORKERS: [AnsiColor; 10] =
            [Cyan, Green, Yellow, Magenta, Blue, BrightCyan, BrightGreen, BrightYellow, BrightMagenta, BrightBlue];
        match self {
            Self::Plain => anstyle::Style::new(),
            Self::Bold => anstyle::Style::new().bold(),
            Self::Dim => anstyle::Style::new().dimmed(),
            Self::Good => Green.on_default(),
            Self::Busy => Yellow.on_default(),
            Self::Bad => Red.on_default(),
            Self::Worker(index) => WORKERS[usize::try_from(index).unwrap_or(0) % WORKERS.len()].on_default(),
        }
    }

    /// Returns the text in this style if `colour` allows it.
    #[must_use]
    pub fn paint(self, text: &str, colour: bool) -> String {
        let style = self.ansi();
        if colour && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// How text is to be shown: what the terminal, the file or the pipe allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisplayOptions {
    /// How many columns there are; `None` where nothing limits them, as in a file.
    pub width: Option<usize>,
    /// How many rows there are, on a terminal.
    pub height: Option<usize>,
    /// Whether colours may be used.
    pub colour: bool,
    /// Whether the output is a terminal, so that the screen can be cleared.
    pub terminal: bool,
}

impl DisplayOptions {
    /// Returns what standard output allows. `COLUMNS` takes precedence over the terminal's width.
    #[must_use]
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let size = terminal.then(terminal_size::terminal_size).flatten();
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        Self {
            width: columns.or(size.map(|(width, _)| usize::from(width.0))),
            height: size.map(|(_, height)| usize::from(height.0)),
            colour: AutoStream::choice(&stdout) != ColorChoice::Never,
            terminal,
        }
    }
}

/// A piece of a line is a text with what it means.
pub type Part<'a> = (Style, &'a str);

/// How many columns the names of fields take.
const LABEL: usize = 13;
/// Lines of prose are no longer than this, however wide the terminal.
const PROSE: usize = 110;

/// A screen is text in the making.
pub struct Screen {
    look: DisplayOptions,
    text: String,
}

impl Screen {
    /// Begins an empty screen.
    #[must_use]
    pub fn new(look: DisplayOptions) -> Self {
        Self { look, text: String::new() }
    }

    /// Returns all that was written.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }

    /// Adds an empty line.
    pub fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Adds a line, cut where the terminal ends.
    pub fn line(&mut self, parts: &[Part<'_>]) {
        let mut letters: Vec<(Style, char)> = parts
            .iter()
            .flat_map(|(style, text)| clean(text).chars().map(|c| (*style, c)).collect::<Vec<_>>())
            .collect();
        while letters.last().is_some_and(|(_, c)| c.is_whitespace()) {
            letters.pop();
        }
        let room = self.look.width.unwrap_or(usize::MAX);
        if letters.iter().map(|(_, c)| columns_of(*c)).sum::<usize>() > room {
            let mut left = room.saturating_sub(1);
            let fits = letters.iter().take_while(|(_, c)| take(&mut left, *c)).count();
            letters.truncate(fits);
            letters.push((letters.last().map_or(Style::Plain, |(style, _)| *style), '…'));
        }
        for part in letters.chunk_by(|a, b| a.0 == b.0) {
            let text: String = part.iter().map(|(_, c)| c).collect();
            self.text += &part[0].0.paint(&text, self.look.colour);
        }
        self.text.push('\n');
    }

    /// Adds a named field on one line.
    pub fn field(&mut self, label: &str, parts: &[Part<'_>]) {
        let label = format!("{label:LABEL$}");
        let parts: Vec<_> = std::iter::once((Style::Dim, label.as_str())).chain(parts.iter().copied()).collect();
        self.line(&parts);
    }

    /// Adds a named field with as many lines as it takes, for what must be read to its end.
    pub fn long_field(&mut self, label: &str, style: Style, text: &str) {
        let mut label = label;
        for line in self.wrapped(text, LABEL) {
            self.field(label, &[(style, &line)]);
            label = "";
        }
    }

    /// Adds a paragraph, its first line after `mark` and the others below its text.
    pub fn paragraph(&mut self, mark: &str, style: Style, text: &str) {
        let indent = " ".repeat(mark.width());
        let mut before = mark;
        for line in self.wrapped(text, indent.len()) {
            self.line(&[(Style::Plain, before), (style, &line)]);
            before = &indent;
        }
    }

    /// Adds a table with these headings. If it is too wide, the columns in `flexible` become narrower.
    pub fn table(&mut self, headings: &[&str], rows: &[Vec<(Style, String)>], flexible: &[usize]) {
        const LEAST: usize = 10;
        let width_of = |column: usize| {
            let cells = rows.iter().map(|row| row[column].1.width());
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
                .map(|((style, text), width)| (*style, padded(&shortened(text, *width), width + gap)))
                .collect();
            self.line(&cells.iter().map(|(style, text)| (*style, text.as_str())).collect::<Vec<_>>());
        }
    }

    /// Returns `text` in lines that fit beside `indent` columns. Words longer than a line are left for [`Self::line`] to cut.
    #[expect(clippy::expect_used, reason = "there is always one")]
    fn wrapped(&self, text: &str, indent: usize) -> Vec<String> {
        let room = self.look.width.map_or(usize::MAX, |width| width.min(PROSE).saturating_sub(indent).max(20));
        let mut lines = vec![String::new()];
        for word in clean(text).split_whitespace() {
            // A command or a path must survive to be copied, so a word that is too long is broken, not cut.
            for piece in pieces(word, room) {
                let line = lines.last_mut().expect("there is one");
                let used = line.width();
                if used > 0 && used + 1 + piece.width() > room {
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

#[expect(clippy::expect_used, reason = "there is always one")]
fn pieces(word: &str, room: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut left = room;
    for letter in word.chars() {
        if !take(&mut left, letter) {
            left = room.saturating_sub(columns_of(letter));
            pieces.push(String::new());
        }
        pieces.last_mut().expect("there is one").push(letter);
    }
    pieces
}

/// Returns the number of columns of a letter. A sign of many scripts takes two, an accent none.
fn columns_of(letter: char) -> usize {
    /// It widens the sign before it into an emoji.
    const WIDENS: char = '\u{fe0f}';
    if letter == WIDENS { 1 } else { letter.width().unwrap_or(0) }
}

/// Subtracts the columns of a letter from those that are left. Returns whether there were enough.
fn take(left: &mut usize, letter: char) -> bool {
    let rest = left.checked_sub(columns_of(letter));
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// Returns the text without what would move the cursor, because messages quote the output of programs.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the text in at most so many columns, with a sign if there was more.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let mut left = most.saturating_sub(1);
    let mut kept: String = text.chars().take_while(|letter| take(&mut left, *letter)).collect();
    kept.push('…');
    kept
}

/// Returns the text with blanks after it, so that it takes so many columns.
#[must_use]
pub fn padded(text: &str, columns: usize) -> String {
    text.to_owned() + &" ".repeat(columns.saturating_sub(text.width()))
}

/// Draws a bar: `[#####---------------]` is a quarter.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "columns and digits of a terminal")]
pub fn bar(percent: f64, columns: usize) -> String {
    let full = (percent.clamp(0.0, 100.0) / 100.0 * columns as f64).floor() as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(columns - full))
}

/// Formats the time from `then` to `now` as [`span`] does.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(then).as_secs())
}

/// Formats a number of seconds in two units at most: 45s, 12m, 3h5m, 2d4h.
#[must_use]
pub fn span(seconds: i64) -> String {
    const SHORT: SpanPrinter = SpanPrinter::new().designator(Designator::Compact).spacing(Spacing::None);
    let least = match seconds {
        ..600 => Unit::Second,
        600..86_400 => Unit::Minute,
        _ => Unit::Hour,
    };
    let units = SpanRound::new().largest(Unit::Day).smallest(least).mode(RoundMode::Trunc).days_are_24_hours();
    let span = Span::new().try_seconds(seconds.max(0)).and_then(|span| span.round(units));
    span.map_or_else(|_| "for ever".to_owned(), |span| SHORT.span_to_string(&span))
}

/// Parses a span such as 90s, 10m or 1h30m.
///
/// # Errors
/// If it is not a span. The error gives examples.
pub fn read_span(text: &str) -> Result<SignedDuration, String> {
    let span: SignedDuration = text.parse().map_err(|_| "write a span such as 90s, 10m or 1h30m".to_owned())?;
    if span.as_secs() < 1 {
        Err("write a span of at least one second, such as 90s, 10m or 1h30m".into())
    } else {
        Ok(span)
    }
}

/// Formats a measured value in four digits.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "columns and digits of a terminal")]
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

/// Formats a count: `1 worker`, `2 workers`.
#[must_use]
pub fn count(n: i64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Joins consecutive numbers: 0,1,2,5 is `0-2,5`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}
