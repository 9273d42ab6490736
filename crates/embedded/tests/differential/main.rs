//! Runs the same pods on the embedded runtime and on installed OCI runtimes. A small program inspects them
//! from inside. Every difference must be in the list in `allowed.rs`, with a reason.
//!
//! This needs root, gcc and runc. crun is also compared if it is installed.

mod allowed;

mod facts;
mod specs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::{Failed, Trial};
use outrigger_embedded::{EmbeddedConfig, EmbeddedRuntime, OciRuntime, OciRuntimes};
use outrigger_runtime::{ContainerId, ContainerSpec, Image, Runtime as _, UserNamespace};

use specs::{CASES, Case, Wish};

/// The number of pods that are inspected at a time.
const AT_A_TIME: usize = 4;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|arg| arg == "shim").is_some() {
        return ExitCode::from(outrigger_embedded::shim_main(args) as u8);
    }
    let arguments = libtest_mimic::Arguments::from_iter(std::iter::once("differential".into()).chain(args));
    let trials = ["runc", "crun"].map(|name| {
        Trial::test(format!("embedded_and_{name}_make_the_same_containers"), move || compare(name))
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// Everything a comparison needs.
struct Setup {
    files: PathBuf,
    rootfs: PathBuf,
    ours: Arc<EmbeddedRuntime>,
    theirs: Arc<EmbeddedRuntime>,
    dir: PathBuf,
}

fn compare(name: &'static str) -> Result<(), Failed> {
    let theirs = OciRuntime::find(name, &[])?;
    let dir = tempfile::Builder::new().prefix("outrigger-differential-").tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let setup = Arc::new(Setup {
        files: files(&dir.path().join("files"))?,
        rootfs: rootfs(&dir.path().join("rootfs"))?,
        ours: runtime(&dir.path().join("ours"), None)?,
        theirs: runtime(&dir.path().join("theirs"), Some(theirs))?,
        dir: dir.path().to_owned(),
    });
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let results = tokio.block_on(look_at_all(&setup));
    judge(name, results)
}

/// The facts of each case on both runtimes.
type Results = BTreeMap<&'static str, (Result<BTreeSet<String>, String>, Result<BTreeSet<String>, String>)>;

async fn look_at_all(setup: &Arc<Setup>) -> Results {
    let wanted = std::env::var("OUTRIGGER_DIFFERENTIAL_CASE").ok();
    let permits = Arc::new(tokio::sync::Semaphore::new(AT_A_TIME));
    let mut tasks = tokio::task::JoinSet::new();
    for case in CASES.iter().filter(|case| wanted.as_deref().is_none_or(|name| name == case.name)) {
        let (setup, permits) = (Arc::clone(setup), Arc::clone(&permits));
        tasks.spawn(async move {
            let _permit = permits.acquire().await;
            let ours = look_at(&setup, case, &setup.ours).await;
            let theirs = look_at(&setup, case, &setup.theirs).await;
            (case.name, (ours, theirs))
        });
    }
    tasks.join_all().await.into_iter().collect()
}

async fn look_at(setup: &Setup, case: &Case, runtime: &EmbeddedRuntime) -> Result<BTreeSet<String>, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut pod = outrigger_testkit::embedded::sandbox_spec(runtime);
    // Pods of an OCI runtime have no user namespace either.
    pod.user_namespace = UserNamespace::Host;
    let log = setup.dir.join(format!("{number}.log"));
    let mut container = container(setup, log.clone(), number, case.calls);
    (case.change)(&mut Wish { pod: &mut pod, container: &mut container, files: &setup.files });
    let id = pod.id.clone();
    let run = async {
        runtime.create_sandbox(pod).await?;
        let container = runtime.create_container(&id, container).await?;
        runtime.start_container(&container).await?;
        runtime.wait(&container).await
    };
    let run = tokio::time::timeout(outrigger_testkit::trial::DEADLINE * 3, run).await;
    let removed = runtime.remove_sandbox(&id).await;
    let text = outrigger_testkit::trial::log_text(&log);
    match run {
        Err(_) => Err(format!("still runs; {} lines", text.lines().count())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(exit)) if !text.trim_end().ends_with("end") => {
            Err(format!("{exit:?} without an end: {}", text.lines().last().unwrap_or("")))
        }
        Ok(Ok(_)) => {
            removed.map_err(|error| error.to_string())?;
            Ok(facts::facts(
                &text,
                &[(&setup.files, "FILES"), (&setup.rootfs, "ROOTFS"), (&setup.dir, "DIR")],
            ))
        }
    }
}

/// Compares the results. Reports differences that are not allowed, and allowed differences that do not occur.
fn judge(name: &'static str, results: Results) -> Result<(), Failed> {
    let mut wrong: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut used: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let (mut facts, mut allowed) = (0, 0);
    let count = results.len();
    for (case, pair) in &results {
        let (ours, theirs) = match pair {
            (Ok(ours), Ok(theirs)) => (ours, theirs),
            (ours, theirs) => {
                for (who, result) in [("embedded", ours), (name, theirs)] {
                    if let Err(error) = result {
                        wrong.entry(format!("{who}: {error}")).or_default().push(case);
                    }
                }
                continue;
            }
        };
        facts += ours.union(theirs).count();
        for (sign, fact) in ours
            .difference(theirs)
            .map(|fact| ('-', fact))
            .chain(theirs.difference(ours).map(|fact| ('+', fact)))
        {
            match allowed::ALLOWED
                .iter()
                .find(|allowed| allowed.on.contains(&name) && (allowed.matches)(fact))
            {
                Some(reason) => {
                    allowed += 1;
                    used.entry(reason.what).or_default().insert(case);
                }
                None => wrong.entry(format!("{sign} {fact}")).or_default().push(case),
            }
        }
    }
    let mut report =
        format!("{count} pods, {facts} facts, {allowed} allowed differences of {} kinds\n", used.len());
    for (what, cases) in &used {
        report.push_str(&format!("  allowed in {} pods: {what}\n", cases.len()));
    }
    eprint!("{name}: {report}");
    for (fact, cases) in &wrong {
        report.push_str(&format!(
            "{fact}   [{}: {}]\n",
            cases.len(),
            cases.iter().take(3).copied().collect::<Vec<_>>().join(" ")
        ));
    }
    if count == CASES.len() {
        for idle in allowed::ALLOWED
            .iter()
            .filter(|allowed| allowed.on.contains(&name) && !used.contains_key(allowed.what))
        {
            wrong.entry(format!("no pod differs in: {} (remove it from the list)", idle.what)).or_default();
            report.push_str(&format!("no pod differs in: {}\n", idle.what));
        }
    }
    if let Ok(path) = std::env::var("OUTRIGGER_DIFFERENTIAL_REPORT") {
        fs::write(format!("{path}.{name}"), &report)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(report.into()) }
}

fn runtime(state_dir: &Path, oci: Option<OciRuntime>) -> Result<Arc<EmbeddedRuntime>, Failed> {
    let shim_command = vec!["/proc/self/exe".to_owned(), "shim".to_owned()];
    let image_limits = outrigger_images::ImageLimits::default();
    let owner = outrigger_runtime::Owner::Process;
    let config = EmbeddedConfig { state_dir: state_dir.to_owned(), shim_command, image_limits, owner };
    let runtime = EmbeddedRuntime::new(config)?;
    Ok(Arc::new(match oci {
        Some(oci) => {
            runtime.try_oci_runtime(&oci)?;
            runtime.with_oci_runtimes(OciRuntimes::all_by(oci))
        }
        None => runtime,
    }))
}

fn container(setup: &Setup, log_path: PathBuf, number: u32, calls: bool) -> ContainerSpec {
    let how = if calls { "calls" } else { "quick" };
    let image = Image::of_layers("probe", vec![setup.rootfs.clone()]);
    ContainerSpec::new(ContainerId(format!("c{number}")), image, &["/probe", how], log_path)
}

/// A root file system with only the probe and the files that it inspects.
fn rootfs(dir: &Path) -> Result<PathBuf, Failed> {
    for part in ["etc", "tmp", "root", "home/web", "real"] {
        fs::create_dir_all(dir.join(part))?;
    }
    fs::set_permissions(dir.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    symlink("/real", dir.join("link"))?;
    fs::write(dir.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/home/web:/bin/sh\n")?;
    fs::write(dir.join("etc/group"), "root:x:0:\nweb:x:34:\nlog:x:70:web\n")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/probe.c");
    let built =
        Command::new("gcc").args(["-O1", "-static", "-o"]).arg(dir.join("probe")).arg(source).status()?;
    if !built.success() {
        return Err("gcc cannot build the probe".into());
    }
    Ok(dir.to_owned())
}

/// Files of the host for volumes and profiles.
fn files(dir: &Path) -> Result<PathBuf, Failed> {
    for part in ["dir/sub", "other"] {
        fs::create_dir_all(dir.join(part))?;
    }
    for file in ["file", "dir/file", "other/file"] {
        fs::write(dir.join(file), "content")?;
    }
    drop(std::os::unix::net::UnixListener::bind(dir.join("socket"))?);
    fs::write(
        dir.join("deny.json"),
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
            "syscalls": [{"names": ["chroot", "sethostname", "uselib"], "action": "SCMP_ACT_ERRNO"},
                         {"names": ["getpriority"], "action": "SCMP_ACT_ERRNO", "errnoRet": 16}]}"#,
    )?;
    fs::write(
        dir.join("arguments.json"),
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
            "syscalls": [{"names": ["socket"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]},
                         {"names": ["personality"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_GT"}]}]}"#,
    )?;
    Ok(dir.to_owned())
}
