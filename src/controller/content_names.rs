//! Names of models and data sets, for which an administrator keeps addresses: a folder with one file for each name, as a
//! ConfigMap is mounted. A change is effective for jobs that are created after it.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

/// The longest address that is read, in bytes.
const LONGEST: u64 = 2048;
/// The longest key of a ConfigMap.
const LONGEST_NAME: usize = 253;

/// The folder, if the operator has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentNames(pub Option<PathBuf>);

impl ContentNames {
    /// The address of a name, if the administrator keeps one.
    ///
    /// # Errors
    /// With the name and the remedy, if its file can't be read or has no address.
    pub(super) fn address_of(&self, name: &str) -> Result<Option<String>, String> {
        let Some(folder) = self.0.as_ref().filter(|_| is_key(name)) else { return Ok(None) };
        let failed = |why: &str| {
            format!(
                "the operator's list of names can't be used for {name}: {why}; an administrator corrects this key of the \
                 ConfigMap trainingjob-content-names"
            )
        };
        let mut text = String::new();
        match fs::File::open(folder.join(name)).and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error.to_string())),
        }
        let address = text.trim();
        let is_address =
            text.len() as u64 <= LONGEST && address.contains("://") && !address.contains(char::is_whitespace);
        is_address
            .then(|| Some(address.to_owned()))
            .ok_or_else(|| failed("its value is no address, such as hf://ORG/NAME"))
    }
}

/// Whether a ConfigMap can have this key. Others are names that the program understands.
fn is_key(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_known) && name != "." && !name.starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_name_resolves_to_address_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let names = ContentNames(Some(folder.path().to_owned()));
        for (name, text) in [("llama-3-8b", "hf://org/llama@v1\n"), ("empty", ""), ("two", "s3://a/b\ns3://c/d")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::write(folder.path().parent().unwrap().join("outside"), "s3://a/b").unwrap();
        assert_eq!(names.address_of("llama-3-8b"), Ok(Some("hf://org/llama@v1".to_owned())));
        for other in ["llama", "org/llama", "../outside", "..", ".", "", "hf://org/llama", "Größe"] {
            assert_eq!(names.address_of(other), Ok(None), "{other}");
        }
        for bad in ["empty", "two"] {
            let why = names.address_of(bad).unwrap_err();
            assert!(why.contains(bad) && why.contains("trainingjob-content-names"), "{why}");
        }
        assert_eq!(ContentNames::default().address_of("llama-3-8b"), Ok(None));
    }
}
