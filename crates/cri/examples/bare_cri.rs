//! Runs the containers of `scripts/bench-run.py` with plain CRI calls, one after another. This is the
//! baseline for `outrigger run --runtime cri`.
//!
//!     bare_cri containerd            starts a containerd, prints its endpoint, stops it when its input ends
//!     bare_cri ENDPOINT a|b|c|d|e    runs a case and prints how many seconds of it count

#[path = "../src/wire/mod.rs"]
#[allow(dead_code, unused_imports, reason = "bare driving needs less of CRI than pods do")]
mod wire;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use outrigger_testkit::containerd;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use self::containerd::{Containerd, IMAGE};
use self::wire::{
    CONTAINER_EXITED, ContainerConfig, ContainerMetadata, ContainerStatusRequest, CreateContainerRequest,
    ExecSyncRequest, ImageSpec, ImageStatusRequest, LinuxContainerConfig, LinuxContainerSecurityContext,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, RemoveContainerRequest, RemovePodSandboxRequest, Rpc, RunPodSandboxRequest,
    SecurityProfile, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};

/// How often a container is polled. containerd answers this often at negligible cost.
const POLL: Duration = Duration::from_millis(2);

const GRACE_SECONDS: i64 = 30;

const NAMESPACES: NamespaceOption = NamespaceOption {
    network: NamespaceMode::Node as i32,
    pid: NamespaceMode::Container as i32,
    ipc: NamespaceMode::Pod as i32,
};

/// The sidecar of scripts/bench-run.py.
const SIDECAR: &str = "trap 'exit 0' TERM; touch /tmp/up; while :; do sleep 3600 & wait $!; done";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [what] if what == "containerd" => serve(),
        [endpoint, case] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let seconds = runtime.expect("a runtime").block_on(drive(endpoint, case)).as_secs_f64();
            println!("{seconds:.4}");
        }
        _ => {
            eprintln!("usage: bare_cri containerd | bare_cri ENDPOINT a|b|c|d|e");
            std::process::exit(2);
        }
    }
}

fn serve() {
    let containerd = Containerd::start(None);
    println!("{} {IMAGE}", containerd.endpoint());
    std::io::stdout().flush().expect("somebody reads it");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    containerd.finish();
}

async fn drive(endpoint: &str, case: &str) -> Duration {
    let begun = Instant::now();
    let bare = Bare::connect(endpoint).await;
    let dir = tempfile::tempdir().expect("a directory");
    match case {
        "a" => {
            let pod = bare.sandbox("a", dir.path()).await;
            for number in 0..6 {
                let id = bare.start(&pod, &format!("c{number}"), &["/bin/true"]).await;
                bare.wait(&id).await;
                bare.remove(&id).await;
            }
            bare.end(&pod).await;
        }
        "b" => job(&bare, dir.path(), 5).await,
        "c" => job(&bare, dir.path(), 1).await,
        "d" => {
            let pod = bare.sandbox("d", dir.path()).await;
            let sidecars = bare.sidecars(&pod, 3).await;
            let main = bare.start(&pod, "main", &["/bin/sh", "-c", SIDECAR]).await;
            // The shells need time to set their traps.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let begun = Instant::now();
            bare.stop_and_remove(&main).await;
            for sidecar in sidecars.iter().rev() {
                bare.stop_and_remove(sidecar).await;
            }
            bare.end(&pod).await;
            return begun.elapsed();
        }
        "e" => {
            let mut pods = Vec::new();
            for number in 0..100 {
                let pod = bare.sandbox(&format!("e{number}"), dir.path()).await;
                for name in ["s0", "main"] {
                    bare.start(&pod, name, &["/bin/sh", "-c", SIDECAR]).await;
                }
                pods.push(pod);
            }
            let running = begun.elapsed();
            for pod in &pods {
                bare.end(pod).await;
            }
            return running;
        }
        _ => panic!("there is no case {case:?}"),
    }
    begun.elapsed()
}

