use super::zarr::{Array, Packing};
use super::{RULES, claim, ocdbt, step, tree};
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

#[test]
fn zarr_types_are_named_as_numpy_or_jax_does() {
    let with = |dtype: &str| {
        Array::v2(&json!({"chunks": [2], "compressor": null, "dtype": dtype, "fill_value": null, "filters": null,
            "order": "C", "shape": [4], "zarr_format": 2}))
    };
    for (dtype, bytes) in
        [("<f4", 8), ("|b1", 2), ("bfloat16", 4), ("float8_e4m3fn", 2), ("int4", 2), ("uint2", 2), ("float4_e2m1fn", 2)]
    {
        assert_eq!(with(dtype).unwrap().bytes, Some(bytes), "{dtype}");
    }
    for dtype in ["float32", "int8", "<f3", "|i4", "int"] {
        assert!(with(dtype).is_err(), "{dtype}");
    }
}

#[test]
fn zarr_shards_are_known_by_their_codecs() {
    let with = |endian: &str, index: &str| {
        let bytes = json!([{"name": "bytes", "configuration": {"endian": endian}}, {"name": "zstd"}]);
        let options = json!({"chunk_shape": [2], "codecs": bytes, "index_location": index,
            "index_codecs": ["bytes", "crc32c"]});
        Array::v3(&json!({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
            "chunk_key_encoding": {"name": "default"}, "data_type": "float32", "fill_value": 0, "node_type": "array",
            "codecs": [{"name": "sharding_indexed", "configuration": options}], "shape": [8], "zarr_format": 3}))
    };
    let inner = Box::new(Packing::Zstd);
    assert_eq!(with("little", "end").unwrap().packing, Packing::Sharded { chunks: 2, bytes: 8, inner });
    assert_eq!(with("little", "start").unwrap().packing, Packing::Other);
    assert!(with("middle", "end").is_err());
    let mut json = json!({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"}, "data_type": "float32", "fill_value": 0, "node_type": "array",
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}], "shape": [8], "zarr_format": 3});
    assert_eq!(Array::v3(&json).unwrap().packing, Packing::Raw);
    json["codecs"][0]["configuration"] = json!({"endiam": "big"});
    assert!(Array::v3(&json).is_err());
}

#[test]
fn sharding_says_where_an_array_was() {
    let named = json!({"sharding_type": "NamedSharding", "shape": [2], "axis_names": ["x"], "partition_spec": [null]});
    let single = json!({"sharding_type": "SingleDeviceSharding", "device_str": "TFRT_CPU_0"});
    for (whole, needed) in [(named, &["shape", "axis_names", "partition_spec"][..]), (single, &["device_str"])] {
        assert_eq!(tree::sharding(&whole.to_string()), Ok(()));
        for name in ["sharding_type"].iter().chain(needed) {
            let mut cut = whole.clone();
            cut.as_object_mut().unwrap().remove(*name);
            assert_eq!(tree::sharding(&cut.to_string()), Err(format!("it has no {name}")), "{cut}");
        }
    }
}

/// A manifest of one version in one file, with this offset and length of its root.
fn manifest(offset: &[u8], length: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 16];
    body.extend([0, 100, 100, 4, 0, 1, 3, 0]);
    body.extend(b"d/x");
    body.extend([1, 1, 0, 0]);
    body.extend([offset, length].concat());
    body.extend([1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    body
}

#[test]
fn ocdbt_root_is_absent_only_without_offset_and_length() {
    let most = [&[0xff; 9][..], &[1]].concat();
    for (offset, length, has_root) in
        [(&[7][..], &[9][..], true), (&most, &[9], true), (&[7], &most, true), (&most, &most, false)]
    {
        assert_eq!(ocdbt::probe(&manifest(offset, length), &[], &[]).0, has_root, "{offset:?} {length:?}");
    }
}

/// Checksums detect accidental damage, but not forged data.
#[test]
fn forged_ocdbt_data_with_valid_checksums_does_not_panic() {
    // Nodes with one and two keys.
    let manifest = manifest(&[7], &[9]);
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
