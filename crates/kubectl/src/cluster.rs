//! Access to the cluster, and the meaning of its refusals.

use super::screen::shortened;
use anyhow::{Context as _, anyhow, bail};
use api::{AppliedRuntime, Guarded, RuntimeKind, TrainingJob, TuningJob};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DynamicObject, ListParams, ObjectList};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

/// How long one answer of the API server may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Beginnings of the names of requests that change nothing.
const READS: [&str; 4] = ["get ", "list ", "watch ", "read "];

/// Prefix of the name of a TuningJob where a TrainingJob may be meant.
pub const SEARCH: &str = "tuningjob/";

/// What a name refers to.
pub enum NamedObject {
    /// A TrainingJob.
    Job(Box<TrainingJob>),
    /// A TuningJob.
    Search(Box<TuningJob>),
}

/// Which cluster is meant, and where in it.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ClusterArgs {
    /// Namespace; default: that of the context.
    #[arg(short, long, global = true, conflicts_with = "all_namespaces")]
    pub namespace: Option<String>,
    /// All namespaces: of a job by its name, the one that has it.
    #[arg(short = 'A', long, global = true)]
    pub all_namespaces: bool,
    /// Context of the kubeconfig; default: its current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Path of the kubeconfig; default: KUBECONFIG, else ~/.kube/config.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

/// A cluster that can be asked.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    url: String,
    /// Where a job is looked for; `None` is everywhere.
    pub namespace: Option<String>,
}

/// A kind of ours that is listed and found by name.
trait ListedKind: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug {
    /// What to do about a cluster without the kind.
    const MISSING: &str;
}

impl ListedKind for TrainingJob {
    const MISSING: &str =
        "the operator is not installed there (kubectl apply -k deploy/), or it is the wrong cluster (--context)";
}

impl ListedKind for TuningJob {
    const MISSING: &str =
        "upgrade the operator there (kubectl apply -k deploy/), or choose another cluster with --context";
}

