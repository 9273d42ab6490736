//! Runs the commands shown in the README and in docs/. Every ```` ```console ```` block must do what it
//! shows.
//!
//! A line that begins with `$ ` or `# ` is a command, and its output follows. If no output is shown, only
//! success is checked. `? 1` instead of the output is another exit code. In the output, `...` alone on a line
//! matches any lines, and `[..]` matches anything on one line. Times, durations and generated parts of names
//! match any others.

mod links;
mod page;
mod reference;

use outrigger_lifecycle::trace::{Kind, WorkloadKind};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use page::{Step, matches, steps};

/// The maximum time of a shown command.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that cannot be tested, and why.
const NOT_RUN: [(&str, &str); 2] = [
    ("make test", "is what runs this"),
    ("cargo install --path crates/outrigger", "installs the binary under test"),
];

/// Pages whose commands run while the common example runs in another terminal, with work that does not end.
const BESIDE: [&str; 1] = ["everyday.md"];

fn endless_example() -> String {
    let job = fs::read_to_string(root().join("examples/job.yaml")).expect("the example");
    let endless = job.replace("for i in 1 2 3; do", "trap 'exit 0' TERM; while :; do");
    assert_ne!(job, endless, "its work is a loop");
    endless
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A temporary directory with a copy of the examples, in which the commands run.
struct Shell {
    dir: tempfile::TempDir,
    beside: Vec<Child>,
}

impl Shell {
    /// The commands of all pages run at the root of the project.
    fn new() -> Shell {
        let dir = tempfile::Builder::new().prefix("or-docs-").tempdir().expect("a directory");
        fs::create_dir(dir.path().join("examples")).expect("a directory");
        for file in fs::read_dir(root().join("examples")).expect("the examples") {
            let file = file.expect("a file");
            fs::copy(file.path(), dir.path().join("examples").join(file.file_name())).expect("a copy");
        }
        Shell { dir, beside: Vec::new() }
    }

    fn command(&self, line: &str) -> Command {
        // The command does not build the binary, but uses the tested one.
        let line = line.replace("cargo run --release -- ", "outrigger ");
        let binary = Path::new(env!("CARGO_BIN_EXE_outrigger")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec 2>&1; {line}")])
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", binary.display()))
            .env("OUTRIGGER_STATE_DIR", self.dir.path().join("state"))
            .env("OUTRIGGER_RUNTIME_DIR", self.dir.path().join("run"))
            .env("NO_COLOR", "1")
            .env_remove("CLICOLOR_FORCE")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Runs a command to completion. Returns its exit code and output.
    fn run(&self, line: &str) -> (i32, String) {
        let out = self.dir.path().join("out");
        let file = fs::File::create(&out).expect("a file");
        // A command that opens a shell gets an input that ends the shell at once.
        let typed = self.dir.path().join("typed");
        fs::write(&typed, "exit\n").expect("a file");
        let typed = fs::File::open(&typed).expect("a file");
        let mut child = self.command(line).stdin(typed).stdout(file).spawn().expect("a shell");
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                let text = fs::read(&out).expect("its output");
                return (status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned());
            }
            if began.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("`{line}` does not end:\n{}", fs::read_to_string(&out).unwrap_or_default());
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Runs a command until the end of the page.
    fn begin(&mut self, line: &str) {
        self.beside
            .push(self.command(&format!("exec {line}")).stdout(Stdio::null()).spawn().expect("a shell"));
    }

    /// Waits for a text in a command's output.
    fn until(&self, line: &str, text: &str) {
        let began = Instant::now();
        while !self.run(line).1.contains(text) {
            assert!(began.elapsed() < PATIENCE, "`{line}` never says {text:?}:\n{}", self.run(line).1);
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for child in &mut self.beside {
            let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let (Some(pid), Ok(None)) = (pid, child.try_wait()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = child.wait();
        }
    }
}

/// Runs all commands of a page.
fn page(path: &Path) -> usize {
    let text = fs::read_to_string(path).expect("a page");
    let steps = steps(&text);
    if steps.is_empty() {
        return 0;
    }
    let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
    let mut shell = Shell::new();
    if BESIDE.contains(&name) {
        fs::write(shell.dir.path().join("beside.yaml"), endless_example()).expect("a manifest");
        shell.begin("outrigger run -q beside.yaml");
        shell.until("outrigger ps", "Running");
    }
    for step in &steps {
        let Step { line, command, .. } = step;
        if NOT_RUN.iter().any(|(not_run, _)| command.starts_with(not_run)) {
            continue;
        }
        // It follows the log until the pod ends.
        if command.contains(" -f ") {
            shell.begin(command.split(" #").next().unwrap_or(command));
            continue;
        }
        let (code, printed) = shell.run(command);
        assert_eq!(code, step.code, "{name}:{line}: `{command}`\n{printed}");
        if let Some(expected) = &step.output
            && let Err(at) = matches(expected, &printed)
        {
            panic!("{name}:{line}: `{command}` prints something else from {at:?} on:\n{printed}");
        }
    }
    steps.len()
}

#[test]
fn the_readme() {
    assert!(page(&root().join("README.md")) > 5);
}

#[test]
fn the_pages_as_root() {
    let shown: usize = pages().iter().map(|file| page(file)).sum();
    assert!(shown > 15, "{shown} commands");
}

/// Commands in blocks that are not run must also name existing files: files of the project, or files that the
/// page creates.
#[test]
fn commands_name_files_that_exist() {
    for path in pages() {
        let text = fs::read_to_string(&path).expect("the page");
        let is_code = text.lines().scan(false, |code, line| {
            *code ^= line.starts_with("```");
            Some((*code, line))
        });
        for (_, line) in is_code.filter(|(code, line)| *code && line.contains("outrigger ")) {
            let command = line.split(" #").next().unwrap_or_default();
            let files = command.split_whitespace().filter(|w| w.ends_with(".yaml") && !w.starts_with('/'));
            for file in files {
                let exists = root().join(file).exists() || text.contains(&format!("> {file}"));
                assert!(exists, "{}: there is no {file}: {line}", path.display());
            }
        }
    }
}

/// All pages of docs/, sorted by path. The specifications are not pages for users.
fn pages() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for dir in ["docs", "docs/guide", "docs/reference", "docs/internals"] {
        let entries = fs::read_dir(root().join(dir)).expect("a folder of docs");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|file| file.extension().is_some_and(|e| e == "md"));
    files.sort();
    files
}

/// Each rule has one id, and each id belongs to one rule, because comments and tests cite ids without the
/// page.
#[test]
fn no_rule_id_is_defined_in_two_specs() {
    let definition = regex_lite::Regex::new(
        r"^(?:\| |- \*\*|\*\*|#+ )\**([A-Z]{1,4}(?:-[A-Z])?-?\d+(?:\.\d+)?)\**(?: \||\*\*|[ .:])",
    )
    .expect("a pattern");
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/internals/spec")).expect("the specs") {
        let path = entry.expect("an entry").path();
        let page = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in fs::read_to_string(&path).expect("a page").lines() {
            let Some(id) = definition.captures(line).and_then(|found| found.get(1)) else { continue };
            let first = ids.entry(id.as_str().to_owned()).or_insert_with(|| page.clone());
            assert_eq!(*first, page, "{} is a rule of both", id.as_str());
        }
    }
    assert!(ids.len() > 600, "{} ids", ids.len());
}

/// Every row of docs/internals/differences.md names an existing test, or a case of the conformance suite.
#[test]
fn every_difference_is_pinned_by_a_test_that_exists() {
    let page = fs::read_to_string(root().join("docs/internals/differences.md")).expect("the page");
    let mut sources = String::new();
    rust_sources(&root().join("crates"), &mut sources);
    let quoted = regex_lite::Regex::new("`([^`]+)`").expect("a pattern");
    let mut rows = 0;
    for (n, line) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let cell = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        if cell.starts_with("---") || cell == "pinned by" {
            continue;
        }
        rows += 1;
        let mut tests = 0;
        for name in quoted.captures_iter(cell).filter_map(|c| Some(c.get(1)?.as_str())) {
            let is_case = name.starts_with("cases/") || name.starts_with("dialects/");
            let is_file = name.contains(['/', '.']);
            let exists = match (is_case, is_file) {
                (true, _) => root().join(format!("tests/conformance/{name}.yaml")).exists(),
                // This is a file. The test in it is named after it in the cell.
                (false, true) => true,
                (false, false) => sources.contains(&format!("fn {name}(")),
            };
            assert!(exists, "docs/internals/differences.md:{}: there is no test `{name}`", n + 1);
            tests += usize::from(is_case || !is_file);
        }
        assert!(tests > 0, "docs/internals/differences.md:{}: no test is named: {cell}", n + 1);
    }
    assert!(rows > 60, "{rows} rows");
}

fn rust_sources(dir: &Path, out: &mut String) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push_str(&fs::read_to_string(&path).expect("a file"));
        }
    }
}

/// Every event that the agent and the engine can write to a trace is documented, and no other.
#[test]
fn every_entry_of_the_trace_is_described() {
    let page = fs::read_to_string(root().join("docs/reference/trace.md")).expect("the page");
    let (pods, workloads) = page.split_once("\n## Workloads").expect("a part about each");
    let of_pods: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    let fields = ["time", "pod", "container", "event", "reason", "manifest", "hint"];
    described(pods, &of_pods, &fields);
    let of_workloads: Vec<&str> = WorkloadKind::ALL.iter().map(|kind| kind.name()).collect();
    described(workloads, &of_workloads, &[]);
}

#[track_caller]
fn described(page: &str, written: &[&str], fields: &[&str]) {
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let described: Vec<&str> =
        first_cells.flat_map(|cell| cell.split(['`', ',', ' ']).filter(|w| !w.is_empty())).collect();
    for name in written {
        assert!(described.contains(name), "docs/reference/trace.md does not describe `{name}`");
    }
    for name in described.iter().filter(|name| !fields.contains(name)) {
        assert!(written.contains(name), "docs/reference/trace.md describes `{name}`, which nobody writes");
    }
}
