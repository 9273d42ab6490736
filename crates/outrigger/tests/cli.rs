//! Tests the command line from outside: output and exit codes.
//!
//! The expected output is in `tests/cli/snapshots`. `UPDATE_EXPECT=1 cargo test -p outrigger --test cli`
//! rewrites it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const EXAMPLES: [&str; 5] = ["native-job", "kep-pod", "priority-deployment", "terminator-job", "depends-on"];
const DIALECTS: [&str; 4] = ["native", "kep", "priority", "depends-on"];

/// The events of a Job with a sidecar that ignores TERM, and of a second pod.
const EVENTS: &str = "crates/outrigger/tests/cli/events.jsonl";

struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    /// The exit code and all output, for a snapshot.
    fn all(&self) -> String {
        let mut all = format!("exit code: {}\n", self.code);
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                all.push_str(&format!("----- {name}\n{text}"));
            }
        }
        all
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn outrigger(args: &[&str], stdin: &str) -> Run {
    outrigger_with(args, stdin, &[])
}

fn outrigger_with(args: &[&str], stdin: &str, env: &[(&str, &str)]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(args)
        .env_remove("COLUMNS")
        .envs(env.iter().copied())
        .current_dir(root())
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("OUTRIGGER_STATE_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
    let out = child.wait_with_output().expect("the binary ends");
    Run {
        code: out.status.code().expect("it was not killed"),
        stdout: String::from_utf8(out.stdout).expect("text"),
        stderr: String::from_utf8(out.stderr).expect("text"),
    }
}

fn example(name: &str) -> String {
    format!("crates/outrigger/tests/cli/pods/{name}.yaml")
}

fn bad(name: &str) -> String {
    format!("crates/outrigger/tests/cli/bad/{name}.yaml")
}

fn snapshot(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/snapshots").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        std::fs::write(&path, actual).expect("writable");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        actual == expected,
        "{} is not what is printed now (UPDATE_EXPECT=1 writes it anew)\n--- expected\n{expected}\n--- actual\n{actual}",
        path.display()
    );
}

#[test]
fn plans_read_well() {
    for name in EXAMPLES {
        let run = outrigger(&["plan", &example(name)], "");
        assert_eq!(run.code, 0, "{}", run.stderr);
        for line in run.stdout.lines() {
            assert!(line.chars().count() <= 100, "{name}: wider than 100 columns: {line}");
        }
        snapshot(&format!("plan-{name}.txt"), &run.all());
    }
}

/// The KEP's first hooks run before everything else, including hooks of native sidecars.
#[test]
fn a_plan_says_when_hooks_of_native_sidecars_wait_for_the_kep_s() {
    let hook = "preStop: {exec: {command: [\"true\"]}}";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  initContainers:\n  - {{name: native, image: i, \
         restartPolicy: Always, lifecycle: {{{hook}}}}}\n  containers:\n  - {{name: app, image: i}}\n  - {{name: mesh, \
         image: i, lifecycle: {{type: Sidecar, {hook}}}}}\n"
    );
    let words = |pod: &str| {
        let run = outrigger(&["plan", "-"], pod);
        run.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = words(&pod);
    assert!(text.contains("preStop hook once that of `mesh` is done, TERM once `mesh` is gone"), "{text}");
    let text = words(&pod.replace("type: Sidecar, ", ""));
    assert!(text.contains("preStop hook at once, TERM once"), "{text}");
}

#[test]
fn plans_for_programs() {
    for name in ["native-job", "depends-on"] {
        let run = outrigger(&["plan", "-o", "json", &example(name)], "");
        let _: serde_json::Value = serde_json::from_str(&run.stdout).expect("valid JSON");
        snapshot(&format!("plan-{name}.json"), &run.stdout);
    }
}

#[test]
fn plans_for_markdown() {
    for name in ["kep-pod", "depends-on"] {
        snapshot(
            &format!("plan-{name}.mmd"),
            &outrigger(&["plan", "-o", "mermaid", &example(name)], "").stdout,
        );
    }
}

#[test]
fn plans_as_pictures() {
    let mut args = vec!["plan".to_owned(), "-o".to_owned(), "svg".to_owned()];
    args.extend(EXAMPLES.map(example));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let svg = outrigger(&args, "").stdout;
    // There is one root element, every element is closed, and nothing external is loaded.
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
    for tag in ["g", "text", "title", "style", "defs", "marker"] {
        let opened = svg.matches(&format!("<{tag}>")).count() + svg.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "<{tag}>");
    }
    assert_eq!(svg.matches("http").count(), 1, "only the name space has an address");
    for word in
        ["fetch-config", "sidecar · kep", ">completed<", ">ready<", ">started<", "prefers-color-scheme: dark"]
    {
        assert!(svg.contains(word), "{word}");
    }
    assert!(!svg.contains("NaN"));
    // The picture scales down to its window, but not above its own size.
    let root = svg.lines().next().expect("a line");
    assert!(root.contains(" viewBox=\"0 0 ") && root.contains(" width=\"100%\""), "{root}");
    assert!(!root.contains(" height="), "{root}");
}

#[test]
fn what_is_not_run_takes_one_line() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n";
    let other =
        |kind: &str, name: &str| format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n");
    let text = [pod, &other("Namespace", "a"), &other("Namespace", "b"), &other("Ingress", "i")].concat();
    let run = outrigger(&["validate", "-"], &text);
    assert_eq!(
        run.stdout,
        "note: not run: 1 Ingress, 2 Namespaces (-v lists them with the reason)\n\n1 pod fine, 1 note\n"
    );
    let run = outrigger(&["validate", "-v", "-"], &text);
    for name in ["Namespace `a` is not run: ", "Namespace `b`", "Ingress `i`"] {
        assert!(run.stdout.contains(name), "{}", run.stdout);
    }
    let run = outrigger(&["run", "-"], "services:\n  web:\n    image: nginx\n");
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("this is a Compose file"), "{}", run.stderr);
    assert!(run.stderr.contains("kompose convert"), "{}", run.stderr);
}

