//! Checks by the API server beyond types and ranges: CEL rules, each with the error and the remedy.
//!
//! `schema.rs` adds them to the CRD. Every rule has a file in `examples/bad` that it rejects. `docs/refusals.md` is
//! generated from this table.

use super::defaults;

/// One rule of the CRD.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Path from the root at which the rule is evaluated. `[]` stands for the items of a list, `{}` for the values of a
    /// map.
    pub at: &'static str,
    /// Path of the affected field below `at`; empty for `at` itself.
    pub field: &'static str,
    /// The CEL expression. A name in capitals after `$` is replaced. `$(FIELD)` stands for the value of that field, or its
    /// default.
    pub rule: &'static str,
    /// The error. A rule about entries of a list or a map has a part `{a variable|the variable %|CEL}`. It contains the
    /// general name of an entry, its specific name, and the CEL expression for `%`.
    pub wrong: &'static str,
    /// The remedy: what to write instead.
    pub remedy: &'static str,
    /// The file in `examples/bad`, without `.yaml`.
    pub example: &'static str,
}

impl Rule {
    /// The rule as written to the CRD.
    ///
    /// # Panics
    /// If it contains `$(FIELD)` of a field without a default, which the tests detect.
    #[must_use]
    pub fn cel(&self) -> String {
        expanded(self.at, self.rule)
    }

    /// The error, without the name of an entry.
    #[must_use]
    pub fn wrong_in_general(&self) -> String {
        match self.entry() {
            Some(Entry { before, in_general, after, .. }) => [before, in_general, after].concat(),
            None => self.wrong.to_owned(),
        }
    }

    /// The message for the user. The API server uses it if the name of an entry would break the line.
    #[must_use]
    pub fn message(&self) -> String {
        format!("{}: {}", self.wrong_in_general(), self.remedy)
    }

    /// CEL for a message that names the entry, because an index is of little help in a list of forty.
    ///
    /// # Panics
    /// In the same cases as [`Rule::cel`].
    #[must_use]
    pub fn message_expression(&self) -> Option<String> {
        let Entry { before, named, name, after, .. } = self.entry()?;
        let (begin, end) = named.split_once('%')?;
        // For CEL's cost estimate, joining texts of unknown length is too expensive. A format is not.
        let text = format!("{before}{begin}%s{end}{after}: {}", self.remedy).replace('\\', "\\\\").replace('\'', "\\'");
        Some(format!("'{text}'.format([{}])", expanded(self.at, name)))
    }

    fn entry(&self) -> Option<Entry> {
        let (before, rest) = self.wrong.split_once('{')?;
        let (entry, after) = rest.split_once('}')?;
        let (in_general, rest) = entry.split_once('|')?;
        let (named, name) = rest.split_once('|')?;
        Some(Entry { before, in_general, named, name, after })
    }

    /// The field as written in a manifest.
    #[must_use]
    pub fn path(&self) -> String {
        let path = [self.at, self.field.trim_start_matches('.')].join(".");
        path.trim_matches('.').to_owned()
    }
}

/// The parts of [`Rule::wrong`] that name an entry.
struct Entry {
    before: &'static str,
    in_general: &'static str,
    named: &'static str,
    name: &'static str,
    after: &'static str,
}

/// Expands the CEL of a rule at `at`: names in capitals, and fields with a default.
fn expanded(at: &str, cel: &str) -> String {
    let quoted = RESERVED_ENV.map(|name| format!("'{name}'")).join(", ");
    let [keys, prefixes] =
        [&RESERVED_KEYS[..], &RESERVED_KEY_PREFIXES].map(|names| names.join("|").replace('.', "[.]"));
    // Conditions come before what stands in them.
    let cel = CONDITIONS.iter().fold(cel.to_owned(), |cel, (name, condition)| cel.replace(name, condition));
    with_defaults(at, &cel)
        .replace("$RESERVED_ENV", &format!("[{quoted}]"))
        .replace("$RESERVED_KEY", &format!("'^({keys}|({prefixes}|kueue[.]x-k8s[.]io/).*)$'"))
        .replace("$SUBDOMAIN", "'^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'")
        .replace("$LABEL_VALUE", "'^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$'")
        .replace("$LABEL_KEY", "'^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$'")
        .replace("$CLAIM_URI", "'^pvc://[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?(/[^/]+)*$'")
        .replace("$KNOWN_SCHEME", "'^(pvc|hf|s3|gs|az|abfss|https|oci)://'")
        .replace("$BUCKET", "'^[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]$'")
        .replace("$ENDPOINT", "'^https?://[^[:space:]/@?#]+/?$'")
        .replace("$STORE_URI", "'^(s3|gs|az)://[a-z0-9][-_.a-z0-9]*[a-z0-9](/[^/[:cntrl:]]+)*/?$'")
        .replace("$DOT_DOT", "'/[.][.](/|$)'")
}

/// Replaces each `$(FIELD)` with CEL for its value or default.
fn with_defaults(at: &str, cel: &str) -> String {
    let mut parts = cel.split("$(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| {
        let (field, after) = part.split_once(')').unwrap_or((part, ""));
        let path = [at, field].join(".");
        let path = path.trim_start_matches('.');
        let default = defaults::for_path(path.strip_prefix("spec.").unwrap_or(path));
        let default = default.unwrap_or_else(|| panic!("{path} has no default"));
        before + &defaults::written_or("self", field, &default) + after
    })
}

/// Conditions on the key `k` of a map or the mount `m`. Rules use each one twice: to detect an invalid entry, and to name
/// it.
const CONDITIONS: [(&str, &str); 12] = [
    (
        "$CONTAINER_RESOURCE",
        "k in ['cpu', 'memory', 'ephemeral-storage'] || k.startsWith('hugepages-') || k.contains('/')",
    ),
    (
        "$ABOVE_LIMIT",
        "k in self.limits && isQuantity(string(self.requests[k])) && isQuantity(string(self.limits[k])) && \
         quantity(string(self.requests[k])).isGreaterThan(quantity(string(self.limits[k])))",
    ),
    (
        "$DEVICE_APART",
        "k.contains('/') && !k.contains('kubernetes.io/') && !(has(self.limits) && k in self.limits && \
         (!isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || \
         quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) == 0))",
    ),
    (
        "$MOUNTED_BY_THE_JOB",
        "$(checkpoint.enabled) && m.mountPath in ['/checkpoints', '/checkpoints/'] || \
         has(self.model) && self.model.contains('://') && m.mountPath in ['/models', '/models/'] || \
         has(self.dataset) && self.dataset.contains('://') && m.mountPath in ['/data', '/data/'] || \
         has(self.output) && m.mountPath in ['/out', '/out/']",
    ),
    ("$OF_A_VOLUME", "has(self.volumes) && self.volumes.exists(v, v.name == m.name)"),
    ("$VARIABLE_PART", "size(k) <= 128 && k.matches('^[A-Za-z0-9][-_.A-Za-z0-9]*$')"),
    (
        "$HAS_A_FIELD",
        "k.lowerAscii().replace('_', '').replace('-', '').replace('.', '') in ['learningrate', 'batchsize', 'epochs', \
         'optimizer', 'warmupsteps', 'gradientaccumulationsteps', 'mixedprecision']",
    ),
    (
        "$ROLE_OF_FRAMEWORK",
        "$(framework) == 'none' || $(framework) == 'tensorflow' && r.name in ['chief', 'ps', 'evaluator'] || \
         $(framework) == 'mxnet' && r.name in ['server', 'scheduler'] || \
         $(framework) == 'mpi' && r.name == 'launcher'",
    ),
    (
        "$ROLE_OF_ONE",
        "$(framework) != 'none' && r.name in ['chief', 'evaluator', 'scheduler', 'launcher'] && has(r.replicas) && r.replicas != 1",
    ),
    (
        "$ROLE_FITS",
        "size(self.metadata.name) + size(r.name) + size(string((has(r.replicas) ? r.replicas : 1) - 1)) <= 61",
    ),
    ("$KEY_OF_OPERATOR", "k.matches($RESERVED_KEY)"),
    ("$NODE_LABEL", "k.matches($LABEL_KEY) && self[k].matches($LABEL_VALUE)"),
];

/// A rejection by type or range, in the API server's own words.
#[derive(Clone, Copy, Debug)]
pub struct SchemaRefusal {
    /// The field as written in a manifest.
    pub field: &'static str,
    /// The message of the API server.
    pub says: &'static str,
    /// The remedy: what to write instead.
    pub remedy: &'static str,
    /// The file in `examples/bad`, without `.yaml`.
    pub example: &'static str,
}

