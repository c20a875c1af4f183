//! What to do about a reason. `docs/operate.md` has the same in its tables, and a test compares the two.

use super::facts::{Facts, WorkerState};
use regex::Regex;
use std::sync::LazyLock;

/// The objects that advice names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names<'a> {
    /// Namespace of the job.
    pub namespace: &'a str,
    /// The TrainingJob, or the TuningJob.
    pub job: &'a str,
    /// The pod that has failed or remains, if one is known.
    pub pod: Option<&'a str>,
    /// Its node.
    pub node: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// Finds those of a job: the pod that stops if an attempt waits for old pods, else that of the last failure.
    #[must_use]
    pub fn for_reason(facts: &'a Facts, reason: &str) -> Self {
        let job = Self { namespace: &facts.namespace, job: &facts.name, pod: None, node: None };
        if reason == "OldPods" {
            let stops = facts.workers.iter().find(|worker| worker.state == WorkerState::Stopping);
            return stops.map_or(job, |worker| Self { pod: Some(&worker.pod), node: worker.node.as_deref(), ..job });
        }
        let last = facts.status.restarts.iter().rev().find(|end| end.reason.as_str() == reason);
        last.map_or(job, |end| Self { pod: end.pod.as_deref(), node: end.node.as_deref(), ..job })
    }
}

/// A parenthesis with an unknown name.
static UNKNOWN: LazyLock<Regex> = LazyLock::new(unknown);

#[expect(clippy::expect_used, reason = "a constant expression, which a test compiles")]
fn unknown() -> Regex {
    Regex::new(r" \([^()]*\{(?:pod|node)\}[^()]*\)").expect("a valid expression")
}

/// Returns what to do about a reason of this job's status, with commands that are ready to paste. `None` if there is
/// nothing to do, or nothing is known. A command that needs an unknown name is left out.
#[must_use]
pub fn advice(reason: &str, names: Names<'_>) -> Option<String> {
    let (_, advice) = ADVICE.iter().find(|(known, _)| *known == reason)?;
    let mut text = advice.replace("{job}", names.job).replace("{namespace}", names.namespace);
    for (mark, name) in [("{pod}", names.pod), ("{node}", names.node)] {
        if let Some(name) = name {
            text = text.replace(mark, name);
        }
    }
    Some(UNKNOWN.replace_all(&text, "").into_owned())
}

/// Whether the advice on a reason may require another spec.
#[must_use]
pub fn needs_another_spec(reason: &str) -> bool {
    NEEDS_ANOTHER_SPEC.contains(&reason)
}

/// The reasons that [`needs_another_spec`].
pub const NEEDS_ANOTHER_SPEC: [&str; 16] = [
    "CommandNotFound",
    "ContainerConfig",
    "CudaOutOfMemory",
    "Denied",
    "GangSchedulerMissing",
    "ImagePull",
    "ImportError",
    "InvalidOption",
    "InvalidRuntime",
    "NoStorage",
    "OOMKilled",
    "PodSecurity",
    "QueueManagerMissing",
    "RuntimeNotFound",
    "StorageExceeded",
    "Unschedulable",
];

