//! A process that is PID 1 of its own, as the first one of a container is.

use std::fs;
use std::process::Command;

/// `unshare` with which a command becomes PID 1 of a PID namespace, if that is allowed here.
pub fn as_init() -> Option<Command> {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new("unshare").args(unshare).arg("true").output().is_ok_and(|output| output.status.success()) {
        return None;
    }
    // A shell can't trap a signal that was ignored when it started, as SIGHUP is below nohup.
    let mut command = Command::new("env");
    command.args(["--default-signal", "unshare"]).args(unshare);
    Some(command)
}

/// The PID, seen from here, of the process that `unshare` with this PID has made PID 1.
pub fn init_of(unshared: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{unshared}/task/{unshared}/children")).ok()?;
    children.trim().parse().ok()
}
