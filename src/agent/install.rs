//! Putting this executable where the `training` container finds it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Copies the running executable to `to`, mode 0755, and replaces what is there at once.
///
/// Only the directory of `to` is written to: everything else may be read-only.
pub fn install(to: &Path) -> Result<(), InstallError> {
    let failed = |source| InstallError { to: to.display().to_string(), source };
    let (Some(name), Some(directory)) = (to.file_name(), to.parent()) else {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    };
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = directory.join(temporary);
    let copied = fs::copy("/proc/self/exe", &temporary)
        .and_then(|_| fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&temporary, to));
    if copied.is_err() {
        // The error that counts is the first one.
        let _ = fs::remove_file(&temporary);
    }
    copied.map_err(failed)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "can't install to {to}: {source}; --to must name a file in a volume (an emptyDir) that user {} may write to",
    nix::unistd::geteuid()
)]
pub struct InstallError {
    to: String,
    source: io::Error,
}
