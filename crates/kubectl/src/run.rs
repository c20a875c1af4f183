//! `run`: a TrainingJob from the command line, with the code of a folder.

use super::cluster::Cluster;
use super::code::{self, Packed};
use super::set::Assignment;
use anyhow::{anyhow, bail};
use api::{Code, GROUP, Guarded, RuntimeKind, TrainingJob, TrainingJobSpec, VERSION};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Letters of generated names: no vowels, which form words, and no letter that looks like another one.
pub(super) const LETTERS: &[u8] = b"bcdfghjkmnpqrstvwxz2456789";

/// What the job is to be.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct JobArgs {
    /// Name of the TrainingJob. Without it, a name is made of the program's name and five letters.
    pub name: Option<String>,
    /// Image of the workers.
    #[arg(long)]
    pub image: Option<String>,
    /// Number of workers (pods).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub workers: Option<u16>,
    /// GPUs of each worker; 0 for a program that needs none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=16))]
    pub gpus: Option<u16>,
    /// Folder with the program's code, at most 3.5 MiB packed. It becomes the working directory of the command.
    ///
    /// Files that .gitignore or .trainingjobignore excludes are not sent.
    #[arg(long, value_name = "DIR")]
    pub code: Option<PathBuf>,
    /// Environment variable of the program; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Address of the data set, mounted at /data: pvc://CLAIM/PATH, hf://NAMESPACE/NAME, s3://BUCKET/PREFIX.
    #[arg(long, value_name = "URI")]
    pub data: Option<String>,
    /// Destination of the results, which the program writes to /out. --output URI means the same.
    #[arg(long = "output-uri", value_name = "URI")]
    pub result: Option<String>,
    /// Kueue LocalQueue of the job.
    #[arg(long)]
    pub queue: Option<String>,
    /// Template of the job: NAME of a ClusterTrainingRuntime, or TrainingRuntime/NAME.
    #[arg(long, value_name = "[KIND/]NAME")]
    pub runtime: Option<String>,
    /// Value of a parameter of the template; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, requires = "runtime")]
    pub param: Vec<(String, String)>,
    /// Any other field of the spec; may be repeated. VALUE is YAML: --set resources.limits.memory=8Gi.
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<Assignment>,
    /// The command of the workers, and its arguments.
    #[arg(last = true, value_names = ["COMMAND", "ARG"])]
    pub command: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    parts.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| "write NAME=VALUE".to_owned())
}

/// A job that is not created yet.
#[derive(Debug)]
pub struct Draft {
    /// The TrainingJob of the command line.
    pub job: Value,
    /// The job's code.
    pub packed: Option<Packed>,
}

/// Creates a draft of the job from the arguments, and packs its code.
///
/// # Errors
/// If an argument is invalid, or the folder can't be sent.
pub fn draft(args: &JobArgs, namespace: Option<&str>) -> anyhow::Result<Draft> {
    let packed = args.code.as_deref().map(code::pack).transpose()?;
    let name = args.name.clone().unwrap_or_else(|| generated(&args.command));
    let mut spec = json!({});
    if let Some(digest) = packed.as_ref().map(|packed| packed.digest.clone()) {
        spec["code"] = json!(Code { digest });
    }
    if let Some(image) = &args.image {
        spec["image"] = json!(image);
    }
    // A template may set the number.
    if let Some(workers) = args.workers.or(args.runtime.is_none().then_some(1)) {
        spec["numWorkers"] = json!(workers);
    }
    if let Some(gpus) = args.gpus {
        spec["gpusPerWorker"] = json!(gpus);
    }
    if let Some((command, rest)) = args.command.split_first() {
        spec["command"] = json!([command]);
        if !rest.is_empty() {
            spec["args"] = json!(rest);
        }
    }
    if !args.env.is_empty() {
        let env = args.env.iter().map(|(name, value)| json!({ "name": name, "value": value }));
        spec["env"] = env.collect();
    }
    for (field, value) in [("dataset", &args.data), ("output", &args.result)] {
        if let Some(value) = value {
            spec[field] = json!(value);
        }
    }
    if let Some(queue) = &args.queue {
        spec["scheduling"] = json!({ "queue": queue });
    }
    if let Some(runtime) = &args.runtime {
        spec["runtimeRef"] = runtime_ref(runtime)?;
        if !args.param.is_empty() {
            let values = args.param.iter().map(|(name, value)| (name.clone(), json!(value)));
            spec["runtimeRef"]["parameters"] = Value::Object(values.collect());
        }
    }
    for set in &args.set {
        set.apply(&mut spec).map_err(|wrong| anyhow!(wrong))?;
    }
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    let job = json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "TrainingJob", "metadata": metadata, "spec": spec });
    check_spec(&job["spec"])?;
    Ok(Draft { job, packed })
}

