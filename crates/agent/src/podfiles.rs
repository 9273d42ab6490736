//! The files in /etc of every container of a pod: hosts, hostname, resolv.conf.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use outrigger_runtime::{Mount, Sandbox};

/// Maximum number of name servers used by the GNU C library.
const NAMESERVERS_MAX: usize = 3;

const HOST_NAME_MAX: usize = 63;

/// The files, by their names in /etc.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodFiles {
    files: Vec<(&'static str, PathBuf)>,
}

impl PodFiles {
    /// Writes the files into `dir`.
    pub(crate) fn write(
        dir: &Path,
        pod: &Pod,
        host_network: bool,
        sandbox: &Sandbox,
    ) -> io::Result<PodFiles> {
        let default = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&default);
        let hosts = match host_network {
            true => with_aliases(fs::read_to_string("/etc/hosts").unwrap_or_default(), spec),
            false => with_aliases(hosts(pod, spec, &sandbox.ips), spec),
        };
        let mut host = HostResolver::read();
        if !host_network && !sandbox.nameservers.is_empty() {
            host.nameservers = sandbox.nameservers.iter().map(IpAddr::to_string).collect();
        }
        fs::create_dir_all(dir)?;
        let mut files = vec![("hosts", hosts), ("resolv.conf", resolver(spec, host_network, &host))];
        if !host_network {
            files.push(("hostname", format!("{}\n", hostname(pod))));
        }
        let mut written = Vec::new();
        for (name, content) in files {
            let path = dir.join(name);
            fs::write(&path, content)?;
            written.push((name, path));
        }
        Ok(PodFiles { files: written })
    }

    /// Finds the files another process wrote into `dir`.
    pub(crate) fn found(dir: &Path) -> PodFiles {
        let there = ["hosts", "resolv.conf", "hostname"].into_iter().map(|name| (name, dir.join(name)));
        PodFiles { files: there.filter(|(_, path)| path.is_file()).collect() }
    }

    /// Mounts of the files, except where the container has its own mount.
    pub(crate) fn mounts(&self, container: &Container) -> Vec<Mount> {
        let taken = |target: &Path| {
            let own = container.volume_mounts.iter().flatten();
            own.into_iter().any(|m| Path::new(&m.mount_path) == target)
        };
        let mounts = self.files.iter().map(|(name, source)| Mount {
            source: source.clone(),
            target: Path::new("/etc").join(name),
            read_only: false,
            propagation: Default::default(),
        });
        mounts.filter(|m| !taken(&m.target)).collect()
    }
}

/// The host name of a pod: `spec.hostname` or else its name, truncated to the kernel's limit.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let wish = |f: fn(&PodSpec) -> &Option<String>| spec.and_then(|s| f(s).clone()).filter(|h| !h.is_empty());
    if let Some(name) = wish(|s| &s.hostname_override) {
        return name;
    }
    let name = wish(|s| &s.hostname).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    let cut = &name[..name.floor_char_boundary(HOST_NAME_MAX)];
    let short = cut.trim_end_matches(['-', '.']).to_owned();
    match (spec.and_then(|s| s.set_hostname_as_fqdn), domain(pod)) {
        (Some(true), Some(domain)) => format!("{short}.{domain}"),
        _ => short,
    }
}

/// The pod's domain, if it has a subdomain.
fn domain(pod: &Pod) -> Option<String> {
    let subdomain = pod.spec.as_ref()?.subdomain.as_deref().filter(|s| !s.is_empty())?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    Some(format!("{subdomain}.{namespace}.svc.cluster.local"))
}

