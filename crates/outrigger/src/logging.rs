//! Sets up the log of the process itself: warnings and errors, and what it does if a filter asks for it.

use clap::ValueEnum;
use outrigger_view::output::Output;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::terminal;
use crate::value::ValueError;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// Log what outrigger itself does, for example debug, or outrigger_agent=trace.
    #[arg(long, value_name = "FILTER", env = "OUTRIGGER_LOG", hide_env_values = true, value_parser = filter)]
    log: Option<String>,
}

/// Checks a filter. It is kept as text, because the parsed one cannot be cloned.
fn filter(text: &str) -> Result<String, ValueError> {
    EnvFilter::builder().parse(text)?;
    Ok(text.to_owned())
}

/// How a service writes its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines with key=value pairs.
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter of a service. The library's messages about watches are left out, because the service reports
/// them in a shorter form.
const SERVICE_FILTER: &str = "info,kube_runtime::watcher=error";

impl LogArgs {
    fn filter(&self) -> Option<EnvFilter> {
        // The command line has already checked it.
        self.log.as_deref().filter(|text| !text.is_empty()).map(EnvFilter::new)
    }

    /// Writes messages to standard error, or above the view. Without a filter, these are only warnings, or
    /// only errors with `quiet`. They are written without the module and the pod, because their text names
    /// what they are about.
    pub(crate) fn apply(&self, quiet: bool, output: &Output) {
        let output = output.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || output.writer())
            .with_ansi(terminal::colors().err)
            // It would report errors with `eprintln!`, which panics if standard error is closed.
            .log_internal_errors(false)
            .without_time();
        match self.filter() {
            Some(filter) => subscriber.with_env_filter(filter).init(),
            None => {
                let level = if quiet { tracing::Level::ERROR } else { tracing::Level::WARN };
                subscriber.with_max_level(level).with_target(false).init();
            }
        }
    }

    /// Writes messages of a service in a cluster to standard error, with the time.
    pub(crate) fn apply_to_service(&self, format: LogFormat) {
        let filter = self.filter().unwrap_or_else(|| EnvFilter::new(SERVICE_FILTER));
        service(filter, format, std::io::stderr).init();
    }
}

fn service(
    filter: EnvFilter,
    format: LogFormat,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> Box<dyn Subscriber + Send + Sync> {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        // For the same reason as in `apply`.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::sync::Arc;

    use super::{EnvFilter, LogFormat, filter, service};

    /// docs/guide/cluster.md shows such a line.
    #[test]
    fn json_lines_have_the_fields_of_the_event_beside_its_text() {
        let mut file = tempfile::tempfile().expect("a file");
        let writer = Arc::new(file.try_clone().expect("the same file"));
        let subscriber = service(EnvFilter::new("info"), LogFormat::Json, writer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("left out");
            tracing::info!(identity = "a\u{1b}", pods = 3, "leading");
        });
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("the lines");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one line");
        let fields: Vec<&str> = line.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(fields, ["timestamp", "level", "message", "identity", "pods", "target"], "{text}");
        assert_eq!(line["identity"], "a\u{1b}");
        assert_eq!((&line["level"], &line["pods"]), (&"INFO".into(), &3.into()));
    }

    #[test]
    fn filters_are_checked() {
        for good in ["debug", "warn,outrigger_agent=trace", "outrigger_agent[pod{name=web}]=debug", ""] {
            assert!(filter(good).is_ok(), "{good:?}");
        }
        let error = filter("outrigger_agent=loud").unwrap_err();
        assert!(error.to_string().contains("TARGET=LEVEL"), "{error}");
    }
}
