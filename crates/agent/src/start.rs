//! Where a container's run begins: in a gang or alone.

use crate::attempt::Attempt;
use crate::container::Container;
use crate::member::Member;
use std::io;

impl Container {
    /// Runs the command until it and all its descendants have ended, in a gang as often as that wants it; returns the agent's
    /// exit code.
    ///
    /// That is the program's own, or 128 + n if signal n ended it. A program told to stop from outside that exits 0 gives
    /// 128 + n too: a pod that is evicted and exits 0 would count as finished, and never be replaced. So does one that was
    /// told to stop before it could be started. Where a loss that is no number is a failure, a program that exits 0 after
    /// one gives 1. A gang that has failed never gives 0.
    ///
    /// # Errors
    /// Only where the kernel denies what every process may have.
    pub fn run(&mut self, attempt: &Attempt) -> io::Result<i32> {
        self.say_words()?;
        match self.take_party() {
            Some(party) => Member::new(party, self).run(),
            None => self.run_alone(attempt),
        }
    }
}
