//! Faults of one file, before it is known what they mean for its checkpoint.

use crate::found::Judgement;
use std::io;

/// Why a file could not be found good.
#[derive(Debug)]
pub enum Fault {
    /// It can't be read now, which says nothing about it.
    Io(io::Error),
    /// It ends too early: its writer has not finished, or died.
    Cut(String),
    /// No more writing at its end would make it good.
    Wrong(String),
}

impl Fault {
    /// A fault that nothing fixes.
    pub fn wrong<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Wrong(why.into()))
    }

    /// A fault of a file that ends too early.
    pub fn cut<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Cut(why.into()))
    }

    /// Whether the only fault is that the file, or the data made of it, is larger than what is read.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::FileTooLarge)
    }

    /// What it means for the checkpoint. `finished` if something says that `file` has been written to its end.
    ///
    /// # Errors
    /// If the file could not be read.
    pub fn judge(self, file: &str, finished: bool) -> io::Result<Judgement> {
        match self {
            Self::Io(error) => Err(error),
            Self::Cut(why) if !finished => Ok(Judgement::incomplete(format!("{file} {why}"))),
            Self::Cut(why) | Self::Wrong(why) => Ok(Judgement::corrupted(file, why)),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Cut("is shorter than its own records say".into()),
            _ => Self::Io(error),
        }
    }
}
