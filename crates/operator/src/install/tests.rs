use super::*;

fn all(options: &Options) -> String {
    manifests(options).join("---\n")
}

#[test]
fn the_files_are_filled_in() {
    let options = Options {
        namespace: "platform".to_owned(),
        image: "registry.example/outrigger:1".to_owned(),
        failure_policy: FailurePolicy::Ignore,
        ..Options::default()
    };
    let text = all(&options);
    assert!(!text.contains(NAMESPACE) && !text.contains(IMAGE), "everything is replaced");
    assert!(text.contains("namespace: platform") && text.contains("image: registry.example/outrigger:1"));
    assert!(text.contains("system:serviceaccount:platform:outrigger-agent"));
    assert!(text.contains("failurePolicy: Ignore # pods"));
    assert_eq!(
        text.matches("failurePolicy: Fail\n").count(),
        2,
        "requests and the agent's policy stay closed"
    );
    assert!(text.contains("kind: DaemonSet"));
    assert!(!text.contains("--without-agent"));
    let without = all(&Options { without_agent: true, ..options });
    assert!(
        !without.contains("kind: DaemonSet") && without.contains("args: [operator, run, --without-agent]")
    );
    assert!(!without.contains("outrigger-agent"), "nor its rights");
}

#[test]
fn settings_of_operator_and_agent_stay_when_it_is_installed_again() {
    let endpoint = "unix:///run/k3s/containerd/containerd.sock".to_owned();
    let options = Options {
        cri_endpoint: Some(endpoint),
        any_requester: true,
        launch: Launch::Native,
        json_logs: true,
        ..Options::default()
    };
    assert_eq!(options.check(), Ok(()));
    let text = all(&options);
    assert!(
        text.contains("args: [operator, run, --any-requester, --launch=native, --log-format=json]"),
        "{text}"
    );
    let agent = "\"127.0.0.1:10221\", \"--cri-endpoint=unix:///run/k3s/containerd/containerd.sock\", --log-format=json]";
    assert!(text.contains(agent), "{text}");
    let endpoint = "/var/run/crio/crio.sock".to_owned();
    let options = Options { cri_endpoint: Some(endpoint), ..Options::default() };
    assert!(options.check().is_ok() && all(&options).contains("\"--cri-endpoint=/run/crio/crio.sock\"]"));
    for bad in ["", "tcp://x", "/var/x.sock", "unix:///run/../etc/x", "unix:///run/a\"]", "unix:///run/a b"] {
        let options = Options { cri_endpoint: Some(bad.to_owned()), ..Options::default() };
        assert!(
            options.check().is_err_and(|problem| problem.to_string().contains("--cri-endpoint")),
            "{bad:?}"
        );
    }
}

#[test]
fn pods_get_the_readiness_gate_only_if_that_is_wanted() {
    let wanted = |readiness_gate| {
        let text = all(&Options { readiness_gate, ..Options::default() });
        let line = text.lines().find(|line| line.ends_with("# readiness gate")).map(str::trim);
        line.unwrap_or_default().to_owned()
    };
    assert_eq!(wanted(false), "expression: \"false\" # readiness gate");
    assert_eq!(wanted(true), "expression: \"true\" # readiness gate");
}

#[test]
fn an_operator_outside_the_cluster_is_called_by_address() {
    let url = "https://127.0.0.1:8443".to_owned();
    let text = all(&Options { webhook_url: Some(url), ..Options::default() });
    let paths = [
        "/mutate-pods",
        "/mutate-job-sidecars",
        "/mutate-requests",
        "/keep-results",
        "/inject-readiness-gate",
        "/convert",
    ];
    for path in paths {
        assert!(text.contains(&format!("url: https://127.0.0.1:8443{path}\n")), "{path}: {text}");
    }
    assert!(!text.contains("service:") && !text.contains("kind: Deployment"));
    assert!(text.contains("namespaceSelector:"), "what follows the service is kept");
}

#[test]
fn the_helm_chart_says_the_same() {
    for (name, text) in FILES.iter().filter(|(name, _)| *name != "namespace.yaml") {
        let path = format!("{}/../../deploy/helm/outrigger/templates/{name}", env!("CARGO_MANIFEST_DIR"));
        let chart = std::fs::read_to_string(&path).expect("the chart has the file");
        let plain: String =
            chart.lines().filter(|line| !line.starts_with("{{- ")).map(|line| format!("{line}\n")).collect();
        let plain = plain
            .replace("{{ .Release.Namespace }}", NAMESPACE)
            .replace("{{ if not .Values.agent.enabled }}, --without-agent{{ end }}", "")
            .replace("{{ if .Values.anyRequester }}, --any-requester{{ end }}", "")
            .replace("{{ if eq .Values.launch \"native\" }}, --launch=native{{ end }}", "")
            .replace("{{ if eq .Values.logFormat \"json\" }}, --log-format=json{{ end }}", "")
            .replace(
                "{{ with .Values.agent.criEndpoint }}, {{ printf \"--cri-endpoint=%s\" . | replace \"/var/run/\" \"/run/\" | quote }}{{ end }}",
                "",
            )
            .replace("{{ .Values.image | quote }}", IMAGE)
            .replace("{{ .Values.replicas }}", "2")
            .replace("{{ .Values.readinessGate | quote }}", "\"false\"")
            .replace("{{ .Values.failurePolicy }}", "Fail");
        assert_eq!(&plain, text, "{name}");
    }
}

#[test]
fn the_kustomization_has_every_file() {
    let path = format!("{}/../../deploy/kustomize/kustomization.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a kustomization");
    for (name, _) in FILES {
        assert!(text.contains(&format!("- {name}\n")), "{name}");
    }
}

#[test]
fn options_are_checked() {
    let fine = Options {
        image: "[2001:db8::1]:5000/a/b_c@sha256:00".to_owned(),
        webhook_url: Some("https://[::1]:8443".to_owned()),
        ..Options::default()
    };
    assert_eq!(fine.check(), Ok(()));
    assert_eq!(Options::default().check(), Ok(()));
    let long = "n".repeat(64);
    for namespace in
        ["", "A", "a.b", "a b", "a\n- b", "-a", "0", "1e3", "true", "null", "default", long.as_str()]
    {
        let problem = Options { namespace: namespace.to_owned(), ..fine.clone() }
            .check()
            .expect_err(namespace)
            .to_string();
        assert!(problem.starts_with("--namespace"), "{problem}");
    }
    for image in ["", "a b", "a\nb: c", "a: b", "a#b", "a:", "{{x}}", "x:y:z", "a//b", "a/b:1/c"] {
        let problem =
            Options { image: image.to_owned(), ..fine.clone() }.check().expect_err(image).to_string();
        assert!(problem.starts_with("--image"), "{problem}");
    }
    for url in [
        "",
        "http://a:1",
        "a:8443",
        "https://",
        "https://a/",
        "https://a?b",
        "https://a\nb: c",
        "https://u@a",
    ] {
        let problem =
            Options { webhook_url: Some(url.to_owned()), ..fine.clone() }.check().expect_err(url).to_string();
        assert!(problem.starts_with("--webhook-url"), "{problem}");
    }
}
