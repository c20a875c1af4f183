//! What tests against a real API server share.
#![allow(dead_code, reason = "each test binary uses its part")]

use kube::{Client, Config, config::Kubeconfig};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The folder of the programs that clusters are made of, kubectl among them; built now if nobody has.
pub fn tools() -> PathBuf {
    if let Some(tools) = std::env::var_os("TRAININGJOB_TEST_TOOLS") {
        return tools.into();
    }
    let tools = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("devcluster/cluster"))
        .arg("tools")
        .stdin(Stdio::null())
        .output()
        .expect("devcluster/cluster can be run");
    assert!(tools.status.success(), "no tools: {}", String::from_utf8_lossy(&tools.stderr));
    String::from_utf8_lossy(&tools.stdout).trim().into()
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
    /// `TRAININGJOB_TEST_KUBECONFIG` names the kubeconfig of a running one to use instead: nothing of it is removed.
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
        let up = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("devcluster/cluster"))
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

    /// Its kubeconfig, for programs other than this.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The name that `devcluster/cluster` knows it by; none of a cluster that was there before.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// A client for the runtime of the test that calls.
    pub async fn client(&self) -> Client {
        Client::try_from(self.config().await).expect("a client")
    }

    /// What clients are made of.
    pub async fn config(&self) -> Config {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("the kubeconfig can be read");
        Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a kubeconfig")
    }
}
