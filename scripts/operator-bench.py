#!/usr/bin/env python3
"""Measures the operator on a real API server, kubelet and containerd; docs/internals/benchmarks.md has the figures.

usage: scripts/operator-bench.py OUTRIGGER [kubelet|native|publish|webhook|memory|jobs|term|recreate]...

Use a release build. Each figure is printed with the load of the machine, and with the share of processor time that other
machines on the same host took since the previous figure. If it is more than a few percent, no p99 is meaningful.
operator_cluster.py lists the requirements.
"""
import datetime
import http.client
import json
import os
import random
import re
import ssl
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

sys.dont_write_bytecode = True
from operator_cluster import KILL, NODE, SLEEP, Api, container, controlled, own_network, pod, run, wait

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps?labelSelector=outrigger.dev/barrier"
WAKE = {"KRUISE_CONTAINER_PRIORITY": "1"}
# Probe with a connection, which costs the kubelet little. With 50 commands a second, their cost would be measured.
PROBE = {"readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1}}


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p))]


def processor_times():
    return [int(x) for x in open("/proc/stat").readline().split()[1:9]]


told_at = processor_times()


def conditions():
    """The load of the machine, and the share of time that its host gave to others since the last call."""
    global told_at
    now = processor_times()
    spent = [after - before for before, after in zip(told_at, now)]
    told_at = now
    load = " ".join(f"{x:.1f}" for x in os.getloadavg()[:2])
    return f"load {load}, {100 * spent[7] / max(sum(spent), 1):.0f}% stolen"


def tell(what, values, unit="s", scale=1.0):
    figures = ", ".join(f"{name} {v * scale:.2f} {unit}" for name, v in
                        (("median", statistics.median(values)), ("p99", percentile(values, 0.99)), ("longest", max(values))))
    print(f"measured: {what}: {figures} ({len(values)} values, {conditions()})", flush=True)


def follow_statuses(api):
    """When each container of a pod was first seen to be ready, running or ended, and when the pod had succeeded."""
    def keys(obj):
        name = obj["metadata"]["name"]
        if obj.get("status", {}).get("phase") == "Succeeded":
            yield name, "succeeded"
        for s in obj.get("status", {}).get("containerStatuses", []) + obj.get("status", {}).get("initContainerStatuses", []):
            for state in (["ready"] if s["ready"] else []) + list(s["state"]):
                yield name, s["name"], state
    return api.watch(PODS, keys)


def kubelet(c, pods=50):
    """From a ready level to the running container of the next level, with many pods launching at a time. Compared with the same pods
    without priorities."""
    api = Api(c)
    seen = follow_statuses(api)
    time.sleep(1)
    names = [f"single-{i}" for i in range(20)]
    for name in names:
        launch(api, seen, [name], WAKE)
    tell("one pod at a time, level ready to next level's container running", [took(c, seen, name) for name in names])
    clear(c)
    for kind, more in (("steady", {}), ("probed", PROBE)):
        names = [f"{kind}-{i}" for i in range(pods)]
        launch(api, seen, names, WAKE, pause=1, **more)
        what = "with a readiness probe every second, " if more else ""
        tell(f"{pods} pods, one a second, {what}level ready to next level's container running", [took(c, seen, name) for name in names])
        clear(c)
    for kind, env in (("plain", {}), ("bench", WAKE)):
        names = [f"{kind}-{i}" for i in range(pods)]
        launch(api, seen, names, env)
        what = "level ready to next level's container running" if env else "without priorities: from the first container to the second"
        tell(f"{pods} pods launching on one kubelet, {what}", [took(c, seen, name, env) for name in names])
        clear(c)


def native(c, pods=50):
    """The same pods as for `kubelet`, with an operator that turns the higher levels into native sidecars."""
    c.kill("operator")
    c.operator("--launch=native")
    api = Api(c)
    seen = follow_statuses(api)
    time.sleep(1)
    for kind, pause, more in (("native", 1, {}), ("native-probed", 1, PROBE), ("native-burst", 0, {})):
        names = [f"{kind}-{i}" for i in range(pods)]
        launch(api, seen, names, WAKE, pause=pause, made=lambda pod: controlled(c, pod), **more)
        # Without a probe, it is ready when it runs. The kubelet reports this only with the start of the second container.
        values = [max(0, took(c, seen, name, WAKE if more else {})) for name in names]
        what = "with a readiness probe every second, level ready" if more else "from the first container"
        tell(f"--launch=native, {pods} pods, {'one a second' if pause else 'at once'}, {what} to the next level's container running", values)
        clear(c)
    c.kill("operator")
    c.operator()


