//! Errors of invalid values on the command line.

use outrigger_lifecycle::FeatureGates;
use tracing_subscriber::filter::ParseError;

/// Why the value of a flag is not accepted. The parser adds the name of the flag.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    /// A feature gate has no value.
    #[error("expected GATE=true or GATE=false")]
    GateSyntax,
    /// The value of a feature gate is not a truth value.
    #[error("{0:?} is not `true` or `false`")]
    GateValue(String),
    /// The feature gate does not exist.
    #[error("unknown feature gate {0:?}; known: {known}", known = FeatureGates::NAMES.join(", "))]
    Gate(String),
    /// The filter of log messages is invalid.
    #[error("{0}; use a level such as debug, or TARGET=LEVEL,...")]
    LogFilter(#[from] ParseError),
    /// The value is not a size. Holds an example of a size.
    #[error("expected a size, for example {0}")]
    Size(&'static str),
    /// The log file would be too small.
    #[error("a log file must hold at least 64Ki")]
    LogSize,
    /// The value is not a time.
    #[error("{0:?} is not a time such as 20s or 1m30s")]
    Time(String),
    /// The value is not a duration.
    #[error("expected a duration, for example 90s, 5m or 1h30m")]
    Duration,
    /// A grace period has no priority.
    #[error("expected PRIORITY=TIME, for example 0=30s")]
    GraceSyntax,
    /// The value is not a pod priority.
    #[error("{0:?} is not a priority")]
    Priority(String),
    /// The format of the picture does not exist.
    #[error("{0:?} must end in .svg or .html")]
    Picture(String),
    /// A published port has no port of the pod.
    #[error("expected [ADDRESS:]PORT:PORT, for example 8080:80")]
    PortSyntax,
    /// The protocol of the port does not exist.
    #[error("protocol {0:?} is neither `tcp` nor `udp`")]
    Protocol(String),
    /// The value is not a port number.
    #[error("{0:?} is not a port")]
    Port(String),
    /// The value is not an IP address.
    #[error("{0:?} is not an address")]
    Address(String),
    /// The file exists and is not a regular file, so it cannot be replaced.
    #[error("it is not a regular file")]
    NotAFile,
}
