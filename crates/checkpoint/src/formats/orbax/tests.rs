use super::zarr::Array;
use super::{RULES, claim, ocdbt, step};
use crate::formats::{Claim, Listing};
use crate::found::Format;
use serde_json::json;

fn listing(name: &str, files: &[&str]) -> Listing {
    Listing { name: name.into(), files: files.iter().map(|file| (*file).to_owned()).collect(), folders: Vec::new() }
}

#[test]
fn orbax_step_folder_is_claimed_whole() {
    for files in [&["_CHECKPOINT_METADATA"][..], &["_METADATA", "manifest.ocdbt"], &["commit_success.txt"]] {
        assert_eq!(claim(&listing("12", files)), [Claim::Folder]);
    }
    assert_eq!(claim(&listing("12.orbax-checkpoint-tmp-1700000000", &[])), [Claim::Folder]);
    assert!(claim(&listing("12", &["weights.bin"])).is_empty());
    // The folder of all steps is no checkpoint.
    assert!(claim(&listing("", &["_CHECKPOINT_METADATA"])).is_empty());
    assert_eq!(RULES.format, Format::Orbax);
}

#[test]
fn orbax_step_is_parsed_from_the_name() {
    for (name, expected) in [
        ("12", Some(12)),
        ("run/step_00012", Some(12)),
        ("checkpoint-12", Some(12)),
        ("12.orbax-checkpoint-tmp-1700000000", Some(12)),
        ("params2", None),
        ("default", None),
        ("99999999999999999999", None),
    ] {
        assert_eq!(step(name), expected, "{name}");
    }
}

#[test]
fn zarr_array_reports_its_chunks() {
    let mut json = json!({"chunks": [2, 3], "compressor": {"id": "zstd", "level": 1}, "dimension_separator": ".",
        "dtype": "<f4", "fill_value": null, "filters": null, "order": "C", "shape": [4, 4], "zarr_format": 2});
    let array = Array::v2(&json).unwrap();
    assert_eq!((array.chunks(), array.bytes), (Ok(4), Some(24)));
    assert!(array.has("1.1") && !array.has("2.0") && !array.has("1") && !array.has("01.1") && !array.has("1.1.1"));
    for (member, value) in [
        ("dtype", json!("<g4")),
        ("shape", json!([4])),
        ("chunks", json!([0, 1])),
        ("chunks", json!([u64::MAX, u64::MAX])),
        ("order", json!("B")),
        ("shape", json!(-1)),
        ("shapf", json!(1)),
    ] {
        let mut json = json.clone();
        json[member] = value;
        assert!(Array::v2(&json).is_err(), "{member}");
    }
    json["chunks"] = json!([]);
    json["shape"] = json!([]);
    let scalar = Array::v2(&json).unwrap();
    assert!(scalar.has("0") && !scalar.has("") && scalar.chunks() == Ok(1));
}

/// Checksums detect accidental damage, but not forged data.
#[test]
fn forged_ocdbt_data_with_valid_checksums_does_not_panic() {
    // A manifest of one version in one file, and nodes with one and two keys.
    let mut manifest = vec![0; 16];
    manifest.extend([0, 100, 100, 4, 0, 1, 3, 0]);
    manifest.extend(b"d/x");
    manifest.extend([1, 1, 0, 0, 7, 9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut leaf = vec![0, 1, 3, 0];
    leaf.extend(b"d/x");
    leaf.extend([2, 1, 2, 1]);
    leaf.extend(b"abc");
    leaf.extend([4, 1, 1, 0, 0, 5]);
    leaf.extend(b"v");
    let mut inner = vec![1, 1, 3, 2];
    inner.extend(b"d/x");
    inner.extend([1, 2, 1]);
    inner.extend(b"ab");
    inner.extend([0, 5, 6, 1, 1, 1]);
    assert_eq!(ocdbt::probe(&manifest, &leaf, &inner), (true, 2, 1));
    for body in [&manifest, &leaf, &inner] {
        for at in 0..body.len() {
            for byte in [0, 1, 2, 0x7f, 0x80, 0xff] {
                let mut body = body.clone();
                body[at] = byte;
                ocdbt::probe(&body, &body, &body);
                ocdbt::probe(&body[..at], &body[..at], &body[..at]);
                body.splice(at..=at, [0xff; 9]);
                ocdbt::probe(&body, &body, &body);
            }
        }
    }
}
