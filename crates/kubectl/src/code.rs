//! Code of a program: packed from a folder, and sent in ConfigMaps of the job.

use super::cluster::Cluster;
use super::job_reader::pods;
use anyhow::{Context as _, bail};
use api::TrainingJob;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{StreamExt, stream};
use ignore::WalkBuilder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use plan::labels::{LOOK_AGAIN, TRAINING_JOB};
use plan::names::code_name;
use protocol::code::{DIGEST, MAX_ARCHIVE, MAX_FILES, MAX_UNPACKED, PART_BYTES, PARTS, part_key};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tar::{Builder, Header};

/// Names that are never sent.
const NEVER: [&str; 2] = [".git", "__pycache__"];
/// File with further patterns of files that are not sent.
const IGNORE_FILE: &str = ".trainingjobignore";
/// Number of pods that are patched at one time.
const AT_ONCE: usize = 16;
/// Number of tries for a part whose name an earlier job's part still has.
const TRIES: u32 = 20;

/// A folder, packed.
#[derive(Debug)]
pub struct Packed {
    /// The archive.
    pub archive: Vec<u8>,
    /// Digest of the archive, as the spec has it.
    pub digest: String,
    /// Number of files.
    pub files: usize,
    /// Paths that were left out, with the reason.
    pub skipped: Vec<String>,
}

/// Packs a folder without files that `.gitignore` and `.trainingjobignore` exclude. Equal files give equal archives.
///
/// # Errors
/// If the folder can't be read, or is too large. The error names the largest files.
pub fn pack(folder: &Path) -> anyhow::Result<Packed> {
    let shown = folder.display();
    let root = folder.canonicalize().with_context(|| format!("can't read --code {shown}"))?;
    if !root.is_dir() {
        bail!("--code {shown} is a file: name the folder with the code");
    }
    let (files, skipped) = find(&root, folder)?;
    if files.is_empty() {
        bail!("--code {shown} has no files, besides those that .gitignore and {IGNORE_FILE} exclude");
    }
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for file in &files {
        let content = fs::read(&file.source).with_context(|| format!("can't read {}", file.source.display()))?;
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(content.len())?);
        header.set_mode(if file.is_executable { 0o755 } else { 0o644 });
        header.set_mtime(0);
        builder.append_data(&mut header, &file.name, content.as_slice())?;
    }
    let archive = builder.into_inner()?.finish()?;
    if archive.len() > MAX_ARCHIVE {
        bail!("{}", too_large(folder, &files, &format!("{} packed", mebibytes(archive.len() as u64))));
    }
    let hash = Sha256::digest(&archive);
    let digest = hash.iter().fold(DIGEST.to_owned(), |text, byte| text + &format!("{byte:02x}"));
    Ok(Packed { archive, digest, files: files.len(), skipped })
}

struct CodeFile {
    /// Path below the folder.
    name: PathBuf,
    source: PathBuf,
    bytes: u64,
    is_executable: bool,
}

fn find(root: &Path, shown: &Path) -> anyhow::Result<(Vec<CodeFile>, Vec<String>)> {
    let (mut files, mut skipped, mut bytes) = (Vec::new(), Vec::new(), 0);
    let walk = WalkBuilder::new(root)
        // Files such as .env may be needed. Secrets belong into .gitignore.
        .hidden(false)
        .require_git(false)
        .add_custom_ignore_filename(IGNORE_FILE)
        .filter_entry(|entry| !NEVER.iter().any(|name| entry.file_name() == *name))
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .build();
    for entry in walk {
        let entry = entry.with_context(|| format!("can't read --code {}", shown.display()))?;
        let name = entry.path().strip_prefix(root)?.to_owned();
        let (mut source, mut meta) = (entry.path().to_owned(), entry.metadata()?);
        if meta.is_symlink() {
            match source.canonicalize() {
                Ok(target) if target.starts_with(root) && target.is_file() => {
                    meta = fs::metadata(&target)?;
                    source = target;
                }
                Ok(target) if target.is_dir() => skipped.push(format!("{} (a link to a folder)", name.display())),
                Ok(_) => skipped.push(format!("{} (a link to a file outside the folder)", name.display())),
                Err(_) => skipped.push(format!("{} (a broken link)", name.display())),
            }
        }
        if !meta.is_file() {
            continue;
        }
        bytes += meta.len();
        files.push(CodeFile { name, source, bytes: meta.len(), is_executable: is_executable(&meta) });
        if files.len() > MAX_FILES || bytes > MAX_UNPACKED {
            let what = format!("{} files or more with {} or more", files.len(), mebibytes(bytes));
            bail!("{}", too_large(shown, &files, &what));
        }
    }
    Ok((files, skipped))
}

#[cfg(unix)]
fn is_executable(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata) -> bool {
    false
}