const NAMED_POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: c, image: i}]}\n";

/// The names of the pods that `plan` reads.
fn planned(args: &[&str]) -> Vec<String> {
    let run = outrigger(&[&["plan", "-o", "json"], args].concat(), "");
    assert_eq!(run.code, 0, "{args:?}: {}", run.stderr);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let pods = json["pods"].as_array().expect("pods").iter();
    pods.map(|pod| pod["name"].as_str().unwrap_or_else(|| panic!("{pod}")).to_owned()).collect()
}

#[test]
fn manifests_are_files_and_directories() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir_all(path("k8s/below/.git")).expect("directories");
    std::fs::create_dir_all(path("empty")).expect("a directory");
    for (file, name) in [
        ("k8s/b.yaml", "b"),
        ("k8s/a.yml", "a"),
        ("k8s/below/c.json", "c"),
        ("k8s/below/.git/d.yaml", "d"),
        ("k8s/notes.txt", "e"),
        ("f.yaml", "f"),
    ] {
        let text = match file.ends_with(".json") {
            true => {
                r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "NAME"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}"#
            }
            false => NAMED_POD,
        };
        std::fs::write(path(file), text.replace("NAME", name)).expect("a file");
    }
    // A link to a directory above would never end.
    std::os::unix::fs::symlink(dir.path(), path("k8s/below/loop")).expect("a link");
    let (k8s, f) = (path("k8s"), path("f.yaml"));
    assert_eq!(planned(&[&k8s]), ["a", "b"]);
    assert_eq!(planned(&["-R", &k8s]), ["a", "b", "c"]);
    assert_eq!(planned(&["-f", &f, "-f", &k8s]), ["f", "a", "b"]);
    assert_eq!(planned(&[&k8s, "--filename", &f]), ["a", "b", "f"]);
    for (place, said) in [("empty", "no .yaml, .yml or .json file in"), ("none.yaml", "cannot read")] {
        let run = outrigger(&["validate", &path(place)], "");
        assert!(run.code == 2 && run.stderr.contains(said), "{}", run.stderr);
    }
    let run = outrigger(&["convert", "--to", "kep", &k8s], "");
    assert!(run.code == 2 && run.stderr.contains("one manifest is converted at a time"), "{}", run.stderr);
}

/// The programs are stand-ins which show what they were asked.
#[test]
fn charts_and_kustomizations_are_rendered_by_installed_programs() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for name in ["shop", "overlay", "bin"] {
        std::fs::create_dir(path(name)).expect("a directory");
    }
    std::fs::write(path("shop/Chart.yaml"), "name: shop\nversion: 1.0.0\n").expect("a chart");
    std::fs::write(path("overlay/kustomization.yaml"), "resources: []\n").expect("a kustomization");
    let validate =
        |args: &[&str]| outrigger_with(&[&["validate"], args].concat(), "", &[("PATH", &path("bin"))]);
    let missing = validate(&[&path("shop")]);
    assert!(
        missing.code == 2 && missing.stderr.contains("there is no `helm` here; install it"),
        "{}",
        missing.stderr
    );
    let missing = validate(&["-k", &path("overlay")]);
    assert!(
        missing.code == 2 && missing.stderr.contains("needs `kustomize` or `kubectl`"),
        "{}",
        missing.stderr
    );
    let plain = validate(&[&path("overlay")]);
    assert!(plain.code == 2 && plain.stderr.contains("is a kustomization; use `-k "), "{}", plain.stderr);
    let none = validate(&["-k", &path("shop")]);
    assert!(
        none.code == 2 && none.stderr.contains("is not a directory with a kustomization"),
        "{}",
        none.stderr
    );

    let script = |program: &str, script: &str| {
        let file = path(&format!("bin/{program}"));
        std::fs::write(&file, format!("#!/bin/sh\n{script}")).expect("a script");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("it can run");
    };
    // The pods have a mistake, so that the output shows the text that was read.
    let wrong =
        |name: &str| format!("echo '{}'\n", NAMED_POD.replace("NAME", name).replace("image", "imagee"));
    script(
        "helm",
        &format!(
            "[ \"$*\" = \"template shop {} --namespace team\" ] || exit 3\n{}",
            path("shop"),
            wrong("chart")
        ),
    );
    script(
        "kubectl",
        &format!("[ \"$*\" = \"kustomize {}\" ] || exit 3\n{}", path("overlay"), wrong("kubectl")),
    );
    let chart = validate(&["-n", "team", &path("shop")]);
    assert!(chart.stdout.contains("shop (helm template):4:"), "{}{}", chart.stdout, chart.stderr);
    let overlay = validate(&["-k", &path("overlay")]);
    assert!(overlay.stdout.contains("overlay (kustomize build):4:"), "{}", overlay.stdout);
    // kustomize itself comes first. What it complains about is shown.
    script("kustomize", "echo 'no such patch' >&2; exit 1\n");
    let failed = validate(&["-k", &path("overlay")]);
    assert!(failed.code == 2 && failed.stderr.contains("failed: no such patch"), "{}", failed.stderr);
}

/// A server on loopback that answers each request with the next text.
fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<()>) {
    use std::io::Read as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let thread = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            // A client that has read enough has closed the connection.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, thread)
}

