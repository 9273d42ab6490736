//! Timelines of real runs in a real browser. They must be drawn in light and dark mode, without overlaps. The
//! screenshots are kept in `target/tmp/timeline-*.png` for inspection.

mod chromium;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use chromium::{Chromium, Scheme};
use outrigger_testkit::rootfs;
use serde_json::Value;

/// A pod with long names, many containers, restarts, hooks, probes and a sidecar that is killed, and a Job
/// with several pods.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: checkout-service-with-a-really-long-name-7d9f8b6c5d-x2x4z}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 3
  initContainers:
  - {name: wwwwwwwwww-mmmmmmmmmm-migration-runner, image: IMAGE, command: [sleep, "0.3"]}
  - name: envoy-service-mesh-proxy-sidecar
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap '' TERM; sleep 0.4; touch /tmp/up; while :; do sleep 1; done"]
    startupProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1}
    lifecycle: {preStop: {exec: {command: [sleep, "0.5"]}}}
  - name: vault
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    lifecycle: {postStart: {exec: {command: [sleep, "0.3"]}}}
  containers:
  - {name: flaky, image: IMAGE, command: [sh, -c, "test -e /data/2 || { test -e /data/1 && touch /data/2; touch /data/1; sleep 0.2; exit 3; }"], volumeMounts: [{name: data, mountPath: /data}]}
  - {name: a, image: IMAGE, command: [sleep, "1"]}
  - {name: worker-two, image: IMAGE, command: [sleep, "0.7"]}
  volumes: [{name: data, emptyDir: {}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: second}
spec:
  parallelism: 2
  completions: 3
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: IMAGE, command: [sleep, "0.3"]}
"#;

/// Colours that must be in the picture: paper, image, starts, runs, ready, hook, being stopped, critical.
const LIGHT: [&str; 8] =
    ["#ffffff", "#cbd2d9", "#f7c948", "#82cfff", "#3ebd93", "#8a5cf0", "#f29b4b", "#d6249f"];
const DARK: [&str; 8] =
    ["#161b22", "#52606d", "#cb9b16", "#2b7cb8", "#199473", "#a78bfa", "#c2610c", "#ff6ac1"];

