//! The operator: watches TrainingJobs and runs them.

use anyhow::Context as _;
use clap::Parser;
use k8s_controller::LeaderElection;
use k8s_openapi::api::core::v1::Pod;
use kube::client::ClientBuilder;
use kube::{Api, Client, Config};
use plan::{AgentDelivery, OperatorInfo};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use trainingjob_operator::controller::{self, AgentAccess, ContentNames, Options};
use trainingjob_operator::telemetry::{self, LogFormat, Metrics};

/// Kubernetes operator for distributed training: watches TrainingJobs and runs them as gangs of workers.
///
/// Outside a cluster it uses KUBECONFIG.
#[derive(Parser)]
#[command(name = "operator", version)]
struct Args {
    /// Only namespace to work in, another one than the operator's own; default: all. Needs a Role there instead of a ClusterRole.
    #[arg(long, env = "WATCH_NAMESPACE")]
    namespace: Option<String>,

    /// Image, of the operator's own version, that brings the agent into the workers' pods. The default is the image of the
    /// operator's own pod, by its digest if the node reports one.
    #[arg(long, env = "AGENT_IMAGE")]
    agent_image: Option<String>,

    /// How that image does it; auto looks at the cluster, whenever workers get new pods.
    #[arg(long, env = "AGENT_DELIVERY", value_enum, default_value = "auto")]
    agent_delivery: AgentDelivery,

    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "METRICS_ADDRESS", default_value = "0.0.0.0:8080")]
    metrics_address: SocketAddr,

    /// Give the metrics of reconciles the label training_job; their series go with their job, and their number grows
    /// with that of the jobs.
    #[arg(long)]
    per_job_metrics: bool,

    /// Reconciles at one time; the jobs of one namespace have half of them at most, where the operator has more than one.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    concurrency: u16,

    /// New TrainingJobs of one namespace that are started each second, after the first 128. While other namespaces have
    /// jobs too, it is a fifth of this, after the first 8. Changed specs are then taken over at two fifths of this, after
    /// the first 32. The limits keep one namespace from delaying the others.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    new_jobs_per_second: u16,

    /// Seconds after its end at which a TrainingJob is deleted that says none itself, of those created from now on; default: never.
    #[arg(long, env = "DEFAULT_TTL_SECONDS_AFTER_FINISHED", value_parser = clap::value_parser!(u32).range(..=2_147_483_647))]
    default_ttl_seconds_after_finished: Option<u32>,

    /// Folder with addresses of models and data sets: a file for each name, as a ConfigMap is mounted. Jobs that are created from
    /// now on may write the name; default: none.
    #[arg(long, env = "CONTENT_NAMES", value_name = "DIR")]
    content_names: Option<PathBuf>,

    /// How the workers' agents are asked for progress; default: direct in a cluster, proxy outside.
    #[arg(long, env = "AGENT_ACCESS", value_enum)]
    agent_access: Option<AgentAccess>,

    /// Act without a lease; for a single operator outside a cluster.
    #[arg(long)]
    no_leader_election: bool,

    /// Name of the lease by which the replicas elect the leader.
    #[arg(long, default_value = "trainingjob-operator")]
    lease_name: String,

    /// Namespace of the lease, of the Secret with the operator's own key, and of the operator's own pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "trainingjob-system")]
    lease_namespace: String,

    /// Name of this replica, unique among them; default: the host name and process id.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,

    /// error, warn, info, debug, trace, or directives such as info,kube=debug.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    log_level: String,

    /// How log lines look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

/// Image used outside a cluster when none is given: what `make image` builds.
const DEV_IMAGE: &str = "localhost/trainingjob-operator:dev";