#[test]
fn manifests_come_from_urls() {
    let answer = |head: &str, body: &str| {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    };
    let (url, server) = serve(vec![
        answer("200 OK", &NAMED_POD.replace("NAME", "web")),
        answer("404 Not Found", ""),
        answer("200 OK\r\ncontent-type: text/html", "<html>"),
        answer("302 Found\r\nlocation: http://example.com/pod.yaml", ""),
        answer("200 OK", &"#".repeat((8 << 20) + 1)),
    ]);
    assert_eq!(planned(&[&format!("{url}/pod.yaml")]), ["web"]);
    for said in [
        "answered 404 Not Found",
        "it is a web page",
        "redirects to http://example.com",
        "more than 8388608 bytes",
    ] {
        let run = outrigger(&["plan", "-f", &format!("{url}/pod.yaml")], "");
        assert!(run.code == 2 && run.stderr.contains(said), "{said}: {}", run.stderr);
    }
    server.join().expect("every answer was read");
    let run = outrigger(&["plan", "http://example.com/pod.yaml"], "");
    assert!(run.code == 2 && run.stderr.contains("use https"), "{}", run.stderr);
}

/// These are kubectl's values, which the sidecar proposal uses for downgrades.
#[test]
fn validate_false_is_ignore() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, sidecar: true}]}\n";
    for (how, code) in [("false", 0), ("ignore", 0), ("true", 1), ("strict", 1), ("warn", 0)] {
        let run = outrigger(&["validate", &format!("--validate={how}"), "-"], pod);
        assert_eq!(run.code, code, "{how}: {}", run.stdout);
    }
}

/// Errors of every stage, in all documents and files, sorted by line.
#[test]
fn one_look_shows_all_errors() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = "\
apiVersion: batch/v1
kind: Job
metadata:
  name: Bad_Job
spec:
  backofLimit: 1
  parallelism: many
  template:
    metadata:
      annotations:
        outrigger.dev/depends-on: \"a: nobody\"
    spec:
      restartPolicy: Sometimes
      containers:
      - name: a
        image: i
        prots: []
        env:
        - name: A
          valueFrom: {configMapKeyRef: {name: missing, key: k}}
        volumeMounts:
        - {name: nowhere, mountPath: /data}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: b
    image: 5
    ports: [{containerPort: 99999}]
";
    let second = "apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {a: b}\nspec:\n  containers: [{name: B, image: i}]\n";
    let files = [("one.yaml", first), ("two.yaml", second)].map(|(name, text)| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.display().to_string()
    });
    let run = outrigger(&["validate", "-o", "json", &files[0], &files[1]], "");
    let all: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let found: Vec<(bool, u64, String)> = all["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|finding| finding["severity"] == "error")
        .map(|finding| {
            let in_second = finding["file"].as_str().expect("a file").ends_with("two.yaml");
            (
                in_second,
                finding["line"].as_u64().expect("a line"),
                finding["message"].as_str().expect("a text").to_owned(),
            )
        })
        .collect();
    let expected = [
        (false, 4, "Job name `Bad_Job` must consist of"),
        (false, 6, "unknown field `backofLimit`"),
        (false, 7, "`spec.parallelism`: expected a whole number"),
        (false, 11, "there is no container `nobody`"),
        (false, 13, "`Sometimes`"),
        (false, 17, "unknown field `prots`"),
        (false, 20, "ConfigMap `missing`"),
        (false, 22, "volume `nowhere` does not exist"),
        (false, 30, "`spec.containers[0].image`: expected a string"),
        (false, 31, "99999"),
        (true, 3, "missing field `metadata.name`"),
        (true, 6, "`B`"),
    ];
    for (in_second, line, words) in expected {
        let said = |f: &&(bool, u64, String)| (f.0, f.1) == (in_second, line) && f.2.contains(words);
        assert!(found.iter().any(|f| said(&f)), "line {line}: {words}\n{found:#?}");
    }
    assert!(found.is_sorted_by_key(|f| (f.0, f.1)), "{found:#?}");
    assert!(!run.stdout.contains("unnamed"), "{}", run.stdout);
    assert!(!run.stdout.contains("Bad_Job-"), "{}", run.stdout);
    // Messages do not contain rule ids.
    for finding in all["findings"].as_array().expect("a list") {
        let code = finding["code"].as_str().unwrap_or_default();
        assert!(!code.contains(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit()), "{finding}");
    }
}

/// The referenced ConfigMap may be in a text that could not be read.
#[test]
fn references_into_texts_that_cannot_be_read_are_not_judged() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n    \
                envFrom: [{configMapRef: {name: missing}}]\n";
    let dir = tempfile::tempdir().expect("a directory");
    let broken = dir.path().join("broken.yaml");
    std::fs::write(&broken, "kind: ConfigMap\n  name: [").expect("writable");
    assert!(outrigger(&["validate", "-"], text).stdout.contains("missing"));
    let run = outrigger(&["validate", "-", broken.to_str().expect("text")], text);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert!(!run.stdout.contains("missing"), "{}", run.stdout);
}

#[test]
fn a_sidecar_that_nobody_marked_is_said() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec:\n  template:\n    spec:\n      restartPolicy: Never\n      \
               containers:\n      - {name: work, image: i}\n      - {name: istio-proxy, image: i}\n";
    let validate = outrigger(&["validate", "-"], job);
    let plan = outrigger(&["plan", "-"], job);
    assert_eq!((validate.code, plan.code), (0, 0));
    for said in [validate.stdout, plan.stderr] {
        assert!(said.contains("`istio-proxy` looks like a sidecar, but is not marked as one"), "{said}");
        assert!(said.contains("outrigger.dev/sidecars: istio-proxy"), "{said}");
        assert!(said.contains("restartPolicy: Always"), "{said}");
    }
    let marked = job.replace(
        "    spec:\n      r",
        "    metadata: {annotations: {outrigger.dev/sidecars: istio-proxy}}\n    spec:\n      r",
    );
    let validate = outrigger(&["validate", "-"], &marked);
    assert_eq!(validate.stdout, "1 pod fine\n");
}

