//! Sees every version of every object that matters, by namespace and in the order in which they were made.
//!
//! Versions are etcd's revisions, the same count for all kinds. They show which of two writes to different objects was
//! first.

use super::DEADLINE;
use futures::StreamExt;
use futures::stream::select_all;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use objects::labels;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    TrainingJob,
    TuningJob,
    Job,
    Pod,
    Service,
    ConfigMap,
    PersistentVolumeClaim,
    NetworkPolicy,
}

impl Kind {
    /// Whether operators watch the kind.
    fn is_watched(self) -> bool {
        self != Self::NetworkPolicy
    }
}

/// One version of an object.
#[derive(Clone)]
pub struct Seen {
    pub version: u64,
    pub kind: Kind,
    pub uid: String,
    /// Whether this version is the last, because the object is gone.
    pub gone: bool,
    pub object: Arc<Value>,
}

/// What was seen in one namespace.
pub struct Space {
    /// In the order of the watches, which is that of the versions within a kind only.
    pub history: Vec<Seen>,
    /// The present objects.
    pub now: BTreeMap<(Kind, String), Arc<Value>>,
    /// The newest version, by kind, of an object that an operator watches.
    pub newest: BTreeMap<Kind, u64>,
    /// The time of the last change.
    pub changed: Instant,
    bell: watch::Sender<()>,
}

impl Default for Space {
    fn default() -> Self {
        let (now, newest) = (BTreeMap::new(), BTreeMap::new());
        Self { history: Vec::new(), now, newest, changed: Instant::now(), bell: watch::Sender::default() }
    }
}

impl Space {
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.now.iter().filter(move |((k, _), _)| *k == kind).map(|(_, object)| &**object)
    }

    pub fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.now.get(&(kind, name.to_owned())).map(|object| &**object)
    }

    /// How many objects of a kind have ever existed.
    pub fn ever(&self, kind: Kind) -> usize {
        // An upkeep Job is made again if its end is seen before its report.
        let is_upkeep = |seen: &Seen| seen.object["metadata"]["labels"]["component"] == "upkeep";
        let all = self.history.iter().filter(|seen| seen.kind == kind && !is_upkeep(seen));
        all.map(|seen| &seen.uid).collect::<BTreeSet<_>>().len()
    }
}

pub struct Witness {
    spaces: Mutex<HashMap<String, Space>>,
    pods: Mutex<Vec<mpsc::UnboundedSender<Arc<Value>>>>,
}

