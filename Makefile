# The targets people and CI use. `make help` lists them.

.PHONY: help deps deny lint check test test-cri test-v2 test-operator test-kubelet image dist bench soak soak-cri fuzz

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

deps: ## the Debian packages that building and testing need (root)
	@scripts/deps.sh

lint: ## formatting and clippy, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

deny: ## licences and advisories of all dependencies (needs cargo-deny)
	cargo deny check

check: lint ## what needs neither root nor packages: lints, unit, property and rootless tests (minutes)
	@scripts/check.sh

test: deps lint ## everything CI checks: lints, unit, property and end-to-end tests in real containers (root)
	@scripts/test.sh

test-cri: deps ## only the tests on a containerd of their own: the CRI runtime, and every pod case on it (root)
	cargo test --locked -p outrigger-cri -p outrigger --test cri --test conformance_cri --test cri_faults

test-v2: deps ## the embedded runtime on a machine with cgroup v2 only, emulated by qemu (root; minutes)
	cargo build --locked -p outrigger
	cargo test --locked -p outrigger-embedded --test containers --no-run
	scripts/vm-cgroup2.sh target/debug/outrigger "$$(ls -t target/debug/deps/containers-* | grep -v '\.d$$' | head -1)"

test-operator: deps ## only the operator's tests, on a kube-apiserver from KUBEBUILDER_ASSETS
	cargo test --locked -p outrigger-operator
	cargo test --locked -p outrigger --test operator -- --nocapture

test-kubelet: deps ## the operator on a cluster of one real kubelet, from KUBEBUILDER_ASSETS (root; scripts/operator_cluster.py)
	cargo build --locked -p outrigger
	scripts/operator-node.py target/debug/outrigger

image: ## an OCI image of the static binary, for clusters: target/outrigger-image.tar
	@scripts/image.sh

dist: ## what a release consists of, in target/dist: binaries and Debian packages for MACHINES, SBOMs, checksums
	@scripts/dist.sh

bench: ## the engine's benchmarks; docs/internals/benchmarks.md says how to read them
	cargo bench -p outrigger-lifecycle -p outrigger-simulate

soak: ## millions of simulated pods with faults (SOAK=2000000)
	OUTRIGGER_SOAK=$(or $(SOAK),2000000) cargo test --release -p outrigger-simulate --test lives properties -- --nocapture

soak-cri: deps ## PODS pods (200) on a containerd that is restarted now and then (root)
	OUTRIGGER_SOAK_PODS=$(or $(PODS),200) cargo test --locked -p outrigger --test cri_faults -- every_result --nocapture

FUZZ_TARGETS = manifest edit layer documents shim control netlink
FUZZ_SEEDS_manifest = seeds regressions
FUZZ_SEEDS_edit = seeds regressions

fuzz: $(FUZZ_TARGETS:%=fuzz-%) ## fuzz every target for SECONDS each, 300 if not given (needs cargo-fuzz)

fuzz-%:
	mkdir -p fuzz/corpus/$*
	cd fuzz && RUSTC_BOOTSTRAP=1 cargo fuzz run $* corpus/$* $(or $(FUZZ_SEEDS_$*),$(patsubst fuzz/%,%,$(wildcard fuzz/edges/$* fuzz/edges-found/$*))) -- \
	  -max_total_time=$(or $(SECONDS),300) -timeout=25 -rss_limit_mb=2048
