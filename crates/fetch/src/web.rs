//! One file by HTTPS, which is known by its hash.

use crate::error::FetchError;
use crate::listing::{Check, Item};
use crate::names::check_path;
use crate::network::{Network, Retries};
use crate::web_file::{RangeAnswer, RangeRequest, Version, length, open, plain_refusal};
use address::WebAddress;
use std::ops::Range;

/// A file of the web.
pub(crate) struct Web {
    pub network: Network,
    pub address: WebAddress,
    /// How people write it.
    pub uri: String,
}

impl Web {
    /// The one file, once its length is known.
    pub async fn item(&self) -> Result<Item, FetchError> {
        let mut tries = Retries::new(self.network.patience);
        let size = loop {
            let refused = |status, headers: &_| plain_refusal(&self.uri, status, headers);
            match length(&self.network, &self.uri, &self.address.url, &refused).await {
                Ok(size) => break size,
                Err(error) => tries.wait(error, false).await?,
            }
        };
        let path = self.file_name();
        Ok(Item { key: path.clone(), path, size, check: Check::Sha256(self.address.sha256.clone()) })
    }

    /// The last part of the URL's path, decoded if a file can have that name.
    pub fn file_name(&self) -> String {
        let last = self.address.url.path().rsplit('/').next().unwrap_or_default();
        match percent_decoded(last) {
            Some(name) if check_path(&name).is_ok() && !name.contains('/') => name,
            _ => last.to_owned(),
        }
    }

    pub async fn open(
        &self,
        item: &Item,
        range: Range<u64>,
        version: Option<Version>,
    ) -> Result<(RangeAnswer<'static>, Option<Version>), FetchError> {
        let refused = |status, headers: &_| plain_refusal(&self.uri, status, headers);
        let (name, url) = (self.uri.as_str(), &self.address.url);
        let asked = RangeRequest { name, url, token: None, size: item.size, range, version, refused: &refused };
        open(&self.network, asked).await
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::percent_decoded;

    #[test]
    fn file_names_are_percent_decoded() {
        assert_eq!(percent_decoded("a%20b%C3%A4").as_deref(), Some("a bä"));
        for text in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decoded(text), None, "{text}");
        }
    }
}
