//! Tests of the options of a pod, and of what node tools show about it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use outrigger_cri::{CriConfig, CriRuntime};
use outrigger_runtime::{
    ImageError, Mount, NetworkMode, Propagation, PullCause, PullPolicy, PullRequest, Runtime, RuntimeError,
    Seccomp, UserFault,
};

use crate::support::{Pod, connect, endpoint, image, limits, sandbox_spec, subnet};
use outrigger_testkit::trials;

trials!(
    what_runs_there_is_told,
    identity_and_limits_arrive,
    root_is_refused_where_the_pod_says_so,
    filters_and_privileges_arrive,
    mounts_arrive_and_missing_ones_are_refused,
    command_environment_and_directory_follow_image_and_pod,
    namespaces_are_shared_as_asked,
    a_private_network_has_an_address_and_a_namespace,
    what_never_works_is_told_apart,
    node_tools_see_the_kubelets_labels,
    a_pod_of_the_same_name_can_run_beside,
    orphans_are_found_by_their_process,
    references_to_files_are_refused,
    an_endpoint_that_is_not_there_is_told,
);

async fn what_runs_there_is_told() {
    let runtime = connect(endpoint(), limits()).await;
    let info = runtime.info();
    assert_eq!((info.name.as_str(), info.api_version.as_str()), ("containerd", "v1"));
    assert!(info.endpoint.starts_with("unix:///"), "{info:?}");
    assert_eq!(runtime.lacks().await, Vec::<String>::new());
}

async fn identity_and_limits_arrive() {
    let pod = Pod::new().await;
    let mut spec = pod
        .script("id -u; id -g; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch /x 2>/dev/null");
    spec.identity.run_as_user = Some(1000);
    spec.identity.run_as_group = Some(2000);
    spec.identity.supplemental_groups = vec![3000];
    spec.identity.no_new_privileges = true;
    spec.identity.drop_capabilities = vec!["ALL".to_owned()];
    spec.identity.add_capabilities = vec!["CHOWN".to_owned()];
    spec.read_only_rootfs = true;
    spec.resources.memory_limit_bytes = Some(64 << 20);
    spec.resources.cpu_limit_milli = Some(500);
    let (exit, log) = pod.run(spec).await;
    assert_eq!(exit.code, 1, "the root file system is read-only: {log}");
    let lines: Vec<&str> = log.lines().map(str::trim).collect();
    assert_eq!(lines[..3], ["1000", "2000", "2000 3000"], "{log}");
    assert!(log.contains("NoNewPrivs:\t1"), "{log}");

    let mut spec = pod.script("cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max");
    spec.resources.memory_limit_bytes = Some(64 << 20);
    let (_, log) = pod.run(spec).await;
    assert!(log.lines().any(|line| line == (64 << 20).to_string()), "{log}");

    let mut spec = pod.script("x=x; while :; do x=$x$x; done");
    spec.resources.memory_limit_bytes = Some(16 << 20);
    let (exit, _) = pod.run(spec).await;
    assert_eq!((exit.code, exit.oom_killed), (137, true));
    pod.finish().await;
}

async fn root_is_refused_where_the_pod_says_so() {
    let pod = Pod::new().await;
    let web = image(&pod.runtime, "localhost/web:1").await.expect("image");
    let table = [
        (None, None, Some("image will run as root")),
        (Some(0), None, Some("breaks non-root policy")),
        (Some(7), None, None),
        (None, Some(web.clone()), Some("non-numeric user (web)")),
        (Some(7), Some(web), None),
    ];
    for (user, of, refused) in table {
        let mut spec = pod.script("true");
        spec.identity.run_as_non_root = true;
        spec.identity.run_as_user = user;
        spec.image = of.unwrap_or(spec.image);
        match (pod.start(spec).await, refused) {
            (Ok(_), None) => {}
            (Err(RuntimeError::User { cause: UserFault::RootForbidden, detail }), Some(says)) => {
                assert!(detail.contains(says), "{detail}");
            }
            (other, _) => panic!("{user:?}: {other:?}, wanted {refused:?}"),
        }
    }
    pod.finish().await;
}

async fn filters_and_privileges_arrive() {
    let pod = Pod::with(|spec| spec.privileged = true).await;
    let status = "grep Seccomp: /proc/self/status; ls /dev | wc -l";
    let plain = pod.output(pod.script(status)).await;
    assert!(plain.starts_with("Seccomp:\t2\n"), "{plain}");
    let mut spec = pod.script(status);
    spec.identity.seccomp = Seccomp::Unconfined;
    assert!(pod.output(spec).await.starts_with("Seccomp:\t0\n"));
    let profile = pod.scratch("seccomp").join("no-mkdir.json");
    let rule = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    fs::write(&profile, rule).expect("a profile");
    let mut spec = pod.script("mkdir /tmp/x || echo refused");
    spec.identity.seccomp = Seccomp::Localhost(profile);
    assert!(pod.output(spec).await.contains("refused"));
    // Masked and read-only paths are mounts below /proc.
    for mask_paths in [true, false] {
        let mut spec = pod.script("grep -c ' /proc/' /proc/self/mountinfo || true");
        spec.mask_paths = mask_paths;
        let mounts: u32 = pod.output(spec).await.trim().parse().expect("a number");
        assert_eq!(mounts > 0, mask_paths, "{mounts}");
    }
    let mut spec = pod.script(status);
    spec.identity.privileged = true;
    spec.identity.seccomp = Seccomp::Unconfined;
    let privileged = pod.output(spec).await;
    assert!(privileged.starts_with("Seccomp:\t0\n"), "{privileged}");
    assert_ne!(privileged.lines().last(), plain.lines().last(), "all devices of the host are there");
    pod.finish().await;
}

