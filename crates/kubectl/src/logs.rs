//! The output of the workers, in the order of time and across restarts.

use super::cluster::{self, Cluster};
use super::facts::Facts;
use super::follow::{progress_line, waiting};
use super::job_reader::{self, pods};
use super::pod_selection::{PodSelection, roles};
use super::screen::{DisplayOptions, Style, ranges};
use super::terminal;
use super::why::Diagnosis;
use anyhow::bail;
use api::{AttemptEnd, Guarded, Reason, State, TrainingJob};
use futures::{AsyncBufRead, AsyncBufReadExt, FutureExt, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use lifecycle::incarnation;
use observe::{Container, ObservedPod, SlimPod};
use plan::Incarnation;
use plan::template::TRAINING;
use protocol::role::{ReplicaId, RoleName};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::io::{self, IsTerminal, Write};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum number of logs that are read at one time. Each is a connection of its own.
const MOST: usize = 256;
/// How long a log that broke off is left alone before the next try.
const AGAIN: Duration = Duration::from_secs(1);
/// How long logs may still come in once the job has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Which lines of which workers are shown, and in which form.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct LogQuery {
    /// The pods whose lines are shown.
    pub choice: PodSelection,
    /// Whether to follow the logs, including those of later attempts.
    pub follow: bool,
    /// Number of last lines of each worker. `None` means all.
    pub tail: Option<i64>,
    /// Maximum age of the lines.
    pub since: Option<SignedDuration>,
    /// Whether only the worker that caused the last failure is shown.
    pub failed: bool,
    /// Whether the time of each line is shown.
    pub timestamps: bool,
    /// Whether each line is printed as a JSON object.
    pub json: bool,
    /// Whether a line about the job's progress stands below the logs, and changes of its state among them.
    pub progress: bool,
}

/// A pod that has a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name of the pod.
    pub pod: String,
    /// The UID of the pod.
    pub uid: String,
    /// The last attempt of the pod, which may have had earlier ones.
    pub attempt: u32,
    /// The role and the index of the pod.
    pub place: ReplicaId,
}

impl Source {
    fn from_pod(pod: &ObservedPod, current: Incarnation) -> Self {
        let attempt = job_reader::last_attempt(pod, current);
        Self { pod: pod.name.clone(), uid: pod.uid.clone(), attempt, place: pod.replica_id() }
    }
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When the container wrote it.
    pub time: Option<Timestamp>,
    /// What it wrote, without the end of the line.
    pub text: Vec<u8>,
}

impl LogLine {
    /// Reads a line as the API gives it, with its time before it.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Self {
        let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
        let end = raw.iter().position(|byte| *byte == b' ').unwrap_or(raw.len());
        match std::str::from_utf8(&raw[..end]).ok().and_then(|time| time.parse().ok()) {
            Some(time) => Self { time: Some(time), text: raw.get(end + 1..).unwrap_or_default().to_vec() },
            None => Self { time: None, text: raw.to_vec() },
        }
    }
}

/// How lines are printed.
#[derive(Clone, Debug, Default)]
pub struct LogFormat {
    /// The namespace of the job.
    pub namespace: String,
    /// The name of the job.
    pub job: String,
    /// How many digits the largest index has.
    pub digits: usize,
    /// Number of characters of the longest name of a role, 0 if there are only workers.
    pub roles: usize,
    /// Whether the time of each line is shown.
    pub timestamps: bool,
    /// Whether each line is printed as a JSON object.
    pub json: bool,
    /// What the output allows.
    pub look: DisplayOptions,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
    namespace: &'a str,
    job: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
    /// Whether the pod or its log is gone, and this is what was kept of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    kept: bool,
    line: std::borrow::Cow<'a, str>,
}

impl LogFormat {
    /// Renders a line of a worker, with its end.
    #[must_use]
    pub fn render(&self, source: &Source, line: &LogLine) -> Vec<u8> {
        if self.json {
            let (attempt, place, pod) = (Some(source.attempt), Some(source.place), Some(source.pod.as_str()));
            return self.json_line(attempt, place, pod, line.time, false, &String::from_utf8_lossy(&line.text));
        }
        let mut shown = self.mark(source.place).into_bytes();
        shown.push(b' ');
        if let Some(time) = line.time.filter(|_| self.timestamps) {
            shown.extend(Style::Dim.paint(&format!("{time:.3}"), self.look.colour).bytes());
            shown.push(b' ');
        }
        shown.extend_from_slice(if self.look.terminal { at_last(&line.text) } else { &line.text });
        shown.push(b'\n');
        shown
    }

