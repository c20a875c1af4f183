//! An operator inside the test, in one namespace.

use super::agents::operator_key;
use super::wire::{Instructions, Wire};
use super::witness::Witness;
use super::{DEADLINE, World};
use kube::Client;
use plan::OperatorInfo;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::{Instrument, error_span};
use trainingjob_operator::controller::{self, AgentAccess, Options};
use trainingjob_operator::telemetry::Metrics;

/// An operator that is due to act within this time is not idle.
const SOON: Duration = Duration::from_secs(3);
/// Events are published beside a reconcile, and the content of a watch is stored a moment later.
const A_MOMENT: Duration = Duration::from_millis(100);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

pub struct Operator {
    pub wire: Arc<Wire>,
    witness: Arc<Witness>,
    namespace: String,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
}

impl Operator {
    pub fn start(world: &World, namespace: &str, instructions: Instructions) -> Self {
        let upstream = Client::try_from(world.config.clone()).expect("a client");
        let wire = Wire::new(upstream, namespace, instructions);
        let metrics = Arc::new(Metrics::new());
        let runtime = OperatorInfo { agent_image: "agent.test/agent:1".into(), ..OperatorInfo::default() };
        let agent_access = if wire.has_agents() { AgentAccess::Proxy } else { AgentAccess::Off };
        let options = Options {
            namespace: Some(namespace.into()),
            runtime,
            agent_access,
            operator_key: operator_key(),
            ..Options::default()
        };
        let running = controller::run(wire.client(), options, metrics.clone(), Box::pin(std::future::pending()));
        // Log lines about no job in particular are filed under its namespace too. The log keeps no lesser spans of
        // ours.
        let task = tokio::spawn(running.instrument(error_span!("operator", namespace)));
        Self { wire, witness: world.witness.clone(), namespace: namespace.to_owned(), metrics, task }
    }

    /// Ends the operator as SIGKILL does. It sends nothing any more, and no answer arrives.
    pub fn kill(&self) {
        self.wire.end();
        self.task.abort();
    }

    /// Waits until it has reconciled and has nothing to do, so that it has decided what it could.
    ///
    /// An operator that is refused over and over never settles, so the time is bounded.
    pub async fn decided(&self) {
        let decided = async {
            while self.reconciles() == 0 || !self.metrics.is_idle(Duration::ZERO) || self.wire.idle() < A_MOMENT {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(3), decided).await;
    }

    /// Whether it knows all that the witness has seen, and has nothing to do. Silence is no proof, because an operator
    /// without processor time is silent, too.
    pub fn is_idle(&self) -> bool {
        let newest = self.witness.read(&self.namespace, |space| space.newest.clone());
        newest.iter().all(|(kind, version)| self.wire.has_brought(*kind, *version))
            && self.metrics.is_idle(SOON)
            && self.wire.idle() >= A_MOMENT
    }

    /// Waits until it is idle.
    ///
    /// # Errors
    /// Where it went on making requests.
    pub async fn idle(&self) -> Result<(), String> {
        let idle = async {
            while !self.is_idle() {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        tokio::time::timeout(DEADLINE, idle).await.map_err(|_| {
            let sent = self.wire.sent();
            let last: Vec<_> = sent.iter().rev().take(8).rev().map(|sent| format!("\n  {sent:?}")).collect();
            format!("the operator is not idle after {} s; it sent last:{}", DEADLINE.as_secs(), last.concat())
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