def launch(api, seen, names, env, pause=0, made=lambda pod: pod, **more):
    two = lambda name: made(pod(name, [container("first", "echo; httpd -p 80; " + SLEEP, env, **more), container("second", "echo; " + SLEEP)]))
    with ThreadPoolExecutor(8) as pool:
        for name in names:
            pool.submit(api.call, "POST", PODS, two(name))
            time.sleep(pause)
    wait(f"{len(names)} pods are launched", lambda: all((name, "second", "running") in seen for name in names), 900)


def took(c, seen, name, env=WAKE):
    """When the program wrote its first line. The kubelet reports up to a second later that it runs."""
    began = seen[(name, "first", "ready")] if env else wrote(c, name, "first")
    return wrote(c, name, "second") - began


def wrote(c, name, container, instance=0, line=0):
    """When an instance of a container wrote a line, according to containerd's log."""
    log, = (c.top / "podlogs").glob(f"default_{name}_*/{container}/{instance}.log")
    at = log.read_text().splitlines()[line].split()[0]
    moment = datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", at).replace("Z", "+00:00"))
    return moment.timestamp()


def clear(c):
    """Deletes every pod, and waits until all work for them is done."""
    api = Api(c)
    api.call("DELETE", PODS, {"gracePeriodSeconds": 0})
    none = lambda path: not api.call("GET", path + ("&" if "?" in path else "?") + "limit=1")["items"]
    wait("pods, barriers and containers are gone", lambda: none(PODS) and none(MAPS) and not c.tasks(), 300)
    time.sleep(2)


def nowhere(api):
    """Creates a node without a kubelet. This script writes the status of its pods."""
    try:
        api.call("POST", "/api/v1/nodes", {"metadata": {"name": "nowhere"}})
    except SystemExit:
        pass  # it exists


def make(api, names, executor):
    body = lambda name: {"metadata": {"name": name, "labels": {"bench": "1"}}, "spec": {
        "nodeName": "nowhere", "automountServiceAccountToken": False, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "first", "image": "i", "env": [{"name": "KRUISE_CONTAINER_PRIORITY", "value": "1"}]}, {"name": "second", "image": "i"}]}}
    list(executor.map(lambda name: api.call("POST", PODS, body(name)), names))


def report_ready(api, name):
    status = lambda name, ready, state: {"name": name, "ready": ready, "started": ready, "restartCount": 0, "image": "i", "imageID": "i", "state": state}
    # The container is not reported as refused, because the operator would try to wake a kubelet repeatedly.
    statuses = [status("first", True, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}), status("second", False, {"waiting": {"reason": "ContainerCreating"}})]
    api.call("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Pending", "containerStatuses": statuses}}, "application/merge-patch+json")


def follow_keys(api):
    def keys(obj):
        owner = (obj["metadata"].get("ownerReferences") or [{}])[0].get("name")
        return [(owner, key) for key in obj.get("data") or {}]
    return api.watch(MAPS, keys)


def buckets(c, name):
    """Reads a histogram from the operator's metrics."""
    found = re.findall(name + r'_bucket\{le="([^"]+)"\} (\d+)', c.page("/metrics"))
    return {le: int(n) for le, n in found}


def share(before, after, bound):
    total = after["+Inf"] - before["+Inf"]
    return f"{100 * (after[bound] - before[bound]) / max(total, 1):.1f}% of {total} within {bound} s"


