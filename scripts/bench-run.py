#!/usr/bin/env python3
"""Benchmarks of `outrigger run` against bare `runc run` (the limit) and `podman kube play` (the peer), and of
`outrigger run --runtime cri` against the same containers driven by bare CRI calls one after another.

  scripts/bench-run.py [--outrigger PATH] [--bare PATH] [--floor PATH] [--no-podman] [--rounds N] [--only a,b,c,d,e,m,n,p]
                       [--json FILE]

Needs root, runc, podman with catatonit (where it can do the work), /bin/busybox (static) and python3. For CRI,
containerd and the bare driver (`cargo build --release -p outrigger-cri --example bare_cri`), which starts a
containerd of its own; without it those figures are left out. The floor of a, b and e is a program that only makes the same
kernel objects (`cargo build --release -p outrigger-embedded --example floor`); without it its figures are left out too. Everything happens in a temporary directory; rounds of the contenders are interleaved,
medians are reported. The cases:

  a  five init containers and a main, all `true`; also with --userns host, and with --oci-runtime runc and crun
  b  five sidecars with startup probes, a main of one second
  c  a Job with one sidecar, a main of one second
  d  deletion of a main and three sidecars
  e  100 pods of two containers, until all run
  m  memory: the agent with one pod and with 100, a shim
  n  a node with 250 idle pods of two containers: processor time and memory, and how long the next node takes to adopt them
  p  published ports: throughput and latency for another machine (a network namespace), for this machine by its
     address, and by 127.0.0.1; beside `podman run -p`
"""
import argparse, difflib, json, os, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

PODMAN_CONF = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--outrigger", default="target/release/outrigger")
    ap.add_argument("--bare", default="target/release/examples/bare_cri")
    ap.add_argument("--floor", default="target/release/examples/floor")
    ap.add_argument("--no-podman", action="store_true", help="leave the peer out")
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--only", default="a,b,c,d,e,m,n,p")
    ap.add_argument("--json", help="also write the figures to this file")
    args = ap.parse_args()
    bench = Bench(os.path.abspath(args.outrigger), os.path.abspath(args.bare), os.path.abspath(args.floor), args.rounds,
                  not args.no_podman)
    results = {}
    try:
        for name in args.only.split(","):
            results[name] = getattr(bench, "case_" + name)()
            print("%s  %s" % (name, results[name]), flush=True)
    finally:
        bench.close()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


# Measures reading all that a port sends (MB/s), requests on one connection, and requests on new ones (microseconds).
CLIENT = """
import socket, statistics, sys, time
host, stream, echo = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def ask(s):
    s.sendall(b"x")
    assert s.recv(1) == b"x"
deadline, got, room = time.monotonic() + 20, 0, bytearray(1 << 20)
while not got:
    try:
        s, t = socket.create_connection((host, stream)), time.perf_counter()
        got = s.recv_into(room)
    except OSError:
        # The server needs a moment to start.
        assert time.monotonic() < deadline
        time.sleep(0.1)
while n := s.recv_into(room):
    got += n
rate = got / 1e6 / (time.perf_counter() - t)
s, times = socket.create_connection((host, echo)), []
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(2000):
    t = time.perf_counter()
    ask(s)
    times.append(time.perf_counter() - t)
fresh = []
for _ in range(100):
    t = time.perf_counter()
    with socket.create_connection((host, echo)) as s:
        ask(s)
    fresh.append(time.perf_counter() - t)
print(rate, statistics.median(times) * 1e6, statistics.median(fresh) * 1e6)
"""


