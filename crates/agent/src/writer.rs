//! A thread that writes files for the loop of the container. A slow disk must not block the loop, which keeps the
//! gang's lease.

use crate::panics::catch_parser_panic;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writes contents, of which only the newest counts.
pub struct Writer<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    next: Option<T>,
    is_writing: bool,
    is_over: bool,
}

impl<T: Send + 'static> Writer<T> {
    /// Starts the thread. When this value is dropped, the thread ends once the last content is written. `prepare` runs
    /// in the thread and may be slow as well.
    ///
    /// # Errors
    /// Where the kernel denies a thread.
    pub fn start<W: FnMut(T)>(name: &str, prepare: impl FnOnce() -> W + Send + 'static) -> io::Result<Self> {
        let state = Mutex::new(State { next: None, is_writing: true, is_over: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let work = move || {
            let Some(mut write) = catch_parser_panic(prepare) else { return };
            while let Some(next) = of_thread.next() {
                catch_parser_panic(|| write(next));
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self { shared })
    }

    /// Writes `content` soon, instead of content that still waits.
    pub fn put(&self, content: T) {
        self.shared.state.lock().next = Some(content);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, for at most `within`. Returns whether it is.
    pub fn finish(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut state = self.shared.state.lock();
        while (state.is_writing || state.next.is_some()) && Instant::now() < until {
            self.shared.changed.wait_until(&mut state, until);
        }
        !state.is_writing && state.next.is_none()
    }
}

impl<T> Shared<T> {
    /// The next content to write. `None` at the end.
    fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        state.is_writing = false;
        self.changed.notify_all();
        while state.next.is_none() && !state.is_over {
            self.changed.wait(&mut state);
        }
        state.is_writing = state.next.is_some();
        state.next.take()
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn slow_disk_does_not_block_callers_and_gets_the_newest() {
        let ((begin, begun), (go, gone), (write_done, written)) = (channel(), channel(), channel());
        let writer = Writer::start("test", move || {
            move |number: u32| {
                begin.send(()).unwrap();
                gone.recv().unwrap();
                write_done.send(number).unwrap();
            }
        });
        let writer = writer.unwrap();
        writer.put(1);
        begun.recv().unwrap();
        (2..5).for_each(|number| writer.put(number));
        assert!(!writer.finish(Duration::ZERO), "the disk has not answered");
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(writer.finish(Duration::from_secs(60)));
        drop(writer);
        assert_eq!(written.iter().collect::<Vec<_>>(), [1, 4], "each is whole, and the last one is the newest");
    }

    #[test]
    fn last_value_is_written_even_if_the_writer_is_dropped() {
        let (write_done, written) = channel();
        let writer = Writer::start("test", move || move |number: u32| write_done.send(number).unwrap()).unwrap();
        writer.put(7);
        drop(writer);
        assert_eq!(written.iter().last(), Some(7));
    }
}