    /// Renders words that were kept of a worker, or that belong to no worker.
    #[must_use]
    pub fn kept(&self, attempt: Option<u32>, place: Option<ReplicaId>, pod: Option<&str>, words: &str) -> Vec<u8> {
        if self.json {
            return words.lines().flat_map(|line| self.json_line(attempt, place, pod, None, true, line)).collect();
        }
        let mark = place.map(|place| self.mark(place) + " ").unwrap_or_default();
        words.lines().flat_map(|line| format!("{mark}{line}\n").into_bytes()).collect()
    }

    /// Returns the mark of a line: the index of the worker, and its role if there are other roles.
    fn mark(&self, place: ReplicaId) -> String {
        let ReplicaId { role, index } = place;
        let mark = match self.roles {
            0 => format!("[{index:>0$}]", self.digits),
            wide => format!("[{role:>wide$} {index:>0$}]", self.digits),
        };
        Style::Worker(index).paint(&mark, self.look.colour)
    }

    #[expect(clippy::expect_used, reason = "plain data of ours, which always has this form")]
    fn json_line(
        &self,
        attempt: Option<u32>,
        place: Option<ReplicaId>,
        pod: Option<&str>,
        time: Option<Timestamp>,
        kept: bool,
        line: &str,
    ) -> Vec<u8> {
        let (namespace, job, line) = (self.namespace.as_str(), self.job.as_str(), line.into());
        let role = place.map(|place| place.role).filter(|role| !role.is_worker()).map(|role| role.to_string());
        let worker = place.map(|place| place.index);
        let object = JsonLine { time, namespace, job, attempt, role, worker, pod, kept, line };
        let mut text = serde_json::to_vec(&object).expect("text and numbers are JSON");
        text.push(b'\n');
        text
    }
}

/// Returns what a terminal would show of a line that returns to its start, as progress bars do. It overwrites the mark.
fn at_last(text: &[u8]) -> &[u8] {
    let last = text.rsplit(|byte| *byte == b'\r').find(|part| !part.is_empty());
    last.unwrap_or_default()
}

/// Shows the logs of a job.
///
/// # Errors
/// If there are none; the error says why.
pub async fn run(
    cluster: &Cluster,
    name: &str,
    wanted: LogQuery,
    look: DisplayOptions,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let job = cluster.find(name).await?;
    let all = roles(&job);
    let chosen = wanted.choice.places(name, &all)?;
    let most = all.iter().map(|(_, replicas)| *replicas).max().unwrap_or(0);
    let form = LogFormat {
        namespace: job.namespace().unwrap_or_default(),
        job: name.to_owned(),
        digits: most.saturating_sub(1).to_string().len(),
        roles: if all.len() > 1 { all.iter().map(|(role, _)| role.as_str().len()).max().unwrap_or(0) } else { 0 },
        timestamps: wanted.timestamps,
        json: wanted.json,
        look,
    };
    let pods_of_job = pods(cluster, &job).await?;
    let namespace = form.namespace.clone();
    let current = incarnation(&job.status.clone().unwrap_or_default());
    let foot = StatusLine { is_drawn: look.terminal && std::io::stderr().is_terminal(), ..StatusLine::default() };
    let mut logs = Logs { cluster, api: cluster.api(&namespace), form, wanted, current, attempt: None, foot, out };
    if logs.wanted.failed {
        return logs.failed(&job, &pods_of_job).await;
    }
    let sources = logs.sources(&pods_of_job);
    let at_once = chosen.len().max(sources.len());
    if at_once > MOST {
        bail!("{at_once} logs are too many at one time: choose at most {MOST}, such as --worker 0-{}", MOST - 1);
    }
    let follow = logs.wanted.follow && !is_finished(&job);
    if sources.is_empty() && !follow {
        let diagnosis = Diagnosis::from_facts(&super::facts::Facts::from_job(&job, job_reader::now()));
        let who = if logs.wanted.choice.is_all() { "no pod" } else { "none of these pods" };
        bail!("{who} of {name} has a log. {}", diagnosis.says.join(" "));
    }
    let seen = logs.backlog(&sources).await?;
    if follow {
        return logs.follow(&job, seen).await;
    }
    print_missing(&sources, &chosen);
    Ok(())
}