fn too_large(folder: &Path, files: &[CodeFile], what: &str) -> String {
    let mut largest: Vec<&CodeFile> = files.iter().collect();
    largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let largest: Vec<String> =
        largest.iter().take(3).map(|file| format!("{} ({})", file.name.display(), mebibytes(file.bytes))).collect();
    format!(
        "--code {} is too large: {what}. At most {MAX_FILES} files with {}, and {} packed, can be sent. List what the program \
         does not need in .gitignore or {IGNORE_FILE}, or put it into the image or a volume. The largest files: {}",
        folder.display(),
        mebibytes(MAX_UNPACKED),
        mebibytes(MAX_ARCHIVE as u64),
        largest.join(", ")
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

/// Returns the ConfigMaps of an archive. Without the job's UID they have no owner.
#[must_use]
pub fn config_maps(packed: &Packed, name: &str, namespace: Option<&str>, uid: Option<&str>) -> Vec<ConfigMap> {
    let owner = uid.map(|uid| {
        vec![OwnerReference {
            api_version: TrainingJob::api_version(&()).into_owned(),
            kind: TrainingJob::kind(&()).into_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }]
    });
    let part = |(part, bytes): (usize, &[u8])| ConfigMap {
        metadata: ObjectMeta {
            name: Some(code_name(name, part)),
            namespace: namespace.map(str::to_owned),
            labels: Some(BTreeMap::from([(TRAINING_JOB.to_owned(), name.to_owned())])),
            owner_references: owner.clone(),
            ..ObjectMeta::default()
        },
        binary_data: Some(BTreeMap::from([(part_key(part), ByteString(bytes.to_vec()))])),
        ..ConfigMap::default()
    };
    packed.archive.chunks(PART_BYTES).enumerate().map(part).collect()
}

/// Writes the archive to the job's ConfigMaps, the first part last, because pods wait for that one.
///
/// # Errors
/// If the caller has no right to do so, or another object has one of the names.
pub async fn send(cluster: &Cluster, job: &TrainingJob, packed: &Packed) -> anyhow::Result<()> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let uid = job.uid().unwrap_or_default();
    for part in config_maps(packed, &name, Some(&namespace), Some(&uid)).iter().rev() {
        write(cluster, &namespace, part, &uid).await?;
    }
    Ok(())
}

/// Removes the parts that a longer archive has left.
///
/// # Errors
/// If the caller has no right to do so.
pub async fn remove_surplus(cluster: &Cluster, job: &TrainingJob, packed: &Packed) -> anyhow::Result<()> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    let api: Api<ConfigMap> = cluster.api(&namespace);
    for part in packed.archive.len().div_ceil(PART_BYTES)..PARTS {
        let part = code_name(&name, part);
        let found = cluster.ask(&format!("get ConfigMap {part} in namespace {namespace}"), api.get_opt(&part)).await?;
        if let Some(found) = found.filter(|found| is_owned(found, &job.uid().unwrap_or_default())) {
            delete(cluster, &api, &found).await?;
        }
    }
    Ok(())
}

