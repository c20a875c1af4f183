//! `bundle`: all that is known of a job in one archive, for support. [`redact`] removes secrets from it.

pub mod redact;

use super::cluster::Cluster;
use super::job_reader::{JobReader, now, selector};
use super::pod_selection::PodSelection;
use super::screen::DisplayOptions;
use super::{convert, stacks, status, why};
use anyhow::Context as _;
use api::{GROUP, TrainingJob, VERSION};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::AsyncReadExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolumeClaim, Pod, Service};
use kube::api::{ListParams, LogParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use tar::{Builder, Header};

/// Number of bytes kept of one log, from its end.
const LOG: usize = 1 << 20;
/// Number of lines requested of one log.
const LINES: i64 = 10_000;
/// Maximum number of pods whose logs are read.
const PODS: usize = 64;
/// Maximum pages of 500 objects that are read of each kind.
const PAGES: usize = 4;
/// Maximum bytes of all files in the archive. Further files are left out, and named.
const MOST: usize = 128 << 20;

/// The result of writing an archive.
#[derive(Serialize, Debug)]
pub struct Bundle {
    /// The archive.
    pub file: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The files in it, with their sizes.
    pub files: Vec<(String, usize)>,
    /// What could not be read, or did not fit.
    pub missing: Vec<String>,
}

/// Writes all that is known of a job into a new file.
///
/// # Errors
/// If the job can't be read, or the file can't be written.
pub async fn bundle(cluster: &Cluster, name: &str, file: Option<PathBuf>) -> anyhow::Result<Bundle> {
    let job = cluster.find(name).await?;
    let file = file.unwrap_or_else(|| format!("{name}-{}.tar.gz", now().strftime("%Y%m%dT%H%M%SZ")).into());
    let archive = Archive::create(&file)?;
    match write(cluster, &job, archive).await {
        Ok((files, missing)) => {
            let bytes = fs::metadata(&file).map_or(0, |meta| meta.len());
            Ok(Bundle { file, bytes, files, missing })
        }
        Err(error) => {
            let _ = fs::remove_file(&file);
            Err(error)
        }
    }
}

impl Bundle {
    /// Renders the summary for the user.
    #[must_use]
    pub fn render(&self) -> String {
        let kib = |bytes: u64| bytes.div_ceil(1024);
        let mut text = format!("{} ({} KiB) has:\n", self.file.display(), kib(self.bytes));
        for (name, bytes) in &self.files {
            text += &format!("  {name} ({} KiB)\n", kib(u64::try_from(*bytes).unwrap_or(0)));
        }
        for missing in &self.missing {
            text += &format!("not in it: {missing}\n");
        }
        text + "Secrets that are known by their names or forms are removed. Look at the files before you share them: logs and \
                code may have others.\n"
    }
}

type Written = (Vec<(String, usize)>, Vec<String>);

async fn write(cluster: &Cluster, job: &TrainingJob, mut archive: Archive) -> anyhow::Result<Written> {
    let (name, namespace) = (job.name_any(), job.namespace().unwrap_or_default());
    archive.object("job.yaml", job)?;
    let facts = JobReader::new(cluster.clone()).facts(&name).await?;
    let diagnosis = why::Diagnosis::from_facts(&facts);
    archive.text("status.txt", &status::render(&facts, &diagnosis, DisplayOptions::default()))?;
    archive.text("why.txt", &why::render(&diagnosis, DisplayOptions::default()))?;
    archive.versions(cluster).await?;
    let mut with_runtime = job.clone();
    if let Err(error) = cluster.take_runtime(&mut with_runtime).await {
        archive.missing.push(format!("{error:#}"));
    } else if let Some(inherited) = with_runtime.status.as_ref().and_then(|status| status.inherited.as_ref()) {
        archive.object("runtime.yaml", inherited)?;
    }

    let of_job = ListParams::default().labels(&selector(job));
    let pods: Vec<Pod> = archive.kind(cluster, &namespace, "pods", &of_job).await?;
    let _: Vec<Job> = archive.kind(cluster, &namespace, "jobs", &of_job).await?;
    let _: Vec<Service> = archive.kind(cluster, &namespace, "services", &of_job).await?;
    let _: Vec<ConfigMap> = archive.kind(cluster, &namespace, "configmaps", &of_job).await?;
    let _: Vec<PersistentVolumeClaim> = archive.kind(cluster, &namespace, "claims", &of_job).await?;
    archive.events(cluster, &namespace, &name).await?;
    if pods.len() > PODS {
        archive.missing.push(format!("logs of {} of {} pods", pods.len() - PODS, pods.len()));
    }
    for pod in pods.iter().take(PODS) {
        archive.logs(cluster, pod).await?;
    }
    let workers = PodSelection::default();
    match stacks::collect(cluster, &name, &workers).await {
        Ok(document) => {
            archive.text("stacks.txt", &stacks::render(&document))?;
            archive.object("stacks.yaml", &document)?;
        }
        Err(error) => archive.missing.push(format!("stacks: {error:#}")),
    }
    archive.operator(cluster, job).await?;
    archive.finish()
}

/// An archive that is being written.
struct Archive {
    builder: Builder<GzEncoder<File>>,
    files: Vec<(String, usize)>,
    missing: Vec<String>,
    left: usize,
}

impl Archive {
    fn create(file: &Path) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = options.open(file).with_context(|| format!("can't create {}", file.display()))?;
        let builder = Builder::new(GzEncoder::new(opened, Compression::default()));
        Ok(Self { builder, files: Vec::new(), missing: Vec::new(), left: MOST })
    }

    /// Adds a file, if there is enough room for it.
    fn text(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = redact::text(text);
        if text.len() > self.left {
            self.missing.push(format!("{name}: the bundle would have more than {} MiB", MOST >> 20));
            return Ok(());
        }
        self.left -= text.len();
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(text.len())?);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(now().as_second()).unwrap_or(0));
        self.builder.append_data(&mut header, name, text.as_bytes())?;
        self.files.push((name.to_owned(), text.len()));
        Ok(())
    }

    fn object(&mut self, name: &str, object: &impl Serialize) -> anyhow::Result<()> {
        let mut value: Value = serde_json::to_value(object)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        self.text(name, &convert::yaml(&redact::object(&value)))
    }

    /// Adds all objects of a kind that belong to the job, and returns them.
    async fn kind<K>(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        name: &str,
        params: &ListParams,
    ) -> anyhow::Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
    {
        let api: Api<K> = cluster.api(namespace);
        let params = params.clone().limit(500);
        let what = format!("list {name} in namespace {namespace}");
        let items = match cluster.ask(&what, api.list(&params)).await {
            Ok(list) => list.items,
            Err(error) => {
                self.missing.push(format!("{error:#}"));
                return Ok(Vec::new());
            }
        };
        let mut all = String::new();
        for item in &items {
            let mut value = serde_json::to_value(item)?;
            if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
            all += &format!("---\n{}", convert::yaml(&redact::object(&value)));
        }
        self.text(&format!("{name}.yaml"), &all)?;
        Ok(items)
    }

    async fn events(&mut self, cluster: &Cluster, namespace: &str, job: &str) -> anyhow::Result<()> {
        let what = format!("list Events in namespace {namespace}");
        let events: Vec<Event> = match cluster.pages(&what, &cluster.api(namespace), PAGES).await {
            Ok(events) => events,
            Err(error) => {
                self.missing.push(format!("{error:#}"));
                return Ok(());
            }
        };
        let is_of_job = |event: &&Event| {
            let name = event.involved_object.name.as_deref().unwrap_or_default();
            name == job || name.strip_prefix(job).is_some_and(|rest| rest.starts_with('-'))
        };
        let mut lines: Vec<String> = events
            .iter()
            .filter(is_of_job)
            .map(|event| {
                let time = event.last_timestamp.as_ref().map(|time| time.0);
                let time = time.or(event.event_time.as_ref().map(|time| time.0)).map(|time| time.to_string());
                let of = &event.involved_object;
                format!(
                    "{}\t{}\t{}/{}\t{}\t{}",
                    time.unwrap_or_default(),
                    event.type_.as_deref().unwrap_or_default(),
                    of.kind.as_deref().unwrap_or_default(),
                    of.name.as_deref().unwrap_or_default(),
                    event.reason.as_deref().unwrap_or_default(),
                    event.message.as_deref().unwrap_or_default().replace('\n', " "),
                )
            })
            .collect();
        lines.sort();
        self.text("events.tsv", &(lines.join("\n") + "\n"))
    }

    /// Adds the present and the previous log of each container.
    async fn logs(&mut self, cluster: &Cluster, pod: &Pod) -> anyhow::Result<()> {
        let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
        let status = pod.status.as_ref();
        let all = status.into_iter().flat_map(|status| {
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
        });
        for container in all {
            for previous in [false, true] {
                if previous && container.restart_count == 0 {
                    continue;
                }
                let file = format!("logs/{name}.{}{}.log", container.name, if previous { ".previous" } else { "" });
                match last_of_log(cluster, &namespace, &name, &container.name, previous).await {
                    Ok(text) => self.text(&file, &text)?,
                    Err(error) => self.missing.push(format!("{file}: {error:#}")),
                }
            }
        }
        Ok(())
    }

    /// Adds the lines of the operator's logs that name the job.
    async fn operator(&mut self, cluster: &Cluster, job: &TrainingJob) -> anyhow::Result<()> {
        let params = ListParams::default().labels(super::check::OPERATOR);
        let pods: Vec<Pod> = match cluster.ask("list pods in all namespaces", cluster.everywhere().list(&params)).await
        {
            Ok(list) => list.items,
            Err(error) => {
                self.missing.push(format!("log of the operator: {error:#}"));
                return Ok(());
            }
        };
        let key = format!("{}/{}", job.namespace().unwrap_or_default(), job.name_any());
        let uid = job.uid().unwrap_or_default();
        for pod in &pods {
            let name = pod.name_any();
            match last_of_log(cluster, &pod.namespace().unwrap_or_default(), &name, "operator", false).await {
                Ok(text) => {
                    let names_job = |line: &&str| line.contains(&key) || line.contains(&uid);
                    let lines: Vec<&str> = text.lines().filter(names_job).collect();
                    self.text(&format!("operator/{name}.log"), &(lines.join("\n") + "\n"))?;
                }
                Err(error) => self.missing.push(format!("log of the operator's pod {name}: {error:#}")),
            }
        }
        Ok(())
    }

    async fn versions(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let server = cluster.ask("read the version of the API server", cluster.client().apiserver_version()).await;
        let server = server.map_or_else(|error| format!("{error:#}"), |version| version.git_version);
        let text = format!("plugin {}\nAPI {GROUP}/{VERSION}\nAPI server {server}\n", env!("CARGO_PKG_VERSION"));
        self.text("versions.txt", &text)
    }

    fn finish(mut self) -> anyhow::Result<Written> {
        if !self.missing.is_empty() {
            let missing = self.missing.join("\n") + "\n";
            self.left = self.left.max(missing.len());
            self.text("missing.txt", &missing)?;
        }
        self.builder.into_inner()?.finish()?.sync_all()?;
        Ok((self.files, self.missing))
    }
}

/// Reads the end of a log, in bounded memory.
async fn last_of_log(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    container: &str,
    previous: bool,
) -> anyhow::Result<String> {
    let params = LogParams {
        container: Some(container.to_owned()),
        previous,
        tail_lines: Some(LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let api: Api<Pod> = cluster.api(namespace);
    let what = format!("read the log of pod {pod} in namespace {namespace}");
    let mut stream = Box::pin(cluster.ask(&what, api.log_stream(pod, &params)).await?);
    let (mut last, mut chunk) = (VecDeque::new(), vec![0; 16 * 1024]);
    let read = async {
        loop {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(read) => {
                    last.extend(&chunk[..read]);
                    let surplus = last.len().saturating_sub(LOG);
                    last.drain(..surplus);
                }
            }
        }
    };
    // A log that does not end is as useful.
    let _ = tokio::time::timeout(super::cluster::PATIENCE, read).await;
    Ok(String::from_utf8_lossy(&Vec::from(last)).into_owned())
}
