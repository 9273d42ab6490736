//! Reads the files that the command line names.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::builder::UnknownArgumentValueParser;
use outrigger_lifecycle::FeatureGates;
use outrigger_manifest::{Diagnostics, Limits, Manifest, Partial, SourceFile, Validate, read, read_partial};
use outrigger_node::read::RunReadOptions;

use crate::outcome::Failure;
use crate::value::ValueError;

/// How manifests are read, for every command that reads some.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Reading manifests")]
pub(crate) struct ReadArgs {
    /// How to treat unknown and repeated fields, which are errors by default; as in kubectl, `true` is `strict` and `false` is
    /// `ignore`.
    #[arg(long, value_enum, value_name = "HOW")]
    validate: Option<ValidateArg>,
    /// Turn features on or off: SidecarContainers (restartPolicy: Always on init containers), SidecarLifecycleType
    /// (lifecycle.type: Sidecar), ContainerRestartRules, RestartAllContainersOnContainerExits, ContainerStopSignals. All are
    /// on by default.
    #[arg(long, value_delimiter = ',', value_parser = feature_gate, value_name = "GATE=BOOL")]
    feature_gates: Vec<(String, bool)>,
    /// Namespace of objects that do not specify one.
    #[arg(long, short = 'n', default_value = "default", value_name = "NAME")]
    namespace: String,
    /// List every object of the manifest that is skipped.
    #[arg(long, short)]
    verbose: bool,
    /// kubectl's option, which is answered with a tip.
    #[arg(short = 'f', long, alias = "file", hide = true, value_name = "FILE", value_parser = no_option_for_files())]
    filename: Option<String>,
}

fn no_option_for_files() -> UnknownArgumentValueParser {
    UnknownArgumentValueParser::suggest("name files without an option: outrigger run FILE")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ValidateArg {
    /// Report them as errors; `outrigger validate` then also fails if there are warnings.
    #[value(alias = "true")]
    Strict,
    /// Report them as warnings.
    Warn,
    /// Ignore them.
    #[value(alias = "false")]
    Ignore,
}

impl Default for ReadArgs {
    fn default() -> Self {
        ReadArgs {
            validate: None,
            feature_gates: Vec::new(),
            namespace: "default".to_owned(),
            verbose: false,
            filename: None,
        }
    }
}

pub(crate) fn feature_gate(text: &str) -> Result<(String, bool), ValueError> {
    let (name, value) = text.split_once('=').ok_or(ValueError::GateSyntax)?;
    let on = value.parse().map_err(|_| ValueError::GateValue(value.to_owned()))?;
    if !FeatureGates::default().set(name, on) {
        return Err(ValueError::Gate(name.to_owned()));
    }
    Ok((name.to_owned(), on))
}

/// Applies these changes to the default feature gates.
pub(crate) fn features(changes: &[(String, bool)]) -> FeatureGates {
    let mut gates = FeatureGates::default();
    for (name, on) in changes {
        // The command line has already refused unknown names.
        let _known = gates.set(name, *on);
    }
    gates
}

impl ReadArgs {
    /// The feature gates.
    pub(crate) fn features(&self) -> FeatureGates {
        features(&self.feature_gates)
    }

    /// Whether warnings count as errors, for a command that only checks.
    pub(crate) fn is_strict(&self) -> bool {
        self.validate == Some(ValidateArg::Strict)
    }

    /// Reads files. `-` is standard input.
    pub(crate) fn sources(&self, files: &[PathBuf]) -> Result<Vec<SourceFile>, Failure> {
        if files.iter().filter(|f| is_stdin(f)).count() > 1 {
            return Err(Failure::Input(anyhow!("`-` (standard input) can be read only once")));
        }
        files.iter().map(|file| source(file)).collect()
    }

    /// Reads manifests, or returns why they cannot be read.
    pub(crate) fn read(&self, sources: &[SourceFile]) -> Result<Manifest, Diagnostics> {
        read(sources, &self.options().manifest_options())
    }

    /// Reads the valid parts of manifests that may have errors.
    pub(crate) fn read_partial(&self, sources: &[SourceFile]) -> Partial {
        read_partial(sources, &self.options().manifest_options())
    }

    /// The options for reading manifests.
    pub(crate) fn options(&self) -> RunReadOptions {
        RunReadOptions {
            validate: match self.validate {
                None | Some(ValidateArg::Strict) => Validate::Strict,
                Some(ValidateArg::Warn) => Validate::Warn,
                Some(ValidateArg::Ignore) => Validate::Ignore,
            },
            features: self.features(),
            namespace: self.namespace.clone(),
            list_skipped: self.verbose,
            ..RunReadOptions::default()
        }
    }
}

/// Whether a path means standard input.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn source(file: &Path) -> Result<SourceFile, Failure> {
    // Read one byte more than allowed, to detect a file that is too large, even an endless one.
    let limit = Limits::default().file_bytes_max as u64 + 1;
    let name = if is_stdin(file) { "<stdin>".to_owned() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let read = if is_stdin(file) {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("cannot read {name}")).map_err(Failure::Input)?;
    SourceFile::from_bytes(name, bytes).map_err(|diagnostic| Failure::Manifest(vec![*diagnostic], Vec::new()))
}
