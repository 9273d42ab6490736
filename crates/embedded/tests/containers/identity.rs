//! Tests of users and privileges of containers.

use std::fs;

use outrigger_runtime::{AppArmor, ContainerSpec, RuntimeError, Seccomp, SelinuxLabel, UserFault};

use outrigger_testkit::embedded::Pod;

outrigger_testkit::trials![
    users_and_groups,
    run_as_non_root_is_refused_in_the_kubelet_s_words,
    an_unknown_user_cannot_be_created,
    capabilities_of_root,
    capabilities_of_others,
    an_unknown_capability_is_refused,
    no_new_privileges,
    exec_has_the_container_s_identity,
    the_default_filter_applies,
    the_default_filter_denies,
    unconfined_has_no_filter,
    a_profile_file_applies,
    a_bad_profile_is_refused,
    what_cannot_confine_is_refused,
    privileged_has_everything,
    stdout_can_be_opened_by_name,
];

const WHO: &str = "echo $(id -u) $(id -g) $(id -G) $HOME";

async fn users_and_groups() {
    let pod = Pod::new().await;
    type Change = fn(&mut ContainerSpec);
    let cases: [(Change, &str); 7] = [
        (|_| {}, "0 0 0 /root\n"),
        (|spec| spec.image.user = Some("web".to_owned()), "33 34 34 70 /home/web\n"),
        (
            |spec| {
                spec.image.user = Some("web".to_owned());
                spec.identity.strict_groups = true;
                spec.identity.supplemental_groups = vec![3000];
            },
            "33 34 34 3000 /home/web\n",
        ),
        (|spec| spec.image.user = Some("33:0".to_owned()), "33 0 0 70 /home/web\n"),
        (|spec| spec.identity.run_as_user = Some(1000), "1000 0 0 /\n"),
        (
            |spec| {
                spec.identity.run_as_user = Some(1000);
                spec.identity.run_as_group = Some(2000);
                spec.identity.supplemental_groups = vec![3000, 4000];
            },
            "1000 2000 2000 3000 4000 /\n",
        ),
        (
            |spec| {
                spec.image.user = Some("web".to_owned());
                spec.identity.run_as_non_root = true;
                spec.identity.run_as_user = Some(33);
            },
            "33 34 34 70 /home/web\n",
        ),
    ];
    for (change, expected) in cases {
        let mut spec = pod.script(WHO);
        change(&mut spec);
        assert_eq!(pod.output(spec).await, expected);
    }
    pod.finish().await;
}

async fn run_as_non_root_is_refused_in_the_kubelet_s_words() {
    let pod = Pod::new().await;
    for (user, run_as, words) in [
        (
            None,
            None,
            "container has runAsNonRoot and image will run as root (pod: \"default/test\", container: main)",
        ),
        (Some("0"), None, "container has runAsNonRoot and image will run as root"),
        (Some("web"), None, "container has runAsNonRoot and image has non-numeric user (web), cannot verify"),
        (None, Some(0), "container's runAsUser breaks non-root policy"),
    ] {
        let mut spec = pod.script("true");
        spec.image.user = user.map(str::to_owned);
        spec.identity.run_as_user = run_as;
        spec.identity.run_as_non_root = true;
        let error = pod.start(spec).await.unwrap_err();
        let is_refused = matches!(&error, RuntimeError::User { cause: UserFault::RootForbidden, detail } if detail.contains(words));
        assert!(is_refused, "{error:?}");
        assert_eq!(error.reason(), "CreateContainerConfigError");
    }
    pod.finish().await;
}

async fn an_unknown_user_cannot_be_created() {
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    spec.image.user = Some("stranger".to_owned());
    let error = pod.start(spec).await.unwrap_err();
    assert_eq!(error.to_string(), "unable to find user stranger: no matching entries in passwd file");
    pod.finish().await;
}

/// The lines of /proc/self/status about privileges.
const STATUS: &str = "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status";

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name).trim();
    u64::from_str_radix(line, 16).expect("a number")
}

