//! Zarr, the form in which Orbax writes each array: a description in JSON, and chunks.

use serde_json::{Map, Value};

/// What an array's description says of its chunks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Array {
    pub(super) shape: Vec<u64>,
    grid: Vec<u64>,
    prefix: &'static str,
    separator: char,
    /// The bytes of a chunk; `None` if its type is not known.
    pub(super) bytes: Option<u64>,
    pub(super) packing: Packing,
}

/// How a chunk is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Raw,
    Zstd,
    /// Chunks of a chunk, with a table of their places at its end.
    Sharded {
        chunks: u64,
        bytes: u64,
        inner: Box<Packing>,
    },
    /// Not one that Orbax asks for: nothing can be said of its bytes.
    Other,
}

impl Array {
    /// From `.zarray`.
    pub(super) fn v2(json: &Value) -> Result<Self, String> {
        const KNOWN: [&str; 9] = [
            "chunks",
            "compressor",
            "dimension_separator",
            "dtype",
            "fill_value",
            "filters",
            "order",
            "shape",
            "zarr_format",
        ];
        let json = object(json, &KNOWN, &KNOWN[3..])?;
        if json["zarr_format"] != 2 {
            return Err("its zarr_format is not 2".into());
        }
        if !matches!(json["order"].as_str(), Some("C" | "F")) {
            return Err("its order is neither C nor F".into());
        }
        if !json["filters"].is_null() {
            return Err("it has filters".into());
        }
        let separator = match json.get("dimension_separator").map(Value::as_str) {
            None | Some(Some(".")) => '.',
            Some(Some("/")) => '/',
            _ => return Err("its dimension_separator is neither . nor /".into()),
        };
        let compressor = json.get("compressor").ok_or("it has no compressor")?;
        let packing = match (compressor, compressor.get("id").and_then(Value::as_str)) {
            (Value::Null, _) => Packing::Raw,
            (_, Some("zstd")) => {
                object(compressor, &["id", "level"], &["id"])?;
                Packing::Zstd
            }
            (_, Some("blosc" | "zlib" | "bz2" | "gzip" | "lz4" | "lzma")) => Packing::Other,
            _ => return Err("its compressor is not known".into()),
        };
        let width = match &json["dtype"] {
            Value::String(dtype) => Some(v2_width(dtype).ok_or_else(|| format!("its dtype is {dtype:?}"))?),
            _ => None,
        };
        Self::new(
            numbers(&json["shape"])?,
            numbers(json.get("chunks").unwrap_or(&Value::Null))?,
            ("", separator),
            width,
            packing,
        )
    }

    /// From `zarr.json`.
    pub(super) fn v3(json: &Value) -> Result<Self, String> {
        const KNOWN: [&str; 11] = [
            "attributes",
            "dimension_names",
            "storage_transformers",
            "chunk_grid",
            "chunk_key_encoding",
            "codecs",
            "data_type",
            "fill_value",
            "node_type",
            "shape",
            "zarr_format",
        ];
        let json = object(json, &KNOWN, &KNOWN[3..])?;
        if json["zarr_format"] != 3 || json["node_type"] != "array" {
            return Err("it is no array of zarr_format 3".into());
        }
        let (grid, options) = named(&json["chunk_grid"])?;
        if grid != "regular" {
            return Err(format!("its chunk_grid is {grid:?}"));
        }
        let grid = numbers(options.get("chunk_shape").unwrap_or(&Value::Null))?;
        let (encoding, options) = named(&json["chunk_key_encoding"])?;
        let separator = options.get("separator").map(Value::as_str);
        let keys = match (encoding, separator) {
            ("default", None | Some(Some("/"))) => ("c", '/'),
            ("default", Some(Some("."))) => ("c", '.'),
            ("v2", None | Some(Some("."))) => ("", '.'),
            ("v2", Some(Some("/"))) => ("", '/'),
            _ => return Err(format!("its chunk_key_encoding is {encoding:?}")),
        };
        let width =
            json["data_type"].as_str().map(|name| v3_width(name).ok_or_else(|| format!("its data_type is {name:?}")));
        let width = width.transpose()?;
        let packing = packing(&json["codecs"], &grid, width, true)?;
        Self::new(numbers(&json["shape"])?, grid, keys, width, packing)
    }

