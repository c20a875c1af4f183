//! `stacks`: what the processes of a job's workers are doing, as their agents see them.

use super::checkpoints::{Streams, worker};
use super::cluster::Cluster;
use super::job_reader::pods;
use super::pod_selection::{PodSelection, roles};
use super::screen::shortened;
use anyhow::{Context as _, anyhow, bail};
use futures::{StreamExt, stream};
use kube::ResourceExt;
use lifecycle::incarnation;
use observe::ObservedPod;
use plan::storage::paths;
use protocol::role::RoleName;
use protocol::stacks::{ProcessStacks, StackLocation, Stacks};
use serde::Serialize;
use std::io::{self, Write};

/// Maximum bytes of an answer that are read. An agent's answer is smaller.
const MAX_ANSWER: usize = 1 << 20;
/// Number of agents that are asked at a time.
const AT_ONCE: usize = 8;
/// Maximum number of workers that are asked.
const MOST: usize = 64;

/// What one worker's agent has answered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfWorker {
    /// The role of the pod, unless it is a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Index of the worker.
    pub worker: u32,
    /// Name of its pod.
    pub pod: String,
    /// The pod's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What its processes do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<Stacks>,
    /// Why the stacks are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl OfWorker {
    fn name(&self) -> String {
        format!("{} {}", self.role.as_deref().unwrap_or(RoleName::WORKER.as_str()), self.worker)
    }
}

/// What `stacks -o json` prints.
#[derive(Debug, Serialize)]
pub struct Document {
    namespace: String,
    name: String,
    /// By index.
    pub workers: Vec<OfWorker>,
}