#[test]
fn usage_does_not_depend_on_the_environment() {
    for command in ["run", "apply", "node", "doctor"] {
        let said = |dir: Option<&str>| {
            let mut run = Command::new(env!("CARGO_BIN_EXE_outrigger"));
            run.args([command, "--bogus"]).env_remove("OUTRIGGER_STATE_DIR");
            if let Some(dir) = dir {
                run.env("OUTRIGGER_STATE_DIR", dir).env("OUTRIGGER_OCI_RUNTIME", "runc");
            }
            let out = run.output().expect("the binary runs");
            assert_eq!(out.status.code(), Some(2));
            String::from_utf8(out.stderr).expect("text")
        };
        assert_eq!(said(Some("/tmp/x")), said(None));
        assert!(!said(Some("/tmp/x")).contains("--state-dir"), "{}", said(Some("/tmp/x")));
    }
    // An error in the environment itself is still reported.
    let mut run = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let out =
        run.args(["run", "x.yaml"]).env("OUTRIGGER_IMAGE_LIMITS", "bogus").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(2) && said.contains("bogus"), "{said}");
}

#[test]
fn colours_are_a_matter_of_taste() {
    let plain = outrigger(&["plan", &example("kep-pod")], "").stdout;
    let coloured = outrigger(&["plan", "--color", "always", &example("kep-pod")], "").stdout;
    assert!(!plain.contains('\x1b'), "no terminal, no colours");
    assert!(coloured.contains('\x1b'));
    assert_eq!(outrigger(&["--color=never", "plan", &example("kep-pod")], "").stdout, plain);
}

#[test]
fn standard_input_is_a_file_too() {
    let text = std::fs::read_to_string(root().join(example("native-job"))).expect("readable");
    let run = outrigger(&["plan", "-"], &text);
    assert_eq!((run.code, run.stdout), (0, outrigger(&["plan", &example("native-job")], "").stdout));
}

#[test]
fn what_is_wrong_is_shown() {
    for name in ["cycle", "graph", "typo", "syntax", "conflict", "warning"] {
        snapshot(&format!("validate-{name}.txt"), &outrigger(&["validate", &bad(name)], "").all());
    }
    let json = outrigger(&["validate", "-o", "json", &bad("cycle")], "");
    snapshot("validate-cycle.json", &json.all());
}

/// An error is reported once, even if it breaks several rules.
#[test]
fn one_fault_is_one_finding() {
    let pod = |fields: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: a\n    image: i\n{fields}"
        )
    };
    let priority =
        |value: &str| pod(&format!("    env: [{{name: KRUISE_CONTAINER_PRIORITY, value: \"{value}\"}}]\n"));
    for (text, code, said, end) in [
        (pod("").replace("image: i", "image: \"\""), 1, "container `a` has no image", "\n1 error\n"),
        (pod("").replace("image: i", "imge: i"), 1, "did you mean `image`?", "\n1 error\n"),
        (pod("    livenessProbe:\n      htpGet: {port: 80}\n"), 1, "did you mean `httpGet`?", "\n1 error\n"),
        (pod("    livenessProbe:\n      httpGet: {prt: 80}\n"), 1, "did you mean `port`?", "\n1 error\n"),
        (priority("high"), 0, "\"high\" is not a whole number", "\n1 pod fine, 1 warning\n"),
        (priority("1"), 0, "no effect in a pod with one container", "\n1 pod fine, 1 warning\n"),
    ] {
        let run = outrigger(&["validate", "-"], &text);
        assert_eq!(run.code, code, "{}", run.all());
        assert!(run.stdout.contains(said) && run.stdout.ends_with(end), "{}", run.all());
    }
}

/// The Pod Security Standards limit what an untrusted manifest may ask for. `run` refuses the rest before
/// anything starts.
#[test]
fn strangers_manifests_can_be_refused() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: app\n    image: rootfs:/\n    command: [\"true\"]\n";
    let run = outrigger(&["validate", "-"], pod);
    assert_eq!(run.code, 0, "{}", run.all());
    let run = outrigger(&["validate", "--level", "baseline", "-"], pod);
    assert_eq!(run.code, 1, "{}", run.all());
    assert!(run.all().contains("8 |     image: rootfs:/") && run.all().contains("1 error"), "{}", run.all());
    let run = outrigger(&["validate", "--level", "restricted", "-o", "json", "-"], pod);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("a list");
    assert_eq!(findings.len(), 5, "{json}");
    assert!(findings.iter().all(|one| one["code"] == "pod-security"), "{json}");
    // A line is added to the existing map, because a key must not occur twice.
    let contexts = format!(
        "{pod}    securityContext: {{capabilities: {{add: []}}}}\n  securityContext: {{fsGroup: 3}}\n"
    );
    let run = outrigger(&["validate", "--level", "restricted", "-"], &contexts);
    for hint in [
        "add `allowPrivilegeEscalation: false` to the `securityContext` of the container",
        "add `drop: [ALL]` to the `capabilities` of the container",
        "add `runAsNonRoot: true` to the `securityContext` of the pod's spec",
        "add `seccompProfile: {type: RuntimeDefault}` to the `securityContext` of the pod's spec",
    ] {
        assert!(run.stdout.contains(hint), "{hint}: {}", run.all());
    }
    let run = outrigger(&["run", "--restricted", "-"], pod);
    assert_eq!(run.code, 2, "{}", run.all());
    assert!(run.all().contains("the image is the directory `/` of the host"), "{}", run.all());
    // Flags do not grant what the manifest may not ask for.
    for flag in ["--network", "--userns"] {
        for command in [&["run", "-"][..], &["run", "-d", "-"], &["node"]] {
            let run = outrigger(&[command, &["--restricted", flag, "host"]].concat(), pod);
            assert_eq!(run.code, 2, "{command:?}: {}", run.all());
            let says = format!("{flag} host cannot be used with --restricted");
            assert!(run.all().contains(&says), "{command:?}: {}", run.all());
        }
    }
}

