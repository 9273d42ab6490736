//! Successful pulls from a real registry.

use std::fs;
use std::sync::Arc;

use outrigger_images::ImageStore;
use outrigger_runtime::{PullCause, PullPolicy};
use serde_json::json;

use crate::support::*;

/// A layout with three layers, one in each compression.
fn three_layers(dir: &std::path::Path) -> OciLayout {
    let mut layout = OciLayout::new(dir.join("layout"));
    let layers = [
        busybox().gzip(),
        Layer::new().file("etc/a", "1").file("etc/b", "1").build(Compression::Zstd),
        Layer::new().file("etc/.wh.a", "").file("etc/c", "1").build(Compression::None),
    ];
    layout.image("v1", json!({"Entrypoint": ["/bin/busybox", "sh"], "Env": ["A=1"]}), &layers);
    layout
}

#[tokio::test]
async fn an_image_is_pulled_once_and_then_there() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let layout = three_layers(dir.path());
    registry.push(&layout, "v1", "team/app:v1");
    let reference = registry.reference("team/app:v1");
    let state = dir.path().join("state");
    let store = ImageStore::open(&state).unwrap();

    let never = store.ensure(request(&reference, PullPolicy::Never), silent()).await.unwrap_err();
    assert_eq!(never.cause, Some(PullCause::NeverPull), "{never}");
    assert_eq!(never.reason(), "ErrImageNeverPull");

    let (sink, heard) = listening();
    let image = store.ensure(request(&reference, PullPolicy::IfNotPresent), sink).await.unwrap();
    assert!(!image.was_present);
    assert_eq!(
        (image.reference.as_str(), image.entrypoint.len(), image.layers.len()),
        (reference.as_str(), 2, 3)
    );
    let merged = Merged::mount(&image, dir.path());
    assert_eq!((merged.read("etc/b"), merged.path.join("etc/a").exists()), ("1".into(), false));
    assert_eq!(run("chroot", &[merged.path.to_str().unwrap(), "/bin/sh", "-c", "echo $((6*7))"]), "42\n");
    let last = heard.lock().unwrap().last().cloned().unwrap();
    assert_eq!(Some(last.done_bytes), last.total_bytes);
    assert!(last.done_bytes > 500_000 && last.reference == reference, "{last:?}");
    let heard = heard.lock().unwrap().clone();
    assert!(heard.len() > 3 && heard.is_sorted_by_key(|p| p.done_bytes), "{heard:?}");
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
    let longest = image.layers.iter().map(|dir| dir.as_os_str().len()).max().unwrap();
    assert!(longest <= state.as_os_str().len() + 33, "short, for overlayfs' page of options");

    // The reference has a digest instead of the tag, or both.
    let digest = sha256(&fs::read(layout.dir.join("index.json")).map(|b| manifest_of(&layout, &b)).unwrap());
    for name in [format!("team/app@{digest}"), format!("team/app:v1@{digest}")] {
        let again = ensure(&store, registry.reference(&name)).await.unwrap();
        assert_eq!((&again.id, &again.layers, again.was_present), (&image.id, &image.layers, true), "{name}");
    }

    // Without the registry, present images are used. Only `Always` needs the registry.
    drop(registry);
    for policy in [PullPolicy::IfNotPresent, PullPolicy::Never] {
        let again =
            ImageStore::open(&state).unwrap().ensure(request(&reference, policy), silent()).await.unwrap();
        assert_eq!(
            (again.id, again.layers, again.was_present),
            (image.id.clone(), image.layers.clone(), true)
        );
    }
    let refused =
        store.ensure(request(&reference, PullPolicy::Always), silent()).await.unwrap_err().to_string();
    assert!(refused.contains("connection refused by 127.0.0.1:"), "{refused}");
    // The text follows "could not pull image: ", and more text follows it.
    assert!(!refused.contains("cannot pull") && !refused.contains('?'), "{refused}");
}

/// The manifest of the first entry of an index.
fn manifest_of(layout: &OciLayout, index: &[u8]) -> Vec<u8> {
    let index: serde_json::Value = serde_json::from_slice(index).unwrap();
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    fs::read(layout.dir.join("blobs/sha256").join(&digest[7..])).unwrap()
}