async fn mounts_arrive_and_missing_ones_are_refused() {
    let pod = Pod::new().await;
    let (data, read_only) = (pod.scratch("data"), pod.scratch("ro"));
    fs::write(read_only.join("file"), "content\n").expect("a file");
    let mount = |source: &std::path::Path, target: &str, read_only: bool| Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only,
        // Other propagation needs a shared mount on the host.
        propagation: Propagation::Private,
    };
    let mut spec = pod.script("cat /ro/file; touch /ro/x || echo refused; echo new > /data/deep/er/file");
    fs::create_dir_all(data.join("deep/er")).expect("a directory");
    spec.mounts = vec![mount(&data, "/data", false), mount(&read_only, "/ro", true)];
    let log = pod.output(spec).await;
    assert!(log.contains("content") && log.contains("refused"), "{log}");
    assert_eq!(fs::read_to_string(data.join("deep/er/file")).expect("written"), "new\n");

    let missing = data.join("missing");
    let mut spec = pod.script("true");
    spec.mounts = vec![mount(&missing, "/x", false)];
    match pod.start(spec).await {
        Err(RuntimeError::Create(text)) => assert!(text.contains("missing does not exist"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(!missing.exists(), "nobody made it");
    pod.finish().await;
}

async fn command_environment_and_directory_follow_image_and_pod() {
    let pod = Pod::new().await;
    let web = image(&pod.runtime, "localhost/web:1").await.expect("image");
    assert_eq!((web.user.as_deref(), web.cmd.as_slice()), (Some("web"), &["sh".to_owned()][..]));
    let mut spec = pod.script("");
    spec.image = web;
    spec.command = None;
    spec.args = Some(["sh", "-c", "echo $FROM $BY; pwd; id -u; id -g"].map(str::to_owned).into());
    spec.env = vec![("BY".to_owned(), "pod".to_owned())];
    assert_eq!(pod.output(spec.clone()).await, "image pod\n/home/web\n33\n34\n");
    pod.runtime.remove_container(&spec.id).await.expect("remove");
    // A group without a user: the container keeps the image's user.
    let _ = fs::remove_file(&spec.log_path);
    spec.env.push(("FROM".to_owned(), "override".to_owned()));
    spec.working_dir = Some("/new/dir".to_owned());
    spec.identity.run_as_group = Some(5);
    assert_eq!(pod.output(spec).await, "override pod\n/new/dir\n33\n5\n");
    pod.finish().await;
}

async fn namespaces_are_shared_as_asked() {
    for (host_pid, share_pid) in [(false, false), (true, false), (false, true)] {
        let pod = Pod::with(|spec| (spec.host_pid, spec.share_pid) = (host_pid, share_pid)).await;
        let other = pod.start(pod.script("sleep 4321")).await.expect("start");
        let seen = pod.output(pod.script("ps | grep -v grep | grep -c 'sleep 4321' || true; echo $$")).await;
        let own = host_pid || share_pid;
        assert_eq!(seen.starts_with('1'), own, "host {host_pid}, shared {share_pid}: {seen}");
        assert_eq!(seen.ends_with("\n1\n"), !own, "host {host_pid}, shared {share_pid}: {seen}");
        pod.runtime.kill(&other).await.expect("kill");
        assert_eq!(pod.wait(&other).await.code, 137);
        pod.finish().await;
    }
}

/// The kubelet would retry these forever.
async fn what_never_works_is_told_apart() {
    let runtime = connect(endpoint(), limits()).await;
    for (name, value) in [("net.ipv4.no_such_setting", "1"), ("net.ipv4.ip_forward", "many")] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spec = sandbox_spec(dir.path());
        spec.network = NetworkMode::Private;
        spec.sysctls = [(name.to_owned(), value.to_owned())].into();
        let id = spec.id.clone();
        let error = runtime.create_sandbox(spec).await.expect_err("a sysctl that is refused");
        assert!(matches!(&error, RuntimeError::Sysctl { name: of, .. } if of == name), "{error:?}");
        runtime.remove_sandbox(&id).await.expect("removed");
    }
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    // A group needs a user, so the image's user is given by name.
    spec.image.user = Some("nobody-knows".to_owned());
    spec.identity.run_as_group = Some(7);
    let error = pod.start(spec).await.expect_err("a user that does not exist");
    assert!(matches!(&error, RuntimeError::User { cause: UserFault::NoSuchName, .. }), "{error:?}");
    pod.finish().await;
}

async fn a_private_network_has_an_address_and_a_namespace() {
    let pod = Pod::with(|spec| {
        spec.network = NetworkMode::Private;
        spec.sysctls = [("net.ipv4.ip_unprivileged_port_start".to_owned(), "77".to_owned())].into();
    })
    .await;
    let ip = pod.sandbox.ips.first().expect("an address").to_string();
    assert!(ip.starts_with(&format!("10.244.{}.", subnet())), "{ip}");
    let netns = pod.sandbox.netns.clone().expect("a network namespace");
    let here = fs::read_link("/proc/self/ns/net").expect("a namespace");
    let script =
        "hostname; ip addr; readlink /proc/self/ns/net; cat /proc/sys/net/ipv4/ip_unprivileged_port_start";
    let log = pod.output(pod.script(script)).await;
    assert!(log.starts_with("test-pod\n") && log.contains(&ip) && log.ends_with("\n77\n"), "{log}");
    assert!(!log.contains(&*here.to_string_lossy()), "{log}");
    use std::os::unix::fs::MetadataExt as _;
    let inode = fs::metadata(&netns).expect("the namespace is there").ino();
    assert!(log.contains(&format!("net:[{inode}]")), "{} is {inode}: {log}", netns.display());
    pod.finish().await;
    // CRI cannot express this option.
    let runtime = connect(endpoint(), limits()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = sandbox_spec(dir.path());
    spec.network = NetworkMode::None;
    let error = runtime.create_sandbox(spec).await.expect_err("no network");
    assert!(error.to_string().contains("--runtime embedded"), "{error}");
}

async fn node_tools_see_the_kubelets_labels() {
    let pod = Pod::with(|spec| spec.labels = [("app".to_owned(), "x".to_owned())].into()).await;
    let mut spec = pod.script("sleep 1000");
    spec.attempt = 3;
    let name = spec.name.clone();
    pod.start(spec).await.expect("start");
    let labels = crate::support::labels("container", &pod.id.0);
    let expected: BTreeMap<&str, &str> = [
        ("io.kubernetes.container.name", name.as_str()),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.cri-containerd.kind", "container"),
    ]
    .into();
    for (key, value) in expected {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{labels:?}");
    }
    assert!(labels.contains_key("io.kubernetes.pod.name") && labels.contains_key("io.kubernetes.pod.uid"));
    let labels = crate::support::labels("sandbox", &pod.id.0);
    assert_eq!(labels.get("app").map(String::as_str), Some("x"), "{labels:?}");
    assert!(labels.contains_key("io.kubernetes.pod.uid"), "{labels:?}");
    pod.finish().await;
}

async fn a_pod_of_the_same_name_can_run_beside() {
    let same = |spec: &mut outrigger_runtime::SandboxSpec| {
        (spec.pod_name, spec.pod_uid) = ("twin".to_owned(), "twin".to_owned());
    };
    let (one, two) = tokio::join!(Pod::with(same), Pod::with(same));
    let (first, second) = tokio::join!(one.start(one.script("sleep 1000")), two.start(two.script("exit 5")));
    first.expect("start");
    assert_eq!(two.wait(&second.expect("start")).await.code, 5);
    two.finish().await;
    one.finish().await;
}

async fn orphans_are_found_by_their_process() {
    let pod = Pod::new().await;
    pod.start(pod.script("sleep 1000")).await.expect("start");
    // The owner, this process, is still running.
    let removed = pod.runtime.clean_orphans().await.expect("clean up");
    assert!(!removed.contains(&pod.id), "{removed:?}");
    pod.finish().await;
}

async fn references_to_files_are_refused() {
    let runtime = connect(endpoint(), limits()).await;
    for reference in ["rootfs:/x", "oci:/x", "oci-archive:/x", "docker-archive:/x"] {
        match image(&runtime, reference).await {
            Err(ImageError { cause: Some(PullCause::InvalidName), detail, .. }) => {
                assert!(detail.contains("--runtime embedded"));
            }
            other => panic!("{other:?}"),
        }
    }
    let error = image(&runtime, "localhost/absent:1").await.expect_err("it is not there");
    assert_eq!(error.reason(), "ErrImageNeverPull");
    let request = PullRequest {
        reference: "localhost:1/x".to_owned(),
        policy: PullPolicy::IfNotPresent,
        auth: Vec::new(),
    };
    let error = runtime.pull_image(request, Arc::new(|_| {})).await.expect_err("nobody listens there");
    assert_eq!(error.reason(), "ErrImagePull");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

async fn an_endpoint_that_is_not_there_is_told() {
    let endpoint = Some("unix:///no/such.sock".to_owned());
    let config = CriConfig { endpoint, limits: limits(), ..CriConfig::default() };
    let error = CriRuntime::connect(config).await.map(|_| ()).expect_err("nobody listens there");
    assert!(error.to_string().contains("/no/such.sock"), "{error}");
}