def publish(c, pods=500, rate=50):
    """From a ready level to the visible key, with many pods launching: at a steady rate, and all at once."""
    api = Api(c)
    nowhere(api)
    seen = follow_keys(api)
    for what, pause in (f"{rate} levels a second become ready", 1 / rate), ("all levels become ready at once", 0):
        names = [f"publish-{'steady' if pause else 'burst'}-{i}" for i in range(pods)]
        with ThreadPoolExecutor(8) as pool:
            make(api, names, pool)
            wait("every pod has its first key", lambda: all((name, "p_1") in seen for name in names), 300)
            time.sleep(2)
            written, before = {}, buckets(c, "outrigger_barrier_publish_seconds")

            def report(name):
                report_ready(api, name)
                written[name] = time.time()

            jobs = []
            for name in names:
                jobs.append(pool.submit(report, name))
                time.sleep(pause)
            [job.result() for job in jobs]
        wait("every pod has its second key", lambda: all((name, "p_0") in seen for name in names), 300)
        # Measured from the API server's answer to the status. A key may be visible before that answer arrives.
        tell(f"{pods} pods, {what}: status written to key seen by a watch", [max(0, seen[(name, "p_0")] - written[name]) for name in names], "ms", 1000)
        after = buckets(c, "outrigger_barrier_publish_seconds")
        print(f"measured: the operator's own figure, from hearing of the status to the key: {share(before, after, '0.05')}, {share(before, after, '0.025')}", flush=True)
        clear(c)