/// Notes that are only information do not fail a strict check.
#[test]
fn notes_are_no_warnings() {
    let cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly}\nspec:\n  schedule: \"@daily\"\n  jobTemplate:\n    \
                spec:\n      template:\n        spec: {restartPolicy: Never, containers: [{name: a, image: i}]}\n";
    let run = outrigger(&["validate", "--validate=strict", "-"], cron);
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(run.stdout.starts_with("note: the schedule is not followed"), "{}", run.all());
    assert!(run.stdout.ends_with("1 pod fine, 1 note\n"), "{}", run.all());
    let run = outrigger(&["validate", "--validate=strict", "-o", "json", "-"], cron);
    let findings: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!((run.code, &findings["findings"][0]["severity"]), (0, &"note".into()));
}

#[test]
fn exit_codes() {
    let (good, cycle, warning, syntax) = (example("native-job"), bad("cycle"), bad("warning"), bad("syntax"));
    let stuck = "crates/outrigger/tests/cli/stuck.yaml";
    let kep = example("kep-pod");
    let rows: [(&[&str], i32); 32] = [
        (&["validate", &good], 0),
        (&["validate", &warning], 0),
        (&["validate", "--validate=strict", &warning], 1),
        (&["validate", &cycle], 1),
        (&["validate", &syntax], 1),
        (&["validate", "no-such-file.yaml"], 2),
        (&["validate"], 2),
        (&["validate", "-", "-"], 2),
        (&["plan", &good], 0),
        (&["plan", &cycle], 1),
        (&["plan", &syntax], 2),
        (&["plan", &good, "-o", "pdf"], 2),
        (&["plan", &good, "--feature-gates", "NoSuchGate=true"], 2),
        (&["plan", &kep, "--feature-gates", "SidecarLifecycleType=false"], 0),
        (&["plan", &good, "--feature-gates", "SidecarContainers=true"], 0),
        (&["plan", &good, "--feature-gates", "SidecarContainers=false"], 1),
        (&["convert", &good, "--to", "kep"], 0),
        (&["convert", &kep, "--to", "native"], 1),
        (&["convert", &kep, "--to", "native", "--lossy"], 0),
        (&["convert", &good, "--to", "terminator"], 1),
        (&["convert", &good, "--to", "compose"], 2),
        (&["convert", &cycle, "--to", "native"], 2),
        (&["simulate", &good], 0),
        (&["simulate", &kep, "--script", stuck], 1),
        (&["simulate", &good, "--script", stuck, "--pod", "nobody"], 2),
        (&["simulate", &good, "--grace-period", "3"], 2),
        (&["timeline", EVENTS], 0),
        (&["timeline", EVENTS, "--pod", "nobody"], 2),
        (&["timeline", &good], 2),
        (&["analyze", "no-such-file.jsonl"], 2),
        (&["run", "--timeline", "picture.png", &good], 2),
        (&["frobnicate"], 2),
    ];
    for (args, code) in rows {
        let run = outrigger(args, "");
        assert_eq!(run.code, code, "{args:?}\n{}{}", run.stdout, run.stderr);
    }
}

#[test]
fn usage_names_every_way_to_choose_pods() {
    for (command, ways) in [("logs", "<POD | -l SELECTOR>"), ("stop", "<POD | -l SELECTOR | --all>")] {
        let run = outrigger(&[command], "");
        let usage = format!("Usage: outrigger {command} [OPTIONS] {ways}\n");
        assert!(run.code == 2 && run.stderr.contains(&usage), "{}", run.all());
    }
    let start = outrigger(&["start"], "").stderr;
    assert!(!start.contains("\n\n\n"), "{start:?}");
}

/// A program that reads the output gets every pod and its errors.
#[test]
fn json_is_printed_whatever_is_wrong() {
    let (good, cycle, syntax) = (example("native-job"), bad("cycle"), bad("syntax"));
    let json = |args: &[&str], code: i32| -> serde_json::Value {
        let run = outrigger(args, "");
        assert_eq!(run.code, code, "{args:?}: {}", run.stderr);
        serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {:?}", run.stdout))
    };
    let plan = json(&["plan", "-o", "json", &cycle, &good], 1);
    let pods = plan["pods"].as_array().expect("pods");
    assert_eq!(pods.len(), 2, "{plan:#}");
    assert_eq!(pods[0]["findings"][0]["severity"], "error", "{plan:#}");
    assert!(pods[0].get("startStages").is_none() && pods[1]["startStages"].is_array(), "{plan:#}");
    assert_eq!(json(&["plan", "-o", "json", &cycle], 1)["pods"][0]["findings"][0]["severity"], "error");
    assert_eq!(json(&["plan", "-o", "json", &syntax], 2)["findings"][0]["severity"], "error");
    let simulated = json(&["simulate", "-o", "json", &cycle], 1);
    assert_eq!(simulated["findings"][0]["severity"], "error", "{simulated:#}");
    // A picture has no place for errors.
    let svg = outrigger(&["plan", "-o", "svg", &cycle], "");
    assert!(svg.code == 1 && svg.stdout.is_empty() && svg.stderr.contains("error"), "{}", svg.all());
}

#[test]
fn a_gate_that_is_off_makes_every_container_standard() {
    let run = outrigger(&["plan", &example("kep-pod"), "--feature-gates=SidecarLifecycleType=false"], "");
    assert!(!run.stdout.contains("sidecar"), "{}", run.stdout);
    assert!(run.stderr.contains("the feature gate SidecarLifecycleType is off"), "{}", run.stderr);
}

#[test]
fn native_sidecars_have_a_gate_of_their_own() {
    let run = outrigger(&["plan", &example("native-job"), "--feature-gates=SidecarContainers=false"], "");
    assert!(run.stderr.contains("the feature gate SidecarContainers is off"), "{}", run.stderr);
    for command in ["run", "plan", "validate", "convert", "simulate"] {
        let help = outrigger(&[command, "--help"], "").stdout;
        for gate in ["SidecarContainers", "SidecarLifecycleType"] {
            assert!(help.contains(gate), "{command} --help does not name {gate}");
        }
    }
}

