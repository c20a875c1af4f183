//! A worker's pod.

use super::environment::{Environment, literal, streams};
use super::{fetch, gang, group, labels, names};
use k8s_openapi::DeepMerge;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, ContainerPort, ContainerRestartRule,
    ContainerRestartRuleOnExitCodes, EmptyDirVolumeSource, EnvFromSource, ImageVolumeSource, NFSVolumeSource,
    PersistentVolumeClaimVolumeSource, PodAffinity, PodAffinityTerm, PodSpec, PodTemplateSpec, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecretEnvSource, SecretProjection, SecretVolumeSource, SecurityContext,
    Volume, VolumeMount, VolumeProjection, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use plan::storage::{VOLUME_PREFIX, paths};
use plan::template::{AGENT, TRAINING};
use plan::{
    CacheVolume, Checkpoint, CheckpointVolume, ClaimPath, Delivery, Fetching, Incarnation, Input, Output, Plan, Pod,
    Publishing, Role, Source,
};
use protocol::checkpoints::POLICY_FILE;
use protocol::code;
use protocol::gang::{GangPast, KILLED};
use std::collections::BTreeMap;

pub(super) use paths::{CHECKPOINTS, OUTPUT};

/// The agent, in the container `training`.
pub const AGENT_PATH: &str = "/trainingjob/agent";
/// Name of the port on which the agent serves metrics.
const METRICS: &str = "metrics";
/// The termination message is the text that the agent writes, and not the end of the log.
pub(super) const TERMINATION_BY_FILE: &str = "File";
/// User of the init container: any but root, because every user may write to its folder.
pub(super) const NOBODY: i64 = 65532;

/// The template of a role's pods in an incarnation: ours, with `podTemplate` laid over it, and then what must hold in
/// any case.
pub(super) fn template(plan: &Plan, role: &Role, incarnation: Incarnation, past: &GangPast) -> PodTemplateSpec {
    let mut overlay = role.pod.overlay.clone();
    let environment = Environment::for_role(plan, role);
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels::of_pod(plan, role.name, incarnation)),
            annotations: Some(annotations(plan)),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(plan, role, incarnation, past, &environment)),
    };
    let pod = template.spec.get_or_insert_default();
    if let Some(overlay) = &mut overlay.spec {
        make_way(pod, overlay);
    }
    template.merge_from(overlay);
    let pod = template.spec.get_or_insert_default();
    finish(plan, role, pod);
    for value in pod.containers[0].env.iter_mut().flatten().filter_map(|variable| variable.value.as_mut()) {
        *value = environment.left_to_agent(value);
    }
    group::join(plan, role, &mut template);
    template
}

fn annotations(plan: &Plan) -> BTreeMap<String, String> {
    let mut annotations = vec![("kubectl.kubernetes.io/default-container", TRAINING.to_owned())];
    if let Some(port) = plan.monitoring.metrics_port {
        // For a Prometheus without the operator's monitors.
        annotations.extend([
            ("prometheus.io/scrape", "true".to_owned()),
            ("prometheus.io/port", port.to_string()),
            ("prometheus.io/path", "/metrics".to_owned()),
        ]);
    }
    // The user's annotations take precedence. Those that the operator reads are refused in the spec.
    let annotations = annotations.into_iter().map(|(key, value)| (key.to_owned(), value));
    annotations.chain(plan.identity.annotations.clone()).collect()
}

fn pod(plan: &Plan, role: &Role, incarnation: Incarnation, past: &GangPast, environment: &Environment) -> PodSpec {
    let mounts = Mounts::for_plan(plan);
    let scheduling = &role.pod.scheduling;
    let args = agent_args(plan, role, incarnation.attempt, past, environment);
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        subdomain: Some(names::service_name(&plan.identity.name)),
        termination_grace_period_seconds: Some(role.pod.grace_seconds),
        // Otherwise a large namespace adds thousands of variables, and a Service called "master" sets MASTER_PORT.
        enable_service_links: Some(false),
        init_containers: init_containers(plan),
        containers: vec![training(plan, role, args, environment, &mounts)],
        volumes: Some(volumes(plan, mounts).into_iter().chain(role.pod.volumes.iter().cloned()).collect()),
        image_pull_secrets: non_empty(&role.pod.image_pull_secrets),
        service_account_name: role.pod.service_account_name.clone(),
        priority_class_name: scheduling.priority.clone(),
        scheduler_name: scheduling.scheduler_name.clone(),
        node_selector: (!scheduling.node_selector.is_empty()).then(|| scheduling.node_selector.clone()),
        affinity: scheduling.affinity.clone(),
        tolerations: non_empty(&scheduling.tolerations),
        ..PodSpec::default()
    }
}