/// Environment variables that only the operator may set, because the members of the gang find each other with them.
pub const RESERVED_ENV: [&str; 23] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "NNODES",
    "NODE_RANK",
    "RANK",
    "LOCAL_RANK",
    "NUM_WORKERS",
    "GPUS_PER_WORKER",
    "NPROC_PER_NODE",
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "ATTEMPT",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "NODE_NAME",
    "TRAINING_JOB_NAME",
    "CHECKPOINT_DIR",
    "RESUME_FROM_CHECKPOINT",
    "RESUME_FROM_STEP",
];

/// Prefixes of further variables that only the operator may set.
pub const RESERVED_ENV_PREFIXES: [&str; 2] = ["PET_", "TRAININGJOB_"];

/// Labels and annotations that only the operator and the Job controller may set.
pub const RESERVED_KEYS: [&str; 9] = [
    "app",
    "component",
    "training-job",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "job-name",
    "controller-uid",
];

/// Prefixes of further labels and annotations that only the operator and the Job controller may set.
pub const RESERVED_KEY_PREFIXES: [&str; 2] = ["ml.example.com/", "batch.kubernetes.io/"];

/// Top-level fields of the spec that may change after creation. [`MUTABLE_WITHIN`] lists mutable fields within objects.
pub const MUTABLE: [&str; 3] = ["suspend", "ttlSecondsAfterFinished", "successPolicy"];

/// Objects of the spec with the fields in them that may change after creation.
pub const MUTABLE_WITHIN: [(&str, &[&str]); 4] = [
    ("failurePolicy", &["activeDeadlineSeconds", "rules"]),
    ("checkpoint", &["retention", "ifNoneUsable"]),
    ("code", &["digest"]),
    ("monitoring", &["minThroughput", "plateauSeconds"]),
];

/// Fields that may change while no program runs: before the job has started, while it is suspended, and once it has failed.
/// [`CHANGEABLE_WITHIN`] lists those within objects.
pub const CHANGEABLE: [&str; 18] = [
    "args",
    "code",
    "command",
    "env",
    "envFrom",
    "failurePolicy",
    "gpusPerWorker",
    "hyperparameters",
    "image",
    "imagePullSecrets",
    "numWorkers",
    "podTemplate",
    "procsPerWorker",
    "resources",
    "serviceAccountName",
    "volumes",
    "volumeMounts",
    "workingDir",
];

/// Whether the field at this path below the spec may change while no program runs.
#[must_use]
pub fn is_changeable(path: &str) -> bool {
    let (object, part) = path.split_once('.').unwrap_or((path, ""));
    CHANGEABLE.contains(&object)
        || CHANGEABLE_WITHIN.iter().any(|(known, fields)| *known == object && fields.contains(&part))
}

/// Objects of the spec with the fields in them that may change while no program runs.
pub const CHANGEABLE_WITHIN: [(&str, &[&str]); 2] = [
    ("checkpoint", &["frequency", "resumeArgs", "verify"]),
    ("scheduling", &["affinity", "nodeSelector", "priority", "schedulerName", "tolerations", "topologyKey"]),
];

/// CEL at the root for whether no program of the job runs, so that a change reaches all that follows. The operator writes the
/// status before it creates anything, and `spec.suspend` is never stale.
pub const NO_PROGRAM_RUNS: &str = "!has(oldSelf.status) || !has(oldSelf.status.state) || oldSelf.status.state == 'Failed' || \
     oldSelf.status.state == 'Suspended' && has(oldSelf.spec.suspend) && oldSelf.spec.suspend || \
     oldSelf.status.state != 'Completed' && !has(oldSelf.status.startTime)";

/// Message about fields that can't change while the programs run. `fields` is a sequence of results of [`immutable`].
#[must_use]
pub fn running_message(fields: &str) -> String {
    format!(
        "can't change while the job runs:{fields} stop it first (kubectl trainingjob stop), change it, and resume it"
    )
}

/// Message about fields that can't change any more.
#[must_use]
pub fn completed_message(fields: &str) -> String {
    format!(
        "can't change once the job is Completed:{fields} run it again under another name (kubectl trainingjob resubmit)"
    )
}

/// Message about fields that can't change, with the remedy. `fields` is a sequence of results of [`immutable`].
#[must_use]
pub fn immutable_message(fields: &str) -> String {
    format!("can't change after creation:{fields} delete the job and create it again, or create one under another name")
}

/// One entry of [`immutable_message`].
#[must_use]
pub fn immutable(field: &str) -> String {
    let unless = if field == "numWorkers" { " (without elastic)" } else { "" };
    format!(" {field}{unless};")
}