/// Runs a main container, and sidecars that start before it and stop after it.
async fn job(bare: &Bare, dir: &Path, sidecars: usize) {
    let pod = bare.sandbox("job", dir).await;
    let sidecars = bare.sidecars(&pod, sidecars).await;
    let main = bare.start(&pod, "main", &["/bin/sleep", "1"]).await;
    bare.wait(&main).await;
    bare.remove(&main).await;
    for sidecar in sidecars.iter().rev() {
        bare.stop_and_remove(sidecar).await;
    }
    bare.end(&pod).await;
}

struct Pod {
    id: String,
    config: PodSandboxConfig,
}

struct Bare(Channel);

impl Bare {
    async fn connect(endpoint: &str) -> Self {
        let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("unix:///PATH");
        Bare(endpoint.connect().await.expect("somebody listens"))
    }

    async fn call<Q: Rpc>(&self, request: Q) -> Q::Answer {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.expect("a connection");
        let path = PathAndQuery::from_static(Q::PATH);
        let answer = grpc.unary(Request::new(request), path, ProstCodec::<Q, Q::Answer>::default()).await;
        answer.unwrap_or_else(|status| panic!("{}: {status}", Q::PATH)).into_inner()
    }

    async fn sandbox(&self, name: &str, dir: &Path) -> Pod {
        let security = LinuxSandboxSecurityContext {
            namespace_options: Some(NAMESPACES),
            seccomp: Some(SecurityProfile::default()),
            ..Default::default()
        };
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("{name}-{}", std::process::id()),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: dir.to_str().expect("a path").to_owned(),
            linux: Some(LinuxPodSandboxConfig { security_context: Some(security), ..Default::default() }),
            ..Default::default()
        };
        let request = RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        Pod { id: self.call(request).await.pod_sandbox_id, config }
    }

    async fn start(&self, pod: &Pod, name: &str, command: &[&str]) -> String {
        let image = Some(ImageSpec { image: IMAGE.to_owned(), ..Default::default() });
        let found = self.call(ImageStatusRequest { image: image.clone(), verbose: false }).await;
        assert!(found.image.is_some(), "{IMAGE} is missing");
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            log_path: format!("{}-{name}.log", pod.id),
            // The same filter as in a pod, because creating it is part of a start.
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options: Some(NAMESPACES),
                    seccomp: Some(SecurityProfile::default()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let id = self.call(request).await.container_id;
        self.call(StartContainerRequest { container_id: id.clone() }).await;
        id
    }

    /// Starts sidecars one after another. Each has started before the next one begins.
    async fn sidecars(&self, pod: &Pod, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for number in 0..count {
            let id = self.start(pod, &format!("s{number}"), &["/bin/sh", "-c", SIDECAR]).await;
            let cmd = ["/bin/test", "-e", "/tmp/up"].map(str::to_owned).to_vec();
            let probe = ExecSyncRequest { container_id: id.clone(), cmd, timeout: 1 };
            while self.call(probe.clone()).await.exit_code != 0 {}
            all.push(id);
        }
        all
    }

    async fn wait(&self, id: &str) {
        let request = ContainerStatusRequest { container_id: id.to_owned() };
        loop {
            let status = self.call(request.clone()).await.status.expect("a status");
            if status.state == CONTAINER_EXITED {
                assert_eq!(status.exit_code, 0, "{}", status.message);
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn remove(&self, id: &str) {
        self.call(RemoveContainerRequest { container_id: id.to_owned() }).await;
    }

    async fn stop_and_remove(&self, id: &str) {
        self.call(StopContainerRequest { container_id: id.to_owned(), timeout: GRACE_SECONDS }).await;
        self.remove(id).await;
    }

    async fn end(&self, pod: &Pod) {
        self.call(StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() }).await;
        self.call(RemovePodSandboxRequest { pod_sandbox_id: pod.id.clone() }).await;
    }
}