/// Asks the agents of a job's workers.
///
/// # Errors
/// If there is no worker to ask, or none has answered. The error says why.
pub async fn collect(cluster: &Cluster, name: &str, choice: &PodSelection) -> anyhow::Result<Document> {
    let job = cluster.find(name).await?;
    let namespace = job.namespace().unwrap_or_default();
    choice.places(name, &roles(&job))?;
    let current = incarnation(&job.status.clone().unwrap_or_default());
    let mut running: Vec<ObservedPod> = pods(cluster, &job).await?;
    running.retain(|pod| pod.incarnation == current.number && pod.runs());
    running.retain(|pod| choice.has(pod.replica_id()));
    running.sort_by_key(|pod| (!pod.role.is_worker(), pod.replica_id()));
    if running.is_empty() {
        let which = if choice.is_all() { "no worker" } else { "none of these pods" };
        bail!("{which} of {name} runs now: `kubectl trainingjob why {name} -n {namespace}` tells what it does");
    }
    if running.len() > MOST {
        let all = running.len();
        bail!("{all} pods are too many at one time: choose at most {MOST}, such as --worker 0-{}", MOST - 1);
    }
    let ask = |pod: ObservedPod| {
        let namespace = &namespace;
        async move {
            let answer = ask(cluster, namespace, &pod).await;
            let (stacks, problem) = match answer {
                Ok(stacks) => (Some(stacks), None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            let role = Some(pod.role).filter(|role| !role.is_worker()).map(|role| role.to_string());
            OfWorker { role, worker: pod.index, node: pod.node, pod: pod.name, stacks, problem }
        }
    };
    let workers: Vec<OfWorker> = stream::iter(running).map(ask).buffered(AT_ONCE).collect().await;
    if workers.iter().all(|worker| worker.stacks.is_none()) {
        let problem = workers.into_iter().find_map(|worker| worker.problem).unwrap_or_default();
        return Err(anyhow!(problem));
    }
    Ok(Document { namespace, name: name.to_owned(), workers })
}

/// Asks the agent in a pod by running it in the container. The container's user may ask, and no port serves stacks.
async fn ask(cluster: &Cluster, namespace: &str, pod: &ObservedPod) -> anyhow::Result<Stacks> {
    let (mut out, mut err) = (Bounded::default(), Bounded::default());
    let args = ["stacks".to_owned(), format!("--state={}", paths::STATE)];
    let mut streams = Streams { out: &mut out, err: &mut err };
    let code = worker::ask(cluster, namespace, &pod.name, &args, &mut streams).await?;
    if code != 0 {
        bail!("the agent in pod {} tells no stacks (exit code {code}): {}", pod.name, shortened(&err.text(), 300));
    }
    let stacks: Stacks = serde_json::from_str(&out.text())
        .with_context(|| format!("what the agent in pod {} prints is no JSON of stacks", pod.name))?;
    Ok(stacks.bounded())
}

/// Output of a command in a container, of bounded size.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl Bounded {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_ANSWER {
            return Err(io::Error::other(format!("the answer is longer than {MAX_ANSWER} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Renders the text for users.
#[must_use]
pub fn render(document: &Document) -> String {
    let mut text = String::new();
    for worker in &document.workers {
        let node = worker.node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
        text += &format!("{} (pod {}{node})\n", worker.name(), worker.pod);
        if let Some(problem) = &worker.problem {
            text += &format!("  not known: {problem}\n");
        }
        for line in worker.stacks.iter().flat_map(Stacks::lines) {
            text += &format!("  {line}\n");
        }
        if worker.stacks.as_ref().is_some_and(|stacks| stacks.processes.is_empty()) {
            text += "  no process of the program runs\n";
        }
    }
    let blamed = blamed(document);
    if !blamed.is_empty() {
        text += &format!("\n{blamed}\n");
    }
    text
}

/// Names what the others seem to wait for: a stopped process, or the only one that is not in an exchange.
fn blamed(document: &Document) -> String {
    let ranks = || {
        let stacks = document.workers.iter().filter_map(|worker| Some((worker, worker.stacks.as_ref()?)));
        stacks.flat_map(|(worker, stacks)| stacks.ranks().map(move |rank| (worker, rank)))
    };
    let at = |place| ranks().filter(move |(_, rank)| rank.location() == place);
    let stopped: Vec<_> = at(StackLocation::Stopped).collect();
    let elsewhere: Vec<_> = at(StackLocation::Elsewhere).collect();
    let name =
        |(of, rank): &(&OfWorker, &ProcessStacks)| format!("rank {} of {}", rank.rank.unwrap_or_default(), of.name());
    match (stopped.as_slice(), elsewhere.as_slice()) {
        ([one, more @ ..], _) => {
            let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
            format!("{} is stopped by a signal (SIGSTOP){more}: kill -CONT lets it go on.", name(one))
        }
        ([], [one]) if at(StackLocation::Collective).next().is_some() => {
            format!("The others may wait for {}, which alone is in no exchange with them.", name(one))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::stacks::ProcessState;
    use protocol::stacks::testing::rank;

    const REDUCES: [(&str, &str, i32); 1] =
        [("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 2806)];

    fn document(processes: [ProcessStacks; 2]) -> Document {
        let of = |(index, process): (usize, ProcessStacks)| OfWorker {
            role: None,
            worker: u32::try_from(index).unwrap(),
            pod: format!("x-training-{index}-abcde"),
            node: Some("gpu-1".into()),
            stacks: Some(Stacks { processes: vec![process], ..Stacks::default() }),
            problem: None,
        };
        let workers = processes.into_iter().enumerate().map(of).collect();
        Document { namespace: "team".into(), name: "x".into(), workers }
    }

    #[test]
    fn stacks_show_each_rank_and_name_the_suspect() {
        let waits = rank(0, ProcessState::Asleep, &REDUCES);
        let text = render(&document([waits.clone(), rank(1, ProcessState::Stopped, &[("f", "/app/train.py", 7)])]));
        assert_eq!(
            text,
            "worker 0 (pod x-training-0-abcde, node gpu-1)\n  rank 0, process 50, asleep: python3 train.py\n    main \
             thread\n      all_reduce (torch/distributed/distributed_c10d.py:2806)\nworker 1 (pod x-training-1-abcde, node \
             gpu-1)\n  rank 1, process 51, stopped (SIGSTOP): python3 train.py\n    main thread\n      f \
             (/app/train.py:7)\n\nrank 1 of worker 1 is stopped by a signal (SIGSTOP): kill -CONT lets it go on.\n"
        );
        let reads = rank(1, ProcessState::Asleep, &[("read", "/app/data.py", 7)]);
        let text = render(&document([waits.clone(), reads.clone()]));
        assert!(
            text.ends_with("\nThe others may wait for rank 1 of worker 1, which alone is in no exchange with them.\n")
        );
        assert_eq!(blamed(&document([waits.clone(), waits])), "");
        assert_eq!(blamed(&document([reads.clone(), reads])), "");
    }

    #[test]
    fn missing_stacks_are_shown_with_reason() {
        let mut document = document([rank(0, ProcessState::Asleep, &[]), rank(1, ProcessState::Asleep, &[])]);
        (document.workers[1].stacks, document.workers[1].problem) = (None, Some("HTTP 502".into()));
        document.workers[0].stacks = Some(Stacks::default());
        let text = render(&document);
        assert!(
            text.contains("  no process of the program runs\n") && text.contains("  not known: HTTP 502\n"),
            "{text}"
        );
    }
}
