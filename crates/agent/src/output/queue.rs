//! A queue of output for the parser, which may be slower than the program.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Highest number of waiting bytes. Beyond it the oldest are dropped, because the last lines are the most useful.
const MAX_WAITING: usize = 1024 * 1024;
/// Highest number of waiting pieces. If a program writes single bytes to its streams in turn, each byte is a piece,
/// which takes many times the memory of its content.
const MAX_PIECES: usize = 8 * 1024;
/// Highest number of bytes of small writes that are joined to one piece.
const MAX_PIECE: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Never blocks its writer, and holds a bounded number of bytes in a bounded number of pieces.
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
    /// Whether the reader sleeps until there is more.
    asleep: bool,
}

/// The result of [`Queue::next`].
#[derive(Debug, PartialEq)]
pub enum Next {
    /// A piece of a stream, and whether something is missing before it.
    Piece { stream: Stream, bytes: Vec<u8>, gap: bool },
    /// Nothing arrived in the time given.
    Nothing,
    /// The queue is closed and empty.
    End,
}

impl Queue {
    /// Adds `bytes` of `stream`, and drops the oldest pieces if there are too many then.
    #[expect(clippy::naive_bytecount, reason = "a piece of output that is dropped is rare")]
    pub fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut inner = self.inner.lock();
        inner.waiting += bytes.len();
        match inner.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= MAX_PIECE => {
                piece.extend_from_slice(bytes);
            }
            _ => inner.pieces.push_back((stream, bytes.to_vec())),
        }
        while (inner.waiting > MAX_WAITING || inner.pieces.len() > MAX_PIECES)
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

    /// Closes the queue: nothing is pushed any more. Wakes a reader that rests or waits.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.more.notify_all();
    }

    /// Returns the oldest piece. Waits for one for at most `wait`, or without a limit if there is none.
    pub fn next(&self, wait: Option<Duration>) -> Next {
        let mut inner = self.inner.lock();
        if inner.pieces.is_empty() && !inner.closed {
            inner.asleep = true;
            self.wait_while(&mut inner, wait, |inner| inner.pieces.is_empty() && !inner.closed);
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

    /// Sleeps for `time`, or until the queue is closed. New pieces do not end the sleep.
    pub fn rest(&self, time: Duration) {
        self.wait_while(&mut self.inner.lock(), Some(time), |inner| !inner.closed);
    }

    /// Lines that were dropped so far.
    pub fn dropped_lines(&self) -> u64 {
        self.inner.lock().dropped_lines
    }

    fn wait_while(
        &self,
        inner: &mut MutexGuard<'_, Inner>,
        wait: Option<Duration>,
        condition: impl FnMut(&mut Inner) -> bool,
    ) {
        match wait {
            Some(wait) => _ = self.more.wait_while_until(inner, condition, Instant::now() + wait),
            None => self.more.wait_while(inner, condition),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn small_writes_are_merged_per_stream() {
        let queue = Queue::default();
        queue.push(Stream::Stdout, b"a");
        queue.push(Stream::Stdout, b"b");
        queue.push(Stream::Stderr, b"c");
        let piece = |stream, bytes: &[u8]| Next::Piece { stream, bytes: bytes.to_vec(), gap: false };
        assert_eq!(queue.next(NOW), piece(Stream::Stdout, b"ab"));
        assert_eq!(queue.next(NOW), piece(Stream::Stderr, b"c"));
        assert_eq!(queue.next(NOW), Next::Nothing);
        queue.close();
        assert_eq!(queue.next(None), Next::End);
    }

    #[test]
    fn full_queue_drops_the_oldest_and_counts_dropped_lines() {
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
    #[test]
    fn queue_limits_the_number_of_small_pieces() {
        let queue = Queue::default();
        for _ in 0..4 * MAX_PIECES {
            queue.push(Stream::Stdout, b"\n");
            queue.push(Stream::Stderr, b".");
        }
        queue.close();
        assert_eq!(queue.dropped_lines(), 3 * MAX_PIECES as u64 + MAX_PIECES as u64 / 2);
        let mut left = 0;
        let mut gaps = 0;
        while let Next::Piece { gap, .. } = queue.next(NOW) {
            left += 1;
            gaps += u32::from(gap);
        }
        assert_eq!((left, gaps), (MAX_PIECES, 2), "once for each stream");
    }
}