/// Rules that check a single version of the job.
pub const RULES: &[Rule] = &[
    // ---- the name
    Rule {
        at: "",
        field: ".metadata.name",
        rule: "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        wrong: "metadata.name becomes part of host names and must be a DNS label",
        remedy: "begin with a lower-case letter, go on with lower-case letters, digits and '-', without a dot, as in my-job",
        example: "name-with-dot",
    },
    Rule {
        at: "",
        field: ".metadata.name",
        rule: "size(self.metadata.name) + size(string((has(self.spec.elastic) ? self.spec.elastic.maxWorkers : \
               has(self.spec.numWorkers) ? self.spec.numWorkers : 1) - 1)) <= 53",
        wrong: "metadata.name is too long for the host name NAME-training-INDEX of the last worker, which holds 63 characters",
        remedy: "shorten it to 53 characters less the digits of numWorkers - 1, or of elastic.maxWorkers - 1",
        example: "name-too-long",
    },
    Rule {
        at: "",
        field: ".metadata.name",
        rule: "!$(spec.monitoring.tensorboardEnabled) || size(self.metadata.name) <= 51",
        wrong: "metadata.name is too long for the Service NAME-tensorboard, whose name holds 63 characters",
        remedy: "shorten it to 51 characters, or set monitoring.tensorboardEnabled to false",
        example: "name-too-long-for-tensorboard",
    },
    Rule {
        at: "",
        field: ".metadata.name",
        rule: "!has(self.spec.roles) || self.spec.roles.all(r, $ROLE_FITS)",
        wrong: "metadata.name is too long for the host name NAME-ROLE-INDEX {of a role's last pod|of the last pod of role %|\
                self.spec.roles.filter(r, !($ROLE_FITS))[0].name}, which holds 63 characters",
        remedy: "shorten it, or the name of the role: with the digits of its replicas - 1 they may have 61",
        example: "role-name-too-long",
    },
    // ---- model, dataset, output
    Rule {
        at: "spec.model",
        field: "",
        rule: "!self.contains('://') || self.matches($KNOWN_SCHEME)",
        wrong: "model is an address with an unknown scheme",
        remedy: "write a name, or an address that begins with pvc://, hf://, s3://, gs://, az://, abfss://, https:// or oci://",
        example: "model-scheme",
    },
    Rule {
        at: "spec.model",
        field: "",
        rule: "!self.startsWith('pvc://') || self.matches($CLAIM_URI) && !self.matches($DOT_DOT)",
        wrong: "model is not a valid pvc:// address",
        remedy: "write pvc://CLAIM or pvc://CLAIM/SUB/PATH with the claim's name and no '..', empty part or '/' at the end",
        example: "model-claim",
    },
    Rule {
        at: "spec.dataset",
        field: "",
        rule: "!self.contains('://') || self.matches($KNOWN_SCHEME)",
        wrong: "dataset is an address with an unknown scheme",
        remedy: "write a name, or an address that begins with pvc://, hf://, s3://, gs://, az://, abfss://, https:// or oci://",
        example: "dataset-scheme",
    },
    Rule {
        at: "spec.dataset",
        field: "",
        rule: "!self.startsWith('pvc://') || self.matches($CLAIM_URI) && !self.matches($DOT_DOT)",
        wrong: "dataset is not a valid pvc:// address",
        remedy: "write pvc://CLAIM or pvc://CLAIM/SUB/PATH with the claim's name and no '..', empty part or '/' at the end",
        example: "dataset-claim",
    },
    Rule {
        at: "spec.data[]",
        field: ".name",
        rule: "!(self.name in ['model', 'dataset'])",
        wrong: "data holds an entry with the name {of a field|%|self.name}",
        remedy: "write its address in spec.model or spec.dataset, or choose another name",
        example: "data-name",
    },
    Rule {
        at: "spec.data[]",
        field: ".uri",
        rule: "self.uri.matches($KNOWN_SCHEME)",
        wrong: "the uri of the entry {of data|% of data|self.name} is no address with a known scheme",
        remedy: "begin with pvc://, hf://, s3://, gs://, az://, abfss://, https:// or oci://",
        example: "data-scheme",
    },
    Rule {
        at: "spec.data[]",
        field: ".mountPath",
        rule: "has(self.access) && self.access == 'Stream' || has(self.mountPath)",
        wrong: "the entry {of data|% of data|self.name} has no mountPath",
        remedy: "write the path at which the workers find it, or access: Stream",
        example: "data-without-path",
    },
    Rule {
        at: "spec.data[]",
        field: ".mountPath",
        rule: "!has(self.mountPath) || self.mountPath.matches('^/[^:]+$') && !self.mountPath.matches($DOT_DOT)",
        wrong: "the mountPath of the entry {of data|% of data|self.name} is not an absolute path",
        remedy: "begin with '/', and use no ':' and no '..'",
        example: "data-path",
    },
    Rule {
        at: "spec.data[]",
        field: ".env",
        rule: "!has(self.access) || self.access != 'Stream' || has(self.env) && !has(self.mountPath)",
        wrong: "the entry {of data|% of data|self.name} has access Stream and must have env and no mountPath",
        remedy: "name in env the variable that gets the address, and remove mountPath: nothing is mounted",
        example: "data-stream",
    },
    Rule {
        at: "spec.data[]",
        field: ".env",
        rule: "!has(self.env) || self.env.matches('^[A-Za-z_][A-Za-z0-9_]*$') && !(self.env in $RESERVED_ENV) && \
               !self.env.matches('^(PET_|TRAININGJOB_)')",
        wrong: "the env of the entry {of data|% of data|self.name} can't be set here",
        remedy: "write letters, digits and '_', and no name that the operator sets itself",
        example: "data-env",
    },
    Rule {
        at: "spec.cache",
        field: ".path",
        rule: "!has(self.path) || has(self.pvcName)",
        wrong: "cache.path is a folder of a claim, and cache.pvcName is missing",
        remedy: "name the claim in cache.pvcName, or remove cache.path",
        example: "cache-path",
    },
    Rule {
        at: "spec.cache",
        field: ".path",
        rule: "!has(self.path) || self.path.matches('^[^/]+(/[^/]+)*$') && !('/' + self.path).matches($DOT_DOT)",
        wrong: "cache.path is no path within the claim",
        remedy: "write a path such as models/shared, without '..', empty parts or a '/' at its ends",
        example: "cache-path-outside",
    },
    Rule {
        at: "spec.cache.limit",
        field: "",
        rule: "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
        wrong: "cache.limit is not a quantity above 0",
        remedy: "write a size such as 500Gi, or remove it",
        example: "cache-limit",
    },
    Rule {
        at: "spec.cache",
        field: ".pvcName",
        rule: "!has(self.pvcName) || self.pvcName.matches($SUBDOMAIN)",
        wrong: "cache.pvcName can't be the name of a PersistentVolumeClaim",
        remedy: "write the name of a claim of this namespace, in lower case",
        example: "cache-claim",
    },
    Rule {
        at: "spec.code",
        field: ".digest",
        rule: "self.digest.matches('^sha256:[0-9a-f]{64}$')",
        wrong: "code.digest is not the SHA-256 digest of an archive",
        remedy: "write sha256: and 64 hexadecimal digits, as kubectl trainingjob run --code does",
        example: "code-digest",
    },
    Rule {
        at: "spec",
        field: ".workingDir",
        rule: "!has(self.code) || !has(self.workingDir)",
        wrong: "code and workingDir both set the working directory of the command",
        remedy: "remove workingDir, or deliver the code in the image",
        example: "code-with-working-dir",
    },
    Rule {
        at: "spec.credentialsSecret",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "credentialsSecret can't be the name of a Secret",
        remedy: "write the name of a Secret of this namespace, in lower case",
        example: "credentials-secret",
    },
    Rule {
        at: "spec.output",
        field: "",
        rule: "self.matches('^(pvc|hf|s3|gs|az|abfss|oci)://')",
        wrong: "output has no scheme under which a result can be kept",
        remedy: "begin with pvc:// to mount a claim, or with hf://, s3://, gs://, az://, abfss:// or oci:// to publish the result",
        example: "output-scheme",
    },
    Rule {
        at: "spec",
        field: ".output",
        rule: "!has(self.output) || self.output.startsWith('pvc://') || !self.output.contains('://') || \
               $(checkpoint.enabled) && has(self.checkpoint) && has(self.checkpoint.storage) && \
               self.checkpoint.storage.type in ['pvc', 'nfs']",
        wrong: "output is an address, and there is no volume for the result until it is published",
        remedy: "set checkpoint.storage to type pvc or nfs, and leave checkpoint.enabled true",
        example: "output-volume",
    },
    Rule {
        at: "spec.output",
        field: "",
        rule: "!self.startsWith('pvc://') || self.matches($CLAIM_URI) && !self.matches($DOT_DOT)",
        wrong: "output is not a valid pvc:// address",
        remedy: "write pvc://CLAIM or pvc://CLAIM/SUB/PATH with the claim's name and no '..', empty part or '/' at the end",
        example: "output-claim",
    },
    // ---- roles
    Rule {
        at: "spec.roles[]",
        field: ".name",
        rule: "!(self.name in ['worker', 'training', 'upkeep', 'checkpoints', 'tensorboard'])",
        wrong: "{a role|the role %|self.name} has a name that the operator uses itself",
        remedy: "choose another one; the workers are what the spec describes without roles",
        example: "role-reserved",
    },
    Rule {
        at: "spec",
        field: ".numWorkers",
        rule: "has(self.numWorkers)",
        wrong: "numWorkers is missing",
        remedy: "write the number of workers, or a runtimeRef whose template has it",
        example: "workers-missing",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "!has(self.roles) || self.roles.all(r, $ROLE_OF_FRAMEWORK)",
        wrong: "{a role|the role %|self.roles.filter(r, !($ROLE_OF_FRAMEWORK))[0].name} means nothing to the framework",
        remedy: "write chief, ps or evaluator with framework tensorflow, server or scheduler with mxnet, launcher with mpi, or any name with none",
        example: "role-of-framework",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "!has(self.roles) || !self.roles.exists(r, $ROLE_OF_ONE)",
        wrong: "chief, evaluator, scheduler and launcher are one pod each",
        remedy: "leave replicas out, or write 1",
        example: "role-of-one",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "$(framework) != 'tensorflow' || !has(self.roles) || !self.roles.exists(r, r.name == 'ps') || \
               self.roles.exists(r, r.name == 'chief')",
        wrong: "parameter servers of tensorflow are led by a chief, and there is none",
        remedy: "add a role with the name chief",
        example: "role-without-chief",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "$(framework) != 'mxnet' || has(self.roles) && self.roles.exists(r, r.name == 'server')",
        wrong: "mxnet keeps its parameters in servers, and there is none",
        remedy: "add a role with the name server; a program that runs on one worker alone has framework none",
        example: "role-without-server",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "!has(self.roles) || size(self.roles) == 0 || !has(self.elastic)",
        wrong: "roles have fixed numbers, and elastic changes that of the workers",
        remedy: "remove elastic, or roles",
        example: "role-elastic",
    },
    Rule {
        at: "spec",
        field: ".roles",
        rule: "!has(self.roles) || size(self.roles) == 0 || !$(checkpoint.enabled) || has(self.checkpoint) && \
               has(self.checkpoint.storage) && self.checkpoint.storage.type in ['pvc', 'nfs']",
        wrong: "roles need checkpoints that every pod sees, because the pod that writes them may not be the one that manages them",
        remedy: "set checkpoint.storage to type pvc or nfs, or checkpoint.enabled to false if the program keeps its own",
        example: "role-storage",
    },
    Rule {
        at: "spec.roles[].env[]",
        field: ".name",
        rule: "!(self.name in $RESERVED_ENV) && !self.name.startsWith('PET_') && !self.name.startsWith('TRAININGJOB_')",
        wrong: "{this variable|the variable %|self.name} of a role's env is set by the operator, so that the pods find each other",
        remedy: "remove it, or copy it to a name of your own with $(...)",
        example: "role-env-reserved",
    },
    Rule {
        at: "spec",
        field: ".image",
        rule: "$(framework) in ['pytorch', 'tensorflow', 'jax'] || has(self.image)",
        wrong: "there is no default image for this framework",
        remedy: "set image to one that has the program",
        example: "image-missing",
    },
    // ---- the container
    Rule {
        at: "spec.image",
        field: "",
        rule: "!self.matches('[[:space:]]')",
        wrong: "image holds white space",
        remedy: "write REGISTRY/NAME:TAG without blanks",
        example: "image-space",
    },
    Rule {
        at: "spec.procsPerWorker",
        field: "",
        // The last part tells the number 8 from the string "8".
        rule: "self in ['auto', 'cpu', 'gpu'] || string(self).matches('^[1-9][0-9]{0,3}$') && \
               int(string(self)) <= 1024 && self == int(string(self))",
        wrong: "procsPerWorker is none of its values",
        remedy: "write auto, cpu, gpu or a number from 1 to 1024",
        example: "procs-value",
    },
    Rule {
        at: "spec",
        field: ".procsPerWorker",
        rule: "$(procsPerWorker) != 'cpu' || has(self.resources) && has(self.resources.limits) && 'cpu' in self.resources.limits",
        wrong: "procsPerWorker cpu is the CPU limit, and there is none",
        remedy: "set resources.limits.cpu, or write a number",
        example: "procs-cpu",
    },
    Rule {
        at: "spec",
        field: ".procsPerWorker",
        rule: "$(procsPerWorker) != 'gpu' || $(gpusPerWorker) > 0",
        wrong: "procsPerWorker gpu needs GPUs, and gpusPerWorker is 0",
        remedy: "set gpusPerWorker to 1 or more, or write auto, cpu or a number",
        example: "procs-gpu",
    },
    Rule {
        at: "spec.env[]",
        field: ".name",
        rule: "!(self.name in $RESERVED_ENV) && !self.name.startsWith('PET_') && !self.name.startsWith('TRAININGJOB_')",
        wrong: "{this variable|the variable %|self.name} of env is set by the operator, so that the workers find each other",
        remedy: "remove it; numWorkers, procsPerWorker, networking and checkpoint decide its value",
        example: "env-reserved",
    },
    Rule {
        at: "spec.env[]",
        field: ".name",
        rule: "self.name.matches('^[ -<>-~]+$')",
        wrong: "{the name|the name \"%\"|self.name} of a variable of env holds a character that no variable may have",
        remedy: "use letters, digits and '_', and no '='",
        example: "env-name",
    },
    Rule {
        at: "spec.env[]",
        field: ".valueFrom",
        rule: "!has(self.valueFrom) || !has(self.value) || self.value == ''",
        wrong: "{a variable|the variable %|self.name} of env has both value and valueFrom",
        remedy: "keep one of them",
        example: "env-value-twice",
    },
    Rule {
        at: "spec.envFrom[]",
        field: "",
        rule: "has(self.configMapRef) != has(self.secretRef)",
        wrong: "an entry of envFrom must name one source{|, and %|has(self.configMapRef) ? 'one names the ConfigMap ' + \
                self.configMapRef.name + ' and the Secret ' + self.secretRef.name : has(self.prefix) ? \
                'the one with the prefix ' + self.prefix + ' names none' : 'one names none'}",
        remedy: "write either configMapRef or secretRef, and one entry for each source",
        example: "envfrom-source",
    },
    // ---- elastic
    Rule {
        // Not at the spec, where the rules of a job with a template are asked of both together, and at first only.
        at: "",
        field: ".spec.numWorkers",
        rule: "!has(self.spec.elastic) || !has(self.spec.numWorkers) || $(spec.elastic.minWorkers) <= self.spec.numWorkers && \
               self.spec.numWorkers <= self.spec.elastic.maxWorkers",
        wrong: "numWorkers is not between elastic.minWorkers (1 if it is not written) and elastic.maxWorkers",
        remedy: "write a number within these; they can't change after creation",
        example: "elastic-outside",
    },
    Rule {
        at: "spec",
        field: ".elastic",
        rule: "!has(self.elastic) || !$(checkpoint.enabled) || has(self.checkpoint) && has(self.checkpoint.storage) && \
               self.checkpoint.storage.type in ['pvc', 'nfs']",
        wrong: "elastic needs checkpoints that every worker sees, because the job resumes from them with another number of workers",
        remedy: "set checkpoint.storage to type pvc or nfs, or checkpoint.enabled to false if the program keeps its own",
        example: "elastic-storage",
    },
    // ---- resources
    Rule {
        at: "spec.resources.requests",
        field: "",
        rule: "self.all(k, $CONTAINER_RESOURCE)",
        wrong: "resources.requests names {what|%, which|self.filter(k, !($CONTAINER_RESOURCE))[0]} is no resource of containers",
        remedy: "write cpu, memory, ephemeral-storage, hugepages-SIZE, or the full name of a device such as nvidia.com/gpu",
        example: "requests-name",
    },
    Rule {
        at: "spec.resources.limits",
        field: "",
        rule: "self.all(k, $CONTAINER_RESOURCE)",
        wrong: "resources.limits names {what|%, which|self.filter(k, !($CONTAINER_RESOURCE))[0]} is no resource of containers",
        remedy: "write cpu, memory, ephemeral-storage, hugepages-SIZE, or the full name of a device such as nvidia.com/gpu",
        example: "limits-name",
    },
    Rule {
        at: "spec.resources.requests{}",
        field: "",
        rule: "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
        wrong: "{this value|the value %|self} of resources.requests is not a quantity from 0 up",
        remedy: "write a number with or without a unit, such as 500m, 4 or 16Gi",
        example: "requests-quantity",
    },
    Rule {
        at: "spec.resources.limits{}",
        field: "",
        rule: "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
        wrong: "{this value|the value %|self} of resources.limits is not a quantity from 0 up",
        remedy: "write a number with or without a unit, such as 500m, 4 or 16Gi",
        example: "limits-quantity",
    },
    Rule {
        at: "spec.resources",
        field: ".requests",
        rule: "!has(self.requests) || !has(self.limits) || self.requests.all(k, !($ABOVE_LIMIT))",
        wrong: "resources.requests asks for more {|% |self.requests.filter(k, $ABOVE_LIMIT)[0]}than resources.limits allows",
        remedy: "lower the request or raise the limit of the same name",
        example: "requests-above-limits",
    },
    Rule {
        at: "spec.resources",
        field: ".requests",
        rule: "!has(self.requests) || self.requests.all(k, !($DEVICE_APART))",
        wrong: "{a device in resources.requests, such as a GPU,|% in resources.requests is a device that|\
                self.requests.filter(k, $DEVICE_APART)[0]} can't be shared, and resources.limits doesn't say the same",
        remedy: "write the same number for it in resources.limits, or name it in resources.limits alone",
        example: "device-limits",
    },
    Rule {
        at: "spec",
        field: ".gpusPerWorker",
        rule: "!has(self.resources) || !has(self.resources.limits) || self.resources.limits.all(k, !k.endsWith('/gpu') || \
               !isQuantity(string(self.resources.limits[k])) || \
               quantity(string(self.resources.limits[k])).isInteger() && \
               quantity(string(self.resources.limits[k])).asInteger() == $(gpusPerWorker))",
        wrong: "gpusPerWorker (1 if it is not written) and {the GPUs|%|self.resources.limits.filter(k, k.endsWith('/gpu'))[0]} \
                in resources.limits differ",
        remedy: "write the same number in both, or leave the GPUs out of resources",
        example: "gpus-differ",
    },
    Rule {
        at: "spec.resources.limits",
        field: "",
        rule: "self.filter(k, k.endsWith('/gpu')).size() <= 1",
        // The first of them by its name: a map has no order.
        wrong: "resources.limits names {GPUs of two vendors|% and GPUs of another vendor|self.filter(k, k.endsWith('/gpu') && \
                !self.exists(other, other.endsWith('/gpu') && other < k))[0]}",
        remedy: "keep one of them: all workers are equal",
        example: "gpus-two-vendors",
    },
    // ---- volumes and names in the pod
    Rule {
        at: "spec.volumes[]",
        field: ".name",
        rule: "self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        wrong: "{the name|the name \"%\"|self.name} of a volume must be a DNS label",
        remedy: "use lower-case letters, digits and '-', up to 63 characters",
        example: "volume-name",
    },
    Rule {
        at: "spec.volumes[]",
        field: ".name",
        rule: "!self.name.startsWith('trainingjob-')",
        wrong: "{the name|the name %|self.name} of a volume is the operator's, as all that begin with trainingjob-",
        remedy: "choose another name",
        example: "volume-reserved",
    },
    Rule {
        at: "spec.volumeMounts[]",
        field: ".mountPath",
        rule: "self.mountPath.startsWith('/') && !self.mountPath.contains(':')",
        wrong: "{a mountPath|the mountPath \"%\"|self.mountPath} of volumeMounts is not an absolute path",
        remedy: "begin with '/' and use no ':'",
        example: "mount-relative",
    },
    Rule {
        at: "spec.volumeMounts[]",
        field: ".mountPath",
        rule: "!self.mountPath.matches('^/(trainingjob|etc/training-config)(/|$)')",
        wrong: "{a mountPath|the mountPath %|self.mountPath} of volumeMounts is the operator's, as all in /trainingjob and /etc/training-config",
        remedy: "choose another mountPath",
        example: "mount-reserved",
    },
    Rule {
        at: "spec",
        field: ".volumeMounts",
        rule: "!has(self.volumeMounts) || self.volumeMounts.all(m, !($MOUNTED_BY_THE_JOB))",
        wrong: "volumeMounts takes {a path|%, a path|self.volumeMounts.filter(m, $MOUNTED_BY_THE_JOB)[0].mountPath} that the job mounts itself: /checkpoints with checkpoint.enabled, \
                /models, /data and /out with an address in model, dataset and output",
        remedy: "choose another mountPath, or leave that field out (checkpoint.enabled: false)",
        example: "mount-taken",
    },
    Rule {
        at: "spec",
        field: ".volumeMounts",
        rule: "!has(self.volumeMounts) || has(self.podTemplate) || \
               self.volumeMounts.all(m, $OF_A_VOLUME)",
        wrong: "volumeMounts names {a volume|%, a volume|self.volumeMounts.filter(m, !($OF_A_VOLUME))[0].name} that is not in volumes",
        remedy: "add a volume of that name to volumes, or correct the name",
        example: "mount-without-volume",
    },
    Rule {
        at: "spec.imagePullSecrets[]",
        field: ".name",
        rule: "self.name.matches($SUBDOMAIN)",
        wrong: "imagePullSecrets holds {what|\"%\", which|self.name} can't be the name of a Secret",
        remedy: "write the name of a Secret of this namespace, in lower case",
        example: "pull-secret-name",
    },
    Rule {
        at: "spec.serviceAccountName",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "serviceAccountName can't be the name of a ServiceAccount",
        remedy: "write the name of a ServiceAccount of this namespace, in lower case",
        example: "service-account-name",
    },
    // ---- hyperparameters
    Rule {
        at: "spec.hyperparameters.learningRate",
        field: "",
        rule: "self > 0.0",
        wrong: "learningRate must be greater than 0",
        remedy: "write a number such as 0.001",
        example: "learning-rate",
    },
    Rule {
        at: "spec.hyperparameters.additionalParams",
        field: "",
        rule: "self.all(k, $VARIABLE_PART)",
        wrong: "{a key|the key \"%\"|self.filter(k, !($VARIABLE_PART))[0]} of additionalParams can't become the environment variable HYPERPARAM_KEY",
        remedy: "use letters, digits, '_', '-' and '.', as in weight_decay, up to 128 characters",
        example: "param-name",
    },
    Rule {
        at: "spec.hyperparameters.additionalParams",
        field: "",
        rule: "self.all(k, !($HAS_A_FIELD))",
        wrong: "{a key|the key %|self.filter(k, $HAS_A_FIELD)[0]} of additionalParams has a field of its own in hyperparameters",
        remedy: "write it there, as in hyperparameters.learningRate",
        example: "param-with-field",
    },
    // ---- failures
    Rule {
        at: "spec.failurePolicy.rules[]",
        field: "",
        rule: "has(self.exitCodes) || has(self.reasons) || has(self.message)",
        wrong: "{a rule|a rule with the action %|self.action} of failurePolicy.rules matches by nothing",
        remedy: "write exitCodes, reasons or message, as in reasons: [OOMKilled]; all that are written must match",
        example: "rule-without-condition",
    },
    Rule {
        at: "spec.failurePolicy",
        field: ".rules",
        rule: "!has(self.rules) || size(self.rules) == 0 || $(restartPolicy) != 'Never'",
        wrong: "failurePolicy.rules decide nothing where restartPolicy is Never",
        remedy: "leave them out, or write restartPolicy: OnFailure",
        example: "rules-without-restarts",
    },
    // ---- checkpoints
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "self.type != 'nfs' || has(self.nfsServer) && has(self.nfsPath)",
        wrong: "storage of type nfs needs a server and a path",
        remedy: "set nfsServer to its host name or address and nfsPath to the absolute path that it exports",
        example: "nfs-incomplete",
    },
    Rule {
        at: "spec.checkpoint.storage.nfsServer",
        field: "",
        rule: "self.matches('^[-_.:A-Za-z0-9]+$')",
        wrong: "nfsServer is not a host name or address",
        remedy: "write the host alone, as in nfs.example.com, and the path in nfsPath",
        example: "nfs-server",
    },
    Rule {
        at: "spec.checkpoint.storage.nfsPath",
        field: "",
        rule: "self.startsWith('/') && !self.matches($DOT_DOT)",
        wrong: "nfsPath is not an absolute path",
        remedy: "begin with '/' and use no '..', as in /exports/checkpoints",
        example: "nfs-path",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "self.type != 'nfs' || !has(self.pvcName) && !has(self.size) && !has(self.storageClassName) && $(deletePolicy) == 'Retain'",
        wrong: "storage of type nfs takes nothing of a claim",
        remedy: "remove pvcName, size, storageClassName and deletePolicy, or write type: pvc",
        example: "nfs-with-claim",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "self.type != 'pvc' || !has(self.nfsServer) && !has(self.nfsPath)",
        wrong: "storage of type pvc takes no nfsServer and no nfsPath",
        remedy: "remove them, or write type: nfs",
        example: "claim-with-nfs",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: ".pvcName",
        rule: "!has(self.pvcName) || !has(self.size) && !has(self.storageClassName) && $(deletePolicy) == 'Retain'",
        wrong: "pvcName is a claim that exists, which the operator neither makes nor deletes",
        remedy: "remove size, storageClassName and deletePolicy, or remove pvcName to have a claim made",
        example: "claim-named-and-made",
    },
    Rule {
        at: "spec.checkpoint.storage.pvcName",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "pvcName can't be the name of a PersistentVolumeClaim",
        remedy: "write the name of a claim of this namespace, in lower case and without pvc://",
        example: "claim-name",
    },
    Rule {
        at: "spec.checkpoint.storage.storageClassName",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "storageClassName can't be the name of a StorageClass",
        remedy: "write the name of a StorageClass of this cluster, in lower case",
        example: "storage-class-name",
    },
    Rule {
        at: "spec.checkpoint.storage.size",
        field: "",
        rule: "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
        wrong: "size is not a quantity above 0",
        remedy: "write a number with a unit, such as 50Gi",
        example: "claim-size",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "(self.type == 's3') == has(self.s3Bucket) && (self.type == 'gcs') == has(self.gcsBucket) && \
               (self.type == 'azure') == has(self.azureContainer)",
        wrong: "a bucket is named that the storage's type doesn't have, or its own is missing",
        remedy: "write s3Bucket with type s3, gcsBucket with gcs, azureContainer with azure, and no other",
        example: "bucket-missing",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "self.type in ['pvc', 'nfs'] ? !has(self.prefix) && !has(self.endpoint) && !has(self.region) && \
               !has(self.credentialsSecret) && !has(self.azureAccount) : !has(self.pvcName) && !has(self.size) && \
               !has(self.storageClassName) && !has(self.nfsServer) && !has(self.nfsPath) && $(deletePolicy) == 'Retain'",
        wrong: "storage mixes the fields of a volume with those of a bucket",
        remedy: "with type pvc or nfs remove prefix, endpoint, region, credentialsSecret and azureAccount; with a bucket \
                 what belongs to a claim or to NFS",
        example: "bucket-with-volume",
    },
    Rule {
        at: "spec.checkpoint.storage",
        field: "",
        rule: "(!has(self.s3Bucket) || self.s3Bucket.matches($BUCKET)) && (!has(self.gcsBucket) || \
               self.gcsBucket.matches($BUCKET)) && (!has(self.azureContainer) || self.azureContainer.matches($BUCKET))",
        wrong: "s3Bucket, gcsBucket or azureContainer can't be the name of a bucket",
        remedy: "write the name alone, in lower case, without s3:// and without a path, which goes into prefix",
        example: "bucket-name",
    },
    Rule {
        at: "spec.checkpoint.storage.prefix",
        field: "",
        rule: "!self.startsWith('/') && !self.contains('//') && !('/' + self).matches($DOT_DOT) && !self.matches('[[:cntrl:]]')",
        wrong: "prefix can't be the beginning of objects' names",
        remedy: "write folders with / between them, as in team/run-7, without // and ..",
        example: "bucket-prefix",
    },
    Rule {
        at: "spec.checkpoint.storage.endpoint",
        field: "",
        rule: "self.matches($ENDPOINT)",
        wrong: "endpoint is not the address of a server",
        remedy: "write http://HOST:PORT or https://HOST, without a user and a password",
        example: "store-endpoint",
    },
    Rule {
        at: "spec.checkpoint.storage.credentialsSecret",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "credentialsSecret can't be the name of a Secret",
        remedy: "write the name of a Secret of this namespace, in lower case, and not a key itself",
        example: "store-secret-name",
    },
    Rule {
        at: "spec.checkpoint.backup.destination",
        field: "",
        rule: "self.matches($STORE_URI) && !self.matches($DOT_DOT)",
        wrong: "destination is not a place in an object store",
        remedy: "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, and what logs in to it in credentialsSecret",
        example: "backup-destination",
    },
    Rule {
        at: "spec.checkpoint.backup.endpoint",
        field: "",
        rule: "self.matches($ENDPOINT)",
        wrong: "endpoint is not the address of a server",
        remedy: "write http://HOST:PORT or https://HOST, without a user and a password",
        example: "backup-endpoint",
    },
    Rule {
        at: "spec.checkpoint.backup.credentialsSecret",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "credentialsSecret can't be the name of a Secret",
        remedy: "write the name of a Secret of this namespace, in lower case, and not a key itself",
        example: "backup-secret-name",
    },
    Rule {
        at: "spec.checkpoint",
        field: ".backup",
        rule: "!has(self.backup) || $(enabled)",
        wrong: "backup with checkpoint.enabled: false has nothing to copy",
        remedy: "set checkpoint.enabled to true, or remove backup",
        example: "backup-of-nothing",
    },
    Rule {
        at: "spec.checkpoint",
        field: ".resumeFrom",
        rule: "!has(self.resumeFrom) || $(enabled)",
        wrong: "resumeFrom with checkpoint.enabled: false has no place to be read from",
        remedy: "set checkpoint.enabled to true, or remove resumeFrom",
        example: "resume-disabled",
    },
    Rule {
        at: "spec.checkpoint.resumeFrom",
        field: "",
        rule: "self.contains('://') ? self.matches($STORE_URI) && !self.matches($DOT_DOT) : \
               !('/' + self).matches($DOT_DOT) && !self.matches('[[:cntrl:]]')",
        wrong: "resumeFrom is neither a path nor a place in an object store",
        remedy: "write a path such as run-3/checkpoint-500, or s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH",
        example: "resume-from",
    },
    Rule {
        at: "spec.checkpoint",
        field: ".resumeArgs",
        rule: "!has(self.resumeArgs) || $(enabled)",
        wrong: "resumeArgs with checkpoint.enabled: false are never used",
        remedy: "set checkpoint.enabled to true, or remove resumeArgs",
        example: "resume-args-disabled",
    },
    // ---- scheduling
    Rule {
        at: "spec.scheduling.priority",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "priority can't be the name of a PriorityClass",
        remedy: "write the name of a PriorityClass, in lower case, and not a number",
        example: "priority-name",
    },
    Rule {
        at: "spec.scheduling.queue",
        field: "",
        rule: "self.size() <= 63 && self.matches($SUBDOMAIN)",
        wrong: "queue can't be the name of a LocalQueue",
        remedy: "write the name of a LocalQueue of this namespace, in lower case, up to 63 characters",
        example: "queue-name",
    },
    Rule {
        at: "spec.scheduling.schedulerName",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "schedulerName can't be the name of a scheduler",
        remedy: "write it in lower case, as in default-scheduler",
        example: "scheduler-name",
    },
    Rule {
        at: "spec.scheduling.topologyKey",
        field: "",
        rule: "self.matches($LABEL_KEY)",
        wrong: "topologyKey can't be the key of a node label",
        remedy: "write a key such as topology.kubernetes.io/zone",
        example: "topology-key",
    },
    Rule {
        at: "spec.scheduling.nodeSelector",
        field: "",
        rule: "self.all(k, $NODE_LABEL)",
        wrong: "{an entry|the entry %|self.filter(k, !($NODE_LABEL))[0]} of nodeSelector can't be a node label",
        remedy: "write KEY: VALUE as kubectl get nodes --show-labels prints them",
        example: "node-selector",
    },
    // ---- labels and annotations
    Rule {
        at: "spec.labels",
        field: "",
        rule: "self.all(k, $NODE_LABEL)",
        wrong: "{an entry|the entry %|self.filter(k, !($NODE_LABEL))[0]} of labels can't be a label",
        remedy: "write letters, digits, '-', '_' and '.', as in team: vision; other text belongs into annotations",
        example: "labels-value",
    },
    Rule {
        at: "spec.labels",
        field: "",
        rule: "self.all(k, !($KEY_OF_OPERATOR))",
        wrong: "{a key|the key %|self.filter(k, $KEY_OF_OPERATOR)[0]} of labels is set by the operator, the Job controller or Kueue",
        remedy: "remove it, or choose a key with a prefix of your own; a Kueue queue is scheduling.queue",
        example: "labels-reserved",
    },
    Rule {
        at: "spec.annotations",
        field: "",
        rule: "self.all(k, k.matches($LABEL_KEY))",
        wrong: "{a key|the key %|self.filter(k, !k.matches($LABEL_KEY))[0]} of annotations can't be the key of an annotation",
        remedy: "write NAME or PREFIX/NAME with letters, digits, '-', '_' and '.', as in example.com/owner",
        example: "annotations-key",
    },
    Rule {
        at: "spec.annotations",
        field: "",
        rule: "self.all(k, !($KEY_OF_OPERATOR))",
        wrong: "{a key|the key %|self.filter(k, $KEY_OF_OPERATOR)[0]} of annotations is set by the operator, the Job controller or Kueue",
        remedy: "remove it; what Kueue reads of a pod belongs into podTemplate.metadata.annotations",
        example: "annotations-reserved",
    },
    // ---- monitoring
    Rule {
        at: "spec",
        field: ".monitoring.metricsPort",
        rule: "!$(monitoring.enabled) || \
               !($(monitoring.metricsPort) in [$(networking.masterPort), $(networking.masterPort) + 1])",
        wrong: "monitoring.metricsPort (8080 if it is not written) is networking.masterPort or the port after it, which the next attempt uses",
        remedy: "choose another port for one of the two",
        example: "metrics-port-taken",
    },
    Rule {
        at: "spec.monitoring.progress.patterns[]",
        field: "",
        rule: "self.matches('[(][?]P?<[A-Za-z_]')",
        wrong: "{a pattern|the pattern \"%\"|self} of monitoring.progress names nothing that it finds",
        remedy: "put what it finds into named groups, as in 'it (?P<step>[0-9]+)/(?P<steps>[0-9]+) loss=(?P<loss>[^ ]+)'",
        example: "pattern-without-group",
    },
    Rule {
        at: "spec.monitoring.mlflowTrackingUri",
        field: "",
        rule: "self.matches('^https?://[^[:space:]/]+(/[^[:space:]]*)?$')",
        wrong: "mlflowTrackingUri is not the address of an MLflow tracking server",
        remedy: "write http://HOST:PORT or https://HOST; for a folder, run mlflow server with it",
        example: "mlflow-scheme",
    },
    Rule {
        at: "spec.monitoring.mlflowTrackingUri",
        field: "",
        rule: "!self.matches('^https?://[^/]*@')",
        wrong: "mlflowTrackingUri holds a user or a password, which everybody can read here",
        remedy: "put them into a Secret as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD and name it in trackerSecret",
        example: "mlflow-password",
    },
    Rule {
        at: "spec.monitoring",
        field: ".mlflowExperiment",
        rule: "!has(self.mlflowExperiment) || has(self.mlflowTrackingUri)",
        wrong: "mlflowExperiment without a server",
        remedy: "set mlflowTrackingUri, or remove mlflowExperiment",
        example: "mlflow-experiment-alone",
    },
    Rule {
        at: "spec.monitoring",
        field: ".mlflowRegisteredModel",
        rule: "!has(self.mlflowRegisteredModel) || has(self.mlflowTrackingUri)",
        wrong: "mlflowRegisteredModel without a server",
        remedy: "set mlflowTrackingUri, or remove mlflowRegisteredModel",
        example: "mlflow-model-alone",
    },
    Rule {
        at: "spec.monitoring.mlflowRegisteredModel",
        field: "",
        rule: "self.matches('^[^/:\"\\'`[:cntrl:]]+$')",
        wrong: "mlflowRegisteredModel holds a slash, a colon or a quote, which the model registry can't have in a name",
        remedy: "write a name such as llama-support",
        example: "mlflow-model-name",
    },
    Rule {
        at: "spec",
        field: ".monitoring.mlflowRegisteredModel",
        rule: "!has(self.monitoring) || !has(self.monitoring.mlflowRegisteredModel) || has(self.output) && \
               !self.output.startsWith('pvc://')",
        wrong: "mlflowRegisteredModel needs a result that is published",
        remedy: "write an address such as s3://BUCKET/PREFIX in output, or remove mlflowRegisteredModel",
        example: "mlflow-model-without-result",
    },
    Rule {
        at: "spec.monitoring.wandbProject",
        field: "",
        rule: r"!self.matches('[/\\\\#?%:]')",
        wrong: "wandbProject holds a character that Weights & Biases allows in no project's name",
        remedy: "write the project alone, and its entity in env as WANDB_ENTITY",
        example: "wandb-project",
    },
    Rule {
        at: "spec.monitoring.trackerSecret",
        field: "",
        rule: "self.matches($SUBDOMAIN)",
        wrong: "trackerSecret can't be the name of a Secret",
        remedy: "write the name of a Secret of this namespace, in lower case, and not a key itself",
        example: "tracker-secret-name",
    },
    Rule {
        at: "spec.monitoring.tensorboardImage",
        field: "",
        rule: "!self.matches('[[:space:]]')",
        wrong: "tensorboardImage holds white space",
        remedy: "write REGISTRY/NAME:TAG without blanks",
        example: "tensorboard-image-space",
    },
    Rule {
        at: "spec",
        field: ".monitoring.objective",
        rule: "!has(self.monitoring) || !has(self.monitoring.objective) || $(monitoring.enabled)",
        wrong: "monitoring.objective can't be read with monitoring.enabled: false, because the operator then does not see what the program reports",
        remedy: "set monitoring.enabled to true, or remove objective",
        example: "objective-unwatched",
    },
    Rule {
        at: "spec.monitoring.minThroughput",
        field: "",
        rule: "self > 0.0",
        wrong: "minThroughput must be greater than 0",
        remedy: "write a number such as 5, or remove it",
        example: "min-throughput",
    },
    Rule {
        at: "spec",
        field: ".monitoring.minThroughput",
        rule: "!has(self.monitoring) || !has(self.monitoring.minThroughput) || $(monitoring.enabled)",
        wrong: "monitoring.minThroughput has no effect with monitoring.enabled: false, because the operator then sees no throughput",
        remedy: "set monitoring.enabled to true, or remove minThroughput",
        example: "min-throughput-unwatched",
    },
    Rule {
        at: "spec.monitoring.plateauSeconds",
        field: "",
        rule: "self == 0 || self >= 60",
        wrong: "plateauSeconds is too short for a loss to improve",
        remedy: "write 60 or more, or 0 to never check",
        example: "plateau-short",
    },
    // ---- success
    Rule {
        at: "spec",
        field: ".successPolicy",
        rule: "!has(self.successPolicy) || $(monitoring.enabled)",
        wrong: "successPolicy can't be judged with monitoring.enabled: false, because the operator then does not see what the program reports",
        remedy: "set monitoring.enabled to true, or remove successPolicy",
        example: "success-unwatched",
    },
    Rule {
        at: "spec.successPolicy",
        field: ".earlyStoppingPatience",
        rule: "!has(self.earlyStopping) || !has(self.earlyStoppingPatience)",
        wrong: "earlyStoppingPatience is short for earlyStopping, and both are written",
        remedy: "keep earlyStopping, and write its patience there",
        example: "early-stopping-twice",
    },
    Rule {
        at: "spec.successPolicy.targetAccuracy",
        field: "",
        rule: "self > 0.0",
        wrong: "targetAccuracy must be greater than 0",
        remedy: "write it as the program counts it: a share such as 0.95, or a percentage such as 95",
        example: "target-accuracy",
    },
    Rule {
        at: "spec.successPolicy.earlyStopping",
        field: ".mode",
        rule: "has(self.metric) || self.mode == 'min'",
        wrong: "earlyStopping with mode max names no metric",
        remedy: "name the metric that should grow, as in metric: accuracy",
        example: "early-stopping-max",
    },
    // ---- networking
    Rule {
        at: "spec.networking",
        field: ".rdmaEnabled",
        rule: "!$(rdmaEnabled) || has(self.rdmaResource)",
        wrong: "rdmaEnabled needs the name of the RDMA device",
        remedy: "set rdmaResource to the resource that the nodes offer, such as rdma/rdma_shared_device_a",
        example: "rdma-resource-missing",
    },
    Rule {
        at: "spec.networking.rdmaResource",
        field: "",
        rule: "self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$')",
        wrong: "rdmaResource is not the full name of an extended resource",
        remedy: "write DOMAIN/NAME as kubectl describe node prints it, such as rdma/rdma_shared_device_a",
        example: "rdma-resource-name",
    },
    Rule {
        at: "spec.networking.interface",
        field: "",
        rule: "self.matches('^[^[:space:]/]+$')",
        wrong: "interface can't be the name of a network interface",
        remedy: "write one name such as eth0, or several joined by commas",
        example: "interface-name",
    },
    Rule {
        at: "spec",
        field: ".networking.hostNames",
        rule: "!has(self.networking) || !has(self.networking.hostNames) || self.networking.hostNames == 'AllWorkers' || \
               !($(framework) in ['tensorflow', 'mxnet', 'mpi']) && (!has(self.roles) || size(self.roles) == 0)",
        wrong: "networking.hostNames is FirstWorker, but with roles, tensorflow, mxnet or mpi the others are found by name too",
        remedy: "leave it out, or write AllWorkers",
        example: "host-names",
    },
];