#[test]
fn conversions_keep_what_is_not_about_order() {
    for name in EXAMPLES {
        // OpenKruise's two dialects are written together.
        let to = |dialect| outrigger(&["convert", &example(name), "--to", dialect, "--lossy"], "").stdout;
        assert_eq!(to("terminator"), to("priority"), "{name}");
        for dialect in DIALECTS {
            let run = outrigger(&["convert", &example(name), "--to", dialect, "--lossy"], "");
            assert_eq!(run.code, 0, "{name} to {dialect}: {}", run.stderr);
            snapshot(&format!("convert-{name}-{dialect}.txt"), &run.all());
            let again = outrigger(&["validate", "-"], &run.stdout);
            assert_eq!(again.code, 0, "{name} to {dialect}: {}\n{}", again.stdout, run.stdout);
        }
    }
}

#[test]
fn a_refused_conversion_writes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("out.yaml");
    let to = file.to_str().expect("text");
    let run = outrigger(&["convert", &example("kep-pod"), "--to", "native", "--output-file", to], "");
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(!file.exists());
    let run =
        outrigger(&["convert", &example("kep-pod"), "--to", "native", "--lossy", "--output-file", to], "");
    assert_eq!((run.code, run.stdout.as_str()), (0, ""));
    assert!(std::fs::read_to_string(&file).expect("written").contains("startupProbe"));
}

#[test]
fn conversions_have_a_format() {
    let args = ["convert", &example("native-job"), "--to", "kep", "--lossy"];
    let own = outrigger(&args, "").stdout;
    assert_eq!(outrigger(&[&args[..], &["-o", "yaml"]].concat(), "").stdout, own);
    let json = outrigger(&[&args[..], &["-o", "json"]].concat(), "").stdout;
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["kind"], "Job");
    let plan = |text: &str| outrigger(&["plan", "-"], text).stdout;
    assert_eq!(plan(&json), plan(&own));
    let yaml = outrigger(&["convert", "-", "--to", "kep", "-o", "yaml"], &json).stdout;
    assert!(yaml.starts_with("apiVersion: "), "{yaml}");
    assert_eq!(plan(&yaml), plan(&own));
}

/// Annotations that only the operator reads are mentioned only in the plans of pods that have them.
#[test]
fn plans_say_which_annotations_have_no_effect_here() {
    let pod = |annotations: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations: {{{annotations}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        )
    };
    let run = outrigger(
        &["plan", "-"],
        &pod("outrigger.dev/launch-timeout: 90s, outrigger.dev/pre-stop: own-turn"),
    );
    let (_, section) = run.stdout.split_once("\nWithout effect\n").expect("a section");
    let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
    let says =
        "outrigger.dev/launch-timeout has no effect on this machine. In a cluster: the operator reports";
    assert!(section.contains(says), "{}", run.stdout);
    assert!(!section.contains("pre-stop"), "{}", run.stdout);
    let run = outrigger(&["plan", "-"], &pod("outrigger.dev/pre-stop: own-turn"));
    assert!(!run.stdout.contains("Without effect"), "{}", run.stdout);
}

#[test]
fn lives_are_played_the_same_every_time() {
    let args = ["simulate", "crates/outrigger/tests/cli/pods/native-job.yaml", "--seed", "3"];
    let first = outrigger(&args, "").all();
    assert_eq!(outrigger(&args, "").all(), first);
    let json = outrigger(&["simulate", "crates/outrigger/tests/cli/pods/native-job.yaml", "-o", "json"], "");
    let value: serde_json::Value = serde_json::from_str(&json.stdout).expect("valid JSON");
    assert_eq!(value["pods"][0]["phase"], "Succeeded");
    assert_eq!(value["pods"][0]["ending"], "finished");
    let svg =
        outrigger(&["simulate", "crates/outrigger/tests/cli/pods/native-job.yaml", "-o", "svg"], "").stdout;
    assert!(svg.starts_with("<svg"), "{svg}");
    let page =
        outrigger(&["simulate", "crates/outrigger/tests/cli/pods/native-job.yaml", "-o", "html"], "").stdout;
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"), "{page}");
    let stop = outrigger(
        &[
            "simulate",
            "crates/outrigger/tests/cli/pods/depends-on.yaml",
            "--stop-at",
            "5s",
            "--grace-period",
            "7",
        ],
        "",
    );
    assert!(stop.stdout.contains("grace_ms=7000"), "{}", stop.stdout);
}

#[test]
fn a_stuck_pod_says_why() {
    let run = outrigger(
        &[
            "simulate",
            "crates/outrigger/tests/cli/pods/kep-pod.yaml",
            "--script",
            "crates/outrigger/tests/cli/stuck.yaml",
        ],
        "",
    );
    assert!(run.stdout.contains("`app` waits for `proxy` to be ready"), "{}", run.stdout);
}

#[test]
fn what_happened_is_drawn() {
    snapshot("timeline.txt", &outrigger(&["timeline", EVENTS], "").all());
    let svg = outrigger(&["timeline", EVENTS, "--pod", "web", "-o", "svg"], "");
    snapshot("timeline-web.svg", &svg.stdout);
    let both = outrigger(&["timeline", EVENTS, "-o", "svg"], "").stdout;
    assert_eq!(both.matches("<svg ").count(), 3, "one around two");
    let page = outrigger(&["timeline", EVENTS, "-o", "html"], "").stdout;
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    assert_eq!(page.matches("<figure>").count(), 2);
    for text in [&svg.stdout, &both, &page] {
        assert!(!text.contains("NaN"));
        assert_eq!(text.matches("http").count(), text.matches("http://www.w3.org/2000/svg").count());
    }
    for word in
        ["critical: `s2` does not end on TERM", "grace period: 4s of 4s used", "prefers-color-scheme: dark"]
    {
        assert!(page.contains(word), "{word}");
    }
}

