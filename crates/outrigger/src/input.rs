//! Reads the manifests on the command line.

use std::path::PathBuf;

use outrigger_lifecycle::FeatureGates;
use outrigger_manifest::{Diagnostics, Manifest, Partial, SourceFile, Validate, read, read_partial};
use outrigger_node::input::Input;
use outrigger_node::read::RunReadOptions;

use crate::outcome::Failure;
use crate::value::ValueError;

/// Where manifests come from, for every command that reads some.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct InputArgs {
    /// Manifests, YAML or JSON: files, directories, Helm charts (through `helm template`) or https URLs; `-` is standard
    /// input.
    #[arg(value_name = "FILE", required_unless_present_any = ["filename", "kustomize"])]
    files: Vec<PathBuf>,
    /// The same as FILE, as in kubectl; may be repeated.
    #[arg(long, short = 'f', visible_alias = "file", value_name = "FILE", help_heading = HEADING)]
    filename: Vec<PathBuf>,
    /// Directory with a kustomization (through `kustomize build` or `kubectl kustomize`); may be repeated.
    #[arg(long, short = 'k', value_name = "DIR", help_heading = HEADING)]
    kustomize: Vec<PathBuf>,
    /// Also read the directories in directories.
    #[arg(long, short = 'R', help_heading = HEADING)]
    recursive: bool,
}

const HEADING: &str = "Reading manifests";

impl InputArgs {
    fn input(&self, namespace: &str) -> Input {
        Input {
            places: self.files.iter().chain(&self.filename).cloned().collect(),
            kustomizations: self.kustomize.clone(),
            is_recursive: self.recursive,
            namespace: namespace.to_owned(),
        }
    }

    /// The texts of the manifests.
    pub(crate) fn sources(&self, read: &ReadArgs) -> Result<Vec<SourceFile>, Failure> {
        Ok(self.input(&read.namespace).read()?)
    }

    /// What was named, to show where a run comes from.
    pub(crate) fn names(&self) -> Vec<String> {
        self.input("").names()
    }
}

/// How manifests are read, for every command that reads some.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = HEADING)]
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
    /// List every object of the manifests that is not run, with the reason.
    #[arg(long, short)]
    verbose: bool,
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

    /// Reads sources, or returns why they cannot be read.
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