// One thread does the work of thousands of jobs; two would mostly wake each other.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    telemetry::init_log(&args.log_level, args.log_format)?;
    let metrics = Arc::new(if args.per_job_metrics { Metrics::per_job() } else { Metrics::new() });
    let config = Config::infer().await.context("no cluster: set KUBECONFIG, or run in a pod with a service account")?;
    let client = ClientBuilder::try_from(config).context("the cluster's address or credentials can't be used")?;
    let client = client.with_layer(&controller::compact_watches());
    let client = client.with_layer(&telemetry::count_requests(metrics.clone())).build();
    let listener = std::net::TcpListener::bind(args.metrics_address)
        .with_context(|| format!("--metrics-address {} can't be listened on", args.metrics_address))?;
    telemetry::serve_apart(listener, metrics.clone()).context("no thread for metrics and probes")?;
    tokio::spawn(beat(metrics.clone()));

    let identity = args.identity.clone().unwrap_or_else(own_name);
    let version = client.apiserver_version().await.context("the API server does not tell its version")?;
    let restart_rules = OperatorInfo::has_restart_rules(&version.major, &version.minor);
    // Outside a cluster no pods can use the operator's account.
    let own_namespace = in_cluster().then(|| args.lease_namespace.clone());
    let default_ttl_seconds = args.default_ttl_seconds_after_finished;
    let runtime = OperatorInfo { restart_rules, own_namespace, default_ttl_seconds, ..runtime(&client, &args).await? };
    info!(version = env!("CARGO_PKG_VERSION"), identity, agent_image = runtime.agent_image, "operator");
    let agent_access = args.agent_access.unwrap_or(if in_cluster() { AgentAccess::Direct } else { AgentAccess::Proxy });
    let operator_key = match agent_access {
        // No agent is asked, so the answer keys only have to exist.
        AgentAccess::Off => Options::default().operator_key,
        AgentAccess::Direct | AgentAccess::Proxy => controller::operator_key(&client, &args.lease_namespace).await?,
    };
    let options = Options {
        namespace: args.namespace.clone(),
        runtime,
        concurrency: args.concurrency,
        new_jobs_per_second: args.new_jobs_per_second,
        identity: identity.clone(),
        agent_delivery: args.agent_delivery,
        content_names: ContentNames(args.content_names.clone()),
        agent_access,
        operator_key,
    };
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let stopping = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let work = controller::run(client.clone(), options, metrics.clone(), Box::pin(stopping(stopped.clone())));
    tokio::spawn(async move {
        signalled().await;
        let _ = stop.send(true);
    });
    if args.no_leader_election {
        work.await;
        return Ok(());
    }
    metrics.standby();
    // A standby has to take over within 15 s of the leader's death. The lease is seen to be dead after 9 s. The next
    // look follows within 2.25 s, and the leader's last renewal may be 1.5 s old.
    let election = LeaderElection::new(client, &args.lease_namespace, &args.lease_name, &identity)
        .with_lease_duration(Duration::from_secs(9))
        .with_renew_deadline(Duration::from_secs(6))
        .with_retry_period(Duration::from_millis(1500));
    let leads = AtomicBool::new(false);
    let work = async {
        leads.store(true, Ordering::Relaxed);
        work.await;
    };
    tokio::select! {
        led = election.with_lease(work) => match led {
            Some(()) => Ok(()), // ended on a signal, the lease is given back
            None => anyhow::bail!("lost the lease {}/{}: another replica acts now", args.lease_namespace, args.lease_name),
        },
        () = standby_stopped(stopping(stopped), &leads) => Ok(()),
    }
}

/// Reports to `/healthz` each second that this thread is at work.
async fn beat(metrics: Arc<Metrics>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        metrics.beat();
    }
}

/// Waits until a standby may end. It has nothing to finish; a leader ends through its work.
///
/// Checks whether the replica has led, not whether it still leads, because its work ends before the lease is given
/// back.
async fn standby_stopped(stopping: impl Future<Output = ()>, leads: &AtomicBool) {
    stopping.await;
    if !leads.load(Ordering::Relaxed) {
        return;
    }
    // Requests that hang for longer end with the process, and the lease with them.
    tokio::time::sleep(Duration::from_secs(15)).await;
}

async fn signalled() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    info!("stopping");
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn own_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok()).unwrap_or_else(|| "operator".into());
    format!("{host}-{}", std::process::id())
}

/// Reads of the operator's own pod, half a second apart, before it starts without the digest of its image.
const LOOKS: u32 = 20;

/// The agent comes from the image of the operator's own pod, unless `--agent-image` is set.
async fn runtime(client: &Client, args: &Args) -> anyhow::Result<OperatorInfo> {
    if let Some(image) = &args.agent_image {
        return Ok(OperatorInfo { agent_image: image.clone(), ..OperatorInfo::default() });
    }
    let (Some(name), true) = (&args.identity, in_cluster()) else {
        return Ok(OperatorInfo { agent_image: DEV_IMAGE.into(), ..OperatorInfo::default() });
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &args.lease_namespace);
    let look = async || {
        let pod = pods.get(name).await.with_context(|| {
            format!(
                "pod {}/{name} (this one) can't be read to learn its image: allow it, or set --agent-image",
                args.lease_namespace
            )
        })?;
        plan::own_image(&pod).context("this pod has several containers and none is called operator: set --agent-image")
    };
    let (mut own, mut looks) = (look().await?, 1);
    while own.awaits_digest && looks < LOOKS {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (own, looks) = (look().await?, looks + 1);
    }
    Ok(OperatorInfo { agent_image: own.image, agent_image_pull_policy: own.pull_policy, ..OperatorInfo::default() })
}