/// The advice on the reasons for which a job waits, then on those for which an attempt fails. `{job}` and `{namespace}`
/// are placeholders for those of the job. `{pod}` and `{node}` are only in parentheses, which are left out if the name
/// is unknown.
pub const ADVICE: &[(&str, &str)] = &[
    ("Unreadable", "Correct the field that the message names, or upgrade the operator."),
    (
        "Scheduling",
        "Usually nothing: the pods are being created and scheduled. If this lasts, check that the scheduler named in \
         scheduling.schedulerName is running.",
    ),
    (
        "Unschedulable",
        "Free nodes, add nodes, or request less. The text after the node count says what each node lacks: GPUs, CPU or \
         memory, a nodeSelector label, a toleration for its taint, a claim. To see what is allocated: kubectl describe \
         nodes",
    ),
    (
        "SchedulingGated",
        "The pods have scheduling gates, set by podTemplate or an admission webhook. The component that set the gates \
         must remove them.",
    ),
    (
        "Queued",
        "Nothing, if the queue is merely full: Kueue starts the job when there is quota. The Workload of the job shows \
         its place in the queue (kubectl get workloads -n {namespace}). Check that the LocalQueue named in \
         scheduling.queue exists (kubectl get localqueues -n {namespace}).",
    ),
    (
        "QuotaExceeded",
        "Have the ResourceQuota of namespace {namespace} raised, or end what uses it up. To see its use: kubectl \
         describe quota -n {namespace}",
    ),
    (
        "PodSecurity",
        "Give the workers the settings that the namespace's Pod Security level requires, through podTemplate. \
         examples/restricted.yaml has all of them.",
    ),
    (
        "PodsRefused",
        "Fix what the message names: a missing service account or PriorityClass, a LimitRange, or a webhook.",
    ),
    (
        "Parallelism",
        "Set the Job's parallelism back to the number of workers, or delete the Job. The operator recreates a deleted \
         Job.",
    ),
    (
        "NoStorage",
        "Set checkpoint.storage or output, so that the workers and TensorBoard share a volume, or set \
         monitoring.tensorboardEnabled to false. The training continues without TensorBoard.",
    ),
    (
        "CheckpointsInEmptyDir",
        "This job continues as it is. To keep the checkpoints of the next one, set checkpoint.storage (type pvc, nfs, \
         s3, gcs or azure) or checkpoint.backup: kubectl trainingjob resubmit {job} -n {namespace} --name {job}-2 --set \
         checkpoint.storage.type=pvc",
    ),
    (
        "OldPods",
        "Usually nothing: the next attempt starts when the last pod of the earlier attempt is gone. If that pod stays \
         in Terminating, check its node (kubectl get pods -n {namespace} -l training-job={job} -o wide). If the node \
         is gone for good, delete the Node object (kubectl delete node {node}).",
    ),
    (
        "OldObject",
        "Usually nothing: an object of that name is being deleted, and the operator recreates it afterwards. If the \
         object stays, check its finalizers.",
    ),
    (
        "NameTaken",
        "An object of that name already exists and belongs to another owner. Delete or rename that object, or give the \
         job another name.",
    ),
    (
        "GangSchedulerMissing",
        "Install or enable the scheduler that scheduling.gang names, as the message says. The job then starts by \
         itself. Otherwise recreate the job without scheduling.gang.",
    ),
    (
        "QueueManagerMissing",
        "Install a version of Kueue that has the kind that the message names. The job then starts by itself. Otherwise \
         recreate the job without scheduling.queue.",
    ),
    (
        "RuntimeNotFound",
        "Create the template that spec.runtimeRef names, or give the operator the right to read it, as the message \
         says. The job then starts by itself. Otherwise recreate the job with another template. To list the templates: \
         kubectl get ctr,tr -n {namespace}",
    ),
    (
        "InvalidRuntime",
        "Correct the template as the message says. The job then starts by itself. If the fault is in the job's own \
         fields, recreate the job. To see its effective spec: kubectl trainingjob plan {job} -n {namespace}",
    ),
    (
        "Forbidden",
        "The operator lacks the right to create the object. Apply its rights again: kubectl apply -k deploy/",
    ),
    (
        "Denied",
        "Change the job so that the policy or webhook that the message names allows it, or have an exception made \
         there. The operator retries at least every minute.",
    ),
    (
        "WebhookFailed",
        "Fix the admission webhook that the message names, or remove its configuration if the webhook is no longer in \
         use. The operator retries at least every minute. To list the configurations: kubectl get \
         mutatingwebhookconfigurations,validatingwebhookconfigurations",
    ),
    (
        "ApiTimeout",
        "Find the admission webhook that delays the object that the message names, or check that etcd is healthy. The \
         operator retries at least every minute. To list the webhooks: kubectl get \
         mutatingwebhookconfigurations,validatingwebhookconfigurations",
    ),
    (
        "NeverAnswered",
        "Allow the operator's pods to reach monitoring.metricsPort of the workers. Usually a NetworkPolicy of the \
         namespace forbids it (kubectl get networkpolicies -n {namespace}). The training continues meanwhile.",
    ),
    (
        "Invalid",
        "The API server rejects the object as invalid. Correct the fields that the message names, delete the job \
         (kubectl delete tj {job} -n {namespace}) and apply it again.",
    ),
    (
        "Stopping",
        "Nothing: the programs of the failed attempt are stopping within their grace period. The next attempt starts \
         in the same pods.",
    ),
    (
        "Starting",
        "Usually nothing: images are pulled and volumes mounted, then the agents connect to each other. If this lasts, \
         read the events of the pods (kubectl describe pods -n {namespace} -l training-job={job}). If agents wait for \
         each other, check that no NetworkPolicy separates the workers. They connect to the ports from \
         networking.masterPort upwards.",
    ),
    (
        "ImagePull",
        "Correct spec.image, or give the workers the right to pull it (imagePullSecrets). Check that the nodes can \
         reach the registry. The job continues by itself once the image is available.",
    ),
    (
        "ContainerConfig",
        "Correct what the message names: often a missing Secret or ConfigMap, a workingDir that is a file, or a mount \
         that the image forbids.",
    ),
    (
        "Storage",
        "A volume cannot be attached or mounted. Check the claim (kubectl describe pvc -n {namespace}). With several \
         workers, use a claim that many nodes can mount (ReadWriteMany).",
    ),
    ("Network", "The pod gets no network. Check the network plugin of its node."),
    ("Waiting", "The job has run before and is waiting for nodes again. Free nodes or add nodes."),
    (
        "NoProgress",
        "The program hangs, or does something slow such as a checkpoint or a compilation. To see what the workers \
         print: kubectl trainingjob logs {job} -n {namespace} -f --tail 20",
    ),
    (
        "LossPlateau",
        "The program may be done: end the job, or set successPolicy.earlyStopping, which may change while it runs. If it \
         should still learn, lower the learning rate and check the data. If it improves more slowly by design, raise \
         monitoring.plateauSeconds: kubectl edit tj {job} -n {namespace}",
    ),
    (
        "Unreachable",
        "Check for a NetworkPolicy between the operator and the workers, and for a program that uses \
         monitoring.metricsPort. Check the node, too.",
    ),
    (
        "ExitCode",
        "Read the log of the worker that failed first: kubectl trainingjob logs {job} -n {namespace} --failed",
    ),
    (
        "PythonException",
        "The message has the exception, and the file and line that raised it. Read the log of the worker that failed \
         first: kubectl trainingjob logs {job} -n {namespace} --failed",
    ),
    (
        "ImportError",
        "Use an image that has the module, or install the module there. Another attempt cannot find the module either.",
    ),
    (
        "Signal",
        "Signal 11 is a crash in native code. Signal 9 without OOMKilled came from outside or from another process. \
         Read the log of the worker that failed first: kubectl trainingjob logs {job} -n {namespace} --failed",
    ),
    (
        "OOMKilled",
        "Raise resources.limits.memory, or use less memory. Data loaders with many workers are a frequent cause. Files \
         in /dev/shm count, too.",
    ),
    (
        "CudaOutOfMemory",
        "Use a smaller batch, gradient accumulation, mixed precision or activation checkpointing, or GPUs with more \
         memory. Check that no other program runs on that GPU.",
    ),
    (
        "NcclError",
        "Check the network and the GPUs of the node that the message names. Set NCCL_DEBUG=INFO in env for more output \
         from NCCL.",
    ),
    (
        "NcclTimeout",
        "One rank did not reach a collective in which the other ranks waited. Check what the slowest worker did last, \
         and whether a rank skips a step. Check the network between the nodes, too.",
    ),
    (
        "GpuHardwareError",
        "A GPU of the node that the message names, or its link, is broken. Cordon the node (kubectl cordon {node}). Then \
         delete the worker's pod (kubectl delete pod -n {namespace} {pod}): a replacement starts on another node. This \
         does not count against backoffLimit.",
    ),
    (
        "Hang",
        "The message says where each rank was, and the log has the full stacks. A rank that is stopped (SIGSTOP) was \
         stopped by a person or another program. A rank that is the only one outside an exchange with the others is \
         what they wait for. The cause may be a disk, a lock, or another path through the program. If the same node \
         hangs every time, cordon it (kubectl cordon {node}). If nothing hangs and a step takes that long, raise \
         failurePolicy.hang.timeoutSeconds. If the message says that there was no sign of life, raise \
         failurePolicy.hang.idleTimeoutSeconds instead.",
    ),
    (
        "NaNLoss",
        "Lower the learning rate, warm up longer, clip gradients, or use bfloat16 instead of float16. Check the data \
         of that step. Resume from a checkpoint before that step.",
    ),
    ("InvalidOption", "Correct the field of the spec that the message names."),
    (
        "CommandNotFound",
        "Correct command or image: the program is missing, not executable, or built for another architecture.",
    ),
    (
        "Evicted",
        "Nothing, if the node was drained. If the kubelet evicted the pod, its node is short of memory or disk: check \
         the node (kubectl describe node {node}). This does not count against backoffLimit.",
    ),
    (
        "Preempted",
        "Nothing, or set a higher scheduling.priority: pods of higher priority took the node. This does not count \
         against backoffLimit.",
    ),
    (
        "NodeLost",
        "Nothing for the job: it restarts on other nodes, and this does not count against backoffLimit. Check the node \
         (kubectl describe node {node}).",
    ),
    (
        "Unkillable",
        "Nothing for the job: a replacement pod takes the worker's place, and this does not count against \
         backoffLimit. A process on the node that the message names waits in the kernel, and SIGKILL does not end it. \
         Cordon the node (kubectl cordon {node}), check its dmesg for Xid, hung_task or NFS errors, and reboot it.",
    ),
    (
        "PodDeleted",
        "A person or another program deleted the pod: find out which. The deletion counts against backoffLimit if all \
         the other pods had to be replaced with it.",
    ),
    (
        "Resized",
        "Nothing: an elastic job continues with another number of workers, and this does not count against \
         backoffLimit. The number is in status.elastic (kubectl get tj {job} -n {namespace} -o yaml). The reason is in \
         the events (kubectl describe tj {job} -n {namespace}).",
    ),
    (
        "JobDeleted",
        "A person or another program deleted the Job of the TrainingJob. To stop a job, suspend it (kubectl \
         trainingjob stop {job} -n {namespace}) or delete the TrainingJob (kubectl delete tj {job} -n {namespace}).",
    ),
    (
        "NodeRejected",
        "Nothing for the job: it is retried, and this does not count against backoffLimit. If this repeats, check the \
         node and its devices.",
    ),
    (
        "StorageExceeded",
        "Raise the limit that the message names, or write less to the node: caches, checkpoints and logs count.",
    ),
    (
        "InitContainer",
        "Read the log of the init container that the message names: kubectl logs -n {namespace} -l training-job={job} \
         --all-containers --prefix --tail=50",
    ),
    (
        "CodeUnavailable",
        "Send the code again: kubectl trainingjob restart {job} -n {namespace} --code . (in its folder). If that does not help, check that \
         the ConfigMaps {job}-code-0 to {job}-code-3 are there (kubectl get configmaps -n {namespace} -l \
         training-job={job}).",
    ),
    (
        "FetchFailed",
        "The message names the address, the answer of its server and the remedy. Correct the Secret, the claim or the \
         content, then start the job again: kubectl trainingjob restart {job} -n {namespace}. A wrong address is \
         corrected in a new job.",
    ),
    (
        "Fetching",
        "Nothing: the content is being fetched. The log has a line every 5 seconds: kubectl logs -n {namespace} \
         job/{job}-upkeep. Without a cache the only worker fetches: kubectl logs -n {namespace} -l training-job={job} -c \
         trainingjob-fetch",
    ),
    (
        "Publishing",
        "Nothing: no GPU is held while the result is published. To see how far it is: kubectl logs -n {namespace} \
         job/{job}-upkeep",
    ),
    (
        "PublishFailed",
        "The programs have succeeded, and their result is on the volume of checkpoint.storage. The message names the \
         address, the answer of its server and the remedy. Correct the Secret or the destination, then publish again: \
         kubectl trainingjob restart {job} -n {namespace}. The program does not run again.",
    ),
    ("PodFailed", "The pod failed before its program started. Check its node and the node's devices."),
    (
        "Disrupted",
        "Nothing: the pod was evicted or preempted, or its node was lost. This does not count against backoffLimit.",
    ),
    (
        "PodsLost",
        "Nothing for the job: its pods were removed from outside before their last output could be read. This does not \
         count against backoffLimit. Check the nodes, and ship logs off them.",
    ),
    ("DeadlineExceeded", "Raise failurePolicy.activeDeadlineSeconds, or resume from the last checkpoint in a new job."),
    (
        "CheckpointCorrupted",
        "No attempt resumes from the corrupted checkpoint: the newest good one is used. Find out what cut it short: a \
         full volume, a killed writer, or the storage. If checkpoint.resumeFrom names the corrupted checkpoint, \
         replace it with a good one. To read all checkpoints: kubectl trainingjob checkpoints {job} -n {namespace} \
         verify",
    ),
    (
        "NearlyFull",
        "Free space before the program can't write the next checkpoint. Lower checkpoint.retention, which may be \
         changed while the job runs, or enlarge the claim. To see what could be deleted: kubectl trainingjob \
         checkpoints {job} -n {namespace} prune --dry-run",
    ),
    (
        "BackupFailing",
        "Check the bucket, its credentials and the network, as the message says. Copies are retried. Meanwhile no \
         checkpoint is deleted that has not been copied.",
    ),
    (
        "FolderShared",
        "Give each job its own claim or folder, or end the other job. Only one job at a time writes to a folder of \
         checkpoints.",
    ),
    (
        "StorageUnavailable",
        "Check the volume, its file server and access rights, or the store and its credentials. The message has the \
         error. The next attempt tries again, and this does not count against backoffLimit. No attempt starts at step \
         0 because of this.",
    ),
    (
        "NoUsableCheckpoint",
        "The job waits without pods. See what is wrong with each checkpoint (kubectl trainingjob checkpoints {job} -n \
         {namespace} why). Repair one, then restart the job (kubectl trainingjob restart {job} -n {namespace}). To \
         start at step 0 instead, set checkpoint.ifNoneUsable to StartOver (kubectl edit tj {job} -n {namespace}).",
    ),
    (
        "FolderUnusable",
        "Check as which user the program and its agent write to /checkpoints, and whether the volume is read-only or \
         broken. The message has the error.",
    ),
    (
        "Suspect",
        "A run that resumed from this checkpoint failed before it made progress, so an older one is used. Read the \
         last output of that run. If the checkpoint is good after all, name it as checkpoint.resumeFrom in a new job.",
    ),
    ("InvalidSpec", "Correct the fields that the message names, delete the job and apply it again."),
    (
        "MetricMissing",
        "Set metric.name of the search to a metric that the program reports, or have the program print it. The message \
         names the reported ones. The name can't change later, so create the search again.",
    ),
    (
        "TrialsFailed",
        "Correct the cause of the failures, which the message names. If other hyperparameters may still succeed, raise \
         maxFailedTrials: kubectl edit tuj {job} -n {namespace}",
    ),
    (
        "GpuHoursUsed",
        "Nothing, if the result is good enough. To continue the search, raise gpuHours: kubectl edit tuj {job} -n \
         {namespace}",
    ),
    (
        "StoppedBySearch",
        "Nothing: the search ended this trial early, or has ended itself. The checkpoints of the trial stay.",
    ),
];
