//! An operator inside the test, in one namespace.

use super::wire::{Instructions, Wire};
use super::{DEADLINE, World};
use kube::Client;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use trainingjob_operator::controller::{self, AgentAccess, Options};
use trainingjob_operator::plan::Runtime;
use trainingjob_operator::telemetry::Metrics;

pub struct Operator {
    pub wire: Arc<Wire>,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
}

impl Operator {
    pub fn start(world: &World, namespace: &str, instructions: Instructions) -> Self {
        let upstream = Client::try_from(world.config.clone()).expect("a client");
        let wire = Wire::new(upstream, namespace, instructions);
        let metrics = Arc::new(Metrics::new());
        let runtime = Runtime { agent_image: "agent.test/agent:1".into(), ..Runtime::default() };
        let agent_access = if wire.has_agents() { AgentAccess::Proxy } else { AgentAccess::Off };
        let options = Options { namespace: Some(namespace.into()), runtime, agent_access, ..Options::default() };
        let task = tokio::spawn(controller::run(wire.client(), options, metrics.clone(), std::future::pending()));
        Self { wire, metrics, task }
    }

    /// As by SIGKILL: nothing of it is sent any more, no answer arrives.
    pub fn kill(&self) {
        self.wire.end();
        self.task.abort();
    }

    /// Waits until it has reconciled and then sent nothing for a moment: it has decided what it could.
    ///
    /// One that is refused over and over never comes to rest: the time is bounded.
    pub async fn decided(&self) {
        let decided = async {
            while self.reconciles() == 0 || self.wire.idle() < Duration::from_millis(300) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(3), decided).await;
    }

    /// Waits until it has sent nothing but watches for so long.
    pub async fn quiet(&self, quiet: Duration) -> Result<(), String> {
        let settled = async {
            while let Some(left) = quiet.checked_sub(self.wire.idle()).filter(|left| !left.is_zero()) {
                tokio::time::sleep(left).await;
            }
        };
        tokio::time::timeout(DEADLINE, settled).await.map_err(|_| {
            let sent = self.wire.sent();
            let last: Vec<_> = sent.iter().rev().take(8).rev().map(|sent| format!("\n  {sent:?}")).collect();
            format!("with nothing to do it still sends requests after {} s:{}", DEADLINE.as_secs(), last.concat())
        })
    }

    fn reconciles(&self) -> usize {
        let text = self.metrics.render();
        let counts = text.lines().filter(|line| line.starts_with("trainingjob_reconciliation_total"));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
    }
}
