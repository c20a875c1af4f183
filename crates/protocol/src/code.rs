//! Delivery of the program's code: an archive in a few ConfigMaps that the plugin writes and the agents read.

/// Maximum number of ConfigMaps of an archive.
pub const PARTS: usize = 4;
/// Maximum bytes of one part. A ConfigMap has at most 1 MiB.
pub const PART_BYTES: usize = 900 * 1024;
/// Maximum bytes of an archive.
pub const MAX_ARCHIVE: usize = PARTS * PART_BYTES;
/// Maximum number of files in an archive.
pub const MAX_FILES: usize = 20_000;
/// Maximum bytes of the unpacked files together.
pub const MAX_UNPACKED: u64 = 64 * 1024 * 1024;
/// Folder with the unpacked code, in the agent's state folder.
pub const FOLDER: &str = "code";

/// Key of a part in its ConfigMap, and name of its file in the pod.
#[must_use]
pub fn part_key(part: usize) -> String {
    format!("code-{part}")
}

/// Prefix of a digest.
pub const DIGEST: &str = "sha256:";
