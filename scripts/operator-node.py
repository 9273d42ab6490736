#!/usr/bin/env python3
"""Runs the operator on a real one-node cluster and says what was seen: order, Jobs, restarts, crashes, latencies.

usage: scripts/operator-node.py OUTRIGGER [PODS] [launch|jobs|requests|latency]...

Uses only binaries that are there: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kubectl in
KUBEBUILDER_ASSETS (else /usr/local/kubebuilder/bin), etcd, containerd and the CNI plugins of Debian. Needs root, python3 and
a static busybox. Everything runs on loopback in a directory of its own that is removed afterwards. Start it in a network namespace that
has an address and a default route (`unshare -n`, a veth pair), because it makes a bridge for the pods.
"""
import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ASSETS = pathlib.Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
OUTRIGGER = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "target/debug/outrigger"
PODS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
STEPS = sys.argv[3:]
NODE = "machine"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    def __init__(self, top):
        self.top, self.procs, self.port, self.etcd = top, {}, free_port(), free_port()
        self.webhook, self.health = free_port(), free_port()
        for name in "log certs ctd kubelet static podlogs cni/conf".split():
            (top / name).mkdir(parents=True, exist_ok=True)
        self.sock = top / "ctd/containerd.sock"

    def spawn(self, name, *args, env=None):
        log = open(self.top / "log" / name, "ab")
        self.procs[name] = subprocess.Popen([str(a) for a in args], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True, env={**os.environ, **(env or {})})

    def kill(self, name, how=signal.SIGKILL):
        p = self.procs.pop(name)
        p.send_signal(how)
        p.wait()

    def config(self, name, token):
        text = {"apiVersion": "v1", "kind": "Config", "current-context": "x",
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}}],
                "users": [{"name": "u", "user": {"token": token}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
        (self.top / f"{name}.conf").write_text(json.dumps(text))

    def kubectl(self, *args, stdin=None, check=True):
        run = subprocess.run([ASSETS / "kubectl", "--kubeconfig", self.top / "admin.conf", *args], input=stdin, capture_output=True, text=True)
        if check and run.returncode:
            raise SystemExit(f"kubectl {' '.join(args)}: {run.stderr}")
        return run.stdout

    def get(self, *args):
        text = self.kubectl("get", "-o", "json", *args, check=False)
        return json.loads(text) if text else None

    def create(self, obj):
        self.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def up(self):
        t = self.top
        url = lambda port: f"http://127.0.0.1:{port}"
        peer = free_port()
        self.spawn("etcd", "etcd", "--data-dir", t / "etcd", "--listen-client-urls", url(self.etcd), "--advertise-client-urls", url(self.etcd),
                   "--listen-peer-urls", url(peer), "--initial-advertise-peer-urls", url(peer), "--initial-cluster", f"default={url(peer)}", "--unsafe-no-fsync")
        subprocess.run(["openssl", "genrsa", "-out", t / "certs/sa.key", "2048"], check=True, capture_output=True)
        (t / "tokens.csv").write_text(f'admin-token,admin,admin,"system:masters"\nnode-token,system:node:{NODE},node,"system:nodes"\n')
        self.config("admin", "admin-token")
        self.config("node", "node-token")
        self.spawn("apiserver", ASSETS / "kube-apiserver", "--etcd-servers", url(self.etcd), "--secure-port", self.port, "--bind-address", "127.0.0.1",
                   "--cert-dir", t / "certs", "--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
                   "--service-account-key-file", t / "certs/sa.key", "--service-account-signing-key-file", t / "certs/sa.key",
                   "--token-auth-file", t / "tokens.csv", "--authorization-mode", "Node,RBAC", "--allow-privileged")
        wait("the API server is ready", lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok")
        self.spawn("kcm", ASSETS / "kube-controller-manager", "--kubeconfig", t / "admin.conf", "--service-account-private-key-file", t / "certs/sa.key",
                   "--use-service-account-credentials=false", "--leader-elect=false", "--secure-port", "0", "--controllers", "*,-bootstrapsigner,-tokencleaner,-nodeipam")
        self.spawn("scheduler", ASSETS / "kube-scheduler", "--kubeconfig", t / "admin.conf", "--leader-elect=false", "--secure-port", "0")
        self.containerd()
        self.kubelet()
        wait("the node is Ready", lambda: " Ready" in self.kubectl("get", "node", NODE, check=False))

    def containerd(self):
        t = self.top
        net = {"cniVersion": "0.4.0", "name": "operator-test", "plugins": [{"type": "bridge", "bridge": "oroptest0", "isGateway": True,
               "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/16"}]], "dataDir": str(t / "cni/ipam")}}]}
        (t / "cni/conf/10-bridge.conflist").write_text(json.dumps(net))
        (t / "ctd/config.toml").write_text(f'''version = 2
oom_score = 0
root = "{t}/ctd/root"
state = "{t}/ctd/state"
[grpc]
  address = "{self.sock}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{t}/cni/conf"
''')
        self.spawn("containerd", "containerd", "-c", t / "ctd/config.toml")
        ctr = lambda *a: subprocess.run(["ctr", "-a", str(self.sock), *a], capture_output=True).returncode == 0
        wait("containerd answers", lambda: ctr("version"))
        root = t / "rootfs/bin"
        root.mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "busybox")
        for name in subprocess.check_output(["/bin/busybox", "--list"], text=True).split():
            if name != "busybox":
                (root / name).symlink_to("busybox")
        image(t / "rootfs", "localhost/busybox:1", {"Env": ["PATH=/bin"]}, t / "busybox.tar")
        image(t / "rootfs", "localhost/pause:1", {"Entrypoint": ["/bin/sleep", "2147483647"]}, t / "pause.tar")
        for name in "busybox", "pause":
            assert ctr("-n", "k8s.io", "images", "import", str(t / f"{name}.tar")), name

    def kubelet(self):
        t = self.top
        for c in pathlib.Path("/sys/fs/cgroup").glob("*/"):
            own = c / "outrigger-operator-test"
            try:
                own.mkdir(exist_ok=True)
                for f in "cpuset.cpus", "cpuset.mems":
                    if (own / f).exists():
                        (own / f).write_text((c / f).read_text())
            except OSError:
                pass
        conf = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": False, "cgroupsPerQOS": True,
                "cgroupRoot": "/outrigger-operator-test", "enforceNodeAllocatable": [], "cgroupDriver": "cgroupfs", "oomScoreAdj": 0, "failSwapOn": False,
                "localStorageCapacityIsolation": False, "containerRuntimeEndpoint": f"unix://{self.sock}",
                "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
                "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
                "imageGCHighThresholdPercent": 100, "maxPods": 250, "port": free_port(), "healthzPort": 0, "address": "127.0.0.1",
                "podLogsDir": str(t / "podlogs"), "staticPodPath": str(t / "static")}
        (t / "kubelet.yaml").write_text(json.dumps(conf))
        self.spawn("kubelet", ASSETS / "kubelet", "--config", t / "kubelet.yaml", "--kubeconfig", t / "node.conf", "--root-dir", t / "kubelet", "--hostname-override", NODE)

    def operator(self):
        self.spawn("operator", OUTRIGGER, "operator", "run", "--identity", f"test-{time.time()}", "--webhook-name", "127.0.0.1", "--webhook-address",
                   f"127.0.0.1:{self.webhook}", "--health-address", f"127.0.0.1:{self.health}", env={"KUBECONFIG": str(self.top / "operator.conf")})
        page = lambda path: subprocess.run(["curl", "-s", f"http://127.0.0.1:{self.health}{path}"], capture_output=True, text=True).stdout
        wait("the operator leads", lambda: page("/readyz") == "ok" and "outrigger_leader 1" in page("/metrics"))

    def agent(self):
        self.spawn("agent", OUTRIGGER, "operator", "agent", "--node-name", NODE, "--cri-endpoint", f"unix://{self.sock}",
                   env={"KUBECONFIG": str(self.top / "agent.conf")})

    def install(self):
        run = subprocess.run([OUTRIGGER, "operator", "install", "--webhook-url", f"https://127.0.0.1:{self.webhook}"], capture_output=True, text=True,
                             env={**os.environ, "KUBECONFIG": str(self.top / "admin.conf")})
        assert run.returncode == 0, run.stderr
        # Each with a token of its own service account: the rights are the real ones, and the agent's is bound to its node.
        token = lambda name, *more: self.kubectl("create", "token", name, "-n", "outrigger-system", "--duration", "6h", *more).strip()
        self.config("operator", token("outrigger-operator"))
        self.config("agent", token("outrigger-agent", "--bound-object-kind", "Node", "--bound-object-name", NODE))

    def down(self):
        self.kubectl("delete", "pods,jobs", "--all", "--grace-period=0", "--force", check=False)
        for _ in range(100):
            pods = subprocess.run(["ctr", "-a", str(self.sock), "-n", "k8s.io", "tasks", "ls", "-q"], capture_output=True, text=True).stdout
            if not pods.strip():
                break
            time.sleep(0.2)
        for name in "operator agent kubelet scheduler kcm apiserver containerd etcd".split():
            if name in self.procs:
                self.kill(name, signal.SIGTERM if name != "apiserver" else signal.SIGKILL)
        subprocess.run(["ip", "link", "del", "oroptest0"], capture_output=True)
        for own in sorted(pathlib.Path("/sys/fs/cgroup").glob("*/outrigger-operator-test/**/"), reverse=True):
            try:
                own.rmdir()
            except OSError:
                pass
        mounts = [line.split()[1] for line in open("/proc/mounts") if line.split()[1].startswith(str(self.top))]
        for mount in sorted(mounts, reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True)