    fn new(
        shape: Vec<u64>,
        grid: Vec<u64>,
        keys: (&'static str, char),
        width: Option<u64>,
        packing: Packing,
    ) -> Result<Self, String> {
        if shape.len() != grid.len() {
            return Err(format!("its shape has {} dimensions, and its chunks have {}", shape.len(), grid.len()));
        }
        if grid.contains(&0) {
            return Err("its chunks are empty".into());
        }
        let (prefix, separator) = keys;
        let elements = product(&grid)?;
        let bytes = width.map(|width| elements.checked_mul(width).ok_or("its chunks are too large")).transpose()?;
        Ok(Self { shape, grid, prefix, separator, bytes, packing })
    }

    /// How many chunks it has.
    pub(super) fn chunks(&self) -> Result<u64, String> {
        let counts: Vec<u64> = self.shape.iter().zip(&self.grid).map(|(size, chunk)| size.div_ceil(*chunk)).collect();
        product(&counts)
    }

    /// Whether that is the name of one of its chunks.
    pub(super) fn has(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(self.prefix) else { return false };
        if self.shape.is_empty() {
            return rest == if self.prefix.is_empty() { "0" } else { "" };
        }
        let rest = if self.prefix.is_empty() { Some(rest) } else { rest.strip_prefix(self.separator) };
        let Some(rest) = rest else { return false };
        let places: Option<Vec<u64>> = rest
            .split(self.separator)
            .map(|place| place.parse().ok().filter(|number: &u64| number.to_string() == place))
            .collect();
        places.is_some_and(|places| {
            places.len() == self.shape.len()
                && places
                    .iter()
                    .zip(self.shape.iter().zip(&self.grid))
                    .all(|(at, (size, chunk))| *at < size.div_ceil(*chunk))
        })
    }
}

/// Its members, if they are all known, and those that are needed are there.
fn object<'a>(json: &'a Value, known: &[&str], needed: &[&str]) -> Result<&'a Map<String, Value>, String> {
    let json = json.as_object().ok_or("it is no object")?;
    if let Some(strange) = json.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("it has a member {strange:?}"));
    }
    // Before there were others, arrays had the separator that is still the usual one.
    if let Some(missing) = needed.iter().find(|key| !json.contains_key(**key)) {
        return Err(format!("it has no {missing:?}"));
    }
    Ok(json)
}

fn named(json: &Value) -> Result<(&str, Map<String, Value>), String> {
    if let Some(name) = json.as_str() {
        return Ok((name, Map::new()));
    }
    let json = object(json, &["configuration", "name"], &["name"])?;
    let name = json["name"].as_str().ok_or("something in it has no name")?;
    let options = match json.get("configuration") {
        None => Map::new(),
        Some(options) => {
            options.as_object().cloned().ok_or_else(|| format!("the configuration of {name:?} is none"))?
        }
    };
    // TensorStore reads no array with options that it does not know.
    let known: &[&str] = match name {
        "bytes" | "endian" => &["endian"],
        "crc32c" => &[],
        "default" | "v2" => &["separator"],
        "gzip" => &["level"],
        "regular" => &["chunk_shape"],
        "sharding_indexed" => &["chunk_shape", "codecs", "index_codecs", "index_location"],
        "transpose" => &["order"],
        "zstd" => &["checksum", "level"],
        _ => return Ok((name, options)),
    };
    if let Some(strange) = options.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("{name:?} has an option {strange:?}"));
    }
    if options.get("endian").is_some_and(|order| order != "little" && order != "big") {
        return Err("its byte order is neither little nor big".into());
    }
    Ok((name, options))
}

fn numbers(json: &Value) -> Result<Vec<u64>, String> {
    let numbers = json.as_array().and_then(|all| all.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    numbers.filter(|all| all.len() <= 64).ok_or_else(|| "its shape or that of its chunks is no list of sizes".into())
}

fn product(sizes: &[u64]) -> Result<u64, String> {
    sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size)).ok_or_else(|| "it is too large".into())
}