fn outrigger(dir: &Path, args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(args)
        .current_dir(dir)
        .env_remove("OUTRIGGER_STATE_DIR")
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    assert!(out.status.success(), "{args:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// Opens a page with a script that reports problems in its pictures.
fn measured(browser: &Chromium, dir: &Path, name: &str, page: &str, size: (u32, u32)) -> Value {
    let script = format!("<script>{}</script>", include_str!("measure.js"));
    let page = match page.split_once("</body>") {
        Some((before, after)) => format!("{before}{script}</body>{after}"),
        None => format!("<!DOCTYPE html><html><body style='margin: 0'>{page}{script}</body></html>"),
    };
    let file = dir.join(name);
    fs::write(&file, page).expect("a page");
    let dom = browser.dom(&file, size);
    let (_, rest) =
        dom.split_once("<pre id=\"measured\">").unwrap_or_else(|| panic!("it did not run:\n{dom}"));
    let said = rest.split_once("</pre>").expect("an end").0;
    let plain = said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&plain).expect("JSON")
}

#[test]
fn what_cannot_be_read_is_found() {
    let Some(browser) = Chromium::find() else { return };
    let dir = tempfile::Builder::new().prefix("outrigger-pictures-").tempdir().expect("a directory");
    let text = |x: u32, word: &str| format!("<text x=\"{x}\" y=\"20\">{word}</text>");
    let svg = |inner: &str| format!("<svg viewBox=\"0 0 200 40\" width=\"200\" height=\"40\">{inner}</svg>");
    let page = [
        svg(&(text(10, "one") + &text(80, "two"))),
        svg(&(text(10, "on") + &text(20, "top"))),
        svg(&text(180, "outside")),
        svg(&(text(10, "under") + "<rect class=\"bar\" x=\"12\" y=\"8\" width=\"9\" height=\"9\"/>")),
    ];
    let found = measured(&browser, dir.path(), "broken.html", &page.concat(), (400, 400));
    let expected = ["top lies on on", "outside leaves the picture", "under lies on a bar"];
    assert_eq!(found["problems"], serde_json::json!(expected));
}

#[test]
fn a_plan_scales_to_its_window() {
    let Some(browser) = Chromium::find() else { return };
    let dir = tempfile::Builder::new().prefix("outrigger-pictures-").tempdir().expect("a directory");
    fs::write(dir.path().join("pods.yaml"), MANIFEST.replace("IMAGE", "busybox")).expect("a manifest");
    let text = outrigger(dir.path(), &["plan", "pods.yaml", "-o", "svg"]);
    for width in [500, 1600] {
        let found = measured(&browser, dir.path(), "plan.html", &text, (width, 900));
        assert_eq!(found["scrolls"], serde_json::json!(false), "at {width} pixels");
    }
}

#[test]
fn timelines_can_be_read_in_any_window() {
    let Some(browser) = Chromium::find() else { return };
    let dir = tempfile::Builder::new().prefix("outrigger-pictures-").tempdir().expect("a directory");
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::write(dir.path().join("pods.yaml"), MANIFEST.replace("IMAGE", "busybox")).expect("a manifest");
    let text = outrigger(dir.path(), &["simulate", "pods.yaml", "--stop-at", "20s", "-o", "html"]);
    let page = dir.path().join("simulated.html");
    fs::write(&page, &text).expect("a page");
    for width in [500, 640, 899, 900, 1200] {
        let found = measured(&browser, dir.path(), "measured.html", &text, (width, 1400));
        assert_eq!(found["problems"], serde_json::json!([]), "at {width} pixels");
        assert_eq!(found["scrolls"], serde_json::json!(false), "at {width} pixels");
        assert!(found["smallest"].as_f64() >= Some(10.0), "at {width} pixels: {found}");
        for role in ["init", "sidecar", "main"] {
            assert!(
                found["texts"].as_array().is_some_and(|all| all.contains(&role.into())),
                "{role}: {found}"
            );
        }
        browser.screenshot(
            &page,
            Scheme::Light,
            (width, 1400),
            &kept.join(format!("timeline-simulated-{width}.png")),
        );
    }
}

#[test]
fn timelines_look_right_in_a_browser() {
    let Some(browser) = Chromium::find() else { return };
    let dir = tempfile::Builder::new().prefix("outrigger-pictures-").tempdir().expect("a directory");
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let image = format!("rootfs:{}", rootfs::make(&dir.path().join("rootfs")).display());
    fs::write(dir.path().join("pods.yaml"), MANIFEST.replace("IMAGE", &image)).expect("a manifest");
    let run = ["run", "-q", "-o", "plain", "--network", "none", "--state-dir", "state"];
    outrigger(
        dir.path(),
        &[&run[..], &["--timeline", "run.html", "--events", "run.jsonl", "pods.yaml"]].concat(),
    );
    let pages = [
        ("run", "html", fs::read_to_string(dir.path().join("run.html")).expect("the timeline"), (1200, 1400)),
        ("run", "svg", outrigger(dir.path(), &["timeline", "run.jsonl", "-o", "svg"]), (1080, 1200)),
        (
            "linear",
            "html",
            outrigger(dir.path(), &["timeline", "run.jsonl", "--linear", "-o", "html"]),
            (900, 1200),
        ),
        (
            "narrow",
            "html",
            fs::read_to_string(dir.path().join("run.html")).expect("the timeline"),
            (500, 2000),
        ),
    ];
    for (name, kind, text, size) in pages {
        assert_eq!(
            text.matches("http").count(),
            text.matches("http://www.w3.org/2000/svg").count(),
            "{name}.{kind} needs something from elsewhere"
        );
        assert!(
            text.contains("<title>critical: "),
            "{name}.{kind} says what was waited for where it is pointed at"
        );
        let page = dir.path().join(format!("{name}.{kind}"));
        fs::write(&page, &text).expect("a page");
        let found = measured(&browser, dir.path(), &format!("{name}.{kind}.measured.html"), &text, size);
        assert!(found["pictures"].as_u64() >= Some(2), "a pod, and a Job with its pods: {found}");
        assert_eq!(found["problems"], serde_json::json!([]), "{name}.{kind}");
        // The legend has a patch of each colour, so there must be more pixels than that.
        let scale = f64::from(size.0) / if name == "narrow" { 460.0 } else { 1080.0 };
        let legend = (14.0 * 10.0 * scale * scale) as usize;
        for (scheme, colors) in [(Scheme::Light, LIGHT), (Scheme::Dark, DARK)] {
            let to = kept.join(format!("timeline-{name}-{kind}-{scheme:?}.png").to_lowercase());
            let pixels = browser.screenshot(&page, scheme, size, &to);
            assert_eq!((pixels.width, pixels.height), size, "{}", to.display());
            for color in colors {
                let count = pixels.count(color);
                assert!(count > legend, "{count} pixels of {color} in {}", to.display());
            }
            // No colour of the other scheme is visible.
            let other = if scheme == Scheme::Dark { LIGHT[0] } else { DARK[0] };
            let (all, wrong) = (pixels.width * pixels.height, pixels.count(other));
            assert!(wrong < all as usize / 50, "{wrong} of {all} pixels of {other} in {}", to.display());
        }
    }
}