def image(root, name, config, out):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as t:
        t.add(root, arcname=".")
    layer = layer.getvalue()
    lid = hashlib.sha256(layer).hexdigest()
    conf = json.dumps({"architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + lid]}}).encode()
    cid = hashlib.sha256(conf).hexdigest()
    manifest = json.dumps([{"Config": cid + ".json", "RepoTags": [name], "Layers": [lid + ".tar"]}]).encode()
    with tarfile.open(out, "w") as t:
        for n, data in ((cid + ".json", conf), (lid + ".tar", layer), ("manifest.json", manifest)):
            info = tarfile.TarInfo(n)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))


def wait(what, test, limit=180):
    end = time.time() + limit
    while time.time() < end:
        found = test()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"FAILED: not within {limit} s: {what}")


def container(name, command, env=None, **more):
    env = [{"name": k, "value": v} for k, v in (env or {}).items()]
    return {"name": name, "image": "localhost/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", command], "env": env, **more}


SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
KILL = {"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "true"}


def pod(name, containers, annotations=None, policy="Always", **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"restartPolicy": policy, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 5, "containers": containers, **more}}


def status(c, name, container):
    p = c.get("pod", name)
    every = (p or {}).get("status", {}).get("containerStatuses", [])
    return next((s for s in every if s["name"] == container), None)


