use std::path::PathBuf;

use super::*;
use outrigger_runtime::{ContainerId, Identity, Image, Mount, PublishedPort, SandboxId};

fn pod() -> SandboxSpec {
    SandboxSpec {
        id: SandboxId("r-0-web".to_owned()),
        pod_name: "web".to_owned(),
        pod_namespace: "ns".to_owned(),
        pod_uid: "u1".to_owned(),
        pod_dir: PathBuf::from("/state/pods/r-0-web"),
        hostname: "web".to_owned(),
        network: NetworkMode::Private,
        ports: Vec::new(),
        host_pid: false,
        host_ipc: false,
        share_pid: false,
        user_namespace: Default::default(),
        host_paths: Vec::new(),
        images: Vec::new(),
        privileged: false,
        runtime_class: None,
        sysctls: BTreeMap::new(),
        resources: Resources::default(),
        stop: Default::default(),
        labels: [("io.kubernetes.pod.name".to_owned(), "forged".to_owned())].into(),
        annotations: BTreeMap::new(),
    }
}

fn main_container() -> ContainerSpec {
    ContainerSpec {
        id: ContainerId("r-0-0-2-main".to_owned()),
        name: "main".to_owned(),
        attempt: 2,
        image: Image {
            reference: "busybox".to_owned(),
            id: "sha256:1".to_owned(),
            layers: Vec::new(),
            entrypoint: Vec::new(),
            cmd: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            user: None,
            stop_signal: None,
            was_present: true,
        },
        command: None,
        args: None,
        env: Vec::new(),
        working_dir: None,
        mounts: Vec::new(),
        read_only_rootfs: false,
        mask_paths: true,
        identity: Identity::default(),
        resources: Resources::default(),
        log_path: PathBuf::from("/state/pods/r-0-web/logs/main/2.log"),
        log_limits: Default::default(),
        stop_signal: None,
        stdin: false,
        tty: false,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

#[test]
fn a_container_is_found_by_the_kubelets_labels_and_our_own() {
    let sandbox = sandbox(&pod(), "1.2.3").unwrap();
    assert_eq!(sandbox.labels["io.kubernetes.pod.name"], "web", "a pod cannot pose as another");
    assert_eq!(sandbox.labels[LABEL_ID], "r-0-web");
    assert_eq!(sandbox.labels[LABEL_OWNER], "1.2.3");
    let container = container(&main_container(), &sandbox).unwrap();
    for (key, value) in [
        ("io.kubernetes.container.name", "main"),
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "ns"),
        ("io.kubernetes.pod.uid", "u1"),
        (LABEL_ID, "r-0-0-2-main"),
    ] {
        assert_eq!(container.labels[key], value, "{key}");
    }
    assert_eq!(container.annotations["io.kubernetes.container.restartCount"], "2");
    assert_eq!(container.metadata.unwrap().attempt, 2);
    // The runtime joins the two paths.
    assert_eq!(
        (sandbox.log_directory.as_str(), container.log_path.as_str()),
        ("/state/pods/r-0-web", "logs/main/2.log")
    );
    let outside = ContainerSpec { log_path: "/elsewhere/2.log".into(), ..main_container() };
    assert!(matches!(super::container(&outside, &sandbox), Err(RuntimeError::Config(_))));
}

#[test]
fn namespaces_are_those_of_pod_container_or_node() {
    // (host network, host pid, host ipc, share pid) -> (network, pid, ipc)
    let table = [
        ((false, false, false, false), (0, 1, 0)),
        ((true, false, false, false), (2, 1, 0)),
        ((false, true, true, false), (0, 2, 2)),
        ((false, false, false, true), (0, 0, 0)),
        ((false, true, false, true), (0, 2, 0)),
    ];
    for ((host, host_pid, host_ipc, share_pid), expected) in table {
        let network = if host { NetworkMode::Host } else { NetworkMode::Private };
        let spec = SandboxSpec { network, host_pid, host_ipc, share_pid, ..pod() };
        let options = namespaces(&spec);
        assert_eq!((options.network, options.pid, options.ipc), expected, "{spec:?}");
        assert_eq!(sandbox(&spec, "").unwrap().hostname.is_empty(), host);
    }
    assert!(sandbox(&SandboxSpec { network: NetworkMode::None, ..pod() }, "").is_err());
}

#[test]
fn ports_are_published_with_their_address() {
    let port = |host: &str, udp| PublishedPort { host: host.parse().unwrap(), pod_port: 80, udp };
    let ports = vec![port("0.0.0.0:8080", false), port("127.0.0.1:53", true)];
    let config = sandbox(&SandboxSpec { ports, ..pod() }, "").unwrap();
    let seen: Vec<_> = config
        .port_mappings
        .iter()
        .map(|p| (p.protocol, p.container_port, p.host_port, p.host_ip.as_str()))
        .collect();
    assert_eq!(seen, [(0, 80, 8080, ""), (1, 80, 53, "127.0.0.1")]);
}

#[test]
fn resources_become_what_the_kernel_takes() {
    let of = |cpu_request_milli, cpu_limit_milli| {
        let resources =
            super::resources(&Resources { cpu_request_milli, cpu_limit_milli, ..Resources::default() });
        (resources.cpu_shares, resources.cpu_quota, resources.cpu_period)
    };
    assert_eq!(of(None, None), (0, 0, 0));
    assert_eq!(of(Some(250), None), (256, 0, 0));
    assert_eq!(of(Some(1), Some(1)), (2, 1_000, 100_000));
    assert_eq!(of(None, Some(1_500)), (1_536, 150_000, 100_000));
    assert_eq!(of(Some(u64::from(u32::MAX)), None), (262_144, 0, 0));
}

#[test]
fn signals_have_numbers_of_their_own() {
    let table = [
        ("SIGTERM", Some(23)),
        ("SIGABRT", Some(1)),
        ("SIGXFSZ", Some(34)),
        ("SIGRTMIN", Some(35)),
        ("SIGRTMIN+15", Some(50)),
        ("SIGRTMAX-14", Some(51)),
        ("SIGRTMAX", Some(65)),
        ("SIGRTMIN+16", None),
        ("SIGRTMAX-15", None),
        ("SIGFOO", None),
        ("", None),
    ];
    for (name, expected) in table {
        assert_eq!(signal(name), expected, "{name}");
    }
}

/// Runtimes refuse a group without a user.
#[test]
fn a_group_brings_the_images_user_along() {
    let sandbox = sandbox(&pod(), "").unwrap();
    let table = [(None, Some(0), ""), (Some("33:34"), Some(33), ""), (Some("web"), None, "web")];
    for (image_user, uid, name) in table {
        let mut spec = main_container();
        spec.image.user = image_user.map(str::to_owned);
        assert_eq!(security(&spec, &sandbox).unwrap().run_as_user, None, "the image's own USER counts");
        spec.identity.run_as_group = Some(7);
        let context = security(&spec, &sandbox).unwrap();
        assert_eq!(context.run_as_user.map(|user| user.value), uid, "{image_user:?}");
        assert_eq!(context.run_as_username, name, "{image_user:?}");
    }
}

#[test]
fn a_mount_source_must_be_there() {
    let mount = |source: &str| Mount {
        source: source.into(),
        target: "/x".into(),
        read_only: true,
        propagation: Propagation::Bidirectional,
    };
    let made = super::mount(&mount("/")).unwrap();
    assert_eq!((made.host_path.as_str(), made.readonly, made.propagation), ("/", true, 2));
    assert!(matches!(super::mount(&mount("/no/such")), Err(RuntimeError::Create(_))));
}

#[test]
fn confinement_is_passed_on() {
    use outrigger_runtime::{AppArmor, SelinuxLabel};
    let sandbox = sandbox(&pod(), "").unwrap();
    let mut spec = main_container();
    let plain = security(&spec, &sandbox).unwrap();
    assert_eq!((plain.apparmor, plain.selinux_options, plain.supplemental_groups_policy), (None, None, 0));
    spec.identity.strict_groups = true;
    spec.identity.selinux = Some(SelinuxLabel { level: Some("s0:c1,c2".to_owned()), ..Default::default() });
    for (wanted, kind, name) in [
        (AppArmor::Default, ProfileType::RuntimeDefault, ""),
        (AppArmor::Unconfined, ProfileType::Unconfined, ""),
        (AppArmor::Localhost("web".to_owned()), ProfileType::Localhost, "web"),
    ] {
        spec.identity.apparmor = Some(wanted);
        let context = security(&spec, &sandbox).unwrap();
        assert_eq!(context.supplemental_groups_policy(), SupplementalGroupsPolicy::Strict);
        let profile = context.apparmor.unwrap();
        assert_eq!((profile.profile_type(), profile.localhost_ref.as_str()), (kind, name));
        assert_eq!(context.selinux_options.unwrap().level, "s0:c1,c2");
    }
}
