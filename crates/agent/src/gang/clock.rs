//! The clock by which an agent counts its leases.

use gang::message::Time;
use nix::time::{ClockId, clock_gettime};

/// Milliseconds since this machine was started, those included in which it slept: a lease runs out in a machine that sleeps, too.
#[expect(clippy::expect_used, reason = "Linux has had this clock since 2.6.39")]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had this clock since 2.6.39");
    let (seconds, nanos) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
    Time(seconds * 1000 + nanos / 1_000_000)
}
