//! Manifests that installed programs write: `helm template` and `kustomize build`.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use outrigger_manifest::Limits;
use outrigger_text::name::as_dns_label;
use outrigger_text::terminal::one_line;

use super::InputError;

/// The longest name of a Helm release.
const RELEASE_BYTES_MAX: usize = 53;
/// The most bytes of a program's complaint that are kept.
const COMPLAINT_MAX: u64 = 4 << 10;

/// The manifests of a Helm chart. Its release has the name of the directory.
pub(super) fn helm(dir: &Path, namespace: &str) -> Result<Vec<u8>, InputError> {
    let release = release(dir);
    let mut args: Vec<OsString> = vec!["template".into(), release.into(), local(dir)];
    if !namespace.is_empty() {
        args.extend(["--namespace".into(), namespace.into()]);
    }
    output("helm", &args)?.ok_or_else(|| {
        let dir = dir.display();
        InputError::NoProgram(format!(
            "{dir} is a Helm chart, and there is no `helm` here; install it, or run the output of `helm template {dir}`"
        ))
    })
}

/// The manifests of a kustomization.
pub(super) fn kustomize(dir: &Path) -> Result<Vec<u8>, InputError> {
    if let Some(text) = output("kustomize", &["build".into(), local(dir)])? {
        return Ok(text);
    }
    output("kubectl", &["kustomize".into(), local(dir)])?.ok_or_else(|| {
        InputError::NoProgram(
            "-k needs `kustomize` or `kubectl`, and there is none here; install one".to_owned(),
        )
    })
}

fn release(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = dir.file_name().and_then(OsStr::to_str).and_then(as_dns_label).unwrap_or_default();
    // A label has only characters of one byte.
    let name = name[..name.len().min(RELEASE_BYTES_MAX)].trim_end_matches('-');
    if name.is_empty() { "release".to_owned() } else { name.to_owned() }
}

/// A path that is neither an option nor the name of something on a server.
fn local(dir: &Path) -> OsString {
    Path::new(".").join(dir).into()
}

/// What a program writes; `None` if it is not installed.
fn output(program: &str, args: &[OsString]) -> Result<Option<Vec<u8>>, InputError> {
    let words = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let command = format!("{program} {words}");
    let failed = |source: io::Error| InputError::Read { name: format!("the output of `{command}`"), source };
    let mut spawn = Command::new(program);
    spawn.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match spawn.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        spawned => spawned.map_err(failed)?,
    };
    let complaint = complaint(&mut child);
    let limit = Limits::default().file_bytes_max as u64;
    let mut text = Vec::new();
    let read = child.stdout.take().map(|out| out.take(limit + 1).read_to_end(&mut text));
    if read.is_some_and(|read| read.is_err()) || text.len() as u64 > limit {
        // It may have ended by now.
        let _ = child.kill();
        let _ = child.wait();
        let said = format!("it wrote more than {} MiB", limit >> 20);
        return Err(InputError::Program { command, said });
    }
    let status = child.wait().map_err(failed)?;
    let said = complaint.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if !status.success() {
        let said = one_line(String::from_utf8_lossy(&said).trim());
        let said = if said.is_empty() { status.to_string() } else { said };
        return Err(InputError::Program { command, said });
    }
    Ok(Some(text))
}

/// Reads the beginning of a program's standard error, and the rest so that it never waits for us.
fn complaint(child: &mut Child) -> Option<thread::JoinHandle<Vec<u8>>> {
    let mut stderr = child.stderr.take()?;
    Some(thread::spawn(move || {
        let mut said = Vec::new();
        // What cannot be read is not worth a failure of its own.
        let _ = stderr.by_ref().take(COMPLAINT_MAX).read_to_end(&mut said);
        let _ = io::copy(&mut stderr, &mut io::sink());
        said
    }))
}
