//! Values on the command line that are not valid.

use outrigger_lifecycle::FeatureGates;
use tracing_subscriber::filter::ParseError;

/// Why a value of a flag is not accepted. The name of the flag is added by the parser.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    /// A feature gate without its value.
    #[error("expected GATE=true or GATE=false")]
    GateSyntax,
    /// The value of a feature gate.
    #[error("{0:?} is not `true` or `false`")]
    GateValue(String),
    /// There is no such feature gate.
    #[error("unknown feature gate {0:?}; known: {known}", known = FeatureGates::NAMES.join(", "))]
    Gate(String),
    /// A filter of log messages.
    #[error("{0}; use a level such as debug, or TARGET=LEVEL,...")]
    LogFilter(#[from] ParseError),
    /// Not a size. Holds an example of one.
    #[error("expected a size, for example {0}")]
    Size(&'static str),
    /// A log file would be too small.
    #[error("a log file must hold at least 64Ki")]
    LogSize,
    /// Not a time.
    #[error("{0:?} is not a time such as 20s or 1m30s")]
    Time(String),
    /// Not a duration.
    #[error("expected a duration, for example 90s, 5m or 1h30m")]
    Duration,
    /// A grace period without its priority.
    #[error("expected PRIORITY=TIME, for example 0=30s")]
    GraceSyntax,
    /// Not a priority of pods.
    #[error("{0:?} is not a priority")]
    Priority(String),
    /// There is no such format of pictures.
    #[error("{0:?} must end in .svg or .html")]
    Picture(String),
    /// A published port without the port of the pod.
    #[error("expected [ADDRESS:]PORT:PORT, for example 8080:80")]
    PortSyntax,
    /// There is no such protocol of ports.
    #[error("protocol {0:?} is neither `tcp` nor `udp`")]
    Protocol(String),
    /// Not the number of a port.
    #[error("{0:?} is not a port")]
    Port(String),
    /// Not an IP address.
    #[error("{0:?} is not an address")]
    Address(String),
    /// The file exists and cannot be replaced.
    #[error("it is not a regular file")]
    NotAFile,
}