async fn write(cluster: &Cluster, namespace: &str, part: &ConfigMap, uid: &str) -> anyhow::Result<()> {
    let name = part.name_any();
    let api: Api<ConfigMap> = cluster.api(namespace);
    for _ in 0..TRIES {
        let created = async {
            match api.create(&PostParams::default(), part).await {
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                answer => answer.map(|_| true),
            }
        };
        if cluster.ask(&format!("create ConfigMap {name} in namespace {namespace}"), created).await? {
            return Ok(());
        }
        let what = format!("get ConfigMap {name} in namespace {namespace}");
        let Some(found) = cluster.ask(&what, api.get_opt(&name)).await? else { continue };
        if is_owned(&found, uid) {
            let patch = json!({ "metadata": { "uid": found.uid() }, "data": null, "binaryData": part.binary_data });
            let what = format!("patch ConfigMap {name} in namespace {namespace}");
            cluster.ask(&what, api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await?;
            return Ok(());
        }
        let of_job = |owner: &OwnerReference| owner.kind == TrainingJob::kind(&()) && code_name(&owner.name, 0) == name;
        if !found
            .owner_references()
            .iter()
            .any(|owner| of_job(owner) || name.starts_with(&format!("{}-code-", owner.name)))
        {
            bail!(
                "ConfigMap {name} in namespace {namespace} exists and belongs to no TrainingJob: delete or rename it"
            );
        }
        // It is of an earlier job of this name, and the garbage collector has yet to remove it.
        delete(cluster, &api, &found).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("ConfigMap {name} in namespace {namespace} of an earlier job of this name is still there: try again")
}

async fn delete(cluster: &Cluster, api: &Api<ConfigMap>, found: &ConfigMap) -> anyhow::Result<()> {
    let name = found.name_any();
    let sure = Preconditions { uid: found.uid(), resource_version: None };
    let deleted = async {
        match api.delete(&name, &DeleteParams::default().preconditions(sure)).await {
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            answer => answer.map(drop),
        }
    };
    cluster.ask(&format!("delete ConfigMap {name}"), deleted).await
}

fn is_owned(found: &ConfigMap, uid: &str) -> bool {
    found.owner_references().iter().any(|owner| owner.uid == uid)
}

/// Makes the nodes of all running pods of a job check the ConfigMaps at once instead of only now and then.
///
/// # Errors
/// If the caller has no right to patch pods.
pub async fn nudge_config_map(cluster: &Cluster, job: &TrainingJob, mark: &str) -> anyhow::Result<()> {
    let namespace = job.namespace().unwrap_or_default();
    let api: Api<Pod> = cluster.api(&namespace);
    let pods = pods(cluster, job).await?;
    let patches = pods.iter().filter(|pod| pod.runs()).map(|pod| {
        let patch = json!({ "metadata": { "uid": pod.uid, "annotations": { LOOK_AGAIN: mark } } });
        let what = format!("patch pod {} in namespace {namespace}", pod.name);
        let api = &api;
        async move {
            let patched = async {
                match api.patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    // The pod is gone, and its successor finds the new files.
                    Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
                    answer => answer.map(drop),
                }
            };
            cluster.ask(&what, patched).await
        }
    });
    let done: Vec<_> = stream::iter(patches).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    struct Folder(PathBuf);

    impl Folder {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("trainingjob-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            for (name, content) in files {
                let path = folder.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(packed: &Packed) -> Vec<String> {
        let mut archive = tar::Archive::new(GzDecoder::new(packed.archive.as_slice()));
        let entries = archive.entries().unwrap();
        entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    }

    #[test]
    fn archive_respects_ignore_files_and_is_reproducible() {
        let folder = Folder::with(
            "git",
            &[
                ("train.py", "1"),
                ("lib/model.py", "2"),
                ("lib/__pycache__/model.pyc", "3"),
                ("data/big.npy", "4"),
                ("runs/x", "5"),
                (".env.example", "6"),
                (".git/config", "7"),
                (".gitignore", "data/\n*.log\n"),
                (".trainingjobignore", "runs\n"),
                ("a.log", "8"),
                ("lib/.gitignore", "!b.log\n"),
                ("lib/b.log", "9"),
            ],
        );
        let packed = pack(&folder.0).unwrap();
        let expected =
            [".env.example", ".gitignore", ".trainingjobignore", "lib/.gitignore", "lib/b.log", "lib/model.py"];
        assert_eq!(names(&packed), [&expected[..], &["train.py"]].concat());
        assert_eq!(packed.files, 7);
        assert_eq!(packed.digest.len(), 71);
        // The same files give the same archive, whenever they were written.
        let again = Folder::with("again", &[]);
        let copied = std::process::Command::new("cp").arg("-r").arg(&folder.0).arg(&again.0).status().unwrap();
        assert!(copied.success());
        assert_eq!(pack(&again.0).unwrap().digest, packed.digest);
        fs::write(again.0.join("train.py"), "2").unwrap();
        assert_ne!(pack(&again.0).unwrap().digest, packed.digest);
    }

    #[cfg(unix)]
    #[test]
    fn symlinks_are_followed_only_to_files_within_folder() {
        let folder = Folder::with("links", &[("a/x.py", "1")]);
        for (target, name) in [("a/x.py", "y.py"), ("/etc/hostname", "host"), ("a", "b"), ("nowhere", "c")] {
            std::os::unix::fs::symlink(target, folder.0.join(name)).unwrap();
        }
        let packed = pack(&folder.0).unwrap();
        assert_eq!(names(&packed), ["a/x.py", "y.py"]);
        let skipped = ["b (a link to a folder)", "c (a broken link)", "host (a link to a file outside the folder)"];
        assert_eq!(packed.skipped, skipped);
    }

    #[test]
    fn oversized_archive_is_refused_with_largest_files() {
        // Random bytes can't be packed smaller.
        let mut noise = vec![0; MAX_ARCHIVE + 1];
        let mut state = 1_u32;
        for byte in &mut noise {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let folder = Folder::with("large", &[("small.py", "1")]);
        fs::write(folder.0.join("model.bin"), noise).unwrap();
        let reported = pack(&folder.0).unwrap_err().to_string();
        assert!(
            reported.contains("3.5 MiB packed") && reported.contains("The largest files: model.bin (3.5 MiB)"),
            "{reported}"
        );
        let many = Folder::with("empty", &[(".gitignore", "*\n")]);
        assert!(pack(&many.0).unwrap_err().to_string().contains("has no files"));
        assert!(pack(Path::new("/no/such/folder")).unwrap_err().to_string().contains("can't read --code"));
    }

    #[test]
    fn archive_is_split_into_config_maps_owned_by_job() {
        let archive = vec![7; PART_BYTES + 5];
        let packed = Packed { archive: archive.clone(), digest: String::new(), files: 1, skipped: Vec::new() };
        let parts = config_maps(&packed, "x", Some("team"), Some("uid"));
        let names: Vec<_> = parts.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["x-code-0", "x-code-1"]);
        let mut whole = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(part.owner_references()[0].uid, "uid");
            // The operator does not manage them.
            assert!(!part.labels().contains_key(plan::labels::MANAGED_BY));
            part.binary_data.as_ref().unwrap()[&part_key(index)].0.as_slice().read_to_end(&mut whole).unwrap();
        }
        assert_eq!(whole, archive);
        assert!(config_maps(&packed, "x", None, None)[0].owner_references().is_empty());
    }
}
