#!/usr/bin/env python3
"""Runs the operator on a real one-node cluster and prints the results: order, Jobs, restarts, crashes, permissions.

usage: scripts/operator-node.py OUTRIGGER [IMAGE] [launch|jobs|crashes|recreate|rights|installed]...

IMAGE is the archive that `make image` builds. `installed` uses it to install the operator as docs/guide/cluster.md describes. Without it,
the script builds an image of the binary and its libraries. operator_cluster.py lists the requirements.
"""
import json
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from operator_cluster import KILL, RUN, SLEEP, Api, container, controlled, image, own_network, phase, pod, ready, run, say, status, wait

ARCHIVE = next((a for a in sys.argv[2:] if a.endswith(".tar")), None)
PROBE = {"readinessProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 1, "periodSeconds": 1}}
POST_START = lambda seconds: {"lifecycle": {"postStart": {"exec": {"command": ["sleep", str(seconds)]}}}}
# A hook that ends when the script creates the file. So the steps before it happen in time on a slow machine, too.
UNTIL = lambda file: f"until [ -e {file} ]; do sleep 0.1; done"
PRE_STOP = lambda command: {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", command]}}}}


def started(c, name, *containers):
    return [status(c, name, n)["state"]["running"]["startedAt"] for n in containers]


def launch(c):
    """Launch priority: the seed's examples, and the rows LP-E."""
    for spelling in "KRUISE_CONTAINER_LAUNCH_PRIORITY", "KRUISE_CONTAINER_PRIORITY":
        name = "seed-proposed" if "LAUNCH" in spelling else "seed-released"
        c.create(pod(name, [container("main", SLEEP), container("sidecar", SLEEP, {spelling: "1"}, **PROBE)]))
        wait(f"{name} is ready", lambda: ready(c, name))
        first, then = started(c, name, "sidecar", "main")
        assert first < then, (first, then)
        say(f"LP-E-01, {spelling}: sidecar started {first}, main {then}")
    deployed(c)
    c.create(pod("plain", [container("c1", SLEEP, {"A": "1"}), container("c2", SLEEP, {"A": "1"})]))
    wait("plain is ready", lambda: ready(c, "plain"))
    spec = c.get("pod", "plain")["spec"]
    assert all(len(x["env"]) == 1 for x in spec["containers"]), "LP-E-03: nothing is added"
    say("LP-E-03: a pod that asks for nothing is left as it is")
    killed_between_levels(c)
    c.create(pod("graph", [container("app", SLEEP), container("db", SLEEP, **PROBE), container("migrate", "sleep 1")],
                 {"outrigger.dev/depends-on": "app: db ready, migrate completed"}, policy="OnFailure"))
    wait("app runs", lambda: (status(c, "graph", "app") or {}).get("state", {}).get("running"))
    ended = status(c, "graph", "migrate")["state"]["terminated"]["finishedAt"]
    assert ended <= started(c, "graph", "app")[0]
    say("depends-on: app started after db was ready and migrate had completed")
    c.create(pod("hopeless", [container("app", SLEEP), container("migrate", "sleep 2; exit 6"), container("other", SLEEP)],
                 {"outrigger.dev/depends-on": "app: migrate completed"}, policy="Never"))
    wait("a pod fails whose gate never opens", lambda: phase(c, "hopeless") == "Failed")
    # The kubelet would sync the pod after 10 s. On a busy machine, everything takes longer in proportion.
    limit = 8 * max(1, os.getloadavg()[0] / os.cpu_count())
    wait("its other containers are stopped", lambda: (status(c, "hopeless", "other") or {}).get("state", {}).get("terminated"), limit)
    say("a gate that never opens: the pod has failed, and what ran in it is stopped")
    c.create(pod("native", [container("main", "sleep 2"), container("proxy", SLEEP)], {"outrigger.dev/sidecars": "proxy"}, policy="Never"))
    wait("a pod with a native sidecar succeeds", lambda: phase(c, "native") == "Succeeded")
    say("outrigger.dev/sidecars: the pod has succeeded though its sidecar runs for ever")
    native_levels(c)


def deployed(c):
    spec = pod("x", [container("c1", SLEEP, {"A": "1"}), container("c2", SLEEP, {"KRUISE_CONTAINER_PRIORITY": "10", "test": "foo"}, **POST_START(1))])["spec"]
    labels = {"app": "deployed"}
    c.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "deployed"},
              "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
    pods = lambda: [p["metadata"]["name"] for p in c.get("pods", "-l", "app=deployed")["items"]]
    wait("both pods of the Deployment are ready", lambda: len(pods()) == 2 and all(ready(c, p) for p in pods()))
    maps = set()
    for name in pods():
        one, two = c.get("pod", name)["spec"]["containers"]
        refs = [one["env"][1]["valueFrom"]["configMapKeyRef"], two["env"][2]["valueFrom"]["configMapKeyRef"]]
        assert [r["key"] for r in refs] == ["p_0", "p_10"] and refs[0]["name"] == refs[1]["name"], refs
        maps.add(refs[0]["name"])
        first, then = started(c, name, "c2", "c1")
        assert first < then, (first, then)
    assert len(maps) == 2, "each pod has a ConfigMap of its own"
    say("LP-E-02: a Deployment's pods start in order, each with a ConfigMap of its own")
    c.kubectl("delete", "deployment", "deployed", "--wait=false")
    wait("the ConfigMaps go with their pods", lambda: not maps & {m["metadata"]["name"] for m in c.get("configmaps")["items"]})


def native_levels(c):
    """With --launch=native, the levels above the lowest are native sidecars, in order, and there is no barrier."""
    c.kill("operator")
    c.operator("--launch=native")
    # The second one is ready two seconds after its start. Only then may the main start.
    late = {"readinessProbe": {"exec": {"command": ["sh", "-c", "test -e /ready"]}, "periodSeconds": 1}}
    levels = [container("main", SLEEP), container("second", f"(sleep 2; touch /ready) & {SLEEP}", {"KRUISE_CONTAINER_PRIORITY": "1"}, **late),
              container("first", SLEEP, {"KRUISE_CONTAINER_PRIORITY": "2"}, **PROBE)]
    c.create(controlled(c, pod("levels", levels)))
    wait("levels is ready", lambda: ready(c, "levels"))
    p = c.get("pod", "levels")
    sidecars = [s["name"] for s in p["spec"]["initContainers"]]
    assert sidecars == ["first", "second"] and not any("valueFrom" in e for x in p["spec"]["containers"] for e in x.get("env", [])), p["spec"]
    began = {s["name"]: s["state"]["running"]["startedAt"] for s in p["status"]["initContainerStatuses"] + p["status"]["containerStatuses"]}
    assert began["first"] < began["second"] < began["main"], began
    maps = c.get("configmaps", "-l", "outrigger.dev/barrier")["items"]
    assert not [m for m in maps if m["metadata"]["name"].startswith("levels-")], "it needs no barrier"
    say(f"--launch=native: {began}")
    c.kill("operator")
    c.operator()


def killed_between_levels(c):
    # `a` becomes ready when the script says so. So the operator has ended by then, even on a slow machine.
    told = {"readinessProbe": {"exec": {"command": ["test", "-e", "/ready"]}, "periodSeconds": 1}}
    each = [{**told, **POST_START(1)}, {**PROBE, **POST_START(1)}, PROBE]
    c.create(pod("ordered", [container(n, SLEEP, **more) for n, more in zip("abc", each)], {"apps.kruise.io/container-launch-priority": "Ordered"}))
    wait("a runs", lambda: (status(c, "ordered", "a") or {}).get("state", {}).get("running"))
    c.kill("operator")
    c.execute("ordered", "a", "touch", "/ready")
    wait("a is ready", lambda: (status(c, "ordered", "a") or {}).get("ready"))
    time.sleep(1)
    assert not status(c, "ordered", "b")["state"].get("running"), "b must wait"
    c.operator()
    wait("ordered is ready", lambda: ready(c, "ordered"))
    times = started(c, "ordered", "a", "b", "c")
    assert times == sorted(times) and len(set(times)) == 3, times
    say(f"LP-E-04, Ordered, the operator killed between two levels: {times}")


def job(c, name, main, sidecar, env, policy, limit=0):
    spec = pod(name, [container("main", main), container("sidecar1", sidecar, env)], policy=policy)["spec"]
    c.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": limit, "template": {"spec": spec}}})


def finished(c, name):
    """How a Job ended."""
    conditions = c.get("job", name).get("status", {}).get("conditions", [])
    return next((x["type"] for x in conditions if x["type"] in ("Complete", "Failed") and x["status"] == "True"), None)


def jobs(c):
    """Sidecar termination: the seed's example, and the rows ST-E."""
    stubborn = "trap '' TERM; while :; do sleep 0.1; done"
    ignore = {**KILL, "KRUISE_TERMINATE_SIDECAR_IGNORE_EXIT_CODE": "true"}
    rows = [("ST-E-01", "Never", "sleep 1", SLEEP, KILL, 0, "Complete"), ("ST-E-02", "Never", "sleep 1", stubborn, ignore, 0, "Complete"),
            ("ST-E-03", "OnFailure", "exit 1", SLEEP, KILL, 1, "Failed"), ("ST-E-04", "OnFailure", "sleep 1", SLEEP, KILL, 0, "Complete"),
            # Issue 1366 of Kruise: the sidecar exits with 143, and the kubelet would restart it.
            ("issue 1366", "OnFailure", "sleep 1", "sleep 1000 & wait", KILL, 0, "Complete")]
    for row, policy, main, sidecar, env, limit, expected in rows:
        job(c, row.lower().replace(" ", "-"), main, sidecar, env, policy, limit)
    for row, policy, *_, expected in rows:
        name = row.lower().replace(" ", "-")
        result = wait(f"{row} ends", lambda: finished(c, name))
        assert result == expected, (row, result)
        say(f"{row}: Job with restartPolicy {policy} is {result}")
    delayed_sidecar(c)
    two_sidecars(c)
    exit_codes(c)
    ordered_exit_codes(c)
    crashed_sidecars(c)


def delayed_sidecar(c):
    """KD7: sidecars keep running for a time after the main, and have their own grace period."""
    stubborn = "trap '' TERM; while :; do sleep 0.1; done"
    spec = pod("delayed", [container("main", "sleep 1"), container("s", stubborn, KILL)], policy="Never", terminationGracePeriodSeconds=60)["spec"]
    notes = {"outrigger.dev/sidecar-delay": "5s", "outrigger.dev/stop-grace": "s=1s"}
    c.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "delayed"},
              "spec": {"backoffLimit": 0, "template": {"metadata": {"annotations": notes}, "spec": spec}}})
    assert wait("Job delayed ends", lambda: finished(c, "delayed")) == "Complete"
    name = c.get("pods", "-l", "job-name=delayed")["items"][0]["metadata"]["name"]
    wait("s has ended", lambda: status(c, name, "s")["state"].get("terminated"))
    at = lambda n: seconds(status(c, name, n)["state"]["terminated"]["finishedAt"])
    between = at("s") - at("main")
    assert 5 <= between < 60, between
    say(f"a sidecar that runs on for 5 s and is killed 1 s after its signal: ended {between:.0f} s after the main")


