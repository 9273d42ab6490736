//! Messages of the process itself: what goes wrong without ending anything, and what it does, if somebody wants to know.

use outrigger_view::output::Output;
use tracing_subscriber::EnvFilter;

use crate::terminal;
use crate::value::ValueError;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// Log what outrigger itself does, for example debug, or outrigger_agent=trace.
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", hide_env_values = true, value_parser = filter)]
    log: Option<String>,
}

/// Checks a filter. It is kept as text: the parsed one cannot be cloned.
fn filter(text: &str) -> Result<String, ValueError> {
    EnvFilter::builder().parse(text)?;
    Ok(text.to_owned())
}

impl LogArgs {
    /// Has messages written to standard error, or above the view. Without a filter only warnings are, or with `quiet` only
    /// errors, and without the module and the pod they are about: their text says it.
    pub(crate) fn apply(&self, quiet: bool, output: &Output) {
        let output = output.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || output.writer())
            .with_ansi(terminal::colors().err)
            // It would tell standard error with `eprintln!`, which panics if nobody reads that any more.
            .log_internal_errors(false)
            .without_time();
        match self.log.as_deref().filter(|text| !text.is_empty()) {
            // It has been parsed before.
            Some(text) => subscriber.with_env_filter(EnvFilter::new(text)).init(),
            None => {
                let level = if quiet { tracing::Level::ERROR } else { tracing::Level::WARN };
                subscriber.with_max_level(level).with_target(false).init();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn filters_are_checked() {
        for good in ["debug", "warn,outrigger_agent=trace", "outrigger_agent[pod{name=web}]=debug", ""] {
            assert!(filter(good).is_ok(), "{good:?}");
        }
        let error = filter("outrigger_agent=loud").unwrap_err();
        assert!(error.to_string().contains("TARGET=LEVEL"), "{error}");
    }
}
