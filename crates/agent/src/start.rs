//! Starts a container's runs, in a gang or alone.

use crate::attempt::Attempt;
use crate::container::Container;
use crate::member::Member;
use std::io;

impl Container {
    /// Runs the command until it and all its descendants have ended, in a gang as often as the gang wants it. Returns
    /// the agent's exit code.
    ///
    /// The code is the program's own, or 128 + n if signal n ended it. It is 128 + n too if signal n asked the agent to
    /// stop from outside and the program exited 0 or was not started yet. Otherwise an evicted pod that exits 0 would
    /// count as finished, and would never be replaced. If a NaN or infinite loss is a failure, a program that exits 0
    /// after one gives 1. A gang that has failed never gives 0.
    ///
    /// # Errors
    /// Only where the kernel denies what every process may have.
    pub fn run(&mut self, attempt: &Attempt) -> io::Result<i32> {
        self.say_words()?;
        match self.take_party() {
            Some(gang_member) => Member::new(gang_member, self).run(),
            None => self.run_alone(attempt),
        }
    }
}
