//! The signals that end a program. In that case, too, nothing may be left in the cluster.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, each with its number.
#[cfg(unix)]
pub struct Signals([(Signal, u8); 3]);

#[cfg(unix)]
impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the system has none of them.
    pub fn new() -> anyhow::Result<Self> {
        let listen = |kind: SignalKind| -> std::io::Result<(Signal, u8)> {
            Ok((signal(kind)?, u8::try_from(kind.as_raw_value()).unwrap_or(0)))
        };
        Ok(Self([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for a signal, and returns the exit code for it.
    pub async fn next(&mut self) -> u8 {
        let [(int, a), (term, b), (hup, c)] = &mut self.0;
        let number = tokio::select! {
            _ = int.recv() => *a,
            _ = term.recv() => *b,
            _ = hup.recv() => *c,
        };
        128 + number
    }
}

/// Ctrl-C, the signal of a Windows console.
#[cfg(windows)]
pub struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// If there is no console.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    /// Waits for Ctrl-C, and returns the exit code that a shell expects of a program that it ended.
    pub async fn next(&mut self) -> u8 {
        self.0.recv().await;
        130
    }
}
