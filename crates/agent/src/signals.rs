//! The signals that the agent gets, as PID 1 of its container or as child subreaper in it.

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// The signals that are forwarded to the program, besides all real-time signals. The kernel handles the others: faults
/// of the agent itself, and job control.
const FORWARDED: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// All signals of the container's life, in the order of their arrival. None is lost between two reads.
pub struct Signals {
    queue: SignalFd,
    /// The mask from before, which the program gets.
    pub mask_before: SigSet,
}

impl Signals {
    /// Blocks the signals in this thread and in all threads that it starts, so that they are queued from the start.
    /// Otherwise the kernel would not deliver them to PID 1 at all.
    pub fn take_over() -> nix::Result<Self> {
        let watched = watched();
        let mask_before = watched.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let queue = SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { queue, mask_before })
    }

    /// The next pending signal, if there is one.
    pub fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        Ok(self.queue.read_signal()?.map(|info| ReceivedSignal::new(&info)))
    }

    /// Becomes readable when a signal arrives.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

fn watched() -> SigSet {
    let mut signals = SigSet::from_iter(FORWARDED);
    signals.add(Signal::SIGCHLD);
    let mut signals: libc::sigset_t = *signals.as_ref();
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        // SAFETY: the set is a valid one, and owned by this function.
        unsafe { libc::sigaddset(&raw mut signals, signal) };
    }
    // SAFETY: made from a valid set by adding signals that exist.
    unsafe { SigSet::from_sigset_t_unchecked(signals) }
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number: nix has no names for real-time signals.
    pub number: i32,
    /// Whether a process outside this PID namespace has sent it: the container's runtime, for the kubelet.
    from_outside: bool,
}

impl ReceivedSignal {
    fn new(info: &siginfo) -> Self {
        // The kernel reports no PID for a sender from outside. Signals of the kernel itself (a terminal has a new size,
        // a timer is over) have no sender at all.
        let from_outside = info.ssi_code == libc::SI_USER && info.ssi_pid == 0;
        Self { number: info.ssi_signo.cast_signed(), from_outside }
    }

    /// Whether only a child has ended or stopped.
    pub fn is_of_child(self) -> bool {
        self.number == Signal::SIGCHLD as i32
    }

    /// Whether it asks the container to stop.
    ///
    /// SIGTERM and SIGINT do, from any sender. The image (its STOPSIGNAL) or the pod (`lifecycle.stopSignal`) defines
    /// which signal the runtime sends, and the agent sees neither. Only the runtime sends signals from outside, so each
    /// of those is a stop. If the pod shares the node's PID namespace, the runtime is a process like any other, and
    /// only SIGTERM and SIGINT are stops. SIGCONT only undoes a SIGSTOP.
    pub fn is_stop(self) -> bool {
        let always = [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(&self.number);
        always || (self.from_outside && self.number != Signal::SIGCONT as i32 && !self.is_of_child())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_signals_are_recognized() {
        let stops = |signal: Signal, from_outside| ReceivedSignal { number: signal as i32, from_outside }.is_stop();
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            assert!(stops(signal, true) && stops(signal, false));
        }
        for signal in [Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGALRM, Signal::SIGWINCH] {
            assert!(stops(signal, true) && !stops(signal, false), "{signal}");
        }
        for signal in [Signal::SIGCONT, Signal::SIGCHLD] {
            assert!(!stops(signal, true) && !stops(signal, false), "{signal}");
        }
    }

    #[test]
    fn signals_from_outside_the_container_are_recognized() {
        // SAFETY: numbers alone, of which 0 is a valid one.
        let mut info: siginfo = unsafe { std::mem::zeroed() };
        info.ssi_signo = 3;
        let is_from_outside = |code, pid| {
            (info.ssi_code, info.ssi_pid) = (code, pid);
            ReceivedSignal::new(&info).from_outside
        };
        let mut is_from_outside = is_from_outside;
        assert!(is_from_outside(libc::SI_USER, 0));
        assert!(!is_from_outside(libc::SI_USER, 17), "of a process of the container, as by kubectl exec");
        assert!(!is_from_outside(libc::SI_KERNEL, 0), "a terminal has a new size");
        assert!(!is_from_outside(libc::SI_TIMER, 0));
    }
}
