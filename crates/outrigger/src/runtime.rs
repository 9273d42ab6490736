//! The options of the container runtime of `run` and `node`, and how it is started.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_embedded::{EmbeddedConfig, EmbeddedRuntime, OciRuntime, OciRuntimes, rootless};
use outrigger_images::ImageLimits;
use outrigger_node::read::{OciSettings, RuntimeKind, class_of};
use outrigger_node::work::Work;
use outrigger_runtime::{Owner, RuntimeError};

use crate::outcome::Failure;

/// The first argument of the process that holds a node's connection to a container runtime.
pub(crate) const HOLD_CONNECTION: &str = "hold-connection";

/// The default file of runtime classes.
const RUNTIMES_FILE: &str = "/etc/outrigger/runtimes.toml";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RuntimeArgs {
    /// The container runtime.
    #[arg(long, value_enum, default_value_t = RuntimeArg::Embedded)]
    pub(crate) runtime: RuntimeArg,
    /// Socket of the container runtime for --runtime cri; detected by default.
    #[arg(long, value_name = "unix:///PATH")]
    cri_endpoint: Option<String>,
    /// Use an installed OCI runtime to make the containers: runc, crun or a path.
    #[arg(long, value_name = "NAME|PATH", env = "OUTRIGGER_OCI_RUNTIME")]
    oci_runtime: Option<String>,
    /// OCI runtime of each runtimeClassName (see docs/guide/oci-runtimes.md) [default: /etc/outrigger/runtimes.toml]
    #[arg(long, value_name = "FILE", env = "OUTRIGGER_RUNTIMES")]
    pub(crate) runtimes: Option<PathBuf>,
    /// Directory for images, pods and claims [default: /var/lib/outrigger, without root $XDG_DATA_HOME/outrigger]
    #[arg(long, value_name = "DIR", env = "OUTRIGGER_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Limits for images that are pulled; raise them for images you trust: unpacked=64Gi (bytes), files=4000000,
    /// ratio=200 (unpacked to packed), depth=256 (of directories), free=BYTES (to leave on the disk).
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        env = "OUTRIGGER_IMAGE_LIMITS",
        default_value = "",
        hide_default_value = true
    )]
    image_limits: ImageLimits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeArg {
    /// The runtime built into this binary.
    Embedded,
    /// containerd, CRI-O or another CRI runtime on this machine.
    Cri,
}

/// A runtime that is ready for pods.
pub(crate) enum Started {
    Embedded(Arc<EmbeddedRuntime>),
    Cri(Arc<CriRuntime>),
}

impl RuntimeArgs {
    /// Refuses options of another runtime.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.cri_endpoint.is_some() && self.runtime != RuntimeArg::Cri {
            return Err(Failure::Input(anyhow!("--cri-endpoint needs --runtime cri")));
        }
        if self.oci_runtime.is_some() && self.runtime != RuntimeArg::Embedded {
            let error = anyhow!("--oci-runtime needs --runtime embedded, which is the default");
            return Err(Failure::Input(error));
        }
        Ok(())
    }

    /// The runtime for which manifests are checked.
    pub(crate) fn kind(&self) -> Result<RuntimeKind, Failure> {
        match self.runtime {
            RuntimeArg::Embedded => {
                oci_settings(self.runtimes.as_deref(), self.oci_runtime.as_deref()).map(RuntimeKind::Embedded)
            }
            // A CRI runtime has its own runtime classes.
            RuntimeArg::Cri => Ok(RuntimeKind::Cri),
        }
    }

    /// Starts the runtime. If it uses OCI runtimes, it checks that they can create this work's containers.
    pub(crate) async fn start(
        self,
        kind: RuntimeKind,
        work: &Work,
        owner: Owner,
        state_dir: PathBuf,
    ) -> Result<Started, Failure> {
        let own = |e: RuntimeError| Failure::Own(e.into());
        match kind {
            RuntimeKind::Embedded(oci) => {
                let runtimes = find_oci_runtimes(oci.runtimes, work)?;
                let shim_command = vec!["/proc/self/exe".into(), "shim".into()];
                let config =
                    EmbeddedConfig { state_dir, shim_command, image_limits: self.image_limits, owner };
                let runtime = EmbeddedRuntime::new(config).map_err(own)?.with_oci_runtimes(runtimes);
                try_oci_runtimes(&runtime, work).map_err(own)?;
                Ok(Started::Embedded(Arc::new(runtime)))
            }
            RuntimeKind::Cri => {
                let holder = match owner {
                    Owner::Node(_) => vec!["/proc/self/exe".into(), HOLD_CONNECTION.into()],
                    Owner::Process => Vec::new(),
                };
                let config = CriConfig { endpoint: self.cri_endpoint, owner, holder, ..CriConfig::default() };
                Ok(Started::Cri(Arc::new(CriRuntime::connect(config).await.map_err(own)?)))
            }
        }
    }

    /// The options as flags of `outrigger node`, without the state directory.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        if self.runtime == RuntimeArg::Cri {
            flags.extend(["--runtime".into(), "cri".into()]);
        }
        let mut flag = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                flags.extend([name.into(), value]);
            }
        };
        flag("--cri-endpoint", self.cri_endpoint.clone().map(Into::into));
        flag("--oci-runtime", self.oci_runtime.clone().map(Into::into));
        flag("--runtimes", self.runtimes.clone().map(Into::into));
        flags
    }
}

