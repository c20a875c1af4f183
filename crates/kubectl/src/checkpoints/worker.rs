//! The agent in a worker's pod, beside the program that trains.

use super::{Signals, Streams};
use crate::cluster::Cluster;
use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use objects::AGENT_PATH;
use plan::template::TRAINING;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of the agent's output that are read at one time.
const CHUNK: usize = 16 * 1024;

/// Runs the agent in the container `training`, and returns its exit code.
pub(crate) async fn ask(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    args: &[String],
    streams: &mut Streams<'_>,
) -> anyhow::Result<u8> {
    let what = format!("run the agent in pod {pod} in namespace {namespace}");
    let command: Vec<&str> = std::iter::once(AGENT_PATH).chain(args.iter().map(String::as_str)).collect();
    // Nothing is written to its stdin, which ends with the connection. Thus the agent notices that its client is gone.
    let params = AttachParams::default().container(TRAINING).stdin(true);
    let pods = cluster.api::<Pod>(namespace);
    let mut process = cluster.ask(&what, pods.exec(pod, command, &params)).await?;
    let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
    let (Some(stdout), Some(stderr), Some(status)) = (stdout, stderr, status) else {
        bail!("can't {what}: its output is not connected");
    };
    let mut signals = Signals::new()?;
    tokio::select! {
        copied = copy(stdout, stderr, streams) => copied?,
        code = signals.next() => {
            return Ok(code);
        }
    }
    match status.await {
        Some(status) => exit_code(&status).map_err(|why| anyhow!("can't {what}: {why}")),
        None => bail!("the connection to pod {pod} broke off before the agent had ended: try again"),
    }
}

/// Copies both streams until both have ended.
async fn copy(
    mut stdout: impl AsyncRead + Unpin,
    mut stderr: impl AsyncRead + Unpin,
    streams: &mut Streams<'_>,
) -> anyhow::Result<()> {
    let (mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        tokio::select! {
            read = stdout.read(&mut out), if out_open => {
                let read = read?;
                streams.out.write_all(&out[..read])?;
                streams.out.flush()?;
                out_open = read > 0;
            }
            read = stderr.read(&mut err), if err_open => {
                let read = read?;
                streams.err.write_all(&err[..read])?;
                err_open = read > 0;
            }
        }
    }
    Ok(())
}

/// Returns the exit code of a program that was run in a container. The error says why the program was not run.
pub(super) fn exit_code(status: &Status) -> Result<u8, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode")).find_map(|cause| {
        let code: i64 = cause.message.as_deref()?.trim().parse().ok()?;
        Some(u8::try_from(code).unwrap_or(1))
    });
    code.ok_or_else(|| status.message.clone().unwrap_or_else(|| "its node does not say why".into()))
}