fn is_finished(job: &TrainingJob) -> bool {
    job.status.as_ref().and_then(|status| status.state).is_some_and(State::is_finished)
}

/// Says which of the chosen pods have no log.
fn print_missing(sources: &[Source], chosen: &[ReplicaId]) {
    let there: BTreeSet<ReplicaId> = sources.iter().map(|source| source.place).collect();
    let mut missing: BTreeMap<RoleName, Vec<u32>> = BTreeMap::new();
    for place in chosen.iter().filter(|place| !there.contains(place)) {
        missing.entry(place.role).or_default().push(place.index);
    }
    for (role, indices) in missing {
        let who = if role.is_worker() { "workers".to_owned() } else { format!("pods of {role}") };
        remark(&format!("{who} without a log: {}", ranges(&indices)));
    }
}

fn has_started(pod: &ObservedPod) -> bool {
    !matches!(pod.training, Container::Waiting)
}

struct Logs<'a> {
    cluster: &'a Cluster,
    api: Api<Pod>,
    form: LogFormat,
    wanted: LogQuery,
    /// Which pods and which attempt are the last ones.
    current: Incarnation,
    /// The attempt of the last line shown.
    attempt: Option<u32>,
    foot: StatusLine,
    out: &'a mut dyn Write,
}

/// The line below the logs.
#[derive(Default)]
struct StatusLine {
    /// Whether there is a terminal for it. Elsewhere only changes of the state are shown.
    is_drawn: bool,
    line: String,
    state: String,
}

impl StatusLine {
    fn clear(&self) {
        if self.is_drawn && !self.line.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn draw(&self) {
        if self.is_drawn && !self.line.is_empty() {
            let mut err = io::stderr();
            let _ = write!(err, "\r\x1b[K{}", terminal::harmless(&self.line)).and_then(|()| err.flush());
        }
    }

    /// Updates the line from the state of the job.
    fn note(&mut self, job: &TrainingJob, look: DisplayOptions) {
        let state = job.status.as_ref().and_then(|status| status.state).map_or("Pending", State::as_str);
        let waiting = waiting(&Facts::from_job(job, job_reader::now()));
        if self.is_drawn {
            self.clear();
            self.line = progress_line(job, look.width.unwrap_or(80).saturating_sub(1));
            self.draw();
        } else {
            // Some messages, such as those of the scheduler, change with each node.
            let reason = waiting.split(':').next().unwrap_or_default();
            let state = if reason.is_empty() { state.to_owned() } else { format!("{state}, {reason}") };
            let shown = if waiting.is_empty() {
                state.clone()
            } else {
                format!("{}, {waiting}", state.split(',').next().unwrap_or_default())
            };
            if state != self.state {
                remark(&format!("-- {} is {shown} --", job.name_any()));
                self.state = state;
            }
        }
    }
}

impl Logs<'_> {
    fn sources(&self, pods: &[ObservedPod]) -> Vec<Source> {
        let wanted = pods.iter().filter(|pod| has_started(pod) && self.wanted.choice.has(pod.replica_id()));
        let mut sources: Vec<Source> = wanted.map(|pod| Source::from_pod(pod, self.current)).collect();
        sources.sort_by_key(|source| (source.attempt, source.place));
        sources
    }

    fn show(&mut self, source: &Source, line: &LogLine) -> io::Result<()> {
        if self.attempt.is_none_or(|last| last < source.attempt) {
            if self.attempt.is_some() {
                self.out.flush()?;
                remark(&format!("-- attempt {} --", source.attempt));
            }
            self.attempt = Some(source.attempt);
        }
        self.out.write_all(&self.form.render(source, line))
    }