#[tokio::test]
async fn always_follows_a_moved_tag_and_fetches_only_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let (base, old, new) =
        (busybox().gzip(), Layer::new().file("v", "1").gzip(), Layer::new().file("v", "2").gzip());
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("old", json!({}), &[base.clone(), old]).image("new", json!({}), &[base.clone(), new]);
    registry.push(&layout, "old", "app:latest");
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let always = || store.ensure(request(registry.reference("app"), PullPolicy::Always), silent());
    let first = always().await.unwrap();
    assert!(always().await.unwrap().was_present);
    registry.push(&layout, "new", "app:latest");
    assert_eq!(ensure(&store, registry.reference("app")).await.unwrap().id, first.id, "not asked for");
    let second = always().await.unwrap();
    assert_ne!(second.id, first.id);
    assert!(!second.was_present);
    assert_eq!(fs::read_to_string(second.layers[1].join("v")).unwrap(), "2");
    assert_eq!(second.layers[0], first.layers[0], "shared");
    assert_eq!(registry.count_gets(&format!("/blobs/{}", sha256(&base.bytes))), 1);
}

#[tokio::test]
async fn an_index_leads_to_this_machines_image() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let mut layout = OciLayout::new(dir.path().join("layout"));
    let media_type = "application/vnd.oci.image.index.v1+json";
    let entry = |layout: &OciLayout, architecture: &str| {
        let layer = Layer::new().file("arch", architecture).gzip();
        let mut entry = layout.manifest(architecture, json!({}), &[layer]);
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entry
    };
    let (s390x, here) = (entry(&layout, "s390x"), entry(&layout, this_architecture()));
    let both = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": [s390x, here]});
    let both = layout.blob(media_type, both.to_string().as_bytes());
    layout.tag(both, "both");
    let foreign = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": [s390x]});
    let foreign = layout.blob(media_type, foreign.to_string().as_bytes());
    layout.tag(foreign, "foreign");
    registry.push(&layout, "both", "multi:both");
    registry.push(&layout, "foreign", "multi:foreign");
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    for reference in [registry.reference("multi:both"), format!("oci:{}:both", layout.dir.display())] {
        let image = ensure(&store, &reference).await.unwrap();
        assert_eq!(fs::read_to_string(image.layers[0].join("arch")).unwrap(), this_architecture());
    }
    for reference in [registry.reference("multi:foreign"), format!("oci:{}:foreign", layout.dir.display())] {
        let text = failure(&store, &reference).await;
        let says = format!(
            "no image for this machine's platform linux/{}; the index has linux/s390x",
            this_architecture()
        );
        assert!(text.contains(&says), "{text}");
    }
}

#[tokio::test]
async fn callers_in_one_process_share_a_pull() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let layout = three_layers(dir.path());
    registry.push(&layout, "v1", "app:v1");
    let store = Arc::new(ImageStore::open(&dir.path().join("state")).unwrap());
    let mut calls = tokio::task::JoinSet::new();
    let mut all_heard = Vec::new();
    for _ in 0..8 {
        let (sink, heard) = listening();
        all_heard.push(heard);
        let (store, reference) = (store.clone(), registry.reference("app:v1"));
        calls.spawn(async move { store.ensure(request(reference, PullPolicy::Always), sink).await.unwrap() });
    }
    let images = calls.join_all().await;
    assert!(images.iter().all(|image| image.layers == images[0].layers));
    assert!(all_heard.iter().all(|heard| !heard.lock().unwrap().is_empty()), "each hears of the progress");
    assert_eq!(registry.count_gets("/manifests/v1"), 1);
}

#[tokio::test]
async fn a_dropped_call_stops_the_pull_and_the_next_one_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let layout = three_layers(dir.path());
    registry.push(&layout, "v1", "app:v1");
    let state = dir.path().join("state");
    let store = ImageStore::open(&state).unwrap();
    // The pull is dropped at different times.
    for millis in [0, 1, 2, 4, 8, 16, 32] {
        let call = ensure(&store, registry.reference("app:v1"));
        let _ = tokio::time::timeout(std::time::Duration::from_millis(millis), call).await;
    }
    let image = ensure(&store, registry.reference("app:v1")).await.unwrap();
    assert_eq!(Merged::mount(&image, dir.path()).read("etc/b"), "1");
}

/// A pull in a separate process. The tests below start it.
#[tokio::test]
async fn child_pull() {
    let Ok(reference) = std::env::var("OUTRIGGER_TEST_PULL") else {
        return;
    };
    let state = std::env::var("OUTRIGGER_TEST_STATE").unwrap();
    let store = ImageStore::open(std::path::Path::new(&state)).unwrap();
    match store.ensure(request(reference, PullPolicy::IfNotPresent), silent()).await {
        Ok(image) => println!("PULLED {}", serde_json::to_string(&image.layers).unwrap()),
        Err(error) => println!("FAILED {error}"),
    }
}