/// Finds a misspelt field of --set, which the API server may only warn of.
///
/// # Errors
/// Names the field.
pub(super) fn check_spec(spec: &Value) -> anyhow::Result<()> {
    // A copy, because the plugin has a decoder of values already. One of references would only add code.
    let known: TrainingJobSpec = serde_path_to_error::deserialize(spec.clone())
        .map_err(|error| anyhow!("spec.{}: {}", error.path(), error.inner()))?;
    match unknown_field(spec, &serde_json::to_value(&known)?, "spec") {
        Some(unknown) => bail!("{unknown} is no field of a TrainingJob: kubectl explain trainingjob.spec lists them"),
        None => Ok(()),
    }
}

/// Finds a field that was written and is not read.
fn unknown_field(written: &Value, read: &Value, path: &str) -> Option<String> {
    let (Value::Object(written), Value::Object(read)) = (written, read) else { return None };
    written.iter().find_map(|(name, value)| {
        let path = format!("{path}.{name}");
        let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty) || value == &json!([]);
        match read.get(name) {
            Some(read) => unknown_field(value, read, &path),
            None if value.as_object().is_some_and(|fields| !fields.is_empty()) => {
                unknown_field(value, &json!({}), &path)
            }
            None if is_empty || value == &json!(false) => None,
            None => Some(path),
        }
    })
}

fn runtime_ref(text: &str) -> anyhow::Result<Value> {
    let (kind, name) = text.split_once('/').map_or((None, text), |(kind, name)| (Some(kind), name));
    let Some(kind) = kind else { return Ok(json!({ "name": name })) };
    let known = RuntimeKind::ALL.into_iter().find(|known| {
        [known.as_str(), known.plural(), known.plural().trim_end_matches('s')]
            .iter()
            .any(|it| it.eq_ignore_ascii_case(kind))
    });
    match known {
        Some(known) => Ok(json!({ "kind": known.as_str(), "name": name })),
        None => bail!("--runtime {text}: write NAME of a ClusterTrainingRuntime, or TrainingRuntime/NAME"),
    }
}

/// Generates a name from the program: `train-x7k2p` of `torchrun train.py`.
fn generated(command: &[String]) -> String {
    let script = command.iter().find(|word| word.ends_with(".py") || word.ends_with(".sh"));
    let stem = script.or(command.first()).and_then(|word| Path::new(word).file_stem()?.to_str());
    let words = stem.unwrap_or_default().to_ascii_lowercase();
    let kept: String = words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(30).collect();
    let kept = kept.trim_start_matches(|c: char| !c.is_ascii_lowercase()).trim_end_matches('-');
    let letter = |_| char::from(LETTERS[rand::random_range(0..LETTERS.len())]);
    let suffix: String = (0..5).map(letter).collect();
    format!("{}-{suffix}", if kept.is_empty() { "run" } else { kept })
}

impl Draft {
    /// The documents that would be created: `kubectl create -f -` takes them.
    ///
    /// # Errors
    /// If they can't be printed.
    pub fn documents(&self) -> anyhow::Result<Vec<Value>> {
        let mut all = vec![self.job.clone()];
        let name = self.job["metadata"]["name"].as_str().unwrap_or_default();
        let namespace = self.job["metadata"]["namespace"].as_str();
        for part in self.packed.iter().flat_map(|packed| code::config_maps(packed, name, namespace, None)) {
            all.push(serde_json::to_value::<ConfigMap>(part)?);
        }
        Ok(all)
    }