impl Witness {
    /// Watches all kinds. Returns when it sees every version that is made from then on.
    pub async fn start(client: &Client) -> Arc<Self> {
        let witness = Arc::new(Self { spaces: Mutex::default(), pods: Mutex::default() });
        let kinds = [
            (Kind::TrainingJob, "ml.example.com", "v1"),
            (Kind::TuningJob, "ml.example.com", "v1"),
            (Kind::Job, "batch", "v1"),
            (Kind::Pod, "", "v1"),
            (Kind::Service, "", "v1"),
            (Kind::ConfigMap, "", "v1"),
            (Kind::PersistentVolumeClaim, "", "v1"),
            (Kind::NetworkPolicy, "networking.k8s.io", "v1"),
        ];
        let mut watches = select_all(kinds.map(|(kind, group, version)| {
            let kind_of = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &format!("{kind:?}")));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind_of);
            // A list and a watch from its version would leave a gap. If the API server had not yet cached the kind, it
            // refuses that version, and what is made before the next list is seen in its last version only.
            let events = watcher(api, watcher::Config::default().streaming_lists()).default_backoff();
            events.map(move |event| (kind, event)).boxed()
        }));
        let all_begin = async {
            let mut begun = BTreeSet::new();
            while begun.len() < kinds.len() {
                let (kind, event) = watches.next().await.expect("a watch has no end");
                match &event {
                    Ok(Event::Init) | Err(_) => begun.remove(&kind),
                    Ok(Event::InitDone) => begun.insert(kind),
                    Ok(_) => false,
                };
                // A kind that was just defined may not be served yet. The watch tries again.
                if let Ok(event) = event {
                    witness.take(kind, event);
                }
            }
        };
        tokio::time::timeout(DEADLINE, all_begin).await.expect("all watches begin in time");
        let pen = witness.clone();
        tokio::spawn(async move {
            while let Some((kind, event)) = watches.next().await {
                pen.take(kind, event.expect("the witness's watch holds"));
            }
        });
        witness
    }

    /// Sends every version of every pod from here on.
    pub fn pods(&self) -> mpsc::UnboundedReceiver<Arc<Value>> {
        let (send, receive) = mpsc::unbounded_channel();
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).push(send);
        receive
    }

    /// Waits until `test` finds what it looks for in a namespace.
    ///
    /// # Errors
    /// What was seen instead, in time.
    pub async fn until<T>(&self, namespace: &str, what: &str, test: impl Fn(&Space) -> Option<T>) -> Result<T, String> {
        let mut bell = self.lock().entry(namespace.to_owned()).or_default().bell.subscribe();
        let found = async {
            loop {
                bell.mark_unchanged();
                if let Some(found) = self.read(namespace, &test) {
                    return found;
                }
                bell.changed().await.expect("the witness outlives its watchers");
            }
        };
        let found = tokio::time::timeout(DEADLINE, found).await;
        found.map_err(|_| {
            format!("waited {} s for {what}; there is {}", DEADLINE.as_secs(), self.read(namespace, summary))
        })
    }

    /// Waits until nothing has changed in a namespace for this long, and nothing is expected to.
    pub async fn rest(&self, namespace: &str, quiet: Duration, at_rest: impl Fn(&Space) -> bool) {
        let resting = async {
            loop {
                let (still, resting) = self.read(namespace, |space| (space.changed.elapsed(), at_rest(space)));
                if resting && still >= quiet {
                    return;
                }
                let left = quiet.saturating_sub(still).max(Duration::from_millis(100));
                tokio::time::sleep(left).await;
            }
        };
        // The next wait finds what never settles.
        let _ = tokio::time::timeout(DEADLINE, resting).await;
    }

    /// Makes every waiting test look again.
    pub fn ring(&self, namespace: &str) {
        self.read(namespace, |space| space.bell.send_replace(()));
    }

    /// Drops what was seen in a namespace that is no longer looked at.
    pub fn forget(&self, namespace: &str) {
        self.lock().remove(namespace);
    }

    pub fn read<T>(&self, namespace: &str, read: impl FnOnce(&Space) -> T) -> T {
        read(self.lock().entry(namespace.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Space>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, kind: Kind, event: Event<DynamicObject>) {
        match event {
            Event::InitApply(object) | Event::Apply(object) => self.note(kind, object, false),
            Event::Delete(object) => self.note(kind, object, true),
            Event::Init | Event::InitDone => {}
        }
    }

    fn note(&self, kind: Kind, mut object: DynamicObject, gone: bool) {
        object.metadata.managed_fields = None;
        let metadata = object.metadata.clone();
        let (Some(namespace), Some(name), Some(uid)) = (metadata.namespace, metadata.name, metadata.uid) else {
            return;
        };
        let version = metadata.resource_version.and_then(|version| version.parse().ok()).expect("versions are numbers");
        let object = Arc::new(serde_json::to_value(object).expect("an object is JSON"));
        if kind == Kind::Pod && !gone {
            let mut watchers = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.retain(|watcher| watcher.send(object.clone()).is_ok());
        }
        let mut spaces = self.lock();
        let space = spaces.entry(namespace).or_default();
        if gone {
            space.now.remove(&(kind, name));
        } else {
            space.now.insert((kind, name), object.clone());
        }
        let is_ours = object["metadata"]["labels"][labels::MANAGED_BY] == labels::OPERATOR;
        if matches!(kind, Kind::TrainingJob | Kind::TuningJob) || is_ours && kind.is_watched() {
            space.newest.insert(kind, version);
        }
        space.history.push(Seen { version, kind, uid, gone, object });
        space.changed = Instant::now();
        space.bell.send_replace(());
    }
}

/// The present objects, for the reader of a failed test.
fn summary(space: &Space) -> String {
    let lines = space.now.iter().filter(|((_, name), _)| name != "kube-root-ca.crt").map(|((kind, name), object)| {
        let deleting = if object["metadata"]["deletionTimestamp"].is_null() { "" } else { " (deleting)" };
        let status = match kind {
            Kind::TrainingJob | Kind::TuningJob => object["status"].to_string(),
            Kind::Job => object["status"]["conditions"].to_string(),
            Kind::Pod => object["status"]["phase"].to_string(),
            _ => String::new(),
        };
        format!("\n  {kind:?} {name}{deleting} {status}")
    });
    let all: String = lines.collect();
    if all.is_empty() { "nothing".to_owned() } else { all }
}