def two_sidecars(c):
    """Sidecars that exit with an error when they are stopped are not restarted, because a Job would count this as a failure."""
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "3"]}}}}
    rude = "trap 'exit 1' TERM; sleep 1000 & wait"
    for policy in "Never", "OnFailure":
        for priorities in False, True:
            name = f"two-{policy.lower()}{'-ordered' if priorities else ''}"
            env = lambda level: {**KILL, **({"KRUISE_CONTAINER_PRIORITY": str(level)} if priorities else {})}
            containers = [container("main", "sleep 2"), container("s1", rude, env(1), **hook), container("s2", rude, env(2), **hook)]
            spec = pod(name, containers, policy=policy, terminationGracePeriodSeconds=10)["spec"]
            c.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": spec}}})
            result = wait(f"Job {name} ends", lambda: finished(c, name))
            last, = c.get("pods", "-l", f"job-name={name}")["items"]
            counts = {s["name"]: s["restartCount"] for s in last["status"]["containerStatuses"]}
            assert result == "Complete" and set(counts.values()) == {0}, (name, result, counts)
            say(f"Job {name}: two sidecars that exit with 1 when told: complete, nothing restarted")


def crashed_sidecars(c, count=30):
    """With restartPolicy Never, a sidecar that crashes is restarted, and the Job always has the result of its main."""
    names = [f"crashed-{i}" for i in range(count)]
    for name in names:
        job(c, name, "sleep 2", "exit 3", KILL, "Never")
    results = [wait(f"Job {name} ends", lambda: finished(c, name), 300) for name in names]
    assert results == ["Complete"] * count, results
    c.kubectl("delete", "jobs", *names, "--wait=false")
    say(f"{count} Jobs with restartPolicy Never whose sidecars crash before their main is done: all complete")


