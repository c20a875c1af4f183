//! The clock for an agent's leases.

use gang::message::Time;
use nix::time::{ClockId, clock_gettime};

/// Milliseconds since this machine booted, including time in sleep. A lease expires in a sleeping machine, too.
#[expect(clippy::expect_used, reason = "Linux has had this clock since 2.6.39")]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had this clock since 2.6.39");
    let (seconds, nanos) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
    Time(seconds * 1000 + nanos / 1_000_000)
}