#[test]
fn what_was_waited_for_is_told() {
    snapshot("analyze.txt", &outrigger(&["analyze", EVENTS], "").all());
    let json = outrigger(&["analyze", EVENTS, "--pod", "web", "-o", "json"], "");
    let _: serde_json::Value = serde_json::from_str(&json.stdout).expect("valid JSON");
    snapshot("analyze-web.json", &json.stdout);
    let played =
        outrigger(&["simulate", "crates/outrigger/tests/cli/pods/depends-on.yaml", "-o", "json"], "").stdout;
    let run = outrigger(&["analyze", "-"], &played);
    assert!(run.stdout.contains("until `worker` was up"), "{}", run.stdout);
}

#[test]
fn the_machine_is_examined() {
    let run = outrigger(&["doctor", "-o", "json"], "");
    let value: serde_json::Value = serde_json::from_str(&run.stdout).expect("valid JSON");
    let findings = value["findings"].as_array().expect("a list");
    let failed = findings.iter().any(|f| f["level"] == "fail");
    assert_eq!((run.code == 0, value["fit"] == true), (!failed, !failed), "{}", run.stdout);
    let text = outrigger(&["doctor"], "").stdout;
    for check in
        ["kernel", "privileges", "cgroups", "overlayfs", "namespaces", "seccomp", "network", "disk space"]
    {
        assert!(findings.iter().any(|f| f["check"] == check), "{check}");
        assert!(text.contains(check), "{check}");
    }
}

#[test]
fn commands_that_look_back_explain_themselves() {
    for command in ["timeline", "analyze", "doctor", "ps", "logs", "exec", "stop"] {
        snapshot(&format!("help-{command}.txt"), &outrigger(&[command, "--help"], "").all());
    }
}

#[test]
fn help_completions_and_manual() {
    let help = outrigger(&["--help"], "");
    for command in [
        "run",
        "ps",
        "logs",
        "exec",
        "stop",
        "plan",
        "validate",
        "convert",
        "simulate",
        "timeline",
        "analyze",
        "doctor",
        "operator",
        "completions",
        "man",
    ] {
        assert!(help.stdout.contains(command), "{command}");
        let own = outrigger(&[command, "--help"], "").stdout;
        assert!(own.contains("Examples:"), "{command} --help has no examples");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(outrigger(&["completions", shell], "").stdout.contains("simulate"), "{shell}");
    }
    assert!(outrigger(&["man"], "").stdout.contains(".TH outrigger"));
    let dir = tempfile::tempdir().expect("a directory");
    outrigger(&["man", "--dir", dir.path().to_str().expect("text")], "");
    assert!(dir.path().join("outrigger-convert.1").exists());
    assert!(outrigger(&["--version"], "").stdout.starts_with("outrigger "));
}

/// The manifest's author chooses names and values, so they never reach a terminal unescaped.
#[test]
fn messages_hold_no_control_characters() {
    let hostile = "\\e]0;title\\a\\e[2J\\u009b2J\\u202Ex\\b";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: \"{hostile}\"}}\nspec:\n  restartPolicy: \"{hostile}\"\n  \"{hostile}\": 1\n  \
         containers:\n    - {{name: \"{hostile}\", image: \"{hostile}\", workingDir: \"{hostile}\"}}\n"
    );
    let raw = "apiVersion: v1\nkind: Pod\nmetadata: {name: \u{202e}x, \u{9b}2J: y}\n";
    for (args, text) in [
        (&["validate", "-"][..], pod.as_str()),
        (&["plan", "-"], &pod),
        (&["validate", "-"], raw),
        (&["validate", "\x1b[2J"], ""),
        (&["logs", "\x1b]0;t\x07"], ""),
    ] {
        let run = outrigger(args, text);
        assert_ne!(run.code, 0, "{args:?}");
        for output in [&run.stdout, &run.stderr] {
            let is_safe = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || c == '\u{202e}');
            assert!(output.chars().all(is_safe), "{args:?}: {output:?}");
        }
        assert!(!run.stdout.is_empty() || !run.stderr.is_empty(), "{args:?}");
    }
}

/// Commands that talk to runs report it if there are none.
#[test]
fn commands_say_that_there_are_no_runs() {
    let dir = tempfile::Builder::new().prefix("outrigger-cli-").tempdir().expect("a directory");
    let state = dir.path().join("state").display().to_string();
    let said = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_outrigger"))
            .args(args)
            .env("OUTRIGGER_RUNTIME_DIR", dir.path().join("sockets"))
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        // Ordinary users are told about runs of root, if there are any.
        let err = String::from_utf8_lossy(&out.stderr);
        let ours = err.lines().filter(|line| !line.starts_with("note: only root can see runs of root"));
        (out.status.code(), ours.map(|line| format!("{line}\n")).collect::<String>())
    };
    assert_eq!(said(&["stop", "--all"]), (Some(0), "nothing to stop: you have no active runs\n".to_owned()));
    assert_eq!(said(&["stop", "--all", "-q"]), (Some(0), String::new()));
    for command in [
        &["ps"][..],
        &["logs", "web"],
        &["stop", "web"],
        &["stop", "--all"],
        &["exec", "web", "true"],
        &["attach", "web"],
        &["restart", "web"],
    ] {
        let (_, err) = said(&[&command[..1], &["--state-dir", &state], &command[1..]].concat());
        let expected = format!("nothing is running with the state directory {state}");
        assert!(err.contains(&expected), "{command:?}: {err}");
    }
}