def ordered_exit_codes(c, count=24):
    """The same for sidecars that stop one after the other, whenever the kubelet checks its containers."""
    names = [f"ordered-143-{i}" for i in range(count)]
    containers = [container("main", "sleep 2"), *(container(n, "trap 'exit 143' TERM; sleep 1000 & wait", KILL) for n in "ab")]
    template = {"metadata": {"annotations": {"outrigger.dev/depends-on": "b: a started"}}, "spec": pod("x", containers, policy="Never")["spec"]}
    for name in names:
        c.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}})
    results = [wait(f"Job {name} ends", lambda: finished(c, name), 300) for name in names]
    assert results == ["Complete"] * count, results
    # This does not check how late `b` starts. A busy kubelet may start `b` seconds before it reports the end of the main.
    phases = [p["status"]["phase"] for p in c.get("pods")["items"] if p["metadata"]["name"].startswith("ordered-143")]
    assert set(phases) == {"Succeeded"}, phases
    c.kubectl("delete", "jobs", *names, "--wait=false")
    say(f"{count} Jobs with restartPolicy Never and two sidecars in order that exit with 143: all complete")


def exit_codes(c):
    """With restartPolicy Never, a sidecar that is stopped and exits with 143 never fails the Job."""
    rounds, count = 4, 20
    results = []
    for turn in range(rounds):
        names = [f"never-143-{turn}-{i}" for i in range(count)]
        for name in names:
            job(c, name, "sleep 1", "sleep 1000 & wait", KILL, "Never")
        results += [wait(f"Job {name} ends", lambda: finished(c, name), 300) for name in names]
        c.kubectl("delete", "jobs", *names, "--wait=false")
    failed = results.count("Failed")
    assert failed == 0, f"{failed} of {len(results)} Jobs failed because of a sidecar's exit code"
    say(f"{len(results)} Jobs with restartPolicy Never, {count} at a time, whose sidecars exit with 143: all complete")