impl Cluster {
    /// Reaches the cluster by the kubeconfig, or from within a pod by its service account.
    ///
    /// # Errors
    /// If it can't be reached. The error is worded for the user of the command.
    pub async fn reach(place: &ClusterArgs) -> anyhow::Result<Self> {
        let config = config(place).await?;
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let url = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| anyhow!("can't talk to {url}: {}", root(&error)))?;
        Ok(Self { client, url, namespace: (!place.all_namespaces).then_some(namespace) })
    }

    #[cfg(test)]
    pub(super) fn with_client(client: Client, namespace: &str) -> Self {
        Self { client, url: "https://test/".into(), namespace: Some(namespace.into()) }
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the API of objects without a namespace, or of those in all namespaces.
    #[must_use]
    pub fn everywhere<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    /// Returns the API of objects in a namespace.
    #[must_use]
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits for one answer.
    ///
    /// # Errors
    /// If there is no good answer; the error says what was asked, what came back, and what may be done about it.
    pub async fn ask<T>(&self, what: &str, request: impl Future<Output = Result<T, kube::Error>>) -> anyhow::Result<T> {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(answer) => answer.map_err(|error| self.explain(what, &error)),
            Err(_) => bail!(
                "can't {what}: {} gave no answer within {} s; is it the right cluster (--context)?",
                self.url,
                PATIENCE.as_secs()
            ),
        }
    }

    /// Puts an error of the client into words.
    #[must_use]
    pub fn explain(&self, what: &str, error: &kube::Error) -> anyhow::Error {
        let kube::Error::Api(status) = error else {
            return match error {
                kube::Error::Auth(error) => anyhow!(
                    "can't {what}: the credentials of the kubeconfig don't work: {}; log in again, or choose another --context",
                    root(error)
                ),
                _ => anyhow!(
                    "can't {what}: no answer from {}: {}; is the cluster up, and is it the right one (--context)?",
                    self.url,
                    root(error)
                ),
            };
        };
        let words = shortened(&status.message, 500);
        match status.code {
            401 => anyhow!(
                "can't {what}: {} does not accept your credentials; log in again, or choose another --context",
                self.url
            ),
            403 => {
                let role = if READS.iter().any(|verb| what.starts_with(verb)) { "view" } else { "edit" };
                anyhow!(
                    "you may not {what}: {words}. Ask for the role `{role}` in that namespace (`deploy/admin` adds \
                     TrainingJobs to it), or choose another with -n"
                )
            }
            _ => anyhow!("can't {what}: {words}"),
        }
    }

    /// Returns whether the API server supports restart rules of containers, as the operator asks when it starts.
    ///
    /// # Errors
    /// If the API server does not report its version.
    pub async fn has_restart_rules(&self) -> anyhow::Result<bool> {
        let version = self.ask("read the version of the API server", self.client.apiserver_version()).await?;
        Ok(plan::OperatorInfo::has_restart_rules(&version.major, &version.minor))
    }

    /// Gives a job that has not taken its template yet the template that it would take.
    ///
    /// # Errors
    /// If the template does not exist, or can't be read.
    pub async fn take_runtime(&self, job: &mut TrainingJob) -> anyhow::Result<()> {
        let Some(named) = super::plan::wants(job) else { return Ok(()) };
        let (kind, namespace) = (named.kind(), job.namespace().unwrap_or_default());
        let (client, resource) = (self.client.clone(), kind.resource());
        let (api, place): (Api<DynamicObject>, _) = match kind {
            RuntimeKind::ClusterTrainingRuntime => (Api::all_with(client, &resource), String::new()),
            RuntimeKind::TrainingRuntime => {
                (Api::namespaced_with(client, &namespace, &resource), format!(" in namespace {namespace}"))
            }
        };
        let what = format!("get {} {}{place}", kind.as_str(), named.name);
        let found = self.ask(&what, api.get(&named.name)).await?;
        super::plan::take(job, &AppliedRuntime::from_object(kind, &serde_json::to_value(found)?))
    }

    /// Lists all TrainingJobs of the namespace, or of all namespaces.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn jobs(&self, params: &ListParams) -> anyhow::Result<Vec<Guarded>> {
        self.all_of(params).await
    }

    async fn all_of<K: ListedKind>(&self, params: &ListParams) -> anyhow::Result<Vec<Guarded<K>>> {
        let (api, place): (Api<Guarded<K>>, _) = match &self.namespace {
            Some(namespace) => (self.api(namespace), format!("namespace {namespace}")),
            None => (Api::all(self.client.clone()), "all namespaces".to_owned()),
        };
        let list = async {
            match api.list(params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
                answer => answer.map(Some),
            }
        };
        let kind = K::kind(&());
        let list: Option<ObjectList<Guarded<K>>> = self.ask(&format!("list {kind}s in {place}"), list).await?;
        Ok(list.with_context(|| format!("{} knows no {kind}s: {}", self.url, K::MISSING))?.items)
    }

    /// Finds the TrainingJob of this name.
    ///
    /// # Errors
    /// If there is none. The error names jobs with similar names.
    pub async fn find(&self, name: &str) -> anyhow::Result<TrainingJob> {
        match self.find_job(name).await? {
            Some(found) => Ok(found),
            None => Err(self.missing(name).await?),
        }
    }

    /// Finds the TrainingJob of this name, if there is one.
    ///
    /// # Errors
    /// If it can't be read.
    pub async fn find_job(&self, name: &str) -> anyhow::Result<Option<TrainingJob>> {
        self.find_one(name).await
    }

    async fn find_one<K: ListedKind>(&self, name: &str) -> anyhow::Result<Option<K>> {
        let kind = K::kind(&());
        let found = match &self.namespace {
            Some(namespace) => {
                let api: Api<Guarded<K>> = self.api(namespace);
                let what = format!("get {kind} {name} in namespace {namespace}");
                self.ask(&what, api.get_opt(name)).await?
            }
            None => {
                let mut all = self.all_of::<K>(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
                if all.len() > 1 {
                    let namespaces: Vec<String> = all.iter().filter_map(ResourceExt::namespace).collect();
                    bail!("there are {} {kind}s {name}: choose one with -n {}", all.len(), namespaces.join(" or -n "));
                }
                all.pop()
            }
        };
        let Some(found) = found else { return Ok(None) };
        found.0.map(Some).map_err(|invalid| {
            anyhow!(
                "{kind} {name} can't be read by version {} of this plugin ({invalid}): upgrade it",
                env!("CARGO_PKG_VERSION")
            )
        })
    }

    /// Lists all TuningJobs of the namespace, or of all namespaces.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn searches(&self, params: &ListParams) -> anyhow::Result<Vec<Guarded<TuningJob>>> {
        self.all_of(params).await
    }

    /// Finds the TuningJob of this name, if there is one.
    ///
    /// # Errors
    /// If it can't be read, or several namespaces have one.
    pub async fn find_search(&self, name: &str) -> anyhow::Result<Option<TuningJob>> {
        self.find_one(name).await
    }

    /// The TuningJob of this name. A `tuningjob/` before the name is accepted.
    ///
    /// # Errors
    /// If there is none. The error names TuningJobs with similar names.
    pub async fn search(&self, name: &str) -> anyhow::Result<TuningJob> {
        let name = name.strip_prefix(SEARCH).unwrap_or(name);
        if let Some(found) = self.find_search(name).await? {
            return Ok(found);
        }
        let here = self.searches(&ListParams::default()).await?;
        let near = near(name, &here.iter().map(ResourceExt::name_any).collect());
        let place = self.namespace.as_ref().map_or("any namespace".to_owned(), |n| format!("namespace {n}"));
        let hint = match (near.is_empty(), here.is_empty()) {
            (false, _) => format!("; did you mean {}?", near.join(" or ")),
            (true, true) => format!("; {place} has none"),
            (true, false) => "; to list them: kubectl get tuningjobs".to_owned(),
        };
        bail!("there is no TuningJob {name} in {place}{hint}")
    }

    /// What a name of a command means: a TrainingJob, or a TuningJob if no TrainingJob has that name or if the name begins with
    /// `tuningjob/`.
    ///
    /// # Errors
    /// If there is neither.
    pub async fn named(&self, name: &str) -> anyhow::Result<NamedObject> {
        if name.starts_with(SEARCH) {
            return Ok(NamedObject::Search(Box::new(self.search(name).await?)));
        }
        if let Some(job) = self.find_job(name).await? {
            return Ok(NamedObject::Job(Box::new(job)));
        }
        // A cluster may lack the kind, and a user the right to read it.
        match self.find_search(name).await {
            Ok(Some(search)) => Ok(NamedObject::Search(Box::new(search))),
            _ => Err(self.missing(name).await?),
        }
    }

    /// Returns an error that says why a name was not found.
    async fn missing(&self, name: &str) -> anyhow::Result<anyhow::Error> {
        let here = self.jobs(&ListParams::default()).await?;
        let names = here.iter().map(ResourceExt::name_any);
        let near = near(name, &names.collect::<BTreeSet<_>>());
        let place = self.namespace.as_ref().map_or("any namespace".to_owned(), |n| format!("namespace {n}"));
        let mut text = format!("there is no TrainingJob {name} in {place}");
        // Without the right to look elsewhere, only this namespace counts.
        let everywhere = Self { namespace: None, ..self.clone() };
        let same = ListParams::default().fields(&format!("metadata.name={name}"));
        let elsewhere = match self.namespace {
            Some(_) => everywhere.jobs(&same).await.unwrap_or_default(),
            None => Vec::new(),
        };
        if let Some(namespace) = elsewhere.iter().find_map(ResourceExt::namespace) {
            text += &format!("; there is one in namespace {namespace}: add -n {namespace}");
        } else if !near.is_empty() {
            text += &format!("; did you mean {}?", near.join(" or "));
        } else if here.is_empty() {
            text += &format!("; there are none in {place}. `kubectl trainingjob top -A` lists those of all namespaces");
        } else {
            text += "; `kubectl trainingjob top` lists those that there are";
        }
        Ok(anyhow!(text))
    }

    /// Lists all objects, page by page.
    ///
    /// # Errors
    /// If they can't be listed.
    pub async fn pages<K>(&self, what: &str, api: &Api<K>, pages: usize) -> anyhow::Result<Vec<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut items = Vec::new();
        let mut params = ListParams::default().limit(500);
        for _ in 0..pages {
            let page = self.ask(what, api.list(&params)).await?;
            items.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break,
            }
        }
        Ok(items)
    }
}