fn init_containers(plan: &Plan) -> Option<Vec<Container>> {
    let agent = (plan.runtime.delivery == Delivery::Init).then(|| deliver_agent(plan));
    let all: Vec<_> = agent.into_iter().chain(fetch::init_container(plan)).collect();
    (!all.is_empty()).then_some(all)
}

/// The operator's volumes, with those of its init containers.
fn volumes(plan: &Plan, mounts: Mounts) -> Vec<Volume> {
    let mut volumes = mounts.volumes;
    if plan.storage.fetching.as_ref().is_some_and(|fetching| !fetching.has_job()) {
        let more = Mounts::of_fetch(plan).volumes;
        let is_new = |volume: &Volume| volumes.iter().all(|known| known.name != volume.name);
        let more: Vec<_> = more.into_iter().filter(is_new).collect();
        volumes.extend(more);
    }
    volumes
}

/// Puts the agent where the container `training` finds it, if its image can't be mounted. Conforms to Pod Security
/// `restricted` by itself.
fn deliver_agent(plan: &Plan) -> Container {
    Container {
        name: AGENT.to_owned(),
        image: Some(plan.runtime.agent_image.clone()),
        image_pull_policy: plan.runtime.agent_image_pull_policy.clone(),
        command: Some(["/agent", "install", "--to", AGENT_PATH].map(str::to_owned).to_vec()),
        resources: Some(little("50m", "32Mi")),
        security_context: Some(restricted()),
        volume_mounts: Some(vec![VolumeMount {
            name: volume_name("agent"),
            mount_path: paths::AGENT.to_owned(),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

/// Security context of the operator's init containers. It conforms to Pod Security `restricted` by itself.
pub(super) fn restricted() -> SecurityContext {
    SecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NOBODY),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

/// Requests and limits. They are equal, so that a pod of class Guaranteed stays one.
pub(super) fn little(cpu: &str, memory: &str) -> ResourceRequirements {
    let amounts =
        [("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let amounts = BTreeMap::from(amounts);
    ResourceRequirements { requests: Some(amounts.clone()), limits: Some(amounts), ..ResourceRequirements::default() }
}

fn training(plan: &Plan, role: &Role, args: Vec<String>, environment: &Environment, mounts: &Mounts) -> Container {
    Container {
        name: TRAINING.to_owned(),
        image: Some(role.pod.image.clone()),
        command: Some(vec![AGENT_PATH.to_owned()]),
        args: Some(args),
        ports: plan.monitoring.metrics_port.map(|port| vec![metrics(port)]),
        env: Some(environment.of_container(role)),
        env_from: non_empty(&env_from(plan, role)),
        resources: (role.pod.resources != ResourceRequirements::default()).then(|| role.pod.resources.clone()),
        working_dir: role.pod.working_dir.clone(),
        volume_mounts: Some(mounts.mounts.iter().chain(&role.pod.volume_mounts).cloned().collect()),
        termination_message_policy: Some(TERMINATION_BY_FILE.to_owned()),
        restart_policy: plan.runtime.restart_rules.then(|| "Never".to_owned()),
        restart_policy_rules: plan.runtime.restart_rules.then(|| vec![again_if_killed()]),
        ..Container::default()
    }
}

/// The user's sources, after the credentials of a program that reads from a store by itself.
fn env_from(plan: &Plan, role: &Role) -> Vec<EnvFromSource> {
    let secret = plan.storage.credentials_secret.clone().filter(|_| streams(plan));
    let secret = secret.map(|name| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name, optional: None }),
        ..EnvFromSource::default()
    });
    secret.into_iter().chain(role.pod.env_from.iter().cloned()).collect()
}

/// An agent that was killed with its container, usually for memory, restarts in its pod and rejoins its gang. The Job
/// takes no notice.
fn again_if_killed() -> ContainerRestartRule {
    let exit_codes = ContainerRestartRuleOnExitCodes { operator: "In".to_owned(), values: Some(vec![KILLED]) };
    ContainerRestartRule { action: "Restart".to_owned(), exit_codes: Some(exit_codes) }
}

/// The port on which the agent serves metrics.
fn metrics(port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(METRICS.to_owned()),
        container_port: port.into(),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn agent_args(plan: &Plan, role: &Role, attempt: u32, past: &GangPast, environment: &Environment) -> Vec<String> {
    let monitoring = &plan.monitoring;
    let mut args = vec![
        "run".to_owned(),
        format!("--attempt={attempt}"),
        format!("--grace-seconds={}", role.pod.program_grace_seconds),
    ];
    args.extend(gang::args(plan, role, past));
    args.extend(plan.storage.code.is_some().then(|| format!("--code={}", paths::CODE)));
    args.extend(has_shm_alone(&role.pod).then(|| "--clear-shm".to_owned()));
    args.push("--clear-locks".to_owned());
    args.extend(monitoring.metrics_port.map(|port| format!("--metrics-port={port}")));
    args.extend(gang::answer_arg(plan));
    // The kubelet expands arguments, too.
    args.extend(monitoring.progress_patterns.iter().map(|p| format!("--progress-pattern={}", literal(p))));
    args.extend(plan.policy.failure.nan_fails.then(|| "--nan-policy=fail".to_owned()));
    args.push(format!("--hang-timeout={}", plan.policy.failure.hang_timeout_seconds));
    args.push(format!("--hang-idle-timeout={}", plan.policy.failure.hang_idle_timeout_seconds));
    args.extend(plan.policy.failure.hang_fails.then(|| "--hang-policy=fail".to_owned()));
    args.extend(monitoring.watched.iter().map(|name| format!("--watch-metric={}", literal(name))));
    if let Some(objective) = &monitoring.objective {
        args.push(format!("--objective={}", literal(&objective.metric)));
        args.extend(objective.max.then(|| "--objective-mode=max".to_owned()));
        let steps = objective.rungs.map(|rungs| format!("--objective-rungs={}:{}", rungs.min_step, rungs.factor));
        args.extend(steps);
    }
    // One agent looks after them: the first worker's, where all workers see the same checkpoints.
    let checkpoint = plan.storage.checkpoint.as_ref();
    if checkpoint.is_some() && role.name.is_worker() {
        args.push(format!("--checkpoints={}/{POLICY_FILE}", paths::CONFIG));
    }
    let resume_args = checkpoint.iter().flat_map(|it| &it.resume_args);
    args.extend(resume_args.map(|arg| format!("--resume-arg={}", environment.left_to_agent(arg))));
    args.extend(environment.args());
    args.push("--".to_owned());
    args.extend(role.pod.command.iter().map(|arg| environment.left_to_agent(arg)));
    args
}

/// The operator's volumes and where they are mounted in `training`.
pub(super) struct Mounts {
    pub volumes: Vec<Volume>,
    pub mounts: Vec<VolumeMount>,
}

impl Mounts {
    fn for_plan(plan: &Plan) -> Self {
        let mut it = Self { volumes: Vec::new(), mounts: Vec::new() };
        it.add_agent(plan);
        it.add_config(plan, gang::key_projection(plan));
        it.add_code(plan);
        // By default a container has 64 MiB of shared memory. That is too little for data loaders with workers, and for
        // NCCL.
        let memory = EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: None };
        it.add("shm", paths::SHM, false, Volume { empty_dir: Some(memory), ..Volume::default() });
        if let Some(checkpoint) = &plan.storage.checkpoint {
            it.add_checkpoints(plan, checkpoint);
        }
        plan.storage.inputs.iter().for_each(|input| it.add_input(plan, input));
        if streams(plan) {
            it.add_credentials("data", paths::DATA_CREDENTIALS, plan.storage.credentials_secret.clone());
        }
        match &plan.storage.output {
            Some(Output::Claim(output)) => it.add_claim("output", OUTPUT, false, Some(output)),
            Some(Output::Published(publishing)) => it.mount_result(publishing),
            None => {}
        }
        it
    }

    /// The folder of the result, and the credentials with which it is published.
    pub(super) fn of_publishing(plan: &Plan, publishing: &Publishing) -> Self {
        let mut it = Self { volumes: Vec::new(), mounts: Vec::new() };
        if let Some(checkpoint) = &plan.storage.checkpoint {
            it.volumes.push(checkpoints(plan, checkpoint));
            it.mount_result(publishing);
        }
        it.add_credentials("data", paths::DATA_CREDENTIALS, plan.storage.credentials_secret.clone());
        if publishing.register.is_some() {
            it.add_credentials("tracker", paths::TRACKER_CREDENTIALS, plan.monitoring.tracker_secret.clone());
        }
        it.add_answer_key(plan);
        it
    }

    /// The key that proves to the operator that an answer is from this job.
    fn add_answer_key(&mut self, plan: &Plan) {
        if let Some(keys) = gang::answer_secret(plan) {
            self.add("answers", paths::KEYS, true, Volume { secret: Some(keys), ..Volume::default() });
        }
    }

    /// A folder in the volume of the checkpoints, which does not count as a checkpoint.
    fn mount_result(&mut self, publishing: &Publishing) {
        self.mounts.push(VolumeMount {
            name: volume_name("checkpoints"),
            mount_path: OUTPUT.to_owned(),
            sub_path: Some(publishing.folder.clone()),
            ..VolumeMount::default()
        });
    }

    /// The cache, and the credentials with which it is filled.
    pub(super) fn of_fetch(plan: &Plan) -> Self {
        let mut it = Self { volumes: Vec::new(), mounts: Vec::new() };
        if let Some(fetching) = &plan.storage.fetching {
            it.add("cache", paths::CACHE, false, cache(fetching));
        }
        it.add_credentials("data", paths::DATA_CREDENTIALS, plan.storage.credentials_secret.clone());
        it.add_answer_key(plan);
        it
    }

    /// Only what looking after the checkpoints needs.
    pub(super) fn of_upkeep(plan: &Plan, checkpoint: &Checkpoint) -> Self {
        let mut it = Self { volumes: Vec::new(), mounts: Vec::new() };
        it.add_config(plan, None);
        it.add_checkpoints(plan, checkpoint);
        it
    }

    /// The agent, with the folder for its state. `agent install` creates one, and the image has one to mount over.
    fn add_agent(&mut self, plan: &Plan) {
        let empty = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
        match plan.runtime.delivery {
            Delivery::Init => {
                self.add("agent", paths::AGENT, true, empty);
                self.mounts.push(gang::state(volume_name("agent"), true));
            }
            Delivery::Image => {
                let image = ImageVolumeSource {
                    reference: Some(plan.runtime.agent_image.clone()),
                    pull_policy: plan.runtime.agent_image_pull_policy.clone(),
                };
                self.add("agent", paths::AGENT, true, Volume { image: Some(image), ..Volume::default() });
                self.mounts.push(gang::state(volume_name("state"), false));
                self.volumes.push(Volume { name: volume_name("state"), ..empty });
            }
        }
    }

    /// One volume, because each has to be mounted by itself before a container starts.
    fn add_config(&mut self, plan: &Plan, keys: Option<SecretProjection>) {
        let name = names::config_name(&plan.identity.name);
        let volume = if keys.is_none() {
            let config_map = Some(ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() });
            Volume { config_map, ..Volume::default() }
        } else {
            let config = Some(ConfigMapProjection { name, ..ConfigMapProjection::default() });
            let config = VolumeProjection { config_map: config, ..VolumeProjection::default() };
            let keys = VolumeProjection { secret: keys, ..VolumeProjection::default() };
            let projected = ProjectedVolumeSource { sources: Some(vec![config, keys]), default_mode: None };
            Volume { projected: Some(projected), ..Volume::default() }
        };
        self.add("config", paths::CONFIG, true, volume);
    }

    /// The archive of the code. A pod waits only for the first part, because the others are written before it.
    fn add_code(&mut self, plan: &Plan) {
        if plan.storage.code.is_none() {
            return;
        }
        let part = |part: usize| ConfigMapProjection {
            name: names::code_name(&plan.identity.name, part),
            optional: (part > 0).then_some(true),
            ..ConfigMapProjection::default()
        };
        let source = |config| VolumeProjection { config_map: Some(config), ..VolumeProjection::default() };
        let sources = (0..code::PARTS).map(|index| source(part(index))).collect();
        let projected = ProjectedVolumeSource { sources: Some(sources), default_mode: None };
        self.add("code", paths::CODE, true, Volume { projected: Some(projected), ..Volume::default() });
    }

    fn add_checkpoints(&mut self, plan: &Plan, checkpoint: &Checkpoint) {
        self.add("checkpoints", CHECKPOINTS, false, checkpoints(plan, checkpoint));
        self.add_credentials("store", paths::STORE_CREDENTIALS, checkpoint.store_secret.clone());
        self.add_credentials("backup", paths::BACKUP_CREDENTIALS, checkpoint.backup_secret.clone());
    }

    fn add(&mut self, name: &str, path: &str, read_only: bool, volume: Volume) {
        let name = volume_name(name);
        self.mounts.push(VolumeMount {
            name: name.clone(),
            mount_path: path.to_owned(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
        self.volumes.push(Volume { name, ..volume });
    }

    /// Files, so that changes in the Secret reach a running pod, and the environment holds none of it.
    fn add_credentials(&mut self, name: &str, path: &str, secret: Option<String>) {
        let Some(secret) = secret else { return };
        let source = SecretVolumeSource { secret_name: Some(secret), ..SecretVolumeSource::default() };
        self.add(name, path, true, Volume { secret: Some(source), ..Volume::default() });
    }

    fn add_input(&mut self, plan: &Plan, input: &Input) {
        let name = match input.name.as_str() {
            "model" | "dataset" => input.name.clone(),
            entry => format!("data-{entry}"),
        };
        match &input.source {
            Source::Name(_) | Source::Stream(_) => {}
            Source::Claim(claim) => self.add_claim(&name, &input.mount_path, true, Some(claim)),
            Source::Image(reference) => {
                let image = ImageVolumeSource { reference: Some(reference.clone()), pull_policy: None };
                self.add(&name, &input.mount_path, true, Volume { image: Some(image), ..Volume::default() });
            }
            Source::Fetch { fetched, .. } => {
                let Some(fetching) = &plan.storage.fetching else { return };
                if self.volumes.iter().all(|volume| volume.name != volume_name("cache")) {
                    self.volumes.push(Volume { name: volume_name("cache"), ..cache(fetching) });
                }
                self.mounts.push(VolumeMount {
                    name: volume_name("cache"),
                    mount_path: input.mount_path.clone(),
                    read_only: Some(true),
                    sub_path: Some(fetch::folder(fetching, input, fetched.as_ref())),
                    ..VolumeMount::default()
                });
            }
        }
    }

    fn add_claim(&mut self, name: &str, path: &str, read_only: bool, source: Option<&ClaimPath>) {
        let Some(source) = source else { return };
        self.add(name, path, read_only, claim(&source.claim));
        if let Some(mount) = self.mounts.last_mut() {
            mount.sub_path.clone_from(&source.path);
        }
    }
}

/// The volume of checkpoints.
fn checkpoints(plan: &Plan, checkpoint: &Checkpoint) -> Volume {
    let volume = match &checkpoint.volume {
        CheckpointVolume::EmptyDir => Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() },
        CheckpointVolume::Claim(name) => claim(name),
        CheckpointVolume::New { .. } => claim(&names::claim_name(&plan.identity.name)),
        CheckpointVolume::Nfs { server, path } => Volume {
            nfs: Some(NFSVolumeSource { server: server.clone(), path: path.clone(), read_only: None }),
            ..Volume::default()
        },
    };
    Volume { name: volume_name("checkpoints"), ..volume }
}

/// The volume of fetched content.
fn cache(fetching: &Fetching) -> Volume {
    match &fetching.cache {
        CacheVolume::Claim(path) => claim(&path.claim),
        CacheVolume::EmptyDir { limit } => {
            let size_limit = Some(Quantity(limit.to_string()));
            Volume { empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit }), ..Volume::default() }
        }
    }
}

fn claim(name: &str) -> Volume {
    Volume {
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: name.to_owned(),
            read_only: None,
        }),
        ..Volume::default()
    }
}

fn volume_name(name: &str) -> String {
    format!("{VOLUME_PREFIX}{name}")
}

/// Whether the user mounts something else as shared memory.
fn brings_shm(pod: &Pod) -> bool {
    let training = overlaid(pod).filter(|container| container.name == TRAINING);
    let mounts = training.flat_map(|container| container.volume_mounts.iter().flatten()).chain(&pod.volume_mounts);
    let is_other =
        |mount: &VolumeMount| mount.mount_path.trim_end_matches('/') == paths::SHM && mount.name != volume_name("shm");
    mounts.into_iter().any(is_other)
}

/// Whether the program alone uses the shared memory: no other container, and no user's volume, which may be the node's.
fn has_shm_alone(pod: &Pod) -> bool {
    let mut others = overlaid(pod).filter(|container| container.name != TRAINING);
    let shm = volume_name("shm");
    !brings_shm(pod) && !others.any(|it| it.volume_mounts.iter().flatten().any(|mount| mount.name == shm))
}

/// The containers of `podTemplate`, init containers included.
fn overlaid(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.overlay.spec.iter();
    spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// Removes from `pod` what `overlay` also has, where merging the two would mix them. Variables, volumes and mounts are
/// replaced as a whole.
fn make_way(pod: &mut PodSpec, overlay: &mut PodSpec) {
    let volumes = overlay.volumes.as_deref().unwrap_or_default();
    pod.volumes.get_or_insert_default().retain(|ours| volumes.iter().all(|theirs| theirs.name != ours.name));
    let training = &mut pod.containers[0];
    if let Some(over) = overlay.containers.iter().find(|container| container.name == TRAINING) {
        let env = over.env.as_deref().unwrap_or_default();
        training.env.get_or_insert_default().retain(|ours| env.iter().all(|theirs| theirs.name != ours.name));
        let mounts = over.volume_mounts.as_deref().unwrap_or_default();
        let mounts_ours = training.volume_mounts.get_or_insert_default();
        mounts_ours.retain(|ours| mounts.iter().all(|theirs| theirs.mount_path != ours.mount_path));
    }
    // The merge takes a map as one value, but users expect its keys to be added.
    if let (Some(ours), Some(theirs)) = (&pod.node_selector, &mut overlay.node_selector) {
        for (key, value) in ours {
            theirs.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// What must hold after `podTemplate` was applied.
fn finish(plan: &Plan, role: &Role, pod: &mut PodSpec) {
    let training = &mut pod.containers[0];
    if plan.gang.rendezvous.rdma {
        // Registering memory with the device pins it.
        let context = training.security_context.get_or_insert_default();
        let add = context.capabilities.get_or_insert_default().add.get_or_insert_default();
        if !add.iter().any(|capability| capability == "IPC_LOCK") {
            add.push("IPC_LOCK".to_owned());
        }
    }
    if brings_shm(&role.pod) {
        let shm = volume_name("shm");
        let mounts = training.volume_mounts.get_or_insert_default();
        mounts.retain(|mount| mount.name != shm);
        pod.volumes.get_or_insert_default().retain(|volume| volume.name != shm);
    }
    if let Some(key) = &role.pod.scheduling.topology_key {
        prefer_together(plan, key, pod.affinity.get_or_insert_default());
    }
    if pod.service_account_name.is_none() {
        // Training needs no API server. This saves a volume, and leaves no token to steal.
        pod.automount_service_account_token.get_or_insert(false);
    }
    if pod.host_network == Some(true) {
        // There a container's port is the node's. Of two workers that name it, one would find no node.
        if let Some(ports) = &mut pod.containers[0].ports {
            ports.retain(|port| port.name.as_deref() != Some(METRICS));
        }
        // Without it a pod on the node's network can't resolve the names of the others.
        pod.dns_policy.get_or_insert_with(|| "ClusterFirstWithHostNet".to_owned());
    }
}

/// Prefers nodes that have the same value of the label `key` as those of the gang's other workers.
fn prefer_together(plan: &Plan, key: &str, affinity: &mut Affinity) {
    let PodAffinity { preferred_during_scheduling_ignored_during_execution: preferred, .. } =
        affinity.pod_affinity.get_or_insert_default();
    preferred.get_or_insert_default().push(WeightedPodAffinityTerm {
        weight: 100,
        pod_affinity_term: PodAffinityTerm {
            topology_key: key.to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(labels::gang_selector(plan)),
                match_expressions: None,
            }),
            ..PodAffinityTerm::default()
        },
    });
}

fn non_empty<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}