    /// Shows the existing lines of all workers in the order of time. Returns the time of each pod's last line.
    async fn backlog(&mut self, sources: &[Source]) -> anyhow::Result<HashMap<String, Option<Timestamp>>> {
        let (tail, since) = (self.wanted.tail, self.wanted.since);
        let api = &self.api;
        let opened: Vec<(&Source, Result<Reader, kube::Error>)> = stream::iter(sources)
            .map(|source| async move {
                let params = LogParams { tail_lines: tail, since_seconds: since.map(|s| s.as_secs()), ..parameters() };
                (source, Reader::open(api, source, &params, None).await)
            })
            .buffered(16)
            .collect()
            .await;
        let mut readers = Vec::new();
        let mut refused = None;
        for (source, reader) in opened {
            match reader {
                Ok(reader) => readers.push(reader),
                Err(error) => {
                    let error = self.cluster.explain(&format!("read the log of pod {}", source.pod), &error);
                    remark(&format!("{}: {error:#}", source.place));
                    refused = Some(error);
                }
            }
        }
        if let (true, Some(error)) = (readers.is_empty(), refused) {
            return Err(error);
        }
        // The next line of each, the oldest first; a line without a time goes with the one before it.
        let mut next = BinaryHeap::new();
        let mut lines: Vec<Option<LogLine>> = vec![None; readers.len()];
        let mut queue: Vec<usize> = (0..readers.len()).collect();
        loop {
            for at in queue.drain(..) {
                if let Some(line) = readers[at].next().await? {
                    let source = &readers[at].source;
                    next.push(Reverse((source.attempt, line.time.or(readers[at].last), source.place, at)));
                    lines[at] = Some(line);
                }
            }
            let Some(Reverse((.., at))) = next.pop() else { break };
            if let Some(line) = lines[at].take() {
                let source = readers[at].source.clone();
                self.show(&source, &line)?;
            }
            queue.push(at);
        }
        self.out.flush()?;
        Ok(readers.into_iter().map(|reader| (reader.source.uid, reader.last)).collect())
    }

