//! Output on its way to the parser, which may be slower than the program.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that wait at most. Of more, the oldest go: the last words tell most.
const MAX_WAITING: usize = 1024 * 1024;
/// Bytes up to which small writes are gathered to one piece.
const MAX_PIECE: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Never blocks the one who writes to it, and never holds more than a bounded number of bytes.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    more: Condvar,
}

#[derive(Default)]
struct Inner {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    waiting: usize,
    /// By stream: whether something was dropped before its next piece.
    gaps: [bool; 2],
    dropped_lines: u64,
    closed: bool,
    /// Somebody sleeps until there is more.
    asleep: bool,
}

/// What [`Queue::next`] met.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// A piece of a stream, and whether something is missing before it.
    Piece { stream: Stream, bytes: Vec<u8>, gap: bool },
    /// Nothing has come for as long as was asked.
    Nothing,
    /// Nothing will come any more.
    End,
}

impl Queue {
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut inner = self.lock();
        inner.waiting += bytes.len();
        match inner.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= MAX_PIECE => {
                piece.extend_from_slice(bytes);
            }
            _ => inner.pieces.push_back((stream, bytes.to_vec())),
        }
        while inner.waiting > MAX_WAITING
            && let Some((stream, piece)) = inner.pieces.pop_front()
        {
            inner.waiting -= piece.len();
            inner.gaps[stream as usize] = true;
            inner.dropped_lines += piece.iter().filter(|&&b| b == b'\n').count() as u64;
        }
        if std::mem::take(&mut inner.asleep) {
            self.more.notify_all();
        }
    }

    /// Nothing is pushed any more; who rests or waits is woken.
    pub fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }

    pub fn next(&self, wait: Duration) -> Next {
        let mut inner = self.lock();
        if inner.pieces.is_empty() && !inner.closed {
            inner.asleep = true;
            let nothing = |inner: &mut Inner| inner.pieces.is_empty() && !inner.closed;
            inner = self.more.wait_timeout_while(inner, wait, nothing).unwrap_or_else(PoisonError::into_inner).0;
            inner.asleep = false;
        }
        match inner.pieces.pop_front() {
            Some((stream, bytes)) => {
                inner.waiting -= bytes.len();
                let gap = std::mem::take(&mut inner.gaps[stream as usize]);
                Next::Piece { stream, bytes, gap }
            }
            None if inner.closed => Next::End,
            None => Next::Nothing,
        }
    }

    /// Sleeps, whatever comes, until the end.
    pub fn rest(&self, time: Duration) {
        let _ = self.more.wait_timeout_while(self.lock(), time, |inner| !inner.closed);
    }

    pub fn dropped_lines(&self) -> u64 {
        self.lock().dropped_lines
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn small_writes_are_gathered_and_streams_kept_apart() {
        let queue = Queue::default();
        queue.push(Stream::Stdout, b"a");
        queue.push(Stream::Stdout, b"b");
        queue.push(Stream::Stderr, b"c");
        let piece = |stream, bytes: &[u8]| Next::Piece { stream, bytes: bytes.to_vec(), gap: false };
        assert_eq!(queue.next(NOW), piece(Stream::Stdout, b"ab"));
        assert_eq!(queue.next(NOW), piece(Stream::Stderr, b"c"));
        assert_eq!(queue.next(NOW), Next::Nothing);
        queue.close();
        assert_eq!(queue.next(Duration::MAX), Next::End);
    }

    #[test]
    fn under_pressure_the_oldest_go_and_are_counted() {
        let queue = Queue::default();
        queue.push(Stream::Stderr, b"kept\n");
        let chunk = b"0123456\n".repeat(MAX_PIECE / 8);
        for _ in 0..2 * MAX_WAITING / MAX_PIECE {
            queue.push(Stream::Stdout, &chunk);
        }
        queue.push(Stream::Stdout, b"last");
        queue.close();
        assert_eq!(queue.dropped_lines(), ((MAX_WAITING + MAX_PIECE) / 8 + 1) as u64);
        let Next::Piece { stream, gap, .. } = queue.next(NOW) else { panic!("a piece was there") };
        assert_eq!((stream, gap), (Stream::Stdout, true));
        let mut left = 1;
        while let Next::Piece { gap, bytes, .. } = queue.next(NOW) {
            assert!(!gap);
            left += 1;
            if bytes == b"last" {
                assert_eq!(left, MAX_WAITING / MAX_PIECE);
            }
        }
        assert_eq!(queue.next(NOW), Next::End);
    }
}