def crr_status(c, name):
    return (c.get("crr", name) or {}).get("status", {})


def request(c, name, pod_name, containers, strategy=None, version="v1beta1", **spec):
    c.create({"apiVersion": f"apps.kruise.io/{version}", "kind": "ContainerRecreateRequest", "metadata": {"name": name},
              "spec": {"podName": pod_name, "containers": [{"name": n} for n in containers], "strategy": strategy or {}, **spec}})


def verdict(c, name):
    return wait(f"request {name} has a verdict", lambda: crr_status(c, name) if crr_status(c, name).get("completionTime") else None)


def succeeded(c, name):
    states = verdict(c, name)["containerRecreateStates"]
    assert all(s["phase"] == "Succeeded" for s in states), states


def restarts(c, name):
    return {s["name"]: s["restartCount"] for s in c.get("pod", name)["status"]["containerStatuses"]}


def seconds(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone


def stopped_at(c, name, container_name):
    """When the previous instance ended."""
    return seconds(status(c, name, container_name)["lastState"]["terminated"]["finishedAt"])


def crashes(c):
    """The agent is killed in the middle of a request. Its work is finished exactly once."""
    slow_stop = "trap 'sleep 3; exit 0' TERM; while :; do sleep 0.1; done"
    hook = PRE_STOP("echo hook >> /shared/hooks")
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    c.create(pod("web", [container("app", slow_stop, **hook, **shared), container("side", SLEEP, **shared)], terminationGracePeriodSeconds=20,
                 volumes=[{"name": "shared", "emptyDir": {}}]))
    wait("web is ready", lambda: ready(c, "web"))
    request(c, "one", "web", ["app", "side"], {"orderedRecreate": True})
    wait("the hook has run", lambda: (crr_status(c, "one").get("containerRecreateStates") or [{}])[0].get("preStopDone"))
    c.kill("agent")
    time.sleep(1)
    c.agent()
    # Forced: containers that were restarted after the request was created are stopped, too.
    request(c, "two", "web", ["side"], {"forceRecreate": True}, "v1alpha1")
    for name in "one", "two":
        succeeded(c, name)
    wait("web is ready again", lambda: ready(c, "web"))
    assert restarts(c, "web") == {"app": 1, "side": 2}, restarts(c, "web")
    hooks = c.execute("web", "side", "cat", "/shared/hooks")
    assert hooks == "hook\n", hooks
    say("two requests, the agent killed in the middle of the first: each container restarted once a request, the hook run once")
    hooks_once(c, shared)


def hooks_once(c, shared):
    """A request is deleted while its hook runs, and another one is created for the same container."""
    hook = PRE_STOP("echo hook >> /shared/hooks; " + UNTIL("/shared/go"))
    for name in "same", "other":
        own = f"hook-{name}"
        c.create(pod(own, [container("app", SLEEP, **hook, **shared), container("side", SLEEP, **shared)], terminationGracePeriodSeconds=120,
                     volumes=[{"name": "shared", "emptyDir": {}}]))
        wait(f"{own} is ready", lambda: ready(c, own))
        request(c, own, own, ["app"])
        wait("the hook has begun", lambda: (crr_status(c, own).get("containerRecreateStates") or [{}])[0].get("preStopBegun"))
        c.kubectl("delete", "crr", own)
        second = own if name == "same" else f"{own}-2"
        request(c, second, own, ["app"])
        c.execute(own, "side", "touch", "/shared/go")
        succeeded(c, second)
        wait(f"{own} is ready again", lambda: ready(c, own))
        assert restarts(c, own) == {"app": 1, "side": 0}, restarts(c, own)
        hooks = c.execute(own, "side", "cat", "/shared/hooks")
        assert hooks == "hook\n", hooks
    say("a request deleted during its hook, and another of the same and of another name: the hook run once, the container restarted once")


def recreate(c):
    """Container recreate requests: the rows CRR-E."""
    for version in "v1alpha1", "v1beta1":
        name = f"e1-{version}"
        c.create(pod(name, [container("app", SLEEP), container("sidecar", SLEEP)]))
        wait(f"{name} is ready", lambda: ready(c, name))
        before = status(c, name, "app")["containerID"]
        request(c, name, name, ["app"], {"minStartedSeconds": 5}, version, ttlSecondsAfterFinished=3)
        made = c.get("crr", name)
        assert made["metadata"]["labels"]["crr.apps.kruise.io/active"] == "true" and made["spec"]["containers"][0]["statusContext"]["containerID"] == before
        succeeded(c, name)
        after = status(c, name, "app")
        assert after["ready"] and after["containerID"] != before and after["restartCount"] == 1
        wait(f"CRR-E-01: {name} is deleted", lambda: c.get("crr", name) is None)
        request(c, f"e2-{version}", name, ["app", "sidecar"], version=version)
        succeeded(c, f"e2-{version}")
        wait("ready again", lambda: ready(c, name))
        assert restarts(c, name) == {"app": 2, "sidecar": 1}, restarts(c, name)
        say(f"CRR-E-01, CRR-E-02: {version}")
    orders(c)
    deadlines(c)
    versions(c)
    ended(c)


def orders(c):
    rows = [("CRR-E-03", {}, False), ("CRR-E-04", {"orderedRecreate": True}, True), ("CRR-E-08", {"forceRecreate": True}, False),
            ("CRR-E-09", {"forceRecreate": True, "orderedRecreate": True}, True)]
    for row, *_ in rows:
        c.create(pod(row.lower(), [container("app", SLEEP, **POST_START(5)), container("sidecar", SLEEP)]))
    for row, strategy, _ in rows:
        wait(f"{row} is ready", lambda: ready(c, row.lower()))
        request(c, row.lower(), row.lower(), ["app", "sidecar"], strategy)
    for row, _, is_ordered in rows:
        succeeded(c, row.lower())
        between = stopped_at(c, row.lower(), "sidecar") - stopped_at(c, row.lower(), "app")
        # The hook of the new instance takes 5 s. With an order, the sidecar is stopped after that.
        again = seconds(started(c, row.lower(), "app")[0]) - stopped_at(c, row.lower(), "app")
        assert (between >= 5) if is_ordered else (between < again + 5), (row, between, again)
        say(f"{row}: sidecar stopped {between:.0f} s after app")


def deadlines(c):
    gate = {"readinessGates": [{"conditionType": "KruisePodReady"}]}
    c.create(pod("hooked", [container("app", SLEEP, **PRE_STOP(UNTIL("/go"))), container("sidecar", SLEEP)], terminationGracePeriodSeconds=600, **gate))
    both = lambda: all(s["ready"] for s in (c.get("pod", "hooked") or {}).get("status", {}).get("containerStatuses", [{"ready": False}]))
    wait("hooked runs", both)
    request(c, "e5", "hooked", ["app", "sidecar"], activeDeadlineSeconds=3)
    states = verdict(c, "e5")["containerRecreateStates"]
    # Kruise leaves them Pending. KD3: containers that are not done at the deadline have failed.
    assert [s["phase"] for s in states] == ["Failed", "Failed"], states
    # The stop that has begun continues, and the pod's next request does not wait for it.
    request(c, "e5-next", "hooked", ["sidecar"])
    succeeded(c, "e5-next")
    assert restarts(c, "hooked") == {"app": 0, "sidecar": 1}, restarts(c, "hooked")
    c.execute("hooked", "app", "touch", "/go")
    wait("the stop under way is finished", lambda: restarts(c, "hooked")["app"] == 1)
    wait("it is recorded", lambda: crr_status(c, "e5")["containerRecreateStates"][0].get("isKilled"))
    assert [s["phase"] for s in crr_status(c, "e5")["containerRecreateStates"]] == ["Failed", "Failed"], "a verdict is final"
    say("CRR-E-05: the deadline gives a verdict, and it stays; another request is served meanwhile")
    wait("hooked runs", both)
    request(c, "e6", "hooked", ["app", "sidecar"])
    wait("the hook has begun", lambda: (crr_status(c, "e6").get("containerRecreateStates") or [{}])[0].get("preStopBegun"))
    time.sleep(2)
    assert restarts(c, "hooked") == {"app": 1, "sidecar": 1}, restarts(c, "hooked")
    told = int(time.time())
    c.execute("hooked", "app", "touch", "/go")
    succeeded(c, "e6")
    assert stopped_at(c, "hooked", "sidecar") >= told, (stopped_at(c, "hooked", "sidecar"), told)
    say("CRR-E-06: sidecar stopped after the hook of app")
    wait("hooked runs", both)

    def unready(obj):
        conditions = obj.get("status", {}).get("conditions", [])
        return [("unready", x.get("message", "")) for x in conditions if x["type"] == "KruisePodReady" and x["status"] == "False"]

    seen = Api(c).watch("/api/v1/namespaces/default/pods?fieldSelector=metadata.name=hooked", unready)
    # Nothing ends the hook except its grace period.
    request(c, "e7", "hooked", ["app", "sidecar"], {"terminationGracePeriodSeconds": 3, "unreadyGracePeriodSeconds": 1})
    wait("the pod is made unready", lambda: any("default/e7" in message for _, message in list(seen)))
    succeeded(c, "e7")
    condition = lambda: next((x for x in c.get("pod", "hooked")["status"]["conditions"] if x["type"] == "KruisePodReady"), {})
    wait("the pod is ready again", lambda: condition().get("status") == "True")
    say("CRR-E-07: unready first; the hook of app was ended by the grace of the request")


def versions(c):
    c.create(pod("versioned", [container("app", SLEEP)]))
    wait("versioned is ready", lambda: ready(c, "versioned"))
    debug = {"name": "debug", "image": "localhost/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
    c.kubectl("patch", "pod", "versioned", "--subresource=ephemeralcontainers", "--type=merge", "-p", json.dumps({"spec": {"ephemeralContainers": [debug]}}))
    uid = c.get("pod", "versioned")["metadata"]["uid"]
    request(c, "e10", "versioned", ["app"])
    succeeded(c, "e10")
    made = c.get("crr", "e10")
    snapshot = made["status"]["containerStatusSnapshot"]
    assert [s["name"] for s in snapshot] == ["app"] and snapshot[0]["containerID"] == status(c, "versioned", "app")["containerID"]
    assert not made["metadata"].get("annotations", {}).get("crr.apps.kruise.io/sync-container-statuses")
    assert c.get("pod", "versioned")["metadata"]["uid"] == uid
    say("CRR-E-10, CRR-E-13: a snapshot of the new instance, in a pod with an ephemeral container")
    grace = {"unreadyGracePeriodSeconds": 1}
    request(c, "e11", "versioned", ["app"], grace, "v1alpha1")
    succeeded(c, "e11")
    new = c.get("containerrecreaterequests.v1beta1.apps.kruise.io", "e11")
    assert new["status"]["containerStatusSnapshot"] and any(x["type"] == "PreRecreateGrace" for x in new["status"]["conditions"])
    assert not [a for a in new["metadata"].get("annotations", {}) if a.startswith("crr.")]
    request(c, "e12", "versioned", ["app"], grace)
    succeeded(c, "e12")
    old = c.get("containerrecreaterequests.v1alpha1.apps.kruise.io", "e12")
    assert old["metadata"]["annotations"]["crr.apps.kruise.io/unready-acquired"]
    say("CRR-E-11, CRR-E-12: made in one version, read in the other")


def ended(c):
    """Containers that do not start again, and pods that end in the meantime, are results."""
    for policy in "Fail", "Ignore":
        name = f"once-{policy.lower()}"
        c.create(pod(name, [container("a", SLEEP), container("b", SLEEP), container("c", SLEEP)], policy="Never"))
        wait(f"{name} is ready", lambda: ready(c, name))
        request(c, name, name, ["a", "b"], {"orderedRecreate": True, "failurePolicy": policy})
        states = verdict(c, name)["containerRecreateStates"]
        assert [s["phase"] for s in states] == ["Failed", "Failed"] and "does not start it again" in states[0]["message"], states
        runs = (status(c, name, "b")["state"].get("running") is not None)
        assert runs == (policy == "Fail"), (policy, states)
    # It makes the main end. It ends itself only when the kubelet knows this, because the kubelet would otherwise restart it.
    dies = container("proxy", f"trap 'touch /shared/go; {UNTIL('/shared/end')}; exit 1' TERM; while :; do sleep 0.1; done", restartPolicy="Always",
                     volumeMounts=[{"name": "shared", "mountPath": "/shared"}])
    main = container("main", "until [ -e /shared/go ]; do sleep 0.1; done", volumeMounts=[{"name": "shared", "mountPath": "/shared"}])
    c.create(pod("over", [main], policy="Never", initContainers=[dies], volumes=[{"name": "shared", "emptyDir": {}}], terminationGracePeriodSeconds=120))
    wait("over runs", lambda: (status(c, "over", "main") or {}).get("state", {}).get("running"))
    request(c, "over", "over", ["proxy"])
    wait("the main has ended", lambda: status(c, "over", "main")["state"].get("terminated"))
    c.execute_in(c.get("pod", "over")["status"]["initContainerStatuses"][0], "touch", "/shared/end")
    message = verdict(c, "over")["message"]
    assert "is over: its phase is" in message, message
    say("containers that are not started again and pods that end meanwhile give a verdict at once")


def rights(c):
    """Compares the calls of operator and agent so far with the rules that they were granted."""
    for who, roles in ("outrigger-operator", [("clusterrole",), ("role", "-n", "outrigger-system")]), ("outrigger-agent", [("clusterrole",)]):
        granted = set()
        for kind, *more in roles:
            for rule in c.get(kind, who, *more)["rules"]:
                granted |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
        made = set()
        for line in open(c.top / "audit.log"):
            if not line.endswith("\n"):
                continue  # it is being written
            entry = json.loads(line)
            what = entry.get("objectRef", {})
            if entry["user"]["username"].endswith(f":{who}") and "resource" in what:
                resource = what["resource"] + (f"/{what['subresource']}" if what.get("subresource") else "")
                made.add((what.get("apiGroup", ""), resource, entry["verb"]))
        assert made <= granted, made - granted
        print(f"{who}: {len(made)} kinds of calls, {len(granted)} granted; not used in these steps: {sorted(granted - made)}", flush=True)
        if who == "outrigger-agent":
            assert made == granted, granted - made
    say("nothing was called without a rule, and the agent has no rule it does not use")


def image_of(c):
    """Builds an image of the binary and its libraries, if `make image` has not built one."""
    print("no image was given: the binary and its libraries are put into one", flush=True)
    root = c.top / "image"
    linked = subprocess.run(["ldd", c.outrigger], capture_output=True, text=True).stdout
    files = [word for line in linked.splitlines() for word in line.split() if word.startswith("/")]
    for source, target in [(c.outrigger, "/bin/outrigger"), *((f, f) for f in files)]:
        (root / target[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / target[1:])
    image(root, "localhost/outrigger:test", {"Entrypoint": ["/bin/outrigger"], "Env": ["PATH=/bin"]}, c.top / "outrigger.tar")
    return str(c.top / "outrigger.tar")


def installed(c):
    """Follows docs/guide/cluster.md: the image, `operator install`, a Job, and uninstalling."""
    for name in "operator", "agent":
        c.kill(name)
    ctr = ["ctr", "-a", str(c.sock), "-n", "k8s.io", "images"]
    if ARCHIVE:
        subprocess.run([*ctr, "import", "--base-name", "localhost/outrigger", ARCHIVE], check=True, capture_output=True)
        subprocess.run([*ctr, "tag", "localhost/outrigger:latest", "localhost/outrigger:test"], check=True, capture_output=True)
    else:
        subprocess.run([*ctr, "import", image_of(c)], check=True, capture_output=True)
    env = {**os.environ, "KUBECONFIG": str(c.top / "admin.conf")}
    # Until now, the API server called the operator by address.
    c.kubectl("delete", "mutatingwebhookconfiguration", "outrigger-operator")
    c.kubectl("delete", "lease", "-n", "outrigger-system", "outrigger-operator")
    done = subprocess.run([c.outrigger, "operator", "install", "--image", "localhost/outrigger:test", "--force"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    crd = json.dumps([{"op": "remove", "path": "/spec/conversion/webhook/clientConfig/url"}])
    if "url" in c.get("crd", "containerrecreaterequests.apps.kruise.io")["spec"]["conversion"]["webhook"]["clientConfig"]:
        c.kubectl("patch", "crd", "containerrecreaterequests.apps.kruise.io", "--type=json", "-p", crd)
    socket_of_test = ["operator", "agent", "--health-address", "127.0.0.1:10221", "--cri-endpoint", f"unix://{RUN}/containerd.sock"]
    c.kubectl("patch", "daemonset", "-n", "outrigger-system", "outrigger-agent", "--type=json", "-p",
              json.dumps([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": socket_of_test}]))
    for kind in "deployment/outrigger-operator", "daemonset/outrigger-agent":
        c.kubectl("rollout", "status", "-n", "outrigger-system", kind, "--timeout=600s")
    say("the image runs as Deployment and DaemonSet, and is ready")
    c.create(pod("in-cluster", [container("main", SLEEP), container("sidecar", SLEEP, {"KRUISE_CONTAINER_PRIORITY": "1"}, **PROBE)]))
    wait("in-cluster is ready", lambda: ready(c, "in-cluster"))
    first, then = started(c, "in-cluster", "sidecar", "main")
    assert first < then
    job(c, "in-cluster", "sleep 1", SLEEP, KILL, "Never")
    assert wait("the Job ends", lambda: finished(c, "in-cluster")) == "Complete"
    request(c, "in-cluster", "in-cluster", ["main"])
    succeeded(c, "in-cluster")
    say("levels, a Job and a request, served by the installed operator and agent")
    c.kubectl("delete", "mutatingwebhookconfiguration", "outrigger-operator")
    printed = subprocess.run([c.outrigger, "operator", "install", "-o", "yaml"], capture_output=True, text=True, env=env, check=True).stdout
    c.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", stdin=printed)
    assert c.get("namespace", "outrigger-system") is None and c.get("crd", "containerrecreaterequests.apps.kruise.io") is None
    assert status(c, "in-cluster", "main")["state"].get("running"), "pods go on"
    say("uninstalled; pods go on")


if __name__ == "__main__":
    own_network()
    every = [launch, jobs, crashes, recreate, rights, installed]
    wanted = [a for a in sys.argv[2:] if not a.endswith(".tar")]
    run(sys.argv[1] if len(sys.argv) > 1 else "target/debug/outrigger", [step for step in every if not wanted or step.__name__ in wanted])
