"""A real one-node cluster with the operator in it, for operator-node.py and operator-bench.py.

Uses only installed binaries: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kubectl in
KUBEBUILDER_ASSETS (default: /usr/local/kubebuilder/bin), etcd, containerd and Debian's CNI plugins. Needs root, python3,
iproute2 and a static busybox. Everything runs in its own network namespace and directory, which are removed afterwards.
"""
import hashlib
import http.client
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

ASSETS = pathlib.Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
NODE = "machine"
ADDRESS = "10.79.0.1"
# The socket must be below /run, where the installed agent looks for it.
RUN = pathlib.Path("/run/outrigger-operator-test")


def own_network():
    """Runs this script again in its own network namespace, with an address and a default route."""
    if os.environ.get("OUTRIGGER_OPERATOR_NETNS"):
        return
    os.environ["OUTRIGGER_OPERATOR_NETNS"] = "1"
    setup = (f"ip link set lo up && ip link add up0 type veth peer name up1 && ip link set up1 up && ip addr add {ADDRESS}/24 dev up0 && ip link set up0 up && "
             "ip addr add 10.96.0.1/32 dev up0 && ip route add default dev up0 && exec \"$@\"")
    os.execvp("unshare", ["unshare", "-n", "sh", "-c", setup, "sh", sys.executable, *sys.argv])

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    def __init__(self, top, outrigger):
        self.outrigger = outrigger
        self.top, self.procs, self.port, self.etcd = top, {}, 443, free_port()
        self.webhook, self.health = free_port(), free_port()
        for name in "log certs ctd kubelet static podlogs cni/conf".split():
            (top / name).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(RUN, ignore_errors=True)
        RUN.mkdir()
        self.sock = RUN / "containerd.sock"
        # The data is in memory, because the disk of this machine is not part of the test.
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="outrigger-operator-", dir="/dev/shm"))

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
        self.spawn("etcd", "etcd", "--data-dir", self.data, "--listen-client-urls", url(self.etcd), "--advertise-client-urls", url(self.etcd),
                   "--listen-peer-urls", url(peer), "--initial-advertise-peer-urls", url(peer), "--initial-cluster", f"default={url(peer)}", "--unsafe-no-fsync")
        subprocess.run(["openssl", "genrsa", "-out", t / "certs/sa.key", "2048"], check=True, capture_output=True)
        (t / "tokens.csv").write_text(f'admin-token,admin,admin,"system:masters"\nnode-token,system:node:{NODE},node,"system:nodes"\n')
        rules = [{"level": "Metadata", "userGroups": ["system:serviceaccounts:outrigger-system"]}, {"level": "None"}]
        (t / "audit.yaml").write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}))
        self.config("admin", "admin-token")
        self.config("node", "node-token")
        self.spawn("apiserver", ASSETS / "kube-apiserver", "--etcd-servers", url(self.etcd), "--secure-port", self.port, "--bind-address", "0.0.0.0", "--advertise-address", ADDRESS, "--enable-aggregator-routing=true",
                   "--cert-dir", t / "certs", "--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
                   "--service-account-key-file", t / "certs/sa.key", "--service-account-signing-key-file", t / "certs/sa.key",
                   "--token-auth-file", t / "tokens.csv", "--authorization-mode", "Node,RBAC", "--allow-privileged",
                   "--audit-policy-file", t / "audit.yaml", "--audit-log-path", t / "audit.log")
        wait("the API server is ready", lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok")
        self.spawn("kcm", ASSETS / "kube-controller-manager", "--kubeconfig", t / "admin.conf", "--service-account-private-key-file", t / "certs/sa.key",
                   "--root-ca-file", t / "certs/apiserver.crt", "--use-service-account-credentials=false", "--leader-elect=false", "--secure-port", "0", "--controllers", "*,-bootstrapsigner,-tokencleaner,-nodeipam")
        self.spawn("scheduler", ASSETS / "kube-scheduler", "--kubeconfig", t / "admin.conf", "--leader-elect=false", "--secure-port", "0")
        self.containerd()
        self.kubelet()
        ready = lambda: " Ready" in self.kubectl("get", "node", NODE, check=False)
        for _ in range(6):
            # On a busy machine, the kubelet may start before the API server answers, and wait for minutes before it tries again.
            if soon(ready, 30):
                return
            self.kill("kubelet")
            self.kubelet()
        raise SystemExit("FAILED: the node is not Ready")

    def containerd(self):
        t = self.top
        net = {"cniVersion": "0.4.0", "name": "operator-test", "plugins": [{"type": "bridge", "bridge": "oroptest0", "isDefaultGateway": True,
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

    def operator(self, *more):
        self.spawn("operator", self.outrigger, "operator", "run", "--identity", f"test-{time.time()}", "--webhook-name", "127.0.0.1", "--webhook-address",
                   f"127.0.0.1:{self.webhook}", "--health-address", f"127.0.0.1:{self.health}", *more, env={"KUBECONFIG": str(self.top / "operator.conf")})
        wait("the operator leads", lambda: self.page("/readyz") == "ok" and "outrigger_leader 1" in self.page("/metrics"))

    def page(self, path):
        """A page of the operator's health port."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=5)
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except OSError:
            return ""

    def agent(self):
        self.spawn("agent", self.outrigger, "operator", "agent", "--node-name", NODE, "--cri-endpoint", f"unix://{self.sock}",
                   env={"KUBECONFIG": str(self.top / "agent.conf")})

    def install(self):
        run = subprocess.run([self.outrigger, "operator", "install", "--webhook-url", f"https://127.0.0.1:{self.webhook}"], capture_output=True, text=True,
                             env={**os.environ, "KUBECONFIG": str(self.top / "admin.conf")})
        assert run.returncode == 0, run.stderr
        # Each uses a token of its own service account, so it has the real permissions. The agent's token is bound to its node.
        token = lambda name, *more: self.kubectl("create", "token", name, "-n", "outrigger-system", "--duration", "6h", *more).strip()
        self.config("operator", token("outrigger-operator"))
        self.config("agent", token("outrigger-agent", "--bound-object-kind", "Node", "--bound-object-name", NODE))

    def tasks(self):
        """The containers that run on containerd."""
        return subprocess.run(["ctr", "-a", str(self.sock), "-n", "k8s.io", "tasks", "ls", "-q"], capture_output=True, text=True).stdout.split()

    def execute(self, name, container, *command):
        """Runs a command in a container, and returns its output."""
        return self.execute_in(status(self, name, container), *command)

    def execute_in(self, status, *command):
        """Runs a command in the container that has this status."""
        found = status["containerID"].split("://")[1]
        ctr = ["ctr", "-a", str(self.sock), "-n", "k8s.io", "tasks", "exec", "--exec-id", f"script-{time.time_ns()}", found, *command]
        return subprocess.run(ctr, capture_output=True, text=True).stdout

    def networks(self):
        """The network namespaces that containerd has created for pods. It leaves one behind if it ends while removing it."""
        ctr = ["ctr", "-a", str(self.sock), "-n", "k8s.io", "containers"]
        for found in subprocess.run([*ctr, "ls", "-q"], capture_output=True, text=True).stdout.split():
            info = subprocess.run([*ctr, "info", "--spec", found], capture_output=True, text=True).stdout
            for namespace in json.loads(info or "{}").get("linux", {}).get("namespaces", []):
                if namespace["type"] == "network" and "/netns/cni-" in namespace.get("path", ""):
                    yield namespace["path"]

    def down(self):
        networks = set(self.networks())
        self.kubectl("delete", "pods,jobs", "--all", "--grace-period=0", "--force", check=False)
        if not soon(lambda: not self.tasks(), 20):
            for task in self.tasks():
                subprocess.run(["ctr", "-a", str(self.sock), "-n", "k8s.io", "tasks", "kill", "-a", "-s", "SIGKILL", task], capture_output=True)
        for name in "operator agent kubelet scheduler kcm apiserver containerd etcd".split():
            if name in self.procs:
                self.kill(name, signal.SIGTERM if name != "apiserver" else signal.SIGKILL)
        self.end_shims()
        for network in networks:
            subprocess.run(["umount", "-l", network], capture_output=True)
            pathlib.Path(network).unlink(missing_ok=True)
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)
        for own in sorted(pathlib.Path("/sys/fs/cgroup").glob("*/outrigger-operator-test/**/"), reverse=True):
            try:
                own.rmdir()
            except OSError:
                pass
        mounts = [line.split()[1] for line in open("/proc/mounts") if line.split()[1].startswith(str(self.top))]
        for mount in sorted(mounts, reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True)

    def end_shims(self):
        """Ends the shims that containerd has left behind. Their arguments contain its socket."""
        for proc in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (proc / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and str(self.sock).encode() in words:
                    os.kill(int(proc.name), signal.SIGKILL)
            except OSError:
                pass  # it has ended


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


def soon(test, limit):
    end = time.time() + limit
    while time.time() < end:
        found = test()
        if found:
            return found
        time.sleep(0.05)
    return None


def wait(what, test, limit=180):
    found = soon(test, limit)
    if not found:
        raise SystemExit(f"FAILED: not within {limit} s: {what}")
    return found


def run(outrigger, steps):
    """Starts everything, runs the steps and cleans up. Shows failures with the logs."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="outrigger-operator-"))
    os.chmod(top, 0o700)
    c = Cluster(top, os.path.abspath(outrigger))
    # The script cleans up after SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    try:
        c.up()
        c.install()
        c.operator()
        c.agent()
        wait("the default service account is there", lambda: c.get("serviceaccount", "default"))
        for step in steps:
            begun = time.time()
            step(c)
            say(f"{step.__name__}: {time.time() - begun:.0f} s")
    except BaseException:
        for log in (top / "log" / name for name in ("operator", "agent")):
            print(f"--- {log.name}", log.read_text(errors="replace")[-3000:] if log.exists() else "not started", sep="\n")
        raise
    finally:
        c.down()
        if os.environ.get("KEEP"):
            print(f"the logs are kept in {top}/log", flush=True)
        else:
            shutil.rmtree(top, ignore_errors=True)


class Api:
    """A client of the API server without kubectl, with one connection per thread."""

    def __init__(self, c):
        self.c, self.local = c, threading.local()

    def call(self, method, path, body=None, kind="application/json"):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPSConnection("127.0.0.1", self.c.port, context=ssl._create_unverified_context(), timeout=60)
        headers = {"Authorization": "Bearer admin-token", "Content-Type": kind}
        self.local.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self.local.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]}")
        return json.loads(text)

    def watch(self, path, keys):
        """When each of the keys of an event was first seen. A separate process watches, so other work in this script does not delay it."""
        seen, (here, there) = {}, multiprocessing.Pipe(False)

        def follow():
            connection = http.client.HTTPSConnection("127.0.0.1", self.c.port, context=ssl._create_unverified_context())
            connection.request("GET", f"{path}{'&' if '?' in path else '?'}watch=true", headers={"Authorization": "Bearer admin-token"})
            answer = connection.getresponse()
            while line := answer.readline():
                at = time.time()
                there.send([(key, at) for key in keys(json.loads(line)["object"])])

        def collect():
            try:
                while True:
                    for key, at in here.recv():
                        seen.setdefault(key, at)
            except EOFError:
                pass  # the other process has ended

        multiprocessing.get_context("fork").Process(target=follow, daemon=True).start()
        threading.Thread(target=collect, daemon=True).start()
        return seen


def say(text):
    print(f"ok: {text}", flush=True)


def container(name, command, env=None, **more):
    env = [{"name": k, "value": v} for k, v in (env or {}).items()]
    return {"name": name, "image": "localhost/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", command], "env": env, **more}


# There is no loop, because a hundred containers that start a program ten times a second would disturb the measurement.
SLEEP = "trap 'exit 0' TERM; sleep 100000 & wait"
KILL = {"KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT": "true"}


def pod(name, containers, annotations=None, policy="Always", **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"restartPolicy": policy, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 5, "containers": containers, **more}}


def controlled(c, pod):
    """The pod as a controller would create it. Its owner is an object that always exists."""
    if not hasattr(c, "owner"):
        found = c.get("configmap", "kube-root-ca.crt")["metadata"]
        c.owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": found["name"], "uid": found["uid"], "controller": True}
    pod["metadata"]["ownerReferences"] = [c.owner]
    return pod


def status(c, name, container):
    p = c.get("pod", name)
    every = (p or {}).get("status", {}).get("containerStatuses", [])
    return next((s for s in every if s["name"] == container), None)


def ready(c, name):
    p = c.get("pod", name)
    return p and len(p["status"].get("containerStatuses", [])) == len(p["spec"]["containers"]) and all(s["ready"] for s in p["status"]["containerStatuses"])


def phase(c, name):
    return ((c.get("pod", name) or {}).get("status") or {}).get("phase")