    /// Shows new lines of these pods and of the pods that follow them, until the job has ended.
    async fn follow(&mut self, job: &TrainingJob, seen: HashMap<String, Option<Timestamp>>) -> anyhow::Result<()> {
        let name = job.name_any();
        let (sender, mut reported) = mpsc::channel::<(Source, LogLine)>(1024);
        let mut tasks = JoinSet::new();
        let mut followed = HashSet::new();
        let pods_api: Api<SlimPod> = self.cluster.api(&self.form.namespace);
        let (api, slim, since) = (self.api.clone(), pods_api.clone(), self.wanted.since);
        let mut start = |tasks: &mut JoinSet<()>, pod: &ObservedPod, current: Incarnation| {
            if followed.insert(pod.uid.clone()) {
                let after = seen.get(&pod.uid).copied().flatten();
                // Nothing of this pod was shown, because all was older than --since or there was nothing yet.
                let since = since.filter(|_| seen.contains_key(&pod.uid)).map(|since| Timestamp::now() - since);
                let source = Source::from_pod(pod, current);
                tasks.spawn(follow_pod(api.clone(), slim.clone(), source, after.max(since), sender.clone()));
            }
        };
        let choice = self.wanted.choice.clone();
        let is_wanted = |place: ReplicaId| choice.has(place);
        let mut pods_seen = watcher(pods_api, watcher::Config::default().labels(&job_reader::selector(job)))
            .default_backoff()
            .applied_objects()
            .boxed();
        let jobs = self.cluster.api::<Guarded>(&self.form.namespace);
        let mut jobs_seen = watcher(jobs, watcher::Config::default().fields(&format!("metadata.name={name}")))
            .default_backoff()
            .boxed();
        let mut restarts =
            job.status.as_ref().map_or(0, |status| status.restarts.last().map_or(0, |last| last.attempt));
        let mut end: Option<String> = None;
        let mut shown = Vec::new();
        loop {
            let over = async {
                match &end {
                    Some(_) => tokio::time::sleep(LAST_WORDS).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some((source, line)) = reported.recv() => {
                    shown.push((source, line));
                    // Lines that have arrived meanwhile go out in one write.
                    while let Some(Some(more)) = reported.recv().now_or_never() {
                        shown.push(more);
                    }
                }
                Some(pod) = pods_seen.next() => match pod {
                    Ok(pod) => {
                        if let Some(pod) = pod.seen(false).filter(|pod| has_started(pod) && is_wanted(pod.replica_id())) {
                            start(&mut tasks, &pod, self.current);
                        }
                    }
                    Err(error) => watch_error(self.cluster, "watch pods", error)?,
                },
                Some(event) = jobs_seen.next(), if end.is_none() => match event {
                    Ok(watcher::Event::Apply(job) | watcher::Event::InitApply(job)) => {
                        let Ok(job) = job.0 else { continue };
                        let status = job.status.clone().unwrap_or_default();
                        self.current = incarnation(&status);
                        if self.wanted.progress && !is_finished(&job) {
                            self.foot.note(&job, self.form.look);
                        }
                        if let Some(last) = status.restarts.last().filter(|last| last.attempt > restarts) {
                            restarts = last.attempt;
                            self.foot.clear();
                            remark(&format!("-- attempt {} ended, {}: {} --", last.attempt, last.reason, last));
                        }
                        if is_finished(&job) {
                            // Pods that started and ended since the last report of the watch.
                            for pod in pods(self.cluster, &job).await?.iter().filter(|p| has_started(p) && is_wanted(p.replica_id())) {
                                start(&mut tasks, pod, self.current);
                            }
                            end = Some(status.state.map_or("", State::as_str).to_owned());
                        }
                    }
                    Ok(watcher::Event::Delete(_)) => end = Some("deleted".into()),
                    Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                    Err(error) => watch_error(self.cluster, "watch the TrainingJob", error)?,
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                () = over => break,
            }
            if !shown.is_empty() {
                self.foot.clear();
                for (source, line) in shown.drain(..) {
                    self.show(&source, &line)?;
                }
                self.out.flush()?;
                self.foot.draw();
            }
            if end.is_some() && tasks.is_empty() && reported.is_empty() {
                break;
            }
        }
        self.foot.clear();
        if !self.wanted.progress {
            remark(&format!("-- {name} is {} --", end.unwrap_or_default()));
        }
        Ok(())
    }

    /// Shows the log of the worker that failed first in the last failed attempt, else what was kept of it.
    async fn failed(&mut self, job: &TrainingJob, pods: &[ObservedPod]) -> anyhow::Result<()> {
        let name = job.name_any();
        let status = job.status.clone().unwrap_or_default();
        let Some(last) = culprit(&status.restarts, status.failure_reason.as_ref().map(Reason::as_str)) else {
            let Some(message) = &status.failure_message else {
                bail!("no attempt of {name} has failed, so that there are no last words");
            };
            let reason = status.failure_reason.as_ref().map_or("Failed", Reason::as_str);
            remark(&format!("{name} failed by {reason}, and no worker caused it"));
            let kept = self.form.kept(None, None, None, message);
            return self.show_at_last(&kept);
        };
        let pod = pods.iter().find(|pod| Some(&pod.name) == last.pod.as_ref());
        if let Some(pod) = pod.filter(|pod| has_started(pod)) {
            let source = Source::from_pod(pod, self.current);
            match self.backlog(std::slice::from_ref(&source)).await {
                Ok(seen) if seen.values().any(Option::is_some) => {
                    remark(&format!("-- {}, attempt {}: {last} --", last.reason, last.attempt));
                    return Ok(());
                }
                Ok(_) => remark(&format!("the log of pod {} is empty", source.pod)),
                Err(_) => {} // reported already
            }
        }
        let report = pod.and_then(|pod| match &pod.training {
            Container::Terminated { report, .. } => report.as_deref(),
            _ => None,
        });
        let tail = report.map(|report| report.stderr_tail.clone()).filter(|tail| !tail.trim().is_empty());
        let kept = match (&tail, pod) {
            (Some(_), _) => "the last lines of its stderr, which its pod keeps",
            (None, Some(_)) => "there is no log; this is what the status has",
            (None, None) => "its pod is gone; this is what the status has",
        };
        remark(&format!("attempt {} of {name} ended, {}: {kept}", last.attempt, last.reason));
        let words = tail.unwrap_or_else(|| last.message.clone());
        let shown = self.form.kept(Some(last.attempt), last.replica_id(), pod.map(|pod| pod.name.as_str()), &words);
        self.show_at_last(&shown)
    }

    fn show_at_last(&mut self, text: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(text)?;
        Ok(self.out.flush()?)
    }
}

/// Finds the last failure that a worker caused. There is none if the job itself failed for another reason.
#[must_use]
pub fn culprit<'a>(restarts: &'a [AttemptEnd], failure: Option<&str>) -> Option<&'a AttemptEnd> {
    restarts.last().filter(|last| failure.is_none_or(|failure| last.reason == failure))
}

