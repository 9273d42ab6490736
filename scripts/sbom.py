#!/usr/bin/env python3
"""Prints the components of the binary as a CycloneDX 1.5 document: scripts/sbom.py MACHINE VERSION.

The components are read from `cargo metadata` and Cargo.lock. They are the crates that are linked into `outrigger` for that machine or
run during its build, without those of tests.
"""
import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    machine, version = sys.argv[1:]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", f"{machine}-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {p["id"]: p for p in metadata["packages"]}
    needs = {n["id"]: [d["pkg"] for d in n["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])] for n in metadata["resolve"]["nodes"]}
    top = next(p["id"] for p in metadata["packages"] if p["name"] == "outrigger")
    found, queue = {top}, [top]
    while queue:
        for package in needs[queue.pop()]:
            if package not in found:
                found.add(package)
                queue.append(package)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}

    def reference(package):
        return f"pkg:cargo/{packages[package]['name']}@{packages[package]['version']}"

    def component(package):
        p = packages[package]
        made = {"type": "library", "bom-ref": reference(package), "name": p["name"], "version": p["version"], "purl": reference(package)}
        if p["license"]:
            # Some crates still separate alternatives with a slash.
            made["licenses"] = [{"expression": p["license"].replace("/", " OR ")}]
        if checksum := checksums.get((p["name"], p["version"])):
            made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return made

    ordered = sorted(found, key=reference)
    when = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    program = {**component(top), "type": "application", "version": version}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # The same input always gives the same document.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ' '.join([machine, version, *map(reference, ordered)]))}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
            "component": program,
            "properties": [{"name": "outrigger:machine", "value": machine}],
        },
        "components": [component(p) for p in ordered if p != top],
        "dependencies": [{"ref": reference(p), "dependsOn": sorted({reference(d) for d in needs[p]})} for p in ordered],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
