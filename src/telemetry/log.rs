//! Logs, as text or one JSON object a line.

use tracing_subscriber::{EnvFilter, fmt};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For log stores.
    Json,
}

/// Starts logging to stderr. `level` is a level or a list of directives such as `info,kube=debug`.
///
/// # Errors
/// If the level is invalid.
pub fn init(level: &str, format: LogFormat) -> anyhow::Result<()> {
    let builder = fmt().with_env_filter(filter(level)?).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).init(),
    }
    Ok(())
}

/// What is logged at a level.
fn filter(written: &str) -> anyhow::Result<EnvFilter> {
    let mut level = written.to_lowercase();
    if !level.contains("kube_runtime") {
        level.push_str(",kube_runtime=warn"); // its spans repeat ours
    }
    if !level.contains("kube_client") {
        level.push_str(",kube_client::client=error"); // it logs all bytes that it can't decode, even users' specs
    }
    EnvFilter::try_new(&level).map_err(|e| {
        anyhow::anyhow!(
            "LOG_LEVEL {written:?} is not a level (error, warn, info, debug, trace) or a list of directives: {e}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::filter;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn log_filter_accepts_a_level_or_directives() {
        assert_eq!(filter("DEBUG").unwrap().max_level_hint(), Some(LevelFilter::DEBUG));
        assert_eq!(filter("warn,kube=trace").unwrap().max_level_hint(), Some(LevelFilter::TRACE));
        let error = filter("verbose=loud").unwrap_err().to_string();
        assert!(error.starts_with("LOG_LEVEL \"verbose=loud\" is not a level"), "{error}");
    }
}
