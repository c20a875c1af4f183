//! The files to be fetched: one line for each, on the disk and not in memory, because there may be a million.

use crate::error::FetchError;
use crate::names::check_path;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use text::one_line;

/// How a file's content is verified, besides its length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Check {
    /// Its SHA-256, in lower-case hexadecimal digits.
    Sha256(String),
    /// The SHA-1 of git's blob, in lower-case hexadecimal digits.
    GitBlob(String),
    /// The tag that the object store gives each range with.
    Tag(Option<String>),
}

/// A file to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    /// Relative to the folder of the content.
    pub path: String,
    /// Its name at the source.
    pub key: String,
    /// In bytes.
    pub size: u64,
    pub check: Check,
}

impl Item {
    /// Whether it is weights in a format that can run code when it is loaded. Keras' HDF5 files are among them: they
    /// may have Lambda layers, which are marshalled code.
    pub fn is_pickled(&self) -> bool {
        const ENDINGS: [&str; 10] =
            [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".hdf5", ".keras", ".joblib"];
        let path = self.path.to_ascii_lowercase();
        ENDINGS.iter().any(|ending| path.ends_with(ending))
    }

    fn is_safetensors(&self) -> bool {
        self.path.to_ascii_lowercase().ends_with(".safetensors")
    }
}

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub files: u64,
    pub bytes: u64,
}

impl Total {
    fn add(&mut self, item: &Item) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(item.size);
    }
}

/// A listing that is being written.
pub(crate) struct ListingWriter {
    file: BufWriter<File>,
    digest: Sha256,
    /// Hashes of the paths: a path that is there twice would be written by two transfers at once.
    paths: HashSet<u64>,
    hasher: RandomState,
    all: Total,
    pickled: Total,
    safetensors: u64,
}

impl ListingWriter {
    /// Begins a listing in an empty file.
    pub fn new(file: File) -> Self {
        Self {
            file: BufWriter::new(file),
            digest: Sha256::new(),
            paths: HashSet::new(),
            hasher: RandomState::new(),
            all: Total::default(),
            pickled: Total::default(),
            safetensors: 0,
        }
    }

    /// Adds files. `source` is the URI, for errors.
    ///
    /// # Errors
    /// For a path that can't be a file below a folder, or that is there twice; with its name.
    pub fn add(mut self, source: &str, items: &[Item]) -> Result<Self, FetchError> {
        let refused = |item: &Item, why: &str| {
            let path = one_line(&item.path);
            FetchError::refused(format!(
                "{source}: the path {path} {why}; remove it there, or name a folder without it"
            ))
        };
        for item in items {
            check_path(&item.path).map_err(|why| refused(item, &why))?;
            if !self.paths.insert(self.hasher.hash_one(&item.path)) {
                return Err(refused(item, "is listed twice"));
            }
            self.all.add(item);
            if item.is_pickled() {
                self.pickled.add(item);
            }
            self.safetensors += u64::from(item.is_safetensors());
            let written = serde_json::to_vec(item).map_err(io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                self.digest.update(&line);
                self.file.write_all(&line)
            });
            written.map_err(|error| FetchError::local("the list of files".as_ref(), &error))?;
        }
        Ok(self)
    }

    /// Completes the listing. With `safetensors_only` the pickled weights are left out, if there are safetensors.
    ///
    /// # Errors
    /// If there is no file, or if there are only pickled weights and they are not wanted.
    pub fn finish(self, source: &str, safetensors_only: bool) -> Result<Listing, FetchError> {
        if self.all.files == 0 {
            return Err(FetchError::new(
                crate::FetchErrorKind::NotFound,
                format!("{source}: there is no file; check the name, the revision and the path"),
            ));
        }
        if safetensors_only && self.pickled.files > 0 && self.safetensors == 0 {
            return Err(FetchError::refused(format!(
                "{source}: its weights are only in formats that can run code when loaded ({} files); set \
                 safetensorsOnly: false (agent fetch --any-weights) if you trust it",
                self.pickled.files
            )));
        }
        let left_out = if safetensors_only { self.pickled } else { Total::default() };
        let total = Total { files: self.all.files - left_out.files, bytes: self.all.bytes - left_out.bytes };
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        let file = file.map_err(|error| FetchError::local("the list of files".as_ref(), &error))?;
        Ok(Listing { file, digest: self.digest.finalize().into(), total, lines: self.all.files, safetensors_only })
    }
}

/// A whole listing.
pub(crate) struct Listing {
    file: File,
    /// SHA-256 of its lines. Two listings with the same one have the same files in the same order.
    pub digest: [u8; 32],
    /// Of what is to be fetched.
    pub total: Total,
    /// Of all files, those among them that are left out.
    pub lines: u64,
    safetensors_only: bool,
}

impl Listing {
    /// Reads it from the start: each file with its number, without those that are left out. One reader at a time.
    pub fn items(&self) -> io::Result<impl Iterator<Item = io::Result<(usize, Item)>> + use<>> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        let leave_out = self.safetensors_only;
        let lines = BufReader::new(file).lines().enumerate();
        let items = lines.map(|(index, line)| Ok((index, serde_json::from_str::<Item>(&line?)?)));
        Ok(items.filter(move |item| !(leave_out && item.as_ref().is_ok_and(|(_, item)| item.is_pickled()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str], safetensors_only: bool) -> Result<Vec<String>, FetchError> {
        let items: Vec<Item> = paths
            .iter()
            .map(|path| Item { path: (*path).to_owned(), key: String::new(), size: 2, check: Check::Tag(None) })
            .collect();
        let writer = ListingWriter::new(tempfile::tempfile().unwrap());
        let listing = writer.add("hf://a/b", &items)?.finish("hf://a/b", safetensors_only)?;
        let found: Vec<String> = listing.items().unwrap().map(|item| item.unwrap().1.path).collect();
        assert_eq!(listing.total, Total { files: found.len() as u64, bytes: 2 * found.len() as u64 });
        assert_eq!(listing.items().unwrap().count(), found.len(), "it can be read twice");
        Ok(found)
    }

    #[test]
    fn pickled_weights_are_skipped_if_safetensors_exist() {
        let all =
            ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "x/Model.PT", "rust_model.ot"];
        assert_eq!(list(&all, true).unwrap(), ["config.json", "model.safetensors", "rust_model.ot"]);
        assert_eq!(list(&all, false).unwrap(), all);
        assert_eq!(list(&["model.gguf", "config.json"], true).unwrap().len(), 2);
        let error = list(&["config.json", "pytorch_model.bin"], true).unwrap_err();
        assert!(error.to_string().contains("safetensorsOnly: false") && error.is_final(), "{error}");
    }

    #[test]
    fn unsafe_or_duplicate_paths_are_rejected_by_name() {
        for path in ["../x", "/etc/passwd", "a/../b", "a//b", "a\0b"] {
            let error = list(&["good", path], false).unwrap_err();
            assert!(error.to_string().contains("the path"), "{error}");
        }
        assert!(list(&["a", "b", "a"], false).unwrap_err().to_string().contains("the path a is listed twice"));
        assert!(list(&[], false).unwrap_err().to_string().contains("there is no file"));
    }
}