fn packing(codecs: &Value, chunk: &[u64], width: Option<u64>, outer: bool) -> Result<Packing, String> {
    let codecs = codecs.as_array().ok_or("its codecs are no list")?;
    let codecs = codecs.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    known(&codecs)?;
    let names: Vec<&str> = codecs.iter().map(|(name, _)| *name).collect();
    Ok(match names.as_slice() {
        ["bytes"] => Packing::Raw,
        ["bytes", "zstd"] => Packing::Zstd,
        ["sharding_indexed"] if outer => {
            let options = &codecs[0].1;
            let inner = numbers(options.get("chunk_shape").unwrap_or(&Value::Null))?;
            let ends = options.get("index_location").is_none_or(|location| location == "end");
            let index =
                options.get("index_codecs").and_then(Value::as_array).ok_or("its shards have no index_codecs")?;
            let index = index.iter().map(named).collect::<Result<Vec<_>, _>>()?;
            known(&index)?;
            let plain = index.iter().map(|(name, _)| *name).eq(["bytes", "crc32c"]);
            if inner.len() != chunk.len()
                || inner.iter().zip(chunk).any(|(inner, outer)| *inner == 0 || outer % inner != 0)
            {
                return Err("its chunks do not fill its shards".into());
            }
            let bytes = product(&inner)?;
            match (ends && plain, width.and_then(|width| bytes.checked_mul(width))) {
                (true, Some(bytes)) => Packing::Sharded {
                    chunks: product(&chunk.iter().zip(&inner).map(|(outer, inner)| outer / inner).collect::<Vec<_>>())?,
                    bytes,
                    inner: Box::new(packing(options.get("codecs").unwrap_or(&Value::Null), &inner, width, false)?),
                },
                _ => Packing::Other,
            }
        }
        _ => Packing::Other,
    })
}

fn known(codecs: &[(&str, Map<String, Value>)]) -> Result<(), String> {
    const NAMES: [&str; 8] = ["blosc", "bytes", "crc32c", "endian", "gzip", "sharding_indexed", "transpose", "zstd"];
    match codecs.iter().find(|(name, _)| !NAMES.contains(name)) {
        Some((name, _)) => Err(format!("it has a codec {name:?}")),
        None => Ok(()),
    }
}

/// The bytes of an element by its name in NumPy's array protocol, or in that of JAX's own types.
fn v2_width(dtype: &str) -> Option<u64> {
    let (order, rest) = dtype.split_at_checked(1)?;
    if !matches!(order, "<" | ">" | "|") {
        return v3_width(dtype).filter(|_| {
            dtype == "bfloat16"
                || dtype.starts_with("float8")
                || dtype.contains("int4")
                || dtype.contains("int2")
                || dtype.starts_with("float4")
        });
    }
    let (kind, width) = rest.split_at_checked(1)?;
    let width = width.parse::<u64>().ok()?;
    let known = match kind {
        "b" => width == 1,
        "i" | "u" => matches!(width, 1 | 2 | 4 | 8),
        "f" => matches!(width, 2 | 4 | 8),
        "c" => matches!(width, 8 | 16),
        "V" | "S" => width > 0,
        _ => false,
    };
    (known && (width == 1 || order != "|" || matches!(kind, "V" | "S"))).then_some(width)
}

#[expect(clippy::match_same_arms, reason = "each arm is a rule of its own")]
fn v3_width(name: &str) -> Option<u64> {
    match name {
        "bool" | "int2" | "int4" | "int8" | "uint2" | "uint4" | "uint8" => Some(1),
        "float8_e3m4" | "float8_e4m3" | "float8_e4m3b11fnuz" | "float8_e4m3fn" | "float8_e4m3fnuz" => Some(1),
        "float8_e5m2" | "float8_e5m2fnuz" | "float8_e8m0fnu" | "float4_e2m1fn" => Some(1),
        "int16" | "uint16" | "float16" | "bfloat16" => Some(2),
        "int32" | "uint32" | "float32" => Some(4),
        "int64" | "uint64" | "float64" | "complex64" => Some(8),
        "complex128" => Some(16),
        _ => None,
    }
}