def ready(c, name):
    p = c.get("pod", name)
    return p and len(p["status"].get("containerStatuses", [])) == len(p["spec"]["containers"]) and all(s["ready"] for s in p["status"]["containerStatuses"])


def phase(c, name):
    return ((c.get("pod", name) or {}).get("status") or {}).get("phase")


def say(text):
    print(f"ok: {text}", flush=True)


def launch(c):
    """The seed's example, and three levels; killed operators in between."""
    slow = {"readinessProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 1, "periodSeconds": 1}}
    for spelling in "KRUISE_CONTAINER_LAUNCH_PRIORITY", "KRUISE_CONTAINER_PRIORITY":
        name = "seed-proposed" if "LAUNCH" in spelling else "seed-released"
        c.create(pod(name, [container("main", SLEEP), container("sidecar", SLEEP, {spelling: "1"}, **slow)]))
        wait(f"{name} is ready", lambda: ready(c, name))
        first, then = (status(c, name, n)["state"]["running"]["startedAt"] for n in ("sidecar", "main"))
        assert first <= then, (first, then)
        say(f"{spelling}: sidecar started {first}, main {then}")
    c.create(pod("ordered", [container(n, SLEEP, **slow) for n in ("a", "b", "c")], {"apps.kruise.io/container-launch-priority": "Ordered"}))
    wait("a runs", lambda: (status(c, "ordered", "a") or {}).get("state", {}).get("running"))
    c.kill("operator")
    wait("a is ready", lambda: (status(c, "ordered", "a") or {}).get("ready"))
    time.sleep(1)
    assert not status(c, "ordered", "b")["state"].get("running"), "b must wait"
    c.operator()
    wait("ordered is ready", lambda: ready(c, "ordered"))
    times = [status(c, "ordered", n)["state"]["running"]["startedAt"] for n in ("a", "b", "c")]
    assert times == sorted(times), times
    say(f"Ordered, the operator killed between two levels: {times}")
    c.create(pod("graph", [container("app", SLEEP), container("db", SLEEP, **slow), container("migrate", "sleep 1")],
                 {"outrigger.dev/depends-on": "app: db ready, migrate completed"}, policy="OnFailure"))
    wait("app runs", lambda: (status(c, "graph", "app") or {}).get("state", {}).get("running"))
    ended = status(c, "graph", "migrate")["state"]["terminated"]["finishedAt"]
    assert ended <= status(c, "graph", "app")["state"]["running"]["startedAt"]
    say("depends-on: app started after db was ready and migrate had completed")


def jobs(c):
    """The seed's example: a Job with a marked sidecar completes."""
    for policy in "Never", "OnFailure":
        for kind, command in ("0", SLEEP), ("143", "sleep 1000 & wait"):
            name = f"job-{policy.lower()}-{kind}"
            spec = pod(name, [container("main", "sleep 1"), container("sidecar1", command, KILL)], policy=policy)["spec"]
            c.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}})
            begun = wait(f"{name}: main exited", lambda: job_main_end(c, name))
            wait(f"{name} is complete", lambda: (c.get("job", name)["status"].get("succeeded")))
            say(f"Job, {policy}, sidecar that exits with {kind}: complete {time.time() - begun:.1f} s after its main was seen to exit")