/// Rejections by types and ranges.
pub const SCHEMA_REFUSALS: &[SchemaRefusal] = &[
    SchemaRefusal {
        field: "spec.runtimeRef.kind",
        says: "spec.runtimeRef.kind: Unsupported value: \"PodTemplate\": supported values: \"ClusterTrainingRuntime\", \"TrainingRuntime\"",
        remedy: "write ClusterTrainingRuntime, or TrainingRuntime for one of the job's own namespace",
        example: "runtime-kind",
    },
    SchemaRefusal {
        field: "spec.numWorkers",
        says: "spec.numWorkers in body should be greater than or equal to 1",
        remedy: "write a number from 1 to 4096",
        example: "workers-zero",
    },
    SchemaRefusal {
        field: "spec.numWorkers",
        says: "spec.numWorkers in body should be less than or equal to 4096",
        remedy: "write a number from 1 to 4096, with more GPUs per worker",
        example: "workers-many",
    },
    SchemaRefusal {
        field: "spec.numWorkers",
        says: "spec.numWorkers in body must be of type integer",
        remedy: "write it without quotes",
        example: "workers-text",
    },
    SchemaRefusal {
        field: "spec.elastic.maxWorkers",
        says: "spec.elastic.maxWorkers: Required value",
        remedy: "write the most that numWorkers may become",
        example: "elastic-without-max",
    },
    SchemaRefusal {
        field: "spec.elastic.waitSeconds",
        says: "spec.elastic.waitSeconds in body should be greater than or equal to 1",
        remedy: "write a number of seconds from 1",
        example: "elastic-wait-zero",
    },
    SchemaRefusal {
        field: "spec.roles[].name",
        says: "spec.roles[0].name in body should match '^[a-z][a-z0-9]*$'",
        remedy: "write lower-case letters and digits, up to 15, beginning with a letter",
        example: "role-name",
    },
    SchemaRefusal {
        field: "spec.roles",
        says: r#"Duplicate value: {"name":"actor"}"#,
        remedy: "keep one of the two roles of that name, with more replicas",
        example: "role-duplicate",
    },
    SchemaRefusal {
        field: "spec.gpusPerWorker",
        says: "spec.gpusPerWorker in body should be greater than or equal to 0",
        remedy: "write a number from 0 to 16",
        example: "gpus-negative",
    },
    SchemaRefusal {
        field: "spec.gpusPerWorker",
        says: "spec.gpusPerWorker in body should be less than or equal to 16",
        remedy: "write a number from 0 to 16",
        example: "gpus-many",
    },
    SchemaRefusal {
        field: "spec.gpuPerWorker",
        says: r#"unknown field "spec.gpuPerWorker""#,
        remedy: "correct the name (`kubectl explain trainingjob.spec` lists all): gpusPerWorker",
        example: "unknown-field",
    },
    SchemaRefusal {
        field: "spec.podTemplate.containers",
        says: r#"unknown field "spec.podTemplate.containers""#,
        remedy: "write it below spec.podTemplate.spec, as in a Pod",
        example: "podtemplate-without-spec",
    },
    SchemaRefusal {
        field: "spec.resources.requests",
        says: "spec.resources.requests.cpu in body must be of type integer,string",
        remedy: "put a fraction in quotes, or write it with a unit: 500m",
        example: "requests-fraction",
    },
    SchemaRefusal {
        field: "spec.framework",
        says: r#"supported values: "pytorch", "tensorflow", "jax", "xgboost", "paddle", "mxnet", "mpi", "none""#,
        remedy: "write one of these",
        example: "framework-unknown",
    },
    SchemaRefusal {
        field: "spec.env",
        says: r#"Duplicate value: {"name":"LOG_LEVEL"}"#,
        remedy: "keep one of the two variables of that name",
        example: "env-duplicate",
    },
    SchemaRefusal {
        field: "spec.volumes",
        says: r#"Duplicate value: {"name":"scratch"}"#,
        remedy: "keep one of the two volumes of that name",
        example: "volume-duplicate",
    },
    SchemaRefusal {
        field: "spec.volumeMounts",
        says: r#"Duplicate value: {"mountPath":"/scratch"}"#,
        remedy: "keep one of the two mounts of that path",
        example: "mount-duplicate",
    },
    SchemaRefusal {
        field: "spec.hyperparameters.batchSize",
        says: "spec.hyperparameters.batchSize in body should be greater than or equal to 1",
        remedy: "write a number from 1",
        example: "batch-size-zero",
    },
    SchemaRefusal {
        field: "spec.hyperparameters.epochs",
        says: "spec.hyperparameters.epochs in body should be greater than or equal to 1",
        remedy: "write a number from 1",
        example: "epochs-zero",
    },
    SchemaRefusal {
        field: "spec.checkpoint.frequency",
        says: "spec.checkpoint.frequency in body should be greater than or equal to 1",
        remedy: "write a number of epochs from 1, or checkpoint.enabled: false",
        example: "frequency-zero",
    },
    SchemaRefusal {
        field: "spec.checkpoint.storage.type",
        says: r#"supported values: "pvc", "nfs", "s3", "gcs", "azure""#,
        remedy: "write one of these; another place can be mounted as a claim: type pvc",
        example: "storage-type",
    },
    SchemaRefusal {
        field: "spec.checkpoint.retention",
        says: "spec.checkpoint.retention in body should be greater than or equal to 1",
        remedy: "write how many checkpoints are kept, from 1",
        example: "retention-zero",
    },
    SchemaRefusal {
        field: "spec.checkpoint.keepBest.metric",
        says: "spec.checkpoint.keepBest.metric: Required value",
        remedy: "write the name of the metric as the checkpoints have it, such as eval_loss",
        example: "keep-best-metric",
    },
    SchemaRefusal {
        field: "spec.checkpoint.backup.intervalSeconds",
        says: "spec.checkpoint.backup.intervalSeconds in body should be greater than or equal to 10",
        remedy: "write a number of seconds from 10",
        example: "backup-interval",
    },
    SchemaRefusal {
        field: "spec.networking.masterPort",
        says: "spec.networking.masterPort in body should be greater than or equal to 1024",
        remedy: "write a port from 1024 to 65534",
        example: "port-low",
    },
    SchemaRefusal {
        field: "spec.networking.masterPort",
        says: "spec.networking.masterPort in body should be less than or equal to 65534",
        remedy: "write a port from 1024 to 65534",
        example: "port-high",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.backoffLimit",
        says: "spec.failurePolicy.backoffLimit in body should be greater than or equal to 0",
        remedy: "write a number from 0 to 1000",
        example: "backoff-negative",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.activeDeadlineSeconds",
        says: "spec.failurePolicy.activeDeadlineSeconds in body should be greater than or equal to 1",
        remedy: "write a number of seconds from 1, or leave it out for no limit",
        example: "deadline-zero",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.startDeadlineSeconds",
        says: "spec.failurePolicy.startDeadlineSeconds in body should be greater than or equal to 1",
        remedy: "write a number of seconds from 1, or leave it out to wait for ever",
        example: "start-deadline-zero",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.nodeLostSeconds",
        says: "spec.failurePolicy.nodeLostSeconds in body should be greater than or equal to 30",
        remedy: "write a number of seconds from 30: by then the programs on a node that is cut off have been stopped by its agents",
        example: "node-lost-soon",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.hang.timeoutSeconds",
        says: "spec.failurePolicy.hang.timeoutSeconds in body should be greater than or equal to 30",
        remedy: "write a number of seconds from 30, more than the longest evaluation or checkpoint takes",
        example: "hang-timeout",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.hang.idleTimeoutSeconds",
        says: "spec.failurePolicy.hang.idleTimeoutSeconds in body should be greater than or equal to 30",
        remedy: "write a number of seconds from 30, more than the longest silent wait of the whole gang takes",
        example: "hang-idle-timeout",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.rules",
        says: r#"spec.failurePolicy.rules[0].reasons[0]: Unsupported value: "OutOfMemory""#,
        remedy: "write one of the reasons in docs/operate.md, such as OOMKilled or CudaOutOfMemory",
        example: "rule-reason",
    },
    SchemaRefusal {
        field: "spec.failurePolicy.rules",
        says: "spec.failurePolicy.rules[0].action: Required value",
        remedy: "write Restart, Fail or Ignore",
        example: "rule-action",
    },
    SchemaRefusal {
        field: "spec.monitoring.metricsPort",
        says: "spec.monitoring.metricsPort in body should be greater than or equal to 1024",
        remedy: "write a port from 1024 to 65535",
        example: "metrics-port-low",
    },
    SchemaRefusal {
        field: "spec.monitoring.objective.metric",
        says: "spec.monitoring.objective.metric: Required value",
        remedy: "write the name of the metric, such as eval_loss",
        example: "objective-metric-missing",
    },
    SchemaRefusal {
        field: "spec.monitoring.objective.mode",
        says: r#"spec.monitoring.objective.mode: Unsupported value: "lowest""#,
        remedy: "write min or max",
        example: "objective-mode",
    },
    SchemaRefusal {
        field: "spec.monitoring.objective.rungs.minStep",
        says: "spec.monitoring.objective.rungs.minStep in body should be greater than or equal to 1",
        remedy: "write a step from 1, before which no two jobs are compared",
        example: "objective-min-step",
    },
    SchemaRefusal {
        field: "spec.monitoring.objective.rungs.factor",
        says: "spec.monitoring.objective.rungs.factor in body should be greater than or equal to 2",
        remedy: "write a whole number from 2, such as 3",
        example: "objective-factor",
    },
    SchemaRefusal {
        field: "spec.successPolicy.earlyStopping.patience",
        says: "spec.successPolicy.earlyStopping.patience: Required value",
        remedy: "write how many evaluations without a better value are borne, from 1",
        example: "patience-missing",
    },
    SchemaRefusal {
        field: "spec.successPolicy.earlyStopping.minDelta",
        says: "spec.successPolicy.earlyStopping.minDelta in body should be greater than or equal to 0",
        remedy: "write a number from 0, and which way is better in mode",
        example: "min-delta-negative",
    },
    SchemaRefusal {
        field: "spec.successPolicy.earlyStopping.mode",
        says: r#"supported values: "min", "max""#,
        remedy: "write one of these",
        example: "mode-unknown",
    },
    SchemaRefusal {
        field: "spec.successPolicy.earlyStoppingPatience",
        says: "spec.successPolicy.earlyStoppingPatience in body should be greater than or equal to 1",
        remedy: "write a number of evaluations from 1",
        example: "patience-zero",
    },
    SchemaRefusal {
        field: "spec.ttlSecondsAfterFinished",
        says: "spec.ttlSecondsAfterFinished in body should be greater than or equal to 0",
        remedy: "write a number of seconds from 0, or leave it out to keep the job",
        example: "ttl-negative",
    },
];