    /// Creates the job, and sends its code.
    ///
    /// # Errors
    /// If the API server refuses it, or the caller may not. Nothing is left then.
    pub async fn create(&self, cluster: &Cluster) -> anyhow::Result<TrainingJob> {
        let Some(namespace) = cluster.namespace.clone() else {
            bail!("a job is created in one namespace: name it with -n");
        };
        let mut object = self.job.clone();
        object["metadata"]["namespace"] = json!(namespace);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let job: TrainingJob = serde_json::from_value(object)?;
        let what = format!("create TrainingJob {name} in namespace {namespace}");
        let api = cluster.api::<TrainingJob>(&namespace);
        let created = cluster.ask(&what, api.create(&PostParams::default(), &job)).await?;
        if let Some(packed) = &self.packed
            && let Err(error) = code::send(cluster, &created, packed).await
        {
            let sure = Preconditions { uid: created.uid(), resource_version: None };
            let api = cluster.api::<Guarded>(&namespace);
            let what = format!("delete TrainingJob {name} in namespace {namespace}");
            let deleted = cluster.ask(&what, api.delete(&name, &DeleteParams::default().preconditions(sure))).await;
            return Err(match deleted {
                Ok(_) => error.context(format!("{name} was not created: its code could not be sent")),
                Err(left) => error.context(format!("{name} waits for its code, which could not be sent; {left:#}")),
            });
        }
        Ok(created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: JobArgs,
    }

    fn drafted(line: &[&str]) -> anyhow::Result<Draft> {
        let cli = Cli::try_parse_from([&["run"], line].concat())?;
        draft(&cli.args, Some("team"))
    }

    #[test]
    fn command_line_becomes_a_job() {
        let line = "bert --image a.test/a:1 --workers 2 --gpus 8 --env A=1 --env B=x=y --data hf://org/set@v1 \
                    --output-uri s3://results/bert --queue gold --runtime TrainingRuntime/pytorch \
                    --set resources.limits.memory=8Gi --set failurePolicy.backoffLimit=5 -- torchrun train.py --lr 3e-4";
        let made = drafted(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
        insta::assert_snapshot!(serde_saphyr::to_string(&made.job).unwrap(), @r#"
        apiVersion: ml.example.com/v1
        kind: TrainingJob
        metadata:
          name: bert
          namespace: team
        spec:
          args:
          - train.py
          - --lr
          - "3e-4"
          command:
          - torchrun
          dataset: hf://org/set@v1
          env:
          - name: A
            value: "1"
          - name: B
            value: x=y
          failurePolicy:
            backoffLimit: 5
          gpusPerWorker: 8
          image: a.test/a:1
          numWorkers: 2
          output: s3://results/bert
          resources:
            limits:
              memory: 8Gi
          runtimeRef:
            kind: TrainingRuntime
            name: pytorch
          scheduling:
            queue: gold
        "#);
        let least = drafted(&["x", "--", "python3", "a.py"]).unwrap().job;
        assert_eq!(least["spec"], json!({ "numWorkers": 1, "command": ["python3"], "args": ["a.py"] }));
        let with = drafted(&["x", "--runtime", "cpu", "--param", "team=a=b", "--param", "cpu=8"]).unwrap().job;
        let expected = json!({ "name": "cpu", "parameters": { "team": "a=b", "cpu": "8" } });
        assert_eq!(with["spec"]["runtimeRef"], expected);
        // The template sets the rest.
        assert_eq!(
            drafted(&["x", "--runtime", "cpu"]).unwrap().job["spec"],
            json!({ "runtimeRef": { "name": "cpu" } })
        );
    }

    #[test]
    fn invalid_options_are_refused_with_reason() {
        for (line, expected) in [
            (vec!["x", "--set", "imgae=a"], "spec.imgae is no field of a TrainingJob"),
            (vec!["x", "--set", "checkpoint.retentoin=3"], "spec.checkpoint.retentoin is no field"),
            (vec!["x", "--set", "numWorkers=many"], "spec.numWorkers: "),
            (vec!["x", "--runtime", "Other/a"], "--runtime Other/a: write NAME"),
            (vec!["x", "--env", "A"], "write NAME=VALUE"),
            (vec!["x", "--gpus", "17"], "17"),
            (vec!["x", "--param", "a=b"], "--runtime"),
            (vec!["x", "--runtime", "r", "--param", "a"], "write NAME=VALUE"),
            (vec!["x", "--code", "/no/such/folder"], "can't read --code /no/such/folder"),
        ] {
            let reported = format!("{:#}", drafted(&line).unwrap_err());
            assert!(reported.contains(expected), "{line:?}: {reported}");
        }
    }

    #[test]
    fn job_name_is_generated_from_program() {
        for (command, stem) in [
            (vec!["torchrun", "--nnodes=2", "src/Train_GPT.py"], "train-gpt"),
            (vec!["python3", "-m", "pkg.train"], "python3"),
            (vec!["./9.sh"], "run"),
            (vec![], "run"),
        ] {
            let command: Vec<String> = command.into_iter().map(str::to_owned).collect();
            let name = generated(&command);
            let (made, suffix) = name.rsplit_once('-').unwrap();
            assert_eq!((made, suffix.len()), (stem, 5), "{command:?}: {name}");
            assert!(plan::names::dns_label(&name), "{name}");
            assert_ne!(generated(&command), name);
        }
    }
}