/// Starts `child_pull`.
pub(crate) fn child(reference: &str, state: &std::path::Path) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "registry::child_pull", "--nocapture"]);
    command.env("OUTRIGGER_TEST_PULL", reference).env("OUTRIGGER_TEST_STATE", state);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

pub(crate) fn said(output: std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let start = text.find("PULLED").or(text.find("FAILED"));
    let start = start.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    text[start..].lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn processes_share_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start(&dir.path().join("registry")).await;
    let layout = three_layers(dir.path());
    registry.push(&layout, "v1", "app:v1");
    let state = dir.path().join("state");
    let children: Vec<_> =
        (0..4).map(|_| child(&registry.reference("app:v1"), &state).spawn().unwrap()).collect();
    let texts: Vec<String> =
        children.into_iter().map(|child| said(child.wait_with_output().unwrap())).collect();
    assert!(texts[0].starts_with("PULLED") && texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(layout.dir.join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest: serde_json::Value =
        serde_json::from_slice(&manifest_of(&layout, &fs::read(layout.dir.join("index.json")).unwrap()))
            .unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        let digest = layer["digest"].as_str().unwrap();
        assert_eq!(
            registry.count_gets(&format!("/blobs/{digest}")),
            1,
            "{digest} was fetched more than once"
        );
    }
    assert_eq!(scratch_entries(&state), [] as [std::path::PathBuf; 0]);
}

#[tokio::test]
async fn credentials_come_from_secrets_files_and_helpers() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::start_with_password(&dir.path().join("registry")).await;
    let mut layout = OciLayout::new(dir.path().join("layout"));
    layout.image("v1", json!({}), &[Layer::new().file("f", "x").gzip()]);
    registry.push(&layout, "v1", "app:v1");
    let reference = registry.reference("app:v1");
    let store = ImageStore::open(&dir.path().join("state")).unwrap();
    let host = format!("127.0.0.1:{}", registry.port);
    let secret =
        |password: &str| json!({"auths": {&host: {"username": "test", "password": password}}}).to_string();

    // There are no credentials, wrong ones, or good ones after wrong ones.
    let mut ask = request(&reference, PullPolicy::Always);
    let text = store.ensure(ask.clone(), silent()).await.unwrap_err().to_string();
    for part in
        ["unauthorized", &host, "no credentials found", "imagePullSecrets (none given)", "config.json"]
    {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    ask.auth = vec![secret("wrong")];
    let text = store.ensure(ask.clone(), silent()).await.unwrap_err().to_string();
    assert!(
        text.contains("the one credential found was refused")
            && text.contains("1 imagePullSecrets (1 match)"),
        "{text}"
    );
    assert!(!text.contains("wrong"), "no passwords in messages: {text}");
    ask.auth.push(secret("secret"));
    store.ensure(ask, silent()).await.unwrap();

    // The environment determines where files and helpers are, so this uses separate processes.
    let home = dir.path().join("home");
    let bin = dir.path().join("bin");
    fs::create_dir_all(home.join(".docker")).unwrap();
    fs::create_dir_all(&bin).unwrap();
    let good = json!({"auths": {&host: {"auth": "dGVzdDpzZWNyZXQ="}}}).to_string();
    let helper = bin.join("docker-credential-fake");
    fs::write(&helper, "#!/bin/sh\nread server\necho \"{\\\"ServerURL\\\":\\\"$server\\\",\\\"Username\\\":\\\"test\\\",\\\"Secret\\\":\\\"secret\\\"}\"\n").unwrap();
    run("chmod", &["755", helper.to_str().unwrap()]);
    let with_helper = json!({"credHelpers": {&host: "fake"}}).to_string();
    let with_store = json!({"credsStore": "fake"}).to_string();
    let missing = json!({"credsStore": "missing"}).to_string();
    for (n, (file, content, works)) in [
        (".docker/config.json", &good, true),
        (".config/containers/auth.json", &good, true),
        ("registry-auth", &good, true),
        (".docker/config.json", &with_helper, true),
        (".docker/config.json", &with_store, true),
        (".docker/config.json", &missing, false),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(home.join(file).parent().unwrap()).unwrap();
        fs::write(home.join(file), content).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = child(&reference, &dir.path().join(format!("state-{n}")));
        command.env("HOME", &home).env("PATH", path);
        for name in ["XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"] {
            command.env_remove(name);
        }
        if file == "registry-auth" {
            command.env("REGISTRY_AUTH_FILE", home.join(file));
        }
        let text = said(command.output().unwrap());
        assert_eq!(text.starts_with("PULLED"), works, "{file} {content}: {text}");
        assert!(works || text.contains("docker-credential-missing"), "{text}");
    }
}