/// The capabilities of this process. A container cannot get more.
fn ours() -> u64 {
    field(&fs::read_to_string("/proc/self/status").expect("status"), "CapBnd")
}

async fn capabilities_of_root() {
    let pod = Pod::with_host_users().await;
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (add, drop, expected) in [
        (&[][..], &[][..], 0xa804_25fb_u64),
        (&["NET_ADMIN"], &["MKNOD", "CAP_NET_RAW"], 0xa004_15fb),
        (&[], &["ALL"], 0),
        (&["NET_BIND_SERVICE"], &["ALL"], 0x400),
        (&["ALL"], &[], 0x1ff_ffff_ffff),
    ] {
        let mut spec = pod.script(STATUS);
        spec.identity.add_capabilities = names(add);
        spec.identity.drop_capabilities = names(drop);
        let status = pod.output(spec).await;
        let expected = expected & ours();
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(field(&status, set), expected, "{set} with {add:?} {drop:?}");
        }
        assert_eq!((field(&status, "CapInh"), field(&status, "CapAmb")), (0, 0));
    }
    pod.finish().await;
}

async fn capabilities_of_others() {
    let pod = Pod::new().await;
    let mut spec = pod.script(STATUS);
    spec.identity.run_as_user = Some(1000);
    let status = pod.output(spec).await;
    assert_eq!((field(&status, "CapEff"), field(&status, "CapPrm"), field(&status, "CapAmb")), (0, 0, 0));
    assert_eq!(field(&status, "CapBnd"), 0xa804_25fb & ours());
    pod.finish().await;
}

async fn an_unknown_capability_is_refused() {
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    spec.identity.add_capabilities = vec!["FLY".to_owned()];
    assert!(matches!(pod.start(spec).await, Err(RuntimeError::Config(text)) if text.contains("FLY")));
    pod.finish().await;
}

async fn no_new_privileges() {
    let pod = Pod::new().await;
    for (asked, user) in [(false, None), (true, None), (true, Some(1000)), (false, Some(1000))] {
        let mut spec = pod.script(STATUS);
        spec.identity.no_new_privileges = asked;
        spec.identity.run_as_user = user;
        let status = pod.output(spec).await;
        assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), (u64::from(asked), 2));
    }
    pod.finish().await;
}

async fn exec_has_the_container_s_identity() {
    let pod = Pod::new().await;
    let mut spec = pod.script(&format!("{WHO}; {STATUS}; echo done; sleep 100"));
    spec.image.user = Some("web".to_owned());
    spec.identity.supplemental_groups = vec![3000];
    spec.identity.no_new_privileges = true;
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "done").await;
    let exec = pod.exec(&id, &format!("{WHO}; {STATUS}; echo done")).await;
    let text = outrigger_testkit::trial::log_text(&log);
    assert_eq!(String::from_utf8(exec.output).unwrap(), text);
    assert!(text.starts_with("33 34 34 70 3000 /home/web\n"), "{text}");
    assert!(text.contains("Seccomp:\t2"));
    pod.finish().await;
}

async fn the_default_filter_applies() {
    let pod = Pod::new().await;
    let spec = pod.script("grep Seccomp: /proc/1/status; sleep 100");
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "Seccomp:\t2").await;
    let exec = pod.exec(&id, "grep Seccomp: /proc/self/status").await;
    assert_eq!(exec.output, b"Seccomp:\t2\n");
    pod.finish().await;
}

async fn the_default_filter_denies() {
    let pod = Pod::new().await;
    // Everything here needs no capability, or one that the container has.
    let script =
        "unshare -U true && echo made a user namespace; mount -t tmpfs none /tmp && echo mounted; true";
    let log = pod.output(pod.script(script)).await;
    assert!(log.contains("unshare: unshare(0x10000000): Operation not permitted"), "{log}");
    assert!(!log.contains("made") && !log.contains("mounted"), "{log}");
    let mut spec = pod.script("mount -t tmpfs none /tmp && echo mounted");
    spec.identity.add_capabilities = vec!["SYS_ADMIN".to_owned()];
    assert_eq!(pod.output(spec).await, "mounted\n", "the filter follows the capabilities");
    pod.finish().await;
}