/// `run -d` starts a node through `/proc/self/exe`.
#[test]
fn a_node_has_its_own_name() {
    let dir = tempfile::Builder::new().prefix("outrigger-cli-").tempdir().expect("a directory");
    let exe = dir.path().join("exe");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outrigger"), &exe).expect("a link");
    let mut node = Command::new(&exe)
        .arg("node")
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .env("OUTRIGGER_RUNTIME_DIR", dir.path().join("sockets"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", node.id())).unwrap_or_default();
    let began = std::time::Instant::now();
    while name() != "outrigger\n" && began.elapsed() < std::time::Duration::from_secs(30) {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    let found = name();
    node.kill().expect("it is our child");
    node.wait().expect("its end");
    assert_eq!(found, "outrigger\n");
}

#[test]
fn what_can_never_succeed_is_refused_before_anything_starts() {
    let pod =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n";
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  ../x: v\n";
    let message = format!("{pod}    terminationMessagePath: /\n");
    for (text, says) in
        [(format!("{map}---\n{pod}"), "5:3"), (message, "terminationMessagePath `/` is the root directory")]
    {
        for command in ["validate", "run"] {
            let run = outrigger(&[command, "-"], &text);
            assert!(run.stderr.contains(says) || run.stdout.contains(says), "{command}: {}", run.all());
            assert_ne!(run.code, 0, "{command}: {}", run.all());
        }
        assert_eq!(outrigger(&["run", "-"], &text).code, 2);
    }
    let run = outrigger(&["run", "--publish", "8080:80", "--publish", "8080:81", "-"], pod);
    assert_eq!(run.code, 2, "{}", run.all());
    assert!(
        run.stderr.contains("--publish 8080:80 and --publish 8080:81 ask for the same port"),
        "{}",
        run.all()
    );
}

#[test]
fn what_the_manifest_lacks_is_found_by_every_command() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  restartPolicy: Never\n  containers:\n  - name: c\n    image: i\n    envFrom:\n    - configMapRef: {name: absent}\n";
    for command in ["validate", "plan", "simulate"] {
        let run = outrigger(&[command, "-"], pod);
        assert_eq!(run.code, 1, "{command}: {}", run.all());
        let text = format!("{}{}", run.stdout, run.stderr);
        assert!(text.contains("ConfigMap `absent` is not in the manifest"), "{command}: {}", run.all());
        assert!(text.contains("<stdin>:10:"), "{command}: {}", run.all());
    }
    assert_eq!(outrigger(&["run", "-"], pod).code, 2);
    let run = outrigger(&["plan", "-o", "json", "-"], pod);
    assert!(run.stdout.contains("is not in the manifest"), "{}", run.all());
}

/// Manifests with errors or warnings that have long sentences and long lines.
const FAULTY: [&str; 4] = [
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  initContainers:\n  - {name: a-container-with-a-name, image: registry.example.com/team/application/component:1.2.3, readinessProbe: {tcpSocket: {port: 80}}}\n  containers:\n  - {name: app, image: i, comand: [sleep, infinity], lifecycle: {preStop: {httpGet: {port: http}}}}\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n    outrigger.dev/depends-on: 'a-rather-long-name: another-rather-long-name ready; another-rather-long-name: a-rather-long-name ready'\nspec:\n  containers:\n  - {name: a-rather-long-name, image: i}\n  - {name: another-rather-long-name, image: i}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: UPPER_case}\nspec: {containers: []}\n",
    "apiVersion: v2\nkind: Pood\n",
];

/// The visible width of a line.
fn width(line: &str) -> usize {
    line.chars().count()
}

#[test]
fn views_and_errors_fit_the_width_that_is_asked_for() {
    let examples: Vec<String> = std::fs::read_dir(root().join("examples"))
        .expect("examples")
        .map(|entry| format!("examples/{}", entry.expect("a file").file_name().to_string_lossy()))
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    assert!(examples.len() > 5, "{examples:?}");
    for columns in [60, 80, 120] {
        let asked = columns.to_string();
        let asked = [("COLUMNS", asked.as_str())];
        let fits = |what: &str, run: &Run| {
            for line in run.stdout.lines().chain(run.stderr.lines()) {
                assert!(width(line) <= columns, "{what} at {columns}:\n{line}\nof\n{}", run.all());
            }
        };
        for example in &examples {
            let plan = outrigger_with(&["plan", example], "", &asked);
            fits(&format!("plan {example}"), &plan);
            let wide = outrigger(&["plan", example], "");
            let words = |text: &str| text.replace(['─', '┬', '└', '├', '│'], " ").split_whitespace().count();
            assert_eq!(words(&plan.stdout), words(&wide.stdout), "nothing is cut off: {}", plan.stdout);
            let simulated = outrigger_with(&["simulate", example, "--stop-at", "30s"], "", &asked);
            fits(&format!("simulate {example}"), &simulated);
            let events = outrigger(&["simulate", example, "--stop-at", "30s", "-o", "json"], "").stdout;
            for view in ["timeline", "analyze"] {
                fits(&format!("{view} of {example}"), &outrigger_with(&[view, "-"], &events, &asked));
            }
        }
        for view in ["timeline", "analyze"] {
            fits(view, &outrigger_with(&[view, EVENTS], "", &asked));
        }
        for manifest in FAULTY {
            for command in ["validate", "plan"] {
                let run = outrigger_with(&[command, "-"], manifest, &asked);
                assert_ne!(run.all().len(), 0);
                fits(&format!("{command} of {manifest}"), &run);
            }
        }
        for args in [
            &["logs", "nobody", "--run", "99999999"][..],
            &["timeline", "a/file/that/does/not/exist.jsonl"],
            &["analyze", EVENTS, "--pod", "a-pod-that-is-not-in-the-file-and-has-a-long-name"],
        ] {
            fits(&args.join(" "), &outrigger_with(args, "", &asked));
        }
    }
}
