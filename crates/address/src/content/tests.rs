use super::*;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn canonical(uri: &str, kind: ContentKind) -> String {
    match Address::parse(uri, kind) {
        Ok(address) => address.to_string(),
        Err(error) => panic!("{uri}: {error}"),
    }
}

#[test]
fn addresses_are_canonicalized() {
    for (uri, expected) in [
        ("hf://a/b", "hf://a/b@main"),
        ("hf://a/b/", "hf://a/b@main"),
        ("hf://models/a/b", "hf://a/b@main"),
        ("hf://datasets/a/b", "hf://datasets/a/b@main"),
        ("hf://a/b@v1/x/y.json", "hf://a/b@v1/x/y.json"),
        ("hf://a/b@refs/pr/7/x", "hf://a/b@refs/pr/7/x"),
        ("hf://a/b@refs%2Fpr%2F7", "hf://a/b@refs/pr/7"),
        ("hf://a/b@refs/convert/parquet", "hf://a/b@refs/convert/parquet"),
        ("hf://a/b@feature%2fx/y", "hf://a/b@feature%2Fx/y"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("oci://n/space/b/bucket/o/a/b", "oci://n/space/b/bucket/o/a/b"),
        ("oci://n/space/b/bucket", "oci://n/space/b/bucket/o/"),
        ("oci://registry.example.com/a/b:v1.0", "oci://registry.example.com/a/b:v1.0"),
        ("oci://localhost:5000/a:1", "oci://localhost:5000/a:1"),
        (&format!("oci://r.io/a:1@sha256:{HASH}"), &format!("oci://r.io/a:1@sha256:{HASH}")),
    ] {
        let written = canonical(uri, ContentKind::Model);
        assert_eq!(written, expected, "{uri}");
        assert_eq!(canonical(&written, ContentKind::Model), expected, "{uri}: twice");
    }
    assert_eq!(canonical("hf://a/b", ContentKind::Dataset), "hf://datasets/a/b@main");
    assert_eq!(canonical("hf://models/a/b", ContentKind::Dataset), "hf://a/b@main");
    let web = format!("https://host.example/a/b%20c.tar#sha256={HASH}");
    assert_eq!(canonical(&web, ContentKind::Model), web);
    assert_eq!(
        canonical(&format!("https://HOST:443/a#sha256={HASH}"), ContentKind::Model),
        format!("https://host/a#sha256={HASH}")
    );
}

#[test]
fn unusual_but_valid_addresses_are_accepted() {
    let web = |path: &str| format!("https://host/{path}#sha256={HASH}");
    for uri in [
        "hf://a/b.c@v1.0".to_owned(),
        "hf://a.b/c-d_e".to_owned(),
        "hf://a/b/x@2.json".to_owned(),
        "hf://a/b/c:d".to_owned(),
        "hf://a/b/a..b/..c/d..".to_owned(),
        "hf://a/b/models/datasets".to_owned(),
        "hf://a/datasets".to_owned(),
        format!("hf://a/b@{}", &HASH[..40]),
        "hf://a/b@1.0-rc.1+build".to_owned(),
        "s3://bucket/a..b/c".to_owned(),
        "s3://bucket/...".to_owned(),
        "s3://bucket/a@b:c/lr=0.1".to_owned(),
        "s3://bucket/%2e%2e/a".to_owned(),
        "oci://n/space/b/n-o/o/b/o/n".to_owned(),
        "oci://n/space/b/bucket/o/a..b".to_owned(),
        web("a..b/c"),
        web("sha256=abc/file"),
        web("a%23sha256=abc/file"),
        web("a@b/c:d"),
        web("%3Fdownload"),
        format!("http://host/file#sha256={HASH}"),
        format!("https://[::1]:8443/file#sha256={HASH}"),
    ] {
        canonical(&uri, ContentKind::Model);
    }
}

#[test]
fn invalid_address_is_rejected_with_a_remedy() {
    let upper = HASH.to_ascii_uppercase();
    for (uri, part) in [
        ("a/b", "not a URI"),
        ("hf://name", "the namespace is missing"),
        ("hf://name@main", "the namespace is missing"),
        ("hf://datasets/name", "the namespace is missing"),
        ("hf://", "the namespace is missing"),
        ("hf://user:pw", "user information"),
        ("hf://a/b:v1", "hf://a/b@v1"),
        ("hf://a/b@", "write one after @"),
        ("hf://a/b@../x", "write one after @"),
        ("hf://a/b@x..y", "write one after @"),
        ("hf://a/b@v1@v2", "write one after @"),
        ("hf://a/b/../c", "has the part .."),
        ("hf://a/b//c", "empty part"),
        ("hf://a//b", "name is empty"),
        ("hf://../b", "dot or dash"),
        ("hf://a/b.git", ".git"),
        ("hf://a/b?token=x", "HF_TOKEN"),
        ("hf://a/b#main", "@REVISION"),
        ("hf://spaces/a/b", "space"),
        ("hf://a/b c", "blank"),
        ("s3://bucket/../b", ".."),
        ("s3://bucket/a//b", "empty"),
        ("s3://bucket/a?x=y", "Secret"),
        ("s3a://bucket/x", "s3://"),
        ("gcs://bucket/x", "gs://"),
        ("HF://a/b", "lower case"),
        ("https://host/file", "hash is missing"),
        ("http://host/file", "hash is missing"),
        ("https://host/file#", "no sha256=HASH"),
        ("https://host/file#md5=0", "no sha256=HASH"),
        ("https://host/file#sha256=12", "64 hexadecimal digits (it has 2)"),
        (&format!("https://host/file#sha256={upper}"), "lower case"),
        (&format!("https://host/file#sha256={HASH}0"), "64 hexadecimal digits"),
        (&format!("https://host/file#x&sha256={HASH}"), "no sha256=HASH"),
        (&format!("https://host/file#sha256={HASH}#sha256={HASH}"), "64 hexadecimal digits"),
        (&format!("https://host/?file#sha256={HASH}"), "query"),
        (&format!("https://host/file?x=y#sha256={HASH}"), "query"),
        (&format!("https://host/#sha256={HASH}"), "the path is empty"),
        (&format!("https://host/a/#sha256={HASH}"), "empty part"),
        (&format!("https://host/a/../b#sha256={HASH}"), "has the part .."),
        (&format!("https://host/a/%2E%2e/b#sha256={HASH}"), "has the part .."),
        (&format!("https:///file#sha256={HASH}"), "host is missing"),
        ("oci://registry.example.com/a/b", "a tag or a digest is missing"),
        ("oci://localhost/a/b", "a tag or a digest is missing"),
        ("oci://host:5000/A:1", "no reference of an image"),
        ("oci://host:5000/a//b:1", "no reference of an image"),
        ("oci://host:5000/a/../b:1", "no reference of an image"),
        ("oci://host:5000/a:-1", "no reference of an image"),
        ("oci://host:5000/a@sha256:12", "no reference of an image"),
        ("oci://space/bucket/a/b", "oci://n/space/b/bucket/o/a/b"),
        ("oci://space/bucket/a/b", "oci://HOST/space/bucket/a/b"),
        ("oci://bucket/path", "two"),
        ("oci://bucket/path", "with bucket as the bucket oci://n/NAMESPACE/b/bucket/o/path"),
        ("oci://n/space/b/bucket/o/../x", ".."),
        ("oci://n/sp.ace/b/bucket/o/x", "namespace"),
        ("oci://n/space/b/bucket/p/x", "oci://HOST/"),
        ("pvc://claim/path", "mounted"),
        ("file:///x", "claim"),
        ("git://host/x", "hf://"),
        ("ftp://host/x", "unknown scheme"),
    ] {
        // Two readings, of which both are shown.
        let part = if part == "two" { "oci://n/bucket/b/path/o/PREFIX, or with bucket as the bucket" } else { part };
        let error = Address::parse(uri, ContentKind::Model).expect_err(uri);
        assert!(error.to_string().contains(part), "{uri}: {error}");
    }
}

#[test]
fn credentials_in_an_address_are_rejected_and_not_echoed() {
    for uri in [
        "hf://hunter2@a/b",
        "hf://user:hunter2@a/b",
        "hf://user:hunter2/x@a/b",
        "hf://a/b?token=hunter2",
        "s3://KEY:hunter2@bucket/x",
        "s3://bucket/x?X-Amz-Signature=hunter2",
        "az://container/x?sig=hunter2",
        "https://user:hunter2@host/file",
        "https://user:hunter2/x@host/file",
        "https://hunter2@host/file",
        "https://host/file?token=hunter2#sha256=00",
        "https://host/file#hunter2",
        "oci://hunter2@space/b",
        "oci://user:hunter2@registry.example.com/a:1",
        "oci://n/space/b/bucket/o/x?par=hunter2",
        "ftp://user:hunter2@host/x",
        "user:hunter2@host/x",
    ] {
        let error = Address::parse(uri, ContentKind::Model).expect_err(uri).to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn unwritable_result_address_is_rejected_with_a_remedy() {
    for (uri, remedy) in [
        ("https://h/f#sha256=", "64 hexadecimal"),
        (&format!("https://h/f#sha256={}", "0".repeat(64)), "write s3://"),
        ("hf://a/b/file", "without a path"),
        (&format!("hf://a/b@{}", "0".repeat(40)), "write a branch"),
        ("hf://a/b@refs/pr/1", "write a branch"),
        ("file:///x", "object store"),
        ("s3://k:secret@b/x", "Secret"),
    ] {
        let error = Address::parse_result(uri).unwrap_err();
        assert!(error.to_string().contains(remedy), "{uri}: {error}");
        assert!(!error.to_string().contains("k:secret"), "{error}");
    }
    for uri in ["s3://b-c/x", "gs://bucket", "az://container/x", "oci://n/ns/b/bucket/o/x", "hf://a/b@run%2F1"] {
        assert!(Address::parse_result(uri).is_ok(), "{uri}");
    }
}

#[test]
fn object_store_address_may_carry_a_digest() {
    let digest = "0a".repeat(32);
    for uri in ["s3://bucket/results/x", "gs://bucket/x", "az://container/x", "oci://n/ns/b/bucket/o/x"] {
        let named = format!("{uri}#sha256={digest}");
        let Ok(Address::Objects(address)) = Address::parse(&named, ContentKind::Model) else { panic!("{named}") };
        assert_eq!(address.digest.as_deref(), Some(&*digest));
        assert_eq!(Address::Objects(address).to_string(), named);
        let error = Address::parse_result(&named).unwrap_err().to_string();
        assert!(error.contains("leave #sha256= out"), "{error}");
        for odd in [format!("{uri}#sha256=0A"), format!("{uri}#sha256={}", digest.to_uppercase()), format!("{uri}#x")] {
            assert!(Address::parse(&odd, ContentKind::Model).is_err(), "{odd}");
        }
    }
}