async fn unconfined_has_no_filter() {
    let pod = Pod::new().await;
    let mut spec = pod.script("grep Seccomp: /proc/self/status; unshare -U true && echo made");
    spec.identity.seccomp = Seccomp::Unconfined;
    assert!(pod.output(spec).await.starts_with("Seccomp:\t0\n"));
    pod.finish().await;
}

async fn a_profile_file_applies() {
    let pod = Pod::new().await;
    let profile = pod.scratch("profiles").join("no-mkdir.json");
    let text = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}"#;
    fs::write(&profile, text).unwrap();
    for no_new_privileges in [true, false] {
        let mut spec = pod.script("mkdir /x; sleep 100");
        spec.identity.seccomp = Seccomp::Localhost(profile.clone());
        spec.identity.no_new_privileges = no_new_privileges;
        let log = spec.log_path.clone();
        let id = pod.start(spec).await.unwrap();
        let complaint = "mkdir: can't create directory '/x': No space left on device";
        pod.saw(&log, complaint).await;
        let exec = pod.exec(&id, "mkdir /x").await;
        assert_eq!((exec.code, String::from_utf8(exec.output).unwrap()), (Some(1), format!("{complaint}\n")));
    }
    pod.finish().await;
}

async fn a_bad_profile_is_refused() {
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    spec.identity.seccomp = Seccomp::Localhost("/no/such/profile.json".into());
    let error = pod.start(spec).await.unwrap_err();
    assert!(
        matches!(&error, RuntimeError::Config(text) if text.contains("/no/such/profile.json")),
        "{error:?}"
    );
    pod.finish().await;
}

async fn what_cannot_confine_is_refused() {
    let pod = Pod::new().await;
    let mut labelled = pod.script("true");
    labelled.identity.selinux = Some(SelinuxLabel { level: Some("s0:c1".to_owned()), ..Default::default() });
    let mut confined = pod.script("true");
    confined.identity.apparmor = Some(AppArmor::Localhost("no-such-profile".to_owned()));
    for (spec, words) in [(labelled, "seLinuxOptions cannot be applied"), (confined, "no-such-profile")] {
        let error = pod.start(spec).await.unwrap_err();
        assert!(matches!(&error, RuntimeError::Config(text) if text.contains(words)), "{error:?}");
    }
    let mut unconfined = pod.script("echo runs");
    unconfined.identity.apparmor = Some(AppArmor::Unconfined);
    assert_eq!(pod.output(unconfined).await, "runs\n");
    pod.finish().await;
}

async fn privileged_has_everything() {
    let pod = Pod::with_host_users().await;
    let script = format!(
        "{STATUS}; mount -t tmpfs none /tmp && echo mounted; ls /dev/kmsg; head -c 1 /proc/timer_list | wc -c"
    );
    let mut spec = pod.script(&script);
    spec.identity.privileged = true;
    let log = pod.output(spec).await;
    assert_eq!((field(&log, "CapEff"), field(&log, "Seccomp")), (ours(), 0));
    assert!(log.ends_with("mounted\n/dev/kmsg\n1\n"), "{log}");
    pod.finish().await;
}

async fn stdout_can_be_opened_by_name() {
    let pod = Pod::new().await;
    let mut spec = pod.script("echo by name > /dev/stdout; echo error > /dev/stderr; sleep 100");
    spec.identity.run_as_user = Some(1000);
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "by name").await;
    pod.saw(&log, "error").await;
    assert_eq!(pod.exec(&id, "echo x > /dev/stdout").await.output, b"x\n");
    pod.finish().await;
}
