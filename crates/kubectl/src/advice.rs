//! What to do about a reason. `docs/operate.md` has the same in its tables; a test holds the two together.

/// Returns what to do about a reason of this job's status, with commands that are ready to paste; `None` if there is nothing to
/// do, or nothing is known.
#[must_use]
pub fn advice(reason: &str, namespace: &str, job: &str) -> Option<String> {
    let (_, advice) = ADVICE.iter().find(|(known, _)| *known == reason)?;
    Some(advice.replace("{job}", job).replace("{namespace}", namespace))
}

/// Whether the advice on a reason may take another spec, which a job can't be given.
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

/// The advice on the reasons by which a job waits, then on those by which an attempt fails. `{job}` and `{namespace}` stand for
/// those of the job.
pub const ADVICE: &[(&str, &str)] = &[
    ("Unreadable", "Correct the field that the message names, or upgrade the operator."),
    (
        "Scheduling",
        "Usually nothing: pods are being made and placed. If it lasts, see whether a scheduler of the name in scheduling.schedulerName runs.",
    ),
    (
        "Unschedulable",
        "Free or add nodes, or ask for less. The words after the node count tell what each node lacks: GPUs, CPU or memory, a label of nodeSelector, a tolerated taint, a claim. kubectl describe nodes shows what is taken.",
    ),
    (
        "SchedulingGated",
        "Somebody has put scheduling gates on the pods (podTemplate or an admission webhook): whoever set them must lift them.",
    ),
    (
        "Queued",
        "Nothing, if the queue is merely full: Kueue starts the job when there is quota. kubectl get workloads -n {namespace} shows its place; see that the LocalQueue of scheduling.queue exists.",
    ),
    (
        "QuotaExceeded",
        "Have the ResourceQuota of the namespace raised, or end what uses it up: kubectl describe quota -n {namespace}.",
    ),
    (
        "PodSecurity",
        "Give the workers what the namespace's Pod Security level asks for, through podTemplate: examples/restricted.yaml has all of it.",
    ),
    (
        "PodsRefused",
        "Mend what the message names: a missing service account or PriorityClass, a LimitRange, a webhook.",
    ),
    ("Parallelism", "Set the Job's parallelism back to the number of workers, or delete the Job: it is made again."),
    (
        "NoStorage",
        "Set checkpoint.storage or output, so that the workers and TensorBoard share a volume, or switch monitoring.tensorboardEnabled off. The training goes on without it.",
    ),
    (
        "OldPods",
        "Usually nothing: the next attempt starts when the last pod of the earlier one is gone. If that pod hangs in Terminating, look at its node; if the node is gone for good, delete the Node object.",
    ),
    (
        "OldObject",
        "Usually nothing: an object of that name is on its way out and is made again when it is gone. If it stays, look at its finalizers.",
    ),
    (
        "NameTaken",
        "Delete or rename the object of that name, which belongs to somebody else, or give the job another name.",
    ),
    (
        "GangSchedulerMissing",
        "Have the scheduler that scheduling.gang names installed or switched on, as the message says: the job then starts by itself. Else make the job again without gang.",
    ),
    (
        "QueueManagerMissing",
        "Have Kueue installed in a version that has the kind which the message names: the job then starts by itself. Else make the job again without queue.",
    ),
    (
        "RuntimeNotFound",
        "Have the template of spec.runtimeRef created, or the operator given the right to read it, as the message says: the job then begins by itself. Else make the job again with another one (kubectl get ctr,tr -n {namespace}).",
    ),
    (
        "InvalidRuntime",
        "Have the template mended as the message says: the job then begins by itself. If the fault is the job's own, make it again; kubectl trainingjob plan {job} -n {namespace} shows what it comes to.",
    ),
    ("Forbidden", "The operator may not make the object: apply its rights again (kubectl apply -k deploy/)."),
    (
        "Denied",
        "Change the job so that the policy or webhook which the message names allows it, or have an exception made there: it is tried again at least every minute.",
    ),
    (
        "WebhookFailed",
        "Have the admission webhook that the message names mended, or its configuration removed if nobody runs it any more: it is tried again at least every minute.",
    ),
    (
        "ApiTimeout",
        "Find the admission webhook that delays the object which the message names (kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations), or see that etcd is well: it is tried again at least every minute.",
    ),
    (
        "NeverAnswered",
        "Let the operator's pods reach monitoring.metricsPort of the workers: a NetworkPolicy of the namespace mostly forbids it. The training goes on without.",
    ),
    (
        "Invalid",
        "The API server finds the object invalid: correct the fields that the message names, delete the job and apply it again.",
    ),
    (
        "Stopping",
        "Nothing: the programs of the attempt that failed end within their grace, and the next attempt begins in the same pods.",
    ),
    (
        "Starting",
        "Usually nothing: images are pulled and volumes mounted, then the agents find each other. If it lasts, the events of the pods tell more; if agents wait for each other, see that no NetworkPolicy is between the workers (they meet at the ports from networking.masterPort on).",
    ),
    (
        "ImagePull",
        "Correct spec.image, or give the workers the right to pull it (imagePullSecrets); see that the nodes reach the registry. It goes on by itself once the image is there.",
    ),
    (
        "ContainerConfig",
        "Correct what the message names: often a Secret or ConfigMap that is missing, a workingDir that is a file, or a mount that the image forbids.",
    ),
    (
        "Storage",
        "A volume does not attach or mount: look at the claim (kubectl describe pvc -n {namespace}), and with several workers use one that many nodes can mount (ReadWriteMany).",
    ),
    ("Network", "The pod gets no network: look at the network plugin of its node."),
    ("Waiting", "It ran, and waits for nodes again: free or add some."),
    (
        "NoProgress",
        "It hangs, or does something slow such as a checkpoint or a compilation: look at what the workers print.",
    ),
    (
        "Unreachable",
        "Look for a NetworkPolicy between operator and workers, for a program that took monitoring.metricsPort, and at the node.",
    ),
    ("ExitCode", "Read the log of the worker that failed first."),
    (
        "PythonException",
        "Read the log of the worker that failed first: the message has the exception, and the file and line that raised it.",
    ),
    ("ImportError", "Use an image that has the module, or install it there: another attempt can't find it either."),
    (
        "Signal",
        "Signal 11 is a crash in native code; 9 without OOMKilled came from outside or from another process. Read the log of the worker that failed first.",
    ),
    (
        "OOMKilled",
        "Raise resources.limits.memory, or use less: data loaders with many workers are a frequent cause, and /dev/shm counts, too.",
    ),
    (
        "CudaOutOfMemory",
        "Use a smaller batch, accumulate gradients, use mixed precision or checkpoint activations; or take GPUs with more memory. See that nothing else runs on that GPU.",
    ),
    (
        "NcclError",
        "Look at the network and the GPUs of the node that the message names; env NCCL_DEBUG=INFO makes NCCL tell more.",
    ),
    (
        "NcclTimeout",
        "One rank did not come to a collective that the others waited in: look at what the slowest worker did last, for a rank that skips a step, and at the network between the nodes.",
    ),
    (
        "GpuHardwareError",
        "A GPU of the node that the message names, or its link, is broken. Cordon the node (kubectl cordon NODE), then delete the worker's pod (kubectl delete pod -n {namespace} POD): another one starts on another node. This does not count against backoffLimit.",
    ),
    (
        "Hang",
        "The message has where each rank was, the log the whole stacks. One that is stopped (SIGSTOP) was stopped by somebody; \
         one that alone is in no exchange with the others is what they wait for: a disk, a lock, another path through the \
         program. If always the same node hangs, cordon it. If nothing hangs and a step takes so long, raise \
         failurePolicy.hang.timeoutSeconds, or idleTimeoutSeconds where the message says that there was no sign of life.",
    ),
    (
        "NaNLoss",
        "Lower the learning rate, warm up longer, clip gradients or leave float16 for bfloat16; look at the data of that step. Go on from a checkpoint before it.",
    ),
    ("InvalidOption", "Correct the field of the spec that the message names."),
    (
        "CommandNotFound",
        "Correct command or image: the program is not there, not executable, or made for another architecture.",
    ),
    (
        "Evicted",
        "Nothing if a node was drained; if the kubelet evicted it, its node is short of memory or disk: look at it. It does not count against backoffLimit.",
    ),
    (
        "Preempted",
        "Nothing, or a higher scheduling.priority: pods of higher priority took the node. It does not count against backoffLimit.",
    ),
    (
        "NodeLost",
        "Nothing for the job: it starts again on other nodes, and this does not count against backoffLimit. Look at the node.",
    ),
    (
        "Unkillable",
        "Nothing for the job: another pod takes the worker's place, and this does not count against backoffLimit. Cordon the node that the message names (kubectl cordon NODE), look at its dmesg for Xid, hung_task or NFS errors, and reboot it: a process there waits in the kernel, and SIGKILL does not end it.",
    ),
    (
        "PodDeleted",
        "Somebody deleted the pod. Ask who: it counts against backoffLimit where all the others had to go with it.",
    ),
    (
        "Resized",
        "Nothing: an elastic job goes on with another number of workers, and this does not count against backoffLimit. kubectl get tj {job} -n {namespace} -o yaml tells in status.elastic of how many, the events why.",
    ),
    ("JobDeleted", "Somebody deleted the Job under the TrainingJob. To stop a job, suspend or delete the TrainingJob."),
    (
        "NodeRejected",
        "Nothing for the job: it is tried again, and this does not count against backoffLimit. Look at the node and its devices if it goes on.",
    ),
    (
        "StorageExceeded",
        "Raise the limit that the message names, or write less to the node: caches, checkpoints and logs count.",
    ),
    (
        "InitContainer",
        "Read the log of the init container that the message names: kubectl logs -n {namespace} POD -c CONTAINER.",
    ),
    ("PodFailed", "The pod failed before its program started: look at its node and the node's devices."),
    (
        "Disrupted",
        "Nothing: the pod was evicted or preempted or its node lost, and this does not count against backoffLimit.",
    ),
    (
        "PodsLost",
        "Nothing for the job: something outside took its pods before their last words could be read, and this does not count against backoffLimit. Look at the nodes, and ship logs off them.",
    ),
    (
        "DeadlineExceeded",
        "Raise failurePolicy.activeDeadlineSeconds, or let the job go on from its last checkpoint as a new one.",
    ),
    (
        "CheckpointCorrupted",
        "Nothing goes on from it: the newest good one is taken. Find out what cut it short (a full volume, a killed writer, the storage); kubectl trainingjob checkpoints {job} -n {namespace} verify reads all of them. One that checkpoint.resumeFrom names must be replaced by a good one.",
    ),
    (
        "NearlyFull",
        "Make room before the program can't write the next one: lower checkpoint.retention, which may be changed while it runs, or enlarge the claim. kubectl trainingjob checkpoints {job} -n {namespace} prune --dry-run tells what could go.",
    ),
    (
        "BackupFailing",
        "Look at the bucket, its credentials and the network, as the message says. Copies are tried again, and nothing that is not copied is deleted meanwhile.",
    ),
    (
        "FolderShared",
        "Give each job a claim, or a folder, of its own, or end the other job: one at a time writes to a folder of checkpoints.",
    ),
    (
        "StorageUnavailable",
        "Look at the volume, its file server, the rights on it, or the store and its credentials: the message has the error. The next attempt tries again, this does not count against backoffLimit, and nothing begins at step 0 for it.",
    ),
    (
        "NoUsableCheckpoint",
        "The job waits without pods. kubectl trainingjob checkpoints {job} -n {namespace} why says what is wrong with each. Repair one, then: kubectl trainingjob restart {job} -n {namespace}. To begin at step 0: set checkpoint.ifNoneUsable to StartOver with kubectl edit tj {job} -n {namespace}.",
    ),
    (
        "FolderUnusable",
        "See as whom the program and its agent write to /checkpoints, and whether the volume is mounted read-only or broken: the message has the error.",
    ),
    (
        "Suspect",
        "A run that went on from it failed before it made progress, so that an older one is taken. Read that run's last words; if it is good after all, start a new job with it as checkpoint.resumeFrom.",
    ),
    ("InvalidSpec", "Correct the fields that the message names, delete the job and apply it again."),
];
