//! What is told about a conversion.

use serde::Serialize;

/// One thing that is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The field as it was written.
    pub field: String,
    /// What became of it.
    pub says: String,
    /// Whether the converted job does not mean what the other one meant.
    pub lost: bool,
}

/// All that is told, in the order of its finding.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Notes(pub Vec<Note>);

impl Notes {
    /// Tells that something has another meaning now, or none.
    pub(super) fn lost(&mut self, field: impl Into<String>, says: impl Into<String>) {
        self.push(field.into(), says.into(), true);
    }

    /// Tells what is good to know, where no meaning was lost.
    pub(super) fn note(&mut self, field: impl Into<String>, says: impl Into<String>) {
        self.push(field.into(), says.into(), false);
    }

    /// Whether any meaning was lost.
    #[must_use]
    pub fn any_lost(&self) -> bool {
        self.0.iter().any(|note| note.lost)
    }

    fn push(&mut self, field: String, says: String, lost: bool) {
        let note = Note { field, says, lost };
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }
}
