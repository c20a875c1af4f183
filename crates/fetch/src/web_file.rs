//! Ranges of one file by HTTP, for the hub and the web.

use crate::error::FetchError;
use crate::network::{Answer, Network, place, refusal};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE};
use reqwest::Url;
use std::ops::Range;

/// What a source answered when it was asked for a range.
pub(crate) struct RangeAnswer<'a> {
    /// Whether it sends the whole file from the start instead, since it knows no ranges.
    pub is_whole: bool,
    /// The bytes. They end where the connection does.
    pub pieces: BoxStream<'a, Result<Bytes, FetchError>>,
}

/// The version of a file that a server sent the first range of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Of another server the tag may be another one.
    server: String,
    tag: HeaderValue,
}

/// What is asked for.
pub(crate) struct RangeRequest<'a> {
    /// What people call it.
    pub name: &'a str,
    pub url: &'a Url,
    pub token: Option<&'a HeaderValue>,
    pub size: u64,
    pub range: Range<u64>,
    /// What the ranges before were of.
    pub version: Option<Version>,
    /// What to do about 401, 403 and 404.
    pub refused: &'a (dyn Fn(u16, &HeaderMap) -> FetchError + Sync),
}

/// Requests a range of a file with a known length. Returns its version too, if the server states one.
///
/// # Errors [`FetchErrorKind::Corrupted`](crate::FetchErrorKind::Corrupted) if the file has another length,
/// [`FetchErrorKind::Changed`](crate::FetchErrorKind::Changed) if it is another version; and what the server answers.
pub(crate) async fn open(
    network: &Network,
    asked: RangeRequest<'_>,
) -> Result<(RangeAnswer<'static>, Option<Version>), FetchError> {
    let RangeRequest { name, url, token, size, range, version, refused } = asked;
    let mut headers = HeaderMap::new();
    let is_part = range != (0..size);
    if is_part {
        headers.insert(RANGE, range_header(&range));
        if let Some(version) = &version {
            headers.insert(IF_RANGE, version.tag.clone());
        }
    }
    let answer = network.get(url, &headers, token).await?;
    let status = answer.response.status().as_u16();
    let found = answer.response.headers();
    if found.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let place = place(&answer.url);
        return Err(FetchError::refused(format!("{name}: {place} sends it compressed; use a server that does not")));
    }
    let wrong_length = |length: u64| {
        FetchError::corrupted(format!(
            "{name}: the server has {length} bytes, and not {size}; the file was replaced, or the \
             server is not the right one"
        ))
    };
    let is_whole = match status {
        206 if is_part => {
            let (start, end, total) = content_range(found).ok_or_else(|| {
                FetchError::refused(format!("{name}: an answer without a valid Content-Range; check the server"))
            })?;
            if total.is_some_and(|total| total != size) {
                return Err(wrong_length(total.unwrap_or_default()));
            }
            if start != range.start || end > range.end {
                let (asked, end) = (range.start, end.max(1) - 1);
                return Err(FetchError::refused(format!(
                    "{name}: the server sent bytes {start} to {end}, and not those from {asked}; check the server"
                )));
            }
            false
        }
        200 => {
            if let Some(length) = content_length(found).filter(|length| *length != size) {
                return Err(wrong_length(length));
            }
            is_part
        }
        416 => return Err(wrong_length(content_range_total(found).unwrap_or(0))),
        _ => return Err(refused(status, found)),
    };
    let found = version_of(&answer);
    if let (Some(before), Some(now)) = (&version, &found)
        && before.server == now.server
        && before.tag != now.tag
    {
        return Err(FetchError::new(
            crate::FetchErrorKind::Changed,
            format!("{name}: it was replaced on the server between two ranges; fetch it again"),
        ));
    }
    let pieces = stream::try_unfold(network.pieces(answer), |mut pieces| async move {
        Ok(pieces.next().await?.map(|piece| (piece, pieces)))
    });
    Ok((RangeAnswer { is_whole, pieces: pieces.into_stream().boxed() }, version.or(found)))
}

/// The length of a file, by a request for its first byte.
///
/// # Errors
/// If the server states none; and what it answers.
pub(crate) async fn length(
    network: &Network,
    name: &str,
    url: &Url,
    refused: &(dyn Fn(u16, &HeaderMap) -> FetchError + Sync),
) -> Result<u64, FetchError> {
    let headers = HeaderMap::from_iter([(RANGE, range_header(&(0..1)))]);
    let answer = network.get(url, &headers, None).await?;
    let headers = answer.response.headers();
    let length = match answer.response.status().as_u16() {
        206 => content_range(headers).and_then(|(.., total)| total),
        416 => content_range_total(headers),
        200 => content_length(headers),
        status => return Err(refused(status, headers)),
    };
    length.ok_or_else(|| {
        FetchError::refused(format!("{name}: the server does not state the file's length; use a server that does"))
    })
}

/// What 401, 403 and 404 mean where nothing more is known.
pub(crate) fn plain_refusal(name: &str, status: u16, headers: &HeaderMap) -> FetchError {
    let remedy = match status {
        404 | 410 => "check the path",
        _ => "only files that need no credentials are fetched by https; use an object store with a Secret",
    };
    refusal(name, status, headers, remedy)
}

/// Range is of bytes, and its end is the last of them.
fn range_header(range: &Range<u64>) -> HeaderValue {
    let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("bytes=0-0"))
}

/// A strong tag: a weak one says nothing about bytes.
fn version_of(answer: &Answer) -> Option<Version> {
    let tag = answer.response.headers().get(ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""))?;
    Some(Version { server: answer.url.origin().ascii_serialization(), tag: tag.clone() })
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `bytes START-LAST/TOTAL` as start, end and total.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((start, last.checked_add(1)?, total)).filter(|(start, end, _)| start < end)
}

/// `bytes */TOTAL`.
fn content_range_total(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?.parse().ok()
}