def job_main_end(c, name):
    for p in c.get("pods", "-l", f"job-name={name}")["items"]:
        for s in p["status"].get("containerStatuses", []):
            if s["name"] == "main" and s["state"].get("terminated"):
                return time.time()


def crr_status(c, name):
    return c.get("crr", name).get("status", {})


def requests(c):
    """Containers are recreated once, also when the agent is killed in the middle."""
    slow_stop = "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.1; done"
    c.create(pod("web", [container("app", slow_stop), container("side", SLEEP)], terminationGracePeriodSeconds=20))
    wait("web is ready", lambda: ready(c, "web"))
    crr = lambda name, version, spec: {"apiVersion": f"apps.kruise.io/{version}", "kind": "ContainerRecreateRequest", "metadata": {"name": name}, "spec": {"podName": "web", **spec}}
    c.create(crr("one", "v1beta1", {"containers": [{"name": "app"}, {"name": "side"}], "strategy": {"orderedRecreate": True}}))
    wait("the app is being stopped", lambda: (crr_status(c, "one").get("containerRecreateStates") or [{}])[0].get("killedContainerID"))
    time.sleep(0.5)
    c.kill("agent")
    time.sleep(1)
    c.agent()
    # Forced: what was restarted since the request was made is stopped all the same.
    c.create(crr("two", "v1alpha1", {"containers": [{"name": "side"}], "strategy": {"forceRecreate": True}}))
    for name in "one", "two":
        wait(f"request {name} has a verdict", lambda: crr_status(c, name).get("completionTime"))
        states = crr_status(c, name)["containerRecreateStates"]
        assert all(s["phase"] == "Succeeded" for s in states), states
    wait("web is ready again", lambda: ready(c, "web"))
    counts = {n: status(c, "web", n)["restartCount"] for n in ("app", "side")}
    assert counts == {"app": 1, "side": 2}, counts
    say(f"two requests, the agent killed in the middle of the first: restarts {counts}")


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p))]


def latency(c):
    """Level ready, until the next level's container has started, many pods at a time."""
    seen, lock, stop = {}, threading.Lock(), threading.Event()

    def follow():
        watch = subprocess.Popen([ASSETS / "kubectl", "--kubeconfig", c.top / "admin.conf", "get", "pods", "-l", "bench=1", "-o", "json", "-w", "--output-watch-events"],
                                 stdout=subprocess.PIPE, text=True)
        decoder, buffer = json.JSONDecoder(), ""
        while not stop.is_set():
            chunk = watch.stdout.readline()
            if not chunk:
                break
            buffer += chunk
            if not chunk.startswith("}"):
                continue
            event, _ = decoder.raw_decode(buffer)
            buffer = ""
            at, obj = time.time(), event["object"]
            with lock:
                times = seen.setdefault(obj["metadata"]["name"], {})
                for s in obj.get("status", {}).get("containerStatuses", []):
                    if s["name"] == "first" and s["ready"]:
                        times.setdefault("ready", at)
                    if s["name"] == "second" and s["state"].get("running"):
                        times.setdefault("started", at)
        watch.kill()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    time.sleep(1)
    pods = [pod(f"bench-{i}", [container("first", SLEEP, {"KRUISE_CONTAINER_PRIORITY": "1"}), container("second", SLEEP)]) for i in range(PODS)]
    for p in pods:
        p["metadata"]["labels"] = {"bench": "1"}
    c.create({"apiVersion": "v1", "kind": "List", "items": pods})
    done = lambda: sum("started" in t for t in seen.values()) >= PODS
    wait(f"{PODS} pods are launched", done, 600)
    stop.set()
    took = [t["started"] - t["ready"] for t in seen.values()]
    print(f"measured: {PODS} pods at a time, first level seen ready to second level seen running: median {statistics.median(took):.2f} s, "
          f"p99 {percentile(took, 0.99):.2f} s, longest {max(took):.2f} s", flush=True)


def main():
    top = pathlib.Path(tempfile.mkdtemp(prefix="outrigger-operator-"))
    os.chmod(top, 0o700)
    c = Cluster(top)
    try:
        c.up()
        c.install()
        c.operator()
        c.agent()
        wait("the default service account is there", lambda: c.get("serviceaccount", "default"))
        for step in (step for step in (launch, jobs, requests, latency) if not STEPS or step.__name__ in STEPS):
            begun = time.time()
            step(c)
            say(f"{step.__name__}: {time.time() - begun:.0f} s")
    except BaseException:
        for log in (top / "log" / name for name in ("operator", "agent")):
            print(f"--- {log.name}", log.read_text(errors="replace")[-3000:] if log.exists() else "not started", sep="\n")
        raise
    finally:
        c.down()
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