fn hosts(pod: &Pod, spec: &PodSpec, ips: &[IpAddr]) -> String {
    let mut out = String::from(
        "# Written by Outrigger.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let name = hostname(pod);
    let full = match (spec.set_hostname_as_fqdn, domain(pod)) {
        (Some(true), _) | (_, None) => None,
        (_, Some(domain)) => Some(format!("{name}.{domain}")),
    };
    for ip in ips {
        let names = full.iter().cloned().chain([name.clone()]).collect::<Vec<_>>();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{ip}\t{}", names.join("\t"));
    }
    out
}

fn with_aliases(mut hosts: String, spec: &PodSpec) -> String {
    let aliases = spec.host_aliases.as_deref().unwrap_or(&[]);
    if !aliases.is_empty() {
        hosts.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let _ = writeln!(hosts, "{}\t{}", alias.ip, alias.hostnames.as_deref().unwrap_or(&[]).join("\t"));
    }
    hosts
}

/// The host's resolver configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct HostResolver {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

impl HostResolver {
    fn read() -> Self {
        let read = |path: &str| HostResolver::parse(&fs::read_to_string(path).unwrap_or_default());
        let own = read("/etc/resolv.conf");
        // A stub resolver on loopback is not reachable from a pod with its own network.
        if !own.nameservers.is_empty() && own.nameservers.iter().all(|s| is_loopback(s)) {
            let behind = read("/run/systemd/resolve/resolv.conf");
            if !behind.nameservers.is_empty() {
                return behind;
            }
        }
        own
    }

    fn parse(text: &str) -> Self {
        let mut out = HostResolver::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => out.nameservers.extend(words.next()),
                Some("search" | "domain") => out.searches = words.collect(),
                Some("options") => out.options.extend(words),
                _ => {}
            }
        }
        out
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Builds resolv.conf from `dnsPolicy` and `dnsConfig`. There is no cluster, so ClusterFirst uses the host's
/// configuration.
fn resolver(spec: &PodSpec, host_network: bool, host: &HostResolver) -> String {
    let mut resolver = match spec.dns_policy.as_deref() {
        Some("None") => HostResolver::default(),
        _ => host.clone(),
    };
    if !host_network {
        resolver.nameservers.retain(|s| !is_loopback(s));
    }
    if let Some(config) = &spec.dns_config {
        let add = |list: &mut Vec<String>, more: &Option<Vec<String>>| {
            for entry in more.iter().flatten() {
                if !list.contains(entry) {
                    list.push(entry.clone());
                }
            }
        };
        add(&mut resolver.nameservers, &config.nameservers);
        add(&mut resolver.searches, &config.searches);
        for option in config.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            let own = |o: &String| o.split(':').next() == Some(name.as_str());
            resolver.options.retain(|o| !own(o));
            resolver.options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            });
        }
    }
    resolver.nameservers.truncate(NAMESERVERS_MAX);
    let mut out = String::new();
    for server in &resolver.nameservers {
        let _ = writeln!(out, "nameserver {server}");
    }
    if !resolver.searches.is_empty() {
        let _ = writeln!(out, "search {}", resolver.searches.join(" "));
    }
    if !resolver.options.is_empty() {
        let _ = writeln!(out, "options {}", resolver.options.join(" "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "web-0", "namespace": "ns"}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn host_names() {
        let long = "a".repeat(62) + "-b";
        let table = [
            (json!({}), "web-0".to_owned()),
            (json!({"hostname": "h"}), "h".to_owned()),
            (json!({"hostname": "h", "subdomain": "s"}), "h".to_owned()),
            (
                json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}),
                "h.s.ns.svc.cluster.local".to_owned(),
            ),
            (json!({"hostname": long}), "a".repeat(62)),
            (json!({"hostname": "h", "hostnameOverride": "other.example"}), "other.example".to_owned()),
        ];
        for (spec, expected) in table {
            assert_eq!(hostname(&pod(spec.clone())), expected, "{spec}");
        }
    }

    #[test]
    fn hosts_know_the_pod_and_its_aliases() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod(json!({"subdomain": "s", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}));
        let sandbox = Sandbox {
            id: outrigger_runtime::SandboxId("s".into()),
            ips: vec!["10.89.0.5".parse().unwrap()],
            netns: None,
            nameservers: vec!["10.0.2.3".parse().unwrap()],
        };
        let files = PodFiles::write(dir.path(), &pod, false, &sandbox).unwrap();
        let resolver = fs::read_to_string(dir.path().join("resolv.conf")).unwrap();
        assert!(resolver.starts_with("nameserver 10.0.2.3\n"), "{resolver}");
        let hosts = fs::read_to_string(dir.path().join("hosts")).unwrap();
        assert!(hosts.contains("127.0.0.1\tlocalhost\n"));
        assert!(hosts.contains("10.89.0.5\tweb-0.s.ns.svc.cluster.local\tweb-0\n"), "{hosts}");
        assert!(hosts.contains("1.2.3.4\ta\tb\n"));
        assert_eq!(fs::read_to_string(dir.path().join("hostname")).unwrap(), "web-0\n");
        let container = json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]});
        let targets: Vec<_> =
            files.mounts(&serde_json::from_value(container).unwrap()).into_iter().map(|m| m.target).collect();
        assert_eq!(targets, [Path::new("/etc/resolv.conf"), Path::new("/etc/hostname")]);
    }

    #[test]
    fn resolv_conf_by_policy() {
        let host = HostResolver::parse(
            "nameserver 127.0.0.53\nnameserver 9.9.9.9\nsearch a b\noptions ndots:1 edns0\n",
        );
        let text = |spec: serde_json::Value, host_network| {
            resolver(pod(spec).spec.as_ref().unwrap(), host_network, &host)
        };
        assert_eq!(
            text(json!({"dnsPolicy": "ClusterFirst"}), false),
            "nameserver 9.9.9.9\nsearch a b\noptions ndots:1 edns0\n"
        );
        assert!(text(json!({"dnsPolicy": "Default"}), true).starts_with("nameserver 127.0.0.53\n"));
        let config = json!({"nameservers": ["1.1.1.1"], "searches": ["c"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "rotate"}]});
        assert_eq!(
            text(json!({"dnsPolicy": "None", "dnsConfig": config}), false),
            "nameserver 1.1.1.1\nsearch c\noptions ndots:5 rotate\n"
        );
        assert_eq!(
            text(json!({"dnsPolicy": "Default", "dnsConfig": config}), false),
            "nameserver 9.9.9.9\nnameserver 1.1.1.1\nsearch a b c\noptions edns0 ndots:5 rotate\n"
        );
    }
}
