//! Notes about a conversion.

use serde::Serialize;

/// A note about one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The field as it was written.
    pub field: String,
    /// What the conversion did with it.
    pub says: String,
    /// Whether the converted job differs in meaning from the original.
    pub lost: bool,
}

/// All notes, in the order in which they were made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Notes(pub Vec<Note>);

impl Notes {
    /// Adds a note that a field has another meaning now, or none.
    pub(super) fn lost(&mut self, field: impl Into<String>, says: impl Into<String>) {
        self.push(field.into(), says.into(), true);
    }

    /// Adds a note without a loss of meaning.
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