def call_webhook(port, body, count):
    """How long a caller waits for the answer to each review, on a connection that stays open like the API server's. In turns with an
    answer that needs no work, which is the minimum of TLS, HTTP and this machine."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context(), timeout=60)

    def call(method, body):
        begun = time.perf_counter()
        connection.request(method, "/mutate-pods", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return time.perf_counter() - begun, answer.status, text

    reviews, bare = [], []
    for _ in range(count):
        took, status, text = call("POST", body)
        assert status == 200 and json.loads(text)["response"]["patch"], text
        reviews.append(took)
        took, status, text = call("GET", None)
        assert status == 405, text
        bare.append(took)
    return reviews, bare


def webhook(c, pods=2000):
    """How long the webhook takes: for a caller on the same machine, by the API server's metrics, and by its own."""
    api = Api(c)
    nowhere(api)
    make(api, ["reviewed"], ThreadPoolExecutor(1))
    reviewed = api.call("GET", f"{PODS}/reviewed")
    request = {"uid": "u", "operation": "CREATE", "resource": {"version": "v1", "resource": "pods"}, "namespace": "default", "object": reviewed}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    clear(c)
    for callers in 1, 8:
        with ProcessPoolExecutor(callers) as pool:
            jobs = [pool.submit(call_webhook, c.webhook, body, pods // callers) for _ in range(callers)]
            for i, what in enumerate(("reviews", "bare answers")):
                tell(f"webhook, {callers} callers without a pause, {what}", [t for job in jobs for t in job.result()[i]], "ms", 1000)
    name = "apiserver_admission_webhook_admission_duration_seconds"

    def by_api_server():
        text = c.kubectl("get", "--raw", "/metrics")
        found = re.findall(name + r'_bucket\{name="pods.outrigger.dev",[^}]*le="([^"]+)"\} (\d+)', text)
        return {le: int(n) for le, n in found} or {"+Inf": 0}

    for threads in 1, 8:
        before, own = by_api_server(), buckets(c, "outrigger_webhook_seconds")
        with ThreadPoolExecutor(threads) as pool:
            make(api, [f"hook-{threads}-{i}" for i in range(pods)], pool)
        after, now = by_api_server(), buckets(c, "outrigger_webhook_seconds")
        before = {le: before.get(le, 0) for le in after}
        print(f"measured: webhook, {threads} clients: by the API server {share(before, after, '0.005')}; by the operator {share(own, now, '0.001')}, "
              f"{share(own, now, '0.005')} ({conditions()})", flush=True)
    clear(c)


def memory(c, pods=5000):
    """The operator's memory with many pods that all use it."""
    api = Api(c)
    nowhere(api)
    pid = c.procs["operator"].pid
    resident = lambda field: int(next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith(field))) / 1024
    small = resident("VmRSS:")
    held = lambda: int(float(re.search(r"^outrigger_pods (\d+)", c.page("/metrics"), re.M)[1]))
    with ThreadPoolExecutor(8) as pool:
        make(api, [f"many-{i}" for i in range(max(0, pods - held()))], pool)
    wait("the operator knows them all", lambda: held() >= pods, 120)
    grown = (resident("VmRSS:"), resident("VmHWM:"))
    c.kill("operator")
    c.operator()
    wait("it knows them again", lambda: held() >= pods, 120)
    pid = c.procs["operator"].pid
    print(f"measured: memory with {held()} pods that all use the operator: {grown[0]:.0f} MB (peak {grown[1]:.0f} MB; {small:.0f} MB before); "
          f"after a restart {resident('VmRSS:'):.0f} MB (peak {resident('VmHWM:'):.0f} MB)", flush=True)
    clear(c)


def jobs(c, count=20):
    """From the visible exit of a Job's main to the success of its pod."""
    api = Api(c)
    seen = follow_statuses(api)
    time.sleep(1)
    for policy in "Never", "OnFailure":
        for kind, command in ("0", SLEEP), ("143", "sleep 1000 & wait"):
            names = [f"job-{policy.lower()}-{kind}-{i}" for i in range(count)]
            for name in names:
                api.call("POST", PODS, pod(name, [container("main", "sleep 1"), container("sidecar", command, KILL)], policy=policy))
                wait(f"{name} has succeeded", lambda: (name, "succeeded") in seen, 60)
            tell(f"one pod at a time, {policy}, sidecar that exits with {kind}: main seen to exit to pod Succeeded",
                 [seen[(name, "succeeded")] - seen[(name, "main", "terminated")] for name in names])
            clear(c)


def term(c, count=10):
    """From the end of a Job's main to the TERM of its sidecar and to the success of its pod, by the containers' own logs."""
    api = Api(c)
    seen = follow_statuses(api)
    time.sleep(1)
    told = "trap 'echo told; exit 0' TERM; echo; sleep 100000 & wait"
    for policy in "Never", "OnFailure":
        names = [f"term-{policy.lower()}-{i}" for i in range(count)]
        for name in names:
            # At a random moment between two checks of the kubelet.
            main = f"sleep {1 + random.random():.2f}; echo done"
            api.call("POST", PODS, pod(name, [container("main", main), container("sidecar", told, KILL)], policy=policy))
            wait(f"{name} has ended", lambda: (name, "succeeded") in seen and (name, "sidecar", "terminated") in seen, 60)
        done = {name: wrote(c, name, "main") for name in names}
        tell(f"one pod at a time, {policy}: main ends to sidecar told to stop", [wrote(c, name, "sidecar", line=1) - done[name] for name in names])
        tell(f"one pod at a time, {policy}: main ends to pod Succeeded", [seen[(name, "succeeded")] - done[name] for name in names])
        clear(c)


def recreate(c, count=20):
    """From a container recreate request to the container's TERM, and to its next start, by the container's own log."""
    api = Api(c)
    path = "/apis/apps.kruise.io/v1beta1/namespaces/default/containerrecreaterequests"
    # One pod for each request, because the kubelet delays a container that is restarted repeatedly.
    names = [f"recreate-{i}" for i in range(count)]
    seen = follow_statuses(api)
    time.sleep(1)
    for name in names:
        api.call("POST", PODS, pod(name, [container("app", "trap 'echo told; exit 0' TERM; echo; sleep 100000 & wait")]))
    wait("all run", lambda: all((name, "app", "running") in seen for name in names), 120)
    time.sleep(3)
    told, values = [], []
    for name in names:
        # At a random moment between two checks of the kubelet.
        time.sleep(1 + random.random())
        begun = time.time()
        api.call("POST", path, {"apiVersion": "apps.kruise.io/v1beta1", "kind": "ContainerRecreateRequest", "metadata": {"name": name},
                                "spec": {"podName": name, "containers": [{"name": "app"}]}})
        wait(f"{name} has a verdict", lambda: api.call("GET", f"{path}/{name}").get("status", {}).get("completionTime"), 60)
        told.append(wrote(c, name, "app", line=1) - begun)
        values.append(wrote(c, name, "app", instance=1) - begun)
    tell("one request at a time: request to container told to stop", told)
    tell("from then to container running again", [value - stop for value, stop in zip(values, told)])
    tell("one request at a time: request to container running again", values)
    clear(c)


if __name__ == "__main__":
    own_network()
    every = [kubelet, native, jobs, publish, webhook, memory, term, recreate]
    run(sys.argv[1] if len(sys.argv) > 1 else "target/release/outrigger", [step for step in every if step.__name__ in sys.argv[2:] or not sys.argv[2:]])
