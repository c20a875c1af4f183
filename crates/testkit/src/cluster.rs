//! Clusters for tests.

use super::root;
use kube::{Client, Config, config::Kubeconfig};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A policy: the operator may not write the status of the job `denied`.
pub const DENIES: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: denied }
spec:
  matchConstraints:
    resourceRules:
      - { apiGroups: [ml.example.com], apiVersions: [v1], operations: [UPDATE], resources: [trainingjobs/status] }
  validations: [{ expression: "object.metadata.name != 'denied'" }]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: denied }
spec: { policyName: denied, validationActions: [Deny] }
"#;

/// The folder of the programs that clusters consist of, kubectl among them. Builds them now if they are missing.
pub fn tools() -> &'static Path {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS.get_or_init(|| {
        if let Some(tools) = std::env::var_os("TRAININGJOB_TEST_TOOLS") {
            return tools.into();
        }
        let tools = Command::new(root("devcluster/cluster")).arg("tools").stdin(Stdio::null()).output();
        let tools = tools.expect("devcluster/cluster can be run");
        assert!(tools.status.success(), "no tools: {}", String::from_utf8_lossy(&tools.stderr));
        String::from_utf8_lossy(&tools.stdout).trim().into()
    })
}

/// A Kubernetes cluster that ends with this process.
pub struct Cluster {
    kubeconfig: PathBuf,
    /// Its name, if it is ours.
    name: Option<String>,
}

impl Cluster {
    /// A control plane without nodes. Give each test binary its own name.
    ///
    /// `TRAININGJOB_TEST_KUBECONFIG` names the kubeconfig of a running cluster to use instead. Nothing of it is
    /// removed.
    pub fn control(name: &str) -> Self {
        Self::up(name, &["--control-only", "--no-audit"])
    }

    /// A cluster made by `devcluster/cluster up` with these flags.
    pub fn up(name: &str, flags: &[&str]) -> Self {
        if let Some(kubeconfig) = std::env::var_os("TRAININGJOB_TEST_KUBECONFIG") {
            return Self { kubeconfig: kubeconfig.into(), name: None };
        }
        let pid = std::process::id().to_string();
        let name = format!("{name}-{pid}");
        let up = Command::new(root("devcluster/cluster"))
            .args(["up", "--owner-pid", &pid, "--name", &name])
            .args(flags)
            .stdin(Stdio::null())
            .output()
            .expect("devcluster/cluster can be run");
        let (said, log) = (String::from_utf8_lossy(&up.stdout), String::from_utf8_lossy(&up.stderr));
        assert!(up.status.success(), "no cluster for the tests: {said}{log}");
        let kubeconfig = said.lines().find_map(|line| line.strip_prefix("export KUBECONFIG="));
        let kubeconfig = kubeconfig.expect("`cluster up` prints `export KUBECONFIG=...`").into();
        Self { kubeconfig, name: Some(name) }
    }

    /// The kubeconfig, for other programs.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The name by which `devcluster/cluster` knows it. None for a cluster that existed before.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// `devcluster/cluster` with these arguments, on this cluster.
    pub fn devcluster(&self, args: &[&str]) {
        let name = self.name.as_deref().expect("the cluster is this program's own");
        let output = Command::new(root("devcluster/cluster")).args(args).args(["--name", name]).output();
        let output = output.expect("devcluster/cluster can be run");
        assert!(output.status.success(), "cluster {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A client for the runtime of the calling test.
    pub async fn client(&self) -> Client {
        Client::try_from(self.config().await).expect("a client")
    }

    /// The configuration of clients.
    pub async fn config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("the kubeconfig can be read");
        Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a kubeconfig")
    }

    /// The output of kubectl on this cluster.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    /// The same with this on its standard input, which `-f -` reads.
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> String {
        let output = self.try_kubectl(args, input).unwrap_or_else(|error| panic!("kubectl {args:?}: {error}"));
        String::from_utf8(output).expect("kubectl prints text")
    }

    /// The same as bytes. The error is kubectl's message.
    ///
    /// # Errors
    /// What it wrote to stderr.
    pub fn try_kubectl(&self, args: &[&str], input: &str) -> Result<Vec<u8>, String> {
        let program = tools().join("kubectl");
        let mut kubectl = Command::new(&program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        kubectl.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("kubectl reads its input");
        let output = kubectl.wait_with_output().expect("kubectl ends");
        if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
    }

    /// Installs a CRD in this cluster, and waits until the API server has established it.
    pub fn apply_crd(&self, crd: &impl Serialize) {
        self.kubectl_with(&["apply", "-f", "-"], &serde_json::to_string(crd).expect("JSON"));
        // `--for=condition` fails where there are no conditions at all yet.
        for wanted in ["jsonpath={.status.conditions}", "condition=Established"] {
            let wanted = format!("--for={wanted}");
            self.kubectl(&["wait", &wanted, "crd/trainingjobs.ml.example.com", "--timeout=60s"]);
        }
    }
}

/// A kind PodGroup as a gang scheduler installs it, without the scheduler.
pub fn pod_groups(group: &str, version: &str) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("podgroups.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup" },
            "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

/// A job of two workers that need nothing, unless `fields` of the spec say otherwise.
pub fn job(name: &str, fields: &Value) -> Value {
    let mut spec = json!({
        "model": "none", "dataset": "none", "numWorkers": 2, "gpusPerWorker": 0, "image": "none",
        "networking": { "backend": "gloo" }, "checkpoint": { "enabled": false },
    });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": { "name": name }, "spec": spec })
}