/// Returns the error of a refused watch. A broken connection is restored instead.
fn watch_error(cluster: &Cluster, what: &str, error: watcher::Error) -> anyhow::Result<()> {
    let source = match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => source,
        _ => return Ok(()),
    };
    match &source {
        kube::Error::Api(status) if [401, 403].contains(&status.code) => Err(cluster.explain(what, &source)),
        _ => Ok(()),
    }
}

/// Prints a message that is not a line of a log to stderr, so that it stays out of a file of logs.
pub(super) fn remark(text: &str) {
    // A closed output is no reason to end.
    let _ = writeln!(terminal::stderr(), "{}", Style::Dim.paint(text, true));
}

fn parameters() -> LogParams {
    LogParams { container: Some(TRAINING.to_owned()), timestamps: true, ..LogParams::default() }
}

/// Reads one log, line by line.
pub(super) struct Reader {
    source: Source,
    stream: Pin<Box<dyn AsyncBufRead + Send>>,
    /// Lines of this time and earlier have been shown before.
    after: Option<Timestamp>,
    /// The time of the last line. Several lines may have the same time, because some runtimes stamp whole buffers.
    last: Option<Timestamp>,
}

impl Reader {
    pub(super) async fn open(
        api: &Api<Pod>,
        source: &Source,
        params: &LogParams,
        after: Option<Timestamp>,
    ) -> Result<Self, kube::Error> {
        let opening = tokio::time::timeout(cluster::PATIENCE, api.log_stream(&source.pod, params));
        let late = |_| kube::Error::Service("its node gave no answer".into());
        let stream = opening.await.map_err(late)??;
        Ok(Self { source: source.clone(), stream: Box::pin(stream), after, last: after })
    }

    /// The time of the last line that was read.
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.last
    }

    pub(super) async fn next(&mut self) -> io::Result<Option<LogLine>> {
        loop {
            let mut raw = Vec::new();
            if self.stream.read_until(b'\n', &mut raw).await? == 0 {
                return Ok(None);
            }
            let line = LogLine::parse(&raw);
            if line.time.is_some() && line.time <= self.after {
                continue;
            }
            self.last = line.time.max(self.last);
            return Ok(Some(line));
        }
    }
}

/// Follows the log of one pod after this time until the pod has ended, however often the connection breaks.
async fn follow_pod(
    api: Api<Pod>,
    pods: Api<SlimPod>,
    source: Source,
    mut after: Option<Timestamp>,
    sender: mpsc::Sender<(Source, LogLine)>,
) {
    loop {
        // The API supports whole seconds only, and rounds. The reader skips lines that were shown before.
        let since_time = after.and_then(|after| Timestamp::from_second(after.as_second() - 1).ok());
        let params = LogParams { follow: true, since_time, ..parameters() };
        let mut whole = false;
        if let Ok(mut reader) = Reader::open(&api, &source, &params, after).await {
            loop {
                match reader.next().await {
                    Ok(Some(line)) => {
                        if sender.send((source.clone(), line)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => {
                        whole = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            after = reader.last;
        }
        match pods.get_opt(&source.pod).await {
            Ok(None) => return,
            Ok(Some(pod)) => {
                let same = pod.seen(false).filter(|pod| pod.uid == source.uid);
                let ended =
                    same.is_none_or(|pod| !pod.is_alive() || matches!(pod.training, Container::Terminated { .. }));
                if whole && ended {
                    return;
                }
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}
