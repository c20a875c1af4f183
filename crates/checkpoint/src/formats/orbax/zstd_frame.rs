//! One Zstandard frame, by the same library as reads it when the checkpoint is restored: others are less strict.

use std::io::{self, BufReader, Read};

/// A frame that asks for more memory than this is not unpacked; none that is written here does.
const WINDOW: u32 = 27;

/// Remembers whether reading failed, so that it is not taken for a bad frame.
struct ErrorKeepingReader<R> {
    inner: R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for ErrorKeepingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(error);
            }
            copy
        })
    }
}

/// The content, if it has no more than `limit` bytes.
pub(super) fn unpack(packed: &[u8], limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    match each(packed, limit, |part| bytes.extend_from_slice(part)) {
        Ok(Ok(_)) => Ok(bytes),
        Ok(Err(why)) => Err(why),
        Err(error) => Err(error.to_string()),
    }
}

/// Passes the content to `visit`, part by part, and returns its length. The inner error is the fault of the frame: it
/// can't be unpacked, holds more than `limit` bytes, or something follows it.
pub(super) fn each(packed: impl Read, limit: u64, mut visit: impl FnMut(&[u8])) -> io::Result<Result<u64, String>> {
    // Most chunks are small, and there are many.
    let room = limit.clamp(1 << 10, 128 << 10) as usize;
    let input = BufReader::with_capacity(room, ErrorKeepingReader { inner: packed, failed: None });
    let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?.single_frame();
    decoder.window_log_max(WINDOW)?;
    let mut buffer = vec![0; room];
    let mut total = 0_u64;
    loop {
        let read = match decoder.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return match decoder.get_mut().get_mut().failed.take() {
                    Some(failed) => Err(failed),
                    None => Ok(Err(format!("it can't be unpacked: {error}"))),
                };
            }
        };
        if read == 0 {
            break;
        }
        total += read as u64;
        if total > limit {
            return Ok(Err(format!("more than {limit} bytes are packed in it")));
        }
        visit(&buffer[..read]);
    }
    let mut input = decoder.finish();
    if input.read(&mut buffer[..1])? > 0 {
        return Ok(Err("something follows what is packed".into()));
    }
    Ok(Ok(total))
}