/// The OCI runtimes of the classes file, and the default one.
pub(crate) fn oci_settings(file: Option<&Path>, default: Option<&str>) -> Result<OciSettings, Failure> {
    let own = |error: RuntimeError| Failure::Own(error.into());
    let path = file.unwrap_or(Path::new(RUNTIMES_FILE));
    let mut runtimes = OciRuntimes::read(path, file.is_some()).map_err(own)?;
    runtimes.default = default.map(|name| OciRuntime::find(name, &[])).transpose().map_err(own)?;
    Ok(OciSettings { runtimes, file: path.to_owned(), default: default.map(str::to_owned) })
}

/// Finds the OCI runtime of each class before pods start.
fn find_oci_runtimes(mut runtimes: OciRuntimes, work: &Work) -> Result<OciRuntimes, Failure> {
    let classes: BTreeSet<String> = work.pods.iter().filter_map(|pod| class_of(&pod.manifest)).collect();
    if rootless::standing().is_rootless() && (runtimes.default.is_some() || !classes.is_empty()) {
        let error = anyhow!("OCI runtimes are used by root only: run it with sudo, or without --oci-runtime");
        return Err(Failure::Own(error));
    }
    for class in classes {
        runtimes.find_class(&class).map_err(|error| Failure::Own(error.into()))?;
    }
    Ok(runtimes)
}

/// Creates a container with every OCI runtime of a run. So no pod starts that cannot continue.
fn try_oci_runtimes(runtime: &EmbeddedRuntime, work: &Work) -> Result<(), RuntimeError> {
    let classes: BTreeSet<Option<String>> = work.pods.iter().map(|pod| class_of(&pod.manifest)).collect();
    for class in classes {
        if let Some(oci) = runtime.oci_runtime_of(class.as_deref())? {
            runtime.try_oci_runtime(&oci)?;
        }
    }
    Ok(())
}

/// Removes the leftovers of crashed runs on a CRI runtime.
pub(crate) async fn clean_cri(runtime: Arc<CriRuntime>) {
    if let Err(e) = runtime.clean_orphans().await {
        tracing::warn!("{e}");
    }
}

/// The given state directory, or the default.
pub(crate) fn given_or_default(given: Option<&Path>) -> Result<PathBuf, Failure> {
    given.map(Path::to_owned).or_else(rootless::default_state_dir).ok_or_else(|| {
        Failure::Input(anyhow!(
            "neither XDG_DATA_HOME nor HOME says where to keep state; choose a --state-dir"
        ))
    })
}

/// Creates the state directory if it is missing, without access for other users. Resolves symbolic links.
pub(crate) fn state_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = given_or_default(given)?;
    outrigger_runtime::private::state_dir(&path)
        .with_context(|| format!("cannot use {} for state; choose another with --state-dir", path.display()))
        .map_err(Failure::Own)
}