class Bench:
    def __init__(self, outrigger, bare, floor, rounds, with_podman):
        self.outrigger, self.bare, self.rounds = outrigger, bare, rounds
        self.dir = tempfile.mkdtemp(prefix="outrigger-bench-")
        self.state = os.path.join(self.dir, "state")
        self.rootfs = os.path.join(self.dir, "rootfs")
        self.make_rootfs()
        self.bundle = self.make_bundle()
        self.podman = self.make_podman() if with_podman else None
        self.make_containerd()
        self.floor = floor if os.access(floor, os.X_OK) else None
        if self.floor:
            self.compare_objects()

    def close(self):
        if self.floor:
            subprocess.run(self.at_floor("clean"))
        if self.containerd:
            self.containerd.communicate()
        if self.podman:
            subprocess.run(["podman", "pod", "rm", "-af"], env=self.podman, capture_output=True)
            subprocess.run(["podman", "rmi", "-f", "localhost/bench:1"], env=self.podman, capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- contenders
    def make_rootfs(self):
        for d in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            os.makedirs(os.path.join(self.rootfs, d))
        shutil.copy("/bin/busybox", os.path.join(self.rootfs, "bin/busybox"))
        for applet in subprocess.check_output(["/bin/busybox", "--list"], text=True).split():
            if applet != "busybox":
                os.symlink("busybox", os.path.join(self.rootfs, "bin", applet))

    def make_bundle(self):
        bundle = os.path.join(self.dir, "bundle")
        os.makedirs(bundle)
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        path = os.path.join(bundle, "config.json")
        spec = json.load(open(path))
        spec["process"].update(terminal=False, args=["/bin/true"])
        spec["process"].pop("rlimits", None)
        spec["root"] = {"path": self.rootfs, "readonly": True}
        json.dump(spec, open(path, "w"))
        return bundle

    def make_podman(self):
        if not shutil.which("podman"):
            return None
        conf = os.path.join(self.dir, "containers.conf")
        open(conf, "w").write(PODMAN_CONF)
        env = dict(os.environ, CONTAINERS_CONF=conf)
        tar = os.path.join(self.dir, "rootfs.tar")
        subprocess.run(["tar", "-C", self.rootfs, "-cf", tar, "."], check=True)
        done = subprocess.run(["podman", "import", "-q", tar, "localhost/bench:1"], env=env, capture_output=True)
        return env if done.returncode == 0 else None

    def make_containerd(self):
        """Starts a containerd that ends when its input ends."""
        self.containerd = None
        if os.access(self.bare, os.X_OK) and shutil.which("containerd"):
            self.containerd = subprocess.Popen([self.bare, "containerd"], stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, text=True)
            self.endpoint, self.image = self.containerd.stdout.readline().split()

    # Prints what a program sees of its kernel objects.
    OBJECTS = """cut -d' ' -f4- /proc/self/mountinfo | sort
        grep -E '^(Uid|Gid|Groups|Cap|Seccomp|NoNewPrivs)' /proc/self/status
        cat /proc/self/oom_score_adj /proc/self/uid_map; cut -d: -f2- /proc/self/cgroup; cd /dev; stat -c '%A %u %g %t:%T %N' *
        ip address show dev eth0; ip route"""

    def compare_objects(self):
        """Checks that the floor makes the same objects as Outrigger. Otherwise the comparison is invalid."""
        command = ["/bin/sh", "-c", self.OBJECTS]
        spec = {"restartPolicy": "Never", "hostname": "floor", "containers": [{"name": "main", "command": command}]}
        path = self.write("objects.json", self.pod("floor", spec))
        ours = self.run(path)
        seen = [self.normal(subprocess.check_output(c, text=True)) for c in (ours, self.at_floor("check", *command))]
        if seen[0] != seen[1]:
            sys.exit("the floor does not make the same objects as outrigger:\n" +
                     "\n".join(difflib.unified_diff(*seen, "outrigger", "floor", lineterm="")))

    @staticmethod
    def normal(text):
        """Removes what differs from pod to pod: paths in state directories, ids, addresses."""
        text = re.sub(r"\S*/(etc/hosts|etc/hostname|etc/resolv.conf|messages/\S+|upper|work|rootfs)\b", "PATH", text)
        text = re.sub(r"\b\d{10}\b|eth0@if\d+|\b10\.\d+\.\d+\.\d+|fe80::[0-9a-f:]+|([0-9a-f]{2}:){5}[0-9a-f]{2}", "N", text)
        return [line.removeprefix("main | ") for line in text.splitlines()]

    def at_floor(self, *case):
        dir = os.path.join(self.dir, "floor")
        os.makedirs(dir, exist_ok=True)
        return [self.floor, "--rootfs", self.rootfs, "--dir", dir, *case]

    def floor_seconds(self, case):
        if case == "e":
            return float(subprocess.check_output(self.at_floor(case), text=True))
        return self.seconds(self.at_floor(case))

    @staticmethod
    def above(ours, floor):
        """The figures of the floor, and ours relative to it."""
        floor = statistics.median(floor)
        return {"floor s": round(floor, 3), "of floor": round(ours / floor, 2)}

    def on_cri(self):
        return ("--runtime", "cri", "--cri-endpoint", self.endpoint, "--network", "host")

    def bare_seconds(self, case):
        return float(subprocess.check_output([self.bare, self.endpoint, case], text=True))

    @staticmethod
    def compared(cri, bare):
        """The figures of Outrigger on CRI, compared with those of bare calls."""
        cri, bare = statistics.median(cri), statistics.median(bare)
        return {"cri s": round(cri, 3), "bare cri s": round(bare, 3), "cri of bare": round(cri / bare, 2)}

    def pod(self, name, spec, image=None):
        for key in ("initContainers", "containers"):
            for c in spec.get(key, []):
                c["image"] = image or "rootfs:" + self.rootfs
                c["imagePullPolicy"] = "Never" if image else "IfNotPresent"
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def write(self, name, *pods):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            json.dump(pods[0] if len(pods) == 1 else {"apiVersion": "v1", "kind": "List", "items": pods}, f)
        return path

    def run(self, path, *flags):
        return [self.outrigger, "run", "-q", "--state-dir", self.state, *flags, path]

    @staticmethod
    def seconds(command, env=None, check=True):
        t = time.perf_counter()
        done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            sys.exit("%s failed with %d" % (" ".join(command), done.returncode))
        return time.perf_counter() - t

    # ---- cases
    def case_a(self):
        def spec(host):
            s = {"restartPolicy": "Never", "initContainers": [
                {"name": "i%d" % i, "command": ["/bin/true"]} for i in range(5)],
                "containers": [{"name": "main", "command": ["/bin/true"]}]}
            if host:
                s["hostNetwork"] = True
            return s
        ours = self.write("a.json", self.pod("a", spec(False)))
        theirs = self.write("a-podman.json", self.pod("a", spec(True), "localhost/bench:1"))
        cri = self.containerd and self.write("a-cri.json", self.pod("a", spec(False), self.image))
        modes = self.modes(ours)
        contenders = ["outrigger", *modes, "runc"] + ["floor"] * bool(self.floor)
        out = {name: [] for name in contenders + ["podman", "cri", "bare cri"]}
        for n in range(self.rounds):
            # The order changes each time, because bare runc leaves the caches in another state for the next one.
            for name in contenders[n % len(contenders):] + contenders[:n % len(contenders)]:
                if name == "runc":
                    out[name].append(sum(self.seconds(["runc", "run", "-b", self.bundle, "bench-%d-%d" % (n, i)])
                                         for i in range(6)))
                elif name == "floor":
                    out[name].append(self.floor_seconds("a"))
                else:
                    out[name].append(self.seconds(self.run(ours, *modes.get(name, []))))
            if cri:
                out["cri"].append(self.seconds(self.run(cri, *self.on_cri())))
                out["bare cri"].append(self.bare_seconds("a"))
            if self.podman and n < max(3, self.rounds // 3):
                out["podman"].append(self.seconds(["podman", "kube", "play", theirs], self.podman))
                subprocess.run(["podman", "pod", "rm", "-f", "a"], env=self.podman, capture_output=True)
        beside = self.compared(out.pop("cri"), out.pop("bare cri")) if cri else {}
        if self.floor:
            beside |= self.above(statistics.median(out["outrigger"]), out.pop("floor"))
        m = {k: statistics.median(v) for k, v in out.items() if v}
        result = {k + " s": round(v, 3) for k, v in m.items()}
        result["of runc"] = round(m["outrigger"] / m["runc"], 2)
        for mode in modes:
            result[mode + " of runc"] = round(m[mode] / m["runc"], 2)
        result["of userns host"] = round(m["outrigger"] / m["userns host"], 2)
        if "podman" in m:
            result["faster than podman"] = round(m["podman"] / m["outrigger"], 1)
        return result | beside

    def modes(self, path):
        """Other ways to run a pod that work on this machine, as name and flags."""
        modes = {"userns host": ["--userns", "host"]}
        for runtime in ("runc", "crun"):
            flags = ["--oci-runtime", runtime]
            if shutil.which(runtime) and subprocess.run(self.run(path, *flags), capture_output=True).returncode == 0:
                modes["oci " + runtime] = flags
        return modes

    def beyond(self, name, spec, own):
        path = self.write(name + ".json", self.pod(name, spec))
        on_cri = self.containerd and self.write(name + "-cri.json", self.pod(name, spec, self.image))
        times, floor, cri, bare = [], [], [], []
        for _ in range(self.rounds):
            times.append(self.seconds(self.run(path)))
            if self.floor and name == "b":
                floor.append(self.floor_seconds(name) - own)
            if on_cri:
                cri.append(self.seconds(self.run(on_cri, *self.on_cri())))
                bare.append(self.bare_seconds(name))
        median = statistics.median(times)
        result = {"outrigger s": round(median, 3), "beyond the containers' own time s": round(median - own, 3)}
        if floor:
            result |= self.above(median - own, floor)
        return result | (self.compared(cri, bare) if on_cri else {})

    SIDECAR = "trap 'exit 0' TERM; touch /tmp/up; while :; do sleep 3600 & wait $!; done"

    def sidecar(self, name):
        return {"name": name, "restartPolicy": "Always", "command": ["/bin/sh", "-c", self.SIDECAR],
                "startupProbe": {"exec": {"command": ["/bin/test", "-e", "/tmp/up"]}}}

    def case_b(self):
        return self.beyond("b", {"restartPolicy": "Never", "initContainers": [
            self.sidecar("s%d" % i) for i in range(5)],
            "containers": [{"name": "main", "command": ["/bin/sleep", "1"]}]}, 1.0)

    def case_c(self):
        return self.beyond("c", {"restartPolicy": "Never", "initContainers": [self.sidecar("s0")],
                                 "containers": [{"name": "main", "command": ["/bin/sleep", "1"]}]}, 1.0)

    def case_d(self):
        def spec():
            return {"initContainers": [self.sidecar("s%d" % i) for i in range(3)],
                    "containers": [{"name": "main", "command": ["/bin/sh", "-c", self.SIDECAR]}]}

        def delete(path, *flags):
            status = os.path.join(self.dir, "d-status.json")
            if os.path.exists(status):
                os.unlink(status)
            p = subprocess.Popen(self.run(path, "--status", status, *flags), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            self.await_running([status])
            time.sleep(0.2)         # the shells have set their traps
            t = time.perf_counter()
            p.send_signal(signal.SIGTERM)
            p.wait()
            return time.perf_counter() - t

        path = self.write("d.json", self.pod("d", spec()))
        on_cri = self.containerd and self.write("d-cri.json", self.pod("d", spec(), self.image))
        times, cri, bare = [], [], []
        for _ in range(self.rounds):
            times.append(delete(path))
            if on_cri:
                cri.append(delete(on_cri, *self.on_cri()))
                bare.append(self.bare_seconds("d"))
        result = {"from TERM to the end s": round(statistics.median(times), 3)}
        return result | (self.compared(cri, bare) if on_cri else {})

    @staticmethod
    def running(status):
        try:
            objects = json.load(open(status))
        except (OSError, ValueError):
            return 0
        return sum(o.get("status", {}).get("phase") == "Running" for o in objects.get("items", [objects]))

    def await_running(self, statuses, count=1, limit=120):
        end = time.time() + limit
        while sum(self.running(s) for s in statuses) < count:
            if time.time() > end:
                sys.exit("the pods do not run")
            time.sleep(0.01)

    def hundred(self, image=None, *flags):
        c = ["/bin/sh", "-c", self.SIDECAR]
        pods = [self.pod("e%d" % i, {"initContainers": [{"name": "s0", "restartPolicy": "Always", "command": c}],
                                     "containers": [{"name": "main", "command": c}]}, image) for i in range(100)]
        status = os.path.join(self.dir, "e-status.json")
        if os.path.exists(status):
            os.unlink(status)
        t = time.perf_counter()
        p = subprocess.Popen(self.run(self.write("e.json", *pods), "--status", status, *flags),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.await_running([status], 100)
        return p, time.perf_counter() - t

    def case_e(self):
        times, stops, floor, cri, bare = [], [], [], [], []
        for _ in range(max(2, self.rounds // 4)):
            p, took = self.hundred()
            times.append(took)
            t = time.perf_counter()
            p.send_signal(signal.SIGTERM)
            p.wait()
            stops.append(time.perf_counter() - t)
            if self.floor:
                floor.append(self.floor_seconds("e"))
            if self.containerd:
                p, took = self.hundred(self.image, *self.on_cri())
                cri.append(took)
                p.send_signal(signal.SIGTERM)
                p.wait()
                bare.append(self.bare_seconds("e"))
        result = {"all running s": round(statistics.median(times), 2), "all stopped s": round(statistics.median(stops), 2)}
        if floor:
            result |= self.above(statistics.median(times), floor)
        return result | (self.compared(cri, bare) if cri else {})

    @staticmethod
    def memory(pid):
        """(resident MB, private MB)"""
        rss = private = 0
        for line in open("/proc/%d/smaps_rollup" % pid):
            key, value = line.split()[0], line.split()[1]
            if key == "Rss:":
                rss = int(value)
            if key.startswith("Private_"):
                private += int(value)
        return rss / 1024, private / 1024

    @staticmethod
    def anonymous(pid):
        for line in open("/proc/%d/status" % pid):
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        return 0

    def case_m(self):
        status = os.path.join(self.dir, "m-status.json")
        path = self.write("m.json", self.pod("m", {"initContainers": [self.sidecar("s0")], "containers": [
            {"name": "main", "command": ["/bin/sh", "-c", self.SIDECAR]}]}))
        p = subprocess.Popen(self.run(path, "--status", status), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.await_running([status])
        shims = [int(x) for x in subprocess.check_output(["pgrep", "-P", str(p.pid)], text=True).split()]
        one, shim = self.memory(p.pid), max(self.anonymous(s) for s in shims)
        p.send_signal(signal.SIGTERM)
        p.wait()
        p, _ = self.hundred()
        hundred = self.memory(p.pid)
        p.send_signal(signal.SIGTERM)
        p.wait()
        return {"agent, one pod, resident MB": round(one[0], 1), "agent, 100 pods, resident MB": round(hundred[0], 1),
                "shim, anonymous MB": round(shim, 2)}

    NODE_PODS = 250

    def start_node(self, env):
        """Starts a node and waits until it reports that it has adopted the pods. Returns the process and the seconds."""
        path = os.path.join(self.dir, "notify")
        if os.path.exists(path):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(path)
            ready.settimeout(120)
            t = time.perf_counter()
            p = subprocess.Popen([self.outrigger, "node", "--quiet", "--state-dir", self.state],
                                 env=env | {"NOTIFY_SOCKET": path}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while ready.recv(100) != b"READY=1":
                pass
            return p, time.perf_counter() - t

    @staticmethod
    def processor_ms(pid):
        fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * 1000 // os.sysconf("SC_CLK_TCK")

    def case_n(self):
        env = os.environ | {"OUTRIGGER_RUNTIME_DIR": os.path.join(self.dir, "sockets")}
        c = ["/bin/sh", "-c", self.SIDECAR]
        pods = [self.pod("n%d" % i, {"initContainers": [{"name": "s0", "restartPolicy": "Always", "command": c}],
                                     "containers": [{"name": "main", "command": c}]}) for i in range(self.NODE_PODS)]
        p, _ = self.start_node(env)
        result, adopted = {}, []
        try:
            t = time.perf_counter()
            subprocess.run([self.outrigger, "run", "-d", "--wait", "--quiet", "--state-dir", self.state,
                            self.write("n.json", *pods)], env=env, check=True)
            result["all running s"] = round(time.perf_counter() - t, 2)
            for when in ("after starting them", "after adopting them"):
                time.sleep(5)
                before = self.processor_ms(p.pid)
                time.sleep(30)
                result["processor ms in 30 s, " + when] = self.processor_ms(p.pid) - before
                result["resident MB, " + when] = round(self.memory(p.pid)[0], 1)
                for _ in range(3 if when == "after starting them" else 0):
                    p.kill()
                    p.wait()
                    p, took = self.start_node(env)
                    adopted.append(took)
            result["adopted s"] = round(statistics.median(adopted), 3)
        finally:
            subprocess.run([self.outrigger, "stop", "--all", "--grace-period", "5"], env=env, capture_output=True)
            p.terminate()
            p.wait()
        return result

    SERVER = ("nc -ll -p 5001 -e dd if=/dev/zero bs=64k count=8192 2>/dev/null & exec nc -ll -p 5002 -e cat")

    def case_p(self):
        """Runs in its own network namespace, so that no contender changes the machine's."""
        if not os.environ.get("BENCH_OWN_NETWORK"):
            figures = os.path.join(self.dir, "p.json")
            subprocess.run(["unshare", "--net", sys.executable, os.path.abspath(__file__), "--outrigger", self.outrigger,
                            "--rounds", str(self.rounds), "--only", "p", "--json", figures]
                           + ([] if self.podman else ["--no-podman"]),
                           env=os.environ | {"BENCH_OWN_NETWORK": "1"}, stdout=subprocess.DEVNULL, check=True)
            return json.load(open(figures))["p"]
        other = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        inside = ["nsenter", "--target", str(other.pid), "--net"]
        while os.readlink("/proc/%d/ns/net" % other.pid) == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        for command in (["ip", "link", "set", "lo", "up"],
                        ["ip", "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", str(other.pid)],
                        ["ip", "addr", "add", "192.0.2.1/24", "dev", "up0"], ["ip", "link", "set", "up0", "up"],
                        ["ip", "route", "add", "default", "via", "192.0.2.2"],
                        inside + ["ip", "addr", "add", "192.0.2.2/24", "dev", "eth0"],
                        inside + ["ip", "link", "set", "eth0", "up"]):
            subprocess.run(command, check=True)
        status = os.path.join(self.dir, "p-status.json")
        path = self.write("p.json", self.pod("p", {"containers": [{
            "name": "main", "command": ["/bin/sh", "-c", self.SERVER],
            "ports": [{"containerPort": 5001, "hostPort": 18001}, {"containerPort": 5002, "hostPort": 18002}]}]}))
        contenders = {}
        try:
            # podman comes first, because it enables forwarding for the whole machine. A run does not, and blocks forwarding
            # as long as it is off.
            if self.podman:
                subprocess.run(["podman", "run", "-d", "--name", "bench-p", "-p", "28001:5001", "-p", "28002:5002",
                                "localhost/bench:1", "/bin/sh", "-c", self.SERVER], env=self.podman, check=True,
                               stdout=subprocess.DEVNULL)
                contenders["podman"] = ("28001", "28002")
            p = subprocess.Popen(self.run(path, "--status", status), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            contenders["outrigger"] = ("18001", "18002")
            self.await_running([status])
            result = {}
            for client, prefix, host in (("another machine", inside, "192.0.2.1"), ("this machine", [], "192.0.2.1"),
                                         ("127.0.0.1", [], "127.0.0.1")):
                out = {name: [] for name in contenders}
                for n in range(self.rounds):
                    for name in (list(contenders) if n % 2 else reversed(list(contenders))):
                        said = subprocess.check_output(prefix + [sys.executable, "-c", CLIENT, host, *contenders[name]],
                                                       text=True)
                        out[name].append([float(x) for x in said.split()])
                for name, rounds in out.items():
                    rate, asked, fresh = (round(statistics.median(column)) for column in zip(*rounds))
                    result["%s, %s" % (client, name)] = {"MB/s": rate, "answer µs": asked, "new connection µs": fresh}
            return result
        finally:
            if self.podman:
                subprocess.run(["podman", "rm", "-ft0", "bench-p"], env=self.podman, capture_output=True)
            if "outrigger" in contenders:
                p.send_signal(signal.SIGTERM)
                p.wait()
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