async fn config(place: &ClusterArgs) -> anyhow::Result<Config> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let kubeconfig = match &place.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(KubeconfigError::FindPath | KubeconfigError::ReadConfig(..)) if in_pod && place.kubeconfig.is_none() => {
            return Config::incluster()
                .map_err(|error| anyhow!("this pod's service account can't be used: {}", root(&error)));
        }
        Err(KubeconfigError::FindPath) => {
            bail!("no cluster: set KUBECONFIG or --kubeconfig to the path of a kubeconfig")
        }
        Err(KubeconfigError::ReadConfig(error, path)) => bail!(
            "no cluster: the kubeconfig {} can't be read ({error}); set KUBECONFIG or --kubeconfig to one that can",
            path.display()
        ),
        Err(error) => bail!("the kubeconfig can't be used: {}", root(&error)),
    };
    let known: BTreeSet<String> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    let options = KubeConfigOptions { context: place.context.clone(), ..KubeConfigOptions::default() };
    match Config::from_custom_kubeconfig(kubeconfig, &options).await {
        Ok(config) => Ok(config),
        Err(KubeconfigError::LoadContext(name)) => {
            let known = known.into_iter().collect::<Vec<_>>().join(", ");
            bail!("the kubeconfig has no context {name}: choose one of {known} with --context")
        }
        Err(KubeconfigError::CurrentContextNotSet) => {
            bail!("the kubeconfig has no current context: choose one with --context or `kubectl config use-context`")
        }
        Err(error) => bail!("the kubeconfig can't be used: {}", root(&error)),
    }
}

/// Returns the innermost cause, which is the most informative one.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Finds similar names, nearest first.
#[must_use]
pub fn near(name: &str, names: &BTreeSet<String>) -> Vec<String> {
    const SHOWN: usize = 3;
    let distance = |known: &String| {
        let part = name.len() >= 3 && (known.contains(name) || name.contains(known.as_str()));
        let letters = strsim::damerau_levenshtein(name, known);
        (part || letters <= (name.chars().count() / 3).max(1)).then_some(letters)
    };
    let mut near: Vec<(usize, &String)> = names.iter().filter_map(|known| Some((distance(known)?, known))).collect();
    near.sort();
    near.into_iter().take(SHOWN).map(|(_, name)| name.clone()).collect()
}
