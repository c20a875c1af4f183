//! `kubectl trainingjob`: kubectl runs this program when it is on PATH.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    kubectl_trainingjob::main(std::env::args_os().collect()).await
}
