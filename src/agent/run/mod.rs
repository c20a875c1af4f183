//! One run of the program: finding and starting it, and the processes below it.

pub mod descendants;
pub mod expand;
pub mod launch;
