//! Code of the program that is delivered without an image.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Code that is unpacked in every pod and becomes the working directory of the program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Code {
    /// SHA-256 digest of the archive, as `sha256:` and 64 hexadecimal digits.
    /// The archive (tar, gzip) is in the ConfigMaps `NAME-code-0` to `NAME-code-3`, in the keys `code-0` to `code-3`.
    /// Agents refuse any other archive. May be changed at any time. The next attempt then uses the new archive.
    #[schemars(length(min = 71, max = 71))]
    pub digest: String,
}
